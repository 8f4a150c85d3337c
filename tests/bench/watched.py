#!/usr/bin/env python3
"""What it costs an operation that somebody watches: all_reduce of 8 bytes by two ranks of one node,
alone, while /metrics is read each second, and while `commctl trace` and `commctl top` are asked for
each second, in turns. The same two ranks run all the time.

    tests/bench/watched.py [--rounds N] [--seconds S]

A round gives each way one turn, in another order each time. Of the ratios (operation in this turn /
operation in the turn alone of the same round) the median over the rounds is shown, and the middle
half of them in brackets: for the mean of all operations of a turn, and for their median. Alone
against alone says what the machine makes of nothing. What commd itself works meanwhile, in percent
of one processor, hardly depends on what else runs.
"""

import argparse
import http.client
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration"))
sys.path.insert(0, os.path.join(HERE, "..", "integration", "lib"))
import cluster as c  # noqa: E402
from contestants import Contestant  # noqa: E402
from test_http import HttpCluster  # noqa: E402

PERF = os.path.join(c.BUILD, "client/perf/commd-perf")
GROUP = "watched"


def scrape(node):
    link = http.client.HTTPConnection("127.0.0.1", node.http, timeout=c.HANG)
    link.request("GET", "/metrics")
    answer = link.getresponse()
    answer.read()
    link.close()
    c.equal(answer.status, 200)


def commctl(node, *words):
    subprocess.run([c.COMMCTL, "--socket", node.socket, *words], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip


WAYS = {
    "alone": None,
    "alone again": None,
    "scraped": scrape,
    "traced": lambda node: commctl(node, "trace"),
    "top": lambda node: commctl(node, "top"),
}


class Watcher:
    """Does it each second, the first time at once."""

    def __init__(self, do, node):
        self.do, self.node, self.over, self.times = do, node, threading.Event(), 0
        self.thread = threading.Thread(target=self.run)

    def run(self):
        begin = time.monotonic()
        while not self.over.wait(max(0, begin + self.times - time.monotonic())):
            self.do(self.node)
            self.times += 1

    def __enter__(self):
        if self.do:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        if self.do:
            self.thread.join()


def worked(pid):
    """Seconds that the process has run."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def one_turn(ranks, node, way, iterations):
    """(mean and median of an operation in microseconds, commd's part of a processor)"""
    with Watcher(WAYS[way], node) as watcher:
        begin, before = time.monotonic(), worked(node.pid)
        (row,) = ranks.turn(f"all_reduce -b 8 -e 8 -w 3 -n {iterations}", 120)
        took = time.monotonic() - begin
        busy = (worked(node.pid) - before) / took
    if WAYS[way] and not watcher.times:
        raise SystemExit(f"{way}: nobody watched")
    return took / iterations * 1e6, row["p50_us"], busy


def ratios(rounds, way, which):
    """"+0.10 % (-0.40 to +0.50)" """
    cost = [(r[way][which] / r["alone"][which] - 1) * 100 for r in rounds]
    low, middle, high = statistics.quantiles(cost, n=4)
    return f"{middle:+.2f} % ({low:+.2f} to {high:+.2f})"


def show(rounds):
    print(f"{'':12} {'mean us':>8} {'against alone':26} {'p50 us':>8} {'against alone':26} commd")
    for way in WAYS:
        mean, p50, busy = (statistics.median(r[way][i] for r in rounds) for i in range(3))
        told = ["" if way == "alone" else ratios(rounds, way, i) for i in range(2)]
        print(f"{way:12} {mean:8.4f} {told[0]:26} {p50:8.3f} {told[1]:26} {busy * 100:.3f} %")


def main():
    p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    p.add_argument("--rounds", type=int, default=12)
    p.add_argument("--seconds", type=float, default=3, help="length of a turn")
    args = p.parse_args()
    with HttpCluster(1) as cluster, tempfile.TemporaryDirectory() as folder:
        (node,) = cluster.nodes
        argv = [PERF, "all_reduce", "--turns", f"{folder}/ranks", "--name", GROUP, "--ranks", "2"]
        ranks = Contestant("commd", pathlib.Path(folder, "ranks"), 2,
                           [(argv, {"COMMD_SOCKET": node.socket})], None)  # fmt: skip
        try:
            ranks.start()
            iterations = 100_000
            us, _, _ = one_turn(ranks, node, "alone", iterations)
            iterations = max(iterations, int(args.seconds / us * 1e6))
            rounds = []
            for number in range(args.rounds):
                order = list(WAYS)
                order = order[number % len(order) :] + order[: number % len(order)]
                rounds.append({way: one_turn(ranks, node, way, iterations) for way in order})
            print(f"{args.rounds} rounds, {iterations} operations a turn")
            show(rounds)
        finally:
            ranks.stop()


if __name__ == "__main__":
    main()
