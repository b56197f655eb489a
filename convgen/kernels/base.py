"""What every strategy answers: can it serve a problem, how is it configured, what is its plan.

A strategy is one module with one `Strategy` object, registered in `strategies.STRATEGIES`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.targets import Target

#: Options of a spec's strategy block, flattened: {"tile.m": 128, "stages": 5}.
Options = Mapping[str, int | str]


@dataclass(frozen=True)
class Option:
    """One option that a strategy block may set.  `choices` is the legal set, or None for any integer
    in [low, high]."""

    name: str
    doc: str
    low: int = 1
    high: int = 1 << 30
    choices: tuple[int | str, ...] | None = None

    def allows(self, value: int | str) -> bool:
        """Whether a value is legal."""
        if self.choices is not None:
            return value in self.choices
        return isinstance(value, int) and self.low <= value <= self.high


@dataclass(frozen=True)
class Obstacle:
    """Why a strategy cannot serve a problem: the constraint, and what would lift it, other strategies apart.

    `option` names the option of the strategy block that is to blame, where one is.
    """

    message: str
    hint: str = ""
    option: str = ""


class Obstacles(list[Obstacle]):
    """Obstacles that are found one by one."""

    def no(self, message: str, hint: str = "", option: str = "") -> None:
        self.append(Obstacle(message, hint, option))


class Strategy(Protocol):
    """A strategy may have two methods more: `candidates(problem, target)`, options worth measuring, the most
    promising first; and `estimate(problem, target, options)`, microseconds by a cost model."""

    name: str
    summary: str
    options: Sequence[Option]

    def obstacles(self, problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
        """Every constraint that fails; empty where the strategy serves the problem with these options."""
        ...

    def plan(self, problem: ConvProblem, target: Target, options: Options) -> Plan:
        """The plan, where `obstacles` is empty.  Options left out take the strategy's defaults."""
        ...

    def render(self, plan: Plan) -> str:
        """The CUDA source of the plan's kernels."""
        ...
