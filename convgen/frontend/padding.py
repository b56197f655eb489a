"""Padding: its mode, and the words that other libraries use for its amounts."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from convgen import habits
from convgen.diagnostics import Report, Span, listing
from convgen.frontend import ast
from convgen.ir.dtypes import DTYPES
from convgen.ir.problem import Padding


class Axis(NamedTuple):
    """An axis before it is padded: its dim and extent, the extent of the window, the stride."""

    dim: str
    extent: int | None
    window: int | None
    stride: int | None


_SYMMETRIC = "symmetric"  # in NumPy
_NOT_SYMMETRIC = "`reflect` mirrors at the center of the first pixel, `replicate` repeats it"


def word(amounts: Iterable[ast.Expr], lets: Container[str]) -> ast.Reference | None:
    """A word for padding among amounts that should be numbers."""
    names = (e for e in amounts if isinstance(e, ast.Reference) and e.name not in lets)
    known = habits.PADDINGS.keys() | habits.FILLS.keys() | {*Padding, _SYMMETRIC}
    return next((e for e in names if habits.plain(e.name) in known), None)


def report_word(name: ast.Reference, axes: Sequence[Axis], report: Report) -> None:
    """Reports the word, with the numbers that it stands for."""
    report.error("E102", f"`pad` takes numbers, not `{name.name}`", name.span, _hint(name.name, axes))


def filled(setting: ast.AxesSetting | None, report: Report) -> Padding | None:
    """The padding mode of a setting; None for an unknown word, which is reported: it may be an axis."""
    if setting is None or setting.fill is None:
        return Padding.ZERO
    name = setting.fill.text
    if name in tuple(Padding):
        return Padding(name)
    symmetric = _NOT_SYMMETRIC if habits.plain(name) == _SYMMETRIC else None
    hint = symmetric or habits.NO_SETTINGS.get(habits.plain(name))
    hint = hint or habits.did_you_mean(name, tuple(Padding), habits.FILLS)
    hint = hint or f"it is made of {listing(tuple(Padding))}"
    report.error("E216", f"no padding mode is named `{name}`", setting.fill.span, hint)
    return None


#: The axis and the end of it that a side is, by the names of other libraries.
_SIDES = {
    "front": ("d", 0), "back": ("d", 1), "top": ("h", 0), "bottom": ("h", 1), "left": ("w", 0), "right": ("w", 1),
}  # fmt: skip
_SIDES |= {name[0]: side for name, side in _SIDES.items() if name not in ("front", "back")}


def by_side(setting: ast.AxesSetting, evaluate: Callable[[ast.Expr], int | None]) -> str:
    """The setting, by axis, for one by sides: `pad top=1 left=1`; nothing for any other."""
    sides = [_SIDES.get(habits.plain(axis.name.text)) for axis in setting.axes]
    few = len(sides) == 1 and len(setting.axes[0].name.text) == 1  # `r` alone may be the filter's
    if setting.keyword.text != "pad" or not sides or not all(sides) or few:
        return ""
    amounts: dict[str, tuple[int, int]] = {}
    for side, axis in zip(sides, setting.axes, strict=True):
        assert side
        low, high = amounts.get(side[0], (0, 0))
        amount = evaluate(axis.amount.low) or 0
        amounts[side[0]] = (low, amount) if side[1] else (amount, high)
    return _pad_text({dim: amounts[dim] for dim in "dhw" if dim in amounts}, by_axis=True)


def check_fill(fill: Padding, dtype: str, span: Span, report: Report) -> None:
    """Integers have no NaN, which is reported."""
    if fill is Padding.NAN and dtype in DTYPES and not DTYPES[dtype].is_float:
        report.error("E216", f"{dtype} has no NaN to pad with", span, "integers are padded with zeros: leave `nan` out")


def check_fits(fill: Padding, dim: str, extent: int, amounts: tuple[int, int], span: Span, report: Report) -> None:
    """Padding that repeats pixels repeats each at most once on a side, as in PyTorch; more is reported."""
    most = {Padding.REFLECT: extent - 1, Padding.CIRCULAR: extent}.get(fill, max(amounts))
    if max(amounts) > most:
        message = f"`pad` is {max(amounts)} along {dim}: `{fill}` makes at most {most} of the input's {extent}"
        report.error("E209", message, span)


def _hint(name: str, axes: Sequence[Axis]) -> str:
    rule = habits.PADDINGS.get(habits.plain(name))
    if rule is None:
        fill = name if name in tuple(Padding) else habits.meant(name, tuple(Padding), habits.FILLS)
        return f"write the amount first: `pad 1 {fill}`" if fill else _NOT_SYMMETRIC
    amounts: dict[str, tuple[int, int]] = {}
    for axis in axes:
        if axis.extent is None or axis.window is None or axis.stride is None:
            return "say how much, as in `pad 1`, or by axis `pad h=1 w=(0, 2)`"
        amounts[axis.dim] = rule.amounts(axis.extent, axis.window, axis.stride)
    if not any(map(any, amounts.values())):
        return "without padding, leave `pad` out"
    return f"for {rule.doc}, write `{_pad_text(amounts)}`"


def _pad_text(amounts: Mapping[str, tuple[int, int]], by_axis: bool = False) -> str:
    """The setting."""
    texts = {dim: str(low) if low == high else f"({low}, {high})" for dim, (low, high) in amounts.items()}
    if len(set(texts.values())) == 1 and not by_axis:
        return f"pad {next(iter(texts.values()))}"
    return "pad " + " ".join(f"{dim}={text}" for dim, text in texts.items())
