"""The process group of torchft (PyPI: torchft, torchft-nightly) over commd.

    from commd.torchft import ProcessGroupCommd
    manager = torchft.Manager(pg=ProcessGroupCommd(timeout=timedelta(seconds=30)), ...)

torchft decides who takes part, and gives each quorum a store and ranks; here each quorum is a commd
group of its own. A step that has lost a replica ends when the replica dies, not at a limit.

timeout: of each operation, and of the making of a group.
"""

import torch
from torch.distributed import Backend, ProcessGroup
from torch.distributed import distributed_c10d as c10d
from torchft.process_group import ProcessGroupWrapper

from commd import torch as commd_torch

CUSTOM = ProcessGroup.BackendType.CUSTOM


class ProcessGroupCommd(ProcessGroupWrapper):
    _backend = _error = None

    def _create_pg(self, store, rank, world_size):
        options = c10d._DistributedBackendOptions()
        options.store, options.group_id = store, "torchft"
        options.group_rank, options.group_size = rank, world_size
        options.timeout = self._timeout
        commd_torch.prepare()
        self._backend = commd_torch.load().create(options)
        group = ProcessGroup(store, rank, world_size)
        group._set_default_backend(CUSTOM)
        for device in Backend.backend_capability["commd"]:
            group._register_backend(torch.device(device), CUSTOM, self._backend)
        self._error = None
        return group

    def getBackendName(self):
        return "torchft-commd"

    def abort(self, errored=True):
        # False: torchft goes to the next quorum, and other ranks may still be in the last step.
        if errored and (backend := self._backend):
            self._error = RuntimeError("commd: the process group was aborted")
            backend.abort()
        self.shutdown()

    def shutdown(self):
        backend, self._backend, self._pg = self._backend, None, None
        if backend:
            backend.shutdown()

    def errored(self):
        return self._error  # of abort(); a loss is told by each work that it has ended

    def set_timeout(self, timeout):
        super().set_timeout(timeout)
        if backend := self._backend:
            backend._set_default_timeout(timeout)
