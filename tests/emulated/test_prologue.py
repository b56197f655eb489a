"""Prologues, emulated: what kernels multiply, beside the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
from runs import check_plan, emulated

from convgen import frontend
from convgen.ir import verify
from convgen.kernels import strategies

DIRECT, TMA_IM2COL = strategies.STRATEGIES["direct"], strategies.STRATEGIES["tma_im2col"]


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


#: Tails in all three directions, several images in a tile, fewer stages than steps; each width of the swizzle.
TILES = {
    "channels and images, residual": (
        "input x: f16[n=3, h=9, w=8, c=200] filter w: f16[k=40, c] output y: f16[n, p, q, k]",
        "operand s: f32[c] operand g: f16[n, c] t = x * s x = relu(t + g)",
        "operand b: f32[k] operand z: f16[n, p, q, k] y = relu(acc + b + z)",
        {"tile.m": 128, "tile.n": 24, "tile.k": 64, "stages": 2, "consumers": 2, "schedule": "cooperative"},
    ),
    "stride 2, pingpong, slices": (
        "input x: bf16[n=5, h=7, w=10, c=72 of 80] filter w: bf16[k=16, c] output y: f32[n, p, q, k] stride 2",
        "operand s: bf16[c] operand t: f32[n, c of 88] x = max(x * s, t)",
        "",
        {"tile.m": 64, "tile.n": 16, "tile.k": 32, "stages": 3, "consumers": 2, "schedule": "pingpong"},
    ),
    "channels as rows, split_k": (
        "input x: f16[n=5, h=5, w=7, c=200] filter w: f16[k=72, c] output y: f16[n, p, q, k]",
        "operand s: f32[c] operand g: f16[n, c] x = relu(x * s + g)",
        "operand b: f32[k] y = acc + b",
        {"tile.m": 48, "tile.n": 64, "tile.k": 64, "stages": 2, "consumers": 1, "split_k": 3, "swap_ab": 1},
    ),
    "split_k, planes": (
        "input x: f16[n=2, c=72, h=8, w=8] filter w: f16[k=32, c] output y: f16[n, k, p, q]",
        "operand t: f16[c] x = relu(x + t)",
        "",
        {"tile.m": 64, "tile.n": 32, "tile.k": 16, "stages": 2, "consumers": 1, "split_k": 2},
    ),
    "two share x": (
        "input x: f16[n=3, h=9, w=8, c=200] filter w: f16[k=40, c] output y: f16[n, p, q, k]",
        "operand s: f32[c] operand g: f16[n, c] t = x * s x = relu(t + g)",
        "",
        {"tile.m": 128, "tile.n": 16, "tile.k": 64, "stages": 2, "consumers": 2, "cluster": 2, "multicast": "a"},
    ),
}


@pytest.mark.parametrize("name", TILES)
def test_tma_im2col(name: str, seed: int) -> None:
    tensors, prologue, epilogue, options = TILES[name]
    more = f"epilogue {{ {epilogue} }}" if epilogue else ""
    (request,) = frontend.load(f"conv a {{ {tensors} prologue {{ {prologue} }} {more} }}")
    check_plan(TMA_IM2COL, request.problem, options, seed)


def test_channels_beyond_the_last_stay_zero() -> None:
    """They meet weights of 0, with which an infinite shift would make NaNs."""
    tensors = "input x: f16[n=1, h=8, w=8, c=72] filter w: f16[k=16, c] output y: f16[n, p, q, k]"
    (request,) = frontend.load(f"conv a {{ {tensors} prologue {{ operand t: f32[c] x = x + t }} }}")
    arrays = verify.random_inputs(request.problem, 0)
    arrays["t"][71] = np.inf
    options = {"tile.m": 64, "tile.n": 16, "tile.k": 64, "stages": 2, "consumers": 1}
    out, _ = emulated(TMA_IM2COL, request.problem, options, arrays)
    assert np.isinf(out).all() and verify.check(request.problem, arrays, out)
