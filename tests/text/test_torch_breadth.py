"""Models as people write them, on a CPU: what reads a result, what is written around a convolution, what is said."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from nearness import near  # noqa: E402

import convgen.torch as ct  # noqa: E402
from convgen import ConvgenError  # noqa: E402
from convgen.torch.network import choice  # noqa: E402
from convgen.torch.network.chains import chain_of  # noqa: E402
from convgen.torch.network.constants import constant_nodes, move_numbers  # noqa: E402
from convgen.torch.network.trace import flat_graph, is_call, placeholders, value_of  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn = torch.nn
TF = nn.functional


def made(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(*modules).eval()


def fast(model: nn.Module, x: torch.Tensor, compiled: bool = False):
    if compiled:
        torch.compiler.reset()
        return torch.no_grad()(torch.compile(model, backend=ct.compile_graph, options={"inductor": False}))
    return ct.optimize(model, x, inductor=False)


class Branches(nn.Module):
    """A view of what convolutions make, behind a branch that depends on data."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
        self.features = made(convolution(4, 8, 3, padding=1), nn.ReLU(), convolution(8, 8, 3, padding=1))
        self.head = nn.Linear(8 * 4**rank, 3)

    def forward(self, x):
        y = self.features(x)
        if y.sum().item() > 1e9:
            return y
        return self.head(y.view(y.shape[0], -1))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_results_lie_as_the_model_s_own(rank, compiled):
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    model, x = made(convolution(4, 8, 3), nn.ReLU()), torch.randn(2, 4, *[6] * rank)
    last = x.movedim(1, -1).contiguous().movedim(-1, 1)
    for image in (x, last) if rank > 1 else (x,):
        expected = model(image)
        found = fast(model, image, compiled)(image)
        near(found, expected)
        assert found.stride() == expected.stride()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
