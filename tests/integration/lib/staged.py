"""Situations that `commctl why` has a verdict for, staged with the ranks of a cluster: test_why.py
and test_netns.py ask what is said of them, tests/bench/why.py how soon.

    staged = rank_stopped(cluster)       # of the function's docstring: what cluster it wants
    until(lambda: staged.named(why), ...)
"""

import os
import shutil
import signal
import subprocess

import faults
from cluster import Skip, now


def is_well(row):
    """What `commctl why` says of a group: nobody is accused. On a busy machine a rank may get no
    core while another does, and a commd may not answer for a while; that is told, and is true."""
    return row["well"] or "wanted a core" in row["evidence"] or row["verdict"] == "NODE_SILENT"


class Staged:
    """What was staged, and what is to be said of it."""

    def __init__(self, verdict, ranks, at=None, culprit=None, says=(), group="g", stopped=()):
        self.verdict, self.ranks, self.group = verdict, ranks, group
        self.at = at or now()  # the event
        self.culprit = culprit  # number of the rank; None: it is no rank
        self.says, self.stopped = says, stopped

    def named(self, row):
        """Does a row of `commctl why` name the verdict and the culprit?"""
        if row["verdict"] != self.verdict or not all(text in row["evidence"] for text in self.says):
            return False
        if self.culprit is None:
            return True
        rank = self.ranks[self.culprit]
        return (row["rank"], row["node"], row["pid"]) == (self.culprit, rank.node.name, rank.pid)

    def go_on(self):
        """What was stopped goes on."""
        for pid in self.stopped:
            os.kill(pid, signal.SIGCONT)


def both(ranks, **operation):
    for rank in ranks:
        rank.start("raw", name="g", **operation)
    for rank in ranks:
        rank.finish()


def rank_stopped(cluster):
    """Two nodes."""
    ranks = cluster.ranks("g", [0, 0, 1])
    os.kill(ranks[2].pid, signal.SIGSTOP)
    at = now()
    for rank in ranks[:2]:
        rank.start("all_reduce", name="g", count=100)
    return Staged("RANK_STOPPED", ranks, at, culprit=2, stopped=[ranks[2].pid])


def not_arrived(cluster):
    """Two nodes."""
    ranks = cluster.ranks("g", [0, 1, 1])
    both(ranks, coll="barrier")
    for rank in ranks[1:]:
        rank.start("all_reduce", name="g", count=7, dtype="i32", redop="max")
    return Staged("NOT_ARRIVED", ranks, culprit=0)


def order_inversion(cluster):
    """Two nodes; the groups are g and h."""
    ranks = cluster.ranks("g", [0, 1])
    cluster.join("h", ranks)
    ranks[0].start("all_reduce", name="g", count=10)
    ranks[1].start("all_reduce", name="h", count=10)
    says = [f'of group "{group}" waits in operation 1' for group in "gh"]
    return Staged("ORDER_INVERSION", ranks, says=says)


def rank_dead(cluster):
    """Two nodes."""
    ranks = cluster.ranks("g", [0, 1, 1])
    both(ranks, coll="barrier")
    ranks[0].start("all_reduce", name="g", count=100)
    return Staged("RANK_DEAD", ranks, ranks[1].kill(), culprit=1)


def mismatch(cluster):
    """Two nodes."""
    ranks = cluster.ranks("g", [0, 1])
    for number, rank in enumerate(ranks):
        rank.start("all_reduce", name="g", count=10 + number)
    says = [f"called all_reduce f32 sum of {count} elements" for count in (10, 11)]
    return Staged("MISMATCH", ranks, says=says)


def node_dead(cluster):
    """Two nodes, the second of which is not there afterwards."""
    cluster.expect("lost|UCX +ERROR")
    ranks = cluster.ranks("g", [0, 1])
    ranks[0].start("all_reduce", name="g", count=10)
    return Staged("COMMD_DEAD", ranks, cluster.nodes[1].kill(), says=["node1"])


LINK_STALL = {"timeouts": {"progress": "60s"}}


def link_stall(cluster):
    """Two nodes with the changes LINK_STALL: an engine stands still."""
    ranks = cluster.ranks("g", [0, 1])
    engine = cluster.nodes[1].engine_pid()
    os.kill(engine, signal.SIGSTOP)
    at = now()
    for rank in ranks:
        rank.start("all_reduce", name="g", count=10)
    says = ["all ranks have begun it"]
    return Staged("LINK_STALL", ranks, at, says=says, stopped=[engine])


def paced(cluster, group, places, compute, steps=10000):
    """Ranks that compute for so many seconds between two operations, each its own time."""
    ranks = cluster.ranks(group, places)
    for rank, seconds in zip(ranks, compute):
        rank.start("paced", name=group, compute=seconds, steps=steps)
    for rank in ranks:
        rank.answer()
    cluster.expect("was lost|died")
    return ranks


def slow_rank(cluster, group="g"):
    """Two nodes."""
    ranks = paced(cluster, group, [0, 0, 1], [0.005, 0.1, 0.005])
    return Staged("SLOW_RANK", ranks, culprit=1, group=group)


def compute_bound(cluster, group="g"):
    """Two nodes."""
    ranks = paced(cluster, group, [0, 0, 1], 3 * [0.1])
    return Staged("COMPUTE_BOUND", ranks, group=group)


def healthy(cluster):
    """Two nodes."""
    return Staged("HEALTHY", cluster.ranks("g", [0, 0, 1, 1]))


def comm_bound(cluster):
    """Two nodes."""
    ranks = cluster.ranks("g", [0, 0, 1, 1])
    faults.start_loops("g", ranks, 1000)
    return Staged("COMM_BOUND", ranks)


ENGINE_STOPPED = LINK_STALL


def engine_stopped(cluster):
    """Two nodes with the changes ENGINE_STOPPED."""
    stage = link_stall(cluster)
    stage.verdict, stage.says = "ENGINE_STOPPED", ["the engine on node node1 is stopped"]
    return stage


SLOW_LINK = {"device": "veth0", "fabric": "tcp"}


def drop_data(cluster, which="", node=0):
    """Namespaces: of what comes to @node by TCP, but not between the commds, @which is dropped."""
    if not shutil.which("nft"):
        raise Skip("there is no nft: apt install nftables")
    port = cluster.nodes[node].port
    # not both ports in one rule: nft 1.0.6 compares them at once, and drops what has one of them
    rules = "; ".join(
        ["add table inet t", "add chain inet t in { type filter hook input priority 0; }"]
        + [f"add rule inet t in tcp {side} {port} accept" for side in ("dport", "sport")]
        + [f"add rule inet t in meta l4proto tcp {which} drop"]
    )
    done = subprocess.run(["ip", "netns", "exec", cluster.names[node], "nft", rules],
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        raise Skip(f"nft cannot drop here: {done.stderr.strip()}")


def pass_data(cluster, node=0):
    """No longer what drop_data() says."""
    subprocess.run(["ip", "netns", "exec", cluster.names[node], "nft", "delete table inet t"],
                   check=True)  # fmt: skip


def slow_link(cluster):
    """Namespaces (test_netns.py) with the section transport SLOW_LINK: what node1 sends to node0
    is lost now and then, but not between the commds."""
    ranks = cluster.ranks("g", [0, 1])
    faults.start_loops("g", ranks, 100_000)
    drop_data(cluster, "numgen random mod 100 < 4")
    says = ["node node1 sends", "of what goes to node node0 again"]
    return Staged("SLOW_LINK", ranks, says=says)
