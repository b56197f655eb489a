"""Checks `dynamic n h w`: dims of the input whose extents a call may decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convgen import habits
from convgen.diagnostics import Report, listing
from convgen.frontend import ast
from convgen.frontend.dims import DYNAMIC_DIMS
from convgen.frontend.epilogue import Checked
from convgen.frontend.operators import Operator
from convgen.frontend.solver import Solver
from convgen.ir.problem import SPATIAL


def check_dynamic(
    setting: ast.DynamicSetting | None,
    ops: Sequence[Operator],
    tensors: Mapping[str, ast.Tensor],
    solver: Solver,
    epilogue: Checked | None,
    report: Report,
) -> tuple[str, ...]:
    """The dynamic dims, in the order of the input's; errors are in the report.  `solver` has found what can be found of
    the geometry."""
    if setting is None:
        return ()
    for op in ops:
        if op.exchanged:
            hint = "leave `dynamic` out, or write it as the dgrad of a convolution"
            report.error("E217", f"`op {op}` needs fixed sizes", setting.span, hint)
    if solver.padding.repeats:
        hint = "leave `dynamic` out, or pad with zeros"
        report.error("E217", f"padding by `{solver.padding}` needs fixed sizes", setting.span, hint)
    own, named = ("n", *solver.spatial.input), [d.text for d in setting.dims]
    outputs = dict(zip(own, ("n", *solver.spatial.output), strict=True))
    clear = {role: tensor for role, tensor in tensors.items() if tensor.sure}
    for i, dim in enumerate(setting.dims):
        if dim.text in named[:i]:
            report.error("E204", f"`{dim.text}` is listed twice", dim.span)
        elif dim.text in own:
            _has_it(dim, {"x": dim.text, "y": outputs[dim.text]}, clear, report)
        elif dim.text not in DYNAMIC_DIMS or "x" in clear:  # else the input may have it
            report.error("E217", f"`{dim.text}` cannot be dynamic", dim.span, _hint(dim.text, own))
    if epilogue:
        _no_sums([*named, *(outputs[dim] for dim in own[1:] if dim in named)], setting, epilogue, clear, report)
    return tuple(d for d in own if d in named)


def _no_sums(
    sizes: Sequence[str],
    setting: ast.DynamicSetting,
    epilogue: Checked,
    tensors: Mapping[str, ast.Tensor],
    report: Report,
) -> None:
    """Reports further results that are sums over dims whose sizes calls decide."""
    for t in epilogue.results:
        like = tensors.get(epilogue.likes.get(t.name.text, ""))
        held = {d.name.text for d in t.dims}
        dims = {d.name.text for d in like.dims} if like and t.sure else held
        if held <= dims and (left_out := [d for d in sizes if d in dims - held]):
            message = f"`{t.name.text}` is summed over {listing(left_out, 'and')}, which therefore must be fixed"
            report.error("E217", message, setting.span, "leave `dynamic` out, or sum in another kernel")


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
