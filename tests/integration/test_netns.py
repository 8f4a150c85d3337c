#!/usr/bin/env python3
"""Two nodes in two network namespaces joined by a veth pair: addresses that are not loopback.

Needs root (or CAP_NET_ADMIN and CAP_SYS_ADMIN). The ranks stay outside: they reach their commd by
the path of its socket.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import faults  # noqa: E402
import staged  # noqa: E402
from cluster import FABRIC, HANG, Cluster, Skip, check, commctl, equal  # noqa: E402
from cluster import main, need_ucx, now, until  # noqa: E402
from test_collectives import SEED, stream  # noqa: E402

PORT = 18400
HTTP = 18480
OFF = "clear: transport.encryption is off"
UCX = "clear: RDMA or UCX, trusted network"


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


class Namespaces(Cluster):
    """A cluster of two nodes, each in a namespace of its own."""

    def __init__(self, start=True, **changes):
        if os.geteuid() != 0:
            raise Skip("network namespaces need root")
        if not shutil.which("ip"):
            raise Skip("there is no ip: apt install iproute2")
        self.names = [f"commd-test-{os.getpid()}-{i}" for i in range(2)]
        transport = {"device": "veth0"}
        if FABRIC == "ucx":
            transport["trusted_network"] = "true"
        super().__init__(2, {"transport": transport, **changes}, start)

    def __enter__(self):
        try:
            for name in self.names:
                ip("netns", "add", name)
            a, b = self.names
            ip("-n", a, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", b)
            for name, (address, _) in zip(self.names, self.places()):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", "veth0", "up")
            for name in self.names:
                until(
                    lambda name=name: "state UP" in ip("-n", name, "link", "show", "veth0"),
                    "a link",
                )
        except subprocess.CalledProcessError as error:
            self.remove()
            raise Skip(f"no network namespaces here: {error.stderr.strip()}") from None
        try:
            return super().__enter__()
        except BaseException:
            self.remove()
            raise

    def remove(self):
        for name in self.names:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)

    def end(self):
        super().end()
        self.remove()

    def places(self):
        return [("10.77.1.1", PORT), ("10.77.1.2", PORT)]

    def make_node(self, index, address, port):
        node = super().make_node(index, address, port)
        # not nsenter: UCX looks for devices in /sys, which ip mounts anew for the namespace
        node.prefix = ["ip", "netns", "exec", self.names[index]]
        return node


def test_collectives():
    with Namespaces() as cluster:
        status = cluster.nodes[0].ctl("status")["status"][0]
        print(f"  engine of node0: {status['fabric']}")
        stream(cluster, [0, 1], 60, 2 << 20, SEED)
        stream(cluster, [0, 0, 1, 1], 60, 1 << 20, SEED + 1)


def test_rank_killed():
    with Namespaces() as cluster:
        ranks = cluster.ranks("g", [0, 0, 1, 1])
        faults.start_loops("g", ranks, 2_000_000)
        lost = ranks[3]
        begin = lost.kill()
        times = faults.errors(
            ranks[:3], begin, code="RANK_LOST", rank=3, pid=lost.pid, node="node1"
        )
        print(f"  time to error: {', '.join(f'{t:.1f}' for t in times)} ms")
        faults.leave("g", ranks[:3])
        faults.nothing_is_held(cluster)


def test_cable_pulled():
    """The other node vanishes without a word: lost after timeouts.node, here 1 s."""
    with Namespaces(timeouts={"heartbeat": "200ms", "node": "1s"}) as cluster:
        cluster.expect("was lost: silent for 1 s")
        # of a commd that is the later one: the cable is there again
        cluster.expect("was lost: its commd ended the link")
        cluster.expect("the engines of nodes .* lost each other")
        ranks = cluster.ranks("g", [0, 1])
        for rank in ranks:
            rank.start("all_reduce", name="g", count=10)
        for rank in ranks:
            rank.finish()
        for rank in ranks:
            rank.start("loop", name="g", count=2_000_000)
            rank.answer()
        begin = now()
        ip("-n", cluster.names[0], "link", "set", "veth0", "down")
        for rank, other in ((ranks[0], "node1"), (ranks[1], "node0")):
            error = rank.error()
            equal(error["node"], other, error)
            check(error["code"] in ("NODE_LOST", "ENGINE_LOST"), f"{error}")
            print(
                f"  {rank.node.name}: {error['code']} after {(error['at'] - begin) * 1000:.0f} ms"
            )
        ip("-n", cluster.names[0], "link", "set", "veth0", "up")
        faults.leave("g", ranks)
        cluster.wait_linked()
        faults.new_group_works(cluster, ranks)
        until(lambda: not cluster.nodes[0].groups(), "no group is left")


def test_data_ports_that_are_dropped():
    """The commds are linked and the engines meet nobody: `nodes`, `doctor` and `links` say so."""
    with Namespaces(transport=staged.SLOW_LINK) as cluster:
        cluster.expect("the engines of nodes .* lost each other")
        node = cluster.nodes[0]
        equal([row["apart_s"] for row in node.ctl("nodes")["nodes"]], [None, None])
        staged.drop_data(cluster)
        os.kill(cluster.nodes[1].engine_pid(), signal.SIGKILL)  # the next one is to be met
        cluster.expect("the engine of node node1 was lost")

        def apart():
            row = node.ctl("nodes")["nodes"][1]
            return row["state"] == "linking" and row["apart_s"]

        until(apart, lambda: f"it is told: {node.ctl('nodes')}", 6 * HANG)
        error = node.ctl("nodes")["nodes"][1]["last_error"]
        check("have no connection" in error, error)
        links = {row["peer"]: row for row in node.ctl("links")["links"] if row["node"] == "node0"}
        equal(links["node1"]["state"], "linking", links)
        shown = subprocess.run([*commctl(node), "doctor"], capture_output=True, text=True)
        equal(shown.returncode, 1, shown)
        check("its engine and ours have had no connection for" in shown.stdout, shown)
        check("transport.port_range" in shown.stdout, shown)


def test_network_that_crawls():
    """A link becomes slow, and nothing is lost."""
    if not shutil.which("tc"):
        raise Skip("there is no tc: apt install iproute2")
    with Namespaces(transport=staged.SLOW_LINK) as cluster:
        ranks = cluster.ranks("g", [0, 1])
        faults.start_loops("g", ranks, 100_000)
        until(lambda: cluster.nodes[1].ctl("nodes")["nodes"][0]["bandwidth"], "a rate is known")
        slow = ["rate", "10mbit", "burst", "32k", "limit", "16m"]
        done = subprocess.run(["tc", "-n", cluster.names[1], "qdisc", "add", "dev", "veth0", "root",
                               "tbf", *slow], capture_output=True, text=True)  # fmt: skip
        if done.returncode:
            raise Skip(f"tc cannot slow a link here: {done.stderr.strip()}")
        seen = {}

        def blamed():
            seen.update(cluster.nodes[0].ctl("why", "g")["why"][0])
            return seen["verdict"] == "SLOW_LINK"

        until(blamed, lambda: f"verdict SLOW_LINK: {seen}")
        check("sends to node" in seen["evidence"], seen)
        cluster.expect("was lost|died|lost each other")
        for rank in ranks:
            rank.kill()


def test_network_that_loses():
    """`commctl why` blames the link, by what the kernel says of the engines' connections."""
    with Namespaces(transport=staged.SLOW_LINK) as cluster:
        ranks = staged.slow_link(cluster).ranks
        seen = {}

        def blamed():
            seen.update(cluster.nodes[0].ctl("why", "g")["why"][0])
            return seen["verdict"] == "SLOW_LINK"

        until(blamed, lambda: f"verdict SLOW_LINK: {seen}")
        check("node node1 sends" in seen["evidence"], seen)
        check("of what goes to node node0 again" in seen["evidence"], seen)
        check("from node node1 to node node0" in seen["remedy"], seen)
        nodes = {row["node"]: row for row in cluster.nodes[1].ctl("nodes")["nodes"]}
        check(nodes["node0"]["retransmits"] >= 10 and nodes["node0"]["rtt_us"] > 0, nodes)
        check(nodes["node0"]["sent"] > 100_000 and nodes["node1"]["rtt_us"] is None, nodes)
        ranks[0].kill()


