"""Runs commands that end in time, whatever they do; keeps what they say, and looks at what hangs.

All that a check starts stays below this process, which is its subreaper: what loses its parent
becomes a child of this process. So everything is found and ended, in sessions of its own, too.

A process inside a driver may not die of SIGKILL, and may hold the lock of its memory. So nothing
here waits for a process without a limit, output goes to a file and not to a pipe, and of a thread
that the kernel holds nobody reads the command line."""

import collections
import contextlib
import ctypes
import os
import re
import resource
import signal
import subprocess
import time

from limit import Limit, waited

PR_SET_CHILD_SUBREAPER = 36
spared = set()  # of what this process has started: goes on when a check ends
DIES_WITHIN = 5


def become_parent_of_all():
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# ---- what they say -------------------------------------------------------------------------------


class Log:
    """One file for all checks: few files may come back from a machine. Written as it is said, so
    that what was said is there if this process is killed, too."""

    HEAD, TAIL = 64 << 10, 192 << 10  # what is kept of a check

    def __init__(self, path):
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self.fd = os.open(path, flags, 0o644)
        self.begin = 0

    def size(self):
        return os.fstat(self.fd).st_size

    def say(self, text):
        os.write(self.fd, (text.rstrip("\n") + "\n").encode(errors="replace"))

    def text(self, begin):
        return self.read(begin, self.size()).decode(errors="replace")

    def read(self, begin, end):
        found = b""
        while begin + len(found) < end:
            piece = os.pread(self.fd, end - begin - len(found), begin + len(found))
            if not piece:
                break
            found += piece
        return found

    def open_section(self, title):
        self.begin = self.size()
        self.say(f"\n==== {title}, {time.strftime('%H:%M:%S')}")

    def close_section(self):
        """Of what says very much only the ends are kept."""
        end = self.size()
        left_out = end - self.begin - self.HEAD - self.TAIL
        if left_out > 0:
            head = self.read(self.begin, self.begin + self.HEAD)
            tail = self.read(end - self.TAIL, end)
            os.ftruncate(self.fd, self.begin)
            os.write(self.fd, head + f"\n... {left_out} bytes are left out ...\n".encode() + tail)


class Kernel:
    """What the kernel and NVIDIA's driver in it say: Xid lines, processes that died."""

    WORDS = re.compile(r"NVRM|Xid|nvidia|segfault|traps:|hung task|blocked for|out of memory", re.I)

    def __init__(self, path="/dev/kmsg"):
        self.fd = None
        with contextlib.suppress(OSError):  # not allowed, or not there (gVisor)
            self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with contextlib.suppress(OSError):
                os.lseek(self.fd, 0, os.SEEK_END)

    def lines(self):
        """Those that came since the last call."""
        found = []
        while self.fd is not None and len(found) < 1000:
            try:
                record = os.read(self.fd, 8192)
            except BrokenPipeError:  # some were overwritten
                continue
            except OSError:
                break
            if not record:
                break
            found += record.decode(errors="replace").splitlines()
        texts = [line.partition(";")[2] or line for line in found if not line.startswith(" ")]
        return [text for text in texts if self.WORDS.search(text)]


# ---- processes -----------------------------------------------------------------------------------


def read(path):
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def stat_of(pid):
    """(name, state, parent), or None."""
    name, _, rest = read(f"/proc/{pid}/stat").partition(" (")[2].rpartition(") ")
    fields = rest.split()
    return (name, fields[0], int(fields[1])) if len(fields) > 1 else None


