#!/usr/bin/env python3
"""Nodes that prove who they are by certificates, by the steps of doc/operations.md."""

import itertools
import json
import os
import re
import subprocess
import sys
import time
import urllib.request

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
for folder in (os.path.join(HERE, "lib"), os.path.join(os.path.dirname(HERE), "faults")):
    sys.path.insert(0, folder)
from authority import Authority, Certified  # noqa: E402
from cluster import COMMD, check, commctl, equal, main, now, until  # noqa: E402
from keeping import restart, serves  # noqa: E402
from place import connections, reset  # noqa: E402


class Keyed(Certified):
    authentication = "key"


def reload(node, authentication=None):
    node.authentication = authentication or node.authentication
    node.write_config()
    done = subprocess.run([*commctl(node), "reload"], capture_output=True, text=True)
    equal(done.returncode, 0, done.stdout + done.stderr)


def keys(node):
    done = subprocess.run([*commctl(node), "--json", "keys"],
                          capture_output=True, text=True)  # fmt: skip
    return done.returncode, json.loads(done.stdout)["keys"], done.stderr


def made_by(cluster):
    """By what the links are made, as all nodes say; None: they do not agree, or not all are up."""
    names = set()
    for node in cluster.nodes:
        status, rows, _ = keys(node)
        if status:
            return None
        names |= {row["link_key"] for row in rows if row["node"] != node.name}
    return names.pop() if len(names) == 1 and None not in names else None


def error_of(node, other):
    """What commctl nodes says of @other."""
    for row in node.ctl("nodes")["nodes"]:
        if row["node"] == other.name:
            return row["last_error"] or ""
    return ""


def check_config(node):
    done = subprocess.run([COMMD, "--check-config", "--config", node.config],
                          capture_output=True, text=True)  # fmt: skip
    return done.returncode, done.stderr.strip()


def expect_attempts(cluster):
    """A node may end while it connects to another one, again and again."""
    cluster.expect("closed before")


def expect_losses(cluster):
    expect_attempts(cluster)
    cluster.expect("was lost")
    cluster.expect("the engines of nodes .* lost each other")


def refused(node):
    """Whom @node has shut out, by its verdict about the only group."""
    (why,) = node.ctl("why")["why"]
    equal(why["verdict"], "NODE_REFUSED", why)
    return why["node"]


def test_from_the_key_to_certificates_under_a_job():
    with Keyed(3) as cluster:
        cluster.expect("it offers no cluster key")
        cluster.expect("closed before")  # a link that was being made at the reload
        ranks = cluster.ranks("job", [0, 1, 2])
        for rank in ranks:  # each result is compared with what it has to be
            rank.start("stream", name="job", seed=7, operations=600, max_bytes=200000)
        old = until(lambda: made_by(cluster), "links by the key")
        check(old != "certificate", old)
        for node in cluster.nodes:
            reload(node, "both")
        until(lambda: keys(cluster.nodes[0])[0] == 0, "all have the same")
        equal({(row["key"], row["other_key"]) for row in keys(cluster.nodes[0])[1]},
              {("certificate", old)})  # fmt: skip
        equal(until(lambda: made_by(cluster), "all nodes say so"), old, "links stay")
        for node in cluster.nodes:
            reload(node, "certificate")
        until(lambda: made_by(cluster) == "certificate", "links by certificates")
        os.unlink(cluster.key_file)  # nobody reads it any more
        for node in cluster.nodes:
            reload(node)
        for rank in ranks:
            rank.finish()
        for node in cluster.nodes:
            check("was lost" not in node.log(), node.log())


def test_nodes_of_both_kinds():
    """Whoever has a proof in common links, whichever of the two connects."""
    kinds = ("key", "both", "certificate")
    with Keyed(2, start=False) as cluster:
        expect_losses(cluster)
        cluster.expect("it offers no cluster key")
        cluster.expect("it shows a certificate instead of our cluster key")
        cluster.expect("it refuses our certificate")
        for first, second in itertools.product(kinds, kinds):
            if {first, second} == {"key", "certificate"}:
                continue
            for node, kind in zip(cluster.nodes, (first, second)):
                node.authentication = kind
                node.write_config()
            cluster.start()
            by = until(lambda: {row["link_key"] for row in keys(cluster.nodes[0])[1][1:]}, "a link")
            equal(by == {"certificate"}, "key" not in (first, second), f"{first}, {second}: {by}")
            for node in cluster.nodes:
                node.stop()


