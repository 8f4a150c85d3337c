"""Kills processes in mid-operation and measures how soon each survivor has an error in its hands.

A scenario makes its own cluster, lets ranks run all_reduce after all_reduce, and kills one process
by SIGKILL (or stops it by SIGSTOP). Every survivor must get an error that names the right rank, pid
and node; groups that did not lose anybody must not notice; a new group must work afterwards. Times
are printed, not judged: only a hang (10 s) is a failure. test_faults.py runs each scenario once.

The measured time is from just before kill(2) to the survivor's return from the collective, taken
in the survivor, on CLOCK_MONOTONIC: it includes finding out, telling the other nodes, waking up.
"""

import os
import signal

from cluster import Cluster, check, equal, memory_files, now, running, until


STOPPED = {"progress": "60s"}  # timeouts of a cluster whose engines are stopped for a while


def sleeps(pid):
    """It waits for somebody: it has done what it could."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "S"


def until_on_the_wire(node, ranks, name="g"):
    """@ranks of @node sleep in an operation, and its engine has sent what it could: it goes on by
    another engine only, which is stopped."""

    def asleep():
        rows = (node.ctl("ranks", name) or {}).get("ranks", [])
        said = {row["pid"] for row in rows if row["asleep_ms"] is not None}
        look = [*(rank.pid for rank in ranks), node.engine_pid()]
        return said >= {rank.pid for rank in ranks} and all(map(sleeps, look + look))

    until(asleep, lambda: f"ranks that sleep in an operation: {node.ctl('ranks', name)}")


def start_loops(name, ranks, count):
    """All ranks are at it when this returns, and may not have begun the first operation yet."""
    for rank in ranks:
        rank.start("loop", name=name, count=count)
    for rank in ranks:
        check("started" in rank.answer(), "the loop has started")


def start_bystanders(cluster, places):
    """A group that has nothing to do with the fault."""
    ranks = cluster.ranks("bystander", places)
    for rank in ranks:
        rank.start("loop", name="bystander", count=100, limit=300)
    for rank in ranks:
        check("started" in rank.answer(), "the loop has started")
    return ranks


def finish_bystanders(ranks):
    for rank in ranks:
        equal(rank.finish(60), 300, "the group that lost nobody went on")
        rank.call("leave", name="bystander")


def errors(survivors, begin, **expected):
    """Each survivor's error has the expected fields; returns the times in ms."""
    times = []
    for rank in survivors:
        error = rank.error()
        got = {key: error[key] for key in expected}
        wanted = {k: v for k, v in expected.items() if not callable(v)}
        for key, allowed in expected.items():
            if callable(allowed):
                check(allowed(got[key]), f"{key} is {got[key]!r}: {error}")
        equal({k: got[k] for k in wanted}, wanted, f"error of rank process {rank.pid}: {error}")
        times.append((error["at"] - begin) * 1000)
    return times


def new_group_works(cluster, ranks, name="afterwards"):
    """The time when it had joined."""
    cluster.join(name, ranks)
    joined = now()
    for rank in ranks:
        rank.start("all_reduce", name=name, count=20000, dtype="u8", redop="max", fill=7)
    for rank in ranks:
        equal(rank.finish(), "07" * 16)
    for rank in ranks:
        rank.call("leave", name=name)
    return joined


def nothing_is_held(cluster, nodes=None):
    """commd and the engines have closed the boards of all groups."""
    for node in nodes or cluster.nodes:
        until(lambda node=node: not node.groups(), f"no group on {node.name}")
        for pid in filter(None, (node.pid, node.engine_pid())):
            until(
                lambda pid=pid: not memory_files(pid), lambda pid=pid: f"{pid}: {memory_files(pid)}"
            )


def leave(name, ranks):
    for rank in ranks:
        rank.call("leave", name=name)


# ---- scenarios: each returns the times of its survivors in ms ---------------------------------


def rank_killed(nodes, places, victim, count):
    with Cluster(nodes) as cluster:
        ranks = cluster.ranks("g", places)
        others = start_bystanders(cluster, [0, nodes - 1])
        start_loops("g", ranks, count)
        lost = ranks[victim]
        survivors = [rank for rank in ranks if rank is not lost]
        times = errors(
            survivors, lost.kill(), code="RANK_LOST", rank=victim, pid=lost.pid, node=lost.node.name
        )
        finish_bystanders(others)
        leave("g", survivors)
        new_group_works(cluster, survivors)
        nothing_is_held(cluster)
        return times


def rank_killed_here():
    """a rank, one node, 2 ranks, small operations"""
    return rank_killed(1, [0, 0], 1, 100)


def rank_killed_small():
    """a rank, two nodes by two, small operations"""
    return rank_killed(2, [0, 0, 1, 1], 2, 100)


def rank_killed_large():
    """a rank, two nodes by two, 8 MB operations"""
    return rank_killed(2, [0, 1, 0, 1], 0, 2_000_000)