def test_what_reads_a_part_may_take_a_view(rank, compiled):
    model, x = Branches(rank).eval(), torch.randn(2, 4, *[4] * rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        near(fast(model, x, compiled)(x), model(x).detach())


class Vocoder(nn.Module):
    """Of one-dimensional convolutions, whose weights are computed."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first, self.up = norm(nn.Conv1d(1, 8, 7, padding=3)), norm(nn.ConvTranspose1d(8, 4, 4, 2, padding=1))
        self.blocks = nn.ModuleList([norm(nn.Conv1d(4, 4, 3, padding=d, dilation=d)) for d in (1, 3)])
        self.last = nn.Conv1d(8, 1, 7)

    def forward(self, x):
        x = self.up(TF.leaky_relu(self.first(x), 0.1))
        for block in self.blocks:
            x = x + block(TF.leaky_relu(x, 0.1))
        return torch.tanh(self.last(TF.pad(torch.cat([x, x.flip(2)], 1), (6, 0))))


@pytest.mark.parametrize("compiled", [False, True])
def test_convolutions_of_one_axis_read_channels_last(compiled, monkeypatch):
    chains = []

    def choose(self, chain, layer, choose=choice.OnCpu.choose):
        chains.append(chain)
        return choose(self, chain, layer)

    monkeypatch.setattr(choice.OnCpu, "choose", choose)
    model, x = Vocoder().eval(), torch.randn(2, 1, 16)
    ready = fast(model, x, compiled)
    found, expected = ready(x), model(x).detach()
    near(found, expected)
    assert found.stride() == expected.stride() and len(chains) == 5
    report = ct.reports()[-1] if compiled else ready.report
    assert [row.layer for row in report] == ["first", "up", "blocks.0", "blocks.1", "last"]
    assert all(value_of(read).stride(1) == 1 for chain in chains for read in (chain.x, chain.w))
    copies = [n for n in chains[0].convolution.graph.nodes if is_call(n, torch.ops.aten.clone.default)]
    assert sum(value_of(copy).shape[0] == 2 for copy in copies) <= 2  # the input, and what `flip` makes


class Part(nn.Module):
    """Of a result's channels, which a view may follow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)

    def forward(self, x):
        return torch.relu(self.conv(x))[:, :6]


@pytest.mark.parametrize("compiled", [False, True])
def test_parts_of_results_lie_as_the_model_s_own(compiled):
    model, x = Part().eval(), torch.randn(2, 4, 6, 6)
    near(fast(model, x, compiled)(x).view(2, -1), model(x).detach().view(2, -1))
    last = x.contiguous(memory_format=torch.channels_last)
    assert fast(model, last, compiled)(last).stride() == model(last).stride()


class Tokens(nn.Module):
    """Which lie in the order of their axes where channels are last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)

    def forward(self, x):
        return torch.relu(self.conv(x).flatten(2).transpose(1, 2))


@pytest.mark.parametrize("compiled", [False, True])
def test_tokens_can_be_seen_as_rows_again(compiled):
    model, x = Tokens().eval(), torch.randn(2, 4, 6, 6)
    near(fast(model, x, compiled)(x).mT.view(2, -1), model(x).mT.view(2, -1).detach())


class Aliases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)

    def forward(self, x):
        y = torch.relu(self.conv(x))
        return y[:, 2:4], y, {"rows": y.flatten(2)[1:], "sum": y.sum()}


@pytest.mark.parametrize("compiled", [False, True])
def test_results_share_memory_as_the_model_s_own(compiled):
    """What comes behind may write to one of them, such as a relu in place behind a graph break."""
    model, x = Aliases().eval(), torch.randn(2, 4, 6, 6)
    found, expected = fast(model, x, compiled)(x), model(x)
    for part, whole, others in (found, expected):
        whole.detach().mul_(3)
        part.detach().add_(1)
        assert others["rows"].stride() == (128, 16, 1)
    near(found, expected)


class AsRows(nn.Module):
    def forward(self, x):
        return x.view(x.shape[0], -1)


def test_views_follow_convolutions_that_lie_otherwise_than_aten_s():
    """aten's result of one small volume has its channels first."""
    volume = torch.randn(1, 4, 4, 4, 4)
    model = made(nn.Conv3d(4, 8, 3), nn.ReLU(), nn.Conv3d(8, 8, 1), AsRows(), nn.Linear(64, 3))
    ready = fast(model, volume)
    near(ready(volume), model(volume).detach())
    assert [row.fused for row in ready.report] == ["add relu", "add", "add"]


class Attention(nn.Module):
    """A GroupNorm over pixels in a row, whose kernels want them packed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv3d(4, 8, 3, padding=1), nn.GroupNorm(2, 8)

    def forward(self, x):
        pixels = self.conv(x).permute(0, 2, 3, 4, 1).flatten(1, 3)
        return self.norm(pixels.transpose(1, 2))


def test_a_norm_over_pixels_in_a_row_gets_them_packed():
    model, x = Attention().eval(), torch.randn(1, 4, 4, 4, 4)
    near(fast(model, x)(x), model(x).detach())


def norm(channels: int) -> nn.Module:
    found = nn.BatchNorm2d(channels)
    for tensor in (found.running_mean, found.weight, found.bias):
        nn.init.uniform_(tensor, -1, 1)
    nn.init.uniform_(found.running_var, 0.5, 2)
    return found


def test_batch_norm_that_cannot_be_folded_becomes_part_of_an_epilogue():
    """Behind an activation, a sum, or a transposed convolution of groups."""
    model = made(
        nn.Conv2d(4, 8, 3), nn.ReLU(), norm(8),
        nn.Conv2d(8, 8, 3), nn.LeakyReLU(0.1), norm(8), nn.Hardswish(),
        nn.ConvTranspose2d(8, 8, 2, 2, groups=2), norm(8), nn.ReLU(),
    )  # fmt: skip
    x = torch.randn(2, 4, 8, 8)
    for compiled in (False, True):
        ready = fast(model, x, compiled)
        near(ready(x), model(x).detach())
        report = ct.reports()[-1] if compiled else ready.report
        assert [row.fused for row in report] == [
            "add relu mul add", "add leaky_relu:0.1 mul add hardswish", "add mul add relu"
        ]  # fmt: skip


def test_chains_go_on_behind_a_change_of_type():
    """As under autocast, where BatchNorm's numbers are of float32."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = made(nn.Conv2d(4, 8, 3), norm(8), nn.ReLU()), nn.Conv2d(8, 8, 3)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                y = self.a(x)
            return torch.relu(self.b(y.float()).int().float() * 2)

    model, x = Model().eval(), torch.randn(2, 4, 8, 8)
    ready = fast(model, x)
    torch.testing.assert_close(ready(x), model(x).detach(), rtol=0, atol=2)  # a number may be cut off otherwise
    assert [row.fused for row in ready.report] == ["add relu", "add"]


def test_batch_norm_that_others_read_the_input_of_stays():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 8, 3), norm(8)

        def forward(self, x):
            y = torch.relu(self.conv(x))
            return y + self.norm(y)

    model, x = Model().eval(), torch.randn(2, 4, 8, 8)
    ready = fast(model, x)
    near(ready(x), model(x).detach())
    assert [row.fused for row in ready.report] == ["add relu"]


