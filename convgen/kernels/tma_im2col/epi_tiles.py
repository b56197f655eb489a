"""How many channels an epilogue tile has."""

from __future__ import annotations

from functools import cache

from convgen.kernels.tma_im2col.gemm import Gemm

#: Channels of the widest epilogue tile without a swizzle; two of 64 pixels take 26 KB a consumer.
WIDEST_EPI_TILE = 104


def epi_tile_columns(gemm: Gemm, columns: int) -> int:
    """Channels of an epilogue tile of 64 pixels where wgmma's rows are pixels; `columns` of C leave in turn."""
    return _epi_tile_columns(columns, gemm.stores_pixels)


@cache
def _epi_tile_columns(columns: int, any_width: bool) -> int:
    """A swizzle span (PTX ISA, "Swizzling modes") of 128 or 64 bytes, which stmatrix writes without bank conflicts; or,
    for TMA, an odd number of 16 bytes, which needs no swizzle for that.  Threads and planes take powers of two."""
    spans = [c for c in (64, 32, 16, 8, 1) if columns % c == 0]
    if spans[0] >= 32 or not any_width:
        return spans[0]
    return max([spans[0], *(c for c in range(8, WIDEST_EPI_TILE + 1, 16) if columns % c == 0)])
