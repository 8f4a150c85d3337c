#!/usr/bin/env python3
"""Leaving a group does not pass a limit: who keeps a board's memory goes on paying for it, and
nobody else does. Two users, in processes of their own: one who hoards, one who works.
"""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import Cluster, Skip, check, equal, main, until  # noqa: E402

HOARDER, VICTIM = 4001, 4002
PASSING_FDS = 8
HOWS = ("map", "fd", "flight")


def user(cluster, uid, node=0):
    if os.getuid():
        raise Skip("needs root, for processes of other users")
    os.chmod(cluster.folder, 0o755)
    for each in cluster.nodes:
        os.chmod(each.home, 0o755)
    rank = c.Rank(
        cluster.nodes[node], [sys.executable, os.path.join(c.HERE, "hoarder.py"), str(uid)]
    )
    cluster.all_ranks.append(rank)
    rank.call("connect")
    return rank


def board_fds(pid):
    """Of commd: one for each board that it still counts."""
    return sum(name.startswith("/memfd:commd-board") for name in held(pid))


def held(pid):
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            pass
    return found


def shmem_kb(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(dict(line.split(":", 1) for line in file)["RssShmem"].split()[0])


def hoard_everywhere(ranks, **arguments):
    for number, rank in enumerate(ranks):
        rank.start("hoard", rank=number, size=len(ranks), **arguments)
    return [rank.finish(3 * c.HANG) for rank in ranks]


def test_groups_that_were_left_count():
    """By number: a limit of 8 groups, of 4 for a user."""
    for how in HOWS:
        with Cluster(1, {"limits": {"max_groups": 8, "max_groups_per_user": 4}}) as cluster:
            cluster.expect("could not make its board")
            node = cluster.nodes[0]
            hoarder, victim = user(cluster, HOARDER), user(cluster, VICTIM)
            victim.call("churn", count=20)
            until(lambda: board_fds(node.pid) == 0, "nothing is left of a good user")
            empty = len(held(node.pid)), shmem_kb(node.pid)
            for turn in range(3):
                made, why = hoarder.call("hoard", how=how, first=100 * turn, most=20)
                equal(made, 4 if turn == 0 else 0, f"groups of {how}")
                check("limits.max_groups" in why and "4 of them were left" in why, why)
                victim.call("churn", count=20, prefix=f"v{turn}.")
                until(
                    lambda: board_fds(node.pid) == 4,
                    lambda: f"the hoarder's four: {held(node.pid)}",
                )
            check(len(held(node.pid)) - empty[0] < 5 + PASSING_FDS, held(node.pid))
            check(shmem_kb(node.pid) - empty[1] < 1024, "pages of boards that were left")
            hoarder.call("let_go")
            until(lambda: board_fds(node.pid) == 0, "all is given back")
            made, why = hoarder.call("hoard", how=how, first=1000, most=4)
            equal((made, why), (4, None), "as at the beginning")
            hoarder.close()  # its end gives back, too
            until(lambda: board_fds(node.pid) == 0, "all is given back")


def board_kb():
    """What a board of one rank costs: that follows from the caches of this machine."""
    with Cluster(1) as cluster:
        cluster.ranks("one", [0])
        rows = cluster.nodes[0].ctl("tenants")["tenants"]
        used = [row["used"] for row in rows if row["resource"] == "board_bytes"]
        equal((len(used), used[0] > 0, used[0] % 1024), (1, True, 0), rows)
        return used[0] // 1024


def test_bytes_that_were_left_count():
    """A user may have the half."""
    with Cluster(1, {"limits": {"max_board_bytes": f"{13 * board_kb()}K"}}) as cluster:
        cluster.expect("could not make its board")
        node = cluster.nodes[0]
        hoarder, victim = user(cluster, HOARDER), user(cluster, VICTIM)
        for turn in range(3):
            made, why = hoarder.call("hoard", how="map", first=100 * turn, most=20)
            equal(made, 6 if turn == 0 else 0, why)
            check("limits.max_board_bytes" in why and "6 of them were left" in why, why)
            victim.call("churn", count=20, prefix=f"v{turn}.")
        hoarder.call("let_go")
        until(lambda: board_fds(node.pid) == 0, "all is given back")
        hoarder.call("churn", count=20)


def test_share_per_user():
    """A limit of its own, given; and one user may have all only where that is said."""
    one = board_kb()
    for share, most in ((4 * one - 1, 3), (14 * one - 1, 13)):
        limits = {
            "max_board_bytes": f"{14 * one - 1}K", "max_board_bytes_per_user": f"{share}K",
        }  # fmt: skip
        with Cluster(1, {"limits": limits}) as cluster:
            cluster.expect("could not make its board")
            hoarder = user(cluster, HOARDER)
            made, why = hoarder.call("hoard", how="map", most=20)
            equal(made, most, why)
            check("limits.max_board_bytes" in why, why)


def test_two_nodes():
    """The engines hold the boards, too: what they touched is freed when nobody holds it."""
    with Cluster(2, {"limits": {"max_groups_per_user": 4, "max_groups": 16}}) as cluster:
        cluster.expect("could not make its board")
        hoarders = [user(cluster, HOARDER, node) for node in (0, 1)]
        victims = [user(cluster, VICTIM, node) for node in (0, 1)]

        def work(prefix):
            for number, rank in enumerate(victims):
                rank.start("churn", count=10, prefix=prefix, rank=number, size=2)
            for rank in victims:
                rank.finish(3 * c.HANG)

        work("a")
        for node in cluster.nodes:
            until(lambda node=node: board_fds(node.pid) == 0, "nothing is left of a good user")
        for turn in range(2):
            answers = hoard_everywhere(hoarders, how="map", first=100 * turn, most=8)
            equal([made for made, _ in answers], [4, 4] if turn == 0 else [0, 0], answers)
            work(f"b{turn}.")
        for rank in hoarders:
            rank.close()
        for node in cluster.nodes:
            until(lambda node=node: board_fds(node.pid) == 0, "all is given back")
            until(lambda node=node: not c.memory_files(node.engine_pid()), "and the engine's")


def test_a_good_user_is_never_refused():
    """A thousand groups one after the other, with room for very few at a time."""
    with Cluster(1, {"limits": {"max_groups_per_user": 2, "max_groups": 4}}) as cluster:
        ranks = [user(cluster, VICTIM) for _ in range(2)]
        count = 200 if c.sanitizer_environment() else 1000
        for number, rank in enumerate(ranks):
            rank.start("churn", count=count, rank=number, size=2)
        for rank in ranks:
            rank.finish(6 * c.HANG)
        node = cluster.nodes[0]
        until(lambda: board_fds(node.pid) == 0, "nothing is left")


if __name__ == "__main__":
    main(globals())
