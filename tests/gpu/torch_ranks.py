#!/usr/bin/env python3
"""Programs of tests/torch/programs on a GPU that their ranks share, by torch's own CUDA build.

    torch_ranks.py NAME[@NODES]...      as many nodes of this machine, else one; 4 ranks
    --fake                              on the device of tests/torch/fakedevice

Each rank is a process of its own that loads torch afresh, as torchrun starts them. All must end
with 0, but for who kills itself; then no group and no client may be left in commd."""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(os.path.dirname(HERE), "torch/programs")
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration/lib"))
import cluster as c  # noqa: E402
import gpu_driver  # noqa: E402

RANKS, SECONDS = 4, 100
KILLED = {"gpu_lost_rank": {2: -9}}


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
        **os.environ, **gpu_driver.environment(node.name),
        "COMMD_SOCKET": node.socket, "COMMD_BUILD": c.BUILD,
        "TEST_DEVICE": "fakegpu" if fake else "cuda", "TEST_BACKEND": "commd",
        "TEST_FOLDER": folder, "TEST_SECONDS": str(SECONDS),
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


def run(name, count, folder, fake):
    """None, or what is wrong."""
    with Nodes(count, {"gpu": gpu_driver.section()}) as cluster:
        share, port = RANKS // count, free_port()
        ranks = [
            start(name, cluster.nodes[r // share], r, r % share, port, folder, fake)
            for r in range(RANKS)
        ]
        end, codes = time.monotonic() + SECONDS, []
        for process in ranks:
            try:
                codes.append(process.wait(max(end - time.monotonic(), 0.1)))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait() and "hangs")
        want = [KILLED.get(name, {}).get(rank, 0) for rank in range(RANKS)]
        if codes != want:
            return f"ended with {codes}: {last_words(folder)}"

        def rows():
            found = [row for n in cluster.nodes for row in (*n.groups(), *n.clients())]
            return [row for row in found if row.get("program") != "commd-gpu"]

        if count == 1:  # groups of commd-gpus over nodes stay for a while
            c.until(lambda: not rows(), lambda: f"left in commd: {rows()}")
    return None


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("names", nargs="+", metavar="NAME[@NODES]")
    p.add_argument("--fake", action="store_true")
    args = p.parse_args()
    failed = 0
    for word in args.names:
        name, _, count = word.partition("@")
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="commd-torch-ranks.") as folder:
            try:
                why = run(name, int(count or 1), folder, args.fake)
            except AssertionError as error:
                why = " ".join(str(error).split())
        failed += bool(why)
        verdict = f"FAILED: {why}" if why else "ok"
        print(f"{word:28}{time.monotonic() - begin:6.1f} s  {verdict}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
