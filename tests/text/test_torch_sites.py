"""Inductor's code calls convgen's operators past torch's dispatcher, where a place always asks the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import convgen.torch as ct  # noqa: E402
from convgen import ConvgenError  # noqa: E402
from convgen.torch import launch  # noqa: E402
from convgen.torch.launch import Served  # noqa: E402
from convgen.torch.network import sites  # noqa: E402

pytest.importorskip("torch._inductor.codegen.custom_extern_kernel_codegen")


class Joins(nn.Module):
    """Two convolutions, of which one is written into a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

    def forward(self, x):
        return torch.cat([self.first(x).relu(), self.second(x)], 1) * 2


@pytest.fixture
def made(monkeypatch):
    """The names of the sites that code has made."""
    names = []
    make = sites.site
    monkeypatch.setattr(sites, "site", lambda name, *constants: names.append(name) or make(name, *constants))
    return names


def test_the_code_of_a_network_has_sites(made):
    model, x = Joins().eval(), torch.randn(2, 8, 6, 6)
    ready = ct.optimize(model, x)
    assert len(made) == 2 and set(made) <= {"fused_conv", "fused_conv_into"}
    with torch.no_grad():
        torch.testing.assert_close(ready(x), model(x), rtol=1e-5, atol=1e-5)


def test_code_for_any_sizes_calls_the_operators(made):
    sites.write_sites()
    weight = torch.randn(5, 4, 3, 3)
    torch.compiler.reset()
    function = torch.compile(lambda x: ct.conv2d(x, weight, activation="relu").sin(), dynamic=True)
    for size in (5, 7):
        x = torch.randn(2, 4, size, size)
        expected = torch.nn.functional.conv2d(x, weight).relu().sin()
        torch.testing.assert_close(function(x), expected, rtol=1e-5, atol=1e-5)
    assert not made


ARGUMENTS = "relu", [1, 1], [0, 0], [1, 1], 1


@pytest.fixture
def tensors(monkeypatch):
    """Arguments that count as a GPU's."""
    monkeypatch.setattr(sites, "_is_on_gpu", lambda tensor: True)
    return torch.randn(2, 4, 6, 6), torch.randn(5, 4, 3, 3), []


def test_a_site_asks_once(tensors, monkeypatch):
    asked, launched = [], []
    serving = Served(lambda *given: launched.append(given) or "made")
    monkeypatch.setattr(launch, "served", lambda *given, out=None: asked.append(given) or serving)
    call = sites.site("fused_conv", *ARGUMENTS)
    assert [call(*tensors) for _ in range(3)] == ["made"] * 3
    assert len(asked) == 1 and asked[0][3:] == ARGUMENTS and [given[0] for given in launched] == [tensors[0]] * 3
    out = torch.empty(2, 5, 4, 4)
    sites.site("fused_conv_into", *ARGUMENTS)(out, *tensors)
    assert launched[-1][0] is tensors[0] and launched[-1][-1] is out


def test_a_site_asks_again_where_tensors_are_not_aligned(tensors, monkeypatch):
    serving = Served(lambda *given: "made")
    monkeypatch.setattr(launch, "served", lambda *given, out=None: serving)
    call = sites.site("fused_conv", *ARGUMENTS)
    x, weight, operands = tensors
    memory = torch.randn(x.numel() + 1)
    odd = memory[1:].view(x.shape)
    expected = torch.nn.functional.conv2d(odd, weight).relu()
    torch.testing.assert_close(call(odd, weight, operands), expected, rtol=1e-5, atol=1e-5)
    assert call(x, weight, operands) == "made"


@pytest.mark.parametrize("refuses", [True, False])
def test_a_site_falls_back_to_aten(tensors, refuses, monkeypatch):
    def refuse(*given):
        raise ConvgenError("an address that the kernel's loads cannot have")

    serving = Served(refuse) if refuses else Served(None, "no kernel serves")
    monkeypatch.setattr(launch, "served", lambda *given, out=None: serving)
    call = sites.site("fused_conv", *ARGUMENTS)
    expected = torch.nn.functional.conv2d(*tensors[:2]).relu()
    for _ in range(2):
        torch.testing.assert_close(call(*tensors), expected, rtol=1e-5, atol=1e-5)
