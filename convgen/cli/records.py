"""Records as indented text, for `--dump-after`: what fits a line stays on one, defaults are left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from convgen.ir.problem import ConvProblem
from convgen.targets import Target

_WIDTH = 120


def text(record: Any) -> str:
    """A record (strings are themselves)."""
    return record if isinstance(record, str) else "\n".join(_lines("", record, 0))


def _lines(label: str, value: Any, indent: int) -> Iterator[str]:
    pad = " " * indent
    short = f"{pad}{label}{_short(value)}"
    parts = list(_parts(value))
    if not parts or (len(short) <= _WIDTH and indent):
        yield short
        return
    yield f"{pad}{label}{'' if isinstance(value, tuple | Mapping) else type(value).__name__}".rstrip()
    for name, part in parts:
        yield from _lines(name, part, indent + 2)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value, each with its label."""
    if isinstance(value, ConvProblem):
        yield from (("", line) for line in str(value).splitlines())
    elif isinstance(value, Mapping):
        yield from ((f"{key}: ", item) for key, item in value.items())
    elif isinstance(value, tuple):
        yield from (("- ", item) for item in value)
    elif is_dataclass(value) and not isinstance(value, Target):
        for field in fields(value):
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            if (item := getattr(value, field.name)) != default:
                yield f"{field.name}: ", item


def _short(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_short(item)}" for key, item in value.items()) or "none"
    if is_dataclass(value) and not isinstance(value, Target | type):
        return f"{type(value).__name__}({', '.join(name + _short(part) for name, part in _parts(value))})"
    return getattr(value, "name", None) or str(value)
