"""A commd that its keeper starts again: which one serves, and how one dies."""

import contextlib
import os
import signal

from cluster import running, until


def commd_pid(node):
    """0: there is none."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        with open(os.path.join(node.home, "commd.pid")) as file:
            pid = int(file.read())
        return pid if running(pid) else 0
    return 0


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
