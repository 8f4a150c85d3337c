#!/usr/bin/env python3
"""commd dies, and jobs with tensors on GPUs go on through commd-gpu: over the driver and the NCCL
that need no GPU, or on a real one (lib/gpu_driver.py)."""

import contextlib
import os
import select
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import gpu_driver  # noqa: E402
from cluster import check, equal, how_many, main, running, until  # noqa: E402
from keeping import gap, kill, restart, serves  # noqa: E402
from test_gpu_nodes import RANK_LOST, GpuNodes, moved, ranks, work  # noqa: E402

KILLS = how_many(5, 2)


class Kept(GpuNodes):
    """Whose commds have keepers."""

    arguments = ("--keep",)

    def __enter__(self):
        super().__enter__()
        self.expect("killed by signal 9")
        self.expect("closed before (the TLS handshake|its hello)")
        return self


def silent(some):
    """No rank has said that something failed."""
    lines = [one.process.stdout for one in some]
    for said in select.select(lines, [], [], 0)[0]:
        check(False, said.readline())


def get_on(node, by=20):
    """commd hears of operations once a second."""
    before = moved(node)
    until(lambda: moved(node) >= before + by, "operations go on")


def together(some, **arguments):
    for rank in some:
        rank.start("gpu", wait=True, **arguments)
    for rank in some:
        rank.finish()


def end(some):
    """They work for ever; the others of one that is killed may be told."""
    for one in some:
        one.process.kill()


def gone_on(node):
    return node.log().count("goes on since before commd was restarted: driver")


def over_and_over(cluster, group, places):
    """Results are checked by the ranks."""
    with ranks(cluster, group, places, 0) as some:
        for node in cluster.nodes:
            until(lambda node=node: moved(node) >= 20, "they work")
        first = [gpu_driver.pid(node) for node in cluster.nodes]
        for number in range(KILLS):
            node = cluster.nodes[number % len(cluster.nodes)]
            restart(node)
            silent(some)
            get_on(node)
        pid = kill(cluster.nodes[0])  # before it knows what there is
        for _ in range(3):
            pid = serves(cluster.nodes[0], pid)
            os.kill(pid, signal.SIGKILL)
        serves(cluster.nodes[0], pid)
        for node in cluster.nodes:
            get_on(node)
        silent(some)
        equal([gpu_driver.pid(node) for node in cluster.nodes], first)
        check(all(gone_on(node) for node in cluster.nodes), "they were taken over")
        equal(sum(row["clients"] for row in cluster.nodes[0].ctl("gpus")["gpus"]),
              sum(not node for node, _ in places), "sessions")  # fmt: skip
        os.kill(some[1].pid, signal.SIGKILL)
        word, code, rank, text = some[0].line()
        equal((word, int(code), int(rank)), ("error", RANK_LOST, 1), text)
        end(some)
    work(cluster, group + " anew", places)
    equal([gpu_driver.pid(node) for node in cluster.nodes], first)
    equal(gpu_driver.copied(cluster), "", "results are right, but buffers were copied")


def test_ranks_on_one_gpu_go_on():
    with Kept(1) as cluster:
        over_and_over(cluster, "one", [(0, 0)] * 3)


def test_ranks_on_two_gpus_go_on():
    with Kept(1) as cluster:
        over_and_over(cluster, "two", [(0, 0), (0, 1), (0, 0)])


def test_ranks_on_two_nodes_go_on():
    with Kept(2) as cluster:
        over_and_over(cluster, "nodes", [(0, 0), (1, 0), (0, 1)])


def test_operations_while_no_commd_is_there():
    with Kept(2) as cluster, contextlib.ExitStack() as gaps:
        some = [cluster.rank(node) for node in (0, 1, 0)]
        cluster.join("g", some)
        together(some, name="g")
        for node in cluster.nodes:
            gaps.enter_context(gap(node))
        for _ in range(100):
            together(some, name="g")
        gaps.close()
        cluster.wait_linked()
        together(some, name="g")
        for node in cluster.nodes:
            equal([g["state"] for g in node.groups() if g["name"] == "g"], ["open"])
            until(lambda node=node: moved(node) >= 102, "they went through commd-gpu")


