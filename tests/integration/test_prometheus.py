#!/usr/bin/env python3
"""What Prometheus and Grafana make of the numbers: the text is clean, alerts and the dashboard ask
for what there is, and a real Prometheus that scrapes two commds while jobs run, break and are
refused has an answer to every question of the dashboard. With promtool and prometheus where they
are installed (Debian: prometheus); Grafana itself is in no package, so its file is read here.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import cluster as c  # noqa: E402
from cluster import Skip, check, equal, main, until  # noqa: E402
from test_http import HttpCluster, get  # noqa: E402

INTERVAL = "300s"  # for $__rate_interval: a slow machine takes long between two questions
# Questions of the dashboard that nothing here answers, and why: what the expression begins with.
UNANSWERED = {
    "rate(commd_gpu_moved_bytes_total": "no GPU was used",
}


def need(program):
    if not shutil.which(program):
        raise Skip(f"needs {program} (Debian: prometheus)")


def dashboard():
    with open(os.path.join(c.TOP, "etc/grafana-commd.json")) as file:
        return json.load(file)


def dashboard_queries(job=".*"):
    found = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    check(len(found) > 30, "the dashboard asks for something")
    return [text.replace("$__rate_interval", INTERVAL).replace("$job", job) for text in found]


def manual_queries():
    with open(os.path.join(c.TOP, "doc/metrics.md")) as file:
        part = file.read().partition("## What to alert on")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `(.*?)`", part, re.M)
    check(len(found) > 10, "the manual has alerts")
    return found


# ---- the file for Grafana -----------------------------------------------------------------------


def strings(value):
    """All that is a text in a value of JSON."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for one in value for text in strings(one)]
    return [value] if isinstance(value, str) else []


def test_dashboard_is_what_grafana_reads():
    """Fields that Grafana 10 and newer want of a dashboard of schema 39, and no name of a data
    source or a variable that it would not find where the file is loaded."""
    board = dashboard()
    equal(board["schemaVersion"], 39)
    check(re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", board["uid"]), board["uid"])
    check(board["title"] and "id" not in board, "an id is the database's of one Grafana")
    variables = {one["name"]: one for one in board["templating"]["list"]}
    equal((variables["datasource"]["type"], variables["datasource"]["query"]),
          ("datasource", "prometheus"))  # fmt: skip
    source = {"type": "prometheus", "uid": "${datasource}"}
    equal(variables["job"]["datasource"], source)
    equal(variables["job"]["query"]["query"], variables["job"]["definition"])
    known = {"$" + name for name in variables} | {"$__rate_interval", "$__all"}
    for text in strings(board):
        used = {"$" + name for name in re.findall(r"\$\{?(\w+)", text)}
        check(used <= known, f"unknown to Grafana: {used - known} in {text}")
    panels = board["panels"]
    equal(len({panel["id"] for panel in panels}), len(panels), "ids of panels")
    taken = set()
    for panel in panels:
        check(panel["type"] in ("stat", "table", "timeseries"), panel["type"])
        check(panel["title"] and panel["targets"], panel)
        equal(panel["datasource"], source, panel["title"])
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y)
                 for x in range(place["w"]) for y in range(place["h"])}  # fmt: skip
        check(not cells & taken, f"{panel['title']} lies on another panel")
        check(place["x"] + place["w"] <= 24, f"{panel['title']} is too wide")
        taken |= cells
        marks = [target["refId"] for target in panel["targets"]]
        equal(len(set(marks)), len(marks), panel["title"])
        for target in panel["targets"]:
            equal(target["datasource"], source, panel["title"])
            # a table is of now; one number is the last of a range, or of now
            instant = target.get("instant", False)
            equal(target.get("range", True), not instant, panel["title"])
            check(panel["type"] == "stat" or instant == (panel["type"] == "table"), panel["title"])


# ---- promtool -----------------------------------------------------------------------------------


def test_promtool_finds_nothing():
    need("promtool")
    with HttpCluster(2) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        for rank in ranks:
            rank.call("leave", name="g")
        for node in cluster.nodes:
            done = subprocess.run(["promtool", "check", "metrics"], input=get(node, "/metrics"),
                                  capture_output=True, text=True)  # fmt: skip
            equal((done.returncode, done.stdout + done.stderr), (0, ""))


def test_queries_of_dashboard_and_manual():
    """They are valid, and what they select by label is there."""
    queries = dashboard_queries() + manual_queries()
    with HttpCluster(2) as cluster:
        samples = get(cluster.nodes[0], "/metrics")
    for query in queries:
        for metric, label, value in re.findall(r'(commd_\w+)\{(?:[^}]*,)?(\w+)="([^"]*)"', query):
            check(re.search(rf'^{metric}\{{.*{label}="{value}"', samples, re.M), query)
    need("promtool")
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        rules = [{"record": f"r{number}", "expr": text} for number, text in enumerate(queries)]
        json.dump({"groups": [{"name": "all", "rules": rules}]}, file)  # which is YAML as well
        file.flush()
        done = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True,
                              text=True)  # fmt: skip
        equal(done.returncode, 0, done.stdout + done.stderr)


