"""Checks element types: of one tensor, of what an operator reads together, and of the accumulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from convgen import habits
from convgen.diagnostics import Report, listing
from convgen.frontend import ast
from convgen.frontend.operators import Operator
from convgen.ir.dtypes import ACCUMULATORS, TENSOR_DTYPES

#: Types of tensors that an operator reads, and what their products are summed in.
ACCUMULATOR_OF = {"f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64", "e4m3": "f32", "e5m2": "f32", "s8": "s32"}
#: Pairs of types that an operator reads together, besides two of the same.
MIXED = frozenset({frozenset({"e4m3", "e5m2"})})
#: Codes of types that are wrong by themselves, or together.
TYPE_ERRORS = ("E205", "E206")
ACCUMULATOR_HINT = "s32 is for s8, f64 for f64, f32 for all other types"


def check_dtype(name: ast.Name, report: Report, known: Sequence[str] = TENSOR_DTYPES) -> bool:
    """Whether it is an element type of the known ones; if not, that is reported."""
    if name.text in known:
        return True
    what, otherwise = "an element type", f"it is one of {listing(known)}"
    if known is ACCUMULATORS:
        what, otherwise = "an accumulator", ACCUMULATOR_HINT
    hint = habits.NO_TYPES.get(habits.plain(name.text)) or habits.did_you_mean(name.text, known, habits.TYPES)
    report.error("E205", f"`{name.text}` is not {what}", name.span, hint or otherwise)
    return False


def number_type(tensors: Iterable[ast.Tensor]) -> str:
    """The type of values in prologues, epilogues and sums: f64 beside f64, else f32."""
    return "f64" if any(t.dtype.text == "f64" for t in tensors) else "f32"


def check_unmixed(tensors: Sequence[ast.Tensor], report: Report) -> None:
    """f64 beside another type, which is reported once: conversions and sums of one kernel are in 32 or in 64 bits."""
    odd = next((t for t in tensors if (t.dtype.text == "f64") != (tensors[0].dtype.text == "f64")), None)
    if odd:
        message = f"`{odd.name.text}` is {odd.dtype.text}, but `{tensors[0].name.text}` is {tensors[0].dtype.text}"
        report.error("E206", message, odd.dtype.span, "f64 is not mixed with other types")


def check_types(
    ops: Sequence[Operator],
    tensors: Mapping[str, tuple[ast.Name, ast.Name]],
    accumulate: ast.NameSetting | None,
    report: Report,
) -> None:
    """`tensors` gives name and type of each role's tensor."""
    tensors = {role: (name, dtype) for role, (name, dtype) in tensors.items() if check_dtype(dtype, report)}
    if accumulate and not check_dtype(accumulate.name, report, ACCUMULATORS):
        accumulate = None
    for op in ops:
        _check_read(op, [tensors[role] for role in op.reads if role in tensors], accumulate, report)
    if "x" in tensors and "lowered" in tensors:
        (x, type_x), (matrix, type_m) = tensors["x"], tensors["lowered"]
        if type_x.text != type_m.text:
            message = f"`{matrix.text}` is {type_m.text}, but `{x.text}` is {type_x.text}"
            report.error("E206", message, type_m.span, "a lowered matrix has the input's type")


def _check_read(
    op: Operator, reads: Sequence[tuple[ast.Name, ast.Name]], accumulate: ast.NameSetting | None, report: Report
) -> None:
    """Types of what one operator reads."""
    for name, dtype in reads:
        if dtype.text not in ACCUMULATOR_OF:
            hint = f"it is one of {listing(tuple(ACCUMULATOR_OF))}"
            report.error("E205", f"{op} reads `{name.text}`, which cannot be {dtype.text}", dtype.span, hint)
            return
    types = list(dict.fromkeys(dtype.text for _, dtype in reads))
    if len(types) == 2 and frozenset(types) not in MIXED:
        (a, type_a), (b, type_b) = reads
        message = f"{op} reads `{a.text}` as {type_a.text}, but `{b.text}` as {type_b.text}"
        hint = "the tensors that an operator reads have one type; only e4m3 and e5m2 can be mixed"
        report.error("E206", message, type_b.span, hint)
    elif types and accumulate and accumulate.name.text != ACCUMULATOR_OF[types[0]]:
        sums = ACCUMULATOR_OF[types[0]]
        message = f"{op} sums products of {types[0]} in {sums}, not in {accumulate.name.text}"
        report.error("E206", message, accumulate.name.span, ACCUMULATOR_HINT)
