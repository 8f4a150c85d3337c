#!/usr/bin/env python3
"""Random streams of collectives through real daemons over the network of loopback, bit for bit.

1,250 operations in all: two to six nodes, one to three ranks on each, every collective, type and
operator, sizes from 0 to 2 MiB, in place and not, blocking and asynchronous. COMMD_SEED replays.
"""

import os
import random
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import HANG, Cluster, check, equal, how_many, main, need_ucx, until  # noqa: E402

SEED = int(os.environ.get("COMMD_SEED", "0")) or random.SystemRandom().getrandbits(31)
LONG = 24 * HANG


def stream(cluster, places, operations, max_bytes, seed):
    operations = how_many(operations, operations // 3)
    print(
        f"  ranks on nodes {places}: {operations} operations up to {max_bytes} bytes,"
        f" COMMD_SEED={seed}"
    )
    name = f"stream {places}"
    ranks = cluster.ranks(name, places)
    for rank in ranks:
        rank.start("stream", name=name, seed=seed, operations=operations, max_bytes=max_bytes)
    for rank in ranks:
        equal(rank.finish(LONG), operations)
    for rank in ranks:
        rank.call("leave", name=name)
    for rank in ranks:
        rank.call("disconnect")


def test_one_node():
    with Cluster(1) as cluster:
        stream(cluster, [0, 0], 150, 1 << 20, SEED)
        stream(cluster, [0], 30, 1 << 16, SEED + 1)


def test_two_nodes():
    with Cluster(2) as cluster:
        stream(cluster, [0, 1], 170, 2 << 20, SEED + 2)
        stream(cluster, [0, 0, 1, 1], 200, 1 << 20, SEED + 3)
        stream(cluster, [1, 0, 1, 0, 1], 120, 1 << 16, SEED + 4)  # ranks interleaved


def test_three_nodes():
    with Cluster(3) as cluster:
        stream(cluster, [0, 1, 2], 180, 2 << 20, SEED + 5)
        stream(cluster, [2, 2, 0, 1, 1, 1], 100, 1 << 17, SEED + 6)
        stream(cluster, [0, 2], 50, 1 << 20, SEED + 7)  # one node is not in it


def test_more_nodes():
    with Cluster(6) as cluster:
        stream(cluster, [0, 1, 2, 3], 150, 1 << 19, SEED + 50)
        stream(cluster, [5, 4, 3, 2, 1, 0, 0], 100, 1 << 19, SEED + 51)


def other_fabric(transport, seed):
    with Cluster(3, {"transport": transport}) as cluster:
        equal(
            {node.ctl("status")["status"][0]["fabric"] for node in cluster.nodes},
            {transport["fabric"]},
        )
        stream(cluster, [0, 1], 100, 2 << 20, seed)
        stream(cluster, [2, 2, 0, 1], 80, 1 << 20, seed + 1)
        mail(cluster, [0, 1, 2], 80, 3 << 20, seed + 2)


def test_over_ucx():
    need_ucx()
    other_fabric({"fabric": "ucx"}, SEED + 30)


def test_over_several_connections():
    other_fabric({"fabric": "tcp", "channels": 3}, SEED + 33)


def test_nodes_that_think_differently_of_the_network():
    """The numbers of a group's home hold for all its nodes, or they would cut differently."""
    with Cluster(3, start=False) as cluster:
        for node, numbers in zip(cluster.nodes, ((1, "100G"), (1000, "1M"), (30, "1G"))):
            node.write_config(transport={"latency_us": numbers[0], "bandwidth": numbers[1]})
        cluster.start()
        for i in range(4):  # with different homes
            stream(cluster, [0, 1, 2][: 2 + i % 2] + [i % 2], 40, 1 << 18, SEED + 40 + i)


def test_limits_that_the_clock_does_not_reach():
    """Are none."""
    with Cluster(2) as cluster:
        ranks = [cluster.rank(node, connect=False) for node in range(2)]
        for rank in ranks:
            rank.call("connect", timeout_ms=2**63 - 1)
        cluster.join("g", ranks, timeout_ms=2**63 - 1)
        for rank in ranks:
            rank.start("all_reduce", name="g", count=10)
        for rank in ranks:
            rank.finish()


def test_who_only_sends_waits_for_nobody():
    """Over nodes a small broadcast's root goes on at once; if it leaves, what it sent comes yet."""
    with Cluster(2) as cluster:
        for coll, sender in (("broadcast", 0), ("reduce", 1)):
            ranks = cluster.ranks(coll, [0, 1])
            first, second = ranks[sender], ranks[1 - sender]
            for rank in (first, second):
                rank.start("one_way", name=coll, coll=coll, nbytes=502)
                check("started" in rank.answer(), "it has begun")
                equal(rank.finish(), True)
                rank.start("leave", name=coll)
            for rank in ranks:
                rank.finish()


def test_split_and_batch():
    with Cluster(2) as cluster:
        ranks = cluster.ranks("parent", [n % 2 for n in range(5)])
        # odd and even ones, in falling order; rank 4 takes no part
        for k, rank in enumerate(ranks):
            rank.start("split", name="parent", new="half", colour=k % 2 if k < 4 else -3, key=-k)
        equal([rank.finish() for rank in ranks], [[1, 2], [1, 2], [0, 2], [0, 2], None])
        for rank in ranks[:4]:
            rank.start("batch", name="half", sizes=[1, 100000, 0, 7])
        for rank in ranks[:4]:
            equal(rank.finish(), [[2], [2], [], [2]])
        # once more, all in one; and the first failure of a batch is its result, the rest is done
        for k, rank in enumerate(ranks):
            rank.start("split", name="parent", new="all", colour=7, key=0)
        equal([rank.finish() for rank in ranks], [[k, 5] for k in range(5)])
        for k, rank in enumerate(ranks):
            rank.start("batch", name="all", sizes=[3, 4, 5], bad=1 if k == 2 else None)
        for rank in ranks:
            equal(rank.error()["code"], "MISMATCH")
        for rank in ranks:
            rank.start("batch", name="all", sizes=[3])
        for rank in ranks:
            equal(rank.finish(), [[5]])


def test_nothing_stays_after_the_groups():
    """Boards are closed in commd and in the engine when the last rank has left."""
    from cluster import memory_files

    with Cluster(2) as cluster:
        ranks = cluster.ranks("short", [n % 2 for n in range(4)])
        for rank in ranks:
            rank.start("all_reduce", name="short", count=5000)
        for rank in ranks:
            rank.finish()
        check(cluster.nodes[0].groups(), "commctl shows the group")
        ranks[0].call("leave", name="short")
        ranks[1].call("disconnect")
        ranks[2].close()
        ranks[3].call("leave", name="short")
        for node in cluster.nodes:
            until(lambda node=node: not node.groups(), f"no group on {node.name}")
            for pid in (node.pid, node.engine_pid()):
                until(lambda pid=pid: not memory_files(pid), f"process {pid} holds no memory file")


def mail(cluster, places, messages, max_bytes, seed):
    """Random messages between all ranks, in the group that collectives use at the same time."""
    print(
        f"  ranks on nodes {places}: {messages} messages up to {max_bytes} bytes, COMMD_SEED={seed}"
    )
    name = f"mail {places}"
    ranks = cluster.ranks(name, places)
    for rank in ranks:
        rank.start("mail", name=name, seed=seed, messages=messages, max_bytes=max_bytes)
    for rank in ranks:
        equal(rank.finish(LONG), messages)
    for rank in ranks:
        rank.start("all_reduce", name=name, count=100)
    for rank in ranks:
        rank.finish()
        rank.call("disconnect")


def test_messages():
    with Cluster(3) as cluster:
        mail(cluster, [0, 0], 200, 1 << 20, SEED + 20)
        mail(cluster, [0, 1], 150, 3 << 20, SEED + 21)
        mail(cluster, [0, 1, 2, 0, 1], 300, 1 << 18, SEED + 22)


def test_messages_outlive_their_senders():
    """What was sent arrives, whether the sender left, disconnected or exited; then it is lost."""
    with Cluster(2) as cluster:
        ranks = cluster.ranks("late", [0] + [0, 1, 1, 0])
        for k, rank in enumerate(ranks[1:], 1):
            rank.call(
                "send", name="late", peer=0, tag=k, text="abcdefgh", repeat=[1, 20, 4000][k % 3]
            )
        ranks[1].call("leave", name="late")
        ranks[2].call("disconnect")
        ranks[3].start("exit", status=0)
        ranks[4].kill()
        for k in (1, 2, 3, 4):
            size = 8 * [1, 20, 4000][k % 3]
            equal(ranks[0].call("recv", name="late", peer=k, tag=k, size=40000),
                  [k, k, size, "abcdefgh", True])  # fmt: skip
            lost = ranks[0].call_error("recv", name="late", peer=k, tag=k, size=8)
            equal((lost["code"], lost["rank"]), ("RANK_LOST", k))


def test_messages_that_cannot_be():
    with Cluster(2) as cluster:
        ranks = cluster.ranks("odd", [0, 1])
        # too long; started without a receiver; a limit; and still usable
        for repeat in (1, 100, 100000):
            ranks[0].call(
                "send", name="odd", peer=1, tag=2, text="12345678", repeat=repeat, start=True
            )
            error = ranks[1].call_error("recv", name="odd", peer=0, tag=2, size=7)
            equal((error["code"], error["rank"]), ("MISMATCH", 0))
            check(f"{8 * repeat} bytes" in error["message"], error["message"])
        ranks[0].call("finish_sends")
        error = ranks[1].call_error("recv", name="odd", peer=0, tag=2, size=7, timeout_ms=50)
        equal((error["code"], error["rank"]), ("TIMEOUT", 0))
        ranks[0].call("send", name="odd", peer=1, tag=2, text="fine")
        equal(ranks[1].call("recv", name="odd", peer=-1, tag=-1, size=7), [0, 2, 4, "fine", True])
        # a long message to one who dies
        ranks[0].call("send", name="odd", peer=1, tag=3, text="long", repeat=1 << 20, start=True)
        ranks[1].kill()
        error = ranks[0].call_error("finish_sends")
        equal((error["code"], error["rank"]), ("RANK_LOST", 1))


if __name__ == "__main__":
    main(globals())
