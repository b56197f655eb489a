"""Networks as people write them, on a CPU: what is fused of each, and what may happen to a model that was optimized."""

from __future__ import annotations

import contextlib
import copy
import gc
import types
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

from nearness import near  # noqa: E402

import convgen.torch as ct  # noqa: E402
from convgen import ConvgenError  # noqa: E402
from convgen.torch import switches  # noqa: E402
from convgen.torch.launch import Served  # noqa: E402
from convgen.torch.network import choice, prepare  # noqa: E402
from convgen.torch.network.halves import split_in_halves  # noqa: E402
from convgen.torch.network.layouts import check_strides, keep_strides  # noqa: E402
from convgen.torch.network.trace import faked, flat_graph, value_of  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn, TF = torch.nn, torch.nn.functional


def fast(model: nn.Module, x: torch.Tensor) -> ct.Optimized:
    return ct.optimize(model, x, inductor=False)


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()


# ---- what is fused --------------------------------------------------------------------------------


class Causal(nn.Module):
    """A block of a temporal convolutional network, which pads both ends and drops the last results."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(4, 8, 3, padding=4, dilation=2), nn.Conv1d(8, 8, 3, padding=8, dilation=4)
        self.down = nn.Conv1d(4, 8, 1)

    def forward(self, x):
        y = TF.relu(self.a(x)[:, :, :-4].contiguous())
        return TF.relu(TF.relu(self.b(y)[..., :-8].contiguous()) + self.down(x))


class Trimmed(nn.Module):
    """Slices of results, of which padding makes some; not of a convolution without padding, nor with a step."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.up = nn.Conv2d(4, 8, 3, padding=2), nn.ConvTranspose2d(8, 8, 4, 2, output_padding=1)
        self.strided, self.plain = nn.Conv2d(8, 8, 3, 2, padding=2, bias=False), nn.Conv2d(8, 8, 1)

    def forward(self, x):
        y = TF.gelu(self.up(TF.relu(self.a(x)[:, :, 2:, :-2]))[..., 1:-1, 1:-2])
        y = TF.silu(self.strided(y)[:, :, :-1, 1:])
        return torch.tanh(self.plain(y)[:, :, 1:]) * torch.tanh(self.strided(y)[:, :, ::2].mean((2, 3), keepdim=True))


class OneImage(nn.Module):
    """Of (c, h, w), without a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.slope = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.PReLU(6)
        self.last = nn.ConvTranspose2d(4, 2, 2, 2)

    def forward(self, x):
        x = x + self.slope(self.b(TF.relu(self.a(x)) * 0.5))
        y = self.b(x)
        return TF.silu(self.last(x + y * torch.sigmoid(y)))


class OneRow(nn.Module):
    """Of which a convolution uses the rows up."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns, self.slope = nn.Conv2d(4, 8, (6, 3)), nn.Conv1d(8, 8, 3), nn.PReLU(8)
        self.scale = nn.Parameter(torch.rand(8, 1))

    def forward(self, x):
        y = self.slope(self.rows(x).squeeze(2)) * self.scale
        return torch.exp(self.columns(y) * self.scale + y[:, :, :2]) - torch.ones(2)


class Pixels(nn.Module):
    """A linear layer over the channels, with an activation that is written out."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(4, 16), nn.Linear(16, 4)

    def forward(self, x):
        y = self.wide(x.permute(0, 2, 3, 1))
        return x + self.narrow(y * torch.sigmoid(1.5 * y)).permute(0, 3, 1, 2)


class Wave(nn.Module):
    """A layer of WaveNet, conditioned: a gate, and sums of a residual and of what is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.dilated, self.condition = nn.Conv1d(4, 8, 3, padding=2, dilation=2), nn.Conv1d(2, 16, 1)
        self.both = nn.Conv1d(4, 8, 1)

    def forward(self, x):
        skipped, condition = torch.zeros_like(x), self.condition(x[:, :2, :1])
        for i in range(2):
            y = self.dilated(x) + condition[:, 8 * i : 8 * i + 8]
            y = self.both(torch.tanh(y[:, :4]) * torch.sigmoid(y[:, 4:]))
            x, skipped = x + y[:, :4], skipped + y[:, 4:]
        return skipped * x


class Gates(nn.Module):
    """Behind BatchNorm and groups; not of a transposed convolution, of thirds, of a half that is also summed up."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(4, 16, 1, bias=False), nn.BatchNorm2d(16), nn.Conv2d(8, 8, 3, groups=8)
        self.c, self.up = nn.Conv2d(4, 12, 1), nn.ConvTranspose2d(8, 8, 2, 2)
        nn.init.uniform_(self.norm.running_mean, -1, 1)

    def forward(self, x):
        y = TF.glu(self.norm(self.a(x)), 1)
        u, v = self.b(y).chunk(2, 1)
        u, v, w = self.c(u * v).split(4, 1)
        y = TF.glu(self.up(torch.cat([u * v, w], 1)), 1)
        u, v = self.c(y).split([6, 6], 1)
        return u * (v + v.mean())


class Valid(nn.Module):
    """aten has one number for the padding of all axes; torch.add and torch.sub have a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, padding="valid"), nn.Conv2d(4, 4, 1, padding="valid")

    def forward(self, x):
        y = TF.relu(self.a(x))
        y = torch.sub(torch.add(y, self.b(y), alpha=0.5), self.b(y), alpha=0.25)
        return torch.add(self.b(y), y, alpha=2)


