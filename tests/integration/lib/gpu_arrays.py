"""Arrays on the GPU of tests/fakecuda, as a library such as CuPy has them; ctypes only.

Array is known by __cuda_array_interface__, Dl by __dlpack__; both keep their memory until they are
dropped, and give it back in the order of nothing at all: so that who drops one too early is seen.
"""

import ctypes
import os

import numpy as np

cuda = ctypes.CDLL(os.environ["COMMD_LIBCUDA"])
LEGACY = 0
_context = ctypes.c_void_p()


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, f"{name}: {result}"


def begin():
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(_context), 0)
    call("cuCtxSetCurrent", _context)


def new_stream():
    stream = ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(stream), 1)
    return stream.value


def synchronize(stream=LEGACY):
    call("cuStreamSynchronize", ctypes.c_void_p(stream))


class Array:
    def __init__(self, shape, dtype, stream=None):
        self.shape, self.dtype, self.stream = tuple(np.atleast_1d(shape)), np.dtype(dtype), stream
        self.size = int(np.prod(self.shape)) * self.dtype.itemsize
        pointer = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(self.size, 1)))
        self.pointer = pointer.value

    def __del__(self):
        cuda.cuMemFree_v2(ctypes.c_uint64(self.pointer))

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": tuple(int(n) for n in self.shape), "typestr": self.dtype.str, "version": 3,
            "data": (self.pointer, False), "strides": None, "stream": self.stream,
        }  # fmt: skip

    def copy(self, to, source, stream):
        call("cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(source),
             ctypes.c_size_t(self.size), ctypes.c_void_p(stream))  # fmt: skip

    def put(self, values, stream=LEGACY):
        values = np.ascontiguousarray(values, self.dtype)
        if self.size:
            self.copy(self.pointer, values.ctypes.data, stream)
        return self

    def get(self, stream=LEGACY):
        values = np.empty(self.shape, self.dtype)
        if self.size:
            self.copy(values.ctypes.data, self.pointer, stream)
        synchronize(stream)
        return values


def on_gpu(values, stream=None):
    values = np.asarray(values)
    return Array(values.shape, values.dtype, stream).put(values, stream or LEGACY)


class _Tensor(ctypes.Structure):  # DLManagedTensor
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ]  # fmt: skip


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
CODES = {"i": 0, "u": 1, "f": 2, "b": 6, "c": 5}


class Dl:
    """A view of an Array, or, with @device (1, 0), of a numpy.ndarray."""

    def __init__(self, array, device=(2, 0), code=None):
        self.array, self.device, self.asked = array, device, []
        self.shape, self.dtype = array.shape, array.dtype
        self._dims = (ctypes.c_int64 * len(self.shape))(*self.shape)
        self._tensor = _Tensor(
            array.pointer if device[0] == 2 else array.ctypes.data, device, len(self.shape),
            CODES[self.dtype.kind] if code is None else code, 8 * self.dtype.itemsize, 1,
            self._dims, None, 0, None, None,
        )  # fmt: skip

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None):
        self.asked.append(stream)
        return _capsule(ctypes.addressof(self._tensor), b"dltensor", None)
