#!/usr/bin/env python3
"""Puts a wheel together: tools/wheel.sh has built what goes in.

    wheel.py WORK OUT VERSION   WORK/commd: the tree, WORK/stage: make install,
                                WORK/python-RELEASE/build: setup.py build, one for each torch;
                                VERSION: what the programs say (--with-build-version)

    commd/                 the package, with commd._core and commd._torch_2_13
    commd/sbin/            commd, and commd-engine, which it looks for beside itself
    commd/bin/             commctl, commd-perf
    commd/lib/             libcommd, which finds ../sbin/commd; libsmartcols, libnuma, libipsec-mb
                           and UCX
    commd/lib/ucx/         what UCX loads while it runs: libucs looks beside itself
    commd/csrc, include/   what _build.py compiles for another torch

Programs have DT_RPATH, which LD_LIBRARY_PATH does not override and which holds for the libraries
of their libraries: those stay byte for byte what Debian has. UCX's module for InfiniBand needs the
node's rdma-core; where there is none UCX passes over it.

The tag names the oldest glibc that has every symbol that is used. The archive is written in order
of names, with $SOURCE_DATE_EPOCH as the time of each file.
"""

import base64
import glob
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import time
import tomllib
import zipfile

MODULES = ["libuct_cma.so.0", "libuct_ib.so.0", "libuct_rdmacm.so.0"]
BUNDLED = ["libucp.so.0", "libuct.so.0", "libucs.so.0", "libucm.so.0", "libnuma.so.1",
           "libIPSec_MB.so.1", "libsmartcols.so.1"]  # fmt: skip
LINKED = ["libevent-dev", "libssl-dev", "libyaml-dev", "libprotobuf-c-dev"]
# What every machine with glibc and torch has; the others come with the wheel.
SYSTEM = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
TORCH = re.compile(r"lib(c10|torch|torch_cpu|torch_python)\.so$")
RDMA = re.compile(r"lib(ibverbs|mlx5|rdmacm|nl-3|nl-route-3|uct_ib)\.so\.\d+$")
TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def contents(path):
    with open(path, "rb") as file:
        return file.read()


class Wheel:
    def __init__(self):
        self.files = {}  # name: (bytes, may be run)

    def add(self, name, data, run=False):
        if name in self.files:
            assert self.files[name] == (data, run), f"{name} comes twice, with other bytes"
        self.files[name] = (data, run)

    def add_file(self, name, path, run=False):
        self.add(name, contents(path), run)

    def add_record(self, info):
        lines = []
        for name in sorted(self.files):
            data = self.files[name][0]
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        self.add(f"{info}/RECORD", "".join([*lines, f"{info}/RECORD,,\n"]).encode())

    def write(self, path, info):
        when = max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800)  # zip begins with 1980
        names = sorted(self.files, key=lambda name: (name.startswith(info), name))
        with zipfile.ZipFile(path, "w") as out:
            for name in names:
                data, run = self.files[name]
                entry = zipfile.ZipInfo(name, time.gmtime(when)[:6])
                entry.external_attr = (0o100755 if run else 0o100644) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.create_system = 3
                out.writestr(entry, data, compresslevel=9)


def library(name):
    """The path of Debian's library of this name."""
    folder = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
    for path in (f"{folder}/{name}", f"{folder}/ucx/{name}"):
        if os.path.exists(path):
            return os.path.realpath(path)
    raise SystemExit(f"wheel.py: {name} is not under {folder}")


def add_programs(wheel, stage, work):
    """Without symbols for debuggers, which hold paths, and told where their libraries are."""
    for source, name in (
        ("sbin/commd", "sbin/commd"),
        ("libexec/commd/commd-engine", "sbin/commd-engine"),
        ("bin/commctl", "bin/commctl"),
        ("bin/commd-perf", "bin/commd-perf"),
        ("lib/libcommd.so.0", "lib/libcommd.so.0"),
    ):
        copy = os.path.join(work, f"{os.path.basename(name)}.stripped")
        output("strip", "--strip-debug", "-o", copy, f"{stage}/usr/{source}")
        if not name.startswith("lib/"):
            output("patchelf", "--force-rpath", "--set-rpath", "$ORIGIN/../lib", copy)
        wheel.add_file(f"commd/{name}", copy, run=True)


def add_libraries(wheel, info):
    """Debian's, and what their authors ask to be told."""
    paths = []
    for names, folder in ((BUNDLED, "lib"), (MODULES, "lib/ucx")):
        for name in names:
            path = library(name)
            wheel.add_file(f"commd/{folder}/{name}", path, run=True)
            if folder == "lib/ucx":  # libucs opens NAME.so
                wheel.add_file(f"commd/{folder}/{name[:-2]}", path, run=True)
            paths.append(path)
    found = output("dpkg-query", "-S", *paths)
    packages = {line.split(":")[0] for line in found.splitlines()} | set(LINKED)
    for package in sorted(packages):
        text = contents(f"/usr/share/doc/{package}/copyright")
        wheel.add(f"{info}/licenses/{package}.copyright", text)
    wheel.add_file(f"{info}/licenses/commd.copyright", os.path.join(TREE, "debian/copyright"))
    versions = output("dpkg-query", "-W", "-f", "${Package} ${Version}\\n", *sorted(packages))
    wheel.add(f"{info}/licenses/BUNDLED", versions.encode())


