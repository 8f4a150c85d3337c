"""The rivals: where they come from, how they are started, what version they are.

Each MPI gets mpi_perf.c, built against its own mpi.h. What is installed lies in a cache that can be
deleted at any time; Open MPI 4 is Debian's. A rival that cannot be had or built is an entry in
`missing`, with the reason: it is named below every table.

Each runs in its default and in the other settings that its manual gives for such a place
(settings()); the best of them counts in each row, and the JSON has all of them.
"""

import os
import pathlib
import re
import shutil
import subprocess
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
SOURCES = [HERE / "mpi_perf.c"] + [
    TOP / f"client/perf/commd_perf_{part}.c"
    for part in ("coll", "data", "loop", "options", "report", "stats", "turns")
] + [TOP / "shm/model/coll.c", TOP / "shm/model/dtype.c"]
COMPILE = ["-O2", "-std=gnu11", "-D_GNU_SOURCE", f"-I{TOP}", f"-I{TOP}/client/include"]
AS_ROOT = {
    f"{who}_ALLOW_RUN_AS_ROOT{what}": "1" for who in ("OMPI", "PRTE") for what in ("", "_CONFIRM")
}
PIP_SECONDS, BUILD_SECONDS = 900, 300


class Missing(Exception):
    pass


def run(argv, seconds, **more):
    argv = [str(a) for a in argv]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds, **more)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{argv[0]}: {error}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit {done.returncode}"]
        said = [line for line in lines if "rror" in line] or lines
        raise Missing(f"{pathlib.Path(argv[0]).name}: {said[-1].strip()[:200]}")
    return done.stdout


class Setting(NamedTuple):
    """One way to start a rival: `name` is shown, `says` is the manual's reason for it."""

    name: str
    says: str
    argv: tuple = ()
    env: dict = {}


DEFAULT = Setting("default", "as it comes, not bound to cores")


def crowded(place):
    """More processes that wait than cores: both nodes of a place are this machine."""
    return bool(place.beside) or not alone(place)


def alone(place):
    """Each rank may have a core, for some of the time at least."""
    few = place.nodes > 1 or place.size > len(os.sched_getaffinity(0))
    return not few and (not place.beside or place.beside.goes)


# ---- the MPIs ------------------------------------------------------------------------------------


class Mpi:
    """One MPI: `home` is its virtual environment, or None for Debian's."""

    def __init__(self, cache):
        self.home = cache / self.key if self.packages else None
        self.program = cache / f"mpi_perf-{self.key}"
        self.version = "?"

    def prepare(self):
        if self.packages:
            self.install()
        self.build()

    def install(self):
        asked = self.home / ".asked"
        if not asked.exists() or asked.read_text() != self.packages[0]:
            shutil.rmtree(self.home, ignore_errors=True)
            run(["python3", "-m", "venv", self.home], PIP_SECONDS)
            for words in self.packages:
                try:
                    run([self.home / "bin/pip", "install", *words.split()], PIP_SECONDS)
                    break
                except Missing:
                    if words == self.packages[-1]:
                        raise
            asked.write_text(self.packages[0])
        name = self.packages[0].split()[0].split("=")[0]
        shown = run([self.home / "bin/pip", "show", name], PIP_SECONDS)
        self.version = re.search(r"^Version: (.*)$", shown, re.M)[1]

    def settings(self, place):
        """The ways that are tried at @place; the first is the default."""
        return [
            DEFAULT,
            *(self.crowded if crowded(place) else ()),
            *(self.alone if alone(place) else ()),
            *(self.one_node if place.nodes == 1 else ()),
        ]

    crowded = alone = one_node = ()

    def flags(self):
        lib = self.home / "lib"
        return [f"-I{self.home}/include", f"-L{lib}", "-lmpi", f"-Wl,-rpath,{lib}"]

    def build(self):
        newest = max(os.path.getmtime(f) for f in [*SOURCES, TOP / "client/perf/commd_perf.h"])
        if self.program.exists() and os.path.getmtime(self.program) > newest:
            return
        run(["gcc", *COMPILE, "-o", self.program, *SOURCES, *self.flags()], BUILD_SECONDS)


