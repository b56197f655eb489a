"""Configurations: frozen records whose annotated fields are the options of the language.

    @dataclass(frozen=True)
    class GemmConfig(Config):
        tile_m: Annotated[int, Field("output pixels a tile", range(16, 257, 16))]
        split_k: Annotated[int, Field("parts of gemm_k", range(1, 9))] = 1

The field `tile_m` is the option `tile m=...`, `split_k` is `split_k ...`.  Everything that is said of options
follows from the fields: what a spec may write, the documentation, a configuration's text, what is searched, and the
rows of the tuning database.  A field with a default is said only where its value is another one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Self, TypeVar, cast, get_args, get_type_hints

from convgen.ir.plan import stated

#: Options of a spec's strategy block, flattened: {"tile.m": 128, "stages": 5}.
Options = Mapping[str, int | str]
V = TypeVar("V", int, str)

#: Fields that begin with one of these words are members of a group: `tile_m` is `tile m=...`.
GROUPS = ("tile", "warps")


@dataclass(frozen=True)
class Field:
    """What a field means, and its legal values: `choices`, or where that is None the integers from `low` to `high`."""

    doc: str
    choices: tuple[int | str, ...] | range | None = None
    low: int = 1
    high: int = 1 << 30


@dataclass(frozen=True)
class Option:
    """One option that a strategy block may set: a field under its name in the language.  `kernels` are those that have
    it."""

    name: str
    doc: str
    low: int = 1
    high: int = 1 << 30
    choices: tuple[int | str, ...] | None = None
    kernels: tuple[str, ...] = ()

    def allows(self, value: int | str) -> bool:
        """Whether a value is legal."""
        if self.choices is not None:
            return value in self.choices
        return isinstance(value, int) and self.low <= value <= self.high

    @property
    def legal(self) -> str:
        """The legal values, for people."""
        match self.choices:
            case None:
                return f"from {self.low} to {self.high}"
            case (int(first), int(second), *_, int(last)) as every if len(every) > 6:
                if every == tuple(range(first, last + 1, second - first)):
                    return f"from {first} to {last} in steps of {second - first}"
        return " or ".join(map(str, self.choices))


class Config:
    """The base of every kernel's configuration."""

    @property
    def options(self) -> dict[str, int | str]:
        """The options that request exactly this configuration; options that are empty words do not apply to it."""
        values = {option_name(f.name): getattr(self, f.name) for f in dataclasses.fields(cast(Any, self))}
        return {name: value for name, value in values.items() if value != ""}

    @property
    def special(self) -> list[str]:
        """The options whose values are not their defaults."""
        fields = (f for f in dataclasses.fields(cast(Any, self)) if f.default is not dataclasses.MISSING)
        return [option_name(f.name) for f in fields if getattr(self, f.name) != f.default]

    def but(self, **changes: int | str) -> Self:
        """This configuration with other values of these fields: dataclasses.replace would take most of a search's
        time."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **changes)
        return made

    def __str__(self) -> str:
        """The configuration as a strategy block writes it, without defaults."""
        fields = [(f, getattr(self, f.name)) for f in dataclasses.fields(cast(Any, self))]
        return stated({option_name(f.name): value for f, value in fields if value != f.default})


def option_name(field: str) -> str:
    """The language's name of a field."""
    group, _, member = field.partition("_")
    return f"{group}.{member}" if group in GROUPS and member else field


def option_rows(config: type[Config]) -> tuple[Option, ...]:
    """The options of a configuration, in the order of its fields."""
    key: Any = config
    return _rows(key)


@cache
def _rows(config: Any) -> tuple[Option, ...]:
    hints = get_type_hints(config, include_extras=True)
    rows = []
    for f in dataclasses.fields(config):
        (said,) = (a for a in get_args(hints[f.name]) if isinstance(a, Field))
        choices = None if said.choices is None else tuple(said.choices)
        rows.append(Option(option_name(f.name), said.doc, said.low, said.high, choices))
    return tuple(rows)


def joined(rows: Mapping[str, tuple[Option, ...]]) -> tuple[Option, ...]:
    """The options of several kernels by name: an option of several kernels allows whatever any of them allows."""
    found: dict[str, Option] = {}
    for kernel, options in rows.items():
        for option in options:
            own = dataclasses.replace(option, kernels=(kernel,))
            found[option.name] = _either(found[option.name], own) if option.name in found else own
    return tuple(found.values())


def _either(a: Option, b: Option) -> Option:
    kernels = a.kernels + b.kernels
    doc = a.doc if b.doc in a.doc else b.doc if a.doc in b.doc else f"{a.doc}; {b.doc}"
    if a.choices is not None and b.choices is not None:
        choices = tuple(dict.fromkeys((*a.choices, *b.choices)))
        if all(isinstance(c, int) for c in choices):
            choices = tuple(sorted(choices, key=int))
        return Option(a.name, doc, choices=choices, kernels=kernels)
    (low_a, high_a), (low_b, high_b) = map(_bounds, (a, b))
    return Option(a.name, doc, min(low_a, low_b), max(high_a, high_b), kernels=kernels)


def _bounds(option: Option) -> tuple[int, int]:
    values = [v for v in option.choices or () if isinstance(v, int)]
    return (min(values), max(values)) if values else (option.low, option.high)


def defaults(config: type[Config]) -> dict[str, int | str]:
    """The options that a configuration need not say, and their values; not those that are empty words."""
    fields = dataclasses.fields(cast(Any, config))
    return {option_name(f.name): f.default for f in fields if f.default not in (dataclasses.MISSING, "")}


def considered(fixed: Options, name: str, values: Iterable[V]) -> list[V]:
    """The values of an option that a space has: the one that is fixed, if one is, else these."""
    if name not in fixed:
        return list(values)
    value = fixed[name]
    return [cast(V, value if isinstance(value, str) else int(value))]


def has_all(options: Options, config: type[Config]) -> bool:
    """Whether a configuration has these options, be it with other values."""
    return options.keys() <= {row.name for row in option_rows(config)}


def excess(options: Options, config: type[Config]) -> dict[str, str]:
    """Options that a configuration does not have, or not with that value: the fault by the option's name."""
    rows = {row.name: row for row in option_rows(config)}
    found = {name: f"no option {name}" for name in options if name not in rows}
    wrong = [name for name, value in options.items() if name in rows and not rows[name].allows(value)]
    return found | {name: f"{name} is {rows[name].legal}, not {options[name]}" for name in wrong}
