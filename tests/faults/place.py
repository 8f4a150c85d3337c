"""A cluster of some layout with jobs on it that verify everything, for one cell of the table.

Nodes have keepers, as with ./quickstart up. A Place starts jobs (lib/verified.py), does what kills
something, and says what was seen: when a join worked again, and how long operations took before
and after. Whatever is wrong raises an exception: a wrong result, an error that was not promised, a
limit that is over, and at the end a process or a file that is left.
"""

import array
import bisect
import contextlib
import ctypes
import errno
import os
import re
import select
import signal
import socket
import subprocess
import time

from cluster import (
    BUILD, Cluster, Rank, check, equal, now, running, sanitizer_environment, until,
)  # fmt: skip
from faults import new_group_works

DIE_AT = os.path.join(BUILD, "tests/integration/lib/.libs/die_at.so")
WINDOW = 0.5  # seconds after a fault in which operations are looked at, and as many before it
QUIET = 2 * WINDOW + 0.1  # without a fault; a commd that lives a second is started again at once
BAD_LINE = re.compile(r"Sanitizer|runtime error|Assert|starting clean|was killed by signal (?!9\b)")
LIBC = ctypes.CDLL(None, use_errno=True)
SYS_PIDFD_GETFD = 438


class Impossible(Exception):
    """This machine does not let us do that; the reason is the text."""


def copied(pidfd, number):
    """A copy of that descriptor of another process; None: it is closed."""
    fd = LIBC.syscall(SYS_PIDFD_GETFD, pidfd, number, 0)
    if fd < 0 and ctypes.get_errno() != errno.EBADF:
        raise Impossible(f"no copy of an engine's socket: {os.strerror(ctypes.get_errno())}")
    return None if fd < 0 else fd


def connected(sock):
    with contextlib.suppress(OSError):
        sock.getpeername()
        return sock.family == socket.AF_INET
    return False


def connections(pid):
    """A copy of each TCP connection of that process."""
    found, pidfd = [], os.pidfd_open(pid)
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if not os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
                    continue
                fd = copied(pidfd, int(number))
                sock = fd and socket.socket(fileno=fd)
                if sock and connected(sock):
                    found.append(sock)
                elif sock:
                    sock.close()
    finally:
        os.close(pidfd)
    return found


