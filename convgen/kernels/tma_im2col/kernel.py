"""tma_im2col: an implicit GEMM on Hopper, fed by TMA's im2col mode.

gemm_m runs over output pixels (n, p, q), gemm_n over output channels, gemm_k over taps and channels.
One producer thread asks TMA for a tile of A (a walk of the im2col box, shifted by the tap) and a tile of
B for each k block; consumer warpgroups multiply them with wgmma; a tile of C leaves through shared memory
and a TMA store.  Blocks are persistent: each takes tiles until none is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.kernels import base
from convgen.kernels.base import Obstacle, Part, plan_of
from convgen.kernels.config import Options
from convgen.kernels.parts import assignment, patches, prepare
from convgen.kernels.parts.hopper import wgmma_obstacles
from convgen.kernels.parts.partial_sums import image_pixels, summed
from convgen.kernels.tma_im2col import cost
from convgen.kernels.tma_im2col.config import Config
from convgen.kernels.tma_im2col.constraints import illegal, map_obstacles, phase_obstacles, prologue_obstacles
from convgen.kernels.tma_im2col.demands import demands
from convgen.kernels.tma_im2col.gemm import gemm
from convgen.kernels.tma_im2col.launches import launches, workspaces
from convgen.kernels.tma_im2col.layout import PIXELS, Layout
from convgen.kernels.tma_im2col.sizes import MOST_COLUMNS, MOST_PIXELS, illegal_sizes, limits, size_obstacles
from convgen.kernels.tma_im2col.source import source
from convgen.kernels.tma_im2col.space import packs, parts, refine
from convgen.targets import Target

#: Registers of a consumer that keep where a phase's pixels lie, and how many times longer a kernel takes that spills
#: them: dgrad of resnet50/res3_3x3_s2 with 192 accumulators beside 176 (benchmarks/results/dgrad_h200.json).
PHASE_REGISTERS, SPILLED = 16, 1.08

#: From so many tiles of output channels on, a tuner tries bands of so many pixel tiles (docs/decisions, rasterization).
BANDED, BAND = 6, 4


class TmaIm2col(base.Kernel[Config, Layout]):
    name = "tma_im2col"
    paddings = frozenset(Padding)
    config = Config
    slice_roles = base.ANY_SLICES
    further = corrected = True
    prologues = True
    dynamic = base.ANY_SIZES

    def adds_up(self, problem: ConvProblem, fixed: Options) -> tuple[str, ...]:
        """Sums of channels, over all images or each, if C is stored in epilogue tiles of pixels: each warp computes a
        row."""
        if not assignment.served(problem):
            return ()
        assigned = assignment.assignment(problem)
        # images end where a warp's pixels do
        of_images = assigned.strided is None and not problem.dynamic and image_pixels(assigned.problem) % PIXELS == 0
        return summed(problem, of_images)

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        if problem.op is Op.WGRAD:
            return [Obstacle("op wgrad: kernel tma_im2col serves fprop and dgrad", "kernel tma_wgrad", "kernel")]
        found = wgmma_obstacles(problem, target, ("f16", "bf16", "f32"), also=(Op.DGRAD, Op.WGRAD))
        read = assignment.assignment(problem).problem if assignment.served(problem) else problem
        found += prepare.pack_obstacle(read, fixed, prepare.VECTOR, backward=problem.op is Op.DGRAD)
        found += phase_obstacles(problem)
        if found:
            return found
        forward = gemm(problem)
        packed = (gemm(problem, pack) for pack in packs(read, fixed))
        found += [*map_obstacles(forward), *prologue_obstacles(problem), *size_obstacles(problem, forward, packed)]
        if max(forward.pixels, forward.problem.output_pixels) > MOST_PIXELS:
            found.no("the pixels of the result do not fit 32 bits, counted by whole tiles")
        if forward.problem.k > MOST_COLUMNS:
            found.no("the channels of the result do not fit 32 bits, counted by whole tiles of a cluster")
        return found

    def parts(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterable[Part[Layout]]:
        return parts(problem, target, fixed)

    def refine(self, best: Iterator[Layout], fixed: Options) -> Iterable[Layout]:
        return refine(best, fixed)

    def refined(self, us: float) -> float:
        # two blocks that load together load half at best; 0.35 is the least of 4,100 random layers: long k loops of a
        # tile or two, shared evenly
        return min(us / 2, max(us / 4, cost.LEAST_REFINED))

    def illegal(self, layout: Layout) -> list[Obstacle]:
        return [*illegal(layout), *illegal_sizes(layout)]

    def time(self, layout: Layout) -> float:
        asked = demands(layout)
        us = cost.time(rates=cost.H200, **asked)
        if layout.gemm.phases:  # the tiles of the longest one take their time
            longest = {"tiles": layout.tile_count // len(layout.gemm.taps), "steps": layout.k_blocks}
            us = max(us, cost.time(rates=cost.H200, **(asked | longest)))
            if layout.config.accumulators > layout.free_registers - PHASE_REGISTERS:
                us *= SPILLED
        return layout.gemm.prepared.time + us

    def traits(self, layout: Layout) -> Mapping[str, Any] | None:
        return None if layout.gemm.phases else demands(layout)

    def variants(self, layout: Layout) -> list[Layout]:
        return [layout.sibling(raster=BAND)] if layout.config.raster == 1 and layout.n_tiles >= BANDED else []

    def plan(self, layout: Layout) -> Plan:
        g = layout.gemm
        cut = () if g.assigned.backward else patches.notes(layout.problem, g.assigned.problem)
        notes = (*g.assigned.notes, *cut, *g.prepared.notes)
        return plan_of(layout, launches(layout), workspaces(layout), notes=notes, limits=limits(layout))

    def source(self, plan: Plan) -> str:
        assert isinstance(plan.layout, Layout)
        return source(plan, plan.layout)


KERNEL = TmaIm2col()
