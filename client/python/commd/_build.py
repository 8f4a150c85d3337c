"""The torch backend for a torch that the wheel has none for: compiled when it is first used.

It is kept in $XDG_CACHE_HOME/commd (~/.cache/commd), in a folder that is named by all that it
depends on: torch, Python, and the sources. One rank of a node compiles, under a lock that the
kernel drops if it dies; the others wait. What is there is complete, because it is renamed into
place; and it is loaded only if nobody else could have written it.

    python -m commd._build FOLDER      compiles into FOLDER: a process of its own, because it
                                       changes what setuptools and distutils are
"""

import contextlib
import ctypes
import fcntl
import glob
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.join(HERE, "lib", "libcommd.so.0")
SAID = 2000  # of what a compiler says


def _sources():
    return sorted(glob.glob(f"{HERE}/csrc/*")) + [f"{HERE}/include/commd/commd.h", __file__]


def _key(torch_version):
    digest = hashlib.sha256()
    for path in _sources():
        with open(path, "rb") as file:
            digest.update(file.read())
    abi = sysconfig.get_config_var("SOABI")
    return f"torch-{torch_version}-{abi}-{digest.hexdigest()[:16]}"


def _own_folder(path):
    """Makes it; refuses one in which somebody else can write."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    state = os.stat(path)
    if state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise ImportError(
            f"commd: {path} has another owner, or others may write there: what is compiled there"
            f" is not loaded. Run: chmod go-w {path}, or set XDG_CACHE_HOME"
        )
    return path


def missing():
    """All that is needed to compile and is not there, with the remedies; "" if all is there."""
    compiler = os.environ.get("CXX", "").split()[:1] or ["c++"]
    lacks = []
    if not shutil.which(compiler[0]):
        lacks.append(f"C++ compiler, {compiler[0]} (Debian: apt install g++)")
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        lacks.append("Python.h (Debian: apt install python3-dev)")
    if not importlib.util.find_spec("setuptools"):
        lacks.append("setuptools (pip install setuptools)")
    return ", no ".join(lacks)


def _no_backend(have, torch_version, why, releases):
    """The error that says so, and the way out that needs no compiler."""
    text = f"commd: {have}, and for torch {torch_version} none can be compiled: {why}"
    if releases:
        text += f". Or take a torch that it has one for: pip install 'torch=={releases[-1]}.*'"
    return ImportError(text)


def _compile(kept, torch_version):
    print(
        f"commd: compiling the torch backend for torch {torch_version} into {kept}; this takes a"
        " minute or two, once",
        file=sys.stderr,
        flush=True,
    )
    folder = tempfile.mkdtemp(prefix="new-", dir=os.path.dirname(kept))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "commd._build", folder],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0"), text=True, errors="replace",
        )  # fmt: skip
        if done.returncode:
            raise ImportError(
                f"commd: the torch backend for torch {torch_version} does not compile here; the"
                f" end of what was said:\n{done.stdout[-SAID:]}"
            )
        shutil.rmtree(os.path.join(folder, "objects"), ignore_errors=True)
        os.rename(folder, kept)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load(name, torch_version, have, releases):
    """The extension module commd.NAME; ImportError says what is missing. have: what the wheel has
    instead, for these releases of torch ("2.13")."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    try:
        cache = _own_folder(os.path.join(base, "commd"))
        kept = os.path.join(cache, _key(torch_version))
        # a forked child keeps it no longer than until it executes something
        with contextlib.closing(os.fdopen(os.open(f"{cache}/lock", os.O_RDWR | os.O_CREAT, 0o600),
                                          "w")) as lock:  # fmt: skip
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(kept):
                lacks = missing()
                if lacks:
                    why = f"there is no {lacks}"
                    raise _no_backend(have, torch_version, why, releases)
                _compile(kept, torch_version)
    except OSError as error:
        why = f"{error.filename or base}: {error.strerror}; set XDG_CACHE_HOME"
        raise _no_backend(have, torch_version, why, releases) from error
    _own_folder(kept)
    # by its soname: wherever this package lies now, it needs no path to it
    ctypes.CDLL(LIBRARY)
    path = glob.glob(f"{kept}/commd/{name}.*.so")[0]
    loader = importlib.machinery.ExtensionFileLoader(f"commd.{name}", path)
    spec = importlib.util.spec_from_file_location(f"commd.{name}", path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[f"commd.{name}"] = module
    return module


def _cxx_runtime():
    """The C++ library that torch works with. A compiler that finds no shared one takes its archive,
    and two of them in one process crash, in the first number that is made text."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps}
    return sorted(path for path in paths if "/libstdc++.so" in path)[:1]


def _main(folder):
    from setuptools import Distribution
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    minor = "_".join(torch.__version__.split(".")[:2])
    extension = CppExtension(
        f"commd._torch_{minor}",
        [f"{HERE}/csrc/all.cpp"],
        include_dirs=[f"{HERE}/include"],
        extra_compile_args=["-O2", "-g0", "-fvisibility=hidden"],
        extra_link_args=[LIBRARY, *_cxx_runtime()],
    )
    command = BuildExtension(Distribution({"ext_modules": [extension]}), use_ninja=False)
    command.build_lib = folder
    command.build_temp = os.path.join(folder, "objects")
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    _main(os.path.abspath(sys.argv[1]))
