#!/usr/bin/env python3
"""What commctl tells of groups that go on: epochs, free seats, and who waits for whom."""

import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import Cluster, check, commctl, equal, main, until  # noqa: E402
from keeping import kept_nodes, restart  # noqa: E402


def why(node, group):
    return node.ctl("why", group)["why"]


def until_why(node, group, holds):
    """The findings about the group, of which @holds is true."""
    seen = []

    def asked():
        seen[:] = why(node, group)
        return holds(seen)

    until(asked, lambda: seen)
    return list(seen)


def text(node, *arguments):
    return subprocess.run([*commctl(node), *arguments], capture_output=True, text=True).stdout


def no_number_for_any(node):
    for verb in ("why", "groups", "ranks", "events"):
        said = text(node, verb) + text(node, "--json", verb)
        check("4294967295" not in said and "rank -1" not in said, said)


def events(node, event):
    return [row["text"] for row in node.ctl("events")["events"] if row["event"] == event]


def test_who_waits_for_whom():
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 0, 1, 1])
        ranks[3].kill()
        for rank in ranks[:3]:
            rank.call_error("all_reduce", name="g", count=1000)
        for rank in ranks[:2]:
            rank.start("recover", name="g", policy="wait")
        for node in cluster.nodes:
            said = "ranks 0-1 of epoch 1 wait to go on with new processes in the free seats"
            rows = until_why(node, "g", lambda rows, said=said: any(
                said in row["evidence"] and row["free_seats"] == "3" for row in rows))  # fmt: skip
            row = next(row for row in rows if said in row["evidence"])
            check(f"rank 2 (pid {ranks[2].pid} on node node1) is still in epoch 1"
                  in row["evidence"], row)  # fmt: skip
            equal((row["verdict"], row["well"]), ("NOT_JOINED", False))
            equal((row["rank"], row["pid"]), (2, ranks[2].pid))
            equal((row["epoch"], row["next_epoch"], row["recovery"]), (2, None, "wait"))
            equal((row["new_processes"], row["state"]), (None, "joining"))
            check("seat 3 is free\nno new process waits" in row["evidence"], row)
            check(row["waiting_s"] > 0 and "rejoin" in row["remedy"], row)
        ranks[2].start("recover", name="g", policy="wait")

        def waits_on(node):
            return [row for row in node.groups() if row["recovery"] == "wait"]

        until(lambda: all(waits_on(node) for node in cluster.nodes), "they all wait")
        for node, joining in zip(cluster.nodes, ("0-1", "2")):
            row = waits_on(node)[0]
            equal((row["size"], row["epoch"], row["joining"]), (4, 2, joining), row)
            equal((row["missing"], row["free_seats"]), (None, "3"), "told by the home")
        check("epoch 2)" in text(cluster.nodes[0], "why", "g"), "told to people, too")
        new = cluster.rank(0)
        new.call("rejoin", name="g")
        equal([rank.finish()["rank"] for rank in ranks[:3]], [0, 1, 2])
        for node in cluster.nodes:
            rows = until_why(node, "g", lambda rows: len(rows) == 2 and rows[1]["ended_at"])
            equal([row["epoch"] for row in rows], [2, 1], rows)
            equal([row["next_epoch"] for row in rows], [None, 2], rows)
            equal((rows[1]["verdict"], rows[1]["well"]), ("RECOVERED", True), rows)
            check(rows[1]["evidence"].startswith("epoch 1, gone on as epoch 2\n"), rows)
            check("is gone and others recover it" in rows[1]["evidence"], rows)
            equal([row["epoch"] for row in node.groups()], [2])
            no_number_for_any(node)
        # the next one is lost, too: the epochs before stay told as what they are
        new.kill()
        for rank in ranks[:3]:
            rank.call_error("all_reduce", name="g", count=1000)
        for rank in ranks[:3]:
            rank.start("recover", name="g")
        for rank in ranks[:3]:
            rank.finish()
        for rank in ranks[:3]:
            rank.start("leave", name="g")
        for rank in ranks[:3]:
            rank.finish()
        for node in cluster.nodes:
            rows = until_why(node, "g", lambda rows: len(rows) == 2)
            equal({(row["epoch"], row["next_epoch"]) for row in rows}, {(1, 2), (2, 3)}, rows)
            equal({row["verdict"] for row in rows}, {"RECOVERED"}, rows)


