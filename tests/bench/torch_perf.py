"""The same loop as commd-perf through torch.distributed, for compare.py.

A barrier, then one timed dist.all_reduce (f32, sum, in place), rank 0's times; one JSON line
per size. Run under torchrun: torch_perf.py BACKEND BYTES[,BYTES...]
"""
import json
import sys
import time

import torch
import torch.distributed as dist

WARMUP = 5


def iterations(size):
    return 500 if size < 64 << 10 else 30 if size <= 8 << 20 else 8


def measure(size):
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.empty(max(size // 4, 1), dtype=torch.float32)
    times = []
    for i in range(iterations(size) + WARMUP):
        x.fill_(rank + 1)
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(x)
        if i >= WARMUP:
            times.append((time.perf_counter() - begin) * 1e6)
    wrong = torch.tensor([int((x != world * (world + 1) / 2).sum())])
    dist.all_reduce(wrong)
    times.sort()
    return {"bytes": size, "p50_us": times[len(times) // 2], "min_us": times[0],
            "p99_us": times[len(times) * 99 // 100], "wrong": int(wrong)}


def main():
    backend, sizes = sys.argv[1], [int(s) for s in sys.argv[2].split(",")]
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    for size in sizes:
        row = measure(size)
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
