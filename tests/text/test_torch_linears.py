"""Linear layers that become convolutions, of which some stay convolutions and others become linear layers again: on a
GPU measurements decide which, here it is drawn."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen.torch.network import choice, prepare  # noqa: E402
from convgen.torch.network.report import Row  # noqa: E402
from convgen.torch.network.trace import value_of  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn, TF = torch.nn, torch.nn.functional


class Drawn(choice.OnCpu):
    """Takes any part of a chain, or nothing of it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, chain, layer: str):
        chain = self._random.choice(choice._ways(chain))
        end = self._random.choice([*chain.ends, None])
        return choice.Choice(chain, end, Row(layer, "aten", fused=chain.fused(end) if end else ""))


class CosineAttention(nn.Module):
    """Attention over windows of an image, as in Swin V2: heads are slices of one linear layer's channels, and keys are
    multiplied transposed."""

    def __init__(self, c: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.heads, self.first = heads, nn.Conv2d(3, c, 4, 4)
        self.qkv, self.out = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.norm, self.mlp = nn.LayerNorm(c), nn.Sequential(nn.Linear(c, 2 * c), nn.GELU(), nn.Linear(2 * c, c))

    def forward(self, x):
        x = self.first(x).permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        windows = x.view(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = self.qkv(windows).reshape(len(windows), 4, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        weights = (TF.normalize(q, dim=-1) @ TF.normalize(k, dim=-1).transpose(-2, -1)).softmax(-1)
        y = self.out((weights @ v).transpose(1, 2).reshape(windows.shape))
        y = y.view(n, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        x = x + self.norm(y)
        return x + self.mlp(x)


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("seed", range(4))
def test_what_becomes_linear_again_lies_as_its_readers_want(seed: int, memory_format, monkeypatch, recwarn) -> None:
    monkeypatch.setattr(prepare, "OnCpu", lambda: Drawn(seed))
    model = CosineAttention().eval().to(memory_format=memory_format)
    x = torch.randn(2, 3, 32, 32).contiguous(memory_format=memory_format)
    optimized = ct.optimize(model, x, inductor=False)
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), model(x), rtol=1e-4, atol=1e-5)
    assert not any("cannot be traced" in str(warning.message) for warning in recwarn)


class Gated(nn.Module):
    """Tokens, and a gate of a layer that stays a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.wide, self.narrow = nn.Linear(8, 16, bias=False), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.narrow(TF.silu(self.gate(x)) * self.wide(x))


def test_readers_of_what_stays_linear_know_how_it_lies(monkeypatch) -> None:
    chains = []

    def choose(self, chain, layer: str):
        chains.append(chain)
        return choice.Choice(chain, None, Row(layer, "aten"))

    monkeypatch.setattr(choice.OnCpu, "choose", choose)
    model, x = Gated().eval(), torch.randn(2, 5, 8)
    torch.testing.assert_close(ct.optimize(model, x, inductor=False)(x), model(x).detach())
    tokens = [value_of(operand) for chain in chains for operand in chain.operands if value_of(operand).dim() == 3]
    assert len(tokens) == 3 and all(each.stride(1) == 1 for each in tokens)


class Excited(nn.Module):
    """Squeeze and excitation by linear layers, and a classifier: both over rows of channels."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.conv, self.squeeze, self.excite = nn.Conv2d(3, c, 3), nn.Linear(c, 4), nn.Linear(4, c)
        self.head = nn.Sequential(nn.Linear(c, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 5, bias=False))

    def forward(self, x):
        y = self.conv(x)
        gate = torch.sigmoid(self.excite(TF.relu(self.squeeze(y.mean((2, 3))))))
        return self.head((y * gate[:, :, None, None]).amax((2, 3)))


def test_activations_behind_linear_layers_of_rows_are_fused() -> None:
    model, x = Excited().eval(), torch.randn(4, 3, 8, 8)
    optimized = ct.optimize(model, x, inductor=False)
    torch.testing.assert_close(optimized(x), model(x).detach())
    fused = {row.layer: row.fused for row in optimized.report}
    assert fused == {"conv": "add", "squeeze": "add relu", "excite": "add sigmoid", "head.0": "add relu", "head.3": ""}


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_what_stays_linear_lie_as_before(seed: int, monkeypatch) -> None:
    monkeypatch.setattr(prepare, "OnCpu", lambda: Drawn(seed))
    model, x = Excited().eval(), torch.randn(4, 3, 8, 8)
    found, expected = ct.optimize(model, x, inductor=False)(x), model(x).detach()
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


@pytest.mark.parametrize(
    "x",
    [torch.randn(8, 4).T, torch.randn(8).expand(4, 8), torch.randn(0, 8), torch.randn(4, 16)[:, ::2], torch.randn(8)],
    ids=["columns", "the same row", "no row", "every second channel", "one row without an axis"],
)
def test_rows_that_lie_otherwise(x) -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 3)).eval()
    expected = model(x).detach()
    found = ct.optimize(model, x, inductor=False)(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


def trained(norm: nn.Module) -> nn.Module:
    nn.init.uniform_(norm.running_var, 0.5, 2)
    for tensor in filter(lambda t: t is not None, (norm.running_mean, norm.weight, norm.bias)):
        nn.init.uniform_(tensor, -1, 1)
    return norm


class Normalized(nn.Module):
    """Linear layers with BatchNorm behind them: of tokens as rows (LeViT's), of tokens behind channels, of rows."""

    def __init__(self, affine: bool = True) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(*sizes) for sizes in ((8, 16), (16, 8), (8, 6), (6, 5)))
        self.linears[1].bias = None
        self.norms = nn.ModuleList(trained(nn.BatchNorm1d(k, affine=affine)) for k in (16, 8, 6, 5))

    def by_rows(self, i: int, x):
        y = self.linears[i](x)
        return self.norms[i](y.flatten(0, 1)).reshape_as(y)

    def forward(self, x):
        y = x + self.by_rows(1, TF.hardswish(self.by_rows(0, x)))
        z = torch.relu(self.norms[2](self.linears[2](y).transpose(1, 2)))
        return y, z, torch.sigmoid(self.norms[3](self.linears[3](z.mean(2))))


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norms_behind_linear_layers_are_fused(affine: bool) -> None:
    model, x = Normalized(affine).eval(), torch.randn(3, 4, 8)
    fast = ct.optimize(model, x, inductor=False)
    for found, expected in zip(fast(x), model(x), strict=True):
        torch.testing.assert_close(found, expected.detach())
    fused = ["add mul add hardswish", "mul add add", "add mul add relu", "add mul add sigmoid"]
    assert [row.fused for row in fast.report] == fused


@pytest.mark.parametrize("seed", range(6))
def test_batch_norms_behind_what_stays_linear(seed: int, monkeypatch) -> None:
    monkeypatch.setattr(prepare, "OnCpu", lambda: Drawn(seed))
    model, x = Normalized().eval(), torch.randn(3, 4, 8)
    for found, expected in zip(ct.optimize(model, x, inductor=False)(x), model(x), strict=True):
        torch.testing.assert_close(found, expected.detach())


def test_batch_norms_of_their_own_statistics_or_of_what_others_read_stay() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.norms = nn.ModuleList(trained(nn.BatchNorm1d(8)) for _ in range(2))

        def forward(self, x):
            a, b, c = (linear(x) for linear in self.linears)
            own = TF.batch_norm(a, None, None, training=True)
            return own, self.norms[0](b) * torch.tanh(b), self.norms[1](c[:, :4].repeat(1, 2))

    model, x = Model().eval(), torch.randn(5, 8)
    for found, expected in zip(ct.optimize(model, x, inductor=False)(x), model(x), strict=True):
        torch.testing.assert_close(found, expected.detach())
