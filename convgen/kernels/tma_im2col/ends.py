"""Boxes of A and B that end where these do.

A box of a tiled map may reach past the last row, and TMA then makes rows of zeros.  But such a row takes it about ten
cycles, for two that a row of memory takes (H200): 3x3 layers of 256 channels took 21.7 us with 256 output channels, and
32.6 with 136, by the same tiles.  So the last box ends with the operand.  The rows behind it have what was there
before; they are multiplied, and nothing of that is stored.  Where output channels are contiguous, boxes of 64 that
begin past the last are left out.  In im2col mode, rows past the end cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from convgen.kernels.parts.hopper import COLUMNS_BOX

if TYPE_CHECKING:
    from convgen.kernels.tma_im2col.layout import Layout


@dataclass(frozen=True)
class End:
    """What blocks load of an operand for a tile, or of their slice of it: so many rows, or boxes of columns, and of the
    `last` fewer; 0 where it is a whole one, or boxes may reach past the end.  Whether all that there is, is `last`."""

    loaded: int
    last: int
    alike: bool

    @property
    def box(self) -> int:
        """Rows of the map's boxes."""
        return self.last if self.alike else self.loaded

    @property
    def differs(self) -> bool:
        """Whether some tiles have less than others."""
        return self.last > 0 and not self.alike


def of_a(layout: Layout) -> End:
    """Rows are pixels, of a 1x1 filter: that of all others is walked in im2col mode.  A prologue reads every row."""
    g, config = layout.gemm, layout.config
    loaded = max(config.tile_m // (config.cluster if config.shared == "a" else 1), 1)
    ends = g.pointwise and not g.a_planes and not g.problem.dynamic and not g.problem.prologue
    return _end(layout, loaded, g.pixels if ends else loaded)


def of_b(layout: Layout) -> End:
    """Rows are output channels, all of them: not those of a tile's group, and not where sums are looked at that are not
    stored."""
    g, config, unit = layout.gemm, layout.config, _unit(layout)
    loaded = max(-(-config.tile_n // unit) // (config.cluster if config.shared == "b" else 1), 1)
    return _end(layout, loaded, loaded if g.group or g.own_zeros else -(-g.columns // unit))


def b_rows(layout: Layout) -> int:
    """Output channels of B that come for the fullest tile, for each k block."""
    end, all_rows = of_b(layout), layout.b_rows
    return end.last * _unit(layout) if end.alike else all_rows


def _end(layout: Layout, loaded: int, all_there_is: int) -> End:
    last = all_there_is % loaded
    return End(loaded, last, 0 < last == all_there_is and not layout.config.shared)


def _unit(layout: Layout) -> int:
    return COLUMNS_BOX if layout.gemm.b_columns else 1
