#!/usr/bin/env python3
"""commd of one of several nodes dies and is there again: groups over the nodes go on.

The keeper of each node starts it again (commd --keep); engines go on meanwhile."""

import contextlib
import os
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import check, equal, how_many, main, until  # noqa: E402
from keeping import gap, kept_nodes, killed_at_random, restart, serves  # noqa: E402

PLACES = [0, 0, 1, 1]


@contextlib.contextmanager
def kept(changes=None):
    """Two nodes whose commds have keepers."""
    with kept_nodes(2, changes) as cluster:
        yield cluster, cluster.nodes


def all_do(ranks, do, **arguments):
    for rank in ranks:
        rank.start(do, **arguments)
    return [rank.finish() for rank in ranks]


def states(node):
    return {row["node"]: row["state"] for row in node.ctl("nodes")["nodes"]}


def groups(node):
    return sorted(g["name"] for g in node.groups())


def forgotten(nodes, *names):
    for node in nodes:
        until(lambda: groups(node) == sorted(names), f"groups on {node.name}: {groups(node)}")


def test_streams_go_on_while_commds_are_killed_at_random():
    with kept() as (cluster, nodes):
        cluster.expect("closed before the TLS handshake")  # by one that was killed right then
        ranks = cluster.ranks("g", PLACES)
        rounds = 0
        with killed_at_random(nodes, how_many(24, 9), 0.2) as over:
            while not over.is_set() or not rounds:
                all_do(ranks, "stream", name="g", seed=rounds, operations=60, max_bytes=200000)
                all_do(ranks, "mail", name="g", seed=rounds, messages=30, max_bytes=100000)
                cluster.join(f"round{rounds}", ranks)
                for number, rank in enumerate(ranks):
                    rank.start(
                        "split", name=f"round{rounds}", new=f"s{rounds}", colour=number % 2, key=0
                    )
                for rank in ranks:
                    rank.finish()
                all_do(ranks, "all_reduce", name=f"s{rounds}", count=100)
                for name in (f"s{rounds}", f"round{rounds}"):
                    all_do(ranks, "leave", name=name)
                rounds += 1
        forgotten(nodes, "g")
        cluster.wait_linked()
        check(rounds > 1, f"{rounds} rounds")


def test_the_others_say_that_a_node_is_restarting():
    with kept() as (cluster, nodes):
        ranks = cluster.ranks("g", PLACES)
        with gap(nodes[0]):
            until(lambda: states(nodes[1])[nodes[0].name] == "restarting", f"{states(nodes[1])}")
            row = next(r for r in nodes[1].ctl("nodes")["nodes"] if r["node"] == nodes[0].name)
            check("timeouts.restart" in str(row), f"{row}")
            all_do(ranks, "all_reduce", name="g", count=1000)  # without commd on node 0
        nodes[1].wait_log(f"node {nodes[0].name} is back")
        cluster.wait_linked()
        all_do(ranks, "all_reduce", name="g", count=1000)
        for node in nodes:
            check("was lost" not in node.log(), "nobody was lost")


@contextlib.contextmanager
def stopped(node, engine=False):
    """Its commd is stopped as by a debugger, and goes on at the end. @engine: as by a freezer."""
    pids = [serves(node), node.engine_pid()][: 1 + engine]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    equal(serves(node), pids[0], "it is the same commd")


def test_a_commd_that_is_stopped_is_waited_for():
    with kept({"timeouts": {"restart": "10m"}}) as (cluster, nodes):
        cluster.expect("TLS handshake")  # with the one that is stopped
        ranks = cluster.ranks("g", PLACES)
        away = f"node {nodes[1].name} is restarting: its commd is silent, data go on"
        with stopped(nodes[1]):
            rounds = 0
            while rounds < 2 or away not in nodes[0].log():
                all_do(ranks, "stream", name="g", seed=rounds, operations=60, max_bytes=200000)
                rounds += 1
            equal(states(nodes[0])[nodes[1].name], "restarting")
            row = nodes[0].ctl("nodes")["nodes"][1]
            check("its commd is silent, its engine answers" in row["last_error"], row)
            all_do(ranks, "all_reduce", name="g", count=1000)
        nodes[0].wait_log(f"node {nodes[1].name} is back")
        cluster.wait_linked()
        all_do(ranks, "all_reduce", name="g", count=1000)
        cluster.join("later", ranks)
        for node in nodes:
            check("was lost" not in node.log(), "nobody was lost")