def reset(sock):
    """As if a packet with RST had come to both ends: what came there before it can still be read,
    unlike after a connect() to nowhere. Without the right to that both ends see an end."""
    here, there = sock.getsockname(), sock.getpeername()
    ends = ("src", f"{here[0]}:{here[1]}", "dst", f"{there[0]}:{there[1]}")
    subprocess.run(("ss", "-t", "-K", *ends), capture_output=True, check=False, timeout=10)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def processes_of(folder):
    """Those that name @folder on their command line or in their environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for what in ("cmdline", "environ"):
                with open(f"/proc/{name}/{what}", "rb") as file:
                    if folder.encode() in file.read() and int(name) != os.getpid():
                        found.append(int(name))
                        break
    return [pid for pid in found if running(pid)]


def ready(ranks, seconds=0):
    """Those that have an answer."""
    pipes = [rank.process.stdout for rank in ranks]
    readable = select.select(pipes, [], [], 0 if any(r.buffer for r in ranks) else seconds)[0]
    return [rank for rank in ranks if rank.buffer or rank.process.stdout in readable]


def answers(ranks, enough):
    """The last answer of each, which is @enough; those before it are read away. Whoever failed is
    heard before those who hang because of it."""
    left, found = list(ranks), []

    def all_have_come():
        for rank in ready(left, 0.05):
            answer = rank.answer()
            check("error" not in answer, f"failed: {answer}")
            if enough(answer):
                left.remove(rank)
                found.append(answer)
        return not left

    until(all_have_come, lambda: f"no answer of the ranks {[rank.pid for rank in left]}")
    return found


class Job:
    """Ranks in data(): a group at work."""

    def __init__(self, place, name, ranks, messages=True):
        self.name, self.ranks = name, ranks
        base = os.path.join(place.folder, name)
        self.stop = base + ".stop"
        self.files = [f"{base}.{number}" for number in range(len(ranks))]
        Cluster.join(name, ranks)
        for rank, file in zip(ranks, self.files):
            rank.start("data", name=name, stop=self.stop, times=file, messages=messages)
        for rank in ranks:
            check("started" in rank.answer(), "the job has started")

    def goes_on(self):
        """None has ended, which would be too early: whoever has says why."""
        early = ready(self.ranks)
        for rank in early:
            rank.finish()
        check(not early, "a job has ended before it was told to")

    def finish(self):
        open(self.stop, "w").close()
        turns = {answer["ok"] for answer in answers(self.ranks, lambda answer: True)}
        check(len(turns) == 1 and min(turns) > 0, f"turns of the ranks: {turns}")
        self.leave()

    def leave(self):
        for rank in self.ranks:
            rank.call("leave", name=self.name)

    def longest(self, begin, end):
        """Milliseconds of the longest operation that was under way then."""
        most = 0.0
        for path in self.files:
            with open(path, "rb") as file:
                times = array.array("d", file.read())
            begins, ends = times[::2], times[1::2]
            first, last = bisect.bisect_right(ends, begin), bisect.bisect_left(begins, end)
            most = max([most, *(ends[i] - begins[i] for i in range(first, last))])
        return most * 1000

    def pauses(self, at):
        """Of the longest operation because of a fault at that time, and of one without."""
        return {
            "longest operation": self.longest(at, at + WINDOW),
            "the same undisturbed": self.longest(at - 2 * WINDOW, at - WINDOW),
        }


class Place(Cluster):
    """@dies: its commds are to die at the call whose number is in a file (die_at.c)."""

    def __init__(self, layout, rng, dies=False):
        self.node_count, self.per_node = layout
        self.rng, self.dies = rng, dies
        self.controllers, self.said = [], ""
        super().__init__(self.node_count, start=False)

    def __enter__(self):
        super().__enter__()
        try:
            for node in self.nodes:
                self.start_node(node)
            self.wait_linked()
        except BaseException:
            self.end()
            raise
        return self

    def die_file(self, node):
        return os.path.join(self.folder, f"{node.name}.die")

    def start_node(self, node):
        environment = {}
        if self.dies:
            # that of a sanitizer has to come first
            first = sanitizer_environment().get("LD_PRELOAD", "")
            environment = {"LD_PRELOAD": f"{first} {DIE_AT}".strip(),
                           "DIE_AT": self.die_file(node)}  # fmt: skip
        node.start(environment, arguments=["--keep"])

    def rank(self, node, connect=True):
        # a Ctrl-C is for this program, which ends its ranks
        old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with open(os.path.join(self.folder, "stderr"), "ab") as file:
                rank = Rank(self.nodes[node], stderr=file)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)
        self.all_ranks.append(rank)
        if connect:
            equal(rank.call("connect"), rank.node.name)
        return rank

    def layout_ranks(self):
        """One for each place, connected."""
        where = [node for node in range(self.node_count) for _ in range(self.per_node)]
        ranks = [self.rank(place, connect=False) for place in where]
        for rank in ranks:
            rank.call("connect")
        return ranks

    # ---- joins, all the time --------------------------------------------------------------------

    def control_places(self):
        return [0, 0] if self.node_count == 1 else list(range(self.node_count))

    def start_controls(self):
        self.controllers = [self.rank(node) for node in self.control_places()]
        self.control_stop = os.path.join(self.folder, "controls.stop")
        for number, rank in enumerate(self.controllers):
            rank.start("controls", name="controls", rank=number, size=len(self.controllers),
                       stop=self.control_stop)  # fmt: skip
        self.joined_after(0)

    def joined_after(self, at):
        """The time when a join that began after @at had worked on all."""
        found = answers(self.controllers, lambda answer: answer["begin"] > at)
        return max(answer["joined"] for answer in found)

    def finish_controls(self):
        open(self.control_stop, "w").close()
        answers(self.controllers, lambda answer: "ok" in answer)
        self.controllers = []

    def new_group_works(self, name, ranks):
        return new_group_works(Cluster, ranks, name)

    def rest(self, since=None):
        """Until so much time has passed since then without a fault, and a little more."""
        since = now() if since is None else since
        time.sleep(max(0, since + QUIET - now()) + 0.2 * self.rng.random())

    # ---- the end --------------------------------------------------------------------------------

    def check_logs(self):
        for node in self.nodes:
            for line in node.log().splitlines():
                check(not BAD_LINE.search(line), f"in the log of {node.name}: {line}")

    def show_logs(self):
        """Kept for whoever tells of the violation."""
        self.said = "".join(
            f"--- log of {node.name}, its end:\n" + "\n".join(node.log().splitlines()[-15:]) + "\n"
            for node in getattr(self, "nodes", [])
        )

    def __exit__(self, kind, error, trace):
        try:
            super().__exit__(kind, error, trace)
        except Exception as late:
            late.said = self.said
            raise
        finally:
            if isinstance(error, Exception):
                error.said = self.said

    def finish(self):
        super().finish()
        left = lambda: processes_of(self.folder)  # noqa: E731
        until(lambda: not left(), lambda: f"processes that are left: {left()}", 2)

    def end(self):
        super().end()
        for pid in processes_of(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in processes_of(self.folder):
            until(lambda pid=pid: not running(pid), "the end of what was killed")
