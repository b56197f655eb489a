"""Tensor maps: TMA descriptors over a tensor, encoded by the driver.

Field order and enumerators follow cuda.h (CUDA driver API, "Tensor Map Object Management").
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int, c_uint32, c_uint64, c_void_p
from dataclasses import asdict
from typing import Any, NamedTuple

from convgen.ir.dtypes import DTYPES
from convgen.ir.plan import TensorMap
from convgen.runtime import cuda
from convgen.runtime.errors import DriverError

BYTES = 128
_ALIGNMENT = 64
_INTERLEAVE_NONE = 0


class Enumerator(NamedTuple):
    """An enumerator of cuda.h: its name, for C++ programs, and its number, for the driver."""

    name: str
    number: int


def _enumerators(prefix: str, rows: dict[Any, tuple[str, int]]) -> dict[Any, Enumerator]:
    return {value: Enumerator(f"CU_TENSOR_MAP_{prefix}_{name}", number) for value, (name, number) in rows.items()}


#: By a map's mode, what encodes it.
FUNCTIONS = {"tiled": "cuTensorMapEncodeTiled", "im2col": "cuTensorMapEncodeIm2col"}
_DATA_TYPE_NUMBERS = {"UINT8": 0, "INT32": 3, "FLOAT16": 6, "FLOAT32": 7, "BFLOAT16": 9}
#: By the values of a map's fields: CUtensorMapDataType (by the name that `ir.dtypes` gives), CUtensorMapSwizzle and
#: CUtensorMapL2promotion (by bytes), CUtensorMapFloatOOBfill.
DATA_TYPES = _enumerators("DATA_TYPE", {name: (name, number) for name, number in _DATA_TYPE_NUMBERS.items()})
SWIZZLES = _enumerators("SWIZZLE", {0: ("NONE", 0), 32: ("32B", 1), 64: ("64B", 2), 128: ("128B", 3)})
L2_PROMOTIONS = _enumerators(
    "L2_PROMOTION", {0: ("NONE", 0), 64: ("L2_64B", 1), 128: ("L2_128B", 2), 256: ("L2_256B", 3)}
)
FILLS = _enumerators("FLOAT_OOB_FILL", {"zero": ("NONE", 0), "nan": ("NAN_REQUEST_ZERO_FMA", 1)})


def encode(map: TensorMap, pointer: int) -> bytes:
    """The 128 bytes of a tensor map over the memory at `pointer`, 16-byte aligned.

    A context must be current.  Raises DriverError with every field where the driver refuses.
    """
    storage = ctypes.create_string_buffer(BYTES + _ALIGNMENT)
    address = -(-ctypes.addressof(storage) // _ALIGNMENT) * _ALIGNMENT
    function = FUNCTIONS[map.mode]
    element_strides = _array(c_uint32, map.element_strides)
    window: tuple[Any, ...]
    if map.mode == "tiled":
        window = (_array(c_uint32, map.box), element_strides)
    else:
        corners = _array(c_int, map.lower), _array(c_int, map.upper)
        window = (*corners, c_uint32(map.channels), c_uint32(map.pixels), element_strides)
    status = cuda.driver().encode(
        function,
        c_void_p(address),
        c_int(DATA_TYPES[str(DTYPES[map.dtype].tma)].number),
        c_uint32(len(map.dims)),
        c_void_p(pointer),
        _array(c_uint64, map.dims),
        _array(c_uint64, map.strides),
        *window,
        c_int(_INTERLEAVE_NONE),
        c_int(SWIZZLES[map.swizzle].number),
        c_int(L2_PROMOTIONS[map.l2_promotion].number),
        c_int(FILLS[map.fill].number),
    )
    if status != cuda.SUCCESS:
        fields = ", ".join(f"{key}={value}" for key, value in asdict(map).items())
        raise DriverError(f"{function} refused ({status}) the tensor map at {pointer:#x}: {fields}")
    return ctypes.string_at(address, BYTES)


def _array(kind: Any, values: Sequence[int]) -> Any:
    return (kind * len(values))(*values)
