"""What a problem says of itself."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make, problems

from convgen.ir.problem import SECTOR, ConvProblem, Op, coordinates_read


@settings(max_examples=300, deadline=None)
@given(
    extent=st.integers(1, 12), outputs=st.integers(1, 8), taps=st.integers(1, 5), stride=st.integers(1, 6),
    dilation=st.integers(1, 4), pad=st.integers(0, 9),
)  # fmt: skip
def test_coordinates_that_windows_have_are_counted_once(
    extent: int, outputs: int, taps: int, stride: int, dilation: int, pad: int
):
    read = {p * stride + r * dilation - pad for p, r in itertools.product(range(outputs), range(taps))}
    assert coordinates_read(extent, outputs, taps, stride, dilation, pad) == len(read & set(range(extent)))


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_least_traffic_is_each_tensor_once_but_for_pixels_of_x_that_no_window_has(problem: ConvProblem):
    whole = sum(t.bytes for t in (*problem.reads, *problem.operands, problem.result))
    unread = problem.x.bytes if problem.op in (Op.FPROP, Op.WGRAD, Op.IM2COL) else 0
    assert whole - unread <= problem.min_bytes <= whole


@pytest.mark.parametrize(
    ("c", "stride", "filter", "read"),
    [(64, 1, 3, 64), (64, 2, 1, 16), (64, 4, 3, 25), (64, (4, 1), 1, 16), (64, 2, 3, 64), (2, 2, 1, 32)],
)
def test_a_stride_beyond_the_filter_leaves_pixels_unread(c: int, stride: int | tuple[int, int], filter: int, read: int):
    """Two channels: pixels of a row share sectors, rows do not."""
    problem = make("fprop", 2, c, 8, (8, 8), (filter, filter), stride, (filter - 1) // 2)
    moved = problem.min_bytes - problem.w.bytes - problem.y.bytes
    bytes_of_a_pixel = 2 * c
    assert (bytes_of_a_pixel < SECTOR) == (c == 2)
    assert moved == 2 * read * bytes_of_a_pixel
