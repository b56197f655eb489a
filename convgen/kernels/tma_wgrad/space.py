"""Configurations of tma_wgrad that are worth considering."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Part
from convgen.kernels.config import Options, considered
from convgen.kernels.parts import clusters
from convgen.kernels.parts.copies import VECTOR
from convgen.kernels.parts.hopper import SPANS, SWIZZLE_ALIGNMENT
from convgen.kernels.parts.pixel_slices import ORDERED, most_slices
from convgen.kernels.tma_wgrad.config import MOST_TILE_COLUMNS, Config
from convgen.kernels.tma_wgrad.constraints import MOST_COLUMNS
from convgen.kernels.tma_wgrad.cost import least
from convgen.kernels.tma_wgrad.gemm import Gemm, gemm, lowering_fault, pack_fault
from convgen.kernels.tma_wgrad.layout import Layout
from convgen.targets import Target

#: (tile_m, warps_m, warps_n) that are worth considering.
SHAPES = ((64, 4, 1), (64, 4, 2), (64, 4, 3), (128, 8, 1), (128, 4, 2), (192, 12, 1), (256, 8, 1))
#: Pixels of a step; with a halo, which is as large whatever the step, twice as many, too.
STEPS, HALO_STEPS = (64,), (64, 128)
MOST_STAGES = 8
#: What follows from a tile, however the pixels are shared.
OF_TILES = ("tiles", "steps", "stage", "bytes_read", "bytes_alike", "own_zeros")
#: Waves of blocks that the shares of the pixels may make.
WAVES = (1, 2, 3)
#: The best so many are considered with neighbors that load an operand together, two at a time.
CLUSTERED = 8
#: Channels of a pack of small groups: a box's.
PACKED = 64


def parts(problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Part[Layout]]:
    """Every tile, each with the shares that fill the GPU."""
    packs = considered(fixed, "group_pack", _packs(problem))
    for pack, lowered in itertools.product(packs, considered(fixed, "lower_rows", _lowerings(problem))):
        g = gemm(problem, pack, bool(lowered))
        for config in _tiles(g, fixed, pack, lowered):
            layout = Layout(problem, target, config, g).knowing(*OF_TILES)
            yield Part(least(_staged(layout, 1, 1, fixed)), _shared(layout, fixed))


def _shared(layout: Layout, fixed: Options) -> Iterator[Layout]:
    """Layouts of a tile, for each number of blocks that share its pixels."""
    for split_k, slices in _shares(layout, fixed):
        yield _staged(layout, split_k, slices, fixed)


def refine(best: Iterator[Layout], fixed: Options) -> Iterator[Layout]:
    """The best configurations in clusters that load an operand together."""
    if "cluster" in fixed:
        return
    alone = (x for x in best if x.config.split_k == 1 and not x.shared_axes)
    for layout, operand in itertools.product(itertools.islice(alone, CLUSTERED), ("a", "b")):
        tiles = layout.n_tiles if operand == "a" else layout.m_tiles
        if fixed.get("multicast", operand) == operand and tiles % 2 == 0:
            yield replace(layout, config=replace(layout.config, cluster=2, multicast=operand))


def _packs(problem: ConvProblem) -> list[int]:
    """Groups per pack: one if a group fills a tile; else as many as fill a box, and as many of these as make equal
    packs."""
    fitting = [p for p in range(1, problem.groups + 1) if not pack_fault(problem, p)]
    most = max(PACKED // max(problem.c_per_group, problem.k_per_group), fitting[0])
    full = max(p for p in fitting if p <= most)
    alike = max((p for p in fitting if p <= most and problem.groups % p == 0), default=full)
    return list(dict.fromkeys((full, alike)))


def _lowerings(problem: ConvProblem) -> list[int]:
    """Whether the taps of filter rows are made channels: where channels are fewer than TMA loads at once."""
    return [0, 1] if problem.c < VECTOR and not lowering_fault(problem) else [0]


def _tiles(g: Gemm, fixed: Options, pack: int, lowered: int) -> Iterator[Config]:
    """Tiles, with stages and shares to be found."""
    problem = g.problem
    cluster = int(fixed.get("cluster", 1))
    operands = considered(fixed, "multicast", ("a", "b")[: 2 if cluster > 1 else 1])
    boxes = (
        (sharing, span)
        for sharing in _sharing(problem, fixed)
        for span in considered(fixed, "span", _spans(g.channels, sharing, fixed))
    )
    for (sharing, span), (m, warps_m, warps_n) in itertools.product(boxes, _shapes(g, fixed)):
        count = problem.taps // sharing.taps * -(-g.channels // span)
        columns = considered(fixed, "tile.n", _widths(count, span, warps_n, sharing))
        few = m == 64 and warps_n == 1
        most = considered(fixed, "blocks", (1, 2)[: 1 + few])
        steps = considered(fixed, "tile.k", HALO_STEPS if sharing.halo else STEPS)
        for n, tile_k, blocks, operand in itertools.product(columns, steps, most, operands):
            yield Config(
                m, n, tile_k, span, 2, warps_m, warps_n, sharing.row_taps, sharing.halo, lowered, 1, 1, blocks,
                pack, cluster, operand, str(fixed.get("sums", ORDERED)),
            )  # fmt: skip


@dataclass(frozen=True)
class Sharing:
    """The taps that a box of x serves: one, those of a filter row, or those of the last two axes."""

    row_taps: int
    halo: int
    taps: int


def _sharing(problem: ConvProblem, fixed: Options) -> list[Sharing]:
    *_, row = problem.filter
    window = math.prod(problem.filter[-2:])
    found = [Sharing(0, 0, 1)]
    if fixed.get("row_taps") or (row > 1 and problem.stride[-1] == 1):
        found.append(Sharing(1, 0, row))
    if fixed.get("halo") or window > found[-1].taps:
        found.append(Sharing(0, 1, window))
    asked = [s for s in found if all(fixed.get(name, value) == value for name, value in
             (("row_taps", s.row_taps), ("halo", s.halo)))]  # fmt: skip
    return asked or [Sharing(1, 1, window)]  # which is illegal, and is told so


def _shapes(g: Gemm, fixed: Options) -> list[tuple[int, int, int]]:
    """The SHAPES that agree with the options and are not mostly empty; if none is, the shape that the options ask
    for."""
    named = ("tile.m", "warps.m", "warps.n")
    found = [s for s in SHAPES if all(fixed.get(name, value) == value for name, value in zip(named, s, strict=True))]
    fitting = [s for s in found if s[0] < g.rows + 64 or s[0] == 64 or "tile.m" in fixed]
    warps_m, warps_n = int(fixed.get("warps.m", 4)), int(fixed.get("warps.n", 1))
    return fitting or found or [(int(fixed.get("tile.m", 16 * warps_m)), warps_m, warps_n)]


def _spans(channels: int, sharing: Sharing, fixed: Options) -> list[int]:
    """The widest box that channels fill, and the one that leaves the fewest columns empty; narrower ones where a box
    has the columns of all taps."""
    most = MOST_TILE_COLUMNS if sharing.halo else MOST_COLUMNS
    spans = _widest(channels)
    fitting = [s for s in spans if s * sharing.taps <= most]
    asked = bool(fixed.get("halo") or fixed.get("row_taps"))
    if not (sharing.halo or asked):
        return fitting
    narrower = [s for s in SPANS if s not in spans and s * sharing.taps <= most]
    return [*fitting, *narrower][: len(spans)] or spans[:asked]


def _widest(channels: int) -> list[int]:
    least = min(-(-channels // s) * s for s in SPANS)
    fullest = next(s for s in SPANS if -(-channels // s) * s == least)
    roomy = next(s for s in SPANS if -(-channels // s) * s <= 1.5 * least)
    return list(dict.fromkeys((roomy, fullest)))


def _widths(boxes: int, span: int, warps_n: int, sharing: Sharing) -> list[int]:
    """Columns a tile: for each number of tiles the fewest boxes that will do."""
    box = sharing.taps * span
    if sharing.halo:  # consumers share the taps of a box
        return [box * count for count in (1, 2) if count <= boxes and (count == 1 or box * count <= MOST_TILE_COLUMNS)]
    most = (2 if sharing.row_taps else MOST_COLUMNS // box) * warps_n
    fewest: dict[int, int] = {}
    for count in range(warps_n, min(most, boxes + warps_n - 1) + 1, warps_n):
        fewest.setdefault(-(-boxes // count), count)
    return sorted(box * count for count in fewest.values())


def _shares(layout: Layout, fixed: Options) -> Iterator[tuple[int, int]]:
    """(split_k, slices): a cluster's blocks by slices of the pixels, such that blocks fill the GPU so many times."""
    alone = layout.config.cluster == 1
    splits = considered(fixed, "split_k", clusters.SIZES if alone else (1,))
    for split_k in splits:
        if split_k > 1 and "split_k" not in fixed and (layout.part_columns % (8 * split_k) or split_k > layout.steps):
            continue
        if "slices" in fixed:
            yield split_k, int(fixed["slices"])
            continue
        blocks_at_once = layout.sibling(split_k=split_k).blocks_at_once
        most = most_slices(layout.problem, layout.steps // split_k)
        wanted = {max(min(waves * blocks_at_once // (layout.tiles * split_k), most), 1) for waves in WAVES}
        for slices in sorted(wanted | {2 if layout.config.adds else 1}):
            yield split_k, slices


def _staged(layout: Layout, split_k: int, slices: int, fixed: Options) -> Layout:
    """The layout with as many stages as fit, but no more than a block can use."""
    c = layout.config
    if "stages" in fixed:
        stages = int(fixed["stages"])
    else:
        fitting = (layout.target.shared_limit(c.blocks) - SWIZZLE_ALIGNMENT) // (layout.stage + 16)
        useful = max(math.ceil(layout.steps / (split_k * slices)), 2)
        stages = max(min(fitting, MOST_STAGES, useful), 2)
    return layout.sibling(stages=stages, split_k=split_k, slices=slices)
