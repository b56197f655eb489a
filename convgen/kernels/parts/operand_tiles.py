"""Operands shaped like the result (residuals, masks, gates), which arrive as tiles.

TMA brings them to shared memory by the epilogue tiles that y leaves in, while the tensor cores work.  A thread reads
there what goes with its accumulators: elements of 2 bytes by ldmatrix, from the places that stmatrix writes of y's
epilogue tile; bytes of fragments that lie across rows by ldmatrix and shuffles; others one by one, or in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from convgen.ir.plan import Param, TensorMap
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor
from convgen.kernels.parts import swizzle as swizzles
from convgen.kernels.parts.hopper import ROW_ALIGNMENT, lies_as
from convgen.kernels.parts.lowering import ACCESS, decode, used_operands

#: Bytes of a multiprocessor's operands in flight: memory answers after a microsecond, and these arrive in one.
IN_FLIGHT = 32 << 10
MOST_SLOTS = 8
LEAST_ASYNC_BYTES = 4  # of cp.async
#: Functions that load a pair of such elements from shared memory.
PAIR_LOADS = {1: "ld_shared_u16", 4: "ld_shared_u64"}


@dataclass(frozen=True)
class EpilogueTile:
    """A part of y, or of a tensor that lies as y does, in shared memory: `rows` of `columns` neighbors each.

    TMA moves boxes no wider than a swizzle's span; they lie one after the other.  `start`: byte of a slot, which has
    an epilogue tile of each operand."""

    tensor: Tensor
    rows: int
    columns: int
    start: int = 0

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.tensor.element.bytes

    @property
    def span(self) -> int:
        """Bytes of a box's row."""
        row = self.columns * self.size
        return min(row, 128) if self.columns in (16, 32, 64) else row

    @property
    def swizzle(self) -> int:
        return self.span if self.columns in (16, 32, 64) and self.span in swizzles.SPANS else 0

    @property
    def box_columns(self) -> int:
        return self.span // self.size

    @property
    def boxes(self) -> tuple[tuple[int, int], ...]:
        """The first column of each box, and its byte of the slot."""
        count = self.columns // self.box_columns
        return tuple((i * self.box_columns, self.start + i * self.rows * self.span) for i in range(count))

    @property
    def bytes(self) -> int:
        return self.rows * self.columns * self.size

    @property
    def place(self) -> str:
        """C text: the byte of the epilogue tile at which element (row, column) is."""
        vector = 16 // self.size
        box = f"column / {self.box_columns} * {self.rows * self.span} + " if self.box_columns < self.columns else ""
        column = f"column % {self.box_columns}" if box else "column"
        swizzle = swizzles.applied(self.swizzle)
        unit = f"({column} / {vector}{swizzle}) * chunk_bytes + column % {vector}" if swizzle else column
        return f"{box}row * {self.span} + {unit}" + (f" * {self.size}" if self.size > 1 else "")

    def map(self, problem: ConvProblem, plane: int) -> TensorMap:
        """Boxes of the matrix [pixels, channels] or, where channels lie in planes of so many pixels, of [n, channels,
        plane]."""
        t, size, k = self.tensor, self.size, problem.k
        if plane:
            return TensorMap(
                t.buffer, "tiled", t.dtype, (plane, k, problem.n), (plane * size, k * plane * size), (1, 1, 1),
                box=(self.box_columns, self.rows, 1), swizzle=self.swizzle,
            )  # fmt: skip
        return TensorMap(
            t.buffer, "tiled", t.dtype, (k, problem.output_pixels), ((t.pitch or k) * size,), (1, 1),
            box=(self.box_columns, self.rows), swizzle=self.swizzle,
        )  # fmt: skip


def swizzle(columns: int) -> str:
    """C text that swizzles the 16-byte columns of row {row} in a tile with so many 2-byte elements per row."""
    return swizzles.applied(2 * columns, "{row}") if 2 * columns in swizzles.SPANS else ""


