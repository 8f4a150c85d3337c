"""Hybrid sharding, of FSDP1 and FSDP2: replicas of SHARDS ranks, and how they go on when one of
these is lost.
"""

import sys

import commd.torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

SHARDS = 2


def mesh_of(device):
    size = dist.get_world_size()
    return init_device_mesh(device, (size // SHARDS, SHARDS), mesh_dim_names=("copy", "shard"))


def go_on(mesh, timeout):
    """As doc/recovery-torch.md says it."""
    shard, copy = mesh.get_group("shard"), mesh.get_group("copy")
    shard.abort(), copy.abort()  # frees ranks that wait for this one
    try:
        commd.torch.recover(shard, min_size=SHARDS, timeout=timeout)
    except dist.DistBackendError:
        sys.exit()  # a shard is lost, and with it this replica
    now = commd.torch.recover(timeout=timeout)
    commd.torch.recover(copy, timeout=timeout)
    return now
