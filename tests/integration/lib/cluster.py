"""Real commds, engines and ranks on this machine, for tests. Standard library only.

    with Cluster(2) as cluster:
        ranks = cluster.ranks("group", [0, 0, 1])       # 2 ranks on node0, 1 on node1
        ...

A Cluster starts its commds in a directory of its own and waits until they see each other. When the
block ends it stops them and fails the test if anything went wrong on the side: a commd that did
not exit with 0, a process, socket or pid file that is left, a line of warn or error level in a
log that the test did not announce by expect().

Nothing here sleeps a fixed time: until() asks for a state until it is there, and gives up after
a limit that only a hang reaches (limit.py). The programs are those of the build directory:
$COMMD_BUILD, else the current directory (make check), else build/ beside the sources.
"""

import contextlib
import json
import os
import random
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

from limit import HANG, LATEST, Limit, communicate, exit_code, now, run  # noqa: F401

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
PORT_FIRST, PORT_LAST, PORT_BLOCK = 10240, 32000, 16
reserved = {}  # the first port of a block: the socket that holds it


def find_build():
    for folder in (os.environ.get("COMMD_BUILD"), os.getcwd(), os.path.join(TOP, "build")):
        if folder and os.path.exists(os.path.join(folder, "client/lib/.libs/libcommd.so")):
            return os.path.abspath(folder)
    raise SystemExit("no build found: run make first, or set COMMD_BUILD")


BUILD = find_build()
COMMD = os.path.join(BUILD, "daemon/commd")
COMMCTL = os.path.join(BUILD, "client/ctl/commctl")
ENGINE = os.path.join(BUILD, "transport/commd-engine")
LIBCOMMD = os.path.join(BUILD, "client/lib/.libs/libcommd.so")
FABRIC = os.environ.get("COMMD_TEST_FABRIC")  # for all clusters that do not say otherwise
SHORT = bool(os.environ.get("COMMD_TEST_SHORT"))
# On a busy machine ranks wait for longer than 30 s, and tests look at what they say.
os.environ.setdefault("COMMD_WARN_AFTER", "3600")


def how_many(full, short):
    """Of what only takes longer the more of it there is: @short where another build does it all."""
    return short if SHORT else full


class Skip(Exception):
    """The test cannot run here; the reason is the text."""


# A shell lets background jobs ignore SIGINT, and what they start would ignore it too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def equal(got, want, what=""):
    if got != want:
        raise AssertionError(f"{what}\n  got  {got!r}\n  want {want!r}")


def until(condition, what, seconds=HANG):
    """Asks until the answer is true, and returns it."""
    limit = Limit(seconds)
    while True:
        over = limit.over()  # before it is asked: it is asked once more when the time is over
        answer = condition()
        if answer:
            return answer
        if over:
            raise AssertionError(f"not within {seconds:g} s: {what() if callable(what) else what}")
        time.sleep(0.005)


def commctl(node):
    """The words that begin a command line. A --timeout behind them counts instead of this one."""
    return [COMMCTL, "--socket", node.socket, "--timeout", str(LATEST)]


def need_ucx():
    with open(os.path.join(BUILD, "config.h")) as file:
        if "#define HAVE_UCX 1" not in file.read():
            raise Skip("built without UCX")


# ---- processes ---------------------------------------------------------------------------------


def running(pid):
    """Whether @pid is there, or a thread of it: they hold its files until the last has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
        return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def memory_files(pid):
    """Shared memory of commd that the process holds open or mapped."""
    found = []
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        with open(f"/proc/{pid}/maps") as file:
            found += [line.split(None, 5)[-1].strip() for line in file if "/memfd:" in line]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return [name for name in found if name.startswith("/memfd:")]


def shared_memory():
    """Files in /dev/shm that could be ours. Other programs of this machine come and go there."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("commd", "ucx"))}


