#!/usr/bin/env python3
"""commd beside Open MPI and torch's gloo, in one run, alternating in blocks.

The machine's speed changes within minutes, so each round runs every contestant once on the
same sizes; a figure is the median over rounds of the medians. Placements:

  1x2   one node, 2 ranks           commd, Open MPI (shared memory), gloo; torch: commd, gloo
  2x1   two nodes (two commds on loopback) by 1 rank    commd, Open MPI over TCP, gloo
  2x2   two nodes by 2 ranks                            commd, Open MPI over TCP, gloo

Needs a built tree (./quickstart build); Open MPI is used when mpicc and mpirun are there,
gloo when a python with torch is (--python). Nothing here judges: it prints times and ratios.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
SIZES = [8, 64, 512, 4096, 32768, 262144, 2 << 20, 16 << 20, 128 << 20]
QUICK = [8, 4096, 262144, 16 << 20]
PLACEMENTS = {"1x2": (1, 2), "2x1": (2, 1), "2x2": (2, 2)}
MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def human(size):
    for unit in ("B", "KB", "MB"):
        if size < 1024 or unit == "MB":
            return f"{size} {unit}"
        size //= 1024


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class Bench:
    def __init__(self, args, sizes, work):
        self.args, self.sizes, self.work = args, sizes, pathlib.Path(work)
        self.list = ",".join(map(str, sizes))
        self.mpi = self.build_mpi()
        self.python = args.python if args.python and self.has_torch() else None

    def has_torch(self):
        return subprocess.run([self.args.python, "-c", "import torch"],
                              capture_output=True).returncode == 0

    def build_mpi(self):
        if not shutil.which("mpicc") or not shutil.which("mpirun"):
            return None
        out = self.work / "mpi_perf"
        subprocess.run(["mpicc", "-O2", "-o", out, HERE / "mpi_perf.c"], check=True)
        return out

    def run(self, argv, env=None, timeout=600):
        done = subprocess.run([str(a) for a in argv], env={**os.environ, **(env or {})},
                              capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            sys.exit(f"compare: {argv[0]} failed ({done.returncode}):\n{done.stderr[-2000:]}")
        return done.stdout

    def commd(self, nodes, ranks):
        out, rows = self.work / "perf.json", []
        socks = ",".join(self.args.nodes[:nodes])
        for size in self.sizes:
            self.run([self.args.bin / "commd-perf", "all_reduce", "-b", size, "-e", size,
                      "--ranks", ranks, "--nodes", socks, "--json", out])
            rows += json.loads(out.read_text())["rows"]
        return rows

    def openmpi(self, nodes, ranks):
        argv = ["mpirun", "--bind-to", "none", "--oversubscribe", "-np", nodes * ranks]
        if nodes > 1:  # what two hosts would use
            argv += ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp",
                     "--mca", "btl_tcp_if_include", "lo"]
        return json_lines(self.run(argv + [self.mpi, self.list], MPI_ENV))

    def torchrun(self, backend, nodes, ranks):
        base = [self.python, "-m", "torch.distributed.run"]
        tail = [HERE / "torch_perf.py", backend, self.list]
        if nodes == 1 or backend == "gloo":
            argv = base + ["--standalone", "--nproc-per-node", nodes * ranks] + tail
            env = {"COMMD_SOCKET": self.args.nodes[0], "OMP_NUM_THREADS": "1"}
            return json_lines(self.run(argv, env))
        raise NotImplementedError

    def contestants(self, placement):
        nodes, ranks = PLACEMENTS[placement]
        found = {"commd": lambda: self.commd(nodes, ranks)}
        if self.mpi:
            found["Open MPI"] = lambda: self.openmpi(nodes, ranks)
        if self.python:
            found["gloo"] = lambda: self.torchrun("gloo", nodes, ranks)
            if nodes == 1:
                found["commd (torch)"] = lambda: self.torchrun("commd", nodes, ranks)
        return found

    def placement(self, name):
        runs = self.contestants(name)
        got = {who: {s: [] for s in self.sizes} for who in runs}
        wrong = 0
        for r in range(self.args.rounds):
            for who, fn in runs.items():
                print(f"\r{name}: round {r + 1} of {self.args.rounds}, {who:14}", end="",
                      file=sys.stderr, flush=True)
                for row in fn():
                    got[who][row["bytes"]].append(row["p50_us"])
                    wrong += row["wrong"]
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
        if wrong:
            sys.exit(f"compare: {name}: {wrong} wrong elements")
        return {who: {s: statistics.median(v) for s, v in col.items() if v}
                for who, col in got.items()}


def table(name, got, sizes):
    nodes, ranks = PLACEMENTS[name]
    who = list(got)
    print(f"\nall_reduce f32 sum, {nodes} node{'s' * (nodes > 1)} x {ranks} "
          f"rank{'s' * (ranks > 1)}; median us")
    print(f"{'size':>8}" + "".join(f"{w:>16}" for w in who) + f"{'commd/Open MPI':>18}"
          + f"{'commd/gloo':>14}" + (f"{'torch/gloo':>14}" if "commd (torch)" in got else ""))
    for s in sizes:
        row = f"{human(s):>8}" + "".join(f"{got[w][s]:16.2f}" for w in who)
        for a, b, width in (("commd", "Open MPI", 18), ("commd", "gloo", 14),
                            ("commd (torch)", "gloo", 14)):
            if a == "commd (torch)" and a not in got:
                continue
            row += f"{got[a][s] / got[b][s]:{width}.2f}" if b in got else f"{'-':>{width}}"
        print(row)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--nodes", required=True, help="two commd sockets, comma separated")
    p.add_argument("--bin", type=pathlib.Path, default=TOP / "build/install/bin")
    p.add_argument("--python", default=str(TOP / ".venv/bin/python"))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--quick", action="store_true", help="four sizes, two rounds")
    p.add_argument("--placements", default="1x2,2x1,2x2")
    p.add_argument("--json", type=pathlib.Path, help="write all medians there")
    args = p.parse_args()
    args.nodes = args.nodes.split(",")
    if args.quick:
        args.rounds = min(args.rounds, 2)
    sizes = QUICK if args.quick else SIZES
    result = {"date": datetime.datetime.now().isoformat(timespec="seconds"),
              "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(),
              "kernel": platform.release(), "median_us": {}}
    with tempfile.TemporaryDirectory() as work:
        bench = Bench(args, sizes, work)
        for name in args.placements.split(","):
            got = bench.placement(name)
            result["median_us"][name] = got
            table(name, got, sizes)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
