#!/usr/bin/env python3
"""Descriptors that block whoever closes them, sent to commd in every way that a client has.

The attacker is another user (uid 4001). Its weapon: a TCP socket with unsent data and SO_LINGER of
LINGER seconds, its own copy closed: whoever closes the last one waits. Meanwhile ranks of root run
collectives and verify their results, commctl is answered, no node is lost, commd and engine live
on, and in the end commd has as many descriptors as before.

A file of FUSE would do the same without an end, and no signal would help: such a one keeps a thread
of commd, and its user's other descriptors behind it, until its daemon answers.
"""

import array
import contextlib
import errno
import os
import signal
import socket
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
import wire  # noqa: E402
from cluster import Cluster, Skip, check, equal, main, running, until  # noqa: E402

UID = 4001
LINGER = 1000  # far beyond what a test waits for anything
ARENA_ADD = 7


# ---- the attacker's ------------------------------------------------------------------------------


class Lingers:
    """Makes sockets whose last close waits, as long as this object is there."""

    def __init__(self):
        self.server = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.made = []

    def one(self):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock.connect(self.server.getsockname())
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.send(bytes(65536))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER))
        return sock.detach()

    def nested(self):
        """Inside of a UNIX socket, inside of another one."""
        inner, outer = self.one(), None
        for _ in range(2):
            outer, end = socket.socketpair()
            send_fds(outer, b"x", [inner])
            outer.close()
            inner = end.detach()
        return inner


def send_fds(sock, data, fds):
    """Sends them and closes our copies."""
    try:
        sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
    finally:
        for fd in set(fds):
            os.close(fd)


def connected(path):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    return sock


def connected_for_ever(path):
    kept.append(connected(path))
    return kept[-1]


kept = []


def eof(sock):
    """All that commd has to say, up to the end."""
    sock.settimeout(c.LATEST)
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(65536):
            pass


def arena_add():
    return wire.frame(ARENA_ADD, f1=1, f3=1 << 20)


attacks = {}


def attack(function):
    """Runs as the attacker, with commd stopped up to the yield: an end that its sender closed last
    would block the sender. After its end it still lives until nothing is left of what it sent,
    because with it would go what the sockets linger for."""
    attacks[function.__name__] = function
    return function


@attack
def surplus(path, lingers):
    socks = [connected(path) for _ in range(3)]
    for sock, n in zip(socks, (3, 1, 10)):
        send_fds(sock, b"c", [lingers.one() for _ in range(n)])
    yield
    eof(socks[0])
    eof(socks[2])


@attack
def with_every_message(path, lingers):
    socks = []
    for data in (wire.hello(), wire.hello() + wire.frame(wire.LEAVE, f1=1), b"garbage!",
                 wire.hello() + wire.join(1, 0, 1, "x"), arena_add()):  # fmt: skip
        socks.append(connected(path))
        send_fds(socks[-1], data, [lingers.one()])
    other = connected(path)  # taken for an arena, refused as such
    send_fds(other, wire.hello() + arena_add(), [lingers.one()])
    send_fds(other, arena_add(), [lingers.one()])
    yield
    for sock in socks:
        eof(sock)
    other.settimeout(c.LATEST)
    check(other.recv(1), "an answer")


@attack
def left_in_the_queue(path, lingers):
    """commd ends the session at the first bytes; the rest is never read."""
    socks = []
    for data in (b"garbage!", wire.hello(version=99)):
        socks.append(connected(path))
        socks[-1].sendall(data)
        for _ in range(20):
            send_fds(socks[-1], b"x", [lingers.one()])
    yield
    for sock in socks:
        eof(sock)


@attack
def of_a_killed_process(path, lingers):
    children = []
    for _ in range(3):
        ready, done = os.pipe()
        children.append(os.fork())
        if children[-1] == 0:
            sock = connected(path)
            for _ in range(10):
                send_fds(sock, arena_add(), [lingers.one()])
            os.write(done, b"x")
            signal.pause()
        os.read(ready, 1)
    for child in children[:2]:  # one lives on: it is refused
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    yield
    os.kill(children[2], signal.SIGKILL)
    os.waitpid(children[2], 0)


