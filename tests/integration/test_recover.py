#!/usr/bin/env python3
"""A rank dies, and the others go on in the group's next epoch: commd_group_recover() and
commd_group_rejoin(), over real processes. After each recovery every rank verifies a sum, a message
and a broadcast."""

import contextlib
import os
import select
import signal
import sys
import time
from random import Random

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import Cluster, Limit, check, equal, how_many, main  # noqa: E402
from cluster import sanitizer_environment, until  # noqa: E402
from keeping import gap, kept_nodes, serves, start_anew  # noqa: E402

KINDS = """all_reduce broadcast all_gather reduce_scatter reduce gather scatter all_to_all
    all_gather_v reduce_scatter_v gather_v scatter_v all_to_all_v""".split()
PLACES = {"1x4": [0] * 4, "2x2": [0, 0, 1, 1], "3x1": [0, 1, 2]}


@contextlib.contextmanager
def group(places, **changes):
    with Cluster(max(places) + 1, changes or None) as cluster:
        yield cluster, cluster.ranks("g", places)


def until_asked(cluster, policy, count=1):
    """The wish of so many ranks to go on has come to their commd."""

    def asked():
        rows = [group for node in cluster.nodes for group in node.groups()]
        return any(row["recovery"] == policy and row["local_ranks"] >= count for row in rows)

    until(asked, lambda: f"a rank asks to recover: {[node.groups() for node in cluster.nodes]}")


def receives(rank):
    rows = (rank.node.ctl("ranks", "g") or {}).get("ranks", [])
    return any((row["pid"], row["message"]) == (rank.pid, "recv") for row in rows)


def all_do(ranks, do, **arguments):
    for rank in ranks:
        rank.start(do, **arguments)
    return [rank.finish() for rank in ranks]


def all_fail(ranks, do, codes, **arguments):
    for rank in ranks:
        rank.start(do, **arguments)
    errors = [rank.error() for rank in ranks]
    for error in errors:
        check(error["code"] in codes, f"{error['code']}: {error['message']}")
    return errors


def recovered(ranks, name="g", verify=True, **options):
    """All of @ranks recover; what they say of themselves, in the order of @ranks. Verified."""
    places = all_do(ranks, "recover", name=name, **options)
    if verify:
        equal(all_do(ranks, "verify", name=name), [places[0]["size"]] * len(ranks))
    for place in places:
        equal(place["epoch"], places[0]["epoch"])
        equal(place["before"], places[0]["before"])
    return places


def no_group_is_left(cluster, ranks, name="g"):
    all_do(ranks, "leave", name=name)
    for node in cluster.nodes:
        if node.process.poll() is None:
            until(lambda: not node.groups(), f"no group on {node.name}")


def shrink_without(places, dead):
    with group(places) as (cluster, ranks):
        all_do(ranks, "verify", name="g")
        rest = [rank for number, rank in enumerate(ranks) if number != dead]
        for rank in rest:
            rank.start("loop", name="g")
            equal(rank.answer()["started"], True)
        ranks[dead].kill()
        for rank in rest:
            error = rank.error()
            equal((error["code"], error["rank"]), ("RANK_LOST", dead))
        said = [rank.call_error("check", name="g") for rank in rest]
        equal({(e["code"], e["rank"]) for e in said}, {("RANK_LOST", dead)})
        places = recovered(rest)
        equal([place["rank"] for place in places], list(range(len(rest))))
        equal({place["epoch"] for place in places}, {2})
        equal(places[0]["before"], [number for number in range(len(ranks)) if number != dead])
        all_do(rest, "check", name="g")
        no_group_is_left(cluster, rest)


def test_any_rank_dies_on_one_node():
    for dead in range(4):
        shrink_without(PLACES["1x4"], dead)


def test_any_rank_dies_on_two_nodes():
    for dead in range(4):
        shrink_without(PLACES["2x2"], dead)


def test_any_rank_dies_on_three_nodes():
    for dead in range(3):
        shrink_without(PLACES["3x1"], dead)


def test_the_node_of_rank_0_dies():
    for places in ("2x2", "3x1"):
        with group(PLACES[places]) as (cluster, ranks):
            cluster.expect("node0|lost")
            rest = [rank for rank, place in zip(ranks, PLACES[places]) if place]
            for rank in ranks:
                if rank not in rest:
                    rank.kill()
            os.kill(cluster.nodes[0].engine_pid(), signal.SIGKILL)
            cluster.nodes[0].kill()
            all_fail(rest, "all_reduce", ("NODE_LOST", "RANK_LOST", "ENGINE_LOST"), name="g",
                     count=1000)  # fmt: skip
            placed = recovered(rest)
            equal([place["rank"] for place in placed], list(range(len(rest))))
            equal(placed[0]["before"], [n for n, rank in enumerate(ranks) if rank in rest])
            equal({place["nodes"] for place in placed}, {len(set(PLACES[places])) - 1})
            all_do(rest, "leave", name="g")


def test_nobody_waits_for_a_node_of_which_nothing_is_left():
    """Its port is closed, so no commd will be back there; the others need not wait for it."""
    long = {"node": "600s", "restart": "600s"}
    for victim in (0, 1):
        with group(PLACES["2x2"], timeouts=long) as (cluster, ranks):
            cluster.expect(f"{cluster.nodes[victim].name}|lost")
            rest = [rank for rank, place in zip(ranks, PLACES["2x2"]) if place != victim]
            engine = cluster.nodes[victim].engine_pid()
            cluster.nodes[victim].kill()  # first, so that it does not say that its ranks ended
            os.kill(engine, signal.SIGKILL)
            for rank in ranks:
                if rank not in rest:
                    rank.kill()
            all_fail(rest, "all_reduce", ("NODE_LOST", "ENGINE_LOST"), name="g", count=1000)
            equal([place["rank"] for place in recovered(rest)], [0, 1])
            all_do(rest, "leave", name="g")