class Pyramid(nn.Module):
    """Pixels that go on as a sequence: with positions, and between linear layers (PVT, SegFormer)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Conv2d(4, 8, 2, 2), nn.Parameter(torch.randn(9, 8))
        self.wide, self.mix, self.narrow = nn.Linear(8, 16), nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Linear(16, 8)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2) + self.positions
        y = self.mix(self.wide(x).transpose(1, 2).view(-1, 16, 3, 3)).flatten(2).transpose(1, 2)
        return self.narrow(TF.gelu(y)) + x


class Sequence(nn.Module):
    """Convolutions over time among layers that have channels last: FastSpeech's, Mamba's, a gate of channels (ECA)."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.causal = nn.Conv1d(4, 8, 3, padding=1), nn.Conv1d(8, 8, 4, padding=3, groups=8)
        self.narrow, self.gate = nn.Conv1d(8, 4, 1), nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x):
        y = self.wide(x.transpose(1, 2)).transpose(1, 2).relu()
        y = TF.silu(self.causal(y.transpose(1, 2))[..., :5]).transpose(1, 2) * x.repeat(1, 1, 2)
        x = x + self.narrow(y.transpose(1, 2)).transpose(1, 2)
        gate = self.gate(x.mean(1, keepdim=True)).transpose(1, 2).unsqueeze(-1).sigmoid()
        return x * gate.view(2, 1, 4)


_GATE = ["add add tanh mul", "add add sigmoid"]
MODELS = {
    Wave: ((2, 4, 12), ["add", *_GATE, "add add", "add add add mul", *_GATE, "add add", "add"]),
    Gates: ((2, 4, 6, 6), ["add mul", "add sigmoid", "add mul", "add", "add", "add", "add"]),
    Causal: ((2, 4, 12), ["cropped; add relu", "cropped; add relu add relu", "add"]),
    Trimmed: ((1, 4, 6, 6), ["cropped; add relu", "cropped; add gelu", "cropped; silu", "add", ""]),
    Valid: ((1, 4, 6, 6), ["add relu", "add mul:0.5 add", "add mul:-0.25 add", "add"]),
    OneImage: ((4, 6, 6), ["add relu mul:0.5", "add prelu add", "add silu add", "add silu"]),
    OneRow: ((2, 4, 6, 6), ["add prelu mul", "add mul add exp sub"]),
    Pyramid: ((2, 4, 6, 6), ["add add", "add", "add gelu", "add add"]),
    Sequence: ((2, 5, 4), ["add relu", "cropped; add silu mul", "add add", "add sigmoid"]),
    Pixels: ((2, 4, 3, 3), ["add mul:1.5 silu mul:0.6666666666666666", "add add"]),
}


@pytest.mark.parametrize("kind", MODELS)
def test_what_is_fused(kind):
    shape, fused = MODELS[kind]
    model, x = kind().eval(), torch.randn(shape)
    ready, expected = fast(model, x), model(x).detach()
    near(ready(x), expected)
    assert ready(x).stride() == expected.stride()
    assert [row.fused for row in ready.report] == fused


@pytest.mark.parametrize("compiled", [True, False])
def test_valid_padding_trains(compiled):
    layer = nn.Conv2d(4, 8, 3, padding="valid").to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    expected = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    torch.compiler.reset()
    model = torch.compile(layer, backend=ct.compile_graph, options={"inductor": False}) if compiled else layer
    with contextlib.nullcontext() if compiled else ct.enabled() as serving:
        near(torch.autograd.grad(model(x).square().sum(), list(layer.parameters())), expected)
    rows = list(serving.report) if serving else [row for report in ct.reports()[-2:] for row in report]
    assert rows and all(row.why_not == "not on a GPU" for row in rows)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Wave, "its channels are split"), (Gates, "a gate of one half of the channels by the other needs both")],
)
def test_halves_may_stay_one_convolution(kind, reason, monkeypatch):
    monkeypatch.setattr(choice.OnCpu, "splits", lambda self, halves: False)
    model, x = kind().eval(), torch.randn(MODELS[kind][0])
    ready = fast(model, x)
    near(ready(x), model(x).detach())
    rows = list(ready.report)
    assert not [row.layer for row in rows if "half" in row.layer] and reason in {row.why_not[14:] for row in rows}


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda y, z: TF.glu(y, 1), None),
        (lambda y, z: torch.tanh(y[:, 4:]) - y[:, :4], None),
        (lambda y, z: torch.cat([y[:, :4] + z, y[:, 4:] * z * z], 1), 2),
        (lambda y, z: torch.cat([y[:, :4].tanh(), TF.relu(y[:, 4:])], 1), 1),
    ],
)
@pytest.mark.parametrize("served", [True, False])
def test_halves_are_two_convolutions_where_that_is_faster(function, left, served, monkeypatch):
    tensors = torch.randn(1, 4, 8, 8), torch.randn(8, 4, 1, 1), torch.randn(8), torch.randn(1, 4, 8, 8)
    graph = flat_graph(lambda x, w, b, z: (function(TF.conv2d(x, w, b), z),), tensors).graph
    (halves,) = split_in_halves(graph)
    monkeypatch.setattr(choice, "served", lambda *_, **__: Served((lambda *_: None) if served else None))

    class Timer:
        """One convolution and a pass take 20 microseconds, each half `half`; aten more."""

        half = 9.0

        def fused(self, arguments, given, *_, gated=False):
            whole = arguments[1].shape[0] == 8
            assert not whole or (gated, given) == (left is None, left)
            return 20.0 if whole else self.half

        def aten(self, *given, **keywords):
            return 30.0 + self.fused(given[0], given[1], **keywords)

    measured = choice.Measured(measure=False)
    assert measured.splits(halves) is served  # what is read and written decides
    measured._timer = Timer()
    assert measured.splits(halves) is served
    Timer.half = 11.0
    assert not measured.splits(halves)


def test_results_have_torch_s_strides_for_axes_of_one_element_too():
    """Kernels' own may be those of channels last."""
    x = torch.empty(2, 1, 18)
    graph = flat_graph(lambda x: (torch.tanh(x.mT.clone(memory_format=torch.contiguous_format)).mT,), [x]).graph
    layouts = keep_strides(graph, lambda: faked(lambda x: (torch.tanh(x),), [x])[1])
    (output,) = graph.find_nodes(op="output")
    made = value_of(output.args[0][0])
    assert made.stride() == (18, 1, 1) and layouts[0].laid_out(made).stride() == (18, 18, 1)


