#!/usr/bin/env python3
"""Proves that the simulator sees: breaks one rule of the core at a time and expects that a story
with a fixed course (test_join, test_recover, test_killed), recover or swarm fails on each.

    tests/sim/mutants.py [WORD...]      WORD: part of what is broken; none: all

mutants.txt says which. The sources are changed in a temporary folder; what no mutant changes is
compiled once. The build folder has what protoc makes. First the core as it is has to pass.
Where only a late seed sees one, a change of the core may hide it: better a story.
Variables: CC, CFLAGS, SEEDS (500), COMMD_BUILD
"""

import glob
import os
import re
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
CC = [*shlex.split(os.environ.get("CC", "cc")), *shlex.split(os.environ.get("CFLAGS", ""))]
SEEDS = os.environ.get("SEEDS", "500")
SIM = [
    "sim", "sim_net", "sim_edge", "sim_engine", "sim_check", "sim_hold", "sim_pause", "sim_recover",
    "sim_state", "seeds",
]  # fmt: skip
STORIES = ["test_join", "test_recover", "test_killed"]
PROGRAMS = [(name, []) for name in STORIES] + [
    (name, ["--seeds", SEEDS]) for name in ("recover", "swarm")
]  # fmt: skip
BUILD = os.environ.get("COMMD_BUILD") or os.getcwd()
if not os.path.exists(f"{BUILD}/config.status"):
    BUILD = f"{TOP}/build"
# The state file, and what it needs.
STATE = ["daemon/state/state.c", "daemon/state/state_read.c", "daemon/state/state_write.c",
         "daemon/state/state.pb-c.c", "shm/proto/codec_check.c", "shm/util/memfd.c"]  # fmt: skip


def read(path):
    with open(os.path.join(TOP, path)) as file:
        return file.read()


def parse(text):
    """[[what is broken, [[file, old lines, new lines], ...]], ...]"""
    mutants = []
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "==":
            mutants.append([rest, []])
        elif word == "file":
            mutants[-1][1].append([rest, [], []])
        elif word in ("-", "+"):
            mutants[-1][1][-1][1 if word == "-" else 2].append(rest)
    return mutants


class Misfit(Exception):
    pass


def changed(edits):
    """{file: its text with all edits in it}"""
    texts = {}
    for path, old, new in edits:
        text = texts.get(path) or read(path)
        # whole lines, wherever they are broken and however far they are indented
        words = [re.escape(word) for word in " ".join(old).split()]
        whole = re.compile(r"^[ \t]*" + r"\s+".join(words) + r"[ \t]*\n", re.M)
        times = len(whole.findall(text))
        if times != 1:
            what = f"tests/sim/mutants.txt: {path} has this {times} times:"
            raise Misfit("\n".join([what, *old]))
        texts[path] = whole.sub(lambda _: "".join(line + "\n" for line in new), text)
    return texts


def misfits():
    """Of all mutants those that do not fit the sources: (what is broken, why)"""
    for broken, edits in parse(read("tests/sim/mutants.txt")):
        try:
            changed(edits)
        except Misfit as why:
            yield broken, str(why)


def compile(source, out):
    subprocess.run(
        [*CC, "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-w", f"-I{TOP}", f"-I{BUILD}", "-c", source]
        + ["-o", out],
        check=True,
    )


def link(program, objects, *libraries):
    subprocess.run([*CC, "-o", program, *objects, *libraries], check=True)


def failure(folder, objects):
    """What noticed, or None."""
    for name, arguments in PROGRAMS:
        program = f"{folder}/{name}"
        libraries = ["-lprotobuf-c", *(["-lcmocka"] if name in STORIES else [])]
        link(program, [f"{program}.o", *objects], *libraries)
        done = subprocess.run(
            [program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.returncode:
            seen = re.search(r"^\[  FAILED  \] ([a-z_]+)$|(VIOLATION.*)", done.stdout, re.M)
            return f"{name}: {seen.group(1) or seen.group(2) if seen else done.stdout[-200:]}"
    return None


def main():
    mutants = [("nothing (must pass)", [])] + [
        m for m in parse(read("tests/sim/mutants.txt"))
        if len(sys.argv) == 1 or any(word in m[0] for word in sys.argv[1:])
    ]  # fmt: skip
    bad = len(mutants) == 1
    for _, why in misfits():  # before anything takes minutes
        sys.exit(why)
    with tempfile.TemporaryDirectory(prefix="commd-mutants.") as folder:
        for name, _ in PROGRAMS:
            compile(f"{HERE}/{name}.c", f"{folder}/{name}.o")
        same = {}
        core = [os.path.relpath(p, TOP) for p in sorted(glob.glob(f"{TOP}/daemon/core/core*.c"))]
        for path in [*core, *(f"tests/sim/{name}.c" for name in SIM), *STATE]:
            same[path] = f"{folder}/{os.path.basename(path)[:-2]}.o"
            compile(f"{BUILD if 'pb-c' in path else TOP}/{path}", same[path])
        for number, (what, edits) in enumerate(mutants):
            objects = dict(same)
            for path, text in changed(edits).items():
                source = f"{folder}/mutant_{os.path.basename(path)}"
                with open(source, "w") as file:
                    file.write(text)
                objects[path] = source[:-2] + ".o"
                compile(source, objects[path])
            verdict = failure(folder, objects.values())
            print(f"mutant {number:2}  {what:62} {verdict or 'survives'}", flush=True)
            bad |= (verdict is None) == bool(edits)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