def test_a_node_is_lost_after_its_ranks_have_asked():
    """Its commd is stopped when the others agree, so it never does. In one of the groups the node
    at which ranks meet is another one."""
    for name in "ghik":
        with Cluster(3) as cluster:
            cluster.expect("node2|lost")
            ranks = cluster.ranks(name, PLACES["3x1"])
            ranks[0].kill()
            all_fail(ranks[1:], "all_reduce", ("RANK_LOST",), name=name, count=1000)
            last = cluster.nodes[2]
            engine = last.engine_pid()
            ranks[2].start("recover", name=name)
            until_asked(cluster, "shrink")
            time.sleep(0.2)
            os.kill(last.pid, signal.SIGSTOP)
            ranks[1].start("recover", name=name)
            time.sleep(0.2)
            last.kill()
            os.kill(engine, signal.SIGKILL)
            ranks[2].kill()
            place = ranks[1].finish()
            equal((place["rank"], place["size"]), (0, 1))
            all_do(ranks[1:2], "leave", name=name)


def kill_engine_at_work(node, ranks):
    """Again, where nothing of their group was on the wire: then the group goes on."""
    lines = [rank.process.stdout for rank in ranks]
    for _ in range(20):
        os.kill(until(node.engine_pid, "an engine"), signal.SIGKILL)
        if select.select(lines, [], [], 2)[0]:
            return
    check(False, "an operation was hit")


def test_an_engine_dies_and_all_ranks_go_on():
    with group(PLACES["2x2"]) as (cluster, ranks):
        cluster.expect("engine")
        for rank in ranks:
            rank.start("loop", name="g")
            equal(rank.answer()["started"], True)
        kill_engine_at_work(cluster.nodes[1], ranks)
        equal({rank.error()["code"] for rank in ranks}, {"ENGINE_LOST"})
        placed = recovered(ranks)
        equal(placed[0]["before"], [0, 1, 2, 3])
        no_group_is_left(cluster, ranks)


def test_two_die_at_once():
    for places in ("1x4", "2x2"):
        with group(PLACES[places]) as (cluster, ranks):
            ranks[1].kill()
            ranks[2].kill()
            rest = [ranks[0], ranks[3]]
            all_fail(rest, "all_reduce", ("RANK_LOST",), name="g", count=1000)
            equal([place["rank"] for place in recovered(rest)], [0, 1])
            no_group_is_left(cluster, rest)


def test_a_second_dies_while_the_others_recover():
    for places in ("1x4", "2x2"):
        with group(PLACES[places]) as (cluster, ranks):
            ranks[3].kill()
            all_fail(ranks[:3], "all_reduce", ("RANK_LOST",), name="g", count=1000)
            for rank in ranks[:2]:
                rank.start("recover", name="g")
            until_asked(cluster, "shrink")
            ranks[0].kill()
            ranks[2].start("recover", name="g")
            placed = [rank.finish() for rank in ranks[1:3]]
            equal([place["rank"] for place in placed], [0, 1])
            equal([place["before"] for place in placed], [[1, 2]] * 2)
            all_do(ranks[1:3], "verify", name="g")
            no_group_is_left(cluster, ranks[1:3])


def test_a_new_process_takes_the_seat():
    for places in ("1x4", "2x2", "3x1"):
        with group(PLACES[places]) as (cluster, ranks):
            for turn, dead in enumerate([0, len(ranks) - 1, 1]):
                ranks[dead].kill()
                rest = ranks[:dead] + ranks[dead + 1 :]
                all_fail(rest, "all_reduce", ("RANK_LOST",), name="g", count=1000)
                new = cluster.rank(PLACES[places][dead])
                for rank in rest:
                    rank.start("recover", name="g", policy="wait")
                new.start("rejoin", name="g", rank=dead if turn else -1)
                ranks[dead] = new
                placed = [rank.finish() for rank in ranks]
                equal([place["rank"] for place in placed], list(range(len(ranks))))
                want = [-1 if number == dead else number for number in range(len(ranks))]
                equal(placed[0]["before"], want)
                equal({place["epoch"] for place in placed}, {turn + 2})
                all_do(ranks, "verify", name="g")
            no_group_is_left(cluster, ranks)


def test_it_goes_on_without_whom_it_waited_for():
    for places in ("1x4", "2x2"):
        with group(PLACES[places]) as (cluster, ranks):
            ranks[1].kill()
            rest = [ranks[0], ranks[2], ranks[3]]
            all_fail(rest, "all_reduce", ("RANK_LOST",), name="g", count=1000)
            began, limit = time.monotonic(), Limit(10)
            placed = recovered(rest, policy="wait", wait_ms=700)
            took = time.monotonic() - began
            check(0.6 < took and not limit.over(), f"it waited for {took:.1f} s")
            equal([place["rank"] for place in placed], [0, 1, 2])
            equal(placed[0]["before"], [0, 2, 3])
            no_group_is_left(cluster, rest)


def test_a_group_grows_and_loses_again_and_again():
    with group(PLACES["2x2"]) as (cluster, ranks):
        for turn in range(how_many(10, 3)):
            new = [cluster.rank(place) for place in (0, 1)]
            for rank in new:
                rank.start("rejoin", name="g")
            for rank in ranks:
                rank.start("recover", name="g", policy="wait", size=6)
            ranks = ranks + new
            placed = [rank.finish() for rank in ranks]
            equal(sorted(place["rank"] for place in placed), list(range(6)))
            equal({place["size"] for place in placed}, {6})
            equal(placed[0]["before"], [0, 1, 2, 3, -1, -1])
            all_do(ranks, "verify", name="g")
            ranks = [rank for _, rank in sorted(zip((p["rank"] for p in placed), ranks))]
            for number in (4 if turn % 2 else 0, 2):  # the largest number first
                ranks.pop(number).kill()
            recovered(ranks)
        no_group_is_left(cluster, ranks)