@attack
def refused_at_the_door(path, lingers):
    """More connections than a user may have, each with something inside."""
    socks = [connected(path) for _ in range(60)]
    for sock in socks:
        send_fds(sock, b"c", [lingers.one(), lingers.one()])
    yield
    for sock in socks[30:]:
        eof(sock)


@attack
def as_many_as_go(path, lingers):
    null = os.open("/dev/null", os.O_RDONLY)
    socks = [connected(path) for _ in range(3)]
    for sock in socks:
        some = [lingers.one() for _ in range(20)]
        send_fds(sock, b"c", some + [os.dup(null)] * (253 - len(some)))
    yield
    for sock in socks:
        eof(sock)


@attack
def inside_of_others(path, lingers):
    socks = []
    for data in (b"c", wire.hello() + arena_add(), b"garbage!"):
        socks.append(connected(path))
        send_fds(socks[-1], data, [lingers.nested() for _ in range(4)])
    yield
    for sock in socks:
        eof(sock)


@attack
def in_the_queue(path, lingers):
    for _ in range(100):
        send_fds(connected_for_ever(path), wire.hello(), [lingers.one()])
    yield


@attack
def through_the_doorbell(path, lingers):
    """A rank of a group over both nodes, with a member of ours at the other one, has the doorbell.
    It can carry nothing, and nothing that we do to it stops the engine."""
    folder = os.path.dirname(os.path.dirname(path))
    socks = [connected(os.path.join(folder, f"node{i}", "commd.sock")) for i in (0, 1)]
    yield
    for rank, sock in enumerate(socks):
        sock.settimeout(c.LATEST)
        sock.sendall(wire.hello() + wire.join(1, rank, 2, "bell"))
    fds = []
    while len(fds) < 2:
        data, got, _, _ = socket.recv_fds(socks[0], 65536, 2)
        check(data, "joined")
        fds += got
    bell = fds[1]
    equal(os.readlink(f"/proc/self/fd/{bell}"), "anon_inode:[eventfd]")
    os.set_blocking(bell, True)
    try:
        send_fds(
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=os.dup(bell)),
            b"x",
            [os.dup(0)],
        )
        check(False, "the doorbell carries a descriptor")
    except OSError as error:
        equal(error.errno, errno.ENOTSOCK)
    for _ in range(10000):
        os.write(bell, struct.pack("Q", 1))
    os.write(bell, struct.pack("Q", 2**64 - 2 - 10000))  # full
    os.set_blocking(bell, False)
    for _ in range(10000):
        with contextlib.suppress(BlockingIOError):
            os.write(bell, struct.pack("Q", 1))
    for sock in socks:
        sock.close()
    for _ in range(10000):  # of a client that is gone
        os.read(bell, 8)
        os.write(bell, struct.pack("Q", 1))


class Attacker:
    """A process of another user that runs an attack on @node, which gets @signo afterwards."""

    def __init__(self, name, node, signo=signal.SIGCONT):
        self.ours, theirs = socket.socketpair()
        os.kill(node.pid, signal.SIGSTOP)
        until(lambda: stopped(node.pid), "it stands still")
        try:
            self.pid = os.fork()
            if self.pid == 0:
                self.ours.close()
                self.run(name, node.socket, theirs)
            theirs.close()
            self.state()
        finally:
            os.kill(node.pid, signo)
            os.kill(node.pid, signal.SIGCONT)
        self.ours.sendall(b"x")
        self.ours.setblocking(False)

    @staticmethod
    def run(name, path, ours):
        try:
            os.setgroups([])
            os.setgid(UID)
            os.setuid(UID)
            lingers = Lingers()
            for _ in attacks[name](path, lingers):
                ours.sendall(b"x")
                ours.recv(1)
            ours.sendall(b"x")
            ours.recv(1)
            os._exit(0)
        except BaseException as error:  # noqa: BLE001
            print(f"  attacker: {name}: {type(error).__name__}: {error}", flush=True)
        finally:
            os._exit(1)

    def state(self):
        """Waits for, or asks for, the end of a part of it."""
        try:
            check(self.ours.recv(1), "the attacker failed")
            return True
        except BlockingIOError:
            return False

    def end(self):
        self.ours.close()
        equal(os.waitpid(self.pid, 0)[1], 0, "the attack went as meant")


# ---- the others' ---------------------------------------------------------------------------------


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def stopped(pid):
    """All threads of it."""
    states = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/{pid}/task/{thread}/stat") as file:
                states.append(file.read().rpartition(")")[2].split()[0])
    return set(states) == {"T"}


