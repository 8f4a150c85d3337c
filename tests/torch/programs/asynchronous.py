"""A parameter server and workers that do not wait for each other.

Rank 0 has the parameters. A worker sends its gradient when it is ready, tagged with its step, and
gets the newest parameters back; who comes first is served first. Least squares with exact data,
so whatever the order was, it has to converge to the known answer.
"""

import torch
import torch.distributed as dist

from checks import BACKEND, check, close, drawn, same

SIZE, ROWS, STEPS = 6, 32, 150
GRADIENT, PARAMETERS = 1, 2


def truth():
    return torch.arange(1.0, SIZE + 1, dtype=torch.float64)


def serve(workers):
    parameters = torch.zeros(SIZE, dtype=torch.float64)
    steps = dict.fromkeys(range(1, workers + 1), 0)
    gradient = torch.empty_like(parameters)
    replies = []
    for _ in range(STEPS * workers):
        worker = dist.recv(gradient, tag=GRADIENT)
        steps[worker] += 1
        parameters -= 0.1 / workers * gradient
        replies.append(dist.isend(parameters.clone(), worker, tag=PARAMETERS))
    for reply in replies:
        reply.wait()
    same("steps of the workers", set(steps.values()), {STEPS})
    return parameters


def work(rank):
    generator = torch.Generator().manual_seed(rank)
    parameters = torch.zeros(SIZE, dtype=torch.float64)
    pending = dist.irecv(fresh := torch.empty_like(parameters), 0, tag=PARAMETERS)
    for step in range(STEPS):
        x = drawn(torch.randn, ROWS, SIZE, generator=generator, dtype=torch.float64)
        gradient = x.t() @ (x @ parameters - x @ truth()) / ROWS
        sent = dist.isend(gradient, 0, tag=GRADIENT)
        pending.wait()
        sent.wait()
        parameters = fresh
        if step + 1 < STEPS:
            fresh = torch.empty_like(parameters)
            pending = dist.irecv(fresh, 0, tag=PARAMETERS)
    return parameters


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    parameters = serve(size - 1) if rank == 0 else work(rank)
    dist.broadcast(parameters, 0)
    close("what was learnt", parameters, truth(), rtol=1e-3, atol=1e-3)

    # Overlap: the reduction goes on while this rank computes something else.
    tensor = torch.full((200_000,), float(rank))
    request = dist.all_reduce(tensor, async_op=True)
    other = torch.randn(100, 100).matmul(torch.randn(100, 100)).sum()
    request.wait()
    check("overlapped all_reduce", bool((tensor == sum(range(size))).all()) and other == other)
    dist.destroy_process_group()


main()
