"""Convolutions of channels that are no multiples of 8: more of them, where only convolutions mix them."""

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import convgen.torch as ct

pytestmark = pytest.mark.filterwarnings("error:convgen")


class Gate(nn.Module):
    """Squeeze and excitation, a function with a parameter of each channel, and a sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 12, 1), nn.Conv2d(12, channels, 1)
        self.scale, self.prelu = nn.Parameter(torch.randn(channels, 1, 1)), nn.PReLU(channels)

    def forward(self, x):
        gate = torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3), keepdim=True)))))
        return self.prelu(x) * gate + self.scale * x


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.norm(self.second(torch.relu(self.first(x)))) + x)


#: Layers that take each channel for itself, or are whole blocks of these and convolutions.
LAYERS = {
    "relu": lambda c: nn.ReLU(),
    "hardswish": lambda c: nn.Hardswish(),
    "norm": nn.BatchNorm2d,
    "max pool": lambda c: nn.MaxPool2d(3, 2, 1),
    "average pool": lambda c: nn.AvgPool2d(2, ceil_mode=True),
    "nearest": lambda c: nn.Upsample(scale_factor=2),
    "bilinear": lambda c: nn.Upsample(scale_factor=2, mode="bilinear"),
    "padding": lambda c: nn.ReflectionPad2d(1),
    "zeros": lambda c: nn.ZeroPad2d((1, 0, 2, 1)),
    "depthwise": lambda c: nn.Conv2d(c, c, 3, padding=1, groups=c),
    "gate": Gate,
    "block": Block,
}


def network(channels: int, layers: list[str]) -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), *(LAYERS[name](channels) for name in layers), nn.Conv2d(channels, 5, 1)
    ).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model


def check(model: nn.Module, dtype: torch.dtype) -> list[str]:
    """That results are as near float64's as the model's own are; the report's notes."""
    x = torch.randn(2, 3, 8, 8)
    exact = copy.deepcopy(model).double()(x.double())
    model = copy.deepcopy(model).to(dtype)
    made = ct.optimize(model, x.to(dtype), inductor=False)
    with torch.no_grad():
        found, own = ((f(x.to(dtype)).double() - exact).norm() / exact.norm() for f in (made, model))
    assert found <= 2 * own + 2 * torch.finfo(dtype).eps
    return [note for note in made.report.notes if "rows of 16 bytes" in note]


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_any_layers_of_single_channels_between_convolutions(data):
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    channels = data.draw(st.integers(11, 44))
    layers = data.draw(st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=4))
    notes = check(network(channels, layers), data.draw(st.sampled_from((torch.float16, torch.bfloat16))))
    grows = channels % 8 and (channels + -channels % 8) <= 1.5 * channels
    # BatchNorm that no convolution before it takes stays what it is, and what is around it as it was
    stays = any(layer == "norm" and before != "depthwise" for before, layer in pairwise(layers))
    if not stays:
        assert bool(notes) == bool(grows or "gate" in layers), (channels, layers)  # which has 12 channels of its own
    elif not grows and "gate" not in layers:
        assert not notes


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer(name):
    torch.manual_seed(1)
    assert check(network(18, [name]), torch.float16)


class Read(nn.Module):
    """Convolutions whose result something else reads, too."""

    def __init__(self, read) -> None:
        super().__init__()
        self.first, self.second, self.read = nn.Conv2d(3, 18, 3), nn.Conv2d(18, 5, 1), read

    def forward(self, x):
        x = self.first(x)
        return self.read(x, self.second(torch.relu(x)))


@pytest.mark.parametrize(
    "read",
    [
        lambda x, y: x.sum(1, keepdim=True) + y,
        lambda x, y: torch.cat([x, y], 1),
        lambda x, y: x[:, :5] + y,
        lambda x, y: x.flatten(1),
        lambda x, y: nn.functional.group_norm(x, 3)[:, :5] + y,
        lambda x, y: nn.functional.conv2d(x, torch.ones(18, 2, 1, 1, dtype=x.dtype), groups=9).relu()[:, :5] + y,
    ],
)
def test_what_others_read_stays(read):
    assert not check(Read(read).eval(), torch.float16)


def test_other_types_stay():
    model, x = network(18, ["relu"]), torch.randn(2, 3, 8, 8)
    assert not any("16 bytes" in note for note in ct.optimize(model, x, inductor=False).report.notes)


@pytest.mark.parametrize("layers", [["relu"], ["gate"], ["depthwise", "hardswish"]])
def test_infinities_stay_where_they_are(layers):
    """As a filter of zeros would not have it."""
    torch.manual_seed(2)
    model, x = network(18, layers).half(), torch.randn(2, 3, 8, 8).half()
    model[-1].weight.data.abs_()  # so that infinities of one sign are added
    x[0, 1, 2, 3], x[1, 0, 4, 4] = torch.inf, torch.nan
    made = ct.optimize(model, x, inductor=False)
    with torch.no_grad():
        found, own = made(x), model(x)
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(found), kind(own))
    assert own.isinf().any() or layers != ["relu"]
