"""Functions of the epilogue, emulated: over their whole range, in the form that results of 16 bits get."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import convgen
from convgen.ir import verify
from convgen.ir.dtypes import DTYPES
from convgen.ir.reference import round_to

FUNCTIONS = ("sigmoid", "silu", "gelu", "gelu_tanh")
SPEC = """conv example {{
  input x: {dtype}[n=1, h=1, w=8192, c=1]
  filter w: {dtype}[k=1, r=1, s=1, c=1]
  output y: {dtype}[n, p, q, k]
  strategy direct
  epilogue {{
    {results}
    y = acc
  }}
}}"""


def spec(dtype: str) -> str:
    results = (f"result {name}_y: {dtype}[n, p, q, k]  {name}_y = {name}(acc)" for name in FUNCTIONS)
    return SPEC.format(dtype=dtype, results="\n    ".join(results))


def inputs(problem: convgen.ir.problem.ConvProblem) -> dict[str, np.ndarray]:
    """Every sign and size of x, those of interest finely; w is 1."""
    x = np.concatenate([np.linspace(-14, 14, 6144), np.linspace(-120, 120, 2045), [np.inf, -np.inf, np.nan]])
    types = {t.name: t.element.numpy for t in problem.reads}
    return {"x": x.reshape(1, 1, 8192, 1).astype(types["x"]), "w": np.ones((1, 1, 1, 1), types["w"])}


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_functions_of_narrow_results(dtype: str) -> None:
    kernel = convgen.compile(spec(dtype))
    assert "exp2_approx_f32" in kernel.source and "erff" not in kernel.source
    problem = kernel.plan.problem
    arrays = inputs(problem)
    report = verify.check(problem, arrays, kernel.emulate(**arrays))
    assert report, report.message


@pytest.mark.parametrize("number", ["f32", "f64"])
def test_values_are_rounded_to_narrow_types(number: str) -> None:
    """In the middle of an epilogue: to nearest even, to subnormals, beyond the largest, and not at all in a NaN."""
    results = "\n    ".join(f"result {t}_y: {number}[n, p, q, k]  {t}_y = round_{t}(acc)" for t in ("f16", "bf16"))
    kernel = convgen.compile(SPEC.format(dtype=number, results=results))
    rng = np.random.default_rng(0)
    x = rng.standard_normal(8192).astype(np.float32) * 2.0 ** rng.integers(-30, 18, 8192)
    x[:8] = 2049, 2051, 65519.99, 65520, -0.0, np.inf, -np.inf, np.nan
    x = x.astype(number.replace("f", "float"))
    _, halves, brains = kernel.emulate(x=x.reshape(1, 1, 8192, 1), w=np.ones((1, 1, 1, 1), x.dtype))
    np.testing.assert_array_equal(halves.ravel(), x.astype(np.float16).astype(x.dtype))
    np.testing.assert_array_equal(brains.ravel(), x.astype(ml_dtypes.bfloat16).astype(x.dtype))


def test_doubles_are_rounded_once() -> None:
    """float32 rounds them to the middle between two narrow numbers, which is rounded away from what they were."""
    results = "\n    ".join(f"result {t}_y: f64[n, p, q, k]  {t}_y = round_{t}(acc)" for t in ("f16", "bf16"))
    kernel = convgen.compile(SPEC.format(dtype="f64", results=results))
    rng = np.random.default_rng(0)
    x = (rng.integers(-64, 64, 8192) * 2.0**-11 + rng.choice((1, -1, 2), 8192)) * 2.0 ** rng.integers(-30, 18, 8192)
    x *= 1 + rng.integers(-2, 3, 8192) * 2.0**-45
    x[:8] = 65519.9999999999, 1e300, -1e300, -1e-300, 2.0**-25 * (1 + 2.0**-50), 3.4028236e38, np.inf, np.nan
    _, *made = kernel.emulate(x=x.reshape(1, 1, 8192, 1), w=np.ones((1, 1, 1, 1)))
    for dtype, values in zip(("f16", "bf16"), made, strict=True):
        np.testing.assert_array_equal(values.ravel(), round_to(x, DTYPES[dtype]))


def test_functions_of_float32_keep_its_precision() -> None:
    source = convgen.compile(spec("f32")).source
    assert "erff" in source and "exp2_approx_f32" not in source


def test_functions_of_float32_do_not_divide() -> None:
    """A division's code has a branch, behind which compilers move no loads: each of these waited for the one before."""
    kernel = convgen.compile(spec("f32"))
    assert "1.0f / " not in kernel.source and "x / " not in kernel.source
    problem = kernel.plan.problem
    arrays = inputs(problem)
    report = verify.check(problem, arrays, kernel.emulate(**arrays))
    assert report, report.message
