#!/usr/bin/env python3
"""HTTP of real commds: what it shows and to whom not, when it says that a node is ready, and that
clients who do their worst cost others nothing.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import Cluster, Skip, check, equal, main, until  # noqa: E402

SLOW = bool(c.sanitizer_environment())
CONNECTIONS = 32  # HTTP_CONNECTIONS in daemon/http/http.c
READ_S = 5  # HTTP_READ_MS


class HttpCluster(Cluster):
    """Each node has HTTP at 127.0.0.1, node.http."""

    def __enter__(self):
        wanted, self.want_start = self.want_start, False
        super().__enter__()
        for node, port in zip(self.nodes, c.free_port_blocks(self.count)):
            node.http = port
            node.write_config(listen={"http": f"127.0.0.1:{port}"})
        try:
            if wanted:
                self.start()
        except BaseException:
            self.show_logs()
            self.end()
            raise
        return self


def ask(node, path, method="GET", **headers):
    """(status, headers, body)"""
    connection = http.client.HTTPConnection("127.0.0.1", node.http, timeout=c.LATEST)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def get(node, path):
    status, _, body = ask(node, path)
    equal(status, 200, body)
    return body


def numbers(node):
    """{sample: number} of /metrics."""
    lines = get(node, "/metrics").splitlines()
    return {
        name: float(number)
        for name, _, number in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def fresh(node, condition, what):
    """Waits for metrics of which the condition is true, and returns them."""

    def look():
        found = numbers(node)
        return found if condition(found) else None

    return until(look, what)


def raw(node, request, end=True):
    """Sends bytes, and returns all that comes until the other side closes."""
    with socket.create_connection(("127.0.0.1", node.http), timeout=c.LATEST) as link:
        link.sendall(request)
        if end:
            link.shutdown(socket.SHUT_WR)
        answer = b""
        while True:
            data = link.recv(65536)
            if not data:
                return answer.decode()
            answer += data


def fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


# ---- what it shows ------------------------------------------------------------------------------


def test_numbers_follow_what_happens():
    """Also over the end of a group, and whoever it was."""
    with HttpCluster(2) as cluster:
        node, other = cluster.nodes
        before = numbers(node)
        equal(before["commd_ready"], 1)
        equal(before["commd_nodes"], 2)
        equal(before['commd_node_up{node="node1"}'], 1)
        equal(before['commd_node_links_total{node="node1"}'], 1)
        equal(before["commd_collectives_total"], 0)
        ranks = cluster.ranks("whose-group", [0, 0, 1])
        for _ in range(7):
            for rank in ranks:
                rank.start("all_reduce", name="whose-group", count=10)
            for rank in ranks:
                rank.finish()
        during = fresh(node, lambda m: m["commd_collectives_total"] >= 7, "seven operations")
        equal(during['commd_groups{state="open"}'], 1)
        equal(during["commd_clients"], 2)
        equal(during["commd_clients_of_one_user"], 2)
        equal(during["commd_users"], 1)
        equal(during["commd_boards"], 1)
        check(during["commd_boards_bytes"] == during["commd_boards_of_one_user_bytes"] > 0, during)
        check(during["commd_turns_total"] > before["commd_turns_total"], "the loop turns")
        check(during['commd_process_cpu_seconds_total{process="commd"}'] >= 0, during)
        check(during['commd_process_resident_memory_bytes{process="commd-engine"}'] > 1e6, during)
        limit = fds(node.pid)
        check(0 < during['commd_process_open_fds{process="commd"}'] <= limit + 2, during)
        groups = json.loads(get(node, "/status.json"))["groups"]
        equal(
            {key: groups[0][key] for key in ("state", "size", "nodes", "local_ranks", "behind")},
            {"state": "open", "size": 3, "nodes": 2, "local_ranks": 2, "behind": 0},
        )
        ranks[0].start("all_reduce", name="whose-group", count=10)
        until(lambda: json.loads(get(node, "/status.json"))["groups"][0]["behind"] == 1, "lateness")
        for rank in ranks[1:]:
            rank.start("all_reduce", name="whose-group", count=10)
        for rank in ranks:
            rank.finish()
        for rank in ranks:
            rank.call("leave", name="whose-group")
        after = fresh(node, lambda m: m['commd_groups{state="open"}'] == 0, "no group")
        equal(after["commd_collectives_total"], during["commd_collectives_total"] + 1)
        equal(after["commd_groups_opened_total"], 1)
        equal(after["commd_ranks_lost_total"], 0)
        equal(after['commd_operations_total{collective="all_reduce"}'], 16)  # two ranks
        equal(after['commd_operation_bytes_total{collective="all_reduce"}'], 16 * 40)
        fresh(node, lambda m: m['commd_node_sent_bytes_total{node="node1"}'] > 0, "traffic is told")
        duration = "commd_operation_duration_seconds"
        check(f'{duration}_bucket{{collective="all_reduce",le="+Inf"}}' in after, "a histogram")
        check(f'{duration}_count{{collective="barrier"}}' not in after, "one that nobody called")
        ranks = cluster.ranks("whose-group", [0, 0])
        ranks[0].kill()
        fresh(node, lambda m: m["commd_ranks_lost_total"] == 1, "a rank is lost")
        cluster.expect("node node1 was lost")
        cluster.expect("the engines of nodes .* lost each other")
        cluster.expect("UCX +ERROR")
        other.kill()
        lost = fresh(node, lambda m: m['commd_node_up{node="node1"}'] == 0, "node1 is lost")
        causes = [lost[f'commd_node_losses_total{{node="node1",cause="{cause}"}}']
                  for cause in ("link", "silence", "reconnect", "engine")]  # fmt: skip
        check(sum(causes) >= 1, lost)


def test_numbers_of_a_group_that_goes_on():
    with HttpCluster(2) as cluster:

        def told(**want):
            until(lambda: all(
                sum(numbers(node)[f"commd_{name}"] for node in cluster.nodes) == number
                for name, number in want.items()),
                lambda: [numbers(node) for node in cluster.nodes])  # fmt: skip

        ranks = cluster.ranks("g", [0, 0, 1, 1])
        told(groups_to_recover=0, free_seats=0, new_processes=0)
        for rank in ranks[2:]:
            rank.kill()
        for rank in ranks[:2]:
            rank.start("recover", name="g", policy="wait")
        told(free_seats=2, new_processes=0)
        new = [cluster.rank(1), cluster.rank(1)]
        new[0].start("rejoin", name="g")
        told(free_seats=2, new_processes=1)
        check(sum(numbers(node)["commd_groups_to_recover"] for node in cluster.nodes) >= 1, "it is")
        new[1].start("rejoin", name="g")
        for rank in ranks[:2] + new:
            rank.finish()
        told(groups_to_recover=0, free_seats=0, new_processes=0)
        for node in cluster.nodes:
            fresh(node, lambda m: m['commd_groups_recovered_total{kind="new"}'] == 1, "it is told")
            until(lambda node=node: [
                group["epoch"] for group in json.loads(get(node, "/status.json"))["groups"]
            ] == [2], "its epoch")  # fmt: skip


def matrix(node):
    """{(from, to): {column: value}} of the links in /status.json; {} before they are there."""
    status = json.loads(get(node, "/status.json"))
    rows = [dict(zip(status["link_columns"], row)) for row in status["links"] or []]
    return {(row.pop("node"), row.pop("peer")): row for row in rows}


def test_links_of_all_nodes():
    """Whichever node is asked; and when one of them is gone."""
    names = ["node0", "node1", "node2"]
    pairs = {(a, b) for a in names for b in names if a != b}
    with HttpCluster(3) as cluster:
        first, last = cluster.nodes[0], cluster.nodes[2]
        ranks = cluster.ranks("g", [0, 1, 2])
        for rank in ranks:
            rank.start("all_reduce", name="g", count=1000)
        for rank in ranks:
            rank.finish()

        def whole(node):
            links = matrix(node)
            return set(links) == pairs and all(
                row["state"] == "up" and row["min_rtt_us"] and row["segments"] is not None
                for row in links.values()
            )

        for node in (first, last):
            until(lambda node=node: whole(node), lambda node=node: matrix(node))
        told = first.ctl("links")["links"]
        equal({(row["node"], row["peer"]) for row in told}, pairs)
        check(all(row["state"] == "up" for row in told), told)
        for rank in ranks:
            rank.call("leave", name="g")
        cluster.expect("node node2 was lost")
        cluster.expect("the engines of nodes .* lost each other")
        cluster.expect("UCX +ERROR")
        last.kill()

        def gone():
            links = matrix(first)
            return {pair for pair in links if pair[0] != "node2"} == set(links) and all(
                row["state"] == ("down" if pair[1] == "node2" else "up")
                for pair, row in links.items()
            )

        until(gone, lambda: matrix(first))
        done = subprocess.run([*c.commctl(first), "links"],
                              capture_output=True, text=True)  # fmt: skip
        equal(done.returncode, 1, done)
        equal(done.stderr, "commctl: node node2 is down\n")
        check("node1" in done.stdout, done)


def test_counters_never_go_back():
    """While groups come and go, and between answers."""
    with HttpCluster(1) as cluster:
        node = cluster.nodes[0]
        ranks = cluster.ranks("g", [0, 0])
        total, before = 0, numbers(node)
        for number in range(5):
            name = f"g{number}"
            cluster.join(name, ranks)
            for _ in range(number + 1):
                for rank in ranks:
                    rank.start("all_reduce", name=name, count=10)
                for rank in ranks:
                    rank.finish()
                total += 1
            if number % 2:
                numbers(node)
            for rank in ranks:
                rank.call("leave", name=name)
            now = numbers(node)
            for name, value in before.items():
                if re.search("_(total|bucket|sum|count)", name):
                    check(now.get(name, value) >= value, f"{name} went from {value} to {now[name]}")
            before = now
        fresh(node, lambda m: m["commd_collectives_total"] == total, f"{total} operations")


def test_many_groups_are_counted_in_pieces():
    """Each once, however many turns it takes, and the page shows some of them."""
    count, shown = 600, 200  # METRICS_GROUPS_SHOWN
    with HttpCluster(1) as cluster:
        node = cluster.nodes[0]
        rank = cluster.rank(0)
        for number in range(count):
            rank.call("join", name=f"g{number}", rank=0, size=1)
            rank.call("all_reduce", name=f"g{number}", count=1)
        found = fresh(node, lambda m: m['commd_groups{state="open"}'] == count, f"{count} groups")
        equal(found["commd_collectives_total"], count)
        equal(found["commd_groups_of_one_user"], count)
        status = json.loads(get(node, "/status.json"))
        equal((len(status["groups"]), status["groups_of_all"]), (shown, count))
        equal(len({group["number"] for group in status["groups"]}), shown)
        longest = found["commd_longest_turn_cpu_seconds"]
        for _ in range(3):
            found = fresh(node, lambda m, n=found["commd_turns_total"]: m["commd_turns_total"] > n,
                          "an answer made anew")  # fmt: skip
        grown = found["commd_longest_turn_cpu_seconds"] - longest
        check(grown < (0.1 if SLOW else 0.02), f"a turn took {longest + grown} s")


def texts(json_value, key=""):
    """What it says in words, and numbers of processes. Other numbers may be a pid by chance."""
    if isinstance(json_value, dict):
        for name, value in json_value.items():
            yield name
            yield from texts(value, name)
    elif isinstance(json_value, list):
        for value in json_value:
            yield from texts(value, key)
    elif isinstance(json_value, str) or "pid" in key:
        yield str(json_value)


def test_nothing_says_whose_it_is():
    """No name of a group or a program, no uid, no pid of a client; not even where groups break by
    a text of a user."""
    secret = "tenant-secret-name"
    with HttpCluster(2) as cluster:
        node = cluster.nodes[0]
        ranks = cluster.ranks(secret, [0, 0, 1])
        waiting = cluster.rank(0)
        waiting.start("join", name=secret + "-2", rank=0, size=3)
        until(lambda: len(node.groups()) == 2, "a group that forms")
        ranks[0].call("abort", name=secret, reason=f"{secret} <script>alert(1)</script>")
        until(lambda: any(g["state"] == "broken" for g in node.groups()), "a broken group")
        seen = ""
        for path in ("/metrics", "/status.json", "/readyz", "/healthz", "/", "/" + secret):
            status, headers, body = ask(node, path)
            seen += body + repr(headers)
        groups = json.loads(get(node, "/status.json"))["groups"]
        equal(sorted(g["state"] for g in groups), ["broken", "joining"])
        equal([g["cause"] for g in groups if g["state"] == "broken"], ["aborted"])
        events = json.loads(get(node, "/status.json"))["events"]
        happened = {e["event"]: e["text"] for e in events}
        equal(happened["group_failed"], "", "what ended badly is told, and not whose it was")
        check(happened["start"] and happened["node_up"], happened)
        check("group_open" not in happened and "client_come" not in happened, happened)
        joining = [g for g in groups if g["state"] == "joining"][0]
        check(joining["number"] is None and joining["ops"] is None, joining)
        check(secret not in seen, "a name of a group")
        check("alert(1)" not in seen, "a text of a user")
        check("python" not in seen and "uid" not in seen, "a program or a user")
        status = list(texts(json.loads(get(node, "/status.json"))))
        metrics = re.sub(r" \S+$", "", get(node, "/metrics"), flags=re.MULTILINE)
        numbers_seen = set(re.findall(r"\d+", " ".join([metrics, *status])))
        for rank in ranks:
            check(str(rank.pid) not in numbers_seen, f"pid {rank.pid} of a rank")
        waiting.kill()


def test_page_is_self_contained():
    with HttpCluster(1) as cluster:
        status, headers, page = ask(cluster.nodes[0], "/")
        equal(status, 200)
        equal(headers["Content-Type"], "text/html; charset=utf-8")
        with open(os.path.join(c.TOP, "daemon/http/page.html")) as file:
            equal(page, file.read())
        check(not re.search(r"https?://|src=|@import|url\(", page), "the page asks elsewhere")
        check("innerHTML" not in page, "what commd sends is never markup")
        check("default-src 'none'" in headers["Content-Security-Policy"], headers)
        equal(headers["X-Content-Type-Options"], "nosniff")
        equal(headers["Cache-Control"], "no-store")
        status, headers, body = ask(cluster.nodes[0], "/", method="HEAD")
        equal((status, body, headers["Content-Length"]), (200, "", str(len(page))))


# ---- health -------------------------------------------------------------------------------------


def test_ready_follows_engine_and_links():
    with HttpCluster(2, start=False) as cluster:
        node, other = cluster.nodes
        cluster.expect("the engine of node node0 was lost")
        cluster.expect("the engines of nodes .* lost each other")
        cluster.expect("UCX +ERROR")
        node.start()
        until(lambda: re.search("http on 127.0.0.1", node.log()), "HTTP is served")
        status, _, body = ask(node, "/readyz")  # the other one is not there yet
        equal(status, 503)
        check(body.startswith("not ready: ") and body.count("\n") == 1, body)
        check("node node1 is down" in body, body)
        equal(ask(node, "/healthz")[::2], (200, "ok\n"))
        other.start()
        cluster.wait_linked()
        until(lambda: ask(node, "/readyz")[::2] == (200, "ready\n"), "ready")
        equal(numbers(node)["commd_engine_up"], 1)

        def killed():
            """An engine is there again within milliseconds; one that dies on and on is not."""
            if node.engine_pid():
                os.kill(node.engine_pid(), signal.SIGKILL)
            answer = ask(node, "/readyz")
            return answer[0] == 503 and answer[::2]

        status, body = until(killed, "not ready without an engine", seconds=60)
        check("engine" in body or "node1" in body, body)
        until(lambda: ask(node, "/readyz")[0] == 200, "ready again")

        def started(m):
            return m["commd_engine_losses_total"] and m["commd_engine_starts_total"] >= 2

        equal(fresh(node, started, "the engine's start")["commd_engine_up"], 1)


# ---- who does not behave ------------------------------------------------------------------------


def test_requests_that_are_refused():
    good = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    cases = (
        (good + b"\r\n", "200"),
        (good + b"\r\n" + good + b"\r\n", "200"),  # one only
        (good + b"Connection: keep-alive\r\n\r\n", "200"),
        (b"GET /healthz HTTP/1.0\r\n\r\n", "200"),
        (good + b"Host: localhost\r\n\r\n", "400"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", "400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"),
        (b"GET /nowhere HTTP/1.0\r\n\r\n", "404"),
        (b"GET /../etc/passwd HTTP/1.0\r\n\r\n", "404"),
        (b"GET /" + 200 * b"a" + b" HTTP/1.0\r\n\r\n", "404"),
        (b"GET /" + 300 * b"a" + b" HTTP/1.0\r\n\r\n", "414"),
        (b"DELETE / HTTP/1.0\r\n\r\n", "405"),
        (b"POST / HTTP/1.0\r\nContent-Length: 60000\r\n\r\n" + 60000 * b"x", "405"),
        (good + b"Content-Length: 1\r\n\r\nx", "413"),
        (good + b"X: " + 9000 * b"a", "431"),
        (good + 400 * b"X: aaaaaaaaaaaaaaaaaaaaaaa\r\n", "431"),
        (b"GET / HTTP/3.0\r\n\r\n", "505"),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example.org\r\n\r\n", "403"),
        (b"GET /metrics HTTP/1.1\r\nHost: [::1]:1\r\n\r\n", "200"),
    )
    with HttpCluster(1) as cluster:
        node = cluster.nodes[0]
        for request, status in cases:
            answer = raw(node, request, end=False)
            equal(answer[:12], f"HTTP/1.1 {status}", request[:60])
            equal(answer.count("HTTP/1.1 "), 1, request[:60])
            check("\r\nConnection: close\r\n" in answer, answer)
            if status not in ("200", "503"):
                check(re.search(rf"\r\n\r\n{status}: [^\n]+\n$", answer), answer)
        equal(ask(node, "/", method="PUT")[1]["Allow"], "GET, HEAD")
        wanted = {'commd_http_requests_total{code="405"}': 3,
                  'commd_http_requests_total{code="431"}': 2}  # fmt: skip
        fresh(node, lambda m: wanted.items() <= m.items(), "the refusals are counted")
        equal(raw(node, b"GET / HTT"), "")  # it went away in the middle


def test_who_is_refused_and_stays():
    """It has its answer, and is reset a second later: the kernel keeps nothing of it."""
    with HttpCluster(1) as cluster, socket.create_connection(
        ("127.0.0.1", cluster.nodes[0].http), timeout=c.LATEST
    ) as link:
        link.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        answer = b"".join(iter(lambda: link.recv(4096), b""))
        check(answer.startswith(b"HTTP/1.1 400 "), answer)
        until(lambda: link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "it is reset")


def crowd(node, count, request):
    links = []
    for _ in range(count):
        link = socket.create_connection(("127.0.0.1", node.http), timeout=c.LATEST)
        links.append(link)
        with contextlib.suppress(OSError):  # its place was given to another
            link.sendall(request)
    return links


def test_a_crowd_that_never_asks():
    """Connections are bounded, who asks is answered, and commctl too."""
    with HttpCluster(1) as cluster:
        node = cluster.nodes[0]
        before = fds(node.pid)
        first = c.now()  # a crowd may wait for seconds at a full queue, when some are in already
        links = crowd(node, 300, b"GET /metrics HTTP/1.1\r\nX: ")
        # who was dropped is freed at the end of a turn
        until(lambda: fds(node.pid) <= before + CONNECTIONS + 2, lambda: fds(node.pid))
        limit = c.Limit(READ_S - 1)
        get(node, "/healthz")
        check(node.ctl("status")["status"], "commctl is answered")
        found = numbers(node)
        check(found["commd_http_connections"] <= CONNECTIONS, found)
        check(found["commd_http_dropped_total"] >= 300 - CONNECTIONS, found)
        check(not limit.over(), "they are answered before the others have to go")
        # a byte now and then is no reason to wait longer
        last = c.now()

        def send_a_byte():
            nonlocal last
            if c.now() - last > 0.1:  # ten in a second do not make a long head
                last = c.now()
                for link in links[-CONNECTIONS // 2 :]:
                    with contextlib.suppress(OSError):
                        link.send(b"a")
            return fds(node.pid) <= before + 1

        until(send_a_byte, "they are closed in the end", READ_S + c.HANG)
        check(READ_S - 1 < c.now() - first, "not before their time")
        for link in links:
            link.close()


def test_a_crowd_that_does_not_read():
    with HttpCluster(1) as cluster:
        node = cluster.nodes[0]
        before = fds(node.pid)
        links = []
        for _ in range(3 * CONNECTIONS):
            link = socket.socket()
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            link.connect(("127.0.0.1", node.http))
            link.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            links.append(link)
        # who was dropped is freed at the end of a turn
        until(lambda: fds(node.pid) <= before + CONNECTIONS + 2, lambda: fds(node.pid))
        get(node, "/healthz")
        check(numbers(node)["commd_ready"] == 1, "who reads is answered")
        for link in links:
            link.close()
        until(lambda: fds(node.pid) <= before, "all are closed")


def test_thousands_of_scrapes_cost_no_memory():
    with HttpCluster(1) as cluster:
        node = cluster.nodes[0]
        count = 300 if SLOW else 1500

        def scrape(times):
            for _ in range(times):
                for path in ("/metrics", "/status.json", "/"):
                    get(node, path)

        scrape(100)
        memory, files = resident(node.pid), fds(node.pid)
        scrape(count)
        grown = resident(node.pid) - memory
        check(grown < (64 << 20 if SLOW else 256 << 10), f"{grown} bytes more")
        until(lambda: fds(node.pid) <= files, "no descriptor is left")
        longest = numbers(node)["commd_longest_turn_cpu_seconds"]
        check(longest < 0.05 * (10 if SLOW else 1), f"a turn took {longest} s")


# ---- the setting --------------------------------------------------------------------------------


def test_off_unless_set():
    with Cluster(1) as cluster:
        check("http" not in cluster.nodes[0].log(), "no HTTP")


def test_where_others_may_come_in():
    """There they come by names too."""
    with HttpCluster(1, start=False) as cluster:
        node = cluster.nodes[0]
        node.write_config(listen={"http": f"0.0.0.0:{node.http}"})
        cluster.start()
        equal(ask(node, "/healthz", Host="node0.example.org")[0], 200)


def test_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        raise Skip(f"no IPv6 here: {error}") from None
    with HttpCluster(1, start=False) as cluster:
        node = cluster.nodes[0]
        node.write_config(listen={"http": f"'[::1]:{node.http}'"})
        cluster.start()
        with socket.create_connection(("::1", node.http), timeout=c.LATEST) as link:
            link.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            check(link.recv(65536).startswith(b"HTTP/1.1 200 "), "an answer over IPv6")


def test_address_that_cannot_be_used():
    with HttpCluster(1) as cluster:
        node = cluster.nodes[0]
        for where, text, code in (
            (f"127.0.0.1:{node.http}", "is in use by another program (ss -ltnp shows it): stop "
             "that, or choose another port", 1),
            (f"192.0.2.1:{node.http}", "is none of this machine's: correct it, or take 127.0.0.1 "
             "for this machine alone or 0.0.0.0 for all its addresses", 78),
        ):  # fmt: skip
            path = os.path.join(cluster.folder, "other.yaml")
            with open(path, "w") as file:
                file.write(f"listen: {{socket: {cluster.folder}/other.sock, http: '{where}'}}\n")
            done = subprocess.run([c.COMMD, "--config", path], capture_output=True, text=True)
            check(text in done.stderr and "listen.http: " in done.stderr, done.stderr)
            check(where in done.stderr, done.stderr)
            equal(done.returncode, code)
        check(not os.path.exists(os.path.join(cluster.folder, "other.sock")), "nothing is left")


def test_reload_keeps_the_address():
    with HttpCluster(1) as cluster:
        node = cluster.nodes[0]
        cluster.expect("reloaded, but for listen.http: that needs a restart")
        node.write_config(listen={"http": '""'})
        node.process.send_signal(signal.SIGHUP)
        node.wait_log("reloaded, but for listen.http: that needs a restart")
        get(node, "/healthz")


def test_counters_go_on_when_commd_is_killed():
    """Those of the commd that follows do not begin at 0."""
    with HttpCluster(1, {"limits": {"max_clients_per_user": "2"}}, start=False) as cluster:
        node = cluster.nodes[0]
        cluster.expect("killed by signal 9")
        cluster.expect("refused")
        node.start(arguments=["--keep"])
        until(lambda: node.ctl("status"), "commd serves")
        ranks = cluster.ranks("g", [0] * 2)
        cluster.join("h", ranks)
        counted = ("commd_clients_total", "commd_groups_opened_total",
                   'commd_clients_refused_total{cause="quota exceeded"}')  # fmt: skip
        with contextlib.ExitStack() as crowd:  # too many for the listener, before their hello
            for _ in range(17):
                crowd.enter_context(socket.socket(socket.AF_UNIX)).connect(node.socket)
            fresh(node, lambda m: m[counted[2]] == 1, "one of them is refused")
        late = cluster.rank(0, connect=False)
        late.start("connect")  # the core refuses it
        equal(late.error()["code"], "QUOTA")
        found = fresh(node, lambda m: m[counted[2]] == 2, "another one")
        before = [found[name] for name in counted]
        equal(before, [2, 2, 2])
        with open(os.path.join(node.home, "commd.pid")) as file:
            os.kill(int(file.read()), signal.SIGKILL)

        def after():
            with contextlib.suppress(OSError, http.client.HTTPException):
                return numbers(node)
            return None

        found = until(after, "another commd serves")
        equal([found[name] for name in counted], before)
        cluster.join("i", ranks)
        fresh(node, lambda m: m[counted[1]] == 3, "a third group")


if __name__ == "__main__":
    main(globals())
