"""Networks as people write them, on a CPU: what is fused of each, and what may happen to a model that was optimized."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen import ConvgenError  # noqa: E402
from convgen.torch.network.chains import chain_of  # noqa: E402
from convgen.torch.network.layouts import keep_strides  # noqa: E402
from convgen.torch.network.trace import faked, flat_graph, value_of  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("torch_draws")
nn, TF = torch.nn, torch.nn.functional


def near(found, expected) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


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
        return TF.silu(self.last(x + torch.tanh(self.b(x))))


MODELS = {
    Causal: ((2, 4, 12), ["cropped; add relu", "cropped; add relu add relu", "add"]),
    Trimmed: ((1, 4, 6, 6), ["cropped; add relu", "cropped; add gelu", "cropped; silu", "add", ""]),
    OneImage: ((4, 6, 6), ["add relu mul:0.5", "add prelu add", "add tanh add", "add silu"]),
}


@pytest.mark.parametrize("kind", MODELS)
def test_what_is_fused(kind):
    shape, fused = MODELS[kind]
    model, x = kind().eval(), torch.randn(shape)
    ready, expected = fast(model, x), model(x).detach()
    near(ready(x), expected)
    assert ready(x).stride() == expected.stride()
    assert [row.fused for row in ready.report] == fused


def test_results_have_torch_s_strides_for_axes_of_one_element_too():
    """On a GPU, as of meta tensors, convgen's own are those of channels last."""

    def function(x, w):
        return (torch.tanh(TF.conv1d(x, w)),)

    tensors = torch.empty(2, 4, 20, device="meta"), torch.empty(1, 4, 3, device="meta")
    graph = flat_graph(function, tensors).graph
    (chain,) = [chain for node in graph.nodes if (chain := chain_of(node))]
    chain.fuse(graph, chain.ends[-1])
    keep_strides(graph, lambda: faked(function, tensors)[1])
    (output,) = graph.find_nodes(op="output")
    assert value_of(output.args[0][0]).stride() == (18, 18, 1)


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
