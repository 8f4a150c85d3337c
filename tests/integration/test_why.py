#!/usr/bin/env python3
"""Staged situations, and what `commctl why` says of them: the verdict, and who is the culprit."""

import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import staged  # noqa: E402
from cluster import COMMCTL, HANG, Cluster, Limit, Skip, check, commctl  # noqa: E402
from cluster import communicate, equal, main, now, until  # noqa: E402


def why(node, group=None):
    """The only finding there, after a look at how long it took."""
    limit = Limit(HANG)
    rows = node.ctl("why", *([group] if group else []))["why"]
    check(not limit.over(), f"why took {limit.spent():.1f} s of a free machine")
    equal(len(rows), 1, rows)
    return rows[0]


def until_why(node, verdict, group=None):
    """Ranks need a moment to get into the situation."""
    seen = {}

    def asked():
        seen.update(why(node, group))
        return seen["verdict"] == verdict

    until(asked, lambda: f"verdict {verdict}: {seen}")
    return dict(seen)


def until_said(node, evidence):
    """Ranks that wait by turns wait for long in a part of their steps only."""
    seen = []

    def asked():
        seen[:] = [why(node)["evidence"]]
        return evidence in seen[0]

    until(asked, lambda: f"{evidence!r} in {seen}", 6 * HANG)


def culprit(row):
    return row["rank"], row["node"], row["pid"]


