"""How many pixels and channels an epilogue tile has."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from convgen.ir.problem import SECTOR
from convgen.kernels.parts import hopper, operand_tiles
from convgen.kernels.tma_im2col.gemm import Gemm

if TYPE_CHECKING:  # it requests its tiles here
    from convgen.kernels.tma_im2col.layout import Layout

#: Channels of the widest epilogue tile without a swizzle, where a narrower one will do; two of 64 pixels take 28 KB a
#: consumer.
WIDEST_EPI_TILE = 112
#: Channels of 2 bytes of a sector, which L2 writes at once.
SECTOR_CHANNELS = SECTOR // 2
#: Bytes of a multiprocessor's epilogue tiles of whole pixels, at most.
WHOLE_PIXELS = 112 << 10
#: Stages that epilogue tiles of more than WIDEST_EPI_TILE channels have to leave room for.
STAGES_BESIDE = 4


def epi_tile_shape(layout: Layout) -> tuple[int, int]:
    """Pixels and channels of an epilogue tile; each consumer has two: 64 pixels by so many channels, or up to 64 pixels
    by 64 channels."""
    columns = layout.config.columns // layout.config.split_k
    if layout.config.swap_ab:
        return max(d for d in (16, 32, 48, 64) if columns % d == 0 or d == 16), 64
    if _stores_whole_pixels(layout):
        return 64, columns
    widest = epi_tile_columns(layout.gemm, columns)
    if widest > WIDEST_EPI_TILE and not _have_room(layout, widest, STAGES_BESIDE):
        return 64, epi_tile_columns(layout.gemm, columns, WIDEST_EPI_TILE)
    return 64, widest


def _stores_whole_pixels(layout: Layout) -> bool:
    """Whether epilogue tiles have whole pixels, which fill the sectors in which those before them end; where pixels of
    C begin inside sectors, and there is room."""
    g, c = layout.gemm, layout.config
    ragged = g.columns % 16 and not g.problem.y.pitch and g.stores_pixels
    if not ragged or c.tile_n != g.columns or c.split_k > 1:
        return False
    return _bytes(layout, c.tile_n) * c.blocks <= WHOLE_PIXELS and _have_room(layout, c.tile_n, c.stages)


def _have_room(layout: Layout, channels: int, stages: int) -> bool:
    """Whether epilogue tiles of so many channels fit beside so many stages."""
    others = stages * layout.stage + layout.resident_bytes + 3 * hopper.SWIZZLE_ALIGNMENT
    return _bytes(layout, channels) + others <= layout.target.shared_limit(layout.config.blocks)


def _bytes(layout: Layout, channels: int) -> int:
    """Bytes of a block's epilogue tiles: y's and those shaped like it; operands have two slots, too."""
    problem = layout.gemm.problem
    each = 1 + len(operand_tiles.shaped(problem)) + len(problem.elementwise)
    return 2 * layout.config.consumers * each * 64 * channels * layout.gemm.element_bytes


def epi_tile_columns(gemm: Gemm, columns: int, widest: int = 1 << 10) -> int:
    """Channels of an epilogue tile of 64 pixels where wgmma's rows are pixels, `widest` at most; `columns` of C leave
    in turn."""
    return _epi_tile_columns(columns, gemm.stores_pixels, widest)


@cache
def _epi_tile_columns(columns: int, any_width: bool, widest: int) -> int:
    """A swizzle span (PTX ISA, "Swizzling modes") of 128 or 64 bytes, which stmatrix writes without bank conflicts.
    Else, for TMA, whole sectors of every pixel, the more the better: two lanes of stmatrix then share a bank, which
    costs less than a sector that is written in two halves; or an odd number of 16 bytes, without conflicts.  Threads
    and planes take powers of two."""
    spans = [c for c in (64, 32, 16, 8, 1) if columns % c == 0]
    if spans[0] >= 32 or not any_width:
        return spans[0]
    if spans[0] == SECTOR_CHANNELS:
        wide = [c for c in range(2 * SECTOR_CHANNELS, WIDEST_EPI_TILE + 1, SECTOR_CHANNELS) if columns % c == 0]
        if wide or columns <= widest:
            return max(wide, default=columns)
    return max([spans[0], *(c for c in range(8, WIDEST_EPI_TILE, 16) if columns % c == 0)])
