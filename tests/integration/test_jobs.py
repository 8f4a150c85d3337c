#!/usr/bin/env python3
"""A group's name belongs to a job: ranks of two jobs of one user do not meet, ranks of one do, and
a name with "/" before it belongs to none."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import HERE, Cluster, Rank, check, equal, main, until  # noqa: E402


def rank_of(cluster, node, *environment):
    program = [sys.executable, os.path.join(HERE, "rank.py")]
    rank = Rank(cluster.nodes[node], ["env", *environment, *program])
    cluster.all_ranks.append(rank)
    equal(rank.call("connect"), cluster.nodes[node].name)
    return rank


def names(cluster):
    return sorted({group["name"] for node in cluster.nodes for group in node.groups()})


def test_two_jobs_of_one_user():
    with Cluster(2) as cluster:
        jobs = [
            [rank_of(cluster, at, f"SLURM_JOB_ID={job}", f"SLURM_STEP_ID={at}") for at in (0, 1)]
            for job in (17, 18)
        ]
        for job in jobs:
            job[0].start("join", name="hello", rank=0, size=2)
        until(
            lambda: names(cluster) == ["slurm-17/hello", "slurm-18/hello"],
            lambda: f"both wait: {names(cluster)}",
        )
        for job in jobs:
            job[1].call("join", name="hello", rank=1, size=2)
            job[0].finish()
        for number, job in enumerate(jobs):
            for rank in job:
                rank.start("all_reduce", name="hello", count=4, dtype="u8", fill=1 + number)
            for rank in job:
                equal(rank.answer()["ok"][:8], 4 * f"{2 * (1 + number):02x}")
        everybody = [rank for job in jobs for rank in job]
        cluster.join("/all", everybody)
        check("all" in names(cluster), names(cluster))


def test_where_there_is_no_job():
    """The two shells of README.md; and a process outside of a job that joins a group of it."""
    with Cluster(2) as cluster:
        shells = [rank_of(cluster, node, f"COLUMNS={node}") for node in (0, 1)]
        cluster.join("hello", shells)
        equal(names(cluster), ["hello"])
        inside, outside = rank_of(cluster, 0, "COMMD_JOB=mine"), shells[1]
        inside.start("join", name="part", rank=0, size=2)
        outside.call("join", name="/mine/part", rank=1, size=2)
        inside.finish()
        equal(names(cluster), ["hello", "mine/part"])
        told = cluster.nodes[0].ctl("events", "--job", "mine", "--kind", "group_open")["events"]
        equal([row["text"].split(":")[0] for row in told], ['group "mine/part"'])
        equal(cluster.nodes[0].ctl("events", "--job", "min")["events"], [])
        error = inside.call_error("join", name=252 * "x", rank=0, size=1)
        check("257 bytes with its job (COMMD_JOB)" in error["message"], error)


if __name__ == "__main__":
    main(globals())
