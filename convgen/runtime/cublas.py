"""Gemm steps through cuBLAS, called by ctypes: CuPy's wrapper refuses to be captured in a CUDA graph.

cuBLAS thinks in columns: a row-major C = A B is the column-major C' = B' A', so operands and extents
change places.  A call takes a handle that no other call is using, and gives it a stream and a workspace: products
never share scratch memory, and a capture allocates nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import c_int, c_longlong, c_void_p
from functools import cache
from typing import Any

from convgen.ir.dtypes import DTYPES
from convgen.ir.plan import Gemm, Workspace
from convgen.runtime import cuda, cupy_library
from convgen.runtime.errors import DriverError

#: cudaDataType of an element type (library_types.h).
_DATA_TYPES = {"f32": 0, "f16": 2, "s8": 3, "s32": 10, "bf16": 14}
#: cublasComputeType_t and the type of alpha and beta, for floats and integers.  f32 stays f32: no tf32.
_COMPUTE: dict[bool, tuple[int, Callable[..., Any]]] = {
    True: (68, ctypes.c_float),
    False: (72, lambda value: ctypes.c_int(int(value))),
}
_GEMM_DEFAULT = -1
_OP_N, _OP_T = 0, 1
#: cublasMath_t: partial sums of a split product are added as the compute type, not as a narrower result's.
_NO_NARROW_SUMS = 16
#: Of the size that NVIDIA recommends for Hopper (cuBLAS documentation, cublasSetWorkspace), under a name that no
#: workspace of a plan has.
WORKSPACE = Workspace("cuBLAS", 32 << 20)
#: It must start at a multiple of this many bytes.
_WORKSPACE_ALIGNMENT = 256

#: Handles that no call is using, by GPU.
_idle: dict[int, list[int]] = {}


@cache
def _library() -> ctypes.CDLL:
    """The cuBLAS that CuPy found and loaded.  Raises DriverError if there is none."""
    cupy_library.load()
    try:
        from cupy_backends.cuda.api import runtime
        from cupy_backends.cuda.libs import cublas  # noqa: F401  # loads it
    except ImportError:
        raise DriverError(
            "this kernel's plan has a cuBLAS step\n"
            "hint: pip install 'convgen[cublas13]', or 'convgen[cublas12]' beside CuPy for CUDA 12"
        ) from None
    library = ctypes.CDLL(f"libcublas.so.{runtime.runtimeGetVersion() // 1000}")
    # handles, scalars and matrices are addresses: without these ctypes would cut them to 32 bits
    matrix, strided = (c_void_p, c_int, c_int), (c_void_p, c_int, c_int, c_longlong)
    head = (c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p)
    library.cublasGemmEx.argtypes = (*head, *matrix, *matrix, c_void_p, *matrix, c_int, c_int)
    library.cublasGemmStridedBatchedEx.argtypes = (
        *head, *strided, *strided, c_void_p, *strided, c_int, c_int, c_int,
    )  # fmt: skip
    library.cublasSetStream_v2.argtypes = (c_void_p, c_void_p)
    library.cublasSetWorkspace_v2.argtypes = (c_void_p, c_void_p, ctypes.c_size_t)
    library.cublasSetMathMode.argtypes = (c_void_p, c_int)
    return library


def find() -> None:
    """Loads the library, and nothing more.  Raises DriverError, NoCupy."""
    _library()


def load(device: int) -> None:
    """Makes a GPU's first handle, with its context current.  Raises DriverError."""
    with _handle(device):
        pass


@contextmanager
def _handle(device: int) -> Iterator[int]:
    """A handle that is no one else's meanwhile."""
    idle = _idle.setdefault(device, [])
    try:
        handle = idle.pop()
    except IndexError:
        handle = _new_handle()
    try:
        yield handle
    finally:
        idle.append(handle)


def _new_handle() -> int:
    library, handle = _library(), c_void_p()
    if status := library.cublasCreate_v2(ctypes.byref(handle)):
        hint = "where a CUDA graph is being captured, call the kernel once before; else the GPU is short of memory"
        raise DriverError(f"creating a cuBLAS handle failed: cuBLAS status {status}\nhint: {hint}")
    assert handle.value is not None
    _check(library.cublasSetMathMode(handle, _NO_NARROW_SUMS), "setting cuBLAS's arithmetic")
    return handle.value


def _check(status: int, what: str) -> None:
    if status:
        raise DriverError(f"{what} failed: cuBLAS status {status}")


def prepare(step: Gemm, buffers: Mapping[str, tuple[int, int]], device: int, stream: int) -> Callable[[], None]:
    """A call that enqueues the product on a stream; `buffers` are base addresses and sizes in bytes by name, WORKSPACE
    included.  It is made with the GPU's context current.

    Raises DriverError where cuBLAS is not installed; so does the call where cuBLAS refuses.
    """
    library, driver = _library(), cuda.driver()

    def matrix(buffer: str, offset: int, dtype: str, leading: int, stride: int) -> tuple[int, ...]:
        address = buffers[buffer][0] + offset * DTYPES[dtype].bytes
        return (address, _DATA_TYPES[dtype], leading, *([stride] if step.batch > 1 else []))

    compute, scalar = _COMPUTE[DTYPES[step.dtype].is_float]
    alpha, beta = scalar(1), scalar(step.beta)
    operations = (_OP_T if step.trans_b else _OP_N, _OP_T if step.trans_a else _OP_N)
    function = library.cublasGemmStridedBatchedEx if step.batch > 1 else library.cublasGemmEx
    arguments = (
        *operations, step.n, step.m, step.k, ctypes.addressof(alpha),
        *matrix(step.b, step.offset_b, step.dtype, step.ldb, step.stride_b),
        *matrix(step.a, step.offset_a, step.dtype, step.lda, step.stride_a),
        ctypes.addressof(beta),
        *matrix(step.c, step.offset_c, step.c_dtype, step.ldc, step.stride_c),
        *([step.batch] if step.batch > 1 else []), compute, _GEMM_DEFAULT,
    )  # fmt: skip
    base, size = buffers[WORKSPACE.name]
    padding = -base % _WORKSPACE_ALIGNMENT

    def call(_scalars: tuple[Any, Any] = (alpha, beta)) -> None:
        with driver.relaxed_capture(), _handle(device) as handle:  # cuBLAS may load a kernel
            _check(library.cublasSetStream_v2(handle, stream), "setting cuBLAS's stream")
            # after the stream, whose change resets it
            _check(library.cublasSetWorkspace_v2(handle, base + padding, size - padding), "setting a workspace")
            if status := function(handle, *arguments):
                raise DriverError(f"cuBLAS refused the product {step}: status {status}")

    return call
