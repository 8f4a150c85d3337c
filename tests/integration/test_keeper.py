#!/usr/bin/env python3
"""commd with a keeper: it is killed and there again, with the same sockets; signals, exit codes,
and that nothing is left."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import Cluster, Skip, check, equal, main, running, until  # noqa: E402

KILLED = "was killed by signal"


def pid_in(node, name="commd.pid"):
    """0: there is none."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        with open(os.path.join(node.home, name)) as file:
            return int(file.read())
    return 0


def commd_pid(node):
    return node.pid_in("commd.pid")


def next_pid(node, old):
    """Of the commd after @old, once it serves."""

    def there():
        pid = commd_pid(node)
        return pid if pid != old and node.ctl("status") else 0

    return until(there, f"a commd after {old}; the log:\n{node.log()}")


def start(node, *arguments, environment=None):
    node.start(environment, arguments=["--keep", *arguments])
    return next_pid(node, 0)


def kill(pid, signo=signal.SIGKILL):
    os.kill(pid, signo)


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def listening(pid):
    """TCP ports at which the process listens."""
    sockets = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return {int(r[1][-4:], 16) for r in rows if r[3] == "0A" and f"socket:[{r[9]}]" in sockets}


def works(cluster, group, places):
    ranks = cluster.ranks(group, places)
    for rank in ranks:
        rank.start("all_reduce", name=group, count=1000)
    for rank in ranks:
        rank.finish()
    for rank in ranks:
        rank.call("leave", name=group)
        rank.close()


def test_killed_commd_is_there_again():
    with Cluster(2, start=False) as cluster:
        cluster.expect(KILLED)
        cluster.expect("node node0 was lost")
        cluster.expect("engine .*was lost|the engines of nodes")
        cluster.expect("closed before (the TLS handshake|its hello)")
        node, other = cluster.nodes
        pid = start(node)
        other.start()
        cluster.wait_linked()
        keeper = node.process.pid
        equal(children(keeper), [pid])
        check(os.getsid(pid) != os.getsid(keeper), "a terminal would signal both")
        works(cluster, "a", [0, 1])
        until(lambda: not node.clients(), "clients that are gone")
        kept = descriptors(keeper)
        for turn in range(5):
            ports = listening(pid)
            check(node.port in ports, ports)
            kill(pid)
            check(not c.port_is_free(node.port), "nobody else gets the port")
            old, pid = pid, next_pid(node, pid)
            equal(listening(pid), ports)
            equal(children(keeper), [pid])
            check(not running(old), "the old one")
        cluster.wait_linked()
        works(cluster, "b", [0, 1])
        until(lambda: descriptors(keeper) <= kept, "as many descriptors in the keeper as before")


def test_connect_queues_while_it_is_gone():
    with Cluster(1, start=False) as cluster:
        cluster.expect(KILLED)
        node = cluster.nodes[0]
        pid = start(node)
        inode = os.stat(node.socket).st_ino
        kill(pid)
        until(lambda: not running(pid), "its end")
        with socket.socket(socket.AF_UNIX) as early:
            early.settimeout(c.LATEST)
            early.connect(node.socket)  # whether the next one is there already or not
        rank = cluster.rank(0)
        pid = next_pid(node, pid)
        equal(os.stat(node.socket).st_ino, inode)
        rank.call("join", name="g", rank=0, size=1)
        # commd says who it is: the new one
        with socket.socket(socket.AF_UNIX) as late:
            late.connect(node.socket)
            cred = late.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            equal(int.from_bytes(cred[:4], sys.byteorder), pid)


def test_asked_to_restart():
    """Without a warning, and at once."""
    with Cluster(1, start=False) as cluster:
        node = cluster.nodes[0]
        pid = start(node)
        for who in (pid, node.process.pid):  # also by way of the keeper
            kill(who, signal.SIGUSR1)
            pid = next_pid(node, pid)
        node.wait_log("has made room -> starting the next one")


def test_signals_and_exit_codes():
    with Cluster(1, start=False) as cluster:
        node = cluster.nodes[0]
        for signo in (signal.SIGTERM, signal.SIGINT):
            pid = start(node)
            node.process.send_signal(signo)
            equal(c.exit_code(node.process), 0)
            check(not running(pid), "commd")
            equal(sorted(os.listdir(node.home)), ["commd.log", "commd.yaml"])
        # commd itself is asked to end: its keeper does not start another one
        pid = start(node)
        kill(pid, signal.SIGTERM)
        equal(c.exit_code(node.process), 0)
        # a reload
        pid = start(node)
        node.process.send_signal(signal.SIGHUP)
        node.wait_log("reload -> configuration .* reloaded")
        equal(commd_pid(node), pid)
        node.stop()
        # a configuration that is wrong: the code is passed on, and it is not tried again
        done = c.run([c.COMMD, "--keep", "--config", "/nonexistent.yaml"])
        equal((done.returncode, done.stderr.count("cannot open")), (78, 1))
        equal(c.run([c.COMMD, "--keep", "--no-such-option"]).returncode, 64)
        done = c.run([c.COMMD, "--keep", "--config", node.config, "--check-config"])
        equal((done.returncode, done.stdout), (0, f"{node.config}: ok\n"))
        # two of one configuration: the second one ends, and takes nothing along
        pid = start(node)
        second = c.run([c.COMMD, "--keep", "--config", node.config])
        equal(second.returncode, 1)
        check("already in use by a running commd" in second.stderr, second.stderr)
        cluster.expect("ended with 1 -> ending")
        check(node.ctl("status"), "the first one serves")
        equal(commd_pid(node), pid)


