"""A tile of x or w on its way to shared memory: which thread loads what, and the text that does it.

A tile is rows of `TILE_K` elements in chunks of 16 bytes.  A thread owns a few chunks of a few rows.  Where
vectors of 4 bytes or more are contiguous and aligned it copies them with cp.async; where they are not it
gathers elements into registers while the step before is multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sympy import Expr, Integer

from convgen.codegen.c_expr import Names
from convgen.ir.formula import number as size_number
from convgen.ir.index_map import decompose
from convgen.ir.integer import symbol
from convgen.ir.problem import ConvProblem
from convgen.ir.size import Size
from convgen.kernels.parts import lowering
from convgen.kernels.parts.constants import Constants, Definition, extent_name, walk_name
from convgen.kernels.parts.mma import CHUNK_BYTES
from convgen.kernels.parts.output import as_bits, bits_type, pixel_dims
from convgen.kernels.parts.shares import Share, Tile, k_rows_share, share
from convgen.kernels.parts.walk import Bound, Digit, Walk, number

#: cp.async copies 4, 8 or 16 bytes.
LEAST_ASYNC_BYTES = 4
#: Of numbers that have no names.
NO_STEPS: Mapping[int, str] = {}
#: ldmatrix transposes matrices of elements of so many bytes.
TRANSPOSED_BYTES = 2


@dataclass(frozen=True)
class Loading:
    """How a tile is loaded: by cp.async or element by element, `piece` elements under one condition; whether
    elements that are loaded at the same time share sectors of memory; whether copies go along the tile's rows, which
    are neighbors, and not along gemm_k: the tile then lies in rows of gemm_k (`k_rows`); whether neighboring threads
    take neighboring rows, else neighbors along gemm_k."""

    asynchronous: bool
    piece: int
    share: Share
    together: bool
    k_rows: bool = False
    along_rows: bool = False


def loading(walk: Walk, tile: Tile) -> Loading:
    elements = CHUNK_BYTES // tile.element_bytes
    vector = min(walk.aligned, elements)
    # neighboring threads go along what is contiguous
    inner = walk.digits[-1]
    along_rows = inner.step != 1 and 1 in {abs(s) for s in walk.row_steps}
    if vector * tile.element_bytes >= LEAST_ASYNC_BYTES:
        return Loading(True, vector, share(tile, along_rows), True, along_rows=along_rows)
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
    def divisible(self) -> bool:
        """Whether its rows can be asked for at different times: each is one copy of a thread."""
        return self.asynchronous and self.pieces == self.share.chunks == 1


def advance(digits: Sequence[Digit], number: Sequence[int], names: Mapping[int, str] = NO_STEPS) -> tuple[str, ...]:
    """Lines that add a constant number to digits, with carries: no digit of it reaches its extent, so one
    subtraction a digit is enough, unless the extent is a phase's.  Numbers may have names."""
    lines: list[str] = []
    carry = often = False
    for i in range(len(digits) - 1, -1, -1):
        digit, add = digits[i], number[i]
        if add:
            lines.append(f"{digit.name} += {names.get(add, add)};")
        carry = i > 0 and (carry or add > 0)
        often = often or (add > 0 and digit.end != "")
        if carry:
            lines.append(_carried(digit, digits[i - 1], often))
    return tuple(lines)


def _carried(digit: Digit, outer: Digit, often: bool) -> str:
    """The line that carries from a digit to the one outside of it; `often` where it may have several of its extents."""
    how = "while" if often else "if"
    return f"{how} ({digit.name} >= {digit.limit}) {{ {digit.name} -= {digit.limit}; ++{outer.name}; }}"


def named_digits(problem: ConvProblem, walk: Walk, constants: Constants) -> tuple[Digit, ...]:
    """The walk's digits; those that are dims of the filter, or all channels of a group, have their extents' names."""
    channel = "c_in_group" if problem.groups > 1 else "c"
    dims = {"c": channel} | {f: f for f in problem.spatial.filter}
    extents = {d: problem.c_per_group if d == "c" else problem.extent(d) for d in dims}

    def named(digit: Digit) -> Digit:
        own = [d for d in digit.name if extents.get(d, 1) > 1]
        if digit.end or math.prod(extents[d] for d in own) != digit.extent:
            return digit
        return replace(digit, constant=" * ".join(constants.extent(dims[d], extents[d]) for d in own))

    return tuple(map(named, walk.digits))


