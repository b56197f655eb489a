"""Multiplication on tensor cores, two channels at a time: along a row, a channel's convolution is a product with a
banded matrix.

A warp's mma has the 16 rows and 8 columns of y = A B.  A column of B is a quad of input columns of one row of x, two
channels each, as 32-bit words have them; a column of y is a block of output pixels, 4 columns by 2 rows or 2 by 4, of
the same two channels.  A has the filter rows that the block's output rows have in this input row, as a band for each
of the channels, and zeros between them:

    A[(d, p, q), (w, c)] = filter[c, h - p stride, w - q stride] where c = d, else 0

A lane loads 8 channels of a pixel at once: the words of four mmas.  Their results are neighbors, too: a lane has 8
channels of a pixel.  Filters wait in shared memory with zeros around them, or in registers where they are small;
results leave through shared memory, by TMA.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacles
from convgen.kernels.depthwise_stream.config import Config
from convgen.kernels.depthwise_stream.layout import UNIT
from convgen.kernels.depthwise_stream.layout import Layout as Shared
from convgen.kernels.parts.assignment import Assignment
from convgen.kernels.parts.axes import axes
from convgen.kernels.parts.depthwise import channel_run
from convgen.kernels.parts.formula_cost import formula_instructions

TYPES = ("f16", "bf16")
CHANNELS = 8  # of a warp: what a lane loads of a pixel
WORDS = CHANNELS // 2  # that hold them
PIXELS = 8  # of a block: the results of a column of an mma, for each of two channels
COLUMNS = 8  # of an mma: blocks
WIDTHS = (2, 4)  # of a block
QUAD = 4  # input columns that a quad of lanes has words of
SWIZZLED = (32, 64, 128)  # bytes of a pixel that TMA spreads over the banks
PERIOD = 8  # pixels after which a swizzle repeats
MOST_FILTER_WORDS = 48  # of a lane, in registers
OTHER_REGISTERS = 28  # per thread, for addresses and counters
MMA = 4.2  # instructions that a scheduler issues in an mma's time
THREADS = (576, 512, 384, 256, 128)
BLOCKS = (1, 2, 3, 4)
LINES = (32, 64)  # channels: half a line of 128 bytes, or a line; TMA loads others more slowly
WHOLE, PARTS = 144, (112, 48)  # channels: the most of a slice of all, or of some that are no lines


@dataclass(frozen=True)
class Blocks:
    """How an mma's 8 blocks lie on a warp's tile: `across` of them and `down`, `sets` of them below one another."""

    p: int  # rows and columns of a block
    q: int
    across: int
    down: int
    sets: int
    lines: int  # input rows under a block
    quads: int  # of input columns under it

    @property
    def rows(self) -> int:
        """Output rows of the sets, from a block of the first on."""
        return self.p * self.sets


@lru_cache(maxsize=64)  # called for each configuration of a search, like the next
def shapes(problem: ConvProblem) -> dict[int, int]:
    """Columns that a warp may make (whole blocks, and whole periods of a swizzle), and the rows of a set of blocks."""
    p, q = block_shape(problem)
    return {q * across: p * COLUMNS // across for across in (2, 4, 8) if q * across >= PERIOD}


@lru_cache(maxsize=64)
def block_shape(problem: ConvProblem) -> tuple[int, int]:
    """Rows and columns of the block that takes the fewest mmas."""
    rows, columns = axes(problem)
    return min(((PIXELS // q, q) for q in WIDTHS), key=lambda s: rows.inputs(s[0]) * -(-columns.inputs(s[1]) // QUAD))


class Layout(Shared):
    @cached_property
    def blocks(self) -> Blocks:
        (rows, columns), (p, q) = self.axes, block_shape(self.read)
        across = self.config.tile_q // q
        down = COLUMNS // across
        quads = -(-columns.inputs(q) // QUAD)
        return Blocks(p, q, across, down, self.config.tile_p // (down * p), rows.inputs(p), quads)

    @property
    def tile_pixels(self) -> int:
        """Of a lane: one of two blocks in each set."""
        return 2 * self.blocks.sets

    @property
    def swizzle(self) -> int:
        return self.pitch if self.pitch in SWIZZLED else 0

    @property
    def alignment(self) -> int:
        return max(super().alignment, PERIOD * self.swizzle)

    @property
    def box_channels(self) -> int:
        """An odd number of units, which spreads pixels over the banks, where TMA does not do it and x has no more
        channels: TMA is several times slower where it cuts sectors."""
        pad = self.slices == 1 and self.config.slice * self.element_bytes not in SWIZZLED
        return (self.config.slice // CHANNELS | 1) * CHANNELS if pad else self.config.slice

    @property
    def result_channels(self) -> int:
        """Channels of a pixel of results: as many as of x, where those past the slice are past y as well."""
        return self.box_channels if self.slices == 1 else self.config.slice

    @property
    def least_width(self) -> int:
        outputs = self.column_tiles * self.config.tile_q
        return (outputs - self.blocks.q) * self.axes[1].stride + QUAD * self.blocks.quads

    @cached_property
    def width(self) -> int:
        """Whole periods of a swizzle, so that all rows are spread alike."""
        return -(-self.least_width // PERIOD) * PERIOD

    @property
    def staged_bytes(self) -> int:
        c = self.config
        band = c.band * c.strip * self.result_channels * self.read.y.element.bytes
        return -(-band // self.alignment) * self.alignment

    @property
    def units(self) -> int:
        """The number of 16-byte units in a pixel."""
        return self.pitch // UNIT

    @property
    def alike(self) -> int:
        """Neighboring pixels whose units TMA's swizzle moves alike."""
        return PERIOD // self.units if self.swizzle else 1

    @property
    def block_step(self) -> int:
        """Input columns from a block to the next."""
        return self.blocks.q * self.axes[1].stride

    @property
    def set_step(self) -> int:
        """Input rows from a set of blocks to the next."""
        return self.blocks.p * self.axes[0].stride

    @property
    def result_pitch(self) -> int:
        """Bytes from a pixel of results to the next."""
        return self.result_channels * self.read.y.element.bytes

    @property
    def in_registers(self) -> bool:
        """Whether a lane keeps its words of the filters, of all lines."""
        return self.filter_words <= MOST_FILTER_WORDS

    @property
    def filter_words(self) -> int:
        return self.blocks.lines * self.blocks.quads * WORDS

    @property
    def first_entry(self) -> int:
        """The index of the filter's first element among the entries of a filter row in shared memory."""
        return (self.blocks.q - 1) * self.axes[1].stride

    @property
    def entries(self) -> int:
        """Entries of a filter row in shared memory, one per input column, including the zeros around it."""
        return self.first_entry + QUAD * self.blocks.quads

    @property
    def zero_lines(self) -> int:
        """Lines of zeros before the filter's first row in shared memory, for output rows of a block that begin below
        it."""
        return (self.blocks.p - 1) * self.axes[0].stride

    @property
    def filter_bytes(self) -> int:
        return (self.blocks.lines + self.zero_lines) * (self.config.slice // CHANNELS) * self.entries * UNIT

    @cached_property
    def registers(self) -> int:
        b = self.blocks
        rows = b.p * self.axes[0].stride * (b.sets - 1) + 2
        filters = self.filter_words if self.in_registers else 0
        return b.quads * WORDS * rows + filters + b.sets * 16 + len(self.sums) * CHANNELS + OTHER_REGISTERS

    @cached_property
    def instructions(self) -> float:
        b, rows = self.blocks, self.axes[0]
        units = self.pitch // UNIT
        ways = 2 if self.axes[1].stride % 2 == 0 else 1 if self.swizzle else min(units & -units, 8)
        loads = rows.inputs(b.rows) * (b.quads * (1 + 3 * ways) + 3)
        factors = b.lines * b.quads * (2 * WORDS + (0 if self.in_registers else 4))
        stores = b.sets * (80 + 2 * CHANNELS * (len(self.sums) + formula_instructions(self.read)))
        return loads + factors + b.lines * b.quads * WORDS * b.sets * MMA + stores


def obstacles(assigned: Assignment) -> Obstacles:
    problem, found = assigned.problem, Obstacles()
    x, w, y = problem.x, problem.w, problem.y
    if assigned.phases:
        found.no("math mma does not compute a strided dgrad", "math fma", "math")
    if not (x.dtype == w.dtype and x.dtype in TYPES and problem.accumulate == "f32"):
        message = f"math mma multiplies f16 or bf16 and adds f32, not {x.dtype} x {w.dtype}"
        found.no(message, "math fma", "math")
    if problem.k_per_group > 1 or channel_run(problem) < CHANNELS or y.element.bytes != 2:
        message = "math mma wants aligned runs of 8 channels, 2-byte outputs, multiplier 1"
        found.no(message, "math fma", "math")
    return found


def malformed(problem: ConvProblem, config: Config) -> Obstacles:
    found = Obstacles()
    if config.vector != CHANNELS:
        found.no(f"math mma needs vector {CHANNELS}", option="vector")
    legal = shapes(problem)
    if config.tile_q not in legal:
        found.no(
            f"math mma makes {' or '.join(map(str, legal))} columns per warp, not {config.tile_q}", option="tile.q"
        )
    elif config.tile_p % (rows := legal[config.tile_q]):
        found.no(f"with {config.tile_q} columns a warp makes a multiple of {rows} rows", option="tile.p")
    return found


def most_channels(problem: ConvProblem) -> int:
    """The most channels of a warp."""
    return CHANNELS


def vectors(problem: ConvProblem) -> list[int]:
    return [CHANNELS]


def slices(problem: ConvProblem, divisors: list[int]) -> set[int]:
    """Slices of whole lines, and all channels if they are few; else the largest for which a number of threads
    exists."""
    found = {s for s in divisors if s in LINES or s == problem.k <= WHOLE}
    return found or {max((s for s in divisors if s <= limit), default=divisors[0]) for limit in PARTS}


def tiles(assigned: Assignment, vector: int) -> list[tuple[int, int]]:
    """Rows and columns of a warp, in one set of blocks to four."""
    problem = assigned.problem
    columns = axes(problem)[1]
    _, q = block_shape(problem)
    legal = shapes(problem)
    found = [width for width in legal if width < columns.output + q] or list(legal)[:1]
    return [(sets * legal[width], width) for width in found for sets in (1, 2, 3, 4)]
