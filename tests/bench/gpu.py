#!/usr/bin/env python3
"""all_reduce on GPUs: commd beside NCCL itself (nccl_perf) and torch's nccl and gloo, where they
can run: 2, 4 and 8 ranks that share a GPU, one rank for each GPU, and two nodes that share one.
With and without MPS.

Three times of an operation: alone, behind copies of its input to the GPU ("one"); alone and behind
nothing, up to 256 KB ("bare"); and of 20 that are enqueued before the host waits ("each"). Without
MPS a GPU may change its context for an operation behind a copy. GB/s are the bytes that a GPU's
memory must read and write for it: twice the vector for each rank that shares the GPU; beside them
what part that is of what a copy kernel moves here.
commd has to take the device path; where commd-gpu copies buffers in each operation, a line says so.

--fake takes tests/fakecuda, to test this program: what was measured there is not printed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(TOP, "tests/gpu"), os.path.join(TOP, "tests/integration/lib")]
import bounded  # noqa: E402
from mps import Mps, NoMps, run_bounded  # noqa: E402

# the largest sizes; from 8 B on, each 8 times the last
ONE, BARE, QUEUED = 16 << 20, 256 << 10, 128 << 20
TIMES = ("one", "bare", "each")
QUEUE, LIMIT_MS, RUN_SECONDS = 20, 250, 60


class Missing(Exception):
    """A contestant that cannot run here, or failed; the text says why."""


class Bench:
    def __init__(self, args):
        self.args, self.fake = args, args.fake
        self.end = time.monotonic() + args.budget
        self.folder = tempfile.mkdtemp(prefix="commd-gpu-bench.")
        self.result = {"fake": self.fake, "places": []}
        self.count = 0

    def run(self, command, environment):
        seconds = min(RUN_SECONDS, self.end - time.monotonic())
        if seconds < 5:
            raise Missing("the budget is spent")
        code, text = run_bounded([str(word) for word in command], seconds, show, **environment)
        if code is None:
            raise Missing("no end in time")
        if code:
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            told = [line for line in lines if re.search("rror|ail|uplicate", line)]
            raise Missing((told or lines or ["it failed"])[-1][:160])
        return text

    # ---- contestants: {bytes: {"one": us, "bare": us, "each": us}} -------------------------------

    def perf(self, program, words, environment):
        """commd-perf or nccl_perf."""
        got = {}
        bare = ["-c", 0]
        queued = [*bare, "--queue", QUEUE]
        for which, most, more in zip(TIMES, (ONE, BARE, QUEUED), ([], bare, queued), strict=True):
            out = os.path.join(self.folder, f"{self.count}.json")
            self.count += 1
            self.run(
                [os.path.join(self.args.build, program), "all_reduce", "-b", 8, "-f", 8, "-e",
                 512 if self.fake else most, "-n", 2000, "--time-limit",
                 10 if self.fake else LIMIT_MS, "--json", out, *words, *more],
                environment,
            )  # fmt: skip
            with open(out) as file:
                rows = json.load(file)["rows"]
            for row in rows:
                if row["wrong"]:
                    raise Missing(f"{row['wrong']} wrong elements at {row['bytes']} B")
                got.setdefault(row["bytes"], {})[which] = row["p50_us"]
        return got

    def commd(self, nodes, ranks, environment):
        sockets = ",".join(node.socket for node in nodes)
        return self.perf(
            "client/perf/commd-perf", ["--device", "cuda", "--ranks", ranks, "--nodes", sockets],
            {**environment, "COMMD_DEVICE_PATH": "device"},
        )  # fmt: skip

    def nccl(self, ranks, environment):
        return self.perf("tests/bench/nccl_perf", ["--ranks", ranks], environment)

    def torch(self, backend, ranks, node, environment):
        if self.fake:
            raise Missing("not over the fake driver")
        sizes = [8]
        while sizes[-1] < QUEUED:
            sizes.append(8 * sizes[-1])
        text = self.run(
            [self.args.python, os.path.join(HERE, "torch_gpu.py"), backend, ranks, QUEUE,
             ",".join(str(size) for size in sizes)],
            {"COMMD_DEVICE_PATH": "device", **environment, "COMMD_SOCKET": node.socket},
        )  # fmt: skip
        times = json.loads(text.strip().splitlines()[-1])
        return {int(size): row for size, row in times.items()}

    # ---- places ----------------------------------------------------------------------------------

    def place(self, name, share, mps, contestants, cluster):
        """@share: ranks that share a GPU; 0: bytes are not counted."""
        if not re.search(self.args.places, name):
            return
        place = {"name": name, "mps": mps, "share": share, "times": {}, "missing": {}}
        for who, function in contestants.items():
            try:
                place["times"][who] = function()
            except Missing as why:
                place["missing"][who] = str(why)
        import gpu_driver

        place["copied"] = gpu_driver.copied(cluster)
        self.result["places"].append(place)
        print(text_of(place, self.result.get("copy_gbs"), self.fake), flush=True)

    def places(self, mps):
        """@mps: what programs have in their environment under it, or {}."""
        import cluster as c
        import gpu_driver

        fake, gpus = self.fake, 1 if self.fake else gpu_driver.devices()
        alone = {**gpu_driver.environment(), **mps}
        for name in (*gpu_driver.SHARED_GPU, "NCCL_HOSTID"):
            alone.pop(name, None)  # NCCL as it comes, where it has a GPU for each rank

        class Nodes(c.Cluster):
            def start(self):
                for node in self.nodes:  # a fake box is that of the ranks, too
                    box = None if fake else node.name
                    shared = {**gpu_driver.environment(box), "NCCL_HOSTID": node.name, **mps}
                    node.start(shared if gpus == 1 else alone)
                self.wait_linked()

        with Nodes(2, {"gpu": gpu_driver.section()}) as cluster:
            one = cluster.nodes[:1]
            for ranks in (2,) if self.fake else (2, 4, 8):
                self.place(f"{ranks} ranks share a GPU", ranks, bool(mps), {
                    "commd": lambda ranks=ranks: self.commd(one, ranks * gpus, alone),
                }, cluster)  # fmt: skip
            if gpus > 1:
                self.place(f"a rank for each of {gpus} GPUs", 0, bool(mps), {
                    "commd": lambda: self.commd(one, gpus, alone),
                    "NCCL": lambda: self.nccl(gpus, alone),
                    "torch nccl": lambda: self.torch("nccl", gpus, one[0], alone),
                }, cluster)  # fmt: skip
            else:
                self.place("2 nodes share a GPU, by sockets", 0, bool(mps), {
                    "commd": lambda: self.commd(cluster.nodes, 1, alone),
                    "NCCL": lambda: self.nccl(2, alone),
                }, cluster)  # fmt: skip
            # nccl refuses ranks that share a GPU: its line says so
            if not mps and not self.args.no_torch:
                self.place(f"{4 * gpus} ranks on {gpus} GPU, by torch", 0, False, {
                    f"torch {name}": lambda name=name: self.torch(name, 4 * gpus, one[0], alone)
                    for name in ("commd", "gloo", "nccl")
                }, cluster)  # fmt: skip

    def bandwidth(self):
        text = self.run([os.path.join(self.args.build, "tests/gpu/gpu_check"), "bandwidth"], {})
        values = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", text)}
        if "copy_kernel_gbs" not in values:
            raise Missing(text.strip()[-160:])
        if not self.fake:
            self.result["bandwidth"] = values
            self.result["copy_gbs"] = values["copy_kernel_gbs"]
            print("GB/s read and written: " + text.strip().removeprefix("PASS "))


def show():
    print(bounded.look(bounded.descendants()), flush=True)


# ---- what is printed -----------------------------------------------------------------------------


def human(size):
    if size >= 1 << 20:
        return f"{size >> 20} MB"
    return f"{size >> 10} KB" if size >= 1024 else f"{size} B"


def text_of(place, copy_gbs, fake):
    how = "under MPS" if place["mps"] else "without MPS"
    lines = [f"\n{place['name']}, {how}: us"]
    who = list(place["times"])
    head = f"{'':>8}" + "".join(f"{name + ' one':>18}{'bare':>10}{'each':>10}" for name in who)
    if place["share"] and "commd" in who and not fake:
        head += f"{'GB/s':>10}{'of a copy':>11}"
    lines.append(head)
    for size in sorted({size for times in place["times"].values() for size in times}):
        line = f"{human(size):>8}"
        for name in who:
            for which, width in zip(TIMES, (18, 10, 10), strict=True):
                us = place["times"][name].get(size, {}).get(which)
                line += f"{'-' if us is None else 'ok' if fake else f'{us:.1f}':>{width}}"
        each = place["times"].get("commd", {}).get(size, {}).get("each")
        if place["share"] and each and not fake:
            gbs = 2 * place["share"] * size / each / 1e3
            line += f"{gbs:>10.0f}{f'{100 * gbs / copy_gbs:.0f}%' if copy_gbs else '-':>11}"
        lines.append(line)
    lines += [f"  {name}: {why}" for name, why in place["missing"].items()]
    lines += [f"  NOT the device path as meant: {place['copied']}"] if place["copied"] else []
    return "\n".join(lines)


def arguments():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--build", default=os.environ.get("COMMD_BUILD") or os.path.join(TOP, "build"))
    p.add_argument("--python", default=sys.executable, help="one that has torch")
    p.add_argument("--budget", type=int, default=1800, metavar="S", help="for all of it")
    p.add_argument("--no-torch", action="store_true", help="torch takes a minute to start")
    p.add_argument("--places", default="", metavar="REGEX", help="only those it is found in")
    p.add_argument("--json", metavar="FILE")
    p.add_argument("--fake", action="store_true", help="over tests/fakecuda: tests this program")
    args = p.parse_args()
    args.build = os.path.abspath(args.build)
    return args


def prepare(args):
    """The environment that gpu_driver.py and the programs look into."""
    os.environ["COMMD_BUILD"] = args.build
    if os.path.isdir(f"{TOP}/python/commd"):  # of a bundle
        path = [f"{TOP}/python", os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = ":".join(filter(None, path))
    if args.fake:
        os.environ.pop("COMMD_TEST_GPU", None)
        os.environ["COMMD_LIBCUDA"] = f"{args.build}/tests/fakecuda/libcuda.so.1"
        os.environ["COMMD_LIBNCCL"] = f"{args.build}/tests/fakecuda/libnccl.so.2"
    else:
        os.environ["COMMD_TEST_GPU"] = "real"


def has_gpu(args):
    """None, or why not."""
    done = subprocess.run(
        [os.path.join(args.build, "tests/gpu/gpu_check"), "device"], capture_output=True, text=True
    )
    text = "fake" if args.fake else done.stdout.strip()[:200]
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ, ", time.gmtime()) + text)
    return done.stdout.strip() if done.returncode else None


def main():
    args = arguments()
    prepare(args)
    why = has_gpu(args)
    if why:
        return 77
    bounded.become_parent_of_all()
    bench = Bench(args)
    try:
        bench.bandwidth()
        bench.places({})
        try:
            if args.fake:
                raise NoMps("not over the fake driver")
            with Mps(bench.folder) as mps:
                bench.places(mps.environment)
        except NoMps as why:
            print(f"\nMPS: {why}")
            bench.result["mps"] = str(why)
    except Missing as why:
        print(f"FAIL {why}")
        return 1
    finally:
        if args.json:
            with open(args.json, "w") as file:
                json.dump(bench.result if not args.fake else {"fake": True}, file, indent=1)
        shutil.rmtree(bench.folder, ignore_errors=True)
    failed = [place["name"] for place in bench.result["places"] if "commd" in place["missing"]]
    if failed:
        print(f"FAIL commd: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
