#!/usr/bin/env python3
"""Checks backend="commd" op by op; started by torchrun on any number of ranks and nodes.

    torchrun --nproc-per-node 2 tests/integration/torch/torch_ops.py [OPTIONS]

--backend commd|gloo, --quick.

Every rank knows the data of every rank, so it computes what must come out. Prints
"torch_ops: N checks passed" on rank 0; the first failure names its check and ends the program
with 1. With gloo it runs what gloo can do: that validates the checks themselves.
"""

import argparse
import itertools
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

import torch_checks as checks
import torch_forms
import torch_groups
import torch_p2p
import torch_trouble
from torch_checks import (
    AVG, BAND, BOR, BXOR, COMPLEX, FLOATS, INTS, MAX, MIN, PREMUL, PRODUCT, SUM, UNSIGNED, check,
    check_equal, commd, data, finish, name_of, noise, reduced, same_bits)

# Only moved: the library knows them as bytes only.
MOVED = COMPLEX + [torch.float8_e4m3fn, torch.float8_e5m2]
SIZES = [0, 1, 7, 1000, 300001]


def ops_for(dtype):
    if not commd():
        return [SUM, PRODUCT, MIN, MAX]
    if dtype.is_complex:
        return [SUM, AVG, PREMUL]
    if dtype.is_floating_point:
        return [SUM, AVG, PRODUCT, MIN, MAX, PREMUL]
    if dtype == torch.bool:
        return [SUM, PRODUCT, MIN, MAX, BAND, BOR, BXOR]
    return [SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR]


def reduce_dtypes():
    if commd():
        return FLOATS + INTS + UNSIGNED + COMPLEX + [torch.bool]
    return [d for d in FLOATS + INTS if d not in (torch.int16, torch.float16, torch.bfloat16)]


def move_dtypes():
    if commd():
        return FLOATS + INTS + UNSIGNED + [torch.bool] + MOVED
    return reduce_dtypes()


def exact(op, dtype):
    return op is PREMUL or op != AVG or not (dtype.is_floating_point or dtype.is_complex)


