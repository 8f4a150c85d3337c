#!/usr/bin/env python3
"""commd as a service: command line, exit codes, READY=1, reload, drain, stale files."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import COMMCTL, Cluster, check, equal, main, running, until  # noqa: E402


def run(*arguments, environment=None):
    done = c.run([c.COMMD, *arguments], env=dict(os.environ, **(environment or {})))
    return done.returncode, done.stdout, done.stderr


def test_command_line():
    code, out, _ = run("--version")
    equal((code, out), (0, "commd 0.1.0\n"))
    code, out, _ = run("--help")
    equal((code, out.splitlines()[0]), (0, "Usage: commd [OPTION]..."))
    equal(run("--no-such-option")[0], 64)
    equal(run("stray")[0], 64)
    code, _, error = run("--config", "/nonexistent/commd.yaml")
    equal(
        (code, error),
        (78, "/nonexistent/commd.yaml: cannot open: No such file or directory (give the path with "
         "--config FILE; an empty file is valid and means one node with all defaults)\n"),
    )  # fmt: skip


def test_check_config():
    with Cluster(2, start=False) as cluster:
        file = cluster.nodes[0].config
        equal(run("--config", file, "--check-config"), (0, f"{file}: ok\n", ""))
        check(not os.path.exists(cluster.nodes[0].socket), "nothing was touched")
        with open(file, "a") as out:
            out.write("colour: red\n")
        code, out, error = run("--config", file, "--check-config")
        equal((code, out), (78, ""))
        check(': unknown section "colour"' in error or ': unknown key "colour"' in error, error)


def test_check_config_looks_at_the_machine():
    """What is right as text, and not here, has its line, too."""
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as limit:
        first = int(limit.read())
    with Cluster(2, start=False) as cluster:
        node = cluster.nodes[0]
        node.write_config(transport={"device": "nowhere7"})
        code, _, error = run("--config", node.config, "--check-config")
        equal(code, 78)
        place = rf"{node.config}:\d+"
        check(re.match(place + ': transport.device: no network device "nowhere7"', error), error)
        if first <= 80:
            return
        node.write_config(listen={"http": '"127.0.0.1:80"'})
        code, _, error = run("--config", node.config, "--check-config")
        equal(code, 78)
        check(re.match(place + ": listen.http: port 80 is for privileged", error), error)


def test_shipped_configuration_is_valid():
    equal(run("--config", os.path.join(c.TOP, "etc/commd.yaml"), "--check-config")[0], 0)


class NotifySocket:
    """A service manager's end of sd_notify(3)."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "notify.sock")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.path)
        self.sock.settimeout(c.LATEST)

    def wait(self, wanted):
        """Reads until a message has the line @wanted; returns all of its lines."""
        while True:
            lines = self.sock.recv(4096).decode().splitlines()
            if wanted in lines:
                return lines


def test_ready_status_reload_and_stop():
    with Cluster(1, start=False) as cluster:
        node = cluster.nodes[0]
        notify = NotifySocket(cluster.folder)
        node.start({"NOTIFY_SOCKET": notify.path, "WATCHDOG_USEC": "200000"})
        lines = notify.wait("READY=1")
        check(node.ctl("status"), "READY=1 came before clients are served")
        check(any(line.startswith("STATUS=node node0 of cluster test") for line in lines), lines)
        notify.wait("WATCHDOG=1")
        node.process.send_signal(signal.SIGHUP)
        check(any(line.startswith("MONOTONIC_USEC=") for line in notify.wait("RELOADING=1")), "")
        notify.wait("READY=1")
        node.process.send_signal(signal.SIGTERM)
        notify.wait("STOPPING=1")
        equal(c.exit_code(node.process), 0)
        notify.sock.close()
        os.unlink(notify.path)


def value(node, key):
    rows = node.ctl("show", "config")["config"]
    return next(row["value"] for row in rows if row["key"] == key)


