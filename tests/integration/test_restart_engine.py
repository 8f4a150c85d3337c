#!/usr/bin/env python3
"""commd dies and its engine goes on: the next commd takes it over, or learns that it has ended, and
none is left when nobody is there to start commd again."""

import contextlib
import os
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from cluster import check, commctl, equal, main, running, until  # noqa: E402
from faults import leave  # noqa: E402
from keeping import commd_pid, gap, kept_nodes, restart, serves  # noqa: E402

# An attempt to bring groups to rest has half a second, and is made again within a minute.
REST_SECONDS = 240


@contextlib.contextmanager
def kept(changes=None):
    """Two nodes whose commds have keepers."""
    with kept_nodes(2, changes) as cluster:
        yield cluster, cluster.nodes[0]


def engine_of(node):
    return until(node.engine_pid, f"{node.name} has an engine")


def rests(node, engine):
    said = f"engine pid {engine} .* has groups that wait for the next one"
    node.wait_log(said, REST_SECONDS)


def test_a_reload_of_its_settings_replaces_it_where_a_group_is_idle():
    with kept() as (cluster, node):
        ranks = cluster.ranks("g", [0, 0, 1, 1])
        engine, other = [engine_of(n) for n in cluster.nodes]
        node.write_config(transport={"channels": "2"})
        node.ctl("reload")
        node.wait_log("reloaded; transport.channels: as soon as the next engine")
        restart(node)  # the next commd knows it from the engine's hello
        rests(node, engine)
        until(lambda: node.engine_pid() not in (0, engine), "another engine")
        cluster.wait_linked()
        cluster.join("h", ranks)
        equal(engine_of(cluster.nodes[1]), other)
        for name in "gh":
            for rank in ranks:
                rank.start("all_reduce", name=name, count=1000)
            for rank in ranks:
                rank.finish()


def test_what_waits_for_the_next_one_is_shown():
    def encryption():
        config = node.ctl("show", "config")["config"]
        (row,) = [r for r in config if r["key"] == "transport.encryption"]
        (tuned,) = [r for r in node.ctl("tuning")["tuning"] if r["name"] == "encryption"]
        return row["value"], row["waits"], tuned["value"]

    with kept() as (cluster, node):
        ranks = cluster.ranks("g", [0, 1])
        engine = engine_of(node)
        equal(encryption(), ("auto", None, "auto"))
        for _ in range(2):  # a second reload changes nothing about it
            node.write_config(transport={"encryption": "on"})  # engines agree on it: for idle ones
            node.ctl("reload")
            waits = 'the engine has "auto" until the next one can take over'
            equal(encryption(), ("on", waits, "auto"))
        equal(engine_of(node), engine)
        leave("g", ranks)
        until(lambda: node.engine_pid() not in (0, engine), "another engine")
        cluster.wait_linked()
        equal(encryption(), ("on", None, "on"))


def test_a_change_by_way_of_auto_waits_for_the_engine():
    def reload(encryption):
        node.write_config(transport={"encryption": encryption, "trusted_network": "true"})
        return subprocess.run([*commctl(node), "reload"], capture_output=True, text=True)

    with kept({"transport": {"encryption": "on"}}) as (cluster, node):
        cluster.expect("at once, and nodes that are still at")
        cluster.expect("the new configuration is wrong")
        ranks = cluster.ranks("g", [0, 1])
        engine = engine_of(node)
        equal(reload("auto").returncode, 0)
        refused = reload("off")
        check(refused.returncode and 'from "on" to "off" at once' in refused.stderr, refused)
        equal(engine_of(node), engine)
        leave("g", ranks)


@contextlib.contextmanager
def job_at_work(cluster, name, places):
    """Ranks that verify all they do, until the end."""
    ranks = cluster.ranks(name, places)
    stop = os.path.join(cluster.folder, name + ".stop")
    for number, rank in enumerate(ranks):
        times = os.path.join(cluster.folder, f"{name}.{number}")
        rank.start("data", name=name, stop=stop, times=times, messages=True)
    for rank in ranks:
        check("started" in rank.answer(), "the job has started")
    yield ranks
    open(stop, "w").close()
    turns = {rank.finish() for rank in ranks}
    check(len(turns) == 1 and min(turns) > 0, f"turns of the ranks: {turns}")


def test_a_reload_of_its_settings_replaces_it_under_a_job():
    with kept() as (cluster, node):
        with job_at_work(cluster, "g", [0, 0, 1, 1]), job_at_work(cluster, "h", [1, 0]):
            for channels in ("2", "3", "1"):
                for n in cluster.nodes:
                    engine = engine_of(n)
                    n.write_config(transport={"channels": channels})
                    n.ctl("reload")
                    rests(n, engine)
                    until(lambda n=n, engine=engine: n.engine_pid() not in (0, engine),
                          "the next one")  # fmt: skip
                    cluster.wait_linked()
        for n in cluster.nodes:
            events = [event["event"] for event in n.ctl("events")["events"]]
            equal(events.count("engine_replaced"), 3, f"what {n.name} says of it: {events}")
            check(not {"engine_lost", "node_lost"} & {*events}, f"nothing is lost: {events}")