def rotated(n, size, i):
    """Sizes of uneven blocks: different, some of them empty."""
    return [n * ((r + i) % 3) // 2 + (r + i) % 2 for r in range(size)]


def check_all_reduce(dtype, n, async_op, how):
    rank, size = dist.get_rank(), dist.get_world_size()
    for op in ops_for(dtype):
        pieces = [data(dtype, n, r) for r in range(size)]
        want = reduced(op, pieces)
        t = pieces[rank].clone()
        finish(dist.all_reduce(t, op, async_op=async_op))
        check_equal(f"all_reduce {name_of(op)} {how}", t, want, exact(op, dtype))
        root = n % size
        t = pieces[rank].clone()
        finish(dist.reduce(t, root, op, async_op=async_op))
        if rank == root:
            check_equal(f"reduce {name_of(op)} {how}", t, want, exact(op, dtype))
        elif commd():
            check(f"reduce leaves the others alone {how}", torch.equal(t, pieces[rank]))


def check_reduce_scatter(dtype, n, async_op, how):
    rank, size = dist.get_rank(), dist.get_world_size()
    for op in ops_for(dtype):
        if n * size > 400000 and op is not PREMUL and op not in (SUM, AVG):
            continue
        name = name_of(op)
        inputs = [[data(dtype, n, r, part) for part in range(size)] for r in range(size)]
        want = reduced(op, [inputs[r][rank] for r in range(size)])
        out = torch.empty(n, dtype=dtype)
        finish(dist.reduce_scatter(out, inputs[rank], op, async_op=async_op))
        check_equal(f"reduce_scatter {name} {how}", out, want, exact(op, dtype))
        out = torch.empty(n, dtype=dtype)
        finish(dist.reduce_scatter_single(out, torch.cat(inputs[rank]), op, async_op=async_op))
        check_equal(f"reduce_scatter_single {name} {how}", out, want, exact(op, dtype))
        if not commd():  # gloo demands equal sizes
            continue
        sizes = rotated(n, size, 1)
        inputs = [[data(dtype, sizes[p], r, p) for p in range(size)] for r in range(size)]
        want = reduced(op, [inputs[r][rank] for r in range(size)])
        out = torch.empty(sizes[rank], dtype=dtype)
        finish(dist.reduce_scatter(out, inputs[rank], op, async_op=async_op))
        check_equal(f"reduce_scatter of {sizes} {name} {how}", out, want, exact(op, dtype))


def fresh(dtype, n):
    size = n * torch.empty(0, dtype=dtype).element_size()
    return torch.zeros(size, dtype=torch.uint8).view(dtype)


def movable(dtype, n, rank, salt=0):
    if dtype in MOVED:
        width = torch.empty(0, dtype=dtype).element_size()
        return data(torch.uint8, n * width, rank, salt).view(dtype)
    return data(dtype, n, rank, salt)


def check_rooted_moves(dtype, n, async_op, how):
    rank, size = dist.get_rank(), dist.get_world_size()
    pieces = [movable(dtype, n, r) for r in range(size)]
    for root in range(size):
        t = pieces[root].clone() if rank == root else fresh(dtype, n)
        finish(dist.broadcast(t, root, async_op=async_op))
        check(f"broadcast from {root} {how}", same_bits(t, pieces[root]))
    root = n % size
    outs = [fresh(dtype, n) for _ in range(size)] if rank == root else None
    finish(dist.gather(pieces[rank].clone(), outs, root, async_op=async_op))
    for r in range(size if rank == root else 0):
        check(f"gather piece {r} {how}", same_bits(outs[r], pieces[r]))
    if commd() and hasattr(dist, "gather_single"):  # torch 2.14; gloo has none
        whole = fresh(dtype, n * size) if rank == root else None
        finish(dist.gather_single(pieces[rank].clone(), whole, root, async_op=async_op))
        if rank == root:
            check(f"gather_single {how}", same_bits(whole, torch.cat(pieces)))
    out = fresh(dtype, n)
    finish(dist.scatter(out, pieces if rank == root else None, root, async_op=async_op))
    check(f"scatter {how}", same_bits(out, pieces[rank]))


def check_all_gather(dtype, n, async_op, how):
    rank, size = dist.get_rank(), dist.get_world_size()
    pieces = [movable(dtype, n, r) for r in range(size)]
    outs = [fresh(dtype, n) for _ in range(size)]
    finish(dist.all_gather(outs, pieces[rank].clone(), async_op=async_op))
    for r in range(size):
        check(f"all_gather piece {r} {how}", same_bits(outs[r], pieces[r]))
    whole = fresh(dtype, n * size)
    finish(dist.all_gather_single(whole, pieces[rank].clone(), async_op=async_op))
    check(f"all_gather_single {how}", same_bits(whole, torch.cat(pieces)))
    if not commd():
        return
    sizes = rotated(n, size, 0)
    outs = [fresh(dtype, m) for m in sizes]
    finish(dist.all_gather(outs, movable(dtype, sizes[rank], rank), async_op=async_op))
    for r in range(size):
        check(f"all_gather of {sizes} {r} {how}", same_bits(outs[r], movable(dtype, sizes[r], r)))


def check_all_to_all(dtype, n, async_op, how):
    """Block (i, j) is what i sends to j."""
    rank, size = dist.get_rank(), dist.get_world_size()
    block = [[movable(dtype, n, i, j) for j in range(size)] for i in range(size)]
    want = [block[i][rank] for i in range(size)]
    out = fresh(dtype, n * size)
    finish(dist.all_to_all_single(out, torch.cat(block[rank]), async_op=async_op))
    check(f"all_to_all_single {how}", same_bits(out, torch.cat(want)))
    sizes = [rotated(n, size, i) for i in range(size)]
    block = [[movable(dtype, sizes[i][j], i, j) for j in range(size)] for i in range(size)]
    want = [block[i][rank] for i in range(size)]
    in_splits, out_splits = sizes[rank], [sizes[i][rank] for i in range(size)]
    out = fresh(dtype, sum(out_splits))
    finish(dist.all_to_all_single(out, torch.cat(block[rank]), out_splits, in_splits,
                                  async_op=async_op))
    check(f"all_to_all_single with splits {how}", same_bits(out, torch.cat(want)))
    if not commd():
        return
    outs = [fresh(dtype, m) for m in out_splits]
    finish(dist.all_to_all(outs, block[rank], async_op=async_op))
    for i in range(size):
        check(f"all_to_all from {i} {how}", same_bits(outs[i], want[i]))


def check_matrix():
    sizes = SIZES[:-1] if checks.options.quick else SIZES
    for n, async_op in itertools.product(sizes, (False, True)):
        for dtype in reduce_dtypes():
            how = f"{dtype} x {n} {'async' if async_op else 'sync'}"
            check_all_reduce(dtype, n, async_op, how)
            check_reduce_scatter(dtype, n, async_op, how)
        for dtype in move_dtypes():
            how = f"{dtype} x {n} {'async' if async_op else 'sync'}"
            check_rooted_moves(dtype, n, async_op, how)
            check_all_gather(dtype, n, async_op, how)
            check_all_to_all(dtype, n, async_op, how)
    dist.barrier()
    finish(dist.barrier(async_op=True))


def check_identical_bits():
    """Sums of arbitrary numbers round; they must round alike everywhere."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype, n in itertools.product(FLOATS if commd() else [torch.float32], (5, 1000, 70001)):
        t = noise(dtype, n, rank)
        dist.all_reduce(t)
        everybody = torch.empty(n * size, dtype=dtype)
        dist.all_gather_single(everybody, t)
        for r in range(size):
            check(f"all_reduce {dtype} x {n}: bits of rank {r}",
                  same_bits(everybody[r * n : (r + 1) * n], t))
        exact = torch.stack([noise(dtype, n, r).double() for r in range(size)]).sum(0)
        scale = torch.stack([noise(dtype, n, r).double().abs() for r in range(size)]).sum(0)
        error = ((t.double() - exact).abs() / scale).max().item()
        check(f"all_reduce {dtype} x {n}: rounding", error <= 2 * torch.finfo(dtype).eps, error)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="commd")
    parser.add_argument("--quick", action="store_true", help="without the largest size")
    checks.options = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # names that torch 2.13 deprecates
    torch.set_num_threads(1)
    dist.init_process_group(checks.options.backend, timeout=timedelta(seconds=120))
    check_matrix()
    check_identical_bits()
    torch_forms.run()
    torch_groups.run()
    if commd():
        torch_p2p.run()
        torch_trouble.run()
    torch_trouble.check_end()


if __name__ == "__main__":
    main()
