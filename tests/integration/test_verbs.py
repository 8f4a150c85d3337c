#!/usr/bin/env python3
"""The verbs of commctl that change something, wait for something or go on: what they print, their
exit codes, what the ranks are told, and what another user may not."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import LATEST, Cluster, check, commctl, equal, main, until  # noqa: E402
from keeping import gap, kept_nodes, restart  # noqa: E402
from test_turns import HOSTILE, VICTIM, as_user, open_to_all, victims  # noqa: E402

CONTAINED = 0xFFFFFFF1  # CORE_CONTAINED_UID


def ctl(node, *words, user=()):
    """(exit code, stdout, stderr)"""
    done = subprocess.run([*user, *commctl(node), *words], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def begin(node, *words, **more):
    return subprocess.Popen(
        [*commctl(node), *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more,
    )  # fmt: skip


def state_of(node, name):
    return {row["node"]: row["state"] for row in node.ctl("nodes")["nodes"]}[name]


# ---- drain and wait ----------------------------------------------------------------------------


def test_drain():
    with Cluster(2) as cluster:
        a, b = cluster.nodes
        ranks = cluster.ranks("runs", [0, 1])
        late = cluster.rank(0)
        late.start("join", name="never full", rank=0, size=2)
        until(lambda: len(a.groups()) == 2, "the join waits")
        drain = begin(a, "drain", "--wait", "60")
        equal(
            drain.stdout.readline(),
            "node node0 is draining; groups that go on until they end: 1\n",
        )
        error = late.error()
        equal((error["code"], error["node"]), ("DENIED", "node0"))
        check("node node0 is draining, it takes no new clients and groups" in str(error), error)
        until(lambda: state_of(b, "node0") == "draining", "the other node sees it")
        equal(state_of(a, "node0"), "draining")
        code, out, err = ctl(a, "status")
        equal(code, 1)
        check("draining" in out and "until commctl drain --undo" in err, out + err)
        # who runs goes on, with new parts; who is new does not come in
        cluster.join("part", ranks)
        newcomer = cluster.rank(0, connect=False)
        error = newcomer.call_error("connect")
        check(error["code"] == "DENIED" and "node node0 is draining" in str(error), error)
        other = cluster.rank(1)
        other.call("join", name="elsewhere", rank=0, size=1)
        code, _, err = ctl(a, "--timeout", "0.3", "wait", "--for", "idle")
        equal(code, 3)
        equal(err, "commctl: not within 0.3 s: groups that still run on node node0: 2\n")
        code, out, _ = ctl(a, "--timeout", "0.3", "--json", "wait", "--for", "idle")
        (row,) = json.loads(out)["wait"]
        equal((code, row["for"], row["reached"]), (3, "idle", False))
        check(row["missing"], row)
        code, _, err = ctl(b, "--timeout", "0.3", "wait", "--for", "nodes=2")
        equal(code, 3)
        equal(err, "commctl: not within 0.3 s: 1 of 2 nodes are up; node node0 is draining\n")
        for rank in ranks:
            for group in ("part", "runs"):
                rank.call("leave", name=group)
        equal(drain.wait(), 0)
        check("groups that still run on node node0: " in drain.stderr.read(), "progress is told")
        equal(ctl(a, "drain", "--undo"), (0, "node node0 takes new groups\n", ""))
        equal(ctl(a, "--timeout", str(LATEST), "wait"), (0, "", ""))
        code, out, _ = ctl(a, "--timeout", str(LATEST), "--json", "wait")
        row = {"for": "ready", "reached": True, "missing": None}
        equal((code, json.loads(out)["wait"]), (0, [row]))
        code, out, err = ctl(a, "--json", "kick", "nobody")
        equal((code, json.loads(out)["change"][0]["done"]), (1, None))
        equal("commctl: " + json.loads(out)["change"][0]["error"] + "\n", err)
        equal(ctl(b, "--timeout", str(LATEST), "wait", "--for", "nodes=all"), (0, "", ""))
        cluster.join("again", ranks)


def http(port, path):
    with contextlib.suppress(urllib.error.HTTPError):
        return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").read().decode()
    return None


def test_drain_interrupted_goes_on():
    with Cluster(1, start=False) as cluster:
        node = cluster.nodes[0]
        node.write_config(listen={"socket": node.socket, "http": f"127.0.0.1:{node.port}"})
        cluster.start()
        equal(http(node.port, "/readyz"), "ready\n")
        cluster.ranks("runs", [0])
        drain = begin(node, "drain", "--wait", str(LATEST))
        drain.stdout.readline()
        drain.stderr.readline()
        drain.send_signal(signal.SIGINT)
        equal(drain.wait(), 130)
        equal(state_of(node, "node0"), "draining")
        equal(http(node.port, "/readyz"), None)
        check(http(node.port, "/healthz"), "it lives")


def test_wait_for_what_comes():
    with Cluster(2, start=False) as cluster:
        a, b = cluster.nodes
        waits = begin(a, "--timeout", str(LATEST), "wait", "--for", "nodes=2")
        a.start()
        until(lambda: a.ctl("status"), "one node is up")
        code, _, err = ctl(a, "--timeout", "0.2", "wait")
        equal(code, 3)
        check("node node1 is down" in err, err)
        b.start()
        equal(waits.wait(), 0)
        cluster.wait_linked()
        waits = begin(a, "--timeout", str(LATEST), "wait", "--for", "group=g")
        rank = cluster.rank(0)
        rank.start("join", name="g", rank=0, size=2)
        until(lambda: a.groups(), "a rank joins")
        code, _, err = ctl(a, "--timeout", "0.2", "wait", "--for", "group=g")
        equal((code, err.count("\n")), (3, 1))
        check('group "g" is joining' in err, err)
        second = cluster.rank(1)
        second.call("join", name="g", rank=1, size=2)
        rank.finish()
        equal(waits.wait(), 0)
        for wrong in ("nodes=0", "nodes=x", "group=", "never"):
            code, _, err = ctl(a, "wait", "--for", wrong)
            equal(code, 2, err)


# ---- events ------------------------------------------------------------------------------------


def events(node, *words, user=()):
    code, out, err = ctl(node, "--json", "events", *words, user=user)
    equal((code, err), (0, ""))
    return json.loads(out)["events"]


class Follower:
    """commctl events --follow; its lines as objects."""

    def __init__(self, node, user=()):
        self.process = subprocess.Popen(
            [*user, *commctl(node), "--json", "events", "--follow"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def until(self, event, text=""):
        for line in self.process.stdout:
            row = json.loads(line)
            if row.get("event") == event and text in row["text"]:
                return row
        raise AssertionError(f"no {event}: {self.process.stderr.read()}")

    def numbers_until(self, event):
        """Of all lines up to that one."""
        rows = []
        for line in self.process.stdout:
            rows.append(json.loads(line))
            if rows[-1].get("event") == event:
                return [row.get("number", row) for row in rows]
        raise AssertionError(f"no {event}: {self.process.stderr.read()}")

    def close(self):
        self.process.send_signal(signal.SIGINT)
        equal(self.process.wait(), -signal.SIGINT)


def test_events():
    with Cluster(2) as cluster:
        cluster.expect("node node0 was lost")
        cluster.expect("lost each other")
        a, b = cluster.nodes
        follower = Follower(a)
        follower.until("start")
        follower.until("node_up", "node node1 is ready")
        ranks = cluster.ranks("g", [0, 1])
        equal(follower.until("client_come", f"pid {ranks[0].pid}, ")["uid"], os.geteuid())
        follower.until("group_open", 'group "g": 2 ranks on 2 nodes')
        ranks[1].kill()
        follower.until("rank_lost", "rank 1")
        ctl(a, "kick", "g", "--reason", "over")
        follower.until("group_failed", "ended by root with commctl kick on node node0")
        ctl(a, "kick", "pid", str(ranks[0].pid))
        follower.until("client_refused", "with commctl kick on node node0 -> kicked")
        follower.until("client_gone", f"client pid {ranks[0].pid}: it was kicked")
        ctl(a, "drain")
        follower.until("drain", "by root -> no new clients and groups")
        ctl(a, "drain", "--undo")
        a.write_config(log={"level": "debug"})
        a.process.send_signal(signal.SIGHUP)
        follower.until("config", "reloaded")
        os.kill(a.engine_pid(), signal.SIGKILL)
        cluster.expect("the engine of node node0 was lost")
        follower.until("engine_lost")
        follower.until("engine_up")
        rows = events(a)
        numbers = [row["number"] for row in rows]
        equal(numbers, sorted(set(numbers)))
        check(all(row["time"].endswith("Z") and len(row["time"]) == 24 for row in rows), rows)
        equal(events(a, "--since", "0s"), [])
        equal(events(a, "--since", "1h"), rows)
        about = events(a, "g")
        check(about and all('group "g"' in row["text"] for row in about), about)
        equal([row for row in rows if 'group "g"' in row["text"]], about)
        equal({row["event"] for row in events(a, "--kind", "node_up,engine_up")},
              {"node_up", "engine_up"})  # fmt: skip
        equal(events(a, "other"), [])
        for kinds in ("rank_los", "node_up,rank_los", "rank_los,node_up"):
            code, out, err = ctl(a, "events", "--kind", kinds)
            equal((code, out), (2, ""))
            check("--kind rank_los: no such kind; the kinds are start," in err, err)
        kinds = err.split()[-1]
        equal(events(a, "--kind", kinds), events(a))
        code, out, _ = ctl(a, "events")
        check(code == 0 and "  node_up  " in out and out.count("\n") >= len(rows), out)
        # commd ends, and another one is started: its events begin anew, and are followed
        equal(a.stop(), 0)
        check("waiting for it" in follower.process.stderr.readline(), "it is said")
        a.start()
        equal(follower.until("start")["number"], 1)
        follower.close()
        cluster.wait_linked()


def test_events_go_on_when_commd_is_killed():
    with kept_nodes(1) as cluster:
        node = cluster.nodes[0]
        open_to_all(cluster)
        os.chmod(node.socket, 0o666)
        follower, other = Follower(node), Follower(node, user=as_user(HOSTILE))
        last = follower.numbers_until("start")
        equal((last, other.numbers_until("start")), ([1], [1]))
        ranks = cluster.ranks("g", [0] * 3)
        last = follower.numbers_until("group_open")
        for _ in range(2):  # the second one takes over from one that took over
            before = events(node)
            restart(node)
            rows = events(node)
            equal(rows[: len(before)], before)
            # no gap, and nothing twice; another user sees what is everybody's
            numbers = follower.numbers_until("start")
            equal(numbers, list(range(last[-1] + 1, last[-1] + 1 + len(numbers))))
            equal(other.numbers_until("start"), numbers[-1:])
            last = numbers
        with gap(node):
            ranks[2].kill()
        cluster.all_ranks.remove(ranks[2])
        numbers = follower.numbers_until("rank_lost")
        equal(numbers, list(range(last[-1] + 1, last[-1] + 1 + len(numbers))))
        follower.close()
        other.close()


def test_a_file_that_was_changed():
    """commd reads it anew for those who may change something, and for nobody else."""
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        open_to_all(cluster)
        os.chmod(node.socket, 0o666)
        equal((ctl(node, "show", "config")[0], ctl(node, "show", "config")[2]), (0, ""))
        node.write_config(timeouts={"heartbeat": "700ms"})
        code, out, err = ctl(node, "show", "config")
        equal(code, 1)
        check("timeouts.heartbeat" in out and "not in force: timeouts.heartbeat\n" in err, err)
        code, _, err = ctl(node, "show", "config", user=as_user(HOSTILE))
        equal((code, err), (0, ""))


def test_events_of_others():
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        open_to_all(cluster)
        os.chmod(node.socket, 0o666)
        rank = victims(cluster, [0])[0]
        rank.call("join", name="secret", rank=0, size=1)
        rank.call("leave", name="secret")
        owner, stranger = as_user(VICTIM), as_user(HOSTILE)
        check("group_ended" in {row["event"] for row in events(node, user=owner)}, "the owner's")
        equal({row["event"] for row in events(node, user=stranger)}, {"start"})
        slow = Follower(node, user=stranger)
        slow.until("start")
        os.kill(slow.process.pid, signal.SIGSTOP)
        for _ in range(15):
            for number in range(20):
                rank.call("join", name=f"flood{number}", rank=0, size=1)
                rank.call("leave", name=f"flood{number}")
        check(len(events(node)) == 512, "bounded")
        check("start" in {row["event"] for row in events(node)}, "what is everybody's stays")
        for _ in range(140):
            ctl(node, "drain")
            ctl(node, "drain", "--undo")
        os.kill(slow.process.pid, signal.SIGCONT)
        line = json.loads(slow.process.stdout.readline())
        check(line["lost"] == 280 - 256, line)
        slow.close()
        equal({row["uid"] for row in events(node, user=stranger)}, {None})


def contained(node):
    """Prefixes under which uid 0 is not root of the machine."""
    ways = [["setpriv", "--bounding-set=-sys_admin"]]
    namespace = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*namespace, "true"], capture_output=True).returncode == 0:
        ways.append(namespace)
    equal(ctl(node, "log-level", "info", user=["setpriv", "--bounding-set=-net_raw"])[0], 0)
    return ways


def test_root_of_a_container():
    """It has the uid of root, and is a user as others are."""
    with Cluster(2) as cluster:
        open_to_all(cluster)
        node = cluster.nodes[0]
        cluster.ranks("roots", [0, 1])
        for user in contained(node):
            for words in (("log-level", "debug"), ("drain",), ("reload",)):
                code, _, err = ctl(node, *words, user=user)
                equal(code, 2, words)
                check("only root of this machine, with CAP_SYS_ADMIN, and" in err, err)
            code, out, err = ctl(node, "kick", "roots", user=user)
            equal((code, out), (1, ""))
            check('no group "roots"' in err, err)
            for verb in ("groups", "clients", "why", "ranks"):
                for asked in cluster.nodes:
                    code, out, err = ctl(asked, "--json", verb, user=user)
                    check('"roots"' not in out and "rank.py" not in out, out)
        err = ctl(node, "status", user=as_user(CONTAINED))[2]
        check("keeps the number of its user for itself" in err, err)
        cluster.expect(f"uid {CONTAINED}: commd keeps the number")


def test_root_beside_commd_in_a_container():
    """It has all that a commd has that runs as root there, and is root to it."""
    with Cluster(1, start=False) as cluster:
        open_to_all(cluster)
        node = cluster.nodes[0]
        node.prefix = ["setpriv", "--bounding-set=-sys_admin"]
        cluster.start()
        equal(ctl(node, "drain", user=node.prefix)[0], 0)


def test_log_level():
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        open_to_all(cluster)
        os.chmod(node.socket, 0o666)
        code, out, err = ctl(node, "log-level", "debug", user=as_user(HOSTILE))
        equal((code, out), (2, ""))
        check("only root, and the user that commd runs as" in err, err)
        equal(node.ctl("log-level")["log_level"], [{"level": "info", "configured": "info"}])
        code, out, _ = ctl(node, "log-level", "debug")
        equal(code, 0)
        equal(
            out,
            "the log level of node node0 is debug (it was info), until a reload or a restart\n",
        )
        equal(node.ctl("log-level")["log_level"], [{"level": "debug", "configured": "info"}])
        said = [event["text"] for event in node.ctl("events")["events"]]
        check("commctl log-level by root -> debug" in said, said)
        cluster.ranks("g", [0])
        node.wait_log(r'debug: group "g": 1 ranks on 1 nodes -> open')
        node.process.send_signal(signal.SIGHUP)
        node.wait_log("reloaded")
        equal(node.ctl("log-level")["log_level"][0]["level"], "info")
        code, _, err = ctl(node, "log-level", "loud")
        equal((code, err), (1, "commctl: the level of a log is error, warn, info or debug\n"))


# ---- watching ----------------------------------------------------------------------------------


class Terminal:
    """commctl at a terminal of its own."""

    def __init__(self, node, *words, columns=40, **environment):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 5, columns, 0, 0))
        self.process = subprocess.Popen(
            [*commctl(node), *words], stdout=slave, stderr=slave,
            env=dict(os.environ, TERM="xterm", **environment),
        )  # fmt: skip
        os.close(slave)
        self.text = ""

    def until(self, text):
        while text not in self.text:
            check(select.select([self.master], [], [], LATEST)[0], f"no {text!r} in {self.text!r}")
            self.text += os.read(self.master, 65536).decode()
        before, _, self.text = self.text.partition(text)
        return before

    def rest(self):
        code = self.process.wait()
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 65536):
                self.text += data.decode()
        os.close(self.master)
        return code, self.text


ENTER, LEAVE = "\033[?1049h", "\033[?1049l"


def test_watch():
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        terminal = Terminal(node, "--watch", "0.2", "nodes")
        terminal.until(ENTER)
        terminal.until("every 0.2 s: commctl nodes")
        frame = terminal.until("\033[J")
        check("\033[32mself" in frame, frame)
        terminal.until("every 0.2 s: commctl nodes")
        equal(node.stop(), 0)
        terminal.until("no commd is listening there")
        node.start()
        terminal.until("self")
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.until("every 0.2 s: commctl nodes")
        terminal.process.send_signal(signal.SIGTSTP)
        terminal.until(LEAVE)
        with open(f"/proc/{terminal.process.pid}/stat") as stat:
            until(lambda: stat.seek(0) or " T " in stat.read(), "it is stopped")
        terminal.process.send_signal(signal.SIGCONT)
        terminal.until(ENTER)
        terminal.until("self")
        terminal.process.send_signal(signal.SIGINT)
        code, text = terminal.rest()
        equal(code, -signal.SIGINT)
        check(text.endswith(LEAVE), text)
        # a frame is as high as the terminal
        terminal = Terminal(node, "--watch=0.2", "status", NO_COLOR="1")
        frame = terminal.until("\033[J")
        equal(frame.count("\r\n"), 4, frame)
        check("\033[3" not in frame and "ready" not in frame, frame)
        terminal.process.terminate()
        equal(terminal.rest()[0], -signal.SIGTERM)
        # where there is no terminal
        watch = begin(node, "--watch=0.2", "nodes")
        lines = [watch.stdout.readline() for _ in range(7)]
        check(lines[0] == lines[0].strip() + "\n" and lines[0][10] == "T", lines)
        equal((lines[1][:4], lines[3], lines[5][:4]), ("NODE", "\n", "NODE"), lines)
        check("\033" not in "".join(lines), lines)
        watch.terminate()
        watch.communicate()
        watch = begin(node, "--json", "groups", "--watch")
        for _ in range(2):  # one object after the other
            equal(json.loads("".join(iter(watch.stdout.readline, "}\n")) + "}"), {"groups": []})
        watch.terminate()
        watch.communicate()
        terminal = Terminal(node, "status")
        check("\033[32mready" in terminal.rest()[1], terminal.text)


def test_ranks_on_a_narrow_terminal():
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        ranks = cluster.ranks("a", [0, 0])
        for columns, last in ((64, "OPERATION"), (400, "COMMAND")):
            code, text = Terminal(node, "ranks", columns=columns, NO_COLOR="1").rest()
            lines = text.splitlines()
            equal(code, 0)
            check(all(len(line) <= columns for line in lines), text)
            equal(lines[0].split()[:4], ["NAME", "RANK", "NODE", "PID"], text)
            check(lines[0].split()[-1] == last or columns == 64, text)
            for rank in ranks:  # on one line
                check(any({str(rank.pid), "node0"} < set(line.split()) for line in lines), text)


# ---- tenants -----------------------------------------------------------------------------------


def tenants(node, user=()):
    """{(uid, resource): row}"""
    code, out, err = ctl(node, "--json", "tenants", user=user)
    equal((code, err), (0, ""))
    return {(row["uid"], row["resource"]): row for row in json.loads(out)["tenants"]}


def test_tenants():
    with Cluster(1, {"limits": {"max_groups": "100", "max_groups_per_user": "60"}}) as cluster:
        node = cluster.nodes[0]
        open_to_all(cluster)
        os.chmod(node.socket, 0o666)
        ranks = victims(cluster, [0, 0])
        cluster.join("g", ranks)
        ranks[0].start("join", name="forms", rank=0, size=3)
        ranks[1].call("alloc", key="k", size=1 << 20)
        until(lambda: tenants(node)[VICTIM, "forming"]["used"] == 1, "it forms")
        cluster.ranks("own", [0])
        rows = tenants(node)
        equal({uid for uid, _ in rows}, {os.geteuid(), VICTIM})
        wanted = {"clients": 2, "groups": 1, "forming": 1, "ranks": 3, "arenas": 1}
        check(rows[VICTIM, "registered_bytes"]["used"] >= 1 << 20, rows)
        equal({what: rows[VICTIM, what]["used"] for what in wanted}, wanted)
        groups = rows[VICTIM, "groups"]
        # half of what the other, who has one, leaves
        equal((groups["may"], groups["all"], groups["limit"]), (50, 2, 100))
        check(0 < rows[VICTIM, "board_bytes"]["used"] < rows[VICTIM, "board_bytes"]["may"], rows)
        equal({uid for uid, _ in tenants(node, as_user(VICTIM))}, {VICTIM})
        mine = tenants(node, as_user(HOSTILE))
        equal({uid for uid, _ in mine}, {HOSTILE})
        equal(mine[HOSTILE, "groups"]["used"], 0)
        ranks[0].kill()  # it still waits


def test_tenants_of_the_network():
    """What a user sends to other nodes is told each second, and its weight."""
    weights = f'"{VICTIM}=30"'
    with Cluster(2, {"limits": {"weights": weights}}) as cluster:
        open_to_all(cluster)
        node = cluster.nodes[0]
        os.chmod(node.socket, 0o666)
        ranks = victims(cluster, [0, 1])
        cluster.join("g", ranks)
        for rank in ranks:
            rank.start("loop", name="g", count=100_000)

        def much():  # the first second that is told of had but a part of it
            row = tenants(node)[VICTIM, "network_bytes_s"]
            return row["used"] and row["used"] > 1_000_000 and row

        sends = until(much, "it sends")
        equal((sends["all"], sends["weight"]), (sends["used"], 30), sends)
        equal((sends["may"], sends["limit"]), (None, None), sends)
        rows = tenants(node, as_user(HOSTILE))
        equal(rows[HOSTILE, "network_bytes_s"]["used"], 0)
        equal((rows[HOSTILE, "network_bytes_s"]["weight"], rows[HOSTILE, "clients"]["weight"]),
              (10, None))  # fmt: skip
        cluster.expect("was lost|died")
        for rank in ranks:
            rank.kill()


# ---- kick --------------------------------------------------------------------------------------


def test_kick():
    with Cluster(2) as cluster:
        a, b = cluster.nodes
        ranks = cluster.ranks("hangs", [0, 1])
        ranks[0].start("all_reduce", name="hangs", count=10)
        code, out, err = ctl(a, "kick", "hangs", "--reason", "it hangs\tforever")
        equal((code, out, err), (0, "ended of user 0: groups 1, waiting joins 0\n", ""))
        # what rank 0 has sent is at node1: there rank 1 would succeed before it is told
        until(lambda: [g["state"] for g in b.groups()] == ["broken"], "node1 knows")
        ranks[1].start("all_reduce", name="hangs", count=10)
        for rank in ranks:
            error = rank.error()
            equal((error["code"], error["node"]), ("ABORTED", "node0"))
            text = 'ended by root with commctl kick on node node0: "it hangs?forever"'
            check(text in str(error), error)
        code, out, err = ctl(a, "kick", "nothing")
        equal((code, out), (1, ""))
        check('no group "nothing" with ranks on node node0' in err, err)

        pair = cluster.ranks("pair", [0, 0, 1])
        code, _, err = ctl(a, "kick", "rank", "pair", "2")
        equal((code, err), (1, 'commctl: rank 2 of group "pair" is on node node1: kick it there\n'))
        answer = a.ctl("kick", "rank", "pair", "1", "--reason", "memory")["change"]
        equal([(row["node"], row["groups"]) for row in answer], [("node0", 1)])
        for rank in (pair[0], pair[1], pair[2]):
            error = rank.call_error("all_reduce", name="pair", count=10)
            equal((error["code"], error["rank"], error["pid"]), ("ABORTED", 1, pair[1].pid))
            check(f'pid {pair[1].pid} was disconnected by root' in str(error), error)
        code, out, _ = ctl(a, "kick", "pid", str(pair[0].pid))
        equal((code, out), (0, f"disconnected pid {pair[0].pid}, groups that ended: 0\n"))
        code, _, err = ctl(a, "kick", "pid", "1")
        equal(code, 1, err)


def test_what_is_others_is_not_there():
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        open_to_all(cluster)
        os.chmod(node.socket, 0o666)
        rank = victims(cluster, [0])[0]
        rank.call("join", name="g", rank=0, size=1)
        number = node.groups()[0]["group"]
        stranger, owner = as_user(HOSTILE), as_user(VICTIM)
        answers = set()
        for name in ("g", number, "x", "f" * 16):
            for words in (["kick", name], ["kick", "rank", name, "0"]):
                code, out, err = ctl(node, *words, user=stranger)
                equal((code, out), (1, ""))
                answers.add(err.replace(f'"{name}"', "NAME"))
        equal(len(answers), 1, answers)
        here = ctl(node, "kick", "pid", str(rank.pid), user=stranger)
        equal(here[0], 1, here)
        equal(ctl(node, "kick", "pid", "1", user=stranger)[2], here[2].replace(str(rank.pid), "1"))
        code, out, err = ctl(node, "drain", user=stranger)
        equal((code, out), (2, ""))
        check("only root, and the user that commd runs as" in err, err)
        equal(ctl(node, "wait", user=stranger), (0, "", ""))
        equal(len(node.groups()), 1)
        code, out, _ = ctl(node, "kick", number, user=owner)
        equal((code, out), (0, f"ended of user {VICTIM}: groups 1, waiting joins 0\n"))


if __name__ == "__main__":
    main(globals())
