"""Copies that rearrange an operand, and the kernel that makes them.

A copy in which other dims than the channels are innermost goes through shared memory, transposed tile by
tile (`Transpose`); every other copy gathers, element by element (`Gather`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field

from sympy import Expr, Integer

from convgen.codegen.c_expr import c_expr
from convgen.ir import integer
from convgen.ir.index_map import Access, decompose
from convgen.ir.integer import Ranges, floordiv, mod, symbol
from convgen.ir.padding import pixel_at
from convgen.ir.problem import Padding
from convgen.ir.tensor import Tensor
from convgen.kernels.parts.lowering import ACCESS, CONVERSIONS, INT_LIMIT

THREADS = 256
VECTOR = 8  # elements of 16 bytes
#: Elements of a tile: 16 KB, eight blocks a multiprocessor.
TILE = 8192
#: Channels of a transposed tile: a pixel's part is four sectors.
TILE_ROWS = 64
#: Elements of a tile of whole planes, at most: 48 KB.
WHOLE_TILE = 24576
#: Channels, and columns, of a tile of 4-byte elements.
WORDS = 32
#: Vectors that a thread loads before it stores them.
IN_FLIGHT = 8


@dataclass(frozen=True)
class Taps:
    """So many pixels along a dim, so far apart."""

    dim: str
    count: int
    dilation: int


@dataclass(frozen=True)
class Copy:
    """An operand laid out anew.  An element of `target` is the element of `source` at the same coordinates,
    but for the channel, which is `channel`, a formula of the target's dims, zero where the source has no such
    channel; for the source's dims of `places`, which have formulas like it; for the dims of `steps`, of which only
    every so many-th is kept; and for those of `low`, which have so much `padding` before the source's first element.
    The target's channels are innermost, a multiple of VECTOR.  The channel's dim is c, of y's gradient, too.  Where
    there are `taps`, a pixel's channels are those of several pixels of the source, one behind the other, zeros for
    those that lie outside."""

    source: Tensor
    target: Tensor
    channel: Expr = field(default_factory=lambda: symbol("c"))
    _: KW_ONLY
    places: tuple[tuple[str, Expr], ...] = ()
    steps: tuple[tuple[str, int], ...] = ()
    padding: Padding = Padding.ZERO
    low: tuple[tuple[str, int], ...] = ()
    taps: Taps | None = None

    def position(self, dim: str) -> Expr:
        """Where an element of the target stands along a dim of the source, which it may lie beyond."""
        first = dict(self.places).get(dim, symbol(dim)) * self.step(dim) - dict(self.low).get(dim, 0)
        if self.taps is None or dim != self.taps.dim:
            return first
        return first + floordiv(symbol("c"), Integer(self.source.extent("c"))) * self.taps.dilation

    @property
    def scattered(self) -> bool:
        """Whether it gathers channels that are no neighbors in the source."""
        return bool(self.low or self.places) and _live(self.source)[-1:] != ["c"]

    def step(self, dim: str) -> int:
        return dict(self.steps).get(dim, 1)

    @property
    def buffer(self) -> str:
        return f"workspace.{self.target.role}"

    @property
    def bytes(self) -> int:
        """Read and written; rows that are not kept are not read."""
        skipped = () if self.taps else self.steps
        rows = math.prod(step for dim, step in skipped if dim != self.source.dims[-1])
        return self.source.bytes // rows + self.target.bytes

    def __str__(self) -> str:
        own = self.source.extent("c") * (self.taps.count if self.taps else 1)
        filled = self.target.extent("c") - own
        zeros = f", {filled} channels of zeros" if filled > 0 else ""
        if self.taps:
            zeros = f", the {self.taps.count} taps along {self.taps.dim} as channels{zeros}"
        elif self.channel != symbol("c"):
            zeros = f", {self.source.extent('c')} channels of {self.target.extent('c')}, zeros for the other groups'"
        kept = "".join(f", every {step}. {dim}" for dim, step in self.steps if step > 1)
        padded = f", padded by {self.padding}" if self.low and not self.taps else ""
        before, after = (" ".join(t.dims).replace("c", self.called) for t in (self.source, self.target))
        return f"{self.source.name} from {before} to {after}{zeros}{kept}{padded}"

    @property
    def called(self) -> str:
        """The channel's dim in the language."""
        return "k" if self.source.role == "y" else "c"


def _live(tensor: Tensor) -> list[str]:
    return [d for d in tensor.dims if tensor.extent(d) > 1]


