"""Tensor maps for the emulator: the driver's own fields, the driver's own conditions.

Conditions: CUDA driver API, "Tensor Map Object Management" (cuTensorMapEncodeTiled, cuTensorMapEncodeIm2col).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from convgen.emulator.native import Map
from convgen.ir.dtypes import DTYPES
from convgen.ir.plan import TensorMap

#: Bits of an element outside of the tensor where the map fills with NaN, by element type: as seen on an H200.
NAN_FILL = {"f16": 0x7FF7, "bf16": 0x7FF7, "f32": 0x7FF77FF7}

MAX_EXTENT = 1 << 32
MAX_STRIDE = 1 << 40
MAX_ELEMENT_STRIDE = 8
MAX_BOX = 256
MAX_CHANNELS = 256
MAX_PIXELS = 1024
ALIGNMENT = 16


@dataclass(frozen=True)
class CornerRange:
    low: int
    high: int


#: Of an im2col map's corners, by rank.
CORNERS = {
    3: CornerRange(-(1 << 15), (1 << 15) - 1),
    4: CornerRange(-(1 << 7), (1 << 7) - 1),
    5: CornerRange(-(1 << 4), (1 << 4) - 1),
}


def problems(map: TensorMap, buffer_bytes: int, row: int = 0, pitch: int = 0) -> Iterator[str]:
    """Why the driver would refuse a map, or what of it lies outside its buffer: of a channel slice, the first `row` of
    each `pitch` bytes.  Sizes that a call decides are the written ones."""
    dims, strides = tuple(int(d) for d in map.dims), tuple(int(s) for s in map.strides)
    rank, size = len(dims), DTYPES[map.dtype].bytes
    low, high = (3, 5) if map.mode == "im2col" else (1, 5)
    if not low <= rank <= high:
        yield f"rank {rank} is not between {low} and {high}"
        return
    if len(strides) != rank - 1 or len(map.element_strides) != rank:
        yield f"rank {rank} needs {rank - 1} strides and {rank} element strides"
        return
    if not all(1 <= d <= MAX_EXTENT for d in dims):
        yield f"an extent of {dims} is not in [1, 2^32]"
    for s in strides:
        if s % ALIGNMENT or not 0 <= s < MAX_STRIDE:
            yield f"a stride of {s} bytes is not a multiple of {ALIGNMENT} below 2^40"
    if not all(1 <= s <= MAX_ELEMENT_STRIDE for s in map.element_strides):
        yield f"an element stride of {map.element_strides} is not in [1, {MAX_ELEMENT_STRIDE}]"
    if map.fill == "nan" and map.dtype not in NAN_FILL:
        yield f"{map.dtype} has no NaN fill"
    if map.mode == "im2col":
        yield from _im2col_problems(map, rank, size)
    else:
        yield from _tiled_problems(map, rank, size)
    last = (dims[0] - 1) * size + sum((d - 1) * s for d, s in zip(dims[1:], strides, strict=True))
    if last + size > buffer_bytes:
        yield f"it reaches {last + size} bytes into {map.buffer}, which has {buffer_bytes}"
    steps = {s for d, s in zip(dims[1:], strides, strict=True) if d > 1}
    if pitch and (dims[0] * size > row or any(s % pitch for s in steps)):
        yield f"rows of {dims[0] * size} bytes, {min(steps)} apart, leave {map.buffer}: {row} of each {pitch} bytes"


def _row_problems(map: TensorMap, elements: int, size: int) -> Iterator[str]:
    row = elements * size
    if row % ALIGNMENT:
        yield f"a row of {row} bytes is not a multiple of {ALIGNMENT}"
    if map.swizzle and row > map.swizzle:
        yield f"a row of {row} bytes is wider than the swizzle of {map.swizzle}"


def _tiled_problems(map: TensorMap, rank: int, size: int) -> Iterator[str]:
    if len(map.box) != rank or not all(1 <= b <= MAX_BOX for b in map.box):
        yield f"the box {map.box} is not {rank} extents in [1, {MAX_BOX}]"
        return
    yield from _row_problems(map, map.box[0], size)


def _im2col_problems(map: TensorMap, rank: int, size: int) -> Iterator[str]:
    corners = CORNERS[rank]
    for name, corner in (("lower", map.lower), ("upper", map.upper)):
        if len(corner) != rank - 2 or not all(corners.low <= c <= corners.high for c in corner):
            yield f"the {name} corner {corner} is not {rank - 2} numbers in [{corners.low}, {corners.high}]"
    if not 1 <= map.channels <= MAX_CHANNELS:
        yield f"{map.channels} channels are not in [1, {MAX_CHANNELS}]"
    if not 1 <= map.pixels <= MAX_PIXELS:
        yield f"{map.pixels} pixels are not in [1, {MAX_PIXELS}]"
    yield from _row_problems(map, map.channels, size)


def pack(map: TensorMap, address: int) -> Map:
    """The runtime's record of a map over the memory at `address`."""
    size = DTYPES[map.dtype].bytes

    def padded(values, count):
        return (*values, *(0,) * (count - len(values)))

    return Map(
        base=address,
        dims=padded(map.dims, 5),
        strides=padded((size, *map.strides), 5),
        element_strides=padded(map.element_strides, 5),
        box=padded(map.box, 5),
        lower=padded(map.lower, 3),
        upper=padded(map.upper, 3),
        channels=map.channels,
        pixels=map.pixels,
        rank=len(map.dims),
        im2col=int(map.mode == "im2col"),
        element_bytes=size,
        swizzle=map.swizzle,
        fill=NAN_FILL[map.dtype] if map.fill == "nan" else 0,
    )
