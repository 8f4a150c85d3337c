#!/usr/bin/env python3
"""What a small operation of one job takes beside the bulk of another, and how two jobs that both
move bulk share a way between two nodes.

    tests/bench/beside.py                                   # the table of doc/benchmarks.md
    tests/bench/beside.py --build before=DIR --build now=build --rounds 3     # two builds in turns

Two commds, each job with one rank on each of them. Places are
    loopback        both nodes on one loopback device, as fast as the cores
    RATE-QUEUE      a cable of RATE (2gbit, 1gbit) each way between two namespaces, of frames of
                    1500 bytes: tbf, and below it QUEUE: pfifo_fast, which sends short messages
                    first, fq_codel, or bfifo, which lets nobody pass
    lo-RATE-QUEUE   the same on the loopback device of one namespace: both ways share the rate,
                    and a packet may have 64 KB
Everything but `loopback` needs root and iproute2; a queue that the kernel lacks is left out.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "tests/integration/lib"))

SIZES = {"nothing": 0, "256 KB": 256 << 10, "1 MB": 1 << 20, "16 MB": 16 << 20}
PLACES = [f"{rate}-{queue}" for queue in ("pfifo_fast", "fq_codel") for rate in ("2gbit", "1gbit")]
PLACES = ["loopback", "lo-2gbit-pfifo_fast", *PLACES]
WARM_S = 0.5  # until the bulk flows, and every rank has found its core
MANY = 4000000  # iterations: the time ends them
USERS = 4001, 4002
OTHERS_MOST, TRIES = 0.1, 2  # cores that others use
# More than the largest packet: the kernel hands it over whole, as to a card. Cut into frames by tbf
# it costs the cores so much that they lack, and not the cable.
BURST = 128 << 10
LIMIT = "64mb"  # of what queues: nothing is dropped


# ---- one measurement, in a process of its own: the build is found when cluster is imported -------


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def limit_rate(namespace, device, rate, queue):
    """tbf on the device, and below it the queue; false: the kernel lacks it."""
    def tc(*words):
        words = ["ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device, *words]
        return subprocess.run(words, capture_output=True).returncode == 0

    limit = ["limit", LIMIT]
    return tc("root", "handle", "1:", "tbf", "rate", rate, "burst", str(BURST), *limit) and tc(
        "parent", "1:1", "handle", "10:", queue, *(limit if queue == "bfifo" else [])
    )


def make_cluster(place, changes):
    from cluster import Cluster, Skip, until

    if place == "loopback":
        return Cluster(2, changes)
    one = place.startswith("lo-")
    rate, queue = place.removeprefix("lo-").split("-")
    names = [f"commd-beside-{os.getpid()}-{i}" for i in range(1 if one else 2)]
    device = "lo" if one else "veth0"

    class Wired(Cluster):
        def __enter__(self):
            try:
                for name in names:
                    ip("netns", "add", name)
                    ip("-n", name, "link", "set", "lo", "up")
                if not one:
                    words = "link add veth0 type veth peer name veth0 netns"
                    ip("-n", names[0], *words.split(), names[1])
                for name, (address, _) in zip(names, self.places()):
                    if not one:
                        ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
                        ip("-n", name, "link", "set", device, "up")
                    if not limit_rate(name, device, rate, queue):
                        raise Skip(f"this kernel has no {queue}")
                for name in names if not one else []:
                    show = ["ip", "-n", name, "link", "show", device]
                    until(lambda show=show: b"state UP" in subprocess.check_output(show), "a link")
                return super().__enter__()
            except BaseException:
                self.remove()
                raise

        def end(self):
            super().end()
            self.remove()

        def remove(self):
            for name in names:
                with contextlib.suppress(subprocess.CalledProcessError):
                    ip("netns", "del", name)

        def places(self):
            return super().places() if one else [("10.77.2.1", 18400), ("10.77.2.2", 18400)]

        def make_node(self, index, address, port):
            node = super().make_node(index, address, port)
            node.prefix = ["ip", "netns", "exec", names[index % len(names)]]
            return node

    transport = {"trusted_network": "true", "device": device}
    return Wired(2, {"transport": transport, **changes})


def program(build):
    """Not libtool's script around it, which would get the signal."""
    found = os.path.join(build, "client/perf/.libs/commd-perf")
    return found if os.path.exists(found) else os.path.join(build, "client/perf/commd-perf")