def test_sigterm_while_it_is_gone():
    """Its clients are told, and its files are removed: a commd comes to do that."""
    with Cluster(1, start=False) as cluster:
        cluster.expect(KILLED)
        node = cluster.nodes[0]
        pid = start(node)
        node.process.send_signal(signal.SIGSTOP)  # so that both are there when it goes on
        kill(pid)
        until(lambda: not running(pid), "commd's end")
        node.process.send_signal(signal.SIGTERM)
        node.process.send_signal(signal.SIGCONT)
        equal(c.exit_code(node.process), 0)
        equal(sorted(os.listdir(node.home)), ["commd.log", "commd.yaml"])


def test_killed_keeper():
    """commd ends as by SIGTERM, and takes its files along."""
    with Cluster(1, start=False) as cluster:
        node = cluster.nodes[0]
        pid = start(node)
        node.kill()
        until(lambda: not running(pid), "commd's end")
        equal(sorted(os.listdir(node.home)), ["commd.log", "commd.yaml"])
        node.wait_log("SIGTERM: its keeper has ended -> stopping")
        start(node)


def test_what_others_hear_of_a_killed_keeper():
    with Cluster(2, start=False) as cluster:
        cluster.expect("node node0 was lost|is stopping|closed before")
        node, other = cluster.nodes
        start(node)
        other.start()
        cluster.wait_linked()
        ranks = cluster.ranks("a", [0, 1])
        node.kill()
        message = ranks[1].call_error("all_reduce", name="a", count=1000)["message"]
        check("commd on node node0 is stopping: its keeper has ended" in message, message)


def test_one_that_does_not_come_up_again():
    """Tried less and less often, and it comes back when it can."""
    with Cluster(1, start=False) as cluster:
        cluster.expect(KILLED)
        cluster.expect("ended with 1 -> starting it again")
        cluster.expect("ended with 78 -> ending")
        node = cluster.nodes[0]
        pid = start(node)
        os.unlink(node.socket)
        os.mkdir(node.socket)
        os.mkdir(os.path.join(node.socket, "x"))  # "there is something else than a socket": 78
        kill(pid)
        equal(c.exit_code(node.process), 78)
        os.rmdir(os.path.join(node.socket, "x"))
        os.rmdir(node.socket)
        os.unlink(os.path.join(node.home, "commd.pid"))

        pid = start(node)
        other = os.path.join(node.home, "other")
        with socket.socket(socket.AF_UNIX) as squatter:
            squatter.bind(other)
            squatter.listen()
            os.rename(other, node.socket)  # in use by another: an internal error, tried again
            kill(pid)
            node.wait_log("ended with 1 -> starting it again in 0.1 s: it dies again and again")
        os.unlink(node.socket)
        next_pid(node, pid)


def test_what_the_manager_above_hears():
    """A keeper below a service manager passes on what commd says, and keeps descriptors itself."""
    with Cluster(1, start=False) as cluster:
        cluster.expect(KILLED)
        node = cluster.nodes[0]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            path = os.path.join(cluster.folder, "notify")
            manager.bind(path)
            manager.settimeout(c.LATEST)
            environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000", "WATCHDOG_PID": "1"}
            pid = start(node, environment=environment)
            heard = manager.recv(4096).decode()
            check(heard.startswith("READY=1\nSTATUS="), heard)
            check("WATCHDOG=1" in manager.recv(4096).decode(), "its watchdog is fed")
            kill(pid)
            while not manager.recv(4096).decode().startswith("READY=1"):
                pass
            equal(node.stop(), 0)
            os.unlink(path)


