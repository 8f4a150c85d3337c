#!/usr/bin/env python3
"""lib/limit.py: what counts of the time that passes, and that a hang is found."""

import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from limit import BUSY, Limit, communicate, exit_code, run, waited  # noqa: E402

FOREVER = [sys.executable, "-c", "import signal; signal.pause()"]


class Machine:
    """A clock and a pressure that are moved by hand."""

    def __init__(self, known=True):
        self.time, self.busy, self.known = 100.0, 7.0, known

    def limit(self, seconds):
        return Limit(seconds, lambda: self.time, lambda: self.busy if self.known else None)

    def passes(self, seconds, busy=0.0):
        self.time += seconds
        self.busy += busy


class CheckLimit(unittest.TestCase):
    def test_on_a_free_machine_all_time_counts(self):
        machine = Machine()
        limit = machine.limit(10)
        machine.passes(10)
        self.assertFalse(limit.over())
        self.assertEqual(limit.left(), 0)
        machine.passes(0.1)
        self.assertTrue(limit.over())

    def test_of_time_in_which_somebody_waits_a_part_counts(self):
        machine = Machine()
        limit = machine.limit(10)
        machine.passes(15, busy=12)
        self.assertAlmostEqual(limit.spent(), 3 + 12 / BUSY)
        self.assertAlmostEqual(limit.left(), 7 - 12 / BUSY)

    def test_a_machine_that_is_always_busy_does_not_hide_a_hang(self):
        for known in (True, False):
            machine = Machine(known)
            limit = machine.limit(10)
            machine.passes(10 * BUSY - 1, busy=3 * 10 * BUSY)  # several wait at the same time
            self.assertFalse(limit.over())
            machine.passes(2)
            self.assertTrue(limit.over())

    def test_what_the_kernel_tells(self):
        with tempfile.TemporaryDirectory() as folder:
            pressure, stat = os.path.join(folder, "pressure"), os.path.join(folder, "stat")
            with open(pressure, "w") as file:
                file.write("some avg10=1.00 avg60=2.00 avg300=3.00 total=2500000\nfull total=9\n")
            with open(stat, "w") as file:
                stolen = 3 * os.sysconf("SC_CLK_TCK")
                file.write(f"cpu  90 91 92 93 94 95 96 {stolen} 98 99\ncpu0 1 2\n")
            self.assertEqual(waited([pressure, pressure], stat), 8.0)
            self.assertIsNone(waited([pressure, "/nonexistent"], stat))
            self.assertIsNone(waited([pressure], pressure))

    def test_a_process_that_hangs_is_found_and_killed(self):
        for wait in (communicate, exit_code):
            with subprocess.Popen(FOREVER) as process:
                with self.assertRaisesRegex(AssertionError, "no end in 0.1 s"):
                    wait(process, 0.1)
                self.assertEqual(process.returncode, -9)
        with self.assertRaisesRegex(AssertionError, "no end in 0.1 s"):
            run(FOREVER, 0.1)

    def test_a_process_that_ends(self):
        done = run([sys.executable, "-c", "import sys; print(1); sys.exit('two')"])
        self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "1\n", "two\n"))


if __name__ == "__main__":
    unittest.main()
