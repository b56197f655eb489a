"""Sums of convolutions of one tensor, which become one convolution, on a CPU."""

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
LAYERS = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d), 3: (nn.Conv3d, nn.BatchNorm3d)}


def trained(norm):
    nn.init.uniform_(norm.running_var, 0.5, 2)
    for tensor in (norm.running_mean, norm.weight, norm.bias):
        nn.init.uniform_(tensor, -1, 1)
    return norm


def conv(taps=3, c=8, k=8, **options):
    return nn.Conv2d(c, k, taps, padding=taps // 2, **options)


class Sum(nn.Module):
    """Branches of one tensor, added or subtracted one by one or in pairs, and what follows."""

    def __init__(self, seed: int, rank: int) -> None:
        super().__init__()
        draw = self.draw = random.Random(seed)
        conv, norm = LAYERS[rank]
        groups, stride = draw.choice((1, 1, 2, 8)), draw.choice((1, 1, 2))
        self.c, k = 8, draw.choice((8, 16))
        reach = [draw.randint(1, 3) for _ in range(rank)]  # taps on either side
        self.branches = nn.ModuleList()
        for i in range(draw.randint(2, 5)):
            if i and stride == 1 and k == self.c and draw.random() < 0.3:
                self.branches.append(trained(norm(k)))
                continue
            taps, dilation = [2 * n + 1 for n in reach], [1] * rank
            if i:  # of the same pixels, or fewer
                dilation = [draw.choice([d for d in (1, 2, 3) if d <= n]) for n in reach]
                taps = [2 * draw.randint(0, n // d) + 1 for n, d in zip(reach, dilation, strict=True)]
            padding = [d * (r // 2) for r, d in zip(taps, dilation, strict=True)]
            layer = conv(self.c, k, taps, stride, padding, dilation, groups, draw.random() < 0.5)
            self.branches.append(nn.Sequential(layer, trained(norm(k))) if draw.random() < 0.7 else layer)
        self.signs = [draw.choice((1, 1, -1)) for _ in self.branches]
        self.pairs = draw.random() < 0.5
        self.eval()

    def forward(self, x):
        terms = list(zip((branch(x) for branch in self.branches), self.signs, strict=True))
        if self.pairs and len(terms) > 3 and self.signs[0] == 1:
            (a, first), (b, second), *terms = terms
            terms.append((a + b, first) if first == second else (a - b, first))
        total = 0
        for term, sign in sorted(terms, key=lambda term: -term[1]):
            total = total + term if sign == 1 else total - term
        return torch.relu(total)


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_a_sum_of_branches_is_one_convolution(seed, rank):
    model = Sum(seed, rank)
    x = torch.randn(2, model.c, *[random.Random(seed).randint(7, 9) for _ in range(rank)])
    fast = ct.optimize(model, x, inductor=False)
    torch.testing.assert_close(fast(x), model(x).detach(), rtol=1e-4, atol=1e-4)
    if 1 in model.signs:  # else it begins with 0 - branch, which is a function of its own
        count = len(model.branches) - 1
        layers = "1 layer is" if count == 1 else f"{count} layers are"
        assert [row.fused.removeprefix("add ") for row in fast.report.rows] == ["relu"]
        assert f"{layers} merged into a convolution of the same input" in fast.report.notes


class Adapted(nn.Module):
    """A convolution with LoRA's adapters, with biases or without, and BatchNorm behind one."""

    def __init__(self, seed: int, rank: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        layer, norm = LAYERS[rank]
        taps, stride = draw.choice((1, 3)), draw.choice((1, 2))
        self.base = layer(6, 8, taps, stride, taps // 2, bias=draw.random() < 0.5)
        self.adapters = nn.ModuleList()
        for _ in range(draw.randint(1, 2)):
            biases, own = draw.random() < 0.3, draw.choice((1, taps))
            down = layer(6, draw.randint(1, 4), own, stride, own // 2, bias=biases)
            behind = [trained(norm(8))] if draw.random() < 0.3 else []
            self.adapters.append(nn.Sequential(down, layer(down.out_channels, 8, 1, bias=biases), *behind))
        self.scaling = draw.choice((0.25, 1.0, -2.0))
        self.eval()

    def forward(self, x):
        result = self.base(x)
        for adapter in self.adapters:
            result = result + adapter(x) * self.scaling
        return torch.relu(result)


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_adapters_become_part_of_their_convolution(seed, rank):
    model, x = Adapted(seed, rank), torch.randn(2, 6, *[5, 7, 4][:rank])
    fast = ct.optimize(model, x, inductor=False)
    torch.testing.assert_close(fast(x), model(x).detach(), rtol=1e-4, atol=1e-4)
    assert [row.fused.removeprefix("add ") for row in fast.report.rows] == ["relu"]


OTHERS = {
    "no convolution that is whole": (conv(3, 8, 2), conv(1, 2, 8), lambda a, b, x: b(a(x)) + b(a(x))),
    "three taps behind": (conv(3), conv(3), lambda a, b, x: a(x) + b(a(x))),
    "what is between is read": (conv(1), conv(1), lambda a, b, x: a(x) + b(y := a(x)) + torch.tanh(y)),
    "a factor that is a tensor": (conv(), conv(1), lambda a, b, x: a(x) + b(x) * x.mean()),
    "another tensor": (conv(), conv(1), lambda a, b, x: a(x) + b(torch.tanh(x))),
    "another reader": (conv(), conv(1), lambda a, b, x: (y := a(x)) + b(x) + torch.tanh(y)),
    "the tensor itself": (conv(), conv(1), lambda a, b, x: a(x) + x),
    "a function between": (conv(), conv(1), lambda a, b, x: a(x) + torch.relu(b(x))),
    "itself": (conv(), conv(1), lambda a, b, x: (y := a(x)) + y),
    "a factor": (conv(), conv(1), lambda a, b, x: torch.add(a(x), b(x), alpha=2)),
    "groups": (conv(), conv(1, groups=8), lambda a, b, x: a(x) + b(x)),
    "other pixels": (nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=2, dilation=2), None),
    "half of a dilation": (nn.Conv2d(8, 8, 3, padding=2, dilation=2), conv(), None),
    "a cross": (nn.Conv2d(8, 8, (1, 3), padding=(0, 1)), nn.Conv2d(8, 8, (3, 1), padding=(1, 0)), None),
    "padding at one side": (conv(), nn.Conv2d(8, 8, 2), lambda a, b, x: a(x)[..., 1:, 1:] + b(x)),
    "one channel to all": (conv(), conv(1, k=1), None),
    "transposed": (conv(), nn.ConvTranspose2d(8, 8, 1), None),
    "strides": (conv(1, stride=2), conv(), lambda a, b, x: a(x) + b(x[..., ::2, ::2])),
}


class Two(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.a, self.b, function = OTHERS[kind]
        self.function = function or (lambda a, b, x: a(x) + b(x))

    def forward(self, x):
        return torch.sigmoid(self.function(self.a, self.b, x))


@pytest.mark.parametrize("kind", OTHERS)
def test_other_sums_stay(kind):
    model, x = Two(kind).eval(), torch.randn(2, 8, 6, 7)
    fast = ct.optimize(model, x, inductor=False)
    torch.testing.assert_close(fast(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    assert not any("merged" in note for note in fast.report.notes)


def test_batch_norms_alone_stay():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(trained(nn.BatchNorm2d(8)) for _ in range(2))

        def forward(self, x):
            return self.norms[0](x) + self.norms[1](x)

    model, x = Model().eval(), torch.randn(2, 8, 6, 7)
    fast = ct.optimize(model, x, inductor=False)
    torch.testing.assert_close(fast(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    assert not fast.report.rows and not any("merged" in note for note in fast.report.notes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_merged_filters_are_rounded_once(dtype):
    class Block(nn.Module):
        """RepVGG's."""

        def __init__(self, c: int, k: int, stride: int = 1) -> None:
            super().__init__()
            self.a = nn.Sequential(conv(3, c, k, stride=stride, bias=False), trained(nn.BatchNorm2d(k)))
            self.b = nn.Sequential(conv(1, c, k, stride=stride, bias=False), trained(nn.BatchNorm2d(k)))
            self.c = trained(nn.BatchNorm2d(c)) if c == k and stride == 1 else None

        def forward(self, x):
            return torch.relu(self.a(x) + self.b(x) + (self.c(x) if self.c else 0))

    model = nn.Sequential(Block(8, 16, 2), Block(16, 16), Block(16, 16)).eval().to(dtype)
    x = torch.randn(2, 8, 16, 16).to(dtype)
    fast = ct.optimize(model, x, inductor=False)
    assert len(fast.report.rows) == 3
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(x.double())
        ours, theirs = ((m(x).double() - expected).norm() for m in (fast, model))
        assert ours < 1.1 * theirs
        model[1].b[0].weight.mul_(2)
        model[1].c.running_mean.add_(1)
        changed = copy.deepcopy(model).double()(x.double())
        assert (fast(x).double() - changed).norm() < 0.2 * (expected - changed).norm()
