"""What the programs of this folder share: which backend, where to write, and how to check."""

import contextlib
import os
import sys

import torch
import torch.distributed as dist

BACKEND = os.environ.get("TEST_BACKEND", "commd")
FOLDER = os.environ.get("TEST_FOLDER", "/tmp")
DEVICE = os.environ.get("TEST_DEVICE", "cpu")
# With an older torch GPUs are served on the default stream only.
STREAMS = 4 if tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 11) else 1
torch.set_num_threads(1)
if DEVICE == "cuda":  # ranks may share a GPU
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.set_default_device("cuda")
elif DEVICE != "cpu":
    sys.path.append(os.path.join(os.path.dirname(__file__), "../fakedevice"))
    import fakegpu

    fakegpu.load().set_device(int(os.environ["LOCAL_RANK"]) % torch.fakegpu.device_count())
    torch.set_default_device(DEVICE)  # also of a program that does not know of it
# For init_process_group(): groups agree on their GPUs when they are made, and not at their first
# operation, so that ranks may begin with them in any order.
EAGER = {} if DEVICE == "cpu" else {
    "device_id": torch.device(DEVICE, torch.accelerator.current_device_index())
}  # fmt: skip


def drawn(draw, *args, **more):
    """What draw (torch.randn, torch.randint) gives on the CPU, on this rank's device: the same
    numbers everywhere. A generator of the CPU draws there only."""
    return draw(*args, device="cpu", **more).to(DEVICE)


@contextlib.contextmanager
def own_stream():
    """Of a thread: on this rank's GPU, and on a stream of its own; on the CPU there is none."""
    if DEVICE == "cpu":
        yield
        return
    torch.set_default_device(EAGER["device_id"])  # both are a thread's own
    torch.accelerator.set_device_index(EAGER["device_id"].index)
    with torch.Stream(EAGER["device_id"]):
        yield


def used_once(*calls):
    """The driver loads a kernel when it is first used, and may wait for the whole GPU then. A
    program whose host has to go on behind a wait for other ranks has used its kernels before."""
    if DEVICE != "cpu":
        for call in calls:
            call()
        torch.accelerator.synchronize()


def here():
    return f"rank {os.environ.get('RANK', '?')}: "


def check(what, condition, detail=""):
    if not condition:
        raise AssertionError(f"{here()}{what} {detail}")


def same(what, got, want):
    """Equal to the bit, and of the same type and shape."""
    if isinstance(got, torch.Tensor) and isinstance(want, torch.Tensor):
        ok = got.dtype == want.dtype and got.shape == want.shape and torch.equal(got, want)
    else:
        ok = got == want
    check(what, ok, f"is {got}, not {want}")


def close(what, got, want, rtol=1e-5, atol=1e-6):
    off = (got.double() - want.double()).abs().max().item() if got.shape == want.shape else "shape"
    check(what, off != "shape" and torch.allclose(got, want, rtol=rtol, atol=atol), f"off by {off}")


def raises(what, kind, call, *words):
    """@call raises @kind with all @words in its text; returns the exception."""
    try:
        call()
    except kind as error:
        for word in words:
            check(what, word in str(error), f"says {str(error).splitlines()[0]!r} without {word!r}")
        return error
    raise AssertionError(f"{here()}{what} raised nothing")


def same_everywhere(what, tensor, group=None):
    """All ranks have the same bits."""
    pieces = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(pieces, tensor.contiguous(), group=group)
    for rank, piece in enumerate(pieces):
        check(f"{what}: bits of rank {rank}", torch.equal(piece, tensor))


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])
