#!/usr/bin/env python3
"""Tests do not stand on the caches of the machine that they run on: those which know a size run on
machines that described.py describes, too."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import described  # noqa: E402
import test_board_memory  # noqa: E402
from cluster import Cluster, Skip, equal, main  # noqa: E402

KNOW_SIZES = (
    test_board_memory.test_bytes_that_were_left_count,
    test_board_memory.test_share_per_user,
)


def tuning():
    """What commd makes of this machine: {name: value}"""
    with Cluster(1) as cluster:
        return {row["name"]: row["value"] for row in cluster.nodes[0].ctl("tuning")["tuning"]}


def in_a_child(name, function):
    """@function on machine @name. Nothing of it stays: neither a mount nor a namespace."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        described.become(name)
        function()
        code = 0
    except (described.Impossible, Skip) as reason:
        print(f"  {name}: {reason}")
        code = 77
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        os._exit(code)


def on(name):
    def check():
        got = tuning()
        print(f"  {name}: core_cache {got['core_cache']}, cache {got['cache']}, "
              f"chunk {got['chunk']}, depth {got['depth']}")  # fmt: skip
        caches = [f"{kib}K" for _, kib, _ in described.MACHINES[name][-2:]]
        equal([got["core_cache"], got["cache"]], caches)
        for test in KNOW_SIZES:
            test()

    code = in_a_child(name, check)
    if code == 77:
        raise Skip("needs root and a namespace for its mounts")
    equal(code, 0, f"on machine {name}")


def test_zen():
    on("zen")


def test_xeon():
    on("xeon")


def test_small():
    on("small")


if __name__ == "__main__":
    main(globals())
