#!/usr/bin/env python3
"""`commctl doctor`: a cluster that is well, and what it says of one that is not."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import COMMCTL, LATEST, TOP, Cluster, check, commctl, equal  # noqa: E402
from cluster import main, until  # noqa: E402


def doctor(socket):
    asks = [COMMCTL, "--socket", socket, "--timeout", str(LATEST), "--json", "doctor"]
    done = subprocess.run(asks, capture_output=True, text=True)
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
        if c.FABRIC != "ucx":
            check("data: clear (loopback), for " in of(rows, "node node1")[0]["finding"], rows)
        for name in ("commd", "version", "keys", "memory"):
            check(of(rows, name), f"{name} is looked at: {rows}")
        shown = subprocess.run([*commctl(cluster.nodes[0]), "doctor"],
                               capture_output=True, text=True)  # fmt: skip
        equal(shown.returncode, 0)
        check(shown.stdout.splitlines()[-1].startswith(f"{len(rows)} checks, 0 errors"), shown)


def test_a_file_that_is_not_in_force():
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        equal(of(doctor(node.socket)[1], "configuration"), [])
        node.write_config(timeouts={"heartbeat": "700ms"}, log={"level": "debug"})
        status, rows = doctor(node.socket)
        (row,) = of(rows, "configuration")
        equal((status, row["level"]), (0, "warning"))
        check("commd.yaml was changed, and is not in force: timeouts.heartbeat, log.level"
              in row["finding"], row)  # fmt: skip
        check("systemctl reload commd" in row["remedy"], row)
        os.kill(node.pid, signal.SIGHUP)
        until(lambda: not of(doctor(node.socket)[1], "configuration"), "the reload")
        node.write_config(limits={"max_groups": "many"})
        (row,) = of(doctor(node.socket)[1], "configuration")
        check("goes on, for its file is wrong by now: " in row["finding"], row)


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
        subprocess.run([*commctl(node), "drain"], check=True,
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


def python_doctor():
    """The module, without its package, which is compiled."""
    path = os.path.join(TOP, "client/python/commd/doctor.py")
    spec = importlib.util.spec_from_file_location("commd_doctor", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_service_that_is_stopped():
    """python -m commd.doctor, before a program would start a commd of its own."""
    doctor = python_doctor()

    def said(root, environment={}):
        report = doctor.Report()
        own = doctor.check_service(environment, report, root)
        return own, [(level, check_name) for level, check_name, _, _ in report.rows], report.rows

    with tempfile.TemporaryDirectory() as folder:
        root, path = f"{folder}/", f"{folder}/commd.sock"
        doctor.SYSTEM_SOCKET = path
        equal(said(root), (False, [], []), "there is none")
        os.makedirs(f"{root}etc/commd")
        open(f"{root}etc/commd/commd.yaml", "w").close()
        own, levels, rows = said(root)
        equal((own, levels), (True, [("warning", "service")]))
        said_of = f"{root}etc/commd/commd.yaml), and {path} does not answer: No such"
        check(said_of in rows[0][2], rows)
        check("systemctl start commd; journalctl -u commd" in rows[0][3], rows)
        os.makedirs(f"{root}usr/lib/systemd/system")
        open(f"{root}usr/lib/systemd/system/commd.service", "w").close()
        equal(said(root)[1], [("warning", "service")], "installed only")
        os.makedirs(f"{root}etc/systemd/system/multi-user.target.wants")
        os.symlink("/usr/lib/systemd/system/commd.service",
                   f"{root}etc/systemd/system/multi-user.target.wants/commd.service")  # fmt: skip
        open(path, "w").close()
        own, levels, rows = said(root)
        equal((own, levels), (True, [("error", "service")]))
        check("commd is enabled here as a service" in rows[0][2], rows)
        own, levels, rows = said(root, {"COMMD_SOCKET": "/nowhere/commd.sock"})
        equal((own, levels), (False, [("error", "service")]))
        check("COMMD_SOCKET is set, and /nowhere/commd.sock does not answer" in rows[0][2], rows)
        os.unlink(path)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(path)
            sock.listen()
            equal(said(root), (False, [], []), "it answers")
            equal(said(root, {"COMMD_SOCKET": path}), (False, [], []), "it answers")


def test_a_remedy_that_helps():
    """Where no service is installed, systemctl start commd is none."""
    forbidden = {"COMMD_AUTOSTART": "0"}
    with tempfile.TemporaryDirectory() as folder:
        def said(environment):
            return python_doctor().connection_remedy(environment, f"{folder}/")

        check("take COMMD_AUTOSTART=0 out" in said(forbidden), said(forbidden))
        for environment in ({}, dict(forbidden, COMMD_SOCKET="/nowhere/commd.sock")):
            check("systemctl start commd" in said(environment), said(environment))
        os.makedirs(f"{folder}/etc/commd")
        open(f"{folder}/etc/commd/commd.yaml", "w").close()
        check("systemctl start commd" in said(forbidden), said(forbidden))


main(globals())
