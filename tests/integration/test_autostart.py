#!/usr/bin/env python3
"""Life without an administrator: ranks that find no commd start one for their user.

The user's own directory is a temporary one here (XDG_RUNTIME_DIR), so that nothing of a real user
is touched. COMMD_DAEMON is a script that makes commd leave when idle for a time of the test's own.
"""

import contextlib
import glob
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import Skip, check, equal, main, running, until  # noqa: E402

SYSTEM = "/run/commd/commd.sock"
NAMES = ["commd.lock", "commd.log", "start.lock"]  # what a commd that has left leaves


class Place:
    """A user without any commd; a rank's environment as Rank() wants it of a node."""

    def __init__(self, idle="60"):
        if os.path.exists(SYSTEM):
            raise Skip(f"there is a {SYSTEM} here")
        self.name = "own"
        self.socket = ""  # none is named
        self.folder = tempfile.mkdtemp(prefix="commd-own.")
        self.home = os.path.join(self.folder, "commd")
        self.path = os.path.join(self.home, "commd.sock")
        self.ranks = []
        self.expected = "^$"  # in the log, whatever its level
        self.daemon = self.script("daemon", f'exec {c.COMMD} --idle-exit {idle} "$@"')
        self.environment = {
            "XDG_RUNTIME_DIR": self.folder, "COMMD_DAEMON": self.daemon, "COMMD_SOCKET": "",
        }  # fmt: skip

    def script(self, name, text):
        path = os.path.join(self.folder, name)
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o700), "w") as file:
            file.write(f"#!/bin/sh\n{text}\n")
        return path

    def rank(self, program=None, **environment):
        """With its stderr in a file of its own."""
        name = os.path.join(self.folder, f"err{len(self.ranks)}")
        with c.environment(**dict(self.environment, **environment)), open(name, "wb") as err, \
                redirected(err):  # fmt: skip
            rank = c.Rank(self, program)
        rank.err = name
        self.ranks.append(rank)
        return rank

    def said(self):
        """All that the ranks have printed."""
        texts = []
        for rank in self.ranks:
            with open(rank.err) as file:
                texts.append(file.read())
        return "".join(texts)

    def log(self):
        texts = []
        for name in sorted(glob.glob(os.path.join(self.home, "commd.log*")), reverse=True):
            with open(name) as file:
                texts.append(file.read())
        return "".join(texts)

    def lock_pid(self):
        """0 while it is written."""
        with open(os.path.join(self.home, "commd.lock")) as file:
            return int(file.read() or 0)

    def pid(self):
        return until(self.lock_pid, "a commd")

    def kill(self):
        """commd, without a farewell, and its keeper, which would start another one."""
        with contextlib.suppress(OSError, ValueError):
            pid = self.lock_pid()
            keeper = int(status(pid, "PPid"))
            os.kill(keeper, signal.SIGSTOP)
            for one in (pid, keeper):
                os.kill(one, signal.SIGKILL)
            until(lambda: not running(pid), f"the end of commd {pid}")

    def wait_gone(self, pid):
        until(lambda: not running(pid), f"commd {pid} leaves; its log:\n{self.log()}")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        for rank in self.ranks:
            rank.process.kill()
            rank.process.wait()
            rank.process.stdin.close()
            rank.process.stdout.close()
        self.kill()
        if kind and not issubclass(kind, Skip):
            print(f"--- what the ranks said:\n{self.said()}--- log:\n{self.log()}")
        elif not kind:
            bad = [line for line in self.log().splitlines() if not re.search(self.expected, line)]
            pattern = r"\] (warn|error): |Sanitizer|runtime error"
            bad = [line for line in bad if re.search(pattern, line)]
            check(not bad, "\n".join(bad))
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def redirected(err):
    saved = os.dup(2)
    os.dup2(err.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def started(text):
    return re.findall(
        r"^commd: no daemon was running; started one for user (\d+) \(pid (\d+), socket (.*)\); "
        r"COMMD_AUTOSTART=0 forbids this$", text, re.M,
    )  # fmt: skip


def fds(pid):
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found[int(fd)] = os.readlink(f"/proc/{pid}/fd/{fd}")
    return found


def status(pid, key):
    with open(f"/proc/{pid}/status") as file:
        return re.search(rf"^{key}:\s*(.*)$", file.read(), re.M).group(1)


def test_ranks_start_exactly_one():
    with Place(idle="1") as place:  # so long it may take the first rank to come in
        ranks = [place.rank() for _ in range(8)]
        for rank in ranks:
            rank.start("connect")
        for rank in ranks:
            rank.finish()
        lines = started(place.said())
        equal(len(lines), 1, place.said())
        equal(place.said().count("\n"), 1, place.said())
        pid = place.pid()
        equal(lines[0], (str(os.geteuid()), str(pid), place.path))
        c.Cluster.join("g", ranks)
        for rank in ranks:
            rank.start("all_reduce", name="g", count=1000)
        for rank in ranks:
            rank.finish()
        equal(os.stat(place.home).st_mode & 0o777, 0o700)
        for rank in ranks:
            rank.close()
        place.wait_gone(pid)
        equal(sorted(os.listdir(place.home)), NAMES)
        check("no client for 1 s -> leaving" in place.log(), place.log())


def test_it_takes_nothing_of_the_rank_along():
    """No descriptor, no session, no directory, no signal mask, no service manager."""
    with Place() as place:
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(os.path.join(place.folder, "notify"))
        cpus = os.sched_getaffinity(0)
        with open(os.path.join(place.folder, "marker"), "w") as file:
            os.set_inheritable(file.fileno(), True)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
            os.sched_setaffinity(0, [min(cpus)])
            try:
                rank = place.rank(NOTIFY_SOCKET=manager.getsockname(), WATCHDOG_USEC="1000000")
            finally:
                os.sched_setaffinity(0, cpus)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGUSR1])
            rank.call("connect")
        pid = place.pid()
        own = fds(pid)
        allowed = (
            r"/dev/null$|anon_inode:|socket:|pipe:|" + re.escape(place.home) + "/commd.(log|lock)$"
        )
        check(all(re.match(allowed, target) for target in own.values()), own)
        equal(own[0], "/dev/null")
        equal((own[1], own[2]), (f"{place.home}/commd.log",) * 2)
        pipes = {target for target in own.values() if target.startswith("pipe:")}
        check(not pipes & set(fds(rank.pid).values()), "it has a pipe of the rank")
        equal(os.readlink(f"/proc/{pid}/cwd"), "/")
        equal(os.getsid(pid), pid, "its session is its own")
        check(os.getsid(rank.pid) != pid, "")
        equal(int(status(pid, "SigBlk"), 16), 0)
        check(int(status(pid, "PPid")) != rank.pid, "it is not a child of the rank")
        until(lambda: f"PPid:\t{rank.pid}\n" not in all_status(), "no child of the rank is left")
        equal(os.sched_getaffinity(pid), cpus)
        try:  # what it says on getting ready would be here: the rank was answered
            check(False, manager.recv(4096, socket.MSG_DONTWAIT))
        except BlockingIOError:
            manager.close()