def test_a_session_that_is_asked_for_in_the_gap():
    with Kept(1) as cluster:
        node = cluster.nodes[0]
        work(cluster, "first", [(0, 0)] * 2)
        pid = gpu_driver.pid(node)
        some = [cluster.rank(0) for _ in range(2)]
        cluster.join("g", some)
        with gap(node):
            for rank in some:
                rank.start("gpu", name="g", wait=True)
            time.sleep(0.3)
        for rank in some:
            rank.finish()
        equal(gpu_driver.pid(node), pid)
        restart(node)
        together(some, name="g")  # by the sessions that they have
        until(lambda: moved(node) >= 2, "they went through commd-gpu")


def test_sessions_of_who_is_in_no_group_for_a_while():
    with Kept(1) as cluster:
        node = cluster.nodes[0]
        some = [cluster.rank(0) for _ in range(2)]
        cluster.rank(0)  # who is in no group, and has no session, is forgotten
        cluster.join("g", some)
        together(some, name="g")
        for rank in some:
            rank.call("leave", name="g")
        pid = gpu_driver.pid(node)
        restart(node)
        until(lambda: len(node.clients()) == 2, "one client is forgotten")
        cluster.join("later", some)
        together(some, name="later")
        equal(gpu_driver.pid(node), pid)


def test_a_rank_dies_in_the_gap():
    with Kept(1) as cluster:
        node = cluster.nodes[0]
        with ranks(cluster, "dies", [(0, 0)] * 3, 0) as some:
            until(lambda: moved(node) >= 20, "they work")
            pid = gpu_driver.pid(node)
            with gap(node):
                os.kill(some[1].pid, signal.SIGKILL)
                for one in (some[0], some[2]):
                    word, code, rank, text = one.line()
                    equal((word, int(code), int(rank)), ("error", RANK_LOST, 1), text)
        until(lambda: not node.clients(), "their ends are known")
        work(cluster, "after", [(0, 0)] * 2)
        equal(gpu_driver.pid(node), pid)


def test_commd_gpu_dies_in_the_gap():
    with Kept(1) as cluster:
        node = cluster.nodes[0]
        # a real one is ended by the driver, which takes 0.4 s: then it was taken over before
        ended = "commd-gpu pid {} has ended while no commd was|commd-gpu of node node0 was lost"
        cluster.expect(ended.format(".*"))
        with ranks(cluster, "lost", [(0, 0)] * 2, 0) as some:
            until(lambda: moved(node) >= 20, "they work")
            pid = gpu_driver.pid(node)
            with gap(node):
                os.kill(pid, signal.SIGKILL)
                word, code, _, text = some[0].line()
                # or the rank has learned of it by the other's failure: their counts differed
                check(word == "error" and "commd-gpu is gone" in text, (word, code, text))
        node.wait_log(ended.format(pid))
        told = lambda: [e["event"] for e in node.ctl("events")["events"]]  # noqa: E731
        until(lambda: "gpu_lost" in told(), "it is told")
        work(cluster, "after", [(0, 0)] * 2)
        check(gpu_driver.pid(node) != pid, "there is another one")


def test_commd_gpu_dies_later():
    """It is no child of the commd that is there."""
    with Kept(1) as cluster:
        node = cluster.nodes[0]
        cluster.expect("commd-gpu of node node0 was lost")
        work(cluster, "before", [(0, 0)] * 2)
        pid = gpu_driver.pid(node)
        restart(node)
        until(lambda: gone_on(node), "it is taken over")
        os.kill(pid, signal.SIGKILL)
        node.wait_log("commd-gpu of node node0 was lost")
        work(cluster, "after", [(0, 0)] * 2)


def test_nothing_is_left_without_a_keeper():
    with Kept(1) as cluster:
        node = cluster.nodes[0]
        work(cluster, "g", [(0, 0)] * 2)
        pid, commd = gpu_driver.pid(node), serves(node)
        os.kill(node.pid, signal.SIGSTOP)
        os.kill(commd, signal.SIGKILL)
        until(lambda: not running(commd), "commd ends")
        check(running(pid), "commd-gpu goes on")
        node.process.kill()
        node.process.wait()
        until(lambda: not running(pid), "commd-gpu ends")


main(globals())
