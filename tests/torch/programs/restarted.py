"""A rank dies in the first attempt; torchrun starts all of them again, from the checkpoint."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import models
from checks import BACKEND, FOLDER, close, flat, same

STEPS, DIES_AT = 8, 5
PATH = os.path.join(FOLDER, "model.pt")


def main():
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = models.net()
    ddp = DDP(model)
    optimizer = models.sgd(ddp)
    begin = 0
    if attempt:
        saved = torch.load(PATH, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]
        same("first step after the restart", begin, DIES_AT)
    for step in range(begin, STEPS):
        if step == DIES_AT and not attempt and rank == size - 1:
            os._exit(7)
        x, y = models.batch(step)
        optimizer.zero_grad()
        models.loss(ddp(models.part(x, rank, size)), models.part(y, rank, size)).backward()
        optimizer.step()
        if rank == 0:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step + 1,
            }
            torch.save(state, PATH + ".new")
            os.rename(PATH + ".new", PATH)
    close("parameters", flat(model), flat(models.train_alone(models.net(), STEPS)), 1e-9, 1e-11)
    dist.destroy_process_group()


main()
