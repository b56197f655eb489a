"""Patch embeddings: a stride as long as the filter cuts the input into patches, each of which is read once.

As x lies in memory, [n, h, w, c], the S neighbors of a row that a filter row covers are S * C neighboring elements; a
filter of one column over S * C channels reads the same.  Rows of patches are likewise an axis of their own: with
H = P * R, x is [n, P, R, Q, S * C], and the filter reads all R and one of each other axis.  No element moves:

    w axis   stride S, filter S, W = Q * S   becomes   stride 1, filter 1, Q pixels of S * C channels
    h axis   stride R, filter R, H = P * R   becomes   axes of P pixels, filter 1, and of R pixels, filter R

The convolution has then no stride, which a tensor map cannot have beyond 8 (PTX ISA, "Tensor traversal stride"), and
channels enough for aligned rows.
"""

from __future__ import annotations

from dataclasses import replace

from convgen.ir.problem import ConvProblem, Op


def folded(problem: ConvProblem) -> ConvProblem:
    """The forward convolution of the same memory without the strides of patches; the problem itself without any."""
    return _rows(_columns(problem))


def notes(problem: ConvProblem, read: ConvProblem) -> tuple[str, ...]:
    """Notes for the generated source about a problem that is `read` as another."""
    if problem == read:
        return ()
    x, w = (" x ".join(map(str, t.extents)) for t in (read.x, read.w))
    return (f"patches: as they lie in memory, x is {x} and w {w}, and no window overlaps another",)


def _cuts(problem: ConvProblem, axis: int) -> bool:
    """Whether an axis is cut into patches."""
    taps = problem.filter[axis]
    return (
        taps == problem.stride[axis] > 1
        and problem.dilation[axis] == 1
        and problem.pad_lo[axis] == problem.pad_hi[axis] == 0
        and problem.input[axis] == taps * problem.output[axis]
    )


def _packed(problem: ConvProblem) -> bool:
    """Whether x and w lie channels-last, all of their elements neighbors."""
    x, w, sp = problem.x, problem.w, problem.spatial
    order = x.dims == ("n", *sp.input, "c") and w.dims == ("k", *sp.filter, "c")
    return problem.op is Op.FPROP and problem.groups == 1 and order and x.pitch is None and w.pitch is None


def _columns(problem: ConvProblem) -> ConvProblem:
    """The columns of a patch as channels."""
    if not (_packed(problem) and _cuts(problem, -1)):
        return problem
    taps, q = problem.filter[-1], problem.output[-1]
    c = problem.c * taps
    return replace(
        problem, c=c, input=(*problem.input[:-1], q), filter=(*problem.filter[:-1], 1),
        stride=(*problem.stride[:-1], 1),
        x=replace(problem.x, extents=(*problem.x.extents[:-2], q, c)),
        w=replace(problem.w, extents=(*problem.w.extents[:-2], 1, c)),
    )  # fmt: skip


def _rows(problem: ConvProblem) -> ConvProblem:
    """The rows of patches as an axis, and those of a patch as another."""
    if problem.rank != 2 or not (_packed(problem) and _cuts(problem, 0)):
        return problem
    r, p = problem.filter[0], problem.output[0]
    x, w = problem.x, problem.w
    return replace(
        problem, input=(p, r, problem.input[1]), filter=(1, r, problem.filter[1]), output=(p, 1, problem.output[1]),
        stride=(1, 1, problem.stride[1]), dilation=(1, *problem.dilation), pad_lo=(0, *problem.pad_lo),
        pad_hi=(0, *problem.pad_hi),
        x=replace(x, dims=("n", "d", "h", "w", "c"), extents=(x.extents[0], p, r, *x.extents[2:])),
        w=replace(w, dims=("k", "t", "r", "s", "c"), extents=(w.extents[0], 1, *w.extents[1:])),
        y=problem.y.renamed({"p": "o"}),
        epilogue=problem.epilogue and problem.epilogue.renamed({"p": "o"}),
    )  # fmt: skip
