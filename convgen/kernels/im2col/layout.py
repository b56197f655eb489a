"""The layout of im2col: which tensors go through a workspace, and in which slices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from convgen.ir.problem import ConvProblem, Op
from convgen.kernels import base
from convgen.kernels.im2col.config import Config
from convgen.kernels.im2col.matrices import (
    GEMM_TYPES,
    Matrices,
    gemm_writes_w,
    gemm_writes_y,
    im2col_problem,
    lowered_is_x,
    matrices,
    scatters_into_x,
)

MEBIBYTE = 2**20
#: What a GEMM's block makes, about, and how many blocks a multiprocessor should get.
GEMM_TILE, WAVES = 128, 2


@dataclass(frozen=True)
class Layout(base.Layout[Config]):
    """A slice is a number of units: rows of the lowered matrix, or images of dgrad's, and of a wgrad's whose y is a
    matrix image by image."""

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

    @property
    def lowering(self) -> ConvProblem:
        """The im2col that copies them."""
        return self.problem if self.problem.lowered else im2col_problem(self.problem, self.matrices.lowered)

    @cached_property
    def matrices(self) -> Matrices:
        return matrices(self.problem)

    @property
    def unit(self) -> str:
        return "image" if self.problem.op is Op.DGRAD or not self.is_product or self.by_images else "row"

    @cached_property
    def by_images(self) -> bool:
        """Whether a gradient of the filter sums up image by image: y is a matrix in each, and one has room."""
        if self.problem.op is not Op.WGRAD or self.matrices.y_form != "images":
            return False
        sums = 0 if gemm_writes_w(self.problem) else 4 * self.problem.w.size
        return sums + self.matrices.pixels * self._row <= self.config.workspace_mb * MEBIBYTE

    @cached_property
    def total(self) -> int:
        """Units."""
        return self.problem.n if self.unit == "image" else self.matrices.rows

    @cached_property
    def lowered(self) -> int:
        """Bytes of the lowered matrix a unit; 0 where x serves as it is."""
        return self.rows * self._row

    @property
    def rows(self) -> int:
        """Rows of the lowered matrix a unit."""
        return self.matrices.pixels if self.unit == "image" else 1

    @property
    def _row(self) -> int:
        """Bytes of a row of the lowered matrix in the workspace."""
        v = self.matrices
        is_x = self.problem.op is not Op.DGRAD and lowered_is_x(self.problem, v.lowered)
        return 0 if is_x else v.all_columns * v.lowered.element.bytes

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
    def parts(self) -> int:
        """Sums of a gradient of the filter that one batch of products adds to: an image each, as many as keep the GPU
        busy."""
        if not self.by_images:
            return 1
        v = self.matrices
        tiles = v.groups * -(-v.k // GEMM_TILE) * -(-v.columns // GEMM_TILE)
        wanted = min(-(-WAVES * self.target.sms // tiles), v.images)
        room = self.config.workspace_mb * MEBIBYTE // (4 * self.problem.w.size + v.pixels * self._row)
        batches = -(-v.images // max(1, min(wanted, room)))
        return -(-v.images // batches)  # evened out; no more than a slice has images

    @property
    def all_sums(self) -> int:
        """Bytes of sums that all slices share."""
        return 4 * self.problem.w.size * self.parts if self.sums_apart else 0

    @property
    def sums_apart(self) -> bool:
        """Whether a gradient of the filter is finished from sums in the workspace."""
        problem = self.problem
        return problem.op is Op.WGRAD and (self.parts > 1 or not gemm_writes_w(problem))

    @property
    def multiple(self) -> int:
        """What the rows of a slice must be a multiple of: wgrad reduces over them."""
        sums_rows = self.problem.op is Op.WGRAD and self.unit == "row"
        return GEMM_TYPES[self.problem.x.dtype].multiple if sums_rows else 1

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
