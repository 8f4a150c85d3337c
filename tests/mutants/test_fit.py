#!/usr/bin/env python3
"""Every mutant of mutants.txt and of tests/sim/mutants.txt fits the sources: its text stands in its
file exactly once, and its test is there. One that does not would be caught by nobody."""

import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../sim")]
import mutants as of_sim  # noqa: E402
import run  # noqa: E402


def problem(mutant):
    path = os.path.join(run.TOP, mutant.file)
    program = os.path.join(run.TOP, mutant.program)
    if not os.path.exists(path):
        return f"no {mutant.file}"
    if run.place(run.TOP, mutant)[0] is None:
        return f"its text is not exactly once in {mutant.file}"
    if not os.path.exists(program) and not os.path.exists(program + ".c"):
        return f"no {mutant.program}"
    return None


def named():
    """The mutants that doc/security.md names in its list of checks."""
    with open(os.path.join(run.TOP, "doc/security.md")) as file:
        rows = file.read().partition("| asked | of whom | where | mutants |")[2].split("\n\n")[0]
    for row in rows.strip().splitlines()[1:]:
        yield from (title.strip() for title in row.split("|")[4].split(";"))


def main():
    with open(os.path.join(run.HERE, "mutants.txt")) as file:
        mutants = run.parse(file.read())
    bad = [(mutant.title, problem(mutant)) for mutant in mutants if problem(mutant)]
    bad += of_sim.misfits()
    titles = {mutant.title for mutant in mutants}
    bad += [(t, "named in doc/security.md") for t in named() if t not in titles and t[-3:] != "..."]
    for title, what in bad:
        print(f"FAIL {title}: {what}")
    print(f"{len(mutants)} mutants, {len(bad)} do not fit")
    return 1 if bad or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
