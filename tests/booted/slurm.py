#!/usr/bin/env python3
"""Jobs under Slurm on two machines that boot (machines.py), as doc/operations.md says.

    tests/booted/slurm.py BASE PACKAGES [VENV SITE]

BASE is a Debian tree whose apt cache has Slurm; VENV has torch, and SITE the package commd with the
backend for it. Both machines see these folders of the host as they would see a shared file system.
Without them there are no torch jobs. Needs root.
"""

import os
import re
import subprocess
import sys
import time

from machines import APT, PATIENCE, Cluster, blocks, need, read, section, tell, until

LIMIT = 400
HOME = "/home/trainer"
SLURM_CONF = """ClusterName=booted
SlurmctldHost=alpha(10.77.3.1)
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=1
PrologFlags=Alloc
SchedulerParameters=nohold_on_prolog_fail
Prolog=/etc/slurm/prolog.sh
NodeName=alpha NodeAddr=10.77.3.1 CPUs=2
NodeName=beta NodeAddr=10.77.3.2 CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Story(Cluster):
    def __init__(self, base, packages, work, machines, python=()):
        self.python = python
        super().__init__(base, packages, work, machines, shared=python)
        said = blocks(section(read("doc", "operations.md"), "With Slurm"), "sh")
        need(len(said) == 4, "doc/operations.md has", len(said), "blocks about Slurm")
        self.perf, self.train, self.tasks, self.prolog = said

    def user(self, command, machine=None):
        """Runs a line in the user's home; (exit status, what it said)"""
        machine = machine or self.a
        path = "/usr/bin:/bin"
        if self.python:
            path = f"{self.python[0]}/bin:{path}"
        words = ["env", f"HOME={HOME}", f"PATH={path}", f"PYTHONPATH={':'.join(self.python[1:])}",
                 "PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1", "COMMD_AUTOSTART=0",
                 "bash", "-c", f"cd && {command}"]  # fmt: skip
        return machine.run(*words, user="trainer")

    def start(self, command):
        return subprocess.Popen(self.a.command("bash", "-c", f"cd / && {command}", user="trainer"),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)  # fmt: skip

    def states(self):
        out = self.a.run("sinfo", "-h", "-N", "-o", "%N %T")[1].split("\n")
        return dict(line.split() for line in out if len(line.split()) == 2)

    def all_idle(self):
        until(lambda: self.states() == {"alpha": "idle", "beta": "idle"},
              lambda: f"both nodes are idle: {self.states()}")  # fmt: skip

    def no_groups(self):
        for m in self.machines:
            until(lambda m=m: m.run("commctl", "wait", "--for", "idle", "--timeout", "1")[0] == 0,
                  f"no group is left on {m.name}")  # fmt: skip

    def a_long_job(self, *options):
        """4 ranks that go on; returns srun and the rank that was found on beta."""
        srun = self.start(f"srun -N2 -n4 {' '.join(options)} commd-perf all_reduce -b 1K -e 1K "
                          "-n 100000000")  # fmt: skip
        try:
            until(lambda: len(self.a.pids("commd-perf")) == len(self.b.pids("commd-perf")) == 2,
                  "4 ranks run")  # fmt: skip
            until(lambda: "all_reduce" in self.b.run("commctl", "ranks")[1], "they are at it")
            return srun, self.b.pids("commd-perf")[0]
        except BaseException:
            srun.kill()
            raise

    def ended(self, srun):
        try:
            return srun.communicate(timeout=PATIENCE)[0]
        finally:
            srun.kill()
            for m in self.machines:
                m.run("pkill", "-KILL", "-x", "commd-perf")

    # ---- the story ------------------------------------------------------------------------------

    def check_boots(self):
        self.boot()

    def check_installs(self):
        self.install()
        self.a.do(*APT, "install", "slurmctld")
        for m in self.machines:
            m.do(*APT, "install", "slurmd", "slurm-client", "munge")

    def check_starts(self):
        self.give_key()
        key = os.urandom(128)
        for m in self.machines:
            m.write("/etc/hosts", "127.0.0.1 localhost\n10.77.3.1 alpha\n10.77.3.2 beta\n")
            with open(f"{m.root}/etc/munge/munge.key", "wb") as out:
                out.write(key)
            m.do("chown", "munge:", "/etc/munge/munge.key")
            m.do("chmod", "400", "/etc/munge/munge.key")
            m.write("/etc/slurm/slurm.conf", SLURM_CONF)
            m.write("/etc/slurm/prolog.sh", self.prolog)
            m.do("chmod", "755", "/etc/slurm/prolog.sh")
            m.do("systemctl", "restart", "munge")
        self.a.do("systemctl", "restart", "slurmctld")
        for m in self.machines:
            m.do("systemctl", "restart", "slurmd")
        self.all_idle()

    def check_srun(self):
        code, out = self.user(self.perf)
        need(code == 0, "srun:", code, out[-1500:])
        need(out.count("4 ranks on 2 nodes") == 1, "not one job of 4 ranks:", out[-1500:])
        self.no_groups()

    def submit(self, name, text):
        """The number of the batch job."""
        for m in self.machines:
            m.write(f"{HOME}/{name}", text)
        code, out = self.user(f"sbatch --parsable -o {name}.out {name}")
        need(code == 0 and out.isdigit(), f"sbatch {name}:", code, out)
        return out

    def job(self, number):
        """{what: value} that Slurm says of a job."""
        out = self.a.do("scontrol", "--oneliner", "show", "job", number)
        return dict(word.split("=", 1) for word in out.split() if "=" in word)

    def finished(self, number, name):
        """What the job said, after it has ended well."""
        until(lambda: self.job(number)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"),
              lambda: f"{name} has ended: {self.job(number)}", 90)  # fmt: skip
        with open(f"{self.a.root}{HOME}/{name}.out") as file:
            out = file.read()
        need(self.job(number)["ExitCode"] == "0:0", name, self.job(number), out[-2500:])
        self.no_groups()
        return out

    def torch_job(self, name, text):
        if not self.python:
            print("without torch: nothing is done")
            return
        for m in self.machines:
            m.write(f"{HOME}/train.py", blocks(read("README.md"), "python")[0])
        out = self.finished(self.submit(name, text), name)
        need(len(re.findall(r"^loss \d", out, re.M)) == 1, "not one job:", out[-2500:])

    def check_torchrun(self):
        self.torch_job("train.sbatch", self.train)

    def check_a_task_for_each_rank(self):
        self.torch_job("tasks.sbatch", self.tasks)

    def check_a_dead_rank_ends_the_job(self):
        srun, pid = self.a_long_job()
        begin = time.monotonic()
        self.b.do("kill", "-KILL", pid)
        out = self.ended(srun)
        took = time.monotonic() - begin
        need(took < 5, f"srun took {took:.1f} s:", out[-1500:])
        need(srun.returncode != 0, "srun has not failed")
        need("beta" in out and f"pid {pid}" in out, "the others do not say who died:", out[-1500:])
        need("RANK_DEAD" in self.a.run("commctl", "why")[1], self.a.run("commctl", "why")[1])
        self.no_groups()
        self.all_idle()

    def check_scancel(self):
        srun, _ = self.a_long_job("--job-name=long")
        self.a.do("scancel", "--name=long", user="trainer")
        self.ended(srun)
        self.no_groups()
        self.all_idle()

    def check_a_node_without_commd_is_not_used(self):
        self.b.do("systemctl", "stop", "commd")
        script = f"#!/bin/sh\n#SBATCH -N2 -n4\n{self.perf}"
        number = self.submit("perf.sbatch", script)
        until(lambda: self.states()["beta"] in ("drained", "draining"),
              lambda: f"beta is taken out: {self.states()}")  # fmt: skip
        until(lambda: self.states()["alpha"] == "idle", lambda: f"alpha stays: {self.states()}")
        need(self.job(number)["JobState"] == "PENDING", self.job(number))
        self.b.do("systemctl", "start", "commd")
        self.all_well()
        self.a.do("scontrol", "update", "NodeName=beta", "State=RESUME")
        # until it may begin again; Slurm waits two minutes by itself
        self.a.do("scontrol", "update", f"JobId={number}", "StartTime=now")
        out = self.finished(number, "perf.sbatch")
        need(out.count("4 ranks on 2 nodes") == 1, out[-1500:])


if __name__ == "__main__":
    sys.exit(tell(lambda work, machines: Story(*sys.argv[1:3], work, machines, sys.argv[3:]), LIMIT,
                  ("check_boots", "check_installs", "check_starts")))