def test_a_new_process_for_whom_nobody_waits():
    with Cluster(2) as cluster:
        new = [cluster.rank(0), cluster.rank(1)]
        for rank in new:
            rank.start("rejoin", name="g")
        for node in cluster.nodes:
            (row,) = until_why(node, "g", lambda rows: rows and rows[0]["new_processes"] == 2)
            check("2 new processes wait for a seat, pid" in row["evidence"], row)
            check("no rank of a group of this name waits for new processes, and there is no such "
                  "group" in row["evidence"], row)  # fmt: skip
            equal((row["verdict"], row["rank"], row["recovery"]), ("NOT_JOINED", None, "rejoin"))
            check('group "g" (new processes)' in text(node, "why"), text(node, "why"))
            (row,) = node.groups()
            equal((row["size"], row["local_ranks"], row["missing"]), (None, 1, None), row)
            check(row["joining_s"] is not None, row)
            no_number_for_any(node)
        homes = [row["new_processes"] for node in cluster.nodes for row in node.groups()]
        equal(sorted(homes, key=str), [2, None], "the home knows")
        ranks = cluster.ranks("g", [0, 1])
        said = "no rank of a group of this name waits for new processes: it goes on as it is"
        until_why(cluster.nodes[0], "g", lambda rows: any(said in row["evidence"] for row in rows))
        new[1].kill()
        (said,) = until(lambda: events(cluster.nodes[1], "group_failed"), "it is told")
        check(f"a new process, pid {new[1].pid}, waited for a seat in" in said, said)
        rows = until_why(cluster.nodes[0], "g", lambda rows: any(
            row["state"] == "ended" for row in rows))  # fmt: skip
        (row,) = [row for row in rows if row["state"] == "ended"]
        check("1 new process waited for a seat" in row["evidence"], row)
        for node in cluster.nodes:
            no_number_for_any(node)
        new[0].kill()
        for rank in ranks:
            rank.call("leave", name="g")


def test_waits_that_ran_out_of_time():
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        ranks = cluster.ranks("g", [0, 0, 0])
        ranks[0].kill()
        ranks[2].start("recover", name="g", timeout_ms=700)
        new = cluster.rank(0)
        equal(new.call_error("rejoin", name="g", timeout_ms=700)["code"], "TIMEOUT")
        equal(ranks[2].error()["code"], "TIMEOUT")
        rows = [row for row in why(node, "g") if row["state"] == "ended"]
        said = sorted(row["evidence"] for row in rows)
        check("1 new process waited for a seat, pid" in said[0], said)
        check("rank 2 of epoch 1 waited to go on without those who are gone" in said[1], said)
        check("rank 1 of epoch 1 (pid " in said[1], said)
        check(" on node node0) has not asked to go on" in said[1], said)
        said = " ".join(events(node, "group_failed"))
        check(f"a new process, pid {new.pid}: " in said, said)
        ranks[2].start("recover", name="g")
        until_why(node, "g", lambda rows: any(row["recovery"] == "shrink" for row in rows))
        ranks[2].kill()
        want = f"rank 2 of epoch 1, pid {ranks[2].pid}, waited to go on in"
        until(lambda: want in " ".join(events(node, "group_failed")), want)
        no_number_for_any(node)


def test_who_has_died_is_known_when_all_commds_were_restarted():
    with kept_nodes(2) as cluster:
        ranks = cluster.ranks("g", [0, 0, 1, 1])
        ranks[3].kill()
        for rank in ranks[:3]:
            rank.call_error("all_reduce", name="g", count=1000)
        # which revokes the group
        equal(ranks[0].call_error("recover", name="g", timeout_ms=700)["code"], "TIMEOUT")
        for _ in range(2):
            for node in cluster.nodes:
                restart(node)
        for node in cluster.nodes:
            (row,) = until_why(node, "g", lambda rows: rows and "has died" in rows[0]["evidence"])
            equal((row["verdict"], row["rank"], row["pid"]), ("RANK_DEAD", 3, ranks[3].pid), row)
            check(f"rank 3 (pid {ranks[3].pid} on node node1) has died" in row["evidence"], row)
            process = [row["process"] for row in node.ctl("ranks")["ranks"] if row["rank"] == 3]
            equal(process, ["died"])
        for rank in ranks[:3]:
            rank.start("recover", name="g")
        equal([rank.finish()["before"] for rank in ranks[:3]], [[0, 1, 2]] * 3)
        for rank in ranks[:3]:
            rank.call("leave", name="g")
        restart(cluster.nodes[0])
        for group in ((), ("g",)):
            done = subprocess.run([*commctl(cluster.nodes[0]), "why", *group], capture_output=True,
                                  text=True)  # fmt: skip
            check("commd on node node0 was restarted" in done.stdout + done.stderr, done)


def test_a_commd_that_was_not_restarted_does_not_say_so():
    with Cluster(1) as cluster:
        equal(text(cluster.nodes[0], "why"), "no groups\n")


if __name__ == "__main__":
    main(globals())
