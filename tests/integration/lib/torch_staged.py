"""Torch programs that hang, or do not: what `commctl why` has to say of each. The programs are in
torch_rank.py; tests/torch/test_why.py asks what is said, tests/bench/why.py how soon.

    with Cluster(2) as cluster:
        staged = stage(cluster, "other_tag")
        until(lambda: staged.named(staged.ask()), ...)
"""

import contextlib
import os
import subprocess
import sys

import cluster as clusters
from cluster import check, now

HERE = os.path.dirname(os.path.abspath(__file__))

# verdict, ranks, the culprit (None: nobody in particular), what the evidence says
SITUATIONS = {
    "other_tag": ("UNMATCHED", 2, None, ["to send to rank 1 with tag 7", "rank 0 with tag 8"]),
    "other_tag_beside_barrier": ("UNMATCHED", 4, None, ["rank 1 with tag 7", "rank 0 with tag 8"]),
    "other_tag_of_a_short_one": (
        "UNMATCHED", 2, None, ["a message of rank 0 with tag 7 has come to rank 1"],
    ),
    "other_rank": ("UNMATCHED", 4, None, ["rank 1 with tag 7", "from rank 0 with tag 7"]),
    "pipeline_stage_hangs": ("NOT_ARRIVED", 3, 1, ["has not"]),
    "batch": ("NOT_ARRIVED", 2, 1, ["waits in recv from rank 1, tag 0"]),
    "sender_stopped": ("RANK_STOPPED", 3, 0, []),
    "both_receive": ("ORDER_INVERSION", 2, None, []),
    "both_send": ("ORDER_INVERSION", 2, None, []),
    "monitored_barrier": ("NOT_ARRIVED", 3, 1, []),
    "stopped": ("RANK_STOPPED", 3, 1, []),
    "sleeps": ("NOT_ARRIVED", 4, 2, ["has not begun it"]),
    "computes": ("NOT_ARRIVED", 3, 2, ["running"]),
    "dies": ("RANK_DEAD", 3, 1, []),
    "leaves": ("NOT_ARRIVED", 3, 1, ["left"]),
    "one_call_more": ("NOT_ARRIVED", 4, None, []),
    "other_shape": ("MISMATCH", 4, 1, []),
    "other_order": ("ORDER_INVERSION", 2, None, []),
    "starts": ("NOT_ARRIVED", 4, None, ["rank 3"]),
    "slow": ("SLOW_RANK", 3, 1, []),
    "gets_on": ("HEALTHY", 3, None, []),
    "messages_get_on": ("HEALTHY", 2, None, []),
}  # fmt: skip
ABSENT = {"starts": 1}  # ranks that are not started


class Process:
    """As cluster.Rank, for Cluster.finish(): the program does not end by itself."""

    def __init__(self, node, program, environment):
        self.node = node
        self.process = subprocess.Popen(
            program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=None if os.environ.get("COMMD_TEST_LOUD") else subprocess.DEVNULL,
        )  # fmt: skip
        self.pid = self.process.pid

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()


class Staged:
    def __init__(self, cluster, name, environment=None):
        self.name, self.cluster = name, cluster
        self.verdict, size, self.culprit, self.says = SITUATIONS[name]
        cluster.expect("was lost|died|lost its|left the group|differ")
        port = clusters.free_port_blocks(1)[0]
        program = [sys.executable, os.path.join(HERE, "torch_rank.py"), name]
        self.ranks = []
        for rank in range(size - ABSENT.get(name, 0)):
            node = cluster.nodes[rank * len(cluster.nodes) // size]
            variables = dict(
                os.environ, RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port), COMMD_SOCKET=node.socket, OMP_NUM_THREADS="1",
                PYTHONDONTWRITEBYTECODE="1", **(environment or {}),
            )  # fmt: skip
            self.ranks.append(Process(node, program, variables))
        cluster.all_ranks += self.ranks
        for rank in self.ranks:
            if name not in ABSENT:
                check(rank.process.stdout.readline() == b"ready\n", f"rank {rank.pid} is ready")
        self.at = now()

    def ask(self, node=0):
        """The finding that is the least well."""
        rows = (self.cluster.nodes[node].ctl("why") or {"why": []})["why"]
        return min(rows, key=lambda row: row["well"], default={"verdict": "no groups"})

    def named(self, row):
        if row["verdict"] != self.verdict or not all(text in row["evidence"] for text in self.says):
            return False
        return self.culprit is None or row["rank"] == self.culprit


def stage(cluster, name, **environment):
    return Staged(cluster, name, environment)
