"""The convolutions of PyTorch's and ONNX's own tests, by convgen.functional's reference and convgen.torch on a CPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from upstream import ONNX, REFUSED, TORCH, check_onnx

from convgen import ConvgenError
from convgen import functional as F
from convgen.functional import call

torch = pytest.importorskip("torch")
import convgen.torch as ct  # noqa: E402

TF = torch.nn.functional
pytestmark = pytest.mark.usefixtures("torch_draws")
PAGE = Path(__file__).parents[2] / "docs" / "upstream_tests.md"
SAMPLES = [c for c in TORCH["cases"] if c["source"] == "OpInfo"]
MODULES = [c for c in TORCH["cases"] if c["source"] == "common_nn"]
#: torch's functions whose names are others here.
NAMES = {"unfold": "im2col"}


@pytest.fixture(autouse=True)
def _by_the_reference(monkeypatch):
    monkeypatch.setattr(call, "EMULATED", -1)


def drawn(value):
    """A tensor of the shape and type that a case says; other values as they are."""
    if not isinstance(value, dict):
        return value
    dtype = getattr(torch, value.get("dtype", "float32"))
    return torch.randint(-3, 4, value["shape"]).to(dtype)


def on_host(value):
    return value.numpy() if isinstance(value, torch.Tensor) else value


def exact(value):
    return value.double() if isinstance(value, torch.Tensor) else value


def near(found, expected) -> None:
    found = found if isinstance(found, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(found))
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-4, atol=1e-4)


def arguments(case):
    return [drawn(a) for a in case["args"]], {name: drawn(v) for name, v in case["kwargs"].items()}


def numbered(cases):
    """Cases of a name in one test each, since there are hundreds."""
    return sorted({c["name"] for c in cases})


@pytest.mark.parametrize("name", numbered([c for c in SAMPLES if "error" not in c]))
def test_samples_of_op_info(name):
    for case in SAMPLES:
        if case["name"] != name or "error" in case:
            continue
        args, kwargs = arguments(case)
        expected = getattr(TF, name)(*map(exact, args), **{k: exact(v) for k, v in kwargs.items()})
        ours = getattr(F, NAMES.get(name, name))
        near(ours(*map(on_host, args), **{k: on_host(v) for k, v in kwargs.items()}), expected)
        if hasattr(ct, name):
            near(getattr(ct, name)(*args, **kwargs), expected)


@pytest.mark.parametrize("name", numbered([c for c in SAMPLES if "error" in c]))
def test_errors_of_op_info_are_errors_here(name):
    for case in SAMPLES:
        if case["name"] != name or "error" not in case:
            continue
        args, kwargs = arguments(case)
        with pytest.raises(ConvgenError):
            getattr(F, name)(*map(on_host, args), **kwargs)
        with pytest.raises((ConvgenError, RuntimeError)):  # or aten's own
            getattr(ct, name)(*args, **kwargs)


@pytest.mark.parametrize("case", MODULES, ids=lambda c: c["name"])
def test_modules_of_common_nn(case):
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in case["kwargs"].items()}
    theirs, x = getattr(torch.nn, case["module"])(**given), torch.randn(case["input"])
    expected = theirs.double()(x.double()).detach()
    theirs.float()
    weight, bias = theirs.weight.detach().numpy(), None if theirs.bias is None else theirs.bias.detach().numpy()
    name = f"{'conv_transpose' if theirs.transposed else 'conv'}{case['module'][-2:]}"
    if theirs.transposed:
        numbers = theirs.stride, theirs.padding, theirs.output_padding, theirs.groups, theirs.dilation
        found = getattr(F, name)(x.numpy(), weight, bias, *numbers)
    else:
        numbers = theirs.stride, theirs.padding, theirs.dilation, theirs.groups
        found = getattr(F, name)(x.numpy(), weight, bias, *numbers, padding_mode=theirs.padding_mode)
        near(getattr(ct, case["module"]).from_module(theirs)(x).detach(), expected)
    near(found, expected)


@pytest.mark.parametrize("case", ONNX["cases"], ids=lambda c: c["name"])
def test_nodes_of_onnx(case):
    if case["operator"] not in REFUSED:
        check_onnx(case)


def test_the_page_has_the_counts():
    """docs/upstream_tests.md says how many cases there are, and which are refused."""
    text = PAGE.read_text(encoding="utf-8")
    samples = Counter(c["name"] for c in SAMPLES if "error" not in c)
    errors = Counter(c["name"] for c in SAMPLES if "error" in c)
    rows = [f"| `nn.functional.{name}` | {samples[name]} | {errors[name] or ''} |" for name in samples]
    modules = Counter(c["module"] for c in MODULES)
    rows += [f"| `{name}` | {count} |" for name, count in modules.items()]
    nodes = Counter(c["operator"] for c in ONNX["cases"])
    rows += [f"| {name} | {count} | {REFUSED.get(name, '')} |" for name, count in nodes.items()]
    rows = [row.replace("|  |", "| |") for row in rows]
    passed = sum(count for name, count in nodes.items() if name not in REFUSED)
    rows += [
        f"PyTorch {TORCH['version']}", f"ONNX {ONNX['version']}",
        f"{samples.total()} samples and {errors.total()} errors", f"{modules.total()} modules",
        f"{passed} of {nodes.total()} nodes",
    ]  # fmt: skip
    assert not [row for row in rows if row not in text]