def test_a_limit_names_who_was_missed():
    with group(PLACES["2x2"]) as (cluster, ranks):
        ranks[3].kill()
        all_fail(ranks[:3], "all_reduce", ("RANK_LOST",), name="g", count=1000)
        errors = all_fail(ranks[:2], "recover", ("TIMEOUT",), name="g", timeout_ms=500)
        for error in errors:
            equal(error["op"], "recover")
            check("rank 2 of" in error["message"], error["message"])
        # the group is as it was, and the call is repeated
        equal(ranks[0].call_error("check", name="g")["code"] in ("RANK_LOST", "ABORTED"), True)
        for rank in ranks[:3]:
            rank.start("recover", name="g", policy="wait", timeout_ms=700)
        for rank in ranks[:3]:
            error = rank.error()
            equal(error["code"], "TIMEOUT")
            check("seat 3 is free" in error["message"], error["message"])
        recovered(ranks[:3])
        error = ranks[3 - 1].call_error("recover", name="g", timeout_ms=300)
        equal(error["code"], "TIMEOUT")  # all live, and nobody else came
        new = cluster.rank(0)
        error = new.call_error("rejoin", name="nothing", timeout_ms=300)
        equal((error["code"], error["op"]), ("TIMEOUT", "rejoin"))


def test_fewer_than_wanted_are_refused():
    with group(PLACES["1x4"]) as (cluster, ranks):
        ranks[0].kill()
        ranks[2].kill()
        rest = [ranks[1], ranks[3]]
        all_fail(rest, "all_reduce", ("RANK_LOST",), name="g", count=1000)
        errors = all_fail(rest, "recover", ("RANK_LOST",), name="g", min_size=3)
        for error in errors:
            check("0,2" in error["message"], error["message"])
        recovered(rest, min_size=2)


def test_bad_arguments_and_contradictions_are_refused():
    with group(PLACES["1x4"]) as (cluster, ranks):
        ranks[3].kill()
        rest = ranks[:3]
        all_fail(rest, "all_reduce", ("RANK_LOST",), name="g", count=1000)
        for bad in (dict(size=-1), dict(min_size=-2), dict(min_size=99999)):
            equal(ranks[0].call_error("recover", name="g", **bad)["code"], "INVALID")
        equal(ranks[2].call_error("recover", name="g", policy="wait", size=2)["code"], "INVALID")
        ranks[0].start("recover", name="g")
        until_asked(cluster, "shrink")
        error = ranks[1].call_error("recover", name="g", policy="wait")
        equal(error["code"], "INVALID")
        check("shrink" in error["message"], error["message"])
        for rank in ranks[1:3]:
            rank.start("recover", name="g")
        equal(sorted(rank.finish()["rank"] for rank in rest), [0, 1, 2])
        all_do(rest, "verify", name="g")


def test_new_processes_that_do_not_fit_are_refused():
    with group([0, 0, 0]) as (cluster, ranks):
        ranks[2].kill()
        wrong = [(dict(rank=7), "seat 7, but it has 3 seats"),
                 (dict(size=9), "any seat of 9, but it has 3 seats"),
                 (dict(rank=1, size=9), "seat 1 of 9, but it has 3 seats")]  # fmt: skip
        for rank in ranks[:2]:
            rank.start("recover", name="g", policy="wait")
        for asked, text in wrong:
            error = cluster.rank(0).call_error("rejoin", name="g", **asked)
            equal(error["code"], "INVALID")
            check(error["message"].endswith(f"asks for {text}"), error["message"])
        ranks[2] = cluster.rank(0)
        ranks[2].start("rejoin", name="g", size=3)
        equal([rank.finish()["size"] for rank in ranks], [3] * 3)
        all_do(ranks, "verify", name="g")


def test_abort_frees_a_blocked_rank():
    for places in ("1x4", "2x2"):
        with group(PLACES[places]) as (cluster, ranks):
            receive = dict(do="recv", peer=3, tag=1, size=8)
            for blocked in (dict(do="all_reduce", count=1000), receive):
                ranks[1].start(name="g", **blocked)
                if blocked["do"] == "all_reduce":
                    ranks[2].start(name="g", **blocked)
                else:
                    ranks[2].start("recv", name="g", peer=0, tag=2, size=1 << 20)
                ranks[0].call("abort_soon", name="g", after=0.2, reason="the watchdog barks")
                limit = Limit(2)
                ranks[0].start(name="g", **blocked)
                for rank in ranks[:3]:
                    error = rank.error(10)
                    equal(error["code"], "ABORTED")
                    check("rank 0" in error["message"] and "barks" in error["message"],
                          error["message"])  # fmt: skip
                check(not limit.over(), "the abort took long")
                error = ranks[3].call_error("all_reduce", name="g", count=1000)
                equal(error["code"], "ABORTED")
                placed = recovered(ranks)
                equal(placed[0]["before"], [0, 1, 2, 3])
            no_group_is_left(cluster, ranks)


def test_an_abort_ends_what_is_called_next():
    with group(PLACES["1x4"]) as (cluster, ranks):
        for rank in ranks:
            rank.start("split", name="g", new="own", colour=ranks.index(rank), key=0)
        equal([rank.finish() for rank in ranks], [[0, 1]] * 4)
        ranks[0].call("abort", name="own", reason="enough")
        equal(ranks[0].call_error("all_reduce", name="own", count=10)["code"], "ABORTED")
        equal(ranks[0].call_error("check", name="own")["code"], "ABORTED")
        equal(recovered(ranks[:1], name="own")[0]["epoch"], 2)