def test_numbers_of_the_cpu_join_a_chain_of_the_gpu_where_they_are_constants():
    """As `x * torch.tensor(2.0).sqrt()`; meta tensors stand for those of a GPU."""

    def function(x, w, constant, given):
        y = TF.conv2d(x, w)
        return torch.relu(y * constant.sqrt()), torch.relu(TF.conv2d(x, w) * given)

    tensors = torch.empty(1, 4, 8, 8, device="meta"), torch.empty(8, 4, 3, 3, device="meta")
    graph = flat_graph(function, [*tensors, torch.tensor(2.0), torch.tensor(3.0)]).graph
    _, w, constant, _ = placeholders(graph)
    move_numbers(graph, constant_nodes(graph, [w, constant]))
    chains = [chain for node in graph.nodes if (chain := chain_of(node))]
    assert [chain.epilogue(chain.ends[-1]) for chain in chains] == ["mul relu", ""]
    assert value_of(chains[0].operands[0]).device.type == "meta"


class Experts(nn.Module):
    """CondConv: each image has filters of its own, as many groups as images."""

    def __init__(self) -> None:
        super().__init__()
        self.route, self.filters = nn.Linear(4, 3), nn.ParameterDict({"weight": torch.randn(3, 8 * 4 * 9)})

    def forward(self, x):
        filters = torch.sigmoid(self.route(x.mean((2, 3)))) @ self.filters["weight"]
        return TF.conv2d(x.view(1, 8, 6, 6), filters.view(16, 4, 3, 3), groups=2).view(2, 8, 4, 4).relu()


def test_filters_that_are_mixed_are_of_the_layer_that_has_them():
    model, x = Experts().eval(), torch.randn(2, 4, 6, 6)
    ready = fast(model, x)
    near(ready(x), model(x).detach())
    assert [row.layer for row in ready.report] == ["route", "filters"]


# ---- what is said ---------------------------------------------------------------------------------


_OWN = "its own mean and variance need sums over the result"
STOPS = [
    ("", lambda y, x: torch.relu(y)),
    ("GroupNorm needs sums over the result", lambda y, x: TF.group_norm(y, 2)),
    ("LayerNorm needs sums over the result", lambda y, x: TF.layer_norm(y.permute(0, 2, 3, 1), (8,))),
    (_OWN, lambda y, x: TF.batch_norm(y, None, None, training=True)),
    (_OWN, lambda y, x: TF.instance_norm(y)),
    ("its channels are split", lambda y, x: torch.stack(y.chunk(4, 1))),
    ("a view stands before relu", lambda y, x: torch.relu(y.view(2, 4, 6, 6))),
    ("no epilogue has sin", lambda y, x: torch.sin(y)),
    ("no epilogue has such a sub", lambda y, x: y - y),
    ("no epilogue has such an add", lambda y, x: torch.add(y, y, alpha=2)),
    ("mul reads a tensor of bool", lambda y, x: y * (x[:, :1] > 0)),
    ("gt makes a tensor of bool", lambda y, x: y > 0),
    ("relu and tanh read the same result", lambda y, x: torch.relu(y) + torch.tanh(y)),
    ("leaky_relu and relu read the same result", lambda y, x: [TF.leaky_relu(y, a) for a in (0.1, 0.2)] + [y.relu()]),
    ("more than one leaky_relu reads the result", lambda y, x: [TF.leaky_relu(y, slope) for slope in (0.1, 0.2)]),
]


