#!/usr/bin/env python3
"""Whole nodes whose data are encrypted, and who else is on the network: somebody who reads all of
it, a man in the middle who changes it, and strangers who repeat what they have heard. Needs root,
for a network of its own."""

import hmac
import os
import random
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import (  # noqa: E402
    Cluster, Rank, Skip, check, equal, main, sanitizer_environment, until,
)  # fmt: skip
from middle import ACCEPT, HELLO, Dump, Stranger, Wire, data_ports  # noqa: E402
from test_collectives import SEED, stream  # noqa: E402
from test_netns import Namespaces  # noqa: E402

TENSOR, TEXT, GROUP = b"Z" * 64, b"a message for one rank", "the name of a group"
ON = {"encryption": "on"}


# ---- what somebody who reads all can find --------------------------------------------------------


def traffic(cluster):
    """Tensors and messages of all sizes, in a group that has a name."""
    ranks = cluster.ranks(GROUP, [0, 1])
    for count in (100, 5000, 500_000):
        for rank in ranks:
            kind = dict(count=count, dtype="u8", redop="max", fill=TENSOR[0])
            rank.start("all_reduce", name=GROUP, **kind)
        for rank in ranks:
            equal(rank.finish(), TENSOR[:16].hex())
    for rank in ranks:
        rank.start("verify", name=GROUP)
    for rank in ranks:
        rank.finish()
    ranks[1].start("recv", name=GROUP, peer=0, tag=3, size=len(TEXT))
    ranks[0].call("send", name=GROUP, peer=1, tag=3, text=TEXT.decode())
    equal(ranks[1].finish()[2], len(TEXT))
    for rank in ranks:
        rank.call("leave", name=GROUP)


def found(dump, cluster):
    """What can be read in a dump of both planes."""
    planes = {"data": data_ports(cluster), "control": [node.port for node in cluster.nodes]}
    seen = set()
    for plane, ports in planes.items():
        content = dump.of(ports)
        check(len(content) > 1000, f"{plane} were on this network: {len(content)} bytes")
        words = {"tensor": TENSOR, "message": TEXT, "broadcast": b"last one",
                 "name": GROUP.encode()}  # fmt: skip
        seen |= {(plane, what) for what, word in words.items() if word in content}
    return seen


def dumped(transport):
    with Wire(2, transport) as cluster:
        with Dump(cluster.space) as dump:
            cluster.start()
            traffic(cluster)
        return found(dump, cluster)


def test_a_known_tensor_is_found_without():
    """So the tests below can fail."""
    equal(
        dumped({"encryption": "off"}),
        {("data", "tensor"), ("data", "message"), ("data", "broadcast")},
    )


def test_a_known_tensor_is_not_found():
    equal(dumped(ON), set())
    equal(dumped({**ON, "channels": "3"}), set())


def test_not_by_default_either():
    """Nodes that are not on loopback, and nobody who has asked for anything."""
    with Namespaces(transport={"trusted_network": "false", "device": "veth0"}) as cluster:
        with Dump(cluster.names[0], "veth0") as dump:
            traffic(cluster)
        planes = dump.of(data_ports(cluster) + [node.port for node in cluster.nodes])
        check(len(planes) > 500_000, f"{len(planes)} bytes")
        for word in (TENSOR, TEXT, b"last one", GROUP.encode()):
            check(word not in planes, word)


def faults_of(pid):
    """Pages that the kernel had to give to the process."""
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[7])


def test_what_is_encrypted_takes_no_fresh_memory():
    """The engine goes on with the memory of the messages before: fresh pages cost more than the
    cipher."""
    if sanitizer_environment():
        raise Skip("a sanitizer has its own malloc()")
    with Cluster(2, {"transport": ON}) as cluster:
        ranks = cluster.ranks("job", [0, 1])
        engines = [node.engine_pid() for node in cluster.nodes]
        taken = []
        for _ in range(2):  # the first time all of it is fresh
            before = sum(map(faults_of, engines))
            for rank in ranks:
                rank.start("loop", name="job", count=1 << 18, limit=200)
            for rank in ranks:
                check("started" in rank.answer(), "the loop has started")
                equal(rank.finish(60), 200)
            taken.append(sum(map(faults_of, engines)) - before)
        print(f"  page faults: {taken[0]}, then {taken[1]}")
        check(taken[1] < 2 * 200 * 4, f"{taken[1]} page faults in 200 operations of 1 MB")
        for rank in ranks:
            rank.call("leave", name="job")


# ---- a man in the middle -------------------------------------------------------------------------


def flip(data, connection):
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def drop(data, connection):
    return b""


def lose(data, connection):
    at = random.randrange(len(data))
    return data[:at] + data[at + 1 :]


def repeat(data, connection):
    return data + data


def swap(data, connection):
    half = (len(data) + 1) // 2
    return data[half:] + data[:half]


def inject(data, connection):
    return os.urandom(64) + data


def reflect(data, connection):
    """The side that connected gets its own words."""
    return connection.hello[0]


