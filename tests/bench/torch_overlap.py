"""Computing and communication at the same time: what a rank pays for an all_reduce that it starts
before products of matrices, by torch's nccl, whose kernels run in the rank's own context, and by
commd, whose kernels run in commd-gpu's. For tests/gpu/check.py, on a GPU that all ranks share.

torch_overlap.py        two nodes with a rank each (both backends; NCCL takes sockets between them),
                        and 2 and 4 ranks of one node (commd)

A line for each: ms of the products alone, of the all_reduce alone, of both; and which part of the
shorter one is hidden.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "integration/lib")]
BYTES, SIDE, PRODUCTS, TURNS = 32 << 20, 4096, 40, 12


def rank(backend):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group(backend)
    x = torch.ones(BYTES // 4, device="cuda")
    a = torch.ones(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    b = torch.zeros_like(a)

    def compute():
        for _ in range(PRODUCTS):
            torch.mm(a, a, out=b)

    def reduce():
        return dist.all_reduce(x, async_op=True)

    def both():
        work = reduce()
        compute()
        work.wait()

    got, turns = {}, {"compute": compute, "all_reduce": lambda: reduce().wait(), "both": both}
    for name, turn in turns.items():
        times = []
        for number in range(TURNS + 2):
            x.fill_(1)
            dist.barrier()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            turn()
            torch.cuda.synchronize()
            times += [time.perf_counter() - begin] if number >= 2 else []
            if name != "compute" and not bool((x == dist.get_world_size()).all()):
                sys.exit(f"error: {backend}: wrong sums")
        got[name] = statistics.median(times) * 1e3
    if dist.get_rank() == 0:
        print(json.dumps(got), flush=True)
    dist.destroy_process_group()


def times_of(backend, nodes, environments):
    """@nodes: each rank's."""
    import cluster as c

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, backend], stdout=subprocess.PIPE, text=True,
            env={**os.environ, **environments[node], "COMMD_SOCKET": node.socket,
                 "COMMD_BUILD": c.BUILD, "COMMD_DEVICE_PATH": "device", "RANK": str(number),
                 "WORLD_SIZE": str(len(nodes)), "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
        )
        for number, node in enumerate(nodes)
    ]  # fmt: skip
    said = [process.communicate()[0] for process in ranks]
    if any(process.returncode for process in ranks):
        return None
    return json.loads(said[0].strip().splitlines()[-1])


def main():
    import cluster as c
    import gpu_driver

    class Nodes(c.Cluster):
        def start(self):
            for node in self.nodes:
                node.start(gpu_driver.environment(node.name))
            self.wait_linked()

    with Nodes(2, {"gpu": gpu_driver.section()}) as cluster:
        one, two = cluster.nodes
        environments = {node: gpu_driver.environment(node.name) for node in cluster.nodes}
        for what, backend, nodes in (
            ("2 nodes, nccl", "nccl", [one, two]),
            ("2 nodes, commd", "commd", [one, two]),
            ("2 ranks, commd", "commd", [one] * 2),
            ("4 ranks, commd", "commd", [one] * 4),
        ):
            got = times_of(backend, nodes, environments)
            if got is None:
                print(f"{what}: FAILED", flush=True)
                continue
            alone = got["compute"], got["all_reduce"]
            hidden = 100 * (sum(alone) - got["both"]) / min(alone)
            told = ", ".join(f"{name} {ms:.2f} ms" for name, ms in got.items())
            print(f"{what}: {told}, hidden {hidden:.0f} %", flush=True)


if __name__ == "__main__":
    rank(sys.argv[1]) if len(sys.argv) > 1 else main()
