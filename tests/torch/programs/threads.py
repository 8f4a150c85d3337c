"""Several threads of a process communicate at once, each in its group, none waits for another.

The ranks use the groups in opposite orders, and send and receive in the middle of it: with one
queue for all of it this would hang. A stream is such a queue: on GPUs each thread has its own.
"""

import threading

import torch
import torch.distributed as dist

from checks import BACKEND, EAGER, own_stream, same

ROUNDS = 50


def reduce_often(group, size, errors):
    try:
        with own_stream():
            for number in range(ROUNDS):
                tensor = torch.full((1 + 37 * number,), float(number))
                dist.all_reduce(tensor, group=group, async_op=number % 3 == 0)
                if number % 3:
                    same("sum", tensor[0].item(), float(number * size))
                dist.barrier(group=group)
    except BaseException as error:
        errors.append(error)


def opposite_orders(groups, rank, size):
    """One thread: rank 0 begins with the first group, the others with the last."""
    tensors = [torch.full((1000,), float(rank)) for _ in groups]
    order = list(range(len(groups)))[:: 1 if rank == 0 else -1]
    works = [dist.all_reduce(tensors[i], group=groups[i], async_op=True) for i in order]
    for work in works:
        work.wait()
    for tensor in tensors:
        same("sum", tensor[0].item(), float(sum(range(size))))


def send_beside_collectives(rank, size):
    """A receive that is posted first and served last, around collectives."""
    into = torch.zeros(100_000)
    work = dist.irecv(into, (rank - 1) % size, tag=5)
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    dist.barrier()
    sent = dist.isend(torch.full((100_000,), float(rank)), (rank + 1) % size, tag=5)
    dist.all_reduce(tensor)
    work.wait()
    sent.wait()
    same("received", into[-1].item(), float((rank - 1) % size))
    same("sum", tensor[0].item(), float(size * size))


def crossing(rank, size):
    """Everybody sends first, large and small (gloo#308, torchcomms#2992)."""
    for elements in (1, 5000, 1_000_000):
        works = [
            dist.isend(torch.full((elements,), float(rank)), r) for r in range(size) if r != rank
        ]
        into = torch.empty(elements)
        for r in range(size):
            if r != rank:
                dist.recv(into, r)
                same("received", (into[0].item(), into[-1].item()), (float(r), float(r)))
        for work in works:
            work.wait()


def main():
    dist.init_process_group(BACKEND, **EAGER)
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group() for _ in range(4)]
    opposite_orders(groups, rank, size)
    errors = []
    running = [threading.Thread(target=reduce_often, args=(g, size, errors)) for g in groups]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
    send_beside_collectives(rank, size)
    crossing(rank, size)
    dist.destroy_process_group()


main()
