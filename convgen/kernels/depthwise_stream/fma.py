"""Multiplication on the ordinary cores: a thread computes a tile of outputs for a few channels."""

from __future__ import annotations

from functools import cached_property

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacles
from convgen.kernels.depthwise_stream.config import Config
from convgen.kernels.depthwise_stream.layout import UNIT, WORD
from convgen.kernels.depthwise_stream.layout import Layout as Shared
from convgen.kernels.parts.assignment import Assignment
from convgen.kernels.parts.axes import axes
from convgen.kernels.parts.channel_vectors import filter_pitch
from convgen.kernels.parts.depthwise import channel_run
from convgen.kernels.parts.formula_cost import formula_instructions

OTHER_REGISTERS = 14  # per thread, for addresses and counters
FEW_TAPS, FEW_TAPS_TILES = 9, ((2, 4), (1, 4), (1, 7), (2, 7), (4, 4))
MANY_TAPS = 1.25  # times what a product takes, where a window has more of them
MOST_REGISTER_FILTER = 100  # values of a thread's filters that stay in its registers
THREADS = (512, 352, 256)
BLOCKS = (1, 2)
SLICE_LIMITS = (96, 48)  # channels


class Layout(Shared):
    tile_lanes = 1

    @property
    def in_registers(self) -> bool:
        return self.read.taps * self.config.vector <= MOST_REGISTER_FILTER

    @property
    def filter_pitch(self) -> int:
        """Elements of a tap's filters in shared memory."""
        return filter_pitch(self.config.slice)

    @property
    def filter_bytes(self) -> int:
        return self.read.taps * self.filter_pitch * 4

    @cached_property
    def registers(self) -> int:
        c, columns = self.config, self.axes[1]
        filters = self.read.taps if self.in_registers else columns.filter
        held = (c.tile_p * c.tile_q + filters + len(self.sums)) * c.vector
        return held + columns.inputs(c.tile_q) * self.inputs + OTHER_REGISTERS

    @cached_property
    def instructions(self) -> float:
        c, (rows, columns) = self.config, self.axes
        loads = rows.inputs(c.tile_p) * columns.inputs(c.tile_q)
        taps = self.read.taps / self.run_outputs  # of an output, on average
        products = c.tile_p * c.tile_q * taps * c.vector * (MANY_TAPS if self.read.taps > FEW_TAPS else 1.0)
        filters = 0 if self.in_registers else c.tile_p / rows.phases * self.read.taps * max(1, c.vector // 4) * 4
        of_result = 0.5 + len(self.sums) + formula_instructions(self.read)
        stores = self.tile_pixels * (c.vector * of_result + 2)
        return products + loads * (self.inputs + 1) + filters + stores

    @cached_property
    def lines(self) -> float:
        c, (rows, columns) = self.config, self.axes
        words = self.inputs * self.element_bytes / 4
        return rows.inputs(c.tile_p) * columns.inputs(c.tile_q) * max(1.0, words)


def obstacles(assigned: Assignment) -> Obstacles:
    return Obstacles()


def malformed(problem: ConvProblem, config: Config) -> Obstacles:
    return Obstacles()


def most_channels(problem: ConvProblem) -> int:
    """The most channels of a thread."""
    return UNIT // problem.x.element.bytes


def vectors(problem: ConvProblem) -> list[int]:
    """The most promising vector lengths, or for long filter rows, which are kept in registers, the shortest.  None if a
    thread's input channels are less than a word."""
    run, size, m = channel_run(problem), problem.x.element.bytes, problem.k_per_group
    found = [v for v in (4, 2, 8, 1) if run % v == 0 and v * size <= UNIT and max(1, v // m) * size >= WORD]
    is_long = bool(found) and problem.filter[-1] * min(found[:2]) > MOST_REGISTER_FILTER
    return [min(found)] if is_long else found[:2]


def slices(problem: ConvProblem, divisors: list[int]) -> set[int]:
    """The largest slice, and the largest up to each limit."""
    return {max((s for s in divisors if s <= limit), default=divisors[0]) for limit in (divisors[-1], *SLICE_LIMITS)}


def tiles(assigned: Assignment, vector: int) -> list[tuple[int, int]]:
    """Rows and columns of a thread's tile, as its registers allow: filters may take most of them."""
    problem = assigned.problem
    rows, columns = axes(problem, assigned.phases)
    few = vector * problem.x.element.bytes <= 4
    sizes = ((2, 7), (1, 7), (2, 4)) if problem.taps > FEW_TAPS else ((2, 7),) if few else FEW_TAPS_TILES
    found = ((rows.whole(min(p, rows.output)), columns.whole(min(q, columns.output))) for p, q in sizes)
    return list(dict.fromkeys(found))