def test_who_only_has_the_key_stays_out():
    """In both directions; the node that is refused knows the key, and says so in vain."""
    for outsider in (0, 1):
        with Certified(2, start=False) as cluster:
            expect_attempts(cluster)
            for pattern in ("it shows a certificate instead of our", "it refuses our certificate",
                            "it offers no cluster key", "it takes no certificates"):  # fmt: skip
                cluster.expect(pattern)
            cluster.expect("it does not accept our cluster key|another cluster key")
            cluster.nodes[outsider].authentication = "key"
            for node in cluster.nodes:
                node.write_config()
                node.start()
            first = cluster.nodes[0]
            why = "shows a certificate instead of" if outsider == 0 else "takes no certificates"
            first.wait_log(why)
            until(lambda: why in error_of(first, cluster.nodes[1]), "in commctl nodes, too")
            check(not first.sees(["node1"]), "they are not linked")


def test_a_certificate_of_another_node():
    """test_certificates.c has a node that claims a name which its certificate does not have."""
    with Certified(2, start=False) as cluster:
        expect_attempts(cluster)
        cluster.expect('its certificate names node "node9", not node "node1"')
        cluster.expect("it refuses us: its certificate names")
        first, other = cluster.nodes
        cluster.ca.issue("node9")
        cluster.give(other, "node9")
        code, said = check_config(other)
        equal(code, 77, said)
        check(f'{other.files}/node.crt: the certificate names node "node9", and this' in said, said)
        nodes = "\n" + "\n".join(
            f"    - {{name: {name}, address: {node.address}, port: {node.port}}}"
            for name, node in zip(("node0", "node9"), cluster.nodes)
        )
        other.write_config(cluster={"node": "node9", "nodes": nodes})
        for node in cluster.nodes:
            node.start()
        first.wait_log('node "node1": its certificate names node "node9", not node "node1"')
        check("node9" in error_of(first, other), error_of(first, other))
        other.wait_log("it refuses us: its certificate names node")
        check(not first.sees(["node1"]), "they are not linked")


def test_revoked_by_a_reload():
    """The link ends, groups over it break at once, and the node stays out."""
    with Certified(3) as cluster:
        expect_losses(cluster)
        cluster.expect("its certificate.* is revoked")
        cluster.expect("it refuses our certificate: revoked")
        cluster.expect("closed the connection before its hello")
        ranks = cluster.ranks("g", [0, 1, 2])
        for rank in ranks:
            rank.start("paced", name="g", compute=0.002, steps=100000)
            rank.answer()
        thief, others = cluster.nodes[1], (cluster.nodes[0], cluster.nodes[2])
        cluster.ca.revoke(thief.name)
        for node in others:
            cluster.give_list(node)
            reload(node)
        for rank in ranks:
            equal(rank.error()["code"], "NODE_LOST")
        for node in others:
            node.wait_log("node node1 was lost: its certificate is revoked")
            check(not node.sees([thief.name]), "it is out")
        for node in cluster.nodes:
            equal(refused(node), thief.name)
        check("is revoked" in error_of(cluster.nodes[0], thief), error_of(cluster.nodes[0], thief))
        thief.wait_log("it refuses our certificate: revoked|ended the link")
        thief.stop()
        thief.start()
        serves(thief)
        thief.wait_log("it refuses our certificate: revoked|closed the connection before its hello")
        check(not any(node.sees([thief.name]) for node in others), "it stays out")
        check(cluster.nodes[0].sees(["node2"]), "the others are linked")
        # a new certificate lets it in again
        cluster.ca.issue(thief.name)
        cluster.give(thief)
        reload(thief)
        cluster.wait_linked()
        for rank in ranks:
            rank.kill()
        for node in others:
            until(lambda: not node.groups(), "the group has ended")
            equal(refused(node), thief.name)


