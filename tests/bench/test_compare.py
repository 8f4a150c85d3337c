#!/usr/bin/env python3
"""What compare.py makes of numbers and of processes that behave and misbehave.

No time is asserted.
"""

import argparse
import contextlib
import copy
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as xml

sys.dont_write_bytecode = True
import compare  # noqa: E402
import machine  # noqa: E402
import picture  # noqa: E402
import rivals  # noqa: E402
import table  # noqa: E402
from contestants import Contestant, Failed, Unsupported  # noqa: E402
from places import Cluster, Place  # noqa: E402

sys.path.append(os.path.join(compare.TOP, "tests/integration/lib"))
from limit import HANG, Limit, exit_code  # noqa: E402

# Speaks the protocol for all ranks at once; what it does is the first word of the order.
FAKE = """
import json, os, sys
folder = sys.argv[1]
orders = [open(f"{folder}/{r}") for r in range(2)]
out = open(f"{folder}/out", "w")
def say(**what):
    print(json.dumps(what), file=out, flush=True)
say(done=0)
while all(lines := [f.readline() for f in orders]):
    assert lines[0] == lines[1]
    word = lines[0].split()[0]
    if word == "die":
        print("some error of mine", file=sys.stderr)
        sys.exit(3)
    if word == "crash":
        os.kill(os.getpid(), 4)
    if word == "hang":
        continue
    if word == "unknown":
        say(done=1, why="no such thing")
        continue
    say(bytes=8, p50_us=2.0, p99_us=9.0, min_us=1.0, wrong=int(word == "wrong"))
    say(done=0)
"""


def row(coll, size, **times):
    return {
        "collective": coll,
        "bytes": size,
        "times": {n.replace("_", " "): {"p50_us": t} for n, t in times.items()},
    }


RESULT = {
    "date": "2026-01-02T03:04:05+00:00",
    "commit": "0123456789abcdef",
    "load_before": 0.1,
    "machine": {
        "cpu": "a <cpu>",
        "cores": 2,
        "kernel": "6",
        "memory_gb": 8,
        "threads_of_cores": [[0, 1]],
        "shared_caches": [{"what": "L1", "size": "32K", "cpus": [0, 1]}],
        "memory_nodes": [[0, 1]],
        "word_ns": {"0-1": 61},
    },
    "versions": {"commd": "0.1.0", "A": "1"},
    "settings": {"A [yield]": "as its manual says"},
    "missing": {"B": "no compiler"},
    "placements": {
        "1x2": {
            "title": "1 node x 2 ranks",
            "stolen": 0.03,
            "rows": [
                row("all_reduce", 8, A=4.0, commd=1.0, gloo=100.0, torch_commd=5.0),
                row("all_reduce", 1 << 20, gloo=30.0, commd=90.0, A=45.0),
                row("barrier", 8, commd=1.0),
                row("broadcast", 8, other=1.0),
                row("new_group", 0, torch_commd=50.0, gloo=100.0),
            ],
        }
    },
}


