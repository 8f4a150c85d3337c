"""Registers backend="commd" with torch.distributed; called at the end of every `import torch`.

A failing entry point makes `import torch` itself fail, in programs that never asked for commd.
So this neither raises nor does anything that could fail later: no extension is loaded and no
daemon is contacted before a process group with this backend is made.
"""

import logging

from commd import _amend, _replace


def _create(options, backend_options):
    from commd import torch as commd_torch

    return commd_torch.create_backend(options, backend_options)


def register():
    try:
        import torch
        import torch.distributed as dist

        if not dist.is_available():
            return
        if not hasattr(dist.Backend, "COMMD"):
            # devices is a list on purpose: a plain string is iterated by its characters.
            dist.Backend.register_backend(
                "commd", _create, extended_api=True, devices=["cpu", "cuda"]
            )
            _replace.install()
            _amend.install()
            # torch 2.15 attaches a flight recorder to groups of backends that have none, which
            # costs each call 1.4 us on top of 2.8. commd has its own: commd.torch.flight_recorder()
            recording = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", None)
            if isinstance(recording, set):
                recording.add("commd")
        # A device that plugs into torch, if it is there by now; it keeps its own backend as the
        # one that is taken where none is named.
        plugged = torch._C._get_privateuse1_backend_name()
        devices = dist.Backend.backend_capability["commd"]
        if plugged != "privateuseone" and plugged not in devices:
            devices.append(plugged)
    except Exception as error:
        logging.getLogger("commd").warning("backend commd was not registered: %s", error)