def test_a_group_that_rests_waits_for_a_commd_that_is_stopped():
    """No data are on their way: the kernels say that both nodes are there."""
    with kept({"timeouts": {"restart": "10m"}}) as (cluster, nodes):
        cluster.expect("TLS handshake")
        ranks = cluster.ranks("g", PLACES)
        with stopped(nodes[1]):
            nodes[0].wait_log(f"node {nodes[1].name} is restarting: its commd is silent")
        nodes[0].wait_log(f"node {nodes[1].name} is back")
        all_do(ranks, "all_reduce", name="g", count=1000)


def test_a_node_that_is_frozen_is_waited_for():
    """Its kernel answers: nobody can tell it from one whose commd alone is stopped."""
    with kept({"timeouts": {"restart": "10m"}}) as (cluster, nodes):
        cluster.expect("TLS handshake")
        ranks = cluster.ranks("g", PLACES)
        engine = nodes[1].engine_pid()
        with stopped(nodes[1], engine=True):
            nodes[0].wait_log(f"node {nodes[1].name} is restarting: its commd is silent")
            for rank in ranks:
                rank.start("all_reduce", name="g", count=1000)
        for rank in ranks:
            rank.finish()
        nodes[0].wait_log(f"node {nodes[1].name} is back")
        equal(nodes[1].engine_pid(), engine, "it is the same engine")
        all_do(ranks, "all_reduce", name="g", count=1000)


def test_a_node_that_is_frozen_for_long_is_lost():
    with kept({"timeouts": {"restart": "2s"}}) as (cluster, nodes):
        for words in ("TLS handshake", "was lost", "lost each other"):
            cluster.expect(words)
        ranks = cluster.ranks("g", PLACES)
        with stopped(nodes[1], engine=True):
            for rank in ranks[:2]:
                rank.start("all_reduce", name="g", count=1000)
            nodes[0].wait_log("silent for 3 s, and its commd is not back within 2 s")
            for rank in ranks[:2]:
                error = rank.error()
                equal((error["code"], error["node"]), ("NODE_LOST", nodes[1].name))


def test_a_commd_that_is_stopped_for_long_is_lost():
    with kept({"timeouts": {"restart": "2s"}}) as (cluster, nodes):
        for words in ("TLS handshake", "was lost", "lost each other"):
            cluster.expect(words)
        ranks = cluster.ranks("g", PLACES)
        with stopped(nodes[1]):
            nodes[0].wait_log("silent for 3 s, and its commd is not back within 2 s")
            for rank in ranks[:2]:
                rank.start("all_reduce", name="g", count=1000)
            for rank in ranks[:2]:
                error = rank.error()
                equal((error["code"], error["node"]), ("NODE_LOST", nodes[1].name))
        for rank in ranks[2:]:
            rank.start("all_reduce", name="g", count=1000)
        for rank in ranks[2:]:
            error = rank.error()
            equal((error["code"], error["node"]), ("NODE_LOST", nodes[0].name))
        cluster.wait_linked()
        cluster.join("later", ranks)
        all_do(ranks, "all_reduce", name="later", count=1000)
        for name in ("g", "later"):
            all_do(ranks, "leave", name=name)
        forgotten(nodes)


def test_a_join_in_the_gap_waits():
    with kept() as (cluster, nodes):
        ranks = cluster.ranks("g", PLACES)
        with gap(nodes[0]):
            for number, rank in enumerate(ranks):
                rank.start("join", name="later", rank=number, size=len(ranks))
            (row,) = until(lambda: nodes[1].ctl("why", "later")["why"], "a rank waits in the join")
            equal((row["verdict"], row["node"]), ("NOT_JOINED", nodes[0].name), row)
            said = f"commd of node {nodes[0].name} is restarting: a join with ranks there waits"
            check(said in row["evidence"], row)
            (row,) = nodes[1].ctl("why", "g")["why"]
            equal((row["verdict"], row["node"]), ("COMMD_AWAY", nodes[0].name), row)
        for rank in ranks:
            rank.finish()
        all_do(ranks, "all_reduce", name="later", count=1000)
        all_do(ranks, "all_reduce", name="g", count=1000)


