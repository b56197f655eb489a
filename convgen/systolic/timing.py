"""How long the array takes: passes over tiles of pixels, with off-chip memory's loads and stores behind them.

A tile is as many output positions, of all images, as the vector memories hold: twice the inputs of a pass (one is
multiplied while the next arrives) and the tile's sums of all output channels.  Each step multiplies what the rows hold
by every block of columns; weights arrive while the step before streams.  Where a vector memory's one port has more to
do than the array, it sets the pace.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from convgen.spec import UsageError
from convgen.systolic.machine import Machine
from convgen.systolic.schedule import Shape, auto_tiles, check_tiles, row_blocks

_SUM_BYTES = 4
_SIZES = 5  #: Of a tile: what fits, half of it, and so on.
#: What is gone through one by one, in about ten seconds: steps of all sizes of tiles, and rows of all passes.
MOST_STEPS, MOST_ROWS = 1 << 22, 1 << 21


@dataclass(frozen=True)
class Step:
    """Rows of one pass by every block of columns, for one tile of positions."""

    cycles: int
    loads: int  # bytes
    stores: int  # bytes, after it
    words: int  # that cross the ports of all vector memories


@dataclass(frozen=True)
class Timing:
    """A convolution on the machine.  `workspace` is the bytes of inputs in the vector memories."""

    machine: Machine
    macs: int
    tiles: int
    cycles: float
    dram_bytes: int
    words: int
    workspace: int

    @property
    def seconds(self) -> float:
        return self.cycles / self.machine.hertz

    @property
    def tflops(self) -> float:
        return 2 * self.macs / self.seconds / 1e12

    @property
    def utilization(self) -> float:
        """The share of the PEs' cycles that do work that counts."""
        return self.macs / (self.cycles * self.machine.array**2)

    @property
    def bandwidth(self) -> float:
        """Bytes a second to and from off-chip memory."""
        return self.dram_bytes / self.seconds

    @property
    def port_use(self) -> float:
        """The share of cycles in which a vector memory's port is used."""
        return self.words / (self.cycles * self.machine.array)


def simulate(shape: Shape, machine: Machine, tiles: int | None = None) -> Timing:
    """The best of the tiles of positions that fit.  Raises UsageError where none does, where so many taps cannot be
    merged, or where there is too much to go through."""
    tiles = auto_tiles(shape, machine) if tiles is None else check_tiles(shape, machine, tiles)
    columns = -(-shape.k // machine.array)
    room = machine.memory // (shape.n * (2 * shape.element_bytes + columns * _SUM_BYTES))
    if not room:
        raise UsageError(f"one pixel of {shape.n} images does not fit a vector memory of {machine.memory} bytes")
    sizes = {min(room, shape.positions) >> shift for shift in range(_SIZES)} - {0}
    _check_work(shape, machine, tiles, sizes)
    return min((_timed(shape, machine, tiles, size) for size in sorted(sizes)), key=lambda t: t.cycles)


def _check_work(shape: Shape, machine: Machine, tiles: int, sizes: Collection[int]) -> None:
    """Raises UsageError where a simulation would not end soon."""
    taps = math.prod(shape.filter)
    blocks = -(-taps // tiles) * -(-shape.c // machine.array)
    steps = shape.groups * blocks * sum(-(-shape.positions // size) for size in sizes)
    for count, most, what in ((steps, MOST_STEPS, "steps"), (taps * shape.c, MOST_ROWS, "rows of the filter")):
        if count > most:
            raise UsageError(
                f"{count} {what} are too many to simulate: {most} are possible\n"
                "hint: simulate fewer images, smaller images, or fewer channels"
            )


def _timed(shape: Shape, machine: Machine, tiles: int, positions: int) -> Timing:
    """Two buffers: a step's loads wait for the end of the step before the last."""
    dram = array = ended = before = 0.0  # cycles: when each is free; when the last steps' products ended
    stores = moved = words = 0
    for step in _steps(shape, machine, tiles, positions):
        dram = max(dram, before) + step.loads / machine.bytes_a_cycle
        begin = max(array, dram)
        if stores:
            dram = max(dram, ended) + stores / machine.bytes_a_cycle
        array = begin + step.cycles
        before, ended, stores = ended, array, step.stores
        moved, words = moved + step.loads + step.stores, words + step.words
    cycles = max(dram, array + 2 * machine.array - 1) + stores / machine.bytes_a_cycle
    rows = max(map(len, row_blocks(shape, machine, tiles)))
    workspace = rows * positions * shape.n * shape.element_bytes
    return Timing(machine, shape.macs, tiles, cycles, moved, words, workspace)


def _steps(shape: Shape, machine: Machine, tiles: int, positions: int) -> Iterator[Step]:
    blocks = [len(rows) for rows in row_blocks(shape, machine, tiles)]
    for _ in range(shape.groups):
        for first in range(0, shape.positions, positions):
            held = min(positions, shape.positions - first)
            for i, rows in enumerate(blocks):
                yield _step(shape, machine, rows, held, last=i == len(blocks) - 1)


def _step(shape: Shape, machine: Machine, rows: int, positions: int, last: bool) -> Step:
    elements, size = positions * shape.n, shape.element_bytes
    columns = -(-shape.k // machine.array)
    words = positions * -(-shape.n // machine.word)  # of one channel
    # a row's memory takes its words in once and reads them for each block of columns; a column's adds, and gives out
    busiest = words * (1 + columns * (2 + last))
    weights = rows * shape.k * size
    return Step(
        max(columns * max(elements, machine.array), busiest),
        rows * elements * size + weights,
        elements * shape.k * size if last else 0,
        words * (rows * (1 + columns) + shape.k * (1 + last)),
    )
