"""The prologue of tma_im2col: consumers rewrite the tile of x in shared memory, each the rows that it multiplies.

A thread takes the same 8 channels of several rows, so it holds their operands for all of them.  In a row the vectors of
8 channels lie as the swizzle says: vector i of row r is at place i ^ (r * row_bytes / 128 % vectors of a row).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.codegen.epilogue import c_epilogue
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor
from convgen.kernels.parts.lowering import PACK

#: Channels of a vector of 16 bytes.
CHANNELS = 8
#: Functions that make floats of 8 elements of a type.
UNPACK = {"f32": "unpack_f32", "f16": "unpack_f16", "bf16": "unpack_bf16"}


@dataclass(frozen=True)
class Operand:
    """An operand: how many vectors its 8 channels are, the function that makes floats of them, and, where it has a
    value for each image, the distance of two images; else 0."""

    name: str
    vectors: int
    unpack: str
    pitch: int


@dataclass(frozen=True)
class Prologue:
    """Finished text of the function that makes an element, and the numbers of its loops: vectors of a row, rows between
    two of a thread, rows of a thread, C text of the place of its first vector."""

    operands: tuple[Operand, ...]
    body: tuple[str, ...]
    value: str
    formula: tuple[str, ...]
    unpack: str
    pack: str
    vectors: int
    apart: int
    rows: int
    place: str
    channels: int
    c_tail: bool
    image_pixels: int
    last_pixel: str

    @property
    def last_vector(self) -> int:
        """The first channel of the last vector of a pixel."""
        return self.channels - CHANNELS

    @property
    def of_channels(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if not o.pitch)

    @property
    def of_images(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if o.pitch)


def prologue(problem: ConvProblem, rows: int, tile_k: int) -> Prologue | None:
    """The prologue of a consumer that multiplies so many rows of `tile_k` channels; None if there is no prologue."""
    if problem.prologue is None:
        return None
    values = {problem.x.name: "given"} | {t.name: f"value_{t.name}" for t in problem.prologue.operands}
    *locals_, last = problem.prologue.body
    body = []
    for a in locals_:
        body.append(f"const float local_{a.name} = {c_epilogue(a.value, '', values)};")
        values[a.name] = f"local_{a.name}"
    vectors = tile_k // CHANNELS
    swizzled = f"thread % {vectors}"
    return Prologue(
        operands=tuple(map(_operand, problem.prologue.operands)),
        body=tuple(body),
        value=c_epilogue(last.value, "", values),
        formula=tuple(map(str, problem.prologue.body)),
        unpack=UNPACK[problem.x.dtype],
        pack=PACK[problem.x.dtype],
        vectors=vectors,
        apart=128 // vectors,
        rows=rows * vectors // 128,
        place=f"thread / {vectors} * row_bytes + ({swizzled} ^ thread / 8 % {vectors}) * chunk_bytes",
        channels=problem.c,
        c_tail=problem.c % tile_k > 0,
        image_pixels=math.prod(problem.output),
        last_pixel=last_pixel(problem),
    )


def last_pixel(problem: ConvProblem) -> str:
    """C text: the number of the last pixel, which a call may decide."""
    return "GEMM_M - 1" if problem.dynamic else str(problem.output_pixels - 1)


def _operand(t: Tensor) -> Operand:
    return Operand(t.name, _vectors(t), UNPACK[t.dtype], t.stride("n") if "n" in t.dims else 0)


def _vectors(t: Tensor) -> int:
    """The number of 16-byte vectors in 8 channels."""
    return CHANNELS * t.element.bytes // 16


def registers(problem: ConvProblem, rows: int, tile_k: int) -> int:
    """The registers that a prologue takes per thread: its operands, those of images for each row, and the current
    elements."""
    operands = problem.prologue.operands if problem.prologue else ()
    of_thread = rows * tile_k // (128 * CHANNELS)
    return 24 + sum(4 * _vectors(t) * of_thread + 8 if "n" in t.dims else 8 for t in operands)
