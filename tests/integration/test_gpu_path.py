#!/usr/bin/env python3
"""Tensors on GPUs by commd-gpu, all of it real but the GPU (tests/fakecuda); or on a real one
(COMMD_TEST_GPU=real, lib/gpu_driver.py). What each part does alone is tested elsewhere; here they
meet."""

import json
import os
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
import gpu_driver  # noqa: E402
from cluster import Cluster, check, equal, main, running, until  # noqa: E402

PERF = os.path.join(c.BUILD, "client/perf/commd-perf")
COLLECTIVES = (
    "all_reduce reduce broadcast all_gather reduce_scatter gather scatter all_to_all "
    "all_gather_v reduce_scatter_v gather_v scatter_v all_to_all_v barrier"
).split()


class Gpus(Cluster):
    def __init__(self, count=1, **environment):
        super().__init__(count, {"gpu": gpu_driver.section()}, start=False)
        delays = {} if gpu_driver.REAL else {"FAKECUDA_DELAY_US": "50"}
        self.environment = {**delays, **environment}

    def __enter__(self):
        super().__enter__()
        for node in self.nodes:
            gpu_driver.start(self, node, {**self.driver(node), **self.environment})
        names = [node.name for node in self.nodes]
        until(lambda: all(node.sees(names) for node in self.nodes), "nodes that see each other")
        return self

    @staticmethod
    def driver(node):
        """A node on a real GPU is a host of its own for NCCL; fakes are on one box here."""
        return gpu_driver.environment(node.name) if gpu_driver.REAL else {}

    def perf(self, collective, *options):
        nodes = ",".join(node.socket for node in self.nodes)
        environment = {
            **os.environ,
            **gpu_driver.environment(),
            **self.environment,
            **c.sanitizer_environment(),
        }
        return subprocess.Popen(
            [PERF, collective, "--device", "cuda", "--nodes", nodes, *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def right(self, collective, *options):
        process = self.perf(collective, *options)
        text, errors = c.communicate(process, 10 * c.HANG)
        errors = gpu_driver.of_commd(errors)
        equal((process.returncode, errors), (0, ""), f"{collective} {options}")
        return text

    def operations(self):
        """That commd-gpu did: told once a second."""
        done = subprocess.run(
            [*c.commctl(self.nodes[0]), "--json", "gpus"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return [gpu["operations"] for gpu in json.loads(done.stdout)["gpus"]]

    def gpu_pid(self):
        return gpu_driver.pid(self.nodes[0])

    def works_by_another(self, pid):
        """Asked too soon after a failure, commd starts none yet: then host memory serves."""
        self.right("all_reduce", "--ranks", "2", "-b", "8", "-e", "8", "-n", "3")
        return os.path.exists(os.path.join(self.nodes[0].home, "gpu.pid")) and self.gpu_pid() != pid


def test_every_collective_of_ranks_that_share_a_gpu():
    with Gpus(COMMD_DEVICE_PATH="device") as cluster:
        for collective in COLLECTIVES:
            cluster.right(collective, "--ranks", "3", "-b", "8", "-e", "100K", "-f", "40", "-n",
                          "3")  # fmt: skip
        for dtype, op in ("bf16", "avg"), ("u8", "band"), ("f64", "premul_sum"), ("bool", "max"):
            cluster.right("all_reduce", "--ranks", "4", "-b", "4K", "-e", "4K", "-n", "3",
                          "-d", dtype, "-o", op)  # fmt: skip
        until(lambda: cluster.operations()[0] > 100, "operations of commd-gpu")
        equal(gpu_driver.copied(cluster), "", "results are right, but buffers were copied")


def test_ranks_on_two_gpus():
    gpu_driver.need(2)
    with Gpus(FAKECUDA_DEVICES="2", COMMD_DEVICE_PATH="device") as cluster:
        for collective in COLLECTIVES:
            cluster.right(collective, "--ranks", "4", "-b", "40K", "-e", "40K", "-n", "3")
        until(lambda: min(cluster.operations()) > 20, "operations of both GPUs")
        equal(gpu_driver.copied(cluster), "", "results are right, but buffers were copied")


def test_commd_gpu_killed_in_the_middle():
    with Gpus() as cluster:
        cluster.expect("commd-gpu")
        cluster.right("all_reduce", "--ranks", "2", "-b", "8", "-e", "8", "-n", "3")
        first = cluster.gpu_pid()
        process = cluster.perf("all_reduce", "--ranks", "2", "-b", "1K", "-e", "1K", "-n",
                               "1000000")  # fmt: skip
        until(lambda: cluster.operations()[0] > 50, "operations of commd-gpu")
        os.kill(first, signal.SIGKILL)
        _, errors = c.communicate(process)
        check(process.returncode == 1 and "commd-gpu" in errors, errors)
        until(lambda: not running(first), "its end")
        until(lambda: cluster.works_by_another(first), "another commd-gpu that works")


def test_through_host_memory_if_told_so():
    with Gpus(2, COMMD_DEVICE_PATH="host") as cluster:
        for collective in "all_reduce", "all_to_all_v", "barrier":
            cluster.right(collective, "--ranks", "2", "-b", "64", "-e", "40K", "-f", "600", "-n",
                          "3")  # fmt: skip


main(globals())
