"""Data parallel SGD by hand: a partition of the data, gradients averaged by all_reduce."""

import torch
import torch.distributed as dist

import models
from checks import BACKEND, close, flat, same_everywhere

STEPS = 12


def average_gradients(model, size):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= size


def average_gradients_overlapped(model):
    """All of them at once, asynchronously, by the operator that divides."""
    works = [
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, async_op=True) for p in model.parameters()
    ]
    for work in works:
        work.wait()


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    want = flat(models.train_alone(models.net(), STEPS))
    for by_hand in (True, False):
        if not by_hand and BACKEND == "gloo":
            continue  # has no AVG
        model = models.net()
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        optimizer = models.sgd(model)
        for step in range(STEPS):
            x, y = models.batch(step)
            optimizer.zero_grad()
            loss = models.loss(model(models.part(x, rank, size)), models.part(y, rank, size))
            loss.backward()
            if by_hand:
                average_gradients(model, size)
            else:
                average_gradients_overlapped(model)
            optimizer.step()
        same_everywhere("parameters", flat(model))
        close("parameters after training", flat(model), want, rtol=1e-9, atol=1e-11)
    dist.destroy_process_group()


main()
