#!/usr/bin/env python3
"""A user who joins groups that never fill leaves the others room: real processes of two users
(turns.py), the victim's groups open at once and its results are verified, also where the home is
another node."""

import contextlib
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import Cluster, Skip, check, equal, main, until  # noqa: E402
from test_turns import HOSTILE, Hostile, as_user, open_to_all, victims, work  # noqa: E402
from test_verbs import ctl, tenants  # noqa: E402
from wire import ADMIN, ARENA_ANSWER, JOINED, TABLES, WELCOME, Wire  # noqa: E402
from wire import arena_add, arena_ask, frame, hello, join  # noqa: E402

PERSON, OTHER, SUBORDINATE = 4711, 4712, 100000


def beside(nodes, *what):
    with Cluster(nodes, {"log": {"level": "warn"}}) as cluster:
        open_to_all(cluster)
        cluster.expect(f"uid {HOSTILE}")
        ranks = victims(cluster, [0, nodes - 1, 0])
        work(cluster, ranks, "before")
        hostile = [Hostile(node, *what) for node in cluster.nodes]
        try:
            for one in hostile:
                one.done()
            until(
                lambda: any(row["uid"] == HOSTILE for row in cluster.nodes[0].groups()),
                "the hostile joins",
            )
            for number in range(20):  # their homes are on all nodes
                work(cluster, ranks, f"during{number}")
        finally:
            for one in hostile:
                one.__exit__()
        until(lambda: not any(node.groups() for node in cluster.nodes), "nothing of it is left")
        work(cluster, ranks, "after")


def test_sizes_that_never_fill():
    beside(1, "sizes", 34)


def test_sizes_that_never_fill_on_two_nodes():
    beside(2, "sizes", 200)


def test_many_groups_that_never_fill():
    beside(1, "fill", 100, 60)


def test_many_groups_that_never_fill_on_two_nodes():
    beside(2, "fill", 60, 60)


@contextlib.contextmanager
def persons(text, **limits):
    """A cluster of one node, its node, and the file that says which uids people have."""
    with tempfile.NamedTemporaryFile("w", suffix=".subuid") as file:
        file.write(text)
        file.flush()
        os.chmod(file.name, 0o644)
        with Cluster(1, {"limits": {"subuid_file": file.name, **limits}}) as cluster:
            open_to_all(cluster)
            os.chmod(cluster.nodes[0].socket, 0o666)
            yield cluster, cluster.nodes[0], file.name


def rank_of(cluster, uid):
    program = [*as_user(uid), sys.executable, os.path.join(c.HERE, "rank.py")]
    cluster.all_ranks.append(c.Rank(cluster.nodes[0], program))
    cluster.all_ranks[-1].call("connect")
    return cluster.all_ranks[-1]


def joined(rank, most):
    """How many groups of its own @rank gets, of @most."""
    for number in range(most):
        rank.start("join", name=f"g{number}", rank=0, size=1)
        if "error" in rank.answer():
            return number
    return most


def test_uids_of_one_person():
    """They have the share of one user together. What they may see and end is each one's own."""
    with persons(f"{PERSON}:{SUBORDINATE}:1000\n", max_groups=16, max_groups_per_user=12) as (
        cluster, node, path,
    ):  # fmt: skip
        uids = (SUBORDINATE, PERSON, SUBORDINATE + 999, OTHER)
        ranks = [rank_of(cluster, uid) for uid in uids]
        cluster.expect("groups on node")
        equal([joined(rank, 5) for rank in ranks], [5, 3, 0, 4])
        rows = tenants(node)
        equal({uid for uid, _ in rows}, {PERSON, OTHER})
        equal(rows[PERSON, "clients"]["used"], 3)
        equal(rows[PERSON, "connections"]["used"], 3)
        check(rows[PERSON, "board_bytes"]["used"] > rows[OTHER, "board_bytes"]["used"], rows)
        equal({uid for uid, _ in tenants(node, as_user(SUBORDINATE))}, {PERSON})
        for uid, own in zip(uids, (5, 3, 0, 4)):
            out = ctl(node, "--json", "groups", user=as_user(uid))[1]
            equal(out.count('"open"'), own, out)
        for asker, whose in ((PERSON, ranks[0]), (SUBORDINATE, ranks[1]), (SUBORDINATE, ranks[2])):
            equal(ctl(node, "kick", "pid", str(whose.pid), user=as_user(asker))[0], 1)
            out = ctl(node, "--json", "clients", user=as_user(asker))[1]
            check(str(whose.pid) not in out, out)

        # what is held stays charged to whom it was
        with open(path, "w") as file:
            file.write(f"{OTHER}:{SUBORDINATE}:1000\n")
        equal(ctl(node, "reload")[0], 0)
        node.wait_log("1 ranges of uids(.|\n)*1 ranges of uids")
        ranks.append(rank_of(cluster, SUBORDINATE + 1))
        rows = tenants(node)
        equal((rows[PERSON, "clients"]["used"], rows[OTHER, "clients"]["used"]), (3, 2))
        for rank in ranks:
            rank.close()
        until(lambda: not {uid for uid, _ in tenants(node)} - {0}, "nothing is charged to them")


def wire_of(stack, node, uid, admin=0):
    os.seteuid(uid)
    try:
        wire = stack.enter_context(Wire(node.socket))
    finally:
        os.seteuid(0)
    wire.send(hello(admin))
    equal(wire.read()[0], WELCOME)
    return wire


