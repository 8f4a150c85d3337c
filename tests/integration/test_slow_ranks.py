#!/usr/bin/env python3
"""Large operations that go one way between nodes, to ranks that are stopped again and again.

Nothing is lost, nobody else waits, and the engines hold no more than one may be ahead of another.
How much that is, and all orders of events: tests/unit/transport/test_engine_flow.c.
"""

import os
import select
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import BUILD, Cluster, check, equal, how_many, main, need_ucx  # noqa: E402

ONE_WAY = ("broadcast", "reduce", "gather", "scatter", "all_to_all_v")
LONG = 240.0
MIB = 1 << 20
ENGINE_MOST = 64 * MIB  # beside the boards; of which the fabric has the smaller half


def has_answered(rank):
    return rank.buffer or select.select([rank.process.stdout], [], [], 0)[0]


def memory(cluster):
    """Bytes that the engine that has most has of its own."""
    most = 0
    for node in cluster.nodes:
        with open(f"/proc/{node.engine_pid()}/status") as file:
            lines = dict(line.split(":", 1) for line in file)
        most = max(most, int(lines["RssAnon"].split()[0]) << 10)
    return most


def stop_and_go(cluster, victim, ms, at_most):
    """@victim is stopped for @ms again and again until it has answered; returns the most memory."""
    most = 0
    for _ in range(at_most):
        if has_answered(victim):
            break
        os.kill(victim.pid, signal.SIGSTOP)
        time.sleep(ms / 1000)
        most = max(most, memory(cluster))
        os.kill(victim.pid, signal.SIGCONT)
        time.sleep(0.01)
    return most


def one_way(cluster, name, ranks, coll, nbytes, victim, ms, at_most):
    for rank in ranks:
        rank.start("one_way", name=name, coll=coll, nbytes=nbytes)
    for rank in ranks:
        check("started" in rank.answer(LONG), f"rank of pid {rank.pid} has begun")
    most = stop_and_go(cluster, ranks[victim], ms, at_most)
    for number, rank in enumerate(ranks):
        check(rank.finish(LONG), f"{coll} of {nbytes} bytes: the result on rank {number}")
    if "fsanitize" not in open(os.path.join(BUILD, "config.status")).read():
        check(most < ENGINE_MOST, f"{coll}: an engine had {most >> 20} MiB")


def stopped_ranks(cluster, places, nbytes):
    """Rank 0 receives where all send to it, and is stopped there; elsewhere the last one."""
    ranks = cluster.ranks("g", places)
    for coll in ONE_WAY:
        victim = 0 if coll in ("reduce", "gather") else len(ranks) - 1
        one_way(cluster, "g", ranks, coll, nbytes, victim, 500, 2)
        one_way(cluster, "g", ranks, coll, nbytes // 4, victim, 10, 30)
    for rank in ranks:
        rank.call("leave", name="g")


def test_two_nodes():
    with Cluster(2) as cluster:
        stopped_ranks(cluster, [0, 1], how_many(100, 40) * MIB)


def test_three_nodes():
    with Cluster(3) as cluster:
        stopped_ranks(cluster, [0, 1, 2], how_many(80, 40) * MIB)


def test_over_ucx():
    need_ucx()
    with Cluster(2, {"transport": {"fabric": "ucx"}}) as cluster:
        stopped_ranks(cluster, [0, 1], 40 * MIB)


def test_other_groups_go_on():
    """Also messages of the same ranks' nodes, and large ones, both ways."""
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        others = cluster.ranks("h", [0, 1])
        for rank in ranks:
            rank.start("one_way", name="g", coll="broadcast", nbytes=100 * MIB, times=3)
        for rank in ranks:
            rank.answer(LONG)
        os.kill(ranks[1].pid, signal.SIGSTOP)
        for coll in ONE_WAY:
            for rank in others:
                rank.start("one_way", name="h", coll=coll, nbytes=10 * MIB)
            for rank in others:
                rank.answer(LONG)
            for rank in others:
                check(rank.finish(LONG), coll)
        for rank in others:
            rank.start("mail", name="h", seed=7, messages=60, max_bytes=2 * MIB)
        for rank in others:
            equal(rank.finish(LONG), 60)
        check(not has_answered(ranks[1]), "the stopped rank is not through")
        os.kill(ranks[1].pid, signal.SIGCONT)
        for rank in ranks:
            check(rank.finish(LONG), "broadcast")


def test_a_group_dies_while_its_sender_waits():
    with Cluster(2) as cluster:
        for victim in (0, 1):
            ranks = cluster.ranks("g", [0, 1])
            for rank in ranks:
                rank.start("one_way", name="g", coll="broadcast", nbytes=100 * MIB, times=1000)
            for rank in ranks:
                rank.answer(LONG)
            os.kill(ranks[1].pid, signal.SIGSTOP)
            time.sleep(0.2)
            ranks[victim].kill()
            if victim == 0:
                os.kill(ranks[1].pid, signal.SIGCONT)
            equal(ranks[1 - victim].error(LONG)["code"], "RANK_LOST")
            ranks[1 - victim].call("leave", name="g")
            again = cluster.ranks("h", [0, 1])
            one_way(cluster, "h", again, "broadcast", 20 * MIB, 1, 100, 1)
            for rank in again:
                rank.call("leave", name="h")


if __name__ == "__main__":
    main(globals())