class Reflected(nn.Module):
    """A convolution whose strides, for axes of one element, are not those of fake tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 4, 1, bias=False, padding="same", dilation=2, groups=2, padding_mode="reflect")
        self.shift = nn.Parameter(torch.randn(1, 4, 1, 1, 6))

    def forward(self, x):
        y = self.conv(x + x)
        return y + self.shift, TF.silu(y)


def test_results_are_laid_out_by_the_strides_that_they_have():
    model, x = Reflected().eval(), torch.randn(1, 2, 1, 1, 6)
    for found, expected in zip(fast(model, x)(x), model(x), strict=True):
        near(found, expected.detach())


class Laid(nn.Module):
    """Ends with a function whose results do not lie as those of fake tensors."""

    def __init__(self, function) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 3), function

    def forward(self, x):
        y = self.function(self.conv(x))
        return y, y[:, 1:], torch.relu(y)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("last", [False, True], ids=["channels_first", "channels_last"])
@pytest.mark.parametrize(
    "function",
    [lambda y: y.roll(1, 2), lambda y: TF.max_unpool2d(*TF.max_pool2d(y, 2, return_indices=True), 2)],
    ids=["roll", "unpool"],
)
def test_results_lie_as_a_run_s_of_the_model_s_own(function, last, compiled):
    model, x = Laid(function).eval(), torch.randn(2, 3, 8, 8)
    x = x.to(memory_format=torch.channels_last) if last else x
    torch.compiler.reset()
    with torch.no_grad():
        options = {"inductor": False}
        ready = torch.compile(model, backend="convgen", options=options) if compiled else fast(model, x)
        for _ in range(2):
            for found, expected in zip(ready(x), model(x), strict=True):
                near(found, expected)
                assert found.stride() == expected.stride()


class Behind(nn.Module):
    """A function of a convolution's result, which aten's functions in it lay out otherwise than fake ones."""

    def __init__(self, rank: int, function) -> None:
        super().__init__()
        self.conv, self.function = {2: nn.Conv2d, 3: nn.Conv3d}[rank](4, 6, 1), function

    def forward(self, x):
        return self.function(self.conv(x))


def pad_all(y):
    return TF.pad(y, (1,) * 6, "replicate")


@pytest.mark.parametrize("last", [False, True], ids=["channels_first", "channels_last"])
@pytest.mark.parametrize(
    ("rank", "function"),
    [
        (2, lambda y: y.roll(1, 2).flatten(1)),
        (2, lambda y: y.roll(1, 2).permute(0, 3, 1, 2) @ y.permute(0, 3, 2, 1)),
        (3, lambda y: pad_all(y).flatten(1)),
        (2, lambda y: y.roll(1, 2)[:, :3]),
        (3, lambda y: pad_all(y)[:, 1:5]),
    ],
    ids=["rolled view", "rolled factor", "padded view", "rolled part", "padded part"],
)
def test_what_reads_results_that_lie_otherwise_than_fake_ones(rank, function, last):
    model, x = Behind(rank, function).eval(), torch.randn((2, 4, 5, 4, 3)[: rank + 2])
    x = x.to(memory_format=(torch.channels_last, torch.channels_last_3d)[rank - 2]) if last else x
    made, own = fast(model, x)(x), model(x).detach()
    near(made, own)
    order = sorted(range(own.dim()), key=lambda axis: -own.stride(axis))
    assert [made.stride(axis) for axis in order] == sorted(made.stride(), reverse=True)


class PaddedOnce(nn.Module):
    """A padding that others read, too, before the convolution does, for which it gets channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3)

    def forward(self, x):
        y = TF.pad(x.softmax(1).view(-1, 4, 6, 8), (1, 1, 1, 1), "replicate")
        return y.view(-1, 320).sin(), self.conv(y)


def test_what_reads_a_padding_before_its_convolution_does():
    model, x = PaddedOnce().eval(), torch.randn(2, 4, 48)
    weights = [weight.detach() for weight in model.parameters()]

    def function(weight, bias, x):
        return torch.func.functional_call(model, {"conv.weight": weight, "conv.bias": bias}, x)

    graph_module, *_ = prepare._traced(function, weights, [x])
    graph_module.recompile()
    with torch.no_grad():
        expected = model(x)
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):  # its strides are those that views rely on
            graph_module(*weights, x)
        check_strides(graph_module.graph)
        graph_module.recompile()
        near(tuple(graph_module(*weights, x)), expected)


class ReadsMemory(nn.Module):
    """By strides of its own, so that channels that are last would be others."""

    def __init__(self, read) -> None:
        super().__init__()
        self.conv, self.read = nn.Conv2d(3, 4, 3), read

    def forward(self, x):
        return self.read(self.conv(x), self.conv.weight)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("last", [False, True], ids=["channels_first", "channels_last"])
@pytest.mark.parametrize(
    "read",
    [
        lambda y, w: y.contiguous().as_strided((2, 4), (100, 1)),
        lambda y, w: y.as_strided((2, 4, 5, 5), y.stride()).relu() + y[:, :, :5, :5],
        lambda y, w: y.mean((2, 3)) @ w.as_strided((4, 4), (5, 1)),
        lambda y, w: (y + 0).resize_(2, 4),
        lambda y, w: y * y.mean((2, 3), True).as_strided((2, 4, 1, 1), (4, 1, 4, 4)),
        lambda y, w: y * y.mean((2, 3), True).as_strided((2, 4, 1, 1), (1, 2, 1, 1)),
        lambda y, w: y * y.mean((2, 3), True)[1:].as_strided((1, 4, 1, 1), (4, 1, 4, 4)),
        lambda y, w: y * y.mean((2, 3), True)[1:].as_strided((1, 4, 1, 1), (4, 1, 4, 4), 0),
        lambda y, w: y * y[:, :, :1, :1].as_strided((2, 4, 1, 1), (4, 1, 4, 4)),
        pytest.param(
            lambda y, w: y[1:].as_strided((2, 4), (10, 1), 0), marks=pytest.mark.filterwarnings("ignore:convgen")
        ),
    ],
    ids=[
        *("contiguous", "strides", "weight", "resized", "pixel", "other order", "other image", "first image"),
        *("slice", "part"),
    ],
)
def test_what_reads_memory_reads_that_of_the_model_s_own(read, last, compiled):
    model, x = ReadsMemory(read).eval(), torch.randn(2, 3, 8, 8)
    x = x.to(memory_format=torch.channels_last) if last else x
    torch.compiler.reset()
    with torch.no_grad():
        options = {"inductor": False}
        found = torch.compile(model, backend="convgen", options=options) if compiled else fast(model, x)
        near(found(x), model(x))


