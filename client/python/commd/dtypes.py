"""Names of element types, for `dtype=`, and arrays for results. NumPy is used, never needed."""

import sys

_NAMES = [
    ("i8", "int8"),
    ("u8", "uint8"),
    ("i16", "int16"),
    ("u16", "uint16"),
    ("i32", "int32"),
    ("u32", "uint32"),
    ("i64", "int64"),
    ("u64", "uint64"),
    ("f16", "float16"),
    ("bf16", "bfloat16"),
    ("f32", "float32"),
    ("f64", "float64"),
    ("bool", "bool"),
]
_NUMBERS = {name: number for number, names in enumerate(_NAMES) for name in names}


def number(dtype):
    """enum commd_dtype of "bf16", "bfloat16", numpy.float32, numpy.dtype("f4"), torch.half, ..."""
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, type):
        name = dtype.__name__.rstrip("_")  # numpy.bool_ of NumPy 1
    else:
        name = str(dtype).rpartition(".")[2]  # "torch.bfloat16"
    try:
        return _NUMBERS[name]
    except KeyError:
        from commd.errors import InvalidArgument

        allowed = ", ".join(short for short, _ in _NAMES)
        raise InvalidArgument(
            f"dtype is {dtype!r}; allowed: {allowed}, and NumPy's names"
        ) from None


def is_numpy(array):
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(array, numpy.ndarray)


def is_foreign(array):
    """It says where it lies by another interface than the buffer protocol; see _core_foreign.c."""
    return hasattr(type(array), "__dlpack__") or hasattr(type(array), "__cuda_array_interface__")


def shape_of(array):
    if is_numpy(array):
        return tuple(array.shape)
    try:
        return memoryview(array).shape
    except TypeError:
        if not is_foreign(array):
            raise
        return tuple(array.shape)


def _fresh_foreign(like, shape):
    """By the library that @like is of."""
    if hasattr(like, "new_empty"):  # torch
        return like.new_empty(shape)
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__().empty(shape, dtype=like.dtype, device=like.device)
    if hasattr(like, "__array_function__"):  # cupy
        module = sys.modules[type(like).__module__.partition(".")[0]]
        return module.empty(shape, dtype=like.dtype)
    from commd.errors import InvalidArgument

    raise InvalidArgument(f"how to make a new {type(like).__name__} is not known; pass out=")


def fresh(like, shape):
    """Memory of elements as those of `like`: a numpy.ndarray if that is one, else a bytearray or,
    for elements of more than a byte, a memoryview of one; of a foreign array: one of its kind, on
    its device. Its contents are undefined."""
    if is_numpy(like):
        return sys.modules["numpy"].empty(shape, like.dtype)
    try:
        view = memoryview(like)
    except TypeError:
        if not is_foreign(like):
            raise
        return _fresh_foreign(like, shape)
    count = 1
    for n in shape:
        count *= n
    out = bytearray(count * view.itemsize)
    return out if view.format in ("B", "c") else memoryview(out).cast(view.format)