def test_no_descriptor_is_left_in_the_engine():
    """Nor in commd, of what a commd before has left and nobody needs."""
    with Cluster(2, start=False) as cluster:
        cluster.expect(KILLED)
        cluster.expect("node node0 was lost")
        cluster.expect("engine .*was lost|the engines of nodes")
        node, other = cluster.nodes
        pid = start(node)
        other.start()
        cluster.wait_linked()

        def count(pid):
            until(node.engine_pid, "an engine")
            cluster.wait_linked()
            return descriptors(node.engine_pid()), descriptors(pid)

        before = count(pid)
        for _ in range(3):
            kill(pid)
            pid = next_pid(node, pid)
        until(lambda: count(pid) == before, lambda: f"{count(pid)} descriptors, and not {before}")


class Background:
    """commd --user --background, as the first rank starts it."""

    def __enter__(self):
        if os.path.exists("/run/commd/commd.sock"):
            raise Skip("there is a commd of this node")
        self.folder = tempfile.mkdtemp(prefix="commd-keeper.")
        self.home = os.path.join(self.folder, "commd")
        self.environment = dict(os.environ, XDG_RUNTIME_DIR=self.folder, COMMD_SOCKET="")
        return self

    def start(self, *arguments):
        done = c.run([c.COMMD, "--user", "--background", *arguments], env=self.environment)
        equal((done.returncode, done.stderr), (0, ""))
        pid = int(done.stdout)
        equal(pid, self.pid())
        return pid

    def pid(self):
        with open(os.path.join(self.home, "commd.lock")) as file:
            return int(file.read() or 0)

    def keeper(self):
        with open(f"/proc/{self.pid()}/status") as file:
            return int(re.search(r"^PPid:\s*(\d+)", file.read(), re.M).group(1))

    def serves(self):
        words = [c.COMMCTL, "--socket", os.path.join(self.home, "commd.sock"), "status"]
        return subprocess.run(words, capture_output=True).returncode == 0

    def log(self):
        with open(os.path.join(self.home, "commd.log")) as file:
            return file.read()

    def next(self, old):
        return until(
            lambda: self.pid() not in (0, old) and self.serves() and self.pid(),
            lambda: f"another commd; the log:\n{self.log()}",
        )

    def __exit__(self, kind, error, trace):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            pids = [self.keeper(), self.pid()]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            until(lambda: not any(running(pid) for pid in pids), "its end")
        shutil.rmtree(self.folder, ignore_errors=True)


def test_of_one_user():
    with Background() as place:
        pid = place.start()
        keeper = place.keeper()
        for turn in range(3):
            kill(pid)
            if turn == 0:  # nobody can take the user's place meanwhile
                done = c.run([c.COMMD, "--user"], env=place.environment)
                check("a commd serves this user already" in done.stderr, done.stderr)
            pid = place.next(pid)
            equal(place.keeper(), keeper)
        equal(place.log().count("signal 9 -> starting it again\n"), 3)  # all in one log
        kill(keeper, signal.SIGTERM)
        until(lambda: not running(keeper) and not running(pid), "the end")
        place.start("--idle-exit", "0.2")
        pid, keeper = place.pid(), place.keeper()
        until(lambda: not running(keeper) and not running(pid), "idle, both end")
        equal(sorted(os.listdir(place.home)), ["commd.lock", "commd.log", "commd.log.1"])
        # what cannot serve says so, with its code, to whoever starts it
        os.mkdir(os.path.join(place.home, "commd.sock"))
        done = c.run([c.COMMD, "--user", "--background"], env=place.environment)
        equal((done.returncode, done.stdout), (78, ""))
        check("something else than a socket" in done.stderr, done.stderr)


def test_the_directory_of_a_user_is_removed():
    """It ends, and does not go where nobody would look for it."""
    with Background() as place:
        pid = place.start()
        keeper = place.keeper()
        shutil.rmtree(place.folder)
        kill(pid)
        until(lambda: not running(keeper), "the keeper's end")
        check(not any(f"XDG_RUNTIME_DIR={place.folder}" in e for e in environments()), "a commd")


def environments():
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", errors="replace") as file:
                yield file.read()


def quickstart(*words):
    return c.run([os.path.join(c.TOP, "quickstart"), *words], 4 * c.HANG)


def test_quickstart_says_what_its_commands_take():
    """At once: it is asked of a checkout in which nothing can be built."""
    ours = ("up", "up 2", "restart", "restart 0 --kill", "down", "env", "build", "demo", "package",
            "bundle x", "wheel", "test", "test --quick", "test booted", "test upgrade",
            "test wheel")  # fmt: skip
    theirs = {"test gpu": "check.py", "test torch": "run_programs.py", "bench gpu": "gpu.py",
              "bench --quick": "./quickstart bench [",
              "bench encryption": "./quickstart bench encryption",
              "faults": "./quickstart faults"}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(os.path.join(c.TOP, "quickstart"), folder)
        shutil.copytree(os.path.join(c.TOP, "tools"), os.path.join(folder, "tools"))
        os.symlink(os.path.join(c.TOP, "tests"), os.path.join(folder, "tests"))
        for words in (*ours, *theirs):
            done = c.run([os.path.join(folder, "quickstart"), *words.split(), "--help"], 4 * c.HANG)
            equal((done.returncode, done.stderr), (0, ""), words)
            wanted = f"usage: {theirs[words]}" if words in theirs else "env [--dir D] [I]"
            check(wanted in done.stdout, (words, done.stdout))


