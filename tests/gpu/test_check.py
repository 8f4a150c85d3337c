#!/usr/bin/env python3
"""tests/gpu/check.py itself: over the fake driver, where there is no driver, and with programs that
misbehave."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("COMMD_BUILD") or (
    os.getcwd()
    if os.path.exists("tests/gpu/gpu_check")
    else os.path.join(os.path.dirname(os.path.dirname(HERE)), "build")
)

sys.path.append(os.path.join(os.path.dirname(HERE), "integration/lib"))
from limit import HANG, run  # noqa: E402


def processes_of(folder):
    """Of a check whose files were there."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if f"TMPDIR={folder}/".encode() in file.read():
                found.append(int(pid))
    return found


said = ""  # by the checks of the last check()


def check(*words, **more):
    """(exit code, {name: row}, text)"""
    global said
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        done = run(
            [sys.executable, f"{HERE}/check.py", "--build", BUILD, "--json", out, *words],
            60 * HANG, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": folder, **more},
        )  # fmt: skip
        rows = {}
        if os.path.exists(out):
            with open(out) as file:
                rows = {row["name"]: row for row in json.load(file)["checks"]}
            with open(os.path.join(folder, "out.log")) as file:
                said = file.read()
            left = sorted(set(os.listdir(folder)) - {"out.json", "out.log"})
            if left or processes_of(folder):
                raise AssertionError(f"left behind: {left}, {processes_of(folder)}\n{done.stdout}")
    return done.returncode, rows, done.stdout


def has_kernels():
    _, _, text = check("--fake", "slices")
    return "built without a CUDA compiler" not in text


needs_kernels = unittest.skipUnless(has_kernels(), "built without a CUDA compiler")


class Check(unittest.TestCase):
    @needs_kernels
    def test_all_of_the_driver_passes_over_the_fake_one(self):
        code, rows, text = check("--fake", "--group", "driver", FAKECUDA_DEVICES="2")
        self.assertEqual(code, 0, text)
        skipped = {name for name, row in rows.items() if row["verdict"] == "SKIPPED"}
        root = set() if os.getuid() == 0 else {"ipc_other_user", "ipc_sandbox"}
        mps = {"words_mps", "slices_mps", "changes_mps", "ipc_killed_mps"}
        self.assertEqual(skipped, mps | root, text)
        self.assertEqual(len(rows), 40)
        self.assertIn("==== ipc_killed, ", said)

    @needs_kernels
    def test_a_fake_device_has_no_numbers(self):
        _, rows, text = check("--fake", "bandwidth", "words", "word_host", "ipc_open", "host_func",
                              "slices", "depth", "open_large")  # fmt: skip
        for row in rows.values():
            self.assertEqual(row["verdict"], "PASS", text)
            self.assertNotIn("values", row)
            self.assertNotRegex(row["text"], r"\d", text)

    def test_commd_over_the_fake_driver(self):
        code, rows, text = check("--fake", "path_host", "nodes_two")
        self.assertEqual((code, len(rows)), (0, 2), text)

    @needs_kernels
    def test_the_table_of_times_over_the_fake_driver(self):
        code, rows, text = check("--fake", "table")
        self.assertEqual((code, rows["table"]["verdict"]), (0, "PASS"), text)
        self.assertRegex(text, r"(?m)^ +512 B( +ok){6}$")  # commd and NCCL, two nodes
        self.assertNotRegex(text, r"\d\.\d+ +\d")

    def test_without_a_driver_all_is_skipped(self):
        code, rows, text = check(
            "--group", "driver,sanitizer", COMMD_LIBCUDA="/nonexistent/libcuda.so.1"
        )
        self.assertEqual(code, 77, text)
        self.assertEqual({row["verdict"] for row in rows.values()}, {"SKIPPED"}, text)
        self.assertIn("/nonexistent/libcuda.so.1", rows["device"]["text"])

    @needs_kernels
    def test_what_is_wrong_fails(self):
        """A fault of the driver's is the check's failure, and others go on."""
        code, rows, text = check(
            "--fake", "device", "words", "batch", FAKECUDA_FAIL="cuStreamWaitValue32_v2:1"
        )
        self.assertEqual(code, 1, text)
        verdicts = {name: row["verdict"] for name, row in rows.items()}
        self.assertEqual(verdicts, {"device": "PASS", "words": "FAIL", "batch": "PASS"}, text)
        self.assertIn("cu.stream_wait32", rows["words"]["text"])
        code, rows, text = check("--fake", "kernels", FAKECUDA_STICKY_AFTER="50")
        self.assertEqual(rows["kernels"]["verdict"], "FAIL", text)
        self.assertIn("ILLEGAL_ADDRESS", rows["kernels"]["text"])
        code, rows, text = check("--fake", "ipc_killed", "descriptor", FAKECUDA_NO_IPC="1")
        self.assertEqual(rows["ipc_killed"]["verdict"], "SKIPPED", text)
        self.assertEqual(rows["descriptor"]["verdict"], "PASS", text)

    @needs_kernels
    def test_what_hangs_is_ended_in_time(self):
        code, rows, text = check("--fake", "bandwidth", "nodes_two", "--budget", "13",
                                 FAKECUDA_HANG_AFTER="1")  # fmt: skip
        self.assertEqual((code, rows["bandwidth"]["text"]), (1, "no end in time"), text)
        self.assertEqual(rows["nodes_two"]["text"], "the budget is spent", text)
        self.assertRegex(said, r"process \d+ \(gpu_check\), of \d+, state S")
        self.assertRegex(said, r"gpu_check, S, in \w+")

    @needs_kernels
    def test_where_commd_stands_when_a_check_hangs(self):
        """A kernel that never ends. Its commd, engine and commd-gpu have sessions of their own, and
        are gone when check() looks."""
        code, rows, text = check("--fake", "path_sharing", "--budget", "15",
                                 FAKECUDA_HANG_AFTER="1")  # fmt: skip
        self.assertEqual((code, rows["path_sharing"]["verdict"]), (1, "FAIL"), text)
        self.assertIn("no end in time", rows["path_sharing"]["text"])
        for words in ("(commd-gpu), of", "(commd-perf), of", " --timeout 4 why", "all_reduce",
                      "/node0/commd.log, its end", "commd-gpu pid", "test_gpu_path.py\", line"):
            self.assertIn(words, said)

    def test_whether_buffers_are_copied_is_told(self):
        code, rows, text = check("--fake", "path_sharing", FAKECUDA_NO_IPC="1")
        self.assertEqual((code, rows["path_sharing"]["verdict"]), (1, "FAIL"), text)
        self.assertIn("results are right, but buffers were copied", rows["path_sharing"]["text"])

    def test_rounds(self):
        """Each check is in a round or is named as one of none; and stages fit a command."""
        once = []
        for number in "12":
            code, _, text = check("--list", "--round", number)
            self.assertEqual(code, 0)
            once += re.findall(r"^\w+ +(\w+) ", text, re.M)
        _, _, text = check("--list")
        self.assertEqual(sorted(once), sorted(re.findall(r"^\w+ +(\w+)", text, re.M)))

    def test_names(self):
        code, _, text = check("--list")
        self.assertEqual(code, 0)
        names = re.findall(r"^\w+ +(\w+)", text, re.M)
        self.assertEqual(len(set(names)), len(names))
        code, _, text = check("nothing")
        self.assertEqual((code, "no such check or group: nothing" in text), (2, True))


if __name__ == "__main__":
    unittest.main()
