#!/usr/bin/env python3
"""What `commctl why`, `ops`, `ranks` and `trace` say of operations on GPUs that go by commd-gpu,
and what a rank says itself. All of it is real but the GPU (tests/fakecuda)."""

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
import gpu_driver  # noqa: E402
import staged  # noqa: E402
from cluster import Cluster, check, equal, main, now, until  # noqa: E402

ALL_REDUCE = "all_reduce f32 sum of 100 elements"


class Gpus(Cluster):
    """Each node is a box of its own for the driver."""

    def __init__(self, count=1, environment=None, ranks=None, **keys):
        super().__init__(count, {"gpu": {**gpu_driver.section(), **keys}}, start=False)
        self.environment = environment or {}
        self.of_ranks = ranks or {}

    def box(self, node):
        return {**gpu_driver.environment(node.name), **self.environment}

    def __enter__(self):
        super().__enter__()
        for node in self.nodes:
            gpu_driver.start(self, node, self.box(node))
        self.wait_linked()
        return self

    def rank(self, node, connect=True):
        with c.environment(**dict(self.box(self.nodes[node]), **self.of_ranks)):
            rank = super().rank(node, connect)
        rank.start("gpu_begin")
        rank.finish() if connect else None
        return rank

    def ranks(self, group, places):
        """Joined, and on the device path."""
        ranks = [self.rank(place) for place in places]
        self.join(group, ranks)
        self.together(ranks, name=group)
        return ranks

    @staticmethod
    def together(ranks, **arguments):
        for rank in ranks:
            rank.start("gpu", wait=True, **arguments)
        for rank in ranks:
            rank.finish()

    def gpu_pid(self, node=0):
        return gpu_driver.pid(self.nodes[node])


def why(node, group=None):
    limit = c.Limit()
    rows = node.ctl("why", *([group] if group else []))["why"]
    check(not limit.over(), f"why took {limit.spent():.1f} s of a free machine")
    return {row["name"]: row for row in rows}


def until_why(node, verdict, group="g"):
    seen = {}

    def asked():
        seen.clear()
        seen.update(why(node, group).get(group, {}))
        return seen.get("verdict") == verdict

    until(asked, lambda: f"verdict {verdict}: {seen}")
    return dict(seen)


def everywhere(cluster, verdict):
    with concurrent.futures.ThreadPoolExecutor(len(cluster.nodes)) as pool:
        return list(pool.map(lambda node: until_why(node, verdict), cluster.nodes))


def culprit(row):
    return row["rank"], row["node"], row["pid"]


def says(row, *texts):
    for text in texts:
        check(text in row["evidence"] or text in row["remedy"], f"{text!r} in {row}")


def test_a_rank_that_has_not_announced():
    with Gpus(2) as cluster:
        ranks = cluster.ranks("g", [0, 0, 1])
        for rank in ranks[:2]:
            rank.call("gpu", name="g")
        for row in everywhere(cluster, "NOT_ARRIVED"):
            equal(culprit(row), (2, "node1", ranks[2].pid))
            says(row, 'GPUs of ranks 0-1 wait in operation 2 on GPUs',
                 f"({ALL_REDUCE})", "its process is sleeping",
                 "the last on GPUs that it completed is operation 1",
                 f"py-spy dump --nonblocking --pid {ranks[2].pid}")  # fmt: skip
            check(row["waiting_s"] >= 0.5 and not row["well"], row)
        ops = cluster.nodes[1].ctl("ops", "g")["ops"]
        equal([(o["number"], o["gpu"], o["operation"], o["ranks"], o["missing"]) for o in ops],
              [(2, True, ALL_REDUCE, "0-1", "2")])  # fmt: skip
        rows = cluster.nodes[0].ctl("ranks", "g")["ranks"]
        rows.sort(key=lambda row: row["rank"])  # nodes answer in any order
        equal([(r["gpu_begun"], r["gpu_ended"], r["gpu_ready"]) for r in rows],
              [(2, 1, True), (2, 1, True), (1, 1, None)])  # fmt: skip
        ranks[2].call("gpu", name="g")
        for rank in ranks:
            rank.call("gpu_synchronize")
        until(lambda: cluster.nodes[0].ctl("ops", "g")["ops"] == [], "nothing is pending")
        until_why(cluster.nodes[0], "HEALTHY")