def test_quickstart_restarts_in_a_namespace():
    """Its configuration is looked at where the node is: it names a device that only that has."""
    if not os.access(os.path.join(c.TOP, "build/install/sbin/commd"), os.X_OK):
        raise Skip("./quickstart build has not been run")
    if os.geteuid() or os.path.exists("/run/netns/commd-0"):
        raise Skip("no namespaces of that name can be made")
    with tempfile.TemporaryDirectory(prefix="commd-quick.") as folder:
        try:
            done = quickstart("up", "1", "--netns", "--dir", folder)
            if done.returncode and not os.path.exists("/run/netns/commd-0"):
                raise Skip(f"no namespace can be made: {done.stderr}")
            equal((done.returncode, done.stderr), (0, ""))
            done = quickstart("restart", "0", "--dir", folder)
            equal((done.returncode, done.stderr), (0, ""))
        finally:
            equal(quickstart("down", "--dir", folder).returncode, 0)


def test_quickstart_restarts():
    """The programs are those of build/install."""
    if not os.access(os.path.join(c.TOP, "build/install/sbin/commd"), os.X_OK):
        raise Skip("./quickstart build has not been run")
    folder = tempfile.mkdtemp(prefix="commd-quick.")
    dir_ = ["--dir", folder]

    def pid(node, name="commd.pid"):
        with open(os.path.join(folder, f"node{node}", name)) as file:
            return int(file.read())

    try:
        equal(quickstart("up", "2", *dir_).returncode, 0)
        for words in (["0"], ["1", "--kill"], ["--kill", "0"]):
            number = next(word for word in words if word.isdigit())
            old, keeper = pid(number), pid(number, "keeper.pid")
            done = quickstart("restart", *words, *dir_)
            equal((done.returncode, done.stderr), (0, ""))
            new = pid(number)
            check(new != old and not running(old) and running(keeper), (old, new))
            equal(done.stdout, f"node{number}  pid {new}  {folder}/node{number}/commd.sock\n")
            equal(pid(number, "keeper.pid"), keeper)
        kill(pid(0))  # by hand: it comes back by itself, and once more when it is asked for
        equal(quickstart("restart", "0", *dir_).returncode, 0)
        old = pid(0)
        kill(pid(0, "keeper.pid"))
        until(lambda: not running(old), "commd's end")
        equal(quickstart("restart", "0", *dir_).returncode, 0)
        check(running(pid(0)) and running(pid(0, "keeper.pid")), "with a keeper again")
        equal(quickstart("up", "2", *dir_).stdout, f"already up: 2 nodes in {folder}\n")
        config = os.path.join(folder, "node0/commd.yaml")
        shutil.copy(config, f"{config}.old")
        with open(config, "a") as file:
            file.write("frobnicate: 1\n")
        for words in (["0"], ["0", "--kill"]):
            old = pid(0)
            done = quickstart("restart", *words, *dir_)
            equal((done.returncode, done.stdout, pid(0)), (1, "", old))
            check('unknown key "frobnicate"' in done.stderr and config in done.stderr, done.stderr)
            check(running(old), "it goes on")
        kill(pid(0, "keeper.pid"))
        until(lambda: not running(old), "commd's end")
        os.rename(f"{config}.old", config)
        os.mkdir(f"{folder}/node0/commd.sock")
        done = quickstart("restart", "0", *dir_)
        equal((done.returncode, done.stdout), (1, ""))
        check(f"The end of {folder}/node0/commd.log" in done.stderr, done.stderr)
        check(f"{folder}/node0/commd.sock: " in done.stderr, done.stderr)
        os.rmdir(f"{folder}/node0/commd.sock")
        equal(quickstart("restart", "0", *dir_).returncode, 0)
        equal(quickstart("restart", "7", *dir_).returncode, 1)
        equal(quickstart("restart", *dir_).returncode, 64)
        equal(quickstart("restart", "x", *dir_).returncode, 64)
        pids = [pid(n, name) for n in (0, 1) for name in ("commd.pid", "keeper.pid", "engine.pid")]
        done = quickstart("down", *dir_)
        equal(done.stdout, f"stopped 2 nodes; their logs stay in {folder}\n")
        check(not any(running(pid) for pid in pids), pids)
        for n in (0, 1):
            equal(sorted(os.listdir(f"{folder}/node{n}")), ["commd.log", "commd.yaml"])
    finally:
        quickstart("down", *dir_)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(globals())
