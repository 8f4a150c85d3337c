#!/usr/bin/env python3
"""Trains a classifier of handwritten digits with DistributedDataParallel.

The data are scikit-learn's 1,797 scanned digits of 8 x 8 pixels. An ordinary DDP program: which
library carries the gradients is the backend's name, and nothing else.

    torchrun --nproc-per-node 4 digits_ddp.py --backend commd
    torchrun --nproc-per-node 4 digits_ddp.py --backend gloo
    python digits_ddp.py --single

--single is the same mathematics in one process: the same batches, of the same samples in the same
order. Its result equals that of any number of ranks within rounding: the network is smooth (GELU
and average pooling; ReLU and max pooling have kinks), so that rounding errors do not grow.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 96  # over all ranks
# 15 batches; the other 357 images are the test set. A multiple of BATCH, so that every rank has
# as many samples as the others in every batch.
TRAIN = 1440
SEED = 20


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backend", default="commd", help="of torch.distributed (commd)")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--single", action="store_true", help="one process, no torch.distributed")
    parser.add_argument("--save", metavar="FILE", help="where rank 0 puts the trained model")
    parser.add_argument("--json-out", metavar="FILE", help="the results for another program")
    return parser.parse_args()


def load_data():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    images = (images - images.mean()) / images.std()
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    images, labels = images[order], labels[order]
    return (
        TensorDataset(images[:TRAIN], labels[:TRAIN]),
        TensorDataset(images[TRAIN:], labels[TRAIN:]),
    )


def make_model():
    torch.manual_seed(SEED)  # the same first parameters everywhere
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 128),
        nn.GELU(),
        nn.Linear(128, 10),
    )


def accuracy(model, test_set):
    images, labels = test_set.tensors
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum().item()
    model.train()
    return right / len(labels)


def parameter_hash(model):
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def mean_over_ranks(value, world):
    """The mean of a number that each rank has."""
    tensor = torch.tensor([value], dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor.item() / world


def train_epoch(model, loader, optimizer):
    """The mean loss of this rank's samples."""
    criterion = nn.CrossEntropyLoss()
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def gather_hashes(model, world):
    """One [rank, hash] of each rank, on every rank."""
    mine = parameter_hash(model)
    if not dist.is_initialized():
        return [[0, mine]]
    everybody = [None] * world
    dist.all_gather_object(everybody, [dist.get_rank(), mine])
    return everybody


def save_and_reload(model, test_set, path):
    """Saves the model, loads it again as another program would, and evaluates that one."""
    buffer = path or io.BytesIO()
    torch.save(model.state_dict(), buffer)
    if not path:
        buffer.seek(0)
    reloaded = make_model()
    reloaded.load_state_dict(torch.load(buffer, weights_only=True))
    return accuracy(reloaded, test_set)


def report(args, model, test_set, hashes, loss, steps_per_s, world):
    final = accuracy(model, test_set)
    reloaded = save_and_reload(model, test_set, args.save)
    for rank, digest in hashes:
        print(f"rank {rank}: parameters {digest}")
    where = f" as {args.save}" if args.save else ""
    print(f"final loss {loss:.6f}, test accuracy {final:.4f}, {steps_per_s:.1f} steps/s")
    print(f"saved{where}, loaded again: test accuracy {reloaded:.4f}")
    if reloaded != final:
        raise SystemExit("the model that was loaded again is not the one that was trained")
    if args.json_out:
        result = {
            "backend": "single" if args.single else args.backend,
            "ranks": world,
            "epochs": args.epochs,
            "loss": loss,
            "accuracy": final,
            "accuracy_reloaded": reloaded,
            "steps_per_s": steps_per_s,
            "hashes": {str(rank): digest for rank, digest in hashes},
        }
        with open(args.json_out, "w") as out:
            json.dump(result, out, indent=2)


def train(args, rank, world):
    if BATCH % world:
        raise SystemExit(f"the batch of {BATCH} cannot be split evenly over {world} ranks")
    train_set, test_set = load_data()
    sampler = DistributedSampler(train_set, num_replicas=world, rank=rank, shuffle=True, seed=SEED)
    loader = DataLoader(train_set, batch_size=BATCH // world, sampler=sampler)
    model = make_model()
    module = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)

    loss, seconds = 0.0, 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # another order in every epoch
        begin = time.perf_counter()
        loss = mean_over_ranks(train_epoch(module, loader, optimizer), world)
        took = time.perf_counter() - begin
        seconds += took
        if rank == 0:
            print(
                f"epoch {epoch + 1:3d}/{args.epochs}  loss {loss:.6f}"
                f"  test accuracy {accuracy(model, test_set):.4f}"
                f"  {len(loader) / took:7.1f} steps/s",
                flush=True,
            )

    hashes = gather_hashes(model, world)
    if rank == 0:
        steps_per_s = args.epochs * len(loader) / seconds if seconds else 0.0
        report(args, model, test_set, hashes, loss, steps_per_s, world)


@contextlib.contextmanager
def process_group(args):
    """Rank and world size."""
    if args.single:
        yield 0, 1
        return
    dist.init_process_group(args.backend)
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def main():
    args = parse_args()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # several ranks share the machine
    with process_group(args) as (rank, world):
        train(args, rank, world)


if __name__ == "__main__":
    main()
