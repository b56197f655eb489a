"""Filters that a BatchNorm is folded into: rounded to 16 bits so that each keeps its sum."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen.torch.network import rounding  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn = torch.nn
HALVES = (torch.float16, torch.bfloat16)
INF = float("inf")


def rounded(exact, dtype, axis=0):
    return torch.ops.convgen.rounded_filters(exact, dtype, axis)


def beside(exact, dtype):
    """The 16-bit numbers beside exact ones: the largest that is no larger, the smallest that is no smaller."""
    near = exact.to(dtype)
    step = {side: torch.nextafter(near, torch.full_like(near, side)) for side in (-INF, INF)}
    return torch.where(near <= exact, near, step[-INF]), torch.where(near >= exact, near, step[INF])


def error_of_sums(made, exact):
    return (made.double() - exact.double()).flatten(1).sum(1).abs()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 200), st.sampled_from([1e-6, 1e-2, 1.0, 1e3]))
def test_each_weight_is_a_neighbor_and_each_sum_is_exact_to_half_a_unit(wide, dtype, seed, k, c, scale):
    exact = torch.randn(k, c, 3, generator=torch.Generator().manual_seed(seed), dtype=wide) * scale
    made = rounded(exact, dtype)
    low, high = beside(exact, dtype)
    assert made.dtype == dtype and ((made == low) | (made == high)).all()
    error, nearest = error_of_sums(made, exact), error_of_sums(exact.to(dtype), exact)
    unit = (high.double() - low.double()).flatten(1).amax(1)
    assert (error <= nearest).all()
    assert (error <= torch.minimum(nearest, unit / 2) + nearest * 1e-9).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_what_has_no_two_neighbors_is_rounded_to_the_nearest(dtype):
    most = torch.finfo(dtype).max
    exact = torch.tensor([[INF, 1.0001], [-INF, 1.0001], [float("nan"), 1.0001], [0.0, -0.0], [most, most]])
    exact = torch.cat([exact, torch.tensor([[most * (1 + 2**-13), 0.0], [2**-140, -(2**-140)]])])
    torch.testing.assert_close(rounded(exact, dtype), exact.to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("axis", [0, 1])
def test_filters_lie_along_their_axis_and_stay_as_they_lie(axis):
    exact = torch.randn(6, 5, 3, 2).to(memory_format=torch.channels_last)
    made = rounded(exact, torch.float16, axis)
    assert made.stride() == exact.stride() and made.shape == exact.shape
    of_each = torch.cat([rounded(part, torch.float16, axis) for part in exact.split(1, axis)], axis)
    assert torch.equal(made, of_each)
    assert rounded(torch.empty(0, 3, 1), torch.float16).shape == (0, 3, 1)


def test_large_filters_are_rounded_some_at_a_time(monkeypatch):
    exact = torch.randn(7, 11, 3)
    whole = rounded(exact, torch.float16)
    monkeypatch.setattr(rounding, "_AT_ONCE", 70)
    assert torch.equal(rounded(exact, torch.float16), whole)


def test_no_floats_are_summed_so_far():
    """torch.use_deterministic_algorithms refuses cumsum of floats on a GPU."""
    summed = []

    class Listens(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "cumsum" in str(function):
                summed.append(args[0].dtype)
            return function(*args, **(kwargs or {}))

    with Listens():
        rounding._with_sums(torch.randn(3, 40), torch.float16)
    assert summed == [torch.int64]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_folded_batch_norm_shifts_no_mean(dtype, transposed, monkeypatch):
    """Activations behind a ReLU have means that are not 0: errors of nearest weights shift all pixels alike."""
    layer = nn.ConvTranspose2d if transposed else nn.Conv2d
    model = nn.Sequential(layer(128, 64, 1, bias=False), nn.BatchNorm2d(64)).eval()
    nn.init.uniform_(model[1].running_var, 0.005, 0.5)
    model, x = model.to(dtype), torch.rand(2, 128, 16, 16).to(dtype)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double()).mean((2, 3))
        ours = ct.optimize(model, x, inductor=False)(x).double().mean((2, 3))
        monkeypatch.setattr(rounding, "_with_sums", lambda weights, dtype: weights.to(dtype))
        nearest = ct.optimize(model, x, inductor=False)(x).double().mean((2, 3))
    assert (ours - exact).norm() < 0.5 * (nearest - exact).norm()
