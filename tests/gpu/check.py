#!/usr/bin/env python3
"""All that only a GPU can show, in one command: ./quickstart test gpu, or from a bundle
(tools/gpu_bundle.py) python3 tests/gpu/check.py.

Each check is bounded in time, prints one line, PASS, FAIL or SKIPPED with a reason or what was
measured, and stands in the JSON. What only hardware can show comes first. On a machine where one
command may take ten minutes:

    check.py --group driver,commd --budget 560 --json a.json
    check.py --group torch,sanitizer --budget 560 --json b.json
    check.py --group speed --budget 560 --json c.json

With --fake it tests the checks, over tests/fakecuda; a number is never told of that device.
Exit code: 0, 1 something failed, 77 all was skipped.
"""

import argparse
import contextlib
import datetime
import glob
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(TOP, "tests/bench"), os.path.join(TOP, "tests/integration/lib")]
from limit import communicate  # noqa: E402
from mps import Mps, NoMps  # noqa: E402

GROUPS = ["driver", "commd", "torch", "sanitizer", "speed"]
NUMBER = re.compile(r"\b(\w+)=(-?[\d.]+)")
FAKE_MACHINE = "the fake driver"


class Skip(Exception):
    pass


class Fail(Exception):
    pass


class Machine:
    """Where the programs are, and what they get in their environment."""

    def __init__(self, args):
        self.fake, self.python = args.fake, args.python
        self.build = os.path.abspath(args.build)
        self.check = os.path.join(self.build, "tests/gpu/gpu_check")
        if not os.path.exists(self.check):
            sys.exit(f"{self.check} is not there: make -C {self.build} tests/gpu/gpu_check")
        self.environment = dict(os.environ, COMMD_BUILD=self.build, PYTHONDONTWRITEBYTECODE="1")
        if os.path.isdir(f"{TOP}/python/commd"):  # of a bundle
            path = [f"{TOP}/python", os.environ.get("PYTHONPATH", "")]
            self.environment["PYTHONPATH"] = ":".join(filter(None, path))
        if self.fake:
            fake = os.path.join(self.build, "tests/fakecuda")
            self.environment.update(
                COMMD_LIBCUDA=f"{fake}/libcuda.so.1", COMMD_LIBNCCL=f"{fake}/libnccl.so.2"
            )
        else:
            self.environment["COMMD_TEST_GPU"] = "real"
            self.environment.setdefault("COMMD_TEST_PATIENCE", "3")
            nccl = os.environ.get("COMMD_LIBNCCL") or find_nccl(self.python)
            if nccl:
                self.environment["COMMD_LIBNCCL"] = nccl
        self.folder = tempfile.mkdtemp(prefix="commd-gpu-check.")

    def run(self, command, seconds, **more):
        """(exit code, or None if it was killed for its time; what it printed)"""
        process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
            env={**self.environment, **more},
        )  # fmt: skip
        try:
            if self.fake:  # what else runs on this machine counts for nothing
                text, _ = communicate(process, max(seconds, 1))
            else:
                text, _ = process.communicate(timeout=max(seconds, 1))
            return process.returncode, text
        except (AssertionError, subprocess.TimeoutExpired):
            return None, ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def find_nccl(python):
    """That of the torch there is, else what the loader finds."""
    done = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True,
    )  # fmt: skip
    found = glob.glob(f"{done.stdout.strip()}/nvidia/nccl/lib/libnccl.so.2")
    return found[0] if found else None


# ---- the checks ----------------------------------------------------------------------------------


def last_words(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if re.search(r"rror|FAIL|ail", line)]
    return (told or lines or ["it said nothing"])[-1][:300]


def judge(code, text):
    """What a program says that exits with 0, 1 or 77."""
    if code is None:
        raise Fail("no end in time")
    if code == 77:
        raise Skip(last_words(text).removeprefix("SKIPPED "))
    if code:
        how = f"signal {-code}: " if code < 0 else ""
        raise Fail(how + last_words(text).removeprefix("FAIL "))
    return last_words(text).removeprefix("PASS ")


def program(name, **more):
    def run(machine, seconds):
        return judge(*machine.run([machine.check, name], seconds, **more))

    return run


def under_mps(name):
    """The same, where processes share the GPU at the same time instead of by turns."""

    def run(machine, seconds):
        if machine.fake:
            raise Skip(f"MPS: not with {FAKE_MACHINE}")
        try:
            with Mps(machine.folder) as mps:
                return judge(*machine.run([machine.check, name], seconds, **mps.environment))
        except NoMps as why:
            raise Skip(f"MPS: {why}") from None

    return run