class Texts(unittest.TestCase):
    def test_ratio_to_the_best_of_the_row(self):
        lines = table.text(RESULT, "1x2").splitlines()[1:]
        self.assertEqual(
            lines.pop(0),
            "1 node x 2 ranks: median us; 3% of the cores' time was stolen by the host",
        )
        self.assertEqual(lines[0].split()[:6], ["size", "commd", "A", "gloo", "other", "torch"])
        self.assertEqual(
            lines[1].split(), "all_reduce 8 B 1.00 4.00 100.00 - 5.00 A 0.25 - 0.05".split()
        )
        self.assertEqual(
            lines[2].split(), "all_reduce 1 MB 90.00 45.00 30.00 - - gloo 3.00 - -".split()
        )
        self.assertEqual(lines[3].split(), "barrier 1.00 - - - - - - - -".split())
        self.assertEqual(lines[5].split(), "new_group - - 100.00 - 50.00 gloo - - 0.50".split())
        self.assertEqual(len({len(line) for line in lines}), 1)

    def test_what_the_host_took_part_in_is_not_to_be_quoted(self):
        result = copy.deepcopy(RESULT)
        self.assertNotIn("DO NOT QUOTE", table.text(result, "1x2"))
        result["placements"]["1x2"]["stolen"] = 0.031
        self.assertIn("DO NOT QUOTE: more than 3%", table.text(result, "1x2"))

    def test_the_best_setting_counts(self):
        times = {
            "commd": {"p50_us": 3.0},
            "A [default]": {"p50_us": 9.0},
            "A [yield]": {"p50_us": 2.0},
        }
        best, settings = compare.best_settings(times)
        self.assertEqual(list(best), ["commd", "A"])
        self.assertEqual((best["A"]["p50_us"], best["A"]["setting"]), (2.0, "yield"))
        self.assertEqual(
            {s: t["p50_us"] for s, t in settings["A"].items()}, {"default": 9.0, "yield": 2.0}
        )
        result = copy.deepcopy(RESULT)
        result["placements"]["1x2"]["rows"] = [
            {"collective": "all_reduce", "bytes": 8, "times": best}
        ]
        self.assertRegex(table.text(result, "1x2"), r"A \[yield\] +1.50")
        self.assertIn("A [yield]: as its manual says", table.foot(result))

    def test_cores_that_were_moved(self):
        result = copy.deepcopy(RESULT)
        first, second = result["placements"]["1x2"]["rows"][:2]
        first["word_ns"], second["word_ns"] = [76, 78, 90], [78, 81, 390]
        lines = table.text(result, "1x2").splitlines()
        self.assertEqual(lines[3].split()[-2:], ["78", "0.05"])
        self.assertEqual(lines[4].split()[-2:], ["78-390", "-"])
        self.assertIn("the host moved the cores", table.foot(result))

    def test_several_runs(self):
        results = [copy.deepcopy(RESULT) for _ in range(3)]
        for result, mine in zip(results, (1.0, 2.0, 8.0)):
            result["placements"]["1x2"]["rows"][0]["times"]["commd"]["p50_us"] = mine
        lines = table.combined(results).splitlines()
        self.assertEqual(
            next(l for l in lines if l.startswith("all_reduce")).split(),
            "all_reduce 8 B 0.50 0.25 2.00 3".split(),
        )
        self.assertIn("3 runs", lines[0])

    def test_the_machine_is_described(self):
        text = table.head(RESULT)
        self.assertIn("2 CPUs, threads of one core: 0-1, L1 32K shared by 0-1", text)
        self.assertIn("a word to and fro: 0-1 61 ns", text)

    def test_missing_is_named(self):
        self.assertIn("B: no compiler", table.foot(RESULT))

    def test_picture(self):
        root = xml.fromstring(picture.svg(RESULT))
        lines = [e for e in root.iter() if e.tag.endswith("polyline")]
        points = [[tuple(map(float, p.split(","))) for p in e.get("points").split()] for e in lines]
        # a line without points is not drawn; gloo, A, commd have two sizes; torch commd has one
        self.assertEqual(sorted(len(p) for p in points), [1, 2, 2, 2])
        for line in points:
            self.assertEqual(line, sorted(line))  # larger to the right
        black = next(p for e, p in zip(lines, points) if e.get("stroke-width") == "2.6")
        self.assertGreater(black[0][1], black[1][1])  # slower is higher
        self.assertIn("a <cpu>", "".join(root.itertext()))

    def test_picture_of_nothing(self):
        xml.fromstring(picture.svg(dict(RESULT, placements={})))


