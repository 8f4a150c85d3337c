#!/usr/bin/env python3
"""bounded.py and mps.py: with programs that do not end, do not die, or leave others behind."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "integration/lib")]
import bounded  # noqa: E402
from mps import Mps, NoMps  # noqa: E402

# It says something, ignores what asks it to end, and leaves a child in a session of its own, which
# has its output open.
STUBBORN = "trap '' TERM HUP INT; echo begun; setsid sleep 1000 & echo child $!; wait; sleep 1000"


def until(condition):
    end = time.monotonic() + 300
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("not within 300 s")
        time.sleep(0.01)


class Bounded(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.log = bounded.Log(os.path.join(self.folder.name, "log"))
        self.addCleanup(os.close, self.log.fd)
        self.addCleanup(bounded.end_all)
        bounded.become_parent_of_all()

    def run_it(self, script, seconds, hangs=None):
        env = dict(os.environ)
        return bounded.run(["sh", "-c", script], seconds, self.log, env, hangs, busy=True)

    def test_what_it_said_is_kept_though_it_hangs(self):
        seen = []
        code, text = self.run_it(STUBBORN, 1, lambda: seen.append(bounded.descendants()))
        self.assertIsNone(code)
        self.assertIn("begun\nchild ", text)
        self.assertEqual(set(seen[0].values()), {"sh", "sleep"})
        child = int(text.split()[-1])
        self.assertIn(child, bounded.descendants())  # its parent was killed, it was not
        self.assertEqual(bounded.end_all(), {})
        self.assertEqual(bounded.descendants(), {})
        self.assertIn("no end within 1 s", self.log.text(0))

    def test_what_a_command_leaves_running_is_ended(self):
        code, text = self.run_it("setsid sleep 1000 & echo $!", 20)
        self.assertEqual(code, 0)
        self.assertIn(int(text), bounded.descendants())
        self.assertEqual(bounded.end_all(), {})
        self.assertFalse(os.path.exists(f"/proc/{int(text)}"))

    def test_nobody_waits_for_what_does_not_die(self):
        """As a process inside a driver: here, what kills it passes it over."""
        process = subprocess.Popen(["sleep", "1000"])
        subprocess.Popen(["sleep", "1000"])

        def kill(pid, number):
            if pid != process.pid:
                os.kill(pid, number)

        self.assertEqual(bounded.end_all(kill=kill, limit=2), {process.pid: "sleep"})
        self.assertEqual(set(bounded.descendants()), {process.pid})
        self.assertEqual(bounded.end_all({process.pid}, kill=kill, limit=1000), {})  # known
        self.assertEqual(bounded.end_all(), {})

    def test_what_is_spared_goes_on(self):
        process = subprocess.Popen(["sh", "-c", "sleep 1000; true"])
        self.addCleanup(bounded.spared.clear)
        bounded.spared.add(process.pid)
        self.assertEqual((bounded.descendants(), bounded.end_all()), ({}, {}))
        self.assertIsNone(process.poll())
        bounded.spared.clear()
        self.assertEqual(bounded.end_all(), {})
        self.assertFalse(os.path.exists(f"/proc/{process.pid}"))

    def test_where_it_stands(self):
        process = subprocess.Popen(["sleep", "1000"])
        until(lambda: bounded.stat_of(process.pid)[0] == "sleep")
        process.send_signal(signal.SIGSTOP)
        until(lambda: bounded.stat_of(process.pid)[1] == "T")
        text = bounded.look([process.pid])
        self.assertIn(f"process {process.pid} (sleep), of {os.getpid()}, state T: sleep 1000", text)
        self.assertRegex(text, r"    sleep, T, in \w+")
        self.assertIn("gone", bounded.look([2**22 + 1]))

    def test_of_what_says_very_much_the_ends_are_kept(self):
        self.log.open_section("much")
        self.run_it("echo first; seq 1000000; echo last", 60)
        self.log.close_section()
        self.log.open_section("next")
        text = self.log.text(0)
        self.assertLess(len(text), bounded.Log.HEAD + bounded.Log.TAIL + 200)
        for words in ("==== much", "\nfirst\n1\n", "bytes are left out", "\nlast\n", "==== next"):
            self.assertIn(words, text)

    def test_lines_of_the_kernel_that_came_since(self):
        path = os.path.join(self.folder.name, "kmsg")
        with open(path, "w") as file:
            file.write("4,1,1,-;NVRM: Xid (PCI:0000:01:00): 13, of before\n")
        kernel = bounded.Kernel(path)
        self.assertEqual(kernel.lines(), [])
        with open(path, "a") as file:
            file.write("6,2,2,-;eth0: link becomes ready\n SUBSYSTEM=net\n")
            file.write("4,3,3,-;NVRM: Xid (PCI:0000:01:00): 31, pid=1\n")
        self.assertEqual(kernel.lines(), ["NVRM: Xid (PCI:0000:01:00): 31, pid=1"])
        self.assertEqual(kernel.lines(), [])
        self.assertEqual(bounded.Kernel("/nonexistent").lines(), [])

    def test_python_says_where_it_is(self):
        script = "import time\nprint('ready', flush=True)\ntime.sleep(1000)"
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", script], stdout=out, stderr=out,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )  # fmt: skip
            until(lambda: os.fstat(out.fileno()).st_size)
            bounded.tracebacks({process.pid: "python3"})
            self.assertEqual(process.wait(), -signal.SIGABRT)
            out.seek(0)
            self.assertIn('File "<string>", line', out.read())


CONTROL = """#!/bin/sh
if [ "$1" = -d ]; then
    {daemon}
    exit 0
fi
read order
echo "$order" >>$CUDA_MPS_LOG_DIRECTORY/orders
cp $CUDA_MPS_LOG_DIRECTORY/orders {folder}/orders
[ -e $CUDA_MPS_PIPE_DIRECTORY/ready ]
"""


class MpsControl(unittest.TestCase):
    """nvidia-cuda-mps-control is a script."""

    def control(self, folder, daemon):
        path = os.path.join(folder, "nvidia-cuda-mps-control")
        with open(path, "w") as file:
            file.write(CONTROL.format(daemon=daemon, folder=folder))
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        before = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", before)
        os.environ["PATH"] = f"{folder}:{before}"

    def test_a_daemon_may_keep_the_output_open(self):
        bounded.become_parent_of_all()
        self.addCleanup(bounded.end_all)
        with tempfile.TemporaryDirectory() as folder:
            self.control(
                folder, "(sleep 0.3; touch $CUDA_MPS_PIPE_DIRECTORY/ready; exec sleep 1000) &"
            )
            with Mps(folder) as mps:
                self.assertTrue(os.path.exists(f"{mps.folder}/pipe/ready"))
            with open(f"{folder}/orders") as file:
                self.assertIn("quit -t 5", file.read().splitlines())
            self.assertFalse(os.path.exists(mps.folder))

    def test_it_does_not_start(self):
        with tempfile.TemporaryDirectory() as folder:
            self.control(folder, "echo no such device; exit 3")
            with self.assertRaisesRegex(NoMps, "no such device"):
                Mps(folder).__enter__()


if __name__ == "__main__":
    unittest.main()