def test_a_rank_that_waits_for_a_survivor_comes_too():
    for places in ("1x4", "2x2"):
        with group(PLACES[places]) as (cluster, ranks):
            ranks[1].start("recv", name="g", peer=0, tag=9, size=100)  # from a rank that lives
            until(lambda rank=ranks[1]: receives(rank), "it waits for a message")
            ranks[3].kill()
            for rank in (ranks[0], ranks[2]):
                equal(rank.call_error("all_reduce", name="g", count=10)["code"], "RANK_LOST")
                rank.start("recover", name="g")
            error = ranks[1].error(10)
            equal(error["code"], "ABORTED")
            check("recover" in error["message"], error["message"])
            ranks[1].start("recover", name="g")
            equal([rank.finish()["rank"] for rank in ranks[:3]], [0, 1, 2])
            all_do(ranks[:3], "verify", name="g")


def test_groups_without_the_dead_go_on():
    with group(PLACES["2x2"]) as (cluster, ranks):
        for number, rank in enumerate(ranks):
            rank.start("split", name="g", new="half", colour=number % 2, key=0)
        for rank in ranks:
            rank.finish()
        for rank in (ranks[0], ranks[2]):
            rank.start("where", name="half")
            rank.finish()
            rank.start("loop", name="half", limit=3000)
            equal(rank.answer()["started"], True)
        ranks[3].kill()
        equal(ranks[1].call_error("all_reduce", name="half", count=10)["code"], "RANK_LOST")
        equal([rank.finish() for rank in (ranks[0], ranks[2])], [3000, 3000])
        recovered(ranks[:3])
        for rank in (ranks[0], ranks[2]):
            rank.start("verify", name="half")
        equal([rank.finish() for rank in (ranks[0], ranks[2])], [2, 2])
        equal(ranks[1].call_error("check", name="half")["code"], "RANK_LOST")
        equal(ranks[0].call("where", name="half")["epoch"], 1)


def forms(cluster, prefix):
    """Does a rank wait in a group of such a name?"""
    return any(group["name"].startswith(prefix) and group["state"] != "open"
               for node in cluster.nodes for group in node.groups())  # fmt: skip


def test_a_split_ends_when_the_group_that_is_split_is_broken():
    """Rank 3 takes part in what a split gathers, and does not come to the new group."""
    for how in ("died", "aborted"):
        with group(PLACES["2x2"]) as (cluster, ranks):
            for number, rank in enumerate(ranks[:3]):
                rank.start("split", name="g", new="h", colour=number % 2, key=0)
            ranks[3].call("choose", name="g", colour=1, key=0)
            equal(ranks[0].finish(), [0, 2])
            equal(ranks[2].finish(), [1, 2])
            until(lambda: forms(cluster, "g/split-"), "rank 1 waits for rank 3")
            if how == "died":
                ranks[3].kill()
            else:
                ranks[3].call("abort", name="g", reason="enough")
            error = ranks[1].error()
            want = ("RANK_LOST" if how == "died" else "ABORTED", 3, "split")
            equal((error["code"], error["rank"], error["op"]), want)
            until(lambda: not forms(cluster, "g/split-"), "nobody waits any more")
            rest = ranks[:3] if how == "died" else ranks
            equal(recovered(rest)[0]["size"], len(rest))
            all_do([ranks[0], ranks[2]], "where", name="h")
            all_do([ranks[0], ranks[2]], "verify", name="h")


def test_a_subgroup_is_made_of_ranks_that_live():
    for places in ("1x4", "2x2"):
        with group(PLACES[places]) as (cluster, ranks):
            pair = [ranks[3], ranks[1]]
            equal(all_do(pair, "subgroup", name="g", new="s", members=[3, 1]), [[0, 2], [1, 2]])
            all_do(pair, "where", name="s")
            equal(all_do(pair, "verify", name="s"), [2, 2])
            for bad in ([0, 4], [-1, 0], [1, 3], [], [0] * 5, [0, 0]):
                error = ranks[0].call_error("subgroup", name="g", new="t", members=bad)
                equal((error["code"], error["op"]), ("INVALID", "subgroup"))
            ranks[2].kill()
            rest = [ranks[0], *reversed(pair)]
            all_fail(rest, "all_reduce", ("RANK_LOST",), name="g", count=10)
            all_do(rest, "subgroup", name="g", new="rest", members=[0, 1, 3])
            all_do(rest, "where", name="rest")
            equal(all_do(rest, "verify", name="rest"), [3, 3, 3])


def no_subgroup(how, code, text):
    """Rank 3 does not come: @how it is kept from that, before the others call or meanwhile."""
    cases = [("1x4", False), ("2x2", True)]
    if how == "abort":
        cases.append(("2x2", False))
    for places, before in cases:
        with group(PLACES[places]) as (cluster, ranks):
            own = ranks[3].kill if how == "kill" else None
            act = own or (lambda: ranks[3].call(how, name="g", **REASON.get(how, {})))
            if before:
                act()
                if how == "kill":  # it is known
                    all_fail(ranks[:3], "all_reduce", ("RANK_LOST",), name="g", count=10)
            for rank in ranks[:3:2]:
                rank.start("subgroup", name="g", new="s", members=[0, 2, 3])
            if not before:
                until(lambda: forms(cluster, "s"), "they wait for rank 3")
                act()
            for rank in ranks[:3:2]:
                error = rank.error()
                equal((error["code"], error["op"]), (code, "subgroup"))
                check(text in error["message"], error["message"])
                if code == "RANK_LOST":
                    equal((error["rank"], error["node"]), (3, f"node{PLACES[places][3]}"))
            until(lambda: not forms(cluster, "s"), "nobody waits any more")
            if code == "ABORTED":  # they have been told, and may meet
                all_do(ranks[:3:2], "subgroup", name="g", new="rest", members=[0, 2])
                all_do(ranks[:3:2], "where", name="rest")
                equal(all_do(ranks[:3:2], "verify", name="rest"), [2, 2])


