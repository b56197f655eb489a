"""convgen gradient: backward specs, against differences of the forward pass in float64."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convgen
from convgen import driver
from convgen.backward import TYPES
from convgen.cli import main
from convgen.ir.derivative import Underivable
from convgen.ir.dtypes import DTYPES
from convgen.ir.problem import Op
from convgen.ir.reference import references, round_to
from convgen.spec import Spec, UsageError

BLOCK = """
conv conv1 {{
  input x: f32[n=2, h=4, w=5, c=3]  filter w: f32[k=4, r=3, s=2, c=3]  output y: f32[n, p, q, k]  pad h=1 w=(0, 1)
  epilogue {{ {first} }}
}}
conv conv2 {{
  input x: f32[n=2, h=4, w=5, c=4]  filter w: f32[k=3, r=3, s=3, c=4]  output y: f32[n, p, q, k]  pad 1
  epilogue {{ operand b: f32[]  operand z: f32[n, p, q, k]  y = acc + b + z }}
}}
"""
BIAS, KEPT = "operand b: f32[k]  ", "operand b: f32[k]  result t: f32[n, k, p, q]  t = 0.1 * (acc + b)  "
SCALED = BIAS + "operand s: f32[k]  result t: f32[n, p, q, k]  t = {}  "
#: Epilogues of the first layer, and what its gradient reads.
FIRST = {
    "none": (BIAS + "y = acc + b", ""),
    "scaled": (BIAS + "operand s: f32[k]  y = relu(s * (acc + b))", "saved_y saved_s"),
    "residual": (BIAS + "operand v: f32[n, p, q, k]  y = relu(acc + b - v * v)", "saved_y"),
    "relu": (BIAS + "y = relu(acc + b)", "saved_y"),
    "leaky_relu": (BIAS + "y = leaky_relu(acc + b, 0.2)", "saved_y"),
    "leaky_relu, negative": (KEPT + "y = leaky_relu(t, -0.2)", "saved_t"),
    "clamp": (BIAS + "y = clamp(acc + b, -3, 6)", "saved_y"),
    "sigmoid": (BIAS + "y = sigmoid(0.1 * (acc + b))", "saved_y"),
    "tanh": (BIAS + "y = tanh(0.1 * (acc + b))", "saved_y"),
    "relu, scaled behind": (BIAS + "y = 3 * relu(acc + b)", "saved_y"),
    "sigmoid, scaled behind": (BIAS + "y = -2 * sigmoid(0.1 * (acc + b))", "saved_y"),
    "exp": (BIAS + "y = exp(0.1 * (acc + b))", "saved_y"),
    "silu": (KEPT + "y = silu(t)", "saved_t"),
    "gelu": (KEPT + "y = gelu(t)", "saved_t"),
    "gelu_tanh": (KEPT + "y = gelu_tanh(t)", "saved_t"),
    "hardswish": (KEPT + "y = t * clamp(t + 0.5, 0, 1)", "saved_t"),
    "softplus": (KEPT + "y = log(1 + exp(t)) / 2", "saved_t"),
    "abs and sqrt": (KEPT + "u = sqrt(1 + abs(t))  y = 3 - t / u", "saved_t"),
    "min, max and select": (KEPT + "y = select(b > 0, min(max(t, -0.5), 0.5), max(0.3, 2 * t))", "saved_t saved_b"),
    "a comparison in what is kept": (
        BIAS + "result t: f32[n, p, q, k]  t = acc + b + select(acc + b > 0, 1, 2)  y = sqrt(1 + abs(t))",
        "saved_t",
    ),
    "scaled behind a difference": (
        BIAS + "result t: f32[n, p, q, k]  t = 2 * (acc - b)  y = silu(0.1 * (acc + b))",
        "saved_t saved_b",
    ),
    "gelu of a multiple by an operand": (SCALED.format("0.1 * s * (acc + b) + 0.5") + "y = gelu(t)", "saved_t saved_s"),
    "gelu_tanh of a multiple by an operand": (
        SCALED.format("0.1 * (acc + b) * s - 0.5") + "y = gelu_tanh(t)",
        "saved_t saved_s saved_b",
    ),
    "gelu behind a difference and a multiple": (
        SCALED.format("0.1 * (acc + b - 0.25) * s + 0.5") + "y = gelu(t)",
        "saved_t saved_s",
    ),
    "silu beside a quotient": (SCALED.format("acc + b + 1 / s") + "y = silu(t)", "saved_t"),
    "max of multiples of a multiple": (
        SCALED.format("(acc + b) * s + 0.15") + "y = max(t, 0.25 * t)",
        "saved_t saved_s",
    ),
    "added behind": (
        BIAS + "operand v: f32[n, p, q, k]  result t: f32[n, p, q, k]  t = relu(acc + b)  y = t + v",
        "saved_t",
    ),
}
STEP = 1e-5
ROOT = Path(__file__).parents[2]


def problems(text: str, **settings) -> dict:
    return {c.name: c.request.problem for c in driver.load(Spec(convgen.gradient(text, **settings)))}


@pytest.mark.costly
@pytest.mark.parametrize("name", FIRST)
def test_gradients_are_those_of_differences(name: str, seed: int) -> None:
    """Of two layers: along random directions of both filters, both biases, and the input, which a residual reads, too.

    Filters and inputs are whole numbers and biases are not near any, so no step goes across a kink."""
    rng = np.random.default_rng(seed)
    text = BLOCK.format(first=FIRST[name][0])
    conv1, conv2 = (c.request.problem for c in driver.load(Spec(text)))

    def whole(shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(-2, 3, shape).astype(float)

    at = {"x": whole(conv1.x.shape), "w1": whole(conv1.w.shape), "w2": whole(conv2.w.shape), "b2": np.array(0.3)}
    at["b1"] = 0.35 + whole((4,))
    others = {"s": np.array([0.5, -1.0, 2.0, 1.0]), "v": whole((2, 4, 5, 4))}
    upstream = whole(conv2.y.shape)

    def forward(at: dict) -> tuple[dict, np.ndarray]:
        first = references(conv1, {"x": at["x"], "w": at["w1"], "b": at["b1"], **others})
        kept = {t.name: v for t, v in zip(conv1.results, first, strict=True)}
        second = {"x": kept["y"], "w": at["w2"], "b": at["b2"], "z": at["x"]}
        return kept, references(conv2, second)[0]

    kept, _ = forward(at)
    back = problems(text, only="conv2", after="conv1") | problems(text, only="conv1", branch=True)
    assert {t.name for t in back["conv2_dgrad"].operands} == set(FIRST[name][1].split())
    saved = {f"saved_{n}": v for n, v in {**kept, "b": at["b1"], **others}.items()}
    (g1,) = references(back["conv2_dgrad"], {"y": upstream, "w": at["w2"], **saved})
    found = {"x": references(back["conv1_dgrad"], {"y": g1, "w": at["w1"], "branch": upstream})[0]}
    found["w1"], found["b1"] = references(back["conv1_wgrad"], {"x": at["x"], "y": g1})
    found["w2"], found["b2"] = references(back["conv2_wgrad"], {"x": kept["y"], "y": upstream})
    for one, gradient in found.items():
        direction = rng.choice([-2.0, -1.0, 1.0, 2.0], at[one].shape)
        ends = [(forward({**at, one: at[one] + step * direction})[1] * upstream).sum() for step in (-STEP, STEP)]
        along = (gradient * direction).sum()
        assert (ends[1] - ends[0]) / (2 * STEP) == pytest.approx(along, rel=1e-5, abs=1e-5), one


def test_the_sums_of_batch_norm_are_those_of_differences(seed: int) -> None:
    """dbeta and dgamma of the example, along random directions; no step goes across relu's kink."""
    rng = np.random.default_rng(seed)
    path = ROOT / "specs" / "examples" / "batch_norm_backward.conv"
    (backward,) = (
        c.request.problem for c in driver.load(Spec(path.read_text(), defines={"n": 2, "size": 4, "width": 3}))
    )
    forward = replace(backward, op=Op.FPROP, epilogue=None)
    t = rng.integers(-3, 4, backward.x.shape) / 1.0
    w, upstream = (rng.integers(-2, 3, shape) / 1.0 for shape in (backward.w.shape, backward.y.shape))
    mean, rstd, gamma, beta = np.full(3, 0.25), np.array([1.0, 0.5, 2.0]), np.array([1.0, -1.0, 2.0]), np.full(3, 0.1)

    def loss(gamma: np.ndarray, beta: np.ndarray) -> float:
        y = np.maximum(gamma * (t - mean) * rstd + beta, 0)
        return (references(forward, {"x": y, "w": w})[0] * upstream).sum()

    saved = {"saved_y": gamma * (t - mean) * rstd + beta, "saved_t": t, "mean": mean, "rstd": rstd}
    _, dbeta, dgamma = references(backward, {"y": upstream, "w": w, **saved})
    one = rng.choice([-2.0, -1.0, 1.0, 2.0], 3)
    along_beta = (loss(gamma, beta + STEP * one) - loss(gamma, beta - STEP * one)) / (2 * STEP)
    along_gamma = (loss(gamma + STEP * one, beta) - loss(gamma - STEP * one, beta)) / (2 * STEP)
    assert (along_beta, along_gamma) == pytest.approx((dbeta @ one, dgamma @ one), rel=1e-6, abs=1e-6)


