#!/usr/bin/env python3
"""What people and programs get wrong, and the exact text that they read then.

Configuration and command line, libcommd's arguments, joins that do not fit together, broken frames
and greedy clients on the UNIX socket, strangers on the port for nodes. After each the daemon still
serves others.
"""

import os
import re
import signal
import socket
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import Cluster, Rank, Skip, check, equal, main, need_ucx, until  # noqa: E402
from wire import ADMIN, ARENA_ASK, JOIN_FAILED, JOINED  # noqa: E402
from wire import FORMAT, LEAVE, OLDEST, TABLES, VERSION, WELCOME  # noqa: E402
from wire import Wire, frame, header, hello, join, leave  # noqa: E402

JOINS = c.how_many(10000, 2000)
ONE_NODE = "cluster: {{node: a, nodes: [{{name: a, address: 127.0.0.1, port: {port}}}]}}\n"


def commd(cluster, text, *arguments, key=None):
    """(exit code, stderr) of commd with this configuration; its path reads FILE, the folder DIR."""
    path = os.path.join(cluster.folder, "bad.yaml")
    with open(path, "w") as file:
        file.write(text.replace("DIR", cluster.folder))
    done = c.run([c.COMMD, "--config", path, *arguments])
    output = done.stderr.replace(path, "FILE").replace(cluster.folder, "DIR")
    return done.returncode, output.rstrip("\n")


def still_serves(node):
    """A client and a one-node group work."""
    rank = Rank(node)
    try:
        rank.call("connect")
        rank.call("join", name="probe", rank=0, size=1)
        rank.call("all_reduce", name="probe", count=1)
    finally:
        rank.close()


# ---- configuration ---------------------------------------------------------------------------


def test_configuration_says_where_and_what_is_allowed():
    with Cluster(1, start=False) as cluster:
        equal(
            commd(cluster, "cluster:\n  nam: a\n", "--check-config"),
            (78, 'FILE:2:3: unknown key "nam" in cluster (did you mean "name"?); allowed: name, '
             "node, key_file, authentication, certificate, certificate_key, ca, crl, nodes"),
        )  # fmt: skip
        equal(
            commd(cluster, "limits:\n  max_clients: many\n", "--check-config"),
            (78, 'FILE:2:16: limits.max_clients is "many", not a whole number; allowed: '
             "1 to 65536"),
        )
        equal(
            commd(cluster, "log:\n  level: info\n  level: warn\n", "--check-config"),
            (78, 'FILE:3:3: duplicate key log.level, first on line 2; allowed: each key once'),
        )
        equal(
            commd(
                cluster,
                "cluster:\n  node: a\n  nodes:\n    - {name: a, address: 127.0.0.1}\n"
                "    - {name: a, address: 127.0.0.2}\n",
                "--check-config",
            ),
            (78, 'FILE:5:14: two nodes have the name "a", the first on line 4; allowed: each name '
             "once"),
        )  # fmt: skip
        code, text = commd(
            cluster, "cluster: {}\nunknown: {}\nlog: {level: loud}\n", "--check-config"
        )
        equal((code, len(text.splitlines())), (78, 2), "all errors, not only the first")


def test_key_file():
    with Cluster(1, start=False) as cluster:
        text = (
            "cluster:\n  node: a\n  key_file: DIR/key\n  nodes:\n"
            "    - {name: a, address: 127.0.0.1}\n"
            "    - {name: b, address: 127.0.0.2}\n"
        )
        key = os.path.join(cluster.folder, "key")
        equal(
            commd(cluster, text, "--check-config"),
            (77, "DIR/key: cannot open the cluster key: No such file or directory; make one for "
             "all nodes by: openssl rand -hex 32 > DIR/key"),
        )  # fmt: skip
        with open(key, "w") as file:
            file.write("ab" * 31 + "cd" + "\n")
        os.chmod(key, 0o644)
        equal(
            commd(cluster, text, "--check-config"),
            (77, "DIR/key: mode 0644 opens the cluster key to other users; repair by: chmod "
             "400 DIR/key"),
        )  # fmt: skip
        os.chmod(key, 0o600)
        equal(commd(cluster, text, "--check-config"), (0, ""))
        with open(key, "w") as file:
            file.write("ab" * 31)
        equal(
            commd(cluster, text, "--check-config"),
            (77, "DIR/key: the cluster key is not 64 hex digits or 32 bytes, nor are there two "
             "in two lines; make one by: openssl rand -hex 32 > DIR/key"),
        )  # fmt: skip


