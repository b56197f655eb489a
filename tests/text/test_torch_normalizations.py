"""InstanceNorm and GroupNorm of tensors with channels last, written out for Inductor, on a CPU."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from convgen.functional.arrays import channels_last, strides_in  # noqa: E402
from convgen.torch.network.normalizations import write_out  # noqa: E402
from convgen.torch.network.trace import flat_graph  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn, TF = torch.nn, torch.nn.functional
INSTANCE = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
NORMS = {
    "GroupNorm": lambda rank: nn.GroupNorm(4, 12),
    "GroupNorm of all channels": lambda rank: nn.GroupNorm(1, 12),
    "GroupNorm of each channel": lambda rank: nn.GroupNorm(12, 12, eps=1e-2),
    "GroupNorm without parameters": lambda rank: nn.GroupNorm(3, 12, affine=False),
    "InstanceNorm": lambda rank: INSTANCE[rank](12),
    "InstanceNorm with parameters": lambda rank: INSTANCE[rank](12, affine=True, eps=1e-3),
}


def image(rank: int, dtype, n: int = 2, last: bool = True):
    """Channels have means and spreads of their own."""
    extents = (n, 12, *(6, 5, 4)[:rank])
    x = torch.randn(extents) * torch.rand(12).view(-1, *[1] * rank) + torch.randn(12).view(-1, *[1] * rank)
    if not last:
        return x.to(dtype)
    return torch.empty_strided(extents, strides_in(extents, channels_last(rank)), dtype=dtype).copy_(x)


def written_out(model, x):
    """The graph of a model, and its result."""
    names, weights = [], []
    for name, weight in model.named_parameters():
        names.append(name)
        weights.append(weight.detach())

    def function(x, *weights):
        return (torch.func.functional_call(model, dict(zip(names, weights, strict=True)), x),)

    graph_module = flat_graph(function, [x, *weights])
    write_out(graph_module.graph)
    graph_module.recompile()
    with torch.no_grad():
        return graph_module, graph_module(x, *weights)[0]


def operators(graph_module) -> set[str]:
    return {str(node.target).removeprefix("aten.") for node in graph_module.graph.nodes if node.op == "call_function"}


def assert_near(made, model, x) -> None:
    """The result is of the input's type, and no farther from the model's in float64 than torch's own, but for what
    `x * scale + shift` cancels where a mean is larger than the deviation: some float32 steps."""
    right = copy.deepcopy(model).double()(x.double())
    error, own = ((found.double() - right).norm() / right.norm() for found in (made, model(x)))
    assert made.dtype == x.dtype and error <= 1.1 * own + 5e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", NORMS)
def test_written_out(name, rank, dtype):
    norm = NORMS[name](rank)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn_like(parameter))
    model = nn.Sequential(nn.Hardtanh(-4, 4), norm, nn.ReLU()).eval().to(dtype)
    x = image(rank, dtype)
    graph_module, made = written_out(model, x)
    assert "var_mean.correction" in operators(graph_module)
    assert not {o for o in operators(graph_module) if "norm" in o}
    assert_near(made, model, x)
    assert made.stride() == x.stride()  # so do what follows, and concatenations


def test_a_pair_reads_one_value_and_what_follows_is_renewed():
    """Two normalizations of one tensor, and a view behind them that wants torch's own layout."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.InstanceNorm2d(12), nn.GroupNorm(2, 12)

        def forward(self, x):
            y = TF.relu(x)
            return (self.a(y) + self.b(y)).flatten(2).view(2, 6, -1)

    model, x = Both(), image(2, torch.float32)
    graph_module, made = written_out(model, x)
    assert not {o for o in operators(graph_module) if "norm" in o}
    torch.testing.assert_close(made, model(x), rtol=1e-4, atol=1e-5)


class Wide(nn.Module):
    """Reads float32, as autocast has it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(3, 12)

    def forward(self, x):
        return TF.relu(self.norm(TF.relu(x).float()))


class WithMean(nn.Module):
    """Somebody reads the mean."""

    def forward(self, x):
        made, mean, _ = torch.native_group_norm(TF.relu(x), None, None, 2, 12, 30, 3, 1e-5)
        return made + mean.view(2, 3, 1, 1).repeat_interleave(4, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_slice_of_channels_is_read_as_it_lies(dtype):
    """Half of the channels are normalized, as HINet and IBN-Net do it."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.InstanceNorm2d(6, affine=True)

        def forward(self, x):
            first, second = TF.relu(x).chunk(2, 1)
            return torch.cat([self.norm(first), second], 1)

    model, x = Half().to(dtype), image(2, dtype)
    graph_module, made = written_out(model, x)
    assert not {o for o in operators(graph_module) if "norm" in o}
    assert_near(made, model, x)
    assert made.stride() == x.stride()


class OtherSizes(nn.Module):
    """Says sizes that are not the tensor's, of which torch takes the memory's order."""

    def forward(self, x):
        made, _, _ = torch.native_group_norm(TF.relu(x).contiguous(), None, None, 1, 24, 30, 6, 1e-5)
        return made


def test_under_autocast_float32_is_read():
    x = image(2, torch.float16)
    graph_module, made = written_out(model := Wide(), x)
    assert not {o for o in operators(graph_module) if "norm" in o}
    torch.testing.assert_close(made, model(x), rtol=1e-3, atol=1e-3)


LEFT = {
    "channels first": (nn.Sequential(nn.ReLU(), nn.GroupNorm(3, 12)), image(2, torch.float32, last=False)),
    "float64": (nn.Sequential(nn.ReLU(), nn.GroupNorm(3, 12)).double(), image(2, torch.float64)),
    "the mean is read": (WithMean(), image(2, torch.float32)),
    "sizes are said otherwise": (OtherSizes(), image(2, torch.float32)),
    "statistics of all images": (
        nn.Sequential(nn.ReLU(), nn.BatchNorm2d(12, track_running_stats=False)), image(2, torch.float32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_left_as_it_is(name):
    model, x = LEFT[name]
    graph_module, made = written_out(model, x)
    assert {o for o in operators(graph_module) if "norm" in o}
    torch.testing.assert_close(made, model(x))
