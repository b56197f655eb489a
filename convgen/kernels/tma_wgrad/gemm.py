"""A problem as tma_wgrad multiplies it: operands A, B and C, and how they lie in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from convgen.ir.index_map import TmaAxis, tma_axes
from convgen.ir.problem import ConvProblem, Padding
from convgen.kernels.parts import prepare
from convgen.kernels.parts.copies import VECTOR
from convgen.kernels.parts.window_axis import WindowAxis, window_axes


@dataclass(frozen=True)
class Gemm:
    """C[channels of y, taps x channels of x] = sum over pixels of A[pixels, channels of y] B[pixels, taps x channels
    of x], of 2-byte factors.

    A is y's gradient, B is x by the windows of y's pixels, C the filter's gradient.  Both factors have their channels
    innermost, which are wgmma's m and n (MN-major); the sums run over pixels.  `group_pack` neighboring groups are
    multiplied as one: of the products, those of channels of one group are kept.
    """

    prepared: prepare.Prepared
    group_pack: int

    @cached_property
    def problem(self) -> ConvProblem:
        """The problem as the kernel reads it."""
        return self.prepared.problem

    @property
    def packs(self) -> int:
        """Matrices that are multiplied: of one group, or of several.  The last one may have fewer."""
        return -(-self.problem.groups // self.group_pack)

    @property
    def last_fewer(self) -> bool:
        """Whether the last pack has fewer groups: its other channels are zeros that TMA fills in, and not stored."""
        return self.problem.groups % self.group_pack != 0

    @property
    def rows(self) -> int:
        """gemm_m: y's channels, of a pack."""
        return self.problem.k_per_group * self.group_pack

    @property
    def channels(self) -> int:
        """x's channels, of a pack."""
        return self.problem.c_per_group * self.group_pack

    @cached_property
    def pointwise(self) -> bool:
        """1x1, unit stride, no padding: x is the matrix [pixels, channels] already."""
        return self.problem.is_pointwise

    @cached_property
    def axes(self) -> tuple[TmaAxis, ...]:
        """The windows, as TMA walks them."""
        return tma_axes(self.problem)

    @cached_property
    def windows(self) -> tuple[WindowAxis, ...]:
        """The same, by phases of the stride."""
        return window_axes(self.problem)

    def walked(self, shared_axes: int) -> tuple[int, ...]:
        """Extents over which the pixels of y are walked.  Where a box of x serves all taps of the last axes, these are
        longer, so that no tap meets pixels of the next row or image; y is zero there."""
        apart = len(self.windows) - shared_axes
        return tuple(w.output if i < apart else w.pitch for i, w in enumerate(self.windows))

    def pixels(self, shared_axes: int) -> int:
        """gemm_k: the pixels that are walked."""
        return self.problem.n * math.prod(self.walked(shared_axes))


def pack_fault(problem: ConvProblem, pack: int) -> str:
    """Why this many neighboring groups cannot go as one; empty where they can: TMA reads a pack's channels from a
    multiple of 16 bytes on."""
    if pack > problem.groups:
        return f"group_pack {pack} is more than the {problem.groups} groups"
    c, k = pack * problem.c_per_group, pack * problem.k_per_group
    if pack < problem.groups and (c % VECTOR or k % VECTOR):
        return f"{pack} of {problem.groups} groups have {c} input and {k} output channels, not multiples of {VECTOR}"
    return ""


def lowering_fault(problem: ConvProblem) -> str:
    """Why the taps of a filter row cannot be made channels of x; empty where they can."""
    if problem.filter[-1] == 1:
        return "a filter row of one tap has nothing to lower"
    if problem.groups > 1 or problem.padding is not Padding.ZERO:
        return "rows can be lowered only for one group and zero padding"
    return ""


@lru_cache(maxsize=64)
def gemm(problem: ConvProblem, group_pack: int = 1, lower_rows: bool = False) -> Gemm:
    """The GEMM of a wgrad, neighboring groups packed, or the taps of filter rows made channels of x."""
    return Gemm(prepare.gradient_factors(problem, lower_rows), group_pack)
