"""Checks `dynamic n h w`: dims of the input whose extents a call may decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convgen import habits
from convgen.diagnostics import Report, listing
from convgen.frontend import ast
from convgen.frontend.geometry import Geometry
from convgen.frontend.operators import Operator
from convgen.ir.problem import SPATIAL
from convgen.ir.tensor import Tensor


def check_dynamic(
    setting: ast.DynamicSetting | None,
    ops: Sequence[Operator],
    tensors: Mapping[str, ast.Tensor],
    geometry: Geometry | None,
    results: Sequence[Tensor],
    likes: Mapping[str, str],
    report: Report,
) -> tuple[str, ...]:
    """The dynamic dims, in the order of the input's; errors are in the report.  `results` are the epilogue's, and
    `likes` by their names the roles of the tensors whose dims they have."""
    if setting is None:
        return ()
    for op in ops:
        if op.exchanged:
            hint = "leave `dynamic` out, or write it as the dgrad of a convolution"
            report.error("E217", f"`op {op}` needs fixed sizes", setting.span, hint)
    if geometry is None or "x" not in tensors:
        return ()
    if geometry.padding.repeats:
        hint = "leave `dynamic` out, or pad with zeros"
        report.error("E217", f"padding by `{geometry.padding}` needs fixed sizes", setting.span, hint)
    own, named = ("n", *geometry.spatial.input), [d.text for d in setting.dims]
    outputs = dict(zip(own, ("n", *geometry.spatial.output), strict=True))
    for i, dim in enumerate(setting.dims):
        if dim.text not in own:
            report.error("E217", f"`{dim.text}` cannot be dynamic", dim.span, _hint(dim.text, own))
        elif dim.text in named[:i]:
            report.error("E204", f"`{dim.text}` is listed twice", dim.span)
        else:
            _has_it(dim, {"x": dim.text, "y": outputs[dim.text]}, tensors, report)
    follows = [outputs[dim] for dim in own[1:] if dim in named]
    for t in results:
        dims = {d.name.text for d in tensors[likes[t.name]].dims}
        if left_out := [d for d in (*named, *follows) if d in dims - set(t.dims)]:
            message = f"`{t.name}` is summed over {listing(left_out, 'and')}, which therefore must be fixed"
            report.error("E217", message, setting.span, "leave `dynamic` out, or sum in another kernel")
    return tuple(d for d in own if d in named)


def _has_it(dim: ast.Name, names: Mapping[str, str], tensors: Mapping[str, ast.Tensor], report: Report) -> None:
    """Reports a dim that a tensor leaves out, whose size there is 1; `names` are the dim's by the tensor's role."""
    for role, name in names.items():
        if role in tensors and tensors[role].dim(name) is None:
            message = f"`{dim.text}` cannot be dynamic: `{tensors[role].name.text}` has no dim `{name}`"
            report.error("E217", message, dim.span, f"add it: `{name}=1`" if role == "x" else f"add it: `{name}`")


def _hint(dim: str, own: Sequence[str]) -> str:
    outputs = SPATIAL[len(own) - 1].output
    if dim in outputs:
        return f"it follows from `{own[1 + outputs.index(dim)]}`, which can"
    plain = habits.plain(dim)
    if (meant := plain if plain in own else habits.DIMS["x"].get(plain)) in own:
        return f"did you mean `{meant}`?"
    return f"{listing(own, 'and')} can; the plan is made for these channels and this filter"
