"""A convolution as a product of matrices, by im2col and cuBLAS: which of its tensors are matrices as they lie in
memory.

The lowered matrix has a row for every output pixel (n, p, q) and a column for every (group, and filter
element in the filter's own order), so that the filter is used as it lies in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sympy import Integer

from convgen.ir.index_map import decompose, derive, variable
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.kernels.parts.elementwise import live_dims
from convgen.kernels.parts.lowering import has_epilogue

#: Names of workspaces; the dot keeps them apart from every name in a spec.
LOWERED, SUMS = "workspace.lowered", "workspace.sums"


@dataclass(frozen=True)
class GemmType:
    """How cublasGemmEx treats an input type: the type that it accumulates in, the result types that it writes, and the
    numbers that reduction lengths, leading dimensions and offsets must be multiples of."""

    accumulate: str
    results: tuple[str, ...]
    multiple: int = 1


#: cuBLAS documentation, "cublasGemmEx()": tables of types; 32-bit integer GEMMs want 4-byte alignment.
GEMM_TYPES: dict[str, GemmType] = {
    "f16": GemmType("f32", ("f16", "f32")),
    "bf16": GemmType("f32", ("bf16", "f32")),
    "f32": GemmType("f32", ("f32",)),
    "s8": GemmType("s32", ("s32",), 4),
}

#: Rows that one 16-bit product of a wgrad reduces over come in multiples of this, the rest in a product of
#: their own: cuBLAS 13.1 on an H200 was seen to leave out the last rows of 4225, 4226 and 50696 (f16 and
#: bf16, 64 x 256 to 384 x 512, the reduction outermost in both factors), and none of multiples of 64.
REDUCTION = 64


@dataclass(frozen=True)
class Matrices:
    """A convolution as a product of matrices: extents, and how w and y lie in memory.

    `filter_k` says where k is in the filter: "first" ([k, columns] a group) or "last" ([columns, k]).
    `y_form` is "rows" where y is the matrix [pixels, k], "images" where it is [k, pixels] an image, and
    empty for any other layout.
    """

    lowered: Tensor
    rows: int
    pixels: int  # output pixels an image
    images: int
    groups: int
    k: int  # output channels a group
    columns: int  # filter elements of an output channel
    filter_k: str
    y_form: str
    y_row: int  # elements from a row of y to the next, where it is [pixels, k]

    @property
    def all_k(self) -> int:
        return self.groups * self.k

    @property
    def all_columns(self) -> int:
        return self.groups * self.columns


def matrices(problem: ConvProblem) -> Matrices:
    """The lowered matrix of a problem, and how w and y lie in memory."""
    sp = problem.spatial
    order = live_dims(problem.w)
    filter_k = "first" if "k" not in order or order[0] == "k" else "last" if order[-1] == "k" else ""
    y_order = live_dims(problem.y)
    pixels = [d for d in ("n", *sp.output) if problem.extent(d) > 1]
    channel = ["k"] if problem.k > 1 else []
    if y_order == pixels + channel:
        y_form = "rows"
    elif y_order == pixels[: problem.n > 1] + channel + pixels[problem.n > 1 :]:
        y_form = "images"
    else:
        y_form = ""
    grouped = problem.groups > 1
    row_dims = ("n", *sp.output)
    column_dims = [d for d in problem.w.dims if d != "k"]
    if grouped:
        column_dims = ["g", *("c_in_group" if d == "c" else d for d in column_dims)]
    extents = [problem.extent(d) for d in row_dims]
    extents += [problem.groups if d == "g" else problem.w.extent("c" if d == "c_in_group" else d) for d in column_dims]
    # dgrad's products are summed by col2im, and keep the accumulator's type until then
    inputs = problem.reads[0].dtype
    accumulate = GEMM_TYPES[inputs].accumulate if inputs in GEMM_TYPES else "f32"
    dtype = accumulate if problem.op is Op.DGRAD else problem.x.dtype
    axes = (len(row_dims), len(column_dims))
    return Matrices(
        Tensor("lowered", "lowered", dtype, (*row_dims, *column_dims), tuple(extents), axes),
        problem.output_pixels,
        math.prod(problem.output),
        problem.n,
        problem.groups,
        problem.k_per_group,
        problem.taps * problem.c_per_group,
        filter_k,
        y_form,
        problem.y.pitch or problem.k,
    )


def im2col_problem(problem: ConvProblem, lowered: Tensor) -> ConvProblem:
    return replace(problem, op=Op.IM2COL, lowered=lowered, epilogue=None)


def col2im_problem(problem: ConvProblem, lowered: Tensor) -> ConvProblem:
    """The second half of dgrad; it has dgrad's epilogue."""
    return replace(problem, op=Op.COL2IM, lowered=lowered, accumulate=lowered.dtype)


def lowered_is_x(problem: ConvProblem, lowered: Tensor) -> bool:
    """Whether the lowered matrix is x as it lies in memory: 1x1, unit stride, no padding, NHWC, say."""
    if lowered.size != problem.x.size:
        return False
    index = variable("index", lowered.size)
    at = decompose(index.symbol, lowered.dims, lambda d: Integer(lowered.extent(d)))
    channel = "c" if problem.groups == 1 else "c_in_group"
    at = {d: Integer(0) for d in ("n", *problem.spatial.output, *problem.spatial.filter, channel)} | at
    index_map = derive(im2col_problem(problem, lowered), (index,), at).simplified()
    return not index_map.accesses["x"].bounds and index_map.offset("x") == index.symbol


def gemm_writes_y(problem: ConvProblem, v: Matrices) -> bool:
    results = GEMM_TYPES[problem.x.dtype].results
    lies = v.y_form == "rows" or (v.y_form == "images" and not problem.y.pitch)
    return lies and not has_epilogue(problem) and problem.y.dtype in results


def gemm_writes_w(problem: ConvProblem) -> bool:
    """Slices add up in w, which therefore has to have the accumulator's type."""
    return not has_epilogue(problem) and problem.w.dtype == GEMM_TYPES[problem.x.dtype].accumulate


def scatters_into_x(problem: ConvProblem) -> bool:
    return not has_epilogue(problem) and problem.x.dtype == "f32" and not problem.x.pitch
