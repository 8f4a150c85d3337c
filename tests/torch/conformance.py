#!/usr/bin/env python3
"""Runs the DistributedTest suite that ships inside torch's wheel: on gloo, then on commd.

The tests that ask for GPUs run on torch's device over tests/fakecuda (fakedevice/), a GPU for each
rank, by the device path: rounds gpu-4 and gpu-8. expected/gpu-not.txt has those that cannot pass,
with the reason; --all runs them, too, and fails if there are others, or if one of them passes. On
two cores both rounds take two minutes, with --all four and a half.

commd runs on two nodes (real commds and engines on this machine), with half of the ranks on each.
What must pass is pinned in tests/torch/expected/: on commd, every test that gloo passes, and the
all_to_all ones that only mpi is asked for. A pinned test that does not pass fails the run, and so
does a list that has become shorter than it was. gloo may try a test twice, because it is only the
yardstick; commd may not.

Standard library only; the suite itself runs in suite_host.py under --python.
"""

import argparse
import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
EXPECTED = os.path.join(HERE, "expected")
sys.path.insert(0, os.path.join(TOP, "tests/integration/lib"))

# How many a list must have at least. @gpus: of each node, on which tests of GPUs run.
Round = collections.namedtuple(
    "Round", "name backend size spawned least places gpus", defaults=(0,)
)  # fmt: skip
ROUNDS = [
    Round("gloo-4", "gloo", 4, False, 94, None),
    Round("gloo-8", "gloo", 8, False, 21, None),
    Round("commd-4", "commd", 4, False, 103, (0, 0, 1, 1)),
    Round("commd-8", "commd", 8, False, 24, (0, 1, 0, 1, 0, 1, 0, 1)),
    Round("commd-4-spawned", "commd", 4, True, 3, (0, 1, 1, 0)),
    Round("gpu-4", "commd", 4, False, 121, (0, 0, 1, 1), 4),
    Round("gpu-8", "commd", 8, False, 6, (0, 1, 0, 1, 0, 1, 0, 1), 8),
]
LIMIT = 300  # s for one test; most take less than one


def pinned(name):
    """{test: its comment} of a list."""
    tests = {}
    with open(os.path.join(EXPECTED, name + ".txt")) as file:
        for line in file:
            test, _, comment = (part.strip() for part in line.partition("#"))
            if test:
                tests[test] = comment
    return tests


def check_lists():
    """What is wrong with the pinned lists, if anything."""
    lists = {r.name: pinned(r.name) for r in ROUNDS}
    for r in ROUNDS:
        if len(lists[r.name]) < r.least:
            pins = len(lists[r.name])
            yield f"expected/{r.name}.txt pins {pins} tests, but {r.least} passed once"
    for size in (4, 8):
        for test in sorted(set(lists[f"gloo-{size}"]) - set(lists[f"commd-{size}"])):
            yield f"gloo passes {test} with {size} ranks, but expected/commd-{size}.txt lacks it"


class Progress:
    """One line that grows on a terminal, a line per failure elsewhere."""

    def __init__(self, name, total, verbose):
        self.name, self.total, self.verbose = name, total, verbose
        self.begin, self.done, self.passed = time.monotonic(), 0, 0
        self.tty = sys.stdout.isatty() and not verbose

    def seen(self, answer, log):
        self.done += 1
        self.passed += answer["verdict"] == "pass"
        bad = answer["verdict"] == "fail"
        if bad or self.verbose:
            end = "\n" if not self.tty else "\033[K\n"
            print(f"\r{answer['verdict']:4} {answer['seconds']:6.2f} s {answer['name']}", end=end)
            if answer["why"]:
                print(f"     {answer['why']}")
            if bad:
                print(f"     log: {log}")
        if self.tty:
            print(f"\r{self.name}: {self.passed} passed of {self.done}/{self.total}", end="\033[K")
        sys.stdout.flush()

    def end(self):
        seconds = time.monotonic() - self.begin
        start = "\r" if self.tty else ""
        end = "\033[K\n" if self.tty else "\n"
        print(
            f"{start}{self.name:16} {self.passed:3} of {self.done} passed, {seconds:5.1f} s",
            end=end,
        )
        sys.stdout.flush()


