"""Checks the lowered matrix of im2col and col2im."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from convgen import habits
from convgen.diagnostics import Report, listing
from convgen.frontend import ast
from convgen.ir.problem import SpatialDims
from convgen.ir.tensor import Tensor


def check_lowered(
    setting: ast.LoweredSetting, sp: SpatialDims, known: Mapping[str, int | None], report: Report
) -> Tensor:
    """The matrix as a tensor.  Every dim that is not 1 is a factor of one of its axes, once; `known` has the extents of
    dims, as far as they are known."""
    extents = {dim: known.get(dim) or 1 for dim in ("n", *sp.output, "c", *sp.filter)}
    factors = {"rows": ("n", *sp.output), "cols": ("c", *sp.filter), "1": (), **{dim: (dim,) for dim in extents}}
    name = setting.name.text
    axes: list[list[str]] = []
    for axis in setting.axes:
        axes.append([])
        for factor in axis:
            for dim in _dims(factor, len(axis) == 1, name, factors, report):
                if dim in chain.from_iterable(axes):
                    report.error("E204", f"`{name}` has the dim `{dim}` twice", factor.span)
                else:
                    axes[-1].append(dim)
    dims = tuple(chain.from_iterable(axes))
    lacking = [dim for dim, extent in extents.items() if extent > 1 and dim not in dims]
    if lacking:
        hint = "each axis is a product of dims; `[rows, cols]` has all of them"
        report.error("E214", f"`{name}` lacks {listing(lacking, 'and')}", setting.name.span, hint)
    return Tensor(name, "lowered", setting.dtype.text, dims, tuple(extents[d] for d in dims), tuple(map(len, axes)))


def _dims(
    factor: ast.Name, whole: bool, matrix: str, factors: Mapping[str, tuple[str, ...]], report: Report
) -> tuple[str, ...]:
    """The dims that a factor stands for.  One by another name is reported and, if it is a whole axis, replaced by the
    dims that it means."""
    if factor.text in factors:
        return factors[factor.text]
    meant = habits.meant(factor.text, factors, habits.LOWERED) if whole else None
    known = listing([dim for dim, dims in factors.items() if dims == (dim,)], "and")
    hint = f"its axes are products of {known}; `rows` and `cols` abbreviate them"
    hint = f"did you mean `{meant}`?" if meant else hint
    report.error("E203", f"`{matrix}` cannot have the dim `{factor.text}`", factor.span, hint)
    return factors[meant] if meant else ()
