"""Definitions of numbers in a kernel's source: constants, or formulas of sizes that a call decides."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.ir.size import Size
from convgen.kernels.parts.lowering import number_text


@dataclass(frozen=True)
class Count:
    """A number's definition, as C text: of a constant, or where a call has `decided` sizes."""

    text: str
    decided: bool

    def __str__(self) -> str:
        return self.text


def count(name: str, value: int, comment: str = "", of_others: str = "", c_type: str = "int") -> Count:
    """The definition of a number; if a call decides it, by its formula, or as it follows `of_others`."""
    decided = isinstance(value, Size)
    text = (decided and of_others) or number_text(value)
    line = f"{'const' if decided else 'constexpr'} {c_type} {name} = {text};"
    return Count(f"{line}  // {comment}" if comment else line, decided)
