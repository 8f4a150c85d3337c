#!/usr/bin/env python3
"""What a user of a node, and anybody who reaches a node's ports, can do by doing it very often."""

import contextlib
import errno
import os
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from authority import Certified  # noqa: E402
from cluster import Cluster, Skip, check, equal, main, until  # noqa: E402
from strangers import hello_of_engine  # noqa: E402
from wire import HELLO, VERSION, WELCOME, Wire, frame  # noqa: E402

MALLORY, ALICE = 4001, 4002

# Says "ready", goes on until its stdin is closed, and then says how often it did it.
PROLOGUE = """
import os, select, socket, struct, sys, time
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
from wire import Wire, frame, hello, leave
from commd_client import Context
import errno, encodings.idna
uid = int(sys.argv[2])  # only now: python may lie where that user cannot read
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
def over():
    return select.select([0], [], [], 0)[0]
def ready():
    print("ready", flush=True)
"""


@contextlib.contextmanager
def as_user(uid, code, *arguments):
    """A python process of @uid that runs @code; yields it once it said "ready"."""
    if os.geteuid() != 0:
        raise Skip("a process of another user needs root")
    process = subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + code, c.HERE, str(uid), *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=dict(
            os.environ, COMMD_BUILD=c.BUILD, COMMD_LIB=c.LIBCOMMD, **c.sanitizer_environment()
        ),
    )  # fmt: skip
    try:
        equal(process.stdout.readline(), "ready\n")
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def end(process):
    """What it says at its end."""
    process.stdin.close()
    text = process.stdout.read()
    equal(c.exit_code(process), 0, "exit code of the flood")
    return text.strip()


def open_to_all(cluster):
    os.chmod(cluster.folder, 0o755)
    for node in cluster.nodes:
        os.chmod(node.home, 0o755)


OPEN = {"listen": {"socket_mode": "0666"}}

# ---- the log ---------------------------------------------------------------------------------

LEAVES = """
path, count, bad = sys.argv[3], 0, leave(struct.pack("<Q", 77))
ready()
limit = time.monotonic() + 2
while time.monotonic() < limit or count < 200:
    wires = [Wire(path) for _ in range(8)]
    for wire in wires:
        wire.send(hello() + bad)
    for wire in wires:
        wire.read(), wire.refusal()
        wire.sock.close()
        count += 1
print(count)
"""

ONE_LEAVE = LEAVES.replace("range(8)", "range(1)").replace(
    "while time.monotonic() < limit or count < 200:", "for _ in range(1):"
)

ABORTS = """
context, count = Context(sys.argv[3], 0), 0
ready()
while count < 400:
    group = context.join('a" -> broken; user 0: "' + str(count), 0, 1, 0)
    group.abort('x" -> broken\\nuser 0: "' + "\\u202e\\x9b" + "y" * 400)
    group.leave()
    count += 1
print(count)
"""


def left_out(node, who):
    return sum(
        int(n) for n in re.findall(re.escape(who) + r": (\d+) more lines left out", node.log())
    )


def test_a_user_cannot_fill_the_log():
    """Thousands of refusals by one user: a dozen lines, and a true account of the others."""
    with Cluster(1, OPEN) as cluster:
        open_to_all(cluster)
        node = cluster.nodes[0]
        before = len(node.log())
        with as_user(MALLORY, LEAVES, node.socket) as flood:
            count = int(end(flood))
        with as_user(ALICE, ONE_LEAVE, node.socket) as one:
            equal(end(one), "1")
        lines = [line for line in node.log()[before:].splitlines() if "leaves group 77" in line]
        check(len(lines) <= 13, f"{len(lines)} lines of {count}: the first ten, and one each 10 s")
        check(lines and "info: client pid " in lines[-1], "a level of its own")
        with as_user(ALICE, ONE_LEAVE, node.socket) as one:
            equal(end(one), "1")
        seen = len(re.findall("leaves group 77", node.log()))
        check(seen > len(lines), "another user's line appears beside the flood")
        mallory = len(lines) - 1
        until(lambda: left_out(node, f"user {MALLORY}"), "the summary of the flood", 2 * c.HANG)
        equal(left_out(node, f"user {MALLORY}"), count - mallory, "lines that were left out")
        check(len(node.log()) - before < 4000, "bytes of the log")