ONE = (
    "conv a {{ input x: f32[n=1, w=5, c=1]  filter w: f32[k=1, s=1, c=1]  output y: f32[n, q, k] "
    "epilogue {{ result t0: f32[n, q, k]  t0 = acc  {body} }} }}"
)


def chain(step: str, length: int) -> str:
    """A layer of one channel, which computes the same function of its sums again and again."""
    names = ["t0", *(f"t{i}" for i in range(1, length)), "y"]
    pairs = pairwise(names)
    return ONE.format(body="  ".join(f"{then} = {step.replace('T', now)}" for now, then in pairs))


def assert_right(text: str, at: np.ndarray) -> None:
    """The derivative of such a layer at some sums is that of differences."""
    (layer,) = (c.request.problem for c in driver.load(Spec(text)))

    def forward(x: np.ndarray) -> list[np.ndarray]:
        return references(layer, {"x": x.reshape(1, 5, 1), "w": np.ones((1, 1, 1))})

    y, t0 = forward(at)
    back = problems(text, after="a")["a_dgrad"]
    saved = {t.name: {"saved_y": y, "saved_t0": t0}[t.name] for t in back.operands}
    (found,) = references(back, {"y": np.ones((1, 5, 1)), "w": np.ones((1, 1, 1)), **saved})
    differences = (forward(at + STEP)[0] - forward(at - STEP)[0]) / (2 * STEP)
    np.testing.assert_allclose(found, differences, rtol=1e-5, atol=1e-5)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("step", "length"),
    [("T * T", 9), ("T * T * T", 5), ("1 / (T * T)", 5), ("silu(2 * T)", 40), ("T * sigmoid(T)", 30),
     ("tanh(T) + T", 40), ("gelu_tanh(T)", 20), ("gelu(T) * T", 12), ("max(T, 0.1 * T * T)", 12)],
)  # fmt: skip
def test_long_chains(step: str, length: int) -> None:
    """The time for them grows with their length, not with what they would be as one expression."""
    assert_right(chain(step, length), np.array([0.75, 0.99, 1.005, 1.01, 1.02]))


