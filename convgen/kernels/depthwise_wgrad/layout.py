"""What follows from a problem and a configuration of depthwise_wgrad: the walk, threads, strips, registers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from convgen.ir.problem import ConvProblem
from convgen.kernels.depthwise_wgrad.config import Config
from convgen.kernels.depthwise_wgrad.demands import Step, step_of
from convgen.kernels.parts.axes import Axis
from convgen.kernels.parts.channel_vectors import inputs
from convgen.kernels.parts.gradient import GradientLayout, y_sum
from convgen.kernels.parts.limits import WARP

UNIT = 16  # bytes: of the widest load
BOX_ALIGNMENT = 128  # bytes: where TMA may write
OTHER_REGISTERS = 36  # than those of numbers
OTHER_SHARED_REGISTERS = 17  # where a producer knows the addresses
NONE = Axis(1, 1, 1, 1, 1, 0)


@dataclass(frozen=True)
class Walk:
    """An axis of the window, walked without dilation.

    Output p and tap r meet at input p * stride + r * dilation.  With g = gcd(stride, dilation), outputs that are
    dilation / g = `apart` apart have inputs in common, stride / g = `step` taps further on.  So each of the `apart`
    classes of outputs is an axis of its own, of stride `step` and dilation 1, whose inputs lie `dilation` apart.
    """

    axis: Axis
    input: str  # names of its dims
    output: str

    @cached_property
    def apart(self) -> int:
        return self.axis.dilation // math.gcd(self.axis.stride, self.axis.dilation)

    @cached_property
    def step(self) -> int:
        return self.axis.stride // math.gcd(self.axis.stride, self.axis.dilation)

    @property
    def input_step(self) -> int:
        """Inputs from an output to the next of its class."""
        return self.step * self.axis.dilation

    @property
    def classes(self) -> int:
        return min(self.apart, self.axis.output)

    @cached_property
    def outputs(self) -> int:
        """The most outputs of a class."""
        return -(-self.axis.output // self.apart)

    def ragged(self, tile: int) -> bool:
        """Whether a tile of so many outputs of a class may have fewer."""
        return self.axis.output % (self.apart * tile) > 0


def walks(problem: ConvProblem) -> tuple[Walk, Walk, Walk]:
    """Depth, rows and columns.  The only axis of a problem are rows, which threads walk down."""
    sp = problem.spatial
    found = [
        Walk(Axis(*row), i, o)
        for *row, i, o in zip(
            problem.input, problem.filter, problem.output, problem.stride, problem.dilation, problem.pad_lo,
            sp.input, sp.output, strict=True,
        )
    ]  # fmt: skip
    none = Walk(NONE, "", "")
    depth = found.pop(0) if len(found) == 3 else none
    return depth, found[0], found[1] if len(found) > 1 else none


@dataclass(frozen=True)
class Layout(GradientLayout[Config]):
    """A configuration of a problem."""

    @cached_property
    def walks(self) -> tuple[Walk, Walk, Walk]:
        return walks(self.problem)

    @property
    def multiplier(self) -> int:
        return self.problem.k_per_group

    @cached_property
    def inputs(self) -> int:
        """Input channels of a thread."""
        return inputs(self.problem, self.config.vector)

    @cached_property
    def vectors(self) -> int:
        """Channel vectors of a block."""
        return max(1, self.config.slice // self.config.vector)

    @cached_property
    def channel_slices(self) -> int:
        return -(-self.problem.k // self.config.slice)

    @property
    def channel_tail(self) -> bool:
        """Whether the last slice has fewer channels."""
        return self.problem.k % self.config.slice > 0

    @property
    def row_tail(self) -> bool:
        """Whether the last thread has fewer rows of a filter plane."""
        return self.walks[1].axis.filter % self.config.tile_r > 0

    @cached_property
    def row_parts(self) -> int:
        """Threads that share the rows of a filter plane."""
        return -(-self.walks[1].axis.filter // self.config.tile_r)

    @cached_property
    def parts(self) -> int:
        """Threads that share a channel vector's filters: one has up to `tile_r` rows of one plane."""
        return self.walks[0].axis.filter * self.row_parts

    @cached_property
    def shared(self) -> bool:
        """Whether a block's threads walk together, and have rows in common."""
        return self.config.loads == "shared"

    @cached_property
    def tiles(self) -> int:
        """Strips beside one another, of a class of columns."""
        return -(-self.walks[2].outputs // self.config.tile_q)

    @cached_property
    def walkers(self) -> int:
        """Strips that a block walks at once."""
        if self.shared:
            return self.walkers_q * self.walkers_n
        return self.room

    @cached_property
    def room(self) -> int:
        """Strips that a block has threads for."""
        return max(1, self.config.threads // (self.vectors * self.parts))

    @cached_property
    def walkers_q(self) -> int:
        """Walkers side by side, on strips that have rows in common."""
        return min(self.tiles, self.room)

    @cached_property
    def walkers_n(self) -> int:
        """Walkers across images."""
        return min(self.problem.n, self.room // self.walkers_q)

    @property
    def idle_walkers(self) -> bool:
        """Whether whole strips of a block may be beside y: zeros of y, of which some are under pixels of x."""
        columns, tile = self.walks[2], self.config.tile_q
        return self.shared and not columns.ragged(tile) and columns.ragged(tile * self.walkers_q)

    @cached_property
    def threads(self) -> int:
        """Threads that multiply."""
        return self.walkers * self.parts * self.vectors

    @cached_property
    def block(self) -> int:
        """Threads of a block."""
        return self.threads + (WARP if self.shared else 0)

    @cached_property
    def held(self) -> int:
        """Rows of y under which an input row may be, of a class: those that a thread holds."""
        return (self.config.tile_r - 1) // self.walks[1].step + 1

    @property
    def idle_step(self) -> bool:
        """Whether a strip may have no outputs, which is then a step of nothing, for loads as for products."""
        rows = self.walks[1]
        return self.held == 1 and rows.apart > 1 and rows.ragged(self.config.band)

    @property
    def rows_tested(self) -> bool:
        """Whether a step may come with a row of y that is not there."""
        return self.held > 1 or self.idle_step

    @cached_property
    def rows(self) -> int:
        """Input rows that come with an output row."""
        return min(self.walks[1].step, self.config.tile_r)

    @cached_property
    def columns(self) -> int:
        """Input columns under a thread's outputs, those between windows included."""
        columns = self.walks[2]
        return (self.config.tile_q - 1) * columns.step + columns.axis.filter

    @cached_property
    def read_columns(self) -> int:
        """How many of these columns windows read."""
        columns = self.walks[2]
        return min(self.columns, self.config.tile_q * columns.axis.filter)

    @property
    def strip_digits(self) -> tuple[tuple[str, int], ...]:
        """The digits of a strip's number, outermost first, and how many values each takes."""
        depth, rows, columns = self.walks
        c = self.config
        together_n, together_q = (self.walkers_n, self.walkers_q) if self.shared else (1, 1)
        return (
            ("n", -(-self.problem.n // together_n)),
            ("depth", depth.axis.output),
            ("row_class", rows.classes),
            ("band", self.bands(c.band)),
            ("column_class", columns.classes),
            ("tile", -(-self.tiles // together_q)),
        )

    def bands(self, rows: int) -> int:
        """Bands per column, of so many rows each."""
        return -(-self.walks[1].outputs // rows)

    @property
    def strips(self) -> int:
        """Strips of all images; where rows are shared, so many times those of a block."""
        return self.column_strips * self.bands(self.config.band)

    @cached_property
    def column_strips(self) -> int:
        """The number of strips if bands were whole columns."""
        return math.prod(count for name, count in self.strip_digits if name != "band")

    @cached_property
    def walked(self) -> int:
        """How many of `strips` a block walks at once."""
        return 1 if self.shared else self.walkers

    def rounds(self, band: int, shares: int) -> int:
        """Strips that a block walks, one after the other, at most, where so many share the bands of so many rows."""
        return -(-(self.column_strips * self.bands(band)) // (shares * self.walked))

    @cached_property
    def thread_taps(self) -> int:
        """Taps whose sums a thread has."""
        return self.config.tile_r * self.walks[2].axis.filter

    @property
    def sums_pitch(self) -> int:
        """Words from a tap's sums to the next one's in shared memory: odd, for banks."""
        return self.threads | 1

    @property
    def x_bytes(self) -> int:
        """Bytes per load of x."""
        return self.inputs * self.problem.x.element.bytes

    @property
    def y_bytes(self) -> int:
        return self.config.vector * self.problem.y.element.bytes

    @cached_property
    def box_columns(self) -> tuple[int, int]:
        """Columns of x and of y that a block's strips need."""
        columns = self.walks[2]
        of_y = self.walkers_q * self.config.tile_q
        return (of_y - 1) * columns.step + columns.axis.filter, of_y

    @property
    def box_channels(self) -> tuple[int, int]:
        """Channels of x and of y."""
        return self.config.slice // self.multiplier, self.config.slice

    @cached_property
    def pixel_bytes(self) -> tuple[int, int]:
        """Bytes of a block's channels of x and of y, per pixel."""
        of_x, of_y = self.box_channels
        return of_x * self.problem.x.element.bytes, of_y * self.problem.y.element.bytes

    @cached_property
    def box_bytes(self) -> tuple[int, int]:
        """Bytes that TMA loads at once: the input rows for one part of the filters, and an output row, in all
        images."""
        (x_columns, y_columns), (x_pixel, y_pixel) = self.box_columns, self.pixel_bytes
        return self.walkers_n * self.rows * x_columns * x_pixel, self.walkers_n * y_columns * y_pixel

    @property
    def box_room(self) -> tuple[int, int]:
        """Bytes from a box to where the next one may begin."""
        of_x, of_y = (-(-size // BOX_ALIGNMENT) * BOX_ALIGNMENT for size in self.box_bytes)
        return of_x, of_y

    @property
    def x_stage(self) -> int:
        """Bytes of a stage's input rows in shared memory, and up to where output rows may lie."""
        if self.shared:
            return self.row_parts * self.box_room[0]
        return -(-self.rows * self.columns * self.threads * self.x_bytes // UNIT) * UNIT

    @cached_property
    def stage(self) -> int:
        """Bytes of a stage: an output row, and the input rows that come with it."""
        if self.shared:
            return self.x_stage + self.box_room[1]
        return -(-(self.x_stage + self.config.tile_q * self.threads * self.y_bytes) // UNIT) * UNIT

    @property
    def barriers(self) -> int:
        """Bytes of the stages' barriers, full and empty."""
        return 16 * self.config.stages if self.shared else 0

    @property
    def shares(self) -> int:
        """Blocks that share the pixels."""
        return self.config.slices * self.config.split_k

    @property
    def sums(self) -> int:
        """Sums per block, including those of rows beyond the filter."""
        return self.config.slice * self.parts * self.thread_taps

    @property
    def whole_quads(self) -> bool:
        """Whether the sums come in fours."""
        return self.sums % 4 == 0

    @property
    def joined(self) -> int:
        """Bytes of the stages, if there are some, and at the end of the sums: up to where a cluster's may lie."""
        stages = self.config.stages if self.config.stages > 1 else 0
        sums = self.thread_taps + (y_sum(self.problem) is not None)
        used = max(sums * self.config.vector * self.sums_pitch * 4, stages * self.stage)
        return -(-used // UNIT) * UNIT

    @property
    def barriers_at(self) -> int:
        """Bytes from the base to the barriers of the stages, which follow a cluster's sums (in quads, of which this
        block finishes its share) and the barrier on which these arrive."""
        split = self.config.split_k
        return self.joined + (math.ceil(math.ceil(self.sums / 4) / split) * split * UNIT + 8 if split > 1 else 0)

    @property
    def shared_bytes(self) -> int:
        """Shared memory per block, in bytes."""
        return self.barriers_at + (BOX_ALIGNMENT + self.barriers if self.shared else 0)

    @property
    def in_flight(self) -> float:
        """Bytes of a block's loads that are under way."""
        if self.shared:
            return (self.config.stages - 0.5) * (self.row_parts * self.box_bytes[0] + self.box_bytes[1])
        of_thread = self.rows * self.read_columns * self.x_bytes + self.config.tile_q * self.y_bytes
        return max(self.config.stages - 1, 1) * of_thread * self.threads

    @cached_property
    def step(self) -> Step:
        """The demands of one step, whatever the bands and the blocks that share the pixels."""
        return step_of(self)

    @cached_property
    def registers(self) -> int:
        """An estimate of the registers a thread needs: ptxas takes more where it may, and spills with much fewer."""
        c = self.config
        read = self.rows * self.read_columns
        numbers = (self.thread_taps + self.held * c.tile_q + (y_sum(self.problem) is not None)) * c.vector
        if self.shared:
            # ptxas loads float32, which needs no conversion, far ahead
            ahead = self.read_columns * self.inputs + c.tile_q * c.vector if self.problem.x.dtype == "f32" else 0
            return numbers + self.read_columns * self.inputs + ahead + OTHER_SHARED_REGISTERS
        if c.stages > 1:
            return numbers + self.read_columns * self.inputs + OTHER_REGISTERS
        words = read * -(-self.x_bytes // 4) + c.tile_q * -(-self.y_bytes // 4)
        return numbers + read * self.inputs + words + OTHER_REGISTERS
