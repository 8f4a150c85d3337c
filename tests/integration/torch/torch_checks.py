"""What the torch_*.py programs share: checks that name themselves, data that every rank can compute
for every rank, and operators by another route than the library's."""

import sys

import torch
import torch.distributed as dist

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR = (
    getattr(dist.ReduceOp, name)
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
)
SCALE = 0.75  # exact in every type: so are the products
PREMUL = dist._make_nccl_premul_sum(SCALE)
NAMES = {SUM: "SUM", AVG: "AVG", PRODUCT: "PRODUCT", MIN: "MIN", MAX: "MAX", BAND: "BAND",
         BOR: "BOR", BXOR: "BXOR"}

passed = 0
options = None  # of the program: .backend, .quick


def commd():
    return options.backend == "commd"


def name_of(op):
    return "PREMUL_SUM" if op is PREMUL else NAMES[op]


def fail(name, detail):
    print(f"torch_ops: rank {dist.get_rank()}: FAILED {name}: {detail}", file=sys.stderr)
    sys.stderr.flush()
    sys.exit(1)


def check(name, condition, detail=""):
    global passed
    if not condition:
        fail(name, detail or "condition is false")
    passed += 1


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bool(
        (a.contiguous().view(torch.uint8) == b.contiguous().view(torch.uint8)).all()
    )


def check_equal(name, got, want, exact=True):
    if exact:
        ok = got.dtype == want.dtype and torch.equal(got, want)
    else:
        tolerance = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-6,
                     torch.complex64: 1e-6}
        wide = torch.complex128 if got.is_complex() else torch.float64
        ok = torch.allclose(got.to(wide), want.to(wide), rtol=tolerance.get(got.dtype, 1e-14),
                            atol=0)
    check(name, ok, f"got {got.flatten()[:4].tolist()}..., want {want.flatten()[:4].tolist()}...")


def check_raises(name, kind, text, call):
    try:
        call()
    except kind as error:
        got = str(error).split("\nException raised from")[0]
        check(name, got == text, f"\n  got:  {got}\n  want: {text}")
        return
    except Exception as error:
        fail(name, f"{type(error).__name__} instead of {kind.__name__}: {error}")
    fail(name, "nothing was raised")

def data(dtype, n, rank, salt=0):
    """What @rank contributes. Small whole numbers: sums and products are exact in every type."""
    i = torch.arange(n, dtype=torch.int64)
    values = (i * 7 + rank * 5 + salt * 3) % 4
    if dtype == torch.bool:
        return values == 0
    if dtype.is_complex:
        return torch.complex((values - 1).double(), (values * 2 - 3).double()).to(dtype)
    if dtype.is_floating_point or dtype.is_signed:
        values = values - 1
    return values.to(dtype)


def noise(dtype, n, rank):
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.randn(n, generator=generator, dtype=torch.float64).to(dtype)


def bitwise(op, pieces):
    whole = pieces[0].to(torch.int64)
    for piece in pieces[1:]:
        piece = piece.to(torch.int64)
        whole = whole & piece if op == BAND else whole | piece if op == BOR else whole ^ piece
    return whole.to(pieces[0].dtype)


def reduced(op, pieces):
    """@op over the pieces, by another route than the library's."""
    dtype = pieces[0].dtype
    if op is PREMUL:
        pieces = [piece * SCALE for piece in pieces]
    elif op in (BAND, BOR, BXOR):
        return bitwise(op, pieces)
    if dtype == torch.bool:
        stack = torch.stack(pieces)
        return stack.any(0) if op in (SUM, MAX) else stack.all(0)
    wide = torch.int64
    if dtype.is_complex:
        wide = torch.complex128
    elif dtype.is_floating_point:
        wide = torch.float64
    stack = torch.stack([piece.to(wide) for piece in pieces])
    if op is PREMUL or op == SUM:
        return stack.sum(0).to(dtype)
    if op == MIN:
        return stack.amin(0).to(dtype)
    if op == MAX:
        return stack.amax(0).to(dtype)
    if op == PRODUCT:
        return stack.prod(0).to(dtype)
    total = stack.sum(0)
    if wide != torch.int64:
        return (total / len(pieces)).to(dtype)
    return torch.div(total, len(pieces), rounding_mode="trunc").to(dtype)


def finish(work):
    if work is not None:
        work.wait()
        if commd():  # gloo says no for some
            check("work is done after wait()", work.is_completed())