@pytest.mark.parametrize("power", (4, 7, 12, 60))
def test_powers_are_squared(power: int) -> None:
    text = ONE.format(body="y = " + " * ".join(["t0"] * power))
    assert_right(text, np.array([-1.1, -0.5, 0.0, 0.9, 1.1]))
    assert convgen.gradient(text, after="a").count("*") <= 24


def test_a_long_chain_of_squares_is_a_spec() -> None:
    for length in (30, 200):
        assert "saved_t0" in convgen.gradient(chain("T * T", length), after="a")


@settings(max_examples=30)
@given(data=st.data())
def test_drawn_epilogues_have_the_derivatives_of_differences(data: st.DataObject) -> None:
    """Of smooth functions, of which any may read each value before it."""
    names, body = ["t0"], []
    for i in range(data.draw(st.integers(1, 12))):
        one, other = (data.draw(st.sampled_from(names)) for _ in range(2))
        step = data.draw(st.sampled_from(SMOOTH)).replace("A", one).replace("B", other)
        body.append(f"v{i} = {step}")
        names.append(f"v{i}")
    text = ONE.format(body="  ".join(body) + f"  y = {' + '.join(['t0', *names])}")
    assert_right(text, np.array([-1.3, -0.4, 0.2, 0.7, 1.6]))


