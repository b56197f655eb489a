"""mma_wgrad: the gradient of the filter by mma.sync and cp.async, for sm_80 and up.

As tma_wgrad, but threads compute the addresses: any stride, dilation, padding and alignment.  gemm_m runs over y's
channels, gemm_n over taps and x's channels, gemm_k over y's pixels.  Tiles of both factors are rows of pixels;
`ldmatrix` transposes them on the way to the registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from convgen import plurals
from convgen.ir.plan import Launch, Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacle, Obstacles, plan_of
from convgen.kernels.config import Options, considered
from convgen.kernels.mma_wgrad import cost
from convgen.kernels.mma_wgrad.config import Config
from convgen.kernels.mma_wgrad.layout import Layout
from convgen.kernels.mma_wgrad.source import pointers, source
from convgen.kernels.parts import gradient, limits
from convgen.kernels.parts.gradient import GradientKernel
from convgen.kernels.parts.hopper import wgrad_type_obstacles
from convgen.kernels.parts.lowering import INT_LIMIT
from convgen.kernels.parts.pixel_slices import ORDERED, most_slices
from convgen.targets import Target

#: tile_m, tile_n, tile_k, warps_m, warps_n
Shape = tuple[int, int, int, int, int]
#: Those that are worth a thought.
SHAPES: tuple[Shape, ...] = (
    (128, 128, 32, 2, 4), (128, 64, 32, 4, 1), (64, 128, 32, 1, 4), (64, 64, 32, 2, 2), (32, 256, 32, 1, 4),
    (32, 128, 32, 1, 4), (32, 64, 32, 1, 4), (16, 256, 64, 1, 4), (16, 128, 64, 1, 4),
)  # fmt: skip
STAGES = 4
#: Channels of a pack of small groups.
PACKED = 64
#: Waves of blocks that slices may make.
WAVES = (1, 2, 4)
MOST_PIXELS = INT_LIMIT - 1024
MOST_CHUNKS = INT_LIMIT - 1024  # of gemm_n, by whole tiles


class MmaWgrad(GradientKernel[Config, Layout]):
    name = "mma_wgrad"
    config = Config

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        found = Obstacles(limits.type_obstacles(problem, target))
        found += wgrad_type_obstacles(problem)
        if not {"mma", "cp_async"} <= target.features:
            found.no(f"target {target} has no mma.sync, or no cp.async", "sm_80 and later have them")
        if problem.output_pixels >= MOST_PIXELS:
            found.no("the pixels of y do not fit 32 bits")
        pack = int(fixed.get("group_pack", 1))
        if Layout(problem, target, Config(*SHAPES[0], STAGES, group_pack=pack)).chunks >= MOST_CHUNKS:
            found.no("the taps of a filter, times chunks of its channels, do not fit 32 bits")
        if problem.groups % pack:
            found.no(f"group_pack {pack} does not divide the {problem.groups} groups", option="group_pack")
        return found

    def space(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Layout]:
        pack = int(fixed["group_pack"]) if "group_pack" in fixed else _pack(problem)
        stages, order = int(fixed.get("stages", STAGES)), str(fixed.get("sums", ORDERED))
        for m, n, k, warps_m, warps_n in _shapes(fixed):
            whole = Layout(problem, target, Config(m, n, k, warps_m, warps_n, stages, 1, pack, order))
            for slices in considered(fixed, "slices", _slices(whole)):
                yield Layout(problem, target, Config(m, n, k, warps_m, warps_n, stages, slices, pack, order))

    def illegal(self, layout: Layout) -> list[Obstacle]:
        c, target, found = layout.config, layout.target, Obstacles()
        rows, columns = layout.fragments
        if c.tile_m % (16 * c.warps_m) or c.tile_n % (16 * c.warps_n):
            axis = "warps.m" if c.tile_m % (16 * c.warps_m) else "warps.n"
            tile, warps = f"a tile of {c.tile_m}x{c.tile_n}", f"{c.warps_m}x{c.warps_n} warps"
            found.no(f"{warps} do not share {tile} in parts of 16x16", "fewer warps, or a larger tile", axis)
        if rows * columns > 32:
            found.no(f"a warp's part of {rows * 16}x{columns * 8} does not fit its registers", "more warps", "warps.m")
        if c.tile_k * c.tile_m // 8 % c.threads or c.tile_k * c.tile_n // 8 % c.threads:
            found.no(f"{c.threads} threads do not share {c.tile_k} rows of {c.tile_m} and {c.tile_n} channels evenly",
                     "a larger tile k, or fewer warps", "tile.k")  # fmt: skip
        if layout.shared_bytes > target.shared_bytes_per_block:
            found.no(f"{c.stages} stages take {layout.shared_bytes} bytes of shared memory, {target} has "
                     f"{target.shared_bytes_per_block}", "fewer stages", "stages")  # fmt: skip
        if c.slices > layout.steps:
            steps = plurals.counted(layout.steps, "step")
            found.no(f"{c.slices} slices are more than the {steps} of {c.tile_k} pixels", "fewer slices", "slices")
        return found + gradient.atomic_obstacles(c.slices) if c.adds else found

    def time(self, layout: Layout) -> float:
        return cost.time(layout)

    def plan(self, layout: Layout) -> Plan:
        problem, slices = layout.problem, layout.config.slices
        params = tuple(p.vector_param for p in pointers(layout))
        grid = (layout.tiles, slices, 1)
        product = Launch(f"convgen_{problem.name}", grid, layout.config.threads, params, layout.shared_bytes)
        return plan_of(layout, gradient.launches(layout, product), gradient.workspaces(layout, slices))

    def source(self, plan: Plan) -> str:
        assert isinstance(plan.layout, Layout)
        return source(plan, plan.layout)


def _pack(problem: ConvProblem) -> int:
    """Groups that fill a tile, or one."""
    most = max(PACKED // max(problem.c_per_group, problem.k_per_group), 1)
    return max(p for p in range(1, most + 1) if problem.groups % p == 0)


def _shapes(fixed: Options) -> list[Shape]:
    """The shapes that agree with the fixed options; if none does, all that have them."""
    names = ("tile.m", "tile.n", "tile.k", "warps.m", "warps.n")
    if found := [s for s in SHAPES if all(fixed.get(name, v) == v for name, v in zip(names, s, strict=True))]:
        return found
    m, n, k, warps_m, warps_n = (
        considered(fixed, name, sorted({s[i] for s in SHAPES})) for i, name in enumerate(names)
    )
    return list(product(m, n, k, warps_m, warps_n))


def _slices(layout: Layout) -> list[int]:
    """Shares of the pixels that make so many waves."""
    most = most_slices(layout.problem, layout.steps)
    wanted = (waves * layout.target.sms // layout.tiles for waves in WAVES)
    return sorted({2 if layout.config.adds else 1, *(max(min(s, most), 1) for s in wanted)})


KERNEL = MmaWgrad()