class Suite:
    def __init__(self, options, logs):
        self.options, self.logs = options, logs
        self.larger = set()  # tests that need more ranks than they had
        self.passed = self.failed = 0

    def host(self, r, names, logs, jobs, sockets=()):
        """Starts suite_host.py; yields its answers."""
        environment = dict(os.environ, BACKEND=r.backend, WORLD_SIZE=str(r.size))
        environment["COMMD_TEST_SOCKETS"] = ",".join(sockets)
        environment["COMMD_TEST_HOSTS"] = ",".join(f"node{place}" for place in r.places or ())
        environment["COMMD_TEST_SPAWN"] = "1" if r.spawned else ""
        environment["COMMD_TEST_GPUS"] = str(r.gpus) if r.gpus else ""
        if r.gpus:
            import gpu_nodes

            environment.update(gpu_nodes.RANK, FAKECUDA_DEVICES=str(r.gpus))
        command = [self.options.python, os.path.join(HERE, "suite_host.py")]
        limit = LIMIT * self.options.patience
        with subprocess.Popen(
            [*command, logs, str(jobs), str(limit)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        ) as process:  # fmt: skip
            process.stdin.write("\n".join(names))
            process.stdin.close()
            for line in process.stdout:
                yield json.loads(line)
        if process.returncode != 0:
            raise SystemExit(f"conformance: suite_host.py ended with {process.returncode}")

    def names(self, r):
        """The tests to run in a round."""
        if self.options.names:
            every = pinned(r.name) if r.spawned else next(self.host(r, [], self.logs, 1))["names"]
            return [n for n in every if any(part in n for part in self.options.names)]
        if not self.options.all or r.spawned:
            return list(pinned(r.name))
        if r.size == 8 and self.larger:  # all others have run with 4
            return sorted(self.larger)
        return next(self.host(r, [], self.logs, 1))["names"]

    def run_once(self, r, names, jobs):
        """{test: answer}"""
        logs = os.path.join(self.logs, r.name)
        shutil.rmtree(logs, ignore_errors=True)
        os.makedirs(logs)
        progress = Progress(r.name, len(names), self.options.verbose)
        answers = {}
        with Nodes(r) as nodes:
            for answer in self.host(r, names, logs, jobs, nodes.sockets()):
                answers[answer["name"]] = answer
                progress.seen(answer, os.path.join(logs, answer["name"] + ".log"))
            progress.end()
        return answers

    def run(self, r):
        names = self.names(r)
        if not names:
            return
        try:
            answers = self.run_once(r, names, self.options.jobs)
        except AssertionError as error:  # of the nodes
            print(f"{r.name}: FAILED: {error}")
            self.failed += 1
            return
        again = [n for n in names if answers.get(n, {}).get("verdict") == "fail"]
        if again and r.backend == "gloo":
            print(f"{r.name}: once more, because gloo is only the yardstick: {' '.join(again)}")
            answers.update(self.run_once(r, again, 1))
        self.judge(r, names, answers)

    def judge(self, r, names, answers):
        passed = {n for n, answer in answers.items() if answer["verdict"] == "pass"}
        self.larger |= {n for n, answer in answers.items() if "small world size" in answer["why"]}
        must = set(pinned(r.name)) & set(names)
        if self.options.update:
            self.update(r, passed)
            must = set()
        lost = sorted(must - passed)
        self.passed += len(must) - len(lost)
        self.failed += len(lost)
        for name in lost:
            answer = answers.get(name, {"verdict": "not run", "why": ""})
            print(f"PINNED, BUT NOT PASSED: {r.name} {name}: {answer['verdict']} {answer['why']}")
        if r.gpus:
            self.judge_excuses(r, passed, answers)
            passed -= set(pinned(f"commd-{r.size}"))  # of CPU tensors, as there
        fresh = sorted(passed - set(pinned(r.name)))
        if fresh and not r.spawned:
            print(f"{r.name}: {len(fresh)} passed that are not pinned: {' '.join(fresh)}")

    def judge_excuses(self, r, passed, answers):
        excused = set(pinned("gpu-not"))
        failed = {n for n, answer in answers.items() if answer["verdict"] == "fail"}
        for name in sorted(failed - excused - set(pinned(r.name))):
            self.failed += 1
            print(f"FAILED, AND NOT IN gpu-not.txt: {r.name} {name}: {answers[name]['why']}")
        for name in sorted(passed & excused):
            self.failed += 1
            print(f"PASSES, BUT IS IN gpu-not.txt: {r.name} {name}")

    @staticmethod
    def update(r, passed):
        if r.gpus:
            passed = passed - set(pinned(f"commd-{r.size}"))
        before = pinned(r.name)
        path = os.path.join(EXPECTED, r.name + ".txt")
        with open(path) as file:
            header = [line for line in file if line.startswith("#")]
        with open(path, "w") as file:
            file.writelines(header)
            for name in sorted(passed):
                comment = before.get(name)
                file.write(f"{name}  # {comment}\n" if comment else f"{name}\n")


class Nodes:
    """Two nodes for the ranks of a round on commd; nothing for gloo."""

    def __init__(self, r):
        self.places, self.gpus, self.cluster = r.places, r.gpus, None

    def __enter__(self):
        if self.places:
            import cluster
            import gpu_nodes

            self.module = cluster
            if self.gpus:
                self.cluster = gpu_nodes.GpuNodes(2, self.gpus, gpu_nodes.RANK)
            else:
                self.cluster = cluster.Cluster(2)
            self.cluster.__enter__()
        return self

    def sockets(self):
        return [self.cluster.nodes[place].socket for place in self.places or ()]

    def left(self):
        rows = [row for node in self.cluster.nodes for row in (*node.groups(), *node.clients())]
        return [row for row in rows if row.get("program") != "commd-gpu"]

    def __exit__(self, kind, error, trace):
        if self.cluster:
            if kind is None:
                try:
                    if self.gpus:
                        self.cluster.check_used(self.gpus // 2)  # half of the ranks are there
                    self.module.until(lambda: not self.left(), lambda: f"left: {self.left()}")
                except AssertionError:
                    kind, error, trace = sys.exc_info()
            self.cluster.__exit__(kind, error, trace)
            if error:
                raise error


def explain(python):
    """Every gate in torch that asks for gloo by name, with its line."""
    code = (
        "import suite_tests as s\n"
        "text, c10d = s.source_of(s.SUITE), 'torch.distributed.distributed_c10d'\n"
        "lines = lambda numbers: ' '.join(map(str, numbers))\n"
        "print('opened in', s.SUITE.replace('.', '/') + '.py of torch', s.torch.__version__)\n"
        "for pattern, _, count, why in s.EDITS:\n"
        "    print(f'  {why}\\n    {pattern}\\n    lines', lines(s.line_numbers(text, pattern)))\n"
        "print('cannot be opened: distributed_c10d.py\\n   ', s.REFUSAL)\n"
        "print('    line', lines(s.line_numbers(s.source_of(c10d), s.REFUSAL)))\n"
    )
    environment = dict(os.environ, BACKEND="commd", WORLD_SIZE="4", PYTHONPATH=HERE)
    return subprocess.run([python, "-c", code], env=environment).returncode


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="only tests whose names contain one of these")
    add("--round", action="append", choices=[r.name for r in ROUNDS], help="only this round")
    add("--all", action="store_true", help="also tests that are not pinned (most only skip)")
    add(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help="N runs in a row, up to the first failure",
    )
    add("--jobs", type=int, default=2, metavar="N", help="tests at a time (default 2)")
    add(
        "--python", default=sys.executable, metavar="FILE", help="a Python that has torch and commd"
    )
    add("--logs", metavar="DIR", help="keep all logs there; else those of a failed run in /tmp")
    add("--update", action="store_true", help="with --all: pin what passes")
    add("--explain", action="store_true", help="print where torch asks for gloo by its name")
    add("-v", "--verbose", action="store_true", help="a line per test")
    options = parser.parse_args()
    if options.update and not options.all:
        parser.error("--update needs --all")
    options.patience = float(os.environ.get("COMMD_TEST_PATIENCE", "1"))
    return options


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and so through all `with`
    options = parse()
    if options.explain:
        return explain(options.python)
    wrong = list(check_lists())
    if wrong and not options.update:
        print("\n".join(f"conformance: {text}" for text in wrong))
        return 1
    logs = (
        os.path.abspath(options.logs) if options.logs else tempfile.mkdtemp(prefix="commd-suite-")
    )
    suite = Suite(options, logs)
    for number in range(options.repeat):
        if options.repeat > 1:
            print(f"run {number + 1} of {options.repeat}")
        for r in ROUNDS:
            if not options.round or r.name in options.round:
                suite.run(r)
        if suite.failed:
            break
    if suite.failed:
        print(f"conformance: logs are kept in {logs}")
    elif not options.logs:
        shutil.rmtree(logs)
    print(f"# PASS: {suite.passed}\n# FAIL: {suite.failed}")
    return 1 if suite.failed else 0


if __name__ == "__main__":
    sys.exit(main())
