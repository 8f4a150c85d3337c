"""python -m commd.doctor: would a training program run here?

Looks at this Python, the commd package, torch, the environment, whether a service commd that is
installed here answers, and the node's commd, lets two processes do an all_reduce, and asks `commctl
doctor` for the rest. A line for each check, and the remedy below what needs one.

Exit status: 0 fine (perhaps with warnings), 1 something keeps programs from running, 2 wrong
usage, or nobody took the answer.
"""

import argparse
import difflib
import glob
import json
import os
import shutil
import socket
import subprocess
import sys

# What libcommd, this package, its build and the test programs of commd read.
VARIABLES = [
    "COMMD_AUTOSTART", "COMMD_BUILD", "COMMD_BUILD_DIR", "COMMD_DAEMON", "COMMD_ENGINE",
    "COMMD_FR_DUMP", "COMMD_MIRROR", "COMMD_PREFIX", "COMMD_PYTHON", "COMMD_REPLACE", "COMMD_RPATH",
    "COMMD_SOCKET", "COMMD_TIMEOUT", "COMMD_WARN_AFTER",
]  # fmt: skip
SYSTEM_SOCKET = "/run/commd/commd.sock"
CONFIGURATIONS = ["etc/commd/commd.yaml", "usr/local/etc/commd/commd.yaml"]
UNITS = [f"{place}/systemd/system/commd.service"
         for place in ("etc", "run", "usr/local/lib", "usr/lib", "lib")]  # fmt: skip
START = "systemctl start commd; journalctl -u commd says why it ended"
SMOKE_SECONDS = 20
SMOKE = """
import sys, commd, numpy
with commd.connect() as ctx, ctx.group(sys.argv[1], int(sys.argv[2]), 2) as group:
    x = numpy.full(1000, group.rank + 1, "float32")
    group.all_reduce(x)
    assert (x == 3).all(), x
    print(ctx.node)
"""


class Report:
    def __init__(self):
        self.rows = []

    def ok(self, check, finding):
        self.rows.append(("ok", check, finding, ""))

    def warn(self, check, finding, remedy):
        self.rows.append(("warning", check, finding, remedy))

    def error(self, check, finding, remedy):
        self.rows.append(("error", check, finding, remedy))


def check_variables(environment, report):
    """Names that nobody reads are misspelt, as often as not."""
    names = sorted(name for name in environment if name.startswith("COMMD_"))
    for name in names:
        if name in VARIABLES or name.startswith("COMMD_TEST_"):
            report.ok("environment", f"{name}={environment[name]}")
            continue
        near = difflib.get_close_matches(name, VARIABLES, 1)
        remedy = f"is {near[0]} meant?" if near else "take it out of the environment"
        report.warn("environment", f"{name} is set, which nobody reads", remedy)


def check_ranks(environment, report):
    """What torchrun sets, and people set by hand."""
    rank, size = environment.get("RANK"), environment.get("WORLD_SIZE")
    if rank is None and size is None:
        return
    try:
        fine = 0 <= int(rank) < int(size)
    except (TypeError, ValueError):
        fine = False
    if fine:
        report.ok("ranks", f"RANK={rank} of WORLD_SIZE={size}")
    else:
        report.error("ranks", f"RANK={rank} and WORLD_SIZE={size} do not go together",
                     "set both, 0 <= RANK < WORLD_SIZE, or start by torchrun")  # fmt: skip


def silence(path):
    """Why nobody is at that socket; "" if somebody is, though perhaps not for this user."""
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        return error.strerror
    except OSError:
        pass  # check_connection() tells
    return ""


def service_here(root):
    """What of a service commd is on this machine, and is it to run? The package for Debian installs
    both files and starts nothing."""
    found = [f"{root}{path}" for path in CONFIGURATIONS if os.path.exists(f"{root}{path}")]
    found += [f"{root}{path}" for path in UNITS if os.path.exists(f"{root}{path}")][:1]
    enabled = glob.glob(f"{root}etc/systemd/system/*.wants/commd.service")
    return found, bool(enabled)


def service_state():
    """Of systemd: "failed", "inactive", ...; "" where it does not run."""
    if not shutil.which("systemctl"):
        return ""
    done = subprocess.run(["systemctl", "is-active", "commd"], capture_output=True, text=True)
    state = done.stdout.strip()
    return state if state in ("failed", "inactive", "activating", "deactivating") else ""


def check_service(environment, report, root="/"):
    """Is a commd meant to answer here, and does not? Then programs start one of their own instead,
    and all looks well, but it knows no other node. True: it is so."""
    named = environment.get("COMMD_SOCKET")
    if named:
        why = silence(named)
        if why:
            report.error("service", f"COMMD_SOCKET is set, and {named} does not answer: {why}",
                         f"{START}; or take COMMD_SOCKET out of the environment")  # fmt: skip
        return False
    found, enabled = service_here(root)
    why = silence(SYSTEM_SOCKET)
    if not found or not why:
        return False
    state = service_state() if root == "/" else ""
    finding = (f"commd is {'enabled' if enabled else 'installed'} here as a service "
               f"({', '.join(found)}), and {SYSTEM_SOCKET} does not answer: {why}"
               f"{f' (systemctl: {state})' if state else ''}")  # fmt: skip
    if enabled or state == "failed":
        report.error("service", finding, START)
    else:
        report.warn("service", finding, f"{START}; if none is to run here, apt remove commd")
    return True