#: None is larger than what it is made of by much, nor has poles.
SMOOTH = (
    "tanh(A)", "sigmoid(A - B)", "silu(A) / 2", "tanh(A * B)", "A / (1 + B * B)", "exp(-A * A)", "log(1 + A * A)",
    "sqrt(1 + A * A) - 1", "gelu(A) - tanh(B)", "gelu_tanh(tanh(A))", "0.25 * A - B / 2", "tanh(A * A * A * A * A)",
)  # fmt: skip


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("y = acc * 1e38 * 1e38", "no spec can say the gradients of a: the number is too large"),
        ("c = 1e38 * 1e38 * 1e38 * 1e38 * 1e38 * 1e38 * 1e38 * 1e38 * 1e38  y = acc * c", "larger than what an f64"),
        ("c0 = 3 + 0 " + " ".join(f"c{i} = c{i - 1} * c{i - 1}" for i in range(1, 60)) + " y = acc * c59", "an f64"),
    ],
)
def test_numbers_that_no_spec_can_say(body: str, told: str) -> None:
    assert told in refused(ONE.format(body=body), after="a")


@pytest.mark.parametrize("body", ["acc * log(-1.5)", "leaky_relu(acc, sqrt(-1.5))", "min(log(-1.5), acc)"])
def test_constants_that_are_nan_are_those_of_the_language(body: str) -> None:
    """sympy would have made complex numbers of them."""
    back = problems(ONE.format(body=f"y = {body}"), after="a")["a_dgrad"]
    assert re.search(r"(log|sqrt)\(-1.5\)", str(back))


def test_a_layer_without_gradients_leaves_those_of_others() -> None:
    tensors = "input x: f16[n=1, w=4, c=8]  filter w: f16[k=8, s=1, c=8]  output y: f16[n, q, k]"
    opened = f"conv opened {{ {tensors}  prologue {{ x = relu(x) }} }}"
    text = f"{opened}  conv plain {{ {tensors} }}"
    assert problems(text).keys() == {"plain_dgrad", "plain_wgrad"}
    assert convgen.gradient(text).startswith("# No gradients of opened: opened has a prologue")
    assert "opened has a prologue" in refused(text, only="opened")
    assert "opened has a prologue" in refused(opened)
    both = f"{opened}  {opened.replace('conv opened', 'conv closed')}"
    assert "closed has a prologue" in refused(both)


def refused(text: str, **settings) -> str:
    with pytest.raises(Underivable) as error:
        convgen.gradient(text, **settings)
    return str(error.value)


@pytest.mark.parametrize(
    ("first", "told"),
    [
        ("y = silu(acc)", "(acc * (1 - sigmoid(acc)) + 1) * sigmoid(acc)"),
        (BIAS + "operand v: f32[n, p, q, k] y = relu(acc + b) + v", "relu(acc + b) > 0"),
        ("y = leaky_relu(acc, -0.1)", "select(acc > 0, 1, -0.1)"),
        ("y = acc > 0", "is 0"),
        ("y = acc / 0", "`y` divides by 0"),
        ("y = exp(min(acc / (acc - acc), 2))", "`y` divides by 0"),
        (
            "y = silu(2 * acc)",
            "declare another result that holds what it reads: `t = 2 * acc` before `y = silu(2 * acc)`",
        ),
        (BIAS + "u = acc + b  y = silu(u)", "declare `u` as a result, so that it is kept"),
        ("y = acc * silu(acc)", "`t = acc` before `y = acc * silu(acc)`"),
        (BIAS + "operand t: f32[k]  y = relu(acc + b) + t", "`t1 = relu(acc + b)` before `y = relu(acc + b) + t`"),
        # where b is 0, t is infinite, and acc is not known
        (BIAS + "result t: f32[n, p, q, k]  t = acc / b  y = acc * acc + acc", "`t1 = acc` before"),
        (BIAS + "result t: f32[n, p, q, k]  t = acc + 1 / b  y = acc * acc", "`t1 = acc` before"),
    ],
)
def test_what_the_forward_kernel_does_not_keep(first: str, told: str) -> None:
    assert told in refused(BLOCK.format(first=first), only="conv2", after="conv1")