def tests(file, *names):
    """Test functions of tests/integration; the last line says how it went."""

    def run(machine, seconds):
        command = [machine.python, os.path.join(TOP, "tests/integration", file), *names]
        code, text = machine.run(command, seconds)
        if code == 77:
            raise Skip("; ".join(re.findall(r"SKIP \((.*)\) test", text)) or "skipped")
        failed = re.findall(r"^FAIL (\w+)", text, re.M)
        if code and failed:
            with open(os.path.join(machine.folder, f"{file}.log"), "a") as log:
                log.write(text)
            raise Fail(f"{', '.join(failed)}: {last_of_trace(text)}")
        judge(code, text)
        return f"{len(re.findall(r'^ok ', text, re.M))} tests"

    return run


def last_of_trace(text):
    errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Expired)\b.*(?:\n  .*){0,3}", text, re.M)
    return " ".join((errors or [last_words(text)])[-1].split())[:300]


def need_torch(machine):
    ask = "import torch; print(torch.__version__, torch.cuda.is_available())"
    code, text = machine.run([machine.python, "-c", ask], 120)
    if code:
        raise Skip("there is no torch for this Python")
    version, has_cuda = text.split()[-2:]
    if not machine.fake and has_cuda != "True":
        raise Skip(f"torch {version} has no CUDA device")
    return version


def torch_builds(machine, seconds):
    version = need_torch(machine)
    begin = time.monotonic()
    load = "import torch, commd.torch; commd.torch.load(); print('loaded')"
    text = judge(*machine.run([machine.python, "-c", load], seconds))
    if "loaded" not in text:
        raise Fail(text)
    took = time.monotonic() - begin
    return f"torch {version}, the backend is compiled and loaded within_s={took:.0f}"


def torch_programs(*names, **more):
    def run(machine, seconds):
        need_torch(machine)
        if machine.fake and not os.path.exists(f"{TOP}/tests/torch/fakedevice"):
            raise Skip("the device for torch over the fake driver is not in a bundle")
        command = [machine.python, os.path.join(HERE, "torch_ranks.py"), *names]
        code, text = machine.run(command + ["--fake"] * machine.fake, seconds, **more)
        if code is None:
            raise Fail("no end in time")
        failed = re.findall(r"^(\S+) .* s  (FAILED: .*)$", text, re.M)
        if code or failed:
            raise Fail("; ".join(" ".join(words) for words in failed) or last_words(text))
        return f"{', '.join(names)}: 4 ranks"

    return run


def sanitizer(tool, name):
    def run(machine, seconds):
        if machine.fake:
            raise Skip(f"compute-sanitizer: not with {FAKE_MACHINE}")
        found = shutil.which("compute-sanitizer") or shutil.which(
            "compute-sanitizer", path="/usr/local/cuda/bin"
        )
        if not found:
            raise Skip("there is no compute-sanitizer")
        command = [found, "--tool", tool, "--error-exitcode", "9", machine.check, "--quick", name]
        code, text = machine.run(command, seconds)
        if code is None:
            raise Fail("no end in time")
        if re.search(r"Device not supported|not supported on", text):
            raise Skip("compute-sanitizer does not support this device here")
        if code == 9:
            told = [line for line in re.findall(r"^=+ (.*)$", text, re.M) if "nvalid" in line]
            raise Fail("; ".join(told)[:300] or last_words(text))
        ours = re.findall(r"^(?:PASS|FAIL|SKIPPED) .*", text, re.M)
        return judge(code, ours[-1] if ours else text)

    return run


def table(machine, seconds):
    command = [
        machine.python, os.path.join(TOP, "tests/bench/gpu.py"), "--build", machine.build,
        "--budget", int(seconds), "--json", os.path.join(machine.folder, "table.json"),
    ]  # fmt: skip
    code, text = machine.run(command + (["--fake"] if machine.fake else []), seconds)
    if code is None:
        raise Fail("no end in time")
    print("    " + text.strip().replace("\n", "\n    "))
    if code not in (0, 77):
        raise Fail(last_words(text))
    if code == 77:
        raise Skip(last_words(text))
    with contextlib.suppress(OSError), open(os.path.join(machine.folder, "table.json")) as file:
        machine.table = json.load(file)
    return "above"


