"""NVIDIA's MPS while a block runs: processes share a GPU at the same time, not by turns. It has
folders of its own, so that other programs of the machine do not come to it."""

import os
import shutil
import subprocess
import time


class NoMps(Exception):
    """It cannot be had here; the text says why."""


class Mps:
    def __init__(self, folder):
        self.folder = os.path.join(folder, "mps")
        self.environment = {
            "CUDA_MPS_PIPE_DIRECTORY": f"{self.folder}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{self.folder}/log",
        }

    def control(self, *words, order=None):
        return subprocess.run(
            ["nvidia-cuda-mps-control", *words], input=order, text=True, timeout=20,
            capture_output=True, env={**os.environ, **self.environment},
        )  # fmt: skip

    def __enter__(self):
        if not shutil.which("nvidia-cuda-mps-control"):
            raise NoMps("there is no nvidia-cuda-mps-control")
        for path in self.environment.values():
            os.makedirs(path, exist_ok=True)
        try:
            done = self.control("-d")
        except subprocess.TimeoutExpired:
            raise NoMps("nvidia-cuda-mps-control does not start in time") from None
        if done.returncode:
            raise NoMps(f"nvidia-cuda-mps-control: {(done.stderr or done.stdout).strip()[-200:]}")
        time.sleep(0.5)  # it makes its pipe after it has returned
        return self

    def __exit__(self, *_):
        try:
            self.control(order="quit -t 5\n")
        except subprocess.TimeoutExpired:
            pass
        shutil.rmtree(self.folder, ignore_errors=True)
