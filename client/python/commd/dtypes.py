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


def shape_of(array):
    return tuple(array.shape) if is_numpy(array) else memoryview(array).shape


def fresh(like, shape):
    """Memory of elements as those of `like`: a numpy.ndarray if that is one, else a bytearray or,
    for elements of more than a byte, a memoryview of one. Its contents are undefined."""
    if is_numpy(like):
        return sys.modules["numpy"].empty(shape, like.dtype)
    view = memoryview(like)
    count = 1
    for n in shape:
        count *= n
    out = bytearray(count * view.itemsize)
    return out if view.format in ("B", "c") else memoryview(out).cast(view.format)
