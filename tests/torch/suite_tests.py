"""torch's own DistributedTest suite, made to run on a backend that torch does not know.

Imported by suite_host.py, and again by every rank that is spawned (which unpickles TestSuite from
here): so what is decided at import comes from the environment.

  BACKEND, WORLD_SIZE       read by distributed_test itself, at import
  COMMD_TEST_SOCKETS        where rank 0, 1, ... finds its commd, separated by commas
  COMMD_TEST_HOSTS          and on which of the machines of tests/fakecuda it is
  COMMD_TEST_SPAWN          set: ranks are spawned, as upstream does it; else they are forked
  COMMD_TEST_GPUS           set: tests of GPUs run on so many devices of tests/torch/fakedevice

The suite's text asks in many places `BACKEND == "gloo"`, which means "can do this on CPU". Nobody
else can pass these tests, so the text is edited before it is compiled: EDITS has each place, how
often it must be found and why it may be opened. Another count means that this torch is another
one than the edits were written for, and ends the run. No text of torch is copied into this tree.

With COMMD_TEST_GPUS the text's GPUs are not CUDA's but the test device: GPU_EDITS. What
common_distributed asks CUDA for, how many there are, it is told without the driver, because ranks
are forked: only they use it.

Forking ranks from a process that has torch loaded takes a tenth of the time of spawning them; it
needs a parent without threads, and ranks leave by os._exit, so that exit handlers are not tested.
"""

import importlib.util
import os
import re
import sys
import tempfile
import time
import types

GPUS = int(os.environ.get("COMMD_TEST_GPUS") or 0)
for _name, _value in (
    ("INIT_METHOD", "file:///unused"),  # file://: else test_barrier_timeout_global skips itself
    # with fewer devices than ranks, but any, _run() would skip all tests
    ("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(GPUS)))),
    ("OMP_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
):
    os.environ[_name] = _value
for _name in ("TORCH_DISTRIBUTED_DEBUG", "TORCH_SHOW_CPP_STACKTRACES", "SANDCASTLE"):
    os.environ.pop(_name, None)

import torch
import torch.distributed as dist
import torch.testing._internal.common_distributed as common

BACKEND = os.environ["BACKEND"]
FORKED = not os.environ.get("COMMD_TEST_SPAWN")
SUITE = "torch.testing._internal.distributed.distributed_test"
VERSION = ".".join(torch.__version__.split(".")[:2])
EDITED_FOR = "2.13"

# (text, replacement with {b} for the backend, how often it is there in torch 2.13, why)
EDITS = [
    (
        'BACKEND != "gloo", "',
        'BACKEND not in ("gloo", "{b}"), "',
        8,
        "barrier with a timeout, batch_isend_irecv on CPU, sparse all_reduce: gloo only",
    ),
    (
        'BACKEND != "mpi", "',
        'BACKEND not in ("mpi", "{b}"), "',
        12,
        "all_to_all and all_to_all_single on CPU: mpi only",
    ),
    (
        'BACKEND != "mpi" and BACKEND != "nccl" and BACKEND != "gloo"',
        'BACKEND not in ("mpi", "nccl", "gloo", "{b}")',
        5,
        "no_sync and get_future of DDP: a list of names",
    ),
    (
        'if BACKEND == "mpi" or BACKEND == "gloo":',
        'if BACKEND in ("mpi", "gloo", "{b}"):',
        1,
        "which devices DDP is tested on",
    ),
    (
        '@require_backend_is_available({"gloo"})',
        '@require_backend_is_available({"gloo", "{b}"})',
        19,
        "all_reduce_coalesced, and monitored_barrier: gloo only",
    ),
    (
        'ddp_logging_data.get("backend_name"), dist.get_backend(group_id)',
        'ddp_logging_data.get("backend_name"), "custom"',
        1,
        "reducer.cpp logs ProcessGroup::getBackendName(), which is custom for every plug-in",
    ),
    (
        "dist.monitored_barrier(",
        "_monitored_barrier(",
        9,
        "distributed_c10d.py refuses another name than gloo, see REFUSAL",
    ),
]
GPU_AMP = (
    "import functools\n"
    "autocast = functools.partial(torch.amp.autocast, 'fakegpu')\n"
    "GradScaler = functools.partial(torch.amp.GradScaler, 'fakegpu')\n"
)
# The same, for all of (text, replacement) that there are; text is a regular expression.
GPU_EDITS = [
    (r"\bimport torch\.cuda\n", "import torch\n"),
    (r"\bfrom torch\.cuda\.amp import autocast, GradScaler\n", GPU_AMP),
    (r"\btorch\.cuda\.(device_count|is_available)\(", r"torch.fakegpu.\1("),
    (r"\btorch\.cuda\.", "torch.fakegpu."),
    (r"\.cuda\(", ".fakegpu("),
    (r"(?<!backend_feature\[)([\"'])cuda\b", r"\1fakegpu"),
    (r'BACKEND != "nccl"', 'BACKEND not in ("nccl", "{b}")'),  # tests of CUDA tensors
    (r'\{"nccl"\}', '{"nccl", "{b}"}'),
    (r'backend="nccl"', 'backend="{b}"'),
    (r'dist\.get_backend\(\), "nccl"', 'dist.get_backend(), "{b}"'),
]
# The line of distributed_c10d.monitored_barrier() that no plug-in can pass.
REFUSAL = "if get_backend(group) != Backend.GLOO:"


def _monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """dist.monitored_barrier() without REFUSAL: the method of the group, which plug-ins have."""
    if dist.distributed_c10d._rank_not_in_group(group):
        return None
    group = group or dist.group.WORLD
    return group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


def line_numbers(text, pattern):
    return [n for n, line in enumerate(text.splitlines(), 1) if pattern in line]


def source_of(module):
    with open(importlib.util.find_spec(module).origin) as file:
        return file.read()


def _edited(text):
    for pattern, replacement, count, why in EDITS:
        found = text.count(pattern)
        if found == 0 or (found != count and VERSION == EDITED_FOR):
            raise SystemExit(
                f"suite_tests: {pattern!r} is {found} times, not {count}, in {SUITE} of torch "
                f"{torch.__version__}: look at EDITS ({why})"
            )
        text = text.replace(pattern, replacement.replace("{b}", BACKEND))
    return text


def _take_gpus():
    """torch.fakegpu, and a common_distributed that counts its devices."""
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "fakedevice"))
    import fakegpu

    gpu = fakegpu.load()
    gpu.device_count = lambda: GPUS  # also in a process that must not ask the driver
    gpu.is_available = lambda: True
    seen = types.ModuleType("torch")
    seen.__getattr__ = lambda name: gpu if name == "cuda" else getattr(torch, name)
    common.torch, common.TEST_CUDA = seen, True
    common.requires_nccl_version = lambda version, message: lambda test: test