def test_what_clients_write_is_marked_and_cut():
    """Texts and names of clients stand in quotes, cannot end them, and are cut."""
    with Cluster(1, OPEN) as cluster:
        open_to_all(cluster)
        node = cluster.nodes[0]
        before = len(node.log())
        with as_user(MALLORY, ABORTS, node.socket) as flood:
            equal(end(flood), "400")
        lines = [line for line in node.log()[before:].splitlines() if "-> broken" in line]
        check(1 <= len(lines) <= 12, f"{len(lines)} lines")
        for line in lines:
            check(len(line) < 500, f"{len(line)} bytes: {line}")
            text = re.sub(r'"([^"\\]|\\.)*"', "TEXT", line.partition("info: ")[2])
            check(re.fullmatch(r"group TEXT: TEXT(\.\.\.)? -> broken", text), f"{line}\n{text}")
            check(line.isascii(), f"hidden characters: {line!r}")
        with Wire(node.socket) as wire:
            wire.send(frame(HELLO, f1=VERSION, f3="p\u202e"))
            equal(wire.read()[0], WELCOME)
            programs = [row["program"] for row in node.clients()]
        equal(programs, ["p???"], "programs as commctl shows them")


# ---- the ports for nodes ---------------------------------------------------------------------

CONNECTS = """
ports, say = [int(p) for p in sys.argv[3].split(",")], bytes.fromhex(sys.argv[4])
count, held = 0, []
ready()
while not over():
    for port in ports:
        sock = socket.socket()
        sock.setblocking(False)
        try:
            sock.connect(("127.0.0.1", port))
        except BlockingIOError:
            pass
        held.append(sock)
    select.select([0], [], [], 0.005)  # 200 times a second
    for sock in held[-len(ports):]:
        try:
            sock.send(say)
            count += 1
        except OSError:
            pass
    for sock in held[:-300]:
        sock.close()
    del held[:-300]
print(count)
"""

SILENT, PART, GARBAGE = "", "160301020001", "00" * 300


def flooded(ports_of, says, changes, disturb, kind=Cluster):
    with kind(2, changes) as cluster, contextlib.ExitStack() as stack:
        for pattern in ("connection from 127.0.0.1", "node node. was lost", "engines? of node",
                        "was lost"):  # fmt: skip
            cluster.expect(pattern)
        ports = ",".join(str(p) for node in cluster.nodes for p in ports_of(node))
        before = cluster.ranks("before", [0, 1])
        floods = [
            stack.enter_context(as_user(uid, CONNECTS, ports, say))
            for uid in (MALLORY, ALICE)
            for say in says
        ]
        verified(before, "before")
        for turn in range(2):
            disturb(cluster)
            cluster.wait_linked()
            ranks = cluster.ranks(f"after{turn}", [0, 1])
            verified(ranks, f"after{turn}")
        for flood in floods:
            check(int(end(flood)) > 20, "that was no flood")
        for node in cluster.nodes:
            lines = [x for x in node.log().splitlines() if "connection from" in x]
            check(len(lines) <= 20, f"{len(lines)} lines by floods")


def verified(ranks, name):
    for _ in range(20):
        for rank in ranks:
            rank.start("all_reduce", name=name, count=1000, dtype="u8", fill=3)
        for rank in ranks:
            equal(rank.finish(), "06" * 16, "sum of two ranks")


def restart(cluster):
    cluster.nodes[1].kill()
    cluster.nodes[1].start()


def whole_hello():
    """The first bytes of a TLS 1.3 client, in hex."""
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="node1").do_handshake()
    return out.read().hex()


def test_users_of_a_node_cannot_shut_out_its_commd():
    """Two users of a node's own address connect to the ports of both commds all the time: with
    silence, with half a TLS hello, with garbage. The nodes link again all the same."""

    flooded(lambda node: [node.port], (SILENT, PART, GARBAGE), {}, restart)


def test_users_of_a_node_cannot_shut_out_one_with_certificates():
    """The same with whole hellos: each has to be answered by a certificate before it is known who
    it is."""
    flooded(lambda node: [node.port], (SILENT, PART, whole_hello()), {}, restart, Certified)


def test_users_of_a_node_cannot_shut_out_its_engine():
    """The same at the ports of the engines, with half a hello and with whole ones of no peer."""

    def kill_engine(cluster):
        pid = until(cluster.nodes[1].engine_pid, "an engine")
        os.kill(pid, signal.SIGKILL)
        until(lambda: cluster.nodes[1].engine_pid() not in (0, pid), "another engine")

    flooded(
        lambda node: range(node.port + 1, node.port + 5),
        (SILENT, PART, GARBAGE),
        {"transport": {"fabric": "tcp"}},
        kill_engine,
    )


def test_who_said_hello_stays_in_the_lobby():
    """An engine gives up those first that say nothing: a peer whose token it does not know yet
    keeps its place."""
    with Cluster(2, {"transport": {"fabric": "tcp"}}) as cluster, contextlib.ExitStack() as stack:
        node = cluster.nodes[0]

        def connect(port):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            return None if sock.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED else sock

        def listens(port):
            with socket.socket() as sock:
                return sock.connect_ex(("127.0.0.1", port)) == 0

        port = until(
            lambda: next(filter(listens, range(node.port + 1, node.port + 16)), 0), "its port"
        )
        peer = connect(port)
        hello = hello_of_engine(0, 1, 1, 0, b"x" * 48)
        until(lambda: sends(peer, hello), "the hello is sent")
        silent = [connect(port) for _ in range(200)]
        until(lambda: sum(closed(sock) for sock in silent) >= 73, "128 of 201 are kept")
        check(not closed(peer), "the one that said hello is kept")