class Job:
    """commd-perf between the nodes; result() once it has ended."""

    def __init__(self, cluster, name, size, seconds, ranks=1, user=0):
        import cluster as c

        self.size = size
        self.file = pathlib.Path(cluster.folder) / f"{name}.json"
        folder = pathlib.Path(cluster.folder)
        words = [program(c.BUILD), "all_reduce", "-b", size, "-e", size]
        words += ["-n", MANY if size < 1 << 20 else MANY // 100, "-c", 0, "-w", 1]
        words += ["--time-limit", int(seconds * 1000), "--ranks", ranks]
        words += ["--nodes", ",".join(n.socket for n in cluster.nodes)]
        words += ["--name", name, "--json", self.file]
        if user:
            words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *words]
            self.file = pathlib.Path(cluster.folder) / f"user{user}" / f"{name}.json"
            self.file.parent.mkdir(exist_ok=True)
            os.chown(self.file.parent, user, user)
            words[-1] = self.file
        environment = dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(c.LIBCOMMD))
        self.process = subprocess.Popen(
            list(map(str, words)), env=environment, stdout=subprocess.DEVNULL,
            stderr=open(folder / f"{name}.err", "wb"),
        )  # fmt: skip
        self.errors = folder / f"{name}.err"

    def stop(self):
        self.process.send_signal(signal.SIGINT)

    def result(self):
        self.process.wait(60)
        if not self.file.exists():
            sys.exit(f"beside: {self.errors.read_text()}")
        rows = json.loads(self.file.read_text())["rows"]
        if not rows:
            sys.exit(f"beside: {self.file.stem}: no operation was done: take more --seconds")
        return rows[0]


def small_beside(cluster, seconds, size):
    other = size and Job(cluster, f"bulk{size}", size, 60)
    time.sleep(WARM_S if size else 0.1)
    row = Job(cluster, f"small{size}", 8, seconds).result()
    if other:
        other.stop()
    gbs = other.result()["algbw_gbs"] if other else 0
    return {"p50": row["p50_us"], "p99": row["p99_us"], "p999": row["p999_us"], "gbs": gbs}


def two_bulks(cluster, seconds):
    jobs = [Job(cluster, f"bulk{i}", 16 << 20, 60) for i in range(2)]
    time.sleep(WARM_S + seconds)
    for job in jobs:
        job.stop()
    rows = [job.result() for job in jobs]
    return {"both": sum(row["algbw_gbs"] for row in rows)}


def shares(cluster, seconds, size):
    """How much faster an operation of the one is than one of the other: in a count of operations
    those that are cut off at the end would weigh too much."""
    os.chmod(cluster.folder, 0o755)
    for node in cluster.nodes:
        os.chmod(node.home, 0o755)
    jobs = [Job(cluster, f"of{user}", size, 60, user=user) for user in USERS]
    time.sleep(WARM_S + seconds)
    for job in jobs:
        job.stop()
    rows = [job.result() for job in jobs]
    ratio = rows[0]["algbw_gbs"] / rows[1]["algbw_gbs"]
    return {"ratio": ratio, "both": sum(row["algbw_gbs"] for row in rows)}


