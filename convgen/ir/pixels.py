"""The pixels that windows read along an axis of x: its own, and those that padding adds."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator

MOST_TAPS = 4096  #: Of an axis, whose pixels are counted tap by tap.


class Padding(enum.StrEnum):
    """The values that a window reads beyond the input.  `reflect`, `replicate` and `circular` repeat pixels of the
    input, as numpy.pad's modes reflect, edge and wrap do; the gradients of the copies add up in the pixel."""

    ZERO = "zero"
    REFLECT = "reflect"
    REPLICATE = "replicate"
    CIRCULAR = "circular"
    NAN = "nan"

    @property
    def repeats(self) -> bool:
        """Whether pixels of the input stand there."""
        return self not in (Padding.ZERO, Padding.NAN)


def coordinates_read(
    padding: Padding, extent: int, outputs: int, taps: int, stride: int, dilation: int, pad: int
) -> int:
    """How many coordinates of an axis of x are in some window: a stride beyond the filter steps over others, and
    padding may repeat them.

    All of them where the taps are too many to go through."""
    if taps > MOST_TAPS:
        return extent
    runs = defaultdict[int, set[tuple[int, int]]](set)  # of coordinates a stride apart, by their phase
    for first in range(-pad, taps * dilation - pad, dilation):
        for low, high in _runs(range(first, first + outputs * stride, stride), extent, padding):
            runs[low % stride].add((low // stride, high // stride + 1))
    count = 0
    for found in runs.values():
        end = 0
        for low, high in sorted(found):
            count += max(high - max(low, end), 0)
            end = max(high, end)
    return count


def _runs(positions: range, extent: int, padding: Padding) -> Iterator[tuple[int, int]]:
    """The first and the last coordinate of what stands at positions of the padded axis: in x, before it and behind."""
    last = extent - 1
    images = {
        Padding.REFLECT: (lambda i: -i, lambda i: 2 * last - i),
        Padding.REPLICATE: (lambda i: 0, lambda i: last),
        Padding.CIRCULAR: (lambda i: i + extent, lambda i: i - extent),
    }
    if inside := _between(positions, 0, extent):
        yield inside[0], inside[-1]
    outside = (_between(positions, positions.start, 0), _between(positions, extent, positions.stop))
    for found, image in zip(outside, images.get(padding, ()), strict=False):
        if found:
            one, other = image(found[0]), image(found[-1])
            yield min(one, other), max(one, other)


def _between(positions: range, low: int, high: int) -> range:
    """The positions from one on and before another."""
    skipped = max(-((positions.start - low) // positions.step), 0)
    return range(positions.start + skipped * positions.step, min(positions.stop, high), positions.step)