def sends(sock, data):
    try:
        return sock.send(data) == len(data)
    except BlockingIOError:
        return False


def closed(sock):
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


# ---- the key ---------------------------------------------------------------------------------


def test_the_engine_is_kept_from_the_key():
    """commd and engine of one user: the engine gave up its rights, and commd's memory is closed to
    that user. What that comes to, test_confine shows."""
    if os.geteuid() != 0:
        raise Skip("a commd of another user needs root")
    if c.sanitizer_environment():
        raise Skip("the leak check needs what is given up here")
    with Cluster(2, {"transport": {"fabric": "tcp"}}, start=False) as cluster:
        for folder, _, files in os.walk(cluster.folder):
            for path in [folder, *(os.path.join(folder, name) for name in files)]:
                os.chown(path, ALICE, ALICE)
        for node in cluster.nodes:
            node.prefix = ["setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups"]
        cluster.start()
        for node in cluster.nodes:
            pid = node.engine_pid()
            with open(f"/proc/{pid}/status") as file:
                text = file.read()
            check("NoNewPrivs:\t1" in text, "the engine can gain no rights")
            check(os.stat(f"/proc/{pid}/mem").st_uid == ALICE, "the engine is of the user")
            equal(os.stat(f"/proc/{node.pid}/mem").st_uid, 0, "owner of commd's files in /proc")
        verified(cluster.ranks("g", [0, 1]), "g")


# ---- the firewall file -----------------------------------------------------------------------

ASK = """
import os, socket, sys
os.setgroups([])
os.setuid(int(sys.argv[1]))
sock = socket.socket()
sock.settimeout(float(sys.argv[4]))
try:
    sock.connect((sys.argv[2], int(sys.argv[3])))
    print("open")
except ConnectionRefusedError:
    print("refused")
"""


def test_the_firewall_file_knows_users():
    """Of a node's users, root and that of commd reach the ports of a node, and no other does."""
    nft = shutil.which("nft", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if os.geteuid() != 0 or not nft:
        raise Skip("needs root and nft: apt install nftables")
    with open(os.path.join(c.TOP, "systemd/commd.nft")) as file:
        rules = file.read()
    # what an administrator is told to replace
    for old, new in (
        ("elements = { 127.0.0.1 }", "elements = { 127.0.0.1, 10.77.2.1, 10.77.2.2 }"),
        (
            "define services = { root, commd, commd-engine }",
            f"define services = {{ root, {ALICE} }}",
        ),
    ):
        check(old in rules, f"{old!r} in the file")
        rules = rules.replace(old, new)
    names = [f"commd-floods-{os.getpid()}-{i}" for i in range(2)]
    with contextlib.ExitStack() as stack:
        try:
            for name in names:
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
            a, b = names
            ip("-n", a, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", b)
            for name, address in ((a, "10.77.2.1"), (b, "10.77.2.2")):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", "veth0", "up")
                subprocess.run(
                    ["ip", "netns", "exec", name, nft, "-f", "-"],
                    input=rules, text=True, check=True, capture_output=True,
                )  # fmt: skip
        except subprocess.CalledProcessError as error:
            if "netns" in str(error.cmd) and nft not in error.cmd:
                raise Skip(f"no network namespaces here: {error.stderr}") from None
            if "Operation not" in error.stderr:
                raise Skip(f"nft does not work here: {error.stderr}") from None
            raise AssertionError(error.stderr) from None
        listen = ("import socket\nlisteners = [socket.create_server(('', port)) for port in "
                  "(18400, 18500, 18599, 18600)]\nprint('ready', flush=True)\ninput()")  # fmt: skip
        for name in names:
            server = subprocess.Popen(
                ["ip", "netns", "exec", name, sys.executable, "-c", listen],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.callback(server.wait)
            stack.callback(server.stdout.close)
            stack.callback(server.communicate, "\n")
            equal(server.stdout.readline(), "ready\n")

        def ask(uid, address, port):
            done = subprocess.run(
                ["ip", "netns", "exec", a, sys.executable, "-c", ASK,
                 str(uid), address, str(port), str(c.LATEST)],
                stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            return done.stdout.strip()

        for address in ("10.77.2.2", "10.77.2.1", "127.0.0.1"):
            for port in (18400, 18500, 18599, 18600):
                for uid in (0, ALICE, MALLORY):
                    want = "refused" if uid == MALLORY and port != 18600 else "open"
                    equal(ask(uid, address, port), want, f"user {uid} at {address} port {port}")


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


if __name__ == "__main__":
    main(globals())
