"""torch's device "fakegpu": fakegpu.load() builds the extension, once, and registers it.

Needs $COMMD_LIBCUDA, the driver of tests/fakecuda. FAKECUDA_DEVICES says how many devices there
are.
"""

import fcntl
import glob
import hashlib
import os
import subprocess
import sys
import sysconfig
import types

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))


def _sources():
    own = sorted(glob.glob(f"{HERE}/*.cpp") + glob.glob(f"{HERE}/*.h"))
    return [*own, f"{TOP}/shm/gpu/cuda.h"]


def _compile(torch, target):
    from torch.utils import cpp_extension

    folders = [TOP, sysconfig.get_path("include"), *cpp_extension.include_paths()]
    libraries = cpp_extension.library_paths()[0]
    done = subprocess.run(
        [
            os.environ.get("CXX", "c++").split()[-1], "-std=c++20", "-O1", "-g0", "-fPIC",
            "-shared",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            "-DTORCH_EXTENSION_NAME=_fakegpu", "-DTORCH_API_INCLUDE_EXTENSION_H",
            *(f"-I{folder}" for folder in folders), f"{HERE}/fakegpu.cpp", "-o", f"{target}.new",
            f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lc10", "-ltorch_cpu", "-ltorch",
            "-ltorch_python", "-ldl",
        ],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"fakegpu does not compile:\n{done.stdout[-4000:]}")
    os.rename(f"{target}.new", target)


def build():
    """The extension's file; compiled (half a minute) if the sources or torch are others."""
    import torch

    digest = hashlib.sha256(torch.__version__.encode() + sys.version.encode())
    for path in _sources():
        with open(path, "rb") as file:
            digest.update(file.read())
    build = os.environ.get("COMMD_BUILD") or f"{TOP}/build"
    folder = os.path.join(build, "fakegpu", digest.hexdigest()[:16])
    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, "_fakegpu.so")
    with open(f"{folder}/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(target):
            _compile(torch, target)
    return target


def _module(torch, c):
    """torch.fakegpu: what torch asks the module of a device for."""
    module = types.ModuleType("torch.fakegpu")

    class Stream(torch.Stream):
        def __new__(cls, device=None, priority=0, **kwargs):
            index = c.current_device() if device is None else torch.device(device).index
            return super().__new__(cls, torch.device("fakegpu", index or 0), **kwargs)

    def index_of(device):
        if device is None:
            return c.current_device()
        if isinstance(device, int):
            return device
        index = torch.device(device).index
        return c.current_device() if index is None else index

    class device:
        def __init__(self, which):
            self.index = index_of(which)

        def __enter__(self):
            self.before = c.current_device()
            c.set_device(self.index)

        def __exit__(self, *_):
            c.set_device(self.before)
            return False

    def current_stream(device=None):
        return torch.accelerator.current_stream(index_of(device))

    def stream(one):
        return one

    module.Stream, module.Event, module.device, module.stream = (
        torch.Stream, torch.Event, device, stream
    )  # fmt: skip
    module.current_stream = current_stream
    module.set_stream = torch.accelerator.set_stream
    module.default_stream = lambda device=None: torch.Stream(
        stream_id=0, device_index=index_of(device), device_type=20
    )
    module.device_count, module.current_device = c.device_count, c.current_device
    module.set_device = lambda device: c.set_device(index_of(device))
    module.synchronize = lambda device=None: c.synchronize(index_of(device))
    module.is_available = lambda: c.device_count() > 0
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    module.manual_seed_all = module.manual_seed = lambda seed: None
    module.get_rng_state = lambda device=None: torch.get_rng_state()
    module.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.empty_cache = lambda: None
    module.reused, module.asynchronous, module.synchronous = (
        c.reused, c.asynchronous, c.synchronous
    )  # fmt: skip
    return module


def load():
    """torch.fakegpu, registered; and commd's backend takes its tensors."""
    import importlib.machinery
    import importlib.util

    import torch

    if hasattr(torch, "fakegpu"):
        return torch.fakegpu
    loader = importlib.machinery.ExtensionFileLoader("_fakegpu", build())
    spec = importlib.util.spec_from_loader("_fakegpu", loader)
    c = importlib.util.module_from_spec(spec)
    loader.exec_module(c)
    torch.utils.rename_privateuse1_backend("fakegpu")
    torch._register_device_module("fakegpu", _module(torch, c))
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_storage=True
    )
    from commd import _autoload

    _autoload.register()
    return torch.fakegpu


if __name__ == "__main__":
    print(build())