def reload(node, *words):
    done = subprocess.run([COMMCTL, "--socket", node.socket, "reload", *words],
                          capture_output=True, text=True)  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_reload():
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        ranks = cluster.ranks("g", [0, 0])
        equal(value(node, "limits.max_clients"), "1024")

        # good: taken over, with clients and groups as they are
        node.write_config(limits={"max_clients": "77"}, timeouts={"join": "1m"})
        node.process.send_signal(signal.SIGHUP)
        until(lambda: value(node, "limits.max_clients") == "77", "the new value")
        equal(value(node, "timeouts.join"), "1m")
        node.wait_log("reload -> configuration .*commd.yaml reloaded$")

        # bad: the old one stays, whole, and who asked hears where and why, as the log does
        cluster.expect(r"commd.yaml:\d+:\d+: limits.max_clients is \"0\"")
        cluster.expect("the new configuration is wrong -> keeping the old one")
        node.write_config(limits={"max_clients": "0"}, timeouts={"join": "2m"})
        code, _, err = reload(node)
        equal(code, 1)
        check(":" in err and 'limits.max_clients is "0"' in err, err)
        node.wait_log("the new configuration is wrong -> keeping the old one")
        equal((value(node, "limits.max_clients"), value(node, "timeouts.join")), ("77", "1m"))

        # keys that need a restart: the others are taken, these are named
        cluster.expect("reloaded, but for listen.socket_mode: that needs a restart")
        node.write_config(limits={"max_clients": "78"}, listen={"socket_mode": "0600"})
        code, out, err = reload(node)
        equal((code, out), (1, ""))
        check("reloaded, but for listen.socket_mode: that needs a restart" in err, err)
        equal(value(node, "limits.max_clients"), "78")
        check(value(node, "listen.socket_mode") != "0600", "it is what the socket has")
        equal(reload(node, "now")[0], 2)

        # unreadable: likewise
        cluster.expect("commd.yaml: cannot open")
        os.unlink(node.config)
        code, _, err = reload(node)
        equal(code, 1)
        check("commd.yaml: cannot open" in err, err)
        node.write_config()
        code, out, err = reload(node)
        equal((code, err), (0, ""))
        check(out.endswith("commd.yaml reloaded\n"), out)
        for rank in ranks:
            rank.start("all_reduce", name="g", count=10)
        for rank in ranks:
            rank.finish()


def test_sigterm_ends_groups_and_leaves_nothing():
    with Cluster(2) as cluster:
        cluster.expect("node node1 was lost")
        cluster.expect("the engines of nodes .* lost each other")
        cluster.expect("UCX +ERROR")
        ranks = cluster.ranks("g", [0, 1])
        local = cluster.ranks("local", [1, 1])
        waiting = cluster.rank(1)
        waiting.start("join", name="never", rank=0, size=2)
        until(lambda: len(cluster.nodes[1].groups()) == 3, "all three groups")
        ranks[0].start("all_reduce", name="g", count=1000)
        node = cluster.nodes[1]
        engine = node.engine_pid()
        equal(node.stop(), 0)
        check(not running(engine), "the engine ended first")
        equal(sorted(os.listdir(node.home)), ["commd.log", "commd.yaml"])

        error = waiting.error()
        equal(error["code"], "NODE_LOST", error)
        error = ranks[0].error()
        equal((error["code"], error["node"]), ("NODE_LOST", "node1"), error)
        check("commd on node node1 is stopping" in error["message"], error["message"])
        error = ranks[1].call_error("all_reduce", name="g", count=1000)
        equal((error["code"], error["node"]), ("NODE_LOST", "node1"), error)
        for rank in local:  # a one-node group needs no daemon
            rank.start("all_reduce", name="local", count=1000)
        for rank in local:
            rank.finish()


def test_restart_after_a_crash():
    """What a killed commd has left does not stop the next one."""
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        rank = cluster.rank(0)
        node.kill()
        check(os.path.exists(node.socket), "the dead one's socket is still there")
        node.start()
        cluster.wait_linked()
        node.wait_log("left over from a commd that is gone -> removed")
        rank.call("join", name="g", rank=0, size=1)  # the client connects again by itself


def test_pid_files():
    with Cluster(2) as cluster:
        for node in cluster.nodes:
            with open(os.path.join(node.home, "commd.pid")) as file:
                equal(int(file.read()), node.pid)
            if len(cluster.nodes) > 1:
                status = node.ctl("status")["status"][0]
                equal((status["pid"], status["engine_pid"]), (node.pid, node.engine_pid()))


def congestion_of(pid):
    """Congestion control of each TCP socket of the process that carries data."""
    lines = subprocess.check_output(["ss", "-Htinp"], text=True).splitlines()
    # a socket is a line with its process, and an indented one that names the algorithm first
    return [
        info.split()[0]
        for line, info in zip(lines, lines[1:], strict=False)
        if f"pid={pid}," in line
    ]


def test_congestion_control():
    if not shutil.which("ss"):
        raise c.Skip("no ss (iproute2)")
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as file:
        if file.read().strip() == "reno":
            raise c.Skip("reno is the default here: that it is set shows nothing")
    with Cluster(2, {"transport": {"congestion_control": "reno"}}) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        for rank in ranks:
            rank.start("all_reduce", name="g", count=1)
        for rank in ranks:
            rank.finish()
        for node in cluster.nodes:
            found = congestion_of(node.engine_pid())
            check(found and set(found) == {"reno"}, f"engine of {node.name}: {found}")
            tuning = {row["name"]: row["value"] for row in node.ctl("tuning")["tuning"]}
            equal(tuning["congestion_control"], "reno")


def test_insecure():
    with Cluster(2, {"cluster": {"key_file": "/nonexistent"}}, start=False) as cluster:
        cluster.expect("--insecure: the links between the nodes use a key that everybody knows")
        for node in cluster.nodes:
            node.start(arguments=["--insecure"])
        cluster.wait_linked()
        equal(cluster.nodes[0].ctl("status")["status"][0]["insecure"], True)


if __name__ == "__main__":
    main(globals())
