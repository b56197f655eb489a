"""Sums of linear layers of one tensor, as LoRA's adapters make them, which become one, on a CPU."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn = torch.nn


class Adapted(nn.Module):
    """A linear layer with adapters, added one by one."""

    def __init__(self, base, *adapters, scaling: float = 0.5, dtype=None) -> None:
        super().__init__()
        self.base, self.scaling, self.dropout = base, scaling, nn.Dropout(0.1)
        sizes = base.in_features, base.out_features
        self.adapters = nn.ModuleList(
            nn.ModuleList((nn.Linear(sizes[0], r, bias=False), nn.Linear(r, sizes[1], bias=False))) for r in adapters
        )
        self.dtype = dtype  # of the adapters
        self.adapters.to(dtype)

    def forward(self, x):
        result = self.base(x)
        for down, up in self.adapters:
            result = result + up(down(self.dropout(x if self.dtype is None else x.to(self.dtype)))) * self.scaling
        return result.to(x.dtype)


def near(model, x, fused):
    fast = ct.optimize(model, x, inductor=False)
    found, expected = (torch.utils._pytree.tree_leaves(m(x)) for m in (fast, model))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b.detach())
    assert [row.fused for row in fast.report] == fused
    return fast


@given(st.integers(0, 2**32))
def test_adapters_become_part_of_their_layer(seed):
    draw = random.Random(seed)
    sizes = [draw.randint(1, 24) for _ in range(3)]
    counts = [[draw.randint(1, 4) for _ in range(draw.randint(0, 2))] for _ in range(2)]
    layers = [
        Adapted(nn.Linear(c, k, bias=draw.random() < 0.6), *ranks, scaling=draw.choice((0.5, 1.0, 2.0)))
        for c, k, ranks in zip(sizes, sizes[1:], counts, strict=False)
    ]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1]).eval()
    shape = [draw.randint(1, 5) for _ in range(draw.randint(1, 2))]
    has_bias = [layer.base.bias is not None for layer in layers]
    fused = ["add relu" if has_bias[0] else "relu", "add" if has_bias[1] else ""]
    notes = near(model, torch.randn(*shape, sizes[0]), fused).report.notes
    merged = sum(map(len, counts))
    layer = "1 linear layer is" if merged == 1 else f"{merged} linear layers are"
    assert (f"{layer} merged into another one of the same input" in notes) == (merged > 0)


@pytest.mark.parametrize("wide", [False, True])
def test_adapters_are_rounded_once(wide):
    dtype = torch.float16
    model = Adapted(nn.Linear(64, 32), 4).to(dtype).eval()
    if wide:
        model.dtype = torch.float32
        model.adapters.float()
    x = torch.randn(2, 9, 64).to(dtype)
    fast = ct.optimize(model, x, inductor=False)
    assert len(fast.report.rows) == 1
    with torch.no_grad():
        exact = copy.deepcopy(model).double()
        exact.dtype = None
        ours, theirs = ((m(x).double() - exact(x.double())).norm() for m in (fast, model))
        assert ours < 1.5 * theirs
        model.adapters[0][1].weight.mul_(8)  # it is packed again
        exact.adapters[0][1].weight.mul_(8)
        assert (fast(x).double() - exact(x.double())).norm() < 0.05 * exact(x.double()).norm()


@pytest.mark.parametrize("conv", [False, True])
def test_small_adapters_do_not_vanish_in_bfloat16(conv):
    """All weights are bfloat16's, and what an adapter adds is a quarter of a step of theirs."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            made = [nn.Linear(*sizes, bias=False) for sizes in ((64, 32), (64, 4), (4, 32))]
            if conv:
                made = [nn.Conv2d(layer.in_features, layer.out_features, 1, bias=False) for layer in made]
            self.base, self.down, self.up = made

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    model = Model().to(torch.bfloat16).eval()
    with torch.no_grad():
        model.base.weight.copy_(model.base.weight.sign() / 8)
        model.down.weight.fill_(2**-6)
        model.up.weight.fill_(2**-8)  # 4 * 2**-14, where a step is 2**-10 or 2**-11
        x = torch.randn(1, *((64, 5, 5) if conv else (9, 64))).to(torch.bfloat16)
        fast = ct.optimize(model, x, inductor=False)
        exact = copy.deepcopy(model).double()
        ours, theirs = ((m(x).double() - exact(x.double())).norm() for m in (fast, model))
    assert ours < 1.5 * theirs and len(fast.report.rows) == 3


OTHERS = {
    "another input": lambda a, b, c, x: a(x) + c(b(torch.tanh(x))),
    "a function between": lambda a, b, c, x: a(x) + c(torch.relu(b(x))),
    "another reader of the first": lambda a, b, c, x: a(x) + c(y := b(x)) + y.sum(),
    "another reader of the second": lambda a, b, c, x: a(x) + (y := c(b(x))) + torch.tanh(y),
    "the input": lambda a, b, c, x: x + c(b(x)),
    "no layer that is whole": lambda a, b, c, x: c(b(x)) + c(b(x)),
    "a factor of the layer": lambda a, b, c, x: 0.5 * a(x) + c(b(x)),
    "a factor that is a tensor": lambda a, b, c, x: a(x) + c(b(x)) * x.mean(),
    "other rows": lambda a, b, c, x: a(x) + c(b(x.flip(0))),
    "one row to all": lambda a, b, c, x: a(x) + c(b(x[:1])),
    "twice": lambda a, b, c, x: (y := a(x)) + y,
    "biases of both": lambda a, b, c, x: a(x) + a(x),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_sums_stay(kind):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

        def forward(self, x):
            return torch.sigmoid(OTHERS[kind](self.a, self.b, self.c, x))

    model, x = Model().eval(), torch.randn(3, 5, 8)
    fast = ct.optimize(model, x, inductor=False)
    torch.testing.assert_close(fast(x), model(x).detach())
    assert not any("merged" in note for note in fast.report.notes)
