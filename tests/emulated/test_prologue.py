"""Prologues, emulated: what kernels multiply, beside the float64 reference."""

from __future__ import annotations

import pytest
from runs import check_plan

from convgen import frontend
from convgen.kernels import strategies

DIRECT = strategies.load("direct")


@pytest.mark.parametrize(
    ("tensors", "prologue", "tile"),
    [
        (
            "input x: f16[n=2, h=5, w=6, c=9] filter w: f16[k=6, r=3, s=2, c] output y: f16[n, p, q, k] pad 1",
            "operand s: f32[c] operand t: f16[n, c] x = relu(x * s + t)",
            2,
        ),
        (
            "input x: bf16[n=2, c=8, h=5, w=6] filter w: bf16[k=4, c=4, r=3, s=3] output y: f32[n, k, p, q] pad 1 nan "
            "groups 2",
            "operand a: bf16[h, c] operand b: f32[] u = x * a x = select(u > 0, u + b, exp(u))",
            1,
        ),
        (
            "input x: s8[n=1, h=4, w=4, c=5] filter w: s8[k=3, r=3, s=3, c] output y: s32[n, p, q, k] pad 1 reflect",
            "operand g: f32[w, n] x = x * g",
            1,
        ),
    ],
    ids=["f16", "bf16_nan_padding", "s8"],
)
def test_direct(tensors: str, prologue: str, tile: int, seed: int) -> None:
    epilogue = "epilogue { operand b: f32[k] y = acc + b }"
    if "s8" in tensors or "nan" in tensors:
        epilogue = ""
    (request,) = frontend.load(f"conv a {{ {tensors} prologue {{ {prologue} }} {epilogue} }}")
    check_plan(DIRECT, request.problem, {"tile": tile}, seed)
