"""DDP's communication hooks: compressed, factorised, and one of our own."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as default
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.nn.parallel import DistributedDataParallel as DDP

import models
from checks import BACKEND, close, flat, same_everywhere

STEPS = 6


def own_hook(state, bucket):
    """Averages; counts what it sees."""
    state.append(bucket.index())
    size = dist.get_world_size()
    future = dist.all_reduce(bucket.buffer() / size, async_op=True).get_future()
    return future.then(lambda f: f.value()[0])


def chained_hook(groups, bucket):
    """Scattered sums, gathered, which the callback waits for.

    In a group of each bucket's own: all ranks have to issue the operations of a group in one order.
    The backward pass goes on meanwhile in the first group; and a callback runs in its thread if the
    sums are there already, else in another, so those of two buckets come in any order.
    """
    size = dist.get_world_size()
    buffer = bucket.buffer()
    padded = torch.nn.functional.pad(buffer / size, (0, -buffer.numel() % size))
    piece = torch.empty(padded.numel() // size, dtype=buffer.dtype, device=buffer.device)
    first = dist.reduce_scatter_tensor(piece, padded, async_op=True).get_future()

    def gather(future):
        dist.all_gather_into_tensor(padded, future.value()[0], group=groups[bucket.index()])
        return padded[: buffer.numel()]

    return first.then(gather)


def bf16_hook(state, bucket):
    """torch's own is for NCCL only."""
    rounded = (bucket.buffer() / dist.get_world_size()).to(torch.bfloat16)
    future = dist.all_reduce(rounded, async_op=True).get_future()
    return future.then(lambda f: bucket.buffer().copy_(f.value()[0]))


def train(hook, state, dtype=torch.float64, **kwargs):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = models.net().to(dtype)
    ddp = DDP(model, **(kwargs or {"bucket_cap_mb": 0.001}))
    ddp.register_comm_hook(state, hook)
    optimizer = models.sgd(ddp)
    for step in range(STEPS):
        x, y = (t.to(dtype) for t in models.batch(step))
        optimizer.zero_grad()
        models.loss(ddp(models.part(x, rank, size)), models.part(y, rank, size)).backward()
        optimizer.step()
    same_everywhere(f"parameters with {hook}", flat(model))
    return flat(model).double()


def main():
    dist.init_process_group(BACKEND)
    want = flat(models.train_alone(models.net(), STEPS))
    close("all_reduce hook", train(default.allreduce_hook, None), want, 1e-9, 1e-11)
    seen = []
    close("own hook", train(own_hook, seen), want, 1e-9, 1e-11)
    assert len(seen) > STEPS, seen
    if BACKEND != "gloo":
        groups = [dist.new_group() for _ in range(max(seen) + 1)]
        close("chained hook", train(chained_hook, groups), want, 1e-9, 1e-11)
        close("bf16", train(bf16_hook, None, torch.float32), want, 0, 0.02)
    close("fp16", train(default.fp16_compress_hook, None, torch.float32), want, 0, 0.005)
    state = power.PowerSGDState(
        None, matrix_approximation_rank=16, start_powerSGD_iter=2, min_compression_rate=0.1
    )
    # one bucket: PowerSGD's callbacks use the group that the backward pass uses
    got = train(power.powerSGD_hook, state, torch.float32, bucket_cap_mb=25)
    close("PowerSGD of full rank", got, want, 0, 0.01)
    dist.destroy_process_group()


main()
