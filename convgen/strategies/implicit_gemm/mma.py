"""The tensor-core instructions of mma.sync that the kernels are built on: one row an element type.

Every row multiplies 16 rows by 8 columns over 32 bytes of gemm_k, so fragments look alike in bytes for all
types (PTX ISA, "Matrix fragments for mma.m16n8k16", "m16n8k8", "m16n8k32"), and `ldmatrix` loads them all.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of gemm_k that one instruction takes, and of one ldmatrix row.
K_BYTES = 32
CHUNK_BYTES = 16
ROWS = 16
COLUMNS = 8


@dataclass(frozen=True)
class Mma:
    """`math` is the arithmetic: the type's own, or how f32 is taken apart for tf32's tensor cores."""

    function: str
    accumulator: str
    feature: str
    doc: str

    def __str__(self) -> str:
        return self.function


_FP8 = "products are exact; Hopper's tensor cores add fp8 products to about 14 bits"
MMAS: dict[tuple[str, str], Mma] = {
    ("f16", ""): Mma("mma_m16n8k16_f32_f16_f16", "f32", "mma", ""),
    ("bf16", ""): Mma("mma_m16n8k16_f32_bf16_bf16", "f32", "mma", ""),
    ("f32", "tf32"): Mma("mma_m16n8k8_f32_tf32_tf32", "f32", "mma", "factors are rounded to 10 bits of mantissa"),
    ("f32", "tf32x3"): Mma(
        "mma_m16n8k8_f32_tf32_tf32",
        "f32",
        "mma",
        "each factor is a sum of two tf32 numbers, and the three larger products of four are added",
    ),
    ("s8", ""): Mma("mma_m16n8k32_s32_s8_s8", "s32", "mma", ""),
    ("e4m3", ""): Mma("mma_m16n8k32_f32_e4m3_e4m3", "f32", "fp8_convert", _FP8),
    ("e5m2", ""): Mma("mma_m16n8k32_f32_e5m2_e5m2", "f32", "fp8_convert", _FP8),
}
#: What `math` may be for a type; the first is the default.
MATHS: dict[str, tuple[str, ...]] = {"f32": ("tf32x3", "tf32")}


def maths(dtype: str) -> tuple[str, ...]:
    return MATHS.get(dtype, ("",))
