"""Gradients of max pooling with overlapping windows, one sum for each phase of the pixels, on a CPU."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from torch._inductor import compile_fx  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import convgen.torch as ct  # noqa: E402
from convgen.torch.network.pool_gradients import write_by_phases  # noqa: E402
from convgen.torch.network.trace import is_call  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("torch_draws")
TF = torch.nn.functional
A = torch.ops.aten
PRIMS = torch.ops.prims
LAST = {"memory_format": torch.channels_last}


def rewritten(x, gradient, windows, strides, padding, ceil):
    """The graph of the gradient, as Inductor has it, by phases."""
    numbers = windows, strides, padding, (1, 1)

    def of_input(x, gradient):
        _, places = PRIMS._low_memory_max_pool_with_offsets(x, *numbers, ceil)
        indices = PRIMS._low_memory_max_pool_offsets_to_indices(places, windows, x.shape[2:], *numbers[1:])
        return A.max_pool2d_with_indices_backward(gradient, x, *numbers, ceil, indices)

    made = make_fx(of_input, tracing_mode="fake")(x, gradient)
    write_by_phases(made.graph)
    made.recompile()
    return made


def is_by_phases(made) -> bool:
    return any(is_call(node, torch.ops.convgen.interleaved.default) for node in made.graph.nodes)


@st.composite
def axes(draw):
    """(extent, window, stride, padding) of an axis, with a pixel of output."""
    window = draw(st.integers(1, 6))
    padding = draw(st.integers(0, window // 2))
    return max(1, window - 2 * padding) + draw(st.integers(0, 8)), window, draw(st.integers(1, 4)), padding


@settings(max_examples=60)
@given(st.tuples(axes(), axes()), st.booleans(), st.sampled_from([torch.float32, torch.float64]))
def test_gradients_are_atens(geometry, ceil, dtype):
    """Bit for bit, where sums are exact, with equal pixels, NaN and -inf; in aten's layout."""
    extents, *numbers = zip(*geometry, strict=True)
    x = torch.randint(-3, 4, (2, 3, *extents)).to(dtype)
    x.view(-1)[::11], x.view(-1)[::13] = -torch.inf, torch.nan
    x = x.contiguous(**LAST).requires_grad_()
    pooled = TF.max_pool2d(x, *numbers, ceil_mode=ceil)
    gradient = torch.randint(-9, 10, pooled.shape).to(dtype).contiguous(**LAST)
    gradient.permute(0, 2, 3, 1).view(-1)[::7] = torch.inf
    pooled.backward(gradient)
    made = rewritten(x.detach(), gradient, *numbers, ceil)
    found = made(x.detach(), gradient)
    torch.testing.assert_close(found, x.grad, rtol=0, atol=0, equal_nan=True)
    assert found.is_contiguous(**LAST)
    windows, strides, _ = numbers
    overlap = any(window > stride for window, stride in zip(windows, strides, strict=True))
    assert is_by_phases(made) == (overlap and max(strides) > 1)


def test_other_layouts_are_inductors():
    x, gradient = torch.randn(1, 4, 8, 8), torch.randn(1, 4, 4, 4)
    assert not is_by_phases(rewritten(x, gradient, (3, 3), (2, 2), (1, 1), False))


@pytest.mark.costly
def test_a_compiled_step_has_them(monkeypatch):
    graphs = []
    inner = compile_fx.compile_fx_inner
    monkeypatch.setattr(compile_fx, "compile_fx_inner", lambda gm, *a, **k: graphs.append(gm) or inner(gm, *a, **k))
    pool = torch.nn.MaxPool2d(3, 2, 1)
    x, again = (torch.arange(2 * 4 * 9 * 9.0).view(2, 4, 9, 9).sin().contiguous(**LAST).requires_grad_() for _ in "12")
    pool(x * 2).square().sum().backward()
    torch.compile(lambda x: pool(x * 2), backend=ct.compile_graph)(again).square().sum().backward()
    torch.testing.assert_close(again.grad, x.grad)
    assert again.grad.stride() == x.grad.stride()
    assert any(map(is_by_phases, graphs))
