"""Upsampling folded into the convolution behind it, and transposed convolutions of networks, on a CPU."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from nearness import near  # noqa: E402

import convgen.torch as ct  # noqa: E402
from convgen.torch.launch import Served, recipe  # noqa: E402
from convgen.torch.network import choice  # noqa: E402
from convgen.torch.network.chains import chain_of  # noqa: E402
from convgen.torch.network.trace import flat_graph, is_call, value_of  # noqa: E402
from convgen.torch.network.upsampling import folded  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn, TF = torch.nn, torch.nn.functional
CONVOLUTIONS = {1: TF.conv1d, 2: TF.conv2d, 3: TF.conv3d}


def integers(*shape: int):
    return torch.randint(-3, 4, shape).float()


# ---- upsampling ---------------------------------------------------------------------------------


@st.composite
def axes(draw):
    """(extent, factor, taps, (low, high)) of an axis with a pixel of output."""
    extent, factor, taps = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    low, high = (draw(st.integers(0, taps - 1)) for _ in range(2))
    return extent, factor, max(1, min(taps, extent * factor + low + high)), (low, high)


@settings(max_examples=20)
@given(
    st.lists(axes(), min_size=1, max_size=2) | st.tuples(axes(), axes(), axes()),
    st.sampled_from(["nearest", "nearest-exact"]),
    st.integers(1, 2),
)
def test_a_transposed_convolution_is_equal(geometry, mode, groups):
    """Of whole numbers, in float32, to the definition in float64: bit for bit, at the edges, too."""
    extents, factors, taps, pads = zip(*geometry, strict=True)
    pads = tuple((min(low, r - 1), min(high, r - 1)) for (low, high), r in zip(pads, taps, strict=True))
    pixels = [e * f for e, f in zip(extents, factors, strict=True)]
    amounts = [amount for pair in reversed(pads) for amount in pair]

    def function(x, w):
        up = TF.interpolate(x, pixels, mode=mode)
        return (CONVOLUTIONS[len(taps)](TF.pad(up, amounts), w, groups=groups),)

    tensors = integers(2, 4, *extents), integers(6, 4 // groups, *taps)
    if any(p + low + high < r for p, (low, high), r in zip(pixels, pads, taps, strict=True)):
        return
    made = flat_graph(function, tensors)
    (chain,) = [found for node in made.graph.nodes if (found := chain_of(node))]
    way = folded(chain)
    assert way is not None and tuple(way.stride) == factors
    assert math.prod(value_of(way.w).shape[2:]) == math.prod(r + f - 1 for r, f in zip(taps, factors, strict=True))
    way.fuse(made.graph, way.ends[-1])
    made.recompile()
    (expected,) = function(*(t.double() for t in tensors))
    (found,) = made(*tensors)
    assert torch.equal(found.double(), expected)
    # the spec that a GPU would get has these extents, too
    assert recipe(*choice._values(way, way.ends[-1])).result.shape == tuple(expected.shape)


class Up(nn.Module):
    """A decoder's: upsampled, convolved, normalized, added to."""

    def __init__(self, c: int, **options) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, **{"padding": 1, **options})
        self.norm = nn.BatchNorm2d(c)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)
        nn.init.uniform_(self.norm.weight, 0.5, 2)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(TF.interpolate(x, scale_factor=2))))
        return y + TF.interpolate(x, scale_factor=2, mode="bilinear")


@pytest.mark.parametrize("options", [{}, {"groups": 8}, {"padding_mode": "zeros", "padding": "same"}])
def test_a_decoder_is_right_and_follows_its_weights(options):
    model, x = nn.Sequential(Up(8, **options), Up(8, **options)).eval(), torch.randn(2, 8, 5, 6)
    fast = ct.optimize(model, x, inductor=False)
    assert [row.fused for row in fast.report] == ["upsampling folded; add relu add"] * 2
    with torch.no_grad():
        near(fast(x), model(x))
        model[0].conv.weight.mul_(-2)
        model[1].norm.running_var.add_(1)
        near(fast(x), model(x))


def test_upsamplings_are_known_whatever_the_default_device():
    """A GPU, say, where the rest of a program makes its tensors."""
    model, x = Up(8).eval(), torch.randn(2, 8, 5, 6)
    with torch.device("meta"):
        fast = ct.optimize(model, x, inductor=False)
    assert [row.fused for row in fast.report] == ["upsampling folded; add relu add"]
    with torch.no_grad():
        near(fast(x), model(x))


HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_loses_no_more_than_torch_does(dtype):
    model, x = Up(16).eval().to(dtype), torch.randn(4, 16, 9, 9).to(dtype)
    exact = Up(16).eval().double()
    exact.load_state_dict(model.state_dict())
    fast = ct.optimize(model, x, inductor=False)
    assert fast.report.rows[0].fused == "upsampling folded; add relu add"
    with torch.no_grad():
        expected = exact(x.double())
        ours, theirs = (m(x).double() - expected for m in (fast, model))
    assert ours.norm() < 1.5 * theirs.norm()


@pytest.mark.parametrize("dtype", HALVES)
def test_filters_are_summed_before_they_are_rounded(dtype):
    """Those that a BatchNorm was folded into, too: one rounding, not two."""

    def function(x, w):
        return (TF.conv2d(TF.interpolate(x, scale_factor=2), (w * 0.7).to(x.dtype), padding=1),)

    x, w = torch.randn(2, 8, 5, 6).to(dtype), torch.randn(16, 8, 3, 3)
    made = flat_graph(function, [x, w])
    (chain,) = [found for node in made.graph.nodes if (found := chain_of(node))]
    made.graph.output_node().args = ((folded(chain).w,),)
    made.recompile()
    ones = torch.ones(8, 1, 2, 2, dtype=torch.float64)
    expected = TF.conv2d((w * 0.7).double().flip(2, 3), ones, padding=1, groups=8).transpose(0, 1)
    error = (made(x, w)[0].double() - expected).abs()
    assert (error <= expected.abs() * torch.finfo(dtype).eps / 2 * (1 + 1e-4) + 2**-25).all()


