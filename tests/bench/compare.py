#!/usr/bin/env python3
"""commd beside every other library that can be had here, on the same buffers in one run.

The machine's speed changes within minutes. So all libraries of a placement are started once, and
take turns of some milliseconds on each row (contestants.py): a figure is the median over the rounds
of the medians of the turns. Each library is measured by the same loop
(client/perf/commd_perf_loop.c; torch_perf.py does the same in Python) with data that are checked
after each operation.

A rival takes part once in each setting that its manual gives for such a place (rivals.py): in each
row its best one counts, the JSON has all. What the machine is stands above the tables (machine.py).

Nothing here judges: it prints times, and their ratio to the best of the others in the same row.
--combine prints the median and the range over several runs: one good hour proves nothing.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import machine  # noqa: E402
import picture  # noqa: E402
import rivals  # noqa: E402
import table  # noqa: E402
from contestants import Contestant, Failed, Unsupported  # noqa: E402
from places import Cluster, Place  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
SIZES = [8, 64, 512, 4096, 32768, 262144, 1 << 20, 2 << 20, 16 << 20, 128 << 20]
OTHERS = ["reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier", "pingpong"]
ASKED = ["reduce", "gather", "scatter"]  # only where --collectives names them: it takes long enough
PLACES = ["1x2", "1x4", "1x8", "2x1", "2x2", "2x1-own", "2x2-own", "1x2-busy", "1x2-mixed"]
PLACES_ASKED = ["3x1"]
FULL = {
    "places": PLACES,
    "rounds": 5,
    "turn_ms": 60,
    "warmup_ms": 120,
    "least": 3,
    "torch": PLACES,
    "settings": 9,
    "rows": [("all_reduce", s) for s in SIZES]
    + [(c, s) for c in OTHERS + ASKED for s in ([8, 32768, 16 << 20] if c != "barrier" else [8])],
}
QUICK = {
    "places": ["1x2", "1x4", "2x1"],
    "rounds": 3,
    "turn_ms": 12,
    "warmup_ms": 12,
    "least": 1,
    "torch": ["1x2"],
    "settings": 1,
    "rows": [("all_reduce", s) for s in [8, 4096, 262144, 16 << 20]]
    + [(c, 32768) for c in OTHERS]
    + [(c, s) for c in ASKED for s in [8, 32768]],
}
ITERATIONS_MOST, TURN_SECONDS = 20000, 120
SLOW_US, ROW_US = (
    300e3,
    2e6,
)  # one iteration that makes a library slow; what it may take in a row, then
TORCH_NAMES = {
    "commd": "torch commd",
    "commd-op": "commd op",
    "gloo": "gloo",
    "deepspeed": "DeepSpeed shm",
}


def say(text=""):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


# ---- who takes part ------------------------------------------------------------------------------


# the ranks $1 to $2, until one fails or all have ended
RANKS = """
trap 'trap "" TERM; kill 0; exit 1' TERM
for r in $(seq "$1" "$2"); do { RANK=$r "${@:3}" || kill $$; } & done
wait
"""


def nodes_of(places):
    """How many nodes have to be up for them."""
    return max(2, *(int(place.partition("x")[0]) for place in places))


def commd(place, folder, args):
    """One launcher for all; where nodes have cores of their own one on each, as torchrun is."""
    argv = [args.bin / "commd-perf", "all_reduce", "--turns", folder]
    if not place.own:
        argv += ["--ranks", place.ranks, "--nodes", ",".join(place.sockets)]
        return Contestant("commd", folder, place.size, [(argv, {})], "C")
    commands = []
    for node, sock in enumerate(place.sockets):
        first = node * place.ranks
        ranks = ["bash", "-c", RANKS, "ranks", first, first + place.ranks - 1]
        env = {"WORLD_SIZE": place.size, "TORCHELASTIC_RUN_ID": folder, "COMMD_SOCKET": sock}
        commands.append(([*place.on(node), *ranks, *argv], env))
    return Contestant("commd", folder, place.size, commands, "C")


def mpi(rival, place, setting, folder):
    argv, env = rival.command(place, setting)
    argv = [*place.enter(), *argv, rival.program, "all_reduce", "--turns", folder]
    name = f"{rival.name} [{setting.name}]"
    return Contestant(name, folder, place.size, [(argv, env)], "C")


def torch(backend, place, folder, args, found):
    """Its ranks are processes that we start ourselves: torchrun would add nothing but a parent."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    inside = place.hosts and backend == "gloo"
    commands = []
    for rank in range(place.size):
        node = rank // place.ranks
        env = {
            "RANK": rank,
            "WORLD_SIZE": place.size,
            "LOCAL_RANK": rank % place.ranks,
            "MASTER_PORT": port,
            "MASTER_ADDR": place.hosts[0] if inside else "127.0.0.1",
            "COMMD_SOCKET": place.sockets[node],
            "OMP_NUM_THREADS": 1,
            "GLOO_SOCKET_IFNAME": place.device if inside else "lo",
            "PATH": f"{args.python.parent}:{os.environ['PATH']}",
        }
        if backend == "deepspeed":
            env["DEEPSPEED_SOURCES"] = found["deepspeed"].sources
        argv = [
            *(place.enter(node) if inside else place.on(node)),
            args.python,
            HERE / "torch_perf.py",
            backend,
            folder,
        ]
        commands.append((argv, env))
    return Contestant(TORCH_NAMES[backend], folder, place.size, commands, "torch")


