#!/usr/bin/env python3
"""Runs torchft's own example of a training over commd, and kills a replica with SIGKILL.

    PYTHON tests/torch/torchft_example.py FILE [PARAMETERS]

PYTHON has torch with its torchvision, torchdata, torchft-nightly, pillow, and commd. FILE is
train_ddp.py of torchft's repository; no text of it is copied into this tree. EDITS has what is done
to it: commd.torchft's process group; random images, because the data set would be downloaded; an
end that comes when the new process has trained for a while; and a layer without use of PARAMETERS
numbers (default 1,000,000; the file has 250,000,000, for which a replica takes 5 GB).

Three replicas on two nodes, each under a torchrun with --max-restarts, as torchft starts them, and
torchft's lighthouse. All end with 0 and with the same bits. How long it took is printed.
"""

import hashlib
import os
import re
import runpy
import selectors
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../integration/lib"))
from edited import edited  # noqa: E402

NODES = (0, 0, 1)  # of each replica
VICTIM = 1
TOGETHER = 60  # steps: before the loss, and after the new process has made its first
LIMIT = 540  # s
IMAGES = 6400  # so that the loader starts its workers anew again and again
LAYER = "1_000_000_000"
EDITS = [
    ("pg = ProcessGroupGloo(timeout=timedelta(seconds=5))", "pg = group_of_commd()"),
    (LAYER, "parameters()"),
    ("manager.current_step() % 100 == 0", "True"),
    ("manager.current_step() >= 10000", "manager.current_step() >= last()"),
    ("# complete training", "ended(m)"),
    ("/tmp/trace_", "trace_"),
]


def group_of_commd():
    from datetime import timedelta

    from commd.torchft import ProcessGroupCommd

    return ProcessGroupCommd(timeout=timedelta(seconds=30))


def parameters():
    return 4 * int(os.environ["TEST_PARAMETERS"])


def last():
    """The step with which all end: the other process writes it down, some steps ahead."""
    try:
        with open("last") as file:
            return int(file.read())
    except FileNotFoundError:
        return sys.maxsize


def ended(model):
    bits = hashlib.sha256()
    for parameter in model.parameters():
        bits.update(parameter.detach().numpy())
    print(f"ended {bits.hexdigest()}", flush=True)


def replica(path):
    """In each replica, in place of the file."""
    import torch
    import torchvision

    torch.set_num_threads(1)
    text = edited(path, EDITS)
    torchvision.datasets.CIFAR10 = lambda transform, **_: torchvision.datasets.FakeData(
        IMAGES, (3, 32, 32), 10, transform
    )
    with open("train_ddp.py", "w") as file:
        file.write(text)
    print(f"pid {os.getpid()}", flush=True)
    names = (group_of_commd, parameters, last, ended)
    runpy.run_path("train_ddp.py", {name.__name__: name for name in names}, "__main__")


class Job:
    """A replica's torchrun, and what it says."""

    def __init__(self, number, path, port, environment):
        self.number, self.pid, self.step, self.bits, self.back = number, 0, -1, None, None
        self.folder = os.path.join(os.getcwd(), f"replica{number}")
        os.mkdir(self.folder)
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1",
            "--master-addr=127.0.0.1", f"--master-port={port}", "--max-restarts=3",
            os.path.abspath(__file__), path,
        ]  # fmt: skip
        self.said = open(os.path.join(self.folder, "err"), "w+")
        self.process = subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=self.said, text=True, bufsize=1,
        )  # fmt: skip

    def fileno(self):
        return self.process.stdout.fileno()

    def read(self):
        """A line of it."""
        line = self.process.stdout.readline()
        found = re.match(r"(pid|ended) (\S+)|\[(\d+)\] loss", line)
        if found and found[1] == "pid":
            self.back = self.pid or None  # it is another process
            self.pid, self.step = int(found[2]), -1
        elif found and found[1] == "ended":
            self.bits = found[2]
        elif found:
            self.step = int(found[3])
        return bool(line)

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()  # torchrun ends its process
            self.process.wait(60)


def until(jobs, selector, done, limit):
    """Reads what they say."""
    while not done():
        if time.monotonic() > limit:
            raise AssertionError(f"after {LIMIT} s: steps {[job.step for job in jobs]}")
        for key, _ in selector.select(1):
            if not key.fileobj.read():
                selector.unregister(key.fileobj)
                if key.fileobj.process.wait() != 0:
                    key.fileobj.said.seek(0)
                    print(key.fileobj.said.read()[-3000:])
                    raise AssertionError(f"replica {key.fileobj.number} failed, see above")


def story(jobs):
    limit = time.monotonic() + LIMIT
    victim = jobs[VICTIM]
    others = [job for job in jobs if job is not victim]
    with selectors.DefaultSelector() as selector:
        for job in jobs:
            selector.register(job, selectors.EVENT_READ)

        def reach(some, step):
            until(jobs, selector, lambda: all(job.step >= step for job in some), limit)

        reach(jobs, TOGETHER)
        begin, step = time.monotonic(), max(job.step for job in others)
        os.kill(victim.pid, signal.SIGKILL)
        reach(others, step + 2)  # one step may have been under way without the victim
        print(f"killed at step {step}, {step + 2} is done after {time.monotonic() - begin:.2f} s")
        until(jobs, selector, lambda: victim.back and victim.step >= 0, limit)
        print(f"a new process has done step {victim.step} after {time.monotonic() - begin:.2f} s")
        for job in jobs:
            path = os.path.join(job.folder, "last")
            with open(path + ".new", "w") as file:
                file.write(str(victim.step + TOGETHER))
            os.rename(path + ".new", path)
        until(jobs, selector, lambda: not selector.get_map(), limit)
    print(f"all have ended with step {', '.join(str(job.step) for job in jobs)}")
    if len({job.bits for job in jobs}) != 1:
        raise AssertionError(f"not the same bits: {[job.bits for job in jobs]}")


def main(path, numbers):
    from cluster import Cluster, free_port_blocks
    from torchft.coordination import LighthouseServer

    os.environ.setdefault("RUST_LOG", "error")  # it tells of each step
    os.chdir(tempfile.mkdtemp(prefix="commd-torchft-"))
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000)
    with Cluster(2) as cluster:
        common = dict(
            os.environ, OMP_NUM_THREADS="1", TORCHFT_LIGHTHOUSE=lighthouse.address(),
            NUM_REPLICA_GROUPS=str(len(NODES)), TEST_PARAMETERS=numbers,
        )  # fmt: skip
        jobs = []
        try:
            for number, (node, port) in enumerate(zip(NODES, free_port_blocks(len(NODES)))):
                own = {"COMMD_SOCKET": cluster.nodes[node].socket, "REPLICA_GROUP_ID": str(number)}
                jobs.append(Job(number, path, port, dict(common, **own)))
            story(jobs)
        finally:
            for job in jobs:
                job.end()
    print("passed")
    sys.stdout.flush()
    os._exit(0)  # torchft has threads that do not end


if len(sys.argv) < 2:
    raise SystemExit(__doc__.split("\n\n")[1].strip())
if "TEST_PARAMETERS" in os.environ:
    replica(sys.argv[1])
else:
    main(os.path.abspath(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "1000000")
