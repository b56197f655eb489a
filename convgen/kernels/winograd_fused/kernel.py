"""winograd_fused: F(2, 3) along a row, for filters three taps wide: 1.5 times fewer products, in one kernel.

    U = G w       of each filter row and pair of channels, by a launch of its own
    V = B^T d     of each four neighboring pixels of a halo tile (tma_halo), in a consumer's registers
    M += V U      over filter rows and input channels, for each of four points
    y = A^T M     of each two outputs, and tma_halo's epilogue

V never goes through memory: ldmatrix reads pixels of the halo tile in fragments, and wgmma takes their sums and
differences from registers.  Rounding differs from that of sums of products (`ir/winograd_error.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from convgen.ir.plan import Launch, Param, Plan
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.winograd import TAPS
from convgen.kernels import base
from convgen.kernels.base import Obstacle, plan_of
from convgen.kernels.config import Options
from convgen.kernels.parts import operand_tiles
from convgen.kernels.parts.elementwise import factor_pointers
from convgen.kernels.parts.hopper import memory_order, wgmma_obstacles
from convgen.kernels.parts.lowering import INT_LIMIT
from convgen.kernels.winograd_fused import cost
from convgen.kernels.winograd_fused.config import Config
from convgen.kernels.winograd_fused.constraints import illegal
from convgen.kernels.winograd_fused.filters import filters
from convgen.kernels.winograd_fused.layout import Layout, M
from convgen.kernels.winograd_fused.source import source
from convgen.kernels.winograd_fused.space import space
from convgen.targets import Target


class WinogradFused(base.Kernel[Config, Layout]):
    name = "winograd_fused"
    config = Config
    slice_roles = base.ANY_SLICES
    further = True

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        found = wgmma_obstacles(problem, target, ("f16", "bf16"))
        no = found.no
        if problem.op is not Op.FPROP:
            return found
        if problem.rank > 2:
            no(f"{problem.rank} spatial dims; form fused serves one and two")
        if problem.filter[-1] != TAPS:
            no(f"the filter is {problem.filter[-1]} wide; form fused needs {TAPS} taps along w")
        if set(problem.stride) != {1}:
            no("form fused needs stride 1")
        if problem.dilation[-1] != 1:
            no(f"dilation {problem.dilation[-1]} along w; form fused needs 1")
        if problem.groups > 1:
            no(f"{problem.groups} groups; form fused serves a single group")
        y, pixels = problem.y, problem.spatial.output
        if not (memory_order(y, ("n", *pixels, "k")) or memory_order(y, ("n", "k", *pixels))):
            no(f"layout of {y.name} is {' '.join(y.dims)}", f"n {' '.join(pixels)} k or n k {' '.join(pixels)}")
        if any(t.span >= INT_LIMIT for t in (problem.x, y, *problem.operands)):
            no("a tensor of 2^31 elements or more")
        return found

    def space(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterable[Layout]:
        return space(problem, target, fixed)

    def illegal(self, layout: Layout) -> Sequence[Obstacle]:
        return illegal(layout)

    def kind(self, layout: Layout) -> object:
        c = layout.config
        return c.schedule, c.strip, c.tile_n, c.weight_stages > 0, c.cluster

    def time(self, layout: Layout) -> float:
        return cost.time(layout)

    def plan(self, layout: Layout) -> Plan:
        prepared = layout.prepared
        x, w = (pointer.param for pointer in factor_pointers(layout.problem))
        params = (
            *prepared.params((layout.a_map,)),
            layout.b_map,
            w,
            Param("y", "pointer", "y"),
            *operand_tiles.pointers(layout.read),
            x,
        )
        launch = Launch(
            entry=f"convgen_{layout.problem.name}",
            grid=(layout.tiles * layout.channel_tiles, 1, 1),
            block=layout.threads,
            params=params,
            shared_bytes=layout.shared_bytes,
            cluster=layout.config.cluster,
            persistent=True,
            dependent=True,
            multiple_of=layout.channel_tiles * layout.config.cluster,
        )
        notes = (f"F({M}, {TAPS}) along rows of the filter", *prepared.notes)
        launches = (*prepared.launches(), filters(layout).launch(), launch)
        return plan_of(layout, launches, layout.workspaces, notes=notes, arithmetic=f"winograd{M} along w")

    def source(self, plan: Plan) -> str:
        assert isinstance(plan.layout, Layout)
        return source(plan, plan.layout)


KERNEL = WinogradFused()
