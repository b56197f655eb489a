"""The tensor-core instructions of mma.sync that the kernels are built on: one row per element type.

Every row multiplies 16 rows by 8 columns over 32 bytes of gemm_k, so fragments look alike in bytes for all
types (PTX ISA, "Matrix fragments for mma.m16n8k16", "m16n8k8", "m16n8k32"), and `ldmatrix` loads them all.
"""

from __future__ import annotations

from dataclasses import dataclass

from convgen.ir.problem import ConvProblem, Op
from convgen.kernels.base import Obstacle, Obstacles
from convgen.kernels.parts.limits import type_obstacles
from convgen.kernels.parts.lowering import INT_LIMIT
from convgen.targets import Target

#: Bytes of gemm_k that one instruction takes, and of one ldmatrix row.
K_BYTES = 32
CHUNK_BYTES = 16
ROWS = 16
COLUMNS = 8


@dataclass(frozen=True)
class Mma:
    """One instruction for element types a and b: `shape` is its size and accumulator, `factor` how its
    factors are called where that is not their type's name."""

    shape: str
    accumulator: str
    feature: str
    factor: str = ""
    doc: str = ""

    def function(self, a: str, b: str) -> str:
        """The PTX function for rows of type a by columns of type b."""
        return f"mma_{self.shape}_{self.factor or a}_{self.factor or b}"


_FP8 = Mma("m16n8k32_f32", "f32", "fp8_convert", doc="Hopper's tensor cores add fp8 products to about 14 bits")
#: By x's type and, for f32, how it is taken apart for tf32's tensor cores.
MMAS: dict[tuple[str, str], Mma] = {
    ("f16", ""): Mma("m16n8k16_f32", "f32", "mma"),
    ("bf16", ""): Mma("m16n8k16_f32", "f32", "mma"),
    ("f32", "tf32"): Mma("m16n8k8_f32", "f32", "mma", "tf32", "factors are rounded to 10 bits of mantissa"),
    ("f32", "tf32x3"): Mma(
        "m16n8k8_f32",
        "f32",
        "mma",
        "tf32",
        "each factor is a sum of two tf32 numbers, and the three larger products of four are added",
    ),
    ("s8", ""): Mma("m16n8k32_s32", "s32", "mma"),
    ("e4m3", ""): _FP8,
    ("e5m2", ""): _FP8,
}
#: Types that one instruction may mix.
MIXED = frozenset({"e4m3", "e5m2"})
#: What `math` may be for a type; the first is the default.
MATHS: dict[str, tuple[str, ...]] = {"f32": ("tf32x3", "tf32")}


def maths(dtype: str) -> tuple[str, ...]:
    return MATHS.get(dtype, ("",))


#: Output pixels, by whole tiles, and pixels of x under them, are counted in 32 bits.
MOST_PIXELS = INT_LIMIT - 512
#: So is gemm_k, by whole steps of all of its parts, and with the steps that are under way behind the last.
MOST_DEPTH = INT_LIMIT - 2**14


def mma_obstacles(problem: ConvProblem, target: Target) -> list[Obstacle]:
    """Why mma.sync cannot compute a forward convolution with these types, whatever the tiles."""
    found = Obstacles(type_obstacles(problem, target))
    no = found.no
    if problem.op is Op.WGRAD:
        no("op wgrad is not served by this kernel", "kernel mma_wgrad", "kernel")
        return found
    if problem.op is Op.DGRAD:
        no("op dgrad is not served by this kernel", "kernel mma_gemm", "kernel")
        return found
    if problem.op is not Op.FPROP:
        no(f"op {problem.op} is not served; fprop, dgrad and wgrad are")
        return found
    x, w = problem.x, problem.w
    row = MMAS.get((x.dtype, maths(x.dtype)[0]))
    if x.dtype != w.dtype and not {x.dtype, w.dtype} <= MIXED:
        no(f"types {x.dtype} x {w.dtype}: the factors must have one type, or both be fp8")
    if row is None:
        no(f"no tensor-core instruction multiplies {x.dtype}", "f16, bf16, f32, s8, e4m3 or e5m2")
    else:
        if row.feature not in target.features:
            no(f"target {target} has no mma {row.shape} of {x.dtype}", "a later target, or f16")
        if problem.accumulate != row.accumulator:
            no(f"{x.dtype} products are added in {row.accumulator}", f"accumulate {row.accumulator}")
    if problem.output_pixels >= MOST_PIXELS:
        no(f"{problem.output_pixels} output pixels do not fit 32 bits")
    if problem.k >= MOST_PIXELS:
        no(f"{problem.k} output channels do not fit 32 bits, counted by whole tiles")
    if (depth := problem.taps * problem.c_per_group) >= MOST_DEPTH:
        no(f"{depth} products of a sum do not fit 32 bits")
    return found


def math_obstacles(problem: ConvProblem, math: str) -> list[Obstacle]:
    """Why the option `math` does not go with a problem's types."""
    if math in maths(problem.x.dtype):
        return []
    return [Obstacle(f"math {math} is for f32, and {problem.x.name} is {problem.x.dtype}", "leave it out", "math")]
