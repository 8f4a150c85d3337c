#!/usr/bin/env python3
"""Data connections between two live engines break, again and again: ranks that verify every result
notice nothing, and commd counts it. Needs root, to break what is another process's."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import faults  # noqa: E402
from cluster import Cluster, Skip, check, main, now, until  # noqa: E402
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
    for transport in ({}, {"channels": "2"}):
        with Cluster(2, {"transport": transport} if transport else {}) as cluster:
            cluster.expect("broke -> made again, nothing is lost")
            pids = engines(cluster)
            beside(cluster, lambda number: kill_one(pids, number), [0, 0, 1, 1], 1 << 20)
            events = cluster.nodes[0].ctl("events")["events"]
            check(any(row["event"] == "data_mended" for row in events), events)


def reject(cluster, ports):
    """For a moment, whatever goes between the engines is answered by a reset, to both sides."""
    ends = ("sport", "dport")
    rules = "\n".join(f"tcp {end} {{ {ports} }} reject with tcp reset" for end in ends)
    table = f"table inet cut {{\nchain c {{\ntype filter hook input priority 0;\n{rules}\n}}\n}}\n"
    nft = ["ip", "netns", "exec", cluster.names[0], "nft"]
    done = subprocess.run([*nft, "-f", "-"], input=table, capture_output=True, text=True)
    if done.returncode:
        raise Skip(f"nft cannot reject here: {done.stderr.strip()}")
    time.sleep(0.15)
    subprocess.run([*nft, "delete table inet cut"], check=True)
    time.sleep(0.2)
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


def test_an_engine_that_dies_is_told_at_once():
    """Nobody waits for its connection to come back: its commd knows better."""
    with Cluster(2, {"timeouts": {"heartbeat": "1s", "node": "60s"}}) as cluster:
        cluster.expect("engine")
        ranks = cluster.ranks("g", [0, 1])
        faults.start_loops("g", ranks, 100_000)
        begin = now()
        os.kill(engines(cluster)[1], 9)
        for rank in ranks:
            error = rank.error()
            check(error["code"] in ("NODE_LOST", "ENGINE_LOST"), f"{error}")
            check(error["at"] - begin < 30, f"waited for the connection: {error}")
        faults.leave("g", ranks)


if __name__ == "__main__":
    main(globals())
