#!/usr/bin/env python3
"""A hostile tenant beside a good one, on one node and on two; strangers on the nodes' ports; a node
that lies.

The good tenant (tenant.py, uid 4002) runs verified operations, makes groups and connections all the
time. The hostile one (tests/hostile/hostile.c, uid 4001) does at random what a client can do. What
must hold: no wrong result and no error in the good job; commd and engine are the same processes;
commctl is answered; the nodes do not lose each other; what is logged is about the attacker and
bounded; and when the attacker has gone, descriptors, memory and boards of commd and engine are back
where they were. How long an all_reduce of 8 KB takes beside the attack, and beside as many
processes that only compute, is printed and not judged: it is a time.

    COMMD_HOSTILE_SECONDS=600 test_hostile.py       ten minutes of attack in each test
    COMMD_HOSTILE_SEED=N                            the same choices again
    COMMD_HOSTILE_ONLY=a,b, COMMD_HOSTILE_EXCEPT=c  only these actions, or all but these
    (hostile --list)
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import Cluster, Rank, check, equal, main, now, until  # noqa: E402

HOSTILE = os.path.join(c.BUILD, "tests/hostile/hostile")
LIAR = os.path.join(c.BUILD, "tests/hostile/liar")
BAD, GOOD = 4001, 4002
PROCESSES = 6
SECONDS = float(os.environ.get("COMMD_HOSTILE_SECONDS", "0"))
CHOICE = [
    word
    for option in ("only", "except")
    if (names := os.environ.get(f"COMMD_HOSTILE_{option.upper()}"))
    for word in (f"--{option}", names)
]
SEED = os.environ.get("COMMD_HOSTILE_SEED")
FIXED_SEED = 20261123
PATIENCE = 6 * c.HANG
LINES_A_MINUTE = 200
# What the attacker may leave behind in a process: heap that stays with malloc, not what is held.
# Of 16 processes of each user commd keeps a descriptor, to say how they ended.
FDS_SLACK, RSS_SLACK_KB = 4 + 2 * 16, 48 << 10
TICK = os.sysconf("SC_CLK_TCK")
# Lines of warn and error level that an attack may cause: they name the attacker, or a group of his.
ABOUT_THE_ATTACKER = (rf"uid {BAD}\b", r"hostile[.-]")


class Service:
    """commd and the engine of a node, as they were before the attack."""

    def __init__(self, node):
        self.node = node
        self.pids = {"commd": node.pid, "engine": node.engine_pid()}
        if not self.pids["engine"]:  # a node alone has none
            del self.pids["engine"]
        self.before = {name: self.held(pid) for name, pid in self.pids.items()}
        self.cpu = {name: cpu_seconds(pid) for name, pid in self.pids.items()}
        self.lines = len(node.log().splitlines())

    @staticmethod
    def held(pid):
        return {
            "fds": len(os.listdir(f"/proc/{pid}/fd")),
            "rss": rss_kb(pid),
            "boards": len(c.memory_files(pid)),
        }

    def check_same(self):
        check(
            self.node.process.poll() is None,
            f"{self.node.name} ended with {self.node.process.poll()}",
        )
        equal(self.node.engine_pid(), self.pids.get("engine", 0), f"engine of {self.node.name}")

    def check_back(self):
        """What was taken for the attacker has been given back."""
        for name, pid in self.pids.items():
            before, held = self.before[name], {}

            def back(pid=pid, before=before, held=held):
                held.update(self.held(pid))
                return (
                    held["fds"] <= before["fds"] + FDS_SLACK and held["boards"] <= before["boards"]
                )

            what = f"{name} of {self.node.name} holds what it held"
            until(
                back,
                lambda what=what, before=before, held=held: f"{what}: {before}, now {held}",
                PATIENCE,
            )
            if not c.sanitizer_environment():
                check(held["rss"] <= before["rss"] + RSS_SLACK_KB, f"{what}: {before}, now {held}")

    def report(self, seconds):
        used = {name: cpu_seconds(pid) - self.cpu[name] for name, pid in self.pids.items()}
        held = {name: self.held(pid) for name, pid in self.pids.items()}
        for name in used:
            print(
                f"  {self.node.name} {name}: {used[name] / seconds:.2f} s of CPU a second of"
                f" attack; before {self.before[name]}, after {held[name]}"
            )

    def check_log(self, seconds):
        lines = self.node.log().splitlines()[self.lines :]
        print(f"  {self.node.name} logged {len(lines)} lines in {seconds:.0f} s")
        check(
            len(lines) <= 60 + LINES_A_MINUTE * seconds / 60,
            f"{len(lines)} lines in {seconds:.0f} s",
        )


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def rss_kb(pid):
    """Without what is shared: pages of boards are counted by Service as boards."""
    with open(f"/proc/{pid}/status") as file:
        kb = {
            line.split(":")[0]: int(line.split()[1])
            for line in file
            if line.startswith(("VmRSS", "RssShmem"))
        }
    return kb["VmRSS"] - kb["RssShmem"]


def start(cluster, *command):
    """A program that means harm, as the head of a session of its own. Not waited for."""
    with open(os.path.join(cluster.folder, "hostile.err"), "ab") as errors:
        return subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )


def start_hostile(cluster, seconds, *arguments):
    return start(
        cluster, HOSTILE, "--seconds", seconds, "--processes", PROCESSES, "--uid", BAD, *arguments
    )


def session_members(pid):
    """Processes of the session that @pid leads."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            if int(fields[3]) == pid and fields[0] != "Z":
                found.append(int(name))
    return found


