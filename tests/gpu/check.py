#!/usr/bin/env python3
"""All that only a GPU can show, in one command: ./quickstart test gpu, or from a bundle
(tools/gpu_bundle.py) python3 tests/gpu/check.py.

Each check is bounded in time, prints one line, PASS, FAIL or SKIPPED with a reason or what was
measured, and stands in the JSON. All that it said, where a thing that hung stood, what the kernel
said, and the ends of the logs of what hung are in FILE.log beside FILE.json, else in gpu-check.log
in the build folder. When a check ends, everything that it has started is ended. What only hardware
can show comes first. For a machine with little time: --round, doc/gpu.md.

With --fake it tests the checks, over tests/fakecuda; a number is never told of that device.
Exit code: 0, 1 something failed, 77 all was skipped.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import time
import types

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(TOP, "tests/bench"), os.path.join(TOP, "tests/integration/lib")]
import bounded  # noqa: E402
from gpu_machine import (  # noqa: E402
    FAKE_MACHINE, LOAD, NO_BUDGET, Fail, Machine, Skip, surroundings,
)  # fmt: skip
from mps import Mps, NoMps  # noqa: E402

GROUPS = ["driver", "commd", "torch", "sanitizer", "speed"]
NUMBER = re.compile(r"\b(\w+)=(-?[\d.]+)")

# ---- the checks ----------------------------------------------------------------------------------


def last_words(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if re.search(r"rror|FAIL|ail", line)]
    return (told or lines or ["it said nothing"])[-1][:300]


def no_end(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "no end in time" + (f"; its last words: {lines[-1][:200]}" if lines else "")


def judge(code, text):
    """What a program says that exits with 0, 1 or 77."""
    if code is None:
        raise Fail(no_end(text))
    if code == 77:
        raise Skip(last_words(text).removeprefix("SKIPPED "))
    if code:
        how = f"signal {-code}: " if code < 0 else ""
        raise Fail(how + last_words(text).removeprefix("FAIL "))
    return last_words(text).removeprefix("PASS ")


# One hardware queue for all streams, as some frameworks set it.
ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
# Kernels are there before their first use, which then does not wait for the GPU.
EAGER = {"CUDA_MODULE_LOADING": "EAGER"}


def program(name, **more):
    def run(machine, seconds):
        return judge(*machine.run([machine.check, name], seconds, **more))

    return run


def under_mps(check, over_fake=None):
    """@check where processes share the GPU at the same time instead of by turns; over the fake
    driver @over_fake."""

    def run(machine, seconds):
        if machine.fake and over_fake:
            return over_fake(machine, seconds)
        if machine.fake:
            raise Skip(f"MPS: not with {FAKE_MACHINE}")
        plain = machine.environment
        try:
            with Mps(machine.folder, machine.run) as mps:
                machine.environment = {**plain, **mps.environment}
                return check(machine, seconds)
        except NoMps as why:
            raise Skip(f"MPS: {why}") from None
        finally:
            machine.environment = plain

    return run


def tests(file, *names, **more):
    """Test functions of tests/integration; the last line says how it went."""

    def run(machine, seconds):
        command = [machine.python, os.path.join(TOP, "tests/integration", file), *names]
        code, text = machine.run(command, seconds, **more)
        if code == 77:
            raise Skip("; ".join(re.findall(r"SKIP \((.*)\) test", text)) or "skipped")
        failed = re.findall(r"^FAIL (\w+)", text, re.M)
        if code and failed:
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
    machine.wait_for_builder(seconds - 10)
    text = judge(*machine.run([machine.python, "-c", LOAD], begin + seconds - time.monotonic()))
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
        command += ["--seconds", int(seconds) - 15]  # it looks at what hangs
        code, text = machine.run(command + ["--fake"] * machine.fake, seconds, **more)
        if code is None:
            raise Fail(no_end(text))
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
            raise Fail(no_end(text))
        if re.search(r"Device not supported|not supported on", text):
            raise Skip("compute-sanitizer does not support this device here")
        if code == 9:
            told = [line for line in re.findall(r"^=+ (.*)$", text, re.M) if "nvalid" in line]
            raise Fail("; ".join(told)[:300] or last_words(text))
        ours = re.findall(r"^(?:PASS|FAIL|SKIPPED) .*", text, re.M)
        return judge(code, ours[-1] if ours else text)

    return run


def overlap(machine, seconds):
    need_torch(machine)
    if machine.fake:
        raise Skip(f"how long it takes: not with {FAKE_MACHINE}")
    program = os.path.join(TOP, "tests/bench/torch_overlap.py")
    code, text = machine.run([machine.python, program], seconds)
    told = re.findall(r"^\d (?:nodes|ranks), .*", text, re.M)
    if code or not told or "FAILED" in "".join(told):
        raise Fail(no_end(text) if code is None else "; ".join(told) or last_words(text))
    return "; ".join(told)


WITH_TORCH = 240  # seconds of the table, of which torch takes one minute or more


def table(machine, seconds):
    command = [
        machine.python, os.path.join(TOP, "tests/bench/gpu.py"), "--build", machine.build,
        "--budget", int(seconds), "--json", os.path.join(machine.folder, "table.json"),
    ]  # fmt: skip
    command += ["--no-torch"] if seconds < WITH_TORCH else []
    code, text = machine.run(command + (["--fake"] if machine.fake else []), seconds)
    print("    " + text.strip().replace("\n", "\n    "))
    if code is None:
        raise Fail(no_end(text))
    if code not in (0, 77):
        raise Fail(last_words(text))
    if code == 77:
        raise Skip(last_words(text))
    with contextlib.suppress(OSError), open(os.path.join(machine.folder, "table.json")) as file:
        machine.table = json.load(file)
    return "above"


# What commd-perf measures on the CPU, and mpi_perf, which has its options.
SIZES = ["-b", 8, "-e", "16M", "-f", 8, "--warmup-time", 100, "--time-limit", 300, "-n", 20000]


def nodes_and_ranks(shape):
    """A core for each rank, and for each engine."""
    nodes, ranks = (int(n) for n in shape.split("x"))
    cores = len(os.sched_getaffinity(0))
    if nodes * ranks + (nodes if nodes > 1 else 0) > cores:
        raise Skip(f"there are {cores} cores")
    return nodes, ranks


def times_of(path):
    with open(path) as file:
        rows = json.load(file)["rows"]
    wrong = [f"{row['wrong']} wrong elements at {row['bytes']} B" for row in rows if row["wrong"]]
    if wrong:
        raise Fail(wrong[0])
    return "p50 us: " + " ".join(f"{row['bytes']}B={row['p50_us']:.2f}" for row in rows)


def on_cores(shape):
    """commd-perf: NODESxRANKS, nodes on loopback."""

    def run(machine, seconds):
        nodes, ranks = nodes_and_ranks(shape)
        import cluster as c

        with c.Cluster(nodes) as cluster:
            out = os.path.join(machine.folder, f"cpu-{shape}.json")
            sockets = ",".join(node.socket for node in cluster.nodes)
            perf = os.path.join(machine.build, "client/perf/commd-perf")
            command = [perf, "all_reduce", "--ranks", ranks, "--nodes", sockets, *SIZES]
            judge(*machine.run([*command, "--json", out], seconds))
        return times_of(out)

    return run


def by_mpi(kind, shape):
    """The same by an MPI that a bundle has brought (tools/gpu_bundle.py --rivals). Nodes are this
    machine, and MPI is told to take TCP between all ranks of 2x1."""

    def run(machine, seconds):
        nodes, ranks = nodes_and_ranks(shape)
        import rivals

        packed = pathlib.Path(TOP, "rivals.tar.xz")
        if packed.exists():
            shutil.unpack_archive(packed, TOP)
            packed.unlink()
        rival = next(one for one in rivals.MPIS if one.key == kind)(pathlib.Path(TOP, "rivals"))
        if not rival.program.exists():
            raise Skip(f"{rival.name}: the bundle was made without --rivals")
        place = types.SimpleNamespace(
            size=nodes * ranks, nodes=nodes, ranks=ranks, hosts=[], network="127.0.0.0/8",
            device="lo", local=lambda transport: f"{transport}," if ranks > 1 else "",
        )  # fmt: skip
        argv, more = rival.command(place)
        out = os.path.join(machine.folder, "mpi.json")
        code, text = machine.run(
            [*argv, rival.program, "all_reduce", *SIZES, "--json", out], seconds,
            OPAL_PREFIX=str(rival.home), **{key: str(value) for key, value in more.items()},
        )  # fmt: skip
        judge(code, text)
        return f"{rival.name}: {times_of(out)}"

    return run


def encryption_threads(machine, seconds):
    """What encryption leaves of an engine's rate, with 0, 1 and 2 threads more."""
    if len(os.sched_getaffinity(0)) < 4:
        raise Skip("a thread of the engine, two that encrypt, and another side need 4 cores")
    bench = os.path.join(machine.build, "tests/bench/bench_threads")
    if not os.path.exists(bench):
        raise Skip("there is no bench_threads in this build")
    out = os.path.join(machine.folder, "encryption-threads.json")
    judge(*machine.run([bench, "--json", out], seconds))
    with open(out) as file:
        rows = json.load(file)
    return "; ".join(
        f"{row['what']}: send {row['send']:.2f}, receive {row['receive']:.2f} GB/s, "
        f"{row['of']:.2f} of clear"
        for row in rows
    )


