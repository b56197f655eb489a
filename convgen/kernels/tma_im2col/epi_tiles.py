"""How many channels an epilogue tile has."""

from __future__ import annotations

from functools import cache

from convgen.ir.problem import SECTOR
from convgen.kernels.tma_im2col.gemm import Gemm

#: Channels of the widest epilogue tile without a swizzle, where a narrower one will do; two of 64 pixels take 28 KB a
#: consumer.
WIDEST_EPI_TILE = 112
#: Channels of 2 bytes of a sector, which L2 writes at once.
SECTOR_CHANNELS = SECTOR // 2


def epi_tile_columns(gemm: Gemm, columns: int) -> int:
    """Channels of an epilogue tile of 64 pixels where wgmma's rows are pixels; `columns` of C leave in turn."""
    return _epi_tile_columns(columns, gemm.stores_pixels)


@cache
def _epi_tile_columns(columns: int, any_width: bool) -> int:
    """A swizzle span (PTX ISA, "Swizzling modes") of 128 or 64 bytes, which stmatrix writes without bank conflicts.
    Else, for TMA, whole sectors of every pixel, the more the better: two lanes of stmatrix then share a bank, which
    costs less than a sector that is written in two halves; or an odd number of 16 bytes, without conflicts.  Threads
    and planes take powers of two."""
    spans = [c for c in (64, 32, 16, 8, 1) if columns % c == 0]
    if spans[0] >= 32 or not any_width:
        return spans[0]
    if spans[0] == SECTOR_CHANNELS:
        wide = [c for c in range(2 * SECTOR_CHANNELS, WIDEST_EPI_TILE + 1, SECTOR_CHANNELS) if columns % c == 0]
        return max(wide, default=columns)
    return max([spans[0], *(c for c in range(8, WIDEST_EPI_TILE, 16) if columns % c == 0)])
