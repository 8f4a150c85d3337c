"""What the machine is, as far as it decides how fast ranks are: cores, threads of a core, caches
that are shared, nodes of memory, and how long a word takes between each pair of cores.

Also a program: machine.py prints it.
"""

import functools
import itertools
import json
import os
import pathlib
import platform
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SYS = pathlib.Path("/sys/devices/system")
PAIRS_MOST = 190  # of 20 cores; of more, only the pairs with the first one


def read(path):
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def numbers(text):
    """ "0-2,5" -> [0, 1, 2, 5]"""
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first:
            found += range(int(first), int(last or first) + 1)
    return found


def cpu_model():
    for line in read(pathlib.Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def caches(cpus, root=SYS):
    """[{"what": "L3", "size": "32768K", "cpus": [0, 1]}]: those that several CPUs share."""
    shared = {}
    for cpu in cpus:
        for index in sorted((root / f"cpu/cpu{cpu}/cache").glob("index*")):
            among = [n for n in numbers(read(index / "shared_cpu_list")) if n in cpus]
            if len(among) > 1 and read(index / "type") != "Instruction":
                what = "L" + read(index / "level")
                shared[what, tuple(among)] = read(index / "size")
    return [{"what": w, "size": size, "cpus": list(c)} for (w, c), size in sorted(shared.items())]


def threads_of_cores(cpus, root=SYS):
    """[[0, 1], [2, 3]]: the CPUs that are threads of one core."""
    cores = {}
    for cpu in cpus:
        among = read(root / f"cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        cores[tuple(n for n in numbers(among) if n in cpus)] = True
    return sorted(map(list, cores))


def memory_nodes(cpus, root=SYS):
    nodes = [numbers(read(n / "cpulist")) for n in sorted((root / "node").glob("node[0-9]*"))]
    return [mine for mine in ([c for c in n if c in cpus] for n in nodes) if mine] or [list(cpus)]


def pairs_of(cpus):
    pairs = list(itertools.combinations(cpus, 2))
    return pairs if len(pairs) <= PAIRS_MOST else [(cpus[0], c) for c in cpus[1:]]


@functools.cache
def word_program(cache):
    """Builds word.c; None where it cannot be built."""
    program = cache / "word"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                "gcc",
                "-O2",
                "-std=gnu11",
                "-D_GNU_SOURCE",
                "-o",
                program,
                HERE / "word.c",
                "-pthread",
            ],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return program


def words(pairs, program):
    """{"0-1": nanoseconds}; {} where it cannot be measured."""
    argv = [program, *(str(c) for pair in pairs for c in pair)]
    try:
        out = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=600).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return {f"{a}-{b}": int(ns) for a, b, ns in (line.split() for line in out.splitlines())}


def distance(cache):
    """A function that measures a word between the first two CPUs, in nanoseconds or None. A host
    may move the CPUs of a virtual machine while it runs."""
    program, pairs = word_program(cache), pairs_of(sorted(os.sched_getaffinity(0)))[:1]
    if not program or not pairs:
        return lambda: None
    return lambda: next(iter(words(pairs, program).values()), None)


def describe(cache):
    cpus, program = sorted(os.sched_getaffinity(0)), word_program(cache)
    return {
        "cpu": cpu_model(),
        "cores": len(cpus),
        "kernel": platform.release(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "threads_of_cores": threads_of_cores(cpus),
        "shared_caches": caches(cpus),
        "memory_nodes": memory_nodes(cpus),
        "word_ns": words(pairs_of(cpus), program) if program else {},
    }


def listed(cpus):
    """[0, 1, 2, 5] -> "0-2,5" """
    runs = []
    for cpu in cpus:
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def word_text(ns):
    if not ns:
        return "a word to and fro: not measured (is gcc there?)"
    if len(ns) <= 6:
        return "a word to and fro: " + ", ".join(f"{pair} {t} ns" for pair, t in ns.items())
    values = sorted(ns.values())
    return (
        f"a word to and fro between {len(ns)} pairs: {values[0]} to {values[-1]} ns, "
        f"median {values[len(values) // 2]} ns"
    )


def text(machine):
    """Two lines."""
    threads = [c for c in machine["threads_of_cores"] if len(c) > 1]
    what = [f"{machine['cpu']}, {machine['cores']} CPUs"]
    if threads:
        what.append("threads of one core: " + ", ".join(map(listed, threads)))
    else:
        what.append("each a core of its own")
    what += [
        f"{c['what']} {c['size']} shared by {listed(c['cpus'])}" for c in machine["shared_caches"]
    ]
    if len(machine["memory_nodes"]) > 1:
        what.append("nodes of memory: " + "; ".join(map(listed, machine["memory_nodes"])))
    what += [f"{machine['memory_gb']} GB", f"Linux {machine['kernel']}"]
    return ", ".join(what) + "\n" + word_text(machine["word_ns"])


if __name__ == "__main__":
    made = describe(HERE.parent.parent / ".cache/bench")
    print(json.dumps(made, indent=1) if "--json" in sys.argv else text(made))
