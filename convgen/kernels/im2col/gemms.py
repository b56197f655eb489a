"""The GEMMs of im2col: cuBLAS's arguments for each operator, group and slice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from convgen.ir.plan import Gemm
from convgen.ir.problem import ConvProblem
from convgen.kernels.im2col.matrices import GEMM_TYPES, LOWERED, REDUCTION, SUMS, Matrices


@dataclass(frozen=True)
class Batch:
    """An axis that repeats a GEMM, and the elements from one to the next in a, b and c."""

    count: int
    a: int
    b: int
    c: int


def _batched(gemm: Gemm, *axes: Batch) -> Iterator[Gemm]:
    """The GEMM over all axes: the longest becomes cuBLAS's batch, the others become steps."""
    longest, *others = sorted(axes, key=lambda axis: -axis.count)
    if longest.count > 1:
        gemm = replace(gemm, batch=longest.count, stride_a=longest.a, stride_b=longest.b, stride_c=longest.c)
    gemms = [gemm]
    for axis in others:
        gemms = [
            replace(
                g,
                offset_a=g.offset_a + i * axis.a,
                offset_b=g.offset_b + i * axis.b,
                offset_c=g.offset_c + i * axis.c,
            )
            for g in gemms
            for i in range(axis.count)
        ]
    yield from gemms


def fprop_gemms(p: ConvProblem, v: Matrices, lowered: str, result: str, first: int, rows: int) -> Iterator[Gemm]:
    """[rows, k] = lowered [rows, columns] x w^T, for each group; where y is [k, pixels] an image and written here,
    [k, pixels] = w x lowered^T, image by image."""
    if result == "y" and v.y_form == "images":
        yield from _plane_gemms(p, v, lowered, first, rows)
        return
    k_first = v.filter_k == "first"
    gemm = Gemm(
        lowered, "w", result, m=rows, n=v.k, k=v.columns,
        trans_a=False, trans_b=k_first,
        lda=v.all_columns, ldb=v.columns if k_first else v.all_k, ldc=v.y_row if result == "y" else v.all_k,
        dtype=p.x.dtype, c_dtype=_result_type(p, result),
        offset_a=first * v.all_columns if lowered == "x" else 0,
        offset_c=first * v.y_row if result == "y" else 0,
    )  # fmt: skip
    yield from _batched(gemm, Batch(v.groups, v.columns, v.k * v.columns if k_first else v.k, v.k))


def _plane_gemms(p: ConvProblem, v: Matrices, lowered: str, first: int, rows: int) -> Iterator[Gemm]:
    """The product as Zhang (2017) has it, phi(A) = phi(W) phi(X); whole images are a batch."""
    k_first = v.filter_k == "first"
    for start, count, images in _whole_images(first, rows, v.pixels):
        image, pixel = divmod(start, v.pixels)
        gemm = Gemm(
            "w", lowered, "y", m=v.k, n=count, k=v.columns,
            trans_a=not k_first, trans_b=True,
            lda=v.columns if k_first else v.all_k, ldb=v.all_columns, ldc=v.pixels,
            dtype=p.x.dtype, c_dtype=p.y.dtype,
            offset_b=(start if lowered == "x" else start - first) * v.all_columns,
            offset_c=image * v.all_k * v.pixels + pixel,
        )  # fmt: skip
        group = Batch(v.groups, v.k * v.columns if k_first else v.k, v.columns, v.k * v.pixels)
        yield from _batched(gemm, group, Batch(images, 0, v.pixels * v.all_columns, v.all_k * v.pixels))


def dgrad_gemms(p: ConvProblem, v: Matrices, first_image: int, images: int) -> Iterator[Gemm]:
    """lowered [rows, columns] = y [rows, k] x w, for each group; image by image where y is [k, pixels]."""
    k_first = v.filter_k == "first"
    by_rows = v.y_form == "rows"
    gemm = Gemm(
        "y", "w", LOWERED, m=images * v.pixels if by_rows else v.pixels, n=v.columns, k=v.k,
        trans_a=not by_rows, trans_b=not k_first,
        lda=v.y_row if by_rows else v.pixels, ldb=v.columns if k_first else v.all_k, ldc=v.all_columns,
        dtype=p.y.dtype, c_dtype=v.lowered.dtype,
        offset_a=first_image * v.pixels * (v.y_row if by_rows else v.all_k),
    )  # fmt: skip
    group = Batch(
        v.groups,
        v.k if by_rows else v.k * v.pixels,
        v.k * v.columns if k_first else v.k,
        v.columns,
    )
    image = Batch(1 if by_rows else images, v.all_k * v.pixels, 0, v.pixels * v.all_columns)
    yield from _batched(gemm, group, image)