def test_alerts_are_those_of_the_manual():
    path = os.path.join(c.TOP, "etc/commd-alerts.yaml")
    with open(path) as file:
        found = re.findall(r"^        expr: '(.*)'$", file.read(), re.M)
    equal(found, manual_queries())
    need("promtool")
    done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True)
    equal(done.returncode, 0, done.stdout + done.stderr)


# ---- prometheus ---------------------------------------------------------------------------------


class Prometheus:
    """It scrapes the nodes each second, as the job "commd", with the alerts of etc/."""

    def __init__(self, nodes):
        self.targets = [f"127.0.0.1:{node.http}" for node in nodes]

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="commd-prometheus-")
        self.port = c.free_port_blocks(1)[0]
        with open(f"{self.folder}/prometheus.yml", "w") as file:
            scrape = {"job_name": "commd", "static_configs": [{"targets": self.targets}]}
            json.dump({"global": {"scrape_interval": "1s", "scrape_timeout": "1s",
                                  "evaluation_interval": "1s"},
                       "rule_files": [os.path.join(c.TOP, "etc/commd-alerts.yaml")],
                       "scrape_configs": [scrape]}, file)  # fmt: skip
        with open(f"{self.folder}/log", "w") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={self.folder}/prometheus.yml",
                 f"--storage.tsdb.path={self.folder}/data",
                 f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log,
            )  # fmt: skip
        return self

    def __exit__(self, *_):
        self.process.terminate()
        c.exit_code(self.process)
        shutil.rmtree(self.folder)

    def ask(self, path, **words):
        """The data; None while it is not there. What it refuses is the test's failure."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=c.LATEST) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it begins
                return None
            raise AssertionError(f"{words}: {error.read().decode()}") from None
        except OSError:
            return None

    def query(self, text):
        """The numbers of an answer, sorted."""
        data = self.ask("query", query=text)
        return data and sorted(float(one["value"][1]) for one in data["result"])


def refuse(cluster, node):
    """A client, another program at the port of the nodes, and a rank that come to nothing."""
    cluster.expect("TLS|refused|handshake|closing|not a node|does not speak|ended")
    with socket.socket(socket.AF_UNIX) as link, contextlib.suppress(OSError):
        link.connect(node.socket)
        link.sendall(b"GET / HTTP/1.0\r\n\r\n" * 20)
        link.settimeout(c.LATEST)
        link.recv(100)
    with socket.create_connection((node.address, node.port), timeout=c.LATEST) as link:
        with contextlib.suppress(OSError):
            link.sendall(b"GET / HTTP/1.0\r\n\r\n" * 20)
            while link.recv(4096):
                pass
    cluster.rank(0).call_error("join", name="alone", rank=0, size=2, timeout_ms=100)


def go_wrong(cluster):
    """Of what the dashboard shows, what does not happen in a day that is well."""
    node = cluster.nodes[0]
    refuse(cluster, node)
    dies = cluster.ranks("dies", [0, 0])
    dies[1].kill()
    until(lambda: "rank_lost" in {event["event"] for event in node.ctl("events")["events"]},
          "the death is known")  # fmt: skip
    dies[0].call("abort", name="dies", reason="enough")
    dies[0].call("recover", name="dies")
    cluster.ranks("ends", [0, 1])[0].call("abort", name="ends", reason="enough")
    cluster.expect("engine|died|lost|UCX +ERROR")
    os.kill(node.engine_pid(), signal.SIGKILL)
    cluster.wait_linked()


def test_prometheus_answers_the_dashboard():
    """Also that what is well raises no alert, and what happened here does."""
    need("prometheus")
    with HttpCluster(2) as cluster, Prometheus(cluster.nodes) as server:
        until(lambda: server.query("up") == [1, 1], "both are scraped", 3 * c.HANG)
        until(lambda: server.query("commd_ready") == [1, 1], "both are ready", 3 * c.HANG)
        until(lambda: server.query("sum(commd_node_up)") == [2], "two links", 3 * c.HANG)
        equal(server.query("count(commd_build_info)"), [2], "and who they are")
        equal(server.ask("label/job/values", **{"match[]": "commd_ready"}), ["commd"])
        ranks = cluster.ranks("g", [0, 0, 1, 1])
        for rank in ranks:
            rank.start("paced", name="g", compute=0.001, steps=10**6, count=20000)
            rank.answer()
        rates = f"sum(rate(commd_operation_wait_seconds_sum[{INTERVAL}]))"
        until(lambda: (server.query(rates) or [0])[0] > 0, "a rate of waits", 3 * c.HANG)
        equal(server.query('ALERTS{alertname!="CommdNotReady"}'), [], "alerts while all is well")
        go_wrong(cluster)
        for rank in ranks:
            rank.kill()
        queries = dashboard_queries(job="commd")
        for query in UNANSWERED:
            check(any(one.startswith(query) for one in queries), f"{query} is no question")
        for query in queries:
            if query.startswith(tuple(UNANSWERED)):
                equal(server.query(query), [], "answered after all: " + query)
                continue
            numbers = until(lambda query=query: server.query(query), f"data for {query}")
            check(all(number == number for number in numbers), f"not a number: {query}")
        lost = until(lambda: server.query('ALERTS{alertname=~".*Rank.*"}'), "an alert", 3 * c.HANG)
        equal(set(lost), {1.0})


if __name__ == "__main__":
    main(globals())
