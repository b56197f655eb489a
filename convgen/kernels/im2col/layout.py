"""What follows from a problem and a configuration of im2col: what goes through a workspace, and in which slices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from convgen.ir.problem import Op
from convgen.kernels import base
from convgen.kernels.im2col.config import Config
from convgen.kernels.im2col.matrices import (
    GEMM_TYPES,
    Matrices,
    gemm_writes_w,
    gemm_writes_y,
    lowered_is_x,
    matrices,
    scatters_into_x,
)

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Layout(base.Layout[Config]):
    """A slice is a number of units: rows of the lowered matrix, or of dgrad's, images."""

    @property
    def is_product(self) -> bool:
        """Whether there is a GEMM; the operators im2col and col2im are one kernel."""
        return self.problem.op not in (Op.IM2COL, Op.COL2IM)

    @property
    def lowers(self) -> bool:
        """Whether windows of x are copied to a lowered matrix."""
        if self.problem.op in (Op.DGRAD, Op.COL2IM):
            return False
        return not self.is_product or self.lowered > 0

    @cached_property
    def matrices(self) -> Matrices:
        return matrices(self.problem)

    @property
    def unit(self) -> str:
        return "image" if self.problem.op is Op.DGRAD or not self.is_product else "row"

    @cached_property
    def total(self) -> int:
        """Units."""
        return self.problem.n if self.unit == "image" else self.matrices.rows

    @cached_property
    def lowered(self) -> int:
        """Bytes of the lowered matrix a unit; 0 where x serves as it is."""
        v = self.matrices
        row = v.all_columns * v.lowered.element.bytes
        if self.problem.op is Op.DGRAD:
            return v.pixels * row
        return 0 if lowered_is_x(self.problem, v.lowered) else row

    @cached_property
    def sums(self) -> int:
        """Bytes of sums a unit; 0 where the GEMM or the scatter writes the result itself."""
        problem = self.problem
        if problem.op is Op.DGRAD:
            scattered = self.config.method == "scatter" and not scatters_into_x(problem)
            return 4 * problem.x.size // problem.n if scattered else 0
        own = problem.op is Op.FPROP and not gemm_writes_y(problem, self.matrices)
        return 4 * self.matrices.all_k if own else 0

    @cached_property
    def all_sums(self) -> int:
        """Bytes of sums that all slices share."""
        problem = self.problem
        return 4 * problem.w.size if problem.op is Op.WGRAD and not gemm_writes_w(problem) else 0

    @property
    def multiple(self) -> int:
        """What the rows of a slice must be a multiple of: wgrad reduces over them."""
        return GEMM_TYPES[self.problem.x.dtype].multiple if self.problem.op is Op.WGRAD else 1

    @cached_property
    def slice(self) -> int:
        """Units in a slice, evened out; 0 where the cap does not hold one."""
        if not self.is_product:
            return self.total
        unit_bytes = self.lowered + self.sums
        room = self.config.workspace_mb * MEBIBYTE - self.all_sums
        if room < 0:
            return 0
        fit = self.total if unit_bytes == 0 else min(room // unit_bytes, self.total)
        if fit < self.total:
            fit -= fit % self.multiple
        if fit == 0:
            return 0
        slices = -(-self.total // fit)
        even = -(-self.total // slices)
        return min(even + -even % self.multiple, fit)

    @property
    def slices(self) -> int:
        return -(-self.total // self.slice)

    @property
    def sliced(self) -> bool:
        return self.slice < self.total