def _load():
    spec = importlib.util.find_spec(SUITE)
    text = source_of(SUITE)
    if BACKEND != "gloo":
        for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
            common.DistTestCases.backend_feature[feature].add(BACKEND)
        text = _edited(text)
    if GPUS:
        _take_gpus()
        for pattern, replacement in GPU_EDITS:
            text = re.sub(pattern, replacement.replace("{b}", BACKEND), text)
    module = types.ModuleType(SUITE)
    module.__file__, module.__spec__ = spec.origin, spec
    module.__package__ = SUITE.rpartition(".")[0]
    module._monitored_barrier = _monitored_barrier
    sys.modules[SUITE] = module
    exec(compile(text, spec.origin, "exec"), module.__dict__)
    sys.modules[module.__package__].distributed_test = module
    if BACKEND != "gloo":
        for kind in ("", "CUDA_", "SEND_RECV_"):
            getattr(module, f"{kind}PROFILING_SUPPORTED_BACKENDS").append(BACKEND)
    return module


suite = _load()


class _ShortPolls(types.ModuleType):
    """The module time; the suite's polls of 0.1 s (its barrier, its wait for ranks) last 0.01 s."""

    def __getattr__(self, name):
        return getattr(time, name)

    @staticmethod
    def sleep(seconds):
        time.sleep(0.01 if seconds == 0.1 else seconds)


if FORKED:
    suite.time = common.time = _ShortPolls("time")


class TestSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    @classmethod
    def _run(cls, rank, *args, **kwargs):
        sockets = os.environ.get("COMMD_TEST_SOCKETS")
        if sockets:
            os.environ["COMMD_SOCKET"] = sockets.split(",")[rank]
        if GPUS:
            os.environ["FAKECUDA_HOST"] = os.environ["COMMD_TEST_HOSTS"].split(",")[rank]
        return super()._run(rank, *args, **kwargs)

    def setUp(self):
        super().setUp()
        if FORKED:
            suite.INIT_METHOD = os.environ["INIT_METHOD"]  # a spawned rank reads it at import
            self._start_processes(torch.multiprocessing.get_context("fork").Process)
        else:
            self._spawn_processes()

    def tearDown(self):
        super().tearDown()
        if os.path.exists(self.file_name):
            os.unlink(self.file_name)
