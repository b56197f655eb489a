"""Configurations that are worth a thought, and the choice among them by the cost model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options
from convgen.kernels.parts import cost, prepare
from convgen.kernels.parts.hopper import mean_products, products
from convgen.kernels.tma_im2col.config import TmaIm2colConfig
from convgen.kernels.tma_im2col.legality import illegal
from convgen.kernels.tma_im2col.tiles import (
    as_read,
    channel_blocks,
    chunk_columns,
    footprint,
    k_steps,
    last_products,
    m_tiles,
    tile_count,
)
from convgen.targets import Target

#: wgmma's rows of a tile, and how many consumers share them in which way, that are worth a thought.
SHAPES = (
    (128, 2, "cooperative"),
    (64, 1, "cooperative"),
    (192, 3, "cooperative"),
    (256, 2, "cooperative"),
    (64, 2, "pingpong"),
    (64, 3, "pingpong"),
    (128, 2, "pingpong"),
)
MAX_STAGES = 12
#: (blocks, operand) of the clusters that are considered, for the best so many configurations without one.  Four
#: blocks leave multiprocessors idle: an H200 places them within groups of 16 and 18.
CLUSTERS = ((2, "x"), (2, "w"))
CLUSTERED = 24
#: The best so many are considered with their k steps shared evenly, too.
STREAMED = 4


def estimate(problem: ConvProblem, target: Target, config: TmaIm2colConfig) -> float:
    """Microseconds that the cost model gives a configuration."""
    prepared = as_read(problem, config.bundle)
    return prepared.time + cost.im2col_time(**demands(prepared.problem, target, config))


def demands(problem: ConvProblem, target: Target, config: TmaIm2colConfig) -> dict[str, Any]:
    """A configuration as the cost model sees it."""
    rows, columns = (config.n, config.m) if config.by_channels else (config.m, config.n)
    return dict(
        rows=rows, columns=columns, m=config.m, n=config.n, k=config.k, stages=config.stages,
        consumers=config.consumers, pingpong=config.schedule == "pingpong", blocks=config.blocks, merge=config.merge,
        split=config.split, cluster=config.cluster, shared=config.shared, stream=config.stream,
        tiles=tile_count(problem, config),
        steps=k_steps(problem, config.k),
        products=mean_products(products(config.k), last_products(problem, config), channel_blocks(problem, config.k)),
        sms=target.sms, **cost.traffic(problem),
    )  # fmt: skip


@lru_cache(maxsize=64)
def ranking(problem: ConvProblem, target: Target, fixed: tuple[tuple[str, int | str], ...]) -> list[TmaIm2colConfig]:
    """Legal configurations that go with fixed options, by estimated time."""
    options = dict(fixed)
    found: list[tuple[float, TmaIm2colConfig]] = []
    for bundle in [int(options["bundle"])] if "bundle" in options else prepare.bundles(problem):
        prepared = as_read(problem, bundle)
        times = _configurations(prepared.problem, target, options, bundle)
        found += [(prepared.time + time, config) for config, time in times.items()]
    return [config for _, config in sorted(found, key=lambda row: row[0])]


def choose(problem: ConvProblem, target: Target, options: Options) -> TmaIm2colConfig:
    """The configuration: what the options say, the rest by the cost model.

    Where nothing legal goes with the options, the first of what they ask for, for `obstacles` to explain.
    """
    ranked = ranking(problem, target, tuple(sorted(options.items())))
    if ranked:
        return ranked[0]
    if "stages" in options:
        fewer = ranking(problem, target, tuple(sorted((o, v) for o, v in options.items() if o != "stages")))
        if fewer:
            return replace(fewer[0], stages=int(options["stages"]))
    m, n, consumers, schedule, rows = next(_tile_shapes(problem, options))
    trial = TmaIm2colConfig(
        m, n, int(options.get("tile.k", 64)), 2, consumers,
        schedule, str(options.get("order", "channels_inner")),
        int(options.get("blocks", 1)), int(options.get("merge", 1)), int(options.get("split", 1)),
        rows, int(options.get("cluster", 1)), str(options.get("shares", "x")), int(options.get("raster", 1)),
        int(options.get("stream", 0)), int(options.get("bundle", (*prepare.bundles(problem), 1)[0])),
    )  # fmt: skip
    ready = as_read(problem, trial.bundle).problem
    return replace(trial, stages=int(options.get("stages", _stages(ready, target, trial))))


def _configurations(
    problem: ConvProblem, target: Target, options: Options, bundle: int
) -> dict[TmaIm2colConfig, float]:
    """Legal configurations that go with options, of a problem in bundles, with their estimated times."""
    found: dict[TmaIm2colConfig, float] = {}

    def consider(configs: Iterable[TmaIm2colConfig]) -> None:
        for trial in configs:
            stages = int(options["stages"]) if "stages" in options else _stages(problem, target, trial)
            config = replace(trial, stages=stages)
            if not illegal(problem, target, config):
                found[config] = cost.im2col_time(**demands(problem, target, config))

    clusters = [(blocks, operand) for blocks, operand in CLUSTERS if options.get("shares", operand) == operand]
    blocks = int(options.get("cluster", 1))
    if blocks > 1:
        operands = dict.fromkeys(operand for _, operand in clusters)
        plain = _plain(problem, target, options, bundle)
        consider(replace(c, cluster=blocks, shares=operand) for c in plain for operand in operands)
        return found
    consider(_plain(problem, target, options, bundle))
    if "cluster" not in options:
        alone = [config for config in sorted(found, key=lambda c: found[c]) if config.split == 1][:CLUSTERED]
        consider(
            replace(c, cluster=blocks, shares=operand)
            for c in alone
            for blocks, operand in clusters
            if _neighbours(problem, c, operand) >= blocks
        )
        if "stream" not in options:
            cooperative = [config for config in alone if config.schedule == "cooperative" and config.blocks == 1]
            consider(replace(config, stream=1) for config in cooperative[:STREAMED])
    return found


def _neighbours(problem: ConvProblem, config: TmaIm2colConfig, operand: str) -> int:
    """Tiles that read the same part of an operand: all that differ in the other's dim alone."""
    return -(-problem.k_per_group // config.n) if operand == "x" else -(-problem.output_pixels // config.m)


def _plain(problem: ConvProblem, target: Target, options: Options, bundle: int) -> Iterator[TmaIm2colConfig]:
    """Configurations without a cluster that shares operands, and with stages to be found, that go with options."""

    def values(name: str, defaults: Iterable[int]) -> list[int]:
        return [int(options[name])] if name in options else list(defaults)

    c = problem.c_per_group
    spans = [k for k in (64, 32, 16) if c % k == 0][:1]
    spans += [k for k in (64, 32, 16) if k not in spans and -(-c // k) * k <= 1.5 * c][:1]
    order, shares = str(options.get("order", "channels_inner")), str(options.get("shares", "x"))
    raster, stream = int(options.get("raster", 1)), int(options.get("stream", 0))
    for k, (m, n, consumers, schedule, rows) in itertools.product(
        values("tile.k", spans or (16,)), _tile_shapes(problem, options)
    ):
        merges = [d for d in (1, 2, 3, 5, 7, 9) if k_steps(problem, k) % d == 0 and k * d <= 160]
        tiles = m_tiles(problem, m) * -(-problem.k // n)
        splits = (1, 2, 4, 8) if schedule == "cooperative" and tiles < target.sms else (1,)
        many = (n if rows == "channels" else m) == 64 and consumers == 1 and tiles > target.sms
        blocks = (1, 2, 3) if many else (1,)
        for merge, split, block in itertools.product(
            values("merge", merges), values("split", splits), values("blocks", blocks)
        ):
            yield TmaIm2colConfig(
                m, n, k, 2, consumers, schedule, order, block, merge, split, rows, 1, shares, raster, stream, bundle
            )  # fmt: skip


def _tile_shapes(problem: ConvProblem, options: Options) -> Iterator[tuple[int, int, int, str, str]]:
    """(m, n, consumers, schedule, rows) that go with the options; where no row of SHAPES does, what they ask for."""
    for rows in ("pixels", "channels"):
        if options.get("rows", rows) != rows:
            continue
        by_channels = rows == "channels"
        of_rows, of_columns = ("tile.n", "tile.m") if by_channels else ("tile.m", "tile.n")
        if of_columns in options:
            columns = [int(options[of_columns])]
        elif by_channels:
            columns = [m for m in range(16, 257, 16) if m < problem.output_pixels + 16]
        else:
            columns = _widths(problem)
        fitting = [
            (r, consumers, schedule)
            for r, consumers, schedule in SHAPES
            if options.get(of_rows, r) == r
            and options.get("consumers", consumers) == consumers
            and options.get("schedule", schedule) == schedule
            and (of_rows in options or not by_channels or r <= -(-problem.k_per_group // 64) * 64)
        ]
        if not fitting and (of_rows in options or "rows" in options or not by_channels):
            fitting = [(int(options.get(of_rows, 128)), int(options.get("consumers", 2)),
                        str(options.get("schedule", "cooperative")))]  # fmt: skip
        for (r, consumers, schedule), c in itertools.product(fitting, columns):
            m, n = (c, r) if by_channels else (r, c)
            yield m, n, consumers, schedule, rows


def _widths(problem: ConvProblem) -> list[int]:
    """Output channels a tile: for each number of tiles the least that will do, if it leaves in chunks worth a store."""
    k = problem.k_per_group
    widths = [n for n in range(8, 257, 8) if n < 32 or chunk_columns(problem, n) >= 16]
    return sorted({next(n for n in widths if -(-k // n) == tiles) for tiles in {-(-k // n) for n in widths}})


def _stages(problem: ConvProblem, target: Target, config: TmaIm2colConfig) -> int:
    """As many stages as fit, but no more than a tile has use for."""
    size = footprint(problem, config)
    room = target.shared_limit(config.blocks) - (size.total - config.stages * (size.stage + 16))
    useful = max(-(-k_steps(problem, config.k) // (config.merge * config.split)), 4)
    stages = max(2, min(room // (size.stage + 16), MAX_STAGES, useful))
    # another number of stages may need room to align the chunks
    while stages > 2 and footprint(problem, replace(config, stages=stages)).total > target.shared_limit(config.blocks):
        stages -= 1
    return stages
