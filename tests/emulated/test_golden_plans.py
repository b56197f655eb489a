"""Every golden's plan, emulated on a small geometry: the same configuration, with tails in every direction, blocks that
take two tiles or more, and pipelines that come round.

A row of small_goldens.py that has become too small to try what it is there for fails here; a golden without a row
fails in tests/text/test_golden_source.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from small_goldens import GEOMETRIES, SPECS, options_of, plan_of, shrunk, spec
from tma_specs import check_emulated

from convgen import driver
from convgen.ir.plan import Plan, launch_grid
from convgen.ir.problem import ConvProblem
from convgen.kernels import im2col
from convgen.kernels.depthwise import patches, stream
from convgen.kernels.direct import config as direct
from convgen.kernels.direct.kernel import BLOCK
from convgen.kernels.implicit_gemm import gather, grouped, rows, rows_wgmma
from convgen.kernels.tma_im2col.config import TmaIm2colConfig
from convgen.kernels.tma_patch.config import TmaPatchConfig
from convgen.kernels.tma_patch.geometry import geometry

# ---- what a small geometry has to try --------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Extents and their tiles, which must not divide them, by direction, and what comes round in a pipeline of
    `stages`, which must be more than it holds; `takers` of a block take whole tiles in turn, and each must get one
    that is `full`, by its number: tails alone hide what is wrong with the rest of a tile."""

    tiles: Mapping[str, tuple[int, int]]
    rounds: int = 0
    stages: int = 0
    takers: int = 1
    full: Callable[[int], bool] = lambda tile: True


def _tma_im2col(p: ConvProblem, c: TmaIm2colConfig) -> Work:
    steps = p.taps * -(-p.c_per_group * c.bundle // c.k) // (c.merge * c.split)
    tiles = {"m": (p.output_pixels, c.m)}
    if p.groups == 1:  # tiles divide the channels of a group
        tiles |= {"n": (p.k, c.n), "k": (p.c, c.k)}
    n_tiles = -(-p.k // c.n)

    def full(tile: int) -> bool:
        m, n = divmod(tile, n_tiles)
        return (m + 1) * c.m <= p.output_pixels and (n + 1) * c.n <= p.k

    # with a raster, tiles are taken in another order: by no ping-pong that has a golden
    assert c.raster == 1 or c.schedule != "pingpong"
    return Work(tiles, steps, c.stages, c.consumers if c.schedule == "pingpong" else 1, full)


def _tma_patch(p: ConvProblem, c: TmaPatchConfig) -> Work:
    size = geometry(p, c)
    along = (p.n, c.images) if c.images > 1 else (p.output[-1], c.strip)
    # a ring's patches, over all tiles that one multiprocessor takes
    patches = size.blocks * size.tiles // c.rings
    tiles = {"m": along}
    if p.groups == 1:
        tiles |= {"n": (p.k, c.channels), "k": (p.c, c.k)}

    def full(tile: int) -> bool:
        tile, channel_tile = divmod(tile, size.channel_tiles)
        line, strip = tile % size.line_tiles, tile // size.line_tiles % size.strips
        image = tile // size.line_tiles // size.strips
        return (
            (channel_tile + 1) * c.own_channels <= p.k
            and (size.line_tiles == 1 or (line + 1) * c.pixels <= size.patch.line)
            and (strip + 1) * c.strip <= p.output[-1]
            and (image + 1) * c.images <= p.n
        )

    return Work(tiles, patches, c.stages, c.rings, full)


def _gather(p: ConvProblem, c: gather.GatherConfig) -> Work:
    gemm_k = p.taps * p.c_per_group
    tiles = {"m": (p.output_pixels, c.m), "n": (p.k_per_group, c.n), "k": (gemm_k, c.k)}
    return Work(tiles, -(-gemm_k // c.k) // c.split, c.stages)


def _rows(p: ConvProblem, c: rows.RowsConfig | rows_wgmma.RowsWgmmaConfig) -> Work:
    return Work({"m": (math.prod(p.output), c.m), "n": (p.k, c.n)})


def _grouped(p: ConvProblem, c: grouped.GroupedConfig) -> Work:
    return Work({"rows": (p.output[0], c.rows)})


def _patches(p: ConvProblem, c: patches.DepthwiseConfig) -> Work:
    return Work({"p": (p.output[0], c.p), "q": (p.output[1], c.q)})


def _stream(p: ConvProblem, c: stream.StreamConfig) -> Work:
    return Work({"p": (p.output[0], c.band), "q": (p.output[1], c.strip)}, stream.layout_of(p, c).items, c.stages)


def _direct(p: ConvProblem, c: direct.Config) -> Work:
    return Work({"outputs": (p.result.size, c.tile * BLOCK)})


def _im2col(p: ConvProblem, c: im2col.Im2colConfig) -> Work:
    return Work({"outputs": (p.result.size, 256)})


WORK: dict[type, Callable[..., Work]] = {
    TmaIm2colConfig: _tma_im2col,
    TmaPatchConfig: _tma_patch,
    gather.GatherConfig: _gather,
    rows.RowsConfig: _rows,
    rows_wgmma.RowsWgmmaConfig: _rows,
    grouped.GroupedConfig: _grouped,
    patches.DepthwiseConfig: _patches,
    stream.StreamConfig: _stream,
    direct.Config: _direct,
    im2col.Im2colConfig: _im2col,
}


def complaints(plan: Plan, sms: int) -> list[str]:
    """What a small geometry leaves untried."""
    assert type(plan.config) in WORK, f"say in WORK how {type(plan.config).__name__} tiles a problem"
    work = WORK[type(plan.config)](plan.problem, plan.config)
    found = [f"{d}: {tile} divides {extent}" for d, (extent, tile) in work.tiles.items() if extent % tile == 0]
    if work.rounds and work.rounds <= work.stages:
        found.append(f"{work.rounds} steps fit the {work.stages} stages")
    for launch in plan.launches:
        tiles, blocks = math.prod(launch.grid), math.prod(launch_grid(launch, sms))
        if launch.persistent and tiles < 2 * blocks * work.takers:
            found.append(f"{tiles} tiles for {blocks} blocks with {work.takers} takers each")
        for taker in range(work.takers if launch.persistent else 0):
            firsts = range(taker * blocks, (taker + 1) * blocks)
            if not any(work.full(tile) for first in firsts for tile in range(first, tiles, work.takers * blocks)):
                found.append(f"taker {taker} gets no full tile")
    return found


# ---- the tests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(SPECS.keys() & GEOMETRIES))
def test_golden(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("convgen.planner.database.lookup", lambda *_, **__: None)
    options = options_of(plan_of(spec(name)))
    text, sms = shrunk(name, options), GEOMETRIES[name].sms
    small = plan_of(driver.Spec(text))
    assert options_of(small) == options, "the same plan, on less work"
    assert not complaints(small, sms)
    check_emulated(text, seed=len(name), sms=(sms,))