def test_a_network_that_pools_to_one_pixel_is_traced_once(monkeypatch):
    """aten says in that one's strides that channels are last: nothing depends on these."""
    traced = []
    monkeypatch.setattr(prepare, "flat_graph", lambda *given: traced.append(given) or flat_graph(*given))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    x = torch.randn(2, 3, 8, 8)
    near(fast(model, x)(x), model(x).detach())
    assert len(traced) == 1


@pytest.mark.parametrize("inductor", [False, True])
def test_weight_norm_reads_memory_as_its_kernel_does(inductor):
    """A view that needs a layout of the model's own keeps all of them; the weight of a convolution has another."""
    view = ReadsMemory(lambda y, w: y * w.view(len(w), -1).sum(1)[:, None, None])
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 3)), view).eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        near(ct.optimize(model, (x,), inductor=inductor)(x), model(x))


class Spectrum(nn.Module):
    """A convolution of one part of complex numbers, which are a result, too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, z):
        return self.conv(z.imag), z.conj()


@pytest.mark.filterwarnings("ignore:convgen")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("marked", [(False, True), (True, False)])
def test_conjugates_are_inputs_as_others(marked, compiled):
    """Torch marks a conjugate, and computes it where it is read."""
    model, z = Spectrum().eval(), torch.randn(2, 3, 8, 8, dtype=torch.complex64)
    given = [z.conj() if mark else z for mark in marked]
    torch.compiler.reset()
    with torch.no_grad():
        options = {"inductor": False}
        found = torch.compile(model, backend="convgen", options=options) if compiled else fast(model, given[0])
        for each in given:
            near(found(each), model(each))


@pytest.mark.parametrize("marked", [(False, True), (True, False)])
def test_inductor_reads_negatives_as_they_are(marked):
    """Torch marks what is the negative of its memory, as the imaginary part of a conjugate."""
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)).eval(), torch.randn(2, 3, 8, 8)
    given = [torch._neg_view(x) if mark else x for mark in marked]
    found = ct.optimize(model, given[0])
    for each in given:
        near(found(each), model(each))


@pytest.mark.parametrize("marked", [(False, True), (True, False)])
def test_inductor_reads_negatives_with_gaps(marked):
    """A negative that is computed has no gaps; other images of the same strides have some."""
    model, z = nn.Sequential(nn.Conv2d(3, 4, 3)).eval(), torch.randn(2, 3, 8, 8, dtype=torch.complex64)
    given = [z.conj().imag if mark else z.imag for mark in marked]
    found = ct.optimize(model, given[0])
    for each in given:
        near(found(each), model(each))


class Twice(nn.Module):
    """Normalized channels, which were a linear layer's rows, two times."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear, self.norm = nn.Conv2d(8, 8, 1), nn.Linear(8, 8), nn.BatchNorm2d(8)

    def forward(self, x):
        y = self.norm(self.linear(self.conv(x)).permute(3, 0, 1, 2))
        return y, y


class Doubled(nn.Module):
    def forward(self, x):
        y = torch.cat([x, x], 3)
        return y, y[:, :1]


class Halved(nn.Module):
    def forward(self, x):
        y = TF.logsigmoid(x)
        return y[:, :4], y[:, 4:], y.squeeze(3)


@pytest.mark.parametrize(
    ("kind", "shape", "inductor"),
    [(Twice, (8,) * 4, False), (Halved, (1, 8, 6, 1), False), (Doubled, (2, 4, 6, 5), True)],
)
def test_results_that_are_views_of_others_lie_as_those_do(kind, shape, inductor):
    """Not as fake tensors: what is written to one is read in the other."""
    model, x = kind().eval(), torch.randn(shape).to(memory_format=torch.channels_last)
    torch.compiler.reset()
    compiled = torch.compile(model, backend=ct.compile_graph, options={"inductor": inductor})
    with torch.no_grad():
        for ready in (ct.optimize(model, x, inductor=inductor), compiled):
            results, expected = ready(x), model(x)
            near(results, expected)
            for each in (results, expected):
                each[0].add_(1)
            near(results, expected)


class WritesItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.conv = nn.ReLU(inplace=True), nn.Conv2d(4, 8, 3)

    def forward(self, x, other):
        other[:, :1] *= 2
        return TF.relu(self.conv(self.before(x)) + other)


@pytest.mark.parametrize("compiled", [True, False])
def test_inputs_are_written_to(compiled):
    model, x, other = WritesItsInput().eval(), torch.randn(2, 4, 6, 6), torch.randn(2, 8, 4, 4)
    torch.compiler.reset()
    if compiled:
        ready = torch.compile(model, backend=ct.compile_graph, options={"inductor": False})
    else:
        ready = fast(model, (x, other))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            theirs, ours = (x.clone(), other.clone()), (x.clone(), other.clone())
            near(ready(*ours), model(*theirs))
            assert all(map(torch.equal, ours, theirs)) and not torch.equal(ours[0], x)
        report = ct.reports()[-1] if compiled else ready.report
        assert [row.fused for row in report] == ["add add relu"]
        memory = torch.randn(x.numel())
        both = memory.view(x.shape), memory[: other.numel()].view(other.shape)
        before, expected = memory.clone(), model(*both)
        memory[:], after = before, memory.clone()
        near(ready(*both), expected)  # which share memory
        assert torch.equal(memory, after)


