"""depthwise_wgrad: the gradient of depthwise filters on the ordinary cores, one pass over x and y's gradient.

A thread has a few neighboring channels and rows of their filters, whose sums stay in registers.  It walks down strips
of output columns: each row of x is loaded and converted once, and multiplied with every row of y under whose windows it
is, which the thread holds.  At the end the threads of a block that have the same sums add them up in shared memory;
blocks share the pixels, and a second kernel adds their sums in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterable

from convgen.ir.plan import Launch, Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacle, Obstacles, Part, plan_of
from convgen.kernels.config import Options
from convgen.kernels.depthwise_wgrad import cost
from convgen.kernels.depthwise_wgrad.config import Config
from convgen.kernels.depthwise_wgrad.constraints import illegal
from convgen.kernels.depthwise_wgrad.layout import Layout
from convgen.kernels.depthwise_wgrad.source import maps, pointers, source
from convgen.kernels.depthwise_wgrad.space import parts
from convgen.kernels.parts import gradient, limits
from convgen.kernels.parts.gradient import GradientKernel
from convgen.kernels.parts.lowering import INT_LIMIT
from convgen.targets import Target

TYPES = ("f16", "bf16", "f32")
MOST_PIXELS = INT_LIMIT - limits.MAX_THREADS


class DepthwiseWgrad(GradientKernel[Config, Layout]):
    name = "depthwise_wgrad"
    config = Config

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        found = Obstacles(limits.type_obstacles(problem, target))
        no = found.no
        if problem.groups != problem.c:
            no(f"groups {problem.groups} of {problem.c} channels: each channel must be a group")
        for t in (problem.x, problem.y):
            if t.dtype not in TYPES:
                no(f"{t.name} is {t.dtype}: {', '.join(TYPES[:-1])} or {TYPES[-1]} is served")
        if problem.w.dtype not in TYPES:
            no(f"output type {problem.w.dtype}: {', '.join(TYPES[:-1])} or {TYPES[-1]}")
        for t, dim in ((problem.x, "c"), (problem.y, "k")):
            if t.extent(dim) > 1 and t.stride(dim) != 1:
                no(f"channels are not innermost in {t.name}")
        if problem.output_pixels >= MOST_PIXELS:
            no("the pixels of y do not fit 32 bits")
        return found

    def parts(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterable[Part[Layout]]:
        return parts(problem, target, fixed)

    def illegal(self, layout: Layout) -> list[Obstacle]:
        return illegal(layout)

    def time(self, layout: Layout) -> float:
        return cost.time(layout)

    def kind(self, layout: Layout) -> object:
        c = layout.config
        return c.loads, c.vector, c.tile_r, c.tile_q, c.split_k > 1

    def plan(self, layout: Layout) -> Plan:
        problem, slices, target = layout.problem, layout.config.slices, layout.target
        dependent = "dependent_launch" in target.features
        product = Launch(
            f"convgen_{problem.name}", (layout.channel_slices * layout.config.split_k, slices, 1), layout.block,
            (*maps(layout), *(p.vector_param for p in pointers(layout))), layout.shared_bytes,
            cluster=layout.config.split_k, dependent=dependent, blocks_per_sm=layout.config.blocks,
        )  # fmt: skip
        return plan_of(layout, gradient.launches(layout, product), gradient.workspaces(layout, layout.shares))

    def source(self, plan: Plan) -> str:
        assert isinstance(plan.layout, Layout)
        return source(plan, plan.layout)


KERNEL = DepthwiseWgrad()
