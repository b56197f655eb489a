"""Prologues: what they may read and must assign, where the word is a name, and what a right result is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from problems import make

from convgen import frontend
from convgen.backward import Underivable, gradients
from convgen.diagnostics import SpecError
from convgen.frontend.format import formatted
from convgen.ir import epilogue as ep
from convgen.ir import verify
from convgen.ir.reference import reference
from convgen.ir.tensor import Tensor
from convgen.kernels import strategies
from convgen.planner import database
from convgen.targets import TARGETS

TENSORS = "input x: f16[n=2, h=4, w=3, c=8] filter w: f16[k=6, c] output y: f16[n, p, q, k]"
BODY = "operand s: f32[c] operand g: f16[n, c] t = x * s x = relu(t + g)"


def conv(body: str, more: str = "") -> str:
    return f"conv a {{ {TENSORS} {more} prologue {{ {body} }} }}"


def problem_of(text: str):
    return frontend.load(text)[0].problem


def test_it_reads_back_as_it_prints():
    problem = problem_of(conv(BODY, "epilogue { operand b: f32[k] y = acc + b }"))
    assert problem_of(str(problem)) == problem
    assert [t.name for t in problem.operands] == ["s", "g", "b"]
    assert [str(a) for a in problem.prologue.body] == ["t = x * s", "x = relu(t + g)"]
    assert [problem.like(t).role for t in problem.operands] == ["x", "x", "y"]


@pytest.mark.parametrize(
    ("body", "more", "found"),
    [
        ("x = acc", "", ["E301"]),
        ("x = w", "", ["E301"]),
        ("x = x + b", "", ["E301"]),
        ("t = relu(x)", "", ["E304"]),
        ("x = x x = relu(x)", "", ["E304"]),
        ("x = x t = x", "", ["E304"]),
        ("y = x x = x", "", ["E304"]),
        ("operand s: f32[c] x = relu(x)", "", ["E306"]),
        ("operand s: f32[k] x = x * s", "", ["E203"]),
        ("operand s: f32[c=7] x = x * s", "", ["E208"]),
        ("operand y: f32[c] x = x * y", "", ["E101"]),
        ("x = relu(x, 0)", "", ["E303"]),
        ("x = x % 2", "", ["E307"]),
        ("x = relu(x)", "op dgrad", ["E305"]),
        ("x = relu(x)", "op fprop wgrad", ["E305"]),
        ("x = relu(x)", "prologue { x = x * 2 }", ["E202"]),
        ("operand s: f32[c] x = x * s", "epilogue { operand s: f32[k] y = acc * s }", ["E101"]),
    ],
)
def test_what_is_refused(body, more, found):
    with pytest.raises(SpecError) as caught:
        frontend.load(conv(body, more))
    assert [d.code for d in caught.value.diagnostics] == found


def test_the_word_is_a_name_elsewhere():
    text = """
    let prologue = 4
    conv prologue { input x: f16[n=prologue, h=2, w=2, c=8] filter prologue: f16[k=8, c] output y: f16[n, p, q, k]
      epilogue { prologue_ = acc  y = prologue_ } }
    """
    problem = problem_of(text)
    assert (problem.name, problem.n, problem.w.name, problem.prologue) == ("prologue", 4, "prologue", None)


def test_it_is_formatted_as_an_epilogue_is():
    text = f"conv a {{\n  {TENSORS}\n  prologue {{\n operand s: f32[c]\n x=relu( x*s )\n}}\n}}"
    assert "  prologue {\n    operand s: f32[c]\n    x = relu(x * s)\n  }\n" in formatted(text)


@pytest.mark.parametrize("pad", [0, 1])
def test_the_reference_multiplies_what_it_gives(seed, pad):
    """By hand: rounded to the input's type, and outside of the input 0 whatever the shift."""
    text = conv(BODY, f"pad {pad}")
    problem = problem_of(text)
    arrays = verify.random_inputs(problem, seed)
    x, s, g = (arrays[name].astype(np.float64) for name in ("x", "s", "g"))
    given = np.maximum(x * s + g[:, None, None, :], 0).astype(np.float16).astype(np.float64)
    padded = np.pad(given, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    expected = np.einsum("npqc,kc->npqk", padded, arrays["w"].reshape(6, 8).astype(np.float64))
    np.testing.assert_allclose(reference(problem, arrays), expected, rtol=1e-12, atol=1e-12)
    assert verify.check(problem, arrays, expected.astype(np.float16))


def test_an_element_may_round_to_a_neighbor_and_no_further():
    """A sum halfway between two numbers of f16 may round to either of them."""
    text = "conv a { input x: f16[n=1, w=1, c=1] filter w: f16[k=1, s=1, c=1] output y: f32[n, q, k] prologue { %s } }"
    step = 2.0**-10

    def right(body: str, x: float, given: float) -> bool:
        problem = problem_of(text % body)
        arrays = {"x": np.full((1, 1, 1), x, np.float16), "w": np.ones((1, 1, 1), np.float16)}
        return bool(verify.check(problem, arrays, np.full((1, 1, 1), given, np.float32)))

    halfway = f"x = x + {step / 2}"
    assert right(halfway, 1.0, 1.0) and right(halfway, 1.0, 1.0 + step)
    assert not right(halfway, 1.0, 1.0 + 2 * step) and not right(halfway, 1.0, 1.0 - 2 * step)
    assert right("x = x * 2", 1.5, 3.0) and not right("x = x * 2", 1.5, 3.0 + 2 * step)


def test_strategies_that_do_not_apply_it_say_so():
    problem = problem_of(conv(BODY))
    target = TARGETS["sm_90a"]
    served = {name for name, s in strategies.STRATEGIES.items() if not s.obstacles(problem, target, {})}
    assert "direct" in served
    for name in set(strategies.STRATEGIES) - served - {"depthwise"}:
        found = strategies.STRATEGIES[name].obstacles(problem, target, {})
        assert any("prologue" in o.message for o in found), name


def test_measurements_and_gradients_know_it():
    plain = make("fprop", 2, 8, 8, (4, 4), (1, 1))
    s = Tensor("s", "operand", "f32", ("c",), (8,))
    value = ep.Binary("*", ep.TensorRef(plain.x.name), ep.OperandRef("s"))
    scaled = replace(plain, prologue=ep.Prologue((s,), (ep.Assignment(plain.x.name, value),)))
    assert database.key(plain) != database.key(scaled)
    assert scaled.with_images(1).operands == (s,)
    with pytest.raises(Underivable, match="prologue"):
        gradients(scaled)
