"""Torch programs that hang, or do not: what `commctl why` has to say of each. The programs are in
torch_rank.py; tests/torch/test_why.py asks what is said, tests/bench/why.py how soon.

    with Cluster(2) as cluster:
        staged = stage(cluster, "other_tag")
        until(lambda: staged.named(staged.ask()), ...)
"""

import contextlib
import os
import signal
import subprocess
import sys

import cluster as clusters
from cluster import check, now, until

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
    "holds_the_gil": ("NOT_ARRIVED", 3, 2, ["has not begun it"]),
    "in_the_kernel": ("NOT_ARRIVED", 3, 2, ["blocked"]),
    "computes": ("NOT_ARRIVED", 3, 2, ["running"]),
    "dies": ("RANK_DEAD", 3, 1, []),
    "leaves": ("RANK_LEFT", 3, 1, ["left"]),
    "one_call_more": ("NOT_ARRIVED", 4, None, ["did it call one more?"]),
    "other_shape": ("MISMATCH", 4, 1, []),
    "other_order": ("ORDER_INVERSION", 2, None, []),
    "starts": ("NOT_JOINED", 4, None, ["rank 3"]),
    "waiter_stopped": ("NOT_ARRIVED", 4, 2, ["has not begun it"]),
    "killed": ("NOT_ARRIVED", 4, 2, ["were ended while it hung"]),
    "engine_stopped": ("ENGINE_STOPPED", 2, None, ["all ranks have begun it"]),
    "node_killed": ("COMMD_DEAD", 2, None, ["node1"]),
    "slow": ("SLOW_RANK", 3, 1, []),
    "gets_on": ("HEALTHY", 3, None, []),
    "messages_get_on": ("HEALTHY", 2, None, []),
}  # fmt: skip
ABSENT = {"starts": 1}  # ranks that are not started
CHANGES = {"engine_stopped": {"timeouts": {"progress": "60s"}}}  # of the nodes' configuration


def waiter_stopped(staged):
    staged.until_waiting()
    os.kill(staged.ranks[1].pid, signal.SIGSTOP)


def killed(staged):
    until(lambda: (staged.ask().get("waiting_s") or 0) > 6, "they have hung for long")
    for rank in staged.ranks:
        rank.process.terminate()
    for rank in staged.ranks:
        rank.process.wait()


def engine_stopped(staged):
    engine = staged.cluster.nodes[1].engine_pid()
    os.kill(engine, signal.SIGSTOP)
    staged.stopped = [engine]


def node_killed(staged):
    staged.cluster.nodes[1].kill()


# what is done to ranks of another program, once they are ready
EVENTS = {
    "waiter_stopped": ("sleeps", waiter_stopped),
    "killed": ("sleeps", killed),
    "engine_stopped": ("gets_on", engine_stopped),
    "node_killed": ("gets_on", node_killed),
}


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
        cluster.expect("was lost|died|lost|left the group|differ|UCX +ERROR")
        port = clusters.free_port_blocks(1)[0]
        program, event = EVENTS.get(name, (name, None))
        program = [sys.executable, os.path.join(HERE, "torch_rank.py"), program]
        self.stopped = []
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
        if event:
            event(self)
            self.at = now()

    def until_waiting(self):
        until(lambda: self.ask()["verdict"] == "NOT_ARRIVED", "they wait")

    def go_on(self):
        for pid in self.stopped:
            os.kill(pid, signal.SIGCONT)

    def ask(self, node=0):
        """The finding that is the least well."""
        rows = (self.cluster.nodes[node].ctl("why") or {"why": []})["why"]
        return min(rows, key=lambda row: row["well"], default={"verdict": "no groups"})

    def named(self, row):
        if row["verdict"] != self.verdict or not all(
            text in row["evidence"] for text in self.says
        ):
            return False
        return self.culprit is None or row["rank"] == self.culprit


def stage(cluster, name, **environment):
    return Staged(cluster, name, environment)
