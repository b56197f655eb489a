"""`conv2d_tma_im2col`, the function of Triton's tutorial "TMA im2col mode and Convolution via Implicit GEMM"."""

from __future__ import annotations

import numpy as np
import pytest

from convgen import ConvgenError, driver
from convgen import functional as F
from convgen.functional import call
from convgen.spec import Spec


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("c, k", [(64, 64), (96, 96)])
@pytest.mark.parametrize("taps", [3, 1])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1])
def test_the_tutorial_s_matrix(n, c, k, taps, stride, padding, seed, monkeypatch):
    """Each case has a plan with the tutorial's tile; results are the reference's: tests/emulated runs two kernels."""
    monkeypatch.setattr(call, "EMULATED", -1)
    random = np.random.default_rng(seed)
    x, w = (random.standard_normal(s).astype(np.float16) for s in ((n, 16, 16, c), (k, taps, taps, c)))
    found = F.conv2d_tma_im2col(x, w, stride=stride, padding=padding)
    padded = np.pad(x.astype(float), ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (taps, taps), (1, 2))[:, ::stride, ::stride]
    expected = np.tensordot(windows, w.astype(float), ((4, 5, 3), (1, 2, 3)))
    assert found.flags.c_contiguous and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-2, rtol=1e-2)

    made = F.tma_im2col(x, w, stride, padding).recipe.convolution
    (compilation,) = driver.load(Spec(made.text, strategy=made.strategy, target="sm_90a"))
    assert compilation.plan.configuration.startswith("tile m=64 n=64 k=64  ")


def test_the_tutorial_s_parameters_are_options():
    x, w = np.zeros((1, 16, 16, 64), np.float16), np.zeros((128, 3, 3, 64), np.float16)
    made = F.tma_im2col(x, w, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32, num_warps=8).recipe.convolution
    assert "strategy tma_im2col { tile m=128 n=128 k=32  consumers 2 }" in made.text
    with pytest.raises(ConvgenError, match="num_warps is 2: expected 4, 8 or 12"):
        F.conv2d_tma_im2col(x, w, num_warps=2)
    with pytest.raises(ConvgenError, match=r"weight has shape \(128, 3, 3\): expected four axes, channels last"):
        F.conv2d_tma_im2col(x, w[..., 0])
