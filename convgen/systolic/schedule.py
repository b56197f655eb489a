"""The schedule of the array's contents, pass by pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from convgen.diagnostics import ConvgenError
from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.spec import UsageError
from convgen.systolic.machine import Machine

Tap = tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """A convolution's sizes, as the schedule uses them.  C and K are a group's; positions are output pixels of one
    image."""

    n: int
    c: int
    k: int
    positions: int
    filter: tuple[int, ...]
    groups: int = 1
    element_bytes: int = 2

    @property
    def macs(self) -> int:
        return self.n * self.positions * self.c * self.k * self.groups * math.prod(self.filter)


class NotModeled(ConvgenError):
    """The machine has no known schedule for a convolution."""


_HINT = "hint: `--only NAME` leaves it out of a file of several convolutions"


def shape_of(problem: ConvProblem) -> Shape:
    """Raises NotModeled where it is no fprop with zeros around the input."""
    if problem.op is not Op.FPROP:
        also = " (as `op transposed` is)" if problem.op is Op.DGRAD else ""
        raise NotModeled(f"{problem.name}: op {problem.op}{also} is not modeled, only fprop\n{_HINT}")
    if problem.padding is not Padding.ZERO:
        raise NotModeled(f"{problem.name}: padding of {problem.padding} is not modeled, only zeros\n{_HINT}")
    return Shape(
        problem.n,
        problem.c_per_group,
        problem.k_per_group,
        math.prod(problem.output),
        problem.filter,
        problem.groups,
        problem.x.element.bytes,
    )


@dataclass(frozen=True)
class Pass:
    """Row i of the array multiplies channel `rows[i]`'s pixels, those that the tap reads, by weights of `columns`."""

    rows: tuple[tuple[Tap, int], ...]
    columns: range


def auto_tiles(shape: Shape, machine: Machine) -> int:
    """How many taps a pass merges: as many as fill the rows, and at most those of a filter's row.  The document finds
    that a TPU v2 does the same (figure 14)."""
    return max(1, min(machine.array // shape.c, shape.filter[-1]))


def check_tiles(shape: Shape, machine: Machine, tiles: int) -> int:
    """The number itself.  Raises UsageError where so many taps cannot be merged."""
    most = max(1, min(machine.array // shape.c, math.prod(shape.filter)))
    if not 1 <= tiles <= most:
        possible = f"1 to {most} are possible" if most > 1 else "only 1 is possible"
        raise UsageError(
            f"tiles {tiles}: {possible}, for {shape.c} channels and {math.prod(shape.filter)} taps on {machine.array} "
            f"rows\nhint: `auto` takes what each layer has room for"
        )
    return tiles


def row_blocks(shape: Shape, machine: Machine, tiles: int) -> Iterator[tuple[tuple[Tap, int], ...]]:
    """The contents of the rows: a block of channels of one tap after another, or all channels of `tiles` taps."""
    taps = list(product(*map(range, shape.filter)))
    for first in range(0, len(taps), tiles):
        for c in range(0, shape.c, machine.array):
            channels = range(c, min(c + machine.array, shape.c))
            yield tuple((tap, channel) for tap in taps[first : first + tiles] for channel in channels)


def column_blocks(shape: Shape, machine: Machine) -> list[range]:
    """Output channels that the columns hold together."""
    return [range(k, min(k + machine.array, shape.k)) for k in range(0, shape.k, machine.array)]


def passes(shape: Shape, machine: Machine, tiles: int) -> Iterator[Pass]:
    """All of one group: what the rows hold is multiplied for every block of columns before the next comes."""
    for rows in row_blocks(shape, machine, tiles):
        for columns in column_blocks(shape, machine):
            yield Pass(rows, columns)
