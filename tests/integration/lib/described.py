#!/usr/bin/env python3
"""Another machine's caches for a program and all that it starts. Needs root.

    tests/integration/lib/described.py xeon make check TESTS=tests/integration/test_perf.py

What commd knows of caches it reads in /sys/devices/system/cpu/cpuN/cache (shm/util/topology.c). In
a mount namespace of its own, a program finds other files there. So commd needs no setting for
tests, which somebody could set in production. Programs that get a /sys of their own (ip netns exec)
see the machine that is there.
"""

import ctypes
import os
import sys

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
CPUS = "/sys/devices/system/cpu"
KIB, MIB = 1, 1024

# By level: what a core has for itself, and what all CPUs share.
MACHINES = {
    "zen": ((1, 32 * KIB, False), (2, 512 * KIB, False), (3, 32 * MIB, True)),
    "xeon": ((1, 48 * KIB, False), (2, 2 * MIB, False), (3, 105 * MIB, True)),
    "small": ((1, 32 * KIB, False), (2, 1 * MIB, True)),  # an ARM of a few cores
    "silent": (),  # a virtual machine that tells nothing
}


class Impossible(Exception):
    """Not on this machine, or not by this user."""


def call(function, *arguments):
    if function(*arguments):
        raise Impossible(f"{function.__name__}: {os.strerror(ctypes.get_errno())}")


def become(name):
    """This process, which has one thread, and all that it starts are on machine @name."""
    libc = ctypes.CDLL(None, use_errno=True)
    allowed = sorted(os.sched_getaffinity(0))
    if not os.path.isdir(f"{CPUS}/cpu{allowed[0]}/cache"):
        raise Impossible(f"{CPUS}/cpu{allowed[0]}/cache is not there")
    call(libc.unshare, CLONE_NEWNS)
    call(libc.mount, b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    for cpu in allowed:
        folder = f"{CPUS}/cpu{cpu}/cache"
        call(libc.mount, b"none", folder.encode(), b"tmpfs", 0, b"size=64k")
        for index, (level, kib, shared) in enumerate(MACHINES[name]):
            os.mkdir(f"{folder}/index{index}")
            all_of_them = ",".join(map(str, allowed)) if shared else str(cpu)
            for file, text in (("level", level), ("type", "Unified"), ("size", f"{kib}K"),
                               ("shared_cpu_list", all_of_them)):  # fmt: skip
                with open(f"{folder}/index{index}/{file}", "w") as out:
                    out.write(f"{text}\n")


def main(words):
    if len(words) < 2 or words[0] not in MACHINES:
        sys.exit(f"usage: described.py {'|'.join(MACHINES)} COMMAND...")
    try:
        become(words[0])
    except Impossible as error:
        print(f"skipped: {error}")
        sys.exit(77)
    os.execvp(words[1], words[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
