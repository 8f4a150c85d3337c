"""commd.torch.recover() and rejoin(): a rank dies, the job goes on, with the same process groups.

The C++ side (csrc/recover.cpp) brings the group into its next epoch, and gives torch's objects
their new rank and size. Here is put right what Python has written down: which global rank is which
rank of each group (distributed_c10d._world.pg_group_ranks), the number from which torch makes names
of groups, and DDP's reducers.

When the default group is recovered, global ranks are those of its new epoch, and every other group
is told. Groups that are made later need no store: see csrc/recover.cpp.

DDP gets a new reducer each time. The old one keeps the divisor of the backward that has thrown.
Ranks may also differ in whether they had rebuilt their buckets when it threw, and a new process has
not; a sum of unlike buckets would be wrong, and nobody could tell.

FSDP2 asks its groups for their sizes at each backward, so its divisor is right. It keeps what a
backward that has thrown had begun: whole parameters, gradients of these, and that its callback at
the end of a backward is queued. Its modules that use the group are brought back to between steps.

FSDP1 keeps the same, and takes its divisors from its groups when it is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import typing
import weakref
from datetime import timedelta

import torch
from torch import distributed

from commd import _amend

with contextlib.suppress(ImportError):  # a torch without it has no groups either
    from torch.distributed import _composable_state
    from torch.distributed import distributed_c10d as c10d

NAME = "torch/world"  # where the default group meets new processes
POLICIES = {"shrink": 0, "wait": 1}  # enum commd_recovery
NAMES_PER_EPOCH = 1_000_000  # of groups: torch numbers them, and new processes have made none

_joined = None  # by rejoin(), until init_process_group() has taken it
_ddps = weakref.WeakSet()
_states = weakref.WeakSet()  # of FSDP


def _new_state(cls, *_args, **_kwargs):
    """In place of object.__new__() for torch's class of states, which FSDP1 inherits from: nothing
    else has a list of its instances, and to import it costs half a second."""
    state = object.__new__(cls)
    if any(base.__name__ == "_FSDPState" for base in cls.__mro__):  # others may not be hashable yet
        _states.add(state)
    return state


with contextlib.suppress(NameError):
    _composable_state._State.__new__ = staticmethod(_new_state)


@dataclasses.dataclass(frozen=True)
class Recovered:
    """What became of a process group."""

    rank: int
    size: int
    epoch: int  # 1: the group's first
    old_rank: int  # -1: this process is new
    old_size: int  # 0: this process is new
    old_epoch: int
    before: typing.List[int]  # of each rank, which it was in the epoch before; -1: a new process
    gone: typing.List[int]  # ranks of the epoch before that are no more; unknown to a new process
    standing: typing.List[distributed.ProcessGroup]  # of the other groups of commd: not touched
    broken: typing.List[distributed.ProcessGroup]  # they have lost a rank: recover or destroy them

    @property
    def new(self):
        """The ranks that are new processes."""
        return [rank for rank, old in enumerate(self.before) if old < 0]

    @property
    def source(self):
        """The lowest rank that has the state of the group: new processes get it from there. None:
        all are new."""
        return next((rank for rank, old in enumerate(self.before) if old >= 0), None)


def _ms(what, limit):
    if limit is None:
        return 0
    seconds = limit.total_seconds() if isinstance(limit, timedelta) else float(limit)
    if seconds < 0:
        raise ValueError(f"commd: {what}: a limit of {seconds:g} s; allowed: from 0 (no limit)")
    return max(int(seconds * 1000), 1) if seconds else -1


def _backend_of(group):
    ours, alone = _amend._ours(group)
    if len(ours) != 1 or not alone:
        raise ValueError("commd: recover: this process group has another backend than commd, or"
                         " several")  # fmt: skip
    wrapped = [getattr(group._get_backend(device), "wrapped_pg", None)
               for device in group._device_types]  # fmt: skip
    if any(wrapped):
        raise ValueError("commd: recover: TORCH_DISTRIBUTED_DEBUG=DETAIL adds groups of gloo, which"
                         " cannot be recovered: unset it")  # fmt: skip
    return ours[0]


def _others(group):
    """All other groups in which commd has this rank, with their backends."""
    for other in list(c10d._world.pg_map):
        if other is not group and not c10d._rank_not_in_group(other):
            for backend in _amend._ours(other)[0]:
                yield other, backend


def _spec(**values):
    from commd import torch as commd_torch

    spec = commd_torch.load().RecoverySpec()
    for name, value in values.items():
        setattr(spec, name, value)
    return spec


def _renumber_world(before):
    """Global ranks are those of the new epoch, in all groups."""
    ranks = c10d._world.pg_group_ranks
    now = {old: rank for rank, old in enumerate(before) if old >= 0}
    default = c10d._get_default_group()
    for group, members in ranks.items():
        if group is not default:
            ranks[group] = {now[old]: rank for old, rank in members.items() if old in now}
    ranks[default] = {rank: rank for rank in range(len(before))}


def _renumber_group(group, before):
    """The members of a group that is not the whole world have moved in it."""
    ranks = c10d._world.pg_group_ranks
    who = {old: world for world, old in ranks[group].items()}
    ranks[group] = {who[old]: rank for rank, old in enumerate(before) if old in who}


def _place(group, backend):
    members = c10d._world.pg_group_ranks[group]
    whole = group is c10d._get_default_group()
    backend._place([] if whole else sorted(members, key=members.get))


def _renew(ddp):
    """Its reducer, as DDP makes it: with the buckets and the divisor of a first step."""
    if not hasattr(ddp, "reducer"):  # all its gradients are reduced in another way
        return
    ddp.reducer._remove_autograd_hooks()
    parameters, sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    for hook, state in ddp._comm_hooks:
        distributed._register_comm_hook(ddp.reducer, state, hook)
    if getattr(ddp, "mixed_precision", None) is not None:
        ddp.reducer._set_mixed_precision_param_dtype(ddp.mixed_precision.param_dtype)
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in ddp._module_parameters):
        ddp.reducer._set_optimizer_in_backward()
    ddp._has_rebuilt_buckets = False
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = False  # of a first step
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()


def note_ddp(ddp):
    """_amend.py calls it for every DistributedDataParallel."""
    _ddps.add(ddp)


def _parts(state):
    """What FSDP2 gathers at once of a module: one part, since torch 2.13 also several."""
    parts = getattr(state, "_fsdp_param_groups", None)
    if parts is None:
        parts = [getattr(state, "_fsdp_param_group", None)]
    return [part for part in parts if part]


def _uses(part, group):
    meshes = [mesh for mesh in (part.mesh_info, part.post_forward_mesh_info) if mesh]
    return any(value is group for mesh in meshes for value in vars(mesh).values())


def _roots(group):
    """Of the models of FSDP2 over the group that have been run."""
    roots = set()
    for state in {ref() for ref in list(_composable_state._module_state_mapping.values())}:
        if any(_uses(part, group) for part in _parts(state)):
            roots.update(other for other in state._state_ctx.all_states if other._is_root)
    return roots


def _reset_iter_state(root):
    """What a torch before 2.13 has no method for. Its events are of operations that have ended with
    the epoch, or of the streams that are waited for here."""
    getattr(root, "_device_handle", torch.cuda).synchronize()
    context = root._comm_ctx
    context.all_gather_state = context.reduce_scatter_state = None
    getattr(context, "reduce_scatter_states", []).clear()  # 2.12
    context.post_forward_order.clear()
    for state in root._state_ctx.all_states:
        state._modules_to_run_forward.clear()
        state._training_state = type(state._training_state).IDLE
        for part in _parts(state):
            part._all_gather_result = part._post_reduce_event = part._all_reduce_state = None
            part._reshard_after_forward_event = part._partial_reduce_output = None
            part._post_forward_indices.clear()
            part._training_state = type(part._training_state).IDLE
            part._to_sharded()
    root._state_ctx.iter_forward_root = None
    root._state_ctx.post_backward_final_callback_queued = False


def _reset(root):
    """Does what reset_iter_state() of the module does, and more: the next backward would add to the
    gradients of whole parameters that this leaves."""
    parts = [part for state in root._state_ctx.all_states for part in _parts(state)]
    for part in parts:
        if part._all_gather_result:  # the operation has ended with the epoch, maybe in an error
            part._all_gather_result = part._all_gather_result._replace(all_gather_work=None)
    getattr(root, "_reset_iter_state", functools.partial(_reset_iter_state, root))()
    for parameter in [parameter for part in parts for parameter in part.fsdp_params]:
        parameter.unsharded_accumulated_grad = None
        if hasattr(parameter, "_unsharded_param"):  # it has been gathered once
            parameter._unsharded_param.grad = None


def _groups_of(state):
    """Of an instance of FSDP1: that of its shards, and with a hybrid one that of its replicas."""
    groups = (vars(state).get(name) for name in ("process_group", "_inter_node_pg"))
    return [group for group in groups if group]


def _reset_handle(handle):
    """Of FSDP1: its parameters are the sharded ones, without gradients."""
    flat = handle.flat_param
    hook = vars(flat).pop("_post_backward_hook_state", None)
    if hook:
        hook[-1].remove()
    vars(flat).pop("_saved_grad_shard", None)
    flat._post_backward_called = False
    handle._training_state = type(handle._training_state).IDLE
    handle.reshard(handle.uses_sharded_strategy)
    flat.grad = None
    handle.rank, handle.world_size = handle.process_group.rank(), handle.process_group.size()


def _renew_fsdp1(group):
    """Those that use the group: to between steps, with the divisors of its size."""
    used = [state for state in _states if any(its is group for its in _groups_of(state))]
    for root in [state for state in _states if vars(state).get("_is_root")]:
        if any(state in used for state in vars(root).get("_all_fsdp_states", ())):
            for handle in root._all_handles:
                _reset_handle(handle)
            # what torch does at the end of a backward
            distributed.fsdp._runtime_utils._post_backward_final_callback(root, root)
    for state in used:
        state.rank, state.world_size = state.process_group.rank(), state.process_group.size()
        size = math.prod(its.size() for its in _groups_of(state))
        default = distributed.fsdp._init_utils.default_hooks.DefaultState
        factor = default._get_gradient_predivide_factor(size)
        state._gradient_predivide_factor = factor
        state._gradient_postdivide_factor = size / factor


def _agree(backend, epoch):
    """Collective over the new epoch of the default group."""
    c10d._world.group_count = max(c10d._world.group_count, epoch * NAMES_PER_EPOCH)
    backend._agree_on_meeting()
    for _, other in _others(c10d._get_default_group()):
        other._meeting = backend._meeting


def recover(pg=None, *, policy="shrink", size=None, min_size=None, wait=None, timeout=None,
            name=None):  # fmt: skip
    """Brings a process group into its next epoch, in place; all ranks of it that live call this.

    pg keeps its identity, with a new rank and size: DDP and FSDP go on with it. Nothing of the
    older epoch arrives in the new one. No store is needed, neither now nor for groups that are made
    later; the host of rank 0 may be the one that is lost.

    pg: None: the default group, whose ranks are torch's global ranks. A group that is not broken
    can be recovered as well, if all its ranks call this.
    policy: "shrink": those that live, dense, in the order of their ranks. "wait", for the default
    group: ranks are kept, and new processes take the free ones with rejoin().
    size: of "wait": ranks of the new epoch; None: as many as now. More: the group grows.
    min_size: fewer ranks are an error. With more than half of the ranks, two parts of a cluster
    that lost each other cannot both go on.
    wait: of "wait": go on without the missing processes after so long; None: until timeout.
    timeout: of the whole call; None: commd's default (COMMD_TIMEOUT). Both in seconds, or
    timedelta.
    name: where the ranks meet new processes; None: "torch/world".

    All ranks give the same policy, size and min_size. The first call decides; one that differs
    raises DistBackendError at once, and the others wait for it to call again.

    Returns Recovered. DistBackendError: the group is as it was, and the call may be repeated. Only
    if a rank dies at the very end the group is in its next epoch, and broken: then too.

    Of a step that has thrown: call zero_grad(), and repeat it.
    """
    if policy not in POLICIES:
        raise ValueError(f'commd: recover: policy is {policy!r}; allowed: "shrink", "wait"')
    group = pg or c10d._get_default_group()
    if c10d._rank_not_in_group(group):
        raise ValueError("commd: recover: this process is not in that process group")
    whole = group is c10d._get_default_group()
    if policy == "wait" and not whole:
        raise ValueError('commd: recover: "wait" is for the default group: new processes come by'
                         " it. Make the others again with new_group()")  # fmt: skip
    backend = _backend_of(group)
    old_rank, old_size = backend.rank(), backend.size()
    spec = _spec(
        # where nobody joins, the group's own name serves, which no other job has
        name=name or (NAME if policy == "wait" else ""),
        policy=POLICIES[policy],
        size=size or 0,
        min_size=min_size or 0,
        wait_ms=_ms("recover: wait", wait),
        timeout_ms=_ms("recover: timeout", timeout),
    )
    c10d._world.pg_coalesce_state.pop(group, None)
    old_epoch = backend._epoch().number
    epoch = backend._recover(group, spec)
    if whole:
        _renumber_world(epoch.before)
    else:
        _renumber_group(group, epoch.before)
    _place(group, backend)
    others = list(_others(group))
    for other, its_backend in others if whole else ():
        _place(other, its_backend)
    for ddp in list(_ddps):
        if ddp.process_group is group:
            _renew(ddp)
    stand = {id(other): its_backend._stands() for other, its_backend in others}
    broken = [other for other, _ in others if not stand[id(other)]]
    # what is left of a step that has thrown in a group which will be made anew, too
    for lost in (group, *broken):
        for root in _roots(lost):
            _reset(root)
        _renew_fsdp1(lost)
    if whole:
        _agree(backend, epoch.number)
    return Recovered(
        rank=epoch.rank,
        size=epoch.size,
        epoch=epoch.number,
        old_rank=old_rank,
        old_size=old_size,
        old_epoch=old_epoch,
        before=epoch.before,
        gone=sorted(set(range(old_size)) - set(epoch.before)),
        standing=[other for other, _ in others if stand[id(other)]],
        broken=broken,
    )


def rejoin(rank=None, *, size=None, timeout=None, name=None, **options):
    """init_process_group("commd") of a new process: takes a seat of a default group that is
    recovered by its ranks with recover(policy="wait"), before or after this call. Needs no store.

    rank: which; None: the lowest that is free. It may become a lower one if the ranks go on with
    free seats below it.
    size: None: as the ranks say; else it has to be the same.
    timeout: how long to wait for them; None: commd's default. In seconds, or timedelta.
    name: as theirs.
    options: of init_process_group().

    Returns Recovered, as they get it. After an error, also where a rank has died at the very end,
    this process has no default group, and may call again. Without a job's name (COMMD_JOB,
    torchrun's --rdzv-id) it is any group of this user that has a free seat: give a name, then.
    """
    global _joined
    if distributed.is_initialized():
        raise ValueError("commd: rejoin: this process has a default process group: destroy it")
    from commd import torch as commd_torch

    spec = _spec(name=name or NAME, size=size or 0, timeout_ms=_ms("rejoin: timeout", timeout))
    commd_torch.prepare()
    joined = commd_torch.load().rejoin(-1 if rank is None else rank, spec)
    epoch = joined.epoch()
    _joined = joined
    try:
        distributed.init_process_group(
            "commd",
            store=distributed.HashStore(),
            rank=epoch.rank,
            world_size=epoch.size,
            **options,
        )
    finally:
        if _joined:  # nobody has taken it
            _joined.close()
            _joined = None
    try:
        _agree(_backend_of(c10d._get_default_group()), epoch.number)
    except distributed.DistBackendError:
        distributed.destroy_process_group()
        raise
    return Recovered(
        rank=epoch.rank, size=epoch.size, epoch=epoch.number, old_rank=-1, old_size=0,
        old_epoch=epoch.number - 1, before=epoch.before, gone=[], standing=[], broken=[],
    )  # fmt: skip


def take_joined():
    """For create_backend(): the group that rejoin() has joined, once."""
    global _joined
    joined, _joined = _joined, None
    return joined


def parent():
    """For create_backend(): the default group's backend, by which ranks of a new group know each
    other; None: they meet by torch's store."""
    if not distributed.is_initialized():
        return None
    ours, _ = _amend._ours(c10d._get_default_group())
    return next(iter(ours), None)
