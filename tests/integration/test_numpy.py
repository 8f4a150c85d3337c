#!/usr/bin/env python3
"""The Python package without torch: `import commd`, on real daemons. The ranks are numpy_ops.py.

The package is built as a wheel from client/python and unpacked. That needs a Python with its
headers, pip, setuptools, wheel and NumPy: $COMMD_TEST_PYTHON, else the one of .venv, else this one,
else /usr/bin/python3; if none has them, this is skipped.
"""

import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import zipfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import gpu_driver  # noqa: E402
from cluster import BUILD, HANG, HERE, TOP, Cluster, Skip, check, communicate  # noqa: E402
from cluster import equal, main, until  # noqa: E402
from cluster import sanitizer_environment  # noqa: E402
from test_autostart import Place  # noqa: E402

LONG = 12 * HANG
SOURCES = {".py", ".pyi", ".c", ".h", ".cpp"}
PROBE = """
import importlib.util, os, sys, sysconfig
missing = [m for m in ("numpy", "pip", "setuptools", "wheel") if not importlib.util.find_spec(m)]
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    missing.append("Python.h")
print(" ".join(missing))
"""
_package = None


def find_python():
    candidates = [os.environ.get("COMMD_TEST_PYTHON")]
    if not candidates[0]:
        candidates = [os.path.join(TOP, ".venv/bin/python"), sys.executable, "/usr/bin/python3"]
    why = []
    for python in candidates:
        if os.path.exists(python):
            done = subprocess.run([python, "-c", PROBE], stdout=subprocess.PIPE, text=True)
            if done.returncode == 0 and not done.stdout.strip():
                return python
            why.append(f"{python} lacks {done.stdout.strip()}")
    raise Skip("; ".join(why) or "no Python found")


