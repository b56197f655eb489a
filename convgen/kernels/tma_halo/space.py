"""Configurations that are worth considering, and the choice among them by the cost model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import IMAGES, Part
from convgen.kernels.config import Options, considered
from convgen.kernels.parts import prepare
from convgen.kernels.parts.assignment import assignment
from convgen.kernels.parts.hopper import SPANS, spans
from convgen.kernels.tma_halo import cost
from convgen.kernels.tma_halo.config import Config
from convgen.kernels.tma_halo.constraints import illegal_strip, illegal_tile, illegal_together
from convgen.kernels.tma_halo.halo import line_of, windows
from convgen.kernels.tma_halo.layout import Layout, as_read, group_of, layout_of
from convgen.kernels.tma_halo.rings import y_channels_last
from convgen.targets import Target

PIXELS = tuple(range(32, 257, 16))
FOLDS = (1, 2, 4, 8)
FULL = 64  # channels that fill wgmma's m
NARROWEST = 16  # channels of a tile
#: Channels of narrow tiles, where there are no more; all but the narrowest also where other tiles would be few.
NARROW = (NARROWEST, 32, 48)
WEIGHT_STAGES = (6, 4, 3, 2)


def demands(layout: Layout) -> dict[str, Any]:
    """A layout as the cost model sees it."""
    stages, weight_stages = layout.config.stages, layout.config.weight_stages
    return {**layout.demands, "stages": stages, "weight_stages": weight_stages}


def parts(problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Part[Layout]]:
    """Configurations that agree with fixed options; if none of them runs, the first that the options ask for."""
    yield from _parts(problem, target, fixed)
    if not any(True for part in _parts(problem, target, fixed) for _ in part.layouts):
        yield Part(0.0, [_asked_for(problem, target, fixed)])


def _parts(problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Part[Layout]]:
    """Tiles that may run, each in all of its strips."""
    packs = considered(fixed, "group_pack", _packs(problem))
    folds = considered(fixed, "fold", _folds(problem))
    settled = len(folds) == 1  # by the options, or by a strided dgrad's phases
    for pack, fold in itertools.product(packs, folds):
        prepared = as_read(problem, pack, fold)
        if settled or _worth_folding(prepared.problem, group_of(problem, pack).k, fold):
            yield from _tiles(problem, target, fixed, pack, fold)


def _folds(problem: ConvProblem) -> tuple[int, ...]:
    """The folds to try; for a strided dgrad, all its phases."""
    return (math.prod(problem.stride),) if assignment(problem).strided else FOLDS


def _packs(problem: ConvProblem) -> tuple[int, ...]:
    """Groups per pack: numbers that make equal packs; if these are wide, or there are none, also unpacked."""
    forward = assignment(problem).problem
    whole = prepare.group_packs(forward) or prepare.group_packs(forward, fewer=True)
    if whole and whole[0] * forward.c_per_group <= prepare.WIDEST_PACK:
        return whole
    return tuple(dict.fromkeys((*whole, *prepare.group_packs(forward, prepare.VECTOR, fewer=True))))


def _asked_for(problem: ConvProblem, target: Target, fixed: Options) -> Layout:
    """The layout that the options ask for, so that its obstacles can be shown."""

    def given(name: str, default: int) -> int:
        return int(fixed.get(name, default))

    pack, fold = given("group_pack", (*_packs(problem), 1)[0]), given("fold", _folds(problem)[0])
    columns = layout_of(problem, target, _plainest(pack, fold)).windows[-1].output
    consumers, schedule, swap_ab = given("consumers", 2), str(fixed.get("schedule", "pingpong")), given("swap_ab", 1)
    channels = 64 * (consumers if swap_ab and schedule == "cooperative" else 1)
    config = Config(
        given("tile.m", 64), given("strip", int(min(columns, 64))), given("images", 1), given("tile.n", channels),
        given("tile.k", 64), given("stages", 1), given("weight_stages", 0), consumers, schedule, swap_ab,
        pack, fold,
    )  # fmt: skip
    return layout_of(problem, target, config)


def _tiles(given: ConvProblem, target: Target, options: Options, pack: int, fold: int) -> Iterator[Part[Layout]]:
    """Tiles that agree with options, in packs of so many groups."""
    root = layout_of(given, target, _plainest(pack, fold)).knowing("windows", "group")
    problem, lays_out = root.read, pack > 1 or fold > 1

    values = partial(considered, options)
    c, k_per_group = root.group.c, root.group.k
    # a block that divides the channels has shorter rows, and none that is partly empty
    k_spans = dict.fromkeys((*spans(c), *[k for k in SPANS if c % k == 0][:1]))
    ahead = values("weight_stages", (0,) if lays_out else (0, *WEIGHT_STAGES))
    d, h, w = root.windows
    of_rows = not problem.dynamic and h.output == 1 and not {"tile.m", "strip"} & options.keys()
    taps = len(d.offsets) * len(h.offsets) * len(w.offsets)
    depths = values("stages", (3, 2, 1))  # the deepest first
    if problem.groups == 1:
        widest = next((n for n in NARROW if n >= k_per_group), FULL)
        few = problem.output_pixels * -(-k_per_group // widest) < FULL * target.sms
        narrow = [widest, *(n for n in NARROW[1:] if few and n < widest)]
    else:
        narrow = [n for n in (64, 48, 32) if k_per_group % n == 0][:1] or [16, FULL]
    if fold > 1:  # as pixels' columns, two rows of 8 channels or fewer are worth it, too: they fill the narrowest tile
        narrow = [NARROWEST, FULL] if 8 * fold == NARROWEST and k_per_group <= 8 else [FULL]
    strips = _legal_strips(root, _strips(root, options))
    for swap_ab, schedule, consumers in itertools.product(
        values("swap_ab", (1, 0)),
        [s for s in ("pingpong", "cooperative") if options.get("schedule", s) == s],
        values("consumers", (3, 2, 1)),
    ):
        shares = consumers if schedule == "cooperative" else 1
        tiles = values("tile.m", (p for p in PIXELS if swap_ab or p % (64 * shares) == 0))
        for channels, k in itertools.product(
            values("tile.n", [64 * shares] if swap_ab else narrow), values("tile.k", k_spans)
        ):
            boxes = -(-c // k) * taps
            # if the one that takes the least shared memory is illegal, so are all
            fewest = min(ahead, key=lambda n: n * consumers // shares or boxes)
            config = Config(tiles[0], 1, 1, channels, k, min(depths), fewest, consumers, schedule, swap_ab, pack, fold)
            shape = root.having(config).knowing("shape_demands", "dearer")
            us = cost.least(**shape.shape_demands, resident=lays_out)
            for pixels in tiles:
                # a tile holds images, or none; where a strip is one row, a narrower tile is better a strip itself
                fitting = [
                    s for s in strips
                    if (s.line <= pixels if s.images > 1 else not of_rows or pixels >= min(s.columns, tiles[-1]))
                ]  # fmt: skip
                if fitting:
                    count = min(int(strip.lines) * -(-int(strip.line) // pixels) for strip in fitting)
                    least = shape.us(us(pixels if swap_ab else pixels // shares, count))
                    yield Part(least, _layouts(shape, pixels, fitting, depths, ahead))


def _layouts(
    shape: Layout, pixels: int, strips: Sequence[Strip], depths: list[int], ahead: list[int]
) -> Iterator[Part[Layout]]:
    """The legal layouts of tiles of so many pixels, with a bound that takes longer to find."""
    tile = shape.sibling(tile_m=pixels)
    if not illegal_tile(tile):
        tile.knowing("tile_demands")
        least = _least(tile, strips, max(depths), {min(ahead), max(ahead)})
        yield Part(least, _in_strips(tile, strips, depths, ahead))


def _least(tile: Layout, strips: Iterable[Strip], stages: int, ahead: Iterable[int]) -> float:
    """A lower bound in microseconds for a tile in any of the strips, with at most so many stages, and one of these
    numbers of boxes of filters ahead: its time with the smallest halo tile, which holds at least its pixels."""
    pixels, (_, h, w) = tile.config.tile_m, tile.windows
    counts = [int(strip.lines) * -(-int(strip.line) // pixels) for strip in strips]
    box = min(pixels, *(int(strip.line) for strip in strips)) * tile.span * len(h.phases) * len(w.phases)
    found = dict(**tile.tile_demands, tiles=min(counts), most=max(counts), box=box, crowd=0.0, stages=stages)
    return tile.us(min(cost.time(**found, weight_stages=n) for n in ahead))


def _in_strips(tile: Layout, strips: Iterable[Strip], depths: list[int], ahead: list[int]) -> Iterator[Layout]:
    rooms = {n: tile.target.shared_bytes_per_block - tile.fixed_by(n) for n in ahead}
    for strip in strips:
        yield from _staged(tile.sibling(strip=strip.columns, images=strip.images), depths, rooms)


def _plainest(pack: int, fold: int) -> Config:
    return Config(PIXELS[0], 1, 1, FULL, FULL, 1, 0, 1, "pingpong", 1, pack, fold)


class Strip(NamedTuple):
    """Output columns, and whole images a tile; `lines` of so many pixels of padded width hold all of the outputs."""

    columns: int
    images: int
    line: int
    lines: int


def _legal_strips(root: Layout, strips: list[tuple[int, int]]) -> list[Strip]:
    """The strips that are legal for some tile."""
    _, h, w = root.windows
    layouts = [root.sibling(strip=columns, images=images) for columns, images in strips]
    pairs = [(x.config.strip, x.config.images, x.lines) for x in layouts if not illegal_strip(x)]
    return [Strip(columns, images, line_of(h, w, columns, images), lines) for columns, images, lines in pairs]


def _staged(least: Layout, depths: list[int], rooms: dict[int, int]) -> Iterator[Layout]:
    """A tile with as many halo tiles in flight as there is room for, beside each number of boxes of filters."""
    if illegal_together(least):
        return
    each = least.stage_bytes
    if least.config.stages * each > rooms[least.config.weight_stages]:
        return
    least.knowing("demands")
    most = 0
    for weight_stages, room in rooms.items():
        # fewer halo tiles ahead are no faster, nor are fewer boxes of filters where they make no room for halo tiles
        stages = next((d for d in depths if d * each <= room), 0)
        if stages > most:
            most = stages if weight_stages else 0
            yield least.sibling(stages=stages, weight_stages=weight_stages)


def _worth_folding(problem: ConvProblem, k: int, fold: int) -> bool:
    """Whether rows fill channels of a tile, of a group's `k`, that would be empty otherwise."""
    if fold == 1:
        return True
    own = FULL // fold
    fits = k % own == 0 if problem.groups > 1 else -(-k // own) * own < -(-k // FULL) * FULL
    return fits and k < FULL and fold <= windows(problem)[0].output and y_channels_last(problem)


def _strips(root: Layout, options: Options) -> list[tuple[int, int]]:
    """Strips, and images a tile, that are worth considering for the sizes in the spec."""
    problem = root.read
    h, w = windows(problem.static, root.config.fold, root.strided)
    strips = {-(-w.output // parts) for parts in range(1, 9) if parts == 1 or w.output // parts >= 12}
    if h.output == 1:  # nothing is dropped where strips are tiles
        strips |= {p for p in PIXELS if p < w.output}
    if "strip" in options:
        strips = {int(options["strip"])}
    if "images" in options:
        return [(strip, int(options["images"])) for strip in sorted(strips)]
    joined = w.output in strips and problem.rank < 3 and not set(problem.dynamic) - IMAGES
    most = PIXELS[-1] // (h.output * w.output) if joined else 1
    return [(strip, 1) for strip in sorted(strips)] + [(w.output, i) for i in range(2, min(most, problem.n) + 1)]
