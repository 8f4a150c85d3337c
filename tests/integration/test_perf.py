#!/usr/bin/env python3
"""commd-perf over real daemons: every collective right on one node and on two, and what it says.

What can go wrong in the program itself is in tests/unit/client/test_perf.c; here are the library,
the launcher and the output. No time is asserted.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import BUILD, HANG, Cluster, check, communicate, equal  # noqa: E402
from cluster import exit_code, main, run  # noqa: E402

PERF = os.path.join(BUILD, "client/perf/commd-perf")
LONG = 12 * HANG
COLLECTIVES = [
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_v", "gather", "gather_v",
    "scatter", "scatter_v", "reduce_scatter", "reduce_scatter_v", "all_to_all", "all_to_all_v",
    "barrier", "sendrecv", "pingpong",
]  # fmt: skip


def perf(cluster, *words, nodes=None, want=0, env=None):
    """Runs it; (its standard output, its JSON or None)."""
    sockets = ",".join(n.socket for n in cluster.nodes[: nodes or len(cluster.nodes)])
    with tempfile.NamedTemporaryFile(mode="r", suffix=".json") as file:
        argv = [PERF, *words, "--json", file.name]
        if not env:
            argv += ["--nodes", sockets]
        done = run(argv, LONG, env=dict(os.environ, **(env or {})))
        equal(done.returncode, want, f"{words}\n{done.stdout}{done.stderr}")
        text = file.read()
    return done.stdout, json.loads(text) if text else None


def every_collective(cluster, ranks, *words):
    for coll in COLLECTIVES:
        if coll == "pingpong" and "--async" in words:
            continue
        _, result = perf(
            cluster, coll, "-b", "12", "-e", "300000", "-f", "25", "-n", "3", "-w", "1",
            "--ranks", str(ranks), *words,
        )  # fmt: skip
        equal(result["ranks"], ranks * len(cluster.nodes))
        equal(len(result["rows"]), 1 if coll == "barrier" else 4, coll)
        for row in result["rows"]:
            equal(row["wrong"], 0, f"{coll}: {row}")
            check(
                row["min_us"] <= row["p50_us"] <= row["p99_us"] <= row["p999_us"] <= row["max_us"],
                row,
            )


GPU = {"COMMD_LIBCUDA": os.path.join(BUILD, "tests/fakecuda/libcuda.so.1"),
       "CUDA_VISIBLE_DEVICES": "0", "FAKECUDA_DELAY_US": "20"}  # fmt: skip


def test_gpu():
    """Buffers on a GPU that is none: every collective is right; the name is told."""
    with Cluster(2) as cluster:
        os.environ.update(GPU)
        try:
            every_collective(cluster, 2, "--device", "cuda")
            perf(cluster, "all_reduce", "--device", "cuda", "--async", "-n", "3", "-e", "64")
            text, result = perf(cluster, "all_gather", "--device", "cuda", "--queue", "7", "-c",
                                "0", "-n", "5", "-e", "64K", "--groups", "2")  # fmt: skip
            check("7 operations at a time" in text and result["gpu"], text)
            check(result["gpu"] in text, text)
        finally:
            for name in GPU:
                del os.environ[name]
        done = subprocess.run([PERF, "all_reduce", "--device", "cuda", "--registered"],
                              capture_output=True, text=True)  # fmt: skip
        equal(done.returncode, 64, done.stderr)


def test_no_gpu():
    """Without a driver it says so, and nobody waits for anybody."""
    with Cluster(1) as cluster:
        done = subprocess.run(
            [PERF, "all_reduce", "--device", "cuda", "--nodes", cluster.nodes[0].socket],
            capture_output=True, text=True, env=dict(os.environ, COMMD_LIBCUDA="/nowhere.so"),
        )  # fmt: skip
        equal(done.returncode, 1, done.stderr)
        check("--device cuda: " in done.stderr and "/nowhere.so" in done.stderr, done.stderr)


def test_one_node():
    with Cluster(1) as cluster:
        every_collective(cluster, 3)
        out, result = perf(
            cluster, "all_reduce", "-b", "100", "-e", "3M", "-f", "13", "-n", "3", "--registered"
        )
        check("# commd-perf" in out and "in registered memory" in out, out)
        check(result["registered"] and not any(row["wrong"] for row in result["rows"]), result)
        every_collective(cluster, 2, "--async", "--groups", "3")
        every_collective(cluster, 3, "-r", "2", "-d", "i16", "-o", "max")
        for dtype in ("f16", "bf16", "f32", "f64"):
            perf(
                cluster, "reduce_scatter", "-e", "1M", "-f", "64", "-n", "2",
                "-d", dtype, "-o", "premul_sum",
            )  # fmt: skip


def test_two_nodes():
    with Cluster(2) as cluster:
        every_collective(cluster, 1)
        every_collective(cluster, 2, "--placement", "cyclic", "-r", "1")
        every_collective(cluster, 2, "--async", "--groups", "2")


def test_what_it_prints():
    with Cluster(1) as cluster:
        out, result = perf(cluster, "all_gather", "-b", "8K", "-e", "8K", "-n", "5", "--ranks", "4")
        head = out.splitlines()[1].split()
        equal(head[:7], ["#", "bytes", "count", "type", "redop", "min", "us"])
        equal(out.splitlines()[2].split()[:4], ["8192", "512", "f32", "none"])
        row = result["rows"][0]
        equal((row["bytes"], row["count"], row["iterations"]), (8192, 512, 5))
        # printed with six digits
        check(
            abs(row["algbw_gbs"] - 8192 / row["p50_us"] / 1e3) < 1e-3 * row["algbw_gbs"] + 1e-5, row
        )
        check(abs(row["busbw_gbs"] - 0.75 * row["algbw_gbs"]) < 1e-5, row)
        check("overlap" not in row, row)
        out, result = perf(
            cluster, "all_reduce", "-e", "8", "-n", "9", "--async", "--groups", "5", "-c", "0"
        )
        equal((result["groups"], result["async"], result["average"]), (5, True, "avg"))
        check("5 groups at once" in out, out)
        row = result["rows"][0]
        check(0 <= row["overlap"] <= 1 and row["together_us"] > 0, row)
        # it computes for as long as the operation took: more while others use the core, not less
        check(row["compute_us"] > row["p50_us"] / 4, row)
        equal(row["wrong"], None)


def test_launched_by_another():
    """As torchrun does: every rank a process of its own, all of them told by the environment."""
    with Cluster(1) as cluster:
        running = []
        for rank in range(3):
            env = {"RANK": str(rank), "WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "it is me"}
            env["COMMD_SOCKET"] = cluster.nodes[0].socket
            running.append(
                subprocess.Popen(
                    [PERF, "all_to_all", "-e", "1K", "-n", "3"],
                    env=dict(os.environ, **env), stdout=subprocess.PIPE, text=True,
                )
            )  # fmt: skip
        outs = [communicate(p, LONG)[0] for p in running]
        equal([p.returncode for p in running], [0, 0, 0])
        check("3 ranks on 1 node" in outs[0], outs[0])
        equal(outs[1:], ["", ""])


def test_interrupted():
    """Ctrl-C in the middle of a size: rank 0 says what it has."""
    with Cluster(1) as cluster, tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "result.json")
        for words in ([], ["--groups", "3"], ["--async"]):
            process = subprocess.Popen(
                [PERF, "all_reduce", "-b", "8", "-e", "64", "-f", "8", "-n", "50000000", "-c", "0",
                 "-w", "0", "--nodes", cluster.nodes[0].socket, "--json", file, *words],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            head = process.stdout.readline()  # all ranks have joined
            while head and "bytes" not in head:
                head += process.stdout.readline()
            process.send_signal(signal.SIGINT)
            out, err = communicate(process, LONG)
            equal(process.returncode, 130, f"{words}: {head}{out}{err}")
            equal(err, "")
            check("# interrupted" in out, out)
            with open(file) as f:
                equal(json.load(f)["interrupted"], True)


def read_answers(file, limit):
    """The lines of one turn, up to its end."""
    rows = []
    while True:
        line = json.loads(file.readline())
        if "done" in line:
            return rows, line["done"]
        rows.append(line)
        check(len(rows) < limit, rows)


def test_turns():
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(1))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        pipes = []
        for name in ("0", "1", "out"):
            os.mkfifo(os.path.join(folder, name))
            fd = os.open(os.path.join(folder, name), os.O_RDWR)
            pipe = os.fdopen(fd) if name == "out" else os.fdopen(fd, "wb", buffering=0)
            pipes.append(stack.enter_context(pipe))
        process = subprocess.Popen(
            [PERF, "all_reduce", "--turns", folder, "--nodes", cluster.nodes[0].socket]
        )
        out = pipes[2]
        equal(read_answers(out, 1), ([], 0))
        for line, want in (
            ("all_reduce -b 8 -e 64 -f 8 -n 4", [8, 64]),
            ("scatter -b 1K -e 1K -n 2", [1024]),
        ):
            for pipe in pipes[:2]:
                pipe.write(line.encode() + b"\n")
            rows, done = read_answers(out, 3)
            equal(([row["bytes"] for row in rows], done), (want, 0))
            equal([row["wrong"] for row in rows], [0] * len(want))
        for pipe in pipes[:2]:
            pipe.close()
        equal(exit_code(process, LONG), 0)


def test_wrong_words():
    with Cluster(1) as cluster:
        perf(cluster, "frob", want=64)
        perf(cluster, "reduce", "-r", "9", want=64)
    gone = run([PERF, "all_reduce", "--nodes", "/nonexistent/commd.sock"], LONG)
    equal(gone.returncode, 1)
    # Once, not once per rank. Lines of a sanitizer about a rank that is being killed do not count.
    said = [line for line in gone.stderr.splitlines() if line.startswith("commd-perf:")]
    equal(len(said), 1, gone.stderr)
    check("/nonexistent/commd.sock" in gone.stderr, gone.stderr)


def test_complaint_that_waits():
    """Who reads is slow: the rank that complains is not killed for another's silent end."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    filling = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            filling += os.write(into, b"." * 4096)
    os.set_blocking(into, True)
    process = subprocess.Popen(
        [PERF, "all_reduce", "--nodes", "/nonexistent/commd.sock"], stderr=into
    )
    os.close(into)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.5)
    with open(out, "rb") as f:
        said = f.read()[filling:].decode()
    equal(exit_code(process, LONG), 1)
    check("/nonexistent/commd.sock" in said, said)


if __name__ == "__main__":
    main(globals())
