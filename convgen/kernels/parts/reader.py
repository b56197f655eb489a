"""Loads a tile of x or w into shared memory: the division among threads, and the text.

A tile is rows of `TILE_K` elements in chunks of 16 bytes.  A thread owns a few chunks of a few rows.  Where
vectors of 4 bytes or more are contiguous and aligned it copies them with cp.async; where they are not it
gathers elements into registers while the step before is multiplied.  Pieces of less than a chunk are dealt out among
the threads of a row: neighbors copy neighboring pieces at once, of the same sectors and of different banks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sympy import Expr, Integer

from convgen.ir.formula import number as size_number
from convgen.ir.integer import symbol
from convgen.ir.problem import ConvProblem
from convgen.ir.size import Size
from convgen.kernels.parts import lowering
from convgen.kernels.parts.constants import Constants, Definition, extent_name, walk_name
from convgen.kernels.parts.digits import advance, digit_offset, first_digits, named_digits
from convgen.kernels.parts.mma import CHUNK_BYTES
from convgen.kernels.parts.output import pixel_dims
from convgen.kernels.parts.runs import as_bits, bits_type
from convgen.kernels.parts.shares import Share, Tile, k_rows_share, share
from convgen.kernels.parts.walk import Bound, Digit, Walk, number

#: cp.async copies 4, 8 or 16 bytes.
LEAST_ASYNC_BYTES = 4
#: ldmatrix transposes matrices of elements of so many bytes.
TRANSPOSED_BYTES = 2


@dataclass(frozen=True)
class Loading:
    """How a tile is loaded: by cp.async or element by element, `piece` elements under one condition; whether
    elements that are loaded at the same time share sectors of memory; whether copies go along the tile's rows, which
    are neighbors, and not along gemm_k: the tile then lies in rows of gemm_k (`k_rows`); whether neighboring threads
    take neighboring rows, else neighbors along gemm_k; whether pieces of less than a chunk are `dealt` out among the
    threads of a row, where a thread would else copy whole chunks."""

    asynchronous: bool
    piece: int
    share: Share
    together: bool
    k_rows: bool = False
    along_rows: bool = False
    dealt: bool = False


def loading(walk: Walk, tile: Tile) -> Loading:
    elements = CHUNK_BYTES // tile.element_bytes
    vector = min(walk.aligned, elements)
    # neighboring threads follow the contiguous direction
    inner = walk.digits[-1]
    along_rows = inner.step != 1 and 1 in {abs(s) for s in walk.row_steps}
    if vector * tile.element_bytes >= LEAST_ASYNC_BYTES:
        dealt = vector < elements and not along_rows
        return Loading(True, vector, share(tile, along_rows), True, along_rows=along_rows, dealt=dealt)
    across = min(walk.rows_aligned, elements)
    shared = tile.rows % elements == 0 and tile.rows // elements <= tile.threads
    if tile.element_bytes == TRANSPOSED_BYTES and across > 1 and shared:
        return Loading(True, across, k_rows_share(tile), True, k_rows=True)
    together = along_rows or inner.step == 1 or inner.extent < tile.k
    return Loading(False, min(walk.piece, elements), share(tile, along_rows), together, along_rows=along_rows)


#: Of a word that tells for each tap whether a row's elements are inside.
TAP_BITS = 32


@dataclass(frozen=True)
class RowBound:
    """A coordinate that must lie in [0, extent): the row's part of it, and what `count` units of a digit, `by`
    each, add to it.  Bits `bit` and on of a row's word of taps tell for each unit whether it is inside."""

    name: str
    row: str  # C text
    extent: str  # C text
    digit: str
    count: int
    taps: str  # C text of the count
    by: int
    bit: str  # C text; empty for 0

    @property
    def shift(self) -> str:
        """C text of a tap's bit."""
        return f"(tap + {self.bit})" if self.bit else "tap"