class OpenMpi(Mpi):
    """What 4 and 5 have in common."""

    crowded = [
        Setting(
            "yield",
            "mpi_yield_when_idle, for more processes than cores",
            env={"OMPI_MCA_mpi_yield_when_idle": "1"},
        )
    ]
    alone = [
        Setting("bound", "--bind-to core, for a core for each process", argv=("--bind-to", "core"))
    ]
    one_node = [
        Setting(
            "coll sm",
            "the collectives in shared memory (coll_sm_priority)",
            env={"OMPI_MCA_coll_sm_priority": "100"},
        )
    ]

    @staticmethod
    def binding(setting):
        """Not bound unless the setting binds; twice is an error."""
        return setting.argv if "--bind-to" in setting.argv else ("--bind-to", "none")


class OpenMpi4(OpenMpi):
    name, key, packages = "Open MPI 4", "openmpi4", None

    def flags(self):
        return (
            run(["mpicc", "--showme:compile"], 20).split()
            + run(["mpicc", "--showme:link"], 20).split()
        )

    def prepare(self):
        # whatever is first in PATH may be any MPI
        if not shutil.which("mpicc") or not shutil.which("mpirun"):
            raise Missing("not installed: apt-get install openmpi-bin libopenmpi-dev")
        self.version = run(["mpirun", "--version"], 20).splitlines()[0].split()[-1]
        if not self.version.startswith("4."):
            raise Missing(f"mpirun in PATH is of version {self.version}")
        super().prepare()

    def command(self, place, setting=DEFAULT):
        argv = ["mpirun", *self.binding(setting), "--oversubscribe", "-np", place.size]
        if place.nodes > 1:
            argv += [
                "--mca",
                "pml",
                "ob1",
                "--mca",
                "btl",
                f"self,{place.local('vader')}tcp",
                "--mca",
                "btl_tcp_if_include",
                place.network,
            ]
        if place.hosts:
            argv += [
                "--mca",
                "plm_rsh_agent",
                place.agent,
                "--mca",
                "oob_tcp_if_include",
                place.network,
                "--host",
                ",".join(f"{h}:{place.ranks}" for h in place.hosts),
            ]
        return argv, {**AS_ROOT, **setting.env}


class OpenMpi5(OpenMpi):
    name, key, packages = "Open MPI 5", "openmpi5", ["openmpi"]

    def command(self, place, setting=DEFAULT):
        argv = [self.home / "bin/mpirun", *self.binding(setting), "--map-by", ":OVERSUBSCRIBE"]
        argv += ["-np", place.size]
        if place.nodes > 1:
            argv += [
                "--mca",
                "pml",
                "ob1",
                "--mca",
                "btl",
                f"self,{place.local('sm')}tcp",
                "--mca",
                "btl_tcp_if_include",
                place.network,
            ]
        if place.hosts:
            argv += [
                "--prtemca",
                "plm_ssh_agent",
                place.agent,
                "--prtemca",
                "prte_if_include",
                place.network,
                "--host",
                ",".join(f"{h}:{place.ranks}" for h in place.hosts),
            ]
        return argv, {**AS_ROOT, **setting.env}


