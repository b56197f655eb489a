"""What `optimize` makes part of a layer, on a GPU: branches, adapters, functions of concatenations, BatchNorms behind
linear layers; and channels filled up."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402

nn, TF = torch.nn, torch.nn.functional
pytestmark = pytest.mark.usefixtures("torch_cuda", "torch_draws")


@pytest.fixture(params=[False, True], ids=["", "deterministic"])
def _algorithms(request):
    torch.use_deterministic_algorithms(request.param)
    yield
    torch.use_deterministic_algorithms(False)


def with_statistics(norm):
    nn.init.uniform_(norm.running_mean, -1, 1)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.uniform_(norm.bias, -1, 1)
    return norm


class Branches(nn.Module):
    """A block of RepVGG as it is trained: 3x3, 1x1 and the input itself, each with a BatchNorm."""

    layers = 1

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.point = nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.Conv2d(64, 64, 1, bias=False)
        self.norms = nn.ModuleList([with_statistics(nn.BatchNorm2d(64)) for _ in range(3)])

    def forward(self, x):
        return torch.relu(self.norms[0](self.wide(x)) + self.norms[1](self.point(x)) + self.norms[2](x))


class Adapters(nn.Module):
    """LoRA behind a convolution and behind a linear layer."""

    layers = 2

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.down, self.up = (
            nn.Conv2d(64, 64, 3, padding=1),
            nn.Conv2d(64, 4, 3, padding=1, bias=False),
            nn.Conv2d(4, 64, 1, bias=False),
        )
        self.linear, self.a, self.b = nn.Linear(64, 96), nn.Linear(64, 8, bias=False), nn.Linear(8, 96, bias=False)

    def forward(self, x):
        y = torch.relu(self.conv(x) + 2 * self.up(self.down(x))).permute(0, 2, 3, 1).flatten(1, 2)
        return TF.gelu(self.linear(y) + 0.5 * self.b(self.a(y)))


class Joined(nn.Module):
    """YOLO's CSP block: functions of a concatenation, which each convolution has for its own channels."""

    layers = 3

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(64, 24, 1, bias=False), nn.Conv2d(64, 72, 3, padding=1, bias=False)
        self.norm, self.shortcut = with_statistics(nn.BatchNorm2d(96)), nn.Conv2d(64, 96, 1)

    def forward(self, x):
        return TF.silu(self.norm(torch.cat([self.a(x), self.b(x)], 1))) + self.shortcut(x)


class NormedLinear(nn.Module):
    """LeViT's layer: a product of tokens, then a BatchNorm over them."""

    layers = 1

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(64, 128, bias=False), with_statistics(nn.BatchNorm1d(128))

    def forward(self, x):
        y = self.linear(x.permute(0, 2, 3, 1).flatten(1, 2))
        return TF.hardswish(self.norm(y.flatten(0, 1)).reshape_as(y))


class Filled(nn.Module):
    """Channels that are no multiples of 8, which convolutions alone mix: ReXNet's block."""

    layers = 5

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.deep = nn.Conv2d(64, 36, 1), nn.Conv2d(36, 36, 3, padding=1, groups=36, bias=False)
        self.norm, self.down, self.up = with_statistics(nn.BatchNorm2d(36)), nn.Conv2d(36, 12, 1), nn.Conv2d(12, 36, 1)
        self.project = nn.Conv2d(36, 64, 1)

    def forward(self, x):
        y = self.norm(self.deep(TF.silu(self.expand(x))))
        gate = torch.sigmoid(self.up(torch.relu(self.down(y.mean((2, 3), keepdim=True)))))
        return self.project(TF.relu6(y * gate)) + x


def near(ready, model, x):
    """No further from float64 than the model itself is, within half as much again."""
    with torch.no_grad():
        exact, own, found = copy.deepcopy(model).double()(x.double()), model(x), ready(x)
    assert (found.double() - exact).norm() <= 1.5 * (own.double() - exact).norm() + 1e-4 * exact.norm()


@pytest.mark.usefixtures("_algorithms")
@pytest.mark.parametrize("inductor", [False, True])
@pytest.mark.parametrize("kind", [Branches, Adapters, Joined, NormedLinear, Filled])
def test_merged_layers_are_right(kind, inductor):
    model = kind().eval().half().cuda().to(memory_format=torch.channels_last)
    x = torch.randn(4, 64, 20, 20, device="cuda").half().to(memory_format=torch.channels_last)
    ready = ct.optimize(model, x, measure=False, inductor=inductor)
    assert len(ready.report) == kind.layers and all(row.kernel != "aten" for row in ready.report), str(ready.report)
    near(ready, model, x)
    model.load_state_dict({name: value * 0.75 for name, value in model.state_dict().items()}, strict=False)
    near(ready, model, x)