def on_cores(shape):
    """commd-perf on the CPU: NODESxRANKS, nodes on loopback. A core for each rank and engine."""

    def run(machine, seconds):
        nodes, ranks = (int(n) for n in shape.split("x"))
        cores = len(os.sched_getaffinity(0))
        if nodes * ranks + (nodes if nodes > 1 else 0) > cores:
            raise Skip(f"there are {cores} cores")
        import cluster as c

        values = {}
        with c.Cluster(nodes) as cluster:
            out = os.path.join(machine.folder, f"cpu-{shape}.json")
            code, text = machine.run(
                [os.path.join(machine.build, "client/perf/commd-perf"), "all_reduce",
                 "--ranks", ranks, "--nodes", ",".join(node.socket for node in cluster.nodes),
                 "-b", 8, "-e", "16M", "-f", 8, "--warmup-time", 100, "--time-limit", 400,
                 "-n", 20000, "--json", out],
                seconds,
            )  # fmt: skip
            judge(code, text)
        with open(out) as file:
            for row in json.load(file)["rows"]:
                values[row["bytes"]] = row["p50_us"]
                if row["wrong"]:
                    raise Fail(f"{row['wrong']} wrong elements at {row['bytes']} B")
        return "p50 us: " + " ".join(f"{size}B={us:.2f}" for size, us in values.items())

    return run