def two_nodes(port, **transport):
    rows = "".join(f"  {key}: {value}\n" for key, value in transport.items())
    return (
        "cluster:\n  node: a\n  key_file: DIR/cluster.key\n  nodes:\n"
        f"    - {{name: a, address: 127.0.0.1, port: {port}}}\n"
        f"    - {{name: b, address: 127.0.0.1, port: {port + 1}}}\n"
        f"listen: {{socket: DIR/bad.sock}}\ntransport:\n  port_range: {port + 2}-{port + 9}\n"
        f"  engine: {c.ENGINE}\n{rows}"
    )


def test_port_in_use():
    with Cluster(1, start=False) as cluster, socket.socket() as taken:
        port = c.free_port_blocks(1)[0]
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # it may be in TIME_WAIT
        taken.bind(("127.0.0.1", port))
        taken.listen()
        code, text = commd(cluster, two_nodes(port))
        equal(
            (code, text),
            (1, f"commd: 127.0.0.1 port {port} is in use: another commd of this node, or another "
             'program; stop it (ss -ltnp, as root, shows it), or give node "a" another port in '
             "cluster.nodes"),
        )  # fmt: skip
        check(not os.path.exists(os.path.join(cluster.folder, "bad.sock")), "no socket is left")


def test_socket_in_use():
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        done = c.run([c.COMMD, "--config", node.config])
        equal(
            (done.returncode, done.stderr),
            (1, f"commd: {node.socket}: already in use by a running commd\n"),
        )
        still_serves(node)


def test_unknown_network_device():
    with Cluster(1, start=False) as cluster:
        block = c.free_port_blocks(1)[0]
        code, text = commd(cluster, two_nodes(block, device="nosuch0"))
        equal(code, 78)
        check(
            re.match(
                r'FILE:\d+: transport.device: no network device "nosuch0" on this node '
                r"\(there are: lo",
                text,
            ),
            text,
        )


def test_unknown_ucx_transport():
    """commd lives without an engine, says why, and tries again."""
    need_ucx()
    with Cluster(2, {"transport": {"ucx_tls": "nosuch"}}, start=False) as cluster:
        cluster.expect("nosuch")
        node = cluster.nodes[0]
        node.start()
        node.wait_log("engine: .*nosuch")
        status = until(lambda: node.ctl("status"), "an answer of commctl")["status"][0]
        equal(status["state"], "degraded")
        line = next(line for line in node.log().splitlines() if "nosuch" in line)
        print(f"  {line}")
        still_serves(node)


def test_unknown_congestion_control():
    """As above. That the kernel lacks it is known only where the data are to go."""
    with Cluster(2, {"transport": {"congestion_control": "nosuchcc"}}, start=False) as cluster:
        cluster.expect("nosuchcc")
        node = cluster.nodes[0]
        node.start()
        line = node.wait_log(r"error: (engine: .*) -> killing it")[1]
        print(f"  {line}")
        allowed = line.removeprefix(
            'engine: transport.congestion_control: the kernel has no "nosuchcc" (allowed here: '
            "auto, system, "
        )
        check(allowed != line and "reno" in allowed, line)
        status = until(lambda: node.ctl("status"), "an answer of commctl")["status"][0]
        equal(status["state"], "degraded")
        still_serves(node)


def test_nodes_with_different_fabrics():
    """Both are told what must be the same, and each still serves its own groups."""
    need_ucx()
    with Cluster(2, start=False) as cluster:
        cluster.expect("transport.fabric")
        cluster.nodes[1].write_config(transport={"fabric": "ucx"})
        for node in cluster.nodes:
            node.start()
        for node, other in ((cluster.nodes[0], "node1"), (cluster.nodes[1], "node0")):
            line = node.wait_log(
                f".*{other}.*transport.fabric and transport.ucx_tls must be the same on all nodes"
            )[0]
            print(f"  {line}")
            still_serves(node)