def first_digits(digits: Sequence[Digit], first: Expr, scope: lowering.Scope) -> tuple[str, ...]:
    """Lines that make the digits of gemm_k's place `first`.  What goes beyond the digits of constant extents is carried
    among those whose extent is a phase's."""
    inside = max((i for i, d in enumerate(digits) if d.end), default=0)
    extents = {d.name: Integer(d.extent) for d in digits}
    found = {d.name: "0" for d in digits[:inside]}
    called = {d.name: f"({d.constant})" if " " in d.constant else d.constant for d in digits}
    inner = [d.name for d in digits[inside:]]
    names = scope.constants.of_index(inner, lambda name: int(extents[name]), called.__getitem__)
    places = decompose(first, inner, extents.__getitem__)
    found |= {name: scope.text(e, names) for name, e in places.items()}
    carries = range(inside, 0, -1) if found[digits[inside].name] != "0" else ()
    return (
        *(f"{name} = {text};" for name, text in found.items()),
        *(_carried(digits[i], digits[i - 1], True) for i in carries),
    )


def digit_offset(digits: Sequence[Digit], index: str, constant: int, names: Names) -> str:
    """C text of the offset that digits make; what is taken away comes last."""
    added = [(d.name, d.step) for d in digits if isinstance(d.step, Size) or d.step > 0]
    text = lowering.linear(added, index, names) if added else ""
    if isinstance(constant, Size):
        return f"{text or 0} + {lowering.factor(constant)}"
    parts = [text] * bool(text) + (names.summands(constant) if constant > 0 else [])
    taken = [
        lowering.linear([(d.name, -d.step)], index, names) for d in digits if (d.name, d.step) not in added and d.step
    ]
    taken += names.summands(-constant) if constant < 0 else []
    return " - ".join([" + ".join(parts) or "0", *taken])


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
    scope.ranges |= walk.ranges  # of a phase's numbers, too
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


def k_index_type(walk: Walk, tile: Tile, index: str) -> str:
    """C type of the offset that gemm_k makes; a tile may end behind gemm_k."""
    reach = sum(d.extent * abs(d.step) for d in walk.digits) * (1 + tile.k / walk.depth)
    return "int" if reach < lowering.INT_LIMIT else index


def reader(
    problem: ConvProblem, walk: Walk, role: str, tile: Tile, covered: int, split_k: int, past_end: bool, permuted: bool
) -> Reader:
    """`covered` is how much of gemm_k one part steps over, `past_end` whether some step goes beyond its end;
    `permuted` tells that the tile's rows are the product's columns, dealt out by `column_of`."""
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
    chunk_scope = lowering.Scope("int", constants=constants)
    first = chunk_scope.declare("first_chunk", covered * split_k if split_k > 1 else tile.k)
    for name, value in mine.named.items():
        constants.number(name, value)
    wanted = _wanted(row.bounds, digits[0]) if loads.asynchronous else ""
    row_inside = [
        f"u32({' + '.join([f'{b.name}[i]', *_moved(digits, dim)])}) < {b.extent}"
        for dim, b in zip((b.dim for b in walk.bounds if b.row is not None), row.bounds, strict=True)
    ]
    k_index = k_index_type(walk, tile, index)
    pieces = chunk_elements // piece
    even = loads.asynchronous and pieces == mine.chunks == 1
    even = even and not digits[-1].moves and not digits[-1].end and digits[-1].extent % tile.k == 0
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
        even=even,
        row_index=row.index,
        permuted=permuted,
        coordinates=row.coordinates,
        row_offset=row.offset,
        bounds=row.bounds if wanted else tuple(replace(b, taps="", bit="") for b in row.bounds),
        digits=digits,
        digits_at_start=first_digits(digits, first, chunk_scope),
        k_index=k_index,
        k_offset=digit_offset(digits, k_index, constant if unsigned else 0, strides),
        k_inside=inside_k(replace(walk, digits=digits), past_end),
        row_inside=("(taps[i] & wanted) == wanted",) if wanted else tuple(row_inside),
        wanted=wanted,
        next_piece=advance(digits, number(digits, piece)) if pieces > 1 else (),
        next_chunk=advance(digits, number(digits, chunk_jump)) if mine.chunks > 1 else (),
        next_step=advance(digits, number(digits, tile.k), {tile.k: "tile_k"}),
        grouped=problem.groups > 1,
        split=split_k > 1,
        constants=(),
    )
    text = f"{replace(made, digits=(), share=replace(mine, named={}))} {mine.chunk_of_j}"
    return replace(made, constants=constants.within(text))