SOON = {"timeouts": {"heartbeat": "200ms", "node": "1s", "restart": "1s"}}
REASON = {"abort": dict(reason="enough")}


def test_a_subgroup_does_not_wait_for_the_dead():
    no_subgroup("kill", "RANK_LOST", 'rank 3 of group "g" (pid ')


def test_a_subgroup_does_not_wait_for_who_has_left():
    no_subgroup("leave", "RANK_LOST", "has left that, and did not come")


def test_a_subgroup_does_not_wait_when_its_parent_is_revoked():
    no_subgroup("abort", "ABORTED", "rank 3 aborted the group: enough")


def broken_everywhere(cluster):
    return all(group["state"] == "broken" for node in cluster.nodes for group in node.groups())


def code_of(rank, do, **arguments):
    rank.start(do, **arguments)
    return rank.error()["code"]


def test_a_subgroup_of_a_revoked_group_that_has_lost_a_rank():
    """Who has not been told of either is told once: by the first call."""
    for places in ("1x4", "2x2"):
        for how in ("subgroup", "check"):
            with group(PLACES[places]) as (cluster, ranks):
                ranks[2].kill()
                all_fail(ranks[:1], "all_reduce", ("RANK_LOST",), name="g", count=10)
                ranks[0].call("abort", name="g", reason="without rank 2")
                new = dict(name="g", new="s", members=[0, 1, 3])
                until(lambda cluster=cluster: broken_everywhere(cluster), "all nodes are told")
                for rank in ranks[1::2]:
                    if how == "check":
                        check(code_of(rank, "check", name="g") in ("RANK_LOST", "ABORTED"), how)
                    else:
                        equal(code_of(rank, "subgroup", **new), "ABORTED")
                rest = [ranks[0], *ranks[1::2]]
                rest[0].start("subgroup", **new)
                until(lambda: forms(cluster, "s"), "rank 0 waits")
                for rank in rest[1:]:
                    time.sleep(0.3)  # it looks at its parent, too, while it waits
                    rank.start("subgroup", **new)
                for rank in rest:
                    rank.finish()
                all_do(rest, "where", name="s")
                equal(all_do(rest, "verify", name="s"), [3] * 3)


def test_a_subgroup_does_not_wait_for_a_node_that_is_lost():
    with group(PLACES["2x2"], **SOON) as (cluster, ranks):
        cluster.expect("node1|lost|TLS handshake")
        for rank in ranks[:2]:
            rank.start("subgroup", name="g", new="s", members=[0, 1, 2])
        until(lambda: forms(cluster, "s"), "they wait for rank 2")
        silent = [cluster.nodes[1].engine_pid(), cluster.nodes[1].pid]  # its ranks live
        for pid in silent:
            os.kill(pid, signal.SIGSTOP)
        for rank in ranks[:2]:
            error = rank.error()
            equal((error["code"], error["rank"], error["node"]), ("NODE_LOST", 2, "node1"))
        for pid in silent:
            os.kill(pid, signal.SIGCONT)


def broken_group(cluster, places, end):
    """A group that rank 1 has revoked, or whose last node is lost; the ranks have been told."""
    ranks = cluster.ranks("g", places)
    if end == "abort":
        ranks[1].call("abort", name="g", reason="enough")
    else:
        os.kill(cluster.nodes[-1].engine_pid(), signal.SIGKILL)
        cluster.nodes[-1].kill()
        ranks = [rank for rank in ranks if rank.node != cluster.nodes[-1]]
    codes = ("ABORTED",) if end == "abort" else ("NODE_LOST", "ENGINE_LOST")
    all_fail(ranks, "all_reduce", codes, name="g", count=1000)
    return ranks


def wait_for(cluster, ranks, members, name="s"):
    """@ranks wait for the others of @members to make a subgroup with them."""
    for rank in ranks:
        rank.start("subgroup", name="g", new=name, members=members)
    until(lambda: forms(cluster, name), f"they wait in {name}")


def missed(ranks, code, rank, node, text):
    for error in [waiting.error() for waiting in ranks]:
        equal((error["code"], error["op"]), (code, "subgroup"))
        equal((error["rank"], error["node"]), (rank, node), error["message"])
        check(text in error["message"], error["message"])


def meet(ranks, members, name):
    all_do(ranks, "subgroup", name="g", new=name, members=members)
    all_do(ranks, "where", name=name)
    equal(all_do(ranks, "verify", name=name), [len(ranks)] * len(ranks))


def test_a_subgroup_of_a_broken_group_does_not_wait_for_the_dead():
    more = PLACES["2x2"] + [2]
    for places, end in ((PLACES["1x4"], "abort"), (PLACES["2x2"], "abort"), (more, "node")):
        with Cluster(max(places) + 1) as cluster:
            cluster.expect("lost")
            ranks = broken_group(cluster, places, end)
            node = f"node{places[3]}"
            wait_for(cluster, ranks[:3:2], [0, 2, 3])
            ranks[3].kill()
            missed(ranks[:3:2], "RANK_LOST", 3, node, " died")
            until(lambda: not forms(cluster, "s"), "nobody waits any more")
            ranks[0].start("subgroup", name="g", new="t", members=[0, 3])  # it is known now
            missed(ranks[:1], "RANK_LOST", 3, node, " died")
            wait_for(cluster, ranks[:1], [0, 1], "u")
            ranks[1].call("leave", name="g")
            missed(ranks[:1], "RANK_LOST", 1, "node0", "has left that, and did not come")
            meet(ranks[:3:2], [0, 2], "rest")


