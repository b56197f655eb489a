"""Prologues on a GPU: by tma_im2col in every schedule, and by direct."""

from __future__ import annotations

import gpu_runs
import pytest

from convgen import frontend

pytest.importorskip("cupy")

TENSORS = "input x: f16[n=9, h=14, w=13, c=200 of 256] filter w: f16[k=136, c] output y: f16[n, p, q, k]"
PROLOGUE = "operand s: f32[c] operand g: f16[n, c] x = relu(x * s + g)"
EPILOGUE = "operand b: f32[k] operand z: f16[n, p, q, k] y = relu(acc + b + z)"
SCHEDULES = {
    "chosen": {},
    "cooperative": {"schedule": "cooperative", "consumers": 2},
    "pingpong": {"schedule": "pingpong", "consumers": 2, "tile.m": 128},
    "narrow": {"tile.k": 16, "tile.m": 64, "blocks": 2},
    "split_k": {"split_k": 2},
    "stream_k": {"stream_k": 1},
    "shared x": {"cluster": 2, "multicast": "a", "tile.n": 64},
    "shared w": {"cluster": 2, "multicast": "b"},
}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", SCHEDULES)
def test_tma_im2col(name: str, stride: int, seed: int) -> None:
    text = f"conv a {{ {TENSORS} stride {stride} prologue {{ {PROLOGUE} }} epilogue {{ {EPILOGUE} }} }}"
    gpu_runs.check(frontend.load(text)[0].problem, "tma_im2col", SCHEDULES[name], seed)


def test_direct(seed: int) -> None:
    tensors = TENSORS.replace("k=136, c", "k=136, r=3, s=3, c")
    text = f"conv a {{ {tensors} pad 1 prologue {{ {PROLOGUE} }} }}"
    gpu_runs.check(frontend.load(text)[0].problem, "direct", seed=seed)
