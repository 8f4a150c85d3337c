#!/usr/bin/env python3
"""The wheel on a machine without a compiler: a container of systemd-nspawn with Python and no
network but loopback, in which an ordinary user does what README.md says (inside.py).

    tests/wheel/wheel.py BASE WHEEL INDEX PYTHON...

BASE, a Debian tree, is copied; INDEX is a folder of wheels, of numpy and torch, instead of PyPI.
Each PYTHON, on this machine, has a torch that the wheel has a backend for. This machine has a
compiler: without that backend one is compiled at its first use. Needs root. All that is started is
ended and removed, also after Ctrl-C.
"""

import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
README = os.path.join(os.path.dirname(os.path.dirname(HERE)), "README.md")
LIMIT = 900


def need(truth, *words):
    if not truth:
        raise SystemExit(f"wheel: {' '.join(str(word) for word in words)}")


def later(work, wheel):
    """The same wheel, as if of a later build."""
    version = os.path.basename(wheel).split("-")[1]
    newer = f"{version}.newer" if "+" in version else f"{version}+newer"
    path = os.path.join(work, os.path.basename(wheel).replace(version, newer))
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.startswith(f"commd-{version}.dist-info/"):
                entry.filename = entry.filename.replace(version, newer)
                if entry.filename.endswith(("/METADATA", "/RECORD")):
                    data = data.replace(version.encode(), newer.encode())
            new.writestr(entry, data)
    return path


def without_compiler(work, base, wheel, index):
    given = f"/given/{os.path.basename(wheel)}"
    newer = later(work, wheel)
    root = os.path.join(work, "root")
    subprocess.run(["cp", "-a", "--reflink=auto", base, root], check=True)
    with open(os.path.join(root, "etc/hosts"), "w") as hosts:  # debootstrap leaves it out
        hosts.write("127.0.0.1 localhost wheel\n")
    subprocess.run(["chroot", root, "useradd", "-m", "trainer"], check=True)
    done = subprocess.run(
        ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network",
         "--console=pipe", "--as-pid2", "--user=trainer", "--chdir=/home/trainer",
         f"--machine=commd-wheel-{os.getpid()}", "--hostname=wheel",
         "--resolv-conf=off", "-D", root, f"--bind-ro={wheel}:{given}",
         f"--bind-ro={newer}:/later/{os.path.basename(newer)}",
         f"--bind-ro={index}:/index", f"--bind-ro={README}:/given/README.md",
         f"--bind-ro={HERE}/inside.py:/given/inside.py", "python3", "-u", "/given/inside.py"],
        stdin=subprocess.DEVNULL, timeout=LIMIT,
    )  # fmt: skip
    need(done.returncode == 0, "without a compiler: exit", done.returncode)


def run(command, environment, folder):
    done = subprocess.run(command, env=environment, cwd=folder, timeout=LIMIT, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)  # fmt: skip
    need(done.returncode == 0, f"exit {done.returncode}:", *command, "\n", done.stdout[-3000:])
    return done.stdout


class Here:
    """The wheel, unpacked on this machine."""

    def __init__(self, work, wheel, python):
        self.work, self.package = work, os.path.join(work, "package")
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith("COMMD_")}  # fmt: skip
        self.environment.update(
            PYTHONPATH=self.package, XDG_CACHE_HOME=os.path.join(work, "cache"),
            XDG_RUNTIME_DIR=os.path.join(work, "run"), OMP_NUM_THREADS="1",
        )  # fmt: skip
        os.mkdir(self.environment["XDG_RUNTIME_DIR"], 0o700)
        run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target",
             self.package, wheel], self.environment, work)  # fmt: skip
        with open(README) as file:
            train = re.findall(r"```python\n(.*?)```", file.read(), re.S)[0]
        with open(os.path.join(work, "train.py"), "w") as out:
            out.write(train)

    def train(self, python, **environment):
        out = run([python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"],
                  dict(self.environment, **environment), self.work)  # fmt: skip
        need(re.search(r"^loss \d", out, re.M), "no loss:", out)
        return out

    def end(self):
        with contextlib.suppress(OSError, ValueError), \
                open(f"{self.work}/run/commd/commd.lock") as file:  # fmt: skip
            os.kill(int(file.read()), signal.SIGTERM)


def prebuilt(here, pythons):
    """Each torch gets the backend that was built for it."""
    for python in pythons:
        code = "import commd.torch as t; print(t.torch.__version__, t.load().__name__)"
        release, name = run([python, "-c", code], dict(here.environment, CXX="/nonexistent/c++"),
                            here.work).split()[-2:]  # fmt: skip
        need(name == f"commd._torch_{'_'.join(release.split('.')[:2])}", release, name)
        here.train(python, CXX="/nonexistent/c++")
        print(f"ok  torch {release} trains, by {name}")


def compiled_at_first_use(here, python):
    """The wheel has no backend for this torch, two ranks want one: one of them compiles it."""
    for path in glob.glob(f"{here.package}/commd/_torch_*.so"):
        os.unlink(path)
    first, second = here.train(python), here.train(python)
    need(first.count("commd: compiling the torch backend") == 1, "compiled not once:", first)
    need("compiling" not in second, "compiled again:", second)
    print("ok  compiled at first use, by one of two ranks, once")


def with_compiler(work, wheel, pythons):
    if os.path.exists("/run/commd/commd.sock"):
        print("skipped: the wheel on this machine, because a commd of the system runs here")
        return
    here = Here(work, wheel, pythons[0])
    try:
        prebuilt(here, pythons)
        compiled_at_first_use(here, pythons[0])
    finally:
        here.end()


def main():
    base, wheel, index, *pythons = (os.path.abspath(path) for path in sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("wheel: ended by a signal"))
    work = tempfile.mkdtemp(prefix="commd-wheel.")
    try:
        without_compiler(work, base, wheel, index)
        with_compiler(work, wheel, pythons)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{os.path.basename(wheel)}: passed")


main()
