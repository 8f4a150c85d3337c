#!/usr/bin/env python3
"""An engine is killed: groups over several nodes of which nothing is on the wire go on over the
next one, the others break with ENGINE_LOST on all ranks. Never a wrong result, never a hang."""

import contextlib
import os
import random
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import Cluster, Limit, check, equal, main, until  # noqa: E402
from faults import leave, new_group_works, nothing_is_held, sleeps, until_on_the_wire  # noqa: E402
from keeping import commd_pid, kept_nodes, serves  # noqa: E402

KILLS = int(os.environ.get("COMMD_KILLS", "5"))


def expect_losses(cluster):
    cluster.expect("was lost")
    cluster.expect("lost each other")


@contextlib.contextmanager
def nodes(count):
    with Cluster(count) as cluster:
        expect_losses(cluster)
        yield cluster


class Engine:
    """One that runs, and as which the other nodes know it."""

    def __init__(self, cluster, node):
        self.node = node
        self.others = [other for other in cluster.nodes if other is not node]
        self.pid = until(node.engine_pid, "an engine")
        self.known = [self.as_known(other) for other in self.others]

    def as_known(self, other):
        rows = until(lambda: other.ctl("nodes"), "an answer")["nodes"]
        return next(row["engine"] for row in rows if row["node"] == self.node.name)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):  # one that was killed already ends meanwhile
            os.kill(self.pid, signal.SIGKILL)
        return self

    def noticed(self):
        """One that begins an operation before the other nodes know has it on the wire."""
        until(lambda: self.node.engine_pid() != self.pid, "its commd knows it")
        for other, known in zip(self.others, self.known):
            until(lambda other=other, known=known: self.as_known(other) != known,
                  f"{other.name} knows it")  # fmt: skip

    def replaced(self):
        until(lambda: self.node.engine_pid() not in (0, self.pid), "there is another engine")
        self.noticed()


def sums(name, ranks, count, fill):
    """An all_reduce of bytes, whose result is looked at."""
    for rank in ranks:
        rank.start("all_reduce", name=name, count=count, dtype="u8", fill=fill)
    for rank in ranks:
        equal(rank.finish(), f"{fill * len(ranks) % 256:02x}" * 16)


