"""Ranks that torch.multiprocessing.spawn starts: a rank and a size, and no LOCAL_RANK.

DataLoader workers are forked and spawned below them, and the parent has no group at all.
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

from checks import BACKEND, FOLDER, same

RANKS = 2


class Squares(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor(float(index * index))


def rank_main(rank, folder):
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"):
        os.environ.pop(name, None)
    dist.init_process_group(BACKEND, init_method=f"file://{folder}", rank=rank, world_size=RANKS)
    for context in ("fork", "spawn"):
        total = torch.zeros(())
        loader = DataLoader(Squares(), batch_size=3, num_workers=1, multiprocessing_context=context)
        for values in loader:
            values = values.clone()
            dist.all_reduce(values)
            total += values.sum()
        same(
            f"sum with {context}ed workers",
            total.item(),
            float(RANKS * sum(i * i for i in range(12))),
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_main, args=(os.path.join(FOLDER, "world"),), nprocs=RANKS)
