"""Checks the strategy block and the target against the known strategies, options and targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from convgen import habits
from convgen.diagnostics import Report, did_you_mean, listing
from convgen.frontend import ast
from convgen.frontend.request import AUTO
from convgen.frontend.sizes import Sizes
from convgen.targets import other_target


class OptionRow(Protocol):
    """The facts about an option (`strategies.base.Option`): its legal values are `choices`, or where that is None the
    integers from `low` to `high`."""

    @property
    def name(self) -> str: ...
    @property
    def low(self) -> int: ...
    @property
    def high(self) -> int: ...
    @property
    def choices(self) -> tuple[int | str, ...] | None: ...
    def allows(self, value: int | str) -> bool: ...


class Renames(Protocol):
    """Names that strategies, options and their values had, by their present ones (`kernels.renamed`)."""

    def strategy(self, name: str) -> str: ...
    def option(self, of: str, name: str) -> str: ...
    def value(self, of: str, name: str, given: int | str) -> int | str: ...


def check_strategy(
    setting: ast.StrategySetting | None,
    strategies: Mapping[str, Sequence[OptionRow]] | None,
    sizes: Sizes,
    report: Report,
    renamed: Renames | None = None,
) -> tuple[str, dict[str, int | str]]:
    """Name and options of a conv's strategy, by their present names.  Where `strategies` is None nothing is known of
    either."""
    if setting is None:
        return AUTO, {}
    name = setting.name.text
    if renamed and (now := renamed.strategy(name)) != name:
        report.renamed(f"the strategy `{name}`", now, setting.name.span)
        name = now
    rows: dict[str, OptionRow] | None = None
    if strategies is not None:
        known = (AUTO, *strategies)
        if name not in known:
            hint = _as_kernel(name, strategies) or habits.did_you_mean(name, known, habits.STRATEGIES)
            hint = hint or f"the strategies are {listing(known, 'and')}"
            report.error("E402", f"no strategy is named `{name}`", setting.name.span, hint)
        elif setting.options:  # what a strategy's options are costs an import
            rows = {row.name: row for row in strategies.get(name, ())}
    options: dict[str, int | str] = {}
    for option in setting.options:
        said = renamed.option(name, option.name.text) if renamed else option.name.text
        if said in options:
            report.error("E202", f"the option `{option.name.text}` is given twice", option.span)
        value = _value(option, said, name, rows, sizes, report, renamed)
        if value is not None:
            options[said] = value
    return name, options


def _value(
    option: ast.Option, name: str, strategy: str, rows: Mapping[str, OptionRow] | None, sizes: Sizes, report: Report,
    renamed: Renames | None,
) -> int | str | None:  # fmt: skip
    """An option's value: a word, or a size; None where it has an error."""
    row = rows.get(name) if rows is not None else None
    if rows is not None and row is None:
        report.error(
            "E403", f"`{strategy}` has no option `{name}`", option.name.span, _other_options(name, tuple(rows))
        )
        return None
    choices = row.choices if row else None
    if row and (meant := _without_dash(option.value, choices or ())):
        report.error("E404", f"`{name}` is {_legal(row)}, not a number", option.value.span, f"did you mean `{meant}`?")
        return None
    word = option.value.name if isinstance(option.value, ast.Reference) else None
    is_word = word is not None and (word in (choices or ()) or word not in sizes)
    value = word if is_word else sizes.evaluate(option.value)
    if renamed and value is not None:
        now = renamed.value(strategy, option.name.text, value)
        if now != value and isinstance(now, str) and now not in (choices or ()):
            return value
        if (name, now) != (option.name.text, value):
            report.renamed(
                f"`{_option_text(option.name.text, value)}` of {strategy}", _option_text(name, now), option.span
            )
        value = now
    if value is None or row is None:
        return value
    if row.allows(value):
        return value
    hint = did_you_mean(word, map(str, choices)) if word and is_word and choices else None
    if word and is_word and not choices:
        hint = f"no `let` is named `{word}`"
    report.error("E404", f"`{name}` is {_legal(row)}, not `{value}`", option.value.span, hint)
    return None


def _without_dash(value: ast.Expr, choices: Sequence[int | str]) -> str | None:
    """The word that is meant by `ping-pong`."""
    if not isinstance(value, ast.Binary) or value.op != "-":
        return None
    if not isinstance(value.left, ast.Reference) or not isinstance(value.right, ast.Reference):
        return None
    word = value.left.name + value.right.name
    return word if word in choices else None


def _option_text(name: str, value: int | str) -> str:
    """An option as a spec has it."""
    group, _, member = name.rpartition(".")
    return f"{group} {member}={value}" if group else f"{name} {value}"


def _as_kernel(name: str, strategies: Mapping[str, Sequence[OptionRow]]) -> str | None:
    """The hint for a kernel that is named in place of its strategy."""
    for strategy, rows in strategies.items():
        if any(row.name == "kernel" and name in (row.choices or ()) for row in rows):
            return f"it is a kernel of {strategy}: `strategy {strategy} {{ kernel {name} }}`"
    return None


def _other_options(name: str, known: Sequence[str]) -> str:
    """The hint for an unknown option."""
    group, _, member = name.partition(".")
    if member in known:
        return f"`{member}` is a separate option: `{member} VALUE`"
    members = [other.partition(".")[2] for other in known if other.startswith(f"{group}.")]
    if members and member and group in known:
        return f"`{group}` takes a number, `{group} NUMBER`, or {listing(members, 'and')}"
    if members and member:
        return f"`{group}` has {listing(members, 'and')}"
    if members:
        return f"`{group}` is a group: `{group} {' '.join(f'{m}=...' for m in members)}`"
    if hint := did_you_mean(name, known):
        return hint
    if not known:
        return "options are those of one strategy: name it in place of `auto`"
    return f"its options are {listing(known, 'and')}: see `convgen list options`"


def _legal(row: OptionRow) -> str:
    match row.choices:
        case None:
            return f"from {row.low} to {row.high}"
        case (int(first), int(second), *_, int(last)) as all_ if len(all_) > 6:
            step = second - first
            if all_ == tuple(range(first, last + 1, step)):
                return f"from {first} to {last} in steps of {step}"
    return listing(row.choices)


def check_target(setting: ast.NameSetting | None, targets: Collection[str] | None, report: Report) -> str | None:
    """Name of a conv's target; None where it does not say."""
    if setting is None:
        return None
    name = setting.name.text
    if targets is not None and name not in targets:
        hint = other_target(name, targets) or f"the targets are {listing(tuple(targets), 'and')}"
        report.error("E405", f"no target is named `{name}`", setting.name.span, hint)
    return name
