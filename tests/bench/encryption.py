#!/usr/bin/env python3
"""What encryption between nodes costs: all_reduce through commd with it off and on, and through
gloo in the clear and over TLS, in one run.

Two nodes in network namespaces, each with one half of the cores, so it needs root. Pairs of daemons
run there: with `transport.encryption: off`, with `on`, and, if the engine has libipsec-mb, with
`on` by an engine that has OpenSSL alone (build/tests/bench/engine_openssl). gloo takes part by
itself, in each of its two algorithms, and as torch has it; the best one counts in each row. The TLS
of gloo is not built into torch's wheels: over TLS it is gloo by itself alone.

The loop, the turns and the check of each result are those of ./quickstart bench (compare.py).
"""

import argparse
import contextlib
import copy
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import compare  # noqa: E402
import rivals  # noqa: E402
import table  # noqa: E402
from contestants import Contestant  # noqa: E402
from places import UP_SECONDS, Cluster, Place  # noqa: E402

SIZES = [8, 4096, 256 << 10, 16 << 20, 128 << 20]
PLACES = ["2x1-own", "2x2-own"]
OPENSSL = compare.TOP / "build/tests/bench/engine_openssl"
# How far the ports of a pair are from those that quickstart chose.
SEALED = {"off": 16, "on": 32, "OpenSSL": 48}
PLAN = {"turn_ms": 60, "warmup_ms": 120, "least": 3}
COLUMNS = ["off", "OpenSSL", "on", "gloo", "gloo TLS"]
WIDTH = 12


class Pair:
    """Two more daemons in the namespaces of a cluster, with encryption or without."""

    def __init__(self, cluster, encryption):
        self.cluster, self.encryption, self.keepers = cluster, encryption, []
        self.home = cluster.folder / encryption
        self.sockets = [str(self.home / f"node{i}/commd.sock") for i in range(2)]

    def yaml(self, node):
        def moved(match):
            return str(int(match[0]) + SEALED[self.encryption])

        text = (self.cluster.home / f"node{node}/commd.yaml").read_text()
        text = text.replace(f"{self.cluster.home}/node{node}", f"{self.home}/node{node}")
        port = re.compile(r"(?<=port: )\d+|(?<=port_range: )\d+|(?<=\d-)\d{4,5}$", re.M)
        text = port.sub(moved, text)
        encryption = "off" if self.encryption == "off" else "on"
        return f"{text}  encryption: {encryption}\n  trusted_network: true\n"

    def __enter__(self):
        prefix = compare.TOP / "build/install"
        env = dict(os.environ)
        if self.encryption == "OpenSSL":
            env["COMMD_ENGINE"] = str(OPENSSL)
        for i in range(2):
            home = self.home / f"node{i}"
            home.mkdir(parents=True)
            (home / "commd.yaml").write_text(self.yaml(i))
            words = [prefix / "sbin/commd", "--keep", "--config", home / "commd.yaml"]
            with open(home / "commd.log", "wb") as log:
                self.keepers.append(
                    subprocess.Popen(
                        ["ip", "netns", "exec", f"commd-{i}", *words],
                        stdout=log,
                        stderr=log,
                        env=env,
                    )
                )
        limit = time.monotonic() + UP_SECONDS
        while not all(map(self.sees_all, self.sockets)):
            if time.monotonic() > limit or any(k.poll() is not None for k in self.keepers):
                self.__exit__()
                log = (self.home / "node0/commd.log").read_text()
                sys.exit(f"encryption: the nodes do not see each other\n{log}")
            time.sleep(0.05)
        return self

    @staticmethod
    def nodes(socket):
        commctl = compare.TOP / "build/install/bin/commctl"
        words = [commctl, "--socket", socket, "--timeout", "1", "--json", "nodes"]
        return subprocess.run(words, capture_output=True, text=True).stdout

    def sees_all(self, socket):
        """And each knows how the link is encrypted, which its engine tells once in a second."""
        nodes = self.nodes(socket)
        states = re.findall(r'"state": *"(?:self|up)"', nodes)
        return len(states) == 2 and bool(re.search(r'"encryption": *"[^"]', nodes))

    def cipher(self):
        return re.search(r'"encryption": *"([^"]+)', self.nodes(self.sockets[0]))[1]

    def __exit__(self, *_):
        for keeper in self.keepers:
            keeper.terminate()
        for keeper in self.keepers:
            keeper.wait()


# ---- who takes part ------------------------------------------------------------------------------


def certificates(folder):
    """A CA, and what it signed for all ranks: gloo looks at no names."""
    names = {name: folder / f"{name}.pem" for name in ("ca-key", "ca", "key", "asked", "cert")}
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"]
    sign = ["openssl", "x509", "-req", "-in", names["asked"], "-CA", names["ca"], "-days", "2"]
    for words in (
        [*new, "-x509", "-keyout", names["ca-key"], "-out", names["ca"], "-subj", "/CN=ca"],
        [*new, "-keyout", names["key"], "-out", names["asked"], "-subj", "/CN=rank"],
        [*sign, "-CAkey", names["ca-key"], "-CAcreateserial", "-out", names["cert"]],
    ):
        subprocess.run(list(map(str, words)), check=True, capture_output=True)
    return {
        "GLOO_DEVICE_TRANSPORT": "TCP_TLS",
        "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY": names["key"],
        "GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT": names["cert"],
        "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE": names["ca"],
    }


