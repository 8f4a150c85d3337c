"""Nodes whose commd has a service for GPUs, all of it real but the GPUs (tests/fakecuda)."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(HERE)), "tests/integration/lib"))
import cluster
import gpu_driver

# Of a rank: nothing may go through host memory silently; and operations take their time, so that
# a wait that is missing shows.
RANK = {
    "COMMD_LIBCUDA": gpu_driver.FAKE_CUDA,
    "COMMD_DEVICE_PATH": "device",
    "FAKECUDA_DELAY_US": "100",
}


def box(node, gpus):
    """What makes a node a machine of its own for the driver."""
    return {
        "FAKECUDA_HOST": node.name,
        "FAKECUDA_DEVICES": str(gpus),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))),
    }


def operations(node):
    """That each GPU of @node has carried out."""
    return [row["operations"] or 0 for row in node.ctl("gpus")["gpus"]]


class GpuNodes(cluster.Cluster):
    """@gpus: of each node; @environment is for its driver."""

    def __init__(self, count, gpus, environment):
        super().__init__(count, {"gpu": gpu_driver.section()}, start=False)
        self.gpus, self.environment = gpus, environment

    def __enter__(self):
        super().__enter__()
        for node in self.nodes:
            node.start({**self.environment, **box(node, self.gpus)})
        self.wait_linked()
        return self

    def check_used(self, gpus):
        """So many GPUs of each node had something to do; commd-gpu tells once a second."""
        for node in self.nodes:

            def used(node=node):
                return sum(n > 0 for n in operations(node)) >= gpus

            cluster.until(used, lambda node=node: f"operations of {gpus} GPUs: {operations(node)}")
