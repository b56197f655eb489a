"""convgen.functional on a GPU, on arrays of CuPy and torch, beside a float64 reference."""

from __future__ import annotations

import cupy
import numpy as np
import pytest

from convgen import functional as F
from convgen.functional import call


@pytest.fixture
def by_reference(monkeypatch):
    """The same call on the host's arrays, by the reference."""
    monkeypatch.setattr(call, "EMULATED", -1)
    return lambda function, *arrays, **keywords: function(*map(cupy.asnumpy, arrays), **keywords)


@pytest.mark.parametrize("channels_last", [False, True])
def test_cupys_arrays_are_computed_where_they_are(by_reference, rng, channels_last):
    x, w, b = (cupy.asarray(rng.standard_normal(s), dtype="f2") for s in ((2, 16, 9, 10), (32, 16, 3, 3), (32,)))
    if channels_last:
        x = cupy.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    found = F.conv2d(x, w, b, stride=2, padding=1, activation="relu")
    expected = by_reference(F.conv2d, x, w, b, stride=2, padding=1, activation="relu")
    cupy.testing.assert_allclose(found.astype("f4"), expected.astype("f4"), rtol=2e-3, atol=1e-2)
    assert found.strides[1 if channels_last else 3] == 2


@pytest.mark.parametrize("n, c, taps", [(1, 64, 3), (4, 96, 3), (4, 64, 1), (1, 96, 1)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1])
def test_the_tutorial_s_function(by_reference, rng, n, c, taps, stride, padding):
    x, w = (cupy.asarray(rng.standard_normal(s), dtype="f2") for s in ((n, 16, 16, c), (c, taps, taps, c)))
    found = F.conv2d_tma_im2col(x, w, stride=stride, padding=padding)
    expected = by_reference(F.conv2d_tma_im2col, x, w, stride=stride, padding=padding)
    cupy.testing.assert_allclose(found.astype("f4"), expected.astype("f4"), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gradients_and_transposed_convolutions(by_reference, rng, rank):
    x, w = (cupy.asarray(rng.standard_normal(s), dtype="f2") for s in ((2, 8, *[6] * rank), (16, 8, *[3] * rank)))
    y = cupy.asarray(rng.standard_normal((2, 16, *[3] * rank)), dtype="f2")
    parameters = dict(stride=2, padding=1)
    calls = [
        (getattr(F, f"conv{rank}d_input"), (w, y), lambda f: lambda w, y, **k: f((2, 8, *[6] * rank), w, y, **k)),
        (getattr(F, f"conv{rank}d_weight"), (x, y), lambda f: lambda x, y, **k: f(x, (16, 8, *[3] * rank), y, **k)),
        (getattr(F, f"conv_transpose{rank}d"), (y, w), lambda f: lambda y, w, **k: f(y, w, output_padding=1, **k)),
    ]
    for function, arrays, bound in calls:
        found, expected = bound(function)(*arrays, **parameters), by_reference(bound(function), *arrays, **parameters)
        cupy.testing.assert_allclose(found.astype("f4"), expected.astype("f4"), rtol=2e-3, atol=5e-2)


def test_torchs_tensors_on_the_current_stream(torch_draws):
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 16, 9, 10, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    w = torch.randn(32, 16, 3, 3, device="cuda", dtype=torch.float16)
    with torch.cuda.stream(torch.cuda.Stream()):
        found = F.conv2d(x, w, padding=1)
        torch.cuda.current_stream().synchronize()
    expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    assert (found.double() - expected).norm() < 1e-3 * expected.norm()
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_arrays_in_another_place_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="weight is of type torch"):
        F.conv2d(torch.zeros(1, 3, 5, 5, device="cuda"), torch.zeros(4, 3, 3, 3))
    with pytest.raises(ValueError, match="one library"):
        F.conv2d(cupy.zeros((1, 3, 5, 5), "f4"), np.zeros((4, 3, 3, 3), "f4"))
