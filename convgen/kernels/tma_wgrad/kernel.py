"""tma_wgrad: the gradient of the filter on Hopper, fed by TMA's im2col mode.

A is y, B is x, C is w: gemm_m runs over y's channels, gemm_n over taps and x's channels, gemm_k over y's pixels.  One
producer thread asks TMA for a step's pixels of y, and for each tap and block of channels for the pixels of x under it;
consumer warpgroups multiply them with wgmma, whose operands are both contiguous along m and n.  The filter is small and
the pixels are many: blocks share them, and their sums are added in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem, Padding
from convgen.kernels.base import Obstacle, Obstacles, Part, plan_of
from convgen.kernels.config import Options
from convgen.kernels.parts.gradient import GradientKernel
from convgen.kernels.parts.hopper import im2col_obstacles, target_obstacles, wgrad_type_obstacles
from convgen.kernels.parts.lowering import INT_LIMIT
from convgen.kernels.tma_wgrad import cost
from convgen.kernels.tma_wgrad.config import Config
from convgen.kernels.tma_wgrad.constraints import illegal
from convgen.kernels.tma_wgrad.gemm import gemm, lowering_fault, pack_fault
from convgen.kernels.tma_wgrad.launches import launches, workspaces
from convgen.kernels.tma_wgrad.layout import Layout
from convgen.kernels.tma_wgrad.source import source
from convgen.kernels.tma_wgrad.space import parts, refine
from convgen.targets import Target

LONGEST_STEP = 256  # pixels


class TmaWgrad(GradientKernel[Config, Layout]):
    name = "tma_wgrad"
    paddings = frozenset(Padding) - {Padding.NAN}
    config = Config

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        found = target_obstacles(target)
        found += wgrad_type_obstacles(problem)
        if found:
            return found
        g = gemm(problem)
        if not g.pointwise:
            found += im2col_obstacles(g.axes, problem.filter)
        if not found and g.pixels(min(problem.rank, 2)) + LONGEST_STEP >= INT_LIMIT:
            found.no("the pixels of y do not fit 32 bits, counted by whole steps")
        return found + _options(problem, fixed)

    def parts(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterable[Part[Layout]]:
        return parts(problem, target, fixed)

    def refine(self, best: Iterator[Layout], fixed: Options) -> Iterable[Layout]:
        return refine(best, fixed)

    def refined(self, us: float) -> float:
        return 0.7 * us  # 0.75 is the least of 2,100 random layers: clusters

    def illegal(self, layout: Layout) -> list[Obstacle]:
        return illegal(layout)

    def time(self, layout: Layout) -> float:
        return cost.time(layout)

    def kind(self, layout: Layout) -> object:
        c = layout.config
        return c.row_taps, c.halo, c.lower_rows, c.span, c.split_k > 1, c.slices > 1, c.shared

    def plan(self, layout: Layout) -> Plan:
        return plan_of(layout, launches(layout), workspaces(layout), notes=layout.gemm.prepared.notes)

    def source(self, plan: Plan) -> str:
        assert isinstance(plan.layout, Layout)
        return source(plan, plan.layout)


def _options(problem: ConvProblem, fixed: Options) -> Obstacles:
    found = Obstacles()
    if "group_pack" in fixed and (fault := pack_fault(problem, int(fixed["group_pack"]))):
        found.no(fault, option="group_pack")
    if fixed.get("lower_rows") and (fault := lowering_fault(problem)):
        found.no(fault, "lower_rows 0", "lower_rows")
    return found


KERNEL = TmaWgrad()