def rank_killed_three_nodes():
    """a rank, three nodes, 8 MB operations"""
    return rank_killed(3, [0, 1, 2], 1, 2_000_000)


def rank_killed_before_it_came():
    """a rank that the others are waiting for, two nodes"""
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 0, 1, 1])
        for rank in ranks[:3]:
            rank.start("all_reduce", name="g", count=1000)
        begin = ranks[3].kill()
        times = errors(
            ranks[:3], begin, code="RANK_LOST", rank=3, pid=ranks[3].pid, node="node1"
        )
        leave("g", ranks[:3])
        nothing_is_held(cluster)
        return times


def engine_killed_with(count):
    with Cluster(2, {"timeouts": STOPPED}) as cluster:
        cluster.expect("the engine of node node1 was lost")
        cluster.expect("the engines of nodes .* lost each other")
        cluster.expect("UCX +ERROR")
        ranks = cluster.ranks("g", [0, 0, 1, 1])
        local = start_bystanders(cluster, [1, 1])
        start_loops("g", ranks, count)
        node = cluster.nodes[1]
        old = node.engine_pid()
        os.kill(old, signal.SIGSTOP)  # between two operations the group would go on
        until_on_the_wire(cluster.nodes[0], ranks[:2])
        begin = now()
        os.kill(old, signal.SIGKILL)
        times = errors(
            ranks, begin, code=lambda c: c in ("ENGINE_LOST", "NODE_LOST"), node="node1"
        )
        finish_bystanders(local)
        leave("g", ranks)
        until(lambda: node.engine_pid() not in (0, old), "a new engine")
        cluster.wait_linked()
        new_group_works(cluster, ranks)
        nothing_is_held(cluster)
        return times


def engine_killed_small():
    """the engine of a node, small operations"""
    return engine_killed_with(100)


def engine_killed_large():
    """the engine of a node, 8 MB operations"""
    return engine_killed_with(2_000_000)


def commd_killed():
    """a commd; a one-node group on its node goes on"""
    with Cluster(2) as cluster:
        cluster.expect("node node1 was lost")
        cluster.expect("the engines of nodes .* lost each other")
        cluster.expect("UCX +ERROR")
        ranks = cluster.ranks("g", [0, 0, 1, 1])
        local = cluster.ranks("local", [1, 1])
        node = cluster.nodes[1]
        engine = node.engine_pid()
        start_loops("g", ranks, 1000)
        begin = node.kill()
        times = errors(ranks, begin, code="NODE_LOST", node="node1")
        until(lambda: not running(engine), "the engine ends with its commd")
        for rank in local:
            rank.start("all_reduce", name="local", count=50000, dtype="u8", redop="max", fill=9)
        for rank in local:
            equal(rank.finish(), "09" * 16, "a one-node group survives its commd")
        # and still learns of a death that no commd can tell it
        local[0].start("all_reduce", name="local", count=1000)
        begin = local[1].kill()
        errors([local[0]], begin, code="RANK_LOST", rank=1, pid=local[1].pid, node="node1")
        leave("g", ranks)
        leave("local", local[:1])
        node.start()
        cluster.wait_linked()
        new_group_works(cluster, ranks)  # the same contexts: they connect again
        nothing_is_held(cluster)
        return times


def commd_stopped():
    """a commd that stands still (SIGSTOP): lost after timeouts.node and .restart, here 1 s each"""
    changes = {"timeouts": {"heartbeat": "200ms", "node": "1s", "restart": "1s"}}
    with Cluster(2, changes) as cluster:
        cluster.expect("TLS handshake")  # with the one that stands still
        cluster.expect("node node1 was lost")
        cluster.expect("node node0 was lost")
        cluster.expect("the engines of nodes .* lost each other")
        ranks = cluster.ranks("g", [0, 1])
        cluster.join("before", ranks)
        node = cluster.nodes[1]
        begin = now()
        os.kill(node.pid, signal.SIGSTOP)
        ranks[0].start("all_reduce", name="g", count=1000)
        times = errors(ranks[:1], begin, code="NODE_LOST", node="node1")
        os.kill(node.pid, signal.SIGCONT)
        # what its ranks had been given before is right, and all that comes later fails
        start_loops("g", ranks[1:], 1000)
        late = ranks[1].error()
        check(late["code"] in ("NODE_LOST", "ENGINE_LOST"), f"{late}")
        leave("g", ranks)
        leave("before", ranks)
        cluster.wait_linked()
        new_group_works(cluster, ranks)
        nothing_is_held(cluster)
        return times


SCENARIOS = [
    rank_killed_here,
    rank_killed_small,
    rank_killed_large,
    rank_killed_three_nodes,
    rank_killed_before_it_came,
    engine_killed_small,
    engine_killed_large,
    commd_killed,
    commd_stopped,
]
