"""Which CUDA driver and NCCL the tests of GPUs take. Those of tests/fakecuda, which need no GPU; or
with COMMD_TEST_GPU=real the machine's: COMMD_LIBCUDA and COMMD_LIBNCCL name them, if the loader
does not find them by itself.

Nodes of a test are boxes of their own for the fake driver. On a real GPU they share it, and NCCL is
told that they are different hosts; then it takes sockets between them."""

import ctypes
import functools
import os
import re

import cluster as c

REAL = os.environ.get("COMMD_TEST_GPU") == "real"
FAKE_CUDA = os.path.join(c.BUILD, "tests/fakecuda/libcuda.so.1")
FAKE_NCCL = os.path.join(c.BUILD, "tests/fakecuda/libnccl.so.2")
CUDA = os.environ.get("COMMD_LIBCUDA", "") if REAL else FAKE_CUDA
NCCL = os.environ.get("COMMD_LIBNCCL", "") if REAL else FAKE_NCCL
# Two ranks on one GPU, for NCCL 2.28: names of hosts, and nothing that asks the GPU where it is.
SHARED_GPU = {
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "=lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NET_GDR_LEVEL": "LOC",
    "NCCL_MAX_CTAS": "4",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0",
}


def section():
    """Of a node's configuration."""
    gpu = {"enabled": "yes", "program": os.path.join(c.BUILD, "transport/commd-gpu")}
    if CUDA:
        gpu["cuda_library"] = CUDA
    if NCCL:
        gpu["nccl_library"] = NCCL
    if os.environ.get("COMMD_TEST_LANDLOCK") == "no":  # to find out what it keeps a driver from
        gpu["landlock"] = "false"
    return gpu


def environment(node=None, devices=1):
    """Of a node's commd, and of its ranks."""
    values = {"COMMD_LIBCUDA": CUDA} if CUDA else {}
    if REAL:
        return {**values, **SHARED_GPU, "NCCL_HOSTID": node or "node0"}
    values["FAKECUDA_DEVICES"] = str(devices)
    return {**values, "FAKECUDA_HOST": node} if node else values


def start(cluster, node, environment, arguments=()):
    """With a file that says which process commd-gpu is."""
    path = os.path.join(node.home, "gpu.pid")
    node.write_config(gpu=dict(cluster.changes["gpu"], pid_file=path))
    node.start(environment, arguments)


def pid(node):
    with open(os.path.join(node.home, "gpu.pid")) as file:
        return int(file.read())


@functools.lru_cache(maxsize=None)
def devices():
    """Of the real driver. Asked in this process, which starts others but never forks itself."""
    cuda, n = ctypes.CDLL(CUDA or "libcuda.so.1"), ctypes.c_int(0)
    return n.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(n)) == 0 else 0


def need(wanted):
    if REAL and devices() < wanted:
        raise c.Skip(f"needs {wanted} GPUs, there are {devices()}")


def copied(cluster):
    """Why commd-gpu copies buffers in each operation, or ''. Results are right then, and times are
    not those of the device path."""
    lines = [line for node in cluster.nodes for line in node.log().splitlines()]
    found = [line for line in lines if "copied in each operation" in line]
    return found[0].rpartition("info: ")[2].strip()[:250] if found else ""


def of_commd(errors):
    """What a program said on stderr; a real driver and NCCL may say something there, too, which is
    shown and not judged."""
    if not REAL:
        return errors
    lines = errors.splitlines()
    ours = [line for line in lines if re.search(r"commd|Sanitizer|runtime error|assert", line)]
    print("\n".join(line for line in lines if line not in ours))
    return "\n".join(ours)
