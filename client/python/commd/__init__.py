"""commd: collectives for training processes, carried out by the node's commd.

NumPy, and any other C-contiguous buffer:

    import commd, numpy

    with commd.connect() as ctx, ctx.group("job", rank, size) as g:
        x = numpy.full(1000, g.rank, "float32")
        g.all_reduce(x)                         # in place
        parts = g.all_gather(x)                 # a new array, (size, 1000)
        work = g.start.all_reduce(x, "max")     # goes on by itself
        work.wait()                             # or: await work

PyTorch: nothing to import. With this package installed (torch >= 2.5),

    torch.distributed.init_process_group("commd")

works in any program that torchrun starts. A program that names gloo, or whose framework does, runs
unchanged with COMMD_REPLACE=gloo in its environment (commd/_replace.py). Where torch is older, or
TORCH_DEVICE_BACKEND_AUTOLOAD=0 is set and torch is older than 2.14, `import commd.torch` registers
the backend.

The local daemon is found through $COMMD_SOCKET, else /run/commd/commd.sock; where none
runs nor is meant to run, one is started for this user, on this node alone (COMMD_AUTOSTART=0
forbids it).
"""

# `import torch` imports this package, in programs that never asked for it: nothing is loaded here.
# Each name below is fetched from its module when it is first used.

__version__ = "0.1.0"

ANY_SOURCE = -1
ANY_TAG = -1

_HOMES = {
    "commd._core": ["Work"],
    "commd.errors": [
        "Aborted",
        "EngineLost",
        "Error",
        "Forked",
        "GpuLost",
        "InternalError",
        "InvalidArgument",
        "Mismatch",
        "NoDaemon",
        "NodeLost",
        "OutOfMemory",
        "PermissionDenied",
        "ProtocolError",
        "QuotaExceeded",
        "RankLost",
        "Timeout",
    ],
    "commd.group": ["Batch", "Context", "Group", "Status", "connect"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["ANY_SOURCE", "ANY_TAG", "__version__", *_HOME_OF]


def __getattr__(name):
    if name not in _HOME_OF:
        raise AttributeError(f"module 'commd' has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
