"""Element types: one row per type.

`c_type` is the storage type in generated code (defined in `templates/types.cuh.j2`); `numpy` names the
NumPy (or ml_dtypes) type; `tma` is the name of the driver's tensor-map type, None where TMA has none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """An element type: its names in CUDA source, in NumPy and in tensor maps (None where they have none)."""

    name: str
    bytes: int
    is_float: bool
    c_type: str
    numpy: str
    tma: str | None
    mantissa_bits: int  # explicit bits; 0 for integers

    def __str__(self) -> str:
        return self.name


_ROWS = (
    DType("f16", 2, True, "f16", "float16", "FLOAT16", 10),
    DType("bf16", 2, True, "bf16", "bfloat16", "BFLOAT16", 7),
    DType("f32", 4, True, "float", "float32", "FLOAT32", 23),
    DType("f64", 8, True, "double", "float64", None, 52),
    DType("e4m3", 1, True, "e4m3", "float8_e4m3fn", "UINT8", 3),
    DType("e5m2", 1, True, "e5m2", "float8_e5m2", "UINT8", 2),
    DType("s8", 1, False, "s8", "int8", "UINT8", 0),
    DType("s32", 4, False, "int", "int32", "INT32", 0),
)
DTYPES: dict[str, DType] = {row.name: row for row in _ROWS}

#: Element types that a spec's tensors may have, and the accumulators.
TENSOR_DTYPES = tuple(DTYPES)
ACCUMULATORS = ("f32", "f64", "s32")


def numpy_dtype(name: str):
    """The NumPy dtype of an element type; bf16, e4m3 and e5m2 come from ml_dtypes."""
    import numpy

    row = DTYPES[name]
    if hasattr(numpy, row.numpy):
        return numpy.dtype(row.numpy)
    import ml_dtypes

    return numpy.dtype(getattr(ml_dtypes, row.numpy))