class Averaged(nn.Module):
    """Attention to averages, whose strides are not those of fake tensors, because of an axis of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.pool = nn.AvgPool1d(4)

    def forward(self, x):
        x = x.flatten(2).mT
        averages = self.pool(x.mT).mT
        made = self.query(x), self.key(averages), self.value(averages)
        return TF.scaled_dot_product_attention(*(y.unflatten(2, (2, 4)).transpose(1, 2) for y in made))


@pytest.mark.parametrize("images", [1, 2])
def test_attention_reads_rows(images):
    model, x = Averaged().eval(), torch.randn(images, 8, 4, 4)
    near(fast(model, x)(x), model(x).detach())


# ---- what a model remembers ------------------------------------------------------------------------


class Causal1d(nn.Module):
    """Of a stream, whose last frames it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.before = nn.Conv1d(4, 4, 3), None

    def forward(self, x):
        frames = torch.cat([torch.zeros_like(x[..., :2]) if self.before is None else self.before, x], 2)
        self.before = frames[..., -2:]
        return self.conv(frames)


class Memory(nn.Module):
    """Of the first call's features."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.stream, self.first = nn.Sequential(nn.Conv1d(4, 4, 1), nn.ReLU()), Causal1d(), None

    def forward(self, x):
        y = self.encode(x)
        self.first = y if self.first is None else self.first
        return self.stream(y) + self.first

    def forget(self):
        self.first = self.stream.before = None


@pytest.mark.parametrize("kind", [Causal1d, Memory])
def test_models_remember_earlier_calls(kind):
    model, x = kind().eval(), torch.randn(1, 4, 6)
    right = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export's, too
        ready = fast(model, x)
        for i in range(5):
            if i == 3 and kind is Memory:
                ready.forget(), right.forget()
            near(ready(i * x), right(i * x).detach())
    assert "its results depend on what earlier calls left in its attributes" in ready.report.notes[0]
    assert len(ready.report) == 1 + (kind is Memory)


def test_a_stream_that_begins_with_silence_is_remembered():
    model, x = Causal1d().eval(), torch.randn(1, 4, 6)
    right = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready = fast(model, torch.zeros_like(x))
        for i in range(3):
            near(ready(i * x), right(i * x).detach())


class Counter:
    """A helper of a model's, which keeps what it counts in another one."""

    def __init__(self):
        self.inner, self.itself = types.SimpleNamespace(history=[0.0]), self


class Helped(nn.Module):
    def __init__(self, remembers: bool) -> None:
        super().__init__()
        self.conv, self.helper, self.remembers = nn.Conv1d(4, 4, 3), Counter(), remembers

    def forward(self, x):
        y = self.conv(x)
        if self.remembers:
            y = y + self.helper.inner.history[-1]
        self.helper.inner.history = [y]
        return y


@pytest.mark.parametrize("remembers", [True, False])
def test_objects_among_the_attributes_remember(remembers):
    model, x = Helped(remembers).eval(), torch.randn(1, 4, 6)
    right = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export's, too
        ready = fast(model, x)
        for i in range(3):
            near(ready(i * x), right(i * x).detach())
    if remembers:
        assert "its results depend on what earlier calls left in its attributes" in ready.report.notes[0]
        assert "helper" in ready.report.notes[0]
    else:
        assert ready.report.notes[0] == "its forward sets attributes, which stay as they were: helper"


def test_modules_in_lists_remember():
    class Streams(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.streams = nn.Conv1d(4, 4, 1), [Causal1d()]

        def forward(self, x):
            return self.streams[0](self.encode(x))

    model, x = Streams().eval(), torch.randn(1, 4, 6)
    right = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready = fast(model, x)
        for i in range(3):
            near(ready(i * x), right(i * x).detach())
    assert "streams.0.before" in ready.report.notes[0]


class Tells(nn.Module):
    """Of each call, what nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.calls, self.features = torch.nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3)), 0, {}

    def forward(self, x):
        self.calls += 1
        self.features["conv"] = self.conv(x)
        return TF.relu(self.features["conv"]) + 0.1 * torch.randn_like(x[..., 2:])


def test_the_report_says_what_a_graph_does_not_do():
    model, x = Tells().eval(), torch.randn(1, 4, 6)
    model.conv.register_forward_hook(lambda module, given, result: 2 * result)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        report = fast(model, x).report
    assert report.notes[:2] == [
        "its forward sets attributes, which stay as they were: calls, features",
        "hooks were traced, and are not called: of conv",
    ]
    assert [row.fused for row in report] == ["add relu mul:2.0 add"] and not model.calls


def test_notes_of_many_layers_name_the_first():
    model, x = nn.Sequential(*(Tells() for _ in range(6))).eval(), torch.randn(1, 4, 30)
    for layer in model[:5]:
        layer.register_forward_hook(lambda module, given, result: 2 * result)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        notes = fast(model, x).report.notes
    assert notes[:2] == [
        "its forward sets attributes, which stay as they were: 0.calls, 0.features, 1.calls, 1.features and 8 more",
        "hooks were traced, and are not called: of 0, 1, 2, 3 and 1 more",
    ]


class Hooked(nn.Module):
    """Whose results are what hooks keep: in a list and an attribute, by functions and a method."""

    def __init__(self, branches: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(4, 4, 1), nn.ReLU(), nn.Conv1d(4, 4, 3))
        self.head, self.branches = nn.Conv1d(4, 2, 1), branches
        self.kept, self.last = [], torch.zeros(())
        self.body[1].register_forward_hook(lambda module, given, result: self.kept.append(result))
        self.body[2].register_forward_hook(self.keep)

    def keep(self, module, given, result):
        self.last = result

    def forward(self, x):
        self.kept.clear()
        self.body(x)
        if self.branches and self.last.sum() > 1e3:
            return self.head(self.last)
        return self.kept[0], self.head(self.last)


@pytest.mark.parametrize("branches", [False, True])
def test_hooks_may_keep_results_in_the_model(branches):
    model, x = Hooked(branches).eval(), torch.randn(1, 4, 6)
    model(x)  # attributes hold results that autograd records
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        ready = fast(model, x)
    kept = model.last
    for other in (x, torch.randn(1, 4, 6)):
        near(ready(other), tuple(y.detach() for y in model(other)))
    if branches:
        assert "it branches on values of tensors" in str(ready.report)
    else:
        assert [row.layer for row in ready.report] == ["body.0", "body.2", "head"] and type(kept) is torch.Tensor


class Conditional(nn.Module):
    """Whose branches call layers; and it branches itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 4, 1), nn.Conv1d(4, 4, 1)

    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda x: self.first(x), lambda x: self.first(-x), (x,))
        return self.second(y) if y.sum() > 0 else -y