class Mpich(Mpi):
    name, key, packages = "MPICH 5", "mpich", ["mpich"]
    crowded = [
        Setting(
            "yield",
            "MPIR_CVAR_POLLS_BEFORE_YIELD=1: yields after each look",
            env={"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"},
        )
    ]
    alone = [
        Setting("bound", "-bind-to core, for a core for each process", argv=("-bind-to", "core"))
    ]
    one_node = [
        Setting(
            "release_gather",
            "the collectives of its shared memory device",
            env={
                f"MPIR_CVAR_{c}_POSIX_INTRA_ALGORITHM": "release_gather"
                for c in ("ALLREDUCE", "BCAST", "REDUCE", "BARRIER")
            },
        )
    ]

    def command(self, place, setting=DEFAULT):
        argv, env = [self.home / "bin/mpiexec", *setting.argv, "-np", place.size], {}
        if place.nodes > 1:
            env = {
                "FI_PROVIDER": "tcp",
                "FI_TCP_IFACE": place.device,
                "UCX_TLS": "tcp,self",
                "UCX_NET_DEVICES": place.device,
            }
            if not place.hosts:
                env["MPIR_CVAR_NOLOCAL"] = "1"
        if place.hosts:
            argv += [
                "-launcher",
                "ssh",
                "-launcher-exec",
                place.agent,
                "-iface",
                place.device,
                "-ppn",
                place.ranks,
                "-hosts",
                ",".join(place.hosts),
            ]
        return argv, {**env, **setting.env}


class IntelMpi(Mpi):
    # the newest wants a libfabric that not every index has; pip then takes what it can resolve
    name, key = "Intel MPI", "impi"
    packages = ["impi-rt==2021.19.* impi-devel==2021.19.*", "impi-rt impi-devel"]
    crowded = [
        Setting("yield", "I_MPI_THREAD_YIELD=2: sched_yield()", env={"I_MPI_THREAD_YIELD": "2"}),
        Setting("wait", "I_MPI_WAIT_MODE=1: sleeps", env={"I_MPI_WAIT_MODE": "1"}),
    ]
    alone = [Setting("bound", "I_MPI_PIN=1, its own default", env={"I_MPI_PIN": "1"})]

    def command(self, place, setting=DEFAULT):
        argv = [self.home / "bin/mpiexec.hydra", "-np", place.size]
        env = {
            "I_MPI_ROOT": self.home,
            "LD_LIBRARY_PATH": self.home / "lib",
            "I_MPI_PIN": "0",
            "I_MPI_FABRICS": "shm",
        }
        if place.nodes > 1:
            env.update(
                FI_PROVIDER="tcp", FI_PROVIDER_PATH=self.home / "lib", FI_TCP_IFACE=place.device
            )
            env["I_MPI_FABRICS"] = "shm:ofi" if place.local("x") else "ofi"
        if place.hosts:
            env.update(
                I_MPI_HYDRA_BOOTSTRAP="ssh",
                I_MPI_HYDRA_BOOTSTRAP_EXEC=place.agent,
                I_MPI_HYDRA_IFACE=place.device,
            )
            argv += ["-ppn", place.ranks, "-hosts", ",".join(place.hosts)]
        return argv, {**env, **setting.env}


MPIS = [OpenMpi4, OpenMpi5, Mpich, IntelMpi]


# ---- DeepSpeed -----------------------------------------------------------------------------------


class DeepSpeed:
    """The all_reduce in shared memory of its CPU backend, built from the sources on PyPI."""

    name, key = "DeepSpeed shm", "deepspeed"

    def __init__(self, cache, python):
        self.home, self.python, self.version = cache / self.key, python, "?"

    def prepare(self):
        if not self.python:
            raise Missing("needs torch, which is not installed")
        sources = list(self.home.glob("deepspeed-*/csrc/cpu/comm"))
        if not sources:
            self.home.mkdir(parents=True, exist_ok=True)
            run(
                [
                    self.python,
                    "-m",
                    "pip",
                    "download",
                    "--no-deps",
                    "--no-binary",
                    ":all:",
                    "--no-build-isolation",
                    "-d",
                    self.home,
                    "deepspeed",
                ],
                PIP_SECONDS,
            )
            packed = next(self.home.glob("deepspeed-*.tar.gz"))
            run(["tar", "-xzf", packed, "-C", self.home, "--wildcards", "*/csrc/cpu/comm/*"], 60)
            sources = list(self.home.glob("deepspeed-*/csrc/cpu/comm"))
        self.sources = sources[0]
        self.version = self.sources.parents[2].name.split("-")[1]
        env = dict(
            os.environ,
            MAX_JOBS="2",
            PATH=f"{pathlib.Path(self.python).parent}:{os.environ['PATH']}",
        )
        run(
            [self.python, HERE / "torch_perf.py", "--build-deepspeed", self.sources],
            PIP_SECONDS,
            env=env,
        )


