#!/usr/bin/env python3
"""`commctl trace` and `commctl top`: what ranks wrote down of their operations, on one clock."""

import json
import os
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import Cluster, check, commctl, equal, main, until  # noqa: E402


def begin(node, *arguments):
    return subprocess.Popen([*commctl(node), *arguments], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def text_of(node, *arguments):
    process = begin(node, *arguments)
    out, err = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def trace(node, *arguments):
    done = text_of(node, "trace", "--seconds", "0.05", *arguments)
    equal((done.returncode, done.stderr), (0, ""))
    return parse(done.stdout)


def parse(text):
    found = json.loads(text)
    events = found["traceEvents"]
    nodes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    operations = [e for e in events if e["ph"] in "XB"]
    for e in operations:
        e["node"], e["thread"] = nodes[e["pid"]], threads[e["tid"]]
    return found["otherData"], operations


def late_round(ranks, name):
    """Rank 2 comes 20 ms after the others."""
    for rank in ranks[:2]:
        rank.start("all_reduce", name=name, count=100)
    time.sleep(0.02)
    ranks[2].call("all_reduce", name=name, count=100)
    for rank in ranks[:2]:
        rank.finish()


def test_who_is_late_is_seen_over_nodes():
    name = 'a "group" \\ of ours'
    with Cluster(2) as cluster:
        ranks = cluster.ranks(name, [0, 0, 1])

        seconds = 0.2  # of a machine that is free

        def traced():
            nonlocal seconds
            seconds = min(2 * seconds, 10)
            tracing = begin(cluster.nodes[1], "trace", "--seconds", str(seconds), name)  # any node
            while tracing.poll() is None:
                late_round(ranks, name)
            data, operations = parse(tracing.communicate()[0])
            clocks = {clock["node"]: clock for clock in data["clocks"]}
            # few operations, of ranks that had no core, are not enough for it
            return clocks["node1"]["by"] == "operations" and operations

        operations = until(traced, "one clock by operations")
        equal({e["args"]["group"] for e in operations}, {name})
        equal({e["node"] for e in operations}, {"node0", "node1"})
        equal({e["name"] for e in operations}, {"all_reduce"})
        equal({(e["args"]["bytes"], e["args"]["dtype"]) for e in operations}, {(400, "f32")})
        late = {}
        for e in operations:
            if "late_us" in e["args"]:
                late.setdefault(e["thread"], []).append(e["args"]["late_us"])
        late = {thread: statistics.median(values) for thread, values in late.items()}
        equal(max(late, key=late.get), f"{name}: rank 2 (pid {ranks[2].pid})", late)
        equal(len(late), 3)
        # what is begun and not ended
        ranks[0].start("all_reduce", name=name, count=7)
        begun = until(
            lambda: [e for e in trace(cluster.nodes[0], name)[1] if e["ph"] == "B"], "one begun"
        )
        equal([(e["thread"].split(": ")[1].split(" (")[0], e["args"]["bytes"]) for e in begun],
              [("rank 0", 28)])  # fmt: skip
        for rank in ranks[1:]:
            rank.start("all_reduce", name=name, count=7)
        for rank in ranks:
            rank.finish()


def neighbours(operations):
    """Most of them come one right after the other: nobody left any out to save time."""
    numbers = sorted(e["args"]["number"] for e in operations)
    return sum(b == a + 1 for a, b in zip(numbers, numbers[1:])) > len(numbers) / 2


def span(operations):
    """In us, from the begin of the first to that of the last."""
    begun = [e["ts"] for e in operations]
    return max(begun) - min(begun) if begun else 0


def until_traced(node, condition, what, *arguments):
    """A watch in which the rank had no core shows little: one that shows it all is waited for."""
    seen = []

    def look():
        seen[:] = trace(node, *arguments)[1]
        return condition(seen)

    until(look, lambda: f"{what}: {[(e['args']['number'], e['ts']) for e in seen]}")
    return seen


def test_all_operations_are_timed_while_somebody_watches():
    """Also short ones that nobody has to wait for, and no longer when nobody watches any more."""
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        rank = cluster.rank(0)
        rank.call("join", name="g", rank=0, size=1)
        stop = os.path.join(cluster.folder, "stop")
        rank.start("many", name="g", count=1, stop=stop)
        until_traced(node, lambda found: len(found) >= 64 and neighbours(found), "a full ring", "g")
        # of who does many, bursts are timed at the end of a long watch: records.c
        until_traced(
            node,
            lambda found: len(found) >= 256 and neighbours(found) and span(found) >= 80_000,
            "operations of 0.4 s", "--seconds", "0.4", "g",
        )  # fmt: skip
        top = node.ctl("top", "--seconds", "0.5", "g")["top"]
        equal([(row["name"], row["rank"], row["pid"]) for row in top], [("g", 0, rank.pid)])
        check(top[0]["ops_per_s"] > 0 and top[0]["bytes_per_s"] > 0, top)
        open(stop, "w").close()
        rank.finish()
        rank.call("leave", name="g")
        equal(node.ctl("top")["top"], [])


def unbroken(operations):
    """Those up to the last one without a gap: before the watch some were sampled."""
    begun = {e["args"]["number"]: e for e in operations}
    last = first = max(begun, default=0)
    while first - 1 in begun:
        first -= 1
    return [begun[number] for number in range(first, last + 1) if number in begun]


def test_all_of_who_does_few_are_seen():
    """From the beginning of the watch to its end, nothing between is missing."""
    with Cluster(1) as cluster:
        rank = cluster.rank(0)
        rank.call("join", name="g", rank=0, size=1)
        rank.start("paced", name="g", compute=0.003, steps=10000, count=1)
        check("started" in rank.answer(), "the job runs")
        until_traced(
            cluster.nodes[0], lambda found: span(unbroken(found)) >= 200_000,
            "all of 0.3 s", "--seconds", "0.3", "g",
        )  # fmt: skip
        cluster.expect("was lost|died")
        rank.kill()


def test_after_the_job():
    """The last operations of a group that broke are there when its processes are gone."""
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        for _ in range(3):
            for rank in ranks:
                rank.start("all_reduce", name="g", count=100000)
            for rank in ranks:
                rank.finish()
        ranks[0].start("all_reduce", name="g", count=5)
        until(lambda: any(e["ph"] == "B" for e in trace(cluster.nodes[0])[1]), "one begun")
        for rank in reversed(ranks):
            rank.kill()
        for node in cluster.nodes:
            until(lambda node=node: not node.groups(), "the group is gone")
        seen = until(lambda: trace(cluster.nodes[1], "g")[1], "what was kept")
        equal({e["node"] for e in seen}, {"node0", "node1"})
        equal(sorted({e["args"]["bytes"] for e in seen}), [20, 400000])
        equal([e["node"] for e in seen if e["args"]["bytes"] == 20], ["node0"])
        equal(cluster.nodes[0].ctl("top")["top"], [])


def test_arguments():
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        equal(trace(node)[1], [])
        for bad in ("0", "11", "x"):
            done = text_of(node, "trace", "--seconds", bad)
            equal(done.returncode, 2)
            check("not a number of seconds from 0.001 to 10" in done.stderr, done)
        done = text_of(node, "trace", "h")
        equal((done.returncode, done.stdout), (1, ""))
        check('no group "h" that this user may see on any node' in done.stderr, done)


main(globals())
