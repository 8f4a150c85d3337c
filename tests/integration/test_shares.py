#!/usr/bin/env python3
"""A user who joins groups that never fill leaves the others room: real processes of two users
(turns.py), the victim's groups open at once and its results are verified, also where the home is
another node."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import Cluster, check, equal, main, until  # noqa: E402
from test_turns import HOSTILE, Hostile, open_to_all, victims, work  # noqa: E402


def beside(nodes, *what):
    with Cluster(nodes, {"log": {"level": "warn"}}) as cluster:
        open_to_all(cluster)
        cluster.expect(f"uid {HOSTILE}")
        ranks = victims(cluster, [0, nodes - 1, 0])
        work(cluster, ranks, "before")
        hostile = [Hostile(node, *what) for node in cluster.nodes]
        try:
            for one in hostile:
                one.done()
            until(
                lambda: any(row["uid"] == HOSTILE for row in cluster.nodes[0].groups()),
                "the hostile joins",
            )
            for number in range(20):  # their homes are on all nodes
                work(cluster, ranks, f"during{number}")
        finally:
            for one in hostile:
                one.__exit__()
        until(lambda: not any(node.groups() for node in cluster.nodes), "nothing of it is left")
        work(cluster, ranks, "after")


def test_sizes_that_never_fill():
    beside(1, "sizes", 34)


def test_sizes_that_never_fill_on_two_nodes():
    beside(2, "sizes", 200)


def test_many_groups_that_never_fill():
    beside(1, "fill", 100, 60)


def test_many_groups_that_never_fill_on_two_nodes():
    beside(2, "fill", 60, 60)


def test_no_group_is_larger_than_its_nodes():
    with Cluster(1) as cluster:
        rank = cluster.rank(0)
        error = rank.call_error("join", name="huge", rank=0, size=1025)
        equal(error["code"], "INVALID")
        check(
            'group "huge": size 1025, allowed are 1 to 1024 ranks on 1 nodes' in error["message"],
            error,
        )


if __name__ == "__main__":
    main(globals())
