#!/usr/bin/env python3
"""Kills what serves a job that verifies every result; prints what was promised and what was seen.

    ./quickstart faults [--runs N | --full] [--only NAME] [--layout 1x4] [--json FILE]

A cell of the table is one fault in one layout: 2x2 is two nodes with two ranks each. Violations are
a wrong result, an error where none is promised, one that does not name who was lost, a hang, and a
process or a file that is left; each is told on stderr. Times are printed, not judged. All times are
CLOCK_MONOTONIC's, in ms:

  longest operation          that was under way in the half second from the fault on, on any rank;
  the same undisturbed       in a half second of the same job that ended half a second before it
  until a join works again   from the fault until a group that was asked for after it had opened
  until it is done           from commd's death until the request was done in whose midst it died
  until survivors are told   from the fault until the last of them had the error in its hands
  until the operation is repeated, until a new process takes part
                             from the fault until the operation in which it came had been done
                             again on all ranks, in the group's next epoch; again: from the second
                             fault on

Names of faults, for --only: killed (commd, at random), in-join, in-subgroup, in-registration,
in-leave (commd, at a system call of such a request), restarted, keeper, engine, reload (the engine
is replaced), connections, rank;
join (a rank, in it); shrink, again, rejoin, repair, reconfigure (the group goes on).

Everything is on this machine, on loopback, in folders below $TMPDIR that are removed. Exit code: 0,
1 where there was a violation, 130 after a Ctrl-C.
"""

import argparse
import datetime
import json
import os
import random
import re
import signal
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
for folder in ("integration/lib", "bench", "faults"):
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), folder))

LAYOUTS = [(1, 4), (2, 2), (3, 1)]
RUNS = 5


# ---- the command --------------------------------------------------------------------------------


def layout(text):
    found = re.fullmatch(r"([1-9])x([1-9])", text)
    if not found or int(found[1]) * int(found[2]) < 2:
        raise argparse.ArgumentTypeError(f'"{text}" is not NODESxRANKS, such as 2x2')
    return int(found[1]), int(found[2])


def positive(text):
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of runs')
    return int(text)


def parse():
    about = __doc__.split("\n")
    parser = argparse.ArgumentParser(
        prog="./quickstart faults", description=about[0], epilog="\n".join(about[4:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    many = parser.add_mutually_exclusive_group()
    many.add_argument("--runs", type=positive, default=RUNS, metavar="N",
                      help=f"how often each fault, in each layout ({RUNS}: some five minutes)")
    many.add_argument("--full", action="store_true",
                      help="100 kills at random, each step of each request, ... (an hour)")
    parser.add_argument("--only", action="append", metavar="NAME", help="this fault alone")
    parser.add_argument("--layout", action="append", type=layout, metavar="NxM",
                        help="nodes x ranks (1x4, 2x2 and 3x1)")
    parser.add_argument("--json", metavar="FILE", help="every number, and the violations' texts")
    options = parser.parse_args()
    from rows import ROWS  # what has no build can tell how it is called

    names = [row.name for row in ROWS]
    for name in set(options.only or ()) - set(names):
        parser.error(f'no fault "{name}": {", ".join(names)}')
    return options, [row for row in ROWS if not options.only or row.name in options.only]


def interrupted(signo, frame):
    """Once: what ends then must not be interrupted."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def fill_all(options, rows, rng, cells):
    from cells import Cell, progress
    from place import DIE_AT

    if any(row.dies for row in rows) and not os.path.exists(DIE_AT):
        sys.exit(f"{DIE_AT} is not built: make tests/integration/lib/die_at.la")
    for row in rows:
        for where in filter(row.applies, options.layout or LAYOUTS):
            begin = time.monotonic()
            cells.append(Cell(row, where))
            cells[-1].fill(rng, row.full if options.full else options.runs)
            progress(f"{cells[-1].name()}  {row.fault}: {cells[-1].runs} runs, "
                     f"{len(cells[-1].violations)} violations, "
                     f"{time.monotonic() - begin:.1f} s")  # fmt: skip


def main():
    options, rows = parse()
    from cells import as_json, progress, table, this_machine

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, interrupted)
    seed = int(os.environ.get("COMMD_SEED", "0")) or random.SystemRandom().getrandbits(31)
    cells, began, code = [], time.monotonic(), 0
    progress(f"COMMD_SEED={seed}")
    try:
        fill_all(options, rows, random.Random(seed), cells)
    except KeyboardInterrupt:
        progress("interrupted; all that was started has ended")
        code = 130
    seconds = time.monotonic() - began
    violations = sum(len(cell.violations) for cell in cells)
    print(f"{datetime.date.today()}, {this_machine()}; {seconds:.0f} s\n")
    print(table(cells))
    print(f"\n{violations} violations")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(as_json(cells, seed, seconds), file, indent=1)
    sys.exit(code or (1 if violations else 0))


if __name__ == "__main__":
    main()