# ---- gloo itself ---------------------------------------------------------------------------------


class Gloo:
    """gloo without torch, with its TLS, which no wheel of torch has built in: from the sources that
    Horovod has on PyPI. They ask for OpenSSL 1.1, and work with 3."""

    name, key = "gloo", "gloo"
    algorithms = ("ring", "bcube")

    def __init__(self, cache, python):
        self.home, self.python, self.version = cache / self.key, python, "?"
        self.program = self.home / "gloo_perf"

    def prepare(self):
        if not self.python:
            raise Missing("needs .venv: ./quickstart build")
        sources = self.sources()
        build = sources / "build"
        if not (build / "gloo/libgloo.a").exists():
            self.make(sources, build)
        self.version = f"in {sources.parents[1].name}"
        newest = max(os.path.getmtime(f) for f in [HERE / "gloo_perf.cpp", *SOURCES])
        if not self.program.exists() or os.path.getmtime(self.program) < newest:
            self.link(sources, build)

    def sources(self):
        if not list(self.home.glob("horovod-*/third_party/gloo/gloo")):
            self.home.mkdir(parents=True, exist_ok=True)
            words = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", self.home]
            run([self.python, "-m", "pip", "download", *words, "horovod==0.28.1"], PIP_SECONDS)
            packed = next(self.home.glob("horovod-*.tar.gz"))
            inside = ["--wildcards", "*/third_party/gloo/*"]
            run(["tar", "-xzf", packed, "-C", self.home, *inside], 60)
        return next(self.home.glob("horovod-*/third_party/gloo"))

    def make(self, sources, build):
        rules = sources / "gloo/CMakeLists.txt"
        text = rules.read_text().replace("OpenSSL 1.1 REQUIRED EXACT", "OpenSSL REQUIRED")
        rules.write_text(text)
        flags = ["-DCMAKE_BUILD_TYPE=Release", "-DUSE_TCP_OPENSSL_LINK=ON", "-DBUILD_TEST=OFF"]
        run(["cmake", "-S", sources, "-B", build, "-DBUILD_BENCHMARK=OFF", *flags], BUILD_SECONDS)
        run(["cmake", "--build", build, "--target", "gloo", "-j2"], BUILD_SECONDS)

    def link(self, sources, build):
        ours = [f for f in SOURCES if f.name != "mpi_perf.c"]
        include = [f"-I{sources}", f"-I{build}", f"-I{TOP}", f"-I{TOP}/client/include"]
        objects = [self.home / f"{f.parent.name}-{f.stem}.o" for f in ours]
        for source, to in zip(ours, objects):
            run(["gcc", *COMPILE, "-c", "-o", to, source], BUILD_SECONDS)
        cpp = ["g++", "-O2", "-std=gnu++17", "-D_GNU_SOURCE", *include, HERE / "gloo_perf.cpp"]
        libraries = [build / "gloo/libgloo.a", "-lssl", "-lcrypto", "-lpthread"]
        run([*cpp, *objects, *libraries, "-o", self.program], BUILD_SECONDS)


def find_all(cache, python, say):
    """({key: rival}, {name: why it is missing})."""
    found, missing = {}, {}
    cache.mkdir(parents=True, exist_ok=True)
    for rival in [cls(cache) for cls in MPIS] + [DeepSpeed(cache, python)]:
        say(f"preparing {rival.name}")
        try:
            rival.prepare()
            found[rival.key] = rival
        except Missing as why:
            missing[rival.name] = str(why)
    return found, missing
