"""The cells of the table: what is measured in each, and how they are printed."""

import datetime
import math
import os
import platform
import sys

import machine
from place import Impossible, Place

GIVE_UP = 3  # violations of one cell: the rest would be the same, and hangs take long


def progress(text):
    print(text, file=sys.stderr, flush=True)


class Cell:
    """What one fault did in one layout."""

    def __init__(self, row, layout):
        self.row, self.layout = row, layout
        self.runs, self.violations, self.measured, self.skipped = 0, [], {}, None

    def name(self):
        return "x".join(map(str, self.layout))

    def add(self, measured):
        self.runs += measured is None
        for what, ms in (measured or {}).items():
            self.measured.setdefault(what, []).append(ms)

    def fail(self, error):
        self.violations.append(f"{type(error).__name__}: {error}")
        progress(f"VIOLATION: {self.row.fault}, {self.name()}: {self.violations[-1]}")
        progress(getattr(error, "said", "").rstrip())

    def fill(self, rng, runs):
        """After a violation nothing is trusted: the rest is done on a cluster of its own."""
        self.row.begin()
        while self.runs < runs and len(self.violations) < GIVE_UP:
            try:
                with Place(self.layout, rng, self.row.dies) as place:
                    for measured in self.row.run(place, runs - self.runs):
                        self.add(measured)
                return
            except Impossible as reason:
                self.skipped = str(reason)
                return
            except Exception as error:
                self.fail(error)


# ---- what is printed -----------------------------------------------------------------------------


def percentile(values, share):
    """The smallest one that so many are not above."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def lines_of(cell, first):
    """Rows of the table; fault and promise stand once where they are the same."""
    promise = cell.row.promise(cell.layout)
    fault = cell.row.fault if first != cell.row.fault else ""
    counts = [str(cell.runs), str(len(cell.violations))]
    if cell.skipped:
        return [[fault, promise, cell.name(), f"not run: {cell.skipped}", "", "", "", "0", ""]]
    lines = []
    for what, values in cell.measured.items() or [("nothing", [])]:
        numbers = [f"{percentile(values, share):.1f}" if values else "" for share in (0.5, 0.99, 1)]
        head = [fault, promise, cell.name()] if not lines else ["", "", ""]
        lines.append([*head, what, *numbers, *(counts if not lines else ["", ""])])
    return lines


HEAD = ["fault", "promise", "layout", "measured, in ms", "p50", "p99", "max", "runs", "violations"]
RIGHT = len(HEAD) - 5  # from this column on: numbers


def table(cells):
    lines, last = [], None
    for cell in cells:
        lines += lines_of(cell, last)
        last = cell.row.fault
    widths = [max(len(line[i]) for line in [HEAD, *lines]) for i in range(len(HEAD))]

    def text(line):
        padded = (f"{c:>{w}}" if i >= RIGHT else f"{c:<{w}}"
                  for i, (c, w) in enumerate(zip(line, widths)))  # fmt: skip
        return f"| {' | '.join(padded)} |"

    rule = [f"{'-' * (w - 1)}{':' if i >= RIGHT else '-'}" for i, w in enumerate(widths)]
    return "\n".join(map(text, [HEAD, rule, *lines]))


def this_machine():
    return f"{machine.cpu_model()}, {os.cpu_count()} cores, Linux {platform.release()}"


def as_json(cells, seed, seconds):
    return {
        "date": datetime.date.today().isoformat(), "machine": this_machine(), "seed": seed,
        "seconds": round(seconds),
        "cells": [
            {"name": cell.row.name, "fault": cell.row.fault,
             "promise": cell.row.promise(cell.layout), "layout": cell.name(), "runs": cell.runs,
             "violations": cell.violations, "skipped": cell.skipped,
             "ms": {what: [round(v, 3) for v in ms] for what, ms in cell.measured.items()}}
            for cell in cells
        ],
    }  # fmt: skip
