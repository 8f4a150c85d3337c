#!/usr/bin/env python3
"""A new cluster key under running jobs, by the steps of doc/operations.md."""

import json
import os
import subprocess
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import Cluster, check, commctl, equal, main, until  # noqa: E402

OLD, NEW = "0" * 63 + "1", "f" * 63 + "0"


class Keyed(Cluster):
    """A key file for each node."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.expect("closed before")  # a link that was being made when the keys changed

    def make_node(self, index, address, port):
        node = super().make_node(index, address, port)
        node.key_file = os.path.join(self.folder, f"key-of-{node.name}")
        put(node, OLD)
        write = node.write_config
        node.write_config = lambda **changes: write(
            **{**changes, "cluster": {"key_file": node.key_file, **changes.get("cluster", {})}}
        )
        return node


def put(node, *keys):
    with open(os.open(node.key_file + ".new", os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write("".join(key + "\n" for key in keys))
    os.rename(node.key_file + ".new", node.key_file)


def reload(node, *keys):
    put(node, *keys)
    node.ctl("reload")


def keys(node):
    done = subprocess.run([*commctl(node), "--json", "keys"],
                          capture_output=True, text=True)  # fmt: skip
    rows = json.loads(done.stdout)["keys"]
    return done.returncode, rows, done.stderr


def same(cluster, other):
    """All nodes know of all that they have the same; returns the name of the first key."""
    names = set()
    for node in cluster.nodes:
        status, rows, text = keys(node)
        if status:
            return None
        names |= {(row["key"], row["other_key"]) for row in rows}
    ((key, second),) = names
    check((second is not None) == other, names)
    return key


def test_a_new_key_under_a_running_job():
    with Keyed(3) as cluster:
        cluster.expect("wrong cluster key -> refused")
        old = until(lambda: same(cluster, False), "one key")
        ranks = cluster.ranks("job", [0, 1, 2])
        for rank in ranks:
            rank.start("paced", name="job", compute=0.002, steps=400)
            check("started" in rank.answer(), "the job runs")
        # step 1, on one node after the other
        reload(cluster.nodes[1], NEW, OLD)
        until(lambda: keys(cluster.nodes[0])[0] == 1, "they differ")
        text = keys(cluster.nodes[0])[2]
        check("node node1 offers another key than this one" in text, text)
        reload(cluster.nodes[0], NEW, OLD)
        reload(cluster.nodes[2], NEW, OLD)
        new = until(lambda: same(cluster, True), "two keys everywhere")
        check(new != old, new)
        equal({row["link_key"] for row in keys(cluster.nodes[0])[1][1:]}, {old})
        # step 2
        for node in cluster.nodes:
            reload(node, NEW)
        equal(until(lambda: same(cluster, False), "only the new one"), new)
        for rank in ranks:
            rank.finish()
            rank.call("leave", name="job")
        for node in cluster.nodes:
            check("was lost" not in node.log(), node.log())


def changed(cluster, key):
    """A new key everywhere, in two steps; returns when all links are of it."""
    for second in ([key[1]], []):
        for node in cluster.nodes:
            reload(node, key[0], *second)
    name = until(lambda: same(cluster, False), "only the new one")

    def renewed():
        return all({row["link_key"] for row in keys(node)[1] if row["link_key"]} == {name}
                   for node in cluster.nodes)  # fmt: skip

    until(renewed, "all links are of the new key")


def test_keys_of_encrypted_data_change_under_a_verifying_job():
    """Each new cluster key makes the links of the commds anew, and the engines go on with it: each
    result is verified meanwhile, and no connection of theirs is made anew."""
    rounds = 6
    with Keyed(2, {"transport": {"encryption": "on"}}) as cluster:
        cluster.expect("wrong cluster key -> refused")
        until(lambda: same(cluster, False), "one key")
        engines = [node.engine_pid() for node in cluster.nodes]
        ranks = cluster.ranks("job", [0, 1])
        over, done = threading.Event(), []

        def job():
            while not over.is_set():
                for rank in ranks:
                    rank.start("stream", name="job", seed=len(done), operations=60,
                               max_bytes=200000)  # fmt: skip
                done.append([rank.finish() for rank in ranks])

        thread = threading.Thread(target=job)
        thread.start()
        try:
            key = OLD
            for i in range(rounds):
                seen = len(done)
                key, before = f"{i + 2:064x}", key
                changed(cluster, (key, before))
                until(lambda seen=seen: len(done) > seen + 1, "the job goes on")
        finally:
            over.set()
            thread.join()
        equal(done, [[60, 60]] * len(done))
        equal([node.engine_pid() for node in cluster.nodes], engines, "the engines went on")
        for node in cluster.nodes:
            check("lost" not in node.log(), node.log())
            until(lambda node=node: all(
                row["key_number"] > rounds
                for row in node.ctl("nodes")["nodes"] if row["state"] != "self"
            ), "keys of data are as many")  # fmt: skip
        for rank in ranks:
            rank.call("leave", name="job")


def test_nodes_that_start_in_between():
    """Whoever has a key in common links, whichever of them is older."""
    with Keyed(2, start=False) as cluster:
        cluster.expect("wrong cluster key -> refused")
        cluster.expect("was lost: its commd ended the link")
        cluster.expect("the engines of nodes .* lost each other")
        for first, second in (((NEW, OLD), (OLD,)), ((OLD,), (NEW, OLD))):
            for node, have in zip(cluster.nodes, (first, second)):
                put(node, *have)
            cluster.start()
            equal(keys(cluster.nodes[0])[1][1]["key"], keys(cluster.nodes[1])[1][1]["key"])
            for node in cluster.nodes:
                node.stop()


def test_who_missed_it_is_refused():
    with Keyed(2) as cluster:
        cluster.expect("wrong cluster key -> refused")
        cluster.expect("another cluster key: all nodes need the same")
        cluster.expect("was lost")
        cluster.expect("the engines of nodes .* lost each other")
        until(lambda: same(cluster, False), "one key")
        node = cluster.nodes[1]
        node.stop()
        reload(cluster.nodes[0], NEW)
        node.start()
        until(lambda: "another cluster key" in cluster.nodes[0].log() + node.log(), "a refusal")
        reload(node, NEW)
        until(lambda: same(cluster, False), "they are linked by the new one")


def test_a_file_that_is_wrong():
    with Keyed(2) as cluster:
        cluster.expect("the cluster key is not 64 hex digits")
        cluster.expect("keeping the old one, and the old configuration")
        before = until(lambda: same(cluster, False), "one key")
        node = cluster.nodes[0]
        reload(node, NEW[1:])
        node.wait_log("keeping the old one, and the old configuration")
        equal(same(cluster, False), before)


main(globals())
