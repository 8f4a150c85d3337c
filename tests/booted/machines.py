"""Two machines that boot: containers of systemd-nspawn that have no network but a pair of veth
between them. Their names are alpha and beta. booted.py and slurm.py tell a story with them.
"""

import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

PATIENCE = 40
PACKAGES = ("commd", "commd-gpu", "libcommd0", "python3-commd")
APT = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-q",
       "--no-install-recommends", "-o", "Dpkg::Options::=--force-confdef"]  # fmt: skip
CONFIGURATION = """# written by the operator
cluster:
  nodes:
    - {name: alpha, address: 10.77.3.1}
    - {name: beta, address: 10.77.3.2}
"""


class Failed(Exception):
    pass


def need(truth, *words):
    if not truth:
        raise Failed(" ".join(str(word) for word in words))


def until(condition, what, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not condition():
        words = what() if callable(what) else what
        need(time.monotonic() < end, f"after {seconds} s still not: {words}")
        time.sleep(0.2)


def host(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    need(done.returncode == 0, *command, done.stdout[-500:], done.stderr[-500:])
    return done.stdout


TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def read(*path):
    with open(os.path.join(TOP, *path)) as file:
        return file.read()


def blocks(text, language):
    """What stands between fences, without the indentation of a list."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.S | re.M)
    return [re.sub(rf"^{indent}", "", block, flags=re.M) for indent, block in found]


def section(text, title):
    return re.search(rf"^## {title}\n(.*?)^## ", text, re.S | re.M).group(1)


def control_groups(name):
    """A control group of that name in each hierarchy that systemd uses. Two containers in one group
    share those of their units, and a unit is then never empty for the one while it runs in the
    other: to stop it takes as long as TimeoutStopSec= says."""
    with open("/proc/self/mounts") as file:
        mounts = [line.split() for line in file]
    return [os.path.join(where, name) for _, where, kind, options, *_ in mounts
            if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(","))
            if os.access(where, os.W_OK)]  # fmt: skip


class Machine:
    """A container; its network namespace is ours, so that it outlives a reboot."""

    def __init__(self, name, base, work, machines, shared=()):
        """@machines gets it before there is anything of it to remove. @shared: folders of the host
        that it sees, read-only, at the same place."""
        self.name, self.root, self.shared = name, os.path.join(work, name), shared
        self.netns = f"commd-booted-{os.getpid()}-{name}"
        self.log = os.path.join(work, f"{name}.log")
        self.nspawn = None
        machines.append(self)
        host("cp", "-a", "--reflink=auto", base, self.root)
        host("ip", "netns", "add", self.netns)
        with open(os.path.join(self.root, "etc/hostname"), "w") as out:
            out.write(name + "\n")
        for left in ("etc/machine-id", "var/lib/dbus/machine-id"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.root, left))

    def boot(self):
        groups = control_groups(self.netns)
        for group in groups:
            os.makedirs(group, exist_ok=True)
        enter = "".join(f"echo $$ >{group}/cgroup.procs; " for group in groups)
        with open(self.log, "w") as out:
            self.nspawn = subprocess.Popen(
                ["sh", "-ec", f'{enter}exec "$@"', "sh",
                 "systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit",
                 "--console=pipe", f"--network-namespace-path=/run/netns/{self.netns}",
                 *(f"--bind-ro={folder}" for folder in self.shared),
                 f"--machine={self.netns}", f"--hostname={self.name}", "-D", self.root],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def leader(self):
        """pid of its systemd; None while there is none."""
        with contextlib.suppress(OSError):
            pid = self.nspawn.pid
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                for child in file.read().split():
                    with open(f"/proc/{child}/comm") as comm:
                        if comm.read().strip() in ("systemd", "init"):
                            return int(child)
        return None

    def command(self, *words, user=None):
        leader = self.leader()
        need(leader, self.name, "does not run")
        as_user = ["runuser", "-u", user, "--"] if user else []
        return ["nsenter", "-t", str(leader), "-a", "env", "-i", "LC_ALL=C.UTF-8",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *as_user, *words]  # fmt: skip

    def run(self, *words, user=None):
        """(exit status, stdout and stderr)"""
        done = subprocess.run(self.command(*words, user=user), text=True, timeout=120,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)  # fmt: skip
        return done.returncode, done.stdout.strip()

    def do(self, *words, user=None):
        code, out = self.run(*words, user=user)
        need(code == 0, f"{self.name}: {' '.join(words)}: exit {code}:", out[-1500:])
        return out

    def booted(self):
        if not self.leader():
            return False
        code, out = self.run("systemctl", "is-system-running")
        return out in ("running", "degraded")

    def show(self, what, unit="commd.service"):
        return self.do("systemctl", "show", "-P", what, unit)

    def well(self):
        return self.run("commctl", "status")[0] == 0

    def pids(self, name):
        return self.run("pgrep", "-x", name)[1].split()

    def write(self, path, text):
        path = self.root + path
        with open(path, "w") as out:
            out.write(text)

    def end(self):
        if self.nspawn:
            leader = self.leader()
            if leader:
                os.kill(leader, signal.SIGKILL)
            try:
                self.nspawn.wait(10)
            except subprocess.TimeoutExpired:
                self.nspawn.kill()
                self.nspawn.wait()
        subprocess.run(["ip", "netns", "del", self.netns], check=False)
        for group in control_groups(self.netns):
            for folder, *_ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):  # systemd ends, and some of it is still there
                    os.rmdir(folder)


class Cluster:
    """Both, with the packages of a folder."""

    def __init__(self, base, packages, work, machines, shared=()):
        """@machines gets each as soon as there is something of it to remove."""
        self.packages, self.work, self.machines = packages, work, machines
        for name in ("alpha", "beta"):
            Machine(name, base, work, self.machines, shared)
        self.a, self.b = self.machines

    def debs(self, machine, folder):
        """Copies the packages into the machine; their paths there."""
        paths = []
        for package in PACKAGES:
            found = glob.glob(f"{folder}/{package}_*.deb")
            need(len(found) == 1, f"{len(found)} packages {package} in {folder}")
            shutil.copy(found[0], f"{machine.root}/root/")
            paths.append("/root/" + os.path.basename(found[0]))
        return paths

    def all_well(self):
        until(lambda: all(m.well() for m in self.machines), "both nodes are well")

    def boot(self):
        a, b = self.machines
        host("ip", "-n", a.netns, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0",
             "netns", b.netns)  # fmt: skip
        for i, machine in enumerate(self.machines):
            host("ip", "-n", machine.netns, "addr", "add", f"10.77.3.{i + 1}/24", "dev", "veth0")
            for device in ("lo", "veth0"):
                host("ip", "-n", machine.netns, "link", "set", device, "up")
            machine.boot()
        until(lambda: all(m.booted() for m in self.machines), "both have booted")

    def install(self):
        for m in self.machines:
            m.do(*APT, "install", *self.debs(m, self.packages))
            m.do("useradd", "-m", "trainer")
            need(m.do("stat", "-c", "%a %U:%G", "/etc/commd") == "750 root:commd", "/etc/commd")

    def give_key(self):
        key = os.urandom(32).hex() + "\n"
        for m in self.machines:
            m.write("/etc/commd/commd.yaml", CONFIGURATION)
            m.write("/etc/commd/cluster.key", key)
            m.do("systemd-tmpfiles", "--create", "commd.conf")  # owner and mode
            m.do("systemctl", "enable", "--now", "commd")
        self.all_well()


def stop(number, _):
    raise KeyboardInterrupt(f"signal {number}")


def tell(make_story, limit, foundations):
    """Runs the checks of the story that make_story(WORK) makes, in their order. Each goes on from
    the one before; nothing goes on without @foundations. All that was started is ended and
    removed, also after Ctrl-C, and nothing takes longer than @limit seconds. The exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, stop)
    signal.alarm(limit)
    passed, failed, machines = 0, 0, []
    work = tempfile.mkdtemp(prefix="commd-booted-", dir="/var/tmp")
    try:
        story = make_story(work, machines)
        for name in [name for name in vars(type(story)) if name.startswith("check_")]:
            begin = time.monotonic()
            try:
                getattr(story, name)()
                passed, word = passed + 1, "ok"
            except (Failed, subprocess.TimeoutExpired) as error:
                failed, word = failed + 1, f"FAILED: {error}"
            what = name[len("check_") :].replace("_", " ")
            print(f"{what:44}{time.monotonic() - begin:6.1f} s  {word}", flush=True)
            if word != "ok" and name in foundations:
                print("the rest stands on that")
                break
    except KeyboardInterrupt as why:
        print(f"interrupted: {why}")
        failed += 1
    finally:
        signal.alarm(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        for machine in machines:
            machine.end()
        shutil.rmtree(work, ignore_errors=True)
        print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0