OTHERS = {
    "another reader": lambda x, w: TF.conv2d(up := TF.interpolate(x, scale_factor=2), w, padding=1) + up,
    "stride": lambda x, w: TF.conv2d(TF.interpolate(x, scale_factor=2), w, stride=2),
    "dilation": lambda x, w: TF.conv2d(TF.interpolate(x, scale_factor=2), w, dilation=2),
    "reflection": lambda x, w: TF.conv2d(TF.pad(TF.interpolate(x, scale_factor=2), (1, 1, 1, 1), "reflect"), w),
    "more padding than taps": lambda x, w: TF.conv2d(TF.interpolate(x, scale_factor=2), w, padding=3),
    "no whole number": lambda x, w: TF.conv2d(TF.interpolate(x, size=(7, 12)), w),
    "twice the extents, other pixels": lambda x, w: TF.conv2d(
        x[:, :, (torch.arange(10) * 0.4).long()[:, None], torch.arange(12) // 2], w
    ),
    "bilinear": lambda x, w: TF.conv2d(TF.interpolate(x, scale_factor=2, mode="bilinear"), w),
    "a rounding": lambda x, w: TF.conv2d(TF.interpolate(x, scale_factor=2).half().float(), w),
    "an index of one axis": lambda x, w: TF.conv2d(x[:, :, torch.tensor([0, 0, 1, 1])], w),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_not_such_an_upsampling_stays(kind):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4, 3, 3))

        def forward(self, x):
            return torch.tanh(OTHERS[kind](x, self.weight))

    model, x = Model().eval(), torch.randn(2, 4, 5, 6)
    fast = ct.optimize(model, x, inductor=False)
    near(fast(x), model(x).detach())
    assert "upsampling" not in fast.report.rows[0].fused


class Times:
    """In the place of the timer: microseconds of the transposed way, the plain one and aten's."""

    def __init__(self, folded: float, plain: float, aten: float) -> None:
        self._folded, self._plain, self._aten = folded, plain, aten

    def fused(self, arguments, left, source=None, opens=False):
        assert (source is None) == arguments[-1] and not opens  # transposed: nothing is upsampled before it
        return self._folded if arguments[-1] else self._plain

    def aten(self, arguments, left, linear=False, source=None, opens=False):
        assert tuple(source.shape) == (2, 4, 5, 6) and tuple(arguments[0].shape) == (2, 4, 10, 12)
        return self._aten


@pytest.mark.parametrize(
    ("times", "fused"), [((5, 8, 9), "upsampling folded; relu"), ((8, 5, 9), "relu"), ((8, 9, 5), "")]
)
def test_the_fastest_way_is_taken(monkeypatch, times, fused):
    def function(x, w):
        return (torch.relu(TF.conv2d(TF.interpolate(x, scale_factor=2), w, padding=1)),)

    tensors = torch.randn(2, 4, 5, 6).half(), torch.randn(4, 4, 3, 3).half()
    made = flat_graph(function, tensors)
    monkeypatch.setattr(choice, "served", lambda *_, **__: Served(lambda *_: None, kernel="a kernel"))
    measured = choice.Measured(measure=False)
    measured._timer = Times(*times)
    (node,) = [n for n in made.graph.nodes if is_call(n, torch.ops.aten.convolution.default)]
    found = measured.choose(chain_of(node), "layer")
    assert (found.row.fused, found.row.kernel) == (fused, "a kernel" if fused else "aten")
    if found.end is not None:
        found.chain.fuse(made.graph, found.end)
        made.recompile()
    torch.testing.assert_close(made(*tensors)[0], function(*tensors)[0], rtol=1e-2, atol=1e-2)


# ---- transposed convolutions --------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2, "padding": 1}, {"stride": 2, "padding": 1, "output_padding": 1}, {"stride": (2, 3), "groups": 2},
        {"dilation": 3, "stride": 2, "output_padding": 2}, {"stride": 3, "output_padding": 1, "padding": (0, 2)},
    ],
)  # fmt: skip
def test_transposed_convolutions_are_fused(options):
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, **options), nn.BatchNorm2d(6), nn.SiLU()).eval()
    nn.init.uniform_(model[1].running_var, 0.5, 2)
    x = torch.randn(2, 4, 5, 6)
    fast = ct.optimize(model, x, inductor=False)
    near(fast(x), model(x).detach())
    assert fast.report.rows[0].fused == ("add mul add silu" if options.get("groups") else "add silu")
    tensors, geometry = (x, model[0].weight.detach()), [model[0].stride, model[0].padding, model[0].dilation]
    (pixels,) = flat_graph(lambda x, w: (TF.conv_transpose2d(x, w, **options),), tensors)(*tensors)
    highs = [p - more for p, more in zip(model[0].padding, model[0].output_padding, strict=True)]
    geometry[1] = [*model[0].padding, *highs]
    made = torch.ops.convgen.fused_conv(*tensors, [], "", *geometry, model[0].groups, "zeros", True)
    near(made, pixels)


def test_a_change_of_type_ends_no_chain():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 6, 3)

        def forward(self, x):
            return torch.sigmoid(self.conv(x).float()).half()

    model, x = Model().eval().half(), torch.randn(2, 4, 5, 6).half()
    fast = ct.optimize(model, x, inductor=False)
    torch.testing.assert_close(fast(x), model(x).detach(), rtol=2e-3, atol=2e-3)
    assert fast.report.rows[0].fused == "add sigmoid"
