#!/usr/bin/env python3
"""How soon `commctl why` names what is wrong: each situation in a cluster of its own, and `why`
asked again and again from the event on, until it says the verdict and the culprit. Ranks, nodes and
links are real; verdicts that need a GPU are not among them. Ranks are torch programs
(tests/integration/lib/torch_staged.py): run it by .venv/bin/python. What needs other nodes, or a
pace that Python does not keep, is staged by plain calls (staged.py); their names are in capitals.

    tests/bench/why.py [--rounds N] [SITUATION...]

"after" is the time from the event to that answer, "asked" how many answers it took, "answer" how
long that one took to come: `why` looks at the ranks for a second. Medians over the rounds, and the
longest. It asserts nothing; what is not named within LIMIT seconds is shown as such.
"""

import argparse
import os
import statistics
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration"))
sys.path.insert(0, os.path.join(HERE, "..", "integration", "lib"))
import staged  # noqa: E402
import torch_staged  # noqa: E402
from cluster import Cluster, Skip, now  # noqa: E402
from test_netns import Namespaces  # noqa: E402

LIMIT = 15

PLAIN = {
    "SLOW_LINK": (lambda: Namespaces(transport=staged.SLOW_LINK), (), staged.slow_link),
    "COMPUTE_BOUND": (Cluster, (2,), staged.compute_bound),
    "COMM_BOUND": (Cluster, (2,), staged.comm_bound),
}


def through_torch(name):
    return (Cluster, (2, torch_staged.CHANGES.get(name)),
            lambda cluster: torch_staged.stage(cluster, name))  # fmt: skip


SITUATIONS = {**{name: through_torch(name) for name in torch_staged.SITUATIONS}, **PLAIN}


def plain_answer(node, stage):
    (row,) = node.ctl("why", stage.group)["why"]
    return row


def ask(node, stage):
    """(seconds from the event, answers, seconds of the last one); the first None: not named"""
    answers = 0
    while now() - stage.at < LIMIT:
        begin = now()
        row = stage.ask() if isinstance(stage, torch_staged.Staged) else plain_answer(node, stage)
        answers += 1
        if stage.named(row):
            return now() - stage.at, answers, now() - begin
    print(f"{stage.verdict}: at last {row['verdict']}: {row.get('evidence')!r}", file=sys.stderr)
    return None, answers, now() - begin


def one_round(verdict):
    make, arguments, situation = SITUATIONS[verdict]
    with make(*arguments) as cluster:
        cluster.expect(".")  # of what is staged, the end is no matter
        stage = situation(cluster)
        try:
            return ask(cluster.nodes[0], stage)
        finally:
            stage.go_on()
            for rank in stage.ranks:
                rank.process.kill()
                rank.process.wait()


def show(verdict, rounds):
    times = [after for after, _, _ in rounds if after is not None]
    asked = statistics.median(n for _, n, _ in rounds)
    answer = statistics.median(seconds for _, _, seconds in rounds)
    if times:
        told = f"{statistics.median(times):7.2f} {max(times):8.2f}"
    else:
        told = f"{'not':>7} {'named':>8}"
    lacks = f"   named in {len(times)} of {len(rounds)}" if len(times) < len(rounds) else ""
    print(f"{verdict:26}{told} {asked:6.0f} {answer:9.2f}{lacks}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("verdicts", nargs="*", metavar="SITUATION", help=", ".join(SITUATIONS))
    args = p.parse_args()
    unknown = [verdict for verdict in args.verdicts if verdict not in SITUATIONS]
    if unknown or args.rounds < 1:
        p.error(f"no such situation: {', '.join(unknown)}" if unknown else "--rounds: at least 1")
    print(f"{'':26}{'after s':>7} {'at most':>8} {'asked':>6} {'answer s':>9}")
    for verdict in args.verdicts or SITUATIONS:
        try:
            show(verdict, [one_round(verdict) for _ in range(args.rounds)])
        except Skip as why:
            print(f"{verdict:26}skipped: {why}")


if __name__ == "__main__":
    main()