@lru_cache(maxsize=64)
def shaped(problem: ConvProblem) -> tuple[Tensor, ...]:
    """The operands that lie as y does; one of channels alone is read as such, also where y has no more than that."""
    if problem.epilogue is None:
        return ()
    return tuple(
        t
        for t in used_operands(problem)
        if t.dims != ("k",) and t.size == problem.y.size and lies_as(t, problem.y.dims)
    )


def epi_tiles(tensors: Iterable[Tensor], rows: int, columns: int, first: int = 0) -> tuple[EpilogueTile, ...]:
    """A slot's epilogue tiles of tensors, one after the other from byte `first` on."""
    found: list[EpilogueTile] = []
    for t in tensors:
        found.append(EpilogueTile(t, rows, columns, start=first + sum(c.bytes for c in found)))
    return tuple(found)


@lru_cache(maxsize=1024)  # many configurations of a search share one
def boxes(problem: ConvProblem, row: int, rows: int, columns: int) -> tuple[EpilogueTile, ...]:
    """Epilogue tiles of the operands that TMA can load; rows of packed ones have `row` elements."""

    def aligned(t: Tensor) -> bool:
        apart = (t.pitch or row) * t.element.bytes
        return apart % ROW_ALIGNMENT == columns * t.element.bytes % ROW_ALIGNMENT == 0

    return epi_tiles(filter(aligned, shaped(problem)), rows, columns)


@lru_cache(maxsize=1024)
def copied(problem: ConvProblem, vector: int, rows: int, columns: int) -> tuple[EpilogueTile, ...]:
    """Epilogue tiles of the operands that threads can copy; rows of y begin at multiples of `vector` elements."""
    wide = (t for t in shaped(problem) if at_once(t, vector) * t.element.bytes >= LEAST_ASYNC_BYTES)
    return epi_tiles(wide, rows, columns)


