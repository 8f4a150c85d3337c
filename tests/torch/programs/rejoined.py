"""A rank is killed; a new process takes its seat, and one more lets the group grow.

At last rank 0 dies when the next epoch is there already: then a new process has no group, and
rejoins.

The newcomers are started by rank 1, and know nothing but where commd is: no store, no rank.
"""

import os
import signal
import subprocess
import sys

import commd.torch
import torch
import torch.distributed as dist

from checks import BACKEND, check, raises, same

NEW = "TEST_NEWCOMER"
VICTIM = 2


def total(group=None):
    tensor = torch.full((1000,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor, group=group)
    return tensor[0].item()


def start(kind="first"):
    environment = dict(os.environ, **{NEW: kind})
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name)
    return subprocess.Popen([sys.executable, os.path.abspath(__file__)], env=environment)


def together(now, size):
    """What both kinds of ranks do when they are together."""
    same("place", (now.rank, now.size), (dist.get_rank(), dist.get_world_size()))
    same("size", now.size, size)
    state = torch.full((5,), float(now.source + 7)) if now.old_rank >= 0 else torch.zeros(5)
    dist.broadcast(state, now.source)
    same("the state of the source", state[0].item(), now.source + 7.0)
    same("all_reduce", total(), size * (size + 1) / 2)
    ends = dist.new_group([0, size - 1])
    if now.rank in (0, size - 1):
        same("a new group", total(ends), float(1 + size))
        dist.destroy_process_group(ends)
    everybody = [None] * size
    dist.all_gather_object(everybody, now.rank)
    same("all_gather_object", everybody, list(range(size)))
    dist.group.WORLD._get_backend(torch.device("cpu")).monitored_barrier()


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def grow():
    commd.torch.recover(policy="wait", size=6, timeout=300)


def the_last_moment():
    if dist.get_rank() == 0:
        commd._recover._agree = die
    raises("a death at the end", dist.DistBackendError, grow, "rank 0")
    together(commd.torch.recover(policy="wait", size=5, timeout=300), 5)
    dist.destroy_process_group()


def latecomer():
    raises("a death at the end", dist.DistBackendError, commd.torch.rejoin, "rank 0")
    check("has no group", not dist.is_initialized())
    together(commd.torch.rejoin(timeout=300), 5)
    dist.destroy_process_group()


def newcomer():
    now = commd.torch.rejoin(timeout=300)
    check("is new", now.old_rank == -1 and now.rank in now.new, str(now))
    together(now, 4 if now.epoch == 2 else 5)
    if now.epoch == 2:
        together(commd.torch.recover(policy="wait", size=5, timeout=300), 5)
    the_last_moment()


def main():
    dist.init_process_group(BACKEND)
    rank = dist.get_rank()
    world = dist.group.WORLD
    dist.barrier()
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    raises("the loss", dist.DistBackendError, dist.barrier, f"rank {VICTIM}")
    children = [start()] if rank == 1 else []
    now = commd.torch.recover(policy="wait", timeout=300)
    same("epoch", (now.epoch, now.before, now.gone), (2, [0, 1, -1, 3], [VICTIM]))
    check("the same object", dist.group.WORLD is world)
    together(now, 4)
    children += [start()] if rank == 1 else []
    now = commd.torch.recover(policy="wait", size=5, timeout=300)
    same("grown", (now.epoch, now.before, now.gone), (3, [0, 1, 2, 3, -1], []))
    together(now, 5)
    children += [start("last")] if rank == 1 else []
    the_last_moment()
    same("the newcomers' ends", [child.wait() for child in children], [0] * len(children))


{"first": newcomer, "last": latecomer}.get(os.environ.get(NEW), main)()