def test_it_has_no_limits_and_no_place_in_line():
    """What the first rank was given to be held back by does not hold back all of this user's."""
    space = "unlimited" if c.sanitizer_environment() else "90000000"  # they map terabytes
    with Place() as place:
        daemon = place.script(
            "held_back",
            f"ulimit -S -f 1000; ulimit -S -t 1000; ulimit -S -v {space}\n"
            "echo 300 >/proc/self/oom_score_adj\n"
            f'exec nice -n 5 chrt --batch 0 {place.daemon} "$@"',
        )
        place.rank(COMMD_DAEMON=daemon).call("connect")
        pid = place.pid()
        with open(f"/proc/{pid}/limits") as file:
            limits = {line[:26].strip(): line[26:].split()[0] for line in file}
        names = ("Max file size", "Max cpu time", "Max address space")
        equal([limits[name] for name in names], ["unlimited"] * 3)
        equal(os.sched_getscheduler(pid), os.SCHED_OTHER)
        with open(f"/proc/{pid}/oom_score_adj") as file:
            equal(file.read(), "0\n")
        if os.geteuid() == 0:
            equal(os.getpriority(os.PRIO_PROCESS, pid), 0)


def test_limits_that_stay():
    """Nobody dies of a limit of the size of files: what it forbids is an error that names it."""
    words = ["sh", "-c", f"ulimit -f 200; exec {sys.executable} {c.HERE}/rank.py"]
    if os.geteuid() == 0:
        words = ["setpriv", "--bounding-set", "-sys_resource", *words]
    with Place() as place:
        place.expected = "RLIMIT_FSIZE"
        rank = place.rank(words)
        rank.call("connect")
        check("commd: it has the limits of this process: 100 KiB of a file" in place.said(),
              place.said())  # fmt: skip
        for error in (
            rank.call_error("alloc", key="x", size=1 << 24),
            rank.call_error("join", name="g", rank=0, size=1),
        ):
            check("larger than RLIMIT_FSIZE allows (ulimit -f)" in error["message"], error)
        check(running(place.pid()), "commd lives")
        rank.call("connect")


