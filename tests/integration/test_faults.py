#!/usr/bin/env python3
"""Each scenario of faults.py once; the times are printed, only a hang or a wrong error fails.

And two that have no time: an abort, and a rank that is stopped and comes back.
"""

import os
import signal
import sys

sys.dont_write_bytecode = True
import faults  # noqa: E402
from cluster import Cluster, check, equal, main, need_ucx, until  # noqa: E402


def once(scenario):
    def test():
        times = scenario()
        print(f"  time to error: {', '.join(f'{t:.1f}' for t in times)} ms: {scenario.__doc__}")

    return test


for _scenario in faults.SCENARIOS:
    globals()[f"test_{_scenario.__name__}"] = once(_scenario)


def test_abort_ends_the_group_for_everybody():
    need_ucx()
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 0, 1, 1])
        for rank in ranks[:3]:
            rank.start("all_reduce", name="g", count=1000)
        ranks[3].call("abort", name="g", reason="the loss is NaN")
        for rank in ranks[:3]:
            error = rank.error()
            equal(error["code"], "ABORTED")
            equal(
                error["message"],
                'operation 1 (all_reduce) of group "g": rank 3 aborted the group: the loss is NaN',
            )
        for rank in ranks:
            equal(rank.call_error("all_reduce", name="g", count=1)["code"], "ABORTED", "later ones too")
        faults.leave("g", ranks)
        faults.new_group_works(cluster, ranks)
        faults.nothing_is_held(cluster)


def test_a_stopped_rank_is_not_lost():
    """Waiting for who has not come is no failure, unless the caller set a limit."""
    with Cluster(1) as cluster:
        ranks = cluster.ranks("g", [0, 0, 0])
        os.kill(ranks[2].pid, signal.SIGSTOP)
        for rank in ranks[:2]:
            rank.start("all_reduce", name="g", count=1000)
        ranks[2].start("all_reduce", name="g", count=1000)
        until(lambda: cluster.nodes[0].groups()[0]["state"] == "open", "the group is open")
        os.kill(ranks[2].pid, signal.SIGCONT)
        for rank in ranks:
            rank.finish()


def test_a_limit_names_who_did_not_come():
    with Cluster(1) as cluster:
        ranks = cluster.ranks("g", [0, 0, 0])
        os.kill(ranks[2].pid, signal.SIGSTOP)
        for rank in ranks[:2]:
            rank.start("all_reduce", name="g", count=1000, timeout_ms=300)
        for rank in ranks[:2]:
            error = rank.error()
            equal(error["code"] in ("TIMEOUT", "ABORTED"), True, error)
            check("rank 2 of node node0 did not come" in error["message"], error["message"])
        os.kill(ranks[2].pid, signal.SIGCONT)


if __name__ == "__main__":
    main(globals())
