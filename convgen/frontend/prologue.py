"""Checks a prologue: that the block is of fprop, and that the assignments lead from the input to the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convgen.diagnostics import Report, listing
from convgen.frontend import ast
from convgen.frontend.epilogue import ACC, ROLES, Body, like_of, tensor
from convgen.frontend.geometry import Geometry
from convgen.frontend.names import ARGUMENTS, Names
from convgen.frontend.operators import OPERATORS, Operator
from convgen.frontend.sizes import Sizes
from convgen.frontend.types import check_dtype
from convgen.ir import epilogue as ir
from convgen.ir.problem import Op


def check_prologue(
    setting: ast.PrologueSetting,
    ops: Sequence[Operator],
    tensors: Mapping[str, ast.Tensor],
    geometry: Geometry | None,
    names: Names,
    sizes: Sizes,
    report: Report,
) -> ir.Prologue | None:
    """The checked prologue; None where there is an error, which is then in the report.  Arguments as for an epilogue;
    `geometry` has the extents, where these are known."""
    before = len(report)
    for operand in setting.operands:
        check_dtype(operand.dtype, report)
        names.declare(operand.name, taken=ARGUMENTS | ROLES)
    fprop = OPERATORS[Op.FPROP]
    if ops and tuple(ops) != (fprop,):
        message = f"{listing(tuple(map(str, ops)), 'and')} cannot have a prologue"
        report.error("E305", message, setting.keyword.span, "a prologue needs `op fprop`, in a separate block")
    body = _Prologue(setting, tensors, {}, (), None, names, sizes, report).check()
    if "x" not in tensors:
        return None
    if setting.lost is None:
        _assigned(setting, tensors["x"].name.text, {t.name.text for t in tensors.values()}, report)
    like = like_of(tensors["x"], "x", geometry, "the input")
    operands = tuple(tensor(t, "operand", like, sizes, report) for t in setting.operands)
    return ir.Prologue(operands, body) if ops and len(report) == before else None


def _assigned(setting: ast.PrologueSetting, name: str, tensors: set[str], report: Report) -> None:
    """Reports where the input is not assigned once, and last, and where another tensor is."""
    own = [a.name for a in setting.body if a.name.text == name]
    if not own:
        hint = f"end it with `{name} = ...`"
        report.error("E304", f"the prologue never assigns `{name}`", setting.keyword.span, hint)
    for again in own[1:]:
        report.error("E304", f"`{name}` is assigned twice", again.span, "give the earlier value another name")
    for a in setting.body:
        if a.name.text in tensors - {name}:
            message = f"a prologue cannot assign `{a.name.text}`"
            report.error("E304", message, a.name.span, f"it gives elements of the input: `{name} = ...`")
    if len(own) == 1 and (last := setting.body[-1].name).text not in tensors:
        message = f"`{last.text}` comes after `{name}` and has no effect"
        report.error("E304", message, last.span, f"the assignment of `{name}` must be the last one")


class _Prologue(Body):
    """The assignments of a prologue, which read the input, and no sum."""

    part, given, dim = "a prologue", "the input", "c"

    @property
    def _given(self) -> set[str]:
        return {t.name.text for role, t in self._stated.items() if role == "x"}

    def _reference(self, e: ast.Reference) -> ir.Expr | None:
        if e.name == ACC:
            hint = "the sum is computed from the prologue's result: read the input by its name"
            self._report.error("E301", f"a prologue cannot read the sum `{ACC}`", e.span, hint)
            return None
        if e.name in self._given:
            return ir.TensorRef(e.name)
        return super()._reference(e)
