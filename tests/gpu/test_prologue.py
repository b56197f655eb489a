"""Prologues on a GPU: by tma_im2col in every schedule, and by direct."""

from __future__ import annotations

import copy
from typing import Any

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
    "channels as rows": {"swap_ab": 1, "consumers": 1},
    "channels as rows, pingpong": {"swap_ab": 1, "consumers": 2, "schedule": "pingpong"},
    "channels as rows, split_k": {"swap_ab": 1, "split_k": 2, "consumers": 1},
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


@pytest.mark.parametrize("measure", [False, True])
def test_networks(measure: bool, seed: int) -> None:
    """DenseNet's layer and a gate, as torch computes them in float64."""
    torch = pytest.importorskip("torch")
    import convgen.torch

    nn = torch.nn
    torch.manual_seed(seed)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv = nn.BatchNorm2d(96), nn.Conv2d(96, 32, 1, bias=False)
            self.squeeze, self.project = nn.Conv2d(128, 128, 1), nn.Conv2d(128, 64, 1)

        def forward(self, x: Any) -> Any:
            y = torch.cat([x, self.conv(torch.relu(self.norm(x)))], 1)
            return self.project(y * torch.sigmoid(self.squeeze(y.mean((2, 3), keepdim=True))))

    model = Model().eval().cuda()
    nn.init.uniform_(model.norm.running_var, 0.5, 2)
    nn.init.uniform_(model.norm.bias, -1, 1)
    exact, half = copy.deepcopy(model).double(), model.half()
    x = torch.randn(4, 96, 14, 14, device="cuda").half()
    with torch.no_grad():
        expected = exact(x.double())
        fast = convgen.torch.optimize(half, x, measure=measure)
        ours, theirs = (m(x).double() - expected for m in (fast, half))
    if not measure:
        assert [row.fused.partition(";")[0] for row in fast.report if row.fused.startswith("before")] == [
            "before: mul add relu",
            "before: mul",
        ]
    assert ours.norm() < 1.1 * theirs.norm()
