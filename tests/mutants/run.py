#!/usr/bin/env python3
"""Removes one check at a time and expects that the test which is named beside it fails.

    tests/mutants/run.py [--list] [--build DIR] [WORD...]      WORD: part of a mutant's title

A mutant is a block of mutants.txt:

    == what is broken, in plain words
    file daemon/core/core_join.c
    test tests/unit/daemon/test_core a_test_of_it       a unit test program [and its test]
    test tests/integration/test_shares.py NAME   or a file of tests and one of them
    - text as it stands in the file, exactly once: part of a line, or several lines
    + text in its place; none: it is just removed

All work is done in a copy of the tree with a build of its own (build-mutants/ beside the sources,
kept for the next time). First every named test is run on the tree as it is, where it has to pass;
one that cannot run here (exit code 77) is left out, with its mutants. Then each mutant is built and
its test is run: it is caught if that test fails, and if it is that test which fails. The last line
is "N caught, M survived, K left out"; a mutant that survives, does not fit the sources any more, or
does not compile makes the exit code 1.
"""

import os
import re
import shutil
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
LIMIT = 180  # seconds for one test: a hang is a catch too, but a slow one


class Mutant:
    def __init__(self, title):
        self.title, self.file, self.program, self.test = title, None, None, None
        self.old, self.new = [], []


def parse(text):
    mutants = []
    for number, line in enumerate(text.splitlines(), 1):
        word, _, rest = line.partition(" ")
        if not line.strip() or line.startswith("#"):
            continue
        if word == "==":
            mutants.append(Mutant(rest.strip()))
        elif word == "file":
            mutants[-1].file = rest.strip()
        elif word == "test":
            mutants[-1].program, _, mutants[-1].test = rest.strip().partition(" ")
        elif word == "-":
            mutants[-1].old.append(rest)
        elif word == "+":
            mutants[-1].new.append(rest)
        else:
            sys.exit(f"mutants.txt:{number}: neither ==, file, test, - nor +: {line!r}")
    for mutant in mutants:
        if not (mutant.file and mutant.program and mutant.old):
            sys.exit(f"mutants.txt: {mutant.title}: a file, a test and a line with - are needed")
    return mutants


def run(command, cwd, limit=900):
    """(exit code, output). What it has started ends with it."""
    process = subprocess.Popen(
        command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=limit)
        return process.returncode, out
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        return -1, f"{out}\nno end within {limit} s"


def copy_tree(folder):
    """The tracked files and those not ignored, newer ones only: make builds what changed."""
    names = subprocess.check_output(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=TOP, text=True
    )
    for name in filter(None, names.split("\0")):
        source, target = os.path.join(TOP, name), os.path.join(folder, name)
        if not os.path.isfile(source):
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.exists(target):
            with open(source, "rb") as a, open(target, "rb") as b:
                if a.read() == b.read():
                    continue
        shutil.copy(source, target)  # with the time of now


def configure(folder):
    build = os.path.join(folder, "build")
    if not os.path.exists(os.path.join(folder, "configure")):
        code, out = run(["autoreconf", "-fi"], folder)
        if code:
            sys.exit(out)
    if not os.path.exists(os.path.join(build, "config.status")):
        os.makedirs(build, exist_ok=True)
        code, out = run([os.path.join(folder, "configure"), "--prefix", build + "/install"], build)
        if code:
            sys.exit(out)
    return build


def make(build, mutant):
    """Programs, then the unit test if it is one: together they would build libraries twice."""
    command = ["make", "-j2", "WARN_CFLAGS=-w"]  # a check less may leave a variable unused
    code, out = run([*command, "all"], build)
    if code == 0 and not mutant.program.endswith(".py"):
        code, out = run([*command, mutant.program], build)
    return code, out


def run_test(build, mutant):
    """(failed, what failed)"""
    if mutant.program.endswith(".py"):
        command = ["python3", os.path.join(os.path.dirname(build), mutant.program)]
        if mutant.test:
            command.append(mutant.test)
    else:
        command = ["env", "srcdir=..", os.path.join(build, mutant.program)]
    code, out = run(command, build, LIMIT)
    failed = re.findall(r"^(?:\[  FAILED  \]|FAIL) ([a-z_0-9]+)", out, re.M)
    return code != 0, failed, out


def place(folder, mutant):
    """The text of the file with the mutant in it, or why not."""
    path = os.path.join(folder, mutant.file)
    with open(path) as file:
        text = file.read()
    old = "\n".join(mutant.old)
    if text.count(old) != 1:
        return None, text
    return text.replace(old, "\n".join(mutant.new)), text


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def judge(folder, build, mutant):
    """(caught, in words)"""
    path = os.path.join(folder, mutant.file)
    broken, text = place(folder, mutant)
    if broken is None:
        return False, "does not fit the sources"
    try:
        write(path, broken)
        code, out = make(build, mutant)
        if code:
            return False, "does not compile: " + next(
                (line for line in out.splitlines() if "error: " in line), out[-200:]
            )
        code, failed, out = run_test(build, mutant)
    finally:
        write(path, text)
    if not code:
        return False, f"survives {mutant.program} {mutant.test}".rstrip()
    if mutant.test and failed and mutant.test not in failed:
        return False, f"only {', '.join(sorted(set(failed)))} fails, not {mutant.test}"
    return True, f"{mutant.program} {mutant.test or ' '.join(sorted(set(failed)))}".rstrip()


def main():
    words = sys.argv[1:]
    folder = os.path.join(TOP, "build-mutants")
    if "-h" in words or "--help" in words:
        print(__doc__)
        return 0
    if "--build" in words:
        at = words.index("--build")
        folder = os.path.abspath(words[at + 1])
        del words[at : at + 2]
    with open(os.path.join(HERE, "mutants.txt")) as file:
        mutants = parse(file.read())
    if "--list" in words:
        for mutant in mutants:
            print(f"{mutant.title}: {mutant.program} {mutant.test}")
        return 0
    mutants = [m for m in mutants if not words or any(word in m.title for word in words)]
    copy_tree(folder)
    build = configure(folder)
    # also what tests start
    code, out = run(["make", "-j2", "WARN_CFLAGS=-w", "check", "TESTS="], build)
    if code:
        sys.exit(out[-3000:])
    seen, cannot = set(), set()
    for mutant in mutants:
        if (mutant.program, mutant.test) in seen:
            continue
        seen.add((mutant.program, mutant.test))
        code, out = make(build, mutant)
        if code:
            sys.exit(out[-3000:])
        code, failed, out = run_test(build, mutant)
        if code == 77:
            cannot.add(mutant.program)
            why = (out.strip().splitlines() or ["?"])[-1]
            print(f"skipped  {mutant.program}: {why}", flush=True)
        elif code:
            sys.exit(f"{mutant.program} {mutant.test} fails without a mutant:\n{out[-3000:]}")
    left_out = sum(mutant.program in cannot for mutant in mutants)
    mutants = [mutant for mutant in mutants if mutant.program not in cannot]
    survived = 0
    for number, mutant in enumerate(mutants, 1):
        caught, how = judge(folder, build, mutant)
        survived += not caught
        print(
            f"{'caught  ' if caught else 'SURVIVED'} {number:3} {mutant.title}: {how}", flush=True
        )
    print(f"{len(mutants) - survived} caught, {survived} survived, {left_out} left out")
    return survived > 0


if __name__ == "__main__":
    sys.exit(main())