def busy_seconds():
    """Of all processes, ours, and the host that took cores away."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    ticks = user + nice + system + irq + softirq + steal
    mine = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return ticks / os.sysconf("SC_CLK_TCK"), sum(use.ru_utime + use.ru_stime for use in mine)


def alone(cluster, seconds):
    found = {}
    for ranks in (1, 2):
        for size in (8, 16 << 20, 128 << 20):
            row = Job(cluster, f"alone{ranks}-{size}", size, seconds, ranks=ranks).result()
            found[f"2x{ranks} {size}"] = row["p50_us"]
    return found


def measure(place, what, seconds):
    """{"name of a row": {"column": number}}"""
    changes = {"limits": {"weights": f'"{USERS[0]}=30,{USERS[1]}=10"'}} if what == "shares" else {}
    found = {}
    with make_cluster(place, changes) as cluster:
        if what == "small":
            for name, size in SIZES.items():
                found[name] = small_beside(cluster, seconds, size)
        elif what == "two":
            found["two bulk jobs"] = two_bulks(cluster, seconds)
        elif what == "shares":
            found["3 to 1, 16 MB"] = shares(cluster, 2 * seconds, 16 << 20)
            found["3 to 1, 128 MB"] = shares(cluster, 8 * seconds, 128 << 20)
        else:
            found["alone"] = alone(cluster, seconds)
        cluster.expect(".")  # what is measured here is no test
    return found


# ---- all of them, in turns -----------------------------------------------------------------------


def span(numbers):
    low, high = min(numbers), max(numbers)
    digits = 0 if high >= 20 else 1 if high >= 5 else 3
    return " to ".join(dict.fromkeys(f"{x:.{digits}f}" for x in (low, high)))


def run_child(args, build, place, what):
    """Anew where somebody else was busy on the machine, but not for ever."""
    tries = [run_once(args, build, place, what)]
    while tries[-1].get("others", 0) > OTHERS_MOST and len(tries) < TRIES:
        tries.append(run_once(args, build, place, what))
    return min(tries, key=lambda one: one.get("others", 0))


def run_once(args, build, place, what):
    words = [sys.executable, __file__, "--one", f"{place} {what}", "--seconds", str(args.seconds)]
    done = subprocess.run(
        words, env=dict(os.environ, COMMD_BUILD=str(build)), stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"beside: {place}, {what}, {build}: exit status {done.returncode}\n{done.stdout}")
    return json.loads(done.stdout.splitlines()[-1])


def table(place, columns, rows):
    """rows: {(name, build): {column: [numbers]}}"""
    print(f"\n{place}\n\n| beside | | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 2) + "|")
    for (name, build), found in rows.items():
        print(f"| {name} | {build} | {' | '.join(span(found[c]) for c in columns)} |")
    sys.stdout.flush()


def print_tables(found):
    """Rows with the same columns stand in one table, the builds of a row below each other."""
    for place, rows in found.items():
        of_columns = collections.defaultdict(dict)
        for name in dict.fromkeys(name for name, _ in rows):
            for (other, build), row in rows.items():
                if other == name:
                    of_columns[tuple(row)][name, build] = row
        for columns, some in of_columns.items():
            table(place, columns, some)


def with_ratios(found):
    """By how much p99 is above that of the same round alone."""
    alone_p99 = found.get("nothing", {}).get("p99")
    for row in found.values():
        if alone_p99 and "p99" in row:
            row["p99 by alone"] = row["p99"] / alone_p99
    return found


def run_all(args, builds):
    found = collections.defaultdict(dict)
    others = 0
    for number in range(args.rounds):
        for place in args.place or PLACES:
            for what in args.what or ["small"]:
                for name, build in builds.items():
                    one = run_child(args, build, place, what)
                    if "skipped" in one:
                        if not number:
                            print(f"beside: {place}: {one['skipped']}", file=sys.stderr)
                        continue
                    others = max(others, one["others"])
                    for row, columns in with_ratios(one["rows"]).items():
                        into = found[place].setdefault((row, name), {})
                        for column, value in columns.items():
                            into.setdefault(column, []).append(value)
    print_tables(found)
    print(f"\nProcesses that are not measured took up to {others:.2f} cores.")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", action="append", metavar="NAME=DIR", help="default now=build")
    parser.add_argument("--place", action="append", help=f"default {', '.join(PLACES)}")
    parser.add_argument("--what", action="append", choices=["small", "two", "shares", "alone"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.one:
        pairs = [b.split("=", 1) for b in args.build or [f"now={TOP / 'build'}"]]
        return run_all(args, {name: pathlib.Path(d).resolve() for name, d in pairs})
    from cluster import Skip

    try:
        begin, (all_then, mine_then) = time.monotonic(), busy_seconds()
        found = measure(*args.one.split(" "), args.seconds)
        busy, mine = busy_seconds()
        others = (busy - all_then - mine + mine_then) / (time.monotonic() - begin)
        print(json.dumps({"rows": found, "others": others}))
    except Skip as reason:
        print(json.dumps({"skipped": str(reason)}))
    return None


if __name__ == "__main__":
    main()
