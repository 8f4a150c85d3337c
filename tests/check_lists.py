#!/usr/bin/env python3
"""Element types, operators, collectives and errors: is every list of them complete?

The model is in shm/: DTYPE_*, REDOP_* and COLL_* in shm/model, CAUSE_* in shm/proto/msg.h. LISTS
says which other places name all of them; a place that lacks one, or has one that the model does not
know, is printed. So whoever adds one begins with the model and follows what this prints. The
Python core's rows must also say of each collective what coll_table[] says: who has one block or
all of them, and whether it reduces.
"""

import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
failures = []
looked = 0


def read(path):
    with open(os.path.join(TOP, path), encoding="utf-8") as file:
        return file.read()


def part(path, begin, end):
    """What stands between two patterns in a file, without its C comments."""
    text = read(path)
    found = re.search(begin + r"(.*?)" + end, text, re.S)
    if not found:
        failures.append(f"{path}: nothing between {begin} and {end}: this test has gone blind")
        return ""
    return re.sub(r"/\*.*?\*/", "", found[1], flags=re.S)


def enum(path, name, prefix):
    """[(lower-case name, number)] of a C enum."""
    result, number = [], 0
    for item in part(path, rf"\benum {name} \{{", r"\};").split(","):
        match = re.fullmatch(rf"\s*{prefix}_?(\w+)(?:\s*=\s*(-?\d+))?\s*", item)
        if match:
            number = int(match[2]) if match[2] else number
            result.append((match[1].lower(), number))
            number += 1
    return [(name, number) for name, number in result if name != "count"]


def model(path, name):
    found = enum(path, name, name.upper())
    if [number for _, number in found] != list(range(len(found))) or len(found) < 5:
        failures.append(f"{path}: enum {name} is not numbered from 0 on")
    return [name for name, _ in found]


DTYPES = model("shm/model/dtype.h", "dtype")
REDOPS = model("shm/model/dtype.h", "redop")
COLLS = model("shm/model/coll.h", "coll")
CAUSES = dict(enum("shm/proto/msg.h", "cause", "CAUSE"))
NOT_ERRORS = ("none", "left")  # for the API
ERRORS = [name for name in CAUSES if name not in NOT_ERRORS]

COMMD_H = "client/include/commd/commd.h"
STUBS = "client/python/commd/__init__.pyi"
GROUP = "client/python/commd/group.py"
TENSORS = "client/python/commd/csrc/tensors.cpp"
CORE_OP = "client/python/commd/_core_op.c"
ENUMS = "client/lib/api/enums.c"
STEPS = "client/lib/coll/coll_steps.c"
PLAN = "shm/model/plan.c"
COLL_C = "shm/model/coll.c"
PERF_1 = "client/perf/commd-perf.1"
PERF_DATA = "client/perf/commd_perf_data.c"
MPI_PERF = "tests/bench/mpi_perf.c"
CLIENT = "tests/integration/lib/commd_client.py"
QUOTED = r'"(\w+)"'

P2P = ("send", "recv")
LOCAL = ("forked", "interrupted", "gpu_lost")  # errors that only libcommd knows

