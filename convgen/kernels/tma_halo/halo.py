"""Halo tiles of x: the pixels that a tile of outputs reads for all taps of a filter, as lines of pixels.

Along an axis, output p and tap r read x at p * stride + lower + r * dilation.  With the tap's offset split
into shift * stride + phase that is pixel p + shift of the phase: every stride-th pixel of x from
lower + phase on.  So each phase that a tap needs is a small image of its own, brought by one load, and a
tap is the same shift for every output.

A strided dgrad is the other way round: its outputs have phases, each with taps of its own.  Position i of all of them
reads some of the same pixels of the gradient, i + lower + offset, and so stands for them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from convgen.ir.problem import ConvProblem
from convgen.ir.size import Size
from convgen.kernels.parts.hopper import aligned
from convgen.kernels.parts.window_axis import ONE, WindowAxis, window_axes


@lru_cache(maxsize=64)
def _axes(problem: ConvProblem) -> tuple[WindowAxis, WindowAxis, WindowAxis]:
    """The windows along d, h and w: a convolution over w alone has images one row high, one over h and w one deep."""
    d, h, w = [ONE] * (3 - problem.rank) + [*window_axes(problem)]
    return d, h, w


def depth(problem: ConvProblem) -> WindowAxis:
    """The window along d.  A halo tile lies in one plane: each tap along d has its own."""
    return _axes(problem)[0]


@lru_cache(maxsize=64)
def windows(problem: ConvProblem, fold: int = 1, strided: ConvProblem | None = None) -> tuple[WindowAxis, WindowAxis]:
    """The windows along h and w, `fold` output rows as one, or the pixels of all phases of a `strided` dgrad."""
    if strided:
        h, w = [ONE] * (2 - problem.rank) + [axis.window for axis in phased(strided)]
        return h, w
    _, h, w = _axes(problem)
    return folded(h, fold), w


@dataclass(frozen=True)
class Phased:
    """One axis of a strided dgrad: `reads[phase]` are the offsets of that phase's taps.

    Tap r reaches pixel i * stride + phase of x from y's pixel i + (phase + pad - dilation * r) / stride, for the one
    phase that makes it whole: phase + pad - dilation * r is `stride` times -((dilation * r - pad) // stride)."""

    stride: int
    window: WindowAxis
    reads: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=64)
def phased(dgrad: ConvProblem) -> tuple[Phased, ...]:
    """The axes of a strided dgrad, outermost first."""
    found = []
    for extent, output, stride, pad, dilation, taps in zip(
        dgrad.output, dgrad.input, dgrad.stride, dgrad.pad_lo, dgrad.dilation, dgrad.filter, strict=True
    ):
        reached = [divmod(dilation * r - pad, stride) for r in range(taps)]
        lower = min(-before for before, _ in reached)
        reads = tuple(
            tuple(sorted(-before - lower for before, phase in reached if phase == one)) for one in range(stride)
        )
        offsets = tuple(sorted({-before - lower for before, _ in reached}))
        found.append(Phased(stride, WindowAxis(extent, -(-output // stride), 1, lower, offsets), reads))
    return tuple(found)


def folded(window: WindowAxis, fold: int) -> WindowAxis:
    """Output p stands for outputs p * fold to p * fold + fold - 1, and reads what any of them reads."""
    if fold == 1:
        return window
    offsets = sorted({i * window.stride + offset for i in range(fold) for offset in window.offsets})
    return replace(window, output=-(-window.output // fold), stride=window.stride * fold, offsets=tuple(offsets))


@dataclass(frozen=True)
class Phase:
    """One load of a halo tile: pixels of phase (h, w), `height` rows of each image, at byte `start` of the halo tile.
    TMA loads `box` bytes, and taps read `read`; zeros follow the box."""

    h: int
    w: int
    height: int
    start: int
    box: int
    read: int

    @property
    def gap(self) -> int:
        """Bytes of zeros."""
        return max(0, self.read - self.box)

    @property
    def name(self) -> str:
        """The name of its start in generated source."""
        return f"phase_{self.h}_{self.w}"

    @property
    def box_end(self) -> int:
        return self.start + self.box

    @property
    def read_end(self) -> int:
        return self.start + self.read

    @property
    def end(self) -> int:
        return self.start + aligned(max(self.box, self.read))


@dataclass(frozen=True)
class Halo:
    """A halo tile: `width` pixels a row, `image` pixels from an image to the next, its phases one after the other.
    `line` pixels hold all outputs of a strip of an image, or of all images of a tile."""

    width: int
    image: int
    line: int
    phases: tuple[Phase, ...]

    @cached_property
    def bytes(self) -> int:
        return self.phases[-1].end

    @cached_property
    def box(self) -> int:
        """Bytes that TMA loads."""
        return sum(phase.box for phase in self.phases)

    @cached_property
    def tallest(self) -> int:
        return max(phase.height for phase in self.phases)


def line_of(h: WindowAxis, w: WindowAxis, strip: int, images: int) -> int:
    """Pixels of padded width that hold all outputs of a strip of an image, or of all of `images` images."""
    width = width_of(w, strip)
    line = (h.output - 1) * width + strip
    return line + (images - 1) * h.pitch * width if images > 1 else line


def width_of(w: WindowAxis, strip: int) -> int:
    """Pixels of a row of a strip's halo tile."""
    return w.pitch if strip == w.output else strip + w.reach()


@lru_cache(maxsize=1024)
def halo_of(h: WindowAxis, w: WindowAxis, pixels: int, strip: int, images: int, span: int) -> Halo:
    """The halo tile of `pixels` outputs along a line of padded width, `span` bytes a pixel.

    The line runs down a strip of `strip` output columns of one image and may start within a row, or holds
    all outputs of `images` images, `strip` being all columns.
    """
    width = width_of(w, strip)
    line = line_of(h, w, strip, images)
    first = 0  # pixel of a halo tile that a tile starts at, at most
    if images > 1:
        rows = h.pitch - h.reach()
        image = h.pitch * width
    else:
        decided = isinstance(line, Size)  # by a call: it may be long
        first = width - math.gcd(pixels, width) if decided or line > pixels else 0
        rows = (first + pixels - 1) // width + 1
        rows = rows if decided else min(rows, h.output)
        image = 0
    phases, start = [], 0
    for a in h.phases:
        height = h.pitch if images > 1 else rows + h.reach(a)
        box = images * height * width * span
        for b in w.phases:
            read = (first + pixels + h.reach(a) * width + w.reach(b)) * span
            phases.append(Phase(a, b, height, start, box, read))
            start = phases[-1].end
    return Halo(width, image, line, tuple(phases))
