"""On tensor cores, two channels at a time: along a row, a channel's convolution is a product with a banded matrix.

A warp's mma has the 16 rows and 8 columns of y = A B.  A row of A is 8 (or 4) input columns of one row of x, two
channels each, as 32-bit words have them; a row of y is 4 output columns of the same two channels.  B has the filter
row as a band for each of the channels and zeros between them:

    B[(w, c), (q, d)] = filter[c, w - q stride] where c = d, else 0

so 8 input columns (4 words of a quad's lanes, twice) give 4 output columns: all that a row of 3 or 5 taps wants.
A lane loads 8 channels of a pixel at once: the words of four mmas.  Its accumulators are neighbours, too: 8 channels
of a pixel.  Small filters stay in registers, large ones wait in shared memory; results leave through shared memory, by
TMA.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from convgen.ir.problem import ConvProblem
from convgen.strategies.axes import axes
from convgen.strategies.base import Obstacles
from convgen.strategies.depthwise.patches import channel_run
from convgen.strategies.depthwise.stream.layout import UNIT, StreamConfig
from convgen.strategies.depthwise.stream.layout import Layout as Shared

TYPES = ("f16", "bf16")
CHANNELS = 8  # of a warp: what a lane loads of a pixel
WORDS = CHANNELS // 2  # that hold them
OUTPUTS = 4  # columns of an mma's result
QUAD = 4  # input columns of a lane quad's words: of half an mma
ROWS = 16  # of an mma: blocks of output columns
SWIZZLED = (32, 64, 128)  # bytes of a pixel that TMA spreads over the banks
PERIOD = 8  # pixels after which a swizzle repeats
MOST_REGISTER_FILTER = 64  # a thread's words of bands that stay in its registers
OTHER_REGISTERS = 40  # a thread's, for places and counters
BAND_REGISTERS = 18  # where bands wait in shared memory
MMA = 6.5  # instructions that a scheduler issues in an mma's time
THREADS = (576, 512, 384, 256, 128)
BLOCKS = (1, 2, 3, 4)
LINES = (32, 64)  # channels: half a line of 128 bytes, or a line; TMA brings others more slowly
WHOLE, PARTS = 144, (112, 48)  # channels: the most of a slice of all, or of some that are no lines


@dataclass(frozen=True)
class Blocks:
    """How an mma's 16 rows lie on a warp's tile: `across` blocks of 4 output columns, and `down` lanes of `rows`
    output rows each; a lane has two rows of an mma, `sets` of them."""

    across: int
    down: int
    rows: int
    sets: int
    quads: int  # of input columns, under 4 output columns


class Layout(Shared):
    @cached_property
    def blocks(self) -> Blocks:
        across = self.config.q // OUTPUTS
        down = ROWS // 2 // across
        rows = self.config.p // down
        return Blocks(across, down, rows, rows // 2, -(-self.axes[1].inputs(OUTPUTS) // QUAD))

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
        outputs = self.column_tiles * self.config.q
        return (outputs - OUTPUTS) * self.axes[1].stride + QUAD * self.blocks.quads

    @cached_property
    def width(self) -> int:
        """Whole periods of a swizzle, so that all rows are spread alike."""
        return -(-self.least_width // PERIOD) * PERIOD

    @property
    def staged_bytes(self) -> int:
        c = self.config
        band = c.band * c.strip * self.result_channels * self.problem.y.element.bytes
        return -(-band // self.alignment) * self.alignment

    @property
    def in_registers(self) -> bool:
        return self.axes[0].filter * self.blocks.quads * WORDS <= MOST_REGISTER_FILTER

    @property
    def first_entry(self) -> int:
        return (OUTPUTS - 1) * self.axes[1].stride

    @property
    def entries(self) -> int:
        return 0 if self.in_registers else self.first_entry + QUAD * self.blocks.quads

    @property
    def filter_bytes(self) -> int:
        return self.axes[0].filter * (self.config.slice // CHANNELS) * self.entries * UNIT

    @property
    def registers(self) -> int:
        b, rows = self.blocks, self.axes[0]
        word = b.quads * WORDS
        bands = rows.filter if self.in_registers else (b.rows - 2) * rows.stride // rows.dilation + 1
        others = OTHER_REGISTERS if self.in_registers else OTHER_REGISTERS + BAND_REGISTERS
        return (bands + rows.stride + 1) * word + b.sets * WORDS * 4 + others

    @property
    def instructions(self) -> float:
        b, rows = self.blocks, self.axes[0]
        units = self.pitch // UNIT
        ways = 2 if self.axes[1].stride % 2 == 0 else 1 if self.swizzle else min(units & -units, 8)
        loads = rows.inputs(b.rows) * (b.quads * (1 + 3 * ways) + 3)
        if not self.in_registers:
            loads += rows.filter * b.quads * (4 + WORDS)
        return loads + b.sets * rows.filter * WORDS * b.quads / 2 * MMA + b.rows * 16


def obstacles(problem: ConvProblem) -> Obstacles:
    x, w, y = problem.x, problem.w, problem.y
    found = Obstacles()
    if not (x.dtype == w.dtype and x.dtype in TYPES and problem.accumulate == "f32"):
        message = f"math mma multiplies f16 or bf16 and adds f32, not {x.dtype} x {w.dtype}"
        found.no(message, "math fma", "math")
    if problem.k_per_group > 1 or channel_run(problem) < CHANNELS or y.element.bytes != 2:
        message = "math mma wants aligned runs of 8 channels, 2-byte outputs, multiplier 1"
        found.no(message, "math fma", "math")
    return found


def malformed(problem: ConvProblem, config: StreamConfig) -> Obstacles:
    found = Obstacles()
    if config.vector != CHANNELS:
        found.no(f"math mma goes with vector {CHANNELS}", option="vector")
    if config.q not in (8, 16, 32):
        found.no(f"math mma makes 8, 16 or 32 columns a warp, not {config.q}", option="tile.q")
    elif config.p % (rows := ROWS * OUTPUTS // config.q):
        found.no(f"with {config.q} columns a warp makes a multiple of {rows} rows", option="tile.p")
    return found


def most_channels(problem: ConvProblem) -> int:
    """Of a warp."""
    return CHANNELS


def vectors(problem: ConvProblem) -> list[int]:
    return [CHANNELS]


def slices(problem: ConvProblem, divisors: list[int]) -> set[int]:
    """Lines, and all channels where they are few; else the largest that threads can be found for."""
    found = {s for s in divisors if s in LINES or s == problem.k <= WHOLE}
    return found or {max((s for s in divisors if s <= limit), default=divisors[0]) for limit in PARTS}


def tiles(problem: ConvProblem, vector: int) -> list[tuple[int, int]]:
    """Rows and columns of a warp, in one set of rows to three."""
    columns = axes(problem)[1]
    found = [q for q in (8, 16, 32) if q < columns.output + OUTPUTS] or [8]
    return [(sets * ROWS * OUTPUTS // q, q) for q in found for sets in (1, 2, 3)]
