"""Checks of backend="commd" (torch_ops.py): send and receive, and the monitored barrier."""

import itertools
import random
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from torch_checks import COMPLEX, FLOATS, INTS, check, check_equal, check_raises, data

DTYPES = FLOATS + INTS + COMPLEX + [torch.bool]


def check_ring():
    """Everybody sends to the next rank and receives from the one before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    to, source = (rank + 1) % size, (rank - 1) % size
    for dtype, n in itertools.product(DTYPES, (0, 1, 1000, 300001)):
        if n > 1000 and dtype not in (torch.float32, torch.bool):
            continue
        out = torch.zeros(n, dtype=dtype)
        works = [dist.isend(data(dtype, n, rank), to), dist.irecv(out, source)]
        for work in works:
            work.wait()
        check_equal(f"ring of {dtype} x {n}", out, data(dtype, n, source))
    out = torch.zeros(1000)
    if rank % 2 == 0:
        dist.send(data(torch.float32, 1000, rank), to)
        check("source of a receive", dist.recv(out, source) == source)
    else:
        check("source of a receive", dist.recv(out, source) == source)
        dist.send(data(torch.float32, 1000, rank), to)
    check_equal("blocking ring", out, data(torch.float32, 1000, source))


def check_tags():
    """Messages are taken in another order than they were sent, by tag."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tags = list(range(20))
    random.Random(rank).shuffle(tags)
    works = [dist.isend(torch.full((1 + 5000 * (tag % 3),), float(100 * rank + tag)), r, tag=tag)
             for tag in tags for r in range(size) if r != rank]
    for tag, source in itertools.product(reversed(range(20)), range(size)):
        if source == rank:
            continue
        out = torch.zeros(1 + 5000 * (tag % 3))
        dist.recv(out, source, tag=tag)
        check_equal(
            f"tag {tag} from {source}", out, torch.full_like(out, float(100 * source + tag))
        )
    for work in works:
        work.wait()


def check_any_source():
    rank, size = dist.get_rank(), dist.get_world_size()
    members = list(range(size))[::-1]
    backwards = dist.new_group(members)  # ranks in the group are not those in the world
    for group in (None, backwards):
        if rank == 0:
            seen = []
            for _ in range(size - 1):
                out = torch.zeros(3)
                source = dist.recv(out, group=group)
                seen.append(source)
                check_equal("from any source", out, torch.full((3,), float(source)))
            check("everybody was heard", sorted(seen) == list(range(1, size)), str(seen))
        else:
            dist.send(torch.full((3,), float(rank)), 0, group=group)
    dist.barrier()


def check_batches():
    """batch_isend_irecv() is one submission, whatever the order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group()
    others = [r for r in range(size) if r != rank]
    for n in (1, 1000, 100000):
        outs = {r: torch.zeros(n) for r in others}
        operations = [dist.P2POp(dist.irecv, outs[r], r, group) for r in others]
        operations += [dist.P2POp(dist.isend, data(torch.float32, n, rank, r), r, group)
                       for r in others]
        if rank % 2:
            operations.reverse()
        works = dist.batch_isend_irecv(operations)
        check("one work for a batch", len(works) == 1)
        for work in works:
            work.wait()
        for r in others:
            check_equal(f"batch from {r} x {n}", outs[r], data(torch.float32, n, r, rank))
    out = torch.zeros(5)
    with _coalescing_manager(group, torch.device("cpu"), async_ops=True) as manager:
        dist.isend(torch.full((5,), float(rank)), (rank + 1) % size, group)
        dist.irecv(out, (rank - 1) % size, group)
        t = torch.ones(7)
        dist.broadcast(t, 0, group, async_op=True)
    manager.wait()
    check_equal(
        "a collective in a batch of messages", out, torch.full((5,), float((rank - 1) % size))
    )


def check_independence():
    """A message passes a collective that others have not come to, and starts without a receiver."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pair = {0: size - 1, size - 1: 0}
    t = torch.ones(1000)
    work = dist.all_reduce(t, async_op=True) if rank != 0 else None
    if rank in pair:
        sends = [dist.isend(torch.full((10,), float(i)), pair[rank], tag=i) for i in range(50)]
        big = dist.isend(torch.full((1 << 20,), 5.0), pair[rank], tag=99)
        out = torch.zeros(1 << 20)
        dist.recv(out, pair[rank], tag=99)
        check("a large message past small ones", bool((out == 5).all()))
        for i in reversed(range(50)):
            out = torch.zeros(10)
            dist.recv(out, pair[rank], tag=i)
            check("a small message past a collective", bool((out == i).all()))
        for w in sends + [big]:
            w.wait()
    if rank == 0:
        work = dist.all_reduce(t, async_op=True)
    work.wait()
    check_equal("the collective", t, torch.full((1000,), float(size)))
    wide = torch.zeros(4, 2)
    grid = torch.arange(8.0).view(2, 4).t()
    works = [dist.isend(grid, (rank + 1) % size), dist.irecv(wide[:, :1], (rank - 1) % size)]
    try:
        for w in works:
            w.wait()
        check("a message that is too long", False)
    except dist.DistBackendError as error:
        check("a message that is too long", "commd: " in str(error), str(error))
    works = [dist.isend(grid, (rank + 1) % size), dist.irecv(wide, (rank - 1) % size)]
    for w in works:
        w.wait()
    check_equal("a message of strides", wide, grid)
    # Nobody keeps the work or the tensor.
    dist.isend(torch.full((200000,), 3.0), (rank + 1) % size, tag=7)
    out = torch.zeros(200000)
    dist.recv(out, (rank - 1) % size, tag=7)
    check("a send that nobody waits for", bool((out == 3).all()))