# (group, name, limit in seconds, what)
CHECKS = [
    ("driver", "device", 20, program("device")),
    ("driver", "kernels", 120, program("kernels")),
    ("driver", "words", 40, program("words")),
    ("driver", "word_host", 40, program("word_host")),
    ("driver", "batch", 20, program("batch")),
    ("driver", "ipc_killed", 30, program("ipc_killed")),
    ("driver", "ipc_killed_busy", 40, program("ipc_killed_busy")),
    ("driver", "ipc_freed", 30, program("ipc_freed")),
    ("driver", "ipc_apart", 30, program("ipc_apart")),
    ("driver", "descriptor", 30, program("descriptor")),
    ("driver", "descriptor_apart", 30, program("descriptor_apart")),
    ("driver", "range", 20, program("range")),
    ("driver", "queues", 90, program("queues")),
    ("driver", "facts", 40, program("facts")),
    ("driver", "nccl_version", 30, program("nccl_version")),
    ("driver", "nccl_hosts", 60, program("nccl_hosts")),
    ("driver", "nccl_twice", 60, program("nccl_twice")),
    ("driver", "nccl_imported", 60, program("nccl_imported")),
    ("driver", "nccl_one_process", 60, program("nccl_one_process")),
    ("driver", "nccl_abort", 60, program("nccl_abort")),
    ("driver", "nccl_killed", 60, program("nccl_killed")),
    ("driver", "ipc_open", 40, program("ipc_open")),
    ("driver", "ipc_small", 30, program("ipc_small")),
    ("driver", "ipc_again", 30, program("ipc_again")),
    ("driver", "host_func", 20, program("host_func")),
    ("driver", "words_mps", 60, under_mps("words")),
    ("driver", "ipc_killed_mps", 60, under_mps("ipc_killed_busy")),
    ("driver", "bandwidth", 60, program("bandwidth")),
    ("commd", "path_sharing", 150,
     tests("test_gpu_path.py", "test_every_collective_of_ranks_that_share_a_gpu")),
    ("commd", "path_gpus", 100, tests("test_gpu_path.py", "test_ranks_on_two_gpus")),
    ("commd", "path_killed", 100, tests("test_gpu_path.py", "test_commd_gpu_killed_in_the_middle")),
    ("commd", "path_host", 100, tests("test_gpu_path.py", "test_through_host_memory_if_told_so")),
    ("commd", "nodes_sharing", 100, tests("test_gpu_nodes.py", "test_ranks_on_one_gpu")),
    ("commd", "nodes_two", 120, tests("test_gpu_nodes.py", "test_ranks_on_two_nodes")),
    ("commd", "nodes_rank_dies", 120,
     tests("test_gpu_nodes.py", "test_a_rank_of_another_node_dies")),
    ("commd", "nodes_gpu_dies", 120,
     tests("test_gpu_nodes.py", "test_the_commd_gpu_of_another_node_dies")),
    ("commd", "nodes_groups", 150,
     tests("test_gpu_nodes.py", "test_several_groups_over_three_nodes")),
    ("torch", "torch_builds", 280, torch_builds),
    ("torch", "torch_collectives", 100, torch_programs("collectives")),
    ("torch", "torch_operations", 120, torch_programs("gpu_operations")),
    ("torch", "torch_lost_rank", 100, torch_programs("gpu_lost_rank")),
    ("torch", "torch_nodes", 100, torch_programs("collectives@2")),
    ("torch", "torch_ddp", 180,
     torch_programs("average_gradients", "comm_hooks", "uneven_inputs", "zero_optimizer")),
    ("torch", "torch_fsdp2", 100, torch_programs("fsdp2")),
    ("torch", "torch_messages", 100, torch_programs("model_parallel")),
    ("torch", "torch_expandable", 100,
     torch_programs("gpu_operations", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")),
    ("sanitizer", "memcheck_kernels", 240, sanitizer("memcheck", "kernels")),
    ("sanitizer", "racecheck_kernels", 120, sanitizer("racecheck", "kernels")),
    ("sanitizer", "initcheck_kernels", 120, sanitizer("initcheck", "kernels")),
    ("speed", "table", 420, table),
    *(("speed", f"cpu_{shape}", 40, on_cores(shape))
      for shape in ("1x2", "1x4", "1x8", "1x16", "2x1", "2x4")),
]  # fmt: skip


# ---- all together --------------------------------------------------------------------------------


def output(*command):
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    return ""


def describe(machine):
    asked = "--query-gpu=name,driver_version,memory.total"
    smi = output("nvidia-smi", asked, "--format=csv,noheader")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": ["fake"] if machine.fake else smi.splitlines(),
        "nccl": machine.environment.get("COMMD_LIBNCCL", ""),
        "python": platform.python_version(),
    }


def numbers(text):
    return {name: float(value) for name, value in NUMBER.findall(text)}


def without_numbers(text):
    """What may be told of a fake device: nothing was measured."""
    return re.sub(r"\s+", " ", NUMBER.sub("", text)).replace(" ,", ",").strip()


def one(machine, run, seconds):
    """(verdict, text)"""
    try:
        return "PASS", run(machine, seconds)
    except Skip as why:
        return "SKIPPED", str(why)
    except (Fail, AssertionError, OSError, ValueError) as why:
        return "FAIL", " ".join(str(why).split())[:500]


def arguments():
    p = argparse.ArgumentParser(
        prog="check.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("names", nargs="*", metavar="NAME", help="only these checks")
    p.add_argument("--group", help=f"only these, with commas: {','.join(GROUPS)}")
    p.add_argument("--budget", type=int, default=3600, metavar="S", help="then no more begin")
    p.add_argument("--json", metavar="FILE", help="all that was found, also if it is cut off")
    p.add_argument("--fake", action="store_true", help="over tests/fakecuda: tests the checks")
    p.add_argument("--list", action="store_true", help="the names, and each one's limit")
    p.add_argument("--build", default=os.environ.get("COMMD_BUILD") or os.path.join(TOP, "build"))
    p.add_argument("--python", default=sys.executable, help="one that has torch")
    args = p.parse_args()
    groups = args.group.split(",") if args.group else GROUPS
    unknown = (set(groups) - set(GROUPS)) | (set(args.names) - {name for _, name, _, _ in CHECKS})
    if unknown:
        p.error(f"no such check or group: {', '.join(sorted(unknown))}")
    wanted = [c for c in CHECKS if c[0] in groups and (not args.names or c[1] in args.names)]
    return args, wanted


def write(path, result):
    if path:
        with open(f"{path}.new", "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
        os.rename(f"{path}.new", path)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    args, wanted = arguments()
    if args.list:
        for group, name, limit, _ in wanted:
            print(f"{group:10}{name:22}{limit:4} s")
        return 0
    machine = Machine(args)
    os.environ.update(machine.environment)  # cluster.py looks for the build there
    machine.table = None
    begin = time.monotonic()
    result = {"machine": describe(machine), "fake": args.fake, "checks": []}
    print(" · ".join(f"{k}: {v}" for k, v in result["machine"].items() if v), flush=True)
    try:
        for group, name, limit, run in wanted:
            left = args.budget - (time.monotonic() - begin)
            at = time.monotonic()
            if left < min(10, limit):
                verdict, text = "SKIPPED", "the budget is spent"
            else:
                verdict, text = one(machine, run, min(limit, left))
            took = time.monotonic() - at
            row = {"group": group, "name": name, "verdict": verdict, "text": text, "seconds": took}
            if args.fake:
                row["text"] = text = without_numbers(text)
            else:
                row["values"] = numbers(text)
            print(f"{verdict:8}{name:22}{took:6.1f} s  {text}", flush=True)
            result["checks"].append(row)
            result["table"] = machine.table
            write(args.json, result)
    finally:
        verdicts = [row["verdict"] for row in result["checks"]]
        if "FAIL" in verdicts:
            print(f"logs are kept in {machine.folder}")
        else:
            shutil.rmtree(machine.folder, ignore_errors=True)
    passed, failed = verdicts.count("PASS"), verdicts.count("FAIL")
    print(f"{passed} passed, {failed} failed, {verdicts.count('SKIPPED')} skipped")
    return 1 if failed else 0 if passed else 77


if __name__ == "__main__":
    sys.exit(main())
