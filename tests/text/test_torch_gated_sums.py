"""BatchNorm's gradient sums behind squeeze-and-excitation, and the sigmoids and reductions of Inductor's, on a CPU."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import sympy

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch._functorch.aot_autograd import make_boxed_func  # noqa: E402
from torch._inductor.dependencies import MemoryDep  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import convgen.torch as ct  # noqa: E402
from convgen.torch.network import training  # noqa: E402
from convgen.torch.network.reductions import in_loops  # noqa: E402
from convgen.torch.network.sigmoids import write_sigmoids  # noqa: E402
from convgen.torch.network.trace import is_call, value_of  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("torch_draws")
A = torch.ops.aten
ACTIVATIONS = [nn.SiLU, nn.ReLU, nn.Hardswish, nn.ReLU6, nn.Identity]


class Gated(nn.Module):
    """y = z * gate(mean of z), as squeeze-and-excitation has it; of `other` the mean is of something else."""

    def __init__(self, channels: int, gate: nn.Module, other: bool = False) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, 3, 1), nn.Conv2d(3, channels, 1)
        self.gate, self.other = gate, other

    def forward(self, z):
        seen = z.detach() if self.other else z
        return z * self.gate(self.excite(torch.relu(self.squeeze(seen.mean((2, 3), keepdim=True)))))


def block(activation: type[nn.Module], gate: nn.Module, other: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        activation(),
        Gated(6, gate, other),
        nn.Conv2d(6, 4, 1, bias=False),
        nn.BatchNorm2d(4),
    )


@pytest.fixture(params=[False])
def graphs(request, monkeypatch) -> list:
    """The graphs that Inductor gets.  It compiles them where the parameter says so; else they run as they are."""
    torch._dynamo.reset()
    seen = []
    usual = training.compiled_combined

    def compiled(graph_module, inputs, **facts):
        seen.append(copy.deepcopy(graph_module.graph))
        return usual(graph_module, inputs, **facts) if request.param else make_boxed_func(graph_module.forward)

    monkeypatch.setattr(training, "compiled_combined", compiled)
    return seen


def pixel_sums(graph) -> int:
    """Sums over the pixels of each image's channels."""
    sums = [node for node in graph.nodes if is_call(node, A.sum.dim_IntList) and list(node.args[1]) == [2, 3]]
    return sum(value_of(node.args[0]).shape[2:].numel() > 1 for node in sums)


def step(model, x, weights, autocast: bool = False):
    """The result's and the gradients' values, of a loss that weighs each result."""
    for p in model.parameters():
        p.grad = None
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = model(x)
    (y.double() * weights).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


def fresh(activation, gate, other=False):
    model = block(activation, gate, other).train().to(memory_format=torch.channels_last)
    nn.init.uniform_(model[1].weight, 0.5, 2)
    nn.init.uniform_(model[1].bias, -1, 1)
    x = torch.randn(3, 3, 7, 9).to(memory_format=torch.channels_last)
    return model, x, torch.randn(3, 4, 5, 7)


@pytest.mark.parametrize("gate", [nn.Sigmoid(), nn.Hardsigmoid()], ids=["sigmoid", "hardsigmoid"])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda kind: kind.__name__)
def test_sums_are_made_before_the_gate_s_gradient(activation, gate, graphs):
    """In one pass: the gate's sum, and two of each of BatchNorm's; gradients are those of a float64 step."""
    model, x, weights = fresh(activation, gate)
    right = step(copy.deepcopy(model).double(), x.double(), weights)
    found = step(torch.compile(copy.deepcopy(model), backend=ct.compile_graph, dynamic=False), x, weights)
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-4, atol=2e-4)
    assert pixel_sums(graphs[-1]) == 5


