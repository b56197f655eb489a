"""TMA im2col's corners, strides and offsets: against the closed formulas, and by walking the box.

The walk is a model of the hardware as PTX describes it ("im2col mode"): start pixels run over an inclusive
box, innermost axis first, then the next image; a tap's offset is added at the access; what lies outside of
the tensor reads as zero.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from problems import make, problems

from convgen.ir.index_map import tma_axes
from convgen.ir.problem import Op

FORWARD = (Op.FPROP, Op.WGRAD)


def unit_stride(problem):
    return make(
        problem.op, problem.n, problem.c, problem.k, problem.input, problem.filter, dilation=problem.dilation,
        pad=tuple(zip(problem.pad_lo, problem.pad_hi, strict=True)), groups=problem.groups,
    )  # fmt: skip


def starts(lower, upper, extent, stride):
    """Start coordinates along one axis of the box [lower, extent - 1 + upper]."""
    return list(range(lower, extent - 1 + upper + 1, stride))


# ---- the table ---------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(problems(ops=FORWARD, largest=12))
def test_forward_is_the_table(problem):
    """lower = -pad_lo, upper = pad_hi - e with e = (R-1)*dilation, offset of tap r = r*dilation.

    The box here ends at the last start pixel; the table's may end less than a stride later, which starts
    no other window.
    """
    for axis, tma in enumerate(tma_axes(problem)):
        stride, dilation, extent = problem.stride[axis], problem.dilation[axis], problem.input[axis]
        e = (problem.filter[axis] - 1) * dilation
        assert tma.dim == problem.spatial.input[axis]
        assert tma.element_stride == stride
        assert tma.lower == -problem.pad_lo[axis]
        assert tma.offsets(problem.filter[axis]) == tuple(r * dilation for r in range(problem.filter[axis]))
        upper = problem.pad_hi[axis] - e
        assert 0 <= upper - tma.upper < stride
        ours = starts(tma.lower, tma.upper, extent, stride)
        assert ours == starts(tma.lower, upper, extent, stride)
        assert ours == [p * stride - problem.pad_lo[axis] for p in range(problem.output[axis])]
        if stride == 1:
            assert tma.upper == upper


@settings(max_examples=150, deadline=None)
@given(problems(ops=(Op.DGRAD,), largest=12).map(unit_stride))
def test_dgrad_of_unit_stride_is_the_table(problem):
    """lower = pad_lo - e, upper = pad_lo - e + in - out, offset of tap r = e - r*dilation."""
    for axis, tma in enumerate(tma_axes(problem)):
        dilation, pad = problem.dilation[axis], problem.pad_lo[axis]
        e = (problem.filter[axis] - 1) * dilation
        assert tma.dim == problem.spatial.output[axis]
        assert tma.element_stride == 1
        assert tma.lower == pad - e
        assert tma.upper == pad - e + problem.input[axis] - problem.output[axis]
        assert tma.offsets(problem.filter[axis]) == tuple(e - r * dilation for r in range(problem.filter[axis]))


@settings(max_examples=100, deadline=None)
@given(problems(ops=(*FORWARD, Op.DGRAD), largest=12))
def test_offsets_are_never_negative(problem):
    """The instruction takes them as unsigned numbers."""
    problem = unit_stride(problem) if problem.op is Op.DGRAD else problem
    for tma, taps in zip(tma_axes(problem), problem.filter, strict=True):
        assert all(o >= 0 for o in tma.offsets(taps))


def test_strided_dgrad_is_refused():
    with pytest.raises(ValueError, match="phase"):
        tma_axes(make(Op.DGRAD, input=(6, 6), stride=(1, 2)))


# ---- the walk ----------------------------------------------------------------------------------


def walk(axes, extents, first, pixels):
    """Start pixels (n, *spatial) of a load of `pixels` pixels from the start pixel `first`."""
    image, *at = first
    for _ in range(pixels):
        yield (image, *at)
        for i in reversed(range(len(axes))):
            at[i] += axes[i].element_stride
            if at[i] <= extents[i] - 1 + axes[i].upper:
                break
            at[i] = axes[i].lower
        else:
            image += 1


@settings(max_examples=150, deadline=None)
@given(problems(ops=(*FORWARD, Op.DGRAD), work=1500))
def test_the_box_visits_every_pixel_in_order(problem):
    """From any tile's first pixel, each tap reads the coordinates that the definition says."""
    problem = unit_stride(problem) if problem.op is Op.DGRAD else problem
    forward = problem.op is not Op.DGRAD
    axes = tma_axes(problem)
    extents, positions = (problem.input, problem.output) if forward else (problem.output, problem.input)

    def defined(at, tap, axis):
        """The coordinate that a tap reads for a position, by definition."""
        stride, shift = problem.stride[axis], tap[axis] * problem.dilation[axis] - problem.pad_lo[axis]
        return at[axis] * stride + shift if forward else at[axis] - shift

    pixels = list(itertools.product(range(problem.n), *map(range, positions)))
    tile = 5
    for start in range(0, len(pixels), tile):
        run = pixels[start : start + tile]
        image, *position = run[0]
        first = (image, *(o * a.element_stride + a.lower for o, a in zip(position, axes, strict=True)))
        walked = list(walk(axes, extents, first, len(run)))
        for tap in itertools.product(*map(range, problem.filter)):
            read = [(n, *(b + a.offset(t) for b, a, t in zip(base, axes, tap, strict=True))) for n, *base in walked]
            assert read == [(n, *(defined(at, tap, axis) for axis in range(problem.rank))) for n, *at in run]