@dataclass(frozen=True)
class Reader:
    """Finished values for the template's `reader`."""

    name: str
    doc: str
    index: str
    row_type: str  # C type of the offset that a row makes
    bits_type: str  # C type of an element's bits
    source: str  # the tensor as a pointer to it
    element_bytes: int
    asynchronous: bool
    piece: int  # elements that are loaded under one condition
    element_step: str  # C text: from one element of a piece to the next
    chunk_elements: int
    share: Share
    dealt: bool  # as Loading has it
    even: bool  # no step goes past the end of the innermost digit: all threads have the same digits
    row_index: str
    permuted: bool
    coordinates: tuple[str, ...]
    row_offset: str
    bounds: tuple[RowBound, ...]
    digits: tuple[Digit, ...]
    digits_at_start: tuple[str, ...]
    k_index: str  # C type of the offset that gemm_k makes
    k_offset: str
    k_inside: tuple[str, ...]  # conditions that do not depend on the row
    row_inside: tuple[str, ...]  # conditions for row i
    wanted: str  # of a row's word of taps, C text; empty where the coordinates themselves are kept
    next_piece: tuple[str, ...]
    next_chunk: tuple[str, ...]
    next_step: tuple[str, ...]
    grouped: bool
    split: bool
    constants: tuple[Definition, ...]  # definitions of what all of these mention

    @property
    def start_parameters(self) -> str:
        extra = (f", {self.index} group" if self.grouped else "") + (", int first_k" if self.split else "")
        return f"{self.index} first{extra}"

    k_rows = False  # see parts/k_rows.py

    @property
    def piece_bytes(self) -> int:
        return self.piece * self.element_bytes

    @property
    def per_word(self) -> int:
        """Elements of a word of 32 bits."""
        return 4 // self.element_bytes

    @property
    def element_bits(self) -> int:
        return 8 * self.element_bytes

    @property
    def pieces(self) -> int:
        return self.chunk_elements // self.piece

    @property
    def unit(self) -> str:
        """The unit with which neighboring threads begin."""
        return "piece" if self.dealt else "chunk"

    @property
    def unit_elements(self) -> int:
        return self.piece if self.dealt else self.chunk_elements

    @property
    def inside(self) -> str:
        """C text of the conditions under which there is a piece; empty where it always is."""
        return " && ".join((*self.k_inside, *self.row_inside))

    @property
    def place(self) -> str:
        """C text of where a piece stands in the tile."""
        if self.dealt:
            return f"chunk_place(row, piece / chunk_pieces) + piece % chunk_pieces * {self.piece_bytes}"
        further = f" + e * {self.element_bytes}" if self.pieces > 1 or self.share.chunks > 1 else ""
        return f"chunk_place(row, {self.share.chunk_of_j}){further}"

    @property
    def divisible(self) -> bool:
        """Whether its rows can be asked for at different times: each is one copy of a thread."""
        return self.asynchronous and self.pieces == self.share.chunks == 1


def _moved(digits: Sequence[Digit], dim: str) -> list[str]:
    return [d.name if m.by == 1 else f"{d.name} * {m.by}" for d in digits for m in d.moves if m.dim == dim]


def _row_bounds(walk: Walk, rows: Mapping[str, str], scope: lowering.Scope) -> tuple[RowBound, ...]:
    """`rows` is the C text of the row's part of each coordinate."""
    found: list[RowBound] = []
    for b in walk.bounds:
        if b.row is not None:
            ((digit, by),) = [(d, m.by) for d in walk.digits for m in d.moves if m.dim == b.dim] or [
                (Digit("", 1, 0), 0)
            ]
            bit = " + ".join(before.taps for before in found)
            name, taps = lowering.coordinate_name(b.dim), digit.constant or str(digit.extent)
            found.append(RowBound(name, rows[b.dim], _extent(b, scope), digit.name, digit.extent, taps, by, bit))
    return tuple(found)


