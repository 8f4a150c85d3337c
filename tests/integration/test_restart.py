#!/usr/bin/env python3
"""commd dies and is there again: what goes on, what is known, what waits, and what is told.

commd is killed at random under streams that check every result, and at each system call of a join,
a subgroup, a registration and a leave (lib/die_at.c). The keeper starts it again (commd --keep)."""

import contextlib
import os
import random
import re
import signal
import socket
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import Skip, check, equal, main, running, until  # noqa: E402
from keeping import EARLY, commd_pid, gap, kept_nodes, kill  # noqa: E402
from keeping import killed_at_random, restart, serves  # noqa: E402
from wire import (  # noqa: E402
    ABORT, HELLO, JOINED, REFUSED, VERSION, WELCOME, Wire, field, framed, join, leave,
)  # fmt: skip

DIE_AT = os.path.join(c.find_build(), "tests/integration/lib/.libs/die_at.so")
WORLD = 4


def preloaded(**more):
    """With the library that has commd die; that of a sanitizer has to come first."""
    first = c.sanitizer_environment().get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{first} {DIE_AT}".strip(), **more}


@contextlib.contextmanager
def kept(changes=None, environment=None):
    """A cluster of one node whose commd has a keeper."""
    with kept_nodes(1, changes, environment) as cluster:
        yield cluster, cluster.nodes[0]


def all_do(ranks, do, **arguments):
    for rank in ranks:
        rank.start(do, **arguments)
    return [rank.finish() for rank in ranks]


def known(node):
    """What commctl says of groups and their ranks here."""
    groups = {g["name"]: (g["size"], g["local_ranks"], g["state"]) for g in node.groups()}
    ranks = sorted((r["name"], r["rank"], r["pid"]) for r in node.ctl("ranks")["ranks"])
    return groups, ranks


def test_commd_knows_what_the_one_before_it_knew():
    with kept() as (cluster, node):
        ranks = cluster.ranks("g", [0] * 3)
        cluster.join("pair", ranks[:2])
        before = known(node)
        equal(sorted(before[0]), ["g", "pair"])
        clients = sorted((r["client"], r["pid"], r["groups"]) for r in node.clients())
        for _ in range(2):  # the second one takes over from one that took over
            restart(node)
            equal(known(node), before)
            equal(sorted((r["client"], r["pid"], r["groups"]) for r in node.clients()), clients)
            status = node.ctl("status")["status"][0]
            equal((status["clients"], status["groups"]), (3, 2))
            equal({row["verdict"] for row in node.ctl("why")["why"]}, {"HEALTHY"})
        all_do(ranks, "all_reduce", name="g", count=1000)
        cluster.join("later", ranks)
        equal(sorted(known(node)[0]), ["g", "later", "pair"])
        for name in ("g", "later"):
            all_do(ranks, "leave", name=name)
        all_do(ranks[:2], "leave", name="pair")
        until(lambda: not node.groups(), "all groups end")
        equal(len(node.clients()), 3)


def test_streams_go_on_while_commd_is_killed_at_random():
    with kept() as (cluster, node):
        ranks = cluster.ranks("g", [0] * WORLD)
        rounds = 0
        with killed_at_random([node], c.how_many(40, 12), 0.1) as over:
            while not over.is_set() or not rounds:
                all_do(ranks, "stream", name="g", seed=rounds, operations=60, max_bytes=200000)
                all_do(ranks, "mail", name="g", seed=rounds, messages=30, max_bytes=100000)
                cluster.join(f"round{rounds}", ranks)
                all_do(ranks, "all_reduce", name=f"round{rounds}", count=100)
                all_do(ranks, "leave", name=f"round{rounds}")
                rounds += 1
        groups = lambda: sorted(g["name"] for g in node.groups())  # noqa: E731
        until(lambda: groups() == ["g"], f"the groups of all rounds are forgotten: {groups()}")
        equal(len(node.clients()), WORLD)


def one_round(cluster, ranks, name):
    """A join, a subgroup, registered memory, an operation in it, leaves, over new connections."""
    for rank in ranks:
        rank.start("connect", context="x")
    for rank in ranks:
        rank.finish()
    cluster.join(name, ranks, context="x")
    for number, rank in enumerate(ranks):
        rank.start("split", name=name, new=name + "s", colour=number % 2, key=0)
    for rank in ranks:
        rank.finish()
    all_do(ranks, "alloc", key=name, size=1 << 20, context="x")
    all_do(ranks, "registered", name=name, send=name, recv=name, count=60000)
    all_do(ranks, "all_reduce", name=name + "s", count=10)
    for group in (name + "s", name):
        all_do(ranks, "leave", name=group)
    all_do(ranks, "free", key=name)
    all_do(ranks, "disconnect", context="x")