def test_two_nodes_with_one_name():
    """The second one that starts as node0 is refused by node1, and both logs say it."""
    with Cluster(2) as cluster:
        cluster.expect("two nodes with one name")
        cluster.expect("it refuses us")
        twin_port = c.free_port_blocks(1)[0]
        twin = c.Node(cluster, 2, "127.0.0.1", twin_port)
        twin.name = "node0"
        cluster.nodes.append(twin)
        nodes = (
            f"[{{name: node0, address: 127.0.0.1, port: {twin_port}}}, "
            f"{{name: node1, address: 127.0.0.1, port: {cluster.nodes[1].port}}}]"
        )
        twin.write_config(cluster={"node": "node0", "nodes": nodes})
        twin.start()
        twin.wait_log("it refuses us: .*two nodes with one name")
        cluster.nodes[1].wait_log(
            'node "node0" is linked already, by another process: two nodes with one name, or the '
            "old one has not ended yet -> refused"
        )
        check(cluster.nodes[1].sees(["node0", "node1"]), "the link of the first one goes on")


# ---- where is commd? -------------------------------------------------------------------------


def connect_error(socket_path):
    rank = Rank(type("Nowhere", (), {"socket": socket_path, "name": "nowhere"}))
    try:
        error = rank.call_error("connect", timeout_ms=60000)
        return error["code"], error["message"]
    finally:
        rank.close()


def test_no_commd_behind_the_socket():
    with Cluster(1, start=False) as cluster:
        path = os.path.join(cluster.folder, "none.sock")
        hint = "is commd running? systemctl status commd, or set COMMD_SOCKET"
        equal(connect_error(path), ("NO_DAEMON", f"{path}: No such file or directory; {hint}"))
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(path)
        equal(connect_error(path), ("NO_DAEMON", f"{path}: Connection refused; {hint}"))
        long = "/tmp/" + "x" * 103
        equal(
            connect_error(long),
            ("INVALID", f"{long}: longer than a socket path may be (107 bytes)"),
        )


def test_something_else_behind_the_socket():
    with Cluster(1, start=False) as cluster:
        path = os.path.join(cluster.folder, "web.sock")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen()
            other = f"{path}: what listens there is not commd, or not of this version: "
            for reply, what in (
                (b"HTTP/1.1 400 Bad Request\r\n\r\n", f"{other}not a commd frame"),
                (header(4, FORMAT + 1) + bytes(4), f"{other}another version of commd's protocol"),
                (header(0)[:3], f"{other}Connection reset by peer"),
                (frame(WELCOME, f1=OLDEST - 1, f4="old", f5="test"),
                 f"commd on node old speaks protocol version {OLDEST - 1}, libcommd understands "
                 f"{OLDEST} to {VERSION}: upgrade commd"),
            ):  # fmt: skip
                rank = Rank(type("Web", (), {"socket": path, "name": "web"}))
                rank.start("connect", timeout_ms=60000)
                stranger, _ = server.accept()
                stranger.recv(100)
                stranger.sendall(reply)
                stranger.shutdown(socket.SHUT_RDWR)
                error = rank.error()
                stranger.close()
                rank.close()
                equal(
                    (error["code"], error["message"]),
                    ("PROTOCOL", what),
                )
            rank = Rank(type("Mute", (), {"socket": path, "name": "mute"}))
            error = rank.call_error("connect", timeout_ms=200)
            equal(
                (error["code"], error["message"]),
                ("TIMEOUT", f"{path}: no answer from commd within the limit"),
            )
            rank.close()


# ---- joins that do not fit together ----------------------------------------------------------