@contextlib.contextmanager
def environment(**changes):
    """Processes that are started meanwhile have it."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def sanitizer_environment():
    """What a plain python needs to load a library that was built with a sanitizer."""
    with open(LIBCOMMD, "rb") as file:
        content = file.read()
    for symbol, library in ((b"__asan_init", "libasan.so"), (b"__tsan_init", "libtsan.so")):
        if symbol in content:
            found = subprocess.check_output(["gcc", f"-print-file-name={library}"], text=True)
            # python itself leaks by design; commd and its engine are not excused
            return {"LD_PRELOAD": found.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    return {}


class Rank:
    """A process of rank.py."""

    def __init__(self, node, program=None, stderr=None):
        environment = dict(os.environ, COMMD_SOCKET=node.socket, COMMD_LIB=LIBCOMMD)
        environment.update(sanitizer_environment())
        self.node = node
        self.program = program or [sys.executable, os.path.join(HERE, "rank.py")]
        self.process = subprocess.Popen(
            self.program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            stderr=stderr,
        )  # fmt: skip
        self.pid = self.process.pid
        self.buffer = b""

    def start(self, do, **arguments):
        line = json.dumps(dict(arguments, do=do)) + "\n"
        self.process.stdin.write(line.encode())

    def answer(self, seconds=HANG):
        limit = Limit(seconds)
        out = self.process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while b"\n" not in self.buffer:
                over = limit.over()
                if not selector.select(min(1, limit.left())):
                    who = f"rank process {self.pid} on {self.node.name}"
                    check(not over, f"{who} gives no answer in {seconds:g} s")
                    continue
                data = os.read(out.fileno(), 65536)
                check(data, f"rank process {self.pid} ended with {self.process.poll()}")
                self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        answer = json.loads(line)
        check("failed" not in answer, answer.get("failed"))
        return answer

    def finish(self, seconds=HANG):
        """The result of what was started, which must be a success."""
        answer = self.answer(seconds)
        check("error" not in answer, f"failed: {answer.get('error')}")
        return answer["ok"]

    def error(self, seconds=HANG):
        """The error of what was started, which must be a failure; with the time of it in "at"."""
        answer = self.answer(seconds)
        check("error" in answer, f"succeeded: {answer}")
        return dict(answer["error"], at=answer["at"])

    def call(self, do, seconds=HANG, **arguments):
        self.start(do, **arguments)
        return self.finish(seconds)

    def call_error(self, do, seconds=HANG, **arguments):
        self.start(do, **arguments)
        return self.error(seconds)

    def kill(self):
        """SIGKILL; returns the time of it."""
        at = now()
        self.process.kill()
        self.process.wait()
        return at

    def close(self):
        """It ends, once it has done what it was told."""
        self.process.stdin.close()
        exit_code(self.process)
        self.process.stdout.close()


# ---- nodes ---------------------------------------------------------------------------------------


class Node:
    def __init__(self, cluster, index, address, port):
        self.cluster, self.index, self.address, self.port = cluster, index, address, port
        self.name = f"node{index}"
        self.home = os.path.join(cluster.folder, self.name)
        self.socket = os.path.join(self.home, "commd.sock")
        self.config = os.path.join(self.home, "commd.yaml")
        self.log_file = os.path.join(self.home, "commd.log")
        self.process = None
        self.prefix = []
        os.mkdir(self.home)

    def write_config(self, **changes):
        """Sections as dictionaries of "key" to text; `changes` are merged in."""
        sections = {
            "cluster": {
                "name": "test",
                "node": self.name,
                "key_file": self.cluster.key_file,
                "nodes": "\n"
                + "\n".join(
                    f"    - {{name: {n.name}, address: {n.address}, port: {n.port}}}"
                    for n in self.cluster.nodes
                ),
            },
            "listen": {"socket": self.socket, "pid_file": os.path.join(self.home, "commd.pid")},
            "transport": {
                "engine": ENGINE,
                "engine_pid_file": os.path.join(self.home, "engine.pid"),
                "port_range": f"{self.port + 1}-{self.port + PORT_BLOCK - 1}",
            },
            "log": {"level": "info"},
        }
        if FABRIC:
            sections["transport"]["fabric"] = FABRIC
        for section, keys in {**self.cluster.changes, **changes}.items():
            sections.setdefault(section, {}).update(keys)
        with open(self.config, "w") as file:
            for section, keys in sections.items():
                file.write(f"{section}:\n")
                file.writelines(f"  {key}: {value}\n" for key, value in keys.items())

    def start(self, environment=None, arguments=()):
        log = open(self.log_file, "ab")
        self.process = subprocess.Popen(
            [*self.prefix, COMMD, "--config", self.config, *arguments],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env=dict(os.environ, **(environment or {})),
        )  # fmt: skip
        log.close()

    @property
    def pid(self):
        return self.process.pid

    def pid_in(self, name):
        """Of the process that has written that file; 0 while there is none."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            with open(os.path.join(self.home, name)) as file:
                pid = int(file.read())
            if running(pid):
                return pid
        return 0

    def engine_pid(self):
        return self.pid_in("engine.pid")

    def ctl(self, *verb):
        """The JSON answer, or None."""
        done = subprocess.run(
            [*commctl(self), "--json", *verb],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        return json.loads(done.stdout) if done.returncode in (0, 1) and done.stdout else None

    def sees(self, names):
        """Are all of them (or this node) up?"""
        answer = self.ctl("nodes")
        if not answer:
            return False
        states = {row["node"]: row["state"] for row in answer["nodes"]}
        return all(states.get(name) in ("self", "up") for name in names)

    def groups(self):
        return (self.ctl("groups") or {}).get("groups", [])

    def clients(self):
        return (self.ctl("clients") or {}).get("clients", [])

    def log(self):
        with contextlib.suppress(FileNotFoundError):
            with open(self.log_file, errors="replace") as file:
                return file.read()
        return ""

    def wait_log(self, pattern, seconds=HANG):
        """Waits for a line that matches."""
        return until(
            lambda: re.search(pattern, self.log()),
            f"a log line {pattern!r} of {self.name}",
            seconds,
        )

    def kill(self):
        at = now()
        self.process.kill()
        self.process.wait()
        return at

    def stop(self):
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return exit_code(self.process)


class Cluster:
    """@changes: {"section": {"key": "value"}} for every node's configuration."""

    def __init__(self, count, changes=None, start=True):
        self.count, self.changes, self.want_start = count, changes or {}, start
        self.all_ranks = []
        self.expected = [re.compile("more lines left out in")]  # of those that a test announces
        self.before = shared_memory()

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="commd-test.")
        self.key_file = os.path.join(self.folder, "cluster.key")
        with open(os.open(self.key_file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(os.urandom(32).hex())
        try:
            self.nodes = []
            for index, (address, port) in enumerate(self.places()):
                self.nodes.append(self.make_node(index, address, port))
            for node in self.nodes:
                node.write_config()
            if self.want_start:
                self.start()
        except BaseException:
            self.show_logs()
            self.end()
            raise
        return self

    def places(self):
        """(address, port) of each node; the ports above are its engine's."""
        return [("127.0.0.1", port) for port in free_port_blocks(self.count)]

    def make_node(self, index, address, port):
        return Node(self, index, address, port)

    def start(self):
        for node in self.nodes:
            node.start()
        self.wait_linked()

    def wait_linked(self, nodes=None):
        nodes = nodes or self.nodes
        names = [node.name for node in nodes]
        for node in nodes:
            until(
                lambda node=node: self.alive(node) and node.sees(names), f"{node.name} sees {names}"
            )

    @staticmethod
    def alive(node):
        check(node.process.poll() is None, f"{node.name} ended with {node.process.poll()}")
        return True

    def expect(self, pattern):
        """A line of warn or error level that matches is right in this test."""
        self.expected.append(re.compile(pattern))

    def rank(self, node, connect=True):
        rank = Rank(self.nodes[node])
        self.all_ranks.append(rank)
        if connect:
            equal(rank.call("connect"), rank.node.name)
        return rank

    def ranks(self, group, places):
        """One rank per entry of @places (a node's index), all joined."""
        ranks = [self.rank(place, connect=False) for place in places]
        for rank in ranks:
            rank.start("connect")
        for rank in ranks:
            rank.finish()
        self.join(group, ranks)
        return ranks

    def ranks_heard(self, group, places):
        """(ranks(), a function that returns what they have said on stderr until then)"""
        out = os.path.join(self.folder, "stderr")
        with open(out, "w") as file:
            saved = os.dup(2)
            os.dup2(file.fileno(), 2)
            try:
                ranks = self.ranks(group, places)
            finally:
                os.dup2(saved, 2)
                os.close(saved)

        def said():
            with open(out) as file:
                return file.read()

        return ranks, said

    @staticmethod
    def join(group, ranks, **arguments):
        for number, rank in enumerate(ranks):
            rank.start("join", name=group, rank=number, size=len(ranks), **arguments)
        for rank in ranks:
            rank.finish()

    # ---- the end --------------------------------------------------------------------------------

    def __exit__(self, kind, error, trace):
        try:
            if kind is None:
                self.finish()
        except BaseException:
            self.show_logs()
            raise
        else:
            if kind is not None and not issubclass(kind, Skip):
                self.show_logs()
        finally:
            self.end()

    def finish(self):
        for rank in self.all_ranks:
            rank.close()
        self.check_logs()
        # nodes stop one after the other, and the others say so
        self.expect("was lost: its commd ended the link")
        self.expect("the engines of nodes .* lost each other")
        self.expect("UCX +ERROR")
        for node in self.nodes:
            if node.process and node.process.poll() is None:
                engine = node.engine_pid()
                equal(node.stop(), 0, f"exit code of {node.name} after SIGTERM")
                if engine:
                    until(lambda engine=engine: not running(engine), f"engine {engine} ends")
                left = sorted(os.listdir(node.home))
                equal(left, ["commd.log", "commd.yaml"], f"left in the directory of {node.name}")
        equal(shared_memory() - self.before, set(), "left in /dev/shm")
        self.check_logs()

    def check_logs(self):
        bad = re.compile(
            r"\] (warn|error): |UCX +(WARN|ERROR)|Sanitizer|runtime error|Assert", re.I
        )
        for node in self.nodes:
            for line in node.log().splitlines():
                if bad.search(line) and not any(p.search(line) for p in self.expected):
                    raise AssertionError(f"unexpected in the log of {node.name}: {line}")

    def show_logs(self):
        for node in getattr(self, "nodes", []):
            print(f"--- log of {node.name}, its end:")
            print("\n".join(node.log().splitlines()[-40:]))
        sys.stdout.flush()

    def end(self):
        """Whatever happened before: nothing stays."""
        for rank in self.all_ranks:
            rank.process.kill()
            rank.process.wait()
            for pipe in (rank.process.stdin, rank.process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()
        for node in getattr(self, "nodes", []):
            engine = node.engine_pid()
            if node.process and node.process.poll() is None:
                node.process.kill()
                node.process.wait()
            if engine:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(engine, signal.SIGKILL)
        release_ports(node.port for node in getattr(self, "nodes", []))
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port_blocks(count):
    """First ports of blocks in which nobody listens.

    Tests run side by side, and a node listens only some time after its port was chosen. So each
    block is reserved, by a UDP socket at its first port, until release_ports() or the end of this
    process.
    """
    found = []
    port = random.Random(os.getpid() * 7919 + time.time_ns()).randrange(
        PORT_FIRST, PORT_LAST, PORT_BLOCK
    )
    while len(found) < count:
        port += PORT_BLOCK
        if port > PORT_LAST:
            port = PORT_FIRST
        if all(port_is_free(p) for p in range(port, port + PORT_BLOCK)) and reserve(port):
            found.append(port)
    return found


def reserve(port):
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        holder.bind(("127.0.0.1", port))
    except OSError:
        holder.close()
        return False
    reserved[port] = holder
    return True


def release_ports(ports):
    for port in ports:
        if holder := reserved.pop(port, None):
            holder.close()


def port_is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


# ---- running tests ---------------------------------------------------------------------------


def main(namespace):
    """Runs the functions test_*, or those named on the command line. 77: all were skipped."""
    tests = {name: f for name, f in namespace.items() if name.startswith("test_") and callable(f)}
    wanted = sys.argv[1:] or list(tests)
    failed = skipped = 0
    for name in wanted:
        begin = now()
        try:
            tests[name]()
            verdict = "ok  "
        except Skip as reason:
            verdict = f"SKIP ({reason})"
            skipped += 1
        except Exception:
            traceback.print_exc()
            verdict = "FAIL"
            failed += 1
        print(f"{verdict} {name} ({now() - begin:.2f} s)", flush=True)
    if failed:
        sys.exit(1)
    sys.exit(77 if skipped == len(wanted) else 0)
