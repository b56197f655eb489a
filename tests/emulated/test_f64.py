"""f64: prologue, functions and sums in 64 bits.  test_torch_launch checks gradients by finite differences."""

from __future__ import annotations

import numpy as np
import pytest

import convgen
from convgen.ir.verify import check, random_inputs

EVERYTHING = """
conv everything {
  input  x: f64[n=2, h=6, w=7, c=6]
  filter w: f64[k=4, r=3, s=3, c=3]
  output y: f64[n, p, q, k]
  stride 2
  pad 1
  groups 2
  prologue {
    operand scale: f64[c]
    x = x * scale + 0.1
  }
  epilogue {
    operand b: f64[k]
    result t: f64[n, p, q, k]
    result s: f64[k]
    t = gelu(acc + b) * 0.1
    s = t
    u = silu(t) + leaky_relu(t, 0.2) + tanh(t) + sqrt(abs(t)) + exp(min(t, 1)) + sigmoid(t) + gelu_tanh(t)
    y = clamp(select(t > 0 && !(t > 1), u, log(abs(t) + 1e-300)), -3, 6)
  }
}
"""


@pytest.fixture(scope="module")
def everything():
    kernel = convgen.compile(EVERYTHING)
    arrays = random_inputs(kernel.plan.problem, seed=0)
    return kernel, arrays, kernel.emulate(*arrays.values())


def test_every_function_is_right_to_64_bits(everything):
    kernel, arrays, found = everything
    assert kernel.plan.strategy == "direct" and {r.dtype for r in found} == {np.dtype("float64")}
    report = check(kernel.plan.problem, arrays, found)
    assert report and report.rel_l2 < 1e-14, report


@pytest.mark.parametrize("which", range(3))
def test_a_result_rounded_to_32_bits_is_wrong(everything, which):
    kernel, arrays, found = everything
    rounded = tuple(r.astype(np.float32).astype(np.float64) if i == which else r for i, r in enumerate(found))
    assert not check(kernel.plan.problem, arrays, rounded)
