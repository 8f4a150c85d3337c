#!/usr/bin/env python3
"""Runs the training programs of tests/torch/programs/ on commd, on two nodes and on one.

Some run on a device of torch whose CUDA driver is tests/fakecuda, too: through host memory where
commd has no GPU service, and by commd-gpu where it has ("shared GPU", "GPU each", "GPU nodes").
There every group has to take the device path (COMMD_DEVICE_PATH=device), and every GPU must have
carried out operations. --seed N draws other delays of that driver; a failure names it.

Each checks its own results and is a program as a user writes it; PROGRAMS has a line for each.
All ranks have to leave with 0 and with nothing on stderr; then no group and no client may be left
in the commds, and no complaint in their logs. Programs marked so are started by torchrun, one per
node, the others by forking a process that has torch loaded (program_host.py), which saves most of
the time.

Standard library only; the programs run under --python.
"""

import argparse
import collections
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(TOP, "tests/integration/lib"))
import cluster
import gpu_nodes
from limit import PATIENCE, Limit

# @path: the file, if it is not the name; @gloo: gloo can run it too; @codes: exit codes by rank
# that are not 0; @log: what commd says of it at warn or error level; @err: what may be on stderr;
# @places: where, if not on all CPU_PLACES; @gpus: on which of GPU_PLACES, too; @needs: a package.
# @again: a torchrun that fails is started once more, with TEST_AGAIN. @since: which torch; with an
# older one it is skipped.
Program = collections.namedtuple(
    "Program",
    "name path ranks seconds gloo torchrun environment codes log err places gpus needs again since",
    defaults=(None, 4, 60, True, (), {}, {}, None, None, None, (), None, False, (0, 0)),
)  # fmt: skip
# @node: of each rank; @gpus: that commd has on each node
Place = collections.namedtuple("Place", "node gpus", defaults=(0,))
PLACES = {
    "two nodes": Place(lambda rank, size: rank * 2 // size),
    "one node": Place(lambda rank, size: 0),
    "shared GPU": Place(lambda rank, size: 0, 1),
    "GPU each": Place(lambda rank, size: 0, 4),
    "GPU nodes": Place(lambda rank, size: rank * 2 // size, 1),
}
CPU_PLACES = [name for name, place in PLACES.items() if not place.gpus]
GPU_PLACES = [name for name, place in PLACES.items() if place.gpus]
GPU = {
    "TEST_DEVICE": "fakegpu",
    "COMMD_BUILD": cluster.BUILD,
    "CUDA_VISIBLE_DEVICES": "0",
    **gpu_nodes.RANK,
    "COMMD_DEVICE_PATH": "auto",
    "FAKEGPU_LAZY": "1",
}
FAKEGPU = (2, 11)  # which torch it compiles with
PROGRAMS = [
    Program("collectives"),
    Program("ring_all_reduce"),
    Program("init_methods"),
    Program("ddp_sampler"),
    Program("average_gradients"),
    Program("model_parallel"),
    Program("data_and_model", since=(2, 6)),  # group_dst
    Program("asynchronous"),
    Program("checkpoint"),
    Program("objects"),
    Program("accumulation"),
    Program("comm_hooks"),
    Program("uneven_inputs"),
    Program("zero_optimizer"),
    Program("fsdp1", gloo=False),
    Program("fsdp2", since=(2, 8)),  # before, it is for GPUs
    Program("tensor_parallel", err="does not support alltoall yet"),
    Program("distributed_checkpoint", since=(2, 8)),  # as fsdp2
    Program("pipeline_schedules", since=(2, 6)),  # before, a stage has to be told of its inputs
    Program("mixture_of_experts", gloo=False),
    Program("ring_attention"),
    Program("local_sgd"),
    Program("functional"),
    Program("many_groups"),
    Program("threads"),
    Program("failures", gloo=False),
    Program("lost_rank", gloo=False, codes={2: -9}),
    Program("recovered", gloo=False, codes={0: -9}),
    Program("rejoined", gloo=False, codes={0: -9, 2: -9}),
    Program("ddp_recovered", gloo=False, codes={2: -9}),
    Program("destroyed", gloo=False),
    Program("torchft_group", gloo=False, codes={1: -9}, since=(2, 7)),  # as torchft
    Program(
        "torchft_training", ranks=3, gloo=False, codes={1: -9}, needs="torchft",
        environment={"RUST_LOG": "error"}, err=r"torchft::",
    ),
    # HSDP on the CPU; before that FSDP2 wants an event of a GPU
    Program("fsdp_recovered", ranks=6, gloo=False, codes={2: -9}, since=(2, 8)),
    Program("fsdp1_recovered", ranks=6, gloo=False, codes={2: -9}),
    Program("shard_restored", gloo=False, codes={2: -9}, since=(2, 8)),
    Program("shrunk", gloo=False, codes={1: -9}, since=(2, 10)),
    Program("reconfigured", gloo=False, codes={1: -9}, since=(2, 14)),
    Program(
        "example_recover", path="../../../client/python/examples/recover", gloo=False,
        codes={2: -9},
    ),
    Program(
        "recorded", gloo=False, err=r"\[c10d\] (Server|WorkerServer)|^USDT:", since=(2, 13)
    ),
    Program("no_destroy"),
    Program("at_exit"),
    Program("forked", gloo=False),
    Program("spawned", ranks=1, places=["one node"]),
    Program(
        "ddp_torchrun", path="ddp_sampler", torchrun=["--rdzv-backend=static"], places=["two nodes"]
    ),
    Program("restarted", gloo=False, torchrun=["--max-restarts=1"], places=["two nodes"]),
    Program(
        "node_restarted", gloo=False, torchrun=["--max-restarts=1", "--rdzv-backend=static"],
        places=["two nodes"],
    ),
    Program(
        "node_started_again", path="node_restarted", gloo=False, again=True,
        torchrun=["--rdzv-backend=static"], places=["two nodes"],
    ),
    Program(
        "replaced", gloo=False, torchrun=["--rdzv-backend=static"], places=["two nodes"],
        environment={"COMMD_REPLACE": "gloo"},
    ),
    # on a device of torch whose driver is tests/fakecuda
    Program("gpu_operations", gloo=False, environment=GPU, gpus=GPU_PLACES),
    Program(  # elsewhere groups do not agree on a path
        "gpu_interrupted", gloo=False, environment=GPU, places=[], gpus=["shared GPU", "GPU nodes"],
    ),
    Program("gpu_section", gloo=False, environment=GPU, places=[], gpus=["shared GPU"]),
    Program("gpu_lost_rank", gloo=False, environment=GPU, gpus=GPU_PLACES, codes={2: -9}),
    *(
        Program(
            f"gpu_{name}", path=name, gloo=False, environment=GPU, places=["one node"],
            gpus=GPU_PLACES,
        )
        for name in (
            "collectives", "average_gradients", "comm_hooks", "uneven_inputs", "zero_optimizer",
            "fsdp1", "fsdp2", "mixture_of_experts", "ring_attention", "functional", "no_destroy",
            "asynchronous", "local_sgd", "data_and_model", "many_groups", "threads",
        )
    ),  # fmt: skip
    Program(  # ranks load what another GPU has saved
        "gpu_checkpoint", path="checkpoint", gloo=False, environment=GPU, places=[],
        gpus=["GPU each"],
    ),
    *(  # only messages, which go through host memory
        Program(f"gpu_{name}", path=name, gloo=False, environment=GPU, places=["one node"])
        for name in ("model_parallel", "pipeline_schedules")
    ),
    Program("ddp_detail", path="ddp_sampler", environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
]
PORTS = 4  # MASTER_PORT, and those after it are for the program, too
# What torch says on stderr beside a healthy program: warnings of two lines, an impatient store; a
# CUDA build without a driver; and its triton, which takes what gc.freeze() keeps (program_host.py)
# for leaks.
NOISE = re.compile(
    r"Warning: |^  |\[c10d\] waitForInput|No CUDA runtime is found|gpuGetDeviceCount failed"
    r"|nanobind|^ - (leaked|\.\.\.) "
)


def is_said(line):
    return line.strip() and not NOISE.search(line)


def free_ports():
    """The first of PORTS that a store can listen on: on all addresses, as cluster.py's need not."""
    while True:
        first = cluster.free_port_blocks(1)[0]
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + PORTS):
                    stack.enter_context(socket.socket()).bind(("", port))
                return first
            except OSError:
                continue


class Run:
    """A program at a place."""

    def __init__(self, program, place, backend, folder, seed):
        self.program, self.place = program, place
        self.gpus, self.seed = PLACES[place].gpus, seed
        self.backend, self.limit = backend, program.seconds * PATIENCE
        self.name = f"{program.name}, {place}"
        self.folder = os.path.join(folder, self.name.replace(", ", "-").replace(" ", "-"))
        self.path = os.path.join(HERE, "programs", (program.path or program.name) + ".py")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.scratch = os.path.join(self.folder, "scratch")
        os.makedirs(self.folder)

    def output(self, rank):
        return os.path.join(self.folder, f"rank{rank}")

    def environment(self, node, port):
        """What does not depend on the rank."""
        values = {
            "TEST_BACKEND": self.backend,
            "TEST_FOLDER": self.scratch,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            **self.program.environment,
        }
        if self.gpus:
            values.update(gpu_nodes.RANK, **gpu_nodes.box(node, self.gpus))
        if self.program.environment is GPU:
            values["FAKECUDA_SEED"] = str(self.seed)
        return {**values, "COMMD_SOCKET": node.socket} if node else values

    def ranks(self, nodes, port):
        size = self.program.ranks
        places = [PLACES[self.place].node(rank, size) for rank in range(size)]
        for rank, place in enumerate(places):
            local = {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(places[:rank].count(place)),
                "LOCAL_WORLD_SIZE": str(places.count(place)),
                "GROUP_RANK": str(place),
            }
            common = self.environment(nodes and nodes[place], port)
            yield {"environment": {**common, **local}, "output": self.output(rank)}

    def by_fork(self, host, nodes, port):
        answer = host.run(self.path, list(self.ranks(nodes, port)), self.limit)
        check_codes(answer["codes"], self.program.codes, answer["late"])
        for rank in range(self.program.ranks):
            self.check_err(f"{self.output(rank)}.err")

    def by_torchrun(self, python, nodes, port):
        count = 2 if self.place == "two nodes" else 1

        def start(index, more):
            options = [
                f"--nnodes={count}", f"--node-rank={index}", "--master-addr=127.0.0.1",
                f"--master-port={port}", f"--nproc-per-node={self.program.ranks // count}",
            ]  # fmt: skip
            environment = self.environment(nodes and nodes[index], port)
            with open(f"{self.output(index)}.err", "ab") as log:
                return subprocess.Popen(
                    [python, "-m", "torch.distributed.run", *options,
                     *self.program.torchrun, self.path],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1", **environment, **more},
                )  # fmt: skip

        jobs = [start(index, {}) for index in range(count)]
        again = self.program.again
        limit = Limit(self.limit)
        while any(job.poll() is None for job in jobs) and not limit.over():
            time.sleep(0.02)
            for index in [index for index, job in enumerate(jobs) if again and job.poll()]:
                jobs[index] = start(index, {"TEST_AGAIN": "1"})
                again = False
        late = [job for job in jobs if job.poll() is None]
        for job in late:
            end_torchrun(job)
        check_codes([job.returncode for job in jobs], {}, late)

    def check_err(self, path):
        with open(path, errors="replace") as file:
            for line in file:
                allowed = self.program.err and re.search(self.program.err, line)
                if is_said(line) and not allowed:
                    raise AssertionError(f"on stderr: {line.rstrip()}")

    def run(self, host, python):
        if self.backend != "commd":
            self.start(host, python, None)
            return
        logs = open(os.path.join(self.folder, "nodes.log"), "w")  # written if it fails
        with logs, contextlib.redirect_stdout(logs), self.cluster() as nodes:
            if self.program.log:
                nodes.expect(self.program.log)
            self.start(host, python, nodes.nodes)
            if self.gpus:
                nodes.check_used(self.gpus)

            def rows():
                found = [row for node in nodes.nodes for row in (*node.groups(), *node.clients())]
                return [row for row in found if row.get("program") != "commd-gpu"]

            cluster.until(lambda: not rows(), lambda: f"left in commd: {rows()}")

    def cluster(self):
        if not self.gpus:
            return cluster.Cluster(2)
        count = PLACES[self.place].node(self.program.ranks - 1, self.program.ranks) + 1
        return gpu_nodes.GpuNodes(
            count, self.gpus, {**gpu_nodes.RANK, "FAKECUDA_SEED": str(self.seed)}
        )

    def start(self, host, python, nodes):
        """Again, if somebody else has taken the port before the program did."""
        for attempt in range(3):
            port = free_ports()
            shutil.rmtree(self.scratch, ignore_errors=True)
            os.makedirs(self.scratch)
            try:
                if self.program.torchrun:
                    return self.by_torchrun(python, nodes, port)
                return self.by_fork(host, nodes, port)
            except AssertionError:
                if attempt == 2 or not any("EADDRINUSE" in line for line in self.why()):
                    raise

    def why(self):
        """The last words of the ranks that failed."""
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".err"):
                with open(os.path.join(self.folder, name), errors="replace") as file:
                    lines = [line.rstrip() for line in file if is_said(line)]
                if lines:
                    yield f"{name}: {lines[-1][:300]}"


def end_torchrun(job):
    """Its ranks are in sessions of their own: only it can end them."""
    job.terminate()
    try:
        job.wait(60)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()


def check_codes(codes, wanted, late):
    want = [wanted.get(rank, 0) for rank in range(len(codes))]
    if late or codes != want:
        hang = ", some after a hang" if late else ""
        raise AssertionError(f"the ranks ended with {codes}{hang}, not {want}")


class Host:
    """A program_host.py."""

    def __init__(self, python):
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        environment["CUDA_VISIBLE_DEVICES"] = ""
        self.process = subprocess.Popen(
            [python, os.path.join(HERE, "program_host.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def run(self, program, ranks, seconds):
        request = {"program": program, "ranks": ranks, "seconds": seconds}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=" ".join(p.name for p in PROGRAMS))
    add("--backend", default="commd", help="commd (default), or gloo, which checks the programs")
    add("--place", action="append", choices=list(PLACES), help="only there")
    add("--all", action="store_true", help="all programs at all places; else those of the CPU that"
        " run on GPUs, too, take turns over the places with GPUs")  # fmt: skip
    add(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help="N runs in a row, up to the first failure",
    )
    add("--seed", type=int, default=1, metavar="N", help="of the delays of tests/fakecuda; a run in"
        " a row takes the next")  # fmt: skip
    add(
        "--python", default=sys.executable, metavar="FILE", help="a Python that has torch and commd"
    )
    add("--logs", metavar="DIR", help="keep all output there; else that of a failed run in /tmp")
    options = parser.parse_args()
    unknown = set(options.names) - {p.name for p in PROGRAMS}
    if unknown:
        parser.error(f"no such program: {' '.join(sorted(unknown))}")
    return options


def torch_of(python):
    """Its version, as (2, 13)."""
    ask = "from importlib.metadata import version; print(version('torch'))"
    said = subprocess.run([python, "-c", ask], stdout=subprocess.PIPE, text=True, check=True).stdout
    return tuple(int(number) for number in said.split(".")[:2])


def places_of(program, options):
    if options.backend != "commd":
        return ["one node"]
    gpus = program.gpus
    if gpus and program.path and not (options.all or options.names or options.place):
        gpus = [gpus[PROGRAMS.index(program) % len(gpus)]]
    places = [*(CPU_PLACES if program.places is None else program.places), *gpus]
    return [place for place in places if place in (options.place or PLACES)]


def has(python, package):
    find = f"import importlib.util as u, sys; sys.exit(not u.find_spec({package!r}))"
    return subprocess.run([python, "-c", find]).returncode == 0


def run_all(options, host, logs, seed):
    """How many passed, how many failed."""
    passed = failed = 0
    version = torch_of(options.python)
    for program in PROGRAMS:
        if options.names and program.name not in options.names:
            continue
        if options.backend == "gloo" and not program.gloo:
            continue
        if program.needs and not has(options.python, program.needs):
            print(f"{program.name:44}        skipped: {program.needs} is not installed")
            continue
        since = max(program.since, FAKEGPU) if program.environment is GPU else program.since
        if since > version:
            wanted, have = (".".join(map(str, numbers)) for numbers in (since, version))
            print(f"{program.name:44}skipped: needs torch {wanted}, this is {have}", flush=True)
            continue
        for place in places_of(program, options):
            run = Run(program, place, options.backend, logs, seed)
            begin = time.monotonic()
            print(f"{run.name:44}", end="", flush=True)
            try:
                run.run(host, options.python)
                verdict = "ok"
                passed += 1
            except AssertionError as error:
                verdict = f"FAILED: {error}"
                failed += 1
            print(f"{time.monotonic() - begin:6.1f} s  {verdict}", flush=True)
            if verdict != "ok" and program.environment is GPU:
                print(f"    with --seed {seed}")
            if verdict != "ok":
                print("\n".join(f"    {line}" for line in run.why()), flush=True)
    return passed, failed


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options = parse()
    logs = (
        os.path.abspath(options.logs) if options.logs else tempfile.mkdtemp(prefix="commd-torch-")
    )
    host = Host(options.python)
    passed = failed = 0
    try:
        for number in range(options.repeat):
            if options.repeat > 1:
                print(f"run {number + 1} of {options.repeat}")
            good, failed = run_all(options, host, logs, options.seed + number)
            passed += good
            if failed:
                break
    finally:
        host.close()
    if failed:
        print(f"output is kept in {logs}")
    elif not options.logs:
        shutil.rmtree(logs)
    print(f"# PASS: {passed}\n# FAIL: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