def percentile(times, part):
    return sorted(times)[int(len(times) * part)]


class Tenant:
    """The good one's ranks, on nodes @places of @cluster."""

    def __init__(self, cluster, places):
        self.turn = 1
        self.ranks = [
            Rank(cluster.nodes[p], [sys.executable, os.path.join(c.HERE, "tenant.py"), str(GOOD)])
            for p in places
        ]
        cluster.all_ranks += self.ranks
        self.all("connect")
        for number, rank in enumerate(self.ranks):
            rank.start("join", name="good", rank=number, size=len(places))
        for rank in self.ranks:
            rank.finish(PATIENCE)

    def all(self, do, **arguments):
        for rank in self.ranks:
            rank.start(do, **arguments)
        return [rank.finish(PATIENCE) for rank in self.ranks]

    def work(self, seconds, **arguments):
        """Starts it. Its end: finish()."""
        for rank in self.ranks:
            rank.start("work", until=now() + seconds, seed=7, turn=self.turn, **arguments)

    def finish(self):
        """(rounds, subgroups, times of rank 0); any error or wrong result fails the test."""
        results = [rank.finish(PATIENCE) for rank in self.ranks]
        self.turn += results[0]["rounds"]
        return results[0]


def watch(cluster, services, process, limit):
    """Until @process ends: commctl is answered, nobody was replaced or lost. Longest wait."""
    slowest = 0
    names = [service.node.name for service in services]
    while process.poll() is None:
        check(not limit.over(), "the attack does not end")
        for service in services:
            service.check_same()
            begin = now()
            done = c.run(
                [*c.commctl(service.node), "--json", "nodes"],
                PATIENCE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            slowest = max(slowest, now() - begin)
            check(
                done.stdout,
                f"commctl got no answer of {service.node.name}, exit code {done.returncode}",
            )
            states = {row["node"]: row["state"] for row in json.loads(done.stdout)["nodes"]}
            for name in names:
                check(
                    states[name] in ("self", "up"), f"{service.node.name} has lost {name}: {states}"
                )
        time.sleep(0.2)  # not to wait for something: that is how often it is asked
    return slowest


@contextlib.contextmanager
def ended(process):
    """Whatever happens to the test: its processes die with it."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def row(what, result):
    p50, p99 = (percentile(result["times"], part) * 1e6 for part in (0.5, 0.99))
    print(
        f"  8 KB all_reduce {what}: p50 {p50:.0f} us, p99 {p99:.0f} us, of {len(result['times'])}; "
        f"{result['rounds']} rounds, {result['subgroups']} subgroups"
    )


def prepare(cluster, places):
    os.chmod(cluster.folder, 0o755)  # to the sockets
    for pattern in ABOUT_THE_ATTACKER:
        cluster.expect(pattern)
    tenant = Tenant(cluster, places)
    tenant.work(0.5)
    tenant.finish()
    return tenant


def judge(cluster, tenant, seconds, begin_attack, **work):
    """The good tenant works beside what begin_attack() starts. Returns what that printed."""
    services = [Service(node) for node in cluster.nodes if node.process]
    begin = now()
    tenant.work(seconds, **work)
    with ended(begin_attack()) as attacker:
        slowest = watch(cluster, services, attacker, c.Limit(seconds + PATIENCE))
        equal(attacker.returncode, 0, "exit code of the attacker")
        said = attacker.stdout.read()
        equal(session_members(attacker.pid), [], "processes of the attacker")
    row("beside the attack", tenant.finish())
    took = now() - begin
    print(f"  slowest answer of commctl {slowest:.2f} s")
    tenant.work(0.5, **work)
    tenant.finish()
    for service in services:
        service.report(took)
    for service in services:
        service.check_same()
        service.check_back()
        service.check_log(took)
    return said


# ---- a hostile tenant ----------------------------------------------------------------------------


def hostile_tenant(places, seed, seconds):
    seconds = SECONDS or seconds
    seed = SEED or seed
    quiet = min(seconds / 4, 10)
    with Cluster(max(places) + 1, {"transport": {"fabric": "tcp"}}) as cluster:
        tenant = prepare(cluster, places)
        with ended(start_hostile(cluster, quiet + 1, "--spin")):
            tenant.work(quiet)
            row("beside computing", tenant.finish())
        arguments = ["--seed", seed, *CHOICE]
        for node in cluster.nodes:
            arguments += ["--socket", node.socket]
        print(f"  hostile --seed {seed}", flush=True)
        said = judge(
            cluster,
            tenant,
            seconds - quiet,
            lambda: start_hostile(cluster, seconds - quiet, *arguments),
        )
        print(f"  {sum(json.loads(said)['actions'].values())} actions")
        tenant.all("leave")


def test_one_node():
    hostile_tenant([0, 0], FIXED_SEED, c.how_many(8, 4))


def test_two_nodes():
    hostile_tenant([0, 1], time.time_ns() // 1000000, c.how_many(10, 5))


# ---- the network ---------------------------------------------------------------------------------


def ports_of(nodes):
    """commd's and the engine's, whichever of its block that is."""
    found = []
    for node in nodes:
        for port in range(node.port, node.port + c.PORT_BLOCK):
            with socket.socket() as probe:
                if probe.connect_ex((node.address, port)) == 0:
                    found.append(port)
    check(len(found) >= 2 * len(nodes), f"ports {found}: not of each commd and engine")
    return found


def test_strangers():
    seconds = SECONDS or c.how_many(4, 2)
    seed = SEED or time.time_ns() // 1000000
    with Cluster(2, {"transport": {"fabric": "tcp"}}) as cluster:
        cluster.expect("connection from 127.0.0.1")
        tenant = prepare(cluster, [0, 1])
        key = os.path.join(cluster.folder, "other.key")
        with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write("cd" * 31 + "01")
        ports = ports_of(cluster.nodes)
        print(f"  strangers --seed {seed}", flush=True)
        program = [
            sys.executable,
            os.path.join(c.HERE, "strangers.py"),
            seconds,
            seed,
            PROCESSES - 1,
            *ports,
        ]
        with ended(
            start(cluster, LIAR, "--dial", "--port", ports[0], "--key", key, "--seconds", seconds)
        ):
            judge(cluster, tenant, seconds, lambda: start(cluster, *program))
        tenant.all("leave")


# ---- a node that lies ----------------------------------------------------------------------------

MASK = 2**64 - 1


def mix(value):
    """core_mix() of core_text.c, and mix() of schedule.c with @value advanced."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def text_hash(seed, text):
    value = 0xCBF29CE484222325 ^ mix(seed)
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & MASK
    return mix(value)


def home_of(name, uid, nodes):
    """sched_home(): who decides whether a group is complete."""
    key = mix(text_hash(uid, name))
    weights = {node: mix((key ^ text_hash(0, node)) - 0x9E3779B97F4A7C15 & MASK) for node in nodes}
    return max(weights, key=weights.get)


def test_lying_node():
    """It may break groups with ranks on it, and, once its engine has been accepted, those whose
    names make it their home. The good tenant has none of these."""
    seconds = SECONDS or c.how_many(4, 2)
    seed = SEED or time.time_ns() // 1000000
    with Cluster(3, {"transport": {"fabric": "tcp"}}, start=False) as cluster:
        honest = cluster.nodes[:2]
        for pattern in ("node2", "connection from 127.0.0.1"):
            cluster.expect(pattern)
        for node in honest:
            node.start()
        cluster.wait_linked(honest)
        tenant = prepare(cluster, [0, 1])
        names = [
            n
            for n in (f"good-{i}" for i in range(60))
            if home_of(n, GOOD, ["node0", "node1", "node2"]) != "node2"
        ]
        arguments = [
            "--port",
            cluster.nodes[2].port,
            "--key",
            cluster.key_file,
            "--seconds",
            seconds,
            "--seed",
            seed,
            "--uid",
            GOOD,
        ]
        for row_ in honest[0].groups():
            if row_["name"] == "good":
                arguments += ["--group", row_["group"]]
        print(f"  liar --seed {seed}", flush=True)
        said = judge(
            cluster, tenant, seconds, lambda: start(cluster, LIAR, *arguments), join_names=names
        )
        check(json.loads(said)["links"] >= 2, "both nodes connected to the liar")
        tenant.all("leave")


if __name__ == "__main__":
    if os.getuid() != 0:
        print("SKIP: needs root, for a second user")
        sys.exit(77)
    main(globals())