def contestants(place, work, args, plan, found):
    """All of them, not yet started."""
    all_of_them = [commd(place, work / "commd", args)]
    for rival in (r for r in found.values() if isinstance(r, rivals.Mpi)):
        settings = rival.settings(place)[: plan["settings"]]
        all_of_them += [
            mpi(rival, place, s, work / f"{rival.key}-{i}") for i, s in enumerate(settings)
        ]
    if args.python and place.name in plan["torch"]:
        backends = ["gloo", "commd", "commd-op"] + ["deepspeed"] * (
            "deepspeed" in found and place.nodes == 1
        )
        all_of_them += [torch(b, place, work / f"torch-{b}", args, found) for b in backends]
    return [c for c in all_of_them if not {c.name, base(c.name)} & set(args.without)]


def base(name):
    """The rival's name, without its setting."""
    return name.partition(" [")[0]


def best_settings(times):
    """({rival: its best setting's figures}, {rival: {setting: figures}})."""
    best, settings = {}, {}
    for name, figures in times.items():
        rival, _, setting = name.partition(" [")
        if setting:
            figures = dict(figures, setting=setting.rstrip("]"))
            settings.setdefault(rival, {})[figures["setting"]] = figures
        if rival not in best or figures["p50_us"] < best[rival]["p50_us"]:
            best[rival] = figures
    return best, settings


# ---- rows ----------------------------------------------------------------------------------------


def rows_of(plan, place, with_torch):
    """(operation, bytes, what kind of contestant has it)"""
    rows = [
        (c, s, None)
        for c, s in plan["rows"]
        if not (place.beside and (c != "all_reduce" or s > 1 << 20))
    ]
    if with_torch and not place.beside:
        rows.append(("new_group", 0, "torch"))
        if place.name in ("1x2", "2x2"):
            rows += [("ddp", 0, "torch"), ("ddp_alone", 0, "torch")]
    return rows


def words(coll, size, n, warmup, warmup_ms=0, limit_ms=0):
    return (
        f"{coll} -b {size or 8} -e {size or 8} -n {n} -w {warmup} "
        f"--warmup-time {warmup_ms} --time-limit {limit_ms}"
    )


def share(contestant, coll, size, plan):
    """(iterations, turns): turns of about the wanted length, but no row that takes minutes."""
    for _ in range(2):  # the very first one makes buffers and connections, too
        once = contestant.turn(words(coll, size, 1, 0), TURN_SECONDS)[0]["p50_us"]
    if once > SLOW_US:  # ranks that spin where others should run: milliseconds for every hand-over
        return 1, max(1, min(plan["rounds"], int(ROW_US / once)))
    most = ITERATIONS_MOST if coll != "new_group" else 20
    n = plan["least"]
    for _ in range(
        2
    ):  # the first few are slow, the more so where processes have to find their cores
        once = contestant.turn(words(coll, size, n, 1), TURN_SECONDS)[0]["p50_us"]
        n = int(min(max(plan["turn_ms"] * 1000 / max(once, 1), plan["least"]), most))
    return n, plan["rounds"]


def begin(contestant, running, note):
    """Starts one, which is in @running then; or @note is told why not."""
    running.append(contestant)
    try:
        contestant.start()
    except Failed as why:
        note(contestant, str(why))
        running.remove(contestant)
        contestant.stop()