def stopped_after_the_question(node, seconds):
    """(whether it was in time, the pid that listens, commctl)"""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(node.socket)
        listens, told = os.pipe()
        pid = os.fork()
        if not pid:
            server.listen()  # it, and not its parent, for SO_PEERCRED
            os.write(told, b".")
            stranger, _ = server.accept()
            stranger.recv(1)
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(1)
        os.read(listens, 1)
        try:
            asking = subprocess.Popen([*c.commctl(node), "--timeout", str(seconds), "status"],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            os.waitpid(pid, os.WUNTRACED)
            in_time = asking.poll() is None
            out, err = c.communicate(asking, seconds + c.HANG)
        finally:
            for fd in (listens, told):
                os.close(fd)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.unlink(node.socket)
    return in_time, pid, subprocess.CompletedProcess(asking.args, asking.returncode, out, err)


def test_commctl_of_a_commd_that_is_stopped_after_the_question():
    """It is told when the answer has not come, as it is when it was stopped before."""
    with Cluster(1, start=False) as cluster:
        for seconds in (1, 4, 16, 64):  # by the end of that it has to be stopped
            stopped, pid, done = stopped_after_the_question(cluster.nodes[0], seconds)
            equal(done.returncode, 2)
            if stopped:
                break
        check(f"commd (pid {pid}) is stopped, by SIGSTOP" in done.stderr, done.stderr)


def test_world_size_differs():
    with Cluster(2) as cluster:
        a, b = cluster.rank(0), cluster.rank(1)
        a.start("join", name="g", rank=0, size=2)
        until(lambda: any(n.groups() for n in cluster.nodes), "rank 0 waits")
        error = b.call_error("join", name="g", rank=1, size=3)
        equal(
            (error["code"], error["rank"], error["node"], error["message"]),
            ("INVALID", 0, "node0", 'group "g": rank 1 joins with size 3, but rank 0 of node node0 '
             "joined with size 2"),
        )  # fmt: skip
        b.call("join", name="g", rank=1, size=2)  # the one that waits was not disturbed
        a.finish()


def test_duplicate_rank():
    with Cluster(2) as cluster:
        a, b, d = (cluster.rank(i) for i in (0, 1, 0))
        a.start("join", name="g", rank=0, size=2)
        until(lambda: any(n.groups() for n in cluster.nodes), "rank 0 waits")
        error = b.call_error("join", name="g", rank=0, size=2)
        equal(
            (error["code"], error["message"]),
            ("INVALID", f'group "g": rank 0 is already taken by pid {a.pid} on node node0'),
        )
        d.call("join", name="g", rank=1, size=2)
        a.finish()


def test_a_rank_that_never_comes():
    with Cluster(2) as cluster:
        a, b = cluster.rank(0), cluster.rank(1)
        b.start("join", name="g", rank=4, size=6)
        until(lambda: any(n.groups() for n in cluster.nodes), "rank 4 waits")
        error = a.call_error("join", name="g", rank=0, size=6, timeout_ms=2000)
        equal(error["code"], "TIMEOUT", error)
        # a busy machine takes some of the time before commd is asked
        said = r'group "g": 4 of 6 ranks did not come within (2 s|\d+ ms): missing 1-3,5'
        check(re.fullmatch(said, error["message"]), error)
        b.kill()
        cluster.join("g", [cluster.rank(1), a])  # the ranks are free again


def test_join_arguments():
    with Cluster(1) as cluster:
        rank = cluster.rank(0)

        def text(**arguments):
            return rank.call_error("join", **arguments)["message"]

        equal(text(name="", rank=0, size=1), "group name: 1 to 255 bytes are allowed")
        equal(text(name="x" * 256, rank=0, size=1), "group name: 1 to 255 bytes are allowed")
        for number, size in ((2, 2), (-1, 2), (0, 0), (0, 70000)):
            check(
                text(name="g", rank=number, size=size).startswith(
                    f'group "g": rank {number} of size {size}; allowed: size 1 to '
                ),
                text(name="g", rank=number, size=size),
            )


# ---- arguments of collectives ----------------------------------------------------------------


def test_unknown_dtype_and_operator():
    with Cluster(1) as cluster:
        (rank,) = cluster.ranks("g", [0])
        for dtype in (13, -1, 1 << 20):
            error = rank.call_error("all_reduce", name="g", count=1, dtype=dtype)
            equal(
                (error["code"], error["message"]),
                ("INVALID", f"all_reduce: unknown dtype {dtype}; allowed: 0 (i8) to 12 (bool), see "
                 "enum commd_dtype"),
            )  # fmt: skip
        error = rank.call_error("all_reduce", name="g", count=1, dtype="bool", redop="avg")
        equal(error["message"], "all_reduce: operator avg (1) is not defined for bool")
        error = rank.call_error("raw", name="g", coll="broadcast", count=0, root=1)
        equal(error["message"], "broadcast: root 1; allowed: 0 to 0")
        error = rank.call_error("raw", name="g", coll="all_reduce", count=7)
        equal(error["message"], "all_reduce: send buffer is NULL, but has 7 elements")
        rank.call("all_reduce", name="g", count=1)


def test_count_of_zero():
    """Is an operation like any other: nobody's buffer is touched, and all must call it."""
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 1, 0, 1])
        for coll in ("all_reduce", "broadcast", "all_gather", "reduce_scatter"):
            for rank in ranks:
                rank.start("raw", name="g", coll=coll, count=0)
            for rank in ranks:
                rank.finish()


