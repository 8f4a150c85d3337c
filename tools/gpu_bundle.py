#!/usr/bin/env python3
"""One folder with all that checks a machine with a GPU, for one that has glibc and Python alone.

    gpu_bundle.py BUILD FOLDER      ./quickstart bundle calls it; FOLDER is made anew
    --rivals CACHE                  with Open MPI 5 and Intel MPI, which are installed from PyPI
                                    into CACHE, for times on the CPU

    tests/, python/      the checks, and the package commd, whose torch backend is compiled there
    build/               programs where the tests look for them, and tests/fakecuda, which shows
                         without a GPU that the folder is whole (check.py --fake)
    build/lib/           the libraries of this machine that they need and a bare one lacks

Programs have DT_RPATH with $ORIGIN, so the folder may lie anywhere, and need glibc 2.34 (RHEL 9,
Ubuntu 22.04) or newer. Then there:

    python3 tests/gpu/check.py --help
"""

import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import sysconfig

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MOST = 64 << 20  # what may be carried
LIBCOMMD = "client/lib/.libs/libcommd.so"
PROGRAMS = [
    "daemon/commd", "client/ctl/commctl", "client/perf/commd-perf", "transport/commd-engine",
    "transport/commd-gpu", "tests/gpu/gpu_check", "tests/bench/nccl_perf",
    "tests/bench/bench_threads",
    "tests/integration/lib/gpu_rank",
]  # fmt: skip
LIBRARIES = [
    "tests/fakecuda/libcuda.so.1", "tests/fakecuda/libnccl.so.2",
    "tests/fakecuda/libfakekernels.so",
]  # fmt: skip
FILES = ["config.h"]
TREE = [
    "tests/gpu/*.py", "tests/bench/gpu.py", "tests/bench/torch_gpu.py",
    "tests/bench/torch_overlap.py", "tests/bench/rivals.py", "tests/integration/test_gpu_path.py",
    "tests/integration/test_gpu_nodes.py", "tests/integration/test_gpu_restart.py",
    "tests/integration/test_gpu_recover.py",
    "tests/integration/lib/*.py", "tests/torch/programs/*.py",
]  # fmt: skip
# Of an MPI's folder.
UNUSED = [
    "python*", "pip*", "site-packages", "activate*", "Activate*", "include", "*.pc", "*.a", "*.mod",
    "tune_fast*", "libmpcp*", "libmpi_abi*", "libmpifort*", "libmpi_ilp64*", "libmpijava*",
    "libmpi.so", "libmpi.so.12.*", "libpsm*", "libefa*", "libverbs*", "libmlx*", "coll.fatbin",
    "*thread-split*", "*psm3*", "*opa*", "mpiexec", "*cpuinfo", "doc*",
    "IMB-*",
]  # fmt: skip
# What a machine with torch has.
SYSTEM = re.compile(r"^(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so|ld-linux|linux-vdso)")

# What machines have that the folder is for. Newer glibcs have more functions; the libraries of this
# machine use these of them, and get ours.
GLIBC = (2, 35)
LATER = "commd-later.so"
LATER_SOURCE = """
#include <stdint.h>
#include <sys/random.h>

void arc4random_buf(void *p, size_t n)
{
    for (ssize_t got; n; p = (char *)p + got, n -= (size_t)got)
        if ((got = getrandom(p, n, 0)) < 0)
            got = 0;
}

uint32_t arc4random(void)
{
    uint32_t n;

    arc4random_buf(&n, sizeof n);
    return n;
}
"""


def glibc_of(name):
    """The version of "GLIBC_2.36"; of other names, none."""
    found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)", name)
    return (int(found[1]), int(found[2])) if found else (0, 0)


