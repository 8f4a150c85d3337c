#!/usr/bin/env python3
"""Real commds, commd-gpus and ranks with tensors on GPUs, on nodes of this machine: over the CUDA
driver and the NCCL that need no GPU (tests/fakecuda/README.md), or on a real GPU that the nodes
share (COMMD_TEST_GPU=real, lib/gpu_driver.py)."""

import contextlib
import os
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
import gpu_driver  # noqa: E402
from cluster import Cluster, Skip, check, equal, main, until  # noqa: E402
from limit import Limit  # noqa: E402

RANK = os.path.join(c.BUILD, "tests/integration/lib/gpu_rank")
RANK_LOST, ABORTED, NOMEM, GPU_LOST = -5, -8, -12, -17


def box(node):
    """What makes a node another machine for the driver, or not."""
    progress = {} if gpu_driver.REAL else {"FAKENCCL_PROGRESS": "2"}
    return {**gpu_driver.environment(node.machine or node.name, devices=2), **progress}


def gpu(device):
    """A real machine may have one."""
    return device % gpu_driver.devices() if gpu_driver.REAL else device


class GpuRank:
    def __init__(self, node, group, rank, world, device, operations, more=None):
        environment = dict(os.environ, COMMD_SOCKET=node.socket, **{**box(node), **(more or {})})
        self.process = subprocess.Popen(
            [RANK, group, str(rank), str(world), str(gpu(device)), str(operations)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self.process.pid

    def line(self):
        return self.process.stdout.readline().split(None, 3)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait()


class GpuNodes(Cluster):
    arguments = ()  # of commd

    def __init__(self, count, environment=None, machine=None, **keys):
        self.environment = environment or {}
        self.part = keys.get("part", str(1 << 30))
        self.machine = machine
        super().__init__(count, {"gpu": {**gpu_driver.section(), **keys}}, start=False)

    def __enter__(self):
        super().__enter__()
        for node in self.nodes:
            node.machine = self.machine
            gpu_driver.start(self, node, {**box(node), **self.environment}, self.arguments)
        names = [node.name for node in self.nodes]
        until(lambda: all(node.sees(names) for node in self.nodes), "nodes that see each other")
        return self

    def cut_as_told(self):
        """Their commd-gpus were told of which parts operations are launched in."""
        for node in self.nodes:
            with open(f"/proc/{gpu_driver.pid(node)}/cmdline") as file:
                words = file.read().split("\0")
            equal(words[words.index("--part") + 1], self.part)

    def rank(self, node, connect=True):
        """By rank.py, which does what it is told; the device path or none."""
        with c.environment(**dict(box(self.nodes[node]), COMMD_DEVICE_PATH="device")):
            rank = super().rank(node, connect)
        rank.call("gpu_begin")
        return rank


@contextlib.contextmanager
def ranks(cluster, group, places, operations, first=None):
    """Ranks at (node, device); the first one has @first in its environment, too."""
    some = []
    try:
        for rank, (node, device) in enumerate(places):
            more = None if rank else first
            some.append(
                GpuRank(cluster.nodes[node], group, rank, len(places), device, operations, more)
            )
        for one in some:
            equal(one.line(), ["joined"])
        yield some
    except BaseException:
        for one in some:  # they may work for ever, and what is wrong is to be seen
            one.process.kill()
        raise
    finally:
        for one in some:
            one.close()


def moved(node):
    return sum(row["operations"] or 0 for row in node.ctl("gpus")["gpus"])


def work(cluster, group, places, operations=45):
    with ranks(cluster, group, places, operations) as some:
        for one in some:
            equal(one.line(), ["done", str(operations)])


def test_ranks_on_one_gpu():
    with GpuNodes(1) as cluster:
        work(cluster, "one", [(0, 0)] * 3)
        until(lambda: moved(cluster.nodes[0]) >= 45, "they went through commd-gpu")
        equal(gpu_driver.copied(cluster), "", "results are right, but buffers were copied")


def test_ranks_on_two_gpus():
    with GpuNodes(1) as cluster:
        work(cluster, "two", [(0, 0), (0, 1), (0, 0)])
        until(lambda: moved(cluster.nodes[0]) >= 45, "they went through commd-gpu")


def test_ranks_on_two_nodes():
    with GpuNodes(2) as cluster:
        work(cluster, "nodes", [(0, 0), (1, 0)])
        for node in cluster.nodes:
            until(lambda node=node: moved(node) >= 45, "they went through commd-gpu")
        work(cluster, "more", [(0, 0), (1, 0), (0, 1), (1, 1), (0, 0), (1, 1)])


def test_exchanges_with_another_node_are_heard_at_once():
    """Not when commd-gpu is woken by something else: 1 s later, again and again."""
    places = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 0), (1, 1)]
    with GpuNodes(2) as cluster:
        work(cluster, "warm", places)
        limit = Limit(25)
        work(cluster, "many", places, 1500)
        check(not limit.over(), f"1500 operations in {limit.spent():.1f} s of a free machine")


