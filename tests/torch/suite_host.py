#!/usr/bin/env python3
"""Runs tests of torch's DistributedTest suite; started by conformance.py, one per backend and size.

    BACKEND=gloo WORLD_SIZE=4 suite_host.py LOGS JOBS SECONDS    names on stdin, one per line

Prints one JSON object per test: name, verdict (pass, skip, fail), seconds, why. With no names: one
object with the names of all tests in this torch. LOGS/NAME.log has what the test and its ranks
printed. JOBS tests run at a time, those of ALONE by themselves after the others.

Each test has a process of its own, forked from this one, and a process group: when the test has
ended, whatever it has left in the group is killed. A test that takes more than SECONDS failed.
"""

import json
import os
import re
import selectors
import signal
import sys
import time
import unittest

import suite_tests

# Compare a time-out with the clock, to 0.1 s.
ALONE = re.compile(r"barrier_timeout|monitored_barrier")


class Result(unittest.TestResult):
    verdict, why = "fail", ""

    def addSuccess(self, test):
        self.verdict = "pass"

    def addSkip(self, test, reason):
        self.verdict, self.why = "skip", reason

    def addError(self, test, error):
        self.verdict, self.why = "fail", self._exc_info_to_string(error, test)

    addFailure = addError

    def addExpectedFailure(self, test, error):
        self.verdict, self.why = "pass", "expected failure"

    def addUnexpectedSuccess(self, test):
        self.verdict, self.why = "fail", "unexpected success"


def run_test(name, log, pipe):
    """In the test's own process; does not return."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setpgid(0, 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    result = Result()
    try:
        suite_tests.TestSuite(name).run(result)
    except BaseException as error:
        result.verdict, result.why = "fail", repr(error)
    print(result.why)
    sys.stdout.flush()
    os.write(pipe, json.dumps({"verdict": result.verdict, "why": told(result.why)}).encode())
    os._exit(0)


def told(why):
    """The line of a traceback that says what went wrong, short enough for one pipe buffer."""
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    for line in lines:
        error = re.match(r"[A-Za-z_.]*(Error|Exception|Exit)\b", line)
        if error and not re.match(r"RuntimeError: Process \d+ (exited|terminated)", line):
            return line[:500]
    return lines[-1][:500] if lines else ""


class Test:
    """One that runs."""

    def __init__(self, name, logs):
        self.name, self.begin, self.answer = name, time.monotonic(), b""
        self.log = os.path.join(logs, name + ".log")
        self.pipe, its = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            run_test(name, self.log, its)
        os.close(its)
        try:
            os.setpgid(self.pid, self.pid)  # whoever comes first
        except (PermissionError, ProcessLookupError):
            pass

    def fileno(self):
        return self.pipe

    def read(self):
        """False at the end. The ranks hold the pipe too: the answer ends it, or the process."""
        data = os.read(self.pipe, 65536)
        self.answer += data
        return bool(data) and not self.answer.endswith(b"}")

    def kill(self):
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pipe)

    def end(self, why):
        """Kills what is left and reports."""
        self.kill()
        try:
            found = json.loads(self.answer)
        except ValueError:
            found = {"verdict": "fail", "why": why}
        seconds = round(time.monotonic() - self.begin, 2)
        print(json.dumps({"name": self.name, "seconds": seconds, **found}), flush=True)


def run_tests(names, logs, jobs, limit):
    todo, running = list(names), []
    try:
        with selectors.DefaultSelector() as selector:
            while todo or running:
                while todo and len(running) < jobs:
                    running.append(Test(todo.pop(0), logs))
                    selector.register(running[-1], selectors.EVENT_READ)
                ready = [key.fileobj for key, _ in selector.select(1)]
                for test in list(running):
                    late = time.monotonic() - test.begin > limit
                    if late or (test in ready and not test.read()):
                        running.remove(test)
                        selector.unregister(test)
                        test.end(f"took over {limit:g} s" if late else "the test process ended")
    finally:  # interrupted: by a signal, or because nobody reads what we print
        for test in running:
            test.kill()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    logs, jobs, limit = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    names = sys.stdin.read().split()
    every = unittest.TestLoader().getTestCaseNames(suite_tests.TestSuite)
    if not names:
        print(json.dumps({"names": every, "torch": suite_tests.VERSION}))
        return
    unknown = set(names) - set(every)
    for name in sorted(unknown):
        print(json.dumps({"name": name, "seconds": 0, "verdict": "fail",
                          "why": f"not in the suite of torch {suite_tests.VERSION}"}))  # fmt: skip
    names = [name for name in names if name not in unknown]
    suite_tests.common.TIMEOUT_DEFAULT = limit - 10  # before ours: it shows where the ranks are
    suite_tests.common.TIMEOUT_OVERRIDE.clear()
    suite_tests.TestSuite.setUpClass()
    run_tests([name for name in names if not ALONE.search(name)], logs, jobs, limit)
    run_tests([name for name in names if ALONE.search(name)], logs, 1, limit)


if __name__ == "__main__":
    main()
