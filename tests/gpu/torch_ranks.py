#!/usr/bin/env python3
"""Programs of tests/torch/programs on a GPU that their ranks share, by torch's own CUDA build.

    torch_ranks.py NAME[@NODES]...      as many nodes of this machine, else one; 4 ranks
    --fake                              on the device of tests/torch/fakedevice
    --seconds N                         for all of them

Where a program hangs, it shows where its ranks stand, and what commd says of it. Groups have to
take the device path, but for programs that only send messages; whether buffers were copied to lent
memory all the same is told.

Each rank is a process of its own that loads torch afresh, as torchrun starts them. All must end
with 0, but for who kills itself; then no group and no client may be left in commd."""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(os.path.dirname(HERE), "torch/programs")
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "integration/lib")]
import bounded  # noqa: E402
import cluster as c  # noqa: E402
import gpu_driver  # noqa: E402

RANKS = 4
KILLED = {"gpu_lost_rank": {2: -9}}
MESSAGES = {"model_parallel"}  # which go through host memory


class Nodes(c.Cluster):
    def start(self):
        for node in self.nodes:
            node.start(gpu_driver.environment(node.name))
        self.wait_linked()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(name, node, rank, local, port, folder, fake):
    environment = {
        "COMMD_DEVICE_PATH": "auto" if name in MESSAGES else "device",
        **({"FAKEGPU_LAZY": "1"} if os.environ.get("CUDA_MODULE_LOADING") == "LAZY" else {}),
        **os.environ, **gpu_driver.environment(node.name),
        "COMMD_SOCKET": node.socket, "COMMD_BUILD": c.BUILD,
        "TEST_DEVICE": "fakegpu" if fake else "cuda", "TEST_BACKEND": "commd",
        "TEST_FOLDER": folder, "PYTHONFAULTHANDLER": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        "RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(RANKS // len(node.cluster.nodes)),
    }  # fmt: skip
    with open(os.path.join(folder, f"{rank}.log"), "wb") as log:
        return subprocess.Popen(
            [sys.executable, f"{PROGRAMS}/{name}.py"], stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, env=environment,
        )  # fmt: skip


def last_words(folder):
    """Of the ranks; who says why comes before who was left alone."""
    found = []
    for rank in range(RANKS):
        with open(os.path.join(folder, f"{rank}.log"), errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        found += [f"rank {rank}: {line[:300]}" for line in lines if "Error" in line][-1:]
    return "; ".join(found[:2]) or "no rank says why"


def ends(processes, limit):
    """The exit codes; None of who did not end in time."""
    end = time.monotonic() + limit
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(end - time.monotonic(), 0.01))
    return [process.poll() for process in processes]


def show_hanging(cluster, ranks, folder):
    hanging = {p.pid: "python" for p in ranks if p.poll() is None}
    print(bounded.look({**bounded.descendants(), **hanging}))
    for node in cluster.nodes:
        for verb in ("why", "ops"):
            print(f"---- {node.name}: {verb}\n{json.dumps(node.ctl(verb), indent=1)}")
    bounded.tracebacks(hanging)
    show_logs(folder)


def show_logs(folder):
    for rank in range(RANKS):
        print(f"---- rank {rank}\n{bounded.read(f'{folder}/{rank}.log')[-20000:]}", flush=True)


def run(name, count, folder, fake, seconds):
    """(None, or what is wrong; what is to be told)"""
    with Nodes(count, {"gpu": gpu_driver.section()}) as cluster:
        share, port = RANKS // count, free_port()
        ranks = [
            start(name, cluster.nodes[r // share], r, r % share, port, folder, fake)
            for r in range(RANKS)
        ]
        codes = ends(ranks, seconds)
        if None in codes:
            show_hanging(cluster, ranks, folder)
            for process in ranks:
                process.kill()
            ends(ranks, bounded.DIES_WITHIN)
        want = [KILLED.get(name, {}).get(rank, 0) for rank in range(RANKS)]
        if codes != want:
            if None not in codes:
                show_logs(folder)
            told = ["hangs" if code is None else code for code in codes]
            return f"ended with {told}: {last_words(folder)}", ""

        def rows():
            found = [row for n in cluster.nodes for row in (*n.groups(), *n.clients())]
            return [row for row in found if row.get("program") != "commd-gpu"]

        if count == 1:  # groups of commd-gpus over nodes stay for a while
            c.until(lambda: not rows(), lambda: f"left in commd: {rows()}")
        return None, gpu_driver.copied(cluster)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("names", nargs="+", metavar="NAME[@NODES]")
    p.add_argument("--fake", action="store_true")
    p.add_argument("--seconds", type=float, default=300)
    args = p.parse_args()
    failed, end = 0, time.monotonic() + args.seconds
    bounded.become_parent_of_all()
    for at, word in enumerate(args.names):
        share = 1 / (len(args.names) - at)  # one that hangs leaves time for others
        name, _, count = word.partition("@")
        begin, told = time.monotonic(), ""
        with tempfile.TemporaryDirectory(prefix="commd-torch-ranks.") as folder:
            try:
                why, told = run(
                    name, int(count or 1), folder, args.fake, max(share * (end - begin), 5)
                )  # fmt: skip
            except AssertionError as error:
                why = " ".join(str(error).split())
        failed += bool(why)
        verdict = f"FAILED: {why}" if why else f"ok{told and '; ' + told}"
        print(f"{word:28}{time.monotonic() - begin:6.1f} s  {verdict}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
