"""all_reduce of CUDA tensors through torch.distributed, for gpu.py.

torch_gpu.py BACKEND RANKS QUEUE SIZES      starts RANKS processes; the last line is JSON:
                                            {"BYTES": {"one": us, "each": us}}

The loop is commd-perf's: barrier, operation, wait, medians; sums are checked before it. Each rank
takes GPU number rank modulo how many there are.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time

SECONDS, MOST, LEAST = 0.25, 500, 5


def start(backend, ranks, words):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = []
    for rank in range(ranks):
        environment = dict(
            os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
            OMP_NUM_THREADS="1",
        )  # fmt: skip
        processes.append(
            subprocess.Popen([sys.executable, __file__, "rank", backend, *words], env=environment)
        )
    failed = False
    while not failed and any(p.poll() is None for p in processes):
        failed = any(p.poll() for p in processes)
        time.sleep(0.05)
    for process in processes:
        if failed:
            process.kill()
        failed |= process.wait() != 0
    return 1 if failed else 0


def median_us(dist, torch, operate, count):
    """Of an operation; @count of them are enqueued before the wait. All ranks do as many turns."""
    times, go_on, end = [], torch.ones(1), time.perf_counter() + SECONDS
    while go_on and len(times) < MOST:
        for _ in range(LEAST):
            dist.barrier()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                operate()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) / count * 1e6)
        on_gpu = torch.tensor([float(time.perf_counter() < end)], device="cuda")
        dist.all_reduce(on_gpu, dist.ReduceOp.MIN)
        go_on = on_gpu.cpu()
    return statistics.median(times)


def rank(backend, queue, sizes):
    import torch
    import torch.distributed as dist

    me = int(os.environ["RANK"])
    torch.cuda.set_device(me % torch.cuda.device_count())
    dist.init_process_group(backend)
    got = {}
    for size in sizes:
        x = torch.full((max(size // 4, 1),), me + 1.0, device="cuda")
        dist.all_reduce(x)
        world = dist.get_world_size()
        wanted = world * (world + 1) / 2
        if not bool((x == wanted).all()):
            sys.exit(f"error: {backend}: wrong sums of {size} B")
        x.zero_()
        for _ in range(3):
            dist.all_reduce(x)
        got[size] = {
            "one": median_us(dist, torch, lambda x=x: dist.all_reduce(x), 1),
            "each": median_us(dist, torch, lambda x=x: dist.all_reduce(x), queue),
        }
    if me == 0:
        print(json.dumps(got), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank(sys.argv[2], int(sys.argv[3]), [int(s) for s in sys.argv[4].split(",")])
    else:
        sys.exit(start(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
