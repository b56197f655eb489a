"""Phases of a strided dgrad: each pixel is in one phase, whose taps and walk reach just what the definition sums."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from problems import make, problems

from convgen.ir.phases import phases
from convgen.ir.problem import Op
from convgen.kernels.parts.assignment import assignment


@given(problems(ops=(Op.DGRAD,), largest=9))
def test_phases_sum_what_the_definition_does(problem) -> None:
    """Along each axis: the (tap, pixel of y) pairs of every pixel of x."""
    found = phases(problem)
    geometry = zip(
        found.axes, problem.input, problem.output, problem.filter, problem.stride, problem.dilation, problem.pad_lo,
        strict=True,
    )  # fmt: skip
    for axis, extent, outputs, taps, stride, dilation, pad in geometry:
        expected = {
            (h, r, p)
            for h, r, p in product(range(extent), range(taps), range(outputs))
            if h == p * stride + r * dilation - pad
        }
        seen, pixels = set(), []
        for phase in axis.phases:
            for i in range(axis.positions):
                h = phase.first + axis.stride * i
                if h >= extent:
                    assert not axis.even
                    continue
                pixels.append(h)
                for j in range(phase.taps):
                    offset = phase.offset - axis.offset_step * j
                    assert 0 <= offset <= axis.walk.offset(0)
                    p = axis.walk.lower + i + offset
                    if 0 <= p < outputs:
                        seen.add((h, phase.tap + axis.tap_step * j, p))
        assert sorted(pixels) == list(range(extent)) and seen == expected
        # the box: its last start is the last position's
        assert axis.walk.lower + axis.positions - 1 == outputs - 1 + axis.walk.upper


@given(problems(ops=(Op.DGRAD,), largest=9))
def test_the_longest_come_first(problem) -> None:
    found = phases(problem)
    assert list(found.taps) == sorted(found.taps, reverse=True)
    assert len(set(found.rows)) == len(found.rows)


@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
def test_a_strided_dgrad_has_phases_and_others_have_none(stride) -> None:
    assigned = assignment(make("dgrad", 2, 8, 8, (6, 6), (3, 3), stride=stride, pad=1))
    assert (assigned.phases is not None) == (stride != (1, 1)) == (not assigned.mirrored)