def test_counts_made_to_fit_in_sum():
    os.environ["GPU_RANK_MADE_COUNTS"] = "1"
    try:
        places = [(0, 0), (1, 0), (1, 1)]
        with GpuNodes(2) as cluster, ranks(cluster, "made", places, 9) as some:
            for one in some:
                error, _, _, text = one.line()
                equal([error, "do not fit" in text], ["error", True], text)
            for one in some:
                equal(one.line(), ["done", "9"])
    finally:
        del os.environ["GPU_RANK_MADE_COUNTS"]


def several_groups(**keys):
    with GpuNodes(3, **keys) as cluster, contextlib.ExitStack() as stack:
        places = {
            "a": [(0, 0), (1, 0), (2, 0)],
            "b": [(2, 0), (1, 0), (0, 0)],
            "c": [(0, 0), (1, 1)],
            "d": [(1, 1), (0, 0)],
        }
        groups = [stack.enter_context(ranks(cluster, name, at, 36)) for name, at in places.items()]
        for some in groups:
            for one in some:
                equal(one.line(), ["done", "36"])
        cluster.cut_as_told()


def test_several_groups_over_three_nodes():
    several_groups()


def test_operations_in_parts_over_three_nodes():
    """Of 512 bytes: all nodes launch the parts of all groups in one order, or they stand still."""
    several_groups(part="512")


def lose_a_rank(**keys):
    with GpuNodes(2, **keys) as cluster:
        with ranks(cluster, "dies", [(0, 0), (1, 0), (0, 0)], 0) as some:
            until(lambda: moved(cluster.nodes[0]) >= 20, "they work")
            cluster.cut_as_told()
            os.kill(some[1].pid, signal.SIGKILL)
            for one in (some[0], some[2]):
                word, code, rank, text = one.line()
                equal((word, int(code), int(rank)), ("error", RANK_LOST, 1), text)
        work(cluster, "after", [(0, 0), (1, 0)])


def test_a_rank_of_another_node_dies():
    lose_a_rank()


def test_a_rank_dies_between_parts():
    lose_a_rank(part="512")


def test_memory_that_is_not_lent_on_another_node():
    """Nothing of rank 0 can be exported, and it may borrow less than an all_reduce needs: it is
    told, and stops. The others wait for it in a barrier by then: the group is broken for them, and
    the reason is the same."""
    if gpu_driver.REAL:
        raise Skip("a real driver exports what it has")
    little = {"FAKECUDA_NO_IPC": "1", "COMMD_DEVICE_ARENA": "8000"}
    with GpuNodes(2) as cluster:
        with ranks(cluster, "little", [(0, 0), (1, 0), (0, 0)], 0, little) as some:
            for rank, one in enumerate(some):
                word, code, _, text = one.line()
                equal((word, int(code)), ("error", ABORTED if rank else NOMEM), text)
                check("COMMD_DEVICE_ARENA allows 8000" in text, text)
                check("COMMD_DEVICE_PATH=host goes through host memory" in text, text)
        work(cluster, "after", [(0, 0), (1, 0)])