CPU = {
    "cpu": on_cores,
    "openmpi5": functools.partial(by_mpi, "openmpi5"),
    "impi": functools.partial(by_mpi, "impi"),
}
# Without MPS each operation of NCCL between nodes that share a GPU takes a time slice or more.
NODES_GROUPS = tests("test_gpu_nodes.py", "test_several_groups_over_three_nodes")
RESTART_NODES = tests("test_gpu_restart.py", "test_ranks_on_two_nodes_go_on")
RECOVER_NODES = tests(
    "test_gpu_recover.py", "test_on_two_nodes", "test_an_abort_frees_who_waits_for_a_gpu"
)
# (group, name, limit in seconds, what)
CHECKS = [
    ("driver", "surroundings", 40, surroundings),
    ("driver", "device", 20, program("device")),
    ("driver", "facts", 40, program("facts")),
    ("driver", "words", 40, program("words")),
    ("driver", "word_host", 40, program("word_host")),
    ("driver", "batch", 20, program("batch")),
    ("driver", "depth", 30, program("depth")),
    ("driver", "queues", 60, program("queues")),
    ("driver", "queues_one", 40, program("queues", **ONE_QUEUE)),
    ("driver", "range", 20, program("range")),
    ("driver", "descriptor", 30, program("descriptor")),
    ("driver", "descriptor_apart", 30, program("descriptor_apart")),
    ("driver", "ipc_killed", 30, program("ipc_killed")),
    ("driver", "ipc_killed_busy", 40, program("ipc_killed_busy")),
    ("driver", "ipc_freed", 30, program("ipc_freed")),
    ("driver", "ipc_apart", 30, program("ipc_apart")),
    ("driver", "ipc_confined", 40, program("ipc_confined")),
    ("driver", "ipc_other_user", 40, program("ipc_other_user")),
    ("driver", "ipc_sandbox", 40, program("ipc_sandbox")),
    ("driver", "ipc_small", 30, program("ipc_small")),
    ("driver", "ipc_again", 30, program("ipc_again")),
    ("driver", "ipc_open", 40, program("ipc_open")),
    ("commd", "path_sharing", 150,
     tests("test_gpu_path.py", "test_every_collective_of_ranks_that_share_a_gpu")),
    ("commd", "path_host", 100, tests("test_gpu_path.py", "test_through_host_memory_if_told_so")),
    ("driver", "kernels", 120, program("kernels")),
    ("driver", "bandwidth", 60, program("bandwidth")),
    ("driver", "nccl_version", 30, program("nccl_version")),
    ("driver", "nccl_hosts", 60, program("nccl_hosts")),
    ("driver", "nccl_twice", 60, program("nccl_twice")),
    ("driver", "nccl_imported", 60, program("nccl_imported")),
    ("driver", "nccl_one_process", 60, program("nccl_one_process")),
    ("driver", "nccl_abort", 60, program("nccl_abort")),
    ("driver", "nccl_killed", 60, program("nccl_killed")),
    ("driver", "nccl_many", 60, program("nccl_many")),
    ("commd", "nodes_sharing", 100, tests("test_gpu_nodes.py", "test_ranks_on_one_gpu")),
    ("commd", "nodes_two", 120, tests("test_gpu_nodes.py", "test_ranks_on_two_nodes")),
    ("commd", "path_killed", 100, tests("test_gpu_path.py", "test_commd_gpu_killed_in_the_middle")),
    ("commd", "nodes_rank_dies", 120,
     tests("test_gpu_nodes.py", "test_a_rank_of_another_node_dies")),
    ("commd", "nodes_gpu_dies", 120,
     tests("test_gpu_nodes.py", "test_the_commd_gpu_of_another_node_dies")),
    ("driver", "words_mps", 60, under_mps(program("words"))),
    ("driver", "slices", 90, program("slices")),
    ("driver", "slices_mps", 90, under_mps(program("slices"))),
    ("driver", "changes", 30, program("changes")),
    ("driver", "changes_mps", 60, under_mps(program("changes"))),
    ("driver", "ipc_killed_mps", 60, under_mps(program("ipc_killed_busy"))),
    ("driver", "open_large", 60, program("open_large")),
    ("driver", "host_func", 20, program("host_func")),
    ("torch", "torch_builds", 280, torch_builds),
    ("torch", "torch_collectives", 100, torch_programs("collectives", **EAGER)),
    ("torch", "torch_operations", 120, torch_programs("gpu_operations", **EAGER)),
    ("torch", "torch_ddp", 180,
     torch_programs("average_gradients", "comm_hooks", "uneven_inputs", "zero_optimizer", **EAGER)),
    ("torch", "torch_expandable", 120,
     torch_programs("gpu_operations", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", **EAGER)),
    ("speed", "table", 420, table),
    ("commd", "path_gpus", 100, tests("test_gpu_path.py", "test_ranks_on_two_gpus")),
    ("commd", "path_one_queue", 150,
     tests("test_gpu_path.py", "test_every_collective_of_ranks_that_share_a_gpu", **ONE_QUEUE)),
    ("commd", "nodes_groups", 150, under_mps(NODES_GROUPS, NODES_GROUPS)),
    ("commd", "restart_sharing", 100,
     tests("test_gpu_restart.py", "test_ranks_on_one_gpu_go_on")),
    ("commd", "restart_nodes", 120, under_mps(RESTART_NODES, RESTART_NODES)),
    ("commd", "restart_gap", 100, tests(
        "test_gpu_restart.py", "test_operations_while_no_commd_is_there",
        "test_a_session_that_is_asked_for_in_the_gap", "test_a_rank_dies_in_the_gap",
        "test_commd_gpu_dies_in_the_gap", "test_commd_gpu_dies_later")),
    ("commd", "recover_sharing", 100, tests(
        "test_gpu_recover.py", "test_on_one_node",
        "test_commd_gpu_dies_and_the_group_is_repaired_in_place")),
    ("commd", "recover_nodes", 120, under_mps(RECOVER_NODES, RECOVER_NODES)),
    ("torch", "torch_lazy", 120, torch_programs("gpu_operations", CUDA_MODULE_LOADING="LAZY")),
    ("torch", "torch_one_queue", 120, torch_programs("gpu_operations", **EAGER, **ONE_QUEUE)),
    ("torch", "torch_threads", 120, torch_programs("threads", **EAGER)),
    ("torch", "torch_lost_rank", 100, torch_programs("gpu_lost_rank", **EAGER)),
    ("torch", "torch_interrupted", 100, torch_programs("gpu_interrupted", **EAGER)),
    ("torch", "torch_section", 100, torch_programs("gpu_section", **EAGER)),
    ("torch", "torch_nodes", 100, torch_programs("collectives@2", **EAGER)),
    ("torch", "torch_fsdp2", 100, torch_programs("fsdp2", **EAGER)),
    ("torch", "torch_messages", 100, torch_programs("model_parallel", **EAGER)),
    ("torch", "overlap", 100, overlap),
    ("torch", "overlap_mps", 100, under_mps(overlap)),
    ("sanitizer", "memcheck_kernels", 240, sanitizer("memcheck", "kernels")),
    ("sanitizer", "racecheck_kernels", 120, sanitizer("racecheck", "kernels")),
    ("sanitizer", "initcheck_kernels", 120, sanitizer("initcheck", "kernels")),
    ("speed", "cpu_encryption_threads", 60, encryption_threads),
    *(("speed", f"{who}_{shape}", 40, how(shape))
      for shape in ("1x2", "1x4", "1x8", "1x16", "2x1", "2x4")
      for who, how in CPU.items()),
]  # fmt: skip

# What a command does: stages, each with a budget, from its first check to its last. Without a
# failure round 1 takes some 350 s on an H100, with 14 to 21 s for a program of torch with 4 ranks.
# Both rounds are to end within 900 s of a machine that takes 35 s to start: see doc/gpu.md.
ROUNDS = {
    "1": [
        (60, "surroundings", "ipc_sandbox"),
        (50, "path_sharing", "path_host"),
        (50, "kernels", "bandwidth"),
        (60, "nccl_version", "nccl_killed"),
        (80, "nodes_sharing", "words_mps"),
        (200, "torch_builds", "torch_expandable"),
        (420, "table", "table"),
    ],
    "2": [
        (90, "path_gpus", "nodes_groups"),
        (80, "restart_sharing", "restart_gap"),
        (40, "recover_sharing", "recover_nodes"),
        (20, "ipc_small", "ipc_open"),
        (20, "nccl_many", "nccl_many"),
        (40, "slices", "host_func"),
        (210, "torch_lazy", "torch_messages"),
        (90, "overlap", "overlap_mps"),
        (120, "memcheck_kernels", "initcheck_kernels"),
        (240, "cpu_encryption_threads", "impi_2x4"),
    ],
}


def stages_of(args):
    """(budget in seconds, its checks) of each."""
    if not args.round:
        groups = args.group.split(",") if args.group else GROUPS
        some = [c for c in CHECKS if c[0] in groups and (not args.names or c[1] in args.names)]
        return [(args.budget, some)]
    order = [c[1] for c in CHECKS]
    times = 4 if args.fake else 1  # processors do there what a GPU does
    return [
        (times * budget, CHECKS[order.index(first) : order.index(last) + 1])
        for budget, first, last in ROUNDS[args.round]
    ]


# ---- all together --------------------------------------------------------------------------------


def numbers(text):
    return {name: float(value) for name, value in NUMBER.findall(text)}


def without_numbers(text):
    """What may be told of a fake device: nothing was measured."""
    return re.sub(r"\s+", " ", NUMBER.sub("", text)).replace(" ,", ",").strip()


def one(machine, name, run, seconds):
    """A row of the result."""
    machine.begin(name)
    begin = time.monotonic()
    try:
        verdict, text = "PASS", run(machine, seconds)
    except Skip as why:
        verdict, text = "SKIPPED", str(why)
    except (Fail, AssertionError, OSError, ValueError) as why:
        verdict, text = "FAIL", " ".join(str(why).split())[:500]
    left, kernel = machine.end()
    text += f"; DOES NOT DIE: {', '.join(left)}" if left else ""
    text += f"; the kernel: {kernel[0][:160]}" if kernel and not machine.fake else ""
    row = {"name": name, "verdict": verdict, "text": text, "seconds": time.monotonic() - begin}
    return {**row, "does_not_die": left, "kernel": kernel}


def arguments():
    p = argparse.ArgumentParser(
        prog="check.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("names", nargs="*", metavar="NAME", help="only these checks")
    p.add_argument("--group", help=f"only these, with commas: {','.join(GROUPS)}")
    p.add_argument("--round", choices=ROUNDS, help="those of one command on a machine, in order")
    p.add_argument("--budget", type=int, default=NO_BUDGET, metavar="S", help="then no more begin")
    p.add_argument("--json", metavar="FILE", help="all that was found, also if it is cut off")
    p.add_argument("--fake", action="store_true", help="over tests/fakecuda: tests the checks")
    p.add_argument("--list", action="store_true", help="the names, and each one's limit")
    p.add_argument("--build", default=os.environ.get("COMMD_BUILD") or os.path.join(TOP, "build"))
    p.add_argument("--python", default=sys.executable, help="one that has torch")
    args = p.parse_args()
    args.log = os.path.splitext(args.json or f"{args.build}/gpu-check")[0] + ".log"
    unknown = set(args.group.split(",") if args.group else ()) - set(GROUPS)
    unknown |= set(args.names) - {name for _, name, _, _ in CHECKS}
    if unknown:
        p.error(f"no such check or group: {', '.join(sorted(unknown))}")
    return args, stages_of(args)


def write(path, result):
    if path:
        with open(f"{path}.new", "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
        os.rename(f"{path}.new", path)


def all_of(machine, args, stages, result):
    end = time.monotonic() + args.budget
    for budget, wanted in stages:
        until = min(end, time.monotonic() + budget)
        for group, name, limit, run in wanted:
            left = until - time.monotonic()
            result["running"] = name
            write(args.json, result)
            if left < min(10, limit):
                row = {"name": name, "verdict": "SKIPPED", "text": "the budget is spent"}
            else:
                row = one(machine, name, run, min(limit, left))
            tell({"group": group, "seconds": 0, **row}, args.fake, result)
        result["table"] = machine.table
    result["running"] = None
    write(args.json, result)


def tell(row, fake, result):
    if fake:
        row["text"] = without_numbers(row["text"])
    else:
        row["values"] = numbers(row["text"])
    print(f"{row['verdict']:8}{row['name']:22}{row['seconds']:6.1f} s  {row['text']}", flush=True)
    result["checks"].append(row)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    args, stages = arguments()
    if args.list:
        for budget, wanted in stages:
            if args.round:
                print(f"stage, {budget} s")
            for group, name, limit, _ in wanted:
                print(f"{group:10}{name:22}{limit:4} s")
        return 0
    bounded.become_parent_of_all()
    machine = Machine(args)
    os.environ.update(machine.environment)  # cluster.py looks for the build there
    result = {"machine": machine.describe(), "fake": args.fake, "checks": []}
    print(" · ".join(f"{k}: {v}" for k, v in result["machine"].items() if v), flush=True)
    try:
        if args.round and not args.fake:
            machine.begin_to_build()
        all_of(machine, args, stages, result)
    finally:
        machine.close()
    verdicts = [row["verdict"] for row in result["checks"]]
    passed, failed = verdicts.count("PASS"), verdicts.count("FAIL")
    print(f"{passed} passed, {failed} failed, {verdicts.count('SKIPPED')} skipped"
          f"; all that they said: {args.log}")  # fmt: skip
    return 1 if failed else 0 if passed else 77


if __name__ == "__main__":
    sys.exit(main())