def test_a_rank_whose_gpu_is_behind():
    with Gpus() as cluster:
        ranks = cluster.ranks("g", [0, 0, 0])
        ranks[1].call("gpu_hold")
        for rank in ranks:
            rank.call("gpu", name="g")
        row = until_why(cluster.nodes[0], "GPU_BEHIND")
        equal(culprit(row), (1, "node0", ranks[1].pid))
        says(row, "its stream has not come to it", "nvidia-smi on node node0")
        equal([o["missing"] for o in cluster.nodes[0].ctl("ops", "g")["ops"]], ["1"])
        ranks[1].call("gpu_release")
        ranks[1].call("gpu_synchronize")
        # none of them gets there: they compute
        for rank in ranks:
            rank.call("gpu_hold")
            rank.call("gpu", name="g")
        check(until_why(cluster.nodes[0], "COMPUTE_BOUND")["well"], "not well")
        for rank in ranks:
            rank.call("gpu_release")


def test_a_rank_whose_gpu_is_behind_on_the_host_path():
    with Gpus(ranks={"COMMD_DEVICE_PATH": "host"}) as cluster:
        ranks = cluster.ranks("g", [0, 0])
        ranks[1].call("gpu_hold")
        for rank in ranks:
            rank.call("gpu", name="g")
        row = until_why(cluster.nodes[0], "GPU_BEHIND")
        equal(culprit(row), (1, "node0", ranks[1].pid))
        ranks[1].call("gpu_release")
        ranks[1].call("gpu_synchronize")


def ready(node, group):
    """Ranks whose GPUs have come to an operation."""
    rows = (node.ctl("ranks", group) or {"ranks": ()})["ranks"]
    return {row["rank"] for row in rows if row["gpu_ready"]}


def test_a_rank_that_is_stopped():
    with Gpus() as cluster:
        ranks = cluster.ranks("g", [0, 0])
        ranks[0].call("gpu", name="g")
        os.kill(ranks[1].pid, signal.SIGSTOP)
        equal(culprit(until_why(cluster.nodes[0], "RANK_STOPPED")), (1, "node0", ranks[1].pid))
        os.kill(ranks[1].pid, signal.SIGCONT)
        # who has come, and is stopped then, is not to blame
        third = cluster.ranks("h", [0, 0, 0])
        for rank in third[:2]:
            rank.call("gpu", name="h")
        until(lambda: ready(cluster.nodes[0], "h") == {0, 1}, "their streams have come to it")
        os.kill(third[0].pid, signal.SIGSTOP)
        equal(culprit(until_why(cluster.nodes[0], "NOT_ARRIVED", "h")), (2, "node0", third[2].pid))
        os.kill(third[0].pid, signal.SIGCONT)


def test_an_order_that_is_inverted():
    """Each rank's stream waits in another group, with the operation that is waited for behind."""
    with Gpus() as cluster:
        ranks = cluster.ranks("g", [0, 0])
        cluster.join("h", ranks)
        cluster.together(ranks, name="h")
        for rank, order in zip(ranks, ("gh", "hg")):
            for name in order:
                rank.call("gpu", name=name)
        row = until_why(cluster.nodes[0], "ORDER_INVERSION")
        says(row, 'of group "g" wait in operation 2 on GPUs', 'of group "h" wait in operation 2')


def test_a_rank_that_dies_and_what_is_remembered():
    with Gpus(2) as cluster:
        cluster.expect("lost|died|gone")
        ranks = cluster.ranks("g", [0, 1])
        ranks[1].call("gpu", name="g", count=7)
        ranks[1].kill()
        ranks[0].start("gpu_start", name="g", count=7)
        ranks[0].answer()
        row = until_why(cluster.nodes[0], "RANK_DEAD")
        equal(culprit(row), (1, "node1", ranks[1].pid))
        says(row, "on GPUs it was in operation 2 (all_reduce f32 sum of 7 elements)")
        ranks[0].call("leave", name="g")
        row = until_why(cluster.nodes[1], "RANK_DEAD")
        equal((row["state"], culprit(row)), ("ended", (1, "node1", ranks[1].pid)))
        says(row, "on GPUs it was in operation 2 (all_reduce f32 sum of 7 elements)")
        done = subprocess.run([*c.commctl(cluster.nodes[0]), "trace", "g"],
                              capture_output=True, text=True)  # fmt: skip
        events = [e for e in json.loads(done.stdout)["traceEvents"] if e.get("cat") == "commd-gpu"]
        of_it = [e for e in events if e["id"].startswith("2.")]
        equal(sorted((e["ph"], e["args"]["number"], e["args"]["bytes"]) for e in of_it),
              [("b", 1, 400), ("b", 2, 28), ("e", 1, 400)])  # fmt: skip


