"""Builds the extension (always) and the torch backend (against the torch that is installed).

    pip install --no-build-isolation client/python

Without --no-build-isolation pip builds in an empty environment where torch cannot be seen;
then, as on a machine without torch, everything but the torch backend is installed.

commd._core fits every Python from 3.11 on (the limited API has buffers since then); an older one
builds its own. A torch extension fits one minor version of torch only (its classes and option
structs change), so the module carries the version in its name: commd/_torch_2_13.*.so, and
commd/torch.py compares.

Where libcommd is: $COMMD_PREFIX (its include/ and lib/), else `pkg-config commd`. The library's
folder becomes the modules' rpath, so that no LD_LIBRARY_PATH is needed; one that the system's
loader searches anyway does not. $COMMD_RPATH names another one (tools/wheel.sh).
$COMMD_BUILD_DIR keeps the objects for a faster second build; else they go to a temporary folder
and the source folder stays clean.
"""

import atexit
import glob
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = os.path.dirname(os.path.abspath(__file__))
NO_LIBCOMMD = """
commd: libcommd was not found, so its Python package cannot be built.
  - build and install commd first (./configure && make && make install), and
  - say where it is: COMMD_PREFIX=/usr/local pip install --no-build-isolation client/python
    (or let `pkg-config commd` find it through PKG_CONFIG_PATH).
"""


def find_torch():
    try:
        import torch
    except ImportError:
        return None
    return torch


def pkg_config(*args):
    try:
        done = subprocess.run(["pkg-config", *args, "commd"], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.split() if done.returncode == 0 else None


def find_libcommd():
    """(include folders, library folders) of libcommd, or an error that says what to do."""
    prefix = os.environ.get("COMMD_PREFIX")
    if prefix:
        prefix = os.path.abspath(prefix)
        libs = glob.glob(f"{prefix}/lib*/libcommd.so") + glob.glob(f"{prefix}/lib/*/libcommd.so")
        if not libs or not os.path.exists(f"{prefix}/include/commd/commd.h"):
            raise SystemExit(f"commd: nothing installed under COMMD_PREFIX={prefix}\n{NO_LIBCOMMD}")
        return [f"{prefix}/include"], [os.path.dirname(libs[0])]
    libdir = pkg_config("--variable=libdir")
    if not libdir:
        raise SystemExit(NO_LIBCOMMD)
    includes = [flag[2:] for flag in pkg_config("--cflags-only-I") or []]
    return includes, libdir


class BuildPyWithOrigin(build_py):
    """Writes down how this was built: commd/torch.py needs it for the exact rebuild command."""

    torch_version = None

    def run(self):
        super().run()
        origin = {
            "source": HERE,
            "prefix": os.environ.get("COMMD_PREFIX", ""),
            "torch": self.torch_version,
        }
        target = os.path.join(self.build_lib, "commd", "_origin.py")
        self.mkpath(os.path.dirname(target))
        with open(target, "w") as out:
            out.write("# Written by setup.py.\n")
            out.write(f"ORIGIN = {origin!r}\n")


def not_searched(libdirs):
    """Those of the folders where the loader does not look by itself."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    searched = {os.path.normpath(f"/usr/lib/{name}") for name in ("", multiarch)}
    return [folder for folder in libdirs if os.path.normpath(folder) not in searched]


def runtime_folders(libdirs):
    named = os.environ.get("COMMD_RPATH")
    return [named] if named else not_searched(libdirs)


def build_folder():
    kept = os.environ.get("COMMD_BUILD_DIR")
    if kept:
        os.makedirs(kept, exist_ok=True)
        return os.path.abspath(kept)
    folder = tempfile.mkdtemp(prefix="commd-python-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def sources(pattern):
    return sorted(os.path.relpath(s, HERE) for s in glob.glob(f"{HERE}/commd/{pattern}"))


def core_extension(where):
    limited = sys.version_info >= (3, 11)
    return Extension(
        "commd._core",
        sources("_core*.c"),
        depends=sources("_core*.h"),
        define_macros=[("Py_LIMITED_API", "0x030b0000")] if limited else [],
        py_limited_api=limited,
        extra_compile_args=["-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra",
                            "-Wno-unused-parameter", "-Wno-missing-field-initializers"],
        **where,
    )  # fmt: skip


def torch_extension(torch, where):
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    class BuildBoth(BuildExtension):
        """torch replaces how the compiler is called, for C++: C is compiled before."""

        def build_extensions(self):
            everything = self.extensions
            self.extensions = everything[:1]
            build_ext.build_extensions(self)
            self.extensions = everything[1:]
            super().build_extensions()
            self.extensions = everything

    BuildPyWithOrigin.torch_version = torch.__version__
    minor = "_".join(torch.__version__.split(".")[:2])
    # Lists of its own: CppExtension appends torch's libraries, which commd._core does not need.
    where = {name: list(values) for name, values in where.items()}
    # No -std flag: cpp_extension picks the one that this torch's headers need.
    extension = CppExtension(
        f"commd._torch_{minor}",
        sources("csrc/all.cpp"),
        depends=sources("csrc/*"),
        extra_compile_args=["-O2", "-g0", "-fvisibility=hidden", "-Wall"],
        **where,
    )
    return extension, BuildBoth


def main():
    torch = find_torch()
    folder = build_folder()
    commands = {"build_py": BuildPyWithOrigin}
    extensions = []
    options = {
        "build": {"build_base": os.path.join(folder, "build")},
        "egg_info": {"egg_base": folder},
    }
    # Only what compiles needs libcommd: `egg_info` and `sdist` work without it.
    compiling = {"build", "build_ext", "bdist_wheel", "editable_wheel", "install", "develop"}
    if compiling & set(sys.argv):
        includes, libdirs = find_libcommd()
        where = {
            "include_dirs": includes,
            "library_dirs": libdirs,
            "runtime_library_dirs": runtime_folders(libdirs),
            "libraries": ["commd"],
        }
        extensions = [core_extension(where)]
        if torch:
            extension, commands["build_ext"] = torch_extension(torch, where)
            extensions.append(extension)
        elif extensions[0].py_limited_api:
            options["bdist_wheel"] = {"py_limited_api": "cp311"}
    if torch is None:
        print("commd: torch is not installed here -> installing without the torch backend")
    setup(ext_modules=extensions, cmdclass=commands, options=options)


main()