def test_mismatch_names_both_and_the_group_goes_on():
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 1, 0, 1])
        ranks[0].start("all_reduce", name="g", count=1000)
        for rank in ranks[1:]:
            rank.start("all_reduce", name="g", count=1001)
        for rank in ranks:
            error = rank.error()
            equal(error["code"], "MISMATCH", error)
            check("rank 0 (node node0) called" in error["message"], error["message"])
            check("1000" in error["message"] and "1001" in error["message"], error["message"])
        for rank in ranks:
            rank.start("all_reduce", name="g", count=1000)
        for rank in ranks:
            rank.finish()


def test_three_gibibytes():
    """More than 2^31 bytes and elements. Needs memory for two ranks."""
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    if available < 9 << 20:
        raise Skip(f"needs 9 GiB of memory, {available >> 20} GiB are available")
    if c.sanitizer_environment():
        raise Skip("takes minutes with a sanitizer")
    if c.SHORT:
        raise Skip("long, and COMMD_TEST_SHORT is set")
    with Cluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        for rank in ranks:
            rank.start("huge", name="g", nbytes=3 << 30)
        for rank in ranks:
            rank.finish(200)


# ---- the UNIX socket -------------------------------------------------------------------------


def test_broken_frames():
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        cluster.expect("-> refused")
        big = header(64 * 1024 + 1)
        for data, text in (
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "protocol error: not a commd frame"),
            (os.urandom(4096).replace(b"c", b"x"), "protocol error: not a commd frame"),
            (header(0, FORMAT + 1), "protocol error: another version of commd's protocol"),
            (big, "protocol error: frame too large"),
            (hello() + big, "protocol error: frame too large"),
            (header(4) + b"\xff\xff\xff\xff", "protocol error: malformed message"),
            (hello() + frame(21, f1=1), "message type 21 is not for clients"),
            (join(1, 0, 1, "g"), "the first message has to be a hello"),
            (frame(ADMIN, f1="ranks"), "the first message has to be a hello"),
            (frame(ADMIN, f1="groups"), "the first message has to be a hello"),
            (frame(ARENA_ASK, f1=1), "the first message has to be a hello"),
            (hello() + hello(), "a second hello"),
            (hello(admin=1) + join(1, 0, 1, "g"), "an admin session cannot join groups"),
            (hello() + frame(LEAVE, f2=0), "leaves group 0, which it is not in"),
            (
                hello(version=OLDEST - 1),
                f"the client speaks protocol version {OLDEST - 1}, commd 0.1.0 on node node0 "
                f"understands {OLDEST} to {VERSION}: upgrade libcommd",
            ),
        ):
            with Wire(node.socket) as wire:
                wire.send(data)
                if data.startswith(hello()):
                    equal(wire.read()[0], WELCOME)
                if data.startswith(hello(admin=1)):
                    equal(wire.read()[0], WELCOME)
                equal(wire.refusal(), text, f"answer to {data[:40]!r}")
        still_serves(node)
        until(lambda: not node.clients(), "commd has forgotten all of them")


def test_truncated_frames():
    """A client that goes away in the middle of a frame, at every byte of it."""
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        data = hello() + join(1, 0, 2, "g")
        for end in range(len(data)):
            with Wire(node.socket) as wire:
                wire.send(data[:end])
        until(lambda: not node.clients(), "commd has forgotten all of them")
        equal(node.groups(), [])
        still_serves(node)


