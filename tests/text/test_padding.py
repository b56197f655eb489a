"""Padding that is not of zeros: against numpy.pad, through specs, and who serves it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make, problems
from sympy import Integer
from tma_specs import compilation, laid_out, spec

from convgen import frontend
from convgen.diagnostics import SpecError
from convgen.ir import integer, verify
from convgen.ir.integer import symbol
from convgen.ir.padding import pixel_at
from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.ir.reference import reference
from convgen.kernels import strategies
from convgen.planner import database
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
MODES = {Padding.REFLECT: "reflect", Padding.REPLICATE: "edge", Padding.CIRCULAR: "wrap"}
SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("padding", MODES)
@given(data=st.data(), extent=st.integers(1, 9))
def test_positions_hold_the_pixels_that_numpy_pads_with(padding: Padding, data: st.DataObject, extent: int):
    most = {Padding.REFLECT: extent - 1, Padding.CIRCULAR: extent}.get(padding, 12)
    low, high = data.draw(st.integers(0, most)), data.draw(st.integers(0, most))
    a = symbol("a")
    ranges = {a: (0, low + extent + high - 1)}
    e = pixel_at(padding, a - low, Integer(extent))
    expected = np.pad(np.arange(extent), (low, high), mode=MODES[padding])  # type: ignore[call-overload]
    for form in (e, integer.simplify(e, ranges)):
        found = integer.evaluate(form, {a: np.arange(low + extent + high)})
        np.testing.assert_array_equal(np.broadcast_to(found, expected.shape), expected)
        least, last = integer.bounds(form, ranges)
        assert least <= expected.min() and expected.max() <= last
    assert low or high or integer.simplify(e, ranges) in (a, 0)  # where nothing is padded, nothing is left of it


def padded_beforehand(problem: ConvProblem, x: np.ndarray) -> tuple[ConvProblem, np.ndarray]:
    """The problem without padding, of an x that numpy.pad has padded."""
    amounts = dict(zip(problem.spatial.input, zip(problem.pad_lo, problem.pad_hi, strict=True), strict=True))
    mode = {"constant_values": np.nan} if problem.padding is Padding.NAN else {"mode": MODES[problem.padding]}
    x = x.reshape(problem.x.extents)
    x = np.pad(x, [amounts.get(d, (0, 0)) for d in problem.x.dims], **mode)
    none = (0,) * problem.rank
    larger = replace(problem.x, extents=x.shape)
    return replace(problem, x=larger, input=problem.padded, pad_lo=none, pad_hi=none, padding=Padding.ZERO), x


@settings(max_examples=60, deadline=None)
@given(problem=problems(ops=(Op.FPROP, Op.WGRAD, Op.IM2COL), paddings=(*MODES, Padding.NAN, Padding.ZERO)), seed=SEEDS)
def test_padding_is_as_if_the_input_were_padded_beforehand(problem: ConvProblem, seed: int):
    if problem.padding is Padding.ZERO or len(problem.x.dims) < problem.rank + 2:
        return
    arrays = verify.random_inputs(problem, seed)
    plain, x = padded_beforehand(problem, arrays["x"])
    np.testing.assert_allclose(reference(problem, arrays), reference(plain, {**arrays, "x": x}), rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(problem=problems(ops=(Op.FPROP,), paddings=tuple(Padding)), seed=SEEDS)
def test_the_input_s_gradient_is_the_transpose(problem: ConvProblem, seed: int):
    """<conv(x), g> = <x, dgrad(g)> for every x and g."""
    if problem.padding is Padding.NAN:
        return
    arrays = verify.random_inputs(problem, seed)
    g = verify.random_inputs(replace(problem, op=Op.DGRAD), seed)["y"]
    y, dx = reference(problem, arrays), reference(replace(problem, op=Op.DGRAD), {"y": g, "w": arrays["w"]})
    x = arrays["x"].astype(np.float64).reshape(-1)
    np.testing.assert_allclose(
        y.reshape(-1) @ g.astype(np.float64).reshape(-1), x @ dx.reshape(-1), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("padding", [p for p in Padding if p.repeats])
def test_an_infinite_gradient_reaches_the_pixels_of_its_windows_alone(padding: Padding):
    problem = make("dgrad", 1, 1, 1, (5,), (3,), pad=1, padding=padding, dtype="f32")
    y = np.array([1, 2, np.inf, 3, 4], np.float32).reshape(problem.y.shape)
    dx = reference(problem, {"y": y, "w": np.ones(problem.w.shape, np.float32)})
    assert np.isfinite(dx.reshape(-1)).tolist() == [True, False, False, False, True]


# ---- the language ------------------------------------------------------------------------------


def codes(text: str) -> list[str]:
    try:
        frontend.load(text)
    except SpecError as error:
        return [d.code for d in error.diagnostics]
    return []


def problem_of(*settings: str) -> ConvProblem:
    tensors = "input x: f16[n=2, h=8, w=8, c=16]  filter w: f16[k=16, r=3, s=3, c=16]  output y: f16[n, p, q, k]"
    (request,) = frontend.load(f"let reflect = 2 conv a {{ {tensors} {' '.join(settings)} }}")
    return request.problem


@pytest.mark.parametrize("padding", Padding)
@pytest.mark.parametrize("amounts", ["1", "(2, 1)", "h=1", "h=(0, 1) w=2", "reflect"])
def test_a_word_behind_the_amounts(padding: Padding, amounts: str):
    """A let may have the name, too: then the word behind the amounts is still what they are made of."""
    found = problem_of(f"pad {amounts} {padding}")
    assert found == replace(problem_of(f"pad {amounts}"), padding=padding)


def test_what_is_not_padded_is_padded_with_zeros():
    assert problem_of("pad 0 reflect") == problem_of()
    assert problem_of("pad 1 nan", "op dgrad").padding is Padding.ZERO  # which does not read the padding
    assert problem_of("pad 1 reflect", "op dgrad").padding is Padding.REFLECT


@pytest.mark.parametrize(
    ("op", "found"), [("fprop", ["E216"]), ("wgrad", ["E216"]), ("dgrad", []), ("fprop dgrad", ["E216"])]
)
def test_integers_cannot_be_padded_with_nan_where_padding_is_read(op: str, found: list[str]):
    dtype = "f16" if op == "dgrad" else "s8"
    tensors = f"input x: s8[n=1, w=9, c=4]  filter w: {dtype}[k=4, s=3, c=4]  output y: {dtype}[n, q, k]"
    assert codes(f"conv a {{ {tensors} op {op} pad 1 nan }}") == found


@pytest.mark.parametrize("extent", ["h=3", "h"])
@pytest.mark.parametrize(("fill", "most"), [("reflect", 2), ("circular", 3)])
def test_pixels_that_are_repeated_must_be_there(extent: str, fill: str, most: int):
    """However the input's extent is found: without a number it follows from the output's."""
    tensors = f"input x: f32[n=1, {extent}, w=9, c=4]  filter w: f32[k=4, r=9, s=9, c]  output y: f32[n, p=3, q, k]"
    with pytest.raises(SpecError) as caught:
        frontend.load(f"conv a {{ {tensors} pad h=4 {fill} }}")
    (found,) = caught.value.diagnostics
    assert found.code == "E209"
    assert found.message == f"`pad` is 4 along h: `{fill}` makes at most {most} of the input's 3"


# ---- who serves it -----------------------------------------------------------------------------


def obstacles(problem: ConvProblem) -> dict[str, str]:
    found = {name: strategies.STRATEGIES[name].obstacles(problem, TARGET, {}) for name in strategies.STRATEGIES}
    return {name: why[0].message for name, why in found.items() if why}


def test_kernels_that_read_zeros_alone_say_so():
    problem = make("fprop", 2, 16, 16, (8, 8), pad=1, padding=Padding.REFLECT)
    refused = obstacles(problem)
    assert refused.keys() == {"depthwise", "implicit_gemm", "winograd"}
    assert refused["implicit_gemm"] == "kernel mma_gemm reads zeros beyond x, not `reflect`"


def test_gradients_go_by_software_addresses():
    problem = make("dgrad", 2, 16, 16, (8, 8), pad=1, padding=Padding.CIRCULAR)
    refused = obstacles(problem)
    assert refused.keys() == {"tma_im2col", "tma_halo", "depthwise", "implicit_gemm", "winograd"}
    assert refused["tma_im2col"] == (
        "op dgrad with `circular` padding adds up the gradients of copies, which wgmma does not"
    )


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_the_preparing_launch_pads(layout: str):
    problem = laid_out(make("fprop", 8, 64, 64, (14, 14), pad=1, padding=Padding.REPLICATE), x=layout)
    made = compilation(spec(problem, "auto", {}))
    assert made.plan.strategy in ("tma_im2col", "tma_halo")
    assert any("padded by replicate" in note for note in made.plan.notes)
    assert made.plan.steps[0].entry == "convgen_example_prepare"
    zeros = compilation(spec(replace(problem, padding=Padding.ZERO), made.plan.strategy, {}))
    assert made.plan.us > zeros.plan.us


def test_boxes_that_tma_fills_with_nan_end_with_the_channels():
    problem = make("fprop", 8, 48, 64, (14, 14), pad=1, padding=Padding.NAN)
    made = compilation(spec(problem, "tma_im2col", {}))
    (launch,) = made.plan.launches
    loads = launch.params[0].map
    assert loads and loads.fill == "nan" and 48 % loads.channels == 0
    (refused,) = strategies.STRATEGIES["tma_im2col"].obstacles(problem, TARGET, {"tile.k": 64})
    assert refused.message == "boxes of 64 channels reach beyond the 48 of x, into NaN that is not padding"
    odd = make("fprop", 8, 40, 64, (14, 14), pad=1, padding=Padding.NAN)
    assert "padded by nan" in compilation(spec(odd, "tma_im2col", {})).plan.notes[0]


def test_measurements_of_other_padding_are_not_taken():
    problem = make("fprop", 2, 16, 16, (8, 8), pad=1)
    keys = {database.key(replace(problem, padding=p)) for p in Padding}
    assert len(keys) == len(Padding)
