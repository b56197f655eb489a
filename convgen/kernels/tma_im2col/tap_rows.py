"""Rows of taps that a tile leaves out: those under which all of its pixels lie in the padding.

A row of taps is all taps with one place along the outermost axis.  Where a filter reaches no further than a tile,
every row counts.  Filters that are dilated wide (3x3 taps 36 pixels apart, as DeepLab's) and causal ones (of three
frames, where the first is the only one) meet much padding, whose products are zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from convgen.ir.index_map import TmaAxis
from convgen.ir.problem import ConvProblem

#: The share of all products that is worth counting a tile's rows.
LEAST_SAVED = 0.04
#: Tiles that a mean is taken over.
MOST_TILES = 512


@dataclass(frozen=True)
class TapRows:
    """The outermost axis: `taps` rows; `positions` of y, of `inner` pixels each; under row r, position o has the place
    start + o * stride + r * step of x's `extent`."""

    taps: int
    positions: int
    inner: int
    extent: int
    start: int
    stride: int
    step: int

    @property
    def padding(self) -> int:
        """Rows before x."""
        return -self.start

    @property
    def image(self) -> int:
        """Pixels of an image of y."""
        return self.positions * self.inner

    @property
    def before(self) -> int:
        """The first row that pixels have x under is max(this - last * stride, 0) / step: `last` is their last
        position."""
        return self.step - 1 - self.start

    @property
    def behind(self) -> int:
        """The end of these rows is max(this - first * stride, 0) / step: `first` is their first position."""
        return self.step + self.extent - 1 - self.start

    def under(self, first: int, last: int) -> tuple[int, int]:
        """The first row, and the end of the rows, that pixels at positions `first` to `last` have x under: at least one
        row."""
        begin = min(max(self.before - last * self.stride, 0) // self.step, self.taps - 1)
        end = min(max(self.behind - first * self.stride, 0) // self.step, self.taps)
        return begin, max(end, begin + 1)

    @property
    def taken(self) -> int:
        """Rows of all positions of an image, were tiles single positions.  Those between its ends take all rows: a
        sound of 65,536 samples is not counted one by one."""
        inside = min(max((self.before - self.step) // self.stride + 1, 0), self.positions)
        outside = min(max((self.behind - self.taps * self.step) // self.stride + 1, inside), self.positions)
        ends = (*range(inside), *range(outside, self.positions))
        return self.taps * (outside - inside) + sum(end - begin for begin, end in (self.under(o, o) for o in ends))

    def rows(self, pixel: int, tile_m: int) -> int:
        """How many rows a tile takes that begins at a pixel of an image."""
        last = pixel + tile_m - 1
        ends = (pixel // self.inner, last // self.inner) if last < self.image else (0, self.positions - 1)
        begin, end = self.under(*ends)
        return end - begin


@cache
def mean_rows(found: TapRows, tile_m: int) -> float:
    """How many rows a tile takes on average."""
    starts = range(0, found.image, tile_m * math.ceil(found.image / tile_m / MOST_TILES))
    return sum(found.rows(pixel, tile_m) for pixel in starts) / len(starts)


def tap_rows(problem: ConvProblem, axis: TmaAxis) -> TapRows | None:
    """The rows of taps of a product by windows, whose outermost axis is `axis`; None if tiles of a pixel would save
    next to nothing."""
    positions = problem.output[0]
    found = TapRows(
        taps=problem.filter[0],
        positions=positions,
        inner=math.prod(problem.output) // positions,
        extent=problem.input[0],
        start=axis.lower,
        stride=axis.element_stride,
        step=axis.offset_step,
    )
    return found if found.taken <= (1 - LEAST_SAVED) * found.taps * positions else None