def test_a_subgroup_of_a_broken_group_does_not_wait_for_a_lost_node():
    with Cluster(2, SOON) as cluster:
        cluster.expect("node[01]|lost|TLS handshake")
        ranks = broken_group(cluster, PLACES["2x2"], "abort")
        wait_for(cluster, ranks[:2], [0, 1, 2])
        silent = [cluster.nodes[1].engine_pid(), cluster.nodes[1].pid]  # its ranks live
        for pid in silent:
            os.kill(pid, signal.SIGSTOP)
        missed(ranks[:2], "NODE_LOST", 2, "node1", "its node node1 is lost")
        for pid in silent:
            os.kill(pid, signal.SIGCONT)
        cluster.wait_linked()

        def met():  # it is back, and says that it has the group
            for rank in ranks:
                rank.start("subgroup", name="g", new="all", members=[3, 1, 2, 0], timeout_ms=3000)
            answers = [rank.answer() for rank in ranks]
            return all("ok" in answer for answer in answers)

        until(met, "the ranks of both nodes meet again")
        all_do(ranks, "where", name="all")
        equal(all_do(ranks, "verify", name="all"), [4] * 4)
        os.kill(cluster.nodes[1].engine_pid(), signal.SIGKILL)
        cluster.nodes[1].kill()
        ranks[0].start("subgroup", name="g", new="t", members=[0, 3])
        missed(ranks[:1], "NODE_LOST", 3, "node1", "its node node1 is lost")
        meet(ranks[:2], [0, 1], "rest")


def test_a_subgroup_of_a_broken_group_is_told_by_the_next_commd():
    """Of who died before commd was killed, while there was none, and after."""
    for places in ([0] * 5, [0, 0, 1, 1, 0]):
        with kept_nodes(max(places) + 1) as cluster:
            ranks = broken_group(cluster, places, "abort")
            cluster.join("h", ranks)
            ranks[1].call("abort", name="h", reason="enough")
            ranks[4].kill()
            wait_for(cluster, ranks[:2], [0, 1, 2])
            with gap(cluster.nodes[0]):
                if not places[3]:
                    ranks[3].kill()
            ranks[3].kill()
            ranks[2].kill()
            missed(ranks[:2], "RANK_LOST", 2, f"node{places[2]}", " died")
            error = ranks[0].call_error("check", name="h")  # by what broke it, as before
            equal((error["code"], error["rank"]), ("ABORTED", 1), error["message"])
            for number in (3, 4):
                ranks[0].start("subgroup", name="g", new="t", members=[0, number])
                missed(ranks[:1], "RANK_LOST", number, f"node{places[number]}", " died")
            meet(ranks[:2], [0, 1], "rest")


def test_subgroups_over_and_over_while_ranks_die():
    """Who dies at any moment is named; nobody waits, and nobody is named who lives."""
    random = Random(39)
    for places in ("1x4", "2x2"):
        with Cluster(2) as cluster:
            for number in range(how_many(6, 2)):
                ranks = cluster.ranks(f"g{number}", PLACES[places])
                live = list(range(4))
                if number % 2:
                    ranks[0].call("abort", name=f"g{number}", reason="enough")
                    all_fail(ranks, "all_reduce", ("ABORTED",), name=f"g{number}", count=10)
                for victim in random.sample(live, 3):
                    for rank in live:
                        ranks[rank].start("subgroups", name=f"g{number}", members=live)
                    time.sleep(random.random() / 50)
                    ranks[victim].kill()
                    live.remove(victim)
                    dead = {"code": "RANK_LOST", "rank": victim, "pid": ranks[victim].pid}
                    for rank in live:
                        error = ranks[rank].error()
                        equal({key: error[key] for key in dead}, dead, error["message"])


def test_one_thread_recovers_at_a_time():
    with group(PLACES["1x4"]) as (cluster, ranks):
        ranks[3].kill()
        ranks[0].start("recover_twice", name="g")
        refused = ranks[0].answer()["refused"]
        equal(refused["code"], "INVALID")
        check("another thread" in refused["message"], refused["message"])
        equal(recovered(ranks[1:3], verify=False)[0]["size"], 3)
        equal(ranks[0].finish()["size"], 3)
        equal(all_do(ranks[:3], "verify", name="g"), [3] * 3)


def test_inputs_are_intact_after_an_error():
    for places in ("1x4", "2x2"):
        for count in (8, 4096, 100_000, 8 << 20):
            with group(PLACES[places]) as (cluster, ranks):
                for rank in ranks[:3]:
                    rank.start("intact", name="g", count=count)
                time.sleep(0.1)
                ranks[3].kill()
                for rank in ranks[:3]:
                    equal(rank.finish(), [True, True, True], f"{places}, {count} bytes")


