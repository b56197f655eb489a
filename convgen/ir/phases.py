"""The phases of a strided dgrad, read off the index map.

Along an axis, pixels of x that are a stride apart are one phase: the same taps reach them.  Pixel first + stride * i is
reached by every tap_step-th tap from `tap` on, since stride divides h + pad_lo - r * dilation for these; tap
tap + tap_step * j reads y's pixel i + lower + offset - offset_step * j.  So a phase is a walk over y by unit stride,
with taps of its own, and a phase without taps is zero.

All phases walk the same `positions` from the same `lower` corner and differ in offsets alone, so that one im2col box
serves them.  Where the stride does not divide x's extent, the last position of some phases lies behind x's end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

from sympy import Integer

from convgen.ir import integer
from convgen.ir.index_map import TmaAxis, derive
from convgen.ir.integer import symbol
from convgen.ir.problem import ConvProblem


@dataclass(frozen=True)
class AxisPhase:
    """A phase along one axis: its first pixel, its first tap and how many there are, the first one's offset."""

    first: int
    tap: int
    taps: int
    offset: int


@dataclass(frozen=True)
class PhasedAxis:
    """An axis of x, `dim`, and the axis of y that goes with it."""

    dim: str
    extent: int
    stride: int
    tap_step: int
    offset_step: int
    phases: tuple[AxisPhase, ...]
    walk: TmaAxis  # of y; its offset is the furthest one

    @property
    def positions(self) -> int:
        """The number of positions in a phase's walk."""
        return -(-self.extent // self.stride)

    @property
    def even(self) -> bool:
        """Whether no position lies past x's end."""
        return self.extent % self.stride == 0


@dataclass(frozen=True)
class Phases:
    """The phases of all axes, outermost first."""

    axes: tuple[PhasedAxis, ...]

    @cached_property
    def rows(self) -> tuple[tuple[AxisPhase, ...], ...]:
        """The phases: one of each axis, those with the most taps first."""
        rows = product(*(axis.phases for axis in self.axes))
        return tuple(sorted(rows, key=lambda row: -math.prod(axis.taps for axis in row)))

    @property
    def taps(self) -> tuple[int, ...]:
        """The number of taps of each phase."""
        return tuple(math.prod(axis.taps for axis in row) for row in self.rows)

    @property
    def pixels(self) -> int:
        """The number of a phase's pixels in one image, counted by positions."""
        return math.prod(axis.positions for axis in self.axes)

    @property
    def even(self) -> bool:
        """Whether no position lies past x's end."""
        return all(axis.even for axis in self.axes)


def phase_count(problem: ConvProblem) -> int:
    """How many phases a dgrad has, which of large strides are too many to look at."""
    return math.prod(map(min, problem.stride, problem.input))


@lru_cache(maxsize=64)
def phases(problem: ConvProblem) -> Phases:
    """The phases of a dgrad."""
    sp = problem.spatial
    loop = {d: symbol(d) for d in (*sp.input, *sp.filter)} | dict.fromkeys(("n", "k"), Integer(0))
    starts = derive(problem, (), loop).accesses["y"].divisible
    axes = []
    for dim, tap, out, start in zip(sp.input, sp.filter, sp.output, starts, strict=True):
        terms = {term: c for c, term in integer.expand_terms(start.value)}
        base, step, stride = terms.get(Integer(1), 0), terms[symbol(tap)], int(start.divisor)
        axes.append(_axis(problem, (dim, tap, out), base, step, stride))
    return Phases(tuple(axes))


def _axis(problem: ConvProblem, dims: tuple[str, str, str], base: int, step: int, stride: int) -> PhasedAxis:
    """An axis of x, filter and y: tap r reaches pixel h where stride divides h + base + step * r."""
    extent, taps, outputs = map(problem.extent, dims)
    tap_step = stride // math.gcd(step, stride)
    offset_step = -step * tap_step // stride
    reached = {}
    for first in range(min(stride, extent)):
        start = next((r for r in range(min(tap_step, taps)) if (first + base + step * r) % stride == 0), taps)
        reached[first] = range(start, taps, tap_step)
    pixel = {first: (first + base + step * found.start) // stride for first, found in reached.items()}
    corners = [pixel[first] - offset_step * (len(found) - 1) for first, found in reached.items() if found]
    lower = min(corners, default=0)
    furthest = max((pixel[first] - lower for first, found in reached.items() if found), default=0)
    found = tuple(
        AxisPhase(first, r.start, len(r), pixel[first] - lower) if r else AxisPhase(first, 0, 0, 0)
        for first, r in reached.items()
    )
    upper = lower + -(-extent // stride) - outputs
    walk = TmaAxis(dims[2], lower, upper, 1, furthest, 0)
    return PhasedAxis(dims[0], extent, stride, tap_step, offset_step, found, walk)
