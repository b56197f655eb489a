"""`op transposed`: the sums of its definition, further pixels, channels of groups, its operands, its refusals."""

from __future__ import annotations

from itertools import product

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgen import frontend
from convgen.diagnostics import SpecError
from convgen.ir.problem import SPATIAL, Op
from convgen.ir.reference import reference

CODES = {
    # the window makes 13 to 15
    "output y: f16[n, p=16, q=7, k]": "E208",
    "output y: f16[n, p=12, q=7, k]": "E208",
    # of groups, the filter has the output's channels
    "output y: f16[n, p, q, k=12] groups 2": "E208",
    "output y: f16[n, p, q, k] pad h=(9, 9)": "E211",
}


def conv(rest: str, x: str = "f16[n=2, h=7, w=7, c=4]", w: str = "f16[k=8, r=3, s=1, c]") -> str:
    pad = "" if "pad" in rest else "pad h=1"
    return f"conv up {{ input x: {x} filter w: {w} {rest} {pad} stride h=2 op transposed }}"


def spread(x: numpy.ndarray, w: numpy.ndarray, stride, dilation, pad, extra, groups: int) -> numpy.ndarray:
    """y[n, k, ...] of x[n, c, ...] and w[c, k / groups, ...]: every pixel of x adds its taps to y."""
    windows = [(r - 1) * d + 1 for r, d in zip(w.shape[2:], dilation, strict=True)]
    axes = zip(x.shape[2:], windows, stride, extra, strict=True)
    room = [(h - 1) * s + window + more for h, window, s, more in axes]
    y = numpy.zeros((x.shape[0], w.shape[1] * groups, *room))
    each = x.shape[1] // groups
    for g, tap in product(range(groups), product(*map(range, w.shape[2:]))):
        own = slice(g * each, (g + 1) * each)
        places = zip(tap, x.shape[2:], stride, dilation, strict=True)
        at = tuple(slice(t * d, t * d + (h - 1) * s + 1, s) for t, h, s, d in places)
        sums = numpy.einsum("nc...,ck->nk...", x[:, own], w[(own, slice(None), *tap)])
        y[(slice(None), slice(g * w.shape[1], (g + 1) * w.shape[1]), *at)] += sums
    kept = tuple(slice(low, e - high) for (low, high), e in zip(pad, room, strict=True))
    return y[(slice(None), slice(None), *kept)]


@st.composite
def axes(draw):
    """(input, filter, stride, dilation, (low, high), extra) of an axis with a pixel of output."""
    h, r, s, d = (draw(st.integers(1, most)) for most in (4, 4, 3, 2))
    least = (h - 1) * s + (r - 1) * d + 1
    low = draw(st.integers(0, min(least - 1, 2)))
    high = draw(st.integers(0, min(least - 1 - low, 2)))
    return h, r, s, d, (low, high), draw(st.integers(0, s - 1 + high))


@given(st.lists(axes(), min_size=1, max_size=3), st.integers(1, 2), st.booleans(), st.integers(0, 2**32 - 1))
def test_it_is_the_sum_of_its_definition(geometry, groups, infers_input, seed):
    sp, rng = SPATIAL[len(geometry)], numpy.random.default_rng(seed)
    h, r, s, d, pad, extra = zip(*geometry, strict=True)
    x = rng.integers(-3, 4, (2, 2 * groups, *h)).astype(float)
    w = rng.integers(-3, 4, (2 * groups, 3, *r)).astype(float)
    expected = spread(x, w, s, d, pad, extra, groups)

    def by_axis(values) -> str:
        return " ".join(f"{dim}={value}" for dim, value in zip(sp.input, values, strict=True))

    def listed(dims, values) -> str:
        return ", ".join(f"{dim}={value}" for dim, value in zip(dims, values, strict=True))

    # with less than a stride of further pixels, the input follows from the output
    infers_input = infers_input and all(e < stride for e, stride in zip(extra, s, strict=True))
    pixels = ", ".join(sp.input) if infers_input else listed(sp.input, h)
    (request,) = frontend.load(
        f"conv up {{ input image: f32[n=2, c={2 * groups}, {pixels}]"
        f" filter w: f32[c={2 * groups}, k=3, {listed(sp.filter, r)}]"
        f" output y: f32[n, k, {listed(sp.output, expected.shape[2:])}] groups {groups}"
        f" stride {by_axis(s)} dilation {by_axis(d)} pad {by_axis(map(str, pad))} op transposed }}"
    )
    problem = request.problem
    assert (problem.op, problem.y.name, problem.x.name) == (Op.DGRAD, "image", "y")
    assert (reference(problem, {"y": x, "w": w}) == expected).all()
    assert frontend.load(str(problem))[0].problem == problem


def test_without_further_pixels_the_output_follows():
    (request,) = frontend.load(conv("output y: f16[n, p, q, k]"))
    assert request.problem.input == (13, 7)


def test_operands_are_the_outputs():
    epilogue = "epilogue { operand z: f16[n, p, k] operand b: f32[k] y = acc + b + z }"
    (request,) = frontend.load(conv("output y: f16[n, p, q, k] " + epilogue))
    assert [(t.dims, t.extents) for t in request.problem.operands] == [(("n", "h", "c"), (2, 13, 8)), (("c",), (8,))]


@pytest.mark.parametrize("rest", CODES)
def test_what_no_window_makes_is_refused(rest):
    with pytest.raises(SpecError) as caught:
        frontend.load(conv(rest))
    assert [d.code for d in caught.value.diagnostics] == [CODES[rest]]


def test_a_result_that_is_too_large_before_it_is_cropped_is_shown_so():
    text = "conv a { input x: f16[w=1073741824, c=8] filter w: f16[k=8, s=3, c] output y: f16[q, k] pad 1 stride 2 "
    shown = "(w - 1) * stride + window = (1073741824 - 1) * 2 + 3 = 2147483649; it must be at most 2147483647"
    with pytest.raises(SpecError) as caught:
        frontend.load(text + "op transposed }")
    assert [(d.code, d.message) for d in caught.value.diagnostics] == [("E209", shown)]
