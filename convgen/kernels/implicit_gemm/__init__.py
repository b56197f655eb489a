"""implicit_gemm: fprop on mma.sync with addresses made in software, for sm_80 and up.

It serves what TMA cannot: rows of any alignment, any channel count, groups, every memory layout.  After
"Characterizing and Demystifying the Implicit Convolution Algorithm on Commercial Matrix-Multiplication
Accelerators" (2021), section V: the lowered matrix is never made, blocks of it are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels.base import Obstacle, Obstacles, Option, Options
from convgen.kernels.implicit_gemm import gather, grouped, rows, rows_wgmma
from convgen.kernels.implicit_gemm.mma import MATHS, MIXED, MMAS, maths
from convgen.kernels.implicit_gemm.walk import ORDERS
from convgen.kernels.parts import lowering
from convgen.kernels.several import MOST_PIXELS, Kernel, KernelStrategy
from convgen.targets import Target

KERNELS: Mapping[str, Kernel] = {"gather": gather, "rows": rows, "rows_wgmma": rows_wgmma, "grouped": grouped}


OPTIONS = (
    Option(
        "kernel",
        "gather: tiles by gemm_k; rows, rows_wgmma: whole input rows, few channels; grouped: small groups",
        choices=tuple(KERNELS),
    ),
    Option("tile.m", "output pixels a tile", 16, 2048),
    Option("tile.n", "output channels of a group a tile", 16, 512),
    Option("tile.p", "output rows a block (grouped)", 1, 64),
    Option("slice", "joined groups a block (grouped)", 1, 64),
    Option("tile.k", "elements of gemm_k a step", choices=(16, 32, 64, 128)),
    Option("warps.m", "warps along m", 1, 16),
    Option("warps.n", "warps along n", 1, 8),
    Option("stages", "k steps in flight (gather, at least 2), or patches (rows, grouped)", 1, 8),
    Option("split", "slices of gemm_k, added in order by a second kernel", 1, 64),
    Option("order", "what gemm_k runs over", choices=tuple(ORDERS)),
    Option("math", "how f32 is multiplied", choices=tuple(MATHS["f32"])),
    Option("blocks", "blocks a multiprocessor", 1, 8),
)


class ImplicitGemm(KernelStrategy):
    name = "implicit_gemm"
    summary = "implicit GEMM on mma.sync and cp.async with software addresses: any layout, alignment and groups"
    options = OPTIONS
    kernels = KERNELS

    def unserved(self, problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
        found = Obstacles(lowering.type_obstacles(problem, target))
        no = found.no
        x, w = problem.x, problem.w
        math_ = str(options.get("math", maths(x.dtype)[0]))
        row = MMAS.get((x.dtype, math_))
        if problem.op is not Op.FPROP:
            no(f"op {problem.op} is not served, fprop alone")
        if x.dtype != w.dtype and not {x.dtype, w.dtype} <= MIXED:
            no(f"types {x.dtype} x {w.dtype}: the factors must have one type, or both be fp8")
        if math_ not in maths(x.dtype):
            no(f"math {math_} is for f32, and {x.name} is {x.dtype}", "leave it out", "math")
        elif row is None:
            no(f"no tensor-core instruction multiplies {x.dtype}", "f16, bf16, f32, s8, e4m3 or e5m2")
        else:
            if row.feature not in target.features:
                no(f"target {target} has no mma {row.shape} of {x.dtype}", "a later target, or f16")
            if problem.accumulate != row.accumulator:
                no(f"{x.dtype} products are added in {row.accumulator}", f"accumulate {row.accumulator}")
        if problem.output_pixels >= MOST_PIXELS:
            no(f"{problem.output_pixels} output pixels do not fit 32 bits")
        return found

    def best(self, problem: ConvProblem, target: Target, options: Options) -> Kernel:
        if rows_wgmma.serves_well(problem, target, options):
            return rows_wgmma
        if rows.serves_well(problem, target, options):
            return rows
        return grouped if grouped.serves_well(problem, target, options) else gather

    def plan(self, problem: ConvProblem, target: Target, options: Options) -> Plan:
        plan = super().plan(problem, target, options)
        return replace(plan, arithmetic=str(options.get("math", maths(problem.x.dtype)[0])))


STRATEGY = ImplicitGemm()
