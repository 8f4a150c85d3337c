"""What functions of torch do not do for backends that they do not know; for commd's groups alone.

_set_pg_timeout() sets the limit of gloo's and NCCL's groups only. And when a coalesced section ends
with an exception, torch remains inside of it: later calls are collected, for nobody, and return as
if they had been done. (pytorch: _coalescing_manager() has no `finally`.)

init_process_group() waits for other ranks in its store, before any backend is asked for. So commd
is told first that this rank waits, for `commctl why`.

DistributedDataParallel is asked to tell of its instances: commd.torch.recover() renews them.

Before torch 2.7 process groups have no abort(), destroy_process_group() shuts down groups of NCCL
only, and DistributedDataParallel has no init_sync. A job that goes on after a loss needs all three.
"""

import contextlib
import functools
import inspect
import os
import sys
import threading
from urllib.parse import parse_qs, urlsplit

from commd import _replace


def _ours(group):
    """The backends of @group that are commd's, and whether there are others."""
    all_of_it = [group._get_backend(device) for device in group._device_types]
    all_of_it = [getattr(backend, "wrapped_pg", backend) for backend in all_of_it]
    ours = {id(backend): backend for backend in all_of_it if backend.name() == "commd"}
    return list(ours.values()), len(ours) == len({id(backend) for backend in all_of_it})


def _with_timeout(c10d, original):
    @functools.wraps(original)
    def wrapper(timeout, group=None):
        wanted = group or c10d._get_default_group()
        ours, alone = [], False
        if isinstance(wanted, c10d.ProcessGroup) and not c10d._rank_not_in_group(wanted):
            ours, alone = _ours(wanted)
        for backend in ours:
            backend._set_default_timeout(timeout)
        if not alone:
            original(timeout, group)

    return wrapper


def _with_end(c10d, original):
    @functools.wraps(original)
    @contextlib.contextmanager
    def wrapper(group=None, *args, **kwargs):
        begun = False
        try:
            with original(group, *args, **kwargs) as manager:
                begun = True
                yield manager
        except BaseException:
            group = group or c10d._get_default_group()
            ours, _ = _ours(group) if begun else ([], False)
            for backend in ours:
                c10d._world.pg_coalesce_state.pop(group, None)
                backend._abandon_coalescing()
            raise

    return wrapper


def _is_ours(backend):
    """Will groups of this `backend=` be commd's?"""
    names = {part.rpartition(":")[2] for part in (backend or "gloo").lower().split(",")}
    return "commd" in names or ("gloo" in names and os.environ.get(_replace.NAME) == "gloo")


def _meeting(init_method, rank, size):
    """Where the ranks of a job meet, and which this is: from what init_process_group() is given,
    else from the environment, as torch does."""
    url = urlsplit(init_method or "env://")
    query = {**os.environ, **{key.upper(): words[-1] for key, words in parse_qs(url.query).items()}}
    name = url.netloc + url.path
    if url.scheme == "env":
        name = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    return (
        name,
        int(query["RANK"] if rank < 0 else rank),
        int(query["WORLD_SIZE"] if size < 0 else size),
    )


def _waiting(backend=None, init_method=None, rank=-1, world_size=-1, store=None, **_):
    """What tells commd that this rank waits. None: the store is the program's, or is not known."""
    try:
        if store is not None or not _is_ours(backend):
            return None
        from commd import torch as commd_torch

        return commd_torch.load().Waiting(*_meeting(init_method, rank, world_size))
    except Exception:  # torch, or the group, will tell what is wrong
        return None


def _with_word(c10d, original):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        waiting = None
        with contextlib.suppress(TypeError):
            waiting = _waiting(**signature.bind(*args, **kwargs).arguments)
        try:
            return original(*args, **kwargs)
        finally:
            if waiting:
                waiting.close()

    return wrapper


_alone = threading.local()  # on: this thread makes a DDP with init_sync=False, before torch 2.7


def _unless_alone(original):
    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        return None if getattr(_alone, "on", False) else original(*args, **kwargs)

    return wrapper


def _with_init_sync(original):
    """Without it the constructor exchanges nothing: the other ranks have their DDP already."""

    @functools.wraps(original)
    def wrapper(self, *args, init_sync=True, **kwargs):
        _alone.on = not init_sync
        try:
            original(self, *args, **kwargs)
        finally:
            _alone.on = False

    return wrapper


def _abort(group):
    """As process groups have it from torch 2.7 on."""
    for backend in {group._get_backend(device) for device in group._device_types}:
        getattr(backend, "wrapped_pg", backend).abort()


def _with_shutdown(c10d, original):
    @functools.wraps(original)
    def wrapper(group):
        for backend in _ours(group)[0]:
            backend.shutdown()
        original(group)

    return wrapper


def _noted(original):
    @functools.wraps(original)
    def wrapper(self, *args, **kwargs):
        original(self, *args, **kwargs)
        recovery = sys.modules.get("commd._recover")  # else no group of this process is commd's
        if recovery:
            recovery.note_ddp(self)

    wrapper.__commd__ = True
    return wrapper


def install():
    import torch.distributed
    from torch.distributed import distributed_c10d as c10d
    from torch.nn.parallel import DistributedDataParallel, distributed

    if not hasattr(DistributedDataParallel.__init__, "__commd__"):
        make = DistributedDataParallel.__init__
        if "init_sync" not in inspect.signature(make).parameters:
            for name in ("_verify_param_shape_across_processes", "_sync_module_states"):
                setattr(distributed, name, _unless_alone(getattr(distributed, name)))
            make = _with_init_sync(make)
        DistributedDataParallel.__init__ = _noted(make)
    older = not hasattr(c10d.ProcessGroup, "abort")
    if older:
        c10d.ProcessGroup.abort = _abort

    for name, wrap in (
        *([("_shutdown_backend", _with_shutdown)] if older else []),
        ("_set_pg_timeout", _with_timeout),
        ("_coalescing_manager", _with_end),
        ("init_process_group", _with_word),
    ):
        original = getattr(c10d, name, None)
        if original and not hasattr(original, "__commd__"):
            wrapper = wrap(c10d, original)
            wrapper.__commd__ = True
            setattr(c10d, name, wrapper)
            # programs call it by either name
            if getattr(torch.distributed, name, None) is original:
                setattr(torch.distributed, name, wrapper)
