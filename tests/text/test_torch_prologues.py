"""BatchNorm and gates before 1x1 convolutions, on a CPU: found, computed rightly, and asked of convgen as prologues."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen import frontend  # noqa: E402
from convgen.kernels import strategies  # noqa: E402
from convgen.targets import TARGETS  # noqa: E402
from convgen.torch.launch import Served, recipe  # noqa: E402
from convgen.torch.network import choice  # noqa: E402
from convgen.torch.network.chains import chain_of  # noqa: E402
from convgen.torch.network.prologues import opened  # noqa: E402
from convgen.torch.network.trace import flat_graph  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn, TF = torch.nn, torch.nn.functional


def norm(c: int, **options):
    made = nn.BatchNorm2d(c, **options)
    nn.init.uniform_(made.running_var, 0.5, 2)
    nn.init.uniform_(made.running_mean, -1, 1)
    if made.affine:
        nn.init.uniform_(made.weight, -2, 2)
        nn.init.uniform_(made.bias, -1, 1)
    return made


class Dense(nn.Module):
    """DenseNet's layer: of a concatenation, normalized, to fewer channels; then 3x3."""

    def __init__(self, c: int, **options) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(c, **options), nn.Conv2d(c, 16, 1)
        self.norm2, self.conv2 = norm(16), nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, *parts):
        y = self.conv1(torch.relu(self.norm1(torch.cat(parts, 1))))
        return self.conv2(torch.relu(self.norm2(y)))


class Block(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.first, self.second = Dense(8, **options), Dense(16, **options)

    def forward(self, x):
        y = self.first(x)
        return torch.cat([x, y, self.second(x, y)], 1)


class Gated(nn.Module):
    """Squeeze-and-excitation, and the 1x1 convolution behind it, with an activation between them or none."""

    def __init__(self, activation=lambda x: x) -> None:
        super().__init__()
        self.activation = activation
        self.squeeze, self.conv = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 24, 1, stride=2)

    def forward(self, x):
        gate = torch.sigmoid(self.squeeze(x.mean((2, 3), keepdim=True)))
        return self.conv(self.activation(gate * x))


@pytest.mark.parametrize("options", [{}, {"affine": False}])
def test_a_dense_block_is_right_and_follows_its_weights(options):
    model, x = Block(**options).eval(), torch.randn(3, 8, 5, 6)
    fast = ct.optimize(model, x, inductor=False)
    assert [row.fused for row in fast.report] == ["before: mul add relu; add relu", "add"] * 2
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
        model.first.norm1.running_mean.add_(1)
        model.second.conv1.weight.mul_(-2)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("before", "activation"),
    [
        ("mul", lambda x: x), ("mul relu", torch.relu), ("mul silu", lambda x: x * torch.sigmoid(x)),
        ("mul hardswish", lambda x: x * TF.relu6(x + 3) / 6), ("", lambda x: x * x.sum()),
        ("", lambda x: x * (x > 0.2)),
    ],
)  # fmt: skip
def test_a_gate_is_right(before, activation):
    model, x = Gated(activation).eval(), torch.randn(3, 16, 6, 5)
    fast = ct.optimize(model, x, inductor=False)
    assert [row.fused for row in fast.report] == ["add sigmoid", f"before: {before}; add" if before else "add"]
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_loses_no_more_than_torch_does(dtype):
    model, x = Dense(24).eval().to(dtype), torch.randn(4, 24, 9, 9).to(dtype)
    exact = Dense(24).eval().double()
    exact.load_state_dict(model.state_dict())
    fast = ct.optimize(model, x, inductor=False)
    assert fast.report.rows[0].fused.startswith("before: mul add relu")
    with torch.no_grad():
        expected = exact(x.double())
        ours, theirs = (m(x).double() - expected for m in (fast, model))
    assert ours.norm() < 1.5 * theirs.norm()


def chains(function, *tensors):
    graph = flat_graph(lambda *given: (function(*given),), list(tensors)).graph
    return [found for node in graph.nodes if (found := chain_of(node))]


def normalized(x, statistics):
    return TF.batch_norm(x, *statistics.unbind())


