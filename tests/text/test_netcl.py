"""convgen.netcl against the formula of netcl's im2col page, by the reference; tests/emulated runs its kernels."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convgen import ConvgenError
from convgen import netcl as nc
from convgen.functional import call


@pytest.fixture(autouse=True)
def _by_the_reference(monkeypatch):
    monkeypatch.setattr(call, "EMULATED", -1)


def formula(x: np.ndarray, kh: int, kw: int, stride: int, padding: int, dilation: int) -> np.ndarray:
    """Element by element, as the page has it."""
    n_, c_, h_, w_ = x.shape
    h_out = (h_ + 2 * padding - dilation * (kh - 1) - 1) // stride + 1
    w_out = (w_ + 2 * padding - dilation * (kw - 1) - 1) // stride + 1
    cols = np.zeros((n_ * h_out * w_out, c_ * kh * kw), x.dtype)
    for n, h, w, c, r, s in product(*map(range, (n_, h_out, w_out, c_, kh, kw))):
        i, j = h * stride - padding + r * dilation, w * stride - padding + s * dilation
        if 0 <= i < h_ and 0 <= j < w_:
            cols[n * h_out * w_out + h * w_out + w, c * kh * kw + r * kw + s] = x[n, c, i, j]
    return cols


@settings(max_examples=20)
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(3, 6), st.integers(3, 6)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)), stride=st.integers(1, 2), padding=st.integers(0, 2),
    dilation=st.integers(1, 2), seed=st.integers(0, 99),
)  # fmt: skip
def test_im2col_and_col2im(shape, kernel, stride, padding, dilation, seed):
    assume(min(shape[2:]) + 2 * padding > dilation * (max(kernel) - 1))
    random = np.random.default_rng(seed)
    x = random.integers(-4, 5, shape).astype(np.float32)
    cols = nc.im2col(x, *kernel, stride=stride, padding=padding, dilation=dilation)
    expected = formula(x, *kernel, stride, padding, dilation)
    np.testing.assert_array_equal(cols, expected)

    grad_cols = random.integers(-4, 5, cols.shape).astype(np.float32)
    grad_x = nc.col2im(grad_cols, x.shape, *kernel, stride=stride, padding=padding, dilation=dilation)
    assert grad_x.shape == x.shape and np.vdot(cols, grad_cols) == np.vdot(x, grad_x)
    ones = formula(np.arange(1, x.size + 1, dtype=float).reshape(shape), *kernel, stride, padding, dilation)
    sums = np.zeros(x.size + 1)
    np.add.at(sums, ones.astype(int), grad_cols)  # each copy to the element that it is of; 0 is the padding
    np.testing.assert_array_equal(grad_x.ravel(), sums[1:])


@pytest.mark.parametrize("strategy", [None, nc.CONV2D_IM2COL, nc.CONV2D_IMPLICIT_GEMM])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_module_is_cols_times_weights(strategy, groups):
    layer = nc.Conv2d(4, 6, 3, stride=2, padding=1, groups=groups, strategy=strategy)
    x = np.random.default_rng(5).standard_normal((2, 4, 7, 6)).astype(np.float32)
    found = layer(x)
    parts = []
    for part, weight in zip(np.split(x, groups, 1), np.split(layer.weight, groups), strict=True):
        parts.append(formula(part, 3, 3, 2, 1, 1) @ weight.reshape(len(weight), -1).T)
    expected = np.concatenate(parts, 1).reshape(2, 4, 3, 6).transpose(0, 3, 1, 2) + layer.bias[:, None, None]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_winograd_wants_what_the_page_says():
    x = np.random.default_rng(5).standard_normal((2, 4, 8, 12)).astype(np.float32)
    layer, plain = (nc.Conv2d(4, 8, 3, padding=1, strategy=strategy) for strategy in (nc.CONV2D_WINOGRAD, None))
    np.testing.assert_allclose(layer(x), plain(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(ConvgenError, match=r"x has shape \(2, 4, 8, 11\): CONV2D_WINOGRAD wants H and W to be"):
        layer(x[..., :11])
    with pytest.raises(ConvgenError, match="wants a multiple of 8 output channels, not 12"):
        nc.Conv2d(4, 12, 3, strategy=nc.CONV2D_WINOGRAD)


def test_the_module_s_gradients_are_the_adjoints():
    layer = nc.Conv2d(3, 4, (3, 2), dilation=(1, 2))
    random = np.random.default_rng(7)
    x, g = (random.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 6, 6), (2, 4, 4, 4)))
    grad_x, grad_weight, grad_bias = layer.backward(x, g)
    linear = layer(x) - layer.bias[:, None, None]
    for adjoint, of in ((grad_x, x), (grad_weight, layer.weight)):
        assert np.vdot(adjoint, of) == pytest.approx(np.vdot(g, linear), rel=1e-4)
    np.testing.assert_allclose(grad_bias, g.sum((0, 2, 3)), rtol=1e-5)


def test_mistakes():
    x = np.zeros((1, 2, 5, 5), np.float32)
    with pytest.raises(ConvgenError, match=r"x has shape \(2, 5, 5\): expected N, C, H and W"):
        nc.im2col(x[0], 3, 3)
    with pytest.raises(ConvgenError, match=r"input has shape \(9, 17\), and these parameters want \(9, 18\)"):
        nc.col2im(np.zeros((9, 17), np.float32), x.shape, 3, 3)
    with pytest.raises(ConvgenError, match=r"strategy is 'fft': expected netcl\.CONV2D_IM2COL"):
        nc.Conv2d(2, 2, 3, strategy="fft")
    with pytest.raises(ConvgenError, match="groups 3 must divide 4 and 6 channels"):
        nc.Conv2d(4, 6, 3, groups=3)
    with pytest.raises(ConvgenError, match="kernel_size is 0: expected at least 1"):
        nc.Conv2d(4, 8, 0)
    with pytest.raises(ConvgenError, match="out_channels is '8': expected a whole number"):
        nc.Conv2d(4, "8", 3)
    with pytest.raises(ConvgenError, match="x is of type list: expected a NumPy, CuPy or torch array"):
        nc.im2col([1.0], 3, 3)
    with pytest.raises(ConvgenError, match=r"input_shape is .*: expected one number or 4"):
        nc.col2im(np.zeros((9, 18), np.float32), x.shape[1:], 3, 3)
    for wrong, said in (
        ({"in_channels": 0}, "in_channels is 0"), ({"out_channels": -4}, "out_channels is -4"),
        ({"groups": 0}, "groups is 0"), ({"seed": -1}, "seed is -1: expected at least 0"),
    ):  # fmt: skip
        with pytest.raises(ConvgenError, match=said):
            nc.Conv2d(**{"in_channels": 4, "out_channels": 8, "kernel_size": 3} | wrong)
    with pytest.raises(ConvgenError, match="x is of type NoneType: expected a NumPy"):
        nc.Conv2d(4, 8, 3, strategy=nc.CONV2D_WINOGRAD)(None)
    with pytest.raises(ConvgenError, match="grad_output is of type list: expected a NumPy"):
        nc.Conv2d(2, 8, 3).backward(x, [1.0])


def test_the_bias_s_gradient_is_summed_in_float32():
    layer = nc.Conv2d(1, 2, 1)
    layer.weight, layer.bias = layer.weight.astype(np.float16), layer.bias.astype(np.float16)
    ones = np.ones((4096, 1, 1, 1), np.float16)
    _, grad_weight, grad_bias = layer.backward(ones, np.broadcast_to(ones, (4096, 2, 1, 1)))
    assert grad_bias.dtype == np.float16
    assert grad_bias.tolist() == grad_weight.ravel().tolist() == [4096, 4096]