def gloo(rival, place, name, algorithm, folder, more):
    store = folder.with_name(f"{folder.name}-store")
    store.mkdir()
    commands = []
    for rank in range(place.size):
        env = {"RANK": rank, "WORLD_SIZE": place.size, "GLOO_STORE": store}
        env.update(GLOO_SOCKET_IFNAME=place.device, MASTER_PORT=1, **more)
        words = [rival.program, algorithm, "all_reduce", "--turns", folder]
        commands.append(([*place.enter(rank // place.ranks), *words], env))
    return Contestant(f"{name} [{algorithm}]", folder, place.size, commands, "C")


def contestants(place, pairs, rival, tls, work, args):
    found = []
    for pair in pairs:
        there = copy.copy(place)
        there.sockets = pair.sockets
        found.append(compare.commd(there, work / pair.encryption, args))
        found[-1].name = pair.encryption
    for algorithm in rival.algorithms if rival else []:
        for name, more in (("gloo", {}), ("gloo TLS", tls)):
            folder = work / f"{name.replace(' ', '-')}-{algorithm}"
            found.append(gloo(rival, place, name, algorithm, folder, more))
    if args.python:
        found.append(compare.torch("gloo", place, work / "torch", args, {}))
        found[-1].name = "gloo [torch]"
    return found


# ---- the table -----------------------------------------------------------------------------------


def ratio(times, over, under):
    """How many times as fast as @over @under is."""
    if over not in times or under not in times:
        return None
    return times[over]["p50_us"] / times[under]["p50_us"]


def line(size, times):
    """Times, and how fast it is with encryption: of off, and of gloo."""
    best = {name: times[name].get("setting") for name in ("gloo", "gloo TLS") if name in times}
    text = f"{table.human(size):>8}"
    for name in COLUMNS:
        value = times[name]["p50_us"] if name in times else None
        text += table.cell(value, WIDTH)
    text += table.cell(ratio(times, "off", "OpenSSL"), WIDTH)
    for other in ("off", "gloo", "gloo TLS"):
        text += table.cell(ratio(times, other, "on"), WIDTH)
    return text + "   " + ", ".join(f"{name} [{setting}]" for name, setting in best.items())


def head(title):
    names = *COLUMNS, "off/OpenSSL", "off/on", "gloo/on", "TLS/on"
    lines = [f"\n{title}: median us of all_reduce, and how many times as fast with encryption is"]
    return "\n".join([*lines, f"{'size':>8}" + "".join(f"{name:>{WIDTH}}" for name in names)])


def measure(place, work, pairs, rival, tls, args, plan, result):
    running, rows = [], result["placements"].setdefault(place.name, [])

    def note(contestant, why):
        result["missing"][f"{contestant.name}, {place.name}"] = why

    print(head(place.title()), flush=True)
    try:
        for contestant in contestants(place, pairs, rival, tls, work, args):
            compare.begin(contestant, running, note)
        for size in args.sizes:
            times = compare.measure_row(running, "all_reduce", size, plan, note)
            best, settings = compare.best_settings(times)
            rows.append({"bytes": size, "times": best, "settings": settings})
            print(line(size, best), flush=True)
    finally:
        for contestant in running:
            contestant.stop()


def prepared(args, result):
    rival = rivals.Gloo(args.cache, args.python)
    try:
        rival.prepare()
    except rivals.Missing as why:
        result["missing"]["gloo and gloo TLS by themselves"] = str(why)
        return None
    result["versions"]["gloo by itself"] = rival.version
    return rival


def arguments():
    p = argparse.ArgumentParser(
        prog="./quickstart bench encryption",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--placements", default=",".join(PLACES), help=f"some of {','.join(PLACES)}")
    p.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="in bytes")
    p.add_argument("--rounds", type=int, default=7, help="turns of each library on each row")
    p.add_argument("--out", type=pathlib.Path, default=compare.TOP / "build/bench")
    args = p.parse_args()
    args.cache, args.bin = compare.TOP / ".cache/bench", compare.TOP / "build/install/bin"
    args.python = compare.TOP / ".venv/bin/python"
    args.python = args.python if args.python.exists() else None
    if os.geteuid() or not shutil.which("ip"):
        p.error("it needs root and iproute2, for network namespaces")
    return args, dict(PLAN, rounds=args.rounds)


def main():
    args, plan = arguments()
    signal.signal(signal.SIGTERM, compare.stop_in_order)
    result = compare.describe(args, {})
    result["command"] = " ".join(["./quickstart bench encryption", *sys.argv[1:]])
    args.cache.mkdir(parents=True, exist_ok=True)
    rival = prepared(args, result)
    print(table.head(result))
    with tempfile.TemporaryDirectory(prefix="commd-bench.") as folder, Cluster(folder) as cluster:
        if not cluster.netns:
            sys.exit(f"encryption: no network namespaces: {cluster.why_not}")
        work = pathlib.Path(folder)
        tls = certificates(work)
        with contextlib.ExitStack() as up:
            names = ["off", "OpenSSL", "on"] if OPENSSL.exists() else ["off", "on"]
            pairs = [up.enter_context(Pair(cluster, name)) for name in names]
            for pair in pairs:
                print(f"{pair.encryption}: {pair.cipher()}")
            for name in args.placements.split(","):
                with Place(name, cluster) as place:
                    (work / name).mkdir()
                    measure(place, work / name, pairs, rival, tls, args, plan, result)
    for name, why in result["missing"].items():
        print(f"not in some table: {name}: {why}")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "encryption.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{args.out / 'encryption.json'}")


if __name__ == "__main__":
    main()
