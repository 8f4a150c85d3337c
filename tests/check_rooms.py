#!/usr/bin/env python3
"""Who may know whom: over #include lines, over symbols, over linked libraries.

    tests/check_rooms.py [BUILD]        the build folder (default: where make check runs)

A room is a folder. MAY says which rooms' headers the files of a room may include; all else is
refused, so no arrow points up and none goes from one program into another. A new folder is an
error until it has a row here. FOREIGN says which room alone may include a foreign library's
headers. PURE are objects that call no clock, no I/O and no allocation. LINKS is what a program must
never load: commd no network library that carries data, the engine neither the event loop nor TLS,
and libcommd nothing but libc. CIRCLES are the files of libcommd that may call each other; all
others stand in layers. Each line that is printed names who broke which rule.
"""

import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = sys.argv[1] if len(sys.argv) > 1 else os.getcwd()

SHM = {"shm/util", "shm/model", "shm/reduce", "shm/proto", "shm/board"}
LIB = {"client/include", "client/lib/context"}
MAY = {
    "shm/util": set(),
    "shm/launch": {"shm/util"},
    "shm/model": {"shm/util"},
    "shm/proto": {"shm/util"},
    "shm/reduce": {"shm/util", "shm/model"},
    "shm/board": {"shm/util", "shm/model", "shm/proto"},
    "shm/gpu": {"shm/util", "shm/model"},
    "daemon/core": {"shm/util", "shm/model", "shm/proto"},
    "daemon/state": {"shm/util", "shm/model", "shm/proto", "daemon/core"},
    "daemon/conf": {"shm/util", "shm/model"},
    "daemon/process": {"shm/util", "daemon/conf"},
    "daemon/link": {"shm/util", "shm/proto", "shm/launch"}
    | {"daemon/conf", "daemon/process", "daemon/core"},
    "daemon/memory": SHM | {"daemon/core"},
    "daemon/admin": SHM | {"daemon", "daemon/conf", "daemon/core", "daemon/process"},
    "daemon/http": SHM
    | {"daemon", "daemon/conf", "daemon/core", "daemon/process", "daemon/link", "daemon/admin"},
    "daemon": SHM
    | {"daemon/core", "daemon/state", "daemon/conf", "daemon/process"}
    | {"daemon/link", "daemon/memory", "daemon/admin", "daemon/http"},
    "transport/schedule": {"shm/util", "shm/model"},
    "transport/fabric": {"shm/util", "shm/model"},
    "transport/fabric/tcp": {"shm/util", "transport/fabric"},
    "transport/fabric/ucx": {"shm/util", "shm/model", "transport/fabric"},
    "transport/engine": SHM | {"transport/schedule", "transport/fabric"},
    "transport/gpu": SHM
    | {"shm/gpu", "client/include", "shm/launch", "transport/gpu/kernel"}
    | {"transport/process", "transport/schedule"},
    "transport/gpu/kernel": {"transport/gpu", "shm/gpu", "shm/model", "shm/util"},
    "transport/process": SHM | {"shm/launch", "transport/engine", "transport/fabric"},
    "client/include": set(),
    "client/lib/context": SHM | {"client/include"},
    "client/lib/arena": SHM | LIB,
    "client/lib/coll": SHM | LIB | {"client/lib/arena"},
    "client/lib/p2p": SHM | LIB | {"client/lib/coll"},
    "client/lib/async": SHM | LIB | {"client/lib/coll", "client/lib/p2p"},
    "client/lib/device": SHM
    | LIB
    | {"shm/gpu", "client/lib/coll", "client/lib/p2p", "client/lib/async"},
    "client/lib/api": SHM
    | LIB
    | {"client/lib/arena", "client/lib/coll", "client/lib/p2p", "client/lib/async"}
    | {"client/lib/device"},
    "client/ctl": {"shm/util", "shm/proto", "client/include"},
    "client/perf": {"shm/util", "shm/model", "shm/gpu", "client/include"},
    "client/examples": {"client/include"},
}
# Files that stand on a border, and why.
EXCEPT = {
    ("daemon/process/user.c", "daemon/daemon.h"): "starts a daemon",
    ("daemon/memory/arena_link.c", "daemon/daemon.h"): "an edge of the daemon",
}
FOREIGN = {
    r"event2/|event\.h": ("daemon", "daemon/link", "daemon/process", "daemon/http"),
    r"openssl/": ("daemon/link", "transport/fabric/tcp"),
    r"intel-ipsec-mb": ("transport/fabric/tcp",),
    r"yaml\.h": ("daemon/conf",),
    r"ucp?s?t?/api/|uc[pst]/": ("transport/fabric/ucx",),
    r"libsmartcols": ("client/ctl",),
    r"protobuf-c": ("shm/proto", "daemon/state"),
}
PURE = re.compile(
    r"(core|core_\w+|fair|flow|schedule|schedule_\w+|gpu_plan|gpu_plan_\w+|gpu_life|gpu_order"
    r"|gpu_share|move"
    r"|able)\.o$"
)
PURE_CALLS = set(
    "memcpy memmove memset memcmp strlen strcmp strncmp strnlen abort __assert_fail".split()
)
MODEL = {"coll_table", "dtype_size", "redop_defined"}
PURE_MORE = {
    "core_alloc.o": {"calloc", "free"},
    "gpu_plan.o": MODEL,
    "gpu_plan_blocks.o": MODEL,
    "gpu_share.o": set(
        "fair_init fair_node_init fair_enter fair_leave fair_first fair_may fair_charge".split()
    ),
    "move.o": MODEL,
    "able.o": MODEL,
}
RUNTIME = re.compile(
    r"_GLOBAL_OFFSET_TABLE_|__stack_chk_fail|__(asan|ubsan|sanitizer|gcov|tsan)_.*"
)
LINKS = {
    "daemon/commd": r"lib(ucp|uct|ucs|ucm|cuda|cudart|nccl|mpi|torch)\b",
    "transport/commd-gpu":
        r"lib(event|ssl|crypto|yaml|ucp|uct|ucs|ucm|cuda|cudart|nccl|mpi|torch)\b",
    "transport/commd-engine": r"lib(event|ssl|yaml|cuda|cudart|nccl|mpi|torch)\b",
    "client/lib/libcommd.so": r"lib(?!c\b|asan|ubsan|tsan|lsan|gcc_s|m\b|pthread|dl\b|rt\b|stdc)",
}
# Files of libcommd that may call each other to and fro, each set one machine. No other circle.
CIRCLES = [
    {"client/lib/context/control.c", "client/lib/context/back.c"},
    {"client/lib/p2p/p2p.c", "client/lib/p2p/p2p_out.c", "client/lib/p2p/p2p_wait.c"},
    {"client/lib/coll/coll_steps.c", "client/lib/coll/coll_blocks.c"},
    {"client/lib/device/session.c", "client/lib/device/session_ends.c"},
]
failures = []


