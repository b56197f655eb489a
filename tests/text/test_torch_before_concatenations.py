"""Functions of concatenations, which move to the convolutions before these, on a CPU."""

from __future__ import annotations

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
CHANNELS = 8


def trained(norm):
    nn.init.uniform_(norm.running_var, 0.5, 2)
    for tensor in (norm.running_mean, norm.weight, norm.bias):
        if tensor is not None:
            nn.init.uniform_(tensor, -1, 1)
    return norm


class Scale(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.rand(shape) + 0.5)

    def forward(self, x):
        return x * self.factor


class Joined(nn.Module):
    """Convolutions of one tensor, with functions of some and other tensors among them, joined; functions of the whole;
    a residual of the same channels among these."""

    def __init__(self, seed: int, rank: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        conv, norm = LAYERS[rank]
        self.parts, self.functions, self.convolutions, every = nn.ModuleList(), nn.ModuleList(), 0, []
        for _ in range(draw.randint(2, 4)):
            k = draw.choice((8, 8, 16, 5))
            kind = draw.choice(("conv", "conv", "conv", "norm", "relu", "other"))
            layer = conv(CHANNELS, k, draw.choice((1, 3)), padding="same", bias=draw.random() < 0.5)
            behind = {"norm": [trained(norm(k))], "relu": [nn.ReLU()]}.get(kind, [])
            self.parts.append(nn.Identity() if kind == "other" else nn.Sequential(layer, *behind))
            every.append(CHANNELS if kind == "other" else k)
            self.convolutions += kind != "other"
        self.k, image = sum(every), (1,) * rank
        shapes = [(self.k, *image), (1, self.k, *image), (1, 1, *image), (1,)]
        for _ in range(draw.randint(1, 4)):
            made = draw.choice((
                trained(norm(self.k, affine=draw.random() < 0.8)), nn.SiLU(), nn.LeakyReLU(0.1),
                nn.PReLU(self.k), nn.PReLU(),
                Scale(*draw.choice(shapes)), "residual",
            ))  # fmt: skip
            self.functions.append(conv(CHANNELS, self.k, 1) if made == "residual" else made)
        self.axis = draw.choice((1, 1, -rank - 1))
        self.read_twice = draw.random() < 0.2
        self.eval()

    def forward(self, x):
        y = whole = torch.cat([part(x) for part in self.parts], self.axis)
        for function in self.functions:
            y = y + function(x) if hasattr(function, "kernel_size") else function(y)
        return (y, whole) if self.read_twice else y


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_results_stay(seed, rank):
    model = Joined(seed, rank)
    x = torch.randn(2, CHANNELS, *[random.Random(seed).randint(4, 6) for _ in range(rank)])
    fast = ct.optimize(model, x, inductor=False)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


class Csp(nn.Module):
    """YOLO's block: a BatchNorm and an activation behind two layers' results; a shortcut behind these."""

    def __init__(self, a: int, b: int, *others: nn.Module) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(16, a, 1, bias=False), nn.Conv2d(16, b, 3, padding=1, bias=False)
        self.others = nn.ModuleList(others)
        width = a + b + 16 * len(others)
        self.norm, self.shortcut = trained(nn.BatchNorm2d(width)), nn.Conv2d(16, width, 1)
        self.eval()

    def forward(self, x):
        joined = torch.cat([self.a(x), self.b(x), *(other(x) for other in self.others)], 1)
        return nn.functional.silu(self.norm(joined)) + self.shortcut(x)


def fused(model):
    x = torch.randn(2, 16, 9, 9)
    fast = ct.optimize(model, x, inductor=False)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    return {row.layer: row.fused for row in fast.report}, fast.report.notes


def test_each_convolution_fuses_the_functions_of_the_whole():
    rows, notes = fused(Csp(8, 24))
    assert rows == {"a": "add silu add", "b": "add silu add", "shortcut": "add"}
    assert "3 functions are moved before concatenations" in notes


def test_a_residual_whose_parts_are_not_aligned_stays_behind():
    rows, _ = fused(Csp(9, 23))
    assert rows == {"a": "add silu", "b": "add silu", "shortcut": "add add"}


class Shared(Csp):
    """Others read a layer's result, too."""

    def __init__(self, channels: int) -> None:
        super().__init__(8, 24)
        self.shared, self.norm = nn.Conv2d(16, channels, 1), trained(nn.BatchNorm2d(32 + channels))
        self.eval()

    def forward(self, x):
        shared = torch.tanh(self.shared(x))
        return nn.functional.silu(self.norm(torch.cat([self.a(x), shared, self.b(x)], 1))), shared.flatten(1)


@pytest.mark.parametrize(("channels", "moves"), [(16, True), (32, True), (40, False)])
def test_convolutions_that_others_read_make_half_of_the_channels_at_most(channels, moves):
    rows, notes = fused(Shared(channels))
    assert rows == {"a": "add silu" if moves else "", "b": "add silu" if moves else "", "shared": "add tanh"}
    assert any("moved" in note for note in notes) is moves


def test_what_no_convolution_makes_does_not_count():
    rows, _ = fused(Csp(8, 8, *[nn.MaxPool2d(3, 1, 1) for _ in range(3)]))
    assert rows == {"a": "add silu add", "b": "add silu add", "shortcut": "add"}


def test_what_others_read_stays():
    class Twice(Csp):
        def forward(self, x):
            joined = torch.cat([self.a(x), self.b(x)], 1)
            return torch.relu(self.norm(joined)), joined

    rows, notes = fused(Twice(8, 24))
    assert rows == {"a": "", "b": ""} and not any("moved" in note for note in notes)