def test_expired_before_it_came_back():
    """A link outlives the certificate; a node that has to link again is shut out, and why says so
    on both sides, whichever connects; also of the group once it has ended."""
    for late in (1, 0):
        expired_before_it_came_back(late)


def expired_before_it_came_back(number):
    with Certified(2, {"timeouts": {"restart": "6s"}}, start=False) as cluster:
        expect_losses(cluster)
        cluster.expect("certificate.* expire")
        cluster.expect("it refuses our certificate: expired")
        cluster.expect("closed the connection before its hello")
        late, node = cluster.nodes[number], cluster.nodes[1 - number]
        for each in cluster.nodes:
            each.start()
        cluster.wait_linked()
        ranks = cluster.ranks("g", [0, 1])
        for rank in ranks:
            rank.start("paced", name="g", compute=0.002, steps=100000)
            rank.answer()
        ends = time.time() + 5
        cluster.ca.issue_between(late.name, -1, 5 / 86400)
        cluster.give(late)
        reload(late)
        until(lambda: time.time() > ends + 1, "it has expired")
        (link,) = connections(late.process.pid)
        reset(link)
        for rank in ranks:
            equal(rank.error()["code"], "NODE_LOST")
        node.wait_log(f"node {late.name} was lost: its certificate, of .*, has expired")
        late.wait_log(f"node {node.name} was lost: it refuses the certificate of node {late.name}: "
                      "expired")  # fmt: skip
        for each in cluster.nodes:
            equal(refused(each), late.name)
        for rank in ranks:
            rank.kill()
        for each in cluster.nodes:
            until(lambda each=each: not each.groups(), "the group has ended")
            equal(refused(each), late.name)