def check_refusals():
    rank, size = dist.get_rank(), dist.get_world_size()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    check_raises(
        "refusal of a peer",
        RuntimeError,
        f"commd: send: rank {size} of a group of {size}",
        lambda: backend.send([torch.ones(1)], size, 0),
    )
    check_raises("refusal of a tag", RuntimeError,
                 "commd: recv: tag 2147483647; allowed: 0 to 2147483646",
                 lambda: backend.recv([torch.ones(1)], (rank + 1) % size, 2147483647))
    work = backend.recv([torch.ones(1)], (rank + 1) % size, 12345)
    try:
        work.wait(timedelta(milliseconds=30))
        check("a receive that nothing is sent to", False)
    except dist.DistBackendError as error:
        check("a receive that nothing is sent to", "wait() timeout after 30 ms" in str(error))
    check("it is still pending", not work.is_completed())
    dist.barrier()
    dist.send(torch.ones(1), (rank - 1) % size, tag=12345)
    work.wait()
    check("and then done", work._source_rank() == (rank + 1) % size)


def check_monitored_barrier():
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    for wait_all_ranks in (False, True):
        for _ in range(3):
            group.monitored_barrier(timedelta(seconds=300), wait_all_ranks=wait_all_ranks)
        # The last rank does not come in time.
        text = None
        if rank != size - 1:
            try:
                group.monitored_barrier(timedelta(seconds=2), wait_all_ranks=wait_all_ranks)
            except dist.DistBackendError as error:
                text = str(error)
            check("monitored_barrier without a rank", text is not None)
        dist.barrier()
        if rank == 0:
            ranks = "Ranks" if wait_all_ranks else "Rank"
            check("rank 0 names who is missing",
                  f"{ranks} {size - 1} failed to pass monitoredBarrier in 2000 ms" in text, text)
            check("rank 0 timed out", "Rank 0 timed out in monitoredBarrier" in text, text)
        elif rank == size - 1:
            try:
                group.monitored_barrier(timedelta(seconds=300))
                check("a late rank", False)
            except dist.DistBackendError as error:
                text = str(error)
        if rank != 0:
            check(
                "the others hear of it",
                f"Rank {rank} successfully reached monitoredBarrier, but "
                "received errors while waiting for send/recv from rank 0" in text,
                text,
            )
            check("and who", f"the first of them rank {size - 1}" in text, text)
        t = torch.ones(2)
        dist.all_reduce(t, group=group)
        check("the group is fine after a failed monitored_barrier", t[0].item() == size)
    check("it is not counted", backend._get_sequence_number_for_group() == 2)


def run():
    if dist.get_world_size() == 1:
        dist.group.WORLD.monitored_barrier()
        return  # torch refuses to send to oneself
    check_ring()
    check_tags()
    check_any_source()
    check_batches()
    check_independence()
    check_refusals()
    check_monitored_barrier()
