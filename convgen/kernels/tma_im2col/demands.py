"""A layout as the cost model sees it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from convgen.ir.problem import SECTOR
from convgen.kernels.parts.cost import LINE, functions, lines, requests
from convgen.kernels.parts.hopper import COLUMNS_BOX, mean_products, products
from convgen.kernels.tma_im2col import cost
from convgen.kernels.tma_im2col.layout import Layout


def demands(layout: Layout) -> dict[str, Any]:
    """The input of `cost.time`."""
    config = layout.config
    rows, columns = (config.tile_n, config.tile_m) if config.swap_ab else (config.tile_m, config.tile_n)
    traffic, tiles = layout.gemm.traffic, int(layout.tile_count)
    seams, line_ends = (_seams(layout, unit) for unit in (SECTOR, LINE))
    if sums := layout.gemm.problem.sums:
        traffic = traffic | {"writes": traffic["writes"] + 2 * sum(layout.partial_bytes.values())}
    return dict(
        rows=rows, columns=columns, m=config.tile_m, n=config.tile_n, b_rows=layout.b_loaded, k=config.tile_k,
        resident=_resident(layout), crowd=_crowd(layout, tiles),
        stages=config.stages, consumers=config.consumers, pingpong=config.schedule == "pingpong", blocks=config.blocks,
        k_blocks=config.k_blocks, split_k=config.split_k, cluster=config.cluster, shared=config.shared,
        stream_k=config.stream_k, rewritten=layout.rewritten, tiles=tiles, steps=layout.mean_k_blocks,
        products=mean_products(products(config.tile_k), layout.last_products, layout.channel_blocks),
        sms=_sms(layout), reads=traffic["reads"], writes=traffic["writes"], x_pitch=traffic["x_pitch"],
        epi_tiles=layout.epi_tiles, row_sums=0 if config.swap_ab else len(sums), functions=functions(layout.problem),
        again=layout.gemm.read_again, between=between_taps(layout),
        cut=_cut_sectors(layout), by_tma=layout.gemm.stores_by_tma, together=_written_together(layout),
        seams=seams, line_seams=line_ends - seams, in_place=layout.sums_in_place,
    )  # fmt: skip


def least(layout: Layout, k_blocks: int, blocks: Iterable[int]) -> float:
    """A lower bound in microseconds for the layout outside of clusters and streams, with at most so many k blocks of a
    stage, and one of these numbers of blocks: its time with as many stages as there may be, and without what takes
    longer to find out."""
    config, g = layout.config, layout.gemm
    stages = layout.target.shared_limit(1) * config.k_blocks // layout.stage
    us = min(
        cost.time(
            rows=config.tile_n if config.swap_ab else config.tile_m, columns=config.columns, m=config.tile_m,
            n=config.tile_n, b_rows=layout.b_loaded, resident=_resident(layout), crowd=0.0,
            k=config.tile_k, stages=stages, consumers=config.consumers, pingpong=config.schedule == "pingpong",
            blocks=each, k_blocks=k_blocks, split_k=config.split_k, cluster=1, shared="", stream_k=0,
            tiles=int(layout.tile_count), steps=layout.mean_k_blocks,
            products=mean_products(products(config.tile_k), layout.last_products, layout.channel_blocks),
            sms=_sms(layout), reads=g.traffic["reads"], writes=g.traffic["writes"], x_pitch=g.traffic["x_pitch"],
        )
        for each in blocks
    )  # fmt: skip
    return g.prepared.time + us


def _resident(layout: Layout) -> int:
    """Rows of B that a block loads once."""
    return layout.k_blocks * layout.b_loaded * layout.config.resident


def _crowd(layout: Layout, tiles: int) -> float:
    """Requests for a line of B, for one of the tiles, by all multiprocessors that have such a tile at the same time,
    but for the first of each: rows of boxes that are no whole lines ask for each line several times.  Tiles that fill
    a cluster up have no channels, and ask for none."""
    g, c, size = layout.gemm, layout.config, layout.gemm.element_bytes
    if g.b_columns:
        each = lines(COLUMNS_BOX * size, (g.problem.w.pitch or g.columns) * size)
    else:
        row = g.channels * size
        each = requests(row, row if g.taps_outside else row * g.problem.taps, layout.span)
    alike = layout.n_tiles * (c.cluster if c.shared == "a" else 1)
    together = min(tiles * c.split_k, layout.target.sms) / (alike * c.split_k)
    return (each - 1) * together / (c.cluster if c.shared == "b" else 1)


def _sms(layout: Layout) -> int:
    """Multiprocessors that have blocks."""
    sms = layout.target.clustered_sms(layout.config.split_k * layout.config.cluster)
    if layout.config.resident:  # as many for each part of the output channels
        parts = layout.n_tiles * layout.config.cluster
        sms -= sms % parts if sms > parts else 0
    return sms


def between_taps(layout: Layout) -> int:
    """Bytes of A that all blocks read between a tap's pixels and the same ones for the next tap that meets them: all
    channels of each tile in flight, or a k block's; strided taps meet the same pixels at every other tap, or later."""
    g, c = layout.gemm, layout.config
    at_once = c.blocks * (c.consumers if c.schedule == "pingpong" else 1)
    in_flight = min(layout.tile_count, _sms(layout) // c.split_k * at_once)
    alike = -(-g.group_columns // c.tile_n)
    channels = g.channels if c.order == "channels_inner" else c.tile_k
    return -(-in_flight // alike) * c.tile_m * channels * g.element_bytes * (1 if g.phases else max(g.problem.stride))


def _cut_sectors(layout: Layout) -> float:
    """Sectors that epilogue tiles fill in part, for each sector of y: a tile's runs of channels, or of pixels of a
    plane, begin and end inside one.  Where tiles have whole pixels, those that follow fill the sectors at once."""
    g = layout.gemm
    pixels, channels = layout.epi_tile_shape
    if not (g.plane or layout.config.swap_ab) and channels >= g.columns:
        return 0.0
    run = (pixels if g.plane else channels) * g.problem.y.element.bytes
    return 2 * SECTOR * _ends_inside(layout, run) / max(run, SECTOR)


def _seams(layout: Layout, unit: int) -> float:
    """Sectors of y, or lines, that tiles of neighboring channels fill together; none where tiles have all channels of a
    pixel."""
    g, n = layout.gemm, layout.config.tile_n
    tiles = -(-g.columns // n)
    if g.plane or tiles == 1:
        return 0.0
    return g.pixels * tiles * _ends_inside(layout, n * g.problem.y.element.bytes, unit)


def _written_together(layout: Layout) -> float:
    """Bytes of y that are written between a tile and its neighbors in channels, at most: those of the tiles that a
    cluster's blocks may be apart, where it has all channels; else blocks may be apart by any number."""
    g, c = layout.gemm, layout.config
    if c.shared != "a" or layout.n_tiles > 1:
        return math.inf
    return c.stages * _sms(layout) / c.cluster * c.tile_m * float(g.traffic["y_pitch"])


def _ends_inside(layout: Layout, run: int, unit: int = SECTOR) -> float:
    """The share of runs of so many bytes of y that end inside a sector, or inside another unit."""
    return 1 - math.gcd(int(layout.gemm.traffic["y_pitch"]), run, unit) / unit