def test_inputs_of_every_kind_are_intact_after_an_error():
    """A rank dies in the middle of the operation, or before it has come to it."""
    for places in ("1x4", "2x2"):
        with group(PLACES[places]) as (cluster, ranks):
            random = Random(len(places) + PLACES[places][3])
            for turn in range(how_many(2 * len(KINDS), 4)):
                coll, in_place = KINDS[turn % len(KINDS)], turn < len(KINDS)
                absent, dead = random.random() < 0.3, random.randrange(4)
                rest = [rank for number, rank in enumerate(ranks) if number != dead]
                for rank in rest if absent else ranks:
                    rank.start("inputs", name="g", coll=coll, in_place=in_place, absent=absent,
                               count=random.choice([8, 5000, 500_000]))  # fmt: skip
                for rank in rest if absent else ranks:
                    equal(rank.answer()["started"], True)
                time.sleep(0.05 * random.random())
                ranks[dead].kill()
                what = f"{places}, {coll}{' in place' * in_place}, absent: {absent}, dead: {dead}"
                equal([rank.finish() for rank in rest], [None] * 3, what)
                ranks[dead] = cluster.rank(PLACES[places][dead])
                ranks[dead].start("rejoin", name="g")
                recovered(rest, policy="wait", verify=False)
                ranks[dead].finish()


def test_commd_is_killed_while_ranks_recover():
    with kept_nodes(1) as cluster:
        node = cluster.nodes[0]
        ranks = cluster.ranks("g", [0] * 4)
        ranks[3].kill()
        all_fail(ranks[:3], "all_reduce", ("RANK_LOST",), name="g", count=1000)
        for rank in ranks[:2]:
            rank.start("recover", name="g")
        time.sleep(0.1)
        with gap(node):
            ranks[2].start("recover", name="g")
            time.sleep(0.2)
        equal(sorted(rank.finish()["rank"] for rank in ranks[:3]), [0, 1, 2])
        all_do(ranks[:3], "verify", name="g")


@contextlib.contextmanager
def started_anew(dead, nodes=1):
    """Ranks of a group of four on one node, whose commd knows nothing of it; those in @dead are."""
    with kept_nodes(nodes) as cluster:
        if nodes > 1:
            cluster.expect("node node0 was lost|the engines? of node|closed before")
        ranks = cluster.ranks("g", [0] * 4)
        all_do(ranks, "verify", name="g")
        start_anew(cluster.nodes[0])
        all_do(ranks, "verify", name="g")  # they need no commd
        rest = [rank for number, rank in enumerate(ranks) if number not in dead]
        for rank in rest:
            rank.start("loop", name="g")
            equal(rank.answer()["started"], True)
        for number in dead:
            ranks[number].kill()
        for rank in rest:
            error = rank.error()
            check(error["code"] == "RANK_LOST" and error["rank"] in dead, error)
        yield cluster, ranks, rest


def test_shrink_by_a_commd_that_was_started_anew():
    for dead in ([0], [1, 3]):
        with started_anew(dead) as (cluster, ranks, rest):
            placed = recovered(rest)
            equal([place["rank"] for place in placed], list(range(len(rest))))
            equal({place["epoch"] for place in placed}, {2})
            equal(placed[0]["before"], [number for number in range(4) if number not in dead])
            rest.pop().kill()  # from here on commd knows them
            all_fail(rest, "all_reduce", ("RANK_LOST",), name="g", count=1000)
            equal({place["epoch"] for place in recovered(rest)}, {3})
            no_group_is_left(cluster, rest)


def test_a_seat_is_taken_by_a_commd_that_was_started_anew():
    """By a process on another node, whose commd never knew the group."""
    with started_anew([1], nodes=2) as (cluster, ranks, rest):
        ranks[1] = cluster.rank(1)
        ranks[1].start("rejoin", name="g", rank=1)
        for rank in rest:
            rank.start("recover", name="g", policy="wait")
        placed = [rank.finish() for rank in ranks]
        equal([place["rank"] for place in placed], [0, 1, 2, 3])
        equal(placed[1]["before"], [0, -1, 2, 3])
        equal(all_do(ranks, "verify", name="g"), [4] * 4)
        no_group_is_left(cluster, ranks)


def test_more_die_while_they_recover_by_a_commd_that_was_started_anew():
    for had_asked in (False, True):
        with started_anew([1]) as (cluster, ranks, rest):
            ranks[0].start("recover", name="g")
            until_asked(cluster, "shrink")
            if had_asked:
                ranks[3].start("recover", name="g")
                until_asked(cluster, "shrink", 2)
            ranks[3].kill()
            ranks[2].start("recover", name="g")
            placed = [ranks[number].finish() for number in (0, 2)]
            equal(placed[0]["before"], [0, 2])
            equal(all_do([ranks[0], ranks[2]], "verify", name="g"), [2, 2])


def test_a_call_after_the_failure_that_ended_its_group():
    """It names the operation that failed, and says that it is another one."""
    with group([0, 0, 0]) as (cluster, ranks):
        all_do(ranks, "verify", name="g")
        ranks[2].kill()
        first = ranks[0].call_error("all_reduce", name="g", count=1000)
        then = ranks[0].call_error("all_reduce", name="g", count=1000)
        check(first["message"].startswith("operation "), first)
        text = "all_reduce: the group had ended before: operation "
        check(then["message"].startswith(text), then)
        equal((then["code"], then["rank"]), (first["code"], first["rank"]))


def test_commd_is_started_anew_while_ranks_recover():
    """The one that they asked is gone with all that it knew, too."""
    with started_anew([1]) as (cluster, ranks, rest):
        for number in (0, 2):
            ranks[number].start("recover", name="g")
        until_asked(cluster, "shrink", 2)
        start_anew(cluster.nodes[0])
        ranks[3].start("recover", name="g")
        equal([rank.finish()["rank"] for rank in rest], [0, 1, 2])
        equal(all_do(rest, "verify", name="g"), [3] * 3)


