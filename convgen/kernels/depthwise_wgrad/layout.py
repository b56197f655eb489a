"""What follows from a problem and a configuration of depthwise_wgrad: the walk, threads, strips, registers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from convgen.ir.problem import ConvProblem
from convgen.kernels import base
from convgen.kernels.depthwise_wgrad.config import Config
from convgen.kernels.parts.axes import Axis
from convgen.kernels.parts.gradient import is_whole, y_sum

UNIT = 16  # bytes: of the widest load
OTHER_REGISTERS = 36  # than those of numbers
NONE = Axis(1, 1, 1, 1, 1, 0)


@dataclass(frozen=True)
class Walk:
    """An axis of the window, walked without dilation.

    Output p and tap r meet at input p * stride + r * dilation.  With g = gcd(stride, dilation), outputs that are
    dilation / g = `apart` have inputs in common, stride / g = `step` taps further on.  So each of the `apart` classes
    of outputs is an axis of its own, of stride `step` and dilation 1, whose inputs lie `dilation` apart.
    """

    axis: Axis
    input: str  # names of its dims
    output: str

    @property
    def apart(self) -> int:
        return self.axis.dilation // math.gcd(self.axis.stride, self.axis.dilation)

    @property
    def step(self) -> int:
        return self.axis.stride // math.gcd(self.axis.stride, self.axis.dilation)

    @property
    def classes(self) -> int:
        return min(self.apart, self.axis.output)

    @property
    def outputs(self) -> int:
        """Of a class, at most."""
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
class Layout(base.Layout[Config]):
    """A configuration of a problem."""

    @cached_property
    def walks(self) -> tuple[Walk, Walk, Walk]:
        return walks(self.problem)

    @property
    def multiplier(self) -> int:
        return self.problem.k_per_group

    @property
    def inputs(self) -> int:
        """Input channels of a thread."""
        return max(1, self.config.vector // self.multiplier)

    @property
    def vectors(self) -> int:
        """Channel vectors of a block."""
        return max(1, self.config.slice // self.config.vector)

    @property
    def channel_slices(self) -> int:
        return -(-self.problem.k // self.config.slice)

    @property
    def row_parts(self) -> int:
        """Threads that share the rows of a filter plane."""
        return -(-self.walks[1].axis.filter // self.config.tile_r)

    @property
    def parts(self) -> int:
        """Threads that share a channel vector's filters: one has up to `tile_r` rows of one plane."""
        return self.walks[0].axis.filter * self.row_parts

    @property
    def lanes(self) -> int:
        """Strips that a block walks at once."""
        return max(1, self.config.threads // (self.vectors * self.parts))

    @property
    def threads(self) -> int:
        return self.lanes * self.parts * self.vectors

    @property
    def held(self) -> int:
        """Rows of y under which an input row may be, of a class: those that a thread holds."""
        return (self.config.tile_r - 1) // self.walks[1].step + 1

    @property
    def rows(self) -> int:
        """Input rows that come with an output row."""
        return min(self.walks[1].step, self.config.tile_r)

    @property
    def columns(self) -> int:
        """Input columns under a thread's outputs, those between windows included."""
        columns = self.walks[2]
        return (self.config.tile_q - 1) * columns.step + columns.axis.filter

    @property
    def read_columns(self) -> int:
        """Of these, the ones under a window."""
        columns = self.walks[2]
        return min(self.columns, self.config.tile_q * columns.axis.filter)

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """What the number of a strip stands for, the outermost first."""
        depth, rows, columns = self.walks
        c = self.config
        return (
            ("n", self.problem.n),
            ("depth", depth.axis.output),
            ("row_class", rows.classes),
            ("band", -(-rows.outputs // c.band)),
            ("column_class", columns.classes),
            ("tile", -(-columns.outputs // c.tile_q)),
        )

    @cached_property
    def strips(self) -> int:
        return math.prod(count for _, count in self.places)

    @property
    def thread_taps(self) -> int:
        """Taps whose sums a thread has."""
        return self.config.tile_r * self.walks[2].axis.filter

    @property
    def sums_pitch(self) -> int:
        """Words from a tap's sums to the next one's in shared memory: odd, for banks."""
        return self.threads | 1

    @property
    def x_bytes(self) -> int:
        """Of a load of x."""
        return self.inputs * self.problem.x.element.bytes

    @property
    def y_bytes(self) -> int:
        return self.config.vector * self.problem.y.element.bytes

    @property
    def x_stage(self) -> int:
        """Bytes of a stage's input rows in shared memory, and up to where output rows may lie."""
        return -(-self.rows * self.columns * self.threads * self.x_bytes // UNIT) * UNIT

    @property
    def stage(self) -> int:
        """Bytes of a stage: an output row, and the input rows that come with it."""
        return -(-(self.x_stage + self.config.tile_q * self.threads * self.y_bytes) // UNIT) * UNIT

    @property
    def shares(self) -> int:
        """Blocks that share the pixels."""
        return self.config.slices * self.config.split_k

    @property
    def sums(self) -> int:
        """Of a block, those of rows beyond the filter included."""
        return self.config.slice * self.parts * self.thread_taps

    @property
    def joined(self) -> int:
        """Bytes of the stages, if there are some, and at the end of the sums: up to where a cluster's may lie."""
        stages = self.config.stages if self.config.stages > 1 else 0
        sums = self.thread_taps + (y_sum(self.problem) is not None)
        used = max(sums * self.config.vector * self.sums_pitch * 4, stages * self.stage)
        return -(-used // UNIT) * UNIT

    @property
    def shared_bytes(self) -> int:
        """Of a block; where there is a cluster, room for its blocks' sums that this one finishes, four at a time, and
        for the barrier on which they arrive."""
        split = self.config.split_k
        return self.joined + (math.ceil(math.ceil(self.sums / 4) / split) * split * UNIT + 8 if split > 1 else 0)

    @property
    def slots(self) -> int:
        """Blocks that run at once."""
        return self.target.clustered_sms(self.config.split_k) * self.config.blocks

    @property
    def in_flight(self) -> int:
        """Bytes of a thread's loads that are under way."""
        return max(self.config.stages - 1, 1) * (
            self.rows * self.read_columns * self.x_bytes + self.config.tile_q * self.y_bytes
        )

    @property
    def registers(self) -> int:
        """An estimate of the registers a thread needs: ptxas takes more where it may, and spills with much fewer."""
        c = self.config
        read = self.rows * self.read_columns
        numbers = (self.thread_taps + self.held * c.tile_q + (y_sum(self.problem) is not None)) * c.vector
        if c.stages > 1:
            return numbers + self.read_columns * self.inputs + OTHER_REGISTERS
        words = read * -(-self.x_bytes // 4) + c.tile_q * -(-self.y_bytes // 4)
        return numbers + read * self.inputs + words + OTHER_REGISTERS

    @property
    def stores_w(self) -> bool:
        """Whether the product's kernel stores the result; else a second kernel adds up sums, and finishes them."""
        return is_whole(self.problem, self.config.slices)