def test_commds_are_restarted_while_an_engine_is_replaced():
    """Also while each is about to give its engine the other one's: the next engine is up."""
    with kept() as (cluster, node):
        other = cluster.nodes[1]
        cluster.expect("has ended while no commd was there")
        whom = [other], [node], [node, other], [other, node]
        with job_at_work(cluster, "g", [0, 0, 1, 1]):
            for number, who in enumerate([*whom, *whom]):
                engine, ups = engine_of(node), node.log().count(" is up: ")
                node.write_config(transport={"channels": "231"[number % 3]})
                node.ctl("reload")
                rests(node, engine)
                if number >= len(whom):
                    until(lambda ups=ups: node.log().count(" is up: ") > ups, "the next one is up")
                for n in who:
                    os.kill(commd_pid(n), signal.SIGKILL)
                for n in cluster.nodes:
                    serves(n)
                until(lambda engine=engine: node.engine_pid() not in (0, engine), "the next one")
                cluster.wait_linked()


def test_the_engine_goes_on():
    with kept() as (cluster, node):
        engines = [engine_of(n) for n in cluster.nodes]
        for _ in range(3):  # the later ones take over what was taken over
            restart(node)
            cluster.wait_linked()
            equal([engine_of(n) for n in cluster.nodes], engines)
        equal(node.log().count("goes on since before commd was restarted"), 3)
        check("lost each other" not in node.log(), "the engines kept their connection")


def test_two_commds_die_before_the_engine_hears_of_them():
    with kept() as (cluster, node):
        cluster.expect("closed before its hello")  # of the first one, which dies young
        engine = engine_of(node)
        os.kill(engine, signal.SIGSTOP)
        try:
            restart(node)
            pid = restart(node)
        finally:
            os.kill(engine, signal.SIGCONT)
        cluster.wait_linked()
        equal((engine_of(node), commd_pid(node)), (engine, pid))


def test_an_engine_that_ends_in_the_gap_is_told():
    with kept() as (cluster, node):
        cluster.expect("has ended while no commd was there")
        cluster.expect("lost each other")
        cluster.expect("was lost")
        engine = engine_of(node)
        with gap(node):
            os.kill(engine, signal.SIGKILL)
            until(lambda: not running(engine), "the engine ends")
        node.wait_log(f"engine pid {engine} has ended while no commd was there")
        cluster.wait_linked()
        check(engine_of(node) != engine, "there is another engine")


def test_an_engine_that_ends_later_is_told():
    with kept() as (cluster, node):
        cluster.expect("the engine of node")
        cluster.expect("lost each other")
        cluster.expect("was lost")
        engine = engine_of(node)
        restart(node)
        cluster.wait_linked()
        os.kill(engine, signal.SIGKILL)
        node.wait_log("how is not known")
        cluster.wait_linked()
        check(engine_of(node) != engine, "there is another engine")


def test_an_engine_that_numbers_other_nodes_is_ended():
    with kept() as (cluster, node):
        cluster.expect("was started for other nodes")
        cluster.expect("no commd answers at its address")
        cluster.expect("lost each other")
        cluster.expect("was lost")
        engine = engine_of(node)
        with gap(node):
            with open(node.config) as file:
                text = file.read()
            first = text.index("    - {name: ")
            more = f"    - {{name: node00, address: 127.0.0.1, port: {node.port + 1}}}\n"
            with open(node.config, "w") as file:
                file.write(text[:first] + more + text[first:])
        until(lambda: not running(engine), "the engine ends")
        cluster.wait_linked()
        check(engine_of(node) != engine, "there is another engine")


def test_to_make_room_does_not_end_the_engine():
    with kept() as (cluster, node):
        engine, pid = engine_of(node), serves(node)
        os.kill(node.pid, signal.SIGUSR1)
        serves(node, pid)
        cluster.wait_linked()
        equal(engine_of(node), engine)


def test_nothing_is_left_without_a_keeper():
    with kept() as (cluster, node):
        cluster.expect("was lost")
        cluster.expect("lost each other")
        cluster.expect("the engine of node")
        engine, pid = engine_of(node), serves(node)
        with gap(node):  # nobody would end the engine but the keeper's end
            node.process.kill()
            node.process.wait()
            until(lambda: not running(engine), "the engine ends", 5)
            for name in os.listdir(node.home):
                if name not in ("commd.log", "commd.yaml"):
                    os.unlink(os.path.join(node.home, name))
            node.start(arguments=["--keep"])
        serves(node, pid)
        engine, pid = engine_of(node), commd_pid(node)
        node.process.kill()  # commd ends in order, with its engine
        until(lambda: not running(pid) and not running(engine), "commd and its engine end", 5)
        node.process.wait()




main(globals())