def measure_row(running, coll, size, plan, note, distance=lambda: None):
    """{name: {"p50_us", "min_us", ...}}; a contestant that fails leaves `running`. `distance()` is
    asked before each turn: machine.distance()."""
    counts, got = {}, {}
    order_of = {contestant.name: i for i, contestant in enumerate(running)}

    def attempt(contestant, function):
        try:
            function(contestant)
        except Unsupported:
            counts.pop(contestant, None)
        except Failed as why:
            note(contestant, f"{coll} of {size} B: {why}")
            counts.pop(contestant, None)
            got.pop(contestant.name, None)
            running.remove(contestant)
            contestant.stop()

    def pilot(contestant):
        counts[contestant] = share(contestant, coll, size, plan)

    def turn(contestant):
        n, _ = counts[contestant]
        # warm-up: the kernel takes up to a tenth of a second to spread processes that have slept
        # limit: ranks that get a slice for every look do not make the row take minutes
        line = words(
            coll,
            size,
            n,
            0,
            plan["warmup_ms"] if n > 1 else 0,
            20 * plan["turn_ms"] if n > 1 else 0,
        )
        word = distance()
        measured = dict(contestant.turn(line, TURN_SECONDS)[0], word_ns=word)
        got.setdefault(contestant.name, []).append(measured)

    for contestant in list(running):
        attempt(contestant, pilot)
    for i in range(plan["rounds"]):
        order = [c for c, (_, turns) in counts.items() if i < turns]
        random.shuffle(order)  # nobody always comes after the same one
        for contestant in order:
            attempt(contestant, turn)
    return {
        name: {
            "p50_us": statistics.median(r["p50_us"] for r in rows),
            "min_us": min(r["min_us"] for r in rows),
            "p99_us": statistics.median(r["p99_us"] for r in rows),
            "rounds": [r["p50_us"] for r in rows],
            "word_ns": [r["word_ns"] for r in rows],
        }
        for name, rows in sorted(got.items(), key=lambda item: order_of[item[0]])
    }


def cpu_times():
    """(all, stolen) in ticks: what a host took from this virtual machine while it wanted to run."""
    with open("/proc/stat") as file:
        ticks = [
            int(n) for n in file.readline().split()[1:9]
        ]  # what guests of ours took is in the first
    return sum(ticks), ticks[7]


def measure_place(place, work, args, plan, found, result):
    notes, running, distance = result["missing"], [], machine.distance(args.cache)
    all_before, stolen_before = cpu_times()

    def note(contestant, why):
        notes[f"{contestant.name}, {place.name}"] = why

    if args.python and place.name not in plan["torch"]:
        notes[f"{', '.join(TORCH_NAMES.values())}, {place.name}"] = "left out by --quick"
    if place.nodes > 1 and "deepspeed" in found and place.name in plan["torch"]:
        notes[f"DeepSpeed shm, {place.name}"] = "shared memory only"
    measured = result["placements"].setdefault(
        place.name, {"title": place.title(), "rows": [], "stolen": 0.0}
    )
    rows = measured["rows"]
    try:
        for contestant in contestants(place, work, args, plan, found):
            say(f"{place.name}: starting {contestant.name}")
            begin(contestant, running, note)
        with_torch = any(c.kind == "torch" for c in running)
        with place.beside or contextlib.nullcontext():
            for coll, size, kind in rows_of(plan, place, with_torch):
                say(f"{place.name}: {coll} {table.human(size) if size else ''}")
                able = [c for c in running if kind in (None, c.kind)]
                before = list(able)
                times = measure_row(able, coll, size, plan, note, distance)
                for contestant in set(before) - set(able):
                    running.remove(contestant)
                best, settings = best_settings(times)
                rows.append(
                    {
                        "collective": coll,
                        "bytes": size,
                        "times": best,
                        "settings": settings,
                        "word_ns": sorted(w for t in times.values() for w in t["word_ns"] if w),
                    }
                )
    finally:
        for contestant in running:
            say(f"{place.name}: stopping {contestant.name}")
            contestant.stop()
        ticks, stolen = cpu_times()
        measured["stolen"] = (stolen - stolen_before) / max(ticks - all_before, 1)


# ---- all together --------------------------------------------------------------------------------


def describe(args, found):
    def git(*words):
        done = subprocess.run(["git", "-C", TOP, *words], capture_output=True, text=True)
        return done.stdout.strip()

    versions = {
        "commd": subprocess.run(
            [args.bin / "commd-perf", "--version"], capture_output=True, text=True
        ).stdout.split()[-1]
    }
    versions.update({rival.name: rival.version for rival in found.values()})
    if args.python:
        done = subprocess.run(
            [args.python, "-c", "import torch; print(torch.__version__)"],
            capture_output=True,
            text=True,
        )
        versions["gloo"] = f"torch {done.stdout.strip()}"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["./quickstart bench", *sys.argv[1:]]),
        "commit": git("rev-parse", "HEAD")
        + ("-dirty" if git("status", "--porcelain", "-uno") else ""),
        "machine": machine.describe(args.cache),
        "load_before": os.getloadavg()[0],
        "versions": versions,
        "settings": {},
        "missing": {},
        "placements": {},
    }


