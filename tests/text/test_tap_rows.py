"""Rows of taps that tiles leave out, against the definition: a pixel's place under a tap."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from problems import make

from convgen.ir.index_map import tma_axes
from convgen.kernels.tma_im2col.tap_rows import mean_rows, tap_rows


@st.composite
def problems(draw):
    """Two axes; of the first, taps that reach far, or that come before the image alone."""
    taps, dilation, stride = draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.integers(1, 3))
    pads = (draw(st.integers(0, 20)), draw(st.integers(0, 20)))
    extent = max(draw(st.integers(1, 12)), (taps - 1) * dilation + 1 - sum(pads))
    columns = draw(st.integers(1, 6))
    return make("fprop", 1, 8, 8, (extent, columns), (taps, 1), (stride, 1), (pads, (0, 0)), (dilation, 1))


@given(problems(), st.integers(1, 40))
def test_a_row_that_is_left_out_meets_padding_alone(problem, tile_m):
    found = tap_rows(problem, tma_axes(problem)[0])
    assume(found is not None)
    taps, inner = problem.filter[0], problem.output[1]
    pad, stride, dilation = problem.pad_lo[0], problem.stride[0], problem.dilation[0]

    def reached(o):
        return {r for r in range(taps) if 0 <= o * stride - pad + r * dilation < problem.input[0]}

    taken = 0
    for first in range(0, found.image, tile_m):
        last = min(first + tile_m, found.image) - 1
        begin, end = found.under(first // inner, last // inner)
        wanted = set().union(*(reached(o) for o in range(first // inner, last // inner + 1)))
        assert wanted <= set(range(begin, end)) and 0 <= begin < end <= taps
        if reached(first // inner) and reached(last // inner):
            assert {begin, end - 1} <= wanted, "no row more than needed at either end"
        taken += found.rows(first, tile_m)
    assert mean_rows(found, tile_m) == taken / -(-found.image // tile_m)


@given(problems())
def test_positions_between_the_ends_are_counted_at_once(problem):
    found = tap_rows(problem, tma_axes(problem)[0])
    assume(found is not None)
    assert found.taken == sum(found.rows(o * found.inner, 1) for o in range(found.positions))


def test_filters_that_reach_no_further_than_their_like_leave_nothing_out():
    plain = make("fprop", 8, 64, 64, (56, 56), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    assert tap_rows(plain, tma_axes(plain)[0]) is None
    far = make("fprop", 8, 64, 64, (65, 65), (3, 3), (1, 1), ((36, 36), (36, 36)), (36, 36))
    assert mean_rows(tap_rows(far, tma_axes(far)[0]), 176) < 2.1
