"""A commd that its keeper starts again: which one serves, and how one dies."""

import contextlib
import os
import random
import signal
import threading
import time

from cluster import Cluster, check, running, until


EARLY = 1.05  # seconds: after as long a service commd never waits for its next start


@contextlib.contextmanager
def kept_nodes(count, changes=None, environment=None):
    """A cluster of so many nodes, whose commds have keepers."""
    with Cluster(count, changes, start=False) as cluster:
        for node in cluster.nodes:
            node.write_config()
            node.start(environment, arguments=["--keep"])
        cluster.expect("killed by signal 9")
        for node in cluster.nodes:
            serves(node)
        cluster.wait_linked()
        yield cluster


def commd_pid(node):
    """0: there is none."""
    return node.pid_in("commd.pid")


def serves(node, after=0):
    """The pid of the commd that serves, which is not @after."""

    def there():
        pid = commd_pid(node)
        return pid if pid and pid != after and node.ctl("status") else 0

    return until(there, f"{node.name} serves again after {after}")


def kill(node):
    """Kills commd. The pid that it had."""
    pid = serves(node)
    os.kill(pid, signal.SIGKILL)
    return pid


def restart(node):
    return serves(node, kill(node))


@contextlib.contextmanager
def gap(node):
    """commd is dead, and the keeper starts none until the end."""
    pid = serves(node)
    os.kill(node.pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not running(pid), "commd ends")
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)
    serves(node, pid)


def start_anew(node):
    """Kills commd and its keeper: the next commd knows nothing."""
    pid = serves(node)
    os.kill(node.pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not running(pid), "commd ends")
    node.kill()
    node.start(arguments=["--keep"])
    serves(node, pid)
    known = [row for row in node.groups() if row["group"]]  # the others form
    check(not known, f"it knows {known}")


@contextlib.contextmanager
def killed_at_random(nodes, times, longest):
    """One of the commds is killed, again and again, in a thread; an event that says that it is
    over. Each lives for @longest seconds at most, but now and then one lives long enough, so that
    the keepers stay quick."""
    over = threading.Event()
    failures = []

    def killer():
        rng = random.Random(38)
        pids = {node: 0 for node in nodes}
        try:
            for number in range(times):
                node = rng.choice(nodes)
                pids[node] = serves(node, pids[node])
                time.sleep(EARLY if number % 3 == 2 else rng.random() * longest)
                os.kill(pids[node], signal.SIGKILL)
            for node in nodes:
                serves(node, pids[node])
        except BaseException as error:
            failures.append(error)
        finally:
            over.set()

    thread = threading.Thread(target=killer)
    thread.start()
    yield over
    thread.join()
    check(not failures, f"{failures}")
