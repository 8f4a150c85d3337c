"""The torch.distributed backend: loads the extension that fits this torch.

Importing this module registers the backend (as the entry point in _autoload.py does) but loads
nothing; the extension is loaded when the first process group is made.
"""

import contextlib
import functools
import glob
import importlib
import importlib.machinery
import os
import pickle
import sys
from datetime import timedelta

import torch
from torch import distributed

from commd import _at_exit, _autoload, _recover
from commd._recover import Recovered, recover, rejoin

__all__ = [
    "Recovered",
    "create_backend",
    "dump_flight_recorder",
    "empty",
    "flight_recorder",
    "load",
    "prepare",
    "recover",
    "rejoin",
]


def _minor(version):
    return ".".join(version.split(".")[:2])


def _origin():
    try:
        from commd._origin import ORIGIN
    except ImportError:
        return {"source": "", "prefix": ""}
    return ORIGIN


def _rebuild_command():
    ORIGIN = _origin()
    if ORIGIN.get("wheel"):
        return f"{sys.executable} -m pip install --force-reinstall --no-deps commd-*.whl"
    source = ORIGIN["source"]
    if not os.path.exists(os.path.join(source, "setup.py")):
        source = "commd"
    prefix = f"COMMD_PREFIX={ORIGIN['prefix']} " if ORIGIN["prefix"] else ""
    return (
        f"{prefix}{sys.executable} -m pip install --no-build-isolation --no-deps"
        f" --force-reinstall {source}"
    )


def _built_for():
    """The torch versions, as "2.13", that this installation has an extension for, which this
    Python can load."""
    versions = set()
    for path in glob.glob(os.path.join(os.path.dirname(__file__), "_torch_*.so")):
        name, suffix = os.path.basename(path).split(".", 1)
        if f".{suffix}" in importlib.machinery.EXTENSION_SUFFIXES:
            versions.add(name[len("_torch_") :].replace("_", "."))
    return sorted(versions, key=lambda version: [int(part) for part in version.split(".")])


def _compiled(name, built):
    from commd import _build

    python = ".".join(str(part) for part in sys.version_info[:2])
    which = f"a torch backend for torch {', '.join(built)}" if built else "no torch backend"
    have = f"this wheel has {which} with Python {python}"
    return _build.load(name, torch.__version__, have, built)


@functools.lru_cache(maxsize=None)
def load():
    """The extension module for this torch; ImportError says how to build it if there is none."""
    wanted = _minor(torch.__version__)
    built = _built_for()
    if wanted not in built and _origin().get("wheel"):
        return _compiled(f"_torch_{wanted.replace('.', '_')}", built)
    if wanted not in built:
        have = f"was built for torch {', '.join(built)}" if built else "was installed without it"
        raise ImportError(
            f"commd: no torch backend for torch {torch.__version__}: this commd {have}. Run:\n"
            f"  {_rebuild_command()}"
        )
    try:
        return importlib.import_module(f"commd._torch_{wanted.replace('.', '_')}")
    except ImportError as error:
        raise ImportError(
            f"commd: the torch backend cannot be loaded: {error}. Is libcommd still where it was"
            f" built against? Run:\n  {_rebuild_command()}"
        ) from error


@functools.lru_cache(maxsize=None)
def _leave_at_exit(pid):
    """Once for each process: also where destroy_process_group was forgotten, others are told."""
    _at_exit.after_all(load().leave_at_exit)


def prepare():
    """Before this process is in its first group."""
    _leave_at_exit(os.getpid())


def create_backend(options, backend_options=None):
    """What torch.distributed calls for init_process_group("commd") and new_group()."""
    prepare()
    seconds = os.environ.get("COMMD_TIMEOUT")
    # Torch does not tell whether the program has named its default.
    if seconds and options.timeout == distributed.default_pg_timeout:
        with contextlib.suppress(ValueError, OverflowError):  # the library tells what is wrong
            options.timeout = timedelta(seconds=float(seconds))
    return load().create(options, _recover.take_joined(), _recover.parent())


def empty(*size, dtype=None):
    """A new CPU tensor, of zeros, in registered memory.

    all_reduce of 64 KiB and more (512 KiB with more ranks than cores), and broadcast,
    all_gather_single and reduce_scatter_single of 4 MiB and more, in a group on one node, need no
    copies if the tensors that all its ranks pass are such ones or contiguous views of them.
    Everywhere else they are tensors like any other. Needs a process group of the backend "commd"; a
    tensor outlives it as ordinary memory. Meant for large tensors that are kept, such as flat
    gradients: each takes whole pages, and commd keeps at most 256 files for a process, of 32 MiB of
    small tensors or one of 4 MiB and more. Ranks of this user that are in groups with this one on
    this node can read and write it; so can a forked child.

    size: integers, or one sequence of them; dtype: None: torch's default.
    """
    if len(size) == 1 and not hasattr(size[0], "__index__"):
        (size,) = size
    return load().empty(list(size), dtype or torch.get_default_dtype())


def flight_recorder(only_active=False):
    """The last collectives of this process, in the form of torch's flight recorder.

    Its own functions know nothing of commd: see doc/debugging.md. profiling_name begins with
    "gloo:" because torch's analyser refuses what it does not know; "backend" is "commd".
    TORCH_FR_BUFFER_SIZE says how many are kept (2000; 0: none). only_active: those that go on.
    """
    return pickle.loads(load().flight_recorder(only_active))


def dump_flight_recorder(prefix, rank=None):
    """Writes it to the file PREFIX + rank (None: $RANK) for torch's analyser, torchfrtrace, which
    takes a folder with the files of all ranks.

    With COMMD_FR_DUMP=PREFIX in the environment commd does so itself, once, when one fails.
    """
    if rank is None:
        rank = int(os.environ["RANK"])
    with open(f"{prefix}{rank}", "wb") as out:
        out.write(load().flight_recorder(False))


_autoload.register()
