"""How long a test waits for what must come. Standard library only.

A limit ends a hang, and nothing else: whether a test passes must not depend on how fast a machine
is, nor on what runs beside it. So a limit counts the time of a machine that is free. The kernel
tells in /proc/pressure how long some process waited for a core, for memory or for a disk, and in
/proc/stat how long the host of a virtual machine had taken a core away; of that time a limit counts
one part in BUSY. Hence a hang is found after HANG seconds where nothing else
runs, and after BUSY times as long where something always does. Where the kernel does not tell, the
machine counts as busy.

What takes seconds and no such limit (a socket, --timeout) gets LATEST.
"""

import os
import subprocess
import time

PATIENCE = float(os.environ.get("COMMD_TEST_PATIENCE", "1"))
BUSY = 12
HANG = 10.0 * PATIENCE
LATEST = BUSY * HANG
PRESSURES = [f"/proc/pressure/{what}" for what in ("cpu", "memory", "io")]


def now():
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def stolen(path="/proc/stat"):
    """Seconds since boot in which the host gave a core to another machine, of all cores."""
    with open(path) as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def waited(paths=PRESSURES, stat="/proc/stat"):
    """Seconds since boot in which some process waited; None: the kernel does not tell."""
    try:
        total = stolen(stat)
    except (OSError, ValueError, IndexError):
        return None
    for path in paths:
        try:
            with open(path) as file:
                total += int(file.readline().rpartition("total=")[2]) / 1e6
        except (OSError, ValueError):
            return None
    return total


class Limit:
    """@seconds of a free machine, from now on."""

    def __init__(self, seconds=HANG, clock=now, pressure=waited):
        self.seconds, self.clock, self.pressure = seconds, clock, pressure
        self.began, self.waited = clock(), pressure()

    def spent(self):
        """Seconds that count."""
        passed = self.clock() - self.began
        if passed <= self.seconds:
            return passed  # whatever counts of it, it is not over
        at = self.pressure()
        known = at is not None and self.waited is not None
        busy = min(passed, at - self.waited) if known else passed
        return passed - busy + busy / BUSY

    def left(self):
        """0.0: it is over."""
        return max(0.0, self.seconds - self.spent())

    def over(self):
        return self.spent() > self.seconds


# ---- processes ----------------------------------------------------------------------------------


def communicate(process, seconds=HANG):
    """What Popen.communicate() returns. A process that does not end is killed, and an error."""
    limit = Limit(seconds)
    while True:
        over = limit.over()
        try:
            return process.communicate(timeout=min(1, limit.left() + 0.01))
        except subprocess.TimeoutExpired:
            if not over:
                continue
        process.kill()
        texts = process.communicate()
        raise AssertionError(f"no end in {seconds:g} s: {process.args}\n{texts}")


def run(arguments, seconds=HANG, **more):
    """What subprocess.run() returns, with both outputs as text unless @more says otherwise."""
    if "stdout" not in more and "stderr" not in more:
        more.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    more.setdefault("text", True)
    with subprocess.Popen(arguments, **more) as process:
        out, err = communicate(process, seconds)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def exit_code(process, seconds=HANG):
    """Its exit code. One that does not end is killed, and an error."""
    limit = Limit(seconds)
    while True:
        over = limit.over()
        try:
            return process.wait(min(1, limit.left() + 0.01))
        except subprocess.TimeoutExpired:
            if not over:
                continue
        process.kill()
        process.wait()
        raise AssertionError(f"no end in {seconds:g} s: {process.args}")
