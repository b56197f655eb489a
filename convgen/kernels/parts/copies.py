"""Copies that rearrange an operand, and the kernel that makes them.

A copy in which other dims than the channels are innermost goes through shared memory, transposed tile by
tile (`Transpose`); every other copy gathers, element by element (`gathers.Gather`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

from sympy import Expr, Integer

from convgen.codegen.c_expr import Names, c_expr
from convgen.ir import integer
from convgen.ir.index_map import decompose
from convgen.ir.integer import floordiv, mod, symbol
from convgen.ir.problem import Padding
from convgen.ir.tensor import Tensor
from convgen.kernels.parts.constants import Constants, Definition, extent_name
from convgen.kernels.parts.lowering import ACCESS, INT_LIMIT, factor

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
    """A rearranged operand.  An element of `target` is the element of `source` at the same coordinates, but for the
    channel, which is `channel`, a formula of the target's dims, zero where the source has no such channel; for the
    source's dims of `places`, which have formulas like it; for the dims of `steps`, of which only every so many-th is
    kept; and for those of `low`, which have so much `padding` before the source's first element.  The target's channels
    are innermost, a multiple of VECTOR.  The channel's dim is c, of y's gradient, too.  Where there are `taps`, a
    pixel's channels are those of several pixels of the source, one behind the other, zeros for those that lie outside.
    Formulas of channels name a `group`'s input and output channels, and how many groups are packed."""

    source: Tensor
    target: Tensor
    channel: Expr = field(default_factory=lambda: symbol("c"))
    _: KW_ONLY
    places: tuple[tuple[str, Expr], ...] = ()
    steps: tuple[tuple[str, int], ...] = ()
    padding: Padding = Padding.ZERO
    low: tuple[tuple[str, int], ...] = ()
    taps: Taps | None = None
    group: tuple[int, int, int] = (1, 1, 1)

    def position(self, dim: str) -> Expr:
        """Where an element of the target stands along a dim of the source, which it may lie beyond."""
        first = dict(self.places).get(dim, symbol(dim)) * self.step(dim) - dict(self.low).get(dim, 0)
        if self.taps is None or dim != self.taps.dim:
            return first
        return first + floordiv(symbol("c"), Integer(self.source.extent("c"))) * self.taps.dilation

    @property
    def scattered(self) -> bool:
        """Whether it gathers channels that are no neighbors in the source."""
        return bool(self.low or self.places) and self.source.long_dims[-1:] != ("c",)

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


