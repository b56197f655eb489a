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
