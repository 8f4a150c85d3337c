#!/usr/bin/env python3
"""The engine under a user of its own: commd runs as one user, a launcher as another one starts the
engine for it. Needs root, to be several users."""

import errno
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import Cluster, Skip, check, equal, main, running, until  # noqa: E402

COMMD_UID, ENGINE_UID = 4000, 4003


class Launcher:
    """What systemd does with commd-engine.socket and commd-engine.service."""

    def __init__(self, path):
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        os.chmod(path, 0o600)
        os.chown(path, COMMD_UID, COMMD_UID)
        self.listener.listen(8)
        self.start()

    def start(self):
        def become():
            os.dup2(self.listener.fileno(), 3)
            os.set_inheritable(3, True)
            os.setgroups([])
            os.setgid(ENGINE_UID)
            os.setuid(ENGINE_UID)

        self.process = subprocess.Popen(
            [c.ENGINE, "--launcher", "3"], preexec_fn=become, pass_fds=[3], stdin=subprocess.DEVNULL
        )

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        self.listener.close()


class OtherUsers(Cluster):
    """Two nodes whose commds are of one user and whose engines are of another."""

    def __init__(self):
        super().__init__(2, start=False)

    def __enter__(self):
        if os.getuid() != 0:
            raise Skip("not root")
        super().__enter__()
        os.chmod(self.folder, 0o755)
        os.chown(self.key_file, COMMD_UID, COMMD_UID)
        self.launchers = []
        setpriv = shutil.which("setpriv") or "/usr/bin/setpriv"
        for node in self.nodes:
            os.chown(node.home, COMMD_UID, COMMD_UID)
            launcher = Launcher(os.path.join(self.folder, f"{node.name}.launch"))
            self.launchers.append(launcher)
            node.prefix = [
                setpriv,
                f"--reuid={COMMD_UID}",
                f"--regid={COMMD_UID}",
                "--clear-groups",
            ]
            node.start(arguments=["--launcher", launcher.path])
        names = [node.name for node in self.nodes]
        until(lambda: all(node.sees(names) for node in self.nodes), "two nodes that see each other")
        return self

    def __exit__(self, *error):
        try:
            super().__exit__(*error)
            for launcher in self.launchers:
                check(launcher.process.poll() is None, "the launcher outlives the engines")
        finally:
            for launcher in self.launchers:
                launcher.close()


def uid_of(pid):
    with open(f"/proc/{pid}/status") as file:
        return {line.split()[1] for line in file if line.startswith(("Uid:", "Gid:"))}


