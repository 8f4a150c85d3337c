"""FullyShardedDataParallel, the older one, on CPU."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

import models
from checks import BACKEND, DEVICE, close

STEPS = 5


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    want = dict(models.train_alone(models.net(), STEPS).named_parameters())
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        model = FSDP(models.net(), sharding_strategy=strategy, device_id=torch.device(DEVICE))
        models.train(model, models.sgd(model), STEPS, rank, size)
        with FSDP.summon_full_params(model):
            for name, got in model.named_parameters():
                close(
                    f"{name} {strategy}", got.detach(), want[name].detach(), rtol=1e-9, atol=1e-11
                )
    dist.destroy_process_group()


main()
