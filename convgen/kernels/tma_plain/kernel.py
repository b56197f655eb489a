"""tma_plain: an implicit GEMM on TMA im2col loads and wgmma that reads from top to bottom.

It is the kernel of Triton's tutorial "TMA im2col mode and Convolution via Implicit GEMM": a block of one warpgroup
makes one tile; it loads a k block, waits, multiplies, waits, and loads the next.  Nothing overlaps, so it is slow: it
is for reading before `tma_im2col`, which keeps a ring of stages loading while it multiplies.
"""

from __future__ import annotations

import math
from functools import cached_property

from convgen.codegen.render import render
from convgen.ir.index_map import TmaAxis, tma_axes
from convgen.ir.plan import Launch, Param, Plan, TensorMap
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels import base
from convgen.kernels.base import Obstacle, plan_of
from convgen.kernels.config import Options
from convgen.kernels.parts.hopper import SWIZZLE_ALIGNMENT, im2col_obstacles, wgmma_obstacles
from convgen.kernels.parts.lowering import CONVERSIONS, INT_LIMIT, has_epilogue
from convgen.kernels.tma_plain.config import Config
from convgen.targets import Target

TILE_M, TILE_K, THREADS = 64, 64, 128
ROW_BYTES = 128  # of a tile: TILE_K channels, the widest swizzle
DEFAULT_TILE_N = 64  # the tutorial's


class Layout(base.Layout[Config]):
    @cached_property
    def axes(self) -> tuple[TmaAxis, ...]:
        return tma_axes(self.problem)

    @property
    def shared_table(self) -> tuple[tuple[str, str], ...]:
        n = self.config.tile_n
        return (("x", f"{TILE_M} pixels x {ROW_BYTES}"), ("w", f"{n} channels x {ROW_BYTES}"), ("barrier", "1 x 8"))

    @property
    def shared_bytes(self) -> int:
        """Shared memory per block, in bytes, with room for the swizzle's alignment."""
        return (TILE_M + self.config.tile_n) * ROW_BYTES + 8 + SWIZZLE_ALIGNMENT

    @property
    def grid(self) -> tuple[int, int, int]:
        return -(-self.problem.output_pixels // TILE_M), -(-self.problem.k // self.config.tile_n), 1


class TmaPlain(base.Kernel[Config, Layout]):
    name = "tma_plain"
    config = Config

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        found = wgmma_obstacles(problem, target, ("f16", "bf16", "f32"))
        if problem.op is not Op.FPROP:
            return found

        def no(message: str) -> None:
            found.no(message, "kernel tma_im2col", "kernel")

        for tensor, dims in zip((problem.x, problem.w, problem.y), ("n h w c", "k r s c", "n p q k"), strict=True):
            if " ".join(tensor.dims) != dims:
                no(f"{tensor.name} has the layout {' '.join(tensor.dims)}: it must be {dims}")
        if problem.c * 2 % 16:
            no(f"{problem.c} channels: a pixel's bytes must be a multiple of 16")
        if problem.groups > 1 or has_epilogue(problem):
            no("groups and epilogues are not served")
        if problem.y.size >= INT_LIMIT:
            no("y has 2^31 elements or more")
        return found if found else im2col_obstacles(tma_axes(problem), problem.filter)

    def space(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Layout]:
        return [Layout(problem, target, Config(int(fixed.get("tile.n", DEFAULT_TILE_N))))]

    def illegal(self, layout: Layout) -> list[Obstacle]:
        return []

    def time(self, layout: Layout) -> float:
        return math.inf  # it is for reading

    def plan(self, layout: Layout) -> Plan:
        params = (
            Param("a_map", "tensor_map", "x", _a_map(layout)),
            Param("b_map", "tensor_map", "w", _b_map(layout)),
            Param("y", "pointer", "y"),
        )
        entry = f"convgen_{layout.problem.name}"
        return plan_of(layout, (Launch(entry, layout.grid, THREADS, params, layout.shared_bytes),))

    def source(self, plan: Plan) -> str:
        layout = plan.layout
        assert isinstance(layout, Layout)
        y = layout.problem.y
        h, w = layout.axes
        return render(
            "tma_plain/kernel.cu.j2", plan, entry=plan.launch().entry, config=layout.config, h=h, w=w, tile_m=TILE_M,
            tile_k=TILE_K, products=TILE_K // 16, row_bytes=ROW_BYTES, y_type=y.element.c_type,
            rounded=CONVERSIONS[y.dtype].from_float,
        )  # fmt: skip


def _a_map(layout: Layout) -> TensorMap:
    """Boxes of 64 pixels by 64 channels, walked in im2col mode."""
    p, axes = layout.problem, layout.axes[::-1]
    h, w = p.input
    row = p.c * p.x.element.bytes
    steps = (1, *(a.element_stride for a in axes), 1)
    return TensorMap(
        "x", "im2col", p.x.dtype, (p.c, w, h, p.n), (row, w * row, h * w * row), steps,
        lower=tuple(a.lower for a in axes), upper=tuple(a.upper for a in axes),
        channels=TILE_K, pixels=TILE_M, swizzle=ROW_BYTES,
    )  # fmt: skip


def _b_map(layout: Layout) -> TensorMap:
    """Boxes of 64 channels of one tap by a tile's output channels."""
    p = layout.problem
    row = p.c * p.w.element.bytes
    return TensorMap(
        "w", "tiled", p.w.dtype, (p.c, p.taps, p.k), (row, p.taps * row), (1, 1, 1),
        box=(TILE_K, 1, layout.config.tile_n), swizzle=ROW_BYTES,
    )  # fmt: skip


KERNEL = TmaPlain()
