"""The phases of a dgrad as a table of constants: a name for each number that differs among them.

A phase (`convgen.ir.phases`) is walked from its last tap to its first, as a dgrad of unit stride is: so y's gradient is
read forward.  What all phases have alike is a constant of the text, and one phase has no table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sympy import Expr, Integer

from convgen.ir.index_map import Variable, variable
from convgen.ir.integer import symbol
from convgen.ir.phases import AxisPhase, PhasedAxis, Phases
from convgen.ir.problem import SpatialDims

DOCS = {
    "first": "its first pixel of y",
    "start": "where x is read for it, beyond where the others begin",
    "last": "the last tap that reaches it",
    "taps": "how many taps reach it",
}


@dataclass(frozen=True)
class PhaseTable:
    """The phases of a dgrad, in the names of its assignment: `first_<output dim>`, `start_<input dim>`,
    `last_<filter dim>` and `<filter dim>_taps` of an axis."""

    phases: Phases
    spatial: SpatialDims

    @cached_property
    def _numbers(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The numbers by name: what each is, and its value in each phase."""
        sp, found = self.spatial, {}
        for what in DOCS:
            for a, (i, f, o) in enumerate(zip(sp.input, sp.filter, sp.output, strict=True)):
                name = {"first": f"first_{o}", "start": f"start_{i}", "last": f"last_{f}", "taps": f"{f}_taps"}[what]
                axis = self.phases.axes[a]
                found[name] = what, tuple(_number(what, axis, row[a]) for row in self.phases.rows)
        return found

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the numbers that differ between phases."""
        return tuple(name for name, (_, values) in self._numbers.items() if len(set(values)) > 1)

    def most(self, name: str) -> int:
        """The largest of a number; at least one, so that it may be an extent."""
        return max(1, *self._numbers[name][1])

    def value(self, name: str, of: str = "") -> Expr:
        """A number as an expression: a name, of the record `of` where that is given, or a constant."""
        return symbol(of + name) if name in self.names else Integer(self._numbers[name][1][0])

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The names, with the ranges of their numbers."""
        return tuple(variable(name, self.most(name) + 1) for name in self.names)

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Groups of names, and what they mean."""
        grouped = ((doc, [n for n in self.names if self._numbers[n][0] == what]) for what, doc in DOCS.items())
        return tuple((", ".join(names), doc) for doc, names in grouped if names)

    @property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of each phase, in the order of the names."""
        return tuple(zip(*(self._numbers[name][1] for name in self.names), strict=True))


def _number(what: str, axis: PhasedAxis, phase: AxisPhase) -> int:
    """A number of a phase along an axis; of one without taps, as if it had one."""
    steps = max(phase.taps - 1, 0)
    match what:
        case "first":
            return phase.first
        case "start":
            return phase.offset - axis.offset_step * steps
        case "last":
            return phase.tap + axis.tap_step * steps
        case _:
            return max(phase.taps, 1)
