"""One axis of a convolution's windows: the pixels that a run of outputs reads for all taps.

Output p and tap r read x at p * stride + lower + r * dilation.  With the tap's offset split into shift * stride + phase
that is pixel p + shift of the phase: every stride-th pixel of x from lower + phase on.  So each phase that a tap needs
is a small image of its own, brought by one load, and a tap is the same shift for every output.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property, lru_cache

from convgen.ir.index_map import tma_axes
from convgen.ir.problem import ConvProblem

_FARTHEST = 1024  # shift of a tap, beyond any box


@dataclass(frozen=True)
class WindowAxis:
    """Output p and tap r read x, of `extent`, at p * stride + lower + offsets[r]."""

    extent: int
    output: int
    stride: int
    lower: int
    offsets: tuple[int, ...]

    @cached_property
    def step(self) -> int:
        """The distance between neighboring offsets; 0 if they are not evenly spaced."""
        steps = {b - a for a, b in itertools.pairwise(self.offsets)}
        return steps.pop() if len(steps) == 1 else int(not steps)

    def offset_of(self, tap: str) -> str:
        """C text of a tap's offset, which are evenly spaced from 0 on."""
        return f"{self.offsets[1]} * {tap}" if len(self.offsets) > 1 and self.offsets[1] > 1 else tap

    @cached_property
    def phases(self) -> tuple[int, ...]:
        return tuple(sorted({o % self.stride for o in self.offsets}))

    @cached_property
    def _reaches(self) -> dict[int, int]:
        return {p: max(o // self.stride for o in self.offsets if o % self.stride == p) for p in self.phases}

    def reach(self, phase: int | None = None) -> int:
        """The largest shift of a phase's taps, or of all taps."""
        return max(self.offsets) // self.stride if phase is None else self._reaches[phase]

    @cached_property
    def pitch(self) -> int:
        """Pixels from one run of all outputs to the next, if such runs lie end to end in one tile.

        Runs may share their padding: what a tap reads past the end of its run is then zero, and the
        start of the next run, where it reads, is zero too.  Runs with far taps share none: every shift would be tried.
        """
        longest = self.output + self.reach()
        if self.reach() > _FARTHEST:
            return longest
        ends = [(phase, self.output + self.reach(phase)) for phase in self.phases]

        def outside(phase: int, at: int) -> bool:
            return not 0 <= self.lower + phase + at * self.stride < self.extent

        for pitch in range(self.output, longest):
            past = ((phase, at) for phase, end in ends for at in range(pitch, end))
            if all(outside(phase, at) and outside(phase, at % pitch) for phase, at in past):
                return pitch
        return longest


#: An axis that a convolution does not have.
ONE = WindowAxis(1, 1, 1, 0, (0,))


@lru_cache(maxsize=64)
def window_axes(problem: ConvProblem) -> tuple[WindowAxis, ...]:
    """The axes of a convolution's windows, outermost first."""
    return tuple(
        WindowAxis(problem.extent(axis.dim), output, axis.element_stride, axis.lower, axis.offsets(taps))
        for axis, output, taps in zip(tma_axes(problem), problem.output, problem.filter, strict=True)
    )