def room(path):
    return os.path.dirname(path)


def sources():
    for top in ("shm", "daemon", "transport", "client"):
        for folder, _, names in os.walk(os.path.join(TOP, top)):
            if "python" in folder.split(os.sep):
                continue
            for name in names:
                if name.endswith((".c", ".h")):
                    yield os.path.relpath(os.path.join(folder, name), TOP)


def target(path, name):
    """The file in the tree that @path includes by @name, or None."""
    for guess in (name, os.path.join(room(path), name), os.path.join("client/include", name)):
        if os.path.exists(os.path.join(TOP, guess)):
            return guess
    return None


def check_includes():
    count = 0
    for path in sorted(sources()):
        mine = room(path).replace("client/include/commd", "client/include")
        if mine not in MAY:
            failures.append(f"{path}: {mine} has no row in tests/check_rooms.py")
            continue
        with open(os.path.join(TOP, path)) as file:
            names = re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', file.read(), re.M)
        for name in names:
            found = target(path, name)
            if found:
                count += 1
                theirs = room(found).replace("client/include/commd", "client/include")
                if theirs != mine and theirs not in MAY[mine] and (path, found) not in EXCEPT:
                    failures.append(f"{path} includes {found}: {mine} may not know {theirs}")
                continue
            for pattern, rooms in FOREIGN.items():
                if re.match(pattern, name) and mine not in rooms:
                    failures.append(
                        f"{path} includes <{name}>, which is for {' and '.join(rooms)} only"
                    )
    return count