@pytest.mark.filterwarnings("ignore")
def test_branches_of_torch_cond_call_parts():
    model, x = Conditional().eval(), torch.randn(1, 4, 6)
    ready = fast(model, x)
    with torch.no_grad():
        for given in (x, -x, x):
            near(ready(given), model(given))


class Branches(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x):
        y = self.body(x)
        return y if y.sum() > 0 else -y


def test_hooks_of_parts_are_called():
    body = nn.Sequential(nn.Conv1d(4, 4, 1), nn.ReLU())
    model, x, kept = Branches(body), torch.randn(1, 4, 6), []
    body[1].register_forward_hook(lambda module, given, result: kept.append(result))
    with pytest.warns(UserWarning, match="branches on values"):
        ready = fast(model.eval(), x)
    near(ready(x), model(x).detach())
    assert len(kept) >= 2
    near(kept[-2], kept[-1])
    assert [row.layer for row in ready.report] == ["body.0"]


def test_functions_may_call_the_model_s_layers():
    model, x = nn.Sequential(small(), nn.Conv2d(4, 4, 1)).eval(), torch.randn(1, 4, 6, 6)
    own = model[1].forward
    model[0].forward = lambda x: model[0][2](model[0][1](model[0][0](x)))[:, :4]
    model[1].forward = lambda x: own(x) * 2
    ready = fast(model, x)
    near(ready(x), model(x).detach())
    assert [row.layer for row in ready.report] == ["0.0", "1"]
    model[1].weight = nn.Parameter(torch.randn_like(model[1].weight))
    near(ready(x), model(x).detach())


# ---- what may happen to an optimized model --------------------------------------------------------


def test_weights_of_another_kind_are_prepared_anew():
    """Of other channels, of none, or computed otherwise."""
    norm = nn.utils.parametrizations.weight_norm
    model, x = small(), torch.randn(1, 4, 6, 6)
    norm(model[0]).eval()
    ready = fast(model, x)

    def narrower():
        model[3].weight = nn.Parameter(torch.randn(2, 8, 1, 1))

    changes = {
        "weight_norm is removed": lambda: nn.utils.parametrize.remove_parametrizations(model[0], "weight"),
        "the bias goes": lambda: setattr(model[3], "bias", None),
        "there are fewer filters": narrower,
    }
    for change in changes.values():
        change()
        near(ready(x), model(x).detach())


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
def test_torch_func_and_torch_jit_trace_see_the_model_itself():
    model, x = small(), torch.randn(1, 4, 6, 6)
    ready = fast(model, x)
    many = torch.randn(3, *x.shape)
    near(torch.vmap(ready)(many), torch.vmap(model)(many).detach())
    near(torch.jit.trace(ready, x)(x), model(x).detach())


class WithConfig(nn.Sequential):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.config = {"channels": 4}

    def encode(self, x):
        return self(x) * 2


def test_an_optimized_model_has_the_attributes_of_the_model():
    model, x = WithConfig(*small()).eval(), torch.randn(1, 4, 6, 6)
    ready = fast(model, x)
    for each in (ready, copy.deepcopy(ready)):
        assert each.config == model.config
        near(each.encode(x), model.encode(x))
    with pytest.raises(AttributeError, match="'WithConfig' object has no attribute 'decode'"):
        ready.decode(x)
    graph = fast(torch.fx.symbolic_trace(model), x)  # which says how it is to be copied
    assert isinstance(copy.deepcopy(graph), ct.Optimized)


def test_the_module_that_is_in_training_mode_is_named():
    model = small()
    model[1].train()
    with pytest.raises(ConvgenError, match="module '1' of the model is in training mode"):
        fast(model, torch.randn(1, 4, 6, 6))


@pytest.mark.parametrize("compiled", [True, False])
def test_examples_are_not_kept(compiled, own_garbage):
    torch.compiler.reset()
    options = {"options": {"inductor": False}}
    with torch.no_grad():
        x = torch.randn(1, 4, 6, 6)
        ready = torch.compile(small(), backend=ct.compile_graph, **options) if compiled else fast(small(), x)
        ready(x)
        example = weakref.ref(x)
        del x
    gc.collect()
    assert example() is None


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x, scale):
        return self.conv(x) * scale, torch.ones(1, dtype=torch.int64) * scale


def test_equal_numbers_of_other_types_are_others():
    model, x = Scaled().eval(), torch.randn(1, 4, 6, 6)
    ready = fast(model, (x, 1))
    for scale in (1, 1.0, True, 0.0, -0.0):
        found, expected = ready(x, scale), model(x, scale)
        assert found[1].dtype == expected[1].dtype
        assert torch.equal(found[0].signbit(), expected[0].signbit())
    prepared = len(ready._prepared)
    ready(x, float("nan")), ready(x, float("nan"))
    assert len(ready._prepared) == prepared + 1


