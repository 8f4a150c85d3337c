"""COMMD_REPLACE=gloo: process groups of torch's backend gloo are carried by commd.

For programs that name gloo, or whose framework does (Accelerate and transformers.Trainer name it
for CPUs and refuse any other). The groups keep their name: get_backend() says "gloo", so that
programs which compare it go on. What makes gloo's groups by itself, such as torch.distributed.rpc,
keeps gloo.

torch makes every group in distributed_c10d._new_process_group_helper(); here it is given another
backend, and what it has written down about the new group is put right afterwards. Nothing is
touched if the variable is not set.
"""

import functools
import os
import sys

NAME = "COMMD_REPLACE"
_said = False


def _say_once(rank):
    global _said
    if not _said and rank in (0, -1, None):
        print(
            f"commd: {NAME}=gloo: process groups of backend gloo are carried by commd",
            file=sys.stderr,
            flush=True,
        )
    _said = True


def replaced(devices):
    """The backend that torch is asked for instead: @devices is {"cpu": "gloo", ...}. None: it stays
    as it is."""
    if "gloo" not in devices.values():
        return None
    if set(devices.values()) == {"gloo"}:
        return "commd"
    return ",".join(
        f"{device}:{'commd' if backend == 'gloo' else backend}"
        for device, backend in devices.items()
        # where there is no such hardware nothing would use it, and torch has no backend for it
        if backend != "undefined"
    )


def _wrapped(c10d, helper):
    @functools.wraps(helper)
    def wrapper(group_size, group_rank, global_ranks_in_group, backend, *args, **kwargs):
        config = c10d.BackendConfig(c10d.Backend(backend))
        instead = replaced(config.get_device_backend_map())
        if instead is None:
            return helper(group_size, group_rank, global_ranks_in_group, backend, *args, **kwargs)
        made = helper(
            group_size,
            group_rank,
            global_ranks_in_group,
            c10d.Backend(instead),
            *args,
            **kwargs,
        )
        group = made[0]
        world = c10d._world
        if group in world.pg_map:  # else this rank is not in it
            _say_once(c10d.get_rank() if c10d.is_initialized() else group_rank)
            world.pg_map[group] = (backend, world.pg_map[group][1])
            world.pg_backend_config[group] = str(config)
        return made

    return wrapper


def install():
    """Called at the end of `import torch`, where nothing may fail: what is wrong is told on
    stderr."""
    wanted = os.environ.get(NAME, "")
    if not wanted:
        return
    if wanted != "gloo":
        print(f'commd: {NAME} is "{wanted[:40]}"; allowed: gloo. Nothing is replaced',
              file=sys.stderr)  # fmt: skip
        return
    from torch.distributed import distributed_c10d as c10d

    helper = getattr(c10d, "_new_process_group_helper", None)
    if helper is None or not hasattr(c10d, "BackendConfig"):
        import torch

        print(f"commd: {NAME}=gloo is not possible with torch {torch.__version__}; name the "
              'backend "commd" instead', file=sys.stderr)  # fmt: skip
        return
    if not hasattr(helper, "__wrapped__"):
        c10d._new_process_group_helper = _wrapped(c10d, helper)
