"""Gemm steps through cuBLAS, called by ctypes: CuPy's wrapper refuses to be captured in a CUDA graph.

cuBLAS thinks in columns: a row-major C = A B is the column-major C' = B' A', so operands and extents
change places.  Each stream has a handle of its own with a workspace of its own, so that products on two
streams never share scratch memory and a capture allocates nothing.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import c_int, c_longlong, c_void_p
from functools import cache
from typing import Any

from convgen.ir.dtypes import DTYPES
from convgen.ir.plan import Gemm
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
#: What NVIDIA recommends for Hopper (cuBLAS documentation, cublasSetWorkspace).
_WORKSPACE_BYTES = 32 << 20

_handles: dict[tuple[int, int], tuple[int, Any]] = {}
_lock = threading.Lock()


@cache
def _library() -> ctypes.CDLL:
    """The cuBLAS that CuPy found and loaded.  Raises DriverError where there is none."""
    try:
        from cupy_backends.cuda.libs import cublas
    except ImportError:
        raise DriverError("this kernel's plan has a cuBLAS step\nhint: pip install 'convgen[cublas]'") from None
    # handles, scalars and matrices are addresses: without these ctypes would cut them to 32 bits
    library = ctypes.CDLL(f"libcublas.so.{cublas.getVersion(_any_handle()) // 10000}")
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


def _any_handle() -> int:
    import cupy

    return cupy.cuda.device.get_cublas_handle()


def _handle(device: int, stream: int) -> int:
    """The handle of a stream, with its workspace."""
    import cupy

    with _lock:
        if (device, stream) not in _handles:
            library, handle = _library(), c_void_p()
            with cupy.cuda.Device(device):
                workspace = cupy.cuda.alloc(_WORKSPACE_BYTES)
                _check(library.cublasCreate_v2(ctypes.byref(handle)), "creating a cuBLAS handle")
                _check(library.cublasSetStream_v2(handle, stream), "setting cuBLAS's stream")
                # after the stream, whose change resets it
                _check(library.cublasSetWorkspace_v2(handle, workspace.ptr, _WORKSPACE_BYTES), "setting a workspace")
                _check(library.cublasSetMathMode(handle, _NO_NARROW_SUMS), "setting cuBLAS's arithmetic")
            assert handle.value is not None
            _handles[device, stream] = handle.value, workspace
        return _handles[device, stream][0]


def _check(status: int, what: str) -> None:
    if status:
        raise DriverError(f"{what} failed: cuBLAS status {status}")


def prepare(step: Gemm, buffers: dict[str, int], device: int, stream: int) -> Callable[[], int]:
    """A call that enqueues the product on a stream; `buffers` are base addresses by name.

    Raises DriverError where cuBLAS is not installed; so does the call where cuBLAS refuses.
    """
    import cupy

    library, handle = _library(), _handle(device, stream)

    def matrix(buffer: str, offset: int, dtype: str, leading: int, stride: int) -> tuple[int, ...]:
        address = buffers[buffer] + offset * DTYPES[dtype].bytes
        return (address, _DATA_TYPES[dtype], leading, *([stride] if step.batch > 1 else []))

    compute, scalar = _COMPUTE[DTYPES[step.dtype].is_float]
    alpha, beta = scalar(1), scalar(step.beta)
    operations = (_OP_T if step.trans_b else _OP_N, _OP_T if step.trans_a else _OP_N)
    function = library.cublasGemmStridedBatchedEx if step.batch > 1 else library.cublasGemmEx
    arguments = (
        handle, *operations, step.n, step.m, step.k, ctypes.addressof(alpha),
        *matrix(step.b, step.offset_b, step.dtype, step.ldb, step.stride_b),
        *matrix(step.a, step.offset_a, step.dtype, step.lda, step.stride_a),
        ctypes.addressof(beta),
        *matrix(step.c, step.offset_c, step.c_dtype, step.ldc, step.stride_c),
        *([step.batch] if step.batch > 1 else []), compute, _GEMM_DEFAULT,
    )  # fmt: skip

    def call(_scalars: tuple[Any, Any] = (alpha, beta)) -> int:
        with cupy.cuda.Device(device):
            if status := function(*arguments):
                raise DriverError(f"cuBLAS refused the product {step}: status {status}")
        return 0

    return call
