#!/usr/bin/env python3
"""nccl_perf over the fake NCCL: every operation is right, with a GPU for each rank and with ranks
that share one. No time is asserted."""

import json
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("COMMD_BUILD") or (
    os.getcwd() if os.path.exists("tests/bench/nccl_perf") else os.path.join(TOP, "build")
)
sys.path.insert(0, os.path.join(TOP, "tests/integration/lib"))
from limit import HANG, run  # noqa: E402

FAKE = os.path.join(BUILD, "tests/fakecuda")
OPERATIONS = (
    "all_reduce reduce broadcast all_gather reduce_scatter gather scatter all_to_all sendrecv "
    "all_gather_v reduce_scatter_v gather_v scatter_v all_to_all_v pingpong"
).split()


def nccl_perf(*words, **more):
    environment = {
        **os.environ,
        "COMMD_LIBCUDA": f"{FAKE}/libcuda.so.1",
        "COMMD_LIBNCCL": f"{FAKE}/libnccl.so.2",
        **more,
    }
    return run([os.path.join(BUILD, "tests/bench/nccl_perf"), *words], 12 * HANG, env=environment)


class NcclPerf(unittest.TestCase):
    def right(self, operation, *words, **more):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "json")
            done = nccl_perf(operation, "-n", "3", "--json", out, *words, **more)
            self.assertEqual((done.returncode, done.stderr), (0, ""), operation)
            with open(out) as file:
                result = json.load(file)
        self.assertEqual([row["wrong"] for row in result["rows"]], [0] * len(result["rows"]))
        return result

    def test_every_operation_of_ranks_that_share_a_gpu(self):
        for operation in OPERATIONS:
            got = self.right(operation, "--ranks", "3", "-b", "8", "-e", "40K", "-f", "60")
            self.assertEqual((got["ranks"], got["gpu"], len(got["rows"])), (3, "Fake GPU", 3))

    def test_a_gpu_for_each_rank(self):
        for dtype, op in ("bf16", "avg"), ("u8", "max"), ("i64", "prod"), ("f64", "min"):
            self.right("all_reduce", "--ranks", "2", "-b", "3M", "-e", "3M", "-d", dtype, "-o", op,
                       FAKECUDA_DEVICES="2")  # fmt: skip

    def test_several_in_a_row(self):
        with_check = nccl_perf("all_reduce", "--ranks", "2", "--queue", "10")
        self.assertEqual(with_check.returncode, 64)
        done = nccl_perf("all_reduce", "--ranks", "2", "--queue", "10", "-c", "0", "-e", "64",
                         "-n", "3")  # fmt: skip
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_what_nccl_has_not_is_refused(self):
        for words in ("barrier", "all_reduce -d i16", "all_reduce -d i32 -o band",
                      "all_reduce --async", "all_reduce --groups 2"):  # fmt: skip
            done = nccl_perf(*words.split(), "--ranks", "2")
            self.assertNotEqual(done.returncode, 0, words)
            self.assertRegex(done.stderr, "NCCL has no such|neither --async", words)

    def test_without_a_driver_or_nccl(self):
        done = nccl_perf("all_reduce", COMMD_LIBCUDA="/nonexistent/libcuda.so.1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nonexistent/libcuda.so.1", done.stderr)
        done = nccl_perf("all_reduce", COMMD_LIBNCCL="/nonexistent/libnccl.so.2")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nonexistent/libnccl.so.2", done.stderr)


if __name__ == "__main__":
    unittest.main()
