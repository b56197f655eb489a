"""Halo tiles against the definition of a convolution: every tap of every kept output, read out of the halo tile.

The model of a halo tile is what TMA is documented to bring (CUDA driver API, cuTensorMapEncodeTiled): every
stride-th pixel of a box, in order, zero outside of x; zeros follow.
"""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make

from convgen.kernels.parts.hopper import SWIZZLE_ALIGNMENT
from convgen.kernels.tma_halo.halo import Halo, folded, halo_of, windows

SPAN = 32


@st.composite
def cases(draw):
    """A problem of one channel, its windows, output rows folded into one or not, a strip, images and pixels a tile."""
    axes = [
        (draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 9)))
        for _ in range(draw(st.integers(1, 2)))
    ]
    pads = tuple(tuple(draw(st.integers(0, (f - 1) * d + 2)) for _ in "lh") for f, d, _, _ in axes)
    inputs = tuple(max(extent, (f - 1) * d + 1 - sum(pad)) for (f, d, _, extent), pad in zip(axes, pads, strict=True))
    problem = make(
        "fprop", draw(st.integers(1, 3)), 1, 1, inputs, tuple(a[0] for a in axes), tuple(a[2] for a in axes), pads,
        tuple(a[1] for a in axes),
    )  # fmt: skip
    h, w = windows(problem, draw(st.sampled_from((1, 1, 2, 3))))
    images = draw(st.integers(1, 3))
    strip = w.output if images > 1 else draw(st.integers(1, w.output))
    pixels = draw(st.integers(1, 40))
    if images > 1:
        pixels += halo_of(h, w, 1, strip, images, SPAN).line
    return problem, h, w, strip, images, pixels


def at(found: Halo, phase: tuple[int, int], pixel: int, start: tuple[int, int], strides: tuple[int, int]):
    """What lies at a pixel of a phase: image, row and column of x, or None past the box.  `start` is where the
    phase begins in x."""
    load = next(p for p in found.phases if (p.h, p.w) == phase)
    assert 0 <= pixel * SPAN < load.end - load.start, "read past the phase"
    if pixel * SPAN >= load.box:
        return None
    rows, column = divmod(pixel, found.width)
    image, row = divmod(rows, load.height)
    return image, start[0] + row * strides[0], start[1] + column * strides[1]


@settings(max_examples=300, deadline=None)
@given(cases())
def test_every_tap_of_every_kept_output(case) -> None:
    problem, h, w, strip, images, pixels = case
    found = halo_of(h, w, pixels, strip, images, SPAN)
    strides = (h.stride, w.stride)
    pad = ((0, *problem.pad_lo)[-2], problem.pad_lo[-1])
    seen = set()
    for tile, q0 in itertools.product(range(-(-found.line // pixels)), range(0, w.output, strip)):
        line0 = tile * pixels
        for line in range(line0, line0 + pixels):
            image, rest = divmod(line, found.image) if images > 1 else (0, line)
            p, column = divmod(rest, found.width)
            if image >= images or p >= h.output or column >= strip or q0 + column >= w.output:
                continue
            seen.add((image, p, q0 + column))
            for r, s in itertools.product(h.offsets, w.offsets):
                phase = (r % strides[0], s % strides[1])
                shift = r // strides[0] * found.width + s // strides[1]
                top = line0 // found.width * strides[0] if images == 1 else 0
                start = (top - pad[0] + phase[0], q0 * strides[1] - pad[1] + phase[1])
                read = at(found, phase, line - line0 // found.width * found.width + shift, start, strides)
                wanted = (
                    image,
                    p * strides[0] + r - pad[0],
                    (q0 + column) * strides[1] + s - pad[1],
                )
                inside = 0 <= wanted[1] < h.extent and 0 <= wanted[2] < w.extent
                zero = read is None or not (0 <= read[1] < h.extent and 0 <= read[2] < w.extent)
                assert read == wanted if inside else zero
    assert seen == set(itertools.product(range(images), range(h.output), range(w.output)))


@given(cases())
def test_phases_follow_each_other_aligned(case) -> None:
    _, h, w, strip, images, pixels = case
    found = halo_of(h, w, pixels, strip, images, SPAN)
    assert [p.start for p in found.phases] == [0, *(p.end for p in found.phases[:-1])]
    assert all(p.start % SWIZZLE_ALIGNMENT == 0 and p.start + p.box <= p.end for p in found.phases)
    assert found.bytes == found.phases[-1].end and found.box == sum(p.box for p in found.phases)


@given(cases(), st.integers(1, 4))
def test_rows_folded_into_one_read_what_each_of_them_reads(case, fold: int) -> None:
    h, _ = windows(case[0])
    one = folded(h, fold)
    assert (one.output - 1) * fold < h.output <= one.output * fold
    for p in range(one.output):
        rows = range(p * fold, (p + 1) * fold)
        each = {row * h.stride + h.lower + offset for row in rows for offset in h.offsets}
        assert each == {p * one.stride + one.lower + offset for offset in one.offsets}


def test_rows_share_their_padding_where_they_can() -> None:
    _, same = windows(make("fprop", 1, 1, 1, (14, 14), (3, 3), pad=1))
    _, valid = windows(make("fprop", 1, 1, 1, (14, 14), (3, 3)))
    _, lopsided = windows(make("fprop", 1, 1, 1, (14, 14), (5, 5), pad=((1, 3), (1, 3))))
    assert (same.pitch, valid.pitch, lopsided.pitch) == (15, 14, 17)
