"""commd-perf --turns through torch.distributed: gloo, commd, and DeepSpeed's shm all_reduce.

torch_perf.py BACKEND DIR      RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say the rest.
                               BACKEND: gloo, commd, deepspeed, or commd-op
                               (torch.ops.commd.all_reduce_)

The loop is commd-perf's: fill, barrier, one timed operation (f32, sum), check; means over the
ranks. Besides the collectives: new_group, how long making a group takes; ddp, a step of
data-parallel training; ddp_alone, the same without its communication.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

DDP_LAYERS = 24  # of 1024 x 1024: 25 M parameters


def deepspeed_build(sources):
    from torch.utils.cpp_extension import load

    return load(
        "commd_bench_deepspeed",
        [str(sources / f) for f in ("shm.cpp", "shm_interface.cpp")],
        extra_cflags=["-O3", "-march=native", "-fopenmp"],
        extra_ldflags=["-lgomp"],
        extra_include_paths=[str(sources)],
        verbose=False,
    )


class Torch:
    """The operations of one backend on buffers that were made for them."""

    def __init__(self, backend):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.backend = backend
        self.module = None
        self.op_only, self.world = backend == "commd-op", dist.group.WORLD.group_name
        if backend == "deepspeed":
            os.environ["LOCAL_SIZE"] = str(self.size)
            self.module = deepspeed_build(pathlib.Path(os.environ["DEEPSPEED_SOURCES"]))
            self.module.initialize(self.size, self.rank)
        self.tiny = torch.zeros(2)

    def barrier(self):
        """Of the library that is measured: after a barrier of Python's, ranks start at random."""
        if self.module:
            self.shm_all_reduce(self.tiny)
        elif self.op_only:
            self.custom_op(self.tiny)
        else:
            dist.barrier()

    def shm_all_reduce(self, tensor):
        torch.ops.deepspeed.inference_all_reduce_(tensor)

    def custom_op(self, tensor):
        torch.ops.commd.all_reduce_(tensor, "sum", self.world)

    def prepare(self, coll, size):
        """(what operates, the buffer to fill, what to fill in, the result, what it is)"""
        r, p = self.rank, self.size
        n = max(size // 4, 1)
        part = max(n // p, 1)
        mine, total = float(r + 1), float(p * (p + 1) // 2)
        if (self.module or self.op_only) and coll != "all_reduce":
            raise ValueError(f"{self.backend} has no {coll}")
        if coll == "all_reduce":
            x = torch.zeros(n)
            f = (
                self.shm_all_reduce
                if self.module
                else self.custom_op if self.op_only else dist.all_reduce
            )
            return (lambda: f(x)), x, mine, x, torch.full((n,), total)
        if coll == "broadcast":
            x = torch.zeros(n)
            return (lambda: dist.broadcast(x, 0)), x, mine, x, torch.full((n,), 1.0)
        if coll == "barrier":
            x = torch.zeros(0)
            return dist.barrier, x, 0.0, x, x.clone()
        each = torch.arange(1.0, p + 1).repeat_interleave(part)
        if coll == "all_gather":
            x, y = torch.zeros(part), torch.zeros(part * p)
            return (lambda: dist.all_gather_into_tensor(y, x)), x, mine, y, each
        if coll == "all_to_all":
            x, y = torch.zeros(part * p), torch.zeros(part * p)
            return (lambda: dist.all_to_all_single(y, x)), x, mine, y, each
        if coll == "reduce_scatter":
            x, y = torch.zeros(part * p), torch.zeros(part)
            return (
                (lambda: dist.reduce_scatter_tensor(y, x)),
                x,
                mine,
                y,
                torch.full((part,), total),
            )
        if coll in ("reduce", "gather", "scatter"):
            return self.rooted(coll, n, part)
        if coll == "pingpong":
            return self.pingpong(n)
        raise ValueError(f"no {coll} here")

    def rooted(self, coll, n, part):
        """Rank 0 is the root. Where another gets nothing, nothing is what it should have."""
        p, root, nothing = self.size, self.rank == 0, torch.zeros(0)
        mine, blocks = float(self.rank + 1), torch.zeros(part * p if root else 0)
        if coll == "reduce":
            x = torch.zeros(n)
            want = torch.full((n,), float(p * (p + 1) // 2))
            return (lambda: dist.reduce(x, 0)), x, mine, *((x, want) if root else (nothing,) * 2)
        x, lists = torch.zeros(part), list(blocks.chunk(p)) if root else None
        if coll == "gather":
            want = torch.arange(1.0, p + 1).repeat_interleave(part) if root else nothing
            return (lambda: dist.gather(x, lists, 0)), x, mine, blocks, want
        return (lambda: dist.scatter(x, lists, 0)), blocks, mine, x, torch.full((part,), 1.0)

    def pingpong(self, n):
        half = self.size // 2
        x, y = torch.zeros(n), torch.zeros(n)
        if self.rank >= half * 2:
            return (lambda: None), x, 0.0, y, y.clone()
        peer = (self.rank + half) % (half * 2)

        def first():
            dist.send(x, peer)
            dist.recv(y, peer)

        def second():
            dist.recv(y, peer)
            dist.send(x, peer)

        f = first if self.rank < peer else second
        return f, x, float(self.rank + 1), y, torch.full((n,), float(peer + 1))

    def collective(self, coll, size, iterations, warmup, warmup_ms, limit_ms):
        operate, fill, value, result, want = self.prepare(coll, size)
        wrong = 0

        def iterate(n):
            nonlocal wrong
            for _ in range(n):
                if result is not fill:
                    result.zero_()
                fill.fill_(value)
                self.barrier()
                begin = time.perf_counter()
                operate()
                took = (time.perf_counter() - begin) * 1e6
                wrong += not torch.equal(result, want)
                yield took / 2 if coll == "pingpong" else took

        def iterate_for(ms, most):  # as commd_perf_loop.c has it
            until, n, more, times = time.perf_counter() + ms / 1e3, 1, torch.ones(1), []
            while more and len(times) < most:
                times += iterate(min(n, most - len(times)))
                n = min(2 * n, 64)
                more[0] = time.perf_counter() < until
                dist.all_reduce(more, dist.ReduceOp.MAX)
            return times

        list(iterate(warmup))
        if warmup_ms:
            iterate_for(warmup_ms, math.inf)
        times = iterate_for(limit_ms, iterations) if limit_ms else list(iterate(iterations))
        if coll == "pingpong":  # who answers a ping does not wait for it: the mean is of the others
            weight = self.size / (self.size // 2) if self.rank < self.size // 2 else 0
            times = [took * weight for took in times]
        of_all = torch.tensor([wrong])
        dist.all_reduce(of_all)
        return size, times, int(of_all)

    def new_group(self, iterations):
        """Making a group of all ranks; the barrier before is not part of it, nor is the end."""
        if self.module or self.op_only:
            raise ValueError(f"{self.backend} has no groups")
        times = []
        for _ in range(iterations):
            dist.barrier()
            begin = time.perf_counter()
            group = dist.new_group(backend=self.backend)
            times.append((time.perf_counter() - begin) * 1e6)
            dist.destroy_process_group(group)
        return 0, times, 0

    def ddp(self, iterations, warmup, alone):
        if self.module or self.op_only:
            raise ValueError(f"{self.backend}: an all_reduce alone is no backend for DDP")
        torch.manual_seed(1)
        layers = [torch.nn.Linear(1024, 1024, bias=False) for _ in range(DDP_LAYERS)]
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        data, times = torch.randn(2, 1024), []
        warmup = max(warmup, 3)  # in the first two DDP makes its buckets, and all memory is new
        for i in range(iterations + warmup):
            dist.barrier()
            begin = time.perf_counter()
            optimizer.zero_grad()
            with model.no_sync() if alone else contextlib.nullcontext():
                model(data).square().mean().backward()
            optimizer.step()
            if i >= warmup:
                times.append((time.perf_counter() - begin) * 1e6)
        if alone:  # ranks differ now, and may
            return DDP_LAYERS << 22, times, 0
        mean = sum(p.detach().sum() for p in model.parameters()).reshape(1)
        least, most = mean.clone(), mean.clone()
        dist.all_reduce(least, dist.ReduceOp.MIN)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return DDP_LAYERS << 22, times, int(not torch.equal(least, most))


def percentile(times, permille):
    return times[max(math.ceil(len(times) * permille / 1000), 1) - 1]


def row(size, times, wrong):
    of_all = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(of_all)
    times = sorted((of_all / dist.get_world_size()).tolist())
    return {
        "bytes": size,
        "iterations": len(times),
        "p50_us": percentile(times, 500),
        "p99_us": percentile(times, 990),
        "p999_us": percentile(times, 999),
        "min_us": times[0],
        "max_us": times[-1],
        "wrong": wrong,
    }


def take_turns(torch_, folder):
    parser = argparse.ArgumentParser()
    parser.add_argument("coll")
    parser.add_argument("-b", type=int, default=8)
    parser.add_argument("-n", type=int, default=100)
    parser.add_argument("-w", type=int, default=3)
    parser.add_argument("--warmup-time", type=int, default=0)
    parser.add_argument("--time-limit", type=int, default=0)
    rank = dist.get_rank()
    with open(folder / str(rank)) as orders, (
        open(folder / "out", "w") if rank == 0 else open(os.devnull, "w")
    ) as out:
        dist.barrier()
        print('{"done": 0}', file=out, flush=True)
        for line in orders:
            args, _ = parser.parse_known_args(line.split())
            try:
                if args.coll == "new_group":
                    got = torch_.new_group(args.n)
                elif args.coll in ("ddp", "ddp_alone"):
                    got = torch_.ddp(args.n, args.w, args.coll == "ddp_alone")
                else:
                    got = torch_.collective(
                        args.coll, args.b, args.n, args.w, args.warmup_time, args.time_limit
                    )
                print(json.dumps(row(*got)), file=out)
                print('{"done": 0}', file=out, flush=True)
            except ValueError as why:  # asked for what there is not; others are fatal
                print(json.dumps({"done": 1, "why": str(why)}), file=out, flush=True)


def main():
    if sys.argv[1] == "--build-deepspeed":
        deepspeed_build(pathlib.Path(sys.argv[2]))
        return
    backend, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group({"deepspeed": "gloo", "commd-op": "commd"}.get(backend, backend))
    take_turns(Torch(backend), folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
