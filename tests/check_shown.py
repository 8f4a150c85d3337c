#!/usr/bin/env python3
"""Are the tests there that documents name, and the mutants that doc/security.md names?

    tests/check_shown.py

A document says `test_NAME` or `fuzz_NAME`, with or without folder and suffix, for a file of tests,
and behind a colon which tests of it: `test_door`: no_descriptor_is_left, a_flood_*. In the last
column of a table that has "mutants" as its heading stand titles of mutants.txt, with ... for what
is left out of one, and of several that begin alike.
"""

import fnmatch
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TESTS = os.path.join(TOP, "tests")
FENCE = re.compile(r"```.*?```", re.S)
NAMED = re.compile(
    r"`([\w/]*\b(?:test|fuzz)_\w+(?:\.\w+)?)[^`\n]*`(?::\s+([\w*]+(?:,\s+[\w*]+)*))?"
)
OTHERS = ("test/",)  # of torch's own tests
C_TEST = r"^static void (\w+)\(void \*\*"  # gcc warns of one that is not run
PYTHON_TEST = r"^def (\w+)"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def documents():
    yield os.path.join(TOP, "README.md")
    folder = os.path.join(TOP, "doc")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".md"):
            yield os.path.join(folder, name)


def files():
    """All in tests/, by path from there."""
    for folder, _, names in os.walk(TESTS):
        for name in names:
            if name.endswith((".c", ".py", ".sh")):
                yield os.path.relpath(os.path.join(folder, name), TESTS)


def sources(paths):
    """{name of a variable of make: the files of tests that the program is made of}"""
    found = {}
    for folder in {os.path.dirname(path) for path in paths}:
        makefile = os.path.join(TESTS, folder, "local.mk")
        text = read(makefile).replace("\\\n", " ") if os.path.exists(makefile) else ""
        for name, value in re.findall(r"^(\w+)_SOURCES = (.*)$", text, re.M):
            found[name] = [word.removeprefix("tests/") for word in value.split()
                           if word.removeprefix("tests/") in paths]  # fmt: skip
    return found


def candidates(name, paths, made_of):
    """The files that a document may mean by @name."""
    name = name.removeprefix("tests/")
    wanted = [name] if "." in name else [name + ".c", name + ".py"]
    found = {path for path in paths if any(("/" + path).endswith("/" + one) for one in wanted)}
    for path in list(found) if "." not in name else []:
        found.update(made_of.get("tests_" + re.sub(r"\W", "_", os.path.splitext(path)[0]), []))
    return found


def tests_of(path):
    pattern = C_TEST if path.endswith(".c") else PYTHON_TEST
    return re.findall(pattern, read(os.path.join(TESTS, path)), re.M)


def missing_tests(text, paths, made_of):
    for m in NAMED.finditer(FENCE.sub("", text)):
        if m[1].startswith(OTHERS):
            continue
        found = candidates(m[1], paths, made_of)
        if not found:
            yield f"no file of tests {m[1]}"
        there = [test for path in found for test in tests_of(path)]
        for case in re.split(r",\s+", m[2] or "") if found else []:
            if case and not fnmatch.filter(there, case):
                yield f"{m[1]} has no test {case}"


def mutants_named(text):
    """Titles in tables."""
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[-1] == "mutants":
            inside = True
        elif inside and not line.startswith("|-"):
            yield from re.split(r";\s+", cells[-1])


def missing_mutants(text, titles):
    for title in mutants_named(text):
        if not fnmatch.filter(titles, title.replace("...", "*")):
            yield f'no mutant "{title}"'


def main():
    paths = set(files())
    made_of = sources(paths)
    titles = re.findall(r"^== (.*)$", read(os.path.join(TESTS, "mutants/mutants.txt")), re.M)
    bad = 0
    for path in documents():
        text = read(path)
        for what in [*missing_tests(text, paths, made_of), *missing_mutants(text, titles)]:
            print(f"{os.path.relpath(path, TOP)}: {what}")
            bad += 1
    if bad:
        print("Correct the document, or give the test back its name.")
    sys.exit(bad > 0)


main()
