"""Inductor's code calls convgen's operators past torch's dispatcher, where a place always asks the same."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import convgen.torch as ct  # noqa: E402
from convgen.runtime.errors import DriverError, Misaligned  # noqa: E402
from convgen.torch import launch, ops  # noqa: E402
from convgen.torch.launch import Served  # noqa: E402
from convgen.torch.network import inductor, sites  # noqa: E402

pytest.importorskip("torch._inductor.codegen.custom_extern_kernel_codegen")

pytestmark = pytest.mark.costly
ARGUMENTS = "relu", [1, 1], [0, 0], [1, 1], 1


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


@pytest.mark.parametrize(("convgens", "dynamic", "sites_of"), [(True, False, 1), (True, True, 0), (False, False, 0)])
def test_code_for_any_sizes_and_of_other_graphs_calls_the_operators(convgens, dynamic, sites_of, made):
    sites.write_sites(inductor.is_brief)
    weight = torch.randn(5, 4, 3, 3)
    torch.compiler.reset()
    function = torch.compile(lambda x: torch.ops.convgen.fused_conv(x, weight, [], *ARGUMENTS).sin(), dynamic=dynamic)
    with inductor.brief() if convgens else nullcontext(), torch._inductor.config.patch(force_disable_caches=True):
        for x in (torch.randn(2, 4, 5, 5), torch.randn(2, 4, 7, 7))[: 1 + dynamic]:
            expected = torch.nn.functional.conv2d(x, weight).relu().sin()
            torch.testing.assert_close(function(x), expected, rtol=1e-5, atol=1e-5)
    assert len(made) == sites_of


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
    assert sites.site("fused_conv_into", *ARGUMENTS)(out, *tensors) is None  # else the code would hold it
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


def test_what_no_kernel_serves_is_asked_once(tensors, monkeypatch):
    asked = []
    monkeypatch.setattr(launch, "served", lambda *given, out=None: asked.append(given) or Served(None, "no kernel"))
    call = sites.site("fused_conv", *ARGUMENTS)
    for _ in range(2):
        call(*tensors)
    assert len(asked) == 1


@pytest.mark.parametrize("decided", [True, False])
def test_gradients_that_are_not_decided_are_asked_for_again(tensors, decided, monkeypatch):
    asked = []
    choices = SimpleNamespace(launch=lambda gradient: asked.append(gradient), is_decided=lambda gradient: decided)
    monkeypatch.setattr(ops, "choices", choices)
    x, weight, _ = tensors
    grad = torch.randn(2, 5, 4, 4)
    call = sites.site("conv_input", list(x.shape), [1, 1], [0, 0], [1, 1], 1)
    expected = torch.nn.grad.conv2d_input(x.shape, weight, grad)
    for _ in range(2):
        torch.testing.assert_close(call(grad, weight), expected, rtol=1e-4, atol=1e-4)
    assert len(asked) == (1 if decided else 2)


def test_what_counts_flops_sees_operators(tensors, monkeypatch):
    monkeypatch.setattr(launch, "served", lambda *given, out=None: Served(lambda *given: "made"))
    call = sites.site("fused_conv", *ARGUMENTS)
    assert call(*tensors) == "made"
    with FlopCounterMode(display=False) as counter:
        call(*tensors)
    assert counter.get_total_flops() == 2 * 2 * 5 * 4 * 9 * 16
    assert call(*tensors) == "made"


def test_a_fault_of_the_driver_is_not_hidden(tensors, monkeypatch):
    """Neither by a site nor by an operator: what aten computed behind it would not be to be trusted."""

    def fail(*given):
        raise DriverError("cuLaunchKernelEx: an illegal memory access was encountered")

    monkeypatch.setattr(launch, "served", lambda *given, out=None: Served(fail))
    monkeypatch.setattr(ops, "served", launch.served)
    with pytest.raises(DriverError):
        sites.site("fused_conv", *ARGUMENTS)(*tensors)
    with pytest.raises(DriverError):
        ops._fused_on_gpu(*tensors, *ARGUMENTS)


def test_what_failed_for_want_of_memory_is_asked_for_again(tensors, monkeypatch):
    made = []

    def kernel(key):
        made.append(key)
        raise DriverError("cuModuleLoadData: out of memory") if len(made) == 1 else DriverError("an error")

    monkeypatch.setattr(launch, "kernel_of", kernel)
    monkeypatch.setattr(launch, "_SERVED", {})
    asked = [launch.served(*tensors, *ARGUMENTS).why_not for _ in range(3)]
    assert asked == ["cuModuleLoadData: out of memory", "an error", "an error"] and len(made) == 2


@pytest.mark.parametrize("refuses", [True, False])
def test_a_site_falls_back_to_aten(tensors, refuses, monkeypatch):
    def refuse(*given):
        raise Misaligned("an address that the kernel's loads cannot have")

    serving = Served(refuse) if refuses else Served(None, "no kernel serves")
    monkeypatch.setattr(launch, "served", lambda *given, out=None: serving)
    call = sites.site("fused_conv", *ARGUMENTS)
    expected = torch.nn.functional.conv2d(*tensors[:2]).relu()
    for _ in range(2):
        torch.testing.assert_close(call(*tensors), expected, rtol=1e-5, atol=1e-5)