def test_renewed_in_a_loop_under_a_job():
    """Links stay, or are made anew after a commd was killed, by what is there now: no error."""
    with Certified(3, start=False) as cluster:
        cluster.expect("killed by signal 9")
        cluster.expect("closed before the TLS handshake")  # by one that was killed right then
        for node in cluster.nodes:
            node.start(arguments=["--keep"])
        for node in cluster.nodes:
            serves(node)
        cluster.wait_linked()
        ranks = cluster.ranks("job", [0, 1, 2])
        for turn in range(6):
            for rank in ranks:
                rank.start("stream", name="job", seed=turn, operations=60, max_bytes=200000)
            for node in cluster.nodes:
                cluster.ca.issue(node.name)
                cluster.give(node)
                reload(node)
            if turn % 2:
                restart(cluster.nodes[turn // 2])
            for rank in ranks:
                rank.finish()
            cluster.wait_linked()
        for node in cluster.nodes:
            check("was lost" not in node.log(), node.log())


def test_a_new_ca_under_a_job():
    with Certified(3) as cluster:
        old, new = cluster.ca, Authority(os.path.join(cluster.folder, "new-ca"), "the new CA")
        ranks = cluster.ranks("job", [0, 1, 2])
        for rank in ranks:
            rank.start("stream", name="job", seed=9, operations=600, max_bytes=200000)
        for node in cluster.nodes:
            cluster.give_cas(node, old, new)
            reload(node)
        for node in cluster.nodes:
            new.issue(node.name)
            cluster.give(node, authority=new)
            cluster.give_cas(node, old, new)
            reload(node)
        for node in cluster.nodes:
            cluster.give_cas(node, new)
            reload(node)  # ends links that certificates of the old one have made, to be made anew
        cluster.wait_linked()
        for rank in ranks:
            rank.finish()
        for node in cluster.nodes:
            check("was lost" not in node.log(), node.log())
            check(node.log().count("is linked") > 2, "made anew")


def test_another_ca():
    with Certified(2, start=False) as cluster:
        expect_attempts(cluster)
        stranger = Authority(os.path.join(cluster.folder, "another-ca"))
        for pattern in ("is not signed by a CA of cluster.ca", "it refuses our certificate"):
            cluster.expect(pattern)
        node = cluster.nodes[1]
        stranger.issue(node.name)
        cluster.give(node, authority=stranger)
        cluster.give_cas(node, stranger)
        for each in cluster.nodes:
            each.start()
        cluster.nodes[0].wait_log("node .node1.: its certificate.* is not signed by a CA of")
        until(lambda: "not signed" in error_of(cluster.nodes[0], node), "in commctl nodes, too")
        node.wait_log("it refuses our certificate")


def test_files_that_are_wrong():
    """Each error names the file, and a reload keeps the old ones."""
    with Certified(2) as cluster:
        cluster.expect("keeping the old one, and the old configuration")
        cluster.expect("certificate|private key")
        node = cluster.nodes[0]
        path = {name: os.path.join(node.files, name) for name in ("node.crt", "node.key", "ca.crt")}

        def wrong(file, text):
            code, said = check_config(node)
            equal(code, 77, said)
            check(said.startswith(path[file]) and text in said, said)
            begin = now()
            done = subprocess.run([*commctl(node), "reload"], capture_output=True, text=True)
            check(done.returncode and text in done.stdout + done.stderr, done.stdout + done.stderr)
            rows = node.ctl("doctor")["doctor"]
            (row,) = [row for row in rows if row["check"] == "configuration"]
            ago = re.search(r"the last reload was refused (\d+) s ago", row["finding"])
            check(ago and int(ago[1]) <= now() - begin + 1, row)  # of whole seconds of a clock
            check(text in row["finding"] and row["level"] == "warning", row)
            check("mend that, then systemctl reload" in row["remedy"], row)
            cluster.give(node)

        os.chmod(path["node.key"], 0o440)
        wrong("node.key", "mode 0440 opens the private key of this node's certificate to other")
        os.unlink(path["node.crt"])
        wrong("node.crt", "cannot open the certificate of this node: No such file")
        os.rename(path["node.key"], path["node.crt"])
        wrong("node.key", "cannot open the private key")
        cluster.ca.issue(node.name, days=-1)
        cluster.give(node)
        wrong("node.crt", "has expired; make a new one")
        cluster.ca.issue(node.name)
        cluster.give(node)
        cluster.ca.issue("node7")
        cluster.give(node, "node7")
        wrong("node.crt", 'names node "node7", and this one is "node0"')
        cluster.give(node)
        equal(check_config(node), (0, ""))
        check(node.sees(["node1"]), "the old certificate holds")
        reload(node)
        rows = node.ctl("doctor")["doctor"]
        check(not [row for row in rows if row["check"] == "configuration"], rows)


def test_expiry_is_said_in_time():
    """In the log, by commctl keys and doctor, and as a metric."""
    with Certified(2, start=False) as cluster:
        cluster.expect("the certificate of this node, or of its CA, expires in 6 days")
        node = cluster.nodes[0]
        port = node.port + 15  # the last of its block, which is left to us
        settings = {"listen": {"http": f"127.0.0.1:{port}"},
                    "transport": {"port_range": f"{node.port + 1}-{node.port + 14}"}}  # fmt: skip
        write, node.write_config = node.write_config, lambda: write(**settings)
        node.write_config()
        cluster.start()

        def metric():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                text = answer.read().decode()
            (found,) = re.findall(r"^commd_certificate_expires_seconds (\d+)$", text, re.M)
            return (int(found) - time.time()) / 86400

        equal(keys(node)[0], 0)
        check("expires" not in node.log(), node.log())
        check(364 < metric() < 365.1, metric())
        cluster.ca.issue_between(node.name, -100, 6.5)
        cluster.give(node)
        reload(node)
        node.wait_log("warn: the certificate of this node, or of its CA, expires in 6 days -> ")
        status, _, said = keys(node)
        equal(status, 1)
        check("expires in 6 days" in said, said)
        done = subprocess.run([*commctl(node), "doctor"], capture_output=True, text=True)
        check("expires in 6 days" in done.stdout, done.stdout)
        check("make a new one, and commctl reload" in done.stdout, done.stdout)
        until(lambda: 6 < metric() < 6.6, "the metric follows")
        cluster.ca.issue(node.name)
        cluster.give(node)
        done = subprocess.run([*commctl(node), "doctor"], capture_output=True, text=True)
        check("is newer than the certificate in use" in done.stdout, done.stdout)


main(globals())