def at_once(*calls):
    """What each of them returns; commctl watches for a second, and they need not do so in turn."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [call.result() for call in [pool.submit(*call) for call in calls]]


def stop(pid):
    """Returns when it stands: SIGSTOP reaches a process when it gets a core."""
    os.kill(pid, signal.SIGSTOP)

    def stands():
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"

    until(stands, f"{pid} is stopped")


def text(node, *arguments):
    return subprocess.run([*commctl(node), *arguments], capture_output=True, text=True)


def test_a_group_that_is_well():
    with Cluster(2) as cluster:
        equal(text(cluster.nodes[0], "why").stdout, "no groups\n")
        ranks = cluster.ranks("g", [0, 1])
        row, shown, none = at_once(
            (why, cluster.nodes[0]),
            (text, cluster.nodes[1], "why", "g"),
            (text, cluster.nodes[1], "why", "h"),
        )
        equal((row["name"], row["verdict"], row["well"]), ("g", "HEALTHY", True))
        equal((row["rank"], row["pid"], row["command"]), (None, None, None), row)
        equal(shown.returncode, 0)
        equal(why(cluster.nodes[1], row["group"])["name"], "g", "by its id")
        equal((none.returncode, none.stdout), (1, ""))
        check('why: no group "h" that this user may see on any node' in none.stderr, none)
        for verb in ("ops", "ranks", "top"):
            none = text(cluster.nodes[0], verb, "h")
            equal((none.returncode, none.stdout), (1, ""))
            check(f'{verb}: no group "h" that this user may see on any node' in none.stderr, none)
        for rank in ranks:
            rank.call("leave", name="g")


def test_a_rank_that_is_stopped():
    with Cluster(2) as cluster:
        ranks = staged.rank_stopped(cluster).ranks
        for row in at_once(*((until_why, node, "RANK_STOPPED") for node in cluster.nodes)):
            equal(culprit(row), (2, "node1", ranks[2].pid))
            check("all_reduce f32 sum of 100 elements" in row["evidence"], row)
            check("rank.py" in row["command"], row)
            check(row["waiting_s"] >= 0.5, row)
        shown, ops = at_once(
            (text, cluster.nodes[0], "why", "g"), (cluster.nodes[0].ctl, "ops", "g")
        )
        equal(shown.returncode, 1)
        check(shown.stdout.startswith('RANK_STOPPED  group "g" (3 ranks on 2 nodes)\n'), shown)
        check(f"kill -CONT {ranks[2].pid}" in shown.stdout, shown)
        ops = ops["ops"]
        equal([(row["number"], row["ranks"], row["missing"]) for row in ops], [(1, "0-1", "2")])
        equal(ops[0]["operation"], "all_reduce f32 sum of 100 elements")
        os.kill(ranks[2].pid, signal.SIGCONT)
        ranks[2].call("all_reduce", name="g", count=100)
        for rank in ranks[:2]:
            rank.finish()
        row, ops = at_once((why, cluster.nodes[0]), (cluster.nodes[0].ctl, "ops"))
        equal(row["verdict"], "HEALTHY")
        equal(ops["ops"], [])


FREEZERS = (
    # where control groups are, the file that freezes one, what is written there
    ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
    ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
    ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"),
)


def test_a_rank_whose_control_group_is_frozen():
    """As by docker pause: the kernel says no more than that it sleeps, or waits for a device."""
    tried = 0
    for place, file, freeze, thaw in FREEZERS:
        group = os.path.join(place, f"commd-test-{os.getpid()}")
        try:
            if not os.path.exists(f"{place}/cgroup.procs"):
                continue
            os.mkdir(group)
        except OSError:
            continue
        try:
            if not os.path.exists(f"{group}/{file}"):
                continue
            tried += 1
            with Cluster(2) as cluster:
                ranks = cluster.ranks("g", [0, 1])
                with open(f"{group}/cgroup.procs", "w") as out:
                    out.write(str(ranks[1].pid))
                with open(f"{group}/{file}", "w") as out:
                    out.write(freeze)
                try:
                    ranks[0].start("all_reduce", name="g", count=10)
                    row = until_why(cluster.nodes[0], "RANK_STOPPED")
                    equal(culprit(row), (1, "node1", ranks[1].pid))
                    check("is frozen, with all of its control group" in row["evidence"], row)
                finally:
                    with open(f"{group}/{file}", "w") as out:
                        out.write(thaw)
                ranks[1].call("all_reduce", name="g", count=10)
                ranks[0].finish()
        finally:
            until(lambda group=group: removed(group), f"{group} is empty")
    if not tried:
        raise Skip("no control group can be frozen here")


def removed(folder):
    try:
        os.rmdir(folder)
    except OSError:
        return False
    return True


def test_a_rank_that_does_not_come():
    with Cluster(2) as cluster:
        ranks = staged.not_arrived(cluster).ranks
        row = until_why(cluster.nodes[1], "NOT_ARRIVED")
        equal(culprit(row), (0, "node0", ranks[0].pid))
        check("ranks 1-2 wait in operation 2" in row["evidence"], row)
        check("operation 2 (all_reduce i32 max of 7 elements)" in row["evidence"], row)
        check("its process is sleeping" in row["evidence"], row)
        check("the last that it completed is operation 1 (barrier)" in row["evidence"], row)
        ranks[0].call("all_reduce", name="g", count=7, dtype="i32", redop="max")
        for rank in ranks[1:]:
            rank.finish()


def test_a_rank_that_leaves_and_waits_for_another():
    """What it has sent over nodes has not come: it is in that operation again."""
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        ranks[0].start("one_way", name="g", coll="broadcast", nbytes=251)
        check("started" in ranks[0].answer(), "it has begun")
        ranks[0].finish()
        equal(why(cluster.nodes[0], "g")["verdict"], "HEALTHY")
        ranks[0].start("leave", name="g")
        row = until_why(cluster.nodes[0], "NOT_ARRIVED", "g")
        equal(culprit(row), (1, "node1", ranks[1].pid))
        check("rank 0 waits in operation 1 (broadcast u8 of 251 elements" in row["evidence"], row)
        ranks[1].start("one_way", name="g", coll="broadcast", nbytes=251)
        check("started" in ranks[1].answer(), "it has begun")
        equal(ranks[1].finish(), True)
        ranks[0].finish()


def test_an_operation_that_takes_long():
    """Ranks sleep in it again and again, but it gets on: nobody is to blame. Its engine gets the
    processor for a few milliseconds at a time."""
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        engine = cluster.nodes[0].engine_pid()
        done = threading.Event()

        def on_cpu():
            with open(f"/proc/{engine}/schedstat") as file:
                return int(file.read().split()[0])

        def slow_down():
            while not done.is_set():
                os.kill(engine, signal.SIGSTOP)
                done.wait(0.08)
                had, end = on_cpu(), now() + 0.05  # it may have nothing to do
                os.kill(engine, signal.SIGCONT)
                while on_cpu() - had < 3_000_000 and now() < end:
                    time.sleep(0.001)

        def look():
            """None: it got no core for most of the watch, and what is said of that may be true."""
            had = on_cpu()
            row = why(cluster.nodes[0])
            return row if on_cpu() - had > 10_000_000 else None

        thread = threading.Thread(target=slow_down)
        thread.start()  # before it begins: else it may be over before it was seen
        for rank in ranks:
            rank.start("all_reduce", name="g", count=80_000_000)
        try:
            until(lambda: cluster.nodes[0].ctl("ops")["ops"], "the operation is under way")
            for _ in range(2):
                row = until(look, "a watch in which it gets on", 6 * HANG)
                check(staged.is_well(row), row)
            check(cluster.nodes[0].ctl("ops")["ops"], "it was under way all the time")
        finally:
            done.set()
            thread.join()
        for rank in ranks:
            rank.finish(6 * HANG)


def test_a_rank_that_does_not_join():
    with Cluster(2) as cluster:
        ranks = [cluster.rank(0), cluster.rank(1)]
        ranks[0].start("join", name="g", rank=0, size=3)
        ranks[1].start("join", name="g", rank=2, size=3)

        def known(node):
            said = "rank 1 of 3 has not joined the group"
            until(lambda: said in until_why(node, "NOT_JOINED", "g")["evidence"], said)

        at_once(*((known, node) for node in cluster.nodes))
        row = why(cluster.nodes[0])
        said = r"of 3 ranks 0,2 wait in the join, rank [02] \(pid \d+ on node node[01]\) for \d"
        check(re.search(said, row["evidence"]), row)
        check(row["waiting_s"] > 0, row)
        rows = [row for node in cluster.nodes for row in node.groups()]
        equal([row["joining"] for row in rows], ["0", "2"], rows)
        equal([row["missing"] for row in rows], ["1", "1"], "named on each node")
        until(lambda: cluster.nodes[1].groups()[0]["joining_s"] >= 1, "it is counted")
        rows = [row for row in cluster.nodes[0].ctl("ranks")["ranks"] if row["rank"] is not None]
        equal(sorted((row["rank"], row["node"], row["pid"]) for row in rows),
              [(0, "node0", ranks[0].pid), (2, "node1", ranks[1].pid)])  # fmt: skip
        late = cluster.rank(1)
        late.call("join", name="g", rank=1, size=3)
        for rank in ranks:
            rank.finish()


def test_a_join_that_failed():
    """Who waited for whom is known for a while: of a limit, and of ranks that are killed."""
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        ranks[1].start("join", name="late", rank=1, size=3, timeout_ms=1000)
        ranks[0].start("join", name="never", rank=0, size=2)
        ranks[1].error()
        until_why(cluster.nodes[0], "NOT_JOINED", "never")
        ranks[0].kill()

        def kept():
            return {row["name"]: row for row in cluster.nodes[0].ctl("why")["why"]}

        until(lambda: {"late", "never"} <= {
            name for name, row in kept().items() if row["state"] == "ended"}, kept)  # fmt: skip
        rows = kept()
        equal(rows["late"]["verdict"], "NOT_JOINED")
        check("of 3 ranks 1 waited for the others" in rows["late"]["evidence"], rows)
        # a busy machine takes some of the time before commd is asked
        late = rows["late"]["evidence"]
        check(re.search(r"did not come within (1 s|\d+ ms): missing 0,2", late), rows)
        check("it ended, or gave up, before all others" in rows["never"]["evidence"], rows)
        events = [row for node in cluster.nodes for row in node.ctl("events")["events"]]
        said = " ".join(row["text"] for row in events if row["event"] == "group_failed")
        check('waited for "never": it ended' in said and "missing 0,2" in said, said)


PY_SPY = """#!/bin/sh
[ "$*" = "dump --nonblocking --full-filenames --pid $CULPRIT" ] || exit 1
[ -z "$HANGS" ] || exec sleep 1000
printf 'Process %s: python\nPython v3.11.2 (/usr/bin/python3.11)\n\n' $CULPRIT
printf 'Thread 1 (idle): "Other"\n    waits (/lib/other.py:1)\n'
printf 'Thread %s (idle): "MainThread"\n' $CULPRIT
printf '    loads (/job/data.py:12)\n    \033[31mmain (/job/train.py:40)\n'
for i in $(seq 20); do printf '    below (/job/run.py:%s)\n' $i; done
"""


def why_spied(node, culprit, **variables):
    """With a py-spy that says something; none: PATH is another."""
    with tempfile.TemporaryDirectory() as place:
        with open(f"{place}/py-spy", "w") as out:
            out.write(PY_SPY)
        os.chmod(f"{place}/py-spy", 0o755)
        path = f"{place}:{os.environ['PATH']}"
        return subprocess.run(
            [COMMCTL, "--socket", node.socket, "why"], capture_output=True, text=True,
            env={**os.environ, "PATH": path, "CULPRIT": str(culprit), **variables},
        ).stdout  # fmt: skip


def test_the_stack_of_the_culprit():
    """As py-spy has it, where it is installed; and where the output of that process goes."""
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        ranks[0].start("all_reduce", name="g", count=10)
        until_why(cluster.nodes[1], "NOT_ARRIVED")
        pid = ranks[1].pid
        shown = why_spied(cluster.nodes[1], pid)
        want = "  stack     loads (/job/data.py:12)\n            ?[31mmain (/job/train.py:40)\n"
        check(want in shown, shown)
        check("other.py" not in shown, shown)
        equal(shown.count("run.py"), 10, shown)
        out, err = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (1, 2))
        check(f"  output    stdout goes to {out}, stderr to {err}\n" in shown, shown)
        check(f"py-spy dump --nonblocking --pid {pid}" in shown, shown)

        shown = why_spied(cluster.nodes[1], pid, HANGS="1")
        check("  stack     py-spy gave none within 2 s\n" in shown, shown)
        shown = why_spied(cluster.nodes[1], 0)
        check("  stack     py-spy gives none: it is not in Python, or only" in shown, shown)
        shown = why_spied(cluster.nodes[1], pid, PATH="/nonexistent")
        want = "  stack     py-spy would show it: pip install py-spy, then ask again"
        check(want in shown, shown)

        # another node's commctl leads there
        shown = why_spied(cluster.nodes[0], pid)
        check("  stack     commctl why on node node1 shows it\n" in shown, shown)
        check("output" not in shown, shown)
        ranks[1].call("all_reduce", name="g", count=10)
        ranks[0].finish()


def test_who_traces_the_culprit():
    if not shutil.which("strace"):
        raise Skip("there is no strace")
    with Cluster(1) as cluster:
        ranks = cluster.ranks("g", [0, 0])
        ranks[0].start("all_reduce", name="g", count=10)
        until_why(cluster.nodes[0], "NOT_ARRIVED")
        equal(why(cluster.nodes[0])["tracer"], None)
        trace = ["strace", "-qq", "-o", "/dev/null", "-p", str(ranks[1].pid)]
        with subprocess.Popen(trace) as tracer:
            row = {}

            def told():
                row.update(why(cluster.nodes[0]))
                return row["tracer"]

            until(told, lambda: row)
            equal(row["tracer"], f"strace (pid {tracer.pid})")
            tracer.terminate()
        ranks[1].call("all_reduce", name="g", count=10)
        ranks[0].finish()


def test_two_groups_in_another_order():
    with Cluster(2) as cluster:
        ranks = staged.order_inversion(cluster).ranks
        for row in at_once(*((until_why, cluster.nodes[0], "ORDER_INVERSION", g) for g in "gh")):
            for other in "gh":
                check(f'of group "{other}" waits in operation 1' in row["evidence"], row)
        cluster.expect("was lost|died")
        for rank in ranks:
            rank.kill()


def test_messages():
    with Cluster(1) as cluster:
        ranks = cluster.ranks("g", [0, 0, 0])
        ranks[0].start("recv", name="g", peer=1, tag=5, size=8)
        row = until_why(cluster.nodes[0], "NOT_ARRIVED")
        equal(culprit(row), (1, "node0", ranks[1].pid))
        check("waits in recv from rank 1, tag 5" in row["evidence"], row)
        ops = cluster.nodes[0].ctl("ops")["ops"]
        equal([(row["operation"], row["ranks"]) for row in ops], [("recv", "0")])
        equal(ops[0]["missing"], "1")

        # who should send waits for a third, which is stopped: that one it is
        os.kill(ranks[2].pid, signal.SIGSTOP)
        ranks[1].start("recv", name="g", peer=2, tag=1, size=8)
        row = until_why(cluster.nodes[0], "RANK_STOPPED")
        equal(culprit(row), (2, "node0", ranks[2].pid))
        check("waits in recv from rank 2, tag 1" in row["evidence"], row)
        os.kill(ranks[2].pid, signal.SIGCONT)

        # and in a circle
        ranks[2].start("recv", name="g", peer=0, tag=1, size=8)
        until_why(cluster.nodes[0], "ORDER_INVERSION")
        cluster.expect("was lost|died")
        for rank in ranks:
            rank.kill()


def test_a_rank_that_died_while_the_job_is_there_and_after():
    with Cluster(2) as cluster:
        ranks = staged.rank_dead(cluster).ranks
        equal(ranks[0].error()["code"], "RANK_LOST")
        row = until_why(cluster.nodes[0], "RANK_DEAD")
        equal(culprit(row), (1, "node1", ranks[1].pid))
        for rank in (ranks[0], ranks[2]):
            rank.call("leave", name="g")
            rank.call("disconnect")
        for node in cluster.nodes:
            until(lambda node=node: not node.groups(), "the group is closed")
        for row in at_once(*((until_why, node, "RANK_DEAD", "g") for node in cluster.nodes)):
            equal(culprit(row), (1, "node1", ranks[1].pid))
            equal(row["state"], "ended")
            check("it had completed 1 operation, the last one barrier" in row["evidence"], row)
            check("has died (signal 9 (KILL), " in row["evidence"], row)
            check("rank.py" in row["command"], row)
        check("ended" in text(cluster.nodes[0], "why").stdout, "shown without its name")
        alone = cluster.rank(0)
        alone.start("join", name="z", rank=0, size=2)
        until(lambda: 'group "z"' in text(cluster.nodes[0], "why").stdout, "a group that forms")
        said = text(cluster.nodes[0], "why").stdout
        check(said.index('group "z"') < said.index('group "g"'), f"what has ended is last: {said}")
        alone.kill()  # it still waits


def test_a_job_that_is_ended_while_it_hangs():
    """Who died first says nothing then: the one that the others waited for is to blame."""
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 1, 0, 1])
        staged.both(ranks, coll="barrier")
        waiting = [rank for rank in ranks if rank is not ranks[2]]
        for rank in waiting:
            rank.start("all_reduce", name="g", count=10)
        until(lambda: longest_wait(cluster.nodes[0]) > 6, "they wait", 20)
        cluster.expect("was lost|died")
        for rank in [ranks[3], ranks[0], ranks[2], ranks[1]]:
            os.kill(rank.pid, signal.SIGTERM)
        for node in cluster.nodes:
            until(lambda node=node: not node.groups(), "the group is closed")
        for row in at_once(*((why, node, "g") for node in cluster.nodes)):
            equal((row["verdict"], *culprit(row)), ("NOT_ARRIVED", 2, "node0", ranks[2].pid), row)
            check("ended while it hung, by signal 15 (TERM)" in row["evidence"], row)
            check(row["waiting_s"] > 5, row)


def test_a_name_that_is_used_again():
    """What is there comes first, then the run that ended last."""
    with Cluster(1) as cluster:
        node, rank = cluster.nodes[0], cluster.rank(0)
        for reason in ("first", "second"):
            rank.call("join", name="g", rank=0, size=1)
            rank.call("abort", name="g", reason=reason)
            rank.call("leave", name="g")
            until(lambda: not node.groups(), "the group is closed")
            time.sleep(1.1)  # ages are told in seconds
        rank.call("join", name="g", rank=0, size=1)
        rows = node.ctl("why", "g")["why"]
        equal([row["verdict"] for row in rows], ["HEALTHY", "ABORTED", "ABORTED"])
        equal(["second" in row["evidence"] for row in rows], [False, True, False], rows)
        said = text(node, "why", "g").stdout
        check(said.startswith("HEALTHY") and said.index("second") < said.index("first"), said)
        rows = node.ctl("why")["why"]
        equal([row["verdict"] for row in rows], ["ABORTED", "ABORTED", "HEALTHY"])
        rank.call("leave", name="g")


def test_ranks_that_end_because_of_another():
    """The first that was gone is to blame: one that died, or that left before the others."""
    for left in (False, True):
        with Cluster(2) as cluster:
            ranks = cluster.ranks("g", [0, 0, 1])
            staged.both(ranks, coll="barrier")
            if left:
                ranks[2].call("leave", name="g")
            else:
                ranks[2].kill()
            for rank in ranks[:2]:
                equal(rank.call_error("all_reduce", name="g", count=10)["code"], "RANK_LOST")
            for rank in ranks[:2]:
                rank.kill()
            for node in cluster.nodes:
                until(lambda node=node: not node.groups(), "the group is closed")
            verdict = "RANK_LEFT" if left else "RANK_DEAD"
            row = until_why(cluster.nodes[0], verdict, "g")
            equal(culprit(row), (2, "node1", ranks[2].pid))


def test_a_rank_that_died_because_another_had_left():
    """Only on the node of the dead one somebody had missed who left. All nodes name that one."""
    with Cluster(3) as cluster:
        ranks = cluster.ranks("g", [0, 1, 2])
        staged.both(ranks, coll="barrier")
        ranks[2].call("leave", name="g")
        equal(ranks[1].call_error("all_reduce", name="g", count=10)["code"], "RANK_LOST")
        ranks[1].kill()
        until(lambda: rank_row(cluster.nodes[0], 1)["process"] == "died", "rank 1 is gone")
        for row in at_once(*((why, node) for node in cluster.nodes)):
            equal((row["verdict"], *culprit(row)), ("RANK_LEFT", 2, "node2", ranks[2].pid), row)
            check("rank 1 began operation 2" in row["evidence"], row)
            check("rank 1 has died" in row["evidence"], row)


def rank_row(node, rank):
    return {row["rank"]: row for row in node.ctl("ranks")["ranks"]}[rank]


def test_a_job_that_called_different_operations():
    with Cluster(2) as cluster:
        ranks = staged.mismatch(cluster).ranks
        for rank in ranks:
            equal(rank.error()["code"], "MISMATCH")
        for moment in ("before", "after"):
            row = until_why(cluster.nodes[0], "MISMATCH", "g")
            check("called all_reduce f32 sum of 10 elements" in row["evidence"], row)
            check("called all_reduce f32 sum of 11 elements" in row["evidence"], row)
            if moment == "before":
                for rank in ranks:
                    rank.call("leave", name="g")
                for node in cluster.nodes:
                    until(lambda node=node: not node.groups(), "the group is closed")


def test_a_rank_that_gave_up_waiting():
    with Cluster(1) as cluster:
        ranks = cluster.ranks("g", [0, 0, 0])
        for rank in ranks[:2]:
            rank.start("all_reduce", name="g", count=10, timeout_ms=200)
        for rank in ranks[:2]:
            check(rank.error()["code"] in ("TIMEOUT", "ABORTED"), "a limit")
        row = until_why(cluster.nodes[0], "NOT_ARRIVED")
        equal(culprit(row), (2, "node0", ranks[2].pid))
        check("did not come" in row["evidence"], row)


def test_a_node_that_is_lost():
    with Cluster(2) as cluster:
        ranks = staged.node_dead(cluster).ranks
        equal(ranks[0].error()["code"], "NODE_LOST")
        row = until_why(cluster.nodes[0], "COMMD_DEAD")
        check("node1" in row["evidence"], row)
        equal(row["node"], "node1")
        shown = text(cluster.nodes[0], "why")
        check("node node1 is down" in shown.stderr, shown)


def test_an_engine_that_stands_still():
    with Cluster(2, staged.ENGINE_STOPPED) as cluster:
        stall = staged.engine_stopped(cluster)
        row = until_why(cluster.nodes[0], "ENGINE_STOPPED")
        check("the engine on node node1 is stopped" in row["evidence"], row)
        equal(row["node"], "node1")
        stall.go_on()
        for rank in stall.ranks:
            rank.finish()


CPU_GROUPS = (
    # where control groups are, the file of a quota, a hundredth of a core
    ("/sys/fs/cgroup", "cpu.max", "1000 100000"),
    ("/sys/fs/cgroup/unified", "cpu.max", "1000 100000"),
    ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "1000"),
)


def test_quotas_that_are_used_up():
    """Of a rank, and of an engine: both want more than they may have."""
    for place, file, quota in CPU_GROUPS:
        group = os.path.join(place, f"commd-test-{os.getpid()}")
        try:
            if not os.path.exists(f"{place}/cgroup.procs"):
                continue
            os.mkdir(group)
        except OSError:
            continue
        try:
            if not os.path.exists(f"{group}/{file}"):
                continue
            with open(f"{group}/{file}", "w") as out:
                out.write(quota)
            for whose in ("rank", "engine"):
                with Cluster(2) as cluster:
                    quota_is_seen(cluster, group, whose)
            return
        finally:
            until(lambda group=group: removed(group), f"{group} is empty")
    raise Skip("no control group can have a quota here")


def quota_is_seen(cluster, group, whose):
    ranks = cluster.ranks("g", [0, 1])
    for rank in ranks:
        rank.start("loop", name="g", count=100_000)
    for rank in ranks:
        rank.answer()
    cluster.expect("was lost|died")
    pid = ranks[1].pid if whose == "rank" else cluster.nodes[1].engine_pid()
    with open(f"{group}/cgroup.procs", "w") as out:
        out.write(str(pid))
    row = until_why(cluster.nodes[0], "THROTTLED")
    equal(row["node"], "node1", row)
    if whose == "rank":
        equal(culprit(row), (1, "node1", pid))
    check("was used up in" in row["evidence"] and whose in row["evidence"], row)
    for rank in ranks:
        rank.kill()


def test_the_pace_of_a_job():
    with Cluster(2) as cluster:
        slow = staged.slow_rank(cluster, "slow").ranks
        even = staged.compute_bound(cluster, "even").ranks
        row, other = at_once(
            (until_why, cluster.nodes[1], "SLOW_RANK", "slow"),
            (until_why, cluster.nodes[0], "COMPUTE_BOUND", "even"),
        )
        equal(culprit(row), (1, "node0", slow[1].pid))
        check(staged.is_well(other), other)
        for rank in slow + even:
            rank.kill()


def test_a_healthy_job_is_never_accused():
    with Cluster(2) as cluster:
        ranks = staged.paced(cluster, "g", [0, 0, 1, 1], 4 * [0.001], steps=4000)
        for row in at_once(*3 * [(why, cluster.nodes[0])]):
            check(staged.is_well(row), row)
        for rank in ranks:
            rank.kill()


def test_a_job_with_uneven_steps_is_not_accused():
    """Ranks wait for each other by turns, for longer than that of which one could be stuck. Each
    step ends with some operations, of which only the first is waited for."""
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        for rank, computes in zip(ranks, ([0.05, 1.4], [1.4, 0.05])):
            rank.start("uneven", name="g", computes=computes, steps=1000, burst=20)
        for rank in ranks:
            rank.answer()
        until(lambda: cluster.nodes[0].groups()[0]["ops"] >= 140, "seven steps", 20)
        rows = at_once(*((later, cluster.nodes[k % 2], 0.2 * k) for k in range(8)))
        for row in rows:
            check(staged.is_well(row), row)
        until_said(cluster.nodes[0], "it is waited for")
        stop_is_named(cluster, ranks, 1)


def test_a_pipeline_by_messages_is_not_accused():
    """One stage is slow; whoever waits for it waits again and again, also by way of others."""
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 0, 1, 1])
        for number, rank in enumerate(ranks):
            compute = 0.2 if number == 3 else 0.001
            rank.start("pipeline", name="g", rank=number, size=4, compute=compute, steps=1000)
        for rank in ranks:
            rank.answer()
        until(lambda: longest_wait(cluster.nodes[0]) > 0.5, "one waits", 20)
        rows = at_once(*((later, cluster.nodes[k % 2], 0.17 * k) for k in range(12)))
        for row in rows:
            slow = row["verdict"] == "SLOW_RANK" and row["rank"] == 3
            check(staged.is_well(row) or slow, row)
        until_said(cluster.nodes[0], "that one moves")
        stop_is_named(cluster, ranks, 3)


def stop_is_named(cluster, ranks, number):
    """Ends a job that nobody was accused of: one of its ranks on node1 is stopped."""
    os.kill(ranks[number].pid, signal.SIGSTOP)
    stopped = culprit(until_why(cluster.nodes[0], "RANK_STOPPED"))
    equal(stopped, (number, "node1", ranks[number].pid))
    cluster.expect("was lost|died")
    for rank in ranks:
        rank.kill()


def longest_wait(node):
    return max((row["waiting_s"] for row in node.ctl("ops")["ops"]), default=0)


def later(node, seconds):
    time.sleep(seconds)
    return why(node)


def test_a_rank_that_gets_no_core():
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        core = min(os.sched_getaffinity(0))
        os.sched_setaffinity(ranks[1].pid, [core])
        os.setpriority(os.PRIO_PROCESS, ranks[1].pid, 19)
        hog = subprocess.Popen([sys.executable, "-c", f"""if True:
            import os
            os.sched_setaffinity(0, [{core}])
            while os.getppid() == {os.getpid()}:
                pass"""])
        try:
            for rank in ranks:
                rank.start("loop", name="g", count=1000)
            for rank in ranks:
                rank.answer()
            seen = {}

            def starved():
                seen.update(why(cluster.nodes[0]))
                return seen["verdict"] == "SLOW_RANK" and "wanted a core" in seen["evidence"]

            until(starved, lambda: f"SLOW_RANK: {seen}")
            equal(culprit(seen), (1, "node1", ranks[1].pid))
        finally:
            hog.kill()
            hog.wait()
            cluster.expect("was lost|died")
            for rank in ranks:
                rank.kill()


def test_a_node_that_stands_still():
    """All of it is stopped, as a container is: nothing is known of its ranks, and that is said."""
    with Cluster(2, {"timeouts": {"node": "60s"}}) as cluster:
        ranks = cluster.ranks("g", [0, 0, 1])
        node = cluster.nodes[1]
        stopped = [ranks[2].pid, node.pid, node.engine_pid()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            for rank in ranks[:2]:
                rank.start("all_reduce", name="g", count=10)
            row = until_why(cluster.nodes[0], "NODE_SILENT")
            equal(row["node"], "node1")
            check("node node1 does not answer" in row["evidence"], row)
            check("all ranks have begun it" not in row["evidence"], row)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        ranks[2].call("all_reduce", name="g", count=10)
        for rank in ranks[:2]:
            rank.finish()


def test_a_commd_that_is_stopped():
    """Its own node says so at once; from another one it is the node that does not answer, also
    while the group gets on."""
    with Cluster(2, {"timeouts": {"node": "60s"}}) as cluster:
        cluster.ranks("g", [0, 1])
        pid = cluster.nodes[1].pid
        stop(pid)
        try:
            shown = text(cluster.nodes[1], "--timeout", "60", "why")
            equal(shown.returncode, 2)
            check(f"commd (pid {pid}) is stopped" in shown.stderr, shown)
            row = until_why(cluster.nodes[0], "NODE_SILENT")
            equal(row["node"], "node1")
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_machine_that_stood_still():
    """With all of its nodes: who asked is no sooner ready than the others, and waits for them."""
    with Cluster(2, {"timeouts": {"node": "60s"}}) as cluster:
        cluster.ranks("g", [0, 1])
        asking = subprocess.Popen(
            [*commctl(cluster.nodes[0]), "why", "g"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        time.sleep(0.5)  # it watches for a second; too late shows nothing, and is no failure
        for node in cluster.nodes:
            os.kill(node.pid, signal.SIGSTOP)
        time.sleep(1.5)
        for node in cluster.nodes:
            os.kill(node.pid, signal.SIGCONT)
            time.sleep(0.02)
        out, err = asking.communicate()
        equal((asking.returncode, out.split()[0], err), (0, "HEALTHY", ""), out)


def test_links_of_many_nodes_are_cut():
    """What is left out of `commctl links` is said, however many other nodes are down."""
    with Cluster(1, start=False) as cluster:
        node = cluster.nodes[0]
        others = "".join(
            f"\n    - {{name: other{i}, address: 127.0.0.1, port: {i}}}" for i in range(1, 70)
        )
        own = f"\n    - {{name: {node.name}, address: {node.address}, port: {node.port}}}"
        node.write_config(cluster={"nodes": own + others})
        cluster.expect("other")
        node.start()
        until(lambda: text(node, "status").stdout, "it answers")
        shown = text(node, "--json", "links")
        equal(shown.returncode, 1)
        equal([row["state"] for row in json.loads(shown.stdout)["links"]], 64 * ["down"])
        said = "node node0 has 5 more links that are not well: only the worst are told; node other1"
        check(said in shown.stderr and shown.stderr.endswith("...\n"), shown.stderr)


def test_others_groups_are_not_shown():
    if os.geteuid():
        raise Skip("needs root, to ask as another user")
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        ranks[0].call("join", name="past", rank=0, size=1)
        ranks[0].call("abort", name="past", reason="secret")
        ranks[0].call("leave", name="past")
        until(lambda: len(cluster.nodes[0].groups()) == 1, "one has ended")
        check("secret" in str(cluster.nodes[0].ctl("why")), "root sees it")
        os.chmod(cluster.folder, 0o755)
        os.chmod(cluster.nodes[0].home, 0o755)
        os.chmod(cluster.nodes[0].socket, 0o666)
        ranks[0].call("connect", context="store", waits=["store", 1, 2])
        equal(cluster.nodes[0].ctl("status")["status"][0]["starting"], 1)
        for verb in ("why", "ops", "ranks", "groups", "status"):
            done = subprocess.run(
                [*commctl(cluster.nodes[0]), "--json", verb],
                stdout=subprocess.PIPE, user=12345, group=12345, extra_groups=[], text=True,
            )  # fmt: skip
            for word in ('"g"', "rank.py", "past", "secret"):
                check(word not in done.stdout, done)
            check('"store"' not in done.stdout and '"starting": 1' not in done.stdout, done)
        until_why(cluster.nodes[1], "NOT_JOINED", "store")


def test_what_is_remembered_is_bounded():
    with Cluster(1) as cluster:
        rank = cluster.rank(0)
        for number in range(20):
            name = f"g{number}"
            rank.call("join", name=name, rank=0, size=1)
            rank.call("abort", name=name, reason="tried")
            rank.call("leave", name=name)
        node = cluster.nodes[0]
        until(lambda: not node.groups(), "all are closed")
        rows = node.ctl("why")["why"]
        equal([row["name"] for row in rows], [f"g{number}" for number in range(4, 20)])
        equal({row["verdict"] for row in rows}, {"ABORTED"})


SAYS_SO = r'commd: rank 0 of group "g" on node node0 has waited for [0-9.]+ s in operation 1 '


def test_a_rank_that_waits_says_so():
    os.environ["COMMD_WARN_AFTER"] = "0.3"
    try:
        with Cluster(2) as cluster:
            ranks, said = cluster.ranks_heard("g", [0, 0, 1])
            ranks[0].start("all_reduce", name="g", count=10)  # the first that waits there says so
            until(lambda: cluster.nodes[0].ctl("ops", "g")["ops"], "it waits")
            ranks[1].start("all_reduce", name="g", count=10)
            until(lambda: "rank 2 of node node1 did not come" in said(), said)
            check(re.search(SAYS_SO, said()), said())
            check("operation 1 (all_reduce f32 sum of 10 elements)" in said(), said())
            ranks[2].call("all_reduce", name="g", count=10)
            for rank in ranks[:2]:
                rank.finish()
            equal(said().count("rank 2 of node node1 did not come"), 1, said())
            ranks[1].start("recv", name="g", peer=2, tag=4, size=8)
            until(lambda: "to receive from rank 2, tag 4;" in said(), said)
            ranks[2].call("send", name="g", peer=1, tag=4, text="12345678")
            ranks[1].finish()
            equal(said().count("to receive from rank 2, tag 4;"), 1, said())
    finally:
        del os.environ["COMMD_WARN_AFTER"]


JOIN = (r'commd: rank 1 has waited for [0-9.]+ s, since [0-9:]{8}, to join group "late" of 4 ranks '
        r"on node node0: ")  # fmt: skip


def test_a_rank_that_waits_in_a_join_says_so():
    os.environ["COMMD_WARN_AFTER"] = "0.3"
    try:
        with Cluster(1) as cluster:
            ranks, said = cluster.ranks_heard("g", [0] * 4)
            ranks[1].start("join", name="late", rank=1, size=4)
            line = JOIN + "ranks that are not here: 0,2,3; usual causes: "
            until(lambda: re.search(line, said()), said)
            ranks[2].start("join", name="late", rank=2, size=4)
            time.sleep(1)  # longer than it would wait before it spoke
            for rank in (0, 3):
                ranks[rank].start("join", name="late", rank=rank, size=4)
            for rank in ranks:
                rank.finish()
            equal(said().count('to join group "late"'), 1, said())
        with Cluster(2) as cluster:  # the other may be the one that knows
            ranks, said = cluster.ranks_heard("g", [0, 1])
            ranks[1].start("join", name="late", rank=1, size=2)
            line = JOIN.replace("node0", "node1") + "ranks that are not here: 0; usual causes: "
            until(lambda: re.search(line.replace("of 4", "of 2"), said()), said)
            ranks[0].call("join", name="late", rank=0, size=2)
            ranks[1].finish()
    finally:
        del os.environ["COMMD_WARN_AFTER"]


def test_a_rank_that_waits_says_what_is_usual():
    """As commctl why does: who was waited for often, and comes late again."""
    os.environ["COMMD_WARN_AFTER"] = "0.4"
    try:
        with Cluster(2) as cluster:
            ranks, said = cluster.ranks_heard("g", [0, 1])

            def said_by_first():
                return [line for line in said().splitlines() if "commd: rank 0 of" in line]

            for step in range(4):
                ranks[0].start("all_reduce", name="g", count=10)
                until(lambda step=step: len(said_by_first()) > step, said)
                if step == 3:
                    break
                time.sleep(2)  # the last one has to say it earlier
                ranks[1].call("all_reduce", name="g", count=10)
                ranks[0].finish()
            lines = said_by_first()
            check(not any("lately" in line for line in lines[:3]), lines)
            check("rank 1 of node node1 did not come; three operations took" in lines[3], lines)
            ranks[1].call("all_reduce", name="g", count=10)
            ranks[0].finish()
    finally:
        del os.environ["COMMD_WARN_AFTER"]


def test_many_ask_at_once():
    """Each gets an answer; questions that nobody waits for any more are forgotten."""
    with Cluster(2) as cluster:
        cluster.ranks("g", [0, 1])
        asking = [
            subprocess.Popen(
                [*commctl(cluster.nodes[0]), "--json", "why"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for _ in range(40)
        ]  # fmt: skip
        for process in asking[:20]:
            process.kill()
        for process in asking[20:]:
            out, err = communicate(process, 3 * HANG)
            check(process.returncode == 0 and "HEALTHY" in out, (out, err))
        for process in asking[:20]:
            process.communicate()


if __name__ == "__main__":
    main(globals())