def views(node):
    """What each view says of the data between this node and the other one: its word, for how many
    seconds, which key."""
    cells = ("encryption", "encryption_s", "key_number")
    rows = {
        "nodes": [row for row in node.ctl("nodes")["nodes"] if row["state"] != "self"],
        "links": [row for row in node.ctl("links")["links"] if row["node"] == node.name],
    }
    found = {view: tuple(row[cell] for cell in cells) for view, (row,) in rows.items()}
    found["tuning"] = {row["name"]: row["value"] for row in node.ctl("tuning")["tuning"]}
    found["doctor"] = [row for row in node.ctl("doctor")["doctor"] if "data" in row["finding"]]
    ask = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{HTTP}/metrics').read())"
    done = subprocess.run([*node.prefix, sys.executable, "-c", ask], capture_output=True, text=True)
    equal(done.returncode, 0, done.stderr)
    found["metrics"] = done.stdout
    return found


def say(node, word, setting, key=None, warns=None):
    """All views of @node say @word; a doctor that warns has @warns in its remedy."""

    def told():
        return all(row["encryption"] for row in node.ctl("nodes")["nodes"] if row["state"] == "up")

    until(told, "the engine has told")
    found = views(node)
    for view in ("nodes", "links"):
        equal((found[view][0], found[view][2]), (word, key), view)
        check(0 <= found[view][1] < 1000, found[view])
    equal(found["tuning"]["encryption"], setting)
    age = "1 link, oldest key " if key else "1 link for "
    check(found["tuning"]["encrypted"].startswith(f"{word}: {age}"), found["tuning"])
    levels = {row["level"]: row for row in found["doctor"]}
    age = "by a key of " if key else "for "
    check(f"data: {word}, {age}" in levels["ok"]["finding"], levels)
    equal("warning" in levels, bool(warns), levels)
    if warns:
        check(word in levels["warning"]["finding"] and warns in levels["warning"]["remedy"], levels)
    check(f'encryption="{word}"}} 1' in found["metrics"], found["metrics"])
    other = next(row["node"] for row in node.ctl("nodes")["nodes"] if row["state"] != "self")
    check(f'commd_node_in_the_clear{{node="{other}"}} {int(bool(warns))}' in found["metrics"],
          found["metrics"])  # fmt: skip
    aged = f'commd_node_key_age_seconds{{node="{other}"}}' in found["metrics"]
    equal(aged, bool(key), "the key has an age, where there is one")


