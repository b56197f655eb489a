"""winograd: F(2x2, 3x3) and F(4x4, 3x3), for 3x3 filters of unit stride: 2.25 and 4 times fewer multiplications.

    U = G w G^T      of each pair of channels
    V = B^T x B      of each tile and input channel
    M = V U^T        over input channels, for each of the transforms' points: by a kernel for 1x1 convolutions
    y = A^T M A      of each tile and output channel, and the epilogue

`ir/winograd.py` derives the transforms.  Rounding differs from that of sums of products (`ir/winograd_error.py`), so
`auto` does not take this kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.winograd import TAPS
from convgen.kernels import base
from convgen.kernels.base import Obstacle, Obstacles, plan_of
from convgen.kernels.config import Options, considered
from convgen.kernels.parts.limits import type_obstacles
from convgen.kernels.parts.mma import math_obstacles, maths
from convgen.kernels.winograd import cost
from convgen.kernels.winograd.config import Config
from convgen.kernels.winograd.layout import Layout
from convgen.kernels.winograd.source import source, steps
from convgen.targets import Target

#: The tiles considered by default, by type: results rounded to 16 bits lose too many digits with larger ones.
TILES = {"f32": (4, 2), "f16": (2,), "bf16": (2,)}
PRODUCTS = ("tma_im2col", "mma_gemm")


def _by_axis(values: Sequence[int]) -> str:
    """`3 x 3`, or `3 along w` where there is one axis."""
    return " x ".join(map(str, values)) if len(values) > 1 else f"{values[0]} along w"


class Winograd(base.Kernel[Config, Layout]):
    name = "winograd"
    config = Config
    slice_roles = base.ANY_SLICES
    further = True

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        found = Obstacles(type_obstacles(problem, target))
        if problem.op is not Op.FPROP:
            found.no(f"op {problem.op}; winograd serves fprop only")
        if problem.filter != (TAPS, TAPS):
            found.no(f"the filter is {_by_axis(problem.filter)}; winograd needs 3 x 3")
        for what, values in (("stride", problem.stride), ("dilation", problem.dilation)):
            if set(values) != {1}:
                found.no(f"{what} {_by_axis(values)}; winograd needs {what} 1")
        if problem.groups > 1:
            found.no(f"{problem.groups} groups; winograd serves a single group")
        if problem.x.dtype != problem.w.dtype or problem.x.dtype not in TILES:
            types = f"types {problem.x.dtype} x {problem.w.dtype}"
            found.no(f"{types}: {problem.x.name} and {problem.w.name} must both be f16, bf16 or f32")
        return found

    def space(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Layout]:
        tiles = considered(fixed, "tile", TILES[problem.x.dtype])
        kernels = considered(fixed, "product", PRODUCTS)
        math = str(fixed.get("math", maths(problem.x.dtype)[0]))
        for tile, kernel in product(tiles, kernels):
            yield Layout(problem, target, Config(tile, kernel, math))

    def illegal(self, layout: Layout) -> list[Obstacle]:
        if found := math_obstacles(layout.problem, layout.config.math):
            return found
        asked = layout.config.product
        (other,) = (kernel for kernel in PRODUCTS if kernel != asked)
        return [
            Obstacle(f"product {asked}: {o.message}", o.hint or f"product {other}", "product")
            for o in layout.product.obstacles
        ]

    def time(self, layout: Layout) -> float:
        return cost.time(layout)

    def plan(self, layout: Layout) -> Plan:
        config = layout.config
        notes = (
            f"F({config.tile}x{config.tile}, 3x3): {layout.points} products of {layout.tile_count} tiles x "
            f"{layout.columns} x {layout.channels} channels, as a 1x1 convolution with {layout.points} groups",
            f"kernel {config.product} multiplies: {layout.made_by.config}",
        )
        launches, workspaces = steps(layout)
        arithmetic = f"winograd{config.tile} {config.math or 'f32'}"
        return plan_of(layout, launches, workspaces, notes=notes, arithmetic=arithmetic)

    def source(self, plan: Plan) -> str:
        assert isinstance(plan.layout, Layout)
        return source(plan, plan.layout)


KERNEL = Winograd()