def check_package(report):
    import commd

    report.ok("python", f"{sys.version.split()[0]}, {sys.executable}")
    try:
        from commd import _core
    except ImportError as error:
        report.error("commd", f"its compiled part does not load: {error}",
                     "install it again: doc/install.md")  # fmt: skip
        return False
    if _core.version != commd.__version__:
        report.error("commd", f"the package is {commd.__version__}, libcommd {_core.version}",
                     "install both from one release")  # fmt: skip
        return False
    report.ok("commd", f"{_core.version}, {os.path.dirname(commd.__file__)}")
    return True


def check_torch(report):
    try:
        import torch
    except ImportError:
        report.warn("torch", "it is not installed", "pip install torch, if programs need it")
        return
    if not hasattr(torch, "__version__"):
        place = torch.__file__ or ", ".join(torch.__path__)  # a folder without __init__.py
        report.error("torch", f"{place} is not PyTorch", "rename it: it hides torch")
        return
    try:
        import commd.torch

        commd.torch.load()
    except Exception as error:  # whatever a wrong build raises
        report.error("torch", f"{torch.__version__}: {error}", "see the message")
        return
    report.ok("torch", f"{torch.__version__}, and the backend for it loads")


def connection_remedy(environment, root):
    """There is no commd, and perhaps none is to be started."""
    forbidden = environment.get("COMMD_AUTOSTART") == "0" and not environment.get("COMMD_SOCKET")
    if forbidden and not service_here(root)[0]:
        return "take COMMD_AUTOSTART=0 out of the environment: no service commd is installed here"
    return f"{START}; commctl doctor"


def check_connection(environment, report, own):
    """own: the service does not answer."""
    import commd

    try:
        with commd.connect(timeout=10) as ctx:
            alone = ", one of this user alone: it knows no other node" if own else ""
            report.ok("connection", f"commd of node {ctx.node} answers{alone}")
            return True
    except commd.Error as error:
        report.error("connection", str(error), connection_remedy(environment, "/"))
        return False


def check_all_reduce(report):
    try:
        import numpy  # noqa: F401
    except ImportError:
        report.warn("all_reduce", "NumPy is not installed: two processes were not tried",
                    "pip install numpy")  # fmt: skip
        return
    name = f"commd-doctor-{os.getpid()}"
    ranks = [
        subprocess.Popen([sys.executable, "-c", SMOKE, name, str(rank)], text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        for rank in range(2)
    ]
    failed = ""
    try:
        for rank in ranks:
            _, text = rank.communicate(timeout=SMOKE_SECONDS)
            if rank.returncode:
                failed = failed or (text.strip().splitlines() or ["no message"])[-1]
    except subprocess.TimeoutExpired:
        failed = f"not done within {SMOKE_SECONDS} s"
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
    if failed:
        report.error("all_reduce", f"two processes of this node: {failed}", "commctl why")
    else:
        report.ok("all_reduce", "two processes of this node have added 1,000 numbers")


def check_node(report):
    """What commctl says, if it is there: beside this Python, or in PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "commctl")
    commctl = beside if os.path.exists(beside) else shutil.which("commctl")
    if not commctl:
        report.warn("node", "there is no commctl here: the node itself was not looked at",
                    "run commctl doctor on the node")  # fmt: skip
        return
    done = subprocess.run([commctl, "--json", "doctor"], capture_output=True, text=True)
    try:
        rows = json.loads(done.stdout)["doctor"]
    except (ValueError, KeyError):
        text = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        report.warn("node", f"{commctl}: {text}", "use the commctl of this release")
        return
    for row in rows:
        report.rows.append((row["level"], f"node: {row['check']}", row["finding"],
                            row["remedy"] or ""))  # fmt: skip


def show(rows, as_json):
    if as_json:
        keys = ("level", "check", "finding", "remedy")
        print(json.dumps({"doctor": [dict(zip(keys, row)) for row in rows]}, indent=1))
        return
    for level, check, finding, remedy in rows:
        print(f"{level:8} {check}: {finding}")
        if remedy:
            print(f"         -> {remedy}")
    levels = [row[0] for row in rows]
    counts = [(len(rows), "check"), (levels.count("error"), "error"),
              (levels.count("warning"), "warning")]  # fmt: skip
    print(", ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts))


def cannot_write(error):
    """The exit status. Who reads a part of it, as head does, hears nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python still wants to write at its end
    if not isinstance(error, BrokenPipeError):
        print(f"commd.doctor: cannot write to stdout ({error.strerror})", file=sys.stderr)
    return 2


def main(arguments=None, root="/"):
    parser = argparse.ArgumentParser(
        prog="python -m commd.doctor", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    report = Report()
    check_variables(os.environ, report)
    check_ranks(os.environ, report)
    own = check_service(os.environ, report, root)
    if check_package(report):
        check_torch(report)
        if check_connection(os.environ, report, own):
            check_all_reduce(report)
    check_node(report)
    try:
        show(report.rows, options.json)
        print(end="", flush=True)  # which there may be no stdout for
    except OSError as error:
        return cannot_write(error)
    return 1 if any(row[0] == "error" for row in report.rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
