"""commd.torchft's process group, where torchft itself need not be installed: a stand-in has the
part of torchft's interface that the class is written to.

A rank is killed, the others go on in the next quorum; a rank that is blocked is freed by a thread
of its own; a quorum that changes without any loss breaks nobody's last operation.
"""

import os
import signal
import sys
import threading
import time
import types
from datetime import timedelta

import commd.torch
import torch
import torch.distributed as dist

from checks import check, raises, same

check("commd.torch leaves torchft alone", "torchft" not in sys.modules)


class Wrapper(dist.ProcessGroup):
    """As torchft 0.2.0: a quorum has a store, and ends the group before it."""

    def __init__(self, timeout):
        super().__init__(0, 1)
        self._pg, self._timeout = None, timeout

    def configure(self, store, rank, size):
        self.abort(errored=False)
        self._pg = self._create_pg(store, rank, size)

    def set_timeout(self, timeout):
        self._timeout = timeout

    def allreduce(self, tensors, opts):
        return self._pg.allreduce(tensors, opts)


stand_in = types.ModuleType("torchft.process_group")
stand_in.ProcessGroupWrapper = Wrapper
sys.modules["torchft"] = types.ModuleType("torchft")
sys.modules["torchft.process_group"] = stand_in
from commd.torchft import ProcessGroupCommd

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LOST = dist.DistBackendError
VICTIM = 1


def total(group):
    tensor = torch.full((1000,), 1.0)
    group.allreduce([tensor], dist.AllreduceOptions()).wait()
    return tensor[0].item()


def main():
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, SIZE, RANK == 0)
    group = ProcessGroupCommd(timeout=timedelta(seconds=300))
    same("its name", group.getBackendName(), "torchft-commd")
    same("before the first quorum", group.errored(), None)
    group.configure(dist.PrefixStore("quorum/1", store), RANK, SIZE)
    same("all", total(group), float(SIZE))

    # The quorum changes, nobody is lost. Who is late finishes what it has begun.
    for number in range(20):
        work = group.allreduce([torch.ones(100_000)], dist.AllreduceOptions())
        if RANK == number % SIZE:
            time.sleep(0.01)
        work.wait()
        group.configure(dist.PrefixStore(f"quorum/2/{number}", store), RANK, SIZE)
    same("no error", group.errored(), None)
    old = group._pg

    if RANK == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    raises("the loss", LOST, lambda: total(group), f"rank {VICTIM}")
    rank, size = RANK - (RANK > VICTIM), SIZE - 1
    group.configure(dist.PrefixStore("quorum/3", store), rank, size)
    same("no error in the next quorum", group.errored(), None)
    same("the survivors", total(group), float(size))
    raises("the old group", LOST, lambda: old.allreduce([torch.ones(1)]).wait(), "is closed")

    # A rank does not come. A watchdog of another one ends it, for all.
    if rank == 0:
        watchdog = threading.Thread(target=lambda: (time.sleep(0.2), group.abort()))
        watchdog.start()
        raises("blocked", LOST, lambda: total(group))
        watchdog.join()
        same("no group", group._pg, None)
    elif rank == 1:
        raises("blocked", LOST, lambda: total(group), "rank 0")
    else:
        while group._backend._stands():
            time.sleep(0.01)
        raises("later", LOST, lambda: total(group), "rank 0")
    check("whose error", ("aborted" in str(group.errored())) == (rank == 0), str(group.errored()))
    group.configure(dist.PrefixStore("quorum/4", store), rank, size)
    same("after the abort", (group.errored(), total(group)), (None, float(size)))

    group.set_timeout(timedelta(milliseconds=300))
    if rank == 0:
        raises("nobody comes", LOST, lambda: total(group), "300 ms")
    else:
        while group._backend._stands():
            time.sleep(0.01)
    group.shutdown()
    group.shutdown()
    same("shut down", group._pg, None)


main()