@pytest.mark.parametrize(("reason", "function"), STOPS)
def test_the_report_says_why_an_epilogue_has_no_more(reason, function):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 8, 3, padding=1)

        def forward(self, x):
            return function(self.conv(x), x)

    (row,) = fast(Model().eval(), torch.randn(1, 4, 6, 6)).report
    assert row.why_not == "; ".join(filter(None, ("not on a GPU", reason)))


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.conv(x) / self.calls


class Image:
    def __init__(self, pixels) -> None:
        self.pixels = pixels


class OfAClass(Branches):
    def forward(self, image, size=None):
        return self.features(image.pixels)


@dataclass
class Images:
    pixels: torch.Tensor


class MakesAClass(Branches):
    def forward(self, x):
        return Images(self.features(x))


@pytest.mark.parametrize(
    ("model", "argument", "reason"),
    [
        (MakesAClass(2), lambda x: (x,), r"torch.export does not know the class of a result \((Runtime|Type)Error: "),
        (Branches(2), lambda x: (x,), r"it branches on values of tensors \(GuardOnDataDependentSymNode: "),
        (Writes(), lambda x: (x,), r"it writes into its inputs or buffers \(RuntimeError: "),
        (OfAClass(2), lambda x: (Image(x), x), r"torch.export does not know the class of an argument \(ValueError: "),
    ],
)
def test_the_reason_why_a_model_cannot_be_traced_is_said_in_a_line(model, argument, reason, capfd):
    x = torch.randn(2, 4, 4, 4)
    with pytest.warns(UserWarning, match=f"the whole cannot be traced: {reason}"):
        ready = ct.optimize(model.eval(), argument(x), inductor=False)
    assert len(ready.report.notes[0]) < 320
    assert capfd.readouterr().err == ""  # torch.export prints graphs


def test_a_call_without_images_leaves_the_others_alone(capfd, recwarn):
    """torch's shape function of upsampling takes none."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=2)).eval()
    ready = ct.optimize(model, torch.randn(2, 3, 6, 6), inductor=False)
    before = str(ready.report)
    assert ready(torch.randn(0, 3, 6, 6)).shape == (0, 4, 8, 8)
    assert str(ready.report) == before and not recwarn and capfd.readouterr().err == ""


# ---- what is given --------------------------------------------------------------------------------


class Tells(nn.Module):
    """Writes lines to stderr when it is run."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(4, 8, 3)

    def forward(self, x):
        print("one\ntwo", file=sys.stderr)
        return self.layer(x)


def test_what_a_model_writes_to_stderr_while_it_is_traced_stays_as_it_is(capsys):
    fast(Tells().eval(), torch.randn(1, 4, 6, 6))
    assert set(capsys.readouterr().err.splitlines()) == {"one", "two"}


def small() -> nn.Module:
    return made(nn.Conv2d(4, 8, 3), norm(8), nn.ReLU())


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        (torch.zeros(1, 3, 8, 8), "RuntimeError: Given groups=1, weight of size"),
        (torch.zeros(8, 8), "RuntimeError: Expected 3D"),
        (torch.zeros(1, 4, 8, 8).half(), "RuntimeError: Input type"),
        ((torch.zeros(1, 4, 8, 8),) * 2, "TypeError: .* positional arguments"),
        ((), "TypeError: .* missing"),
        ({"x": torch.zeros(1, 4, 8, 8)}, "TypeError: conv2d"),
    ],
)
def test_an_example_that_the_model_does_not_take_is_refused(example, reason):
    hint = "\nhint: pass a tensor, a tuple of the model's arguments, or kwargs={...}, those that are passed by name"
    with pytest.raises(ConvgenError, match=f"the model does not take the example: {reason}[^\n]*{hint}"):
        ct.optimize(small(), example, inductor=False)


