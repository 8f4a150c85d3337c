#!/usr/bin/env python3
"""The programs of client/examples, which check their own results: with --ranks on one node, and
started rank by rank on two. And the C program of README.md, as it stands there."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import BUILD, HANG, TOP, Cluster, Skip, communicate, equal, main  # noqa: E402
from cluster import sanitizer_environment  # noqa: E402

LONG = 6 * HANG


def start(node, program, arguments=(), **more):
    environment = dict(os.environ, COMMD_SOCKET=node.socket, **more)
    return subprocess.Popen(
        [os.path.join(BUILD, "client/examples", program), *arguments], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def finish(processes):
    try:
        return [(communicate(process, LONG)[0], process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_alone(node, program, ranks):
    ((text, code),) = finish([start(node, program, ["--ranks", str(ranks)])])
    equal(code, 0, f"{program} --ranks {ranks}: {text}")
    return text.splitlines()


def run_ranks(cluster, places, program):
    size = str(len(places))
    results = finish(
        [
            start(cluster.nodes[place], program, RANK=str(rank), WORLD_SIZE=size)
            for rank, place in enumerate(places)
        ]
    )
    equal([code for _, code in results], [0] * len(places), f"{program}: {results}")
    return "".join(text for text, _ in results).splitlines()


def test_one_node():
    with Cluster(1) as cluster:
        (node,) = cluster.nodes
        for ranks in (1, 2, 5):
            equal(len(run_alone(node, "ring", ranks)), ranks)
            equal(len(run_alone(node, "data_parallel", ranks)), 1)
            equal(len(run_alone(node, "async_params", ranks)), ranks)
        equal(len(run_alone(node, "pipeline", 2)), 1)


def test_two_nodes():
    with Cluster(2) as cluster:
        equal(len(run_ranks(cluster, [0, 1, 1, 0], "ring")), 4)
        equal(len(run_ranks(cluster, [0, 1, 1], "data_parallel")), 1)
        equal(len(run_ranks(cluster, [1, 0], "pipeline")), 1)
        equal(len(run_ranks(cluster, [0, 1, 1, 0], "async_params")), 4)


def test_usage():
    """Without ranks it says what it needs; a rank that is missing is an error that names it."""
    with Cluster(1) as cluster:
        (node,) = cluster.nodes
        ((text, code),) = finish([start(node, "ring", ["--help"])])
        equal((code, "usage: " in text), (2, True), text)
        ((text, code),) = finish([start(node, "pipeline", ["--ranks", "3"])])
        equal((code, text.count("two stages")), (1, 3), text)
        ((text, code),) = finish(
            [start(node, "ring", RANK="0", WORLD_SIZE="2", COMMD_TIMEOUT="0.3")]
        )
        equal((code, "rank" in text and "1" in text), (1, True), text)


def test_program_of_the_readme():
    """Two ranks, and one alone, as a reader would have them: only the paths are this build's."""
    compiler = shutil.which("cc")
    if not compiler or sanitizer_environment():
        raise Skip("needs cc, and a libcommd without sanitizers")
    with open(os.path.join(TOP, "README.md")) as file:
        (program,) = re.findall(r"^```c\n(.*?)^```", file.read(), re.M | re.S)
    library = os.path.join(BUILD, "client/lib/.libs")
    with Cluster(1) as cluster, tempfile.TemporaryDirectory() as folder:
        source, hello = os.path.join(folder, "hello.c"), os.path.join(folder, "hello")
        with open(source, "w") as file:
            file.write(program)
        subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", f"-I{TOP}/client/include", source,
                        "-o", hello, f"-L{library}", "-lcommd"], check=True)  # fmt: skip
        (node,) = cluster.nodes
        more = {"LD_LIBRARY_PATH": library}
        ranks = [start(node, hello, [str(rank), "2"], **more) for rank in range(2)]
        equal(finish(ranks), [(f"rank {rank} on node0: sum of ranks 1, ranks 2\n", 0)
                              for rank in range(2)])  # fmt: skip
        equal(finish([start(node, hello, **more)]),
              [("rank 0 on node0: sum of ranks 0, ranks 1\n", 0)])  # fmt: skip


if __name__ == "__main__":
    main(globals())