def test_commd_is_killed_in_each_step():
    if not os.path.exists(DIE_AT):
        raise Skip("die_at.so is not built")
    folder = tempfile.mkdtemp(prefix="commd-die.")
    at = os.path.join(folder, "at")
    try:
        with kept(environment=preloaded(DIE_AT=at)) as (cluster, node):
            killed_in_each_step(cluster, node, at)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(at)
        os.rmdir(folder)


def killed_in_each_step(cluster, node, at):
    rng = random.Random(7)
    ranks = cluster.ranks("base", [0] * 3)

    def arm(number):
        with open(at + ".new", "w") as file:
            file.write(str(number))
        os.rename(at + ".new", at)

    arm(10**6)
    one_round(cluster, ranks, "count")
    with open(at) as file:
        steps = 10**6 - int(file.read())
    os.unlink(at)
    check(steps > 50, f"only {steps} steps")
    stride = max(steps // c.how_many(30, 10), 1)
    for number in range(1, steps, stride):
        step = number + rng.randrange(stride)
        before = serves(node)
        arm(step)
        one_round(cluster, ranks, f"step{step}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(at)
        all_do(ranks, "all_reduce", name="base", count=10)
        serves(node)
        begin = time.monotonic()
        groups = lambda: [(g["name"], g["local_ranks"]) for g in node.groups()]  # noqa: E731
        until(lambda: groups() == [("base", 3)],
              f"after a death in step {step} of {steps} (of {before}): {groups()}")  # fmt: skip
        until(lambda: len(node.clients()) == 3, f"clients of step {step} are forgotten")
        time.sleep(max(0, begin + EARLY - time.monotonic()))


def test_a_rank_that_dies_in_the_gap_is_named():
    with kept() as (cluster, node):
        ranks = cluster.ranks("g", [0] * 3)
        with gap(node):
            died = ranks[2].pid
            ranks[2].kill()
        cluster.all_ranks.remove(ranks[2])
        for rank in ranks[:2]:
            rank.start("all_reduce", name="g", count=10)
        for rank in ranks[:2]:
            error = rank.error()
            equal((error["code"], error["rank"], error["pid"]), ("RANK_LOST", 2, died))
        until(lambda: len(node.clients()) == 2, "the dead client is forgotten")
        equal([g["local_ranks"] for g in node.groups()], [2])
        events = [e["event"] for e in node.ctl("events")["events"]]
        check("rank_lost" in events, f"{events}")


def test_who_leaves_in_the_gap_is_forgotten():
    with kept() as (cluster, node):
        ranks = cluster.ranks("g", [0] * 3)
        cluster.join("two", ranks[:2])
        with gap(node):
            ranks[0].call("leave", name="two")  # and stays
            ranks[1].call("leave", name="two")  # and goes
            ranks[1].call("leave", name="g")
            ranks[1].call("disconnect")
            ranks[1].close()
        cluster.all_ranks.remove(ranks[1])
        until(lambda: len(node.clients()) == 2, "the client is forgotten")
        lost = [e for e in node.ctl("events")["events"] if e["event"] == "rank_lost"]
        equal(lost, [], "who left is not lost")
        until(lambda: [g["name"] for g in node.groups()] == ["g"], "a group that all left ends")
        ranks[0].call("join", name="alone", rank=0, size=1)  # it comes back for that
        equal(sorted((g["name"], g["local_ranks"]) for g in node.groups()),
              [("alone", 1), ("g", 2)])  # fmt: skip
        for rank in (ranks[0], ranks[2]):
            rank.start("all_reduce", name="g", count=10)
        for rank in (ranks[0], ranks[2]):
            error = rank.error()
            equal((error["code"], error["rank"]), ("RANK_LOST", 1))
            check("left the group" in error["message"], error["message"])


def test_who_leaves_before_it_hears_that_it_is_back():
    with kept() as (cluster, node):
        ranks = cluster.ranks("g", [0] * 3)
        cluster.join("two", ranks[:2])
        with gap(node):
            # its hello waits in the queue of the socket, and says that it is in both
            ranks[0].call("leave", name="two")
            ranks[1].call("leave", name="two")
            ranks[1].call("leave", name="g")
            ranks[1].call("disconnect")  # its process lives on
        until(lambda: [g["name"] for g in node.groups()] == ["g"], "a group that all left ends")
        until(lambda: len(node.clients()) == 2, "who has disconnected is forgotten")
        lost = [e for e in node.ctl("events")["events"] if e["event"] == "rank_lost"]
        equal(lost, [], "who left is not lost")
        pid = serves(node)
        ranks[0].call("join", name="alone", rank=0, size=1)  # now it leaves "two" once more
        ranks[0].call("leave", name="alone")
        all_do((ranks[0], ranks[2]), "abort", name="g", reason="over")
        all_do((ranks[0], ranks[2]), "leave", name="g")
        until(lambda: not node.groups(), "all groups end")
        equal((len(node.clients()), serves(node)), (2, pid))


def test_who_is_in_no_group_and_never_comes_back_is_forgotten():
    with kept() as (cluster, node):
        gone, idle = cluster.rank(0), cluster.rank(0)
        with gap(node):
            gone.call("disconnect")  # its process lives on
        until(lambda: not node.clients(), "both are forgotten")
        idle.call("join", name="alone", rank=0, size=1)
        equal([client["groups"] for client in node.clients()], [1])


def test_whoever_needs_commd_waits_and_says_so():
    with kept() as (cluster, node):
        ranks, said = cluster.ranks_heard("g", [0] * 2)
        with gap(node):
            for number, rank in enumerate(ranks):
                rank.start("join", name="new", rank=number, size=2)
            until(lambda: said().count("for commd to come back") == 2, "both say that they wait")
            line = r"^commd: pid \d+ on node node0 has waited for (\d+\.\d) s "
            waited = re.findall(line, said(), re.M)
            check(waited and all(float(seconds) >= 5 for seconds in waited), said())
        for rank in ranks:
            rank.finish()
        with gap(node):
            ranks[0].start("alloc", key="a", size=1 << 20)
            time.sleep(0.2)
        ranks[0].finish()
        all_do(ranks, "all_reduce", name="new", count=10)
        equal(said().count("for commd to come back"), 2)


def test_an_abort_in_the_gap_is_told():
    with kept() as (cluster, node):
        ranks = cluster.ranks("g", [0] * 2)
        with gap(node):
            ranks[1].start("all_reduce", name="g", count=10)
            ranks[0].call("abort", name="g", reason="no more")
        ranks[0].call("join", name="alone", rank=0, size=1)
        error = ranks[1].error()
        equal((error["code"], error["rank"]), ("ABORTED", 0))
        check("no more" in error["message"], error["message"])


def test_two_failed_tries_make_a_clean_start():
    if not os.path.exists(DIE_AT):
        raise Skip("die_at.so is not built")
    die = tempfile.mktemp(prefix="commd-die.")
    (port,) = c.free_port_blocks(1)
    http = {"listen": {"http": f'"127.0.0.1:{port}"'}}
    with kept(http, preloaded(DIE_TAKING=die)) as (cluster, node):
        cluster.expect("starting clean")
        ranks, said = cluster.ranks_heard("g", [0] * 2)
        with open(die, "w") as file:
            file.write("2")
        pid = kill(node)
        node.wait_log("2 commds ended while they took over .* -> starting clean")
        serves(node, pid)
        equal((node.groups(), node.clients()), ([], []))
        all_do(ranks, "all_reduce", name="g", count=10)  # nobody watches it, and it goes on
        cluster.join("new", ranks)
        check(said().count("does not know") == 2, said())
        equal([g["name"] for g in node.groups()], ["new"])
        all_do(ranks, "all_reduce", name="g", count=10)
        restart(node)  # and now all is as ever
        equal([g["name"] for g in node.groups()], ["new"])


def memory_kept(node, kind):
    """Paths of the memory of that kind which the keeper has."""
    folder = f"/proc/{node.pid}/fd"
    return [f"{folder}/{fd}" for fd in os.listdir(folder)
            if f"commd-{kind}" in os.readlink(f"{folder}/{fd}")]  # fmt: skip


def test_a_board_that_outlived_its_group_is_forgotten_in_the_end():
    with kept() as (cluster, node):
        ranks = cluster.ranks("g", [0] * 2)
        board = until(lambda: memory_kept(node, "board"), "the keeper has the board")[0]
        with open(board, "r+b"):  # as a process to which a rank gave it
            all_do(ranks, "leave", name="g")
            until(lambda: not node.groups(), "the group ends")
            restart(node)
            equal(len(memory_kept(node, "board")), 1)
        until(lambda: not memory_kept(node, "board"), "the keeper has forgotten the board")


def test_a_state_of_another_version_makes_a_clean_start():
    with kept() as (cluster, node):
        cluster.expect("starting clean")
        ranks, said = cluster.ranks_heard("g", [0] * 2)
        with gap(node):
            with open(memory_kept(node, "state")[0], "r+b") as file:
                file.seek(8)
                file.write(b"\x63")
        node.wait_log("of another version, or damaged -> starting clean")
        equal((node.groups(), node.clients()), ([], []))
        all_do(ranks, "all_reduce", name="g", count=10)
        cluster.join("new", ranks)
        check(said().count("does not know") == 2, said())
        restart(node)  # and now all is as ever
        equal([g["name"] for g in node.groups()], ["new"])


def test_a_board_of_another_version_is_left_out():
    with kept() as (cluster, node):
        cluster.expect("was not taken over: it does not fit")
        cluster.expect("records of the commd before this one do not fit")
        ranks, said = cluster.ranks_heard("g", [0] * 2)
        with gap(node):
            board = until(lambda: memory_kept(node, "board"), "the keeper has the board")[0]
            with open(board, "r+b") as file:
                file.seek(8)
                file.write(b"\x63")
        node.wait_log("was not taken over: it does not fit -> the group is not known")
        equal(node.groups(), [])
        all_do(ranks, "all_reduce", name="g", count=10)  # nobody watches it, and it goes on
        cluster.join("new", ranks)
        check(said().count("does not know") == 2, said())
        restart(node)
        equal([g["name"] for g in node.groups()], ["new"])


def bound(sock, port):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.suppress(OSError):
        sock.bind(("127.0.0.1", port))
        return True


def test_a_start_that_fails_for_another_reason_forgets_nothing():
    (port,) = c.free_port_blocks(1)
    with kept({"listen": {"http": f'"127.0.0.1:{port}"'}}) as (cluster, node):
        cluster.expect("ended with 1 -> starting it again")
        ranks = cluster.ranks("g", [0] * 2)
        before = known(node)
        pid = serves(node)
        os.kill(node.pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not running(pid), "commd ends")
        with socket.socket() as squatter:
            until(lambda: bound(squatter, port), "the port")
            squatter.listen()
            os.kill(node.pid, signal.SIGCONT)
            until(lambda: node.log().count("ended with 1 -> starting") >= 3, "starts that fail")
            ranks[0].start("join", name="alone", rank=0, size=1)  # it waits
        serves(node, pid)
        ranks[0].finish()
        ranks[0].call("leave", name="alone")
        all_do(ranks, "all_reduce", name="g", count=10)
        equal(known(node), before)


# ---- who is not what it says ---------------------------------------------------------------------


def hello(key=b"", groups=(), admin=0, plans=0):
    body = field(1, VERSION) + field(2, admin) + field(3, "wire.py") + field(9, key)
    return framed(HELLO, body + field(10, b"".join(groups)) + field(12, plans))


def welcome(wire, *arguments):
    """(key, resumed, the groups that commd knows)"""
    wire.send(hello(*arguments))
    kind, fields = wire.read()
    equal(kind, WELCOME)
    return fields[6], fields.get(7, 0), fields.get(8, b"")


def test_a_key_is_for_its_process_alone():
    with kept() as (cluster, node):
        ranks = cluster.ranks("g", [0] * 2)
        group = int(node.groups()[0]["group"], 16).to_bytes(8, "little")
        with Wire(node.socket) as own:
            key, resumed, groups = welcome(own)
            equal((len(key), resumed, groups), (16, 0, b""))
        until(lambda: len(node.clients()) == 2, "the client has gone")
        with Wire(node.socket) as own:
            check(welcome(own, key)[:2] != (key, 1), "commd did not die, and the key was good")
        with Wire(node.socket) as own:
            key = welcome(own)[0]
            own.send(join(1, 0, 1, "mine"))  # who is in no group is not waited for
            equal(own.read()[0], JOINED)
            restart(node)
            child = os.fork()
            if child == 0:  # another process, which knows the key
                with Wire(node.socket) as thief:
                    os._exit(welcome(thief, key, [group])[1])
            equal(os.waitpid(child, 0)[1], 0, "another process was taken for the client")
            with Wire(node.socket) as guess:
                equal(welcome(guess, os.urandom(16), [group])[1:], (0, b""))
            with Wire(node.socket) as again:
                # it is known, and is in none of the groups that it names
                equal(welcome(again, key, [group, b"\xff" * 8]), (key, 1, b""))
                with Wire(node.socket) as twice:
                    equal(welcome(twice, key)[1], 0, "the key was good twice")
                again.send(leave(group))  # as if it had left while it was away
                again.send(framed(ABORT, b"\x09" + group))
                equal(again.read()[0], REFUSED)
        all_do(ranks, "all_reduce", name="g", count=10)
        equal([g["local_ranks"] for g in node.groups()], [2])


def test_who_comes_back_as_commctl_is_no_less_watched():
    with kept({"limits": {"max_clients": "2", "max_clients_per_user": "2"}}) as (cluster, node):
        child = os.fork()
        if child == 0:
            with Wire(node.socket) as own:
                key = welcome(own)[0]
                pid = restart(node)
                with Wire(node.socket) as again:
                    equal(welcome(again, key, (), 1), (bytes(16), 0, b""))
                    os._exit(0 if serves(node) == pid else 1)
            os._exit(2)
        equal(os.waitpid(child, 0)[1], 0)
        until(lambda: not node.clients(), "its end is seen")
        pid = serves(node)
        for _ in range(35):  # all 66 slots, once
            with Wire(node.socket) as later:
                welcome(later)
            until(lambda: not node.clients(), "it has gone")
        equal(commd_pid(node), pid)


def test_limits_count_what_was_there_before():
    limits = dict.fromkeys(("max_groups", "max_groups_per_user"), "2")
    limits.update(dict.fromkeys(("max_clients", "max_clients_per_user"), "3"))
    with kept({"limits": limits}) as (cluster, node):
        ranks = cluster.ranks("g", [0] * 2)
        cluster.join("two", ranks)
        restart(node)
        for number, rank in enumerate(ranks):
            rank.start("join", name="three", rank=number, size=2)
        for rank in ranks:
            equal(rank.error()["code"], "QUOTA")
        third = cluster.rank(0)
        fourth = cluster.rank(0, connect=False)
        equal(fourth.call_error("connect")["code"], "QUOTA")
        third.call("disconnect")
        all_do(ranks, "leave", name="two")
        until(lambda: len(node.groups()) == 1, "the group ends")
        cluster.join("three", ranks)


# ---- what all members of a board have to do alike ------------------------------------------------


def senders_go_on(ranks, name):
    """All but rank 0 have done theirs before that begins."""
    for coll in ("gather", "reduce"):
        for rank in (*ranks[1:], ranks[0]):
            rank.start("one_way", name=name, coll=coll, nbytes=1000, times=16)
            check("started" in rank.answer(), coll)
            check(rank.finish(), f"the result of {coll} in {name}")


def test_senders_go_on_also_in_groups_of_the_next_commd():
    """It hears from clients that come back which plans they know."""
    with kept() as (cluster, node):
        ranks = cluster.ranks("before", [0] * 3)
        senders_go_on(ranks, "before")
        restart(node)
        senders_go_on(ranks, "before")
        cluster.join("behind", ranks)
        senders_go_on(ranks, "behind")


def plans_on_board(node, name, plans):
    """@plans: those that each of the members knows; read on the board of each."""
    read = []
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(node.socket)) for _ in plans]
        for rank, (wire, knows) in enumerate(zip(wires, plans)):
            wire.send(hello(plans=knows))
            equal(wire.read()[0], WELCOME)
            wire.send(join(1, rank, len(plans), name))
        for wire in wires:
            _, fds, _, _ = socket.recv_fds(wire.sock, 65536, 8)
            read.append(int.from_bytes(os.pread(fds[0], 4, 188), sys.byteorder))
            for fd in fds:
                os.close(fd)
    return read


def test_a_board_has_the_plans_that_all_its_members_know():
    """A client that says nothing is older; one that says more than commd knows is newer."""
    with kept() as (_, node):
        equal(plans_on_board(node, "all", [1, 1, 1]), [1, 1, 1])
        equal(plans_on_board(node, "one-is-older", [1, 0, 1]), [0, 0, 0])
        equal(plans_on_board(node, "some-are-newer", [3, 7, 1]), [1, 1, 1])
        equal(plans_on_board(node, "all-are-newer", [6, 10]), [2, 2])


main(globals())