def _extent(bound: Bound, scope: lowering.Scope) -> str:
    """C text of a bound's extent, in a product or a comparison."""
    size = isinstance(bound.extent, Size)
    return lowering.factor(bound.extent) if size else scope.extent(bound.dim, bound.extent)


def _wanted(bounds: Sequence[RowBound], outermost: Digit) -> str:
    """The bits of this step's taps, where one word of them takes the place of several coordinates."""
    if len(bounds) < 2 or sum(b.count for b in bounds) > TAP_BITS:
        return ""
    terms = []
    for b in bounds:
        # past the end of gemm_k the outermost digit goes on
        last = b.count - 1 if b.taps.isdecimal() else f"{b.taps} - 1"
        digit = f"min({b.digit}, {last})" if b.digit == outermost.name else b.digit
        bit = " + ".join(filter(None, (digit, b.bit)))
        terms.append(f"1u << {f'({bit})' if ' + ' in bit else bit}" if bit else "1u")
    return " | ".join(terms)


@dataclass(frozen=True)
class Row:
    """C text of where a row lies: its number's name, lines that name its coordinates, its offset, its bounds."""

    index: str
    coordinates: tuple[str, ...]
    offset: str
    bounds: tuple[RowBound, ...]


def row_text(problem: ConvProblem, walk: Walk, role: str, index: str, constant: int, constants: Constants) -> Row:
    """`constant` is left out of the offset."""
    scope = lowering.Scope(index, limited=bool(problem.dynamic), constants=constants)
    scope.ranges |= walk.ranges  # also of a phase's numbers
    group = scope.declare("group", problem.groups)
    if role == "x":
        name = "gemm_m"
        dims = pixel_dims(problem)
        extents = [walk.extents[d] for d in dims]
        m = scope.declare(name, math.prod(extents))
        of_phase = any(walk.extents[d] is not problem.extent(d) and walk.extents[d] != problem.extent(d) for d in dims)
        at = lowering.coordinates(scope, m, dims, extents, walk_name if of_phase else extent_name)
    else:
        name = "gemm_n"
        at = {"k_in_group": scope.declare(name, problem.k_per_group)}
    values: dict[Expr, Expr] = {symbol(d): e for d, e in {**at, "g": group}.items()}
    strides = constants.strides(walk.tensor, problem.groups)
    offset = scope.text((walk.row - size_number(constant)).subs(values), strides)
    bounds = _row_bounds(walk, {b.dim: scope.text(b.row.subs(values)) for b in walk.bounds if b.row is not None}, scope)
    coordinates = lowering.drop_unused(scope.take(), "\n".join([offset, *(b.row for b in bounds)]))
    return Row(name, tuple(coordinates), offset, bounds)


def inside_k(walk: Walk, past_end: bool) -> tuple[str, ...]:
    """Conditions on gemm_k alone under which there is an element."""
    first = walk.digits[0]
    within = (f"{' + '.join(_moved(walk.digits, b.dim))} < {b.extent}" for b in walk.bounds if b.row is None)
    return (*([f"{first.name} < {first.limit}"] if past_end else []), *within)


