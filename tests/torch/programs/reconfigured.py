"""torch's own words for recovery (2.14): the program says which processes are the group now.

Handles go through files: no process and no store has to live on for the others.
"""

import os
import signal
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType
from torch.distributed import distributed_c10d as c10d

from checks import BACKEND, FOLDER, check, raises, same

CPU = torch.device("cpu")
LONG, SHORT = timedelta(seconds=300), timedelta(seconds=1)
ALL = [0, 1, 2, 3]


class Process:
    """One of the four: its number stays, its rank does not."""

    def __init__(self):
        self.number = int(os.environ["RANK"])
        self.world = dist.group.WORLD
        self.uuid = self.meetings = 0
        self.alive = ALL

    def backend(self):
        return self.world._get_backend(CPU)

    def put(self, name, value=""):
        path = os.path.join(FOLDER, f"{name}-{self.number}")
        with open(path + ".new", "w") as file:
            file.write(value)
        os.rename(path + ".new", path)

    def get(self, name, number):
        path = os.path.join(FOLDER, f"{name}-{number}")
        while not os.path.exists(path):
            time.sleep(0.01)
        with open(path) as file:
            return file.read()

    def meet(self):
        """Nobody leaves a group, or breaks it, while another is still busy in it."""
        self.meetings += 1
        self.put(f"met-{self.meetings}")
        for number in self.alive:
            self.get(f"met-{self.meetings}", number)

    def next(self):
        """All count alike, also those that stay out."""
        self.uuid += 1
        return self.uuid

    def handles(self, uuid, members):
        self.put(f"handle-{uuid}", dist._get_reconfigure_handle())
        return [self.get(f"handle-{uuid}", member) for member in members]

    def become(self, *groups, kind=list, timeout=LONG):
        """Whoever is in one of @groups is in that now; the others do not call torch."""
        self.meet()
        uuids = [self.next() for _ in groups]
        for uuid, members in zip(uuids, groups):
            if self.number in members:
                handles = self.handles(uuid, members)
                dist._reconfigure(uuid, kind(handles), timeout=timeout).wait()
                self.works(members, ordered=kind is list)

    def works(self, members, ordered=True):
        rank, size = dist.get_rank(), dist.get_world_size()
        check("the object that it was", dist.group.WORLD is self.world)
        same("size", (size, self.backend().size()), (len(members), len(members)))
        check("rank", not ordered or rank == members.index(self.number), rank)
        same("get_error()", self.backend().get_error(), ErrorType.SUCCESS)
        tensor = torch.full((1000,), float(self.number + 1))
        self.world.allreduce([tensor]).wait()
        same("all_reduce", tensor[-1].item(), float(sum(members) + size))
        seats = [torch.zeros(2, dtype=torch.int64) for _ in range(size)]
        self.world.allgather([seats], [torch.tensor([rank, self.number])]).wait()
        same("ranks", [seat[0].item() for seat in seats], list(range(size)))
        same("members", sorted(seat[1].item() for seat in seats), sorted(members))
        if size > 1:  # around the ring
            got, before, after = torch.zeros(5), (rank - 1) % size, (rank + 1) % size
            works = [
                self.world.recv([got], before, 3),
                self.world.send([torch.full((5,), float(rank))], after, 3),
            ]
            for work in works:
                work.wait()
            same("message", got[0].item(), float(before))


def sizes(process):
    raises("no members yet", dist.DistBackendError, dist.barrier, "_reconfigure()")
    process.become([3, 1, 0, 2])  # the order of a list is that of the ranks
    process.become(ALL, kind=set)
    process.become([0, 1, 2])  # without the last
    process.become([0, 2])  # without one in the middle
    process.become(ALL)  # those who were out are back
    process.become([0, 1], [3, 2])  # halves
    process.become([2, 0, 1, 3])  # and one again
    process.become([0], [1], [2], [3])  # each alone
    process.become(ALL)


def refused(process):
    uuid = process.next()
    handles = process.handles(uuid, ALL)
    others = [handle for handle in handles if handle != handles[process.number]]
    raises("not among them", ValueError, lambda: dist._reconfigure(uuid, others))
    raises("twice", ValueError, lambda: dist._reconfigure(uuid, handles + handles))
    raises("a used uuid", RuntimeError, lambda: dist._reconfigure(1, handles), "already used")
    process.meet()
    dist._reconfigure(uuid, handles, timeout=LONG).wait()
    process.works(ALL)


def aborted(process):
    """By one; others are in an operation."""
    process.meet()
    if process.number == 2:
        process.backend().abort()
    else:
        raises("aborted", dist.DistBackendError, dist.barrier)
    check("get_error()", process.backend().get_error() != ErrorType.SUCCESS)
    process.become(ALL)


def timed_out(process):
    """One does not come: to an operation, and to a new group."""
    process.meet()
    if process.number != 3:
        told = threading.Event()
        process.world.register_abort_hook(1, told.set)
        c10d._set_pg_timeout(SHORT)
        raises("an operation", dist.DistBackendError, dist.barrier)
        same("get_error()", process.backend().get_error(), ErrorType.TIMEOUT)
        raises("later", dist.DistBackendError, lambda: dist.all_reduce(torch.ones(1)))
        told.wait()
        process.world.unregister_abort_hook(1)
        c10d._set_pg_timeout(LONG)
        process.put("timed-out")
    for number in (0, 1, 2):  # it comes when they have given up
        process.get("timed-out", number)
    process.become(ALL)

    uuid = process.next()
    handles = process.handles(uuid, ALL)
    if process.number != 3:
        raises("a new group", dist.DistBackendError,
               lambda: dist._reconfigure(uuid, handles, timeout=SHORT).wait())  # fmt: skip
    process.become(ALL)


def killed(process):
    process.meet()
    if process.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raises("without it", dist.DistBackendError, dist.barrier)
    process.alive = [0, 2, 3]
    process.become([0, 2, 3])


def several():
    dist.init_process_group(
        f"cpu:{BACKEND},cuda:gloo", store=dist.HashStore(), rank=0, world_size=1,
        enable_reconfigure=True,
    )  # fmt: skip
    raises("several backends", RuntimeError, lambda: dist._reconfigure(1, ["none"]))
    dist.destroy_process_group()


def main():
    dist.init_process_group(BACKEND, enable_reconfigure=True)
    check("it can", dist._supports_reconfigure())
    process = Process()
    for scene in (sizes, refused, aborted, timed_out, killed):
        scene(process)
    dist.destroy_process_group()
    several()


main()
