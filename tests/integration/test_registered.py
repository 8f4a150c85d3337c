#!/usr/bin/env python3
"""Registered memory over real daemons: results, who may have it, losses, restarts, and who lies.

That nobody copied is seen from outside: each rank has mapped an arena of every other one.
"""

import array
import fcntl
import os
import signal
import socket
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import faults  # noqa: E402
import wire  # noqa: E402
from cluster import Cluster, check, equal, main, memory_files, need_ucx, until  # noqa: E402

MIB = 1 << 20
ADD, DEL, ASK, ANSWER = 7, 8, 9, 16
SEALS = 7  # SEAL, SHRINK, GROW


def arenas(process):
    """Arenas that it has open or mapped."""
    return sum(name.startswith("/memfd:commd-arena") for name in memory_files(process.pid))


def in_all(ranks, do, **arguments):
    for rank in ranks:
        rank.start(do, **arguments)
    for rank in ranks:
        rank.finish()


def test_results():
    with Cluster(1) as cluster:
        ranks = cluster.ranks("g", [0, 0, 0])
        for key in ("a", "b"):
            in_all(ranks, "alloc", key=key, size=8 * MIB)
        own = [arenas(rank) for rank in ranks]
        equal([row["registered_bytes"] for row in cluster.nodes[0].clients()], [16 * MIB] * 3)
        for turn, (send, recv, count, at) in enumerate([
            ("a", "a", 2 * MIB - 32, 64), ("a", "b", MIB + 1, 4), ("b", "a", 16385, 8192),
            ("a", "a", 100, 64), ("b", "b", 300001, 4092),
        ]):  # fmt: skip
            in_all(
                ranks, "registered", name="g", send=send, recv=recv, count=count, at=at, turn=turn
            )
        equal(
            [arenas(rank) - n for rank, n in zip(ranks, own)], [4, 4, 4], "two of each other rank"
        )
        # one of them has not registered: the same results
        ranks[1].call("alloc", key="plain", size=8 * MIB, plain=True)
        for turn in range(3):
            for i, rank in enumerate(ranks):
                key = "plain" if i == 1 else "a"
                rank.start("registered", name="g", send=key, recv=key, count=MIB, turn=turn)
            for rank in ranks:
                rank.finish()
        in_all(ranks, "free", key="a")
        in_all(ranks, "registered", name="g", send="b", recv="b", count=MIB)
        in_all(ranks, "leave", name="g")
        equal(
            [arenas(rank) for rank in ranks],
            [2, 2, 2],
            "only their own: a mapping and a descriptor",
        )
        in_all(ranks, "disconnect")
        in_all(ranks, "free", key="b")
        equal([arenas(rank) for rank in ranks], [0, 0, 0])
        faults.nothing_is_held(cluster)


def test_several_nodes():
    """No path of its own there, but right."""
    need_ucx()
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 0, 1])
        in_all(ranks, "alloc", key="a", size=4 * MIB)
        in_all(ranks, "registered", name="g", send="a", recv="a", count=MIB - 32)


def test_memory_goes_with_its_owner():
    with Cluster(1) as cluster:
        commd = cluster.nodes[0]
        ranks = cluster.ranks("g", [0, 0])
        for _ in range(100):
            in_all(ranks, "alloc", key="a", size=4 * MIB)
            in_all(ranks, "registered", name="g", send="a", recv="a", count=20000)
            in_all(ranks, "free", key="a")
        until(lambda: arenas(commd) == 0, "commd has let go")
        check(all(arenas(rank) <= 64 for rank in ranks), "no more than so many are kept mapped")
        in_all(ranks, "alloc", key="a", size=4 * MIB)
        equal(arenas(commd), 2)
        ranks[0].call("disconnect")
        until(lambda: arenas(commd) == 1, "that of rank 1 is left")
        ranks[1].kill()
        until(lambda: arenas(commd) == 0, "commd has let go")
        ranks[0].call("free", key="a")


def test_a_rank_dies_at_work():
    with Cluster(1) as cluster:
        ranks = cluster.ranks("g", [0, 0, 0])
        in_all(ranks, "alloc", key="a", size=64 * MIB)
        for rank in ranks:
            rank.start("registered_loop", name="g", key="a", count=16 * MIB - 32)
        for rank in ranks:
            check(rank.answer()["started"], "all are at it")
        ranks[1].kill()
        for rank in (ranks[0], ranks[2]):
            error = rank.error()
            equal((error["code"], error["rank"]), ("RANK_LOST", 1))
        rest = [ranks[0], ranks[2]]
        faults.leave("g", rest)
        cluster.join("h", rest)
        in_all(rest, "registered", name="h", send="a", recv="a", count=MIB)


def test_who_gave_up_has_its_memory_to_itself():
    """A rank is stopped in the middle, again and again, and goes on after the others failed."""
    with Cluster(1) as cluster:
        for lap in range(6):
            ranks = cluster.ranks(f"g{lap}", [0, 0, 0])
            name = f"g{lap}"
            in_all(ranks, "alloc", key="a", size=16 * MIB)
            for rank in ranks:
                rank.start(
                    "registered_loop", name=name, key="a", count=4 * MIB - 32, timeout_ms=300
                )
            for rank in ranks:
                check(rank.answer()["started"], "all are at it")
            os.kill(ranks[1].pid, signal.SIGSTOP)
            for rank in (ranks[0], ranks[2]):
                check(rank.error()["code"] in ("TIMEOUT", "ABORTED"), "it does not wait for ever")
                rank.call("paint", key="a", byte=0x11)
            os.kill(ranks[1].pid, signal.SIGCONT)
            check(ranks[1].error()["code"] in ("TIMEOUT", "ABORTED"), "the group is broken")
            for rank in (ranks[0], ranks[2]):
                check(
                    rank.call("looks", key="a", byte=0x11),
                    "written to after the operation had failed",
                )
            in_all(ranks, "free", key="a")
            for rank in ranks:
                rank.close()


