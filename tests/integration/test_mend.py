#!/usr/bin/env python3
"""Data connections between two live engines break, again and again: ranks that verify every result
notice nothing, and commd counts it. Needs root, to break what is another process's."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import faults  # noqa: E402
import staged  # noqa: E402
from cluster import Cluster, Limit, Skip, check, equal, main, now, until  # noqa: E402
from test_collectives import SEED, stream  # noqa: E402
from test_netns import Namespaces  # noqa: E402

CUTS = 12


def need(*programs):
    if os.geteuid() != 0:
        raise Skip("breaking connections needs root")
    for program in programs:
        if not shutil.which(program):
            raise Skip(f"there is no {program}")


def engines(cluster):
    return [node.ctl("status")["status"][0]["engine_pid"] for node in cluster.nodes]


def connections(pids):
    """Both ends of what one of @pids has to another: address and port, twice."""
    out = subprocess.run(["ss", "-Htnp", "state", "established"], capture_output=True, text=True)
    found = []
    for line in out.stdout.splitlines():
        words = line.split()
        if any(f"pid={pid}," in line for pid in pids):
            found.append((words[2], words[3]))
    ends = {here for here, _ in found}
    return [(here, there) for here, there in found if there in ends]


def kill_one(pids, number):
    """The kernel ends one end of one of them as if it had been reset, and resets the other."""
    there = connections(pids)
    if not there:
        return False
    source, target = there[number % len(there)]
    words = ["src", source, "and", "dst", target]
    done = subprocess.run(["ss", "-HtK", *words], capture_output=True, text=True)
    if "not supported" in done.stderr or done.returncode:
        raise Skip(f"this kernel does not end sockets: {done.stderr.strip()}")
    return bool(done.stdout.strip())


@contextlib.contextmanager
def in_between(act):
    """Does it, with a number, while the block runs."""
    stop, failed, done = threading.Event(), [], []

    def again():
        number = 0
        try:
            while not stop.wait(0.05):
                if act(number):
                    done.append(now())
                number += 1
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield done, failed
    finally:
        stop.set()
        thread.join()
        if failed:
            raise failed[0]


def mended(cluster):
    rows = cluster.nodes[0].ctl("links")["links"]
    return sum(row["mends"] or 0 for row in rows)


def beside(cluster, act, places, max_bytes):
    rounds = 0
    with in_between(act) as (done, failed):
        while len(done) < CUTS and not failed:
            stream(cluster, places, 60, max_bytes, SEED + rounds)
            rounds += 1
            check(rounds < 400, f"only {len(done)} connections were cut")
    until(lambda: mended(cluster) > 0, "commctl links counts it")
    print(f"  {len(done)} cuts, {mended(cluster)} mended, {rounds} streams")


def test_sockets_that_are_ended():
    need("ss")
    for transport in ({}, {"channels": "2"}, {"channels": "2", "encryption": "on"}):
        with Cluster(2, {"transport": transport} if transport else {}) as cluster:
            cluster.expect("broke -> made again, nothing is lost")
            pids = engines(cluster)
            beside(cluster, lambda number: kill_one(pids, number), [0, 0, 1, 1], 1 << 20)
            events = cluster.nodes[0].ctl("events")["events"]
            check(any(row["event"] == "data_mended" for row in events), events)


def reject(cluster, ports):
    """For a moment, whatever goes between the engines is answered by a reset, to both sides. The
    kernel ends it: on a busy machine it takes seconds until a second nft has done so."""
    rules = "\n".join(f"tcp {end} @now reject with tcp reset" for end in ("sport", "dport"))
    table = f"""
        table inet cut {{ }}
        delete table inet cut
        table inet cut {{
            set now {{
                type inet_service
                timeout 150ms
                elements = {{ {ports} }}
            }}
            chain c {{
                type filter hook input priority 0
                {rules}
            }}
        }}"""
    nft = ["ip", "netns", "exec", cluster.names[0], "nft"]
    done = subprocess.run([*nft, "-f", "-"], input=table, capture_output=True, text=True)
    if done.returncode:
        raise Skip(f"nft cannot reject here: {done.stderr.strip()}")
    time.sleep(0.35)  # connections are made again
    return True


def engine_ports(cluster):
    ports = set()
    for name, pid in zip(cluster.names, engines(cluster)):
        out = subprocess.run(["ip", "netns", "exec", name, "ss", "-Hltnp"], capture_output=True,
                             text=True)  # fmt: skip
        for line in out.stdout.splitlines():
            if f"pid={pid}," in line:
                ports.add(line.split()[3].rpartition(":")[2])
    check(ports, "engines that listen")
    return ", ".join(sorted(ports))


def test_resets_from_the_network():
    need("ss", "nft", "ip")
    with Namespaces() as cluster:
        cluster.expect("broke -> made again, nothing is lost")
        ports = engine_ports(cluster)
        beside(cluster, lambda number: reject(cluster, ports), [0, 1], 1 << 20)


@contextlib.contextmanager
def data_dropped(cluster):
    """What goes between the engines is dropped both ways, unsaid; the commds are well."""
    for node in range(2):
        staged.drop_data(cluster, node=node)
    yield
    for node in range(2):
        staged.pass_data(cluster, node)


def answers(ranks, do, name, **arguments):
    """True: all could do it."""
    for rank in ranks:
        rank.start(do, name=name, **arguments)
    return all(["error" not in rank.answer(60) for rank in ranks])


def some_group_works(cluster, ranks):
    """The first ones may still break: the other engine finds out later that the link has ended."""
    for number in range(30):
        cluster.wait_linked()
        name = f"after{number}"
        cluster.join(name, ranks)
        done = answers(ranks, "all_reduce", name, count=20000)
        faults.leave(name, ranks)
        if done:
            return
    raise AssertionError("no group works any more")


def test_data_dropped_for_good():
    """Nobody resets anything: it is noticed all the same, and told as what the network did."""
    need("nft", "ip")
    for count in (100, 2_000_000):
        with Namespaces(timeouts={"heartbeat": "500ms", "node": "2s"}) as cluster:
            cluster.expect("the engines of nodes .* lost each other")
            ranks = cluster.ranks("g", [0, 0, 1, 1])
            faults.start_loops("g", ranks, count)
            begin, limit = now(), Limit(60)
            with data_dropped(cluster):
                for rank in ranks:
                    error = rank.error(60)
                    equal(error["code"], "NODE_LOST", error)
                    check(not limit.over(), f"noticed too late: {error}")
            print(f"  {error['at'] - begin:.1f} s: {error['message']}")
            faults.leave("g", ranks)
            some_group_works(cluster, ranks)


def test_data_dropped_for_a_while():
    """Shorter than the timeout: nothing is lost, whether a connection is made again or not."""
    need("nft", "ip")
    with Namespaces(timeouts={"node": "20s"}) as cluster:
        cluster.expect("broke -> made again, nothing is lost")
        ranks = cluster.ranks("g", [0, 0, 1, 1])
        for rank in ranks:
            rank.start("loop", name="g", count=2_000_000, limit=300)
        for rank in ranks:
            check("started" in rank.answer(), "the loop has started")
        with data_dropped(cluster):
            time.sleep(3)
        for rank in ranks:
            equal(rank.finish(60), 300, "the job goes on")
        faults.leave("g", ranks)


def test_an_engine_that_dies_is_told_at_once():
    """Nobody waits for its connection to come back: its commd knows better."""
    with Cluster(2, {"timeouts": {"heartbeat": "1s", "node": "60s", **faults.STOPPED}}) as cluster:
        cluster.expect("engine")
        ranks = cluster.ranks("g", [0, 1])
        faults.start_loops("g", ranks, 100_000)
        engine = engines(cluster)[1]
        os.kill(engine, signal.SIGSTOP)  # between two operations the group would go on
        faults.until_on_the_wire(cluster.nodes[0], ranks[:1])
        limit = Limit(30)
        os.kill(engine, signal.SIGKILL)
        for rank in ranks:
            error = rank.error()
            check(error["code"] in ("NODE_LOST", "ENGINE_LOST"), f"{error}")
            check(not limit.over(), f"waited for the connection: {error}")
        faults.leave("g", ranks)


if __name__ == "__main__":
    main(globals())
