"""convgen.functional on NumPy's arrays runs the generated source in the emulator."""

from __future__ import annotations

import numpy as np
import pytest

from convgen import functional as F
from convgen import netcl
from convgen.functional import call

RANDOM = np.random.default_rng()


@pytest.fixture(autouse=True)
def random(seed, monkeypatch):
    """Each test draws the same arrays, whichever tests came before it."""
    monkeypatch.setitem(globals(), "RANDOM", np.random.default_rng(seed))


def array(*shape: int) -> np.ndarray:
    return RANDOM.integers(-4, 5, shape).astype(np.float16)


@pytest.fixture(autouse=True)
def _no_reference(monkeypatch):
    """Results come from the emulator alone."""
    monkeypatch.setattr(call, "_reference", None)


def test_a_convolution_with_bias_residual_and_activation():
    x, w, b, z = array(1, 8, 5, 6), array(16, 8, 3, 3), array(16), array(1, 16, 3, 4)
    found = F.conv2d(x, w, b, activation="relu", residual=z)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(int), (3, 3), (2, 3))
    sums = np.einsum("nchwrs,kcrs->nkhw", windows, w.astype(int)) + b.astype(int)[:, None, None] + z.astype(int)
    np.testing.assert_array_equal(found, np.maximum(sums, 0).astype(np.float16))


@pytest.mark.parametrize("channels", [slice(3, 67), slice(4, 68), slice(8, 72)])
def test_a_slice_that_begins_between_vectors_is_copied(channels):
    whole = array(1, 4, 4, 96).transpose(0, 3, 1, 2)
    x, w = whole[:, channels], array(32, 64, 1, 1)
    np.testing.assert_array_equal(F.conv2d(x, w), F.conv2d(x.copy(), w))


@pytest.mark.parametrize("images, filters", [(1, 0), (0, 1), (1, 1)])
def test_packed_arrays_may_begin_between_vectors(images, filters):
    """245 and 45 elements of 2 bytes behind an aligned address."""
    x, w = array(3, 5, 7, 7)[images:], array(9, 5, 3, 3)[filters:]
    aligned = F.conv2d(x.copy(), w.copy())
    np.testing.assert_array_equal(F.conv2d(x, w), aligned)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_a_residual_may_be_one_value(shape):
    x, w, z = array(1, 4, 6), array(8, 4, 3), array(*shape) if shape else np.array(3, np.float16)
    np.testing.assert_array_equal(F.conv1d(x, w, residual=z), F.conv1d(x, w) + z)


def test_gradients_are_the_adjoints_of_the_convolution():
    x, w = array(2, 4, 6), array(8, 4, 3)
    y = F.conv1d(x, w, stride=2, padding=1)
    g = array(*y.shape)
    dx, dw = F.conv1d_input(x.shape, w, g, 2, 1), F.conv1d_weight(x, w.shape, g, 2, 1)
    inner = np.vdot(y.astype(float), g.astype(float))
    assert inner == np.vdot(dx.astype(float), x.astype(float)) == np.vdot(dw.astype(float), w.astype(float))


def test_im2col_and_col2im_are_adjoints():
    x = array(1, 2, 5, 4)
    m = F.im2col(x, 3, padding=1)
    assert m.shape == (1, 18, 20)
    g = array(*m.shape)
    back = F.col2im(g, (5, 4), 3, padding=1)
    assert np.vdot(m.astype(float), g.astype(float)) == np.vdot(back.astype(float), x.astype(float))


@pytest.mark.parametrize("c, stride, padding", [(64, 1, 1), (96, 2, 0)])
def test_the_tutorial_s_function(c, stride, padding, monkeypatch):
    """Triton's "TMA im2col mode and Convolution via Implicit GEMM": two of its cases, of which 96 leaves half a box."""
    monkeypatch.setattr(call, "EMULATED", 1 << 24)
    x, w = array(1, 16, 16, c), array(c, 3, 3, c)
    found = F.conv2d_tma_im2col(x, w, stride, padding)
    padded = np.pad(x.astype(int), ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::stride, ::stride]
    np.testing.assert_array_equal(found, np.einsum("npqcrs,krsc->npqk", windows, w.astype(int)).astype(np.float16))


def test_netcl_s_layouts():
    x = array(2, 3, 5, 4).astype(np.float32)
    cols = netcl.im2col(x, 3, 3, stride=1, padding=1)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    np.testing.assert_array_equal(cols, windows.transpose(0, 2, 3, 1, 4, 5).reshape(2 * 5 * 4, 27))
    g = array(*cols.shape).astype(np.float32)
    assert np.vdot(netcl.col2im(g, x.shape, 3, 3, padding=1), x) == np.vdot(g, cols)