def lines(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=True,
                          env=dict(os.environ, LC_ALL="C"))  # fmt: skip
    return done.stdout.splitlines()


def check_symbols():
    objects = []
    for top in ("daemon/core", "transport/schedule", "transport/gpu", "shm/gpu"):
        for folder, _, names in os.walk(os.path.join(BUILD, top)):
            if os.path.basename(folder) == ".libs":
                objects += [os.path.join(folder, name) for name in names if PURE.search(name)]
    own = {
        line.split()[-1] for o in objects for line in lines("nm", "-g", "--defined-only", o) if line
    }
    for o in sorted(objects):
        allowed = PURE_CALLS | PURE_MORE.get(os.path.basename(o), set()) | own
        for line in lines("nm", "-u", o):
            symbol = line.split()[-1].split("@")[0]
            if symbol not in allowed and not RUNTIME.fullmatch(symbol):
                failures.append(
                    f"{os.path.relpath(o, BUILD)} calls {symbol}, which decisions may not"
                )
    return len(objects)


def check_links():
    count = 0
    for name, refused in LINKS.items():
        folder, base = os.path.split(os.path.join(BUILD, name))
        hidden = os.path.join(folder, ".libs", base)
        path = hidden if os.path.exists(hidden) else os.path.join(folder, base)
        needed = [m.group(1) for line in lines("readelf", "-d", path)
                  if (m := re.search(r"\(NEEDED\).*\[(.*)\]", line))]  # fmt: skip
        if not needed:
            failures.append(f"readelf shows no needed library of {name}: the check has gone blind")
        loaded = [line.split()[0] for line in lines("ldd", path) if "=>" in line]
        if name.startswith("daemon") or name.startswith("transport"):
            needed += loaded
        for library in dict.fromkeys(needed):
            if re.match(refused, library):
                failures.append(f"{name} loads {library}")
        count += 1
    return count


def calls():
    """{file of libcommd: {file that it calls: names}}, from the symbols of the objects."""
    defined, wanted = {}, {}
    for folder, _, names in os.walk(os.path.join(BUILD, "client/lib")):
        for name in names:
            source = os.path.relpath(os.path.join(os.path.dirname(folder), name), BUILD)
            source = source.replace("libcommd_client_la-", "")[:-1] + "c"
            if not folder.endswith(".libs") or not name.endswith(".o"):
                continue
            if not os.path.exists(os.path.join(TOP, source)):
                continue  # left over in the build folder
            for line in lines("nm", os.path.join(folder, name)):
                *_, kind, symbol = line.split()
                if kind == "U":
                    wanted.setdefault(source, set()).add(symbol)
                elif kind in "TDBRVC":
                    defined[symbol] = source
    graph = {source: {} for source in set(wanted) | set(defined.values())}
    for source, symbols in wanted.items():
        for symbol in symbols:
            if defined.get(symbol, source) != source:
                graph[source].setdefault(defined[symbol], set()).add(symbol)
    return graph


def reached(graph, start):
    found, todo = set(), [start]
    while todo:
        for other in graph[todo.pop()]:
            if other not in found:
                found.add(other)
                todo.append(other)
    return found


def check_circles():
    graph = calls()
    reach = {source: reached(graph, source) for source in graph}
    for source in sorted(graph):
        for other in sorted(graph[source]):
            together = source in reach[other]
            if together and not any({source, other} <= circle for circle in CIRCLES):
                names = " ".join(sorted(graph[source][other]))
                failures.append(f"{source} calls {other} ({names}), which calls it back")
    return len(graph)


def main():
    includes, objects, programs = check_includes(), check_symbols(), check_links()
    layers = check_circles()
    for what, count, least in (
        ("include", includes, 300),
        ("object", objects, 15),
        ("program", programs, 3),
        ("file of libcommd", layers, 25),
    ):
        if count < least:
            failures.append(
                f"only {count} {what}s were looked at: the check has gone blind (make first?)"
            )
    for text in failures:
        print(f"FAIL: {text}")
    print(f"{includes} includes, {objects} pure objects and {programs} programs looked at")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
