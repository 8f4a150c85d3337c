#!/usr/bin/env python3
"""A name stands for one thing in the whole product: no static function and no struct of one name in
two files, so that a search finds one place. client/python is a program of its own, examples stand
alone. And a file that says its name in its first line says the right one. Each line that is printed
names the files."""

import collections
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STRUCT = re.compile(r"^struct (\w+) \{", re.M)
STATIC = re.compile(
    r"^static (?:inline |_Noreturn |__attribute__\(\(\w+\)\) )*[\w ]+?[ *]+(\w+)\((?=[^()]*[,)])",
    re.M,
)
OPENING = re.compile(r"/\* ([\w./-]+\.[ch]) - ")
# The same on purpose, and why.
TWICE = {
    "struct fabric_req": "opaque: each fabric has its own, see transport/fabric/fabric.h",
}


def sources():
    for top in ("shm", "daemon", "transport", "client"):
        for folder, folders, files in os.walk(os.path.join(TOP, top)):
            folders[:] = [name for name in folders if name not in ("python", "examples")]
            for name in files:
                if name.endswith((".c", ".h")) and ".pb-c." not in name:
                    yield os.path.relpath(os.path.join(folder, name), TOP)


def main():
    places, wrong = collections.defaultdict(set), []
    for path in sources():
        with open(os.path.join(TOP, path), encoding="utf-8") as file:
            text = file.read()
        says = OPENING.match(text)
        if says and os.path.basename(says[1]) != os.path.basename(path):
            wrong.append(f"{path} calls itself {says[1]}")
        for name in STATIC.findall(text):
            places[name].add(path)
        for name in STRUCT.findall(text):
            places[f"struct {name}"].add(path)
    bad = {n: p for n, p in places.items() if len(p) > 1 and n not in TWICE}
    for name, paths in sorted(bad.items()):
        print(f"FAIL: {name} stands in {' and in '.join(sorted(paths))}")
    for text in wrong:
        print(f"FAIL: {text}")
    print(f"{len(places)} names looked at")
    if len(places) < 1500:
        print("FAIL: so few? the check has gone blind")
    return 1 if bad or wrong or len(places) < 1500 else 0


if __name__ == "__main__":
    sys.exit(main())