def test_priorities_that_stay():
    """An ordinary user cannot reset them, so the rank says what its commd has."""
    words = ["nice", "-n", "5", "chrt", "--idle", "0", "sh", "-c",
             f"ulimit -l 64; exec {sys.executable} {c.HERE}/rank.py"]  # fmt: skip
    if os.geteuid() == 0:
        words = ["setpriv", "--bounding-set", "-sys_resource,-sys_nice", *words]
    with Place() as place:
        place.rank(words).call("connect")
        text = "64 KiB of locked memory (ulimit -l), nice 5, scheduling policy SCHED_IDLE (chrt)"
        check(f"commd: it has the limits of this process: {text}\n" in place.said(), place.said())
        check(f"has the limits of who started it: {text}\n" in place.log(), place.log())


def test_no_file_may_grow():
    """Not even the lock can be written to, nor the log: no reason to die."""
    with Place() as place:
        drop = "setpriv --bounding-set -sys_resource " if os.geteuid() == 0 else ""
        daemon = place.script("no_files", f'ulimit -f 0; exec {drop}{place.daemon} "$@"')
        place.rank(COMMD_DAEMON=daemon).call("connect")
        ((_, pid, _),) = started(place.said())
        check(running(int(pid)), "commd lives")
        keeper = int(status(pid, "PPid"))  # the lock is empty: Place does not know whom to kill
        os.kill(keeper, signal.SIGKILL)
        os.kill(int(pid), signal.SIGKILL)


def all_status():
    texts = []
    for name in glob.glob("/proc/[0-9]*/status"):
        with contextlib.suppress(OSError):
            with open(name) as file:
                texts.append(file.read())
    return "".join(texts)


def test_forbidden():
    with Place() as place:
        error = place.rank(COMMD_AUTOSTART="0").call_error("connect")
        equal(error["code"], "NO_DAEMON", error)
        equal(
            error["message"],
            f"{SYSTEM}: No such file or directory; is commd running? systemctl status commd, or "
            "set COMMD_SOCKET",
        )
        error = place.rank(COMMD_AUTOSTART="maybe").call_error("connect")
        equal((error["code"], error["message"]), ("INVALID",
              'COMMD_AUTOSTART is "maybe"; allowed: 0 (never start a daemon) and 1 (also where '
              "the service is meant to run)"))  # fmt: skip
        check(not os.path.exists(place.home), "nothing was made")
        # one that is there is used all the same
        place.rank(COMMD_AUTOSTART="1").call("connect")
        place.rank(COMMD_AUTOSTART="0").call("connect")
        # and a socket that was named is never walked around
        error = place.rank().call_error("connect", socket="/nonexistent/commd.sock")
        equal(error["code"], "NO_DAEMON", error)
        equal(len(started(place.said())), 1)


def test_a_service_that_does_not_answer():
    """Is missed, and not replaced by a commd that knows no other node."""
    if os.geteuid() != 0:
        raise Skip("needs root, for an /etc of its own")
    own_etc = (
        "mount -t tmpfs none /run && mkdir -p /run/systemd/system && "
        "mount -t tmpfs none /etc/systemd && mkdir -p /etc/systemd/system/multi-user.target.wants "
        "&& touch /etc/systemd/system/multi-user.target.wants/commd.service && "
        f"exec {sys.executable} {c.HERE}/rank.py"
    )
    words = ["unshare", "-m", "sh", "-c", own_etc]
    with Place() as place:
        error = place.rank(words).call_error("connect")
        equal(error["code"], "NO_DAEMON", error)
        for text in ("the service commd is enabled on this node", "systemctl status commd",
                     "COMMD_AUTOSTART=1"):  # fmt: skip
            check(text in error["message"], error)
        check(not os.path.exists(place.home), "nothing was started")
        place.rank(words, COMMD_AUTOSTART="1").call("connect")
        place.rank(words).call("connect")  # it is there by now
        equal(len(started(place.said())), 1, place.said())


