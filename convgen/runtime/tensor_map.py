"""Tensor maps: TMA descriptors over a tensor, encoded by the driver.

Field order and enumerations follow cuda.h (CUDA driver API, "Tensor Map Object Management").
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int, c_uint32, c_uint64, c_void_p
from dataclasses import asdict
from typing import Any

from convgen.ir.dtypes import DTYPES
from convgen.ir.plan import TensorMap
from convgen.runtime import cuda
from convgen.runtime.errors import DriverError

BYTES = 128
_ALIGNMENT = 64
#: CUtensorMapDataType, by the name that `ir.dtypes` gives.
_DATA_TYPES = {"UINT8": 0, "INT32": 3, "FLOAT16": 6, "FLOAT32": 7, "BFLOAT16": 9}
#: CUtensorMapSwizzle and CUtensorMapL2promotion, by bytes; CUtensorMapFloatOOBfill.
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
_FILLS = {"zero": 0, "nan": 1}
_INTERLEAVE_NONE = 0


def encode(map: TensorMap, pointer: int) -> bytes:
    """The 128 bytes of a tensor map over the memory at `pointer`, 16-byte aligned.

    A context must be current.  Raises DriverError with every field where the driver refuses.
    """
    storage = ctypes.create_string_buffer(BYTES + _ALIGNMENT)
    address = -(-ctypes.addressof(storage) // _ALIGNMENT) * _ALIGNMENT
    name = {"tiled": "cuTensorMapEncodeTiled", "im2col": "cuTensorMapEncodeIm2col"}[map.mode]
    element_strides = _array(c_uint32, map.element_strides)
    window: tuple[Any, ...]
    if map.mode == "tiled":
        window = (_array(c_uint32, map.box), element_strides)
    else:
        corners = _array(c_int, map.lower), _array(c_int, map.upper)
        window = (*corners, c_uint32(map.channels), c_uint32(map.pixels), element_strides)
    status = cuda.driver().encode(
        name,
        c_void_p(address),
        c_int(_DATA_TYPES[str(DTYPES[map.dtype].tma)]),
        c_uint32(len(map.dims)),
        c_void_p(pointer),
        _array(c_uint64, map.dims),
        _array(c_uint64, map.strides),
        *window,
        c_int(_INTERLEAVE_NONE),
        c_int(_SWIZZLES[map.swizzle]),
        c_int(_L2_PROMOTIONS[map.l2_promotion]),
        c_int(_FILLS[map.fill]),
    )
    if status != cuda.SUCCESS:
        fields = ", ".join(f"{key}={value}" for key, value in asdict(map).items())
        raise DriverError(f"{name} refused ({status}) the tensor map at {pointer:#x}: {fields}")
    return ctypes.string_at(address, BYTES)


def _array(kind: Any, values: Sequence[int]) -> Any:
    return (kind * len(values))(*values)
