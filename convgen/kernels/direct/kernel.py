"""direct: one output per thread, or a few along a channel dim.  Serves every operator, layout and type.

It is the reference on the GPU: a plain sum over the window, as the definition reads.  Whether it serves is said without
the modules that write its source, which take long to load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.ir.size import Size
from convgen.kernels import base
from convgen.kernels.base import Layout, Obstacle, plan_of
from convgen.kernels.config import Options
from convgen.kernels.direct.config import Config
from convgen.kernels.parts.limits import BLOCK, MAX_GRID, type_obstacles
from convgen.targets import Target

if TYPE_CHECKING:
    from convgen.ir.plan import Plan


@dataclass(frozen=True)
class Product:
    """The factors of an operator's products.  A thread's outputs are consecutive along `tiled_dim`; the elements of
    `tiled` differ between them, that of `shared` is loaded once for all."""

    shared: str
    tiled: str
    tiled_dim: str


PRODUCTS: dict[Op, Product] = {
    Op.FPROP: Product("x", "w", "k"),
    Op.DGRAD: Product("y", "w", "c"),
    Op.WGRAD: Product("x", "y", "k"),
}


#: Threads a multiprocessor that a larger tile has to leave: enough to hide loads.
THREADS_PER_SM = 1024
#: Outputs per thread to try, by the type of sums.  With four doubles, registers spill.
TILES = {"f32": (8, 4, 2, 1), "s32": (8, 4, 2, 1), "f64": (2, 1)}


class Direct(base.Kernel[Config, Layout[Config]]):
    name = "direct"
    paddings = frozenset(Padding)
    config = Config
    slice_roles = base.ANY_SLICES
    further = True
    prologues = True
    doubles = True
    dynamic = base.ANY_SIZES

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        found = type_obstacles(problem, target)
        if problem.dynamic and problem.op not in PRODUCTS:
            found.append(Obstacle(f"op {problem.op} is compiled for fixed sizes", "leave `dynamic` out"))
        if problem.result.size > MAX_GRID * BLOCK:
            found.append(Obstacle(f"{problem.result.size} outputs are more than a grid of {MAX_GRID} blocks holds"))
        return found

    def space(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Layout[Config]]:
        """The largest tile that divides the channels and leaves the GPU enough threads."""
        if "tile" in fixed:
            return [Layout(problem, target, Config(int(fixed["tile"])))]
        enough = THREADS_PER_SM * target.sms
        fits = (t for t in TILES[problem.accumulate] if not _uneven(problem, t) and problem.result.size // t >= enough)
        return [Layout(problem, target, Config(next(fits, 1)))]

    def illegal(self, layout: Layout[Config]) -> list[Obstacle]:
        fault = _uneven(layout.problem, layout.config.tile)
        return [Obstacle(fault, "tile 1 always does", "tile")] if fault else []

    def time(self, layout: Layout[Config]) -> float:
        return math.inf  # nobody has measured enough of it

    def plan(self, layout: Layout[Config]) -> Plan:
        from convgen.ir.plan import Limit
        from convgen.kernels.direct.source import made
        from convgen.kernels.parts.lowering import index_limits

        kernel = made(layout.problem, layout.config.tile)
        launch = kernel.launch()
        limits = index_limits(layout.problem, kernel.index)
        if isinstance(launch.grid[0], Size):
            limits = (*limits, Limit("blocks", launch.grid[0], MAX_GRID))
        return plan_of(layout, (launch,), limits=limits)

    def source(self, plan: Plan) -> str:
        from convgen.codegen.render import render
        from convgen.kernels.direct.source import made

        layout = plan.layout
        assert isinstance(layout, Layout)
        return render("kernels.cu.j2", plan, comment=(), kernels=(made(layout.problem, layout.config.tile),))


def _uneven(problem: ConvProblem, tile: int) -> str:
    """Why a thread cannot make so many outputs; empty where it can."""
    if problem.op not in PRODUCTS:
        return f"op {problem.op} makes one element a thread" if tile > 1 else ""
    product = PRODUCTS[problem.op]
    channels = problem.c_per_group if product.tiled_dim == "c" else problem.k_per_group
    return f"tile {tile} does not divide the {channels} channels {product.tiled_dim} of a group" * (channels % tile > 0)


KERNEL = Direct()
