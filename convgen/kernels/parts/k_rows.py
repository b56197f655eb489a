"""Loads a tile of w in rows of gemm_k into shared memory, for filters whose output channels are neighbors in memory.

So lie the filters of a dgrad, and those of a forward convolution whose k is innermost.  cp.async copies neighboring
channels, and ldmatrix transposes what it reads of them (PTX ISA, "ldmatrix", .trans): no filter is laid out anew.  Rows
lie in panels of as many channels as are at most 128 bytes, swizzled, so that ldmatrix's 8 rows lie in different banks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Integer

from convgen.ir.problem import ConvProblem
from convgen.kernels.parts import lowering, swizzle
from convgen.kernels.parts.constants import Constants, Definition
from convgen.kernels.parts.digits import advance, digit_offset, first_digits, named_digits
from convgen.kernels.parts.mma import CHUNK_BYTES, COLUMNS
from convgen.kernels.parts.reader import TRANSPOSED_BYTES, inside_k, k_index_type, loading, row_text
from convgen.kernels.parts.runs import as_bits, bits_type
from convgen.kernels.parts.shares import Share, Tile
from convgen.kernels.parts.walk import Digit, Walk, number

WIDTHS = 64, 32, 16  # channels of a panel


@dataclass(frozen=True)
class Panels:
    """Panels of `width` channels by the tile's rows of gemm_k."""

    width: int
    k: int

    @property
    def chunks(self) -> int:
        """Chunks in a panel's row."""
        return self.width // COLUMNS

    @property
    def row_bytes(self) -> int:
        return self.width * TRANSPOSED_BYTES

    @property
    def bytes(self) -> int:
        return self.row_bytes * self.k

    @property
    def swizzle(self) -> str:
        """C text of the swizzle of chunks in a row of gemm_k."""
        return swizzle.moved(self.row_bytes)


def panels(tile: Tile, warp_channels: int) -> Panels:
    """The panels of a tile if a warp multiplies so many channels: those of a panel, of several panels, or part of
    one."""
    width = next(w for w in WIDTHS if tile.rows % w == 0 and (warp_channels % w == 0 or w % warp_channels == 0))
    return Panels(width, tile.k)


@dataclass(frozen=True)
class KRowsReader:
    """Finished values for the template's `k_rows_reader`."""

    name: str
    doc: str
    index: str
    row_type: str  # C type of the offset that a channel makes
    bits_type: str  # C type of an element's bits
    source: str  # the tensor as a pointer to it
    element_bytes: int
    vector: int  # channels of a copy
    vectors: int  # copies of a chunk
    share: Share
    even: bool  # all rows of a tile have the same digits but for the innermost
    # C text of the elements from one row of gemm_k to the next, where they are even, and to the next of a thread
    own_step: str
    rows_step: str
    coordinates: tuple[str, ...]
    row_index: str
    row_offset: str
    digits: tuple[Digit, ...]
    digits_at_start: tuple[str, ...]
    k_index: str  # C type of the offset that gemm_k makes
    k_offset: str
    k_inside: tuple[str, ...]
    next_row: tuple[str, ...]
    next_step: tuple[str, ...]
    grouped: bool
    split: bool
    constants: tuple[Definition, ...]  # definitions of what all of these mention

    asynchronous = True
    k_rows = True

    @property
    def start_parameters(self) -> str:
        extra = (f", {self.index} group" if self.grouped else "") + (", int first_k" if self.split else "")
        return f"{self.index} first{extra}"

    @property
    def own_row(self) -> str:
        """C text of a thread's first row of gemm_k in the tile."""
        return self.share.row.partition(" + ")[0]

    @property
    def bytes(self) -> int:
        """Bytes per copy."""
        return self.vector * self.element_bytes

    @property
    def divisible(self) -> bool:
        """Whether its rows can be asked for at different times."""
        return self.even


def k_rows_reader(
    problem: ConvProblem, walk: Walk, tile: Tile, covered: int, beyond: int, past_end: bool, split: bool
) -> KRowsReader:
    """The reader of a tile in rows of gemm_k.  `covered` is how much of gemm_k all parts step over, `past_end` whether
    that exceeds gemm_k, `beyond` how far threads may step past its end."""
    constants = Constants()
    loads, digits = loading(walk, tile), named_digits(problem, walk, constants)
    strides = constants.strides(walk.tensor, problem.groups)
    share, vector, inner = loads.share, loads.piece, digits[-1]
    for name, value in share.named.items():
        constants.number(name, value)
    tensor, index = problem.w, lowering.index_type(problem, ())
    steps, constant = [step for e, step in walk.of_row.items() if e != 1], walk.of_row.get(Integer(1), 0)
    unsigned = index == "int" and min(steps, default=0) >= 0
    even = not inner.moves and not inner.end and inner.extent % tile.k == 0
    unsigned = unsigned and (not even or inner.step >= 0)  # a row's own place is part of its offset
    row = row_text(problem, walk, "w", index, constant if unsigned else 0, constants)
    scope = lowering.Scope("int", constants=constants)
    first = scope.declare("first_row", covered if split else tile.k)
    k_index, c_type = k_index_type(walk, beyond, index), bits_type(tensor.element)
    own_step = lowering.factor(inner.step, strides) if even else ""
    what = f"{tile.k} of gemm_k by {tile.rows} output channels"
    made = KRowsReader(
        name="w",
        doc=f"w: {what}; cp.async of {vector * tile.element_bytes} bytes",
        index=index,
        row_type="u32" if unsigned else index,
        bits_type=c_type,
        source=as_bits(tensor, c_type),
        element_bytes=tile.element_bytes,
        vector=vector,
        vectors=CHUNK_BYTES // tile.element_bytes // vector,
        share=share,
        even=even,
        own_step=own_step,
        rows_step=" * ".join(filter(None, ("rows_at_once", own_step * (own_step != "1")))) if even else "",
        coordinates=row.coordinates,
        row_index=row.index,
        row_offset=row.offset,
        digits=digits,
        digits_at_start=first_digits(digits, first, scope),
        k_index=k_index,
        k_offset=digit_offset(digits, k_index, constant if unsigned else 0, strides),
        k_inside=inside_k(replace(walk, digits=digits), past_end),
        next_row=advance(digits, number(digits, share.chunk_stride)) if share.rows > 1 and not even else (),
        next_step=advance(digits, number(digits, tile.k), {tile.k: "tile_k"}),
        grouped=problem.groups > 1,
        split=split,
        constants=(),
    )
    return replace(made, constants=constants.within(str(replace(made, digits=(), share=replace(share, named={})))))
