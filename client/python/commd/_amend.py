"""What functions of torch do not do for backends that they do not know; for commd's groups alone.

_set_pg_timeout() sets the limit of gloo's and NCCL's groups only. And when a coalesced section ends
with an exception, torch remains inside of it: later calls are collected, for nobody, and return as
if they had been done. (pytorch: _coalescing_manager() has no `finally`.)
"""

import contextlib
import functools


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


def install():
    import torch.distributed
    from torch.distributed import distributed_c10d as c10d

    for name, wrap in (("_set_pg_timeout", _with_timeout), ("_coalescing_manager", _with_end)):
        original = getattr(c10d, name, None)
        if original and not hasattr(original, "__commd__"):
            wrapper = wrap(c10d, original)
            wrapper.__commd__ = True
            setattr(c10d, name, wrapper)
            # programs call it by either name
            if getattr(torch.distributed, name, None) is original:
                setattr(torch.distributed, name, wrapper)
