#!/usr/bin/env python3
"""What is said of commctl elsewhere, on a cluster: what bash and zsh complete, and the keys of
--json in commctl(8)."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import COMMCTL, TOP, Cluster, Skip, check, commctl, equal  # noqa: E402
from cluster import main, until  # noqa: E402
from shells import Zsh, bash_offers  # noqa: E402

COMPLETION = os.path.join(TOP, "client/ctl/completion")

# ---- completion ---------------------------------------------------------------------------------

SHOWN = ["config", "tuning"]
LEVELS = ["debug", "error", "info", "warn"]


def completes(offers):
    """What both shells offer; offers(*words) is for the last of them."""
    usage = subprocess.check_output([COMMCTL, "--help"], text=True).split("\n\n")[1]
    verbs = {line.split()[0] for line in usage.splitlines()}
    check(len(verbs) > 20, usage)
    with Cluster(2) as cluster:
        at = ("--socket", cluster.nodes[0].socket)

        def offered(*words):
            return sorted(offers(*at, *words))

        equal(sorted(offers("")), sorted(verbs))
        equal(offered("w"), ["wait", "why"])
        equal(offered("--json", "--timeout", "2", "w"), ["wait", "why"])
        cluster.ranks("train", [1, 0, 0])
        cluster.ranks("eval", [0])
        of_groups = ("why", "ops", "ranks", "top", "trace", "events")
        for verb in of_groups:
            equal(offered(verb, ""), ["eval", "train"])
            equal(offered(verb, "t"), ["train"])
            equal(offered(verb, "train", ""), [])
        equal(offered("--json", "why", ""), ["eval", "train"])
        equal(offered("why", "--json", ""), ["eval", "train"])
        equal(offered("top", "--seconds", "2", "t"), ["train"])
        equal(offered("show", ""), SHOWN)
        equal(offered("log-level", ""), LEVELS)
        for alone in verbs - {"show", "log-level", "kick", *of_groups}:
            equal(offered(alone, ""), [])
        equal(offered("kick", ""), ["eval", "pid", "rank", "train"])
        pids = sorted(str(client["pid"]) for client in cluster.nodes[0].ctl("clients")["clients"])
        equal((offered("kick", "pid", ""), len(pids)), (pids, 3))
        equal(offered("kick", "pid", pids[0], ""), [])
        equal(offered("kick", "rank", "t"), ["train"])
        equal(offered("kick", "rank", "train", ""), ["1", "2"])  # the other one is kicked elsewhere
        equal(offered("kick", "rank", "train", "1", ""), [])
        equal(offered("kick", "--reason", "too long", "e"), ["eval"])
        equal(offered("kick", "train", "--r"), ["--reason"])
        equal(offered("wait", "--for", ""), ["group=", "idle", "nodes=", "ready"])
        equal(offered("wait", "--for", "group="), ["group=eval", "group=train"])
        equal(offered("wait", "--for", "nodes="), ["nodes=all"])
        equal(offered("wait", "--for=group=t"), ["--for=group=train"])
        equal(offered("--watch", "why", ""), ["eval", "train"])
        equal(offered("--watch", "0.5", "ops", ""), ["eval", "train"])
        equal(offers(f"--socket={at[1]}", "ops", "t"), ["train"])
        equal(offers("--socket", at[1][:-2]), [at[1]])
        equal(offers(f"--socket={at[1][:-2]}"), [f"--socket={at[1]}"])
        cluster.ranks("job:1", [0])
        equal(offered("why", "j"), ["job:1"])
        equal(offered("why", "job:"), ["job:1"])


def test_bash_completes():
    completes(functools.partial(bash_offers, COMPLETION, COMMCTL, os.environ))


def test_zsh_completes():
    if not shutil.which("zsh"):
        raise Skip("needs zsh (Debian: zsh)")
    environment = {name: value for name, value in os.environ.items() if name != "COMMD_SOCKET"}
    with Zsh(COMPLETION, os.path.dirname(COMMCTL), environment) as zsh:
        completes(zsh.offered)
        with Cluster(1) as cluster:  # bash leaves out what it would have to quote
            cluster.ranks("two words", [0])
            equal(zsh.offered("--socket", cluster.nodes[0].socket, "why", ""), ["two words"])


# ---- --json --------------------------------------------------------------------------------------


def kind_of(value):
    return "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"


def manual():
    """{table: {key: type, or "" where it is said elsewhere}} of commctl(8)."""
    with open(os.path.join(TOP, "client/ctl/commctl.8")) as file:
        text = file.read().partition(".SH JSON")[2].partition(".SH EXIT")[0]
    # ranks has a second table
    text = text.replace("A second table,\n.BR links ,", ".SS links\n")
    found = {}
    for part in text.split("\n.SS ")[1:]:
        rows = re.findall(r"^(\w[\w, ]*)\|(\w*)\|T\{$", part, re.M)
        found[part.split()[0]] = {key: kind for keys, kind in rows for key in keys.split(", ")}
    return found


def ctl(node, *words):
    done = subprocess.run([*commctl(node), "--json", *words],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
    return json.loads(done.stdout)


def test_json_is_that_of_the_manual():
    """Each key that a verb shows is in commctl(8), with its type, and no other one."""
    tables = manual()
    seen = set()
    with Cluster(2) as cluster:
        node = cluster.nodes[0]
        ranks = cluster.ranks("g", [0, 1])
        ranks[0].start("all_reduce", name="g", count=10)
        usage = subprocess.check_output([COMMCTL, "--help"], text=True).split("\n\n")[1]
        verbs = [re.split(r"  +", line.strip())[0].split() for line in usage.splitlines()]
        others = (["help"], ["wait"], ["trace"], ["kick"])  # no tables, or as drain has them
        not_in_rows = {"lost"}  # with --follow
        until(lambda: ctl(node, "ops")["ops"], "the rank waits")
        last = [["drain", "--undo"], ["wait"]]
        for verb in [verb for verb in verbs if verb not in others] + last:
            for table, rows in ctl(node, *verb).items():
                seen.add(table)
                check(rows or table == "links", f"{verb}: no rows")
                for row in rows:
                    equal({*row} ^ {*tables[table]}, not_in_rows & {*tables[table]}, table)
                    for key, value in row.items():
                        kinds = (kind_of(value), "")
                        check(value is None or tables[table][key] in kinds, (table, key, value))
        equal(seen, set(tables), "tables that are shown, and those of commctl(8)")
        ranks[1].call("all_reduce", name="g", count=10)
        ranks[0].finish()


if __name__ == "__main__":
    main(globals())
