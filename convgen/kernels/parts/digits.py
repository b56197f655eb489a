"""The digits of gemm_k in generated source: their names, where a thread begins, how it steps on, their offset."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sympy import Expr, Integer

from convgen.codegen.c_expr import Names
from convgen.ir.index_map import decompose
from convgen.ir.problem import ConvProblem
from convgen.ir.size import Size
from convgen.kernels.parts import lowering
from convgen.kernels.parts.constants import Constants
from convgen.kernels.parts.walk import Digit, Walk

#: Of numbers that have no names.
NO_STEPS: Mapping[int, str] = {}


def advance(digits: Sequence[Digit], number: Sequence[int], names: Mapping[int, str] = NO_STEPS) -> tuple[str, ...]:
    """Lines that add a constant number to digits, with carries: no digit of it reaches its extent, so one
    subtraction a digit is enough, unless the extent is a phase's.  Numbers may have names."""
    lines: list[str] = []
    carry = often = False
    for i in range(len(digits) - 1, -1, -1):
        digit, add = digits[i], number[i]
        if add:
            lines.append(f"{digit.name} += {names.get(add, add)};")
        carry = i > 0 and (carry or add > 0)
        often = often or (add > 0 and digit.end != "")
        if carry:
            lines.append(_carried(digit, digits[i - 1], often))
    return tuple(lines)


def _carried(digit: Digit, outer: Digit, often: bool) -> str:
    """The line that carries from a digit to the one outside of it; `often` where it may have several of its extents."""
    how = "while" if often else "if"
    return f"{how} ({digit.name} >= {digit.limit}) {{ {digit.name} -= {digit.limit}; ++{outer.name}; }}"


def named_digits(problem: ConvProblem, walk: Walk, constants: Constants) -> tuple[Digit, ...]:
    """The walk's digits; those that are dims of the filter, or all channels of a group, have their extents' names."""
    channel = "c_in_group" if problem.groups > 1 else "c"
    dims = {"c": channel} | {f: f for f in problem.spatial.filter}
    extents = {d: problem.c_per_group if d == "c" else problem.extent(d) for d in dims}

    def named(digit: Digit) -> Digit:
        own = [d for d in digit.name if extents.get(d, 1) > 1]
        if digit.end or math.prod(extents[d] for d in own) != digit.extent:
            return digit
        return replace(digit, constant=" * ".join(constants.extent(dims[d], extents[d]) for d in own))

    return tuple(map(named, walk.digits))


def first_digits(digits: Sequence[Digit], first: Expr, scope: lowering.Scope) -> tuple[str, ...]:
    """Lines that make the digits of gemm_k's place `first`.  What goes beyond the digits of constant extents is carried
    among those whose extent is a phase's."""
    inside = max((i for i, d in enumerate(digits) if d.end), default=0)
    extents = {d.name: Integer(d.extent) for d in digits}
    found = {d.name: "0" for d in digits[:inside]}
    called = {d.name: f"({d.constant})" if " " in d.constant else d.constant for d in digits}
    inner = [d.name for d in digits[inside:]]
    names = scope.constants.of_index(inner, lambda name: int(extents[name]), called.__getitem__)
    places = decompose(first, inner, extents.__getitem__)
    found |= {name: scope.text(e, names) for name, e in places.items()}
    carries = range(inside, 0, -1) if found[digits[inside].name] != "0" else ()
    return (
        *(f"{name} = {text};" for name, text in found.items()),
        *(_carried(digits[i], digits[i - 1], True) for i in carries),
    )


def digit_offset(digits: Sequence[Digit], index: str, constant: int, names: Names) -> str:
    """C text of the offset that digits make up; subtractions come last."""
    added = [(d.name, d.step) for d in digits if isinstance(d.step, Size) or d.step > 0]
    text = lowering.linear(added, index, names) if added else ""
    if isinstance(constant, Size):
        return f"{text or 0} + {lowering.factor(constant)}"
    parts = [text] * bool(text) + (names.summands(constant) if constant > 0 else [])
    taken = [
        lowering.linear([(d.name, -d.step)], index, names) for d in digits if (d.name, d.step) not in added and d.step
    ]
    taken += names.summands(-constant) if constant < 0 else []
    return " - ".join([" + ".join(parts) or "0", *taken])