@pytest.mark.parametrize("graphs", [True], indirect=True)
def test_sums_of_16_bit_gradients(graphs):
    model, x, weights = fresh(nn.SiLU, nn.Sigmoid())
    right = step(copy.deepcopy(model).double(), x.double(), weights)
    fast = torch.compile(copy.deepcopy(model), backend=ct.compile_graph, dynamic=False)
    for a, b in zip(step(fast, x, weights, autocast=True), right, strict=True):
        assert (a.double() - b).norm() <= 0.1 * b.norm() + 0.05
    assert pixel_sums(graphs[-1]) == 5


def test_one_pass_that_makes_all_stays(graphs):
    """Where the gate's gradient does not go through the pixels' mean, the sums are as they were."""
    model, x, weights = fresh(nn.SiLU, nn.Sigmoid(), other=True)
    right = step(copy.deepcopy(model).double(), x.double(), weights)
    found = step(torch.compile(copy.deepcopy(model), backend=ct.compile_graph, dynamic=False), x, weights)
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-4, atol=2e-4)
    assert pixel_sums(graphs[-1]) == 1


# ---- what Inductor writes -----------------------------------------------------------------------


def silu(z):
    return z / (1 + torch.exp(-z))


def silu_gradient(z):
    sigmoid = torch.exp(-z).add(1).reciprocal()
    return sigmoid * (1 + z * (1 - sigmoid))


@pytest.mark.parametrize("function", [silu, silu_gradient])
def test_sigmoids_are_written_as_such(function):
    """With the same values, of infinities and NaN, too."""
    z = torch.tensor([0.0, -0.0, 1.5, -3.25, 20, -20, 88, -88, 1e30, -1e30, torch.inf, -torch.inf, torch.nan])
    made = make_fx(function, tracing_mode="fake")(z)
    assert write_sigmoids(made.graph)
    made.recompile()
    assert not any(is_call(node, A.exp.default) for node in made.graph.nodes)
    torch.testing.assert_close(made(z), function(z), rtol=1e-6, atol=1e-30, equal_nan=True)


def test_other_formulas_of_exp_stay():
    def others(z):
        return 1 / (2 + torch.exp(-z)), 1 + torch.exp(-z), torch.exp(z) / (1 + torch.exp(z)), silu(z.double())

    made = make_fx(others, tracing_mode="fake")(torch.randn(3))
    before = [node.target for node in made.graph.nodes]
    write_sigmoids(made.graph)
    assert [node.target for node in made.graph.nodes] == before


def features(results: int, elements: int, *reads):
    """A reduction of Inductor's, by the indices of what it reads: of (result, element), or of a result alone."""
    result, element = sympy.symbols("c0 c1", integer=True)
    found = []
    for index in reads:
        made = index(result, element)
        names = (result, element) if element in made.free_symbols else (result,)
        found.append(MemoryDep("x", made, names, tuple(map(sympy.Integer, (results, elements)[: len(names)]))))
    node = SimpleNamespace(read_writes=SimpleNamespace(reads=found))
    sizes = {"numel": sympy.Integer(results), "reduction_numel": sympy.Integer(elements)}
    return SimpleNamespace(**sizes, reduction_nodes=lambda: [node])


APART, TOGETHER, SCALE = lambda r, e: r + 1536 * e, lambda r, e: 49 * r + e, lambda r, e: r


@pytest.mark.parametrize(
    ("reduction", "persistent"),
    [
        (features(1 << 17, 49, APART, SCALE), False),
        (features(1 << 17, 49, APART, APART), False),
        (features(1 << 17, 49, TOGETHER, SCALE), True),  # channels first
        (features(1 << 17, 49, TOGETHER, APART), True),  # as of a softmax with a bias
        (features(1 << 17, 49, SCALE), True),
        (features(1 << 17, 9, APART), True),
        (features(1 << 10, 49, APART), True),
    ],
)
def test_many_sums_of_elements_that_lie_apart_are_loops(reduction, persistent, monkeypatch):
    monkeypatch.setattr(type(V.choices), "should_use_persistent_reduction", lambda *_: True)
    usual = V.choices
    with in_loops():
        assert V.choices.should_use_persistent_reduction(reduction, False) is persistent
    assert V.choices is usual
