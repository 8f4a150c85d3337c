"""Groups by the hundred: nothing may be left of them, and names may come again.

gloo keeps file descriptors per new_group (pytorch#129868).
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from checks import BACKEND, DEVICE, EAGER, check, same

ROUNDS = 60


def open_files():
    return len(os.listdir("/proc/self/fd"))


def threads():
    return len(os.listdir("/proc/self/task"))


def once(rank, size, number):
    members = [r for r in range(size) if (r + number) % 2 == 0]
    group, whole = dist.new_group(members), dist.new_group()
    tensor = torch.ones(3)
    if rank in members:
        dist.all_reduce(tensor, group=group)
    dist.all_reduce(tensor, group=whole)
    same(f"round {number}", tensor[0].item(), float(len(members) ** 2 + size - len(members)))
    if rank in members:
        dist.destroy_process_group(group)
    dist.destroy_process_group(whole)


def all_alive(rank, size):
    """Overlapping groups at once, used in another order by each rank."""
    groups = [
        dist.new_group(sorted({first, (first + step) % size}))
        for first in range(size)
        for step in (0, 1, 2)
    ]
    mine = [g for g in groups if dist.get_rank(g) >= 0]
    works = []
    for index, group in enumerate(mine[::-1] if rank % 2 else mine):
        tensor = torch.full((10,), float(rank))
        works.append((dist.all_reduce(tensor, group=group, async_op=True), group, tensor))
    for work, group, tensor in works:
        work.wait()
        same("sum", tensor[0].item(), float(sum(dist.get_process_group_ranks(group))))
    for group in mine:
        dist.destroy_process_group(group)


def grid(rank, size):
    """A group for each line of a mesh, which splits the group of all; neighbours begin with the
    lines in another order."""
    mesh = init_device_mesh(DEVICE, (2, size // 2), mesh_dim_names=("a", "b"))
    works = []
    for name in ("a", "b") if (rank + rank // (size // 2)) % 2 else ("b", "a"):
        tensor = torch.ones(1)
        group = mesh.get_group(name)
        works.append((name, dist.all_reduce(tensor, group=group, async_op=True), tensor))
    for name, work, tensor in works:
        work.wait()
        same(f"along {name}", tensor.item(), float(mesh[name].size()))


def main():
    dist.init_process_group(BACKEND, **EAGER)
    rank, size = dist.get_rank(), dist.get_world_size()
    for number in range(4):
        once(rank, size, number)
    files, tasks = open_files(), threads()
    for number in range(ROUNDS):
        once(rank, size, number)
    if BACKEND != "gloo":
        check("open files", open_files() <= files, f"{files} before, {open_files()} after")
    if DEVICE == "cpu":  # tests/fakecuda has one for each stream
        check("threads", threads() <= tasks, f"{tasks} before, {threads()} after")
    all_alive(rank, size)
    grid(rank, size)
    dist.destroy_process_group()


main()
