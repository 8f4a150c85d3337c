"""Checks of backend="commd" (torch_ops.py): refusals, errors, forks, the end."""

import os
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import torch_checks
from torch_checks import AVG, MIN, PREMUL, check, check_equal, check_raises, commd, fail, finish


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.tensor([float(i)])


def check_forked_workers():
    """DataLoader workers are forked from a rank that is connected: nothing may be disturbed."""
    size = dist.get_world_size()
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2,
                                         multiprocessing_context="fork")
    for epoch in range(2):
        for values in loader:
            t = values.clone()
            dist.all_reduce(t)
            check_equal(f"all_reduce beside forked workers, epoch {epoch}", t, values * size)
    pid = os.fork()
    if pid == 0:
        try:
            dist.all_reduce(torch.ones(1))
            os._exit(1)
        except dist.DistBackendError:
            os._exit(0)
    check("a forked rank is refused", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0)
    t = torch.ones(3)
    dist.all_reduce(t)
    check_equal("all_reduce after a fork", t, torch.full((3,), float(size)))


def check_refusals():
    size, rank = dist.get_world_size(), dist.get_rank()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    one = torch.ones(4)
    many = [torch.ones(4) for _ in range(size)]
    check_raises(
        "refusal of a device", NotImplementedError,
        "commd: all_reduce takes tensors on the CPU and on CUDA GPUs, got one on meta",
        lambda: backend.allreduce([torch.empty(3, device="meta")]))
    check_raises(
        "refusal of a layout", NotImplementedError,
        "commd: broadcast takes dense tensors, got one of layout Sparse; call .to_dense()",
        lambda: backend.broadcast([torch.eye(2).to_sparse()]))
    for name in ("BAND", "BOR", "BXOR"):
        check_raises(
            f"refusal of {name}", NotImplementedError,
            f"commd: all_reduce: {name} of Float is not defined",
            lambda: dist.all_reduce(one.clone(), getattr(dist.ReduceOp, name)))
    check_raises(
        "refusal of AVG of bool",
        NotImplementedError,
        "commd: all_reduce: AVG of Bool is not defined",
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), AVG),
    )
    check_raises(
        "refusal of PREMUL_SUM of integers", NotImplementedError,
        "commd: reduce: PREMUL_SUM of Int is not defined",
        lambda: dist.reduce(torch.ones(2, dtype=torch.int32), 0, PREMUL))
    check_raises(
        "refusal of PRODUCT of complex", NotImplementedError,
        "commd: all_reduce: PRODUCT of ComplexFloat is not defined",
        lambda: backend.allreduce([torch.ones(2, dtype=torch.complex64)], dist.ReduceOp.PRODUCT))
    check_raises(
        "refusal of a dtype", NotImplementedError,
        "commd: all_reduce of Float8_e4m3fn is not implemented; supported are: float16 bfloat16 "
        "float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool, and sums of "
        "complex numbers",
        lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn)))
    check_raises(
        "refusal of a wrong input", RuntimeError,
        "commd: all_gather: the input has shape [4], but [3] is needed",
        lambda: dist.all_gather([torch.zeros(3)] * size, torch.zeros(4)))
    check_raises(
        "refusal of a wrong output", RuntimeError,
        f"commd: all_gather_into_tensor: the output has 3 elements, but {size} ranks x 4 = "
        f"{4 * size} are needed",
        lambda: dist.all_gather_single(torch.zeros(3), torch.zeros(4)))
    check_raises(
        "refusal of too few outputs", RuntimeError,
        f"commd: all_gather: {size + 1} output tensors for a group of {size}",
        lambda: backend.allgather([many + [one]], [one]))
    check_raises(
        "refusal of wrong splits", RuntimeError,
        f"commd: all_to_all_single: the input split sizes add up to {3 * size}, but the tensor has "
        "4 rows",
        lambda: dist.all_to_all_single(one.clone(), one, [3] * size, [3] * size))
    check_raises(
        "refusal of an expanded output", RuntimeError,
        "unsupported operation: more than one element of the written-to tensor refers to a single "
        "memory location. Please clone() the tensor before performing the operation.",
        lambda: dist.all_reduce(torch.ones(1).expand(5)))
    check_raises(
        "refusal of a root", RuntimeError, f"commd: broadcast: rank {size} of a group of {size}",
        lambda: backend.broadcast(one, size))
    check("refusals change nothing", bool((one == 1).all()) and rank >= 0)
    t = torch.ones(2)
    dist.all_reduce(t)
    check("the group is fine after refusals", t[0].item() == size)


def check_mismatch():
    """Ranks that disagree get an error everywhere, and the group stays usable."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if size < 2:
        return
    for async_op in (False, True):
        try:
            finish(dist.all_reduce(torch.ones(5 if rank == 0 else 6), async_op=async_op))
            fail("mismatch", "nothing was raised")
        except dist.DistBackendError as error:
            check("mismatch is a commd error", str(error).startswith("commd: "), str(error))
        t = torch.ones(2)
        dist.all_reduce(t)
        check("the group is fine after a mismatch", t[0].item() == size)


def check_late_rank():
    rank, size = dist.get_rank(), dist.get_world_size()
    if size < 2:
        return
    group = dist.new_group()
    if rank != 0:
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        try:
            work.wait(timedelta(milliseconds=50))
            fail("wait() with a limit", "nothing was raised")
        except dist.DistBackendError as error:
            told = "wait() timeout after 50 ms" in str(error)
            check("wait() with a limit says so", told, str(error))
    dist.barrier()
    if rank == 0:
        dist.all_reduce(torch.ones(2), group=group)
    else:
        work.wait()
    check("the operation went on", True)


def check_registration():
    """Where nothing is registered by `import torch`: torch 2.14 finds what the program names."""
    if dist.get_rank() == 0:
        asks = hasattr(dist.Backend, "_ensure_backend_registered")
        code = ("import torch, torch.distributed as dist\n"
                f"{'' if asks else 'import commd.torch'}\n"
                "dist.init_process_group('commd', rank=0, world_size=1, store=dist.HashStore())\n"
                "dist.all_reduce(torch.ones(1))")  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code], env=dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0"),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100,
        )  # fmt: skip
        check("registered without autoload", done.returncode == 0, done.stdout)
    dist.barrier()


def check_end():
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    backend = group._get_backend(torch.device("cpu"))
    total = torch.tensor([torch_checks.passed])
    dist.all_reduce(total, MIN)
    rank = dist.get_rank()
    dist.destroy_process_group()
    check("destroyed", not dist.is_initialized())
    if commd():
        try:
            backend.allreduce([torch.ones(1)])
            raise SystemExit("torch_ops: FAILED use after destroy: nothing was raised")
        except dist.DistBackendError as error:
            check("use after destroy", "is closed" in str(error), str(error))
        # The same names in the same store, in the same processes.
        for _ in range(3):
            dist.init_process_group("commd")
            t = torch.ones(3)
            dist.all_reduce(t)
            check("all_reduce after a second init", t[0].item() == dist.get_world_size())
            dist.destroy_process_group()
    if rank == 0:
        print(f"torch_ops: {torch_checks.passed} checks passed", flush=True)


def run():
    check_forked_workers()
    check_refusals()
    check_mismatch()
    check_late_rank()
    check_registration()
