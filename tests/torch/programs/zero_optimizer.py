"""ZeroRedundancyOptimizer: each rank keeps the optimizer state of a part of the parameters."""

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

import models
from checks import BACKEND, check, close, flat, same_everywhere

STEPS = 6


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = models.net()
    ddp = DDP(model)
    optimizer = ZeroRedundancyOptimizer(
        ddp.parameters(), optimizer_class=torch.optim.Adam, parameters_as_bucket_view=True, lr=0.01
    )
    models.train(ddp, optimizer, STEPS, rank, size)
    alone = models.net()
    models.train_alone(alone, STEPS, torch.optim.Adam(alone.parameters(), lr=0.01))
    same_everywhere("parameters", flat(model))
    close("parameters", flat(model), flat(alone), rtol=1e-7, atol=1e-9)
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        state = optimizer.state_dict()["state"]
        check(
            "state of all parameters", len(state) == len(list(model.parameters())), str(len(state))
        )
    dist.destroy_process_group()


main()