def test_what_each_link_uses():
    """In each view, and since when."""
    if FABRIC == "ucx":
        raise Skip("UCX encrypts nothing")
    with open("/proc/cpuinfo") as cpus:
        fast = "pclmulqdq" in cpus.read()
    cipher = "AES-128-GCM" if fast or os.uname().machine != "x86_64" else "ChaCha20-Poly1305"
    http = {"http": f"127.0.0.1:{HTTP}"}
    with Namespaces(listen=http) as cluster:
        for node in cluster.nodes:
            words = lambda node=node: [row["encryption"] for row in node.ctl("nodes")["nodes"]
                                       if row["encryption"]]  # fmt: skip
            (word,) = until(words, "it is told")
            check(word in (cipher, f"{cipher} (libipsec-mb)"), word)
            say(node, word, "auto", key=1)
    off = {"device": "veth0", "encryption": "off", "trusted_network": "true"}
    with Namespaces(listen=http, transport=off) as cluster:
        for node in cluster.nodes:
            say(node, OFF, "off", warns="auto in the configuration of this node")
        node = cluster.nodes[0]
        node.stop()
        node.write_config(transport={**off, "encryption": "auto"})
        cluster.expect("lost")
        node.start()
        cluster.wait_linked()
        say(node, OFF, "auto", warns="auto in the configuration of node node1")


