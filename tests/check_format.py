#!/usr/bin/env python3
"""C and C++ are laid out as .clang-format says; no line of a source, script or makefile is longer
than 100 columns.

    tests/check_format.py           what differs, and where; exit 1 if anything does
    tests/check_format.py --mend    lays the files out

clang-format of another version lays out otherwise, so only VERSION counts: $CLANG_FORMAT, the one
in .venv (pip install clang-format==VERSION; ./quickstart does that), or one on the PATH. Without
it only the columns are looked at, and the test says so (exit 77).
"""

import os
import shutil
import subprocess
import sys

VERSION = "18.1.8"
COLUMNS = 100
TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOMS = ("client", "daemon", "etc", "shm", "systemd", "tests", "tools", "transport")
C = (".c", ".h", ".cpp", ".cu")
NOT_C = (".py", ".pyi", ".sh", ".mk")
NAMED = ("quickstart", "configure.ac", "Makefile.am", ".ci/run")


def sources(endings):
    for room in ROOMS:
        for folder, folders, files in os.walk(os.path.join(TOP, room)):
            folders[:] = [f for f in folders if f not in ("build", "corpus", "__pycache__")]
            for file in files:
                if file.endswith(endings) and ".pb-c." not in file:
                    yield os.path.join(folder, file)


def clang_format():
    for name in (os.environ.get("CLANG_FORMAT"), os.path.join(TOP, ".venv/bin/clang-format"),
                 "clang-format-18", "clang-format"):
        path = name and shutil.which(name)
        if path and VERSION in subprocess.run([path, "--version"], capture_output=True,
                                              text=True).stdout:
            return path
    return None


def long_lines(files):
    for path in files:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if len(line.rstrip("\n")) > COLUMNS:
                    yield f"{os.path.relpath(path, TOP)}:{number}: more than {COLUMNS} columns"


def main():
    files = sorted(sources(C))
    tool = clang_format()
    if sys.argv[1:] == ["--mend"]:
        if not tool:
            sys.exit(f"no clang-format {VERSION}: pip install clang-format=={VERSION}")
        return subprocess.run([tool, "-i", *files], check=True).returncode
    if sys.argv[1:]:
        sys.exit(__doc__)
    others = sorted(sources(NOT_C)) + [os.path.join(TOP, name) for name in NAMED]
    others = [path for path in others if os.path.exists(path)]  # the tarball lacks some
    bad = list(long_lines(files + others))
    print(*bad, sep="\n")
    if not files or not others:
        sys.exit(f"no sources under {TOP}")
    if tool:
        made = subprocess.run(
            [tool, "--dry-run", "--Werror", *files], capture_output=True, text=True
        )
        wrong = [line for line in made.stderr.splitlines() if ": error: " in line]
        print(*wrong[:20], sep="\n")
        bad += wrong or [tool] * made.returncode
    print(f"{len(files)} files in C, {len(others)} others looked at")
    if bad:
        print("tests/check_format.py --mend lays out what clang-format can")
        return 1
    if not tool:
        print(f"no clang-format {VERSION}: only the columns were looked at")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
