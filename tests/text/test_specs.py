"""The specs that ship: all of them load, and the networks' are the layers that the networks have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convgen import frontend
from convgen.ir.problem import Op
from convgen.targets import TARGETS

ROOT = Path(__file__).parents[2]
SPECS = sorted((ROOT / "specs").rglob("*.conv"))
LAYERS = json.loads((ROOT / "tests" / "data" / "seven_networks.json").read_text())["layers"]
NETWORKS = sorted({layer["name"].split("/")[0] for layer in LAYERS})


def load(path: Path, **arguments):
    return frontend.load(path.read_text(encoding="utf-8"), str(path), targets=TARGETS, **arguments)


@pytest.mark.costly
@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_every_spec_loads_and_prints(path):
    requests = load(path)
    assert requests
    for request in requests:
        (again,) = frontend.load(str(request.problem))
        assert again.problem == request.problem


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("n", [8, 64])
def test_networks(network, n):
    requests = load(ROOT / "specs" / f"{network}.conv", defines={"n": n})
    layers = [layer for layer in LAYERS if layer["name"].startswith(f"{network}/")]
    assert [r.problem.name.removeprefix("inception_") for r in requests] == [x["name"].split("/")[1] for x in layers]
    for request, layer in zip(requests, layers, strict=True):
        p = request.problem
        assert p.op is Op.FPROP and request.strategy == "auto" and request.target is None and p.epilogue is None
        assert (p.n, p.c, p.k, p.groups) == (n, layer["c"], layer["k"], layer["groups"])
        assert p.input == (layer["h"], layer["w"]) and p.filter == (layer["r"], layer["s"])
        assert p.stride == (layer["stride"],) * 2 and p.dilation == (layer["dilation"],) * 2
        assert p.pad_lo == p.pad_hi == (layer["pad"],) * 2
        assert (
            p.x.dims == ("n", "h", "w", "c") and p.w.dims == ("k", "r", "s", "c") and p.y.dims == ("n", "p", "q", "k")
        )
        assert {t.dtype for t in (p.x, p.w, p.y)} == {"f16"}


def test_every_network_has_a_spec():
    assert {f"{network}.conv" for network in NETWORKS} <= {p.name for p in SPECS}


def test_examples_show_every_part_of_the_language():
    problems = [r.problem for p in SPECS for r in load(p)]
    assert {p.op for p in problems} == set(Op)
    assert {p.rank for p in problems} == {1, 2, 3}
    assert {p.x.dtype for p in problems} == {"f16", "bf16", "f32", "f64", "e4m3", "s8"}
    assert any(p.groups == p.c > 1 for p in problems) and any(1 < p.groups < p.c for p in problems)
    assert any(p.pad_lo != p.pad_hi for p in problems) and any(max(p.dilation) > 1 for p in problems)
    assert {p.result.dims for p in problems} >= {("n", "k", "p", "q"), ("n", "p", "q", "k")}
    assert any(len(p.epilogue.body) > 1 for p in problems if p.epilogue)
    assert any(p.elementwise for p in problems) and any(p.sums for p in problems)
    assert any(p.dynamic for p in problems)
