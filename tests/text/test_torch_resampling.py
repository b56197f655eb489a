"""Interpolation moved behind convolutions of one tap, on a CPU."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen.torch.network.constants import constant_nodes  # noqa: E402
from convgen.torch.network.resampling import move_interpolation  # noqa: E402
from convgen.torch.network.trace import flat_graph, is_call, placeholders, value_of  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
TF = torch.nn.functional
CONVOLUTIONS = {1: TF.conv1d, 2: TF.conv2d, 3: TF.conv3d}
MODES = {1: ["nearest", "linear"], 2: ["nearest", "bilinear", "bicubic"], 3: ["nearest-exact", "trilinear"]}


def rewritten(function, weights, inputs):
    """The graph of a function of these tensors, of which the first are weights, with interpolation moved."""
    made = flat_graph(function, [*weights, *inputs])
    move_interpolation(made.graph, constant_nodes(made.graph, placeholders(made.graph)[: len(weights)]))
    made.recompile()
    return made


def pixels(made) -> list[int]:
    """Of the image that each convolution takes."""
    nodes = [node for node in made.graph.nodes if is_call(node, torch.ops.aten.convolution.default)]
    return [math.prod(value_of(node.args[0]).shape[2:]) for node in nodes]


@st.composite
def problems(draw):
    """(extents of the result, those of each part, mode, whether corners are aligned, whether there is a bias)."""
    rank = draw(st.integers(1, 3))
    extents = draw(st.tuples(*[st.integers(2, 7)] * rank))
    part = st.tuples(*[st.integers(1, extent) for extent in extents])
    mode = draw(st.sampled_from(MODES[rank]))
    return extents, draw(st.lists(part, min_size=1, max_size=3)), mode, draw(st.booleans()), draw(st.booleans())


@settings(max_examples=25)
@given(problems())
def test_a_convolution_takes_the_pixels_that_there_are(problem):
    extents, parts, mode, corners, biased = problem
    align = {} if mode.startswith("nearest") else {"align_corners": corners}
    images = [torch.randn(2, 6, *part, dtype=torch.float64) for part in parts]
    w = torch.randn(3, 6 * len(parts), *[1] * len(extents), dtype=torch.float64)
    bias = torch.randn(3, dtype=torch.float64) if biased else None

    def function(w, *given):
        bias, images = (given[0], given[1:]) if biased else (None, given)
        ups = [TF.interpolate(image, extents, mode=mode, **align) for image in images]
        return (CONVOLUTIONS[len(extents)](torch.cat(ups, 1) if len(ups) > 1 else ups[0], w, bias).relu(),)

    given_tensors = [w, bias] if biased else [w]
    made = rewritten(function, given_tensors, images)
    (expected,), (found,) = function(*given_tensors, *images), made(*given_tensors, *images)
    # torch's own interpolation, and what it is traced to, differ by roundings of float32
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    smaller = [math.prod(part) for part in parts if math.prod(part) < math.prod(extents)]
    whole = all(extent % n == 0 for extent, n in zip(extents, parts[0], strict=True))
    if len(parts) == 1 and whole and mode.startswith("nearest"):  # it is folded
        assert pixels(made) == [math.prod(extents)]
    elif all(part == extents or math.prod(part) < math.prod(extents) for part in parts) and smaller:
        rest = [math.prod(extents)] if len(smaller) < len(parts) else []
        assert sorted(pixels(made)) == sorted([*smaller, *rest])


def double(x):
    return TF.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def drawn(*shape):
    return torch.randn(shape)


def biased_image(w, x):
    """An image that is no multiple of pixels: nothing to move."""
    return (TF.conv2d(double(x) + 1, w),)


def read_twice(w, x):
    y = double(x)
    return TF.conv2d(y, w), y


def three_taps(w, x):
    return (TF.conv2d(double(x), w.expand(-1, -1, 3, 3)),)


def halved(w, x):
    return (TF.conv2d(TF.interpolate(x, scale_factor=0.5, mode="bilinear"), w),)


def weighted_by_channel(w, x):
    return (TF.conv2d(double(x) * torch.arange(8.0).view(8, 1, 1), w),)


def of_two(w, x):
    """One image of two: each may be moved by itself, and neither is by both."""
    return (TF.conv2d(double(x) + double(x.relu()), w),)


@pytest.mark.parametrize("function", [biased_image, read_twice, three_taps, halved, weighted_by_channel, of_two])
def test_what_is_not_moved(function):
    w, x = drawn(4, 8, 1, 1), drawn(1, 8, 6, 6)
    made = rewritten(function, [w], [x])
    assert pixels(made) == [4 * 36] if function not in (halved, three_taps) else 36 not in pixels(made)
    for found, expected in zip(made(w, x), function(w, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("k", "moved"), [(4, True), (5, False)])
def test_at_most_half_is_left_to_write(k, moved):
    w, x = drawn(k, 8, 1, 1), drawn(1, 8, 6, 6)
    assert pixels(rewritten(lambda w, x: (TF.conv2d(double(x), w),), [w], [x])) == [36 if moved else 144]


def test_filters_that_are_computed_stay():
    """Of each image: they would be cut at each call."""
    w, x = drawn(4, 8, 1, 1), drawn(1, 8, 6, 6)
    made = rewritten(lambda w, x: (TF.conv2d(double(x), w * x.mean()),), [w], [x])
    assert pixels(made) == [144]


def test_the_report_says_so():
    class Decoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(16, 4, 1)

        def forward(self, x):
            x = self.first(x)
            return self.last(torch.cat([x, double(x[..., ::2, ::2])], 1)).relu()

    model, x = Decoder().eval(), drawn(1, 3, 8, 8)
    fast = ct.optimize(model, x, inductor=False)
    assert fast.report.notes[0] == "1 interpolation is moved behind 1x1 convolutions"
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


class Gated(torch.nn.Module):
    """A residual block with squeeze and excitation: much lies behind its gate."""

    def __init__(self):
        super().__init__()
        self.first, self.gate, self.last = (torch.nn.Conv2d(4, 4, 1) for _ in range(3))

    def forward(self, x):
        y = self.first(x).relu()
        return x + self.last(y * self.gate(y.mean((2, 3), keepdim=True)).sigmoid())


def test_a_deep_network_is_looked_through_once():
    """The work does not double from block to block: of forty, it would not end."""
    blocks = torch.nn.Sequential(*[Gated() for _ in range(40)]).eval()
    weights = dict(blocks.named_parameters())

    def function(*given):
        return (torch.func.functional_call(blocks, dict(zip(weights, given, strict=False)), given[-1]),)

    rewritten(function, [weight.detach() for weight in weights.values()], [drawn(1, 4, 4, 4)])
