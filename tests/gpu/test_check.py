#!/usr/bin/env python3
"""tests/gpu/check.py itself: over the fake driver, where there is no driver, and with programs that
misbehave."""

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


def check(*words, **more):
    """(exit code, {name: row}, text)"""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "json")
        done = run(
            [sys.executable, f"{HERE}/check.py", "--build", BUILD, "--json", out, *words],
            60 * HANG, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": folder, **more},
        )  # fmt: skip
        rows = {}
        if os.path.exists(out):
            with open(out) as file:
                rows = {row["name"]: row for row in json.load(file)["checks"]}
    return done.returncode, rows, done.stdout


def has_kernels():
    _, _, text = check("--fake", "kernels")
    return "built without a CUDA compiler" not in text


needs_kernels = unittest.skipUnless(has_kernels(), "built without a CUDA compiler")


class Check(unittest.TestCase):
    @needs_kernels
    def test_all_of_the_driver_passes_over_the_fake_one(self):
        code, rows, text = check("--fake", "--group", "driver", FAKECUDA_DEVICES="2")
        self.assertEqual(code, 0, text)
        skipped = {name for name, row in rows.items() if row["verdict"] == "SKIPPED"}
        self.assertEqual(skipped, {"words_mps", "ipc_killed_mps"}, text)
        self.assertEqual(len(rows), 28)

    @needs_kernels
    def test_a_fake_device_has_no_numbers(self):
        _, rows, text = check("--fake", "bandwidth", "words", "word_host", "ipc_open", "host_func")
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
        self.assertRegex(text, r"(?m)^ +512 B +ok +ok +ok +ok$")  # commd and NCCL, two nodes
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
        code, rows, text = check("--fake", "bandwidth", "path_host", "--budget", "13",
                                 FAKECUDA_HANG_AFTER="1")  # fmt: skip
        self.assertEqual((code, rows["bandwidth"]["text"]), (1, "no end in time"), text)
        self.assertEqual(rows["path_host"]["text"], "the budget is spent", text)

    def test_names(self):
        code, _, text = check("--list")
        self.assertEqual(code, 0)
        names = re.findall(r"^\w+ +(\w+)", text, re.M)
        self.assertEqual(len(set(names)), len(names))
        code, _, text = check("nothing")
        self.assertEqual((code, "no such check or group: nothing" in text), (2, True))


if __name__ == "__main__":
    unittest.main()