def test_commctl_finds_it_and_starts_none():
    with Place() as place:
        def ask():
            return subprocess.run([c.COMMCTL, "status"], capture_output=True, text=True)

        with c.environment(**place.environment):
            done = ask()
            equal(done.returncode, 2)
            check(f"nor at {place.path}" in done.stderr, done.stderr)
            check(not os.path.exists(place.home), "commctl starts nothing")
            place.rank().call("connect")
            done = ask()
            equal((done.returncode, done.stderr), (0, ""))


def test_cannot_be_started():
    """What the daemon said comes to the user."""
    with Place() as place:
        bad = place.script("bad", "echo it is broken >&2; exit 3")
        error = place.rank(COMMD_DAEMON=bad).call_error("connect")
        equal(
            (error["code"], error["message"]),
            ("NO_DAEMON", f"no daemon is running, and {bad} could not be started: it is broken; "
             f"see {place.home}/commd.log, or forbid this with COMMD_AUTOSTART=0"),
        )  # fmt: skip
        error = place.rank(COMMD_DAEMON="/nonexistent").call_error("connect")
        check('COMMD_DAEMON is "/nonexistent", which cannot be run' in error["message"], error)
        silent = place.script("silent", "exit 0")
        error = place.rank(COMMD_DAEMON=silent).call_error("connect")
        check("it says nothing" in error["message"], error)
        place.rank().call("connect")


def test_the_starter_dies():
    with Place() as place:
        fifo = os.path.join(place.folder, "fifo")
        os.mkfifo(fifo)
        hangs = place.script("hangs", f"echo $$ > {fifo}; exec sleep 1000")
        starter, waiter = place.rank(COMMD_DAEMON=hangs), place.rank()
        starter.start("connect")
        with open(fifo) as file:
            stuck = int(file.read())
        waiter.start("connect")
        try:
            starter.kill()
            waiter.finish()
        finally:
            os.kill(stuck, signal.SIGKILL)
        equal(len(started(place.said())), 1)


def test_killed_daemon_is_replaced():
    """By its keeper, and without that by the next rank."""
    with Place() as place:
        place.expected = "was killed by signal 9"
        rank = place.rank()
        rank.call("connect")
        first = place.pid()
        os.kill(first, signal.SIGKILL)
        until(lambda: place.lock_pid() not in (0, first), "another commd")
        rank.call("join", name="g", rank=0, size=1)
        equal(len(started(place.said())), 1)
        place.kill()
        check(os.path.exists(place.path), "its socket is still there")
        place.rank().call("connect")
        equal(len(started(place.said())), 2)


def test_two_cannot_serve_one_socket():
    with Place() as place:
        place.rank().call("connect")
        pid = place.pid()
        with c.environment(**place.environment):
            done = subprocess.run([c.COMMD, "--user"], capture_output=True, text=True)
        equal(
            (done.returncode, done.stderr),
            (1, f"commd: {place.path}: a commd serves this user already (pid {pid})\n"),
        )
        place.rank().call("connect")


def test_cut_off_while_it_leaves():
    """Connected, but not answered, because the daemon is going: search again."""
    with Place() as place:
        os.mkdir(place.home, 0o700)
        with socket.socket(socket.AF_UNIX) as leaving:
            leaving.bind(place.path)
            leaving.listen()
            rank = place.rank()
            rank.start("connect")
            for _ in range(2):
                leaving.accept()[0].close()
            os.unlink(place.path)
        rank.finish()
        equal(len(started(place.said())), 1)


def test_comes_and_goes():
    """A daemon that leaves at once is met in every state of leaving."""
    with Place(idle="0.001") as place:
        ranks = [place.rank(), place.rank()]
        for i in range(20):
            for rank in ranks:
                rank.start("connect")
            for rank in ranks:
                rank.finish()
            c.Cluster.join(f"g{i}", ranks)
            for rank in ranks:
                rank.start("all_reduce", name=f"g{i}", count=10)
            for rank in ranks:
                rank.finish()
            for rank in ranks:
                rank.call("disconnect")
            # commd waits 30 ms for the end of a process whose socket has ended, then leaves:
            # come at different moments of that
            time.sleep(0.025 + i * 0.0005)
        check(len(started(place.said())) > 1, "it never left")


