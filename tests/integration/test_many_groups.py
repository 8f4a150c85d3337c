#!/usr/bin/env python3
"""Thousands of groups: no descriptor, thread or socket for one that is alive, little memory, and
all of it given back. COMMD_TEST_GROUPS sets their number (2000; 500 with a sanitizer).

Counts of boards are exact. Memory that a process keeps for the next group is no leak: so the same
is done twice, and what counts is that the second time needs no more than the first.
"""

import contextlib
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import Cluster, check, equal, main, until  # noqa: E402

COUNT = int(os.environ.get("COMMD_TEST_GROUPS", "500" if c.sanitizer_environment() else "2000"))
PATIENCE = 30 * c.HANG
PER_GROUP_KB = 64  # alive, per node: board and what commd and its engine keep
PASSING_FDS = 8  # against hundreds of groups
SLACK_KB = 512  # of a process, between two rounds: a quarter of a KiB per group would show


def process(pid):
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    with open(f"/proc/{pid}/maps") as file:
        boards = sum("/memfd:commd" in line for line in file)
    files = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            files += os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/memfd:commd-board")
    kb = {key: int(status[key].split()[0]) for key in ("VmRSS", "RssShmem")}
    return {
        "fds": len(os.listdir(f"/proc/{pid}/fd")), "threads": int(status["Threads"]),
        "boards": boards, "kb": kb["VmRSS"] - kb["RssShmem"], "files": files,
    }  # fmt: skip


def board_kb(pid):
    """Memory behind all boards that the process maps; None where the kernel does not say."""
    total = 0
    try:
        with open(f"/proc/{pid}/maps") as file:
            for line in file:
                if "/memfd:commd" in line:
                    place = re.sub(r"\b0+(?=[0-9a-f])", "", line.split()[0])
                    total += os.stat(f"/proc/{pid}/map_files/{place}").st_blocks // 2
    except PermissionError:
        return None
    return total


class Crowd:
    """Ranks that make the same groups, and the daemons under them."""

    def __init__(self, cluster, places):
        self.cluster = cluster
        self.ranks = []
        program = [sys.executable, os.path.join(c.HERE, "many.py")]
        for place in places:
            rank = c.Rank(cluster.nodes[place], program)
            cluster.all_ranks.append(rank)
            self.ranks.append(rank)
            rank.call("connect")

    def all(self, do, **arguments):
        for number, rank in enumerate(self.ranks):
            own = dict(arguments, rank=number, size=len(self.ranks)) if do == "make" else arguments
            rank.start(do, **own)
        for rank in self.ranks:
            rank.finish(PATIENCE)

    def counts(self):
        """Of every process, by name."""
        found = {f"rank {i}": rank.call("counts") for i, rank in enumerate(self.ranks)}
        for node in self.cluster.nodes:
            found[f"commd of {node.name}"] = process(node.pid)
            if node.engine_pid():
                found[f"engine of {node.name}"] = process(node.engine_pid())
        return found

    def settled(self, boards):
        """The counts, as soon as every process has mapped just as many boards. commd has the file
        of each, too, until it sees that nobody else holds it, and ranks of one node have a lock in
        it; fds are counted without these. Of its threads that close descriptors one stays."""

        def there(name, count):
            return count["boards"] == boards and (
                not name.startswith("commd") or (count["files"] == boards and count["threads"] == 2)
            )

        until(
            lambda: all(there(*item) for item in self.counts().items()),
            lambda: f"{boards} boards each: {self.counts()}", PATIENCE,
        )  # fmt: skip
        return self.counts()


def flat(now, before):
    """Not a descriptor or thread per group. A link or a question of commctl may come and go."""
    for name, count in now.items():
        other = count["fds"] - count.get("files", 0)
        check(abs(other - before[name]["fds"]) < PASSING_FDS, f"{name}: {count}, {before[name]}")
        equal(count["threads"], before[name]["threads"], name)


def memory_is_small(crowd, empty, full):
    for node in crowd.cluster.nodes:
        boards = board_kb(node.pid)
        if boards is None:
            print("not allowed to look at /proc/PID/map_files: the boards' memory is not checked")
            boards = 0
        kept = sum(
            full[name]["kb"] - empty[name]["kb"] for name in full if name.endswith(node.name)
        )
        print(f"{node.name}: {boards / COUNT:.1f} KiB of board and {kept / COUNT:.1f} KiB of "
              "daemons per group")  # fmt: skip
        check((boards + kept) / COUNT < PER_GROUP_KB, "too much")


def grown(after, empty):
    """Whose memory has grown in every lap but the first: that of a hole in the heap grows once."""
    if c.sanitizer_environment():  # which keeps what was freed
        return []
    laps = list(zip(after, after[1:]))
    return [n for n in empty if all(b[n]["kb"] - a[n]["kb"] >= SLACK_KB for a, b in laps)]


def many_groups(cluster, places):
    crowd = Crowd(cluster, places)
    crowd.all("make", prefix="first", count=1)  # brings the doorbells
    crowd.all("use")
    crowd.settled(1)
    crowd.all("drop")
    empty = crowd.settled(0)
    after = []
    for lap in range(3):
        if lap == 2 and not grown(after, empty):
            break
        crowd.all("make", prefix=f"lap{lap}.", count=COUNT)
        full = crowd.settled(COUNT)
        flat(full, empty)
        if lap == 0 and not c.sanitizer_environment():
            memory_is_small(crowd, empty, full)
        for node in cluster.nodes:
            groups = node.groups()
            equal((len(groups), {group["state"] for group in groups}), (COUNT, {"open"}))
        crowd.all("use")
        if lap == 0 and not c.sanitizer_environment():
            memory_is_small(crowd, empty, crowd.counts())
        crowd.all("drop")
        after.append(crowd.settled(0))
        flat(after[-1], empty)
    equal(grown(after, empty), [], f"more after each lap: {after}")


def test_one_node():
    with Cluster(1) as cluster:
        many_groups(cluster, [0, 0])


def test_two_nodes():
    with Cluster(2) as cluster:
        many_groups(cluster, [0, 0, 1, 1])


if __name__ == "__main__":
    main(globals())