def test_who_was_left_behind_asks_a_commd_that_was_started_anew():
    """It sees of the others that they left, and must not be a group of its own."""
    with kept_nodes(1) as cluster:
        ranks = cluster.ranks("g", [0] * 4)
        ranks[3].start("fall_silent")
        all_fail(ranks[:3], "all_reduce", ("RANK_LOST",), name="g", count=1000)
        recovered(ranks[:3])
        start_anew(cluster.nodes[0])
        os.kill(ranks[3].pid, signal.SIGCONT)
        ranks[3].finish()
        error = ranks[3].call_error("recover", name="g")
        equal((error["code"], error["rank"]), ("RANK_LOST", 3))
        check("taken for lost" in error["message"], error)
        check("rejoin" in error["message"], error)
        equal(all_do(ranks[:3], "verify", name="g"), [3] * 3)


def test_commd_and_its_engine_are_killed_at_once():
    """Its ranks live, and its keeper starts commd again: all ranks go on."""
    for victim in (0, 1):
        with kept_nodes(2) as cluster:
            node = cluster.nodes[victim]
            cluster.expect(f"{node.name} was lost|engines? of node|engine pid|closed before")
            ranks = cluster.ranks("g", PLACES["2x2"])
            all_do(ranks, "verify", name="g")
            engine, pid = node.engine_pid(), serves(node)
            for rank in ranks:
                rank.start("loop", name="g")
                equal(rank.answer()["started"], True)
            os.kill(pid, signal.SIGKILL)
            os.kill(engine, signal.SIGKILL)
            told = [rank.error() for rank in ranks]
            check({e["code"] for e in told} <= {"NODE_LOST", "ENGINE_LOST"}, told)
            placed = recovered(ranks)
            equal([place["rank"] for place in placed], [0, 1, 2, 3])
            equal({(place["size"], place["epoch"]) for place in placed}, {(4, 2)})
            no_group_is_left(cluster, ranks)


def test_a_group_over_nodes_by_a_commd_that_was_started_anew():
    for dead in (None, 1):
        with kept_nodes(2) as cluster:
            cluster.expect("node0|lost|closed before")
            ranks = cluster.ranks("g", PLACES["2x2"])
            all_do(ranks, "verify", name="g")
            start_anew(cluster.nodes[0])
            cluster.wait_linked()
            if dead is not None:
                ranks[dead].kill()
            rest = [rank for number, rank in enumerate(ranks) if number != dead]
            placed = recovered(rest)
            equal([place["rank"] for place in placed], list(range(len(rest))))
            equal({(place["size"], place["epoch"]) for place in placed}, {(len(rest), 2)})
            no_group_is_left(cluster, rest)


def test_the_others_have_gone_on_without_a_commd_that_was_started_anew():
    """Whom the others did not wait for is told so, and is no group of its own; also if they have
    ended since."""
    for ended in (False, True):
        with kept_nodes(2, SOON) as cluster:
            cluster.expect("node0|lost|closed before|cannot be kept for the next")
            ranks, said = cluster.ranks_heard("g", PLACES["2x2"])
            os.kill(cluster.nodes[0].engine_pid(), signal.SIGKILL)
            cluster.nodes[0].kill()
            equal([place["size"] for place in recovered(ranks[2:])], [2, 2])
            if ended:
                all_do(ranks[2:], "leave", name="g")
            cluster.nodes[0].start(arguments=["--keep"])
            cluster.wait_linked()
            for number in (0, 1):
                error = ranks[number].call_error("recover", name="g")
                equal((error["code"], error["rank"]), ("RANK_LOST", number))
                check("gone on as epoch 2" in error["message"], error)
            check("1 over several nodes, which ends with COMMD_E_NODE_LOST" in said(), said())


def test_the_others_have_ended_without_going_on():
    """Of a commd that was started anew; no other node knows the group any more."""
    with kept_nodes(2, SOON) as cluster:
        cluster.expect("node0|lost|closed before|cannot be kept for the next")
        ranks = cluster.ranks("g", PLACES["2x2"])
        os.kill(cluster.nodes[0].engine_pid(), signal.SIGKILL)
        cluster.nodes[0].kill()
        for rank in ranks[2:]:
            rank.kill()
        cluster.nodes[0].start(arguments=["--keep"])
        cluster.wait_linked()
        for number in (0, 1):
            error = ranks[number].call_error("recover", name="g")
            equal((error["code"], error["rank"]), ("RANK_LOST", number))
            check("no other node knows epoch 1 of it any more" in error["message"], error)
            check("rejoin" in error["message"], error)


def test_nothing_grows_over_a_hundred_recoveries():
    for places in ("1x4", "2x2"):
        with group(PLACES[places]) as (cluster, ranks):
            recovered(ranks)
            for _ in range(9):
                recovered(ranks)
            before = all_do(ranks, "resources")
            files = [len(os.listdir(f"/proc/{node.pid}/fd")) for node in cluster.nodes]
            more = how_many(90, 20)
            for _ in range(more):
                recovered(ranks)
            for was, now in zip(before, all_do(ranks, "resources")):
                memory = 2048 if not sanitizer_environment() else 1 << 30  # it keeps what is freed
                check(now[0] <= was[0] and now[1] <= was[1] + 4 and now[2] <= was[2] + memory,
                      f"descriptors, mappings, KiB: {was} became {now}")  # fmt: skip
            equal(ranks[0].call("where", name="g")["epoch"], 11 + more)
            for node, was in zip(cluster.nodes, files):
                until(lambda: len(os.listdir(f"/proc/{node.pid}/fd")) <= was + 2,
                      f"the descriptors of {node.name} go back to {was}")  # fmt: skip
                until(lambda: [g["name"] for g in node.groups()] == ["g"], "one group is left")
                equal(len(node.clients()), PLACES[places].count(cluster.nodes.index(node)))
            no_group_is_left(cluster, ranks)


main(globals())
