"""Types of `import commd`. Docstrings stand in the modules."""

import os
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, NamedTuple, Protocol, SupportsIndex, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import Buffer, Self

class _DLPack(Protocol):  # a torch.Tensor, an array of CuPy, JAX, ...
    def __dlpack__(self, *, stream: Any = None) -> Any: ...
    def __dlpack_device__(self) -> Any: ...

class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

# NumPy says only from Python 3.12 on that it has buffers
_Array = Buffer | NDArray[Any] | _DLPack | _CudaArray
_A = TypeVar("_A", bound=_Array)
_O = TypeVar("_O", bound=_Array | Sequence[_Array])
_T = TypeVar("_T", bound=np.generic)
_R_co = TypeVar("_R_co", covariant=True)

_Op = Literal["sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum"]
_Blocks = _Array | Sequence[_Array]
_Dtype = Any  # "bf16", numpy.float32, numpy.dtype("f4"), torch.bfloat16, ...
_New = bytearray | memoryview  # where no ndarray was passed

__all__: list[str]
__version__: str

ANY_SOURCE: int
ANY_TAG: int

class Status(NamedTuple):
    source: int
    tag: int
    bytes: int

# ---- errors ------------------------------------------------------------------------------

class Error(Exception):
    code: int | None
    rank: int | None
    node: str | None
    pid: int | None
    op: str | None
    seq: int | None
    epoch: int | None
    def __init__(
        self,
        message: str = "",
        rank: int | None = None,
        node: str | None = None,
        pid: int | None = None,
        op: str | None = None,
        seq: int | None = None,
        epoch: int | None = None,
        code: int | None = None,
    ) -> None: ...

class InvalidArgument(Error, ValueError): ...
class Mismatch(Error): ...
class QuotaExceeded(Error): ...
class Timeout(Error, TimeoutError): ...
class RankLost(Error): ...
class NodeLost(Error): ...
class EngineLost(Error): ...
class Aborted(Error): ...
class NoDaemon(Error, ConnectionError): ...
class ProtocolError(Error): ...
class PermissionDenied(Error, PermissionError): ...
class OutOfMemory(Error, MemoryError): ...
class Forked(Error): ...
class GpuLost(Error): ...
class InternalError(Error): ...

# ---- contexts and groups -----------------------------------------------------------------

def connect(
    socket: str | os.PathLike[str] | None = None, timeout: float | None = None
) -> Context: ...