@dataclass(frozen=True)
class Transpose:
    """A copy that turns tiles of `tile_rows` channels by `tile_columns` elements of the source's innermost
    dims.  `whole` tiles hold all columns of their channels, which are one run of the source; others hold
    rows of their own, 16-byte chunks swizzled by the channel.  Offsets are C text over `batch`, and over
    `pixel`, a column; `kept` tests whether a column is copied, `loaded` whether any of its vector is."""

    copy: Copy
    rows: int  # channels of the source
    padded: int  # channels of the target
    columns: int
    row_stride: int  # elements of the source from channel to channel
    whole: bool
    tile_rows: int
    tile_columns: int
    vector: int  # elements of a load
    index: str
    batches: int
    source_offset: str
    target_offset: str
    column_offset: str
    kept: str
    loaded: str

    @property
    def words(self) -> bool:
        """Whether elements have 4 bytes."""
        return self.copy.source.element.bytes == 4

    @property
    def template(self) -> str:
        return "transpose_words" if self.words else "transpose"

    @property
    def type(self) -> str:
        """C type of a load."""
        return ACCESS[self.copy.source.element.bytes * self.vector]

    @property
    def pitch(self) -> int:
        """Elements from channel to channel in shared memory."""
        if self.words:
            return WORDS + 1  # a column's channels lie in banks of their own
        return self.columns if self.whole else -(-self.tile_columns // 64) * 64

    @property
    def row_tiles(self) -> int:
        return -(-self.padded // self.tile_rows)

    @property
    def column_tiles(self) -> int:
        return -(-self.columns // self.tile_columns)

    @property
    def spans(self) -> int:
        """Tiles of a batch."""
        return self.row_tiles * self.column_tiles

    @property
    def pitch_bytes(self) -> int:
        return self.pitch * self.copy.source.element.bytes

    @property
    def warps(self) -> int:
        """Rows, or columns, of a tile that a block's threads take at once."""
        return THREADS // self.tile_columns

    @property
    def tests(self) -> list[str]:
        """C text: what holds where channel c of a column is copied."""
        rows = [f"c0 + c < {self.padded}"] if self.padded % self.tile_rows else []
        columns = ["pixel < columns"] if self.columns % self.tile_columns else []
        return [*rows, *columns, *([self.kept] if self.kept else [])]

    @property
    def groups(self) -> int:
        return self.tile_rows // VECTOR

    @property
    def loads(self) -> int:
        """Vectors of a tile."""
        return -(-self.tile_rows * self.tile_columns // self.vector)

    @property
    def in_flight(self) -> int:
        return min(-(-self.loads // THREADS), IN_FLIGHT)

    @property
    def blocks(self) -> int:
        return self.batches * self.row_tiles * self.column_tiles

    @property
    def shared_bytes(self) -> int:
        return self.copy.source.element.bytes * self.tile_rows * self.pitch


def transpose(copy: Copy) -> Transpose | None:
    """None where the channels are innermost in the source, or no plain dim of it, and where padding is added or other
    dims have places of their own.  Of 2-byte elements, or of 4-byte ones without steps."""
    source, target = copy.source, copy.target
    live = _live(source)
    if copy.channel != symbol("c") or copy.low or copy.places:
        return None
    if not live or live[-1] == "c" or source.stride(live[-1]) > 1:
        return None
    inner = [live[-1]]  # the source's innermost dims that are neighbors in the target too
    order = [d for d in target.dims if source.extent(d) > 1]
    for dim in reversed(live[:-1]):
        if dim == "c" or source.pitch or order[order.index(inner[0]) - 1 : order.index(inner[0])] != [dim]:
            break
        inner.insert(0, dim)
    outer = [d for d in order if d not in inner and d != "c"]
    rows, padded, columns = source.extent("c"), target.extent("c"), math.prod(map(source.extent, inner))
    row_stride = source.stride("c") if rows > 1 else columns
    strides = [source.stride(d) * copy.step(d) for d in outer]
    vector = math.gcd(VECTOR, columns, row_stride, *strides)
    least_rows = min(padded, 32)
    whole = row_stride == columns and (vector < 4 or columns < 64) and columns * least_rows <= WHOLE_TILE
    if source.element.bytes == 4:
        whole, vector, tile_rows, tile_columns = False, 1, WORDS, WORDS
    elif whole:
        vector = math.gcd(VECTOR, rows * columns, *strides)
        tile_rows = _even(padded, max(TILE // columns // VECTOR * VECTOR, least_rows))
        tile_columns = columns
    else:
        tile_rows = _even(padded, TILE_ROWS)
        tile_columns = _even(columns, TILE // min(padded, TILE_ROWS))
    index = "int" if max(source.span, target.size) + TILE < INT_LIMIT else "long long"
    batches = math.prod(map(target.extent, outer))
    pixel = decompose(symbol("pixel"), inner, lambda d: Integer(source.extent(d)))
    kept = [mod(pixel[d], Integer(copy.step(d))) for d in inner if copy.step(d) > 1]
    loaded = kept[:-1] if copy.step(inner[-1]) > 1 else kept
    if whole or source.extent(inner[-1]) % vector:
        loaded = []
    batch = decompose(symbol("batch"), outer, lambda d: Integer(target.extent(d)))
    ranges = {symbol("batch"): (0, max(batches - 1, 0)), symbol("pixel"): (0, columns - 1)}

    def text(terms: Iterable[Expr]) -> str:
        return c_expr(integer.simplify(sum(terms, Integer(0)), ranges), ranges, index)

    def tests(steps: Iterable[Expr]) -> str:
        return " && ".join(f"{text([step])} == 0" for step in steps)

    return Transpose(
        copy, rows, padded, columns, row_stride, whole, tile_rows, tile_columns, vector, index, batches,
        text(batch[d] * copy.step(d) * source.stride(d) for d in outer),
        text(batch[d] * target.stride(d) for d in outer),
        text(floordiv(pixel[d], Integer(copy.step(d))) * target.stride(d) for d in inner),
        tests(kept), tests(loaded),
    )  # fmt: skip


def _even(extent: int, most: int) -> int:
    """The length of a part, of as few parts as hold `extent` in parts of at most `most`, in multiples of VECTOR."""
    return -(-extent // (-(-extent // most) * VECTOR)) * VECTOR


@dataclass(frozen=True)
class Gather:
    """A copy of which each thread makes one vector: C text of the coordinates, of the tests that the source
    has the channel, and of its element's offset.  Where the tests `inside` fail, the element is NaN."""

    copy: Copy
    index: str
    coordinates: tuple[tuple[str, str], ...]
    channel: str
    tests: tuple[str, ...]
    inside: tuple[str, ...]
    offset: str

    template = "gather"

    @property
    def nan(self) -> str:
        """Bits of NaN."""
        return CONVERSIONS[self.copy.source.dtype].nan

    @property
    def value(self) -> str:
        """C text of an element."""
        text = f"source[{self.offset}]"
        if self.inside:
            text = f"inside ? {text} : {self.nan}"
        if self.tests:
            return f"{' && '.join(self.tests)} ? {f'({text})' if self.inside else text} : 0"
        return text

    @property
    def vectors(self) -> int:
        return self.copy.target.size // VECTOR

    @property
    def blocks(self) -> int:
        return -(-self.vectors // THREADS)

    @property
    def shared_bytes(self) -> int:
        return 0


def gather(copy: Copy) -> Gather:
    source, target = copy.source, copy.target
    index = "int" if max(source.span, target.size) + THREADS * VECTOR < INT_LIMIT else "long long"
    extents = {d: target.extent(d) for d in target.dims}
    extents["c"] //= VECTOR
    number = symbol("number")
    ranges = {number: (0, target.size // VECTOR - 1)}
    at = decompose(number, target.dims, lambda d: Integer(extents[d]))
    coordinates = []
    for dim, value in at.items():
        value = value * VECTOR if dim == "c" else value
        name = "first" if dim == "c" else dim
        coordinates.append((name, c_expr(integer.simplify(value, ranges), ranges, index)))
    known = {symbol(d): (0, target.extent(d) - 1) for d in target.dims}
    low, high = integer.bounds(copy.channel, known)
    tests = ["channel >= 0"] * (low < 0) + [f"channel < {source.extent('c')}"] * (high >= source.extent("c"))
    tests += _of_taps(copy, known, index)
    channel = symbol("channel")
    known[channel] = (0, source.extent("c") - 1)
    own = integer.simplify(copy.channel, known)
    inside, padded = _inside(copy, known, index)
    pixel = {d: pixel_at(copy.padding, copy.position(d), Integer(source.extent(d))) for d in source.dims if d != "c"}
    place = integer.simplify(Access(source, {"c": channel, **pixel}).offset, known)
    used = {str(s) for s in (place.free_symbols | own.free_symbols)} | padded
    coordinates = [(d, text) for d, text in coordinates if d == "first" or d in used]
    return Gather(
        copy, index, tuple(coordinates[::-1]), c_expr(own, known, index), tuple(tests), inside,
        c_expr(place, known, index),
    )  # fmt: skip


def _of_taps(copy: Copy, known: Ranges, index: str) -> list[str]:
    """C text of the tests that a channel is that of a tap, and its pixel inside of the source."""
    taps, source = copy.taps, copy.source
    if taps is None:
        return []
    channels = taps.count * source.extent("c")
    last = [f"c < {channels}"] if copy.target.extent("c") > channels else []
    return last + _within(copy, taps.dim, {**known, symbol("c"): (0, channels - 1)}, index)


def _within(copy: Copy, dim: str, known: Ranges, index: str) -> list[str]:
    """C text of the tests that can fail of an element's position along a dim of the source."""
    low, high = integer.bounds(copy.position(dim), known)
    text, extent = c_expr(integer.simplify(copy.position(dim), known), known, index), copy.source.extent(dim)
    return [f"{text} >= 0"] * (low < 0) + [f"{text} < {extent}"] * (high >= extent)


def _inside(copy: Copy, known: Ranges, index: str) -> tuple[tuple[str, ...], set[str]]:
    """C text of the tests that an element is no padding, where that is NaN, and the dims that they name."""
    tests, dims = [], set()
    for dim, _ in copy.low if copy.padding is Padding.NAN else ():
        found = _within(copy, dim, known, index)
        tests += found
        dims |= {dim} if found else set()
    return tuple(tests), dims
