"""Whole input rows in shared memory, and the windows of output pixels in them.

Where a pixel has 3 channels, a tap is too short a run for 16-byte chunks, but a window's row is one run of
S * C contiguous elements (the multi-tile idea of "Characterizing and Demystifying the Implicit Convolution
Algorithm on Commercial Matrix-Multiplication Accelerators", section IV-B, along the row alone).  A block
copies the rows that its output pixels need, once, as they lie in memory; every lane then reads the 32-bit
words of its fragments straight from its pixel's window, so that nothing is lowered and nothing is loaded
twice.  Filters stay in shared memory for all of a block's tiles, dealt out as fragments want them.

A window begins anywhere, a word on a multiple of 4 bytes.  Windows that begin `shift` elements into a word
read filters that are shifted by as much: output columns fall into `phases` classes of equal shift.  With
channels in planes (NCHW) a run is S elements of one channel's row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from convgen.ir.problem import ConvProblem
from convgen.kernels import base
from convgen.kernels.parts import cost, line_cost, output
from convgen.kernels.parts.limits import WARP
from convgen.kernels.parts.mma import CHUNK_BYTES, K_BYTES
from convgen.kernels.parts.reader import LEAST_ASYNC_BYTES

WORD = SUM = 4  # bytes
QUAD, ADDITIONS = 4, 128  # lanes that hold a row of a fragment; additions of a multiprocessor in a cycle
#: Elements that a thread loads before it stores the first: of 16 bits, 16 registers.
MOST_TOGETHER = 16
#: What all layouts of a search have in common, with what these follow from.
OF_PROBLEM = ("k_steps", "pitch", "vector", "sums")
MOST_HELD = 16  # values of operands that a lane keeps for its channels, in registers


class Config(Protocol):
    """Output pixels and channels of a tile, halo tiles in shared memory, blocks a multiprocessor."""

    @property
    def tile_m(self) -> int: ...
    @property
    def tile_n(self) -> int: ...
    @property
    def stages(self) -> int: ...
    @property
    def blocks(self) -> int: ...


@dataclass(frozen=True)
class Window:
    """How a window's elements lie in x's rows.

    A line is a contiguous stretch of x: an input row, or with planes one channel's row.  A window takes a
    run of `run` elements from each of `lines` lines; neighboring pixels are `pixel` elements apart.
    """

    planes: bool
    lines: int
    run: int
    pixel: int


def window(problem: ConvProblem) -> Window | None:
    """None where a window's rows are no runs."""
    x = problem.x
    s, r = problem.filter[-1], math.prod(problem.filter[:-1])
    if problem.rank > 2 or problem.groups > 1 or (s > 1 and problem.dilation[-1] > 1):
        return None
    c = problem.c
    inner = (x.stride("w") if x.extent("w") > 1 else c, x.stride("c") if c > 1 else 1)
    if inner == (c, 1):
        return Window(False, r, s * c, c)
    if x.extent("w") > 1 and x.stride("w") == 1:
        return Window(True, c * r, s, 1)
    return None