def test_ranks_that_do_not_mean_the_same():
    with Gpus() as cluster:
        ranks = cluster.ranks("g", [0, 0])
        works = [rank.call("gpu_start", name="g", count=10 + n) for n, rank in enumerate(ranks)]
        for rank, work in zip(ranks, works):
            equal(rank.call_error("gpu_wait", number=work)["code"], "MISMATCH")
        for state in "open", "ended":
            row = until_why(cluster.nodes[0], "MISMATCH")
            equal(row["state"], state)
            says(row, "operation 2 on GPUs: rank 0 called all_reduce f32 sum of 10 elements",
                 "but rank 1 called all_reduce f32 sum of 11 elements")
            if state == "open":
                for rank in ranks:
                    rank.call("leave", name="g")


def test_commd_gpu_that_hangs_and_dies():
    with Gpus(timeout="60s") as cluster:
        cluster.expect("commd-gpu")
        ranks = cluster.ranks("g", [0, 0])
        pid = cluster.gpu_pid()
        os.kill(pid, signal.SIGSTOP)
        works = [rank.call("gpu_start", name="g") for rank in ranks]
        row = until_why(cluster.nodes[0], "GPU_SERVICE_DEAD")
        equal((row["rank"], row["node"]), (None, "node0"), row)
        says(row, "commd-gpu on node node0 has not answered its commd")
        os.kill(pid, signal.SIGKILL)
        for rank, work in zip(ranks, works):
            equal(rank.call_error("gpu_wait", number=work)["code"], "GPU_LOST")
        row = until_why(cluster.nodes[0], "GPU_SERVICE_DEAD")
        says(row, f"operation 2 on GPUs ({ALL_REDUCE}) of", "ended because commd-gpu was lost")
        for rank in ranks:
            rank.kill()
        until(lambda: not cluster.nodes[0].groups(), "the group is closed")
        equal(why(cluster.nodes[0])["g"]["verdict"], "GPU_SERVICE_DEAD")


def test_nccl_that_hangs():
    with Gpus(2, {"FAKENCCL_HANG_AT": "1:3", "FAKENCCL_DEAF": "1"}, timeout="60s") as cluster:
        cluster.expect("commd-gpu|lost|NCCL")
        ranks = cluster.ranks("g", [0, 1])
        cluster.together(ranks, name="g")
        for rank in ranks:
            rank.call("gpu", name="g")
        row = until_why(cluster.nodes[1], "GPU_STALL")
        equal(row["rank"], None)
        says(row, "all ranks have come to it", "NCCL", "commctl gpus")
        check(row["waiting_s"] >= 5, row)
        for rank in ranks:
            rank.kill()


def test_a_job_that_is_well_is_not_accused():
    with Gpus(2, {"FAKECUDA_DELAY_US": "200"}) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        stuck = cluster.ranks("h", [0, 0])
        stop = os.path.join(cluster.folder, "stop")
        for rank in ranks:
            rank.start("gpu_loop", name="g", pause=0.01, stop=stop)
        for rank in ranks:
            rank.answer()
        stuck[0].call("gpu", name="h")
        until_why(cluster.nodes[0], "NOT_ARRIVED", "h")
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            asked = list(pool.map(lambda n: why(cluster.nodes[n % 2]), range(50)))
            # a node whose answer comes too late is left out
            verdicts = [[rows[g]["verdict"] for rows in asked if g in rows] for g in ("g", "h")]
        check(all(staged.is_well(rows["g"]) for rows in asked if "g" in rows), asked)
        # three ask at a time, and after a pause of the machine nobody is accused
        others = [verdict for verdict in verdicts[1] if verdict != "NOT_ARRIVED"]
        check(len(others) <= 6 and set(others) <= {"HEALTHY"}, verdicts)
        check(len(verdicts[1]) > 20, verdicts)
        says(why(cluster.nodes[0])["g"], "operations on GPUs of its ranks in the last second")
        open(stop, "w").close()
        equal(min(rank.finish() for rank in ranks) > 100, True)


