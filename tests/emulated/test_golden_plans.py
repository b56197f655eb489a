"""Every golden's plan, emulated on a small geometry: the same configuration, with tails in every direction, blocks that
take two tiles or more, and pipelines that come round.

A row of small_goldens.py that has become too small to try what it is there for fails here; a golden without a row
fails in tests/text/test_golden_source.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from small_goldens import GEOMETRIES, ROOT, SPECS, golden_plan, shrunk, untuned
from tma_specs import check_emulated

from convgen.ir.plan import Plan, launch_grid
from convgen.ir.problem import ConvProblem
from convgen.kernels.depthwise_direct import config as depthwise_direct
from convgen.kernels.depthwise_stream import config as depthwise_stream
from convgen.kernels.depthwise_stream.layout import Layout
from convgen.kernels.depthwise_wgrad import config as depthwise_wgrad
from convgen.kernels.direct import config as direct
from convgen.kernels.direct.kernel import BLOCK
from convgen.kernels.im2col import config as im2col
from convgen.kernels.mma_gemm import config as mma_gemm
from convgen.kernels.mma_wgrad import config as mma_wgrad
from convgen.kernels.parts.assignment import assignment
from convgen.kernels.small_groups import config as small_groups
from convgen.kernels.stem_mma import config as stem_mma
from convgen.kernels.stem_wgmma import config as stem_wgmma
from convgen.kernels.stem_wgrad import config as stem_wgrad
from convgen.kernels.tma_halo import config as tma_halo
from convgen.kernels.tma_halo.layout import layout_of
from convgen.kernels.tma_im2col import config as tma_im2col
from convgen.kernels.tma_plain import config as tma_plain
from convgen.kernels.tma_wgrad import config as tma_wgrad
from convgen.kernels.tma_wgrad.gemm import gemm
from convgen.kernels.winograd import config as winograd
from convgen.kernels.winograd.layout import Layout as WinogradLayout
from convgen.kernels.winograd_fused import config as winograd_fused
from convgen.kernels.winograd_fused.layout import Layout as FusedLayout
from convgen.targets import TARGETS

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


def _tma_im2col(p: ConvProblem, c: tma_im2col.Config) -> Work:
    assigned = assignment(p)
    p, phases = assigned.problem, assigned.phases
    pixels, taps = (p.n * phases.pixels, max(phases.taps)) if phases else (p.output_pixels, p.taps)
    steps = taps * -(-p.c_per_group * c.group_pack // c.tile_k) // (c.k_blocks * c.split_k)
    tiles = {"m": (pixels, c.tile_m)}
    if p.groups == 1:  # tiles divide the channels of a group
        tiles |= {"k": (p.c, c.tile_k)} | ({} if c.resident else {"n": (p.k, c.tile_n)})
    if c.resident:  # a tile has all output channels, and the ring turns with a block's tiles
        steps *= pixels // c.tile_m
    n_tiles = -(-p.k // c.tile_n)

    def full(tile: int) -> bool:
        m, n = divmod(tile % (-(-pixels // c.tile_m) * n_tiles), n_tiles)
        return (m + 1) * c.tile_m <= pixels and (n + 1) * c.tile_n <= p.k

    # with a raster, tiles are taken in another order: by no ping-pong that has a golden
    assert c.raster == 1 or c.schedule != "pingpong"
    return Work(tiles, steps, c.stages, c.consumers if c.schedule == "pingpong" else 1, full)


def _tma_wgrad(p: ConvProblem, c: tma_wgrad.Config) -> Work:
    pixels = gemm(p).pixels(2 if c.halo else c.row_taps)
    tiles = {"k": (pixels, c.tile_k)}
    if p.groups == 1:
        tiles |= {"m": (p.k, c.tile_m), "n": (p.c, c.span)}
    return Work(tiles, pixels // c.tile_k // (c.slices * c.split_k), c.stages)


def _tma_plain(p: ConvProblem, c: tma_plain.Config) -> Work:
    return Work({"m": (p.output_pixels, 64), "n": (p.k, c.tile_n), "k": (p.c, 64)})


def _tma_halo(p: ConvProblem, c: tma_halo.Config) -> Work:
    size = layout_of(p, TARGETS["sm_90a"], c)
    p = assignment(p).problem
    along = (p.n, c.images) if c.images > 1 else (p.output[-1], c.strip)
    # a ring's halo tiles, over all tiles that one multiprocessor takes
    halos = size.blocks * size.tiles // c.rings
    tiles = {"m": along}
    if p.groups == 1:
        tiles |= {"n": (p.k, c.tile_n), "k": (p.c, c.tile_k)}

    def full(tile: int) -> bool:
        tile, channel_tile = divmod(tile, size.channel_tiles)
        line, strip = tile % size.line_tiles, tile // size.line_tiles % size.strips
        image = tile // size.line_tiles // size.strips
        return (
            (channel_tile + 1) * c.own_channels <= p.k
            and (size.line_tiles == 1 or (line + 1) * c.tile_m <= size.halo.line)
            and (strip + 1) * c.strip <= p.output[-1]
            and (image + 1) * c.images <= p.n
        )

    return Work(tiles, halos, c.stages, c.rings, full)


def _mma_gemm(p: ConvProblem, c: mma_gemm.Config) -> Work:
    assigned = assignment(p)
    p, phases = assigned.problem, assigned.phases
    pixels, taps = (p.n * phases.pixels, max(phases.taps)) if phases else (p.output_pixels, p.taps)
    gemm_k = taps * p.c_per_group
    tiles = {"m": (pixels, c.tile_m), "n": (p.k_per_group, c.tile_n), "k": (gemm_k, c.tile_k)}
    return Work(tiles, -(-gemm_k // c.tile_k) // c.split_k, c.stages)


def _mma_wgrad(p: ConvProblem, c: mma_wgrad.Config) -> Work:
    tiles = {"m": (p.k, c.tile_m), "n": (p.taps * p.c, c.tile_n), "k": (p.output_pixels, c.tile_k)}
    return Work(tiles, p.output_pixels // c.tile_k // c.slices, c.stages)


def _rows(p: ConvProblem, c: stem_mma.Config | stem_wgmma.Config) -> Work:
    return Work({"m": (math.prod(p.output), c.tile_m), "n": (p.k, c.tile_n)})


def _stem_wgrad(p: ConvProblem, c: stem_wgrad.Config) -> Work:
    tiles = {"m": (p.k, c.tile_m), "k": (p.output[1], c.tile_k)}
    return Work(tiles, p.n * p.output[0] // c.slices, max(c.stages, c.depth))


def _small_groups(p: ConvProblem, c: small_groups.Config) -> Work:
    return Work({"rows": (p.output[0], c.tile_p)})


def _depthwise_direct(p: ConvProblem, c: depthwise_direct.Config) -> Work:
    return Work({"p": (p.output[0], c.tile_p), "q": (p.output[1], c.tile_q)})


def _depthwise_wgrad(p: ConvProblem, c: depthwise_wgrad.Config) -> Work:
    return Work({"k": (p.k, c.slice), "p": (p.output[0], c.band), "q": (p.output[1], c.tile_q)})


def _depthwise_stream(plan: Plan) -> Work:
    layout, c = plan.layout, plan.config
    assert isinstance(layout, Layout)
    assert isinstance(c, depthwise_stream.Config)
    p, bands = layout.read, layout.bands
    return Work({"p": (p.output[0], c.band), "q": (p.output[1], c.strip)}, bands, c.stages)


def _direct(p: ConvProblem, c: direct.Config) -> Work:
    return Work({"outputs": (p.result.size, c.tile * BLOCK)})


def _im2col(p: ConvProblem, c: im2col.Config) -> Work:
    return Work({"outputs": (p.result.size, 256)})


def _winograd(plan: Plan) -> Work:
    layout = plan.layout
    assert isinstance(layout, WinogradLayout)
    p, made_by = plan.problem, layout.made_by.config
    tiles = {"p": (p.output[0], layout.config.tile), "q": (p.output[1], layout.config.tile), "c": (p.c, 16)}
    tiles |= {"m": (layout.tile_count, made_by.tile_m), "n": (layout.columns, made_by.tile_n)}
    return Work(tiles, -(-layout.channels // made_by.tile_k) // made_by.split_k, made_by.stages)


def _winograd_fused(plan: Plan) -> Work:
    layout, c = plan.layout, plan.config
    assert isinstance(layout, FusedLayout)
    p = layout.read
    tiles = {"q": (p.output[-1], c.strip), "n": (p.k, c.tile_n), "k": (p.c, c.tile_k)}

    def full(tile: int) -> bool:
        tile, channel_tile = divmod(tile, layout.channel_tiles)
        line, strip = tile % layout.line_tiles, tile // layout.line_tiles % layout.strips
        whole = (line + 1) * c.tile_quads <= layout.halo.line and (strip + 1) * c.strip <= p.output[-1]
        return whole and (channel_tile + 1) * c.tile_n <= p.k

    return Work(tiles, layout.blocks * layout.tiles // c.rings, c.stages, c.rings, full)


WORK: dict[type, Callable[..., Work]] = {
    tma_im2col.Config: _tma_im2col,
    tma_halo.Config: _tma_halo,
    tma_wgrad.Config: _tma_wgrad,
    tma_plain.Config: _tma_plain,
    mma_gemm.Config: _mma_gemm,
    mma_wgrad.Config: _mma_wgrad,
    stem_mma.Config: _rows,
    stem_wgmma.Config: _rows,
    stem_wgrad.Config: _stem_wgrad,
    small_groups.Config: _small_groups,
    depthwise_direct.Config: _depthwise_direct,
    depthwise_wgrad.Config: _depthwise_wgrad,
    direct.Config: _direct,
    im2col.Config: _im2col,
}
#: What more than a configuration tells.
OF_PLANS: dict[type, Callable[[Plan], Work]] = {
    depthwise_stream.Config: _depthwise_stream,
    winograd.Config: _winograd,
    winograd_fused.Config: _winograd_fused,
}


def complaints(plan: Plan, sms: int) -> list[str]:
    """What a small geometry leaves untried."""
    kind = type(plan.config)
    assert kind in (*WORK, *OF_PLANS), f"say in WORK how {kind.__name__} tiles a problem"
    work = OF_PLANS[kind](plan) if kind in OF_PLANS else WORK[kind](plan.problem, plan.config)
    found = [f"{d}: {tile} divides {extent}" for d, (extent, tile) in work.tiles.items() if extent % tile == 0]
    if work.rounds and work.rounds <= work.stages:
        found.append(f"{work.rounds} steps fit the {work.stages} stages")
    if getattr(plan.config, "stream_k", 0) and plan.launch().grid[0] > plan.layout.tile_count:  # type: ignore[attr-defined]
        found.append("no block has a whole tile")
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


def functions(source: str) -> set[str]:
    """The names of a source's own functions, PTX functions among them."""
    return set(re.findall(r"(?m)^__device__ __forceinline__ [\w ]+?\b(\w+)\(", source))


@pytest.mark.parametrize("name", sorted(SPECS.keys() & GEOMETRIES))
def test_golden(name: str):
    text, sms = shrunk(name), GEOMETRIES[name].sms
    with untuned():
        made = check_emulated(text, seed=len(name), sms=(sms,))
    assert made.plan.options == golden_plan(name).options, "the same plan, on less work"
    assert not complaints(made.plan, sms)
    golden = (ROOT / "generated" / f"{name}.cu").read_text(encoding="utf-8")
    assert functions(golden) <= functions(made.source), "the small one goes the golden's way"