class Package:
    """The wheel, built once for all tests."""

    def __init__(self):
        self.python = find_python()
        self.folder = tempfile.TemporaryDirectory(prefix="commd-wheel.")
        at = self.folder.name
        # what `make install` would make, of links
        os.makedirs(f"{at}/prefix/include/commd")
        os.symlink(f"{TOP}/client/include/commd/commd.h", f"{at}/prefix/include/commd/commd.h")
        os.symlink(f"{BUILD}/client/lib/.libs", f"{at}/prefix/lib")
        self.environment = dict(os.environ, COMMD_PREFIX=f"{at}/prefix", TMPDIR=at, HOME=at)
        self.environment.pop("COMMD_BUILD_DIR", None)
        if sanitizer_environment():
            flags = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
            self.environment.update(CFLAGS=flags, LDFLAGS=flags)
        # torch hidden: its part takes minutes to compile, and is tested elsewhere
        with open(f"{at}/sitecustomize.py", "w") as file:
            file.write("import sys\nsys.modules['torch'] = None\n")
        done = subprocess.run(
            [self.python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index",
             "--disable-pip-version-check", "--wheel-dir", f"{at}/wheel", f"{TOP}/client/python"],
            env=dict(self.environment, PYTHONPATH=at), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        check(done.returncode == 0, f"pip wheel failed:\n{done.stdout}")
        check("warning: " not in done.stdout, f"the compiler warns:\n{done.stdout}")
        (wheel,) = os.listdir(f"{at}/wheel")
        self.wheel = os.path.join(at, "wheel", wheel)
        self.site = f"{at}/site"
        with zipfile.ZipFile(self.wheel) as file:
            self.names = file.namelist()
            file.extractall(self.site)

    def run(self, node, arguments, **more):
        environment = dict(
            os.environ, COMMD_SOCKET=node.socket, COMMD_TEST_NODE=node.name, PYTHONPATH=self.site,
            PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
        )  # fmt: skip
        environment.update(more)
        environment.update(sanitizer_environment())
        return subprocess.Popen(
            [self.python, *arguments], env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip


def package():
    global _package
    if _package is None:
        _package = Package()
    return _package


def run_checks(cluster, places, checks, **more):
    """One process per entry of @places (a node's index) runs the functions of numpy_ops.py."""
    print(f"  ranks on nodes {places}: {', '.join(checks)}", flush=True)
    processes = []
    for rank, place in enumerate(places):
        processes.append(
            package().run(
                cluster.nodes[place], [f"{HERE}/numpy_ops.py", *checks], RANK=str(rank),
                WORLD_SIZE=str(len(places)), COMMD_TEST_NODES=str(len(set(places))), **more,
            )
        )  # fmt: skip
    try:
        # when one has failed the others may wait for it for ever
        until(lambda: ended(processes) or failed(processes), "an end", 2 * LONG)
        until(lambda: ended(processes), "the end of the others")
    finally:
        for process in processes:
            process.send_signal(signal.SIGABRT)  # it says where it is
        results = [(communicate(p)[0], p.returncode) for p in processes]
        for rank, (text, _) in enumerate(results):
            print(f"--- rank {rank}:\n{text}" if text else "", end="", flush=True)
    equal([code for _, code in results], [0] * len(places), "exit codes")
    equal("".join(text for text, _ in results), "", "what the ranks printed")


def ended(processes):
    return all(process.poll() is not None for process in processes)


def failed(processes):
    return any(process.poll() for process in processes)


RESULTS = ["reductions", "reduce_scatter", "premul", "moves", "uneven_moves", "other_buffers",
           "large", "bfloat16", "registered"]  # fmt: skip
ASYNC = ["async", "async_pending", "await", "await_pending", "batch", "batch_refusals",
         "batch_changed", "batch_collected", "references", "close_pending", "threads",
         "close_inside"]  # fmt: skip
GROUPS = ["split", "subgroup", "many_groups"]
MESSAGES = ["point_to_point", "too_long_message"]


def test_doctor():
    """python -m commd.doctor: what is well, what is misspelt, what does not go together."""
    with Cluster(1) as cluster:
        process = package().run(
            cluster.nodes[0], ["-m", "commd.doctor", "--json"], COMMD_SOCKT="x", RANK="1",
            PATH=f"{BUILD}/client/ctl:/usr/bin:/bin",
        )  # fmt: skip
        text, _ = communicate(process, LONG)
        equal(process.returncode, 1, text)
        rows = json.loads(text)["doctor"]
        # this package was built without its part for torch, which may be there
        errors = [row for row in rows if row["level"] == "error" and row["check"] != "torch"]
        equal([row["check"] for row in errors], ["ranks"], rows)
        check("RANK=1 and WORLD_SIZE=None" in errors[0]["finding"], rows)
        seen = {row["check"]: row for row in reversed(rows)}
        check("commd of node node0 answers" in seen["connection"]["finding"], rows)
        equal(seen["all_reduce"]["level"], "ok", rows)
        check("node: commd" in seen, rows)  # what commctl doctor says
        equal([row["remedy"] for row in rows if "COMMD_SOCKT" in row["finding"]],
              ["is COMMD_SOCKET meant?"])  # fmt: skip


def test_doctor_where_the_service_is_stopped():
    """It says so, and that what answers then is a commd of this user alone."""
    with Place() as place:
        os.makedirs(f"{place.folder}/etc/commd")
        open(f"{place.folder}/etc/commd/commd.yaml", "w").close()
        code = f"import sys, commd.doctor as d; sys.exit(d.main(['--json'], '{place.folder}/'))"
        process = package().run(place, ["-c", code], **place.environment)
        text, _ = communicate(process, LONG)
        rows = json.loads(text[text.index("{") :])["doctor"]
        seen = {row["check"]: row for row in reversed(rows)}
        equal(seen["service"]["level"], "warning", rows)
        check("systemctl start commd" in seen["service"]["remedy"], rows)
        check("one of this user alone" in seen["connection"]["finding"], rows)


TO_FULL = "out = os.open('/dev/full', os.O_WRONLY)"
TO_NOBODY = "r, out = os.pipe(); os.close(r)"
DOCTOR = "runpy.run_module('commd.doctor', run_name='__main__')"


def test_doctor_whose_answer_is_not_taken():
    with Cluster(1) as cluster:
        for where, said in ((TO_FULL, "cannot write to stdout (No space left"), (TO_NOBODY, "")):
            code = f"import os, runpy; {where}; os.dup2(out, 1); {DOCTOR}"
            process = package().run(cluster.nodes[0], ["-c", code])
            text, _ = communicate(process, LONG)
            equal(process.returncode, 2, text)
            check(said in text and len(text.splitlines()) == bool(said), text)


def test_doctor_without_stdout():
    with Cluster(1) as cluster:
        for options in ([], ["--json"]):
            code = f"import runpy, sys; sys.stdout = None; {DOCTOR}"
            process = package().run(cluster.nodes[0], ["-c", code, *options])
            text, _ = communicate(process, LONG)
            equal((process.returncode in (0, 1), text), (True, ""))


def test_doctor_and_a_folder_named_torch():
    code = ("import runpy, sys, types; sys.modules['torch'] = torch = types.ModuleType('torch');"
            f"torch.__file__, torch.__path__ = None, ['/here/torch']; {DOCTOR}")  # fmt: skip
    with Cluster(1) as cluster:
        process = package().run(cluster.nodes[0], ["-c", code])
        text, _ = communicate(process, LONG)
        equal(process.returncode, 1, text)
        check("torch: /here/torch is not PyTorch" in text, text)


def test_program_of_the_readme():
    """As it stands there, by two ranks."""
    with open(os.path.join(TOP, "README.md")) as file:
        part = file.read().partition("## From NumPy")[2]
    program = re.search(r"^```python\n(.*?)^```", part, re.M | re.S).group(1)
    with Cluster(1) as cluster, tempfile.TemporaryDirectory() as folder:
        hello = os.path.join(folder, "hello.py")
        with open(hello, "w") as file:
            file.write(program)
        ranks = [
            package().run(cluster.nodes[0], [hello], RANK=str(rank), WORLD_SIZE="2")
            for rank in range(2)
        ]
        try:
            texts = [communicate(rank, LONG)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        equal(texts, [f"rank {rank} on node0: 1.0, (2, 4)\n" for rank in range(2)])


AT_EXIT = """if True:
    import atexit, os
    def at_exit():
        assert work.wait()[0] == size, work
        x = numpy.full(1000, rank, "float32")
        g.all_reduce(x)
        assert x[0] == size * (size - 1) / 2, x
        with ctx.group("at exit", rank, size) as other:
            other.barrier()
        again = commd.connect()
        pending.append(again.group("left open", rank, size).start.barrier())
        pending[0].wait()
    atexit.register(at_exit)  # older than commd's own part in the end
    import numpy, commd
    pending, rank, size = [], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ctx = commd.connect()
    g = ctx.group("main", rank, size)
    work = g.start.all_reduce(numpy.ones(100000, "float32"))
"""


def test_at_exit():
    """What atexit calls finds the contexts and groups open, and can make more."""
    with Cluster(1) as cluster:
        ranks = [
            package().run(cluster.nodes[0], ["-c", AT_EXIT], RANK=str(rank), WORLD_SIZE="2")
            for rank in range(2)
        ]
        try:
            texts = [communicate(rank, LONG)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        equal(texts, ["", ""])
        check("was lost" not in cluster.nodes[0].log(), cluster.nodes[0].log())


def test_wheel():
    """All that belongs in it, nothing else; and what it says about itself is true."""
    names = set(package().names)
    source = f"{TOP}/client/python/commd"
    wanted = {f"commd/{name}" for name in os.listdir(source) if name.endswith((".py", ".pyi"))}
    wanted |= {"commd/py.typed", "commd/_origin.py"}
    with open(f"{TOP}/client/python/local.mk") as file:
        listed = set(re.findall(r"client/python/(\S+)", file.read()))
    here = {
        os.path.relpath(f, f"{TOP}/client/python")
        for f in glob.glob(f"{source}/**", recursive=True)
    }
    here = {name for name in here if os.path.splitext(name)[1] in SOURCES}
    equal(sorted(here - listed), [], "missing in client/python/local.mk")
    (core,) = [name for name in names if name.startswith("commd/_core")]
    check(core.endswith(".so"), core)
    equal({n for n in names if n.startswith("commd/")}, wanted | {core})
    version = re.search(r"AC_INIT\(\[commd\], \[([0-9.]+)\]", open(f"{TOP}/configure.ac").read())[1]
    check(os.path.basename(package().wheel).startswith(f"commd-{version}-"), package().wheel)
    code = "import commd, commd._core as c; print(commd.__version__, c.version)"
    equal(output(code), f"{version} {version}\n")


def output(code):
    done = subprocess.run(
        [package().python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=dict(os.environ, PYTHONPATH=package().site, COMMD_SOCKET="/nonexistent",
                 PYTHONDONTWRITEBYTECODE="1", **sanitizer_environment()),
    )  # fmt: skip
    return done.stdout


def test_import_is_cheap():
    """`import torch` imports it everywhere: no extension, no NumPy, no daemon."""
    code = """if True:
        import sys, commd
        loaded = [m for m in sys.modules if m.split(".")[0] in ("numpy", "torch", "asyncio")]
        print(loaded, [m for m in sys.modules if m.startswith("commd.")])
        assert set(commd.__all__) <= set(dir(commd))
        for name in commd.__all__:
            assert getattr(commd, name) is not None, name
        try:
            commd.nothing
        except AttributeError as error:
            print(error)
        try:
            commd.connect()
        except commd.NoDaemon as error:
            import pickle
            again = pickle.loads(pickle.dumps(error))
            assert type(again) is commd.NoDaemon and vars(again) == vars(error)
            assert isinstance(error, (commd.Error, ConnectionError)) and error.code == -9
            print("no daemon", error.rank, error.node, error.pid, error.seq, error.epoch, error.op)
        print("numpy" in sys.modules)
    """
    equal(
        output(code),
        "[] []\nmodule 'commd' has no attribute 'nothing'\n"
        "no daemon None None None None None connect\nFalse\n",
    )


def test_stubs_agree():
    """Each public name, method and parameter of the package is in the stubs, and the reverse."""
    done = subprocess.run(
        [package().python, f"{HERE}/numpy_stubs.py", f"{package().site}/commd/__init__.pyi"],
        env=dict(os.environ, PYTHONPATH=package().site, PYTHONDONTWRITEBYTECODE="1",
                 **sanitizer_environment()),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    equal(done.stdout, "")


def test_one_node():
    with Cluster(1) as cluster:
        run_checks(cluster, [0, 0], RESULTS + ASYNC + GROUPS + MESSAGES + ["refusals"])
        run_checks(cluster, [0], ["reductions", "moves", "uneven_moves", "references"])


def test_two_nodes():
    with Cluster(2) as cluster:
        run_checks(cluster, [0, 1, 0, 1], RESULTS + ASYNC + GROUPS + MESSAGES)


def test_gpu():
    driver = f"{BUILD}/tests/fakecuda/libcuda.so.1"
    more = {"COMMD_LIBCUDA": driver, "CUDA_VISIBLE_DEVICES": "0", "FAKECUDA_DELAY_US": "200"}
    with Cluster(2) as cluster:
        run_checks(cluster, [0, 0, 1], ["gpu", "dlpack"], **more)


def test_gpu_service():
    environment = {**gpu_driver.environment(), "FAKECUDA_DELAY_US": "50"}
    with Cluster(1, {"gpu": gpu_driver.section()}) as cluster:
        run_checks(cluster, [0, 0], ["gpu_interrupted", "gpu_unseen", "gpu_dropped"], **environment)


def test_failures():
    with Cluster(1) as cluster:
        run_checks(cluster, [0, 0, 0], ["mismatch", "aborted", "forked", "interrupt"])
        run_checks(cluster, [0, 0], ["interrupt_recv", "interrupt_late"])
        run_checks(cluster, [0, 0], ["timeout"])
        run_checks(cluster, [0, 0, 0], ["lost"])
        run_checks(cluster, [0, 0, 0, 0], ["recovered"])
        run_checks(cluster, [0, 0], ["left_behind"])


def test_recovery_on_two_nodes():
    with Cluster(2) as cluster:
        run_checks(cluster, [0, 0, 1, 1], ["recovered"])


if __name__ == "__main__":
    main(globals())
