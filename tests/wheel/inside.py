#!/usr/bin/env python3
"""Run by wheel.py in the container, as its user: installs the wheel and uses it.

/given has the wheel and README.md, the examples of which are run as they stand there; /later the
wheel as if of a later build; /index the wheels of numpy and torch. Each check goes on from the one
before.
"""

import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import time

HOME = os.path.expanduser("~")
VENV = os.path.join(HOME, "venv")
PATIENCE = 60
ENV = {"HOME": HOME, "PATH": f"{VENV}/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "USER": "trainer"}
TUNE = ["-b", "8", "-e", "1M", "-f", "8", "-n", "5", "-w", "1"]


def need(truth, *words):
    if not truth:
        raise SystemExit(f"inside: {' '.join(str(word) for word in words)}")


def run(*command, code=0, **environment):
    done = subprocess.run(command, env=dict(ENV, **environment), cwd=HOME, text=True, timeout=600,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)  # fmt: skip
    need(done.returncode == code, f"exit {done.returncode}, not {code}:", *command, "\n",
         done.stdout[-3000:])  # fmt: skip
    return done.stdout


def until(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        need(time.monotonic() < end, f"after {PATIENCE} s still not: {what}")
        time.sleep(0.05)


def processes():
    """{pid: command line} of all but this one and what keeps it."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
            if int(pid) not in (1, os.getpid()):
                found[int(pid)] = file.read().replace("\0", " ")
    return found


def status(**environment):
    return json.loads(run("commctl", "--json", "status", **environment))["status"][0]


def end_daemon(pid):
    os.kill(pid, signal.SIGTERM)
    until(lambda: not processes(), lambda: processes())


def examples():
    with open("/given/README.md") as file:
        blocks = re.findall(r"```python\n(.*?)```", file.read(), re.S)
    for name, text in zip(("train.py", "hello.py"), blocks):
        with open(os.path.join(HOME, name), "w") as out:
            out.write(text)


# ---- the story ----------------------------------------------------------------------------------


def check_bare():
    need(os.getuid() != 0, "this is root")
    for name in ("cc", "gcc", "c++", "g++", "clang"):
        need(not shutil.which(name), f"there is a compiler: {name}")


def installed():
    """(version, as pip has it; that of the programs)"""
    shown = re.search(r"^Version: (.*)$", run("pip", "show", "commd"), re.M).group(1)
    return shown, run("commd", "--version").split()[1]


def check_installs():
    run("/usr/bin/python3", "-m", "venv", VENV)
    (wheel,) = glob.glob("/given/*.whl")
    run("pip", "install", "-q", "--no-index", "--find-links", "/index", f"{wheel}[torch]")
    run("pip", "check")
    version = os.path.basename(wheel).split("-")[1]
    need(installed() == (version, version), installed(), "is installed by", wheel)


def check_programs_answer():
    for name in ("commd", "commctl", "commd-perf"):
        need(name in run(name, "--help"), name)
    run("commctl", "status", code=2)
    need(not processes(), "commctl has started something:", processes())


def check_perf_starts_commd():
    out = run("commd-perf", "all_reduce", "--ranks", "2", *TUNE)
    need("no daemon was running; started one" in out, out)
    here = status()
    need(here["state"] == "ready", here)
    exe = os.readlink(f"/proc/{here['pid']}/exe")
    need(exe.startswith(VENV) and exe.endswith("/commd/sbin/commd"), exe)


def check_torch():
    out = run("torchrun", "--nproc-per-node", "2", "train.py")
    found = re.search(r"^loss (\d.*)$", out, re.M)
    need(found and float(found.group(1)) < 10, out)


def check_numpy():
    ranks = [
        subprocess.Popen([f"{VENV}/bin/python", "hello.py"], cwd=HOME, text=True,
                         env=dict(ENV, RANK=str(rank), WORLD_SIZE="2"), stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
        for rank in range(2)
    ]  # fmt: skip
    for rank, process in enumerate(ranks):
        out, _ = process.communicate(timeout=PATIENCE)
        need(process.returncode == 0 and f"rank {rank} on" in out and "1.0, (2, 4)" in out, out)


def check_no_compiler_is_said():
    """Without a backend that fits, on a machine that cannot compile one."""
    paths = glob.glob(f"{VENV}/lib/python3*/site-packages/commd/_torch_*.so")
    need(paths, "the wheel has no backend")
    for path in paths:
        os.rename(path, f"{path}.away")
    out = run("python", "-c", "import commd.torch; commd.torch.load()", code=1)
    need("there is no C++ compiler, c++ (" in out.splitlines()[-1], out)
    for path in paths:
        os.rename(f"{path}.away", path)


def check_daemon_leaves():
    end_daemon(status()["pid"])


def node_yaml(fabric, me):
    nodes = "".join(f"    - {{name: n{i}, address: 127.0.0.1, port: {18400 + i}}}\n"
                    for i in range(2))  # fmt: skip
    return (f"cluster:\n  node: n{me}\n  key_file: {HOME}/key\n  nodes:\n{nodes}"
            f"listen:\n  socket: {HOME}/n{me}.sock\n  pid_file: {HOME}/n{me}.pid\n"
            f"transport:\n  fabric: {fabric}\n  port_range: {18500 + 20 * me}-{18519 + 20 * me}\n"
            )  # fmt: skip


def check_two_nodes(fabric):
    """Between nodes, by the programs and the libraries of UCX of the wheel."""
    with open(os.open(f"{HOME}/key", os.O_CREAT | os.O_WRONLY, 0o400), "w") as out:
        out.write("7c" * 31 + "01" + "\n")
    daemons, ranks = [], []
    for me in range(2):
        with open(f"{HOME}/n{me}.yaml", "w") as out:
            out.write(node_yaml(fabric, me))
        with open(f"{HOME}/n{me}.log", "w") as log:
            daemons.append(subprocess.Popen(["commd", "--config", f"{HOME}/n{me}.yaml"], env=ENV,
                                            stdout=log, stderr=log))  # fmt: skip
    said = lambda: [open(path).read()[-2000:] for path in glob.glob(f"{HOME}/n*.log")]  # noqa: E731
    until(lambda: all(os.path.exists(f"{HOME}/n{me}.sock") for me in range(2)), said())
    for me in range(2):
        ranks.append(subprocess.Popen(
            ["commd-perf", "all_reduce", *TUNE], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(ENV, RANK=str(me), WORLD_SIZE="2", COMMD_SOCKET=f"{HOME}/n{me}.sock"),
        ))  # fmt: skip
    for rank in ranks:
        out, _ = rank.communicate(timeout=PATIENCE)
        need(rank.returncode == 0, out[-2000:], *said())
    text = run("commctl", "status", COMMD_SOCKET=f"{HOME}/n0.sock")
    need(fabric in text.lower(), f"not by {fabric}:", text)
    (engine, *_) = [pid for pid, words in processes().items() if "commd-engine" in words]
    with open(f"/proc/{engine}/maps") as maps:
        libraries = {line.split()[-1] for line in maps if "libuc" in line}
    need(libraries and all(path.startswith(VENV) for path in libraries), libraries)
    for daemon in daemons:
        daemon.terminate()
    for daemon in daemons:
        need(daemon.wait(PATIENCE) == 0, "commd:", *said())
    until(lambda: not processes(), "all processes have ended")
    os.unlink(f"{HOME}/key")


def check_two_nodes_tcp():
    check_two_nodes("tcp")


def check_upgrade():
    """A later build is installed over it, though the release is the same, and stays."""
    before = installed()
    newer = ("--no-index", "--find-links", "/later", "--find-links", "/given", "commd")
    run("pip", "install", "-q", "--no-deps", "--upgrade", *newer)
    need(installed() == (glob.glob("/later/*.whl")[0].split("-")[1], before[1]), installed())
    out = run("pip", "install", "--no-deps", "--upgrade", *newer)
    need("already satisfied" in out, out)
    (wheel,) = glob.glob("/given/*.whl")
    run("pip", "install", "-q", "--no-index", "--no-deps", wheel)
    need(installed() == before, "back:", installed())


def check_removed():
    run("pip", "uninstall", "-q", "-y", "commd")
    left = glob.glob(f"{VENV}/lib/python3*/site-packages/commd*") + glob.glob(f"{VENV}/bin/commd*")
    need(not left and not processes(), left, processes())


def main():
    examples()
    checks = [check_bare, check_installs, check_programs_answer, check_perf_starts_commd,
              check_torch, check_numpy, check_no_compiler_is_said, check_daemon_leaves,
              check_two_nodes_tcp, check_upgrade, check_removed]  # fmt: skip
    for check in checks:
        begin = time.monotonic()
        check()
        print(f"ok  {check.__name__[6:]}  {time.monotonic() - begin:.1f} s")


main()