# path, from where, to where, how one is named there, what else may be named there (None: anything);
# IN_ORDER: by number.
IN_ORDER = "in the order of the numbers"
LISTS = {
    "dtype": [
        (COMMD_H, r"enum commd_dtype \{", r"\};", r"COMMD_(\w+)", (), IN_ORDER),
        (ENUMS, r"#define DTYPES\(X\)", r"\nDTYPES\(", r"X\((\w+)\)", (), IN_ORDER),
        ("shm/model/dtype.c", r"\} dtypes\[\] = \{", r"\n\};", QUOTED, (), IN_ORDER),
        ("client/python/commd/dtypes.py", r"_NAMES = \[", r"\n\]", r'\("(\w+)"', (), IN_ORDER),
        (TENSORS, r"int native_dtype\(", r"\n\}", r"COMMD_(\w+);", ()),
        (PERF_DATA, r"\nstatic void put_element\(", r"\n\}", r"COMMD_(\w+):", ()),
        (PERF_1, r"datatype \" TYPE", r"\n\.TP", r"\w+", None),
        (MPI_PERF, r"\(enum commd_dtype\)", r"\n\}", r"COMMD_(\w+):", ()),
        (CLIENT, r"\nDTYPES = \[", r"\]", QUOTED, (), IN_ORDER),
    ],
    "redop": [
        (COMMD_H, r"enum commd_redop \{", r"\};", r"COMMD_(\w+)", (), IN_ORDER),
        (ENUMS, r"#define REDOPS\(X\)", r"\nREDOPS\(", r"X\((\w+)\)", (), IN_ORDER),
        ("shm/model/dtype.c", r"redop_names\[\] = \{", r"\n\};", QUOTED, (), IN_ORDER),
        (CORE_OP, r"op_names\[\] = \{", r"\n\};", QUOTED, (), IN_ORDER),
        (STUBS, r"\n_Op = Literal\[", r"\]", QUOTED, (), IN_ORDER),
        (GROUP, r"\n    op: ", r"\n    timeout: ", QUOTED, (), IN_ORDER),
        (TENSORS, r"\nRedop to_redop\(", r"\n\}", r"\{COMMD_(\w+)", ()),
        (PERF_1, r"\\-op \" OP", r"\n\.TP", r"\w+", None),
        (MPI_PERF, r"\(enum commd_redop\)", r"\n\}", r"COMMD_(\w+):", ()),
        (CLIENT, r"\nREDOPS = \[", r"\]", QUOTED, (), IN_ORDER),
    ],
    "coll": [
        (COMMD_H, r"enum commd_coll \{", r"\};", r"COMMD_(\w+)", P2P, IN_ORDER),
        (COMMD_H, r"/\* ---- collectives", r"/\* ---- point", r"^int commd_(\w+)\(", ()),
        (ENUMS, r"#define COLLS\(X\)", r"\nCOLLS\(", r"X\((\w+)\)", (), IN_ORDER),
        ("client/lib/api/api.c", r"", r"\Z", r"op_of\(COMMD_(\w+)", P2P),
        ("client/lib/libcommd.map", r"set_timeout;", r"commd_run;", r"commd_(\w+);", ()),
        (STEPS, r"coll_steps\[COLL_COUNT\] = \{", r"\n\};", r"\[COLL_(\w+)\]", (), IN_ORDER),
        (PLAN, r"schedules\[COLL_COUNT\] = \{", r"\n\};", r"\[COLL_(\w+)\]", (), IN_ORDER),
        (COLL_C, r"coll_table\[COLL_COUNT\] = \{", r"\n\};", QUOTED, (), IN_ORDER),
        (CORE_OP, r"struct row rows\[\] = \{", r"\n\};", QUOTED, P2P, IN_ORDER),
        (GROUP, r"\nclass Operations", r"\nclass ", r"^    def (\w+)\(", P2P),
        (STUBS, r"\nclass Group", r"\nclass ", r"^    def (\w+)\(", None),
        (PERF_1, r"", r"\Z", r"\w+", None),
        (MPI_PERF, r"", r"\Z", r"case COMMD_(\w+):", None),
        ("tests/oracle/data.c", r"\} colls\[", r"\n\};", r"\[COMMD_(\w+)\]", (), IN_ORDER),
        ("tests/unit/client/test_perf.c", r" all_colls\[\]", r"\n\};", r"COMMD_(\w+)", ()),
        ("tests/integration/test_perf.py", r"\nCOLLECTIVES = \[", r"\]", QUOTED,
         ("sendrecv", "pingpong")),
        (CLIENT, r"\nCOLLS = \[", r"\]", QUOTED, (), IN_ORDER),
    ],
    "error": [
        (COMMD_H, r"enum commd_result \{", r"\};", r"COMMD_E_(\w+)", LOCAL),
        (ENUMS, r"#define CAUSES\(X\)", r"\nCAUSES\(", r"X\((\w+)\)", ()),
        ("client/lib/context/error.c", r"codes\[\]", r"\n\};", r"\[-COMMD_E_(\w+)\]", LOCAL),
        ("shm/proto/codec.c", r"names\[CAUSE_COUNT\]", r"\n    \};", r"\[CAUSE_(\w+)\]",
         NOT_ERRORS),
        ("client/python/commd/_core_error.c", r"error_constants\(", r"\n\}", r"CODE\(([A-Z_]+)\)",
         LOCAL),
        ("client/python/commd/errors.py", r"", r"\Z", r"_core\.E_(\w+)", LOCAL),
        (CLIENT, r"\nCODES = \{", r"\n\}", r': "(\w+)"', LOCAL),
    ],
}  # fmt: skip