def test_a_call_that_the_model_does_not_take_raises_the_model_s_own_error():
    ready = fast(small(), torch.randn(1, 4, 8, 8))
    before = str(ready.report)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="Given groups=1, weight of size"):
            ready(torch.randn(1, 3, 8, 8))
    assert str(ready.report) == before


class Fails(Writes):
    def forward(self, x):
        self.calls += 1
        x.add_(1)
        raise KeyError("of the model")


def test_what_is_tried_of_a_model_leaves_no_traces():
    model, x = Fails().eval(), torch.zeros(1, 4, 8, 8)
    with pytest.raises(ConvgenError, match="KeyError: 'of the model'"):
        ct.optimize(model, x)
    assert not model.calls and not x.any()


def test_models_that_cannot_be_optimized_are_refused():
    x = torch.zeros(1, 4, 8, 8)
    with pytest.raises(ConvgenError, match="layers without weights yet\nhint: call it once"):
        ct.optimize(made(nn.LazyConv2d(8, 3)), x)
    with pytest.raises(ConvgenError, match="the model is a ScriptModule"):
        ct.optimize(torch.jit.trace(small(), x), x)
    with pytest.raises(ConvgenError, match=r"torch\.nn\.Module\nhint: optimize its module"):
        ct.optimize(torch.export.export(small(), (x,)), x)
    with pytest.raises(ConvgenError, match="options is of type str: expected a dict of Inductor's options\nhint: "):
        ct.optimize(small(), x, options="reduce-overhead")


class Larger(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.conv = part, nn.Conv2d(8, 4, 3)

    def forward(self, x):
        return torch.relu(self.conv(self.part(x)))


def test_optimized_models_are_modules_like_others():
    """Optimized again, as a part of a model, and under torch.compile, which leaves them as they are."""
    model, x = small(), torch.randn(1, 4, 8, 8)
    ready = fast(model, x)
    assert fast(ready, x)._model is model
    larger = Larger(ready).eval()
    near(fast(larger, x)(x), larger(x).detach())
    assert [row.fused for row in fast(larger, x).report] == ["add relu"] * 2
    graphs = []
    torch.compiler.reset()
    with torch.no_grad():
        near(torch.compile(larger, backend=lambda graph, _: graphs.append(graph) or graph)(x), larger(x))
    targets = [node.target for graph in graphs for node in graph.graph.nodes]
    assert targets.count(torch.conv2d) == 1


def test_graphs_of_torch_export_and_of_fx_are_models():
    model, x = small(), torch.randn(1, 4, 8, 8)
    for graph in (torch.export.export(model, (x,)).module(), torch.fx.symbolic_trace(model)):
        ready = fast(graph, x)
        near(ready(x), model(x).detach())
        assert [row.fused for row in ready.report] == ["add relu"]
    with pytest.raises(ConvgenError, match="training mode"):
        fast(torch.fx.symbolic_trace(model.train()), x)


def test_float64_stays_exact():
    model, x = small().double(), torch.randn(1, 4, 8, 8).double()
    ready = fast(model, x)
    torch.testing.assert_close(ready(x), model(x).detach(), rtol=1e-13, atol=1e-13)
    assert ready.report.rows[0].why_not == "it is of float64: cast the model to float16, bfloat16 or float32"


def test_dynamo_may_pass_numbers_as_tensors():
    """As it does with BatchNorm's where sizes are dynamic."""
    model = small()
    torch.compiler.reset()
    compiled = torch.compile(model, backend=ct.compile_graph, dynamic=True, options={"inductor": False})
    for n, size in ((1, 8), (3, 9)):
        x = torch.randn(n, 4, size, size)
        with torch.no_grad():
            near(compiled(x), model(x))
        assert [row.fused for row in ct.reports()[-1]] == ["add relu"]