def sent_and_left(rank, after=None):
    """A message that its stream has not come to, and its rank leaves."""
    rank.call("gpu_hold", after=after)
    rank.call("gpu", name="g", coll="send", count=50000, peer=1, tag=3)
    rank.start("leave", name="g")


def test_a_send_without_a_work_goes_out_before_its_rank_leaves():
    with Gpus() as cluster:
        ranks = cluster.ranks("g", [0, 0])
        sent_and_left(ranks[0], 0.5)
        work = ranks[1].call("gpu_start", name="g", coll="recv", count=50000, peer=0, tag=3)
        ranks[1].call("gpu_wait", number=work)
        ranks[0].finish()


def test_a_send_without_a_work_keeps_nobody_for_long():
    """Its stream never comes to it."""
    with Gpus(ranks={"COMMD_TIMEOUT": "2"}) as cluster:
        cluster.expect("died|aborted")
        ranks = cluster.ranks("g", [0, 0])
        begin = now()
        sent_and_left(ranks[0])
        ranks[0].finish()
        check(1.5 < now() - begin, "the limit of the group")
    for end in "kill", "abort":
        with Gpus() as cluster:
            cluster.expect("died|abort")
            ranks = cluster.ranks("g", [0, 0])
            sent_and_left(ranks[0])
            if end == "kill":
                ranks[1].kill()
            else:
                ranks[1].call("abort", name="g", reason="enough")
            ranks[0].finish()


def test_what_is_shown_of_gpus():
    with Gpus() as cluster:
        node = cluster.nodes[0]
        ranks = cluster.ranks("g", [0, 0])
        host = cluster.rank(0)
        until(lambda: node.ctl("gpus")["gpus"][0]["operations"] == 1, "it is told once a second")
        gpu = node.ctl("gpus")["gpus"][0]
        equal((gpu["device"], gpu["uuid"][:4], gpu["state"], gpu["clients"], gpu["groups"]),
              (0, "GPU-", "ok", 2, 1))  # fmt: skip
        check(gpu["mapped"] > 0 and gpu["moved"] >= 800 and gpu["communicators"] == 0, gpu)
        shown = {row["pid"]: row["gpu"] for row in node.ctl("clients")["clients"]}
        equal([shown[rank.pid] for rank in (*ranks, host)], [True, True, False])
        equal(node.ctl("groups")["groups"][0]["gpu"], True)
        equal(node.ctl("status")["status"][0]["gpu"], "up")


SAYS_SO = r'commd: rank 0 of group "g" on node node0 has waited for [0-9.]+ s in operation 2 on '


def test_a_rank_that_waits_says_so():
    with Gpus(ranks={"COMMD_WARN_AFTER": "0.3"}) as cluster:
        ranks, said = cluster.ranks_heard("g", [0, 0, 0])
        for rank in ranks[:2]:
            rank.call("gpu", name="g")
        until(lambda: "rank 2 of this node did not come" in said(), said)
        check(re.search(SAYS_SO, said()), said())
        ranks[2].call("gpu", name="g")
        for rank in ranks:
            rank.call("gpu_synchronize")
        equal(said().count("rank 2 of this node did not come"), 1, said())
        # the host waits, and its own stream has not come so far
        ranks[1].call("gpu_hold")
        works = [rank.call("gpu_start", name="g") for rank in ranks]
        ranks[1].start("gpu_wait", number=works[1])
        until(lambda: "rank 1" in said() and "its own stream has not come to it" in said(), said)
        until(lambda: "the stream of rank 1 of this node has not come to it" in said(), said)
        equal(said().count("its own stream has not come to it"), 1, said())
        for rank in ranks:
            rank.process.kill()


main(globals())