class Context:
    @property
    def node(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def group(
        self, name: str, rank: int, size: int, timeout: float | None = None
    ) -> Group: ...
    def rejoin(
        self,
        name: str,
        rank: int | None = None,
        size: int | None = None,
        timeout: float | None = None,
    ) -> Group: ...
    def empty(
        self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike = ...
    ) -> NDArray[Any]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        *exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None: ...

class Group:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def start(self) -> _Start: ...
    def set_timeout(self, seconds: float, /) -> None: ...
    def abort(self, reason: str, /) -> None: ...
    def check(self) -> None: ...
    def rank_before(self, rank: int, /) -> int | None: ...
    def recover(
        self,
        policy: Literal["shrink", "wait"] = "shrink",
        size: int | None = None,
        min_size: int | None = None,
        wait: float | None = None,
        timeout: float | None = None,
        name: str | None = None,
    ) -> None: ...
    def close(self) -> None: ...
    def batch(self) -> Batch: ...
    def on(self, stream: Any) -> Group: ...  # its operations, and start
    def split(
        self, colour: int | None, key: int = 0, timeout: float | None = None
    ) -> Group | None: ...
    def subgroup(
        self, name: str, ranks: Sequence[int], timeout: float | None = None
    ) -> Group: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        *exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None: ...
    def barrier(self, *, timeout: float | None = None) -> None: ...
    @overload
    def all_reduce(
        self, array: _A, op: _Op = "sum", out: None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> _A: ...
    @overload
    def all_reduce(
        self, array: _Array, op: _Op = "sum", out: _A = ..., *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> _A: ...
    @overload
    def reduce(
        self, array: _A, op: _Op = "sum", root: int = 0, out: None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> _A | None: ...
    @overload
    def reduce(
        self, array: _Array, op: _Op = "sum", root: int = 0, out: _A = ..., *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> _A | None: ...
    def broadcast(
        self, array: _A, root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _A: ...
    @overload
    def all_gather(
        self, array: NDArray[_T], out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> NDArray[_T]: ...
    @overload
    def all_gather(
        self, array: _Array, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _New: ...
    @overload
    def all_gather(
        self, array: _Array, out: _O, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _O: ...
    @overload
    def all_gather_v(
        self, array: NDArray[_T], counts: Sequence[int] | None, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> NDArray[_T]: ...
    @overload
    def all_gather_v(
        self, array: _Array, counts: Sequence[int] | None, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _New: ...
    @overload
    def all_gather_v(
        self, array: _Array, counts: Sequence[int] | None, out: _O = ..., *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _O: ...
    @overload
    def gather(
        self, array: NDArray[_T], root: int = 0, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> NDArray[_T] | None: ...
    @overload
    def gather(
        self, array: _Array, root: int = 0, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _New | None: ...
    @overload
    def gather(
        self, array: _Array, root: int = 0, out: _O = ..., *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _O | None: ...
    @overload
    def gather_v(
        self, array: NDArray[_T], counts: Sequence[int] | None = None, root: int = 0,
        out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> NDArray[_T] | None: ...
    @overload
    def gather_v(
        self, array: _Array, counts: Sequence[int] | None = None, root: int = 0, out: None = None,
        *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _New | None: ...
    @overload
    def gather_v(
        self, array: _Array, counts: Sequence[int] | None = None, root: int = 0, out: _O = ..., *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _O | None: ...
    @overload
    def scatter(
        self, array: NDArray[_T] | Sequence[NDArray[_T]], out: None = None, root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> NDArray[_T]: ...
    @overload
    def scatter(
        self, array: _Blocks, out: None = None, root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _New: ...
    @overload
    def scatter(
        self, array: _Blocks | None, out: _O, root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _O: ...
    @overload
    def scatter_v(
        self, array: NDArray[_T] | Sequence[NDArray[_T]], counts: Sequence[int] | None = None,
        out: None = None, root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> NDArray[_T]: ...
    @overload
    def scatter_v(
        self, array: _Blocks, counts: Sequence[int] | None = None, out: None = None, root: int = 0,
        *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _New: ...
    @overload
    def scatter_v(
        self, array: _Blocks | None, counts: Sequence[int] | None = None, out: _O = ...,
        root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _O: ...
    @overload
    def reduce_scatter(
        self, array: NDArray[_T] | Sequence[NDArray[_T]], op: _Op = "sum", out: None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> NDArray[_T]: ...
    @overload
    def reduce_scatter(
        self, array: _Blocks, op: _Op = "sum", out: None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> _New: ...
    @overload
    def reduce_scatter(
        self, array: _Blocks, op: _Op = "sum", out: _O = ..., *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> _O: ...
    @overload
    def reduce_scatter_v(
        self, array: NDArray[_T] | Sequence[NDArray[_T]], counts: Sequence[int] | None = None,
        op: _Op = "sum", out: None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> NDArray[_T]: ...
    @overload
    def reduce_scatter_v(
        self, array: _Blocks, counts: Sequence[int] | None = None, op: _Op = "sum",
        out: None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> _New: ...
    @overload
    def reduce_scatter_v(
        self, array: _Blocks, counts: Sequence[int] | None = None, op: _Op = "sum", out: _O = ...,
        *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> _O: ...
    @overload
    def all_to_all(
        self, array: NDArray[_T], out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> NDArray[_T]: ...
    @overload
    def all_to_all(
        self, array: Sequence[NDArray[_T]], out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> list[NDArray[_T]]: ...
    @overload
    def all_to_all(
        self, array: _Array, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _New: ...
    @overload
    def all_to_all(
        self, array: _Blocks, out: _O, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _O: ...
    @overload
    def all_to_all_v(
        self, array: NDArray[_T] | Sequence[NDArray[_T]], send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> NDArray[_T]: ...
    @overload
    def all_to_all_v(
        self, array: _Blocks, send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _New: ...
    @overload
    def all_to_all_v(
        self, array: _Blocks, send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None, out: _O = ..., *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> _O: ...
    def send(
        self, array: _Array, dest: int, tag: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> None: ...
    def recv(
        self, array: _Array, source: int = ..., tag: int = ..., *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Status: ...

# ---- asynchronous operations -------------------------------------------------------------

class Work(Generic[_R_co]):
    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> _R_co: ...
    def wait_stream(self, stream: Any, /) -> None: ...
    def __await__(self) -> Generator[Any, None, _R_co]: ...

# Made of Group by tests/check_stubs.py --mend, as are the operations of Batch.
class _Start:
    def barrier(self, *, timeout: float | None = None) -> Work[None]: ...
    @overload
    def all_reduce(
        self, array: _A, op: _Op = "sum", out: None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> Work[_A]: ...
    @overload
    def all_reduce(
        self, array: _Array, op: _Op = "sum", out: _A = ..., *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> Work[_A]: ...
    @overload
    def reduce(
        self, array: _A, op: _Op = "sum", root: int = 0, out: None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> Work[_A | None]: ...
    @overload
    def reduce(
        self, array: _Array, op: _Op = "sum", root: int = 0, out: _A = ..., *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> Work[_A | None]: ...
    def broadcast(
        self, array: _A, root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_A]: ...
    @overload
    def all_gather(
        self, array: NDArray[_T], out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[NDArray[_T]]: ...
    @overload
    def all_gather(
        self, array: _Array, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_New]: ...
    @overload
    def all_gather(
        self, array: _Array, out: _O, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_O]: ...
    @overload
    def all_gather_v(
        self, array: NDArray[_T], counts: Sequence[int] | None, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[NDArray[_T]]: ...
    @overload
    def all_gather_v(
        self, array: _Array, counts: Sequence[int] | None, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_New]: ...
    @overload
    def all_gather_v(
        self, array: _Array, counts: Sequence[int] | None, out: _O = ..., *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_O]: ...
    @overload
    def gather(
        self, array: NDArray[_T], root: int = 0, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[NDArray[_T] | None]: ...
    @overload
    def gather(
        self, array: _Array, root: int = 0, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_New | None]: ...
    @overload
    def gather(
        self, array: _Array, root: int = 0, out: _O = ..., *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_O | None]: ...
    @overload
    def gather_v(
        self, array: NDArray[_T], counts: Sequence[int] | None = None, root: int = 0,
        out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[NDArray[_T] | None]: ...
    @overload
    def gather_v(
        self, array: _Array, counts: Sequence[int] | None = None, root: int = 0, out: None = None,
        *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_New | None]: ...
    @overload
    def gather_v(
        self, array: _Array, counts: Sequence[int] | None = None, root: int = 0, out: _O = ..., *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_O | None]: ...
    @overload
    def scatter(
        self, array: NDArray[_T] | Sequence[NDArray[_T]], out: None = None, root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[NDArray[_T]]: ...
    @overload
    def scatter(
        self, array: _Blocks, out: None = None, root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_New]: ...
    @overload
    def scatter(
        self, array: _Blocks | None, out: _O, root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_O]: ...
    @overload
    def scatter_v(
        self, array: NDArray[_T] | Sequence[NDArray[_T]], counts: Sequence[int] | None = None,
        out: None = None, root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[NDArray[_T]]: ...
    @overload
    def scatter_v(
        self, array: _Blocks, counts: Sequence[int] | None = None, out: None = None, root: int = 0,
        *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_New]: ...
    @overload
    def scatter_v(
        self, array: _Blocks | None, counts: Sequence[int] | None = None, out: _O = ...,
        root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_O]: ...
    @overload
    def reduce_scatter(
        self, array: NDArray[_T] | Sequence[NDArray[_T]], op: _Op = "sum", out: None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> Work[NDArray[_T]]: ...
    @overload
    def reduce_scatter(
        self, array: _Blocks, op: _Op = "sum", out: None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> Work[_New]: ...
    @overload
    def reduce_scatter(
        self, array: _Blocks, op: _Op = "sum", out: _O = ..., *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> Work[_O]: ...
    @overload
    def reduce_scatter_v(
        self, array: NDArray[_T] | Sequence[NDArray[_T]], counts: Sequence[int] | None = None,
        op: _Op = "sum", out: None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> Work[NDArray[_T]]: ...
    @overload
    def reduce_scatter_v(
        self, array: _Blocks, counts: Sequence[int] | None = None, op: _Op = "sum",
        out: None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> Work[_New]: ...
    @overload
    def reduce_scatter_v(
        self, array: _Blocks, counts: Sequence[int] | None = None, op: _Op = "sum", out: _O = ...,
        *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> Work[_O]: ...
    @overload
    def all_to_all(
        self, array: NDArray[_T], out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[NDArray[_T]]: ...
    @overload
    def all_to_all(
        self, array: Sequence[NDArray[_T]], out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[list[NDArray[_T]]]: ...
    @overload
    def all_to_all(
        self, array: _Array, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_New]: ...
    @overload
    def all_to_all(
        self, array: _Blocks, out: _O, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_O]: ...
    @overload
    def all_to_all_v(
        self, array: NDArray[_T] | Sequence[NDArray[_T]], send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[NDArray[_T]]: ...
    @overload
    def all_to_all_v(
        self, array: _Blocks, send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None, out: None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_New]: ...
    @overload
    def all_to_all_v(
        self, array: _Blocks, send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None, out: _O = ..., *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[_O]: ...
    def send(
        self, array: _Array, dest: int, tag: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[None]: ...
    def recv(
        self, array: _Array, source: int = ..., tag: int = ..., *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> Work[Status]: ...

class Batch:
    def __len__(self) -> int: ...
    def start(self) -> Work[list[Any]]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def barrier(self, *, timeout: float | None = None) -> int: ...
    def all_reduce(
        self, array: _Array, op: _Op = "sum", out: _Array | None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> int: ...
    def reduce(
        self, array: _Array, op: _Op = "sum", root: int = 0, out: _Array | None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> int: ...
    def broadcast(
        self, array: _Array, root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> int: ...
    def all_gather(
        self, array: _Array, out: _Blocks | None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> int: ...
    def all_gather_v(
        self, array: _Array, counts: Sequence[int] | None, out: _Blocks | None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> int: ...
    def gather(
        self, array: _Array, root: int = 0, out: _Blocks | None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> int: ...
    def gather_v(
        self, array: _Array, counts: Sequence[int] | None = None, root: int = 0,
        out: _Blocks | None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> int: ...
    def scatter(
        self, array: _Blocks | None, out: _Blocks | None = None, root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> int: ...
    def scatter_v(
        self, array: _Blocks | None, counts: Sequence[int] | None = None,
        out: _Blocks | None = None, root: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> int: ...
    def reduce_scatter(
        self, array: _Blocks, op: _Op = "sum", out: _Blocks | None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> int: ...
    def reduce_scatter_v(
        self, array: _Blocks, counts: Sequence[int] | None = None, op: _Op = "sum",
        out: _Blocks | None = None, *,
        dtype: _Dtype | None = None, scale: float | None = None, timeout: float | None = None,
    ) -> int: ...
    def all_to_all(
        self, array: _Blocks, out: _Blocks | None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> int: ...
    def all_to_all_v(
        self, array: _Blocks, send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None, out: _Blocks | None = None, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> int: ...
    def send(
        self, array: _Array, dest: int, tag: int = 0, *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> int: ...
    def recv(
        self, array: _Array, source: int = ..., tag: int = ..., *,
        dtype: _Dtype | None = None, timeout: float | None = None,
    ) -> int: ...