def test_commd_restarts():
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        ranks = cluster.ranks("g", [0, 0])
        in_all(ranks, "alloc", key="a", size=4 * MIB)
        in_all(ranks, "registered", name="g", send="a", recv="a", count=MIB - 32)
        node.kill()
        in_all(ranks, "registered", name="g", send="a", recv="a", count=MIB - 32, turn=1)
        node.start()
        until(lambda: node.ctl("status"), "commd is back")
        cluster.join("h", ranks)
        equal(arenas(node), 2, "it knows them again")
        before = [arenas(rank) for rank in ranks]
        in_all(ranks, "registered", name="h", send="a", recv="a", count=MIB - 32, turn=2)
        equal(
            [arenas(rank) - n for rank, n in zip(ranks, before)], [1, 1], "mapped for the new group"
        )
        in_all(ranks, "alloc", key="b", size=100)
        equal(arenas(node), 4)


# ---- who lies ------------------------------------------------------------------------------------


def memfd(size, seals=SEALS):
    fd = os.memfd_create("commd-arena-of-a-liar", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def fixed(value):
    return value.to_bytes(8, "little")


def message(kind, *fields):
    """Like wire.frame(); a bytes value of 8 is a fixed64."""
    body = b""
    for number, value in fields:
        if isinstance(value, bytes):
            body += wire.varint(number << 3 | 1) + value
        else:
            body += wire.field(number, value)
    return wire.framed(kind, body)


def add(req, arena, size):
    return message(ADD, (1, req), (2, fixed(arena)), (3, size))


def send_with(liar, data, fds):
    liar.sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def cause(liar):
    kind, fields = liar.read()
    equal(kind, ANSWER, fields)
    return fields.get(2, 0)


def hello(node):
    liar = wire.Wire(node.socket)
    liar.send(wire.hello())
    equal(liar.read()[0], wire.WELCOME)
    return liar


def test_what_commd_does_not_take():
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        good, loose = memfd(MIB), memfd(MIB, 0)
        with hello(node) as liar:
            liar.send(add(1, 1, MIB))
            equal(cause(liar), 1, "without a file")
            for fd, size in ((loose, MIB), (good, 2 * MIB), (good, 0), (0, MIB)):
                send_with(liar, add(2, 2, size), [fd])
                equal(cause(liar), 1, (fd, size))
            send_with(liar, add(3, 3, MIB), [good])
            equal(cause(liar), 0)
            send_with(liar, add(4, 3, MIB), [good])
            equal(cause(liar), 1, "twice")
            huge = memfd(1 << 50)
            send_with(liar, add(5, 4, 1 << 50), [huge])
            equal(cause(liar), 3, "more than the machine has")
            for number, rank, group in ((3, 0, 1), (3, 0, 0), (9, 70, 1)):
                liar.send(message(ASK, (1, 6), (2, rank), (3, fixed(group)), (4, fixed(number))))
                equal(cause(liar), 1, "who is in no group gets nothing")
            liar.send(message(DEL, (1, fixed(77))))
            os.close(huge)
        until(lambda: arenas(node) == 0, "all is let go with the liar")
        with wire.Wire(node.socket) as stranger:  # before its hello
            cluster.expect("the first message has to be a hello|refused")
            send_with(stranger, add(1, 1, MIB), [good])
            check("hello" in stranger.refusal(), "refused")
        os.close(good)
        os.close(loose)
        ranks = cluster.ranks("g", [0, 0])
        in_all(ranks, "alloc", key="a", size=4 * MIB)
        in_all(ranks, "registered", name="g", send="a", recv="a", count=MIB - 32)


def test_only_members_get_it():
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        fd = memfd(MIB)
        with hello(node) as one, hello(node) as two, hello(node) as other:
            send_with(one, add(1, 99, MIB), [fd])
            equal(cause(one), 0)
            one.send(wire.join(1, 0, 2, "pair"))
            two.send(wire.join(1, 1, 2, "pair"))
            kind, joined = one.read()
            equal((kind, two.read()[0]), (wire.JOINED, wire.JOINED))
            group = joined[3]  # fixed64
            for asker, rank, arena, want in ((two, 0, 99, 0), (two, 1, 99, 1), (two, 0, 98, 1),
                                             (two, 5, 99, 1), (other, 0, 99, 1)):  # fmt: skip
                asker.send(message(ASK, (1, 7), (2, rank), (3, group), (4, fixed(arena))))
                equal(cause(asker), want, (rank, arena))
            one.send(message(DEL, (1, fixed(99))))
            one.send(add(2, 1, 1))  # its answer says that the former was read
            equal(cause(one), 1)
            two.send(message(ASK, (1, 7), (2, 0), (3, group), (4, fixed(99))))
            equal(cause(two), 1, "it was given back")
        os.close(fd)


if __name__ == "__main__":
    main(globals())