def wgrad_gemms(
    p: ConvProblem, v: Matrices, lowered: str, result: str, first: int, units: int, rows: int, parts: int
) -> Iterator[Gemm]:
    """w [k, columns] += y^T [k, rows] x lowered [rows, columns], or its transpose, for each group, over `units` of so
    many `rows`; for images, a batch of `parts` products adds to as many sums."""
    k_first = v.filter_k == "first"
    by_rows = v.y_form == "rows"
    for start, count, images in _runs(v, first, units, rows, parts):
        for row, reduced in _even_reductions(start, count, p.x.dtype):
            image, pixel = divmod(row, v.pixels)
            y = Operand(
                "y",
                leading=v.y_row if by_rows else v.pixels,
                offset=row * v.y_row if by_rows else image * v.all_k * v.pixels + pixel,
                group=v.k if by_rows else v.k * v.pixels,
                image=v.all_k * v.pixels,
            )
            columns_ = Operand(
                lowered,
                leading=v.all_columns,
                offset=(row if lowered == "x" else row - first * rows) * v.all_columns,
                group=v.columns,
                image=v.pixels * v.all_columns,
            )
            a, b = (y, columns_) if k_first else (columns_, y)
            gemm = Gemm(
                a.buffer, b.buffer, result,
                m=v.k if k_first else v.columns, n=v.columns if k_first else v.k, k=reduced,
                trans_a=by_rows or not k_first, trans_b=not (by_rows or k_first),
                lda=a.leading, ldb=b.leading, ldc=v.columns if k_first else v.all_k,
                dtype=p.x.dtype, c_dtype=_result_type(p, result),
                offset_a=a.offset, offset_b=b.offset,
                beta=0.0 if row == 0 else 1.0,
            )  # fmt: skip
            group = Batch(v.groups, a.group, b.group, v.k * v.columns if k_first else v.k)
            yield from _batched(gemm, group, Batch(images, a.image, b.image, p.w.size))


def _runs(v: Matrices, first: int, units: int, rows: int, parts: int) -> Iterator[tuple[int, int, int]]:
    """The rows that one batch of products reduces over: (first row, rows of an image, images)."""
    if v.y_form == "rows":
        yield first, units, 1
    elif rows == 1:
        yield from ((start, count, 1) for start, count in _within_images(first, units, v.pixels))
    else:
        yield from (
            (image * v.pixels, v.pixels, min(parts, first + units - image))
            for image in range(first, first + units, parts)
        )


@dataclass(frozen=True)
class Operand:
    """A factor of a GEMM: where it starts, its leading dimension, the elements from group to group and image to
    image."""

    buffer: str
    leading: int
    offset: int
    group: int
    image: int


def _even_reductions(first: int, rows: int, dtype: str) -> Iterator[tuple[int, int]]:
    """A run of rows to reduce over, cut after the last multiple of REDUCTION: (first row, rows)."""
    even = rows - rows % REDUCTION if dtype in ("f16", "bf16") else rows
    if even:
        yield first, even
    if rows > even:
        yield first + even, rows - even


def _within_images(first: int, rows: int, pixels: int) -> Iterator[tuple[int, int]]:
    """Rows split where images end: (first row, rows)."""
    end = first + rows
    while first < end:
        count = min(end - first, pixels - first % pixels)
        yield first, count
        first += count


def _whole_images(first: int, rows: int, pixels: int) -> Iterator[tuple[int, int, int]]:
    """Runs of rows within an image, and whole images as one: (first row, rows of an image, images)."""
    runs = list(_within_images(first, rows, pixels))
    whole = [run for run in runs if run[1] == pixels]
    yield from ((start, count, 1) for start, count in runs if count < pixels)
    if whole:
        yield whole[0][0], pixels, len(whole)


def _result_type(problem: ConvProblem, result: str) -> str:
    return problem.tensor(result).dtype if result != SUMS else GEMM_TYPES[problem.x.dtype].accumulate
