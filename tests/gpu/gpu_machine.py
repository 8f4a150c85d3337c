"""The machine that check.py looks at: where programs are, what they get in their environment, and
what has to be known of it before anything that fails there can be understood."""

import contextlib
import ctypes
import datetime
import glob
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile

import bounded

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
FAKE_MACHINE = "the fake driver"
NO_BUDGET = 3600


LOAD = "import torch, commd.torch; commd.torch.load(); print('loaded')"


class Skip(Exception):
    pass


class Fail(Exception):
    pass


class Machine:
    def __init__(self, args):
        self.fake, self.python = args.fake, args.python
        # of tests; what else runs on this machine counts for nothing, but a budget is of the clock
        self.busy = args.fake and args.budget == NO_BUDGET
        self.build = os.path.abspath(args.build)
        self.check = self.program("tests/gpu/gpu_check")
        if not os.path.exists(self.check):
            sys.exit(f"{self.check} is not there: make -C {self.build} tests/gpu/gpu_check")
        self.log = bounded.Log(args.log)
        self.kernel = bounded.Kernel()
        self.undying = {}  # process: name; from checks before
        self.table = self.builder = None
        # all that a check writes goes here; a short path, as sockets lie below it
        self.outer_tmp = tempfile.gettempdir()
        self.folder = tempfile.mkdtemp(prefix="commd-check.")
        tempfile.tempdir = self.folder
        self.environment = self.make_environment()
        if not self.fake and "COMMD_LIBNCCL" not in self.environment:
            nccl = self.find_nccl()
            if nccl:
                self.environment["COMMD_LIBNCCL"] = nccl

    def program(self, name):
        return os.path.join(self.build, name)

    def make_environment(self):
        made = dict(
            os.environ, COMMD_BUILD=self.build, PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1",
            PYTHONFAULTHANDLER="1", TMPDIR=self.folder,
        )  # fmt: skip
        if os.path.isdir(f"{TOP}/python/commd"):  # of a bundle
            path = [f"{TOP}/python", os.environ.get("PYTHONPATH", "")]
            made["PYTHONPATH"] = ":".join(filter(None, path))
        if self.fake:
            made["COMMD_LIBCUDA"] = self.program("tests/fakecuda/libcuda.so.1")
            made["COMMD_LIBNCCL"] = self.program("tests/fakecuda/libnccl.so.2")
        else:
            made["COMMD_TEST_GPU"] = "real"
            made.setdefault("COMMD_TEST_PATIENCE", "3")
        return made

    def run(self, command, seconds, **more):
        """(exit code, or None if it did not end in time; what it printed)"""
        environment = {**self.environment, **more}
        return bounded.run(
            command, seconds, self.log, environment, self.look_at_what_hangs, self.busy
        )

    def begin_to_build(self):
        """The backend for torch takes a minute or two of one core, which no other check needs."""
        self.builder = subprocess.Popen(
            [self.python, "-c", LOAD], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
            env={**self.environment, "TMPDIR": self.outer_tmp},
        )  # fmt: skip
        bounded.spared.add(self.builder.pid)

    def wait_for_builder(self, seconds):
        if self.builder:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.builder.wait(seconds)

    def close(self):
        bounded.spared.clear()
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def look_at_what_hangs(self):
        pids = bounded.descendants()
        self.log.say(bounded.look(pids))
        bounded.ask_commd(
            pids, self.program("client/ctl/commctl"), self.log, self.environment
        )  # fmt: skip
        bounded.tracebacks(pids)
        bounded.keep_logs(self.folder, self.log)

    def begin(self, name):
        self.log.open_section(name)
        self.kernel.lines()

    def end(self):
        """Nothing of a check stays. (what was left running and does not die, the kernel's lines)"""
        left = bounded.end_all(self.undying)
        if left:
            self.log.say("these do not die:\n" + bounded.look(left))
            self.undying.update(left)
        lines = self.kernel.lines()
        if lines:
            self.log.say("the kernel said:\n" + "\n".join(lines))
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder):
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        self.log.close_section()
        return [f"{name} {pid}" for pid, name in left.items()], lines

    # ---- what it is ------------------------------------------------------------------------------

    def output(self, *command):
        if not shutil.which(command[0]):
            return ""
        code, text = bounded.run(command, 20, self.log, self.environment)
        return text.strip() if code == 0 else ""

    def find_nccl(self):
        """That of the torch there is, else what the loader finds."""
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        found = glob.glob(f"{self.output(self.python, '-c', ask)}/nvidia/nccl/lib/libnccl.so.2")
        return found[0] if found else None

    def describe(self):
        asked = "--query-gpu=name,driver_version,memory.total"
        smi = "" if self.fake else self.output("nvidia-smi", asked, "--format=csv,noheader")
        return {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "kernel": platform.release() + (" (gVisor)" if is_gvisor() else ""),
            "cores": len(os.sched_getaffinity(0)),
            "gpus": ["fake"] if self.fake else smi.splitlines(),
            "nccl": self.environment.get("COMMD_LIBNCCL", ""),
            "python": platform.python_version(),
        }


def is_gvisor():
    """Its kernel is imitated: IPC, memory files and Landlock may differ."""
    version = bounded.read("/proc/version")
    return "gvisor" in version.lower() or ("4.4.0" in version and "Jan 10 15:06:54" in version)


def landlock():
    """The version of its interface, or why there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(444, None, 0, 1)  # landlock_create_ruleset
    return str(version) if version > 0 else f"none ({os.strerror(ctypes.get_errno())})"


def line_of(path, otherwise="?"):
    return (bounded.read(path).strip().splitlines() or [otherwise])[0]


def surroundings(machine, _):
    """Told, not judged, but for what keeps everything from working."""
    here = {
        "kernel": platform.release() + (", gVisor" if is_gvisor() else ""),
        "landlock": landlock(),
        "ptrace_scope": line_of("/proc/sys/kernel/yama/ptrace_scope", "no Yama"),
        "uid": os.getuid(),
        "init": line_of("/proc/1/comm"),
        "seccomp": (re.search(r"Seccomp:\s*(\d)", bounded.read("/proc/self/status")) or "??")[1],
        "shm_free_mib": os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize >> 20,
        "glibc": " ".join(platform.libc_ver()),
        "tools": " ".join(
            tool
            for tool in "nvidia-smi nvidia-cuda-mps-control nvcc compute-sanitizer g++".split()
            if shutil.which(tool) or shutil.which(tool, path="/usr/local/cuda/bin")
        ),
        "module": line_of("/proc/driver/nvidia/version", "none")[:120],
    }
    if not machine.fake:
        asked = "compute_mode,mig.mode.current,persistence_mode,memory.used"
        for more in ("nvidia-smi -q", "nvidia-smi topo -m", "lscpu", "free -m", "df -h", "mount"):
            machine.output(*more.split())  # into the log
        mode = machine.output("nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader")
        here["mode"] = mode.splitlines()[0] if mode else "?"
        if "Exclusive" in here["mode"] or "Prohibited" in here["mode"]:
            raise Fail(f"the GPU is for one process only: {here['mode']}")
    text = ", ".join(f"{name}: {value}" for name, value in here.items())
    if here["module"] == "none" and here.get("mode") == "?":
        raise Skip(f"no driver of GPUs; {text}")
    return text
