"""Configurations that are worth a thought, and the choice among them by the cost model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from convgen.ir.problem import SECTOR, ConvProblem
from convgen.kernels.base import Options
from convgen.kernels.parts import cost, prepare
from convgen.kernels.parts.hopper import mean_products, products
from convgen.kernels.tma_patch import cost as patch_cost
from convgen.kernels.tma_patch.config import SWAP_AB, TmaPatchConfig
from convgen.kernels.tma_patch.geometry import (
    Geometry,
    as_read,
    geometry,
    pixels_outside,
    shared_bytes,
    weight_bytes,
)
from convgen.kernels.tma_patch.legality import illegal
from convgen.kernels.tma_patch.patch import windows
from convgen.targets import Target

PIXELS = tuple(range(32, 257, 16))
FOLDS = (1, 2, 4, 8)
FULL = 64  # channels that fill wgmma's m
WEIGHT_STAGES = (6, 4, 3, 2)
#: How many times longer it takes where y is in planes, stored pixel by pixel (ResNet-50 on an NVIDIA H200).
PLANES = 1.2


def estimate(problem: ConvProblem, target: Target, config: TmaPatchConfig) -> float:
    """Microseconds that the cost model gives a configuration."""
    prepared = as_read(problem, config.bundle, config.fold)
    return prepared.time + _time(prepared.problem, target, config, geometry(prepared.problem, config))


def _time(problem: ConvProblem, target: Target, config: TmaPatchConfig, size: Geometry) -> float:
    time = patch_cost.patch_time(**demands(problem, target, config, size))
    return time if pixels_outside(problem) else PLANES * time


def demands(problem: ConvProblem, target: Target, config: TmaPatchConfig, size: Geometry) -> dict[str, Any]:
    """A configuration as the cost model sees it."""
    h, w = windows(problem, config.fold)
    return dict(
        pixels=config.consumer_pixels, channels=config.consumer_channels, k=config.k, stages=config.stages,
        weight_stages=config.weight_stages, consumers=config.consumers, shares=config.shares,
        by_channels=config.rows == "channels", blocks=size.blocks,
        products=mean_products(products(config.k), size.last_products, size.blocks),
        box=size.patch.box, weight_box=size.weight_box,
        tiles=size.tiles, channel_tiles=size.channel_tiles, taps=len(h.offsets) * len(w.offsets), sms=target.sms,
        apart=problem.groups > 1 and size.span <= SECTOR, **cost.traffic(problem),
    )  # fmt: skip


@lru_cache(maxsize=64)
def ranking(problem: ConvProblem, target: Target, fixed: tuple[tuple[str, int | str], ...]) -> list[TmaPatchConfig]:
    """Legal configurations that go with fixed options, by estimated time."""
    options = dict(fixed)
    found = []
    bundles = [int(options["group_pack"])] if "group_pack" in options else prepare.bundles(problem)
    folds = [int(options["fold"])] if "fold" in options else FOLDS
    for bundle, fold in itertools.product(bundles, folds):
        prepared = as_read(problem, bundle, fold)
        if "fold" in options or _worth_folding(prepared.problem, fold):
            timed = _configurations(prepared.problem, target, options, bundle, fold)
            found += [(prepared.time + time, config) for time, config in timed]
    return [config for _, config in sorted(found, key=lambda row: row[0])]


def choose(problem: ConvProblem, target: Target, options: Options) -> TmaPatchConfig:
    """The cheapest configuration that goes with the options.

    Where nothing legal does, the first of what they ask for, for `obstacles` to explain.
    """
    ranked = ranking(problem, target, tuple(sorted(options.items())))
    if ranked:
        return ranked[0]
    consumers = int(options.get("consumers", 2))
    schedule = str(options.get("schedule", "pingpong"))
    rows = "channels" if options.get("swap_ab", 1) else "pixels"
    return TmaPatchConfig(
        int(options.get("pixels", 64)), int(options.get("strip", min(problem.output[-1], 64))),
        int(options.get("images", 1)),
        int(options.get("channels", 64 * (consumers if rows == "channels" and schedule == "cooperative" else 1))),
        int(options.get("tile.k", 64)), int(options.get("stages", 1)), int(options.get("weight_stages", 0)),
        consumers, schedule, rows, int(options.get("group_pack", (*prepare.bundles(problem), 1)[0])),
        int(options.get("fold", 1)),
    )  # fmt: skip


def _configurations(
    problem: ConvProblem, target: Target, options: Options, bundle: int, fold: int
) -> Iterator[tuple[float, TmaPatchConfig]]:
    """Legal configurations that go with options, of a problem in bundles, and their estimated times."""
    fills = bundle > 1 or fold > 1

    def values(name: str, defaults: Iterable[int]) -> list[int]:
        return [int(options[name])] if name in options else list(defaults)

    c, k_per_group = problem.c_per_group, problem.k_per_group
    spans = next(((k,) for k in (64, 32, 16) if c % k == 0), (64 if c > 32 else 32,))
    strips, ahead = _strips(problem, options, fold), values("weight_stages", (0,) if fills else (0, *WEIGHT_STAGES))
    h, w = windows(problem, fold)
    depths = values("stages", (3, 2, 1))  # the deepest first
    if problem.groups == 1:
        narrow = next((n for n in (16, 32, 48) if n >= k_per_group), 64)
    else:
        narrow = next((n for n in (64, 48, 32) if k_per_group % n == 0), 16)
    narrow = FULL if fold > 1 else narrow
    for rows, schedule, consumers in itertools.product(
        [r for r in ("channels", "pixels") if options.get("swap_ab", SWAP_AB[r]) == SWAP_AB[r]],
        [s for s in ("pingpong", "cooperative") if options.get("schedule", s) == s],
        values("consumers", (3, 2, 1)),
    ):
        shares = consumers if schedule == "cooperative" else 1
        by_channels = rows == "channels"
        for channels, k, pixels, (strip, images) in itertools.product(
            values("channels", (64 * shares if by_channels else narrow,)),
            values("tile.k", spans),
            values("pixels", (p for p in PIXELS if by_channels or p % (64 * shares) == 0)),
            strips,
        ):
            boxes = -(-c // k) * len(h.offsets) * len(w.offsets)
            # if the one that takes the least shared memory is illegal, so are all
            fewest = min(ahead, key=lambda n: n * consumers // shares or boxes)
            least = TmaPatchConfig(
                pixels, strip, images, channels, k, min(depths), fewest, consumers, schedule, rows, bundle, fold
            )
            if illegal(problem, target, least):
                continue
            size = geometry(problem, least)
            chunk = size.chunk + size.slots * size.slot
            for weight_stages in ahead:
                for stages in depths:
                    config = TmaPatchConfig(
                        pixels, strip, images, channels, k, stages, weight_stages, consumers, schedule, rows, bundle,
                        fold,
                    )  # fmt: skip
                    weights = weight_bytes(config, size.weight_box, boxes * size.weight_box)
                    if shared_bytes(config, size.patch.bytes, weights, chunk) <= target.shared_bytes_per_block:
                        yield _time(problem, target, config, size), config
                        break  # fewer patches ahead are no faster


def _worth_folding(problem: ConvProblem, fold: int) -> bool:
    """Whether rows fill channels of a tile that would be empty otherwise."""
    if fold == 1:
        return True
    own, k = FULL // fold, problem.k_per_group
    fits = k % own == 0 if problem.groups > 1 else -(-k // own) * own < -(-k // FULL) * FULL
    return fits and k < FULL and fold <= windows(problem)[0].output and pixels_outside(problem)


def _strips(problem: ConvProblem, options: Options, fold: int) -> list[tuple[int, int]]:
    """Strips, and images a tile, that are worth a thought."""
    h, w = windows(problem, fold)
    strips = {-(-w.output // parts) for parts in range(1, 9) if parts == 1 or w.output // parts >= 12}
    if h.output == 1:  # nothing is dropped where strips are tiles
        strips |= {p for p in PIXELS if p < w.output}
    if "strip" in options:
        strips = {int(options["strip"])}
    if "images" in options:
        return [(strip, int(options["images"])) for strip in sorted(strips)]
    most = PIXELS[-1] // (h.output * w.output) if w.output in strips else 1
    return [(strip, 1) for strip in sorted(strips)] + [(w.output, i) for i in range(2, min(most, problem.n) + 1)]
