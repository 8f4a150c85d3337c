#!/usr/bin/env python3
"""`commctl doctor`: a cluster that is well, and what it says of one that is not."""

import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import COMMCTL, Cluster, check, equal, main, until  # noqa: E402



def doctor(socket):
    done = subprocess.run([COMMCTL, "--socket", socket, "--json", "doctor"],
                          capture_output=True, text=True)  # fmt: skip
    equal(done.stderr, "")
    rows = json.loads(done.stdout)["doctor"]
    for row in rows:
        equal(row["remedy"] is None, row["level"] == "ok", row)
    return done.returncode, rows


def of(rows, check_name):
    return [row for row in rows if row["check"] == check_name]


def test_what_is_well():
    with Cluster(2) as cluster:
        status, rows = doctor(cluster.nodes[0].socket)
        equal(status, 0, rows)  # warnings are this machine's
        equal([row["level"] for row in of(rows, "node node1")][0], "ok", rows)
        check("packets up to" in of(rows, "node node1")[0]["finding"], rows)
        for name in ("commd", "version", "keys", "memory"):
            check(of(rows, name), f"{name} is looked at: {rows}")
        shown = subprocess.run([COMMCTL, "--socket", cluster.nodes[0].socket, "doctor"],
                               capture_output=True, text=True)  # fmt: skip
        equal(shown.returncode, 0)
        check(shown.stdout.splitlines()[-1].startswith(f"{len(rows)} checks, 0 errors"), shown)


def test_a_node_that_is_gone():
    with Cluster(2) as cluster:
        cluster.expect("was lost")
        cluster.expect("the engines of nodes .* lost each other")
        cluster.nodes[1].stop()
        node = cluster.nodes[0]
        until(lambda: "lost" in node.log(), "the loss")
        status, rows = doctor(node.socket)
        equal(status, 1)
        row = of(rows, "node node1")[0]
        equal(row["level"], "error")
        check("nobody listens at" in row["finding"], row)
        check("systemctl start commd" in row["remedy"], row)


def test_a_node_that_drains():
    """It is no other node to itself, and others are told what ends it."""
    with Cluster(2) as cluster:
        node = cluster.nodes[0]
        subprocess.run([COMMCTL, "--socket", node.socket, "drain"], check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        status, rows = doctor(node.socket)
        equal((status, of(rows, "node node0")), (1, []))
        check("draining" in of(rows, "commd")[0]["finding"], rows)
        until(lambda: cluster.nodes[1].ctl("nodes")["nodes"][0]["state"] == "draining",
              "the other one knows")  # fmt: skip
        status, rows = doctor(cluster.nodes[1].socket)
        row = of(rows, "node node0")[0]
        equal((status, row["level"]), (1, "error"))
        check("it is draining" in row["finding"], row)
        check("commctl drain --undo there" in row["remedy"], row)


def test_without_commd():
    status, rows = doctor("/nowhere/commd.sock")
    equal(status, 1)
    check("/nowhere/commd.sock: no commd is listening there" in of(rows, "commd")[0]["finding"],
          rows)  # fmt: skip
    check(of(rows, "memory"), "the machine is looked at all the same")


main(globals())
