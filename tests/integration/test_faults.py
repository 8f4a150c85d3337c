#!/usr/bin/env python3
"""Each scenario of faults.py once; the times are printed, only a hang or a wrong error fails.

And two that have no time: an abort, and a rank that is stopped and comes back.
"""

import os
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import faults  # noqa: E402
from cluster import Cluster, check, equal, main, until  # noqa: E402


def once(scenario):
    def test():
        times = scenario()
        print(f"  time to error: {', '.join(f'{t:.1f}' for t in times)} ms: {scenario.__doc__}")

    return test


for _scenario in faults.SCENARIOS:
    globals()[f"test_{_scenario.__name__}"] = once(_scenario)


def test_abort_ends_the_group_for_everybody():
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 0, 1, 1])
        for rank in ranks[:3]:
            rank.start("all_reduce", name="g", count=1000)
        ranks[3].call("abort", name="g", reason="the loss is NaN")
        for rank in ranks[:3]:
            error = rank.error()
            equal(error["code"], "ABORTED")
            equal(
                error["message"],
                'operation 1 (all_reduce) of group "g": rank 3 aborted the group: the loss is NaN',
            )
        for rank in ranks:
            equal(
                rank.call_error("all_reduce", name="g", count=1)["code"],
                "ABORTED",
                "later ones too",
            )
        faults.leave("g", ranks)
        faults.new_group_works(cluster, ranks)
        faults.nothing_is_held(cluster)


def test_messages_are_told_of_losses_too():
    """An engine, a node, an abort: whoever waits for a message is told, and which it was."""
    with Cluster(2, {"timeouts": faults.STOPPED}) as cluster:
        for line in ("the engine of node node1 was lost", "node node1 was lost", "UCX +ERROR",
                     "the engines of nodes .* lost each other"):  # fmt: skip
            cluster.expect(line)
        ranks = cluster.ranks("g", [0, 1])
        engine = cluster.nodes[1].engine_pid()
        os.kill(engine, signal.SIGSTOP)  # so the message is on the wire
        ranks[0].call("send", name="g", peer=1, tag=0, text="too late")
        ranks[0].start("recv", name="g", peer=1, tag=0, size=8)
        ranks[1].start("recv", name="g", peer=-1, tag=-1, size=8)
        other = cluster.nodes[0].engine_pid()
        until(lambda: faults.sleeps(other), "the other engine has sent it")
        os.kill(engine, signal.SIGKILL)
        for rank in ranks:
            error = rank.error()
            check(error["code"] in ("ENGINE_LOST", "NODE_LOST"), error)
            equal(error["node"], cluster.nodes[1].name)
        cluster.wait_linked()
        ranks = cluster.ranks("h", [0, 0, 1])
        ranks[0].start("recv", name="h", peer=2, tag=0, size=8)
        ranks[1].start("send", name="h", peer=2, tag=0, text="12345678", repeat=100000)
        cluster.nodes[1].kill()
        for rank in ranks[:2]:
            error = rank.error()
            equal((error["code"], error["node"]), ("NODE_LOST", cluster.nodes[1].name))
        ranks = cluster.ranks("i", [0, 0])
        ranks[0].start("recv", name="i", peer=1, tag=0, size=8)
        ranks[1].call("abort", name="i", reason="no more")
        error = ranks[0].error()
        equal(error["code"], "ABORTED")
        check(
            error["message"].startswith('receive from rank 1, tag 0 of group "i": '),
            error["message"],
        )
        check(error["message"].endswith("no more"), error["message"])


def test_a_stopped_rank_is_not_lost():
    """Waiting for who has not come is no failure, unless the caller set a limit."""
    with Cluster(1) as cluster:
        ranks = cluster.ranks("g", [0, 0, 0])
        os.kill(ranks[2].pid, signal.SIGSTOP)
        for rank in ranks[:2]:
            rank.start("all_reduce", name="g", count=1000)
        ranks[2].start("all_reduce", name="g", count=1000)
        until(lambda: cluster.nodes[0].groups()[0]["state"] == "open", "the group is open")
        os.kill(ranks[2].pid, signal.SIGCONT)
        for rank in ranks:
            rank.finish()


def until_begun(node, group, ranks):
    """So that nobody's limit is over before."""
    until(
        lambda: any(op["ranks"] == ranks for op in (node.ctl("ops", group) or {"ops": ()})["ops"]),
        f"ranks {ranks} of {group} have come",
    )