def meddled(how, way, transport, largest=1 << 16):
    """A job that verifies each result has no wrong one, and all its ranks are told why it ends."""
    with Wire(2, transport) as cluster:
        middle = cluster.middle()
        cluster.expect("authentication failed")
        cluster.start()
        ranks = cluster.ranks("job", [0, 1])
        for rank in ranks:
            rank.start("stream", name="job", seed=SEED, operations=5000, max_bytes=largest)
        middle.meddle(way, 2000, how)
        middle.until_done()
        for rank in ranks:
            error = rank.error()
            equal(error["code"], "NODE_LOST", error)
            check("authentication failed" in error["message"], error)
        for node in cluster.nodes:
            (why,) = node.ctl("why")["why"]
            equal(why["verdict"], "LINK_TAMPERED", why)
        for rank in ranks:
            rank.call("disconnect")
        cluster.wait_linked()
        stream(cluster, [0, 1], 20, largest, SEED)


def test_a_man_in_the_middle():
    for how in (flip, drop, lose, repeat, swap, inject):
        for way in (0, 1):
            print(f"  {how.__name__}, direction {way}:")
            meddled(how, way, ON)


def test_a_man_in_the_middle_of_several_connections():
    for how in (flip, drop):
        meddled(how, 0, {**ON, "channels": "2"})


def test_a_man_in_the_middle_of_what_threads_encrypt():
    for how in (flip, drop):
        meddled(how, 0, {**ON, "encryption_threads": "2"}, 1 << 20)


def test_who_holds_all_back():
    """And acknowledges it in the other side's name: both sides would wait for good."""
    for way in (0, 1):
        with Wire(2, ON) as cluster:
            middle = cluster.middle()
            cluster.expect("no answer for 6000 ms")
            cluster.expect("the engines of nodes .* lost each other")
            cluster.start()
            ranks = cluster.ranks("job", [0, 1])
            for rank in ranks:
                rank.start("stream", name="job", seed=SEED, operations=100000, max_bytes=1 << 16)
            until(lambda: max(s.passed[0] for s in middle.streams) > 1 << 20, "the job goes on")
            middle.held = way
            said = [(error["code"], error["message"]) for error in map(Rank.error, ranks)]
            print(*(f"  direction {way}: {code}: {text}" for code, text in said), sep="\n")
            for code, text in said:  # who has only seen that the other side closes asks it why
                check(code == "NODE_LOST" and "no answer for" in text, said)
            for rank in ranks:
                rank.call("disconnect")
            middle.held = None
            cluster.wait_linked()
            stream(cluster, [0, 1], 20, 1 << 16, SEED)


def connected(node):
    return all(row["encryption"] for row in node.ctl("nodes")["nodes"] if row["state"] != "self")


def greeted(way, at, how, lost=False):
    with Wire(2, ON) as cluster:
        middle = cluster.middle()
        cluster.expect("the other side has closed the link")
        middle.meddle(way, at, how)
        cluster.start()
        middle.until_done()
        if lost:  # who connects may take the link for open, and hears then that it is not
            until(lambda: any("lost each other" in n.log() for n in cluster.nodes)
                  or all(map(connected, cluster.nodes)), "the end")  # fmt: skip
        cluster.wait_linked()
        stream(cluster, [0, 1], 20, 1 << 16, SEED)


def test_greetings_that_are_changed():
    """Nobody takes them, and the nodes find each other at the next attempt."""
    for how in (flip, reflect):
        greeted(1, 0, how)
    greeted(0, HELLO, lambda data, stream: flip(data[:ACCEPT], stream) + data[ACCEPT:], lost=True)


def test_hellos_that_are_repeated():
    """Of this life, and of the one before: nobody proves anything to them, and jobs go on."""
    with Wire(2, ON) as cluster:
        middle = cluster.middle()
        cluster.expect("the engine of node node1 was lost")
        cluster.expect("the engines of nodes .* lost each other")
        cluster.start()
        before = list(middle.hellos)
        node = cluster.nodes[1]
        old = node.engine_pid()
        os.kill(old, signal.SIGKILL)
        until(lambda: node.engine_pid() not in (0, old), "a new engine")
        cluster.wait_linked()
        check(len(middle.hellos) >= len(before) + 2, middle.hellos)
        with Stranger(cluster.space, middle.targets, middle.hellos) as stranger:
            stream(cluster, [0, 1], 60, 1 << 20, SEED)
            until(lambda: stranger.said > 2 * len(middle.hellos), "all are repeated")
            stream(cluster, [0, 1], 60, 1 << 20, SEED + 1)
        digests = [hmac.digest(bytes(32), b"heard" + word, "sha256") for word in middle.hellos]
        for answer in stranger.heard - {b""}:  # to one that goes on with a stream: there is none
            equal((answer[12:14], answer[64:]), (b"\2\0", bytes(HELLO - 64)), answer)
            check(answer[32:64] in digests, answer)


if __name__ == "__main__":
    main(globals())