def arguments():
    p = argparse.ArgumentParser(
        prog="./quickstart bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument(
        "--quick", action="store_true", help="fewer placements, rows and rounds: a minute"
    )
    p.add_argument("--placements", help=f"some of {','.join(PLACES)}; and "
        f"{','.join(PLACES_ASKED)}, else left out")
    p.add_argument("--rounds", type=int, help="turns of each library on each row")
    p.add_argument(
        "--collectives",
        help=f"some of all_reduce,{','.join(OTHERS)}; and {','.join(ASKED)}, else left out",
    )
    p.add_argument(
        "--settings", type=int, help="in how many of its settings each MPI runs; 1: its default"
    )
    p.add_argument(
        "--combine",
        nargs="+",
        metavar="JSON",
        type=pathlib.Path,
        help="measure nothing: median and range over these results of several runs",
    )
    p.add_argument(
        "--clear",
        action="store_true",
        help="commd does not encrypt data between nodes, as the others do not",
    )
    p.add_argument("--without", default="", help="names of libraries to leave out, with commas")
    p.add_argument(
        "--out", type=pathlib.Path, default=TOP / "build/bench", help="for the JSON and the picture"
    )
    p.add_argument(
        "--cache", type=pathlib.Path, default=TOP / ".cache/bench", help="for what is installed"
    )
    p.add_argument(
        "--bin", type=pathlib.Path, default=TOP / "build/install/bin", help=argparse.SUPPRESS
    )
    p.add_argument(
        "--python", type=pathlib.Path, default=TOP / ".venv/bin/python", help="one that has torch"
    )
    args = p.parse_args()
    args.without = args.without.split(",")
    plan = dict(QUICK if args.quick else FULL)
    plan["rounds"] = args.rounds or plan["rounds"]
    plan["settings"] = args.settings or plan["settings"]
    if args.placements:
        plan["places"] = args.placements.split(",")
    wanted = args.collectives.split(",") if args.collectives else ["all_reduce", *OTHERS]
    plan["rows"] = [(c, s) for c, s in plan["rows"] if c in wanted]
    if set(plan["places"]) - {*PLACES, *PLACES_ASKED} or not plan["rows"]:
        p.error("no such placement or collective")
    if (
        not args.python.exists()
        or subprocess.run([args.python, "-c", "import torch"], capture_output=True).returncode
    ):
        args.python = None
    return args, plan


def write(args, result):
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "result.svg").write_text(picture.svg(result))
    print(f"\n{args.out / 'result.json'}\n{args.out / 'result.svg'}")


def stop_in_order(signum, frame):
    raise KeyboardInterrupt


def main():
    args, plan = arguments()
    if args.combine:
        print(table.combined([json.loads(path.read_text()) for path in args.combine]))
        return
    signal.signal(signal.SIGTERM, stop_in_order)
    say("looking for the rivals")
    try:
        found, missing = rivals.find_all(args.cache, args.python, say)
    except KeyboardInterrupt:
        sys.exit(130)
    result = describe(args, found)
    result["missing"].update(missing)
    if not args.python:
        result["missing"]["gloo, torch commd"] = "no python with torch: ./quickstart build"
    work = pathlib.Path(tempfile.mkdtemp(prefix="commd-bench."))
    interrupted = False
    say()
    print(table.head(result))
    try:
        with Cluster(work, args.clear, nodes_of(plan["places"])) as cluster:
            result["netns"] = cluster.netns
            result["encrypts"] = cluster.netns and not args.clear
            if not cluster.netns:
                result["missing"][
                    "network namespaces"
                ] = f"{cluster.why_not}: nodes are on loopback"
            for name in plan["places"]:
                folder = work / name
                folder.mkdir()
                place = Place(name, cluster)
                if place.why_not():
                    result["missing"][name] = place.why_not()
                    continue
                for rival in (r for r in found.values() if isinstance(r, rivals.Mpi)):
                    for setting in rival.settings(place)[: plan["settings"]]:
                        result["settings"][f"{rival.name} [{setting.name}]"] = setting.says
                try:
                    with place:
                        measure_place(place, folder, args, plan, found, result)
                finally:
                    say()
                    print(table.text(result, name), flush=True)
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(table.foot(result))
    write(args, result)
    if interrupted:
        sys.exit(130)
    sys.exit(
        any(name.startswith(("commd,", "torch commd,", "commd op,")) for name in result["missing"])
    )


if __name__ == "__main__":
    main()