def test_memory_of_a_payer():
    """It is not its subordinate's, though one user is charged for both."""
    with persons(f"{PERSON}:{SUBORDINATE}:1000\n") as (_, node, _), contextlib.ExitStack() as stack:
        person, other = (wire_of(stack, node, uid) for uid in (PERSON, SUBORDINATE))
        person.send(join(1, 0, 1, "g"))
        kind, fields = person.read()
        equal(kind, JOINED)
        memory = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(memory, 1 << 20)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS,
                    fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)  # fmt: skip
        socket.send_fds(person.sock, [arena_add(2, 7, 1 << 20)], [memory])
        os.close(memory)
        group = struct.pack("<Q", int(node.groups()[0]["group"], 16))
        for wire, given in ((person, True), (other, False)):
            wire.send(arena_ask(3, 0, group, 7))
            for _ in range(1 + given):  # that it is known; whether it is given
                kind, fields = wire.read()
            equal((kind, fields.get(2, 0) == 0), (ARENA_ANSWER, given), fields)


def questioner(stack, node, uid, watch_ms):
    """A session of commctl of @uid that asks about ranks."""
    wire = wire_of(stack, node, uid, admin=1)
    wire.send(frame(ADMIN, f1="ranks", f3=watch_ms))
    return wire


def test_questions_of_one_person():
    """Its uids have the questions of one user under way, and others are answered meanwhile."""
    with persons(f"{PERSON}:{SUBORDINATE}:1000\n") as (cluster, node, _):
        rank_of(cluster, OTHER).call("join", name="g", rank=0, size=1)
        with contextlib.ExitStack() as stack:
            for uid in (PERSON, PERSON, SUBORDINATE, SUBORDINATE + 1):
                questioner(stack, node, uid, 10000)
            kind, fields = questioner(stack, node, SUBORDINATE + 2, 10000).read()
            equal(kind, TABLES)
            check(b"too many questions at the same time" in fields[3], fields)
            kind, fields = questioner(stack, node, OTHER, 0).read()
            check(kind == TABLES and b"too many" not in fields.get(3, b""), fields)


# In a mount namespace of its own, where its person has a name: becomes uid 0 of a user namespace
# whose uids newuidmap has given it, and asks commctl.
CONTAINER = """
import ctypes, os, subprocess, sys
pid, uid, first = os.getpid(), *map(int, sys.argv[1:3])
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
        os._exit(77)
    os.write(ready[1], b"r")
    os.read(go[0], 1)
    os.setresuid(5, 5, 5)
    os.execv(sys.argv[3], sys.argv[3:])
if os.read(ready[0], 1):
    subprocess.run(["newuidmap", str(child), "0", str(first), "1000"], check=True)
    os.write(go[1], b"g")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_container_of_a_person():
    """Real subordinate uids, as newuidmap gives them to the containers of a user."""
    if os.geteuid() or not shutil.which("newuidmap"):
        raise Skip("needs root and newuidmap, of package uidmap")
    with persons(f"{PERSON}:{SUBORDINATE}:1000\n") as (cluster, node, path):
        rank_of(cluster, PERSON)
        with open("/etc/passwd") as file:
            users = file.read()
        with open(path + ".passwd", "w") as file:
            file.write(f"{users}somebody:x:{PERSON}:{PERSON}::/:/bin/sh\n")
        try:
            done = subprocess.run(
                ["unshare", "-m", "sh", "-e", "-c",
                 'mount --bind "$1" /etc/subuid; mount --bind "$1.passwd" /etc/passwd; shift;'
                 ' exec "$@"', "sh", path,
                 *as_user(PERSON), sys.executable, "-c", CONTAINER, str(PERSON), str(SUBORDINATE),
                 *c.commctl(node), "--json", "tenants"],
                capture_output=True, text=True,
            )  # fmt: skip
        finally:
            os.unlink(path + ".passwd")
        if done.returncode == 77:
            raise Skip("no user namespaces here")
        equal((done.returncode, done.stderr), (0, ""))
        rows = {row["resource"]: row for row in json.loads(done.stdout)["tenants"]}
        equal({row["uid"] for row in rows.values()}, {PERSON})
        equal((rows["clients"]["used"], rows["connections"]["used"]), (1, 2))


def test_a_user_of_another_namespace():
    """Who has no uid where commd is could be anybody."""
    if os.geteuid():
        raise Skip("needs root, to be several users")
    with Cluster(1, start=False) as cluster:
        node = cluster.nodes[0]
        node.prefix = ["unshare", "-U", "--map-root-user"]
        if subprocess.run([*node.prefix, "true"], stderr=subprocess.DEVNULL).returncode:
            raise Skip("no user namespaces here")
        cluster.expect("its user is not known here")
        node.start()
        cluster.wait_linked()
        open_to_all(cluster)
        os.chmod(node.socket, 0o666)
        code, out, err = ctl(node, "status", user=as_user(OTHER))
        check(code and not out and "its user is not known here" in err, err)
        rank_of(cluster, 0)


def test_no_group_is_larger_than_its_nodes():
    with Cluster(1) as cluster:
        rank = cluster.rank(0)
        error = rank.call_error("join", name="huge", rank=0, size=1025)
        equal(error["code"], "INVALID")
        check(
            'group "huge": size 1025, allowed are 1 to 1024 ranks on 1 nodes' in error["message"],
            error,
        )


if __name__ == "__main__":
    main(globals())