def look(kind, wanted, path, begin, end, pattern, more, order=None):
    global looked
    found = [name.lower() for name in re.findall(pattern, part(path, begin, end), re.M)]
    looked += 1
    missing = [name for name in wanted if name not in found]
    for name in missing:
        failures.append(f"{path}: {kind} {name} is missing (looked for {pattern})")
    if more is None:
        return
    for name in dict.fromkeys(found):
        if name not in wanted and name not in more:
            failures.append(f"{path}: {kind} {name} is not in shm/ (found by {pattern})")
    if order and not missing and [n for n in dict.fromkeys(found) if n in wanted] != wanted:
        failures.append(f"{path}: not {order}: {', '.join(found)}")


def look_at_causes():
    """What the API calls an error is a cause, negated, or has a number that no cause has."""
    for name, number in enum(COMMD_H, "commd_result", "COMMD_E"):
        if name in LOCAL and -number in CAUSES.values():
            failures.append(f"{COMMD_H}: COMMD_E_{name.upper()} has the number of a cause")


def look_at_shapes():
    """The rows of the Python core say of each collective what coll_table[] says."""
    kinds = {
        "EXTENT_NONE": "0", "EXTENT_ONE": "BLOCK", "EXTENT_ONE_AT_ROOT": "BLOCK | AT_ROOT",
        "EXTENT_BLOCKS": "ALL", "EXTENT_BLOCKS_AT_ROOT": "ALL | AT_ROOT",
    }  # fmt: skip
    core = part(CORE_OP, r"struct row rows\[\] = ", r"\n\};")
    rows = dict(re.findall(r'\{"(\w+)", (.*?)\}', core))
    table = part(COLL_C, r"coll_table\[COLL_COUNT\] = \{", r"\n\};")
    for name, row in re.findall(r'\{"(\w+)",\s*(.*?)\}', table, re.S):
        send, recv = (kinds[word] for word in re.findall(r"EXTENT_\w+", row))
        if ".counted = true" in row:
            send, recv = (k + " | COUNTED" if "ALL" in k else k for k in (send, recv))
        want = f"{send}, {recv}, {'true' if '.reduces = true' in row else 'false'}"
        if rows.get(name) != want:
            failures.append(f"{CORE_OP}: {name} is {{{rows.get(name)}}}, in {COLL_C} {{{want}}}")


def look_at_build_dependencies():
    """quickstart installs what dpkg-buildpackage asks for: debian/control, and build-essential."""
    global looked
    looked += 1
    from_others = {"debhelper-compat": "debhelper", "dh-sequence-installsysusers": "debhelper",
                   "dh-sequence-python3": "dh-python"}  # fmt: skip
    words = part("debian/control", r"\nBuild-Depends: ", r"\n\S")
    needed = {re.split(r"[ (<]", word.strip())[0] for word in words.split(",")}
    have = (part("quickstart", r"\npackages_build=\(", r"\)") + " "
            + part("quickstart", r"\|\| packages_build\+=\(", r"\)") + " "
            + part("tools/packages.sh", r"\npackages_package=\(", r"\)")).split()  # fmt: skip
    for name in sorted(needed | {"build-essential"}):
        if from_others.get(name, name) not in have:
            failures.append(f"tools/packages.sh: {name}, which dpkg asks for, is not installed")


def main():
    wanted = {"dtype": DTYPES, "redop": REDOPS, "coll": COLLS, "error": ERRORS}
    for kind, places in LISTS.items():
        for place in places:
            look(kind, wanted[kind], *place)
    look_at_causes()
    look_at_shapes()
    look_at_build_dependencies()
    for text in failures:
        print(f"FAIL: {text}")
    print(f"{looked} lists of {', '.join(f'{len(w)} {k}s' for k, w in wanted.items())} looked at")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
