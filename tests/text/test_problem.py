"""What a problem says of itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make, problems

from convgen.ir.pixels import Padding, coordinates_read
from convgen.ir.problem import SECTOR, ConvProblem, Op


@settings(max_examples=300, deadline=None)
@given(
    extent=st.integers(1, 12), outputs=st.integers(1, 8), taps=st.integers(1, 5), stride=st.integers(1, 6),
    dilation=st.integers(1, 4), pad=st.integers(0, 9),
)  # fmt: skip
def test_coordinates_that_windows_have_are_counted_once(
    extent: int, outputs: int, taps: int, stride: int, dilation: int, pad: int
):
    read = {p * stride + r * dilation - pad for p, r in itertools.product(range(outputs), range(taps))}
    assert coordinates_read(Padding.ZERO, extent, outputs, taps, stride, dilation, pad) == len(
        read & set(range(extent))
    )


MODES = {Padding.REFLECT: "reflect", Padding.REPLICATE: "edge", Padding.CIRCULAR: "wrap"}


@pytest.mark.parametrize("padding", MODES)
@settings(max_examples=200, deadline=None)
@given(
    extent=st.integers(1, 12), outputs=st.integers(1, 8), taps=st.integers(1, 5), stride=st.integers(1, 6),
    dilation=st.integers(1, 4), pad=st.integers(0, 9),
)  # fmt: skip
def test_pixels_that_padding_repeats_are_counted_once(
    padding: Padding, extent: int, outputs: int, taps: int, stride: int, dilation: int, pad: int
):
    behind = max((outputs - 1) * stride + (taps - 1) * dilation - pad - (extent - 1), 0)
    most = {Padding.REFLECT: extent - 1, Padding.CIRCULAR: extent}.get(padding, pad + behind)
    assume(max(pad, behind) <= most)
    padded = np.pad(np.arange(extent), (pad, behind), mode=MODES[padding])  # type: ignore[call-overload]
    read = {padded[p * stride + r * dilation] for p, r in itertools.product(range(outputs), range(taps))}
    assert coordinates_read(padding, extent, outputs, taps, stride, dilation, pad) == len(read)


def test_padding_that_repeats_pixels_reads_those():
    """Windows stand at the row before the first, which is row 8, and at rows 3 and 7."""
    problem = make("fprop", 1, 64, 64, (9, 64), (1, 1), (4, 1), ((1, 1), 0), dtype="f32", padding=Padding.CIRCULAR)
    assert problem.min_bytes - problem.w.bytes - problem.y.bytes == 3 * 64 * 64 * 4


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