def k_index_type(walk: Walk, beyond: int, index: str) -> str:
    """C type of offsets along gemm_k; threads step up to `beyond` places past its end."""
    outermost, *inner = walk.digits
    least = math.prod(1 if d.end else d.extent for d in inner)
    reach = sum(d.extent * abs(d.step) for d in walk.digits) - (-beyond // least) * abs(outermost.step)
    return "int" if reach < lowering.INT_LIMIT else index


def reader(
    problem: ConvProblem, walk: Walk, role: str, tile: Tile, covered: int, beyond: int, split_k: int, past_end: bool,
    permuted: bool,
) -> Reader:  # fmt: skip
    """The reader of a tile.  `covered` is how much of gemm_k one part steps over, `beyond` how far threads may step
    past its end, `past_end` whether some step of a part does; `permuted` tells that the tile's rows are the product's
    columns, dealt out by `column_of`."""
    # long: a line for each value of the record
    size = tile.element_bytes
    chunk_elements = CHUNK_BYTES // size
    loads = loading(walk, tile)
    mine, piece = loads.share, loads.piece

    index = lowering.index_type(problem, ())
    # offsets that cannot be negative become addresses in fewer instructions and registers
    steps, constant = [step for e, step in walk.of_row.items() if e != 1], walk.of_row.get(Integer(1), 0)
    unsigned = loads.asynchronous and index == "int" and min(steps, default=0) >= 0
    constants = Constants()
    digits, strides = named_digits(problem, walk, constants), constants.strides(walk.tensor, problem.groups)
    row = row_text(problem, replace(walk, digits=digits), role, index, constant if unsigned else 0, constants)
    pieces = chunk_elements // piece
    first_scope = lowering.Scope("int", constants=constants)
    first = first_scope.declare(
        "first_piece" if loads.dealt else "first_chunk", covered * split_k if split_k > 1 else tile.k
    )
    for name, value in (*mine.named.items(), ("chunk_pieces", pieces)):
        constants.number(name, value)
    wanted = _wanted(row.bounds, digits[0]) if loads.asynchronous else ""
    row_inside = [
        f"u32({' + '.join([f'{b.name}[i]', *_moved(digits, dim)])}) < {b.extent}"
        for dim, b in zip((b.dim for b in walk.bounds if b.row is not None), row.bounds, strict=True)
    ]
    k_index = k_index_type(walk, beyond, index)
    even = loads.asynchronous and pieces == mine.chunks == 1
    even = even and not digits[-1].moves and not digits[-1].end and digits[-1].extent % tile.k == 0
    piece_jump = piece * (tile.chunks if loads.dealt else 1)
    chunk_jump = mine.chunk_stride * chunk_elements - (chunk_elements if pieces > 1 else 0)
    tensor = problem.tensor(role)
    c_type = bits_type(tensor.element)
    how = f"cp.async of {piece * size} bytes" if loads.asynchronous else f"elements, {piece} at a time"
    what = "pixels" if role == "x" else "output channels"
    made = Reader(
        name=role,
        doc=f"{role}: {tile.rows} {what} by {tile.k} of gemm_k; {how}",
        index=index,
        row_type="u32" if unsigned else index,
        bits_type=c_type,
        source=as_bits(tensor, c_type),
        element_bytes=size,
        asynchronous=loads.asynchronous,
        piece=piece,
        element_step=lowering.factor(digits[-1].step, strides),
        chunk_elements=chunk_elements,
        share=mine,
        dealt=loads.dealt,
        even=even,
        row_index=row.index,
        permuted=permuted,
        coordinates=row.coordinates,
        row_offset=row.offset,
        bounds=row.bounds if wanted else tuple(replace(b, taps="", bit="") for b in row.bounds),
        digits=digits,
        digits_at_start=first_digits(digits, first, first_scope),
        k_index=k_index,
        k_offset=digit_offset(digits, k_index, constant if unsigned else 0, strides),
        k_inside=inside_k(replace(walk, digits=digits), past_end),
        row_inside=("(taps[i] & wanted) == wanted",) if wanted else tuple(row_inside),
        wanted=wanted,
        next_piece=advance(digits, number(digits, piece_jump)) if pieces > 1 else (),
        next_chunk=advance(digits, number(digits, chunk_jump)) if mine.chunks > 1 else (),
        next_step=advance(digits, number(digits, tile.k), {tile.k: "tile_k"}),
        grouped=problem.groups > 1,
        split=split_k > 1,
        constants=(),
    )
    text = f"{replace(made, digits=(), share=replace(mine, named={}))} {mine.chunk_of_j} {made.place}"
    return replace(made, constants=constants.within(text))
