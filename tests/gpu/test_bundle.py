#!/usr/bin/env python3
"""tools/gpu_bundle.py: a folder that works wherever it lies, without what it was made from."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest

sys.dont_write_bytecode = True
TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("COMMD_BUILD") or (
    os.getcwd() if os.path.exists("tests/gpu/gpu_check") else os.path.join(TOP, "build")
)

sys.path.append(os.path.join(TOP, "tests/integration/lib"))
from limit import HANG, run  # noqa: E402


def programs(folder):
    for path, _, names in os.walk(os.path.join(folder, "build")):
        for name in names:
            with open(os.path.join(path, name), "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield os.path.join(path, name)


class Bundle(unittest.TestCase):
    def test_it_is_whole(self):
        with tempfile.TemporaryDirectory(prefix="commd-bundle.") as work:
            made, folder = os.path.join(work, "made"), os.path.join(work, "elsewhere")
            done = subprocess.run(
                [sys.executable, os.path.join(TOP, "tools/gpu_bundle.py"), BUILD, made],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stdout)
            os.rename(made, folder)
            self.paths(folder)
            self.glibc(folder)
            self.checks(folder)

    def paths(self, folder):
        """No program finds anything but what it brings, and none brings a driver where it would
        hide the machine's."""
        libraries = os.listdir(os.path.join(folder, "build/lib"))
        self.assertEqual([n for n in libraries if re.match(r"lib(cuda|nccl|c|m)\.so", n)], [])
        for path in programs(folder):
            dynamic = subprocess.run(["readelf", "-d", path], capture_output=True, text=True).stdout
            for rpath in re.findall(r"R(?:UN)?PATH.*\[(.*)\]", dynamic):
                for one in rpath.split(":"):
                    self.assertTrue(one.startswith("$ORIGIN"), f"{path}: {one}")
            if "/lib/" not in path.removeprefix(folder):  # those are found by who needs them
                found = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
                self.assertNotIn("not found", found, path)

    def glibc(self, folder):
        """Nothing needs a newer one than machines have: 2.35 is Ubuntu 22.04's. And functions that
        only newer ones have are ours."""
        for path in programs(folder):
            text = subprocess.run(["readelf", "-VW", path], capture_output=True, text=True).stdout
            for major, minor in re.findall(r"Name: GLIBC_(\d+)\.(\d+)\b", text):
                self.assertLessEqual((int(major), int(minor)), (2, 35), path)
            found = subprocess.run(
                ["ldd", "-r", path], capture_output=True, text=True,
                env={**os.environ, "LD_LIBRARY_PATH": f"{folder}/build/lib"},
            )  # fmt: skip
            self.assertNotIn("arc4random", found.stdout + found.stderr, path)

    def checks(self, folder):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("COMMD_")}
        done = run(
            [sys.executable, f"{folder}/tests/gpu/check.py", "--fake", "device", "nccl_hosts",
             "path_host", "nodes_two"],
            30 * HANG, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
            env={**environment, "TMPDIR": folder},
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("4 passed, 0 failed, 0 skipped", done.stdout)
        done = subprocess.run(
            [sys.executable, "-c", "import commd; print(commd.__file__)"],
            capture_output=True, text=True, cwd="/",
            env={**environment, "PYTHONPATH": f"{folder}/python"},
        )  # fmt: skip
        self.assertEqual(done.stdout.strip(), f"{folder}/python/commd/__init__.py", done.stderr)


def lacks():
    for tool in ("patchelf", "readelf", "strip", "gcc"):
        if not shutil.which(tool):
            return f"there is no {tool}"
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        return "there is no Python.h"
    with open(os.path.join(BUILD, "client/lib/.libs/libcommd.so"), "rb") as file:
        return "built with a sanitizer" if b"__asan_init" in file.read() else None


if __name__ == "__main__":
    why = lacks()
    if why:
        print(f"SKIP: {why}")
        sys.exit(77)
    unittest.main()
