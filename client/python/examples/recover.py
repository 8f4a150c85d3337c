#!/usr/bin/env python3
"""A rank of a DDP job is killed in mid-backward; the others go on, and it comes back.

Each rank is a process with torch's RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, on one node or on
several, under a launcher that leaves the others alone when one dies:

    for r in 0 1 2 3; do
        RANK=$r WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python recover.py &
    done; wait

The survivors repeat the step from their own model and optimizer. Later they let the new process in,
which gets both from one of them. Rank 0 prints the loss beside that of one process that trains the
same model on the same rows undisturbed: they are equal within rounding.
"""

import os
import signal
import subprocess
import sys

import commd.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, ROWS = 12, 96  # the rows of a step are shared by the ranks that are there
VICTIM, DIES_AT, BACK_AT = 2, 4, 8


def make():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).double()
    return model, torch.optim.Adam(model.parameters(), lr=0.02)


def train_step(model, optimizer, step, rank=0, size=1):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS, 8, generator=generator, dtype=torch.float64)
    y = x.sin().sum(1, keepdim=True)
    optimizer.zero_grad()  # also of a step that has thrown
    loss = nn.functional.mse_loss(model(x.chunk(size)[rank]), y.chunk(size)[rank])
    loss.backward()
    optimizer.step()
    return loss.detach()


def die():
    """In a backward. What starts the new process is a cluster's manager elsewhere."""
    subprocess.Popen([sys.executable, os.path.abspath(__file__), "--rejoin"])
    os.kill(os.getpid(), signal.SIGKILL)


def share(now, model, optimizer):
    """New processes get the state of a rank that has it."""
    state = [model.state_dict(), optimizer.state_dict()]
    dist.broadcast_object_list(state, src=now.source)
    if now.old_rank < 0:
        model.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])


def main(rejoin):
    model, optimizer = make()
    alone = make()
    if rejoin:
        share(commd.torch.rejoin(timeout=300), model, optimizer)
    else:
        dist.init_process_group("commd")
    # a new process is alone in making it, so nothing may be exchanged
    ddp = DistributedDataParallel(model, init_sync=not rejoin)
    if not rejoin and dist.get_rank() == VICTIM:
        model[0].weight.register_hook(lambda _: die() if step == DIES_AT else None)
    for step in range(BACK_AT if rejoin else 0, STEPS):
        if step == BACK_AT and not rejoin:
            share(commd.torch.recover(policy="wait", size=4, timeout=300), model, optimizer)
        try:
            loss = train_step(ddp, optimizer, step, dist.get_rank(), dist.get_world_size())
        except RuntimeError as error:  # dist.DistBackendError; a backward may wrap it
            print(f"rank {dist.get_rank()}: {str(error).splitlines()[0]}", flush=True)
            commd.torch.recover(min_size=3, timeout=60)
            loss = train_step(ddp, optimizer, step, dist.get_rank(), dist.get_world_size())
        dist.all_reduce(loss, dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            undisturbed = train_step(*alone, step).item()
            print(f"step {step:2}  ranks {dist.get_world_size()}  loss {loss.item():.12f}"
                  f"  undisturbed {undisturbed:.12f}", flush=True)  # fmt: skip
            if abs(loss.item() - undisturbed) > 1e-9:
                sys.exit("the losses differ")
    dist.destroy_process_group()


if __name__ == "__main__":
    main("--rejoin" in sys.argv[1:])