class Processes(unittest.TestCase):
    @contextlib.contextmanager
    def contestant(self, name="fake"):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder) / name
            c = Contestant(name, folder, 2, [([sys.executable, "-c", FAKE, folder], {})], "C")
            c.start()
            process = c.processes[0]
            try:
                yield c
            finally:
                c.stop()
                self.assertIsNotNone(process.poll())

    def test_turns(self):
        with self.contestant() as c:
            for _ in range(3):
                self.assertEqual([r["bytes"] for r in c.turn("measure -b 8", 60)], [8])
            with self.assertRaisesRegex(Unsupported, "no such thing"):
                c.turn("unknown", 60)
            self.assertEqual(len(c.turn("measure", 60)), 1)

    def test_failures(self):
        for word, why in (
            ("die", "ended: some error of mine"),
            ("crash", "by a signal, Illegal instruction"),
            ("wrong", "1 wrong elements"),
            ("hang", "no answer in time"),
        ):
            with self.contestant() as c, self.assertRaisesRegex(Failed, why):
                c.turn(word, 0.3 if word == "hang" else 60)

    def test_who_fails_leaves_the_others_go_on(self):
        with self.contestant("good") as good, self.contestant("bad") as bad:
            turn, notes, running = bad.turn, {}, [good, bad]
            bad.turn = lambda words, seconds: turn("die", seconds)
            plan = {"rounds": 3, "turn_ms": 1, "warmup_ms": 1, "least": 3}
            words = iter(range(70, 80))
            got = compare.measure_row(
                running, "all_reduce", 8, plan, lambda c, why: notes.update({c.name: why}),
                lambda: next(words),
            )
            self.assertEqual(running, [good])
            self.assertEqual(list(got), ["good"])
            self.assertEqual(got["good"]["rounds"], [2.0] * 3)
            self.assertEqual(len(set(got["good"]["word_ns"])), 3)
            self.assertIn("some error of mine", notes["bad"])


class Nodes:
    def __init__(self, netns):
        self.netns, self.sockets, self.bound = netns, ["/a", "/b"], []

    def agent(self, cores):
        return "/agent"

    def bind(self, cores):
        self.bound.append(cores)


class Machine(unittest.TestCase):
    def sysfs(self, folder, files):
        for name, content in files.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content + "\n")
        return pathlib.Path(folder)

    def test_threads_caches_and_nodes(self):
        files = {"node/node0/cpulist": "0-1", "node/node1/cpulist": "2-3,9"}
        for cpu in range(4):
            core = "0-1" if cpu < 2 else "2-3"
            files[f"cpu/cpu{cpu}/topology/thread_siblings_list"] = core
            files[f"cpu/cpu{cpu}/cache/index0/shared_cpu_list"] = core
            files[f"cpu/cpu{cpu}/cache/index0/type"] = "Data"
            files[f"cpu/cpu{cpu}/cache/index0/level"] = "1"
            files[f"cpu/cpu{cpu}/cache/index0/size"] = "32K"
        with tempfile.TemporaryDirectory() as folder:
            root = self.sysfs(folder, files)
            self.assertEqual(machine.threads_of_cores([0, 1, 2, 3], root), [[0, 1], [2, 3]])
            self.assertEqual(
                [c["cpus"] for c in machine.caches([0, 1, 2, 3], root)], [[0, 1], [2, 3]]
            )
            self.assertEqual(machine.memory_nodes([0, 1, 2, 3], root), [[0, 1], [2, 3]])
            self.assertEqual(machine.threads_of_cores([0, 2], root), [[0], [2]])  # what we may use
        self.assertEqual(machine.memory_nodes([0, 1], pathlib.Path("/nonexistent")), [[0, 1]])

    def test_pairs(self):
        self.assertEqual(machine.pairs_of([0, 1, 2]), [(0, 1), (0, 2), (1, 2)])
        self.assertEqual(len(machine.pairs_of(range(64))), 63)
        self.assertEqual(machine.listed([0, 1, 2, 5]), "0-2,5")

    def test_a_word_is_measured(self):
        cpus = sorted(os.sched_getaffinity(0))[:2]
        with tempfile.TemporaryDirectory() as cache:
            pairs = machine.pairs_of(cpus)
            got = machine.words(pairs, machine.word_program(pathlib.Path(cache)))
            self.assertEqual(machine.distance(pathlib.Path(cache))() is None, not pairs)
        self.assertEqual(list(got), [f"{a}-{b}" for a, b in pairs])


