"""Checks the lowered matrix of im2col and col2im."""

from __future__ import annotations

from itertools import chain

from convgen.diagnostics import Report, listing
from convgen.frontend import ast
from convgen.frontend.geometry import Geometry
from convgen.ir.tensor import Tensor


def check_lowered(setting: ast.LoweredSetting, geometry: Geometry, report: Report) -> Tensor:
    """The matrix as a tensor.  Every dim that is not 1 is a factor of one of its axes, once."""
    extents, sp = geometry.extents("lowered"), geometry.spatial
    short = {"rows": ("n", *sp.output), "cols": ("c", *sp.filter), "1": ()}
    name = setting.name.text
    axes: list[list[str]] = []
    for axis in setting.axes:
        axes.append([])
        for factor, dim in ((f, dim) for f in axis for dim in short.get(f.text, (f.text,))):
            if dim not in extents:
                hint = (
                    f"its axes are products of {listing(tuple(extents), 'and')}; `rows` and `cols` are short for them"
                )
                report.error("E203", f"`{name}` cannot have the dim `{dim}`", factor.span, hint)
            elif dim in chain.from_iterable(axes):
                report.error("E204", f"`{name}` has the dim `{dim}` twice", factor.span)
            else:
                axes[-1].append(dim)
    dims = tuple(chain.from_iterable(axes))
    lacking = [dim for dim, extent in extents.items() if extent > 1 and dim not in dims]
    if lacking:
        hint = "each axis is a product of dims; `[rows, cols]` has all of them"
        report.error("E214", f"`{name}` lacks {listing(lacking, 'and')}", setting.name.span, hint)
    return Tensor(name, "lowered", setting.dtype.text, dims, tuple(extents[d] for d in dims), tuple(map(len, axes)))
