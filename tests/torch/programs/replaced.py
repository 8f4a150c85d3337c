"""A program that names gloo, in all the ways there are, run with COMMD_REPLACE=gloo."""

import datetime

import torch
import torch.distributed as dist

from checks import check, close, same
from commd import _replace

CPU = torch.device("cpu")


def carried(what, group=None, name="gloo"):
    """By commd, and called as if it were gloo's."""
    group = group or dist.group.WORLD
    same(f"{what}: get_backend", dist.get_backend(group), name)
    same(f"{what}: carried by", group._get_backend(CPU).name(), "commd")
    x = torch.arange(3.0) + dist.get_rank(group)
    dist.all_reduce(x, group=group)
    size = dist.get_world_size(group)
    close(what, x, torch.arange(3.0) * size + size * (size - 1) / 2)


def whole_job(backend, name):
    """@name: what torch itself calls such a group."""
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    carried(f"backend {backend}", name=name)
    everything = list(range(size))
    carried("new_group", dist.new_group(everything), name)
    carried("new_group of gloo", dist.new_group(everything, backend="gloo"))
    mine, _ = dist.new_subgroups(2)
    carried("new_subgroups", mine, name)
    named = dist.new_group(everything, backend="commd")
    same("one that names commd", dist.get_backend(named), "commd")
    some = dist.new_group([0, 1])
    if rank < 2:
        carried("of some ranks", some, name)
    if name == "gloo":
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=300))
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    same("objects", objects, [{"rank": r} for r in everything])
    mesh = dist.init_device_mesh("cpu", (2, size // 2))
    carried("a dimension of a mesh", mesh.get_group(0), dist.get_backend(mesh.get_group(0)))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    dist.destroy_process_group()


def main():
    whole_job("gloo", "gloo")
    check("it was said", _replace._said)
    whole_job("cpu:gloo", "cpu:gloo")
    whole_job(None, "undefined")  # torch's own choice: gloo for what is on CPUs


def mixed():
    same("gloo alone", _replace.replaced({"cpu": "gloo", "cuda": "gloo"}), "commd")
    same("beside nccl", _replace.replaced({"cpu": "gloo", "cuda": "nccl"}), "cpu:commd,cuda:nccl")
    same("no gloo", _replace.replaced({"cuda": "nccl"}), None)


if __name__ == "__main__":
    mixed()
    main()
