#!/usr/bin/env python3
"""Ten thousand strangers at every port of two nodes, during a job over an encrypted link that
verifies every result: nobody notices them, who belongs there still gets in, and what they cost in
memory, descriptors and lines of the log has an end."""

import contextlib
import os
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
for folder in (os.path.join(HERE, "lib"), os.path.join(os.path.dirname(HERE), "faults")):
    sys.path.insert(0, folder)
import cluster as c  # noqa: E402
from cluster import Skip, check, equal, main, until  # noqa: E402
from faults import leave, new_group_works  # noqa: E402
from keeping import kill, serves  # noqa: E402
from place import Job, connections, reset  # noqa: E402
from test_http import HttpCluster  # noqa: E402

HELD, FEWEST = 10000, 1000  # at each port
RATE = 100  # others, at each port, in a second
LISTENS = "0A"  # in /proc/net/tcp
MEMORY = 32 << 20  # more than all that a program keeps of strangers
LINES = 60  # of the log, by so many strangers of three addresses and by what is done here


class Target(HttpCluster):
    """Two nodes whose commds have keepers."""

    def __init__(self, transport):
        super().__init__(2, {"transport": {"fabric": "tcp", **transport}})
        self.crowds = []

    def start(self):
        for node in self.nodes:
            node.start(arguments=["--keep"])
        for node in self.nodes:
            serves(node)
        self.wait_linked()

    def ports(self):
        """All at which the programs of the nodes listen: a commd at two, an engine at one."""
        found = {
            port for node in self.nodes for pid in (serves(node), node.engine_pid())
            for port in listens(pid)
        }  # fmt: skip
        equal(len(found), 3 * len(self.nodes), f"ports of the nodes: {found}")
        return sorted(found)


def listeners(pid="self"):
    """Of its network: (TCP port, how many wait to be accepted, inode)"""
    with open(f"/proc/{pid}/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return [(int(row[1].partition(":")[2], 16), int(row[4].partition(":")[2], 16), row[9])
            for row in rows if row[3] == LISTENS]  # fmt: skip


def listens(pid):
    """Its TCP ports."""
    ports = {f"socket:[{inode}]": port for port, _, inode in listeners(pid)}
    return {ports[name] for name in open_files(pid) if name in ports}


def open_files(pid):
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def most_memory(pid):
    """That it ever had."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))


@contextlib.contextmanager
def crowds(ports, held=HELD, rate=RATE, wait=True, prefix=()):
    """One for each port; yields how many connections are open now (without @wait: none yet), and a
    function that ends them and returns how many were opened."""
    program = os.path.join(HERE, "lib/crowd.py")
    processes = [
        subprocess.Popen(
            [*prefix, sys.executable, program, *map(str, (port, held, rate, port))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for port in ports
    ]  # fmt: skip

    def end():
        for process in processes:
            process.stdin.close()
        return sum(int(process.stdout.read()) for process in processes)

    try:
        said = [process.stdout.readline().split()[1] for process in processes if wait]
        yield sum(map(int, said)), end
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


class Cost:
    """What the programs of the nodes have, before and after."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.files = self.of_all(lambda pid: len(open_files(pid)))
        self.memory = self.of_all(most_memory)
        self.log = [len(node.log()) for node in cluster.nodes]

    def of_all(self, measure):
        """By node, of commd and its engine, whichever these are now."""
        return [measure(pid) for node in self.cluster.nodes
                for pid in (serves(node), until(node.engine_pid, "an engine"))]  # fmt: skip

    def check(self):
        """It has an end."""
        for then, now in zip(self.memory, self.of_all(most_memory)):
            check(c.sanitizer_environment() or now < then + MEMORY, f"{then} bytes became {now}")
        for node, begin in zip(self.cluster.nodes, self.log):
            lines = node.log()[begin:].splitlines()
            print(f"  {len(lines)} lines in the log of {node.name}")
            check(len(lines) <= LINES, "\n".join(lines))

    def gone(self):
        """Descriptors are as before, but for a few of those that come and go."""
        return all(
            now <= then + 4
            for then, now in zip(self.files, self.of_all(lambda pid: len(open_files(pid))))
        )


def mends(cluster):
    return sum(row["mends"] or 0 for node in cluster.nodes for row in node.ctl("links")["links"])


def cut(cluster, sock):
    """A data connection breaks, and another one takes its place."""
    before = mends(cluster)
    reset(sock)
    until(lambda: mends(cluster) > before, "commctl links counts it")


def commd_comes_again(cluster):
    """It is killed, and links to the other node."""
    node = cluster.nodes[0]
    serves(node, kill(node))
    cluster.wait_linked()


def engine_comes_again(cluster):
    node = cluster.nodes[1]
    old = until(node.engine_pid, "an engine")
    os.kill(old, signal.SIGKILL)
    until(lambda: node.engine_pid() not in (0, old), "another engine")
    cluster.wait_linked()


def test_a_job_among_ten_thousand_at_every_port():
    with Target({"encryption": "on"}) as cluster:
        for pattern in ("connection from 127", "broke -> made again", "killed by signal 9",
                        "was lost", "engine", "http"):  # fmt: skip
            cluster.expect(pattern)
        ranks = cluster.ranks("g", [0, 0, 1, 1])
        job = Job(cluster, "job", ranks)
        before = Cost(cluster)
        link = connections(cluster.nodes[1].engine_pid())
        equal(len(link), 2, "connections between the engines")
        ports = cluster.ports()
        with crowds(ports) as (held, end):
            print(f"  {held} connections at {len(ports)} ports")
            if held < FEWEST * len(ports):
                raise Skip(f"this user may have too few descriptors: {held} for {len(ports)} ports")
            job.goes_on()
            cut(cluster, link.pop())
            commd_comes_again(cluster)
            cut(cluster, link.pop())
            job.goes_on()
            job.finish()
            leave("g", ranks)
            engine_comes_again(cluster)
            new_group_works(cluster, ranks, "among")
            opened = end()
        print(f"  {opened} in all")
        check(opened > held, "they went on")
        until(before.gone, lambda: f"descriptors: {before.files}")
        before.check()


if __name__ == "__main__":
    main(globals())