def test_a_limit_names_who_did_not_come():
    with Cluster(1) as cluster:
        ranks = cluster.ranks("g", [0, 0, 0])
        os.kill(ranks[2].pid, signal.SIGSTOP)
        ranks[1].start("all_reduce", name="g", count=1000)
        until_begun(cluster.nodes[0], "g", "1")
        ranks[0].start("all_reduce", name="g", count=1000, timeout_ms=300)
        for rank in ranks[:2]:
            error = rank.error()
            equal(error["code"] in ("TIMEOUT", "ABORTED"), True, error)
            check("rank 2 of node node0 did not come" in error["message"], error["message"])
        os.kill(ranks[2].pid, signal.SIGCONT)


def did_not_come(error):
    equal(error["code"], "TIMEOUT", error)
    return error["message"].rpartition(" ms: ")[2]


def test_a_limit_names_who_did_not_come_anywhere():
    """Also on the other nodes, which are asked."""
    with Cluster(3) as cluster:
        ranks = cluster.ranks("g", [0, 0, 1, 1, 1, 2])
        cluster.join("all", ranks)
        cluster.join("one", ranks)
        for rank in ranks:  # one operation that all have done
            rank.start("all_reduce", name="all", count=10)
        for rank in ranks:
            rank.finish()
        error = ranks[0].call_error("all_reduce", name="g", count=10, timeout_ms=300)
        parts = sorted(did_not_come(error).removesuffix(" did not come").split(", "))
        equal(parts, ["rank 1 of node node0", "rank 5 of node node2", "ranks 2-4 of node node1"])
        equal((error["rank"], error["node"]), (-1, ""))

        # each group has its own count, and breaks alone
        for rank in ranks[1:]:
            rank.start("all_reduce", name="all", count=10)
        error = ranks[0].call_error("all_reduce", name="one", count=10, timeout_ms=300)
        check("ranks 2-4 of node node1" in did_not_come(error), error)
        ranks[0].call("all_reduce", name="all", count=10)
        for rank in ranks[1:]:
            rank.finish()

        # all but one, which is elsewhere
        cluster.join("h", ranks)
        for rank in ranks[1:5]:
            rank.start("raw", name="h", coll="barrier")
        until_begun(cluster.nodes[0], "h", "1-4")
        ranks[0].start("raw", name="h", coll="barrier", timeout_ms=300)
        errors = [rank.error() for rank in ranks[:5]]
        for error in errors:  # the first to give up tells the others why
            check(error["message"].endswith(" ms: rank 5 of node node2 did not come"), error)
        first = next(error for error in errors if error["code"] == "TIMEOUT")
        equal((first["rank"], first["node"]), (5, "node2"))

        # nor to the one before, in which others wait: they cannot come to the next one
        cluster.join("b", ranks)
        for rank in ranks[:5]:
            rank.start("one_way", name="b", coll="broadcast", nbytes=502)
            check("started" in rank.answer(), "it has begun")
        for rank in ranks[:2]:
            rank.finish()
        until_begun(cluster.nodes[0], "b", "2-4")
        error = ranks[0].call_error("raw", name="b", coll="barrier", timeout_ms=300)
        equal(did_not_come(error), "rank 5 of node node2 did not come")
        equal((error["rank"], error["node"]), (5, "node2"))
        for rank in ranks[2:5]:
            rank.error()


def test_a_limit_when_a_node_cannot_say():
    """Its commd stands still: the answer is not waited for longer than a second."""
    with Cluster(2, {"timeouts": {"node": "60s"}}) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        os.kill(cluster.nodes[1].pid, signal.SIGSTOP)
        error = ranks[0].call_error("all_reduce", name="g", count=10, timeout_ms=100)
        os.kill(cluster.nodes[1].pid, signal.SIGCONT)
        equal(did_not_come(error), "all ranks have come, but it did not end in time; nobody could "
                                   "say for node node1")  # fmt: skip


def test_a_child_does_not_outlive_its_rank_in_the_group():
    with Cluster(1) as cluster:
        ranks = cluster.ranks("g", [0, 0])
        child = ranks[1].call("fork", lasting=60)
        ranks[0].start("all_reduce", name="g", count=1000)
        ranks[1].kill()
        error = ranks[0].error()
        equal((error["code"], error["rank"]), ("RANK_LOST", 1))
        os.kill(child, signal.SIGKILL)  # it was there all the time


def test_the_dead_are_named_before_those_who_left_for_it():
    with Cluster(1) as cluster:
        ranks = cluster.ranks("g", [0, 0, 0])
        ranks[0].start("all_reduce", name="g", count=1000)
        ranks[1].kill()
        equal(ranks[0].error()["rank"], 1)
        ranks[0].call("leave", name="g")
        ranks[0].call("join", name="alone", rank=0, size=1)  # so commd has seen the leave
        error = ranks[2].call_error("all_reduce", name="g", count=1000)
        equal((error["code"], error["rank"]), ("RANK_LOST", 1))
        check(" died after completing 0 operations" in error["message"], error["message"])


if __name__ == "__main__":
    main(globals())
