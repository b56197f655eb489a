"""examples/lenet on a GPU: losses of 20 steps are torch's, within rounding."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import lenet_training  # noqa: E402


@pytest.mark.usefixtures("torch_cuda")
@pytest.mark.parametrize("strategy", [None, "im2col"])
def test_losses_are_torch_s(strategy: str | None) -> None:
    network = lenet_training.example()[0].LeNet(cupy, strategy)
    losses = lenet_training.curves(network, lenet_training.batches(20, 64), "cuda")
    assert not (far := lenet_training.beyond_rounding(losses)), far
    assert losses["convgen"][-1] < 0.6 * losses["convgen"][0]