def threads(pid):
    try:
        return sorted(int(tid) for tid in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []


def descendants():
    """{process: its name} of all below this one that have not ended. One that has ended but for a
    thread is among them: it holds what it held."""
    table = {int(name): stat_of(name) for name in os.listdir("/proc") if name.isdigit()}
    below, known = {}, {os.getpid()}
    for _ in range(len(table)):
        new = {pid for pid, stat in table.items() if stat and stat[2] in known} - known - spared
        if not new:
            break
        known |= new
        below.update((pid, table[pid][0]) for pid in new)
    return {
        pid: name
        for pid, name in below.items()
        if table[pid][1] not in "ZX" or len(threads(pid)) > 1
    }


def command_of(pid):
    held = any((stat_of(f"{pid}/task/{tid}") or ("", "D"))[1] == "D" for tid in threads(pid))
    return "" if held else read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def reap():
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end_all(but=(), kill=os.kill, limit=DIES_WITHIN):
    """Kills all below this process. {process: name} of those that do not die within the limit; for
    those in @but nobody waits."""
    end = time.monotonic() + limit
    while True:
        left = descendants()
        for pid in left:
            with contextlib.suppress(OSError):
                kill(pid, signal.SIGKILL)
        reap()
        left = {pid: name for pid, name in descendants().items() if pid not in but}
        if not left or time.monotonic() > end:
            reap()
            return left
        time.sleep(0.02)


def exit_code(process, seconds, busy):
    """None: it did not end in time. @busy: what else runs on this machine counts for nothing."""
    limit = Limit(seconds, pressure=waited if busy else lambda: 0.0)
    while True:
        over = limit.over()
        try:
            return process.wait(min(1, limit.left() + 0.01))
        except subprocess.TimeoutExpired:
            if over:
                return None


def run(command, seconds, log, environment, hangs=None, busy=False):
    """(exit code, or None if it did not end in time; what it said). @hangs() is called before
    anything is ended."""
    words = [str(word) for word in command]
    log.say(f"$ {' '.join(words)}")
    begin = log.size()
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=log.fd, stderr=subprocess.STDOUT,
        start_new_session=True, env=environment,
    )  # fmt: skip
    code = exit_code(process, max(seconds, 1), busy)
    text = log.text(begin)
    if code is None:
        log.say(f"no end within {seconds:.0f} s")
        if hangs:
            hangs()
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(DIES_WITHIN)
    else:
        log.say(f"-> {code}")
    return code, text


# ---- what hangs ----------------------------------------------------------------------------------


def look(pids):
    """Where the threads of these processes stand. Threads that stand at one place are one line."""
    lines = []
    for pid in sorted(pids):
        name, state, parent = stat_of(pid) or ("?", "gone", 0)
        lines.append(f"process {pid} ({name}), of {parent}, state {state}: {command_of(pid)}")
        places = collections.Counter()
        for tid in threads(pid):
            at = f"/proc/{pid}/task/{tid}"
            name, state, _ = stat_of(f"{pid}/task/{tid}") or ("?", "gone", 0)
            stack = read(f"{at}/stack").strip().splitlines()
            calls = [line.split("] ")[-1] for line in stack][:12]
            places[name, state, read(f"{at}/wchan"), " < ".join(calls)] += 1
        for (name, state, place, stack), count in places.items():
            times = f"{count} x " if count > 1 else ""
            lines.append(f"    {times}{name}, {state}, in {place or '?'}: {stack or 'no stack'}")
    return "\n".join(lines)


def sockets_of(pids):
    """Of the commds among them."""
    for pid, name in pids.items():
        if name == "commd":
            config = re.search(r"--config (\S+)", command_of(pid))
            socket = config and re.search(r"^ *socket: (\S+)", read(config[1]), re.M)
            if socket:
                yield socket[1]


def ask_commd(pids, commctl, log, environment):
    for socket in sockets_of(pids):
        for verb in ("why", "status", "gpus", "ops"):
            run([commctl, "--socket", socket, "--timeout", "4", verb], 6, log, environment)


def tracebacks(pids):
    """Python says where its threads are, if PYTHONFAULTHANDLER was set; it ends by that."""
    asked = [pid for pid, name in pids.items() if name.startswith("python")]
    for pid in asked:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGABRT)
    end = time.monotonic() + 1
    while set(asked) & set(descendants()) and time.monotonic() < end:
        time.sleep(0.02)


def keep_logs(folder, log, most=48 << 10):
    """The ends of all *.log below @folder."""
    for path, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            if name.endswith(".log"):
                text = read(os.path.join(path, name))
                log.say(f"---- {os.path.join(path, name)}, its end:\n{text[-most:]}")