def test_no_hello():
    with Cluster(1) as cluster:
        cluster.expect("no hello within 10 s -> refused")
        with Wire(cluster.nodes[0].socket) as mute, Wire(cluster.nodes[0].socket) as slow:
            slow.send(hello()[:10])
            equal(mute.refusal(), "no hello within 10 s")
            equal(slow.refusal(), "no hello within 10 s")
        still_serves(cluster.nodes[0])


def test_a_client_that_never_reads():
    """Is not read from either; commd's memory stays bounded and others do not notice."""
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        ranks = cluster.ranks("g", [0, 0])
        with Wire(node.socket) as wire:
            wire.send(hello())
            wire.sock.settimeout(0.2)
            question = frame(ADMIN, f1="config") * 100
            sent = 0
            try:
                while sent < 20000 and wire.send(question):
                    sent += 100
            except TimeoutError:
                pass  # commd takes no more of them
            still_serves(node)
            for rank in ranks:
                rank.start("all_reduce", name="g", count=1000)
            for rank in ranks:
                rank.finish()
            check(sent < 20000, "commd took all of its questions")
        with open(f"/proc/{node.pid}/status") as file:
            rss = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
        if not c.sanitizer_environment():
            check(rss < 60 * 1024, f"commd has grown to {rss} KiB")


def test_a_client_that_is_stopped():
    """It neither reads nor dies; its group waits, others go on, and it can be continued."""
    with Cluster(1) as cluster:
        ranks = cluster.ranks("g", [0, 0])
        os.kill(ranks[1].pid, signal.SIGSTOP)
        ranks[0].start("all_reduce", name="g", count=1000)
        others = cluster.ranks("others", [0, 0])
        for rank in others:
            rank.start("loop", name="others", count=1000, limit=200)
        for rank in others:
            rank.answer()
            equal(rank.finish(), 200)
        os.kill(ranks[1].pid, signal.SIGCONT)
        ranks[1].call("all_reduce", name="g", count=1000)
        ranks[0].finish()


def test_ten_thousand_joins():
    """Beyond 1,024 joins under way a client gets refusals; each request has exactly one answer."""
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        ranks = cluster.ranks("g", [0, 0])
        with Wire(node.socket) as wire:
            wire.send(hello())
            equal(wire.read()[0], WELCOME)
            answers = {}
            for begin in range(0, JOINS, 500):
                wire.send(b"".join(join(i, 0, 2, f"never {i}") for i in range(begin, begin + 500)))
                while begin + 500 - len(answers) > 1024:
                    kind, fields = wire.read()
                    equal(kind, JOIN_FAILED)
                    answers[fields[1]] = fields[5].decode()
            while len(answers) < JOINS - 1024:
                kind, fields = wire.read()
                equal(kind, JOIN_FAILED)
                check(fields[1] not in answers, "one answer per request")
                answers[fields[1]] = fields[5].decode()
            equal(
                set(text.partition(": ")[2] for text in answers.values()),
                {"this client has 1024 joins pending already, wait for some of them"},
            )
            equal(sorted(answers), list(range(1024, JOINS)), "the first ones wait")
            still_serves(node)
            for rank in ranks:
                rank.start("all_reduce", name="g", count=1000)
            for rank in ranks:
                rank.finish()
        until(lambda: len(node.groups()) == 1, "its joins are gone with it")


def test_ten_thousand_joins_and_leaves():
    """One client that makes and leaves groups as fast as it can."""
    with Cluster(1) as cluster:
        node = cluster.nodes[0]
        with Wire(node.socket) as wire:
            wire.send(hello())
            equal(wire.read()[0], WELCOME)
            for begin in range(0, c.how_many(10000, 1000), 100):
                wire.send(b"".join(join(i, 0, 1, f"g{i}") for i in range(begin, begin + 100)))
                for _ in range(100):
                    kind, fields = wire.read()
                    equal(kind, JOINED, f"answer to a join: {fields}")
                    group = fields[3]
                    wire.send(leave(group))
        until(lambda: not node.groups(), "all groups are gone")
        until(lambda: not c.memory_files(node.pid), "and their boards")
        still_serves(node)