class Places(unittest.TestCase):
    def test_names(self):
        p = Place("1x2-busy", Nodes(True))
        self.assertEqual(
            (p.nodes, p.ranks, p.size, p.beside.goes, p.hosts, p.enter()),
            (1, 2, 2, False, [], []),
        )
        p = Place("2x2", Nodes(True))
        self.assertEqual((p.size, p.hosts, p.local("sm")), (4, ["10.77.0.1", "10.77.0.2"], "sm,"))
        self.assertEqual(p.enter(1)[:4], ["ip", "netns", "exec", "commd-1"])
        p = Place("2x2", Nodes(False))
        self.assertEqual((p.hosts, p.local("sm"), p.device), ([], "", "lo"))

    def test_cores_of_its_own(self):
        nodes, usable = Nodes(True), sorted(os.sched_getaffinity(0))
        p = Place("2x2-own", nodes)
        cores = machine.threads_of_cores(usable)
        if len(cores) < 2:
            self.assertIn("fewer cores than nodes", p.why_not())
            return
        half = len(cores) // 2
        mine = [
            machine.listed(sorted(sum(part, []))) for part in (cores[:half], cores[half : 2 * half])
        ]
        self.assertEqual((p.cores, p.why_not()), (mine, None))
        self.assertEqual((p.name, p.nodes, p.ranks), ("2x2-own", 2, 2))
        self.assertEqual(p.enter(1)[:4], ["taskset", "-c", mine[1], "ip"])
        with p:
            self.assertEqual(nodes.bound, [mine])
        self.assertEqual(nodes.bound[1:], [[machine.listed(usable)] * 2])
        args = argparse.Namespace(bin=pathlib.Path("/bin"))
        folder = pathlib.Path("/f")
        c = compare.commd(p, folder, args)
        self.assertEqual([argv[:3] for argv, _ in c.commands], [["taskset", "-c", m] for m in mine])
        self.assertEqual([argv[7:9] for argv, _ in c.commands], [[0, 1], [2, 3]])
        self.assertEqual([env["COMMD_SOCKET"] for _, env in c.commands], nodes.sockets)
        self.assertEqual(len(compare.commd(Place("2x2", nodes), folder, args).commands), 1)
        self.assertIn("network namespaces", Place("2x1-own", Nodes(False)).why_not())
        self.assertEqual(Place("2x1", Nodes(False)).why_not(), None)

    def test_as_many_nodes_are_up_as_the_placements_need(self):
        self.assertEqual(compare.nodes_of(["1x2", "1x8"]), 2)
        self.assertEqual(compare.nodes_of(["1x2", "3x1", "2x2"]), 3)
        with tempfile.TemporaryDirectory() as folder:
            cluster = Cluster(folder, nodes=3)
            cluster.quickstart = lambda *words: self.assertEqual(words[:2], ("up", "3")) or (
                argparse.Namespace(returncode=0, stderr="")
            )
            cluster.__enter__()
            place = Place("3x1", cluster)
            self.assertEqual(place.sockets, cluster.sockets)
            self.assertEqual((len(place.sockets), len(place.cores)), (3, 3))

    def test_no_rank_comes_before_the_engines_do_not_encrypt(self):
        """An engine with groups keeps its settings, so the whole run would be encrypted."""
        with tempfile.TemporaryDirectory() as folder:
            cluster = Cluster(folder, clear=True)
            for i in range(2):
                (cluster.home / f"node{i}").mkdir(parents=True)
            cluster.quickstart = lambda *_: argparse.Namespace(returncode=0, stderr="")
            said = [False, True, False, True, True]
            cluster.is_clear = lambda _: said.pop(0)
            cluster.do_not_encrypt()
            self.assertEqual(said, [])
            for i in range(2):
                conf = (cluster.home / f"node{i}/commd.yaml").read_text()
                self.assertIn("encryption: off", conf)
            self.assertFalse(Cluster(folder).is_clear(f"{folder}/nobody.sock"))

    def test_the_agent_enters_the_node_on_its_cores(self):
        usable = sorted(os.sched_getaffinity(0))
        cores = [str(usable[0]), str(usable[-1])]
        with tempfile.TemporaryDirectory() as folder:
            agent = Cluster(folder).agent(cores)
            for program in ("ip", "unshare"):  # without what only root may do
                stub = pathlib.Path(folder) / program
                stub.write_text(f"#!/bin/sh\necho {program} $*; taskset -c -p $$\n")
                stub.chmod(0o755)
            done = subprocess.run(
                [agent, "-x", "10.77.0.2", "echo", "there"],
                env=dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"),
                capture_output=True,
                text=True,
            )
        self.assertIn("ip netns exec commd-1 unshare --uts", done.stdout)
        self.assertIn("commd-1 echo there", done.stdout)
        self.assertIn(f"list: {cores[1]}\n", done.stdout)

    def test_ranks_end_with_the_first_that_fails(self):
        argv = ["bash", "-c", compare.RANKS, "ranks", "0", "1", "true"]
        self.assertEqual(exit_code(subprocess.Popen(argv), 6 * HANG), 0)
        slow = '[ $RANK = 1 ] && exit 7; sleep 60 & trap "kill $!" TERM; wait'
        p = subprocess.Popen(
            ["bash", "-c", compare.RANKS, "ranks", "0", "1", "bash", "-c", slow],
            start_new_session=True,
        )
        self.assertEqual(exit_code(p, 3 * HANG), 1)
        limit = Limit(3 * HANG)
        with self.assertRaises(ProcessLookupError):  # nobody is left
            while not limit.over():
                os.killpg(p.pid, 0)
                time.sleep(0.01)

    def test_settings(self):
        cores = len(os.sched_getaffinity(0))
        for cls in rivals.MPIS:
            rival = cls(pathlib.Path("/cache"))
            rival.home = rival.home or pathlib.Path("/usr")
            for name, alone, crowded in (
                (f"1x{cores}", True, False),
                (f"1x{cores + 1}", False, True),
                ("2x1", False, True),
                ("1x2-busy", False, True),
                ("1x2-mixed", cores >= 2, True),
            ):
                place = Place(name, Nodes(True))
                names = [s.name for s in rival.settings(place)]
                self.assertEqual((names[0], len(set(names))), ("default", len(names)))
                self.assertEqual(("bound" in names, "yield" in names), (alone, crowded))
                for setting in rival.settings(place):
                    argv, env = rival.command(place, setting)
                    self.assertLessEqual(argv.count("--bind-to"), 1)
                    self.assertEqual({k: env[k] for k in setting.env}, setting.env)

    def test_the_loop_that_all_share_compiles_beside_a_rival(self):
        """mpi_perf.c needs an MPI; what it shares with commd-perf needs the rivals' flags only."""
        with tempfile.TemporaryDirectory() as folder:
            for source in rivals.SOURCES[1:]:
                done = subprocess.run(
                    ["gcc", *rivals.COMPILE, "-c", "-o", f"{folder}/o", source],
                    capture_output=True,
                    text=True,
                )
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_rival_that_cannot_be_had(self):
        class Gone(rivals.Mpi):
            name, key, packages = "Gone", "gone", ["/nonexistent/package.whl"]

            def install(self):
                rivals.run(
                    [sys.executable, "-c", "import sys; sys.exit('some error: no package')"], 60
                )

        with tempfile.TemporaryDirectory() as cache:
            mpis, rivals.MPIS = rivals.MPIS, [Gone]
            try:
                found, missing = rivals.find_all(pathlib.Path(cache), None, lambda text: None)
            finally:
                rivals.MPIS = mpis
        self.assertEqual(found, {})
        self.assertIn("some error: no package", missing["Gone"])
        self.assertIn("torch", missing["DeepSpeed shm"])


if __name__ == "__main__":
    unittest.main()