def denied(uid, attempt):
    """Does @attempt fail for want of permission when it is made by @uid?"""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            attempt()
        except PermissionError:
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def connected(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(path)
    return s


def works(cluster, group):
    ranks = cluster.ranks(group, [0, 1])
    for rank in ranks:
        rank.start("all_reduce", name=group, count=100000)
    for rank in ranks:
        rank.finish()
    for rank in ranks:
        rank.close()
    cluster.all_ranks.clear()


def test_the_engine_is_of_another_user():
    with OtherUsers() as cluster:
        for node in cluster.nodes:
            equal(uid_of(node.engine_pid()), {str(ENGINE_UID)}, "uid and gid of the engine")
            equal(uid_of(node.pid), {str(COMMD_UID)}, "of commd")
        check(
            denied(ENGINE_UID, lambda: open(cluster.key_file)),
            "the key is closed to the engine's user",
        )
        works(cluster, "g")


def test_commd_kills_an_engine_that_it_may_not_signal():
    with OtherUsers() as cluster:
        cluster.expect("engine: it does not answer")
        cluster.expect("engine .*(was lost|of node)")
        cluster.expect("the engines of nodes")
        node = cluster.nodes[0]
        engine = node.engine_pid()
        os.kill(engine, signal.SIGSTOP)
        until(lambda: not running(engine), "the end of an engine that hangs", 30)
        until(lambda: node.engine_pid() not in (0, engine), "another engine")
        names = [n.name for n in cluster.nodes]
        until(lambda: all(n.sees(names) for n in cluster.nodes), "nodes that see each other", 30)
        works(cluster, "g")


def test_the_engine_that_dies_is_told_and_replaced():
    with OtherUsers() as cluster:
        cluster.expect("engine .*(was lost|of node)")
        cluster.expect("the engines of nodes")
        node = cluster.nodes[0]
        engine = node.engine_pid()
        os.kill(engine, signal.SIGKILL)
        node.wait_log("killed by signal 9")
        until(lambda: node.engine_pid() not in (0, engine), "another engine")
        names = [n.name for n in cluster.nodes]
        until(lambda: all(n.sees(names) for n in cluster.nodes), "nodes that see each other", 30)
        works(cluster, "g")


def listening(node):
    """The ports of the engine's range at which somebody listens."""
    found = set()
    with open("/proc/net/tcp") as file:
        for line in list(file)[1:]:
            words = line.split()
            if words[3] == "0A":
                found.add(int(words[1].split(":")[1], 16))
    return found & set(range(node.port + 1, node.port + c.PORT_BLOCK))


def is_taken(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
        return False


def keeps_its_port(cluster):
    if c.FABRIC == "ucx":
        raise Skip("UCX opens its ports itself")
    cluster.expect("engine .*(was lost|of node)")
    cluster.expect("the engines of nodes")
    node = cluster.nodes[0]
    engine, ports = node.engine_pid(), listening(node)
    equal(len(ports), 1)
    os.kill(engine, signal.SIGKILL)

    def another():
        check(is_taken(*ports), "nobody else gets the port")
        return node.engine_pid() not in (0, engine)

    until(another, "another engine")
    names = [n.name for n in cluster.nodes]
    until(lambda: all(n.sees(names) for n in cluster.nodes), "nodes that see each other", 30)
    equal(listening(node), ports)
    works(cluster, "g")


def test_the_port_of_an_engine_stays_taken():
    with OtherUsers() as cluster:
        keeps_its_port(cluster)


def test_the_port_of_an_engine_that_is_a_child_stays_taken():
    with Cluster(2) as cluster:
        keeps_its_port(cluster)


def start_again(node, kept):
    """As the service manager does: with the descriptors that it has kept."""
    fds = [os.dup(fd) for fd in kept.values()]

    def give():
        for i, fd in enumerate(fds):
            os.dup2(fd, 100 + i)
        for i in range(len(fds)):
            os.dup2(100 + i, 3 + i)
        os.closerange(3 + len(fds), 200)

    with open(node.log_file, "ab") as log:
        node.process = subprocess.Popen(
            ["sh", "-c", f'LISTEN_PID=$$ LISTEN_FDS={len(fds)} exec "$@"', "sh",
             c.COMMD, "--config", node.config],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            preexec_fn=give, close_fds=False,
            env=dict(os.environ, LISTEN_FDNAMES=":".join(kept)),
        )  # fmt: skip
    for fd in fds:
        os.close(fd)


def test_ports_stay_taken_while_commd_restarts():
    if c.FABRIC == "ucx":
        raise Skip("UCX opens its ports itself")
    with Cluster(2, start=False) as cluster:
        cluster.expect("engine .*(was lost|of node)")
        cluster.expect("the engines of nodes")
        cluster.expect("node node0")
        cluster.expect("has ended while no commd was there")
        node, other = cluster.nodes
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(os.path.join(cluster.folder, "notify"))
        manager.settimeout(c.LATEST)
        node.start({"NOTIFY_SOCKET": manager.getsockname()})
        other.start()
        cluster.wait_linked()
        kept = {}
        while not {"nodes", "engine"} <= set(kept):
            data, fds, _, _ = socket.recv_fds(manager, 4096, 4)
            if data.startswith(b"FDSTORE=1"):
                kept[data.decode().split("\n")[1].removeprefix("FDNAME=")] = fds[0]
        ports = listening(node)
        equal(len(ports), 1)
        engine = node.engine_pid()
        node.process.kill()
        node.process.wait()
        check(running(engine), "it would go on: its line is kept")
        os.kill(engine, signal.SIGKILL)
        until(lambda: not running(engine), "the end of its engine")
        check(is_taken(*ports) and is_taken(node.port), "nobody else gets the ports")
        start_again(node, kept)
        cluster.wait_linked()
        equal(listening(node), ports)
        works(cluster, "g")
        for fd in kept.values():
            os.close(fd)
        manager.close()


def test_the_launcher_that_dies_takes_its_engine_along():
    with OtherUsers() as cluster:
        cluster.expect("engine .*(was lost|of node)")
        cluster.expect("the engines of nodes")
        cluster.expect("cannot start it by its launcher")
        node, launcher = cluster.nodes[0], cluster.launchers[0]
        engine = node.engine_pid()
        launcher.kill()
        node.wait_log("its launcher .*node0.launch ended")
        until(lambda: not running(engine), "the engine's end")
        launcher.start()
        until(lambda: node.engine_pid() not in (0, engine), "another engine", 30)
        names = [n.name for n in cluster.nodes]
        until(lambda: all(n.sees(names) for n in cluster.nodes), "nodes that see each other", 30)
        works(cluster, "g")


def test_commd_that_is_killed_leaves_no_engine():
    with OtherUsers() as cluster:
        cluster.expect("node node0 was lost")
        cluster.expect("the engines of nodes")
        cluster.expect("engine .*(was lost|of node)")
        node = cluster.nodes[0]
        engine = node.engine_pid()
        node.kill()
        until(lambda: not running(engine), "the engine's end")
        node.start(arguments=["--launcher", cluster.launchers[0].path])
        names = [n.name for n in cluster.nodes]
        until(lambda: all(n.sees(names) for n in cluster.nodes), "nodes that see each other", 30)
        works(cluster, "g")


def test_strangers_cannot_use_the_launcher():
    with OtherUsers() as cluster:
        path = cluster.launchers[0].path
        for uid in (4001, ENGINE_UID):
            check(denied(uid, lambda: connected(path)), f"uid {uid} may not connect")
        # and nonsense from commd's own user costs nobody anything
        for data, fds in ((b"", []), (b"x", []), (b"commd-engine\0", []), (b"a\0" * 2000, [0])):
            with connected(path) as s:
                if data:
                    socket.send_fds(s, [data], fds)
                    s.recv(100)
        # what is cut off is not started, though it ends like a request: 4,096 bytes are taken
        with connected(path) as s:
            words = b"commd-engine\0".ljust(4095, b"x") + b"\0"
            socket.send_fds(s, [words + b"more\0"], [0])
            equal(struct.unpack("Iii", s.recv(100)), (2, 0, errno.EPROTO))
        works(cluster, "g")


if __name__ == "__main__":
    main(globals())
