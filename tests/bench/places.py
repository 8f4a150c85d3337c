"""Where the ranks of a comparison run: on how many nodes, how many of them, beside what.

Nodes are commds of ./quickstart up, two or as many as a placement has: in network namespaces
joined by a bridge where we are root, else all on the loopback device. The rivals get the same:
mpirun in the first namespace, which reaches the others through an "ssh" that enters them. "-own": a
node has cores which the other may not use, as real nodes have; else the kernel chooses among all
cores of the machine for either.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import machine
from contestants import Failed

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
UP_SECONDS = 60

AGENT = """#!/bin/bash
# stands in for ssh: options, the host, the command
while [[ $1 == -* ]]; do shift; done
node=$((${1##*.} - 1)) cores=(%s)
ns=commd-$node
shift
exec taskset -c "${cores[node]}" ip netns exec "$ns" \\
    unshare --uts sh -c 'hostname "$0" && exec bash -c "$1"' "$ns" "$*"
"""


class Cluster:
    """Nodes that are up from enter to exit; @clear: data between them are not encrypted."""

    def __init__(self, folder, clear=False, nodes=2):
        self.folder = pathlib.Path(folder)
        self.home = self.folder / "nodes"
        self.sockets = [str(self.home / f"node{i}/commd.sock") for i in range(nodes)]
        self.netns, self.clear, self.why_not = False, clear, ""

    def quickstart(self, *words):
        return subprocess.run(
            [TOP / "quickstart", *words, "--dir", self.home],
            capture_output=True,
            text=True,
            timeout=UP_SECONDS,
        )

    def agent(self, cores):
        """What stands in for ssh where node i may use cores[i]."""
        agent = self.folder / f"agent-{len(list(self.folder.glob('agent-*')))}"
        agent.write_text(AGENT % " ".join(cores))
        agent.chmod(0o755)
        return agent

    def bind(self, cores):
        """Whatever runs in the nodes' namespaces, which commd does, to cores[i]."""
        for i, some in enumerate(cores):
            pids = subprocess.run(
                ["ip", "netns", "pids", f"commd-{i}"], capture_output=True, text=True, check=True
            ).stdout.split()
            for pid in pids:
                # one that ends meanwhile, or whose threads do, is an error only if it stays
                words = ["taskset", "-a", "-c", "-p", some, pid]
                tries = (subprocess.run(words, capture_output=True).returncode for _ in range(5))
                if all(tries) and os.path.exists(f"/proc/{pid}"):
                    raise Failed(f"process {pid} cannot be bound to cores {some}")

    def __enter__(self):
        if os.geteuid() != 0:
            self.why_not = "not root"
        elif not shutil.which("ip"):
            self.why_not = "there is no ip: apt-get install iproute2"
        else:
            up = self.quickstart("up", str(len(self.sockets)), "--netns")
            self.netns = up.returncode == 0
            self.why_not = up.stderr.strip().splitlines()[-1] if up.returncode and up.stderr else ""
        if not self.netns:
            up = self.quickstart("up", str(len(self.sockets)))
        if up.returncode:
            sys.exit(f"compare: cannot start {len(self.sockets)} nodes\n{up.stderr}")
        if self.clear:
            try:
                self.do_not_encrypt()
            except Failed as e:
                self.__exit__()
                sys.exit(f"compare: {e}")
        return self

    def do_not_encrypt(self):
        for i in range(len(self.sockets)):
            with open(self.home / f"node{i}/commd.yaml", "a") as conf:  # it ends in transport:
                conf.write("  encryption: off\n  trusted_network: true\n")
        for i in range(len(self.sockets)):
            again = self.quickstart("restart", str(i))
            if again.returncode:
                raise Failed(f"cannot restart node {i} without encryption\n{again.stderr}")
        # an engine with groups keeps its settings: no rank may come before the next one is there
        limit = time.monotonic() + UP_SECONDS
        while not all(self.is_clear(sock) for sock in self.sockets):
            if time.monotonic() > limit:
                raise Failed("the engines of the nodes still encrypt")
            time.sleep(0.1)

    def is_clear(self, sock):
        said = subprocess.run(
            [TOP / "build/install/bin/commctl", "--socket", sock, "status", "--json"],
            capture_output=True,
            text=True,
        ).stdout
        engine = json.loads(said)["status"][0]["engine_pid"] if said.strip() else None
        try:
            return "--encryption\0off" in pathlib.Path(f"/proc/{engine}/cmdline").read_text()
        except OSError:  # it has just been replaced
            return False

    def __exit__(self, *_):
        self.quickstart("down")


class Place:
    """One placement, as the rivals want to know it."""

    def __init__(self, name, cluster):
        shape, _, beside = name.partition("-")
        nodes, _, ranks = shape.partition("x")
        self.name, self.cluster = name, cluster
        self.own = beside == "own"
        self.beside = BESIDE.get(beside)
        self.nodes, self.ranks = int(nodes), int(ranks)
        self.size = self.nodes * self.ranks
        inside = cluster.netns and self.nodes > 1
        self.hosts = [f"10.77.0.{i + 1}" for i in range(self.nodes)] if inside else []
        self.network = "10.77.0.0/24" if inside else "127.0.0.0/8"
        self.device = "veth0" if inside else "lo"
        self.sockets = cluster.sockets[: self.nodes]
        usable = machine.threads_of_cores(sorted(os.sched_getaffinity(0)))
        each = len(usable) // self.nodes if self.own else 0
        parts = [usable[i * each : (i + 1) * each] or usable for i in range(self.nodes)]
        self.cores = [machine.listed(sorted(sum(part, []))) for part in parts]
        self.few = self.own and not each
        self.agent = cluster.agent(self.cores) if inside else None

    def why_not(self):
        """Why it cannot be had here, or None."""
        if self.own and not self.hosts:
            return "cores of its own: only for nodes in network namespaces"
        if self.few:
            return "there are fewer cores than nodes"
        return None

    def __enter__(self):
        if self.own:
            self.cluster.bind(self.cores)
        return self

    def __exit__(self, *_):
        if self.own:
            self.cluster.bind([machine.listed(sorted(os.sched_getaffinity(0)))] * self.nodes)

    def on(self, node):
        """What to put before a command that runs on the cores of a node."""
        return ["taskset", "-c", self.cores[node]] if self.own else []

    def local(self, transport):
        """ "transport," where ranks share a node and the library can see which ones do."""
        return f"{transport}," if self.ranks > 1 and self.hosts else ""

    def enter(self, node=0):
        """What to put before a command that runs on a node."""
        if not self.hosts:
            return []
        ns = f"commd-{node}"
        return [
            *self.on(node),
            "ip",
            "netns",
            "exec",
            ns,
            "unshare",
            "--uts",
            "sh",
            "-c",
            f'hostname {ns} && exec "$@"',
            "sh",
        ]

    def title(self):
        nodes = f"{self.nodes} node{'s' * (self.nodes > 1)}"
        where = "" if self.nodes == 1 else ", namespaces" if self.hosts else ", loopback"
        text = f"{nodes} x {self.ranks} rank{'s' * (self.ranks > 1)}{where}"
        text += f", cores {' and '.join(self.cores)}" if self.own else ""
        return text + (f", {self.beside.title}" if self.beside else "")


# looks now and then whether it is still wanted
SPIN = "while kill -0 $PPID; do i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; done"

# As a compiler or a test suite does: processes of some milliseconds each, and pauses.
COME_AND_GO = """
import os, random, subprocess, sys, time
draw, parent = random.Random(int(sys.argv[1])), os.getppid()
while os.getppid() == parent:
    count = draw.randrange(5000, 100000)
    subprocess.run(["sh", "-c", f"i=0; while [ $i -lt {count} ]; do i=$((i+1)); done"])
    time.sleep(draw.uniform(0.01, 0.1))
"""


class Beside:
    """Foreign processes, from enter to exit."""

    title = ""
    goes = False  # each core is free for some of the time

    def start(self, core):
        raise NotImplementedError

    def __enter__(self):
        self.processes = [self.start(core) for core in sorted(os.sched_getaffinity(0))]

    def __exit__(self, *_):
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


class Busy(Beside):
    """One per core that never sleeps, and that stays there: else the kernel may leave all of them
    on one core and the ranks on the other for minutes, which is another thing to measure."""

    title = "each core also busy with something else"

    def start(self, core):
        process = subprocess.Popen(["sh", "-c", SPIN])
        os.sched_setaffinity(process.pid, {core})
        return process


class Mixed(Beside):
    """As many as there are cores that come and go, where the kernel puts them."""

    title = "beside short processes that come and go"
    goes = True

    def start(self, core):
        return subprocess.Popen([sys.executable, "-c", COME_AND_GO, str(core)])


BESIDE = {"busy": Busy(), "mixed": Mixed()}
