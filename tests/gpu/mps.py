"""NVIDIA's MPS while a block runs: processes share a GPU at the same time, not by turns. It has
folders of its own, so that other programs of the machine do not come to it."""

import os
import shutil
import signal
import subprocess
import tempfile
import time

CONTROL = "nvidia-cuda-mps-control"


class NoMps(Exception):
    """It cannot be had here; the text says why."""


def run_bounded(command, seconds, hangs=None, **environment):
    """(exit code, or None if it did not end in time; what it printed). Its output is a file: what
    it leaves running has that open, too, and a pipe would not end. @hangs() is called before what
    did not end is killed."""
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            if hangs:
                hangs()
            os.killpg(process.pid, signal.SIGKILL)
        out.seek(0)
        return code, out.read()


class Mps:
    """@run: as run_bounded()."""

    def __init__(self, folder, run=run_bounded):
        self.folder, self.run = os.path.join(folder, "mps"), run
        self.environment = {
            "CUDA_MPS_PIPE_DIRECTORY": f"{self.folder}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{self.folder}/log",
        }

    def ask(self, order):
        """(exit code, text)"""
        command = ["sh", "-c", 'echo "$0" | ' + CONTROL, order]
        return self.run(command, 15, **self.environment)

    def __enter__(self):
        if not shutil.which(CONTROL):
            raise NoMps(f"there is no {CONTROL}")
        for path in self.environment.values():
            os.makedirs(path, exist_ok=True)
        code, text = self.run([CONTROL, "-d"], 20, **self.environment)
        if code is None:
            raise NoMps(f"{CONTROL} does not start in time")
        if code:
            raise NoMps(f"{CONTROL}: {text.strip()[-200:]}")
        end = time.monotonic() + 10  # it makes its pipe after it has returned
        while self.ask("get_default_active_thread_percentage")[0]:
            if time.monotonic() > end:
                raise NoMps(f"{CONTROL} does not answer")
            time.sleep(0.1)
        return self

    def __exit__(self, *_):
        self.ask("quit -t 5")
        shutil.rmtree(self.folder, ignore_errors=True)