def add_package(wheel, work):
    package = os.path.join(TREE, "client/python/commd")
    for pattern in ("*.py", "*.pyi", "py.typed", "csrc/*"):
        for path in glob.glob(os.path.join(package, pattern)):
            wheel.add_file(f"commd/{os.path.relpath(path, package)}", path)
    wheel.add_file("commd/include/commd/commd.h",
                   os.path.join(TREE, "client/include/commd/commd.h"))  # fmt: skip
    wheel.add("commd/_origin.py", b"# Written by tools/wheel.py.\nORIGIN = {'wheel': True}\n")
    for path in glob.glob(f"{work}/python-*/build/lib*/commd/*.so"):
        wheel.add_file(f"commd/{os.path.basename(path)}", path, run=True)


def check_needs(wheel, work):
    """Nothing is needed that is neither here nor everywhere; the newest glibc that is."""
    have = {os.path.basename(name) for name in wheel.files} | SYSTEM
    newest = (2, 17)
    for name, (data, _) in wheel.files.items():
        if data[:4] != b"\x7fELF":
            continue
        path = os.path.join(work, "looked-at")
        with open(path, "wb") as out:
            out.write(data)
        dynamic = output("objdump", "-p", path)
        for need in re.findall(r"NEEDED +(\S+)", dynamic):
            outside = TORCH if "/_torch" in name else RDMA if "/ucx/" in name else None
            if need not in have and not (outside and outside.match(need)):
                raise SystemExit(f"wheel.py: {name} needs {need}, which is not in the wheel")
        if os.path.dirname(work).encode() in data:
            raise SystemExit(f"wheel.py: {name} names the folder in which it was built")
        for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", dynamic):
            newest = max(newest, (int(major), int(minor)))
    return newest


def torch_that_fits(files):
    """What pip shall take for the extra "torch": a release that the wheel has a backend for."""
    found = (re.match(r"commd/_torch_(\d+)_(\d+)\.", name) for name in files)
    minors = sorted({(int(m[1]), int(m[2])) for m in found if m})
    (major, first), (_, last) = minors[0], minors[-1]
    lacks = [f"!={major}.{n}.*" for n in range(first, last) if (major, n) not in minors]
    return ",".join([f"torch>={major}.{first}", f"<{major}.{last + 1}", *lacks])


def add_metadata(wheel, info, version, tag):
    with open(os.path.join(TREE, "client/python/pyproject.toml"), "rb") as file:
        project = tomllib.load(file)
    project = project["project"]
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}",
             f"Summary: {project['description']}", "Requires-Python: >=3.11"]  # fmt: skip
    lines += [f"Requires-Dist: {need}" for need in project["dependencies"]]
    lines += ["Provides-Extra: torch",
              f'Requires-Dist: {torch_that_fits(wheel.files)}; extra == "torch"']  # fmt: skip
    wheel.add(f"{info}/METADATA", ("\n".join(lines) + "\n").encode())
    points = ["[console_scripts]"]
    points += [f"{name} = commd._programs:main" for name in ("commctl", "commd", "commd-perf")]
    for group, entries in project["entry-points"].items():
        points += [f"[{group}]", *(f"{name} = {what}" for name, what in entries.items())]
    wheel.add(f"{info}/entry_points.txt", ("\n".join(points) + "\n").encode())
    text = f"Wheel-Version: 1.0\nGenerator: commd\nRoot-Is-Purelib: false\nTag: {tag}\n"
    wheel.add(f"{info}/WHEEL", text.encode())


def check_version(version):
    """The release of the tree, and what PEP 440 lets follow it."""
    with open(os.path.join(TREE, "client/python/commd/__init__.py")) as file:
        release = re.search(r'^__version__ = "(.*)"$', file.read(), re.M).group(1)
    if not re.fullmatch(re.escape(release) + r"(\+[a-z][a-z0-9]*(\.[a-z][a-z0-9]*)*)?", version):
        raise SystemExit(f"wheel.py: {version} is no version that pip takes for {release}")


def main():
    work, out = (os.path.abspath(path) for path in sys.argv[1:3])
    version = sys.argv[3]
    check_version(version)
    info = f"commd-{version}.dist-info"
    wheel = Wheel()
    add_package(wheel, work)
    if "commd/_core.abi3.so" not in wheel.files:
        raise SystemExit("wheel.py: commd._core is not there for every Python: build with 3.11")
    add_programs(wheel, f"{work}/stage", work)
    add_libraries(wheel, info)
    major, minor = check_needs(wheel, work)
    tag = f"cp311-abi3-manylinux_{major}_{minor}_x86_64"
    add_metadata(wheel, info, version, tag)
    wheel.add_record(info)
    wheel.write(f"{out}/commd-{version}-{tag}.whl", info)


main()
