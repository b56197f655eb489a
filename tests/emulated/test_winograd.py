"""winograd, emulated: tails, borders, layouts and types, exact on integers; any problem within the bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from runs import emulated_plan
from tma_specs import PROBLEMS, SEEDS, check_emulated, compilation, serves, some_options, spec, typed
from winograd_specs import DENOMINATORS, GEOMETRIES, exact_inputs

from convgen.ir.reference import decode, reference


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(name: str, seed: int) -> None:
    problem, options = GEOMETRIES[name]
    m = int(options.get("tile", 2))
    made = compilation(spec(problem, "winograd", options))
    arrays = exact_inputs(problem, m, seed)
    out = decode(emulated_plan(made.plan, made.source, arrays, seed), problem.y.dtype)
    right, unit = reference(problem, arrays), DENOMINATORS[m] ** 2
    assert np.array_equal(np.rint(out / unit), right / unit) and np.allclose(out, right, atol=0.5), made.source


def test_epilogue(seed: int) -> None:
    """A local that is a further result, operands of a channel, of a pixel and of all, and a sum."""
    problem = typed(make("fprop", 2, 16, 20, (7, 10), (3, 3), pad=1, dtype="f32"), y="f16")
    text = (
        "operand b: f32[k]  operand e: f16[p, q]  operand z: f16[n, p, q, k]  result t: f32[n, p, q, k] "
        "result s: f32[k]  t = acc + b * e  s = t * t  y = gelu(t) + z"
    )
    check_emulated(spec(problem, "winograd", {"tile": 4}, text, target="sm_80"), seed)


@settings(max_examples=4, deadline=None)
@given(data=st.data(), seed=SEEDS)
@pytest.mark.parametrize("kernel", ["winograd", "winograd_fused"])
def test_any_problem(kernel: str, data: st.DataObject, seed: int) -> None:
    problem = data.draw(PROBLEMS[kernel])
    options = {"kernel": kernel, **data.draw(some_options("winograd", kernel=kernel))}
    assume(serves(problem, "winograd", options))
    check_emulated(spec(problem, "winograd", options), seed)