def test_a_rank_that_dies_in_the_gap_is_told_on_both_nodes():
    for dies in (0, 3):  # on the node whose commd is gone, on the other one
        with kept() as (cluster, nodes):
            ranks = cluster.ranks("g", PLACES)
            with gap(nodes[0]):
                ranks[dies].kill()
            rest = [rank for rank in ranks if rank is not ranks[dies]]
            for rank in rest:
                rank.start("all_reduce", name="g", count=10)
            for rank in rest:
                error = rank.error()
                equal((error["code"], error["rank"]), ("RANK_LOST", dies))
            forgotten(nodes, "g")
            all_do(rest, "leave", name="g")
            forgotten(nodes)


def test_who_leaves_in_the_gap_is_forgotten_on_both_nodes():
    with kept() as (cluster, nodes):
        ranks = cluster.ranks("g", PLACES)
        with gap(nodes[0]):
            all_do(ranks, "leave", name="g")
        forgotten(nodes)
        cluster.join("g", ranks)
        all_do(ranks, "all_reduce", name="g", count=10)


def test_an_abort_in_the_gap_is_told():
    with kept() as (cluster, nodes):
        ranks = cluster.ranks("g", PLACES)
        with gap(nodes[0]):
            ranks[3].call("abort", name="g", reason="enough")
        for rank in ranks[:2]:
            equal(rank.call_error("all_reduce", name="g", count=10)["code"], "ABORTED")


def test_an_engine_that_dies_in_the_gap_is_told():
    """Unless nothing was on the wire, and both engines are heard of in time: then it goes on."""
    for at in (0, 1):  # that of the commd that is gone, that of the other one
        with kept() as (cluster, nodes):
            for words in ("was lost", "lost each other", "has ended while no commd was there"):
                cluster.expect(words)
            ranks = cluster.ranks("g", PLACES)
            with gap(nodes[0]):
                os.kill(nodes[at].engine_pid(), signal.SIGKILL)
            for rank in ranks:
                rank.start("all_reduce", name="g", count=10)
            answers = [rank.answer() for rank in ranks]
            told = [a["error"]["code"] for a in answers if "error" in a]
            check(len(told) in (0, len(ranks)), f"not all alike: {answers}")
            check(set(told) <= {"ENGINE_LOST", "NODE_LOST"}, f"{told}")
            cluster.wait_linked()
            cluster.join("new", ranks)
            all_do(ranks, "all_reduce", name="new", count=10)


def test_a_node_that_is_not_back_in_time_is_lost():
    with kept({"timeouts": {"restart": "500ms"}}) as (cluster, nodes):
        cluster.expect("was lost")
        ranks = cluster.ranks("g", PLACES)
        with gap(nodes[0]):
            ended = f"node {nodes[0].name} was lost: its commd ended the link"
            nodes[1].wait_log(f"{ended}, and its commd is not back within 500 ms")
            error = ranks[2].call_error("all_reduce", name="g", count=10)
            equal((error["code"], error["node"]), ("NODE_LOST", nodes[0].name))
        code = ranks[0].call_error("all_reduce", name="g", count=10)["code"]
        check(code in ("ENGINE_LOST", "NODE_LOST"), code)


def test_two_nodes_restart_at_once():
    with kept() as (cluster, nodes):
        ranks = cluster.ranks("g", PLACES)
        for _ in range(3):
            with gap(nodes[0]), gap(nodes[1]):
                all_do(ranks, "all_reduce", name="g", count=1000)
            cluster.wait_linked()
        for node in nodes:
            restart(node)
        cluster.wait_linked()
        cluster.join("later", ranks)
        for name in ("g", "later"):
            all_do(ranks, "all_reduce", name=name, count=1000)
            all_do(ranks, "leave", name=name)
        forgotten(nodes)


main(globals())
