"""Gemm steps through CuPy's cuBLAS.

cuBLAS thinks in columns: a row-major C = A B is the column-major C' = B' A', so operands and extents
change places.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from convgen.ir.dtypes import DTYPES
from convgen.ir.plan import Gemm
from convgen.runtime import arrays
from convgen.runtime.errors import DriverError

#: cudaDataType of an element type (library_types.h).
_DATA_TYPES = {"f32": 0, "f16": 2, "s8": 3, "s32": 10, "bf16": 14}
#: cublasComputeType_t and the type of alpha and beta, for floats and integers.  f32 stays f32: no tf32.
_COMPUTE: dict[bool, tuple[int, Callable[..., Any]]] = {
    True: (68, ctypes.c_float),
    False: (72, lambda value: ctypes.c_int(int(value))),
}
_GEMM_DEFAULT = -1
#: cublasMath_t: partial sums of a split product are added as the compute type, not as a narrower result's.
_NO_NARROW_SUMS = 16
_OP_N, _OP_T = 0, 1


def prepare(step: Gemm, buffers: dict[str, int], device: int, stream: int) -> Callable[[], None]:
    """A call that enqueues the product on a stream; `buffers` are base addresses by name.

    Raises DriverError where cuBLAS is not installed; so does the call where cuBLAS refuses.
    """
    import cupy

    try:
        from cupy_backends.cuda.libs import cublas
    except ImportError:
        raise DriverError("this kernel's plan has a cuBLAS step\nhint: pip install nvidia-cublas") from None

    def matrix(buffer: str, offset: int, dtype: str, leading: int, stride: int) -> tuple[int, ...]:
        address = buffers[buffer] + offset * DTYPES[dtype].bytes
        return (address, _DATA_TYPES[dtype], leading, *([stride] if step.batch > 1 else []))

    a = matrix(step.a, step.offset_a, step.dtype, step.lda, step.stride_a)
    b = matrix(step.b, step.offset_b, step.dtype, step.ldb, step.stride_b)
    c = matrix(step.c, step.offset_c, step.c_dtype, step.ldc, step.stride_c)
    compute, scalar = _COMPUTE[DTYPES[step.dtype].is_float]
    alpha, beta = scalar(1), scalar(step.beta)
    operations = (_OP_T if step.trans_b else _OP_N, _OP_T if step.trans_a else _OP_N)
    batch = [step.batch] if step.batch > 1 else []
    function = cublas.gemmStridedBatchedEx if batch else cublas.gemmEx

    def call() -> None:
        # CuPy's wrapper puts the product on CuPy's current stream
        with arrays.on_stream(device, stream):
            factors = ctypes.addressof(alpha), ctypes.addressof(beta)
            handle = cupy.cuda.device.get_cublas_handle()
            head = handle, *operations, step.n, step.m, step.k
            mode = cublas.getMathMode(handle)  # the handle is CuPy's: leave it as it was
            cublas.setMathMode(handle, mode | _NO_NARROW_SUMS)
            try:
                function(*head, factors[0], *b, *a, factors[1], *c, *batch, compute, _GEMM_DEFAULT)
            except cublas.CUBLASError as error:
                raise DriverError(f"cuBLAS refused the product {step}: {error}") from None
            finally:
                cublas.setMathMode(handle, mode)

    return call
