#!/usr/bin/env python3
"""What a small operation of two nodes takes while strangers are at every port: all_reduce of 8
bytes over an encrypted link, on loopback.

    tests/bench/crowded.py [--rounds N] [--seconds S] [--held N] [--rate N] [--build NAME=DIR]...

  alone          nobody is there, and once more: what the machine makes of nothing
  held           at each port, of commd, the engine and HTTP, --held connections that say nothing
                 or the beginning of a hello, opened before, and let in or sent away, all of them
  held elsewhere the same, at as many ports of a program that is none of ours, does as little for
                 them, and resets them as soon: what the strangers themselves, and their sockets in
                 the kernel, take from the machine
  held, rate     the same, and --rate more at each port in a second, which say garbage, TLS,
                 GET /metrics, hellos of nobody
  elsewhere      as the last one, at that program
  coming         while the --held ones come, as fast as they can
  coming elsewhere

Strangers run only where a core has nothing else to do, as if they were on other machines. A round
gives each way one turn, in another order each time. It does not count where something else was
busy: p99 alone was half as much again the second time, or ten times p50. Shown are the medians of
p50 and p99 over the rounds, and of the ratios to alone in the same round.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
for folder in ("integration", "integration/lib", "faults"):
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), folder))

WAYS = ["alone", "alone again", "held", "held elsewhere", "held, rate", "elsewhere", "coming",
        "coming elsewhere"]  # fmt: skip
RATES = ["held, rate", "elsewhere"]
IDLE = ["chrt", "-i", "0"]  # where a core has nothing else to do
CALM, TAIL, TRIES = 1.5, 10, 4
REST_SECONDS = 40
SINK = """
import collections, selectors, socket, struct, sys
RESET = struct.pack("ii", 1, 0)
selector, held = selectors.DefaultSelector(), collections.deque()
for _ in range(int(sys.argv[1])):
    server = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server.setblocking(False)
    selector.register(server, selectors.EVENT_READ)
    print(server.getsockname()[1])
print(flush=True)
while True:
    for key, _ in selector.select():
        for _ in range(16):
            try:
                held.append(key.fileobj.accept()[0])
            except BlockingIOError:
                break
        while len(held) > 64:
            held[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            held.popleft().close()
"""


@contextlib.contextmanager
def sink(count):
    process = subprocess.Popen([sys.executable, "-c", SINK, str(count)], stdout=subprocess.PIPE,
                               text=True)  # fmt: skip
    try:
        yield [int(process.stdout.readline()) for _ in range(count)]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def connecting(ports):
    """Who has not been let in yet: in a queue, or it found that full, and the kernel tries again
    after 1, 3, 7 s."""
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    for row in rows:
        here, there = (int(row[at].partition(":")[2], 16) for at in (1, 2))
        if row[3] == "0A" and here in ports and int(row[4].partition(":")[2], 16):
            return True
        if row[3] in ("02", "03") and (here in ports or there in ports):
            return True
    return False


def rest(ports):
    """Who has come is let in, or sent away: listeners do that at a pace."""
    end = time.monotonic() + REST_SECONDS
    while connecting(ports) and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(0.5)


@contextlib.contextmanager
def strangers(way, ours, theirs, args):
    """They are there."""
    from test_strangers import crowds

    ports = theirs if "elsewhere" in way else ours
    if way.startswith("alone"):
        yield
    elif way.startswith("coming"):
        with crowds(ports, args.held, 0, wait=False, prefix=IDLE):
            yield
    else:
        with crowds(ports, args.held, args.rate if way in RATES else 0, prefix=IDLE):
            rest(ports)
            yield


def measure(args):
    """{way: (p50, p99)} of one round"""
    from beside import Job
    from test_strangers import Target

    found = {}
    shift = args.round % len(WAYS)
    with Target({"encryption": "on"}) as cluster:
        cluster.expect(".")  # what is measured here is no test
        ours = cluster.ports()
        with sink(len(ours)) as theirs:
            for way in WAYS[shift:] + WAYS[:shift]:
                with strangers(way, ours, theirs, args):
                    row = Job(cluster, way.replace(" ", ""), 8, args.seconds).result()
                found[way] = row["p50_us"], row["p99_us"]
                time.sleep(0.5)
    return found


def run_child(args, build, number):
    words = ["--round", number, "--held", args.held, "--rate", args.rate, "--seconds", args.seconds]
    done = subprocess.run(
        [sys.executable, __file__, *map(str, words)], stdout=subprocess.PIPE, text=True,
        env=dict(os.environ, COMMD_BUILD=str(build)),
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"crowded: {build}: exit status {done.returncode}\n{done.stdout}")
    return json.loads(done.stdout.splitlines()[-1])


def is_calm(found):
    """The machine did the same twice."""
    low, high = sorted(found[way][1] for way in ("alone", "alone again"))
    return high < CALM * low and high < TAIL * found["alone"][0]


def calm_rounds(args, builds):
    """{build: [rounds]}, as many as are wanted, or fewer on a machine that is never calm"""
    rounds = collections.defaultdict(list)
    for number in range(TRIES * args.rounds):
        if all(len(rounds[name]) >= args.rounds for name in builds):
            break
        for name, build in builds.items():
            found = run_child(args, build, number)
            if is_calm(found):
                rounds[name].append(found)
    return rounds


def show(builds, rounds):
    columns = ["strangers", "", "p50 us", "p99 us", "p50 by alone", "p99 by alone"]
    print(f"| {' | '.join(columns)} |\n|---|---|--:|--:|--:|--:|")
    for way in WAYS:
        for name in builds:
            p50, p99 = (statistics.median(r[way][i] for r in rounds[name]) for i in (0, 1))
            by = [[r[way][i] / r["alone"][i] for r in rounds[name]] for i in (0, 1)]
            by50, by99 = map(statistics.median, by)
            print(f"| {way} | {name} | {p50:.1f} | {p99:.1f} | {by50:.2f} | {by99:.2f} |")


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top = pathlib.Path(HERE).parent.parent
    p.add_argument("--build", action="append", metavar="NAME=DIR", help="default now=build")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--seconds", type=float, default=2, help="of each measurement")
    p.add_argument("--held", type=int, default=10000)
    p.add_argument("--rate", type=int, default=100)
    p.add_argument("--round", type=int, default=-1, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.round >= 0:
        return print(json.dumps(measure(args)))
    pairs = [b.split("=", 1) for b in args.build or [f"now={top / 'build'}"]]
    builds = {name: pathlib.Path(folder).resolve() for name, folder in pairs}
    rounds = calm_rounds(args, builds)
    if not all(rounds[name] for name in builds):
        sys.exit("crowded: no round was calm: something else is busy on this machine")
    show(builds, rounds)
    return print("Rounds that counted:", {name: len(rounds[name]) for name in builds})


if __name__ == "__main__":
    main()