def told(node):
    """What this node's commctl says of the other one's link: nodes, doctor, why."""
    (row,) = [row for row in node.ctl("nodes")["nodes"] if row["state"] != "self"]
    doctor = subprocess.run([*commctl(node), "doctor"], capture_output=True, text=True)
    equal(doctor.returncode, 1, doctor)
    why = subprocess.run([*commctl(node), "why"], capture_output=True, text=True)
    return row["last_error"] or "", doctor.stdout, why.stdout + why.stderr


def test_off_takes_nobody_along():
    """A node at auto does not go into the clear because another one says off: no link, and both
    nodes say who says what, and what to do."""
    if FABRIC == "ucx":
        raise Skip("UCX encrypts nothing")
    with Namespaces(start=False, listen={"http": f"127.0.0.1:{HTTP}"}) as cluster:
        cluster.expect("transport.encryption is")
        auto, off = cluster.nodes
        off.write_config(
            transport={"device": "veth0", "encryption": "off", "trusted_network": "true"}
        )
        for node in cluster.nodes:
            node.start()
            until(lambda node=node: node.ctl("nodes"), "an answer")
        want = (
            "transport.encryption is {} and {}, and transport.trusted_network is not true on node "
            "node0: set the first to auto on node node1, or the second to true, then systemctl "
            "reload commd there"
        )
        says = ("auto on node node0", "off on node node1")
        rank = cluster.rank(0)
        rank.start("join", name="g", rank=0, size=2)
        for node, text in ((auto, want.format(*says)), (off, want.format(*says[::-1]))):
            until(lambda node=node, text=text: text in told(node)[0], f"{node.name} says {text}")
            nodes, doctor, why = told(node)
            check(text in nodes and text in doctor, f"{node.name}: {nodes} {doctor}")
            check("have no connection: a join with ranks on both waits" in why, why)
            check("commctl nodes on node node" in why and "says why that is" in why, why)
        rank.kill()
        auto.write_config(transport={"device": "veth0", "trusted_network": "true"})
        auto.ctl("reload")
        cluster.wait_linked()
        say(auto, OFF, "auto", warns="auto in the configuration of node node1")


def test_from_on_to_off():
    """By way of auto, under groups of each node; at once it is refused."""
    if FABRIC == "ucx":
        raise Skip("UCX encrypts nothing")
    with Namespaces(transport={"device": "veth0", "encryption": "on"}) as cluster:

        def change(**transport):
            for node in cluster.nodes:
                node.write_config(transport={"device": "veth0", **transport})
                node.ctl("reload")
                node.wait_log("has the new settings|nothing to do")
            cluster.wait_linked()

        node = cluster.nodes[0]
        cluster.expect("the engines? of node")
        cluster.expect("at once, and nodes that are still at")
        cluster.expect("the new configuration is wrong")
        node.write_config(
            transport={"device": "veth0", "encryption": "off", "trusted_network": "true"}
        )
        done = subprocess.run([*commctl(node), "reload"], capture_output=True, text=True)
        check(done.returncode and 'from "on" to "off" at once' in done.stderr + done.stdout, done)
        check("first auto on all nodes" in done.stderr + done.stdout, done)
        cluster.wait_linked()
        change(encryption="auto", trusted_network="true")
        change(encryption="off", trusted_network="true")
        until(lambda: node.ctl("nodes")["nodes"][1]["encryption"] == OFF, "in the clear")


def test_what_links_of_ucx_use():
    need_ucx()
    ucx = {"device": "veth0", "fabric": "ucx", "trusted_network": "true"}
    with Namespaces(listen={"http": f"127.0.0.1:{HTTP}"}, transport=ucx) as cluster:
        say(cluster.nodes[0], UCX, "auto", warns="transport.fabric: tcp on all nodes")


if __name__ == "__main__":
    main(globals())
