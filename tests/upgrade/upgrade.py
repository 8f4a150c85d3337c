#!/usr/bin/env python3
"""commd is upgraded from an older commit under jobs that verify each result.

    tests/upgrade/upgrade.py OLD     by ./quickstart test upgrade [--from COMMIT], which builds OLD

OLD has src/ and build/ of that commit; $COMMD_BUILD is the build of this one. Each node begins with
the old commd, engine and, in half of its ranks, libcommd. Then its programs are replaced, as a
package does it, and commd is told to make room for the next one. Rounds beside that have streams
and messages in a group that is as old as the job. New groups open between old and new nodes, of
which each is the home of some. Rooted operations go with a root that is late and with one
that is early: ranks of both libcommds have to carry them out alike. Once more so with one node that
is new from the beginning, engine included; and where that node must not send in the clear, it says
that the other is too old.

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

SEAL = "transport/fabric/tcp/seal.c"
PROGRAMS = {"commd": "daemon/commd", "commd-engine": "transport/commd-engine"}


class Old:
    def __init__(self, folder):
        self.build = os.path.join(folder, "build")
        with open(os.path.join(folder, "src/shm/proto/commd.proto")) as file:
            proto = file.read()
        self.engine_outlives = "engine_keep" in proto
        self.engine_is_replaced = "fixed64 settings" in proto
        self.engine_under_jobs = "Pause board_pause" in proto
        self.engine_encrypts = os.path.exists(os.path.join(folder, "src", SEAL))


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


def start(node, build, **transport):
    folder = os.path.join(node.cluster.folder, f"programs{node.index}")
    os.mkdir(folder)
    put(build, folder)
    node.write_config(transport={"engine": os.path.join(folder, "commd-engine"), **transport})
    c.COMMD = os.path.join(folder, "commd")
    node.start(arguments=["--keep"])
    return folder


class Upgrade:
    def __init__(self, old, cluster, count, new=0):
        self.old, self.cluster = old, cluster
        self.folders = []
        for node in cluster.nodes:
            self.folders.append(start(node, c.BUILD if node.index < new else old.build))
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

    def rooted(self, name, ranks=None):
        """The last of them begins when the others have."""
        ranks = ranks or self.ranks
        for coll in ("broadcast", "scatter", "gather", "reduce"):
            for order, nbytes in ((ranks, 1000), (ranks[::-1], 1000), (ranks, 300000)):
                for rank in order:
                    rank.start("one_way", name=name, coll=coll, nbytes=nbytes, times=5)
                    check("started" in rank.answer(), coll)
                check(all([rank.finish() for rank in ranks]), f"the results of {coll} in {name}")

    def round(self):
        name = f"round{self.rounds}"
        self.all("stream", name="g", seed=self.rounds, operations=60, max_bytes=200000)
        self.all("mail", name="g", seed=self.rounds, messages=30, max_bytes=100000)
        self.cluster.join(name, self.ranks)
        self.cluster.join(name + "r", self.ranks[::-1])
        self.all("all_reduce", name=name, count=1000)
        self.all("all_reduce", name=name + "r", count=1000)
        self.rooted("g")
        self.rooted(name)
        self.rooted(name + "r", self.ranks[::-1])
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

    def engines_are_new(self, nodes):
        for node in nodes:
            until(lambda node=node: version(node)["engine"] == version_of(c.BUILD),
                  f"the engine of {node.name} is new")  # fmt: skip
        self.cluster.wait_linked()

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
        if len(nodes) > 1 and self.old.engine_under_jobs:
            self.engines_are_new(nodes)
            self.round()
        elif len(nodes) > 1:
            equal([node.engine_pid() for node in nodes], engines, "the engines went on")
        fresh = [self.cluster.rank(node.index) for node in nodes for _ in range(2)]
        self.cluster.join("new", fresh)
        self.all("all_reduce", fresh, name="new", count=1000)
        self.rooted("new", fresh)
        self.all("leave", fresh, name="new")
        self.all("leave", name="g")
        if len(nodes) > 1 and self.old.engine_is_replaced:
            self.engines_are_new(nodes)
        self.cluster.join("last", self.ranks)
        self.all("all_reduce", name="last", count=1000)
        return self.rounds


def too_old(old):
    """A node that encrypts all says so of one that cannot, and that one refuses it, too."""
    with Cluster(2, start=False) as cluster:
        cluster.expect("the engines of nodes .* lost each other")
        new = cluster.nodes[0]
        start(new, c.BUILD, encryption="on")
        start(cluster.nodes[1], old.build)
        serves(new)
        text = "node node1 runs a commd that cannot encrypt: upgrade it"
        until(lambda: any(text in (row["last_error"] or "") for row in new.ctl("nodes")["nodes"]),
              text)  # fmt: skip
        check(text in new.log(), "in the log, too")


def main():
    old = Old(sys.argv[1])
    for count, new in ((1, 0), (2, 0), (2, 1)):
        if count > 1 and not old.engine_outlives:
            print("2x2: not asked: the old commit ends groups over several nodes with their commd")
            break
        begin = time.monotonic()
        with Cluster(count, start=False) as cluster:
            rounds = Upgrade(old, cluster, count, new).run()
        took = time.monotonic() - begin
        begun = f", {new} new from the beginning" if new else ""
        print(f"{count}x2{begun}: ok, {rounds} rounds, no error, {took:.1f} s", flush=True)
    if not old.engine_encrypts:
        too_old(old)
        print("2x1, all to be encrypted: ok, refused and said", flush=True)


if __name__ == "__main__":
    main()
