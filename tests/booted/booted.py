#!/usr/bin/env python3
"""The packages on two machines that boot (machines.py): installed, run, upgraded and purged.

    tests/booted/booted.py BASE PACKAGES     a Debian tree, and a folder of .deb files

BASE is copied; its apt cache has what the packages depend on. Needs root.
"""

import contextlib
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time

from machines import (
    APT,
    CONFIGURATION,
    PACKAGES,
    PATIENCE,
    Cluster,
    blocks,
    host,
    need,
    read,
    section,
    tell,
    until,
)

LIMIT = 600
UNITS = [f"commd{part}" for part in (".service", "-engine.service", "-engine.socket",
                                     "-gpu.service", "-gpu.socket")]  # fmt: skip


class Story(Cluster):
    jobs = 0

    def start_job(self, *words):
        """One rank on each machine, as an ordinary user."""
        self.jobs += 1
        return [
            subprocess.Popen(
                m.command("env", f"RANK={i}", f"WORLD_SIZE={len(self.machines)}",
                          "COMMD_AUTOSTART=0", "commd-perf", "all_reduce", "--name",
                          f"job{self.jobs}", *words, user="trainer"),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True,
            )
            for i, m in enumerate(self.machines)
        ]  # fmt: skip

    def job(self):
        ranks = self.start_job("-b", "8", "-e", "1M", "-f", "8", "-n", "5", "-w", "1")
        try:
            for rank in ranks:
                out, _ = rank.communicate(timeout=PATIENCE)
                need(rank.returncode == 0, "commd-perf:", out[-1500:])
        finally:
            for m in self.machines:
                m.run("pkill", "-KILL", "-x", "commd-perf")

    # ---- the story ------------------------------------------------------------------------------

    def check_boots(self):
        self.boot()

    def check_installs(self):
        self.install()
        version = self.a.do("dpkg-query", "-Wf${Version}", "commd")
        for program in ("commd", "commctl", "commd-perf"):
            need(self.a.do(program, "--version") == f"{program} {version}", "not the package's")

    def check_nothing_starts_by_itself(self):
        for m in self.machines:
            need(m.run("systemctl", "is-enabled", "commd")[1] == "disabled", "enabled")
            for unit in UNITS:
                need(m.run("systemctl", "is-active", unit)[1] == "inactive", unit, "is active")
            need(not m.pids("commd"), "commd runs")

    def check_python_package(self):
        self.a.do("python3", "-c", "import commd, commd._core")

    def check_refuses_without_a_key(self):
        self.a.write("/etc/commd/commd.yaml", CONFIGURATION)
        code, _ = self.a.run("systemctl", "start", "commd")
        need(code != 0, "started without a key")
        need("cannot open the cluster key" in self.a.do("journalctl", "-u", "commd"), "the reason")
        self.stays_failed()
        need(self.a.show("ExecMainStatus") == "77", self.a.show("ExecMainStatus"))

    def stays_failed(self):
        time.sleep(1)  # RestartSec= is 0.1: it must not try again
        state = self.a.show("ActiveState")
        need(state == "failed", "it tries again:", state)

    def check_starts(self):
        self.give_key()
        for name, user in (("commd", "commd"), ("commd-engine", "commd-engine")):
            out = self.a.do("ps", "-o", "user:20=", "-C", name).split()
            need(out and set(out) == {user}, name, "runs as", out)

    def check_job(self):
        self.job()

    def check_why_names_a_stopped_rank_of_another_user(self):
        """commd is a user of its own in a closed unit: does it see what state a rank is in?"""
        ranks = self.start_job("-b", "1K", "-e", "1K", "-n", "100000000")
        try:
            until(lambda: all(m.pids("commd-perf") for m in self.machines), "the ranks run")
            until(lambda: "all_reduce" in self.a.run("commctl", "ranks")[1], "they are at it")
            (pid,) = self.machines[1].pids("commd-perf")
            self.machines[1].do("kill", "-STOP", str(pid))

            said = []

            def verdict():
                said[:] = [self.a.run("commctl", "why", f"job{self.jobs}")[1]]
                return said[0].startswith("RANK_STOPPED") and f"pid {pid} on node beta" in said[0]

            until(verdict, lambda: f"why names the stopped rank {pid}: {said}")
        finally:
            for m in self.machines:  # runuser and nsenter have stopped themselves with the rank
                m.run("pkill", "-KILL", "-x", "commd-perf|runuser")
            for rank in ranks:
                rank.kill()
                rank.communicate(timeout=PATIENCE)
        until(lambda: not self.a.run("commctl", "groups")[1].count("job"), "the job is gone")

    def check_comes_back_after_sigkill(self):
        before = self.a.show("MainPID")
        self.a.do("kill", "-KILL", before)
        until(lambda: self.a.show("MainPID") not in (before, "0"), "a new commd")
        need(self.a.show("NRestarts") == "1", "NRestarts", self.a.show("NRestarts"))
        self.all_well()
        self.job()

    def check_a_job_on_one_machine_goes_on(self):
        """commd is killed under it, and restarted: the next one knows its group, as before."""
        job = subprocess.Popen(
            self.a.command("env", "COMMD_AUTOSTART=0", "commd-perf", "all_reduce", "--ranks", "2",
                           "--name", "alone", "-b", "4K", "-e", "4K", "-n", "100000000",
                           "--time-limit", "8000", user="trainer"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

        def known():
            groups = json.loads(self.a.do("commctl", "--json", "groups"))["groups"]
            found = [group for group in groups if group["name"].startswith("alone")]
            return [(group["group"], group["local_ranks"]) for group in found]

        try:
            until(lambda: self.a.well() and known(), "the job runs")
            group = known()
            for words in ("systemctl", "kill", "-s", "KILL", "--kill-whom=main", "commd"), (
                "systemctl", "restart", "commd"
            ):  # fmt: skip
                before = self.a.show("MainPID")
                self.a.do(*words)
                until(lambda old=before: self.a.show("MainPID") not in (old, "0"), "a new commd")
                until(self.a.well, "it answers")
                need(known() == group, "commd knows", known(), "and not", group)
            out, _ = job.communicate(timeout=PATIENCE)
            need(job.returncode == 0, "commd-perf:", out[-1500:])
        finally:
            self.a.run("pkill", "-KILL", "-x", "commd-perf")
            job.communicate(timeout=PATIENCE)
        until(lambda: not known(), "the group is forgotten")
        self.all_well()

    def check_refuses_a_bad_reload(self):
        before = self.a.show("MainPID")
        self.a.write("/etc/commd/commd.yaml", CONFIGURATION + "colour: red\n")
        need(self.a.run("systemctl", "reload", "commd")[0] != 0, "a bad file was taken")
        need("colour" in self.a.do("journalctl", "-u", "commd"), "the log does not say why")
        self.a.write("/etc/commd/commd.yaml", CONFIGURATION)
        self.a.do("systemctl", "reload", "commd")
        need(self.a.show("MainPID") == before, "another commd")
        self.job()

    def check_restarts(self):
        """And commd ends before its engine does, so that it never misses one."""
        self.a.do("systemctl", "restart", "commd")
        self.all_well()
        self.job()
        folder = self.a.do("stat", "-c", "%i", "/run/commd")
        begin = time.monotonic()
        self.a.do("systemctl", "stop", *UNITS)
        took = time.monotonic() - begin
        need(took < 10, f"to stop it took {took:.1f} s")
        for unit in UNITS:
            need(self.a.show("ActiveState", unit) == "inactive", unit, "is active")
        self.a.do("systemctl", "start", "commd")
        need(self.a.do("stat", "-c", "%i", "/run/commd") == folder, "containers have another")
        said = self.a.do("journalctl", "-u", "commd")
        need("its launcher /run/commd-engine.sock ended" not in said, said[-1500:])
        self.all_well()

    def newer(self):
        """The same packages with a higher version, and another configuration as shipped. Programs
        that were built from a checkout say "+new" in place of "+git"."""
        folder = os.path.join(self.work, "newer")
        os.makedirs(folder)
        for deb in glob.glob(f"{self.packages}/*.deb"):
            if "dbgsym" in deb or "-dev_" in deb:
                continue
            tree = os.path.join(folder, "tree")
            host("dpkg-deb", "-R", deb, tree)
            host("sed", "-i", "-e", "s/^Version: .*/&+newer/",
                 "-e", r"s/\(commd (= [^)]*\))/\1+newer)/", f"{tree}/DEBIAN/control")  # fmt: skip
            host("find", f"{tree}/usr", "-type", "f", "-exec", "sed", "-i", "s/+git20/+new20/g",
                 "{}", "+")  # fmt: skip
            if os.path.exists(f"{tree}/etc/commd/commd.yaml"):
                with open(f"{tree}/etc/commd/commd.yaml", "a") as out:
                    out.write("# shipped by the newer one\n")
            host("dpkg-deb", "--root-owner-group", "-b", tree, folder)
            shutil.rmtree(tree)
        return folder

    def versions(self, machine):
        """Are commd and its engine those of the newer packages?"""
        (row,) = json.loads(machine.do("commctl", "--json", "version"))["version"]
        engine = row["engine"] or "+git"  # it is being replaced
        return "+git" not in row["commd"], "+git" not in engine

    def check_upgrades_under_a_job(self):
        """Both machines, one after the other: jobs on one and over both go on, new groups open
        between old and new in both directions, and the engine is replaced meanwhile."""
        folder = self.newer()
        alone = subprocess.Popen(
            self.a.command("env", "COMMD_AUTOSTART=0", "commd-perf", "all_reduce", "--ranks", "2",
                           "--name", "alone", "-b", "4K", "-e", "4K", "-n", "100000000",
                           user="trainer"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        ranks = self.start_job("-b", "1K", "-e", "1M", "-n", "100000000", "-w", "1")
        try:
            until(lambda: self.a.pids("commd-perf") and "job" in self.a.do("commctl", "groups"),
                  "the jobs run")  # fmt: skip
            for m in self.machines:
                before = m.show("MainPID")
                m.do(*APT, "install", *self.debs_newer(m, folder))
                need("+newer" in m.do("dpkg-query", "-Wf${Version}", "commd"), "no upgrade")
                until(lambda m=m, old=before: m.show("MainPID") not in (old, "0"), "a new commd")
                self.all_well()
                need(all(rank.poll() is None for rank in (*ranks, alone)), "a job has ended")
                self.job_beside()
            for m in self.machines:
                until(lambda m=m: self.versions(m) == (True, True),
                      f"the engine of {m.name} is new")  # fmt: skip
            time.sleep(1)  # of the jobs, after it
            need(all(rank.poll() is None for rank in (*ranks, alone)), "a job has ended")
        finally:
            for m in self.machines:
                m.run("pkill", "-INT", "-x", "commd-perf")
            for rank in (*ranks, alone):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    rank.communicate(timeout=20)
        self.all_well()

    def job_beside(self):
        """As job(), and those that run go on."""
        for rank in self.start_job("-b", "8", "-e", "64K", "-f", "8", "-n", "5", "-w", "1"):
            out, _ = rank.communicate(timeout=PATIENCE)
            need(rank.returncode == 0, "commd-perf:", out[-1500:])

    def debs_newer(self, machine, folder):
        for old in glob.glob(f"{machine.root}/root/*.deb"):
            os.unlink(old)
        return self.debs(machine, folder)

    def check_keeps_a_changed_configuration(self):
        for m in self.machines:
            need(m.do("cat", "/etc/commd/commd.yaml") == CONFIGURATION.strip(), "it was changed")
            need("the newer one" in m.do("cat", "/etc/commd/commd.yaml.dpkg-dist"), "dpkg-dist")
            need(m.do("stat", "-c", "%a %U", "/etc/commd/cluster.key") == "400 commd", "the key")

    def check_what_runs_is_the_new_one(self):
        for m in self.machines:
            need(m.show("NeedDaemonReload") == "no", "systemd does not know the new units")
            exe = m.do("readlink", f"/proc/{m.show('MainPID')}/exe")
            need(exe == "/usr/sbin/commd", exe)
        self.job()

    def check_says_what_is_wrong_with_a_key(self):
        self.a.do("chmod", "644", "/etc/commd/cluster.key")
        try:
            need(self.a.run("systemctl", "restart", "commd")[0] != 0, "started with an open key")
            need("opens the cluster key" in self.a.do("journalctl", "-u", "commd"), "no reason")
            self.stays_failed()
        finally:
            self.a.do("chmod", "400", "/etc/commd/cluster.key")
            self.a.do("systemctl", "start", "commd")
        self.all_well()

    def check_lives_on_a_full_disk(self):
        before = self.a.show("MainPID")
        self.a.do("mount", "-o", "remount,size=16M", "/run")
        self.a.do("mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", "/var/log/journal")
        try:
            for place in ("/run", "/var/log/journal"):
                code, out = self.a.run("dd", "if=/dev/zero", f"of={place}/full", "bs=64K")
                need("No space left" in out, "not full:", out)
            self.job()
            need(self.a.well() and self.a.show("MainPID") == before, "it did not live")
            self.a.do("systemctl", "restart", "commd")
            self.all_well()
            self.job()
        finally:
            self.a.do("umount", "-l", "/var/log/journal")
            self.a.do("rm", "-f", "/run/full")
            self.a.do("mount", "-o", "remount,size=20%", "/run")  # as nspawn has made it

    def check_joins_again_after_a_reboot(self):
        self.b.run("systemctl", "reboot")
        until(lambda: self.b.nspawn.poll() is not None, "it is down")
        # with --keep-unit, nspawn leaves the second boot to who started it, and says so by 133
        need(self.b.nspawn.returncode == 133, "nspawn:", self.b.nspawn.returncode)
        self.b.boot()
        until(self.b.booted, "it has booted")
        self.all_well()
        self.job()

    # ---- doc/operations.md, as it stands there ---------------------------------------------------

    def said(self, title, count):
        """The blocks of commands of a section; @count: there is nothing that nobody tries."""
        found = blocks(section(read("doc", "operations.md"), title), "sh")
        need(len(found) == count, "doc/operations.md has", len(found), "blocks:", title)
        return found

    def may_start(self):
        """systemd refuses the sixth start of a unit in ten seconds."""
        for m in self.machines:
            for unit in UNITS:
                m.run("systemctl", "reset-failed", unit)

    @contextlib.contextmanager
    def running_job(self):
        """Its ranks go on for as long as the block, and what happens there does not end them."""
        ranks = self.start_job("-b", "1K", "-e", "1K", "-n", "100000000", "-w", "1")
        try:
            until(lambda: "all_reduce" in self.a.run("commctl", "ranks")[1], "they are at it")
            yield
            time.sleep(0.5)
            need(all(rank.poll() is None for rank in ranks), "the job has ended")
        finally:
            for m in self.machines:
                m.run("pkill", "-INT", "-x", "commd-perf")
            for rank in ranks:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    rank.communicate(timeout=20)

    def keys(self, column):
        """The names in that column of `commctl keys`, of all nodes together."""
        rows = json.loads(self.a.do("commctl", "--json", "keys"))["keys"]
        return {row[column] for row in rows if row[column]}

    def check_a_new_key_under_a_job(self):
        both, alone = self.said("A new key", 2)
        (old,) = self.keys("key")
        key = self.a.do("sh", "-c", "openssl rand -hex 32")
        with self.running_job():
            for step, accepted in ((both, {old}), (alone, set())):
                for m in self.machines:
                    m.write("/root/new.key", key + "\n")
                    m.do("sh", "-ec", f"cd /root\n{step}")
                until(lambda: self.a.run("commctl", "keys")[0] == 0, "all have the same keys")
                (new,) = self.keys("key")
                need(new != old and self.keys("other_key") == accepted, new, self.keys("other_key"))
                # the link is of the key by which it was made, until that counts no more
                link = {old} if accepted else {new}
                until(lambda link=link: self.keys("link_key") == link, f"a link of {link}")
        need(self.a.do("stat", "-c", "%a %U", "/etc/commd/cluster.key") == "400 commd", "the key")
        self.a.do("systemctl", "restart", "commd")
        self.all_well()
        need(self.keys("link_key") == {new}, "the new link:", self.keys("link_key"))
        self.job()

    def check_drains(self):
        upgrade = section(read("doc", "operations.md"), "Upgrade")
        (command,) = re.findall(r"kernel, a reboot\): `(commctl drain [^`]*)`", upgrade)
        ranks = self.start_job("-b", "1K", "-e", "1K", "-n", "100000000", "-w", "1")
        try:
            until(lambda: "all_reduce" in self.a.run("commctl", "ranks")[1], "they are at it")
            drain = subprocess.Popen(self.a.command("sh", "-ec", command), text=True,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT)  # fmt: skip
            until(lambda: "draining" in self.b.run("commctl", "nodes")[1], "beta knows")
            need(drain.poll() is None, "it did not wait")
        finally:
            for m in self.machines:
                m.run("pkill", "-INT", "-x", "commd-perf")
            for rank in ranks:
                rank.communicate(timeout=20)
        out, _ = drain.communicate(timeout=PATIENCE)
        need(drain.returncode == 0, "drain:", out)
        self.a.do("commctl", "drain", "--undo")
        self.all_well()
        self.job()

    def check_firewall(self):
        block, for_good = self.said("Firewall", 2)
        sets = "s/elements = { 127.0.0.1 }/elements = { 10.77.3.1, 127.0.0.1, 10.77.3.2 }/"
        for m in self.machines:
            m.do(*APT, "install", "nftables")
            code, out = m.run("nft", "list", "ruleset")
            if code:
                print("skipped: this kernel has no nftables:", out.split("\n")[0])
                return
            m.do("sh", "-ec", block.replace("editor ", f"sed -i '{sets}' "))
            m.do("sh", "-ec", for_good)
            need(m.do("systemctl", "is-enabled", "nftables") == "enabled", "not after a reboot")
            m.do("nft", "delete", "table", "inet", "commd")
            # what the unit does at a boot; the containers have no CAP_NET_ADMIN to do it themselves
            m.do("nft", "-f", "/etc/nftables.conf")
            m.do("nft", "list", "table", "inet", "commd")
        self.all_well()
        self.job()
        # beta's file lacks alpha, which is who connects: it is shut out, and doctor says where
        self.b.do("sed", "-i", "s/{ 10.77.3.1, /{ /", "/etc/commd/commd.nft")
        self.b.do("nft", "-f", "/etc/commd/commd.nft")
        try:
            told = []

            def doctor():
                told[:] = [self.a.run("commctl", "doctor")[1]]
                return re.search(r"error +node beta: \S+:18400 does not answer", told[0])

            until(doctor, lambda: f"doctor says that beta is out of reach: {told}")
            need(not self.b.well(), "beta does not see it")
        finally:
            for m in self.machines:
                m.do("nft", "delete", "table", "inet", "commd")
                m.do("rm", "/etc/commd/commd.nft")
                m.do("systemctl", "disable", "nftables")
            self.all_well()

    def check_doctor_where_commd_does_not_run(self):
        self.may_start()
        self.a.do("commctl", "doctor")
        self.a.do("systemctl", "stop", "commd")
        code, out = self.a.run("commctl", "doctor")
        need(code != 0 and "systemctl" in out, "doctor:", code, out)
        self.a.do("mv", "/etc/commd/cluster.key", "/etc/commd/away")
        code, out = self.a.run("commctl", "doctor")
        told = "configuration: /etc/commd/cluster.key: cannot open" in out
        need(code != 0 and told, "doctor:", out)
        self.a.do("mv", "/etc/commd/away", "/etc/commd/cluster.key")
        self.a.do("systemctl", "start", "commd")
        self.all_well()

    def check_removes(self):
        self.a.do(*APT, "remove", "commd")
        need(not self.a.pids("commd") and not self.a.pids("commd-engine"), "it still runs")
        for path in ("/etc/commd/commd.yaml", "/etc/commd/cluster.key"):
            need(os.path.exists(self.a.root + path), path, "is gone")
        until(lambda: not self.b.well(), "beta has noticed")

    def check_purge_leaves_nothing(self):
        for m in self.machines:
            m.do(*APT, "purge", *PACKAGES)
            found = m.do("find", "/", "-xdev", "-name", "*commd*", "-not", "-path", "/proc/*",
                         "-not", "-path", "/root/*.deb")  # fmt: skip
            found += m.do("find", "/run", "-name", "*commd*")
            need(not found, "left:", found)
            need(m.run("systemctl", "cat", "commd")[0] != 0, "systemd still knows it")
            need(not m.pids("commd"), "it still runs")
            units = m.do("systemctl", "list-units", "--all", "--plain", "--no-legend", "commd*")
            need(not units, "units are left:", units)
            # on purpose: see debian/commd.postrm
            for user in ("commd", "commd-engine", "commd-gpu"):
                m.do("id", user)


if __name__ == "__main__":
    sys.exit(tell(lambda work, machines: Story(*sys.argv[1:3], work, machines), LIMIT,
                  ("check_boots", "check_installs", "check_starts")))
