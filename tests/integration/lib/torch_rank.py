#!/usr/bin/env python3
"""A rank of a torch program that hangs: torch_rank.py SITUATION, with RANK and WORLD_SIZE in the
environment. It says "ready" on stdout when all ranks are in the group, and what happens then stands
in the function of that name (torch_staged.py says what has to be said of it)."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist

LARGE = 1 << 20  # elements: such a message waits for its receiver


def large():
    return torch.ones(LARGE)


def hangs():
    """What nobody gets out of, and no call of commd."""
    while True:
        time.sleep(3600)


def other_tag(rank):
    if rank == 0:
        dist.send(large(), 1, tag=7)
    else:
        dist.recv(large(), 0, tag=8)


def other_tag_beside_barrier(rank):
    if rank < 2:
        other_tag(rank)
    dist.barrier()


def other_tag_of_a_short_one(rank):
    if rank == 0:
        dist.send(torch.ones(2), 1, tag=7)
        dist.recv(torch.ones(2), 1)
    else:
        dist.recv(torch.ones(2), 0, tag=8)


def other_rank(rank):
    if rank == 0:
        dist.send(large(), 1, tag=7)
    if rank == 2:
        dist.recv(large(), 0, tag=7)
    dist.barrier()


def pipeline_stage_hangs(rank):
    if rank == 0:
        dist.send(large(), 1)
    elif rank == 1:
        hangs()
    else:
        dist.recv(large(), rank - 1)


def batch(rank):
    if rank == 1:
        hangs()
    ops = [dist.P2POp(dist.irecv, torch.ones(4), 1), dist.P2POp(dist.isend, torch.ones(4), 1)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def sender_stopped(rank):
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        hangs()
    dist.recv(torch.ones(4), rank - 1)


def stopped(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(4))


def sleeps(rank):
    if rank == 2:
        hangs()
    dist.all_reduce(torch.ones(4))


def holds_the_gil(rank):
    if rank == 2:
        ctypes.PyDLL(None).sleep(3600)
    dist.all_reduce(torch.ones(4))


def in_the_kernel(rank):
    """Until a child has got to its program, which opens a pipe that nobody writes to before."""
    if rank == 2:
        place = tempfile.mkdtemp()
        os.mkfifo(f"{place}/pipe")
        lets_go = 'cat; : >"$0/pipe"; rm -r "$0"'  # the child, when this rank is gone
        waits = subprocess.Popen(["sh", "-c", lets_go, place], stdin=subprocess.PIPE)
        opens = [
            (os.POSIX_SPAWN_CLOSE, waits.stdin.fileno()),
            (os.POSIX_SPAWN_OPEN, 0, f"{place}/pipe", os.O_RDONLY, 0),
        ]
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=opens)
    dist.all_reduce(torch.ones(4))


def computes(rank):
    while rank == 2:
        pass
    dist.all_reduce(torch.ones(4))


def dies(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def leaves(rank):
    if rank == 1:
        dist.destroy_process_group()
        hangs()
    dist.all_reduce(torch.ones(4))


def one_call_more(rank):
    dist.barrier()
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    hangs()


def other_shape(rank):
    dist.all_reduce(torch.ones(5 if rank == 1 else 4))


def other_order(rank):
    groups = [dist.new_group(), dist.new_group()]
    for group in groups if rank else groups[::-1]:
        dist.all_reduce(torch.ones(4), group=group)


def both_receive(rank):
    dist.recv(torch.ones(4), 1 - rank)
    dist.send(torch.ones(4), 1 - rank)


def both_send(rank):
    dist.send(large(), 1 - rank)
    dist.recv(large(), 1 - rank)


def monitored_barrier(rank):
    if rank == 1:
        hangs()
    dist.group.WORLD.monitored_barrier(timedelta(hours=1))  # dist.monitored_barrier() is gloo's


def paced(rank, seconds):
    while True:
        time.sleep(seconds)
        dist.all_reduce(torch.ones(4))


def slow(rank):
    paced(rank, 0.1 if rank == 1 else 0.002)


def gets_on(rank):
    paced(rank, 0.0)


def messages_get_on(rank):
    tensor = large()
    while True:
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        else:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)


def starts(rank):
    """Not all of them do: nobody gets here."""


def main():
    dist.init_process_group("commd")
    dist.barrier()
    print("ready", flush=True)
    globals()[sys.argv[1]](dist.get_rank())
    hangs()


if __name__ == "__main__":
    main()