def test_ten_thousand_connections():
    """More than limits.max_clients wait or are refused; afterwards everything is as before."""
    with Cluster(1, {"limits": {"max_clients": "50", "max_clients_per_user": "50"}}) as cluster:
        node = cluster.nodes[0]
        cluster.expect("-> refused")
        before = len(os.listdir(f"/proc/{node.pid}/fd"))
        held = []
        for i in range(c.how_many(10000, 2000)):
            wire = Wire(node.socket)
            if i % 100 == 0:
                held.append(wire)
            else:
                wire.sock.close()
        for wire in held:
            wire.sock.close()
        until(lambda: len(os.listdir(f"/proc/{node.pid}/fd")) <= before, "all descriptors are back")
        still_serves(node)


def test_too_many_clients():
    limit = 3
    with Cluster(
        1, {"limits": {"max_clients": str(limit), "max_clients_per_user": str(limit)}}
    ) as cluster:
        node = cluster.nodes[0]
        ranks = [cluster.rank(0) for _ in range(limit)]
        rank = cluster.rank(0, connect=False)
        error = rank.call_error("connect")
        equal(
            (error["code"], error["message"]),
            ("QUOTA", "commd refused: node node0 has 3 clients already: close some, or raise "
             "limits.max_clients"),
        )  # fmt: skip
        check(node.ctl("status"), "commctl is served all the same")
        ranks[0].call("disconnect")
        until(lambda: len(node.clients()) < limit, "commd has noticed")
        rank.call("connect")


def test_many_questions():
    with Cluster(1) as cluster:
        with Wire(cluster.nodes[0].socket) as wire:
            wire.send(hello(admin=1))
            equal(wire.read()[0], WELCOME)
            for _ in range(100):
                wire.send(frame(ADMIN, f1="status") * 100)
                for _ in range(100):
                    equal(wire.read()[0], TABLES)


# ---- the port for nodes ----------------------------------------------------------------------


def test_port_scanner():
    """Is told nothing and logged once, whatever it sends and however often it comes."""
    with Cluster(2) as cluster:
        cluster.expect("connection from 127.0.0.1")
        node = cluster.nodes[0]
        before = len(os.listdir(f"/proc/{node.pid}/fd"))
        for data in (
            b"",
            b"GET / HTTP/1.0\r\n\r\n",
            os.urandom(300),
            b"\x16\x03\x01\x00\x05hello",
            b"\0" * 5000,
        ):
            for _ in range(20):
                with socket.create_connection((node.address, node.port), c.LATEST) as sock:
                    with_reset(sock, data)
        until(lambda: len(os.listdir(f"/proc/{node.pid}/fd")) <= before, "all descriptors are back")
        lines = [line for line in node.log().splitlines() if "connection from" in line]
        texts = [line.partition("warn: ")[2].split(": ", 1)[1] for line in lines]
        equal(len(texts), len(set(texts)), f"each reason once: {lines}")
        check(len(texts) <= 3, f"{lines}")
        check(cluster.nodes[1].sees(["node0", "node1"]), "the nodes are still linked")


def with_reset(sock, data):
    sock.sendall(data)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def test_wrong_cluster_key():
    with Cluster(2, start=False) as cluster:
        cluster.expect("cluster key")
        cluster.expect("closed before the TLS handshake")  # who stops may be trying just then
        a, b = cluster.nodes
        other = os.path.join(cluster.folder, "other.key")
        with open(os.open(other, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write("cd" * 31 + "01")
        b.write_config(cluster={"key_file": other})
        a.start()
        b.start()
        a.wait_log('node "node1": another cluster key: all nodes need the same cluster.key_file')
        b.wait_log("connection from 127.0.0.1: wrong cluster key -> refused")
        equal(a.sees(["node1"]), False)
        still_serves(a)
        still_serves(b)


def test_wrong_cluster_name():
    with Cluster(2, start=False) as cluster:
        cluster.expect('it belongs to cluster "test", node "node1" to cluster "other"')
        cluster.expect('it belongs to cluster "other"')
        cluster.expect("it refuses us")
        cluster.expect("closed before the TLS handshake")  # who stops may be trying just then
        a, b = cluster.nodes
        b.write_config(cluster={"name": "other"})
        a.start()
        b.start()
        b.wait_log("correct cluster.name, or the address in cluster.nodes")
        equal(a.sees(["node1"]), False)


if __name__ == "__main__":
    main(globals())
