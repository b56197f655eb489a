"""Several results from one kernel, emulated: each kernel writes them, and operands may be their own arrays."""

from __future__ import annotations

import numpy as np
import pytest

from convgen import driver
from convgen.ir import verify
from convgen.ir.dtypes import numpy_dtype
from convgen.spec import Spec

#: The pre-activation beside the result, and the sum of channels' squares in another layout and type; `z` and `a` may be
#: the arrays of `t` and of the operator's result.
EPILOGUE = """
  epilogue {{
    operand b: f32[{channel}]
    operand z: f16[{dims}]
    operand a: {type}[{dims}]
    result t: f16[{dims}]
    result u: f32[{turned}]
    t = acc + b + z
    u = t * t
    {result} = relu(t) + a
  }}"""


def spec(op: str, tensors: str, strategy: str, settings: str = "", type: str = "f16", layout: str = "") -> str:
    """A conv block of that operator, whose tensors are given as `x y` or in full."""
    result = {"fprop": "y", "dgrad": "x", "wgrad": "w"}[op]
    dims = layout or {"fprop": "n, p, q, k", "dgrad": "n, h, w, c", "wgrad": "k, r, s, c"}[op]
    turned = ", ".join(reversed(dims.split(", ")))
    epilogue = EPILOGUE.format(result=result, dims=dims, turned=turned, channel="kc"[op != "fprop"], type=type)
    return f"conv a {{ {tensors} op {op} {settings} {epilogue}\n  strategy {strategy}\n}}"


SMALL = "input x: f16[n=2, h=6, w=5, c=8] filter w: f16[k=8, r=3, s=2, c] output y: f16[n, p, q, k]"
CASES = {
    "direct": spec("fprop", SMALL, "direct { tile 2 }"),
    "direct_dgrad": spec("dgrad", SMALL, "direct", "stride 2"),
    "direct_wgrad": spec("wgrad", SMALL, "direct { tile 1 }"),
    "im2col": spec("fprop", SMALL, "im2col"),
    "im2col_dgrad": spec("dgrad", SMALL, "im2col { method gather }", "pad 1"),
    "im2col_scatter": spec("dgrad", SMALL, "im2col { method scatter }", "stride 2"),
    "im2col_wgrad": spec("wgrad", SMALL, "im2col"),
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_operands_that_are_their_own_arrays(name):
    (compilation,) = driver.load(Spec(CASES[name]))
    problem, kernel = compilation.request.problem, compilation.uncompiled()
    assert {("a", problem.result.name), ("z", "t")} <= set(problem.in_place)
    given = verify.random_inputs(problem, 1)
    arrays = {array: value.copy() for array, value in given.items()}
    u = verify.poison(np.empty(problem.tensor("u").shape, numpy_dtype("f32")))
    outs = (arrays["a"], arrays["z"], u)
    assert kernel.emulate(*arrays.values(), out=outs, seed=1) is outs
    report = verify.check(problem, given, outs, arithmetic=kernel.manifest.arithmetic)
    assert report, report