CHANNELS = """operand p0: f32[c]
    operand p1: f32[c]
    u0 = x * p0
    u1 = u0 + p1
    x = relu(u1)
"""
IMAGES = """operand p0: f16[n, c]
    x = x * p0
"""


@pytest.mark.parametrize(
    ("prologue", "before", "given"),
    [
        (CHANNELS, lambda x, s: torch.relu(normalized(x, s)), (4, 72)),
        (IMAGES, lambda x, gate: x * gate, (4, 72, 1, 1)),
    ],
    ids=["norm", "gate"],
)
def test_what_a_gpu_is_asked_for(prologue, before, given):
    """tma_im2col's prologue: a scale and a shift of channels in float32, or a gate of images and channels."""
    x = torch.randn(4, 72, 8, 8).half().contiguous(memory_format=torch.channels_last)
    w, bias = torch.randn(32, 72, 1, 1).half(), torch.randn(32).half()
    function = lambda x, w, b, other: torch.relu(TF.conv2d(before(x, other), w, b))  # noqa: E731
    (chain,) = chains(function, x, w, bias, torch.rand(given).half())
    way = opened(chain)
    assert way is not None
    text = recipe(*choice._values(way, way.ends[-1])).convolution.text
    assert f"prologue {{\n    {prologue}" in text and "y = relu(t0)" in text
    problem = frontend.load(text)[0].problem
    assert not strategies.STRATEGIES["tma_im2col"].obstacles(problem, TARGETS["sm_90a"], {})


PASSES = {
    "read twice": lambda x, w, s: TF.conv2d(y := torch.relu(normalized(x, s)), w) + y[:, :8],
    "normalized read twice": lambda x, w, s: TF.conv2d(torch.relu(y := normalized(x, s)), w) + y[:, :8],
    "padding": lambda x, w, s: TF.conv2d(torch.relu(normalized(x, s)), w, padding=1),
    "taps": lambda x, w, s: TF.conv2d(torch.relu(normalized(x, s)), w.expand(8, 16, 2, 2)),
    "groups": lambda x, w, s: TF.conv2d(torch.relu(normalized(x, s)), w[:, :8], groups=2),
    "channels": lambda x, w, s: TF.conv2d(normalized(x[:, :12], s[:, :12]), w[:, :12]),
    "statistics of the batch": lambda x, w, s: TF.conv2d(TF.batch_norm(x, None, None, *s[:2].unbind(), True), w),
    "an activation alone": lambda x, w, s: TF.conv2d(torch.relu(x), w),
    "a product of images": lambda x, w, s: TF.conv2d(x * x.abs(), w),
}


@pytest.mark.parametrize("name", PASSES)
def test_what_stays_a_pass(name):
    (chain,) = chains(PASSES[name], torch.randn(2, 16, 6, 6), torch.randn(8, 16, 1, 1), torch.rand(4, 16))
    assert opened(chain) is None


@pytest.mark.parametrize("pass_us", [1.0, 9.0])
def test_a_prologue_is_taken_where_it_is_faster_than_a_pass(monkeypatch, pass_us):
    class Timer:
        """The kernel takes 10, with a prologue 15; aten 20."""

        def fused(self, arguments, left, source=None, opens=False):
            return 10.0 + 5 * (arguments[-1] == "mul") + pass_us * opens + (left or 0)

        def aten(self, arguments, left, linear=False, source=None, opens=False):
            return 20.0 + pass_us * opens + (left or 0)

    monkeypatch.setattr(choice, "served", lambda *_, **__: Served(lambda *_: None))
    x, w, gate = torch.randn(4, 72, 8, 8).half(), torch.randn(32, 72, 1, 1).half(), torch.rand(4, 72, 1, 1).half()
    (chain,) = chains(lambda x, w, g: torch.relu(TF.conv2d(x * g, w)), x, w, gate)
    measured = choice.Measured(measure=False)
    measured._timer = Timer()
    chosen = measured.choose(chain, "conv")
    assert chosen.row.us == min(15.0, 10.0 + pass_us) and chosen.row.aten_us == 21.0 + pass_us
    assert chosen.row.fused == ("before: mul; relu" if pass_us > 5 else "relu")
