#!/usr/bin/env python3
"""commd's side of the GPU service: when commd-gpu is started, watched and given up, and what who
asks for a session is told. The service itself is a fake (lib/gpu_fake.c)."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import Cluster, Skip, check, equal, main, running, until  # noqa: E402
from keeping import restart  # noqa: E402

FAKE = os.path.join(c.BUILD, "tests/integration/lib/gpu_fake")
GPU_UID = 0xFFFFFFF0  # CORE_GPU_UID
COMMD_UID, GPU_SERVICE_UID = 4000, 4004
OK, QUOTA, NO_DAEMON = 0, 3, 9


class Client:
    """A process that asks; see gpu_fake.c."""

    def __init__(self, node):
        environment = dict(os.environ, **c.sanitizer_environment())
        environment.pop("LD_PRELOAD", None)  # it is linked with the sanitizer itself
        self.process = subprocess.Popen(
            [FAKE, "--ask", node.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip
        self.pid = int(self.process.stdout.readline().split()[1])

    def start(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def hear(self):
        return self.process.stdout.readline().rstrip("\n")

    def call(self, word):
        self.start(word)
        return self.hear()

    def ask(self):
        """Cause and text of the answer."""
        self.start("ask")
        return self.answer()

    def answer(self):
        word, cause, text = (self.hear() + " ").split(" ", 2)
        equal(word, "answer")
        return int(cause), text.rstrip()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@contextlib.contextmanager
def clients(node, count):
    some = []
    try:
        for _ in range(count):
            some.append(Client(node))
        yield some
    finally:
        for client in some:
            client.close()


class Gpus(Cluster):
    """Nodes whose commd-gpu is the fake, which behaves as @mode says."""

    def __init__(self, count=1, mode="", timeout="20s", arguments=(), **keys):
        gpu = {"enabled": "yes", "program": FAKE, "timeout": timeout, **keys}
        super().__init__(count, {"gpu": gpu}, start=False)
        self.mode = mode
        self.arguments = arguments  # of commd

    def __enter__(self):
        super().__enter__()
        self.launchers = []
        for node in self.nodes:
            gpu = dict(self.changes["gpu"], pid_file=os.path.join(node.home, "gpu.pid"))
            node.write_config(gpu=gpu)
            self.start(node)
        names = [node.name for node in self.nodes]
        until(lambda: all(node.sees(names) for node in self.nodes), "nodes that see each other")
        return self

    def environment(self):
        return {"FAKE_GPU": self.mode, "CUDA_VISIBLE_DEVICES": "1", "NCCL_DEBUG": "WARN",
                "COMMD_GPU": ""}  # fmt: skip

    def start(self, node):
        node.start(self.environment(), self.arguments)


class OtherUsers(Gpus):
    """commd is of one user, and commd-gpu of another one."""

    def __enter__(self):
        if os.getuid() != 0:
            raise Skip("not root")
        return super().__enter__()

    def start(self, node):
        os.chmod(self.folder, 0o755)
        os.chown(self.key_file, COMMD_UID, COMMD_UID)
        os.chown(node.home, COMMD_UID, COMMD_UID)
        path = os.path.join(self.folder, f"{node.name}.launch")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(path)
        os.chown(path, COMMD_UID, COMMD_UID)
        listener.listen(8)
        with open(node.log_file, "ab") as log:
            self.launchers.append(
                subprocess.Popen(
                    [FAKE, "--launcher", "3"], stdin=subprocess.DEVNULL, stderr=log,
                    env=dict(os.environ, **self.environment()), pass_fds=[3],
                    preexec_fn=lambda: (os.dup2(listener.fileno(), 3), become(GPU_SERVICE_UID)),
                )
            )  # fmt: skip
        listener.close()
        setpriv = shutil.which("setpriv") or "/usr/bin/setpriv"
        node.prefix = [setpriv, f"--reuid={COMMD_UID}", f"--regid={COMMD_UID}", "--clear-groups"]
        node.start(arguments=["--gpu-launcher", path, *self.arguments])

    def __exit__(self, *error):
        try:
            super().__exit__(*error)
        finally:
            for launcher in self.launchers:
                launcher.kill()
                launcher.wait()


def become(uid):
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def service(node):
    return node.pid_in("gpu.pid")


def status(node):
    return node.ctl("status")["status"][0]


def gpus(node):
    return node.ctl("gpus")["gpus"]


def test_the_first_who_asks_starts_it():
    with Gpus() as cluster:
        node = cluster.nodes[0]
        equal((status(node)["gpu"], status(node)["gpu_pid"]), ("down", None))
        equal([row["device"] for row in gpus(node)], [None])
        equal(gpus(node)[0]["state"], "down: nobody has asked for it yet")
        check("gpu_fake:" not in node.log(), "nothing was started")
        with clients(node, 2) as (one, two):
            equal(one.ask(), (OK, ""))
            pid = service(node)
            words = (
                f"--fd 3 --node node0 --socket {node.socket} --cuda libcuda.so.1 --nccl "
                "libnccl.so.2 --nccl-env  --host-id  --part 1073741824 --timeout 20000 "
                "--landlock yes --log info"
            )
            check(words in node.log(), node.log())
            check("CUDA_VISIBLE_DEVICES=1 NCCL_DEBUG=WARN COMMD_GPU=(null)" in node.log(), "env")
            equal((status(node)["gpu"], status(node)["gpu_pid"]), ("up", pid))
            equal(status(node)["gpu_text"], "two fake GPUs")
            said = one.call("say").split()
            equal(said[2:], f"uid {os.getuid()} pid {one.pid} of 1".split())
            equal(two.ask(), (OK, ""))
            equal(two.call("say").split()[4:], f"pid {two.pid} of 2".split())
            equal(service(node), pid, "the same for both")
            until(lambda: gpus(node)[1]["operations"] == 2, "what it tells once a second")
            row = gpus(node)[1]
            equal((row["device"], row["uuid"], row["name"]), (1, "GPU-fake-1", "Fake 1"))
            equal((row["state"], row["clients"], row["moved"]), ("ok", 2, 2000))


def test_a_session_ends_with_its_client():
    with Gpus() as cluster:
        node = cluster.nodes[0]
        with clients(node, 2) as (one, two):
            equal((one.ask()[0], two.ask()[0]), (OK, OK))
            os.kill(one.pid, signal.SIGKILL)
            one.process.wait()
            until(lambda: two.call("say").endswith("of 1"), "the end of the other session")


def test_killed_it_is_started_for_the_next_who_asks():
    with Gpus() as cluster:
        node = cluster.nodes[0]
        cluster.expect("commd-gpu of node node0 was lost: killed by signal 9")
        with clients(node, 1) as (one,):
            equal(one.ask()[0], OK)
            pid = service(node)
            os.kill(pid, signal.SIGKILL)
            equal(one.call("end"), "end")
            node.wait_log("was lost: killed by signal 9")
            equal(status(node)["gpu"], "down")
            equal(gpus(node)[0]["state"], "down: killed by signal 9")
            check(node.ctl("status") and node.sees(["node0"]), "commd is well")
        with clients(node, 1) as (one,):
            until(lambda: one.ask()[0] == OK, "a session at another one")
            check(service(node) not in (0, pid), "another one")


def test_a_node_without_gpus_says_so():
    with Cluster(1, {"gpu": {"enabled": "no", "program": FAKE}}) as cluster:
        node = cluster.nodes[0]
        with clients(node, 1) as (one,):
            equal(one.ask(), (NO_DAEMON, "node node0 has no GPU service: gpu.enabled is no"))
        equal(status(node)["gpu"], "none")
        equal(gpus(node)[0]["state"], "no GPU service: gpu.enabled is no")


def test_a_program_that_is_not_there():
    with Gpus(program="/nowhere/commd-gpu") as cluster:
        node = cluster.nodes[0]
        cluster.expect("cannot start /nowhere/commd-gpu")
        with clients(node, 1) as (one,):
            cause, text = one.ask()
            equal(cause, NO_DAEMON)
            check("cannot start /nowhere/commd-gpu: No such file" in text, text)


def test_one_that_cannot_work():
    whys = {"no-device": "the driver found no device", "exit": "exited with status 3"}
    for mode, why in whys.items():
        with Gpus(mode=mode) as cluster:
            node = cluster.nodes[0]
            cluster.expect("commd-gpu: the driver found no device -> killing it")
            cluster.expect("commd-gpu of node node0 could not start")
            with clients(node, 2) as (one, two):
                one.start("ask")
                two.start("ask")
                for client in (one, two):
                    cause, text = client.answer()
                    equal(cause, NO_DAEMON)
                    check(text.startswith(f"node node0 has no GPU service: {why}"), text)


def test_one_that_never_says_hello():
    with Gpus(mode="mute", timeout="300ms") as cluster:
        node = cluster.nodes[0]
        cluster.expect("commd-gpu: it did not say hello in time -> killing it")
        cluster.expect("commd-gpu of node node0 could not start")
        with clients(node, 1) as (one,):
            equal(one.ask(), (NO_DAEMON, "node node0 has no GPU service: it did not say hello in "
                                         "time"))  # fmt: skip
        until(lambda: not service(node), "its end")


def test_one_that_is_stopped():
    with Gpus(timeout="2s") as cluster:
        node = cluster.nodes[0]
        cluster.expect("commd-gpu: it does not answer -> killing it")
        cluster.expect("commd-gpu of node node0 was lost")
        with clients(node, 1) as (one,):
            equal(one.ask()[0], OK)
            os.kill(service(node), signal.SIGSTOP)
            equal(one.call("end"), "end")
            until(lambda: status(node)["gpu"] == "down", "commd's knowledge of it")


def test_who_asks_again_and_again():
    with Gpus() as cluster:
        node = cluster.nodes[0]
        with clients(node, 2) as (one, two):
            equal(two.ask()[0], OK)
            answers = dict(word.split(":") for word in one.call("many 20000").split()[1:])
            check(set(answers) <= {str(OK), str(QUOTA)}, answers)
            check(int(answers[str(OK)]) < 2000, f"few of them are sessions: {answers}")
            pid = service(node)
            until(lambda: two.call("say").endswith(("of 1", "of 2")), "one session each")
            one.call("send 2000")
            os.kill(one.pid, signal.SIGKILL)
            one.process.wait()
            until(lambda: two.call("say").endswith("of 1"), "the end of all that it had")
            equal(service(node), pid)


def test_it_ends_with_commd():
    with Gpus() as cluster:
        node = cluster.nodes[0]
        with clients(node, 1) as (one,):
            equal(one.ask()[0], OK)
            pid = service(node)
            node.kill()
            until(lambda: not running(pid), "its end")
            cluster.start(node)
            until(lambda: node.sees(["node0"]), "commd")
        with clients(node, 1) as (one,):
            equal(one.ask()[0], OK)


def goes_on(kind):
    """Its clients do not come back, and are known by their sessions."""
    with kind(arguments=["--keep"]) as cluster:
        node = cluster.nodes[0]
        cluster.expect("killed by signal 9")
        with clients(node, 2) as (one, two):
            equal((one.ask()[0], two.ask()[0]), (OK, OK))
            pid = service(node)
            restart(node)
            node.wait_log(f"commd-gpu pid {pid} goes on since before commd was restarted")
            equal((service(node), status(node)["gpu"]), (pid, "up"))
            with clients(node, 1) as (three,):
                equal(three.ask()[0], OK)
                until(lambda: two.call("say").endswith(f"pid {two.pid} of 3"), "three sessions")
                os.kill(one.pid, signal.SIGKILL)
                one.process.wait()
                until(lambda: three.call("say").endswith("of 2"), "the end of a session")
                restart(node)
                equal(three.call("say").split()[4:], f"pid {three.pid} of 2".split())
            equal(service(node), pid)
        cluster.expect("commd-gpu of node node0 was lost")
        os.kill(pid, signal.SIGKILL)
        node.wait_log("commd-gpu of node node0 was lost")


def test_it_goes_on_when_commd_is_killed():
    goes_on(Gpus)


def test_it_goes_on_when_a_launcher_has_started_it():
    goes_on(OtherUsers)


def test_it_is_a_client_of_its_own():
    """Groups of commd-gpu span nodes, whatever users it runs as; nobody else has their names."""
    with Gpus(2, mode="join 2") as cluster:
        some = [Client(node) for node in cluster.nodes]
        try:
            for client in some:
                client.start("ask")
            for client in some:
                equal(client.answer()[0], OK)
            for node in cluster.nodes:
                node.wait_log("gpu_fake: joined commd-gpu/test")
                group = [g for g in node.groups() if g["name"] == "commd-gpu/test"]
                equal([(g["uid"], g["nodes"], g["gpu"]) for g in group], [(GPU_UID, 2, True)])
                equal(status(node)["clients"], 1, "itself is not counted")
                uids = sorted(row["uid"] for row in node.clients())
                equal(uids, sorted([os.getuid(), GPU_UID]))
            rank = cluster.rank(0)
            error = rank.call_error("join", name="commd-gpu/mine", rank=0, size=1)
            equal(error["code"], "DENIED", error)
        finally:
            for client in some:
                client.close()


def test_it_is_of_another_user():
    """A launcher starts it; it is known all the same, and nobody else is taken for it."""
    with OtherUsers(2, mode="join 2") as cluster:
        some = [Client(node) for node in cluster.nodes]
        try:
            for client in some:
                client.start("ask")
            for client in some:
                equal(client.answer()[0], OK)
            for node in cluster.nodes:
                with open(f"/proc/{service(node)}/status") as file:
                    uids = [line.split()[1] for line in file if line.startswith("Uid:")]
                equal(uids, [str(GPU_SERVICE_UID)])
                node.wait_log("gpu_fake: joined commd-gpu/test")
                equal([g["uid"] for g in node.groups()], [GPU_UID])
            node = cluster.nodes[0]
            environment = dict(os.environ, **c.sanitizer_environment())
            environment.pop("LD_PRELOAD", None)
            with subprocess.Popen(
                [FAKE, "--ask", node.socket], preexec_fn=lambda: become(GPU_SERVICE_UID),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
            ) as other:  # fmt: skip
                other.stdout.readline()
                uids = {row["pid"]: row["uid"] for row in node.clients()}
                equal(uids[other.pid], GPU_SERVICE_UID, "a process of its user is not it")
                equal(uids[some[0].pid], os.getuid())
                other.kill()
        finally:
            for client in some:
                client.close()


def test_its_number_is_nobody_elses():
    if os.getuid() != 0:
        raise Skip("not root")
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        cluster.expect("commd keeps the number of its user for itself -> refused")
        os.chmod(cluster.folder, 0o755)
        done = subprocess.run(
            [*c.commctl(node), "status"], preexec_fn=lambda: become(GPU_UID),
            capture_output=True, text=True,
        )  # fmt: skip
        equal(done.returncode, 2)
        check("commd keeps the number of its user for itself" in done.stderr, done.stderr)


main(globals())