@dataclass(frozen=True)
class Transpose:
    """A copy that transposes tiles of `tile_rows` channels by `tile_columns` elements of the source's innermost dims.
    `whole` tiles hold all columns of their channels, which are one run of the source; others hold rows of their own,
    16-byte chunks swizzled by the channel.  Offsets are C text over `batch`, and over `pixel`, a column; `kept` tests
    whether a column is copied, `loaded` whether any of its vector is."""

    copy: Copy
    rows: int  # channels of the source
    padded: int  # channels of the target
    columns: int
    whole: bool
    tile_rows: int
    tile_columns: int
    vector: int  # elements of a load
    index: str
    batches: int
    row_stride: str  # C text: elements of the source from channel to channel
    source_offset: str
    target_offset: str
    column_offset: str
    kept: str
    loaded: str
    constants: tuple[Definition, ...]  # definitions of those that these mention

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
            return WORDS + 1  # a column's channels lie in different banks
        return self.columns if self.whole else -(-self.tile_columns // 64) * 64

    @property
    def row_tiles(self) -> int:
        return -(-self.padded // self.tile_rows)

    @property
    def column_tiles(self) -> int:
        return -(-self.columns // self.tile_columns)

    @property
    def spans(self) -> str:
        """C text of the tiles of a batch; empty where it is one."""
        tiles = {"channel_tiles": self.row_tiles, "column_tiles": self.column_tiles}
        text = " * ".join(name for name, count in tiles.items() if count > 1)
        return f"({text})" if " " in text else text

    @property
    def pitch_bytes(self) -> int:
        return self.pitch * self.copy.source.element.bytes

    @property
    def warps(self) -> int:
        """Rows, or columns, of a tile that a block's threads take at once."""
        return THREADS // self.tile_columns

    @property
    def tests(self) -> list[str]:
        """C text of the conditions under which channel c of a column is copied."""
        rows = [f"c0 + c < {self.end}"] if self.row_tail else []
        columns = ["pixel < columns"] if self.columns % self.tile_columns else []
        return [*rows, *columns, *([self.kept] if self.kept else [])]

    @property
    def row_tail(self) -> bool:
        """Whether the last tile has fewer channels."""
        return self.padded % self.tile_rows > 0

    @property
    def end(self) -> str:
        """C text of the channels of the target."""
        return "channels" if self.rows == self.padded else "target_channels"

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
    """The transpose for a copy of 2-byte elements, or of 4-byte ones without steps.  None if the channels are innermost
    in the source or not a plain dim of it, if padding is added, or if other dims have their own places."""
    source, target = copy.source, copy.target
    live = source.long_dims
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
    tested = not whole and source.extent(inner[-1]) % vector == 0
    return Transpose(
        copy, rows, padded, columns, whole, tile_rows, tile_columns, vector, index, batches,
        *_texts(copy, inner, outer, index, tested),
    )  # fmt: skip


def _texts(
    copy: Copy, inner: list[str], outer: list[str], index: str, tested: bool
) -> tuple[str, str, str, str, str, str, tuple[Definition, ...]]:
    """The last fields of Transpose; vectors are `tested` before they are loaded."""
    source, target = copy.source, copy.target
    pixel = decompose(symbol("pixel"), inner, lambda d: Integer(source.extent(d)))
    batch = decompose(symbol("batch"), outer, lambda d: Integer(target.extent(d)))
    last = {"batch": math.prod(map(target.extent, outer)) - 1, "pixel": math.prod(map(source.extent, inner)) - 1}
    ranges = {symbol(name): (0, max(end, 0)) for name, end in last.items()}
    kept = [mod(pixel[d], Integer(copy.step(d))) for d in inner if copy.step(d) > 1]
    loaded = kept[:-1] if copy.step(inner[-1]) > 1 else kept
    constants = Constants()
    of_pixel = constants.of_index(inner, source.extent)
    of_batch = constants.of_index(outer, target.extent, partial(target_name, copy))
    of_source, to_target = (
        partial(constants.strides, tensor, name=name) for tensor, name in ((source, "source"), (target, "target"))
    )

    def text(terms: Iterable[Expr], names: Names) -> str:
        return c_expr(integer.simplify(sum(terms, Integer(0)), ranges), ranges, index, names)

    def tests(steps: Iterable[Expr]) -> str:
        return " && ".join(f"{text([step], of_pixel)} == 0" for step in steps)

    row_stride = factor(source.stride("c"), of_source()) if source.extent("c") > 1 else "columns"
    if index != "int" and (row_stride.isdecimal() or row_stride == "columns"):
        row_stride = f"({index}){row_stride}"
    return (
        row_stride,
        text((batch[d] * copy.step(d) * source.stride(d) for d in outer), of_source(index=of_batch)),
        text((batch[d] * target.stride(d) for d in outer), to_target(index=of_batch)),
        text((floordiv(pixel[d], Integer(copy.step(d))) * target.stride(d) for d in inner), to_target(index=of_pixel)),
        tests(kept),
        tests(loaded if tested else []),
        constants.all,
    )


def target_name(copy: Copy, dim: str) -> str:
    """The name of an extent of the target, which may differ from the source's."""
    return extent_name(dim) if copy.source.extent(dim) == copy.target.extent(dim) else f"target_{dim}"


def _even(extent: int, most: int) -> int:
    """The length of a part, of as few parts as hold `extent` in parts of at most `most`, in multiples of VECTOR."""
    return -(-extent // (-(-extent // most) * VECTOR)) * VECTOR