def ask(node):
    """commctl status, answered before a descriptor that lingers would let go."""
    done = c.run([*c.commctl(node), "--json", "status"])
    check('"state"' in done.stdout, f"{done.stdout} {done.stderr}")


def open_to_all(cluster):
    if os.geteuid() != 0:
        raise Skip("needs a second user: run as root")
    os.chmod(cluster.folder, 0o755)
    for node in cluster.nodes:
        os.chmod(node.home, 0o755)
    cluster.expect(f"uid {UID}: .* -> refused")


KEPT = 16  # of so many processes of a user commd keeps a descriptor, to say how they ended


def under_attack(nodes, names, changes=None):
    changes = {"listen": {"socket_mode": '"0666"'}, **(changes or {})}
    with Cluster(nodes, changes) as cluster:
        open_to_all(cluster)
        target = cluster.nodes[0]
        ranks = cluster.ranks("victim", [0, nodes - 1])
        pids = [(node.pid, node.engine_pid()) for node in cluster.nodes]
        before = descriptors(target.pid)
        for name in names:
            attacker = Attacker(name, target)
            over = False
            while not over:
                over = attacker.state()
                for rank in ranks:
                    rank.start("stream", name="victim", seed=1, operations=5, max_bytes=100000)
                ask(target)
                for rank in ranks:
                    rank.finish()
            some_stay = ("with_every_message", "in_the_queue", "through_the_doorbell")
            if name not in some_stay:
                until(
                    lambda: descriptors(target.pid) <= before + KEPT,
                    lambda: f"{descriptors(target.pid)} of {before}",
                )
            attacker.end()
        for rank in ranks:
            rank.start("stream", name="victim", seed=2, operations=20, max_bytes=100000)
        for rank in ranks:
            rank.finish()
        until(lambda: descriptors(target.pid) <= before + KEPT,
              lambda: f"{descriptors(target.pid)} descriptors, {before} before")  # fmt: skip
        equal([(node.pid, node.engine_pid()) for node in cluster.nodes], pids, "all live on")
        for node in cluster.nodes:
            check(
                node.process.poll() is None and (nodes == 1 or running(node.engine_pid())),
                node.name,
            )
            check("lost" not in node.log(), node.log())


# commd stands still for as long as an attack is prepared: that is no loss
LIMITS = {"limits": {"max_clients_per_user": "4"}, "timeouts": {"node": "60s"}}


def test_one_node():
    under_attack(1, [name for name in attacks if name != "through_the_doorbell"], LIMITS)


def test_two_nodes():
    under_attack(2, list(attacks), LIMITS)


def test_no_descriptor_is_left():
    """commd may have few; those of strangers end before its own do, and root is served."""
    with Cluster(1, {"listen": {"socket_mode": '"0666"'}}, start=False) as cluster:
        open_to_all(cluster)
        cluster.expect("no file descriptor is left for clients")
        cluster.expect("only 300 files may be open")
        node = cluster.nodes[0]
        node.prefix = ["prlimit", "--nofile=300"]
        cluster.start()
        before = descriptors(node.pid)
        attacker = Attacker("refused_at_the_door", node)
        until(attacker.state, "the attack is over")
        ask(node)
        cluster.ranks("g", [0, 0])
        attacker.end()
        for rank in cluster.all_ranks:
            rank.call("leave", name="g")
            rank.call("disconnect")
        until(
            lambda: descriptors(node.pid) <= before + KEPT,
            lambda: f"{descriptors(node.pid)} of {before}",
        )


def test_the_queue_at_the_end():
    """commd is told to stop while connections wait that it has not taken yet."""
    changes = {"listen": {"socket_mode": '"0666"'}, "timeouts": {"node": "60s"}}
    with Cluster(2, changes) as cluster:
        open_to_all(cluster)
        node = cluster.nodes[0]
        attacker = Attacker("in_the_queue", node, signal.SIGTERM)
        equal(c.exit_code(node.process), 0, "it ended in order")
        until(attacker.state, "the attack is over")
        attacker.end()
        cluster.expect(
            "was lost: its commd ended the link|the engines of nodes .* lost each other|UCX +ERROR"
        )


if __name__ == "__main__":
    main(globals())