class Versions:
    """The versions of other libraries' symbols that an ELF file asks for."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            self.bytes = bytearray(file.read())
        at, count = self.get("Q", 0x28), self.get("H", 0x3C)
        form = "<IIQQQQIIQQ"  # Elf64_Shdr
        sections = [struct.unpack_from(form, self.bytes, at + 64 * i) for i in range(count)]
        self.entries = []  # where each stands, and its name
        for _, kind, _, _, offset, _, link, number, _, _ in sections:
            if kind == 0x6FFFFFFE:  # SHT_GNU_verneed
                self.strings = sections[link][4]
                self.read(offset, number)

    def get(self, form, at):
        return struct.unpack_from(f"<{form}", self.bytes, at)[0]

    def read(self, at, number):
        for _ in range(number):
            entry = at + self.get("I", at + 8)
            for _ in range(self.get("H", at + 2)):
                begin = self.strings + self.get("I", entry + 8)
                name = self.bytes[begin : self.bytes.index(0, begin)].decode()
                self.entries.append((entry, name))
                entry += self.get("I", entry + 12)
            at += self.get("I", at + 12)

    def lower(self):
        """What is too new becomes the oldest: the loader then looks for a symbol of that version in
        all libraries, and takes it from one that has no versions. True if there was any."""
        oldest = min((e for e in self.entries if glibc_of(e[1]) > (0, 0)),
                     key=lambda e: glibc_of(e[1]), default=None)  # fmt: skip
        late = [entry for entry, name in self.entries if glibc_of(name) > GLIBC]
        for entry in late:
            for field in (0, 8):  # its hash and its name
                struct.pack_into("<I", self.bytes, entry + field, self.get("I", oldest[0] + field))
        with open(self.path, "wb") as file:
            file.write(self.bytes)
        return bool(late)


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Bundle:
    def __init__(self, build, folder):
        self.build, self.folder = os.path.abspath(build), os.path.abspath(folder)
        self.needed = {}  # name: path

    def at(self, name):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def origin(self, name, to):
        return f"$ORIGIN/{os.path.relpath(to, os.path.dirname(name))}"

    def add_program(self, name, path):
        """Without symbols for debuggers; @name is where it comes to lie in build/."""
        target = self.at(f"build/{name}")
        output("strip", "--strip-debug", "-o", target, path)
        os.chmod(target, 0o755)
        # the fake driver must not lie where programs look for the real one
        fake = name.startswith("tests/fakecuda/")
        for line in () if fake else output("ldd", path).splitlines():
            found = re.match(r"\s*(\S+) => (/\S+)", line)
            if found and not SYSTEM.match(found[1]) and "libcommd" not in found[1]:
                self.needed[found[1]] = found[2]
        rpath = [self.origin(name, "lib"), self.origin(name, os.path.dirname(LIBCOMMD))]
        if not fake:
            output("patchelf", "--force-rpath", "--set-rpath", ":".join(rpath), target)

    def real(self, name):
        """What libtool has made: a program, or a script beside it."""
        path = os.path.join(self.build, name)
        with open(path, "rb") as file:
            if file.read(2) != b"#!":
                return path
        return os.path.join(os.path.dirname(path), ".libs", os.path.basename(path))

    def add_programs(self):
        for name in PROGRAMS + LIBRARIES:
            self.add_program(name, self.real(name))
        library = os.path.realpath(os.path.join(self.build, LIBCOMMD))
        for name in LIBCOMMD, f"{LIBCOMMD}.0":
            self.add_program(name, library)
        for name in FILES:
            if os.path.exists(os.path.join(self.build, name)):
                shutil.copy(os.path.join(self.build, name), self.at(f"build/{name}"))

    def add_libraries(self):
        """As they are: the programs' DT_RPATH holds for them, too."""
        for name, path in sorted(self.needed.items()):
            target = self.at(f"build/lib/{name}")
            shutil.copy(os.path.realpath(path), target)
            if Versions(target).lower():
                output("patchelf", "--add-needed", LATER, target)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O2", f"-Wl,-soname,{LATER}", "-x", "c", "-", "-o",
             self.at(f"build/lib/{LATER}")],
            input=LATER_SOURCE, text=True, check=True,
        )  # fmt: skip
        if "libucs.so.0" in self.needed:  # what it loads while it runs
            ucx = os.path.join(os.path.dirname(self.needed["libucs.so.0"]), "ucx")
            for name in ("libuct_cma.so.0", "libuct_cma.so"):
                if os.path.exists(f"{ucx}/libuct_cma.so.0"):
                    shutil.copy(f"{ucx}/libuct_cma.so.0", self.at(f"build/lib/ucx/{name}"))

    def add_tree(self):
        for pattern in TREE:
            folder, name = os.path.split(pattern)
            files = os.listdir(os.path.join(TOP, folder)) if "*" in name else [name]
            for file in files:
                if "*" not in name or file.endswith(".py"):
                    shutil.copy(os.path.join(TOP, folder, file), self.at(f"{folder}/{file}"))

    def add_python(self):
        """As a wheel has it, so that the backend is compiled where torch is."""
        source, target = os.path.join(TOP, "client/python/commd"), self.at("python/commd")
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.c", "*.so"))
        os.chmod(target, 0o755)
        with open(self.at("python/commd/_origin.py"), "w") as file:
            file.write("ORIGIN = {'wheel': True}\n")
        header = os.path.join(TOP, "client/include/commd/commd.h")
        shutil.copy(header, self.at("python/commd/include/commd/commd.h"))
        library = self.at("python/commd/lib/libcommd.so.0")
        shutil.copy(os.path.join(self.folder, f"build/{LIBCOMMD}.0"), library)
        sources = [f"{source}/{name}" for name in os.listdir(source) if name.endswith(".c")]
        output(
            "gcc", "-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-DPy_LIMITED_API=0x030b0000",
            f"-I{sysconfig.get_path('include')}", f"-I{TOP}/client/include", "-o",
            self.at("python/commd/_core.abi3.so"), *sorted(sources), library,
            "-Wl,-rpath,$ORIGIN/lib",
        )  # fmt: skip
        with open(os.path.join(TOP, "client/python/pyproject.toml")) as file:
            lines = file.read()
        entry = re.search(r'entry-points\."torch\.backends"\]\ncommd = "(.*)"', lines)[1]
        with open(self.at("python/commd-0.dist-info/METADATA"), "w") as file:
            file.write("Metadata-Version: 2.1\nName: commd\nVersion: 0\n")
        with open(self.at("python/commd-0.dist-info/entry_points.txt"), "w") as file:
            file.write(f"[torch.backends]\ncommd = {entry}\n")

    def add_rivals(self, cache):
        """Of each MPI what runs, without its libraries for Fortran, other ABIs and networks.
        Packed, as they are large; check.py unpacks them."""
        sys.path.insert(0, os.path.join(TOP, "tests/bench"))
        import rivals

        for rival in (rivals.OpenMpi5(pathlib.Path(cache)), rivals.IntelMpi(pathlib.Path(cache))):
            rival.prepare()
            home = self.at(f"rivals/{rival.key}/bin")
            shutil.copytree(
                rival.home, os.path.dirname(home), symlinks=True, dirs_exist_ok=True,
                ignore=shutil.ignore_patterns(*UNUSED),
            )  # fmt: skip
            program = self.at(f"rivals/mpi_perf-{rival.key}")
            shutil.copy(rival.program, program)
            output("patchelf", "--force-rpath", "--set-rpath", f"$ORIGIN/{rival.key}/lib", program)
        shutil.make_archive(self.at("rivals"), "xztar", self.folder, "rivals")
        shutil.rmtree(self.at("rivals"))

    def size(self):
        sizes = [
            os.lstat(os.path.join(folder, name)).st_size
            for folder, _, names in os.walk(self.folder)
            for name in names
        ]
        return sum(sizes)


def main():
    if len(sys.argv) not in (3, 5) or sys.argv[3:4] not in ([], ["--rivals"]):
        sys.exit(__doc__)
    bundle = Bundle(*sys.argv[1:3])
    for tool in ("patchelf", "strip", "gcc", "ldd"):
        if not shutil.which(tool):
            sys.exit(f"gpu_bundle.py: there is no {tool}: apt-get install patchelf binutils gcc")
    if os.path.exists(os.path.join(bundle.folder, ".git")):
        sys.exit(f"gpu_bundle.py: {bundle.folder} is a checkout")
    shutil.rmtree(bundle.folder, ignore_errors=True)
    bundle.add_programs()
    bundle.add_libraries()
    bundle.add_tree()
    bundle.add_python()
    if sys.argv[3:]:
        bundle.add_rivals(sys.argv[4])
    size = bundle.size()
    print(f"{bundle.folder}: {size / (1 << 20):.1f} MiB, {', '.join(sorted(bundle.needed))}")
    if size > MOST:
        sys.exit(f"gpu_bundle.py: more than {MOST >> 20} MiB")


if __name__ == "__main__":
    main()
