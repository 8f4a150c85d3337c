#!/usr/bin/env python3
"""A group with tensors on GPUs goes on in its next epoch, through commd-gpu: over the driver and
the NCCL that need no GPU, or on a real one (lib/gpu_driver.py)."""

import os
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import gpu_driver  # noqa: E402
from cluster import check, equal, main, running, until  # noqa: E402
from test_gpu_nodes import GpuNodes  # noqa: E402

COUNTS = (100, 50_000)


def joined(cluster, places):
    some = [cluster.rank(node) for node in places]
    cluster.join("g", some)
    return some


def verified(some):
    for count in COUNTS:
        for rank in some:
            rank.start("gpu_verify", name="g", count=count)
        equal([rank.finish() for rank in some], [len(some)] * len(some))


def together(some, do, **arguments):
    for rank in some:
        rank.start(do, **arguments)
    return [rank.finish() for rank in some]


def told_of(some, dead):
    """Each has an operation on the GPU that @dead does not come to."""
    for rank in some:
        rank.start("gpu_start", name="g", coll="all_reduce", count=1000)
    works = [rank.finish() for rank in some]
    os.kill(dead.pid, signal.SIGKILL)
    for rank, work in zip(some, works):
        rank.start("gpu_wait", number=work)
    equal({rank.error()["code"] for rank in some}, {"RANK_LOST"})


def lose_and_rejoin(places):
    with GpuNodes(max(places) + 1) as cluster:
        some = joined(cluster, places)
        verified(some)
        for dead in (0, 1):
            rest = some[:dead] + some[dead + 1 :]
            told_of(rest, some[dead])
            together(rest, "recover", name="g")
            verified(rest)
            for rank in rest:
                rank.start("recover", name="g", policy="wait", size=len(places))
            new = cluster.rank(places[dead])
            new.start("rejoin", name="g")
            some = rest + [new]
            placed = [rank.finish() for rank in some]
            equal([place["rank"] for place in placed], list(range(len(places))))
            verified(some)
            places = places[:dead] + places[dead + 1 :] + [places[dead]]
        equal(gpu_driver.copied(cluster), "", "results are right, but buffers were copied")


def test_on_one_node():
    lose_and_rejoin([0, 0, 0])


def test_on_two_nodes():
    lose_and_rejoin([0, 1, 0])


def test_an_abort_frees_who_waits_for_a_gpu():
    for places in ([0, 0, 0], [0, 1, 0]):
        with GpuNodes(max(places) + 1) as cluster:
            some = joined(cluster, places)
            verified(some)
            for rank in some[:2]:
                rank.start("gpu_start", name="g", coll="all_reduce", count=1000)
            works = [rank.finish() for rank in some[:2]]
            for rank, work in zip(some[:2], works):
                rank.start("gpu_wait", number=work)
            some[2].call("abort", name="g", reason="the watchdog barks")
            for rank in some[:2]:
                error = rank.error(10)
                equal(error["code"], "ABORTED")
                check("barks" in error["message"], error["message"])
            together(some, "recover", name="g")
            verified(some)


def test_commd_gpu_dies_and_the_group_is_repaired_in_place():
    with GpuNodes(1) as cluster:
        some = joined(cluster, [0, 0, 0])
        verified(some)
        cluster.expect("commd-gpu")
        pid = gpu_driver.pid(cluster.nodes[0])
        os.kill(pid, signal.SIGKILL)
        until(lambda: not running(pid), "it ends")
        for rank in some:
            rank.start("recover", name="g")
        equal([rank.finish()["epoch"] for rank in some], [2] * 3)
        until(lambda: works(some), "the device path works again")


def works(some):
    """The first operation after it tells of the loss."""
    for rank in some:
        rank.start("gpu_verify", name="g", count=100)
    answers = [rank.answer() for rank in some]
    return all("ok" in answer for answer in answers)


main(globals())
