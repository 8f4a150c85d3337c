"""A training that torchft brings through the death of a replica, with its real lighthouse: three
replicas train, one is killed in mid-backward, two go on, and a new process takes its place.

All that have reached the last step have the same bits. What it took is printed.

torchft.DistributedDataParallel of torchft 0.2.0 does not outlive an operation that fails while it
waits (`assert fut._fut`): there gradients are averaged by Manager.allreduce().
"""

import logging
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torchft
from torchft.checkpointing.pg_transport import PGTransport
from torchft.coordination import LighthouseServer

import models
from checks import check, flat, same
from commd.torchft import ProcessGroupCommd

NEW = "TEST_NEWCOMER"
SIZE = 3
VICTIM = 1
TOGETHER = 4  # steps of all replicas, before the loss and after it
ALONE = 5  # steps of the others


class Averaged(torch.nn.Module):
    def __init__(self, manager, module):
        super().__init__()
        self.manager, self.module = manager, module

    def forward(self, x):
        return self.module(x)

    def finish(self):
        for parameter in self.module.parameters():
            self.manager.allreduce(parameter.grad).wait()


def start():
    environment = dict(os.environ, **{NEW: "1", "RANK": str(VICTIM)})
    return subprocess.Popen([sys.executable, os.path.abspath(__file__)], env=environment)


class Replica:
    def __init__(self, number, lighthouse):
        self.own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.model = models.net()
        group = ProcessGroupCommd(timeout=timedelta(seconds=30))
        self.manager = torchft.Manager(
            pg=group,
            min_replica_size=2,
            load_state_dict=self.load,
            state_dict=self.state,
            replica_id=f"replica_{number}",
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=self.own.port,
            hostname="127.0.0.1",
            lighthouse_addr=lighthouse,
            timeout=timedelta(seconds=30),
            checkpoint_transport=PGTransport(group, timedelta(seconds=30), torch.device("cpu")),
        )
        outlives = hasattr(torchft.ddp, "_completed")
        self.ddp = (torchft.DistributedDataParallel if outlives else Averaged)(
            self.manager, self.model
        )
        self.optimizer = torchft.Optimizer(self.manager, models.sgd(self.model))
        self.number = number

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def step(self, dies=False):
        """True if it counts."""
        x, y = models.batch(self.manager.current_step())
        before = self.manager.current_step()
        self.optimizer.zero_grad()
        output = self.ddp(models.part(x, self.number, SIZE))
        if dies:
            self.manager.wait_quorum()  # the others count on it
            self.model.second.weight.register_hook(
                lambda _: os.kill(os.getpid(), signal.SIGKILL)
            )
        models.loss(output, models.part(y, self.number, SIZE)).backward()
        getattr(self.ddp, "finish", lambda: None)()
        self.optimizer.step()
        return self.manager.current_step() > before


def train(replica, store):
    """Until all have made TOGETHER steps after the loss. Who takes part is the same for all."""
    new = bool(os.environ.get(NEW))
    child, begun, together, alone = None, None, 0, 0
    recovered = new
    while not (recovered and together == TOGETHER):
        begin = time.monotonic()
        step = replica.manager.current_step()
        counts = replica.step(not new and replica.number == VICTIM and together == TOGETHER)
        now = time.monotonic()
        everybody = replica.manager.num_participants() == SIZE
        if not counts and together and not recovered and begun is None:
            begun = begin
            print(f"replica {replica.number}: step {step} was given up after {now - begin:.3f} s")
        elif counts and begun and not recovered:
            recovered, together = True, 0
            print(f"replica {replica.number}: it was repeated {now - begun:.3f} s after it began")
        together += counts and everybody
        alone += counts and recovered and not everybody
        if replica.number == 0 and not child and alone == ALONE:
            child = start()
            store.wait(["new"], timedelta(seconds=300))
    check("two went on", new or alone >= ALONE)
    return child


def main():
    logging.disable()
    rank = int(os.environ["RANK"])
    new = os.environ.get(NEW)
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None,
        rank == 0, wait_for_workers=False,
    )  # fmt: skip
    if rank == 0:
        lighthouse = LighthouseServer(
            bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=1000, heartbeat_timeout_ms=1000
        )
        store.set("lighthouse", lighthouse.address())
    replica = Replica(rank, store.get("lighthouse").decode())
    if new:
        store.set("new", "1")
    child = train(replica, store)
    store.set(f"bits/{rank}", flat(replica.model).numpy().tobytes())
    mine = store.get(f"bits/{rank}")
    for other in range(SIZE):
        same(f"parameters of replica {other}", store.get(f"bits/{other}"), mine)
    replica.manager.shutdown(wait=False)
    store.set(f"done/{rank}", "")
    if rank == 0:
        store.wait([f"done/{other}" for other in range(SIZE)])
        same("the new replica's end", child.wait(), 0)
    os._exit(0)  # torchft has threads that do not end


main()