def letters(name, ranks, number):
    """A short message and a long one from each rank to the next one."""
    for size, tag in ((8, 1), (300_000, 2)):
        text = f"{number:08d}"
        for at, rank in enumerate(ranks):
            rank.call("send", name=name, peer=(at + 1) % len(ranks), tag=tag, text=text,
                      repeat=size // 8, start=True)  # fmt: skip
        for at, rank in enumerate(ranks):
            rank.start("recv", name=name, peer=(at - 1) % len(ranks), tag=tag, size=size)
        for at, rank in enumerate(ranks):
            source = (at - 1) % len(ranks)
            equal(rank.finish(), [source, tag, size, text, True])
        for rank in ranks:
            rank.call("finish_sends")


def idle(count, places):
    with nodes(count) as cluster:
        ranks = cluster.ranks("g", places)
        cluster.join("mail", ranks)
        cluster.join("unused", ranks)
        sums("g", ranks, 1000, 1)
        letters("mail", ranks, 0)
        for number in range(KILLS):
            node = cluster.nodes[number % count]
            old = Engine(cluster, node).kill()
            if number % 2:
                old.replaced()
            else:  # who begins in the gap waits
                old.noticed()
            sums("g", ranks, (100, 4000, 100_000)[number % 3], number % 7 + 1)
            letters("mail", ranks, number)
            old.replaced()
        letters("unused", ranks, 5)
        sums("unused", ranks, 50_000, 3)
        for node in cluster.nodes:
            kept = [e for e in node.ctl("events")["events"] if e["event"] == "group_kept"]
            check(len(kept) >= 3 and "it goes on over the next one" in str(kept), kept)
        for name in ("g", "mail", "unused"):
            leave(name, ranks)
        new_group_works(cluster, ranks)
        nothing_is_held(cluster)


def test_idle_groups_go_on_2x1():
    idle(2, [0, 1])


def test_idle_groups_go_on_2x2():
    idle(2, [0, 1, 0, 1])


def test_idle_groups_go_on_3x1():
    idle(3, [0, 1, 2])


def test_two_engines_die_at_once():
    with nodes(3) as cluster:
        ranks = cluster.ranks("g", [0, 1, 2, 0])
        for number in range(6):
            pair = [cluster.nodes[number % 3], cluster.nodes[(number + 1) % 3]]
            old = [Engine(cluster, node) for node in pair]
            for engine in old:
                engine.kill()
            if number % 2:
                time.sleep(0.12)  # the first one is perhaps there again, and dies early
                again = [Engine(cluster, node) for node in pair if node.engine_pid()]
                old += [engine.kill() for engine in again]
            for engine in old:
                engine.noticed()
            sums("g", ranks, 2000, number + 1)
        leave("g", ranks)


def test_what_has_come_and_is_not_read_stays():
    """A message that lies with its receiver is not on the wire."""
    with nodes(2) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        for number in range(4):
            ranks[0].call("send", name="g", peer=1, tag=number, text="before..")
            engines = [node.engine_pid() for node in cluster.nodes]
            until(lambda look=engines * 2: all(map(sleeps, look)), "it has come")
            node = cluster.nodes[1 - number % 2]
            old = Engine(cluster, node).kill()
            old.noticed()
            ranks[0].call("send", name="g", peer=1, tag=100 + number, text="after...")
            ranks[1].start("recv", name="g", peer=0, tag=number, size=8)
            equal(ranks[1].finish(), [0, number, 8, "before..", True])
            ranks[1].start("recv", name="g", peer=0, tag=100 + number, size=8)
            equal(ranks[1].finish(), [0, 100 + number, 8, "after...", True])
            old.replaced()
        leave("g", ranks)


def all_named(ranks, node, seconds):
    """Do all loops end by an error that names the engine? Else all must have come to their end."""
    answers = [rank.answer(seconds) for rank in ranks]
    errors = [answer["error"] for answer in answers if "error" in answer]
    for error in errors:
        equal((error["code"], error["node"]), ("ENGINE_LOST", node.name), error)
    check(len(errors) in (0, len(ranks)), answers)
    return bool(errors)


def busy(count, places, size, operations):
    """Where the engine is killed just between two operations, the group goes on."""
    with nodes(count) as cluster:
        local = cluster.ranks("local", [0, 0])
        others = cluster.ranks("idle", places)
        for rank in local:
            rank.start("loop", name="local", count=100, limit=20_000)
        broken = number = 0
        while number < 4 or not broken and number < 20:
            name = f"g{number}"
            workers = cluster.ranks(name, places)
            for rank in workers:
                rank.start("loop", name=name, count=size, limit=operations)
            for rank in workers:
                check("started" in rank.answer(), "the loop has started")
            node = cluster.nodes[number % count]
            old = Engine(cluster, node)
            time.sleep(random.uniform(0.02, 0.2))
            old.kill()
            broken += all_named(workers, node, 40)
            number += 1
            old.replaced()
            sums("idle", others, 3000, number)
            leave(name, workers)
            for rank in workers:
                rank.close()
        check(broken, "an operation was hit")
        for rank in local:
            check("started" in rank.answer(), "the loop has started")
            equal(rank.finish(60), 20_000, "the group on one node goes on")


def test_a_busy_group_is_named_small():
    busy(2, [0, 0, 1, 1], 100, 10_000)


def test_a_busy_group_is_named_large():
    busy(3, [0, 1, 2], 200_000, 1000)


def test_one_that_waits_for_the_others_is_named():
    """Its operation is on the wire."""
    with nodes(2) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        ranks[0].start("all_reduce", name="g", count=100)
        until_on_the_wire(cluster.nodes[0], ranks[:1])
        Engine(cluster, cluster.nodes[1]).kill()
        error = ranks[0].error()
        equal((error["code"], error["node"]), ("ENGINE_LOST", "node1"))
        equal(ranks[1].call_error("all_reduce", name="g", count=100)["code"], "ENGINE_LOST")
        leave("g", ranks)


def test_groups_whose_ranks_die_or_leave_meanwhile_end():
    with nodes(2) as cluster:
        ranks = cluster.ranks("g", [0, 0, 1])
        others = cluster.ranks("h", [0, 1, 1])
        Engine(cluster, cluster.nodes[0]).kill()
        ranks[2].kill()
        others[2].call("leave", name="h")
        error = ranks[0].call_error("all_reduce", name="g", count=100)
        check(error["code"] in ("ENGINE_LOST", "RANK_LOST"), error)
        error = others[0].call_error("all_reduce", name="h", count=100)
        check(error["code"] in ("ENGINE_LOST", "RANK_LOST"), error)
        leave("g", ranks[:2])
        leave("h", others[:2])


def test_commd_and_its_engine_die_together():
    """Named, or it goes on: never a hang, never a wrong result."""
    with kept_nodes(2) as cluster:
        expect_losses(cluster)
        cluster.expect("has ended while no commd was there")
        cluster.expect("restarted")
        for number in range(4):
            name = f"g{number}"
            ranks = cluster.ranks(name, [0, 1])
            node = cluster.nodes[number % 2]
            engine, commd = until(node.engine_pid, "an engine"), serves(node)
            for pid in (engine, commd) if number < 2 else (commd, engine):
                os.kill(pid, signal.SIGKILL)
            for rank in ranks:
                rank.start("all_reduce", name=name, count=1000, dtype="u8", fill=3)
            for rank in ranks:
                answer = rank.answer(30)
                if "error" in answer:
                    check(answer["error"]["code"] in ("ENGINE_LOST", "NODE_LOST"), answer)
                else:
                    equal(answer["ok"], "06" * 16)
            until(lambda node=node, commd=commd: commd_pid(node) not in (0, commd), "a commd")
            cluster.wait_linked()
            for rank in ranks:
                rank.close()


def test_after_a_restart_of_commd_too():
    """The next commd has the doorbells of its clients from the one before."""
    with kept_nodes(2) as cluster:
        expect_losses(cluster)
        ranks = cluster.ranks("g", [0, 1, 0])
        sums("g", ranks, 1000, 1)
        for number in range(4):
            node = cluster.nodes[number % 2]
            pid = serves(node)
            os.kill(pid, signal.SIGKILL)
            serves(node, pid)
            cluster.wait_linked()
            Engine(cluster, node).kill().replaced()
            sums("g", ranks, 1000, number + 2)
            limit = Limit(10)
            for _ in range(20):
                time.sleep(0.01)  # the engine sleeps in between
                sums("g", ranks, 100, 1)
            check(not limit.over(), "the engine is woken by the doorbells")
        leave("g", ranks)


if __name__ == "__main__":
    main(globals())