def at_once(t: Tensor, vector: int) -> int:
    """Elements that a thread copies at once."""
    return math.gcd(min(vector, 16 // t.element.bytes), t.pitch or 0)


def slots(epi_tiles: Sequence[EpilogueTile], consumers: int) -> int:
    """Slots of each of a multiprocessor's consumers: two, or more where epilogue tiles are small."""
    one = consumers * sum(c.bytes for c in epi_tiles)
    return max(2, min(IN_FLIGHT // one, MOST_SLOTS)) if epi_tiles else 0


@dataclass(frozen=True)
class Arriving:
    """Finished text of an operand that arrives in epilogue tiles: elements of `size` bytes, of which threads copy
    `vector` at once, `row_vectors` times for a row of the epilogue tile; an element's offset in memory; the byte of the
    slot at which its tile starts; boxes (first column, byte of the slot); the byte of its tile at which element (row,
    column) is; lines that define the epilogue's `value_<name>`; whether bytes come transposed, four accumulators' in a
    word."""

    name: str
    size: int
    vector: int
    row_vectors: int
    offset: str
    start: int
    boxes: tuple[tuple[int, int], ...]
    place: str
    values: tuple[str, ...]
    across: bool

    @property
    def bytes(self) -> int:
        """Bytes that a thread copies at once."""
        return self.size * self.vector

    @property
    def at(self) -> str:
        """C text of where its tile begins in a slot: a constant, unless it is the first tile."""
        return f"operand_{self.name}_at" if self.start else ""

    @property
    def places(self) -> list[tuple[int, str]]:
        """The first column of each box, and C text of where it begins in a slot."""
        return [
            (first, " + ".join(filter(None, (self.at, str(byte - self.start or ""))))) for first, byte in self.boxes
        ]

    @property
    def rows_at_once(self) -> int:
        """Rows of an epilogue tile that a consumer's threads copy at once."""
        return 128 // self.row_vectors

    @property
    def as_y(self) -> bool:
        """Whether ldmatrix reads it where stmatrix writes y."""
        return self.size == 2


def text(
    epi_tiles: Sequence[EpilogueTile], vector: int, offset: Callable[[Tensor], str], single: bool, transposed: bool
) -> list[Arriving]:
    """For accumulators one by one (`single`), or by the pair.  `vector`: neighbors that are aligned wherever a row of
    y begins; `offset`: C text of where an element is in memory; `transposed`: fragments lie across an epilogue tile's
    rows."""
    values = _single if single else _pair

    def arriving(c: EpilogueTile) -> Arriving:
        copied = at_once(c.tensor, vector)
        across = transposed and c.size == 1
        return Arriving(
            c.name, c.size, copied, c.columns // max(copied, 1), offset(c.tensor), c.start, c.boxes, c.place,
            values(c, transposed), across,
        )  # fmt: skip

    return [arriving(c) for c in epi_tiles]


def _pair(epi_tile: EpilogueTile, transposed: bool) -> tuple[str, ...]:
    """Lines that define `value_<name>[2]`, for pair `e` of accumulators: row `fragment_row` and column
    `fragment_column` of a fragment, and the next column."""
    name, bits, lines = epi_tile.name, f"bits_{epi_tile.name}", []
    if epi_tile.size == 2:
        halves = [f"{bits}[e]", f"{bits}[e] >> 16"]
    elif transposed and epi_tile.size == 1:
        halves = [f"{bits}[e / 2] >> {place}" for place in ("e % 2 * 16", "(e % 2 * 16 + 8)")]
    elif transposed:
        halves = [_element(epi_tile, column, "fragment_row") for column in ("fragment_column", "fragment_column + 1")]
    else:
        load = f"{PAIR_LOADS[epi_tile.size]}(tile_{name} + place_{name}(fragment_row, fragment_column))"
        lines.append(f"const {ACCESS[2 * epi_tile.size]} {bits} = {load};")
        halves = [f"u32({bits})", f"u32({bits} >> {8 * epi_tile.size})"]
    first, second = (decode(epi_tile.tensor.dtype, half, "f32") for half in halves)
    start = f"const float value_{name}[2] = {{"
    return (*lines, f"{start}{first},", f"{' ' * len(start)}{second}}};")


def _single(epi_tile: EpilogueTile, transposed: bool) -> tuple[str, ...]:
    """Lines that define `value_<name>`, for accumulator `e`."""
    at = ("fragment_column", "fragment_row") if transposed else ("fragment_row", "fragment_column")
    words = {2: "[e / 2] >> e % 2 * 16"} | ({1: "[e / 4] >> e % 4 * 8"} if transposed else {})
    bits = f"bits_{epi_tile.name}{words[epi_tile.size]}" if epi_tile.size in words else _element(epi_tile, *at)
    return (f"const float value_{epi_tile.name} = {decode(epi_tile.tensor.dtype, bits, 'f32')};",)


def _element(epi_tile: EpilogueTile, row: str, column: str) -> str:
    """C text: the bits of an element."""
    tile = f"tile_{epi_tile.name} + place_{epi_tile.name}"
    if epi_tile.size == 4:
        return f"ld_shared_u32({tile}({row}, {column}))"
    return f"ld_shared_u8({tile}({row}, {column}))"


def params(problem: ConvProblem, epi_tiles: Sequence[EpilogueTile], plane: int) -> list[Param]:
    """Kernel parameters of operands and further results: tensor maps of those that pass as tiles, pointers of the
    others."""
    maps = {c.name: c.map(problem, plane) for c in epi_tiles}
    return [
        replace(p, name=f"{p.name}_map", kind="tensor_map", map=maps[p.buffer]) if p.buffer in maps else p
        for p in pointers(problem)
    ]


def pointers(problem: ConvProblem) -> list[Param]:
    """Pointers to operands and further results."""
    return [Param(f"{t.role}_{t.name}", "pointer", t.name) for t in (*problem.operands, *problem.elementwise)]
