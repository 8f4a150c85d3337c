#!/usr/bin/env python3
"""The manual pages of libcommd against commd.h and libcommd.map.

Every exported function has a page that shows its prototype as the header has it and says something
about it, every constant and every field of a public struct is mentioned, and `make install` would
make a page under the name of each function.
"""

import glob
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
failures = []


def read(*path):
    with open(os.path.join(TOP, *path)) as file:
        return file.read()


def plain(text):
    return re.sub(r"\s+", " ", text).strip()


def prototypes(header):
    """name -> what mdoc should say about it."""
    found = {}
    for match in re.finditer(r"^([a-z][\w ]*?\**)(commd_\w+)\(([^;]*?)\);", header, re.M):
        result, name, arguments = match.groups()
        if not result.startswith("typedef"):
            found[name] = plain(result), [plain(a) for a in arguments.split(",")]
    return found


def shown(page):
    """The same from a page's .Ft and .Fn lines in its SYNOPSIS."""
    synopsis = page[page.index(".Sh SYNOPSIS") : page.index(".Sh DESCRIPTION")]
    found = {}
    for match in re.finditer(r'^\.Ft (.*)\n\.Fn (commd_\w+) (.*)$', synopsis, re.M):
        result, name, arguments = match.groups()
        words = re.findall(r'"([^"]*)"|(\S+)', arguments)
        found[name] = plain(result.strip('"')), [plain(a or b) for a, b in words]
    return found


def main():
    header = re.sub(r"/\*.*?\*/", "", read("client/include/commd/commd.h"), flags=re.S)
    exported = re.findall(r"^\s+(commd_\w+);", read("client/lib/libcommd.map"), re.M)
    wanted = prototypes(header)
    makefile = read("client/man/local.mk")
    pages = {os.path.basename(p)[:-2]: read(p) for p in glob.glob(f"{TOP}/client/man/commd*.3")}
    where = {}
    for base, page in pages.items():
        if f"client/man/{base}.3" not in makefile:
            failures.append(f"{base}.3 is not installed: add it to client/man/local.mk")
        names = re.findall(r"^\.Nm (commd_\w+)", page.split(".Sh SYNOPSIS")[0], re.M)
        description = page[page.index(".Sh DESCRIPTION") :]
        for name, prototype in shown(page).items():
            where[name] = base
            if prototype != wanted.get(name):
                failures.append(f"{base}.3: {name} is {prototype}, in commd.h {wanted.get(name)}")
            if name not in names:
                failures.append(
                    f"{base}.3: {name} is not under NAME: `man {name}` would not find it"
                )
            if not re.search(rf"^\.(It )?Fn {name}\b", description, re.M):
                failures.append(f"{base}.3: nothing is said about {name}")
    if not exported or set(exported) != set(wanted):
        failures.append("commd.h and libcommd.map differ (or could not be read)")
    for name in exported:
        if name not in where:
            failures.append(f"{name} has no manual page")
    everything = "\n".join(pages.values())
    constants = re.findall(r"\b(COMMD_[A-Z]\w*)\s*(?:=|,|\})", header)
    fields = re.findall(r"^    [\w ]+?\W(\w+)(?:\[\d+\])?(?:, \**(\w+))*;", header, re.M)
    for name in sorted({*constants, *(f for pair in fields for f in pair if f)}):
        if name not in ("COMMD_OK",) and not re.search(rf"\b{name}\b", everything):
            failures.append(f"{name} is in no manual page")
    for text in failures:
        print(f"FAIL: {text}")
    print(f"{len(where)} functions, {len(constants)} constants, {len(fields)} lines of fields")
    sys.exit(bool(failures))


main()