@pytest.mark.parametrize("dtype", sorted({*DTYPES} - {*TYPES}))
def test_results_that_round_more_than_gradients_do_are_not_read(dtype: str) -> None:
    """An s8 of 3 may have been 2.6, or 300 saturated."""
    kept = f"result t: {dtype}[n, p, q, k]  t = acc * 0.01  "
    told = refused(BLOCK.format(first=kept + "y = gelu(acc) + t"), only="conv2", after="conv1")
    assert "declare another result that holds what it reads: `t1 = " in told
    told = refused(BLOCK.format(first=kept + "y = gelu(t)"), only="conv2", after="conv1")
    assert f"hint: `t` is {dtype}, which rounds too much: declare it as f32" in told


@pytest.mark.parametrize(
    ("text", "settings", "told"),
    [
        (BLOCK.format(first="y = acc"), {"only": "conv1", "after": "conv1"}, "is not the result of conv1"),
        (
            BLOCK.format(first="y = acc").replace("y: f32[n, p", "y: f16[n, p", 1),
            {"after": "conv1"},
            "is not the result",
        ),
        (
            "conv a { input x: f16[n=1, w=4, c] filter w: f16[k=4, s=1, c=4] output y: f16[n, q, k] op dgrad }",
            {},
            "dgrad",
        ),
        (
            "conv a { input x: f16[n=1, w=4, c=4] filter w: f16[k=4, s=1, c] output y: f16[n, q, k] "
            "prologue { x = relu(x) } }",
            {},
            "has a prologue",
        ),
        ("conv a { input x: s8[n=1, w=4, c=4] filter w: s8[k=4, s=1, c] output y: f32[n, q, k] }", {}, "reads s8"),
    ],
)
def test_layers_that_have_no_such_gradient(text: str, settings: dict, told: str) -> None:
    assert told in refused(text, **settings)


@pytest.mark.parametrize("name", ("only", "after"))
def test_one_convolution_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is of type list: expected the name of one convolution"):
        convgen.gradient(BLOCK.format(first="y = acc"), **{name: ["conv1"]})


def test_names_that_are_taken_and_padding() -> None:
    """The branch and the sum get other names; a convolution that pads by NaN has a gradient of zeros there."""
    text = BLOCK.format(first=BIAS + "y = relu(acc + b)")
    text = text.replace("input x: f32[n=2, h=4, w=5, c=4]", "input g: f32[n=2, h=4, w=5, c=4]").replace(
        "pad 1", "pad 1 nan"
    )
    text = text.replace("filter w: f32[k=3", "filter branch: f32[k=3")
    back = problems(text, only="conv2", after="conv1", branch=True)
    assert [t.name for t in back["conv2_dgrad"].operands] == ["branch_", "saved_y"]
    assert [str(a) for a in back["conv2_dgrad"].epilogue.body] == [
        "g_ = acc + branch_",
        "g = select(saved_y > 0, g_, 0)",
    ]


