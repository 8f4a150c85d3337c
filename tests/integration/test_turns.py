#!/usr/bin/env python3
"""No user takes commd's time, or the descriptors that it may send, from another: real processes of
two users, and the job of one verifies its results while the other does its worst (turns.py).
"""

import contextlib
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import Cluster, Skip, check, equal, main, until  # noqa: E402

HOSTILE, VICTIM = 4001, 4002
PATIENCE = 6 * c.HANG
STORM = os.path.join(c.BUILD, "tests/hostile/storm")
SLOW = bool(c.sanitizer_environment())


def as_user(uid):
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def open_to_all(cluster):
    """Other users reach the sockets."""
    if os.geteuid():
        raise Skip("needs root, to be several users")
    os.chmod(cluster.folder, 0o755)
    for node in cluster.nodes:
        os.chmod(node.home, 0o755)


class Hostile:
    """A process of turns.py, or @program, as another user; it is done when this has been made."""

    def __init__(self, node, *what, uid=HOSTILE, program=None):
        turns = [sys.executable, os.path.join(c.HERE, "turns.py")]
        self.process = subprocess.Popen(
            [*as_user(uid), *(program or turns), node.socket, *map(str, what)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self):
        return self

    def done(self):
        equal(self.process.stdout.readline(), b"done\n")
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def victims(cluster, places):
    """Ranks of the other user."""
    ranks = []
    for place in places:
        program = [*as_user(VICTIM), sys.executable, os.path.join(c.HERE, "rank.py")]
        ranks.append(c.Rank(cluster.nodes[place], program))
        cluster.all_ranks.append(ranks[-1])
        ranks[-1].call("connect")
    return ranks


def work(cluster, ranks, name):
    """They join a new group, reduce in it, and leave."""
    cluster.join(name, ranks)
    for number, rank in enumerate(ranks):
        rank.start("all_reduce", name=name, count=1000, dtype="u8", fill=number + 1)
    total = len(ranks) * (len(ranks) + 1) // 2
    for rank in ranks:
        equal(rank.finish(), bytes([total] * 16).hex())
    for rank in ranks:
        rank.call("leave", name=name)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idles(pid):
    """Over half a second it uses a fifth of a processor at most; before, it was all of one."""
    used, begin = cpu_seconds(pid), c.now()
    while c.now() - begin < 0.5:
        os.sched_yield()
    return cpu_seconds(pid) - used < 0.1


def fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def start_with(cluster, limit):
    """commd may have so many descriptors, and the kernel lets no more than that fly from it."""
    open_to_all(cluster)
    node = cluster.nodes[0]
    node.prefix = ["setpriv", "--bounding-set=-sys_resource,-sys_admin",
                   "prlimit", f"--nofile={limit}:{limit}"]  # fmt: skip
    cluster.start()
    return node


def test_descriptors_that_nobody_takes():
    """By connections that read nothing, until the kernel would let commd send no more."""
    count, rounds, size = 400, 12, 8
    with Cluster(1, start=False) as cluster:
        node = start_with(cluster, 4096)
        ranks = victims(cluster, [0, 0, 0])
        work(cluster, ranks, "before")
        before = fds(node.pid)
        cluster.expect(f"uid {HOSTILE}: it does not read what it is sent -> refused")
        with Hostile(node, "unread", count, rounds, size).done():
            node.wait_log(f"uid {HOSTILE}: it does not read what it is sent")
            for number in range(10):
                work(cluster, ranks, f"during{number}")
            check(
                fds(node.pid) < before + 2 * count + rounds * count // size + 64,
                f"{fds(node.pid)} descriptors",
            )
            until(lambda: idles(node.pid), "commd is idle")
            work(cluster, ranks, "later")
        until(lambda: fds(node.pid) <= before, lambda: f"{fds(node.pid)} descriptors, not {before}")
        equal([row["name"] for row in node.groups()], [])


def test_descriptors_that_are_left_behind():
    """The same by connections that commd closes, one after the other."""
    with Cluster(1, start=False) as cluster:
        node = start_with(cluster, 4096)
        ranks = victims(cluster, [0, 0, 0])
        work(cluster, ranks, "before")
        before = fds(node.pid)
        cluster.expect(f"uid {HOSTILE}: protocol error")
        cluster.expect(f"uid {HOSTILE}: it does not read what it is sent")
        cluster.expect(rf"uid {HOSTILE}: user {HOSTILE} has \d+ connections already")
        with Hostile(node, "left", 700, 10).done():
            for number in range(10):
                work(cluster, ranks, f"during{number}")
            until(lambda: idles(node.pid), "commd is idle")
            # its connections, the boards that fly in them (half of what boards may have of 4096),
            # and what is being closed
            check(fds(node.pid) < before + 600 + 1024 + 1024, f"{fds(node.pid)} descriptors")
        until(lambda: fds(node.pid) <= before, lambda: f"{fds(node.pid)} descriptors, not {before}")


def ctl_as(node, uid, verb):
    done = subprocess.run(
        [*as_user(uid), *c.commctl(node), "--json", verb],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    equal(done.returncode, 0, done.stdout)
    return done.stdout


def test_questions_without_end():
    """Many groups, and many sessions of commctl that ask for them and read no answer."""
    count = 400 if SLOW else 4000
    with Cluster(
        2, {"limits": {"max_groups": 8192, "max_groups_per_user": 4096}}, start=False
    ) as cluster:
        open_to_all(cluster)
        cluster.start()
        node = cluster.nodes[0]
        ranks = victims(cluster, [0, 0, 1])
        cluster.expect(f"uid {HOSTILE}: user {HOSTILE} has 16 sessions of commctl already")
        with Hostile(node, "groups", count).done(), Hostile(node, "ask", 480, 3).done():
            for number in range(10):
                work(cluster, ranks, f"during{number}")
                ctl_as(node, VICTIM, "status")
            node.wait_log(f"user {HOSTILE} has 16 sessions of commctl already")
            names = [row["name"] for row in node.groups()]
            equal((len(names), set(names)), (count, {f"many{i}" for i in range(count)}))
            equal(ctl_as(node, VICTIM, "groups").count("many"), 0)
            with Hostile(node, "ask", 1, 1, uid=VICTIM).done():
                pass
        until(lambda: not node.groups(), "the groups are gone", PATIENCE)
        for each in cluster.nodes:
            check("lost" not in each.log(), f"{each.name}: {each.log()[-2000:]}")
        print(f"longest turn: {node.ctl('status')['status'][0]['longest_turn_ms']} ms")


def resident_kb(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1])


def test_joins_that_never_form():
    """Many processes of one user join groups that never fill, each for a millisecond, all at one
    node: what that makes the link to the other node carry keeps nobody's joins from it."""
    with Cluster(2, start=False) as cluster, contextlib.ExitStack() as stack:
        open_to_all(cluster)
        cluster.start()
        ranks = victims(cluster, [0, 1])
        work(cluster, ranks, "before")
        before = [resident_kb(node.pid) for node in cluster.nodes]
        stack.enter_context(Hostile(cluster.nodes[0], "joins", 24, program=[STORM]).done())
        begin, number = c.now(), 0
        while number < 20 or c.now() - begin < 10:
            work(cluster, ranks, f"during{number}")
            number += 1
        print(f"{number} groups in {c.now() - begin:.1f} s beside the storm")
        for node, kb in zip(cluster.nodes, before, strict=True):
            check("lost" not in node.log(), f"{node.name}: {node.log()[-2000:]}")
            grown = resident_kb(node.pid) - kb
            check(SLOW or grown < 48 << 10, f"{node.name} has grown by {grown} KB")


def nodes_told(node, uid):
    """Which nodes of "g" an answer to @uid's question tells of."""
    done = subprocess.run(
        [*as_user(uid), c.COMMCTL, "--socket", node.socket, "--json", "ranks", "g"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    # a node that did not answer in time is told on stderr
    return {row["node"] for row in json.loads(done.stdout)["ranks"]} if done.stdout else done.stderr


def test_questions_of_who_is_gone():
    """Processes of one user ask all nodes about many groups and die at once, without end: what the
    other node does for them ends with them, and others get their answers."""
    count = 200 if SLOW else 1000
    with Cluster(
        2, {"limits": {"max_groups": 8192, "max_groups_per_user": 4096}}, start=False
    ) as cluster, contextlib.ExitStack() as stack:  # fmt: skip
        open_to_all(cluster)
        cluster.start()
        ranks = victims(cluster, [0, 1])
        cluster.join("g", ranks)
        cluster.expect(f"uid {HOSTILE}: user {HOSTILE} has 16 sessions of commctl already")
        stack.enter_context(Hostile(cluster.nodes[1], "groups", count).done())
        before = resident_kb(cluster.nodes[1].pid)
        stack.enter_context(Hostile(cluster.nodes[0], "questions", 12, program=[STORM]).done())
        for number in range(5):
            work(cluster, ranks, f"during{number}")
            for uid in (0, VICTIM):
                told = nodes_told(cluster.nodes[0], uid)
                if SLOW and told != {"node0", "node1"}:  # an answer may come too late there
                    told = nodes_told(cluster.nodes[0], uid)
                equal(told, {"node0", "node1"}, f"told to user {uid}")
        for node in cluster.nodes:
            check("lost" not in node.log(), f"{node.name}: {node.log()[-2000:]}")
        grown = resident_kb(cluster.nodes[1].pid) - before
        print(f"node1 has grown by {grown} KB")
        check(SLOW or grown < 64 << 10, f"node1 has grown by {grown} KB")


if __name__ == "__main__":
    main(globals())
