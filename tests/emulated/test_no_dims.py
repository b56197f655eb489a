"""Tensors without dims: all of their extents are 1."""

from __future__ import annotations

import pytest

from convgen import driver
from convgen.diagnostics import SpecError
from convgen.ir import verify
from convgen.kernels import strategies
from convgen.spec import Spec

SHAPES = {
    "y": "input x: f16[h=3, w=3]  filter w: f16[r=3, s=3]  output y: f16[]",
    "x": "input x: f16[]  filter w: f16[k=8]  output y: f16[k]",
    "w": "input x: f16[n=4, h=3, w=3]  filter w: f16[]  output y: f16[n, p, q]",
    "all": "input x: f16[]  filter w: f16[]  output y: f16[]",
}
RESULTS = {"fprop": "y", "dgrad": "x", "wgrad": "w"}


@pytest.mark.parametrize("op", RESULTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("strategy", ("auto", *strategies.BY_NAME, *strategies.AUTO))
def test_tensors_without_dims(shape, op, strategy):
    """By `auto` all are served; a strategy may refuse one."""
    text = f"conv a {{ {SHAPES[shape]}  op {op}  epilogue {{ {RESULTS[op]} = 2 * acc }}  strategy {strategy} }}"
    try:
        (compilation,) = driver.load(Spec(text))
        problem, kernel = compilation.request.problem, compilation.uncompiled()
    except SpecError:
        assert strategy != "auto"
        return
    given = verify.random_inputs(problem, 1)
    report = verify.check(
        problem, given, kernel.emulate(*given.values(), seed=1), arithmetic=kernel.manifest.arithmetic
    )
    assert report, report