@dataclass(frozen=True)
class Lines(base.Layout[Any]):
    """Everything that follows from a problem and a configuration.  Sizes in elements or bytes, as their names say."""

    @cached_property
    def window(self) -> Window:
        found = window(self.problem)
        assert found
        return found

    @cached_property
    def element_bytes(self) -> int:
        return self.problem.x.element.bytes

    @cached_property
    def per_word(self) -> int:
        return WORD // self.element_bytes

    @property
    def stride(self) -> int:
        return self.problem.stride[-1]

    @cached_property
    def step(self) -> int:
        """Elements from one output column's window to the next one's."""
        return self.stride * self.window.pixel

    @cached_property
    def phases(self) -> int:
        return self.per_word // math.gcd(self.per_word, self.step)

    @cached_property
    def margin_bytes(self) -> int:
        """Zeros before a line, for padding; a whole number of vectors."""
        before = self.problem.pad_lo[-1] * self.window.pixel * self.element_bytes
        return -(-before // CHUNK_BYTES) * CHUNK_BYTES

    @property
    def first_bytes(self) -> int:
        """Where in a line the window of output column 0 begins."""
        return self.margin_bytes - self.problem.pad_lo[-1] * self.window.pixel * self.element_bytes

    @property
    def first_elements(self) -> int:
        return self.first_bytes // self.element_bytes

    @property
    def step_bytes(self) -> int:
        return self.step * self.element_bytes

    @property
    def starts_words(self) -> bool:
        """Whether every window begins with a word."""
        return self.step_bytes % WORD == self.first_bytes % WORD == 0

    @property
    def element_bits(self) -> int:
        return 8 * self.element_bytes

    @property
    def element_mask(self) -> str:
        """C text: a word's lowest element."""
        return f"0x{(1 << self.element_bits) - 1:x}u"

    def shift(self, phase: int) -> int:
        """Elements from a word's start to where the windows of a phase begin."""
        return (self.first_elements + phase * self.step) % self.per_word

    @cached_property
    def run_words(self) -> int:
        longest = max(self.shift(p) for p in range(self.phases)) + self.window.run
        return -(-longest // self.per_word)

    @property
    def element_shift(self) -> int:
        """Bits from an element of a word to the next, if it has several."""
        return self.element_bits % 32

    @property
    def words(self) -> int:
        return self.window.lines * self.run_words

    @cached_property
    def k_steps(self) -> int:
        return -(-self.words // (K_BYTES // WORD))

    # --- output pixels: tiles of each image's pixels, its rows padded to a multiple of the phases

    @property
    def q(self) -> int:
        return self.problem.output[-1]

    @property
    def p(self) -> int:
        return math.prod(self.problem.output[:-1])

    @property
    def padded_q(self) -> int:
        return -(-self.q // self.phases) * self.phases

    @property
    def lane_distance(self) -> int:
        """Pixels from one of a lane's rows of an instruction to the next."""
        return 8 * self.phases

    @property
    def image_tiles(self) -> int:
        return -(-self.p * self.padded_q // self.config.tile_m)

    @property
    def tiles(self) -> int:
        return self.problem.n * self.image_tiles

    @property
    def n_tiles(self) -> int:
        return -(-self.problem.k // self.config.tile_n)

    # --- the halo tile: the lines that a tile needs

    @property
    def row_stride(self) -> int:
        return self.problem.stride[0] if self.problem.rank == 2 else 1

    @property
    def row_dilation(self) -> int:
        return self.problem.dilation[0] if self.problem.rank == 2 else 1

    @property
    def row_pad(self) -> int:
        return self.problem.pad_lo[0] if self.problem.rank == 2 else 0

    @property
    def height(self) -> int:
        return self.problem.input[0] if self.problem.rank == 2 else 1

    @property
    def filter_rows(self) -> int:
        return self.problem.filter[0] if self.problem.rank == 2 else 1

    @cached_property
    def halo_rows(self) -> int:
        """Most input rows that a tile's windows span."""
        m, q, end = self.config.tile_m, self.padded_q, self.image_tiles - 1
        crosses = (q - 1) // (m % q) if m % q else 0  # the first tile that may end a row later than tile 0 does
        spans = [min((t + 1) * m - 1, self.p * q - 1) // q - t * m // q for t in (0, min(crosses, end), end)]
        return max(spans) * self.row_stride + (self.filter_rows - 1) * self.row_dilation + 1

    @property
    def halo_lines(self) -> int:
        return self.halo_rows * (self.problem.c if self.window.planes else 1)

    @cached_property
    def line_elements(self) -> int:
        return self.problem.input[-1] * self.window.pixel

    @cached_property
    def pitch(self) -> int:
        """Bytes of a line in shared memory."""
        last = (self.padded_q - 1) * self.step * self.element_bytes + self.first_bytes
        read = last // WORD * WORD + self.run_words * WORD
        return -(-max(read, self.margin_bytes + self.line_elements * self.element_bytes) // CHUNK_BYTES) * CHUNK_BYTES

    @property
    def halo_bytes(self) -> int:
        return self.halo_lines * self.pitch

    @cached_property
    def vector(self) -> int:
        """Elements of one copy to shared memory."""
        x = self.problem.x
        strides = [x.stride(d) for d in ("n", "h", "c") if x.stride(d) > 1 and x.extent(d) > 1]
        vector = math.gcd(self.line_elements, CHUNK_BYTES // self.element_bytes, *strides)
        return vector if vector * self.element_bytes >= LEAST_ASYNC_BYTES else 1

    @property
    def copy_bytes(self) -> int:
        return self.vector * self.element_bytes

    @property
    def asynchronous(self) -> bool:
        return self.copy_bytes >= LEAST_ASYNC_BYTES

    @property
    def halo_copies(self) -> int:
        return self.halo_lines * self.line_copies

    @property
    def together(self) -> int:
        """Elements that a thread has in flight at once, if it copies them itself."""
        return min(MOST_TOGETHER, -(-self.halo_copies // self.threads))

    @property
    def waits(self) -> int:
        """How often a thread waits for elements that it copies itself, for a halo tile."""
        return 0 if self.asynchronous else -(-self.halo_copies // (self.threads * self.together))

    @property
    def line_copies(self) -> int:
        return self.line_elements // self.vector

    # --- shared memory

    @property
    def phase_filter_bytes(self) -> int:
        return self.k_steps * self.config.tile_n * K_BYTES

    @property
    def filter_bytes(self) -> int:
        return self.phases * self.phase_filter_bytes

    @property
    def filter_shares(self) -> int:
        """Quads of threads that deal out a column's filter."""
        return max(1, self.threads // (4 * self.config.tile_n))

    @property
    def filter_threads(self) -> int:
        """Threads per column: four for each share."""
        return 4 * self.filter_shares

    @property
    def filters_uneven(self) -> bool:
        """Whether shares of a column differ."""
        return 2 * self.k_steps % self.filter_shares > 0

    @property
    def filter_quads(self) -> int:
        """Quads of words of a column's filter that a quad of threads loads."""
        return -(-2 * self.k_steps // self.filter_shares)

    @property
    def table_bytes(self) -> int:
        """Between the filters and the halo tiles."""
        return 0

    @property
    def halo_start(self) -> int:
        return self.filter_bytes + self.table_bytes

    @cached_property
    def sums(self) -> tuple[str, ...]:
        """Names of the sums of channels; each lane adds up its own results."""
        return tuple(t.name for t in self.problem.sums)

    @property
    def lane_sums(self) -> int:  # which has the same channels in all tiles
        return len(self.sums) * self.config.tile_n // QUAD

    @property
    def operands_of_channels(self) -> int:
        return len(output.channel_operands(self.problem))

    @property
    def shared_bytes(self) -> int:
        """Warps' sums lie where filters and halo tiles were."""
        of_sums = len(self.sums) * self.threads // WARP * self.config.tile_n * SUM
        return max(self.halo_start + self.config.stages * self.halo_bytes, of_sums)

    # --- the product

    @cached_property
    def columns(self) -> output.Columns:
        """A lane's neighbors are channels; where those are none in y, it stores element by element."""
        return output.Columns("channels", ("k",), self.problem.k_per_group)

    @cached_property
    def run(self) -> int:
        return output.run_length(self.problem, self.columns, self.config.tile_n)

    @property
    def threads(self) -> int:
        raise NotImplementedError

    # --- the estimate

    @property
    def conflicts(self) -> int:
        """Words that a bank has to give for one load of a warp: eight neighbors of a class of columns."""
        return line_cost.conflicts(self.step * self.phases / self.per_word)

    def demands(self, *, products: float, shared: float, steps: float, part: int, workers: int) -> dict[str, Any]:
        """The input of `line_cost.lines_time`, with cycles of a part of so many pixels, and workers of a block."""
        c, traffic = self.config, cost.traffic(self.problem)
        return dict(
            products=products,
            shared=shared,
            stores=part * c.tile_n * self.problem.y.element.bytes / 128,
            steps=steps,
            channels=c.tile_n,
            parts=c.tile_m // part,
            workers=workers,
            threads=self.threads,
            tiles=self.tiles * self.n_tiles,
            blocks=c.blocks,
            stages=c.stages,
            halo_tile=self.halo_bytes,
            copies=self.halo_copies if self.asynchronous else 0,
            waits=self.waits,
            alone=0 if self.asynchronous else self.halo_copies,
            filters=self.filter_bytes,
            reads=traffic["reads"],
            writes=traffic["writes"],
            y_pitch=traffic["y_pitch"],
            # pixels longer than a line, too, take twice the time: 72 channels, of 32 or 72 (resident_h200.json)
            in_parts=self.n_tiles > 1 or traffic["y_pitch"] > cost.LINE,
            sms=self.target.sms,
            functions=(cost.functions(self.problem) + len(self.sums) / ADDITIONS) * c.tile_m * c.tile_n,
        )

    def least_demands(self, *, products: float, part: int) -> dict[str, Any]:
        """The input of `line_cost.least`, for any tiles of so many channels, with cycles of a part of `part` pixels."""
        parts = self.problem.n * self.p * self.padded_q / part * self.n_tiles
        moved = {way: cost.traffic(self.problem)[way] for way in ("reads", "writes")}
        return dict(products=products, parts=parts, filters=self.filter_bytes, **moved, sms=self.target.sms)


def tile_channels(problem: ConvProblem) -> int:
    """Output channels of a tile, by default: all, or few that are wasted."""
    if problem.k <= 128:
        return -(-problem.k // 16) * 16
    return next(t for t in (96, 112, 128, 64) if t == 64 or -(-problem.k // t) * t - problem.k < 16)
