#!/usr/bin/env python3
"""What compare.py makes of numbers and of processes that behave and misbehave. No time is asserted."""
import contextlib
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

sys.dont_write_bytecode = True
import compare  # noqa: E402
import picture  # noqa: E402
import rivals  # noqa: E402
import table  # noqa: E402
from contestants import Contestant, Failed, Unsupported  # noqa: E402
from places import Place  # noqa: E402

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
    return {"collective": coll, "bytes": size,
            "times": {n.replace("_", " "): {"p50_us": t} for n, t in times.items()}}  # fmt: skip


RESULT = {
    "date": "2026-01-02T03:04:05+00:00", "commit": "0123456789abcdef", "load_before": 0.1,
    "machine": {"cpu": "a <cpu>", "cores": 2, "kernel": "6", "memory_gb": 8}, "versions": {"commd": "0.1.0", "A": "1"},
    "missing": {"B": "no compiler"},
    "placements": {
        "1x2": {
            "title": "1 node x 2 ranks", "stolen": 0.123,
            "rows": [
                row("all_reduce", 8, A=4.0, commd=1.0, gloo=100.0, torch_commd=5.0),
                row("all_reduce", 1 << 20, gloo=30.0, commd=90.0, A=45.0),
                row("barrier", 8, commd=1.0),
                row("broadcast", 8, other=1.0),
                row("new_group", 0, torch_commd=50.0, gloo=100.0),
            ],
        }
    },
}  # fmt: skip


class Texts(unittest.TestCase):
    def test_ratio_to_the_best_of_the_row(self):
        lines = table.text(RESULT, "1x2").splitlines()[1:]
        self.assertEqual(lines.pop(0), "1 node x 2 ranks: median us; 12% of the cores' time was stolen by the host")
        self.assertEqual(lines[0].split()[:6], ["size", "commd", "A", "gloo", "other", "torch"])
        self.assertEqual(lines[1].split(), "all_reduce 8 B 1.00 4.00 100.00 - 5.00 A 0.25 0.05".split())
        self.assertEqual(lines[2].split(), "all_reduce 1 MB 90.00 45.00 30.00 - - gloo 3.00 -".split())
        self.assertEqual(lines[3].split(), "barrier 1.00 - - - - - - -".split())
        self.assertEqual(lines[5].split(), "new_group - - 100.00 - 50.00 gloo - 0.50".split())
        self.assertEqual(len({len(line) for line in lines}), 1)

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
        for word, why in (("die", "ended: some error of mine"), ("crash", "by a signal, Illegal instruction"),
                          ("wrong", "1 wrong elements"), ("hang", "no answer in time")):  # fmt: skip
            with self.contestant() as c, self.assertRaisesRegex(Failed, why):
                c.turn(word, 0.3 if word == "hang" else 60)

    def test_who_fails_leaves_the_others_go_on(self):
        with self.contestant("good") as good, self.contestant("bad") as bad:
            turn, notes, running = bad.turn, {}, [good, bad]
            bad.turn = lambda words, seconds: turn("die", seconds)
            plan = {"rounds": 3, "turn_ms": 1, "warmup_ms": 1, "least": 3}
            got = compare.measure_row(running, "all_reduce", 8, plan, lambda c, why: notes.update({c.name: why}))
            self.assertEqual(running, [good])
            self.assertEqual(list(got), ["good"])
            self.assertEqual(got["good"]["rounds"], [2.0] * 3)
            self.assertIn("some error of mine", notes["bad"])


class Nodes:
    def __init__(self, netns):
        self.netns, self.agent, self.sockets = netns, "/agent", ["/a", "/b"]


class Places(unittest.TestCase):
    def test_names(self):
        p = Place("1x2-busy", Nodes(True))
        self.assertEqual((p.nodes, p.ranks, p.size, p.busy, p.hosts, p.enter()), (1, 2, 2, True, [], []))
        p = Place("2x2", Nodes(True))
        self.assertEqual((p.size, p.hosts, p.local("sm")), (4, ["10.77.0.1", "10.77.0.2"], "sm,"))
        self.assertEqual(p.enter(1)[:4], ["ip", "netns", "exec", "commd-1"])
        p = Place("2x2", Nodes(False))
        self.assertEqual((p.hosts, p.local("sm"), p.device), ([], "", "lo"))

    def test_a_rival_that_cannot_be_had(self):
        class Gone(rivals.Mpi):
            name, key, packages = "Gone", "gone", ["/nonexistent/package.whl"]

            def install(self):
                rivals.run([sys.executable, "-c", "import sys; sys.exit('some error: no package')"], 60)

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