class Tokens(nn.Module):
    """Of patches, with a token of the class."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token, self.head = nn.Conv2d(4, 8, 2, 2), nn.Parameter(torch.randn(1, 1, 8)), nn.Linear(8, 2)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).mT
        return self.head(torch.cat([self.token.expand(len(x), -1, -1), tokens], 1))


@pytest.mark.parametrize("inductor", [False, True])
def test_weights_are_exchanged_and_stay_as_they_were(inductor):
    model, x = Tokens().eval(), torch.randn(2, 4, 6, 6)
    ready = ct.optimize(model, x, inductor=inductor)
    first, own = ready(x), [p.data for p in model.parameters()]
    kept, others = copy.deepcopy(own), [torch.randn_like(p) for p in own]
    for given in (others, own):  # as to try averaged weights
        for p, value in zip(model.parameters(), given, strict=True):
            p.data = value
        near(ready(x), model(x).detach())
    assert all(map(torch.equal, own, kept)) and len(ready._prepared) == 1
    near(ready(x), first)
    model.head.weight.data = model.head.weight.t().contiguous().t() * 2
    near(ready(x), model(x).detach())


class Energy(nn.Module):
    """Its result is a gradient of its own, with a branch that no tracer takes."""

    def __init__(self, function: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 1, 3))
        self.function = function

    def forward(self, x):
        if self.function:
            return torch.func.grad(lambda t: self.net(t).square().sum())(x)
        with torch.enable_grad():
            t = x.detach().requires_grad_()
            (found,) = torch.autograd.grad(self.net(t).square().sum(), t)
        return found * 2 if found.norm().item() > 1 else found


@pytest.mark.filterwarnings("ignore:convgen")
@pytest.mark.parametrize("function", [False, True], ids=["autograd", "torch.func"])
def test_a_model_whose_result_is_a_gradient(function):
    model, x = Energy(function).eval(), torch.randn(2, 3, 8, 8)
    expected = model(x)
    assert expected.abs().sum() > 0
    torch.testing.assert_close(ct.optimize(model, x, inductor=False)(x), expected)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_compiled_gradient_within_no_grad(frozen):
    net, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 1, 3)).eval(), torch.randn(2, 3, 8, 8)
    net.requires_grad_(not frozen)

    def saliency(x):
        with torch.enable_grad():
            t = x.detach().requires_grad_()
            (found,) = torch.autograd.grad(net(t).square().sum(), t)
        return found

    torch.compiler.reset()
    compiled = torch.compile(saliency, backend="convgen", options={"inductor": False})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), saliency(x))


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("transform", ["grad", "vjp", "jacrev", "vmap"])
def test_compiled_functions_of_torch_func_through_a_frozen_model(transform, recorded):
    """Nothing that comes in requires a gradient, so that nothing else says that one is taken."""
    net, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh()).eval().requires_grad_(False), torch.randn(2, 3, 8, 8)

    def function(x):
        if transform == "vjp":
            result, pullback = torch.func.vjp(net, x)
            return pullback(result)[0]
        if transform == "jacrev":
            return torch.func.jacrev(lambda t: net(t).sum((1, 2, 3)))(x)
        taken = torch.func.grad(lambda t: net(t).sum())
        return (torch.func.vmap(taken) if transform == "vmap" else taken)(x)

    torch.compiler.reset()
    compiled = torch.compile(function, backend="convgen", options={"inductor": False})
    with torch.set_grad_enabled(recorded):
        torch.testing.assert_close(compiled(x), function(x))


def test_training_of_crops_of_several_widths():
    """Their shapes are numbers, and their strides are not."""

    class Crop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 3)

        def forward(self, x):
            return self.conv(x[:, :, :8, :8])

    torch.compiler.reset()
    model = Crop().to(memory_format=torch.channels_last)
    compiled = torch.compile(model, backend="convgen", options={"inductor": False})
    for width in (9, 10, 11):
        x = torch.randn(2, 8, 9, width).to(memory_format=torch.channels_last)
        found = compiled(x)
        torch.testing.assert_close(found, model(x))
        found.square().mean().backward()


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_enabled_obeys_torchs_newer_switch_of_tf32(precision):
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8)
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = precision
    try:
        with ct.enabled():
            torch.testing.assert_close(layer(x), TF.conv2d(x, layer.weight, layer.bias))
        assert switches.allow_tf32() == (precision == "tf32")
    finally:
        torch.backends.cudnn.conv.fp32_precision = before


def test_cudnn_is_deterministic_where_torch_is():
    assert not switches.deterministic()
    torch.use_deterministic_algorithms(True)
    try:
        assert switches.deterministic()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_state_by_the_names_of_parameters_is_loaded():
    """As an average of parameters by `named_parameters` keeps it."""
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), torch.randn(1, 3, 6, 6)
    fast = ct.optimize(model, x, inductor=False)
    shadow = {name: torch.randn_like(p) for name, p in fast.named_parameters()}
    fast.load_state_dict(shadow)
    assert all((p == shadow[name]).all() for name, p in fast.named_parameters())
    torch.testing.assert_close(fast(x), model(x))


def test_a_model_without_data_is_prepared_when_it_has_some():
    from torch._subclasses import FakeTensorMode

    model = small()
    with FakeTensorMode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        made = fast(small(), torch.randn(2, 4, 8, 8))
        assert made(torch.randn(2, 4, 8, 8)).shape == (2, 4, 8, 8)
    made.load_state_dict(model.state_dict(), assign=True)
    x = torch.randn(2, 4, 8, 8)
    near(made(x), model(x))
    assert [row.layer for row in made.report] == ["0", "3"]


@pytest.mark.parametrize("fake_input", [False, True])
def test_a_model_without_data_is_not_prepared_outside_of_its_mode(fake_input):
    from torch._subclasses import FakeTensorMode

    model, x = small(), torch.randn(2, 4, 8, 8)
    with FakeTensorMode():
        without, fake = small(), torch.randn(2, 4, 8, 8)
    made = ct.optimize(without, fake if fake_input else x)
    assert not made.report.rows
    made.load_state_dict(model.state_dict(), assign=True)
    near(made(x), model(x))
    assert [row.layer for row in made.report] == ["0", "3"]


@pytest.mark.parametrize("compiled", [False, True], ids=["optimize", "compile"])
def test_tensors_without_data_are_no_arguments_of_what_was_prepared(compiled):
    from torch._subclasses import FakeTensorMode

    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)).eval(), torch.randn(2, 4, 8, 8)
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(x)
    with torch.no_grad():
        made = torch.compile(model, backend="convgen") if compiled else ct.optimize(model, x)
        near(made(x), model(x))
        with mode if compiled else contextlib.nullcontext():
            assert made(fake).shape == x.shape
        near(made(x), model(x))


def test_dynamo_says_why_it_does_not_compile_an_optimized_model_again():
    made, x = fast(small(), torch.randn(2, 4, 8, 8)), torch.randn(2, 4, 8, 8)
    near(torch.compile(lambda x: made(x) + 1, backend="eager")(x), made(x) + 1)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="compiled already, and runs as it is without fullgraph"):
        torch.compile(made, backend="eager", fullgraph=True)(x)


def test_dynamo_compiles_nothing_of_convgen():
    def function(x):
        made = fast(model, x)
        made.prepare(x[:1])
        return made(x) + 1

    frames = []
    model, x = small(), torch.randn(2, 4, 8, 8)
    compiled = torch.compile(function, backend=lambda graph, _: frames.append(graph) or graph)
    with torch.no_grad():
        near(compiled(x), model(x) + 1)
    assert len(frames) <= 3  # what is around the calls


def test_arguments_that_require_gradients_are_warned_of():
    model, x = small(), torch.randn(2, 4, 8, 8)
    made, generated = fast(model, x), nn.Conv2d(4, 4, 1)(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        near(made(x), model(x))
        near(made(generated.detach()), model(generated))
        with torch.no_grad():
            near(made(generated), model(generated))
    with pytest.warns(UserWarning, match="requires gradients, but an optimized model records none") as warned:
        assert not made(generated).requires_grad
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of = [torch.func.grad(lambda x, module=module: module(x).sum())(x) for module in (made, model)]
        near(*of)  # torch.func takes the model's own
        assert torch.func.vmap(made)(generated[None]).requires_grad
        torch.export.export(nn.Sequential(nn.Conv2d(4, 4, 1), made).eval(), (x,), strict=False)


def test_warnings_name_the_line_of_the_program():
    class Odd(nn.Module):
        def forward(self, x):
            return x.relu() if x.sum() > 0 else x

    x = torch.randn(2, 4, 8, 8)
    with pytest.warns(UserWarning, match="leaves the model as it is") as warned:
        fast(Odd().eval(), x)(x[:1])
    assert [each.filename for each in warned if "leaves" in str(each.message)] == [__file__] * 2


def test_tangents_are_the_models_own():
    from torch.autograd import forward_ad

    model, x = small(), torch.randn(2, 4, 8, 8)
    made = ct.optimize(model, x)
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        found, expected = (forward_ad.unpack_dual(each(dual)) for each in (made, model))
    near(found.primal, expected.primal)
    near(found.tangent, expected.tangent)


def test_the_lists_of_a_recurrent_layer_s_weights_are_no_state():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.rows = nn.Conv1d(4, 8, 3), nn.LSTM(8, 4)

        def forward(self, x):
            return self.rows(self.body(x).permute(2, 0, 1))[0]

    model, x = Network().eval(), torch.randn(2, 4, 8)
    made = fast(model, x)
    assert not any("sets attributes" in note for note in made.report.notes)
    for _ in range(2):
        near(made(x), model(x))
        with torch.no_grad():
            model.rows.weight_hh_l0.add_(0.1)
        model.rows.weight_ih_l0 = nn.Parameter(torch.randn_like(model.rows.weight_ih_l0))
    near(made(x), model(x))


def test_a_layer_in_two_places_is_one_of_the_model() -> None:
    """For such models torch.export calls a proxy, each of whose layers is another object whenever it is asked for."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shared = nn.Conv2d(4, 4, 3, padding=1)
            self.first, self.second = nn.Sequential(shared, nn.ReLU()), nn.Sequential(shared, nn.Tanh())

        def forward(self, x):
            return self.second(self.first(x))

    model, x = Model().eval(), torch.randn(2, 4, 6, 6)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fast = ct.optimize(model, x, inductor=False)
        torch.testing.assert_close(fast(x), model(x))
    assert [row.fused for row in fast.report] == ["add relu", "add tanh"]
    assert not any("attributes" in note for note in fast.report.notes)


def test_arguments_that_are_all_passed_by_name() -> None:
    class Model(nn.Conv2d):
        def forward(self, pixel_values):
            return {"y": super().forward(pixel_values)}

    model, x = Model(4, 4, 3).eval(), torch.randn(2, 4, 6, 6)
    fast = ct.optimize(model, kwargs={"pixel_values": x}, inductor=False)
    with torch.no_grad():
        torch.testing.assert_close(fast(pixel_values=x), model(x))
    with pytest.raises(ConvgenError, match=r"positional argument: 'pixel_values'\nhint: pass a tensor, .* or kwargs"):
        ct.optimize(model)


def test_nobody_is_told_of_what_an_lstm_does_while_it_is_traced() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.recurrent = nn.Conv1d(4, 8, 3), nn.LSTM(8, 8, batch_first=True)

        def forward(self, x):
            return self.recurrent(self.convolution(x).transpose(1, 2))[0]

    model, x = Model().eval(), torch.randn(2, 4, 10)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        torch.testing.assert_close(ct.optimize(model, x, inductor=False)(x), model(x))