def test_host_memory_that_there_is_not_on_another_node():
    """Rank 0 has its flags there, and no room for a tensor: it is told, and so are the others."""
    if gpu_driver.REAL:
        raise Skip("a real driver registers what there is")
    little = {"FAKECUDA_FAIL": "cuMemHostRegister_v2:2:2", "COMMD_DEVICE_PATH": "host"}
    places = [(0, 0), (1, 0), (0, 0)]
    os.environ["GPU_RANK_FIRST_FAILS"] = "1"
    try:
        with GpuNodes(2) as cluster, ranks(cluster, "little", places, 9, little) as some:
            for rank, one in enumerate(some):
                word, code, who, text = one.line()
                equal((word, int(code)), ("error", NOMEM), text)
                if rank:
                    equal(int(who), 0, text)
                    check("rank 0 (node node0) cannot take part" in text, text)
                check("host memory that" in text and "smaller" in text, text)
            for one in some:
                equal(one.line(), ["done", "9"])
    finally:
        del os.environ["GPU_RANK_FIRST_FAILS"]


def test_nodes_that_share_a_gpu():
    """Groups that name the nodes in different order have the same GPUs, and other communicators."""
    with GpuNodes(2, machine="one", nodes_share_gpus="true") as cluster:
        work(cluster, "there", [(0, 0), (1, 0)])
        work(cluster, "back", [(1, 0), (0, 0)])
        work(cluster, "more", [(0, 0), (1, 0), (0, 1), (1, 1), (0, 0)])
        for node in cluster.nodes:
            until(lambda node=node: moved(node) >= 135, "they went through commd-gpu")


def test_nodes_that_share_a_gpu_by_mistake():
    if gpu_driver.REAL:
        raise Skip("the environment of the test names the nodes for NCCL")
    with GpuNodes(2, machine="one") as cluster:
        with ranks(cluster, "twice", [(0, 0), (1, 0)], 45) as some:
            for one in some:
                word, code, _, text = one.line()
                equal((word, int(code)), ("error", GPU_LOST), text)
                check("gpu.nodes_share_gpus" in text, text)


def lose_a_commd_gpu(cluster, group):
    """That of node1, while a group over both nodes works. That of node0 aborts what it has in NCCL
    and goes on: groups that are on node0 alone do not notice."""
    cluster.expect("commd-gpu of node node1 was lost: killed by signal 9")
    with ranks(cluster, "local", [(0, 0), (0, 1)], 0) as local:
        until(lambda: moved(cluster.nodes[0]) >= 20, "they work")
        first = gpu_driver.pid(cluster.nodes[0])
        with ranks(cluster, group, [(0, 0), (1, 0)], 0) as some:
            until(lambda: moved(cluster.nodes[1]) >= 20, "they work")
            cluster.cut_as_told()
            os.kill(gpu_driver.pid(cluster.nodes[1]), signal.SIGKILL)
            for one in some:
                line = one.line()
                equal(line[0], "error")
                check(int(line[1]) in (GPU_LOST, ABORTED), line) # ABORTED: the other had stopped
        work(cluster, group + " anew", [(0, 0), (1, 0)])
        before = moved(cluster.nodes[0])
        until(lambda: moved(cluster.nodes[0]) >= before + 20, "they still work")
        equal(gpu_driver.pid(cluster.nodes[0]), first)
        for one in local:
            one.process.kill()
        for one in local:  # no error but that of the one that was killed first
            line = one.line()
            check(not line or int(line[1]) == RANK_LOST, line)


def test_the_commd_gpu_of_another_node_dies():
    with GpuNodes(2) as cluster:
        lose_a_commd_gpu(cluster, "lost")


def test_the_commd_gpu_of_another_node_dies_between_parts():
    with GpuNodes(2, part="512") as cluster:
        lose_a_commd_gpu(cluster, "between")


def test_the_commd_gpu_of_another_node_dies_and_nccl_does_not_notice():
    with GpuNodes(2, {"FAKENCCL_DEAF": "1"}, timeout="2s") as cluster:
        lose_a_commd_gpu(cluster, "unnoticed")


if __name__ == "__main__":
    main(globals())
