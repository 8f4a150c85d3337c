#!/usr/bin/env python3
"""Ranks in pid namespaces of their own, as containers have, and commd outside. commd is killed.

Needs root, for the namespaces. The pids that commd saw of the ranks are nobody's in there.
"""

import os
import shutil
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import faults  # noqa: E402
from cluster import HERE, Cluster, Rank, Skip, check, equal, main, until  # noqa: E402

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def need_namespaces():
    if not shutil.which("unshare"):
        raise Skip("there is no unshare")
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True)
    if done.returncode:
        raise Skip(f"no pid namespaces here: {done.stderr.strip()}")


def child_of(unshare):
    path = f"/proc/{unshare}/task/{unshare}/children"

    def children():
        with open(path) as file:
            return file.read().split()

    return int(until(children, "unshare has a child")[0])


class Contained(Rank):
    def __init__(self, node):
        super().__init__(node, [*UNSHARE, sys.executable, os.path.join(HERE, "rank.py")])
        self.host_pid = child_of(self.pid)
        equal(self.call("pid"), 1, "the pid of the rank where it lives")

    def kill(self):
        os.kill(self.host_pid, signal.SIGKILL)
        return super().kill()


def contained(cluster, count):
    ranks = [Contained(cluster.nodes[0]) for _ in range(count)]
    cluster.all_ranks += ranks
    for rank in ranks:
        equal(rank.call("connect"), "node0")
    return ranks


def works(name, ranks):
    """Results of all kinds, verified."""
    for rank in ranks:
        rank.start("stream", name=name, seed=7, operations=40, max_bytes=1 << 18)
    for rank in ranks:
        equal(rank.finish(), 40)
    for rank in ranks:
        rank.start("mail", name=name, seed=8, messages=60, max_bytes=1 << 17)
    for rank in ranks:
        equal(rank.finish(), 60)


def nobody_is_lost(name, rank, peer):
    """Whoever waits for somebody who lives goes on waiting, until its own limit. Ends the group."""
    error = rank.call_error("recv", name=name, peer=peer, tag=3, size=8, timeout_ms=200)
    equal(error["code"], "TIMEOUT", error)
    error = rank.call_error("recv", name=name, peer=-1, tag=3, size=8, timeout_ms=200)
    equal(error["code"], "TIMEOUT", error)
    error = rank.call_error("all_reduce", name=name, count=1000, timeout_ms=200)
    equal(error["code"], "TIMEOUT", error)


def some_ranks(cluster, kinds):
    """"c": in a container, "h": beside commd."""
    return [contained(cluster, 1)[0] if kind == "c" else cluster.rank(0) for kind in kinds]


def after_commd(kinds):
    need_namespaces()
    with Cluster(1) as cluster:
        ranks = some_ranks(cluster, kinds)
        for name in ("g", "quiet", "dead", "any", "mail", "left"):
            cluster.join(name, ranks)
        works("g", ranks)
        cluster.nodes[0].kill()
        works("g", ranks)
        nobody_is_lost("quiet", ranks[0], len(ranks) - 1)
        works("g", ranks)

        last, number = ranks[-1], len(ranks) - 1
        pid = getattr(last, "host_pid", last.pid)
        last.call("leave", name="left")
        error = ranks[0].call_error("all_reduce", name="left", count=1000)
        equal((error["code"], error["rank"], error["pid"]), ("RANK_LOST", number, pid))
        check("left the group after completing 0 operations" in error["message"], error["message"])
        last.call("send", name="mail", peer=0, tag=1, text="last words")

        ranks[0].start("all_reduce", name="dead", count=1000)
        ranks[1].start("recv", name="any", peer=-1, tag=-1, size=8)
        last.kill()
        faults.errors(ranks[:1], 0, code="RANK_LOST", rank=number, pid=pid, node="node0")
        faults.errors(ranks[1:2], 0, code="RANK_LOST", rank=number, pid=pid, node="node0")
        equal(ranks[0].call("recv", name="mail", peer=number, tag=1, size=20)[2], 10)
        error = ranks[0].call_error("recv", name="mail", peer=number, tag=1, size=20)
        equal((error["code"], error["rank"], error["pid"]), ("RANK_LOST", number, pid))
        for rank in ranks[:-1]:
            for name in ("g", "quiet", "dead", "any", "mail", "left"):
                rank.call("leave", name=name)
        cluster.nodes[0].start()
        cluster.wait_linked()
        faults.new_group_works(cluster, ranks[:-1])


def test_a_group_of_containers_survives_commd():
    after_commd("ccc")


def test_a_group_of_a_container_and_others_survives_commd():
    after_commd("hch")


def test_a_container_ends_among_others():
    after_commd("hhc")


def test_a_group_beside_commd_survives_it():
    after_commd("hhh")


def test_commd_in_a_namespace_of_its_own():
    """It cannot see its clients' processes: it says so, once, and doctor does."""
    need_namespaces()
    with Cluster(1, start=False) as cluster:
        (node,) = cluster.nodes
        node.prefix = UNSHARE
        cluster.expect("a client is outside of the pid namespace that commd is in")
        cluster.start()
        ranks = cluster.ranks("g", [0, 0])
        works("g", ranks)
        equal([row["pid"] for row in node.ctl("clients")["clients"]], [0, 0])
        equal(node.log().count("outside of the pid namespace"), 1)
        rows = node.ctl("doctor")["doctor"]
        (row,) = [row for row in rows if row["check"] == "pid namespace"]
        check("the processes of 2 clients" in row["finding"] and "hostPID" in row["remedy"], row)
        os.kill(child_of(node.pid), signal.SIGTERM)  # unshare itself ignores it


if __name__ == "__main__":
    main(globals())
