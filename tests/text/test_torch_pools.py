"""Max pooling with large windows, one axis at a time, on a CPU."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from convgen.torch.network.pools import split_pools  # noqa: E402
from convgen.torch.network.trace import flat_graph, is_call  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("torch_draws")
TF = torch.nn.functional
POOLS = {2: TF.max_pool2d, 3: TF.max_pool3d}
OPERATORS = (torch.ops.aten.max_pool2d_with_indices.default, torch.ops.aten.max_pool3d_with_indices.default)


def rewritten(function, x):
    """The graph of a function of one tensor with its pools split."""
    made = flat_graph(function, [x])
    split_pools(made.graph)
    made.recompile()
    return made


def windows(made) -> list[list[int]]:
    return [list(node.args[1]) for node in made.graph.nodes if is_call(node, *OPERATORS)]


@st.composite
def axes(draw):
    """(extent, window, stride, padding, dilation) of an axis, with a pixel of output."""
    window, dilation = draw(st.integers(1, 7)), draw(st.integers(1, 2))
    padding = draw(st.integers(0, window // 2))
    least = max(1, dilation * (window - 1) + 1 - 2 * padding)
    return draw(st.integers(least, least + 5)), window, draw(st.integers(1, 3)), padding, dilation


@settings(max_examples=25)
@given(st.tuples(axes(), axes()) | st.tuples(axes(), axes(), axes()), st.booleans(), st.booleans())
def test_maxima_are_the_same(geometry, ceil, channels_last):
    """Bit for bit, with NaN and -inf among the pixels."""
    extents, *numbers = zip(*geometry, strict=True)
    rank = len(extents)
    x = torch.randn(2, 3, *extents)
    x.view(-1)[::11], x.view(-1)[::13] = -math.inf, math.nan
    if channels_last:
        x = x.contiguous(memory_format={2: torch.channels_last, 3: torch.channels_last_3d}[rank])

    def pooled(x):
        return (POOLS[rank](x, *numbers, ceil_mode=ceil),)

    made = rewritten(pooled, x)
    torch.testing.assert_close(made(x)[0], pooled(x)[0], rtol=0, atol=0, equal_nan=True)
    assert made(x)[0].stride() == pooled(x)[0].stride()
    several = sum(window > 1 for window in numbers[0]) > 1
    for window in windows(made):
        assert math.prod(window) < 25 or not several


@pytest.mark.parametrize(
    ("arguments", "rank", "found"),
    [
        ({"kernel_size": 5, "stride": 1, "padding": 2}, 2, [[1, 5], [5, 1]]),  # of YOLO's SPPF
        ({"kernel_size": 3, "stride": 1, "padding": 1}, 3, [[1, 3, 3], [3, 1, 1]]),  # of I3D
        ({"kernel_size": (2, 7, 7), "padding": 1}, 3, [[1, 1, 7], [2, 7, 1]]),
        ({"kernel_size": 3, "stride": 2, "padding": 1}, 2, [[3, 3]]),  # Inductor writes it out
        ({"kernel_size": (1, 30)}, 2, [[1, 30]]),
    ],
)
def test_axes_are_taken_together_while_windows_are_small(arguments, rank, found):
    x = torch.randn(1, 2, *[32] * rank)
    assert windows(rewritten(lambda x: (POOLS[rank](x, **arguments),), x)) == found


def test_where_maxima_are_is_kept():
    """Unpooling reads that."""
    x = torch.randn(1, 2, 10, 10)
    made = rewritten(lambda x: tuple(TF.max_pool2d(x, 5, return_indices=True)), x)
    assert windows(made) == [[5, 5]]
    for found, expected in zip(made(x), TF.max_pool2d(x, 5, return_indices=True), strict=True):
        assert torch.equal(found, expected)
