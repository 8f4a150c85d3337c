"""Registers backend="commd" with torch.distributed; called at the end of every `import torch`.

A failing entry point makes `import torch` itself fail, in programs that never asked for commd.
So this neither raises nor does anything that could fail later: no extension is loaded and no
daemon is contacted before a process group with this backend is made.
"""

import logging

from commd import _replace


def _create(options, backend_options):
    from commd import torch as commd_torch

    return commd_torch.create_backend(options, backend_options)


def register():
    try:
        import torch.distributed as dist

        if not dist.is_available() or hasattr(dist.Backend, "COMMD"):
            return
        # devices is a list on purpose: a plain string is iterated by its characters.
        # "cuda" too: a group then has one backend for both, which refuses device memory by name.
        dist.Backend.register_backend(
            "commd", _create, extended_api=True, devices=["cpu", "cuda"]
        )
        _replace.install()
    except Exception as error:
        logging.getLogger("commd").warning("backend commd was not registered: %s", error)
