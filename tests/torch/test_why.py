#!/usr/bin/env python3
"""What `commctl why` says of torch programs that hang, in messages and before they have begun: each
is staged (torch_staged.py) on two nodes. Needs torch and commd's backend: run it by
.venv/bin/python."""

import os
import subprocess
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../integration/lib"))
from cluster import HANG, Cluster, check, communicate, equal, free_port_blocks  # noqa: E402
from cluster import main, until  # noqa: E402
from torch_staged import stage  # noqa: E402

PATIENCE = 12 * HANG  # ranks import torch


def is_named(name, nodes=2):
    with Cluster(nodes) as cluster:
        staged, seen = stage(cluster, name), {}

        def asked():
            seen.update(staged.ask())
            return staged.named(seen)

        until(asked, lambda: f"{name}: {staged.verdict}: {seen}", PATIENCE)
        return dict(seen)


def test_a_message_with_another_tag():
    row = is_named("other_tag")
    equal(row["rank"], None, row)


def test_a_message_with_another_tag_on_one_node():
    is_named("other_tag", 1)


def test_a_message_with_another_tag_while_others_wait():
    is_named("other_tag_beside_barrier")


def test_a_short_message_with_another_tag():
    is_named("other_tag_of_a_short_one")


def test_a_message_to_another_rank():
    is_named("other_rank")


def test_a_pipeline_whose_stage_hangs():
    is_named("pipeline_stage_hangs")


def test_a_batch_of_messages():
    is_named("batch")


def test_a_monitored_barrier():
    """Rank 0 receives from any rank, and all but one wait."""
    is_named("monitored_barrier")


def test_who_waits_is_one_client():
    """A job has no more connections than ranks, also while they come."""
    size = 4
    program = "import torch.distributed as dist; dist.init_process_group('commd'); dist.barrier()"
    with Cluster(1, {"limits": {"max_clients_per_user": size}}) as cluster:
        (port,) = free_port_blocks(1)
        words = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
        words["COMMD_SOCKET"] = cluster.nodes[0].socket
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", program],
                env=dict(os.environ, **words, RANK=str(rank)),
                stderr=subprocess.PIPE, text=True,
            )
            for rank in range(size)
        ]  # fmt: skip
        ends = [communicate(rank, PATIENCE)[1] for rank in ranks]
        equal([rank.returncode for rank in ranks], size * [0], ends)


def test_ranks_in_the_store():
    """Three of four have come to init_process_group(), and wait in torch's TCPStore."""
    with Cluster(2) as cluster:
        staged, seen, node = stage(cluster, "starts"), {}, cluster.nodes[0]

        def asked():
            seen.update(staged.ask())
            return staged.named(seen) and "ranks 0-2 wait before the join" in seen["evidence"]

        until(asked, lambda: f"all three: {seen}", PATIENCE)
        equal(seen["state"], "starting", seen)
        check("no node tells of rank 3 of 4" in seen["evidence"], seen)
        rows = [row for node in cluster.nodes for row in node.groups()]
        equal({(row["state"], row["size"], row["missing"]) for row in rows}, {("starting", 4, "3")})
        equal(sum(node.ctl("status")["status"][0]["starting"] for node in cluster.nodes), 3)
        for rank in staged.ranks:
            rank.close()
        until(lambda: staged.ask()["state"] == "ended", "they are remembered", PATIENCE)
        equal([row for node in cluster.nodes for row in node.groups()], [])
        said = node.ctl("why")["why"][0]["evidence"]
        check("it ended, or gave up" in said and "in the join" not in said, said)


def test_the_run_of_torchrun():
    """Its id is part of the job's name."""
    with Cluster(1) as cluster:
        staged = stage(cluster, "sleeps", TORCHELASTIC_RUN_ID="llama-7")
        until(lambda: staged.named(staged.ask()), "they hang", PATIENCE)
        row = staged.ask()
        check("torchrun run llama-7" in row["job"], row)


def test_a_rank_in_the_kernel():
    """What is advised must not hang for it."""
    row = is_named("in_the_kernel")
    check("py-spy dump --nonblocking" in row["remedy"], row)


def test_a_sender_that_is_stopped():
    is_named("sender_stopped")


def test_messages_that_get_on():
    """Nobody is accused, as long as it is looked at."""
    with Cluster(2) as cluster:
        staged = stage(cluster, "messages_get_on")
        for _ in range(3):
            row = staged.ask()
            equal(row["verdict"], "HEALTHY", row)


def test_a_wait_for_a_message_goes_on():
    """Its time is that of the message, and the rank says so once."""
    said = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"commd-why.{os.getpid()}")
    with Cluster(1) as cluster, open(said, "w+") as out:
        try:
            saved = os.dup(2)
            os.dup2(out.fileno(), 2)
            os.environ["COMMD_TEST_LOUD"] = "1"
            try:
                stage(cluster, "batch", COMMD_WARN_AFTER="0.5")
            finally:
                os.dup2(saved, 2)
                os.close(saved)
                del os.environ["COMMD_TEST_LOUD"]

            def ops():
                return [row["waiting_s"] for row in cluster.nodes[0].ctl("ops")["ops"]]

            until(lambda: ops() and max(ops()) > 3, ops)

            with open(said) as file:
                lines = [line for line in file if "has waited for" in line]
            equal(len(lines), 1, lines)
            check("to receive from rank 1, tag 0; commctl why says more" in lines[0], lines)
        finally:
            os.unlink(said)


if __name__ == "__main__":
    try:
        subprocess.run([sys.executable, "-c", "import torch, commd.torch"], check=True)
    except subprocess.CalledProcessError:
        print("SKIP: this Python has no torch with commd's backend")
        sys.exit(77)
    main(globals())
