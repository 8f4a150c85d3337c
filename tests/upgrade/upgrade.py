#!/usr/bin/env python3
"""commd is upgraded from an older commit under jobs that verify each result.

    tests/upgrade/upgrade.py OLD     by ./quickstart test upgrade [--from COMMIT], which builds OLD

OLD has src/ and build/ of that commit; $COMMD_BUILD is the build of this one. Each node begins with
the old commd, engine and, in half of its ranks, libcommd. Then its programs are replaced, as a
package does it, and commd is told to make room for the next one. Rounds beside that have streams
and messages in a group that is as old as the job. New groups open between old and new nodes, of
which each is the home of some.

What an older commit cannot do by its own fault is said, and not asked of it: before engine_keep,
groups over several nodes end with their commd, so only one-node groups are looked at.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration", "lib"))
import cluster as c  # noqa: E402
from cluster import Cluster, check, equal, until  # noqa: E402
from keeping import serves  # noqa: E402

PROGRAMS = {"commd": "daemon/commd", "commd-engine": "transport/commd-engine"}


class Old:
    def __init__(self, folder):
        self.build = os.path.join(folder, "build")
        with open(os.path.join(folder, "src/shm/proto/commd.proto")) as file:
            proto = file.read()
        self.engine_outlives = "engine_keep" in proto
        self.engine_is_replaced = "fixed64 settings" in proto


def put(build, folder):
    """As a package: another file of that name."""
    for name, path in PROGRAMS.items():
        shutil.copy(os.path.join(build, path), os.path.join(folder, name + ".new"))
        os.rename(os.path.join(folder, name + ".new"), os.path.join(folder, name))


def version_of(build):
    return subprocess.run([os.path.join(build, "daemon/commd"), "--version"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout.split()[1]  # fmt: skip


def version(node):
    return node.ctl("version")["version"][0]


class Upgrade:
    def __init__(self, old, cluster, count):
        self.old, self.cluster = old, cluster
        self.folders = []
        for node in cluster.nodes:
            folder = os.path.join(cluster.folder, f"programs{node.index}")
            os.mkdir(folder)
            put(old.build, folder)
            self.folders.append(folder)
            node.write_config(transport={"engine": os.path.join(folder, "commd-engine")})
            c.COMMD = os.path.join(folder, "commd")
            node.start(arguments=["--keep"])
        for node in cluster.nodes:
            serves(node)
        cluster.wait_linked()
        old_lib = os.path.join(old.build, "client/lib/.libs/libcommd.so")
        new_lib, self.ranks = c.LIBCOMMD, []
        for place in range(count):
            for c.LIBCOMMD in (old_lib, new_lib):
                self.ranks.append(cluster.rank(place))
        self.rounds, self.failures, self.over = 0, [], threading.Event()

    def all(self, do, ranks=None, **arguments):
        for rank in ranks or self.ranks:
            rank.start(do, **arguments)
        for rank in ranks or self.ranks:
            rank.finish()

    def round(self):
        name = f"round{self.rounds}"
        self.all("stream", name="g", seed=self.rounds, operations=60, max_bytes=200000)
        self.all("mail", name="g", seed=self.rounds, messages=30, max_bytes=100000)
        self.cluster.join(name, self.ranks)
        self.cluster.join(name + "r", self.ranks[::-1])
        self.all("all_reduce", name=name, count=1000)
        self.all("all_reduce", name=name + "r", count=1000)
        for each in (name, name + "r"):
            self.all("leave", name=each)
        self.rounds += 1

    def upgrade(self, node):
        before, folder = serves(node), self.folders[node.index]
        put(c.BUILD, folder)
        os.kill(before, signal.SIGUSR1)
        pid = serves(node, before)
        equal(os.readlink(f"/proc/{pid}/exe"), os.path.join(folder, "commd"))
        equal(version(node)["commd"], version_of(c.BUILD))

    def upgrade_all(self):
        try:
            for node in self.cluster.nodes:
                seen = self.rounds
                until(lambda seen=seen: self.rounds > seen + 1 or self.over.is_set(), "rounds")
                self.upgrade(node)
                time.sleep(1)
        except BaseException as error:
            self.failures.append(error)
        finally:
            self.over.set()

    def run(self):
        nodes = self.cluster.nodes
        self.cluster.join("g", self.ranks)
        engines = [node.engine_pid() for node in nodes]
        thread = threading.Thread(target=self.upgrade_all)
        thread.start()
        try:
            while not self.over.is_set():
                self.round()
        finally:
            self.over.set()
            thread.join()
        check(not self.failures, f"{self.failures}")
        self.round()
        if len(nodes) > 1:
            equal([node.engine_pid() for node in nodes], engines, "the engines went on")
        fresh = [self.cluster.rank(node.index) for node in nodes]
        self.cluster.join("new", fresh)
        self.all("all_reduce", fresh, name="new", count=1000)
        self.all("leave", fresh, name="new")
        self.all("leave", name="g")
        if len(nodes) > 1 and self.old.engine_is_replaced:
            for node in nodes:
                until(lambda node=node: version(node)["engine"] == version_of(c.BUILD),
                      f"the engine of {node.name} is new")  # fmt: skip
            self.cluster.wait_linked()
        self.cluster.join("last", self.ranks)
        self.all("all_reduce", name="last", count=1000)
        return self.rounds


def main():
    old = Old(sys.argv[1])
    for count in (1, 2):
        if count > 1 and not old.engine_outlives:
            print("2x2: not asked: the old commit ends groups over several nodes with their commd")
            continue
        begin = time.monotonic()
        with Cluster(count, start=False) as cluster:
            rounds = Upgrade(old, cluster, count).run()
        took = time.monotonic() - begin
        print(f"{count}x2: ok, {rounds} rounds, no error, {took:.1f} s", flush=True)


if __name__ == "__main__":
    main()
