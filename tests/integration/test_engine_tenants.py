#!/usr/bin/env python3
"""Two users on two nodes: what one does to the way between the engines does not reach the other."""

import os
import select
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import Cluster, Skip, check, equal, main, until  # noqa: E402

PROGRAM = os.path.join(c.BUILD, "tests/integration/lib/hostile_mail")
STRANGER = 4001


def hostile(node, *arguments):
    """As another user, who owns nothing here."""
    if os.geteuid() != 0:
        raise Skip("needs root, to be two users")
    environment = dict(os.environ, COMMD_SOCKET=node.socket)
    return subprocess.Popen(
        [PROGRAM, *map(str, arguments)], env=environment, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, user=STRANGER, group=STRANGER, extra_groups=[],
    )  # fmt: skip


def open_doors(cluster):
    """The stranger reaches sockets and program."""
    for folder in [cluster.folder, *(node.home for node in cluster.nodes)]:
        os.chmod(folder, 0o755)


def work(ranks, rounds):
    """all_reduce, small and larger, with the sums looked at."""
    for _ in range(rounds):
        for rank in ranks:
            rank.start("all_reduce", name="good", count=4, fill=0)
        for rank in ranks:
            equal(rank.finish(), "00" * 16)
        for rank in ranks:
            rank.start("all_reduce", name="good", count=4096, dtype="u8", fill=3)
        for rank in ranks:
            equal(rank.finish(), "06" * 16)


def test_mail_for_a_group_that_was_left():
    """300 groups opened and closed, then 300 parts of 256 KiB for one that nobody there knows."""
    with Cluster(2) as cluster:
        open_doors(cluster)
        good = cluster.ranks("good", [0, 1])
        engines = [node.engine_pid() for node in cluster.nodes]
        bad = [hostile(node, rank, 300, 300) for rank, node in enumerate(cluster.nodes)]
        try:
            done = [False, False]

            def all_done():
                work(good, 1)
                for i, process in enumerate(bad):
                    check(
                        process.poll() is None,
                        f"rank {i} of the stranger ended with {process.poll()}",
                    )
                    if not done[i] and select.select([process.stdout], [], [], 0)[0]:
                        done[i] = process.stdout.readline().startswith(b"done")
                return all(done)

            until(all_done, "the stranger has written all", 6 * c.HANG)
            work(good, 20)
            equal([node.engine_pid() for node in cluster.nodes], engines, "the engines")
            for node in cluster.nodes:
                check("lost each other" not in node.log(), f"the log of {node.name}")
            cluster.join("more", good)  # also what comes afterwards
        finally:
            for process in bad:
                process.kill()
                process.wait()
                process.stdin.close()
                process.stdout.close()


if __name__ == "__main__":
    main(globals())