BOUNDS = st.decimals(-9, 9, places=2).map(float)


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(["f16", "bf16", "f32"]),
    bounds=st.lists(BOUNDS, min_size=2, max_size=2, unique=True).map(sorted),
    times=BOUNDS.filter(bool),
    division=st.booleans(),
    operands=st.booleans(),
)
def test_through_a_clamp_nothing_follows_what_it_holds_at_a_bound(
    dtype: str, bounds: list[float], times: float, division: bool, operands: bool
) -> None:
    """Whatever rounding makes of the bound, and of its multiple, in the result that is saved."""
    low, high = bounds
    said = ("lo", "hi") if operands else (f"{low}", f"{high}")
    value = f"clamp(acc, {said[0]}, {said[1]}) {'/' if division else '*'} {times}"
    declared = "operand lo: f32[k]  operand hi: f32[k]  " if operands else ""
    one = "input x: {0}[n=1, h=1, w=3, c=1]  filter w: {0}[k=1, r=1, s=1, c=1]  output y: {0}[n, p, q, k]"
    block = f"conv conv1 {{{{ {one} epilogue {{{{ {declared}y = {value} }}}} }}}}  conv conv2 {{{{ {one} }}}}"
    back = problems(block.format(dtype), only="conv2", after="conv1")["conv2_dgrad"]
    f32 = np.float32
    clamped = np.array([low, (f32(low) + f32(high)) / 2, high], f32)  # as sums are, for sums of -99, between, and 99
    y = clamped / f32(times) if division else clamped * f32(times)
    saved = {"saved_y": round_to(y.astype(float), DTYPES[dtype]).reshape(1, 1, 3, 1)}
    saved |= {f"saved_{name}": np.array([f32(v)], float) for name, v in zip(("lo", "hi"), bounds, strict=True)}
    given = {"y": np.ones((1, 1, 3, 1)), "w": np.ones((1, 1, 1, 1))}
    (found,) = references(back, given | {t.name: saved[t.name] for t in back.operands})
    slope = 1 / times if division else times
    between = slope if saved["saved_y"].ravel()[1] not in saved["saved_y"].ravel()[[0, 2]] else 0
    np.testing.assert_allclose(found.ravel(), [0, between, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("last", "condition"),
    [("y = clamp(acc, 0, 6)", "saved_y > 0 && saved_y < 6"), ("y = relu(acc)", "saved_y > 0")],
)
def test_gradients_are_selected_so_that_infinite_ones_make_no_nan(last: str, condition: str) -> None:
    back = problems(BLOCK.format(first=last), only="conv2", after="conv1")
    assert str(back["conv2_dgrad"].epilogue.body[-1]) == f"x = select({condition}, acc, 0)"


@pytest.mark.parametrize(
    ("first", "selected"),
    [
        ("result t: f32[n, p, q, k]  t = acc  y = select(t > 0, t, 0)", "saved_t > 0, acc"),
        ("result t: f32[n, p, q, k]  t = acc > 0.1  y = select(t, acc, 0)", "saved_t != 0, acc"),
        ("operand m: f32[k]  y = select(m > 0, acc, 0)", "saved_m > 0, acc"),
        ("operand m: f32[k]  y = select(m, acc, 0)", "saved_m != 0, acc"),
        ("operand m: f32[k]  y = select(m, 1, acc)", "!(saved_m != 0), acc"),
    ],
)
def test_what_a_select_takes_is_selected_in_its_gradient(first: str, selected: str) -> None:
    back = problems(BLOCK.format(first=first), only="conv2", after="conv1")
    assert str(back["conv2_dgrad"].epilogue.body[-1]) == f"x = select({selected}, 0)"


def test_the_command_prints_the_spec(tmp_path, capsys) -> None:
    path = tmp_path / "block.conv"
    path.write_text(BLOCK.format(first="y = relu(acc)"))
    assert main(["gradient", str(path), "--only", "conv2", "--after", "conv1", "--branch"]) == 0
    assert capsys.readouterr().out == convgen.gradient(path, only="conv2", after="conv1", branch=True)


def test_the_command_takes_several_convolutions(tmp_path, capsys) -> None:
    path = tmp_path / "block.conv"
    path.write_text(BLOCK.format(first="y = relu(acc)"))
    assert main(["gradient", str(path), "--only", "conv1,conv2"]) == 0
    assert capsys.readouterr().out == convgen.gradient(path)


def test_gradients_are_for_the_target_of_their_layer() -> None:
    """The strategy, which is the forward kernel's, is not theirs."""
    aimed = BLOCK.format(first="y = relu(acc)").replace("pad 1\n", "pad 1  target sm_80  strategy direct { tile 2 }\n")
    found = driver.load(Spec(convgen.gradient(aimed)))
    of = {c.name: (c.request.target, c.request.strategy) for c in found}
    assert of["conv1_dgrad"] == of["conv1_wgrad"] == (None, "auto")
    assert of["conv2_dgrad"] == of["conv2_wgrad"] == ("sm_80", "auto")


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_that_gradients_have_is_documented(dtype: str) -> None:
    text = f"conv a {{ input x: {dtype}[n=1, c=4] filter w: {dtype}[k=4, c] output y: {dtype}[n, k] }}"
    assert {p.x.dtype for p in problems(text).values()} == {dtype}
    (line,) = (line for line in (ROOT / "docs/gradients.md").read_text().splitlines() if "- Layers are" in line)
    assert dtype in line.replace(",", "").split()


def test_the_layer_whose_result_is_read_is_none_of_its_readers() -> None:
    back = problems(BLOCK.format(first="y = relu(acc)"), after="conv1")
    assert back.keys() == {"conv2_dgrad", "conv2_wgrad"}
