#!/usr/bin/env python3
"""The tool that ./quickstart faults is: its table, that it counts whatever its job does wrong, and
that nothing is left, also after a Ctrl-C."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
for folder in ("integration/lib", "bench", "faults"):
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), folder))
import cluster as c  # noqa: E402
from cells import percentile  # noqa: E402
from cluster import check, equal, main, until  # noqa: E402
from place import DIE_AT, processes_of  # noqa: E402
from rows import ROWS  # noqa: E402

TOOL = os.path.join(HERE, "run.py")


@contextlib.contextmanager
def tool(*words, **more):
    """(the process, the folder that it may use). Nothing of it may be left at the end."""
    folder = tempfile.mkdtemp(prefix="commd-faults.")
    environment = dict(os.environ, COMMD_BUILD=c.BUILD, TMPDIR=folder, **more)
    process = subprocess.Popen(
        [TOOL, "--runs", "1", *words], env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process, folder
        check(process.poll() is not None, "it has ended")
        equal(processes_of(folder), [], "processes that are left")
        equal(os.listdir(folder), [], "files that are left")
    finally:
        for pid in processes_of(folder):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def ran(*words, **more):
    """(exit code, stdout, stderr)"""
    with tool(*words, **more) as (process, _):
        out, err = c.communicate(process, 30 * c.HANG)
    return process.returncode, out, err


def cells(out):
    """fault: its line"""
    rows = [line[1:-1].split("|") for line in out.splitlines() if line.startswith("|")]
    rows = [[word.strip() for word in row] for row in rows[2:]]
    return {row[0]: row for row in rows if row[0]}


def test_a_whole_table():
    there = os.path.exists(DIE_AT)
    wanted = [row for row in ROWS if row.applies((1, 2)) and (there or not row.dies)]
    only = [word for row in wanted for word in ("--only", row.name)]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "json")
        code, out, err = ran("--layout", "1x2", "--json", path, *only)
        equal(code, 0, err)
        with open(path) as file:
            written = json.load(file)["cells"]
    found = cells(out)
    equal(list(found), [row.fault for row in wanted])
    for row, cell in zip(wanted, written):
        line = found[row.fault]
        equal(line[1:3], [row.promise((1, 2)), "1x2"])
        equal(line[-2:], ["1", "0"])
        ms = list(cell["ms"].values())[0]
        equal((cell["runs"], len(ms), cell["violations"]), (1, 1, []))
        for text in line[4:7]:  # both are rounded, each from what was measured
            check(abs(float(text) - ms[0]) < 0.051, (line, ms))
    check(out.endswith("\n0 violations\n"), out)


def test_two_nodes():
    names = ("engine", "reload", "connections", "keeper", "repair")
    code, out, err = ran("--layout", "2x1", *(f"--only={name}" for name in names))
    equal(code, 0, err)
    equal([line[-2:] for line in cells(out).values()], [["1", "0"]] * 5)


def test_three_ranks():
    code, out, err = ran("--layout", "1x3", "--only=again")
    equal(code, 0, err)
    equal([line[-2:] for line in cells(out).values()], [["1", "0"]])


def violates(fake, row, text, **more):
    code, out, err = ran("--layout", "1x2", "--only", row, COMMD_FAULTS_FAKE=fake, **more)
    equal(code, 1, err)
    check(int(list(cells(out).values())[0][-1]) > 0, out)
    check("VIOLATION: " in err and text in err, err)


def test_a_wrong_bit_is_counted():
    violates("bit", "killed", "is wrong")


def test_an_error_that_nobody_promised_is_counted():
    violates("error", "killed", "INVALID")


def test_an_error_without_a_name_is_counted():
    violates("name", "rank", "the node that the error names")


def test_a_file_that_is_left_is_counted():
    violates("file", "killed", "left in the directory of node0")


def test_a_process_that_is_left_is_counted():
    violates("process", "killed", "processes that are left")


def test_a_hang_is_counted():
    violates("hang", "killed", "no answer of the ranks", COMMD_TEST_PATIENCE="0.1")


def test_an_interrupt_ends_all():
    for signo in (signal.SIGINT, signal.SIGTERM):
        with tool("--layout", "1x2", "--only", "killed", "--runs", "1000") as (process, folder):
            until(lambda: len(processes_of(folder)) > 5, "keeper, commd and four ranks")
            process.send_signal(signo)
            out, err = c.communicate(process)
            equal(process.returncode, 130, err)
            equal(list(cells(out)), ["commd is killed (-9), at random"])


def test_words():
    without = dict(os.environ, COMMD_BUILD="/nonexistent")
    done = c.run([TOOL, "--help"], env=without, cwd="/")
    equal((done.returncode, done.stderr), (0, ""))
    for row in ROWS:
        check(row.name in done.stdout, f"{row.name} in\n{done.stdout}")
    for words in (["--only", "x"], ["--layout", "1"], ["--layout", "1x1"], ["--runs", "0"]):
        equal(c.run([TOOL, *words]).returncode, 2)


def test_percentiles():
    numbers = list(range(1, 101))
    equal([percentile(numbers, share) for share in (0.5, 0.99, 1)], [50, 99, 100])
    equal(percentile([3.0], 0.99), 3.0)


if __name__ == "__main__":
    main(globals())