FORKS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from commd_client import Context
context = Context()
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
context.disconnect()
print(child, flush=True)
sys.stdin.read()
"""


def test_forked_child_does_not_hold_it():
    with Place(idle="0.1") as place, c.environment(**place.environment):
        environment = dict(os.environ, COMMD_LIB=c.LIBCOMMD, **c.sanitizer_environment())
        parent = subprocess.Popen(
            [sys.executable, "-c", FORKS, c.HERE], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            child = int(parent.stdout.readline())
            place.wait_gone(place.pid())
            check(running(child) and running(parent.pid), "both were alive all the time")
        finally:
            parent.communicate()
        equal(parent.returncode, 0)


def test_directory_of_others():
    with Place() as place:
        elsewhere = os.path.join(place.folder, "elsewhere")
        os.mkdir(elsewhere, 0o700)

        def refusal():
            error = place.rank().call_error("connect")
            equal(error["code"], "NO_DAEMON", error)
            prefix = f"no daemon is running, and none can be started for this user: {place.home}: "
            check(error["message"].startswith(prefix), error)
            return error["message"][len(prefix) :]

        os.symlink(elsewhere, place.home)
        equal(refusal(), "it is not a directory: remove it")
        os.unlink(place.home)
        os.mkdir(place.home)
        os.chmod(place.home, 0o770)
        equal(refusal(), "others may enter it: chmod 700")
        os.chmod(place.home, 0o700)
        os.symlink("/dev/null", os.path.join(place.home, "start.lock"))
        check("Too many levels of symbolic links" in refusal(), "a link as lock")
        os.unlink(os.path.join(place.home, "start.lock"))
        equal(os.listdir(elsewhere), [], "nothing was made through the link")
        if os.geteuid() == 0:
            os.chown(place.home, 12345, -1)
            check(refusal().startswith("it belongs to another user: set XDG_RUNTIME_DIR"), "")
            os.chown(place.home, 0, -1)


def test_impostor():
    """A socket of ours at which somebody else answers."""
    if os.geteuid():
        raise Skip("needs root, to be two users")
    with Place() as place:
        os.mkdir(place.home, 0o700)
        os.chmod(place.folder, 0o755)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(place.path)
            os.seteuid(12345)
            try:
                listener.listen()  # its credentials are those of now
            finally:
                os.seteuid(0)
            error = place.rank().call_error("connect")
            equal(error["code"], "NO_DAEMON", error)
            check("this user may not connect" in error["message"], error)


def torchrun():
    """Of the environment that ./quickstart made."""
    path = os.environ.get("COMMD_TORCHRUN", os.path.join(c.TOP, ".venv/bin/torchrun"))
    if not os.path.exists(path):
        raise Skip(f"no {path}: set COMMD_TORCHRUN")
    if c.sanitizer_environment():
        raise Skip("torch and sanitizers do not go together")
    return path


TRAIN = r"""
import os
import torch, torch.distributed as dist
dist.init_process_group("commd")
x = torch.full((1000,), float(dist.get_rank()))
dist.all_reduce(x)
n = dist.get_world_size()
assert torch.equal(x, torch.full((1000,), n * (n - 1) / 2)), x
g = dist.new_group([0, n - 1])
if dist.get_rank() in (0, n - 1):
    dist.barrier(g)
os.write(1, b"fine\n")
dist.destroy_process_group()
"""


def test_torchrun():
    """A user who types torchrun and nothing else."""
    program = torchrun()
    for ranks in (2, 8):
        with Place(idle="1") as place:
            script = os.path.join(place.folder, "train.py")
            with open(script, "w") as file:
                file.write(TRAIN)
            done = c.run(
                [program, "--standalone", "--nproc-per-node", str(ranks), script],
                18 * c.HANG, cwd=place.folder,
                env={
                    "HOME": place.folder, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1",
                    "LD_LIBRARY_PATH": os.path.dirname(c.LIBCOMMD),
                    "XDG_RUNTIME_DIR": place.folder, "COMMD_DAEMON": place.daemon,
                },
            )  # fmt: skip
            equal(done.returncode, 0, done.stdout + done.stderr)
            equal(done.stdout.count("fine"), ranks, done.stdout)
            equal(len(started(done.stderr)), 1, done.stderr)
            place.wait_gone(place.pid())


if __name__ == "__main__":
    main(globals())
