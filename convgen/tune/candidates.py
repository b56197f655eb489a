"""The candidates for a problem: every legal configuration that its strategies offer.

A strategy may have a method `candidates(problem, target)` that gives options worth measuring, the most
promising first; every strategy's defaults are tried in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.planner.database import canonical
from convgen.targets import Target

if TYPE_CHECKING:
    from convgen.planner import Choice

#: A strategy's name and its options.
Candidate = tuple[str, Options]


@dataclass(frozen=True)
class Wanted:
    """The candidates to try for a problem: `names` are strategies, `fixed` options that all candidates have; `strategy`
    and `options` are what the spec states."""

    problem: ConvProblem
    target: Target
    strategy: str
    options: Options
    names: Sequence[str]
    fixed: Options


def listed(wanted: Wanted) -> tuple[Candidate | None, list[Candidate]]:
    """The choice of `auto` without tuning, and all candidates."""
    from convgen import planner

    problem, target = wanted.problem, wanted.target
    untuned = chosen(problem, target, lambda: planner.untuned(problem, target, wanted.strategy, wanted.options))
    return untuned, candidates(problem, target, wanted.names, wanted.fixed)


def candidates(
    problem: ConvProblem, target: Target, names: Sequence[str], fixed: Options | None = None
) -> list[Candidate]:
    """The legal candidates of the strategies named, without repetition, the most promising first.

    Defaults come before the rest, so that a search which stops early has seen each strategy; both by the
    time that the cost models give, and after them what has no model.  `fixed` are options that all must
    have; candidates that say otherwise drop out.
    """
    found: dict[tuple[str, str], tuple[tuple[bool, float], Candidate]] = {}
    for name in names:
        for rank, options in enumerate(_offers(problem, target, name, fixed or {})):
            promise = rank > 0, strategies.STRATEGIES[name].estimate(problem, target, options)
            found.setdefault((name, canonical(options)), (promise, (name, options)))
    return [candidate for _, candidate in sorted(found.values(), key=lambda row: row[0])]


def promising(problem: ConvProblem, target: Target, names: Sequence[str], most: int, within: float) -> list[Candidate]:
    """The `most` candidates that take the least time by the cost models, all `within` so many times the least; at most
    two that their kernel calls alike."""
    found = [
        (us, (name, options))
        for name in names
        for us, options in strategies.STRATEGIES[name].timed(problem, target, most, of_a_kind=2)
    ]
    found.sort(key=lambda row: row[0])
    return [candidate for us, candidate in found if us <= within * found[0][0]][:most]


def chosen(problem: ConvProblem, target: Target, plan: Callable[[], Choice | None]) -> Candidate | None:
    """The planner's choice, if it is asked by `plan`; None if nothing serves."""
    from convgen import planner

    try:
        choice = plan()
    except planner.CannotServe:
        return None
    return stated(problem, target, (choice.strategy.name, choice.options)) if choice else None


def stated(problem: ConvProblem, target: Target, candidate: Candidate) -> Candidate:
    """The candidate with every option stated, as its strategy settles it: a stored measurement must not change its
    meaning when defaults do."""
    name, options = candidate
    return name, strategies.STRATEGIES[name].stated(problem, target, options)


def _offers(problem: ConvProblem, target: Target, name: str, fixed: Options) -> Iterator[Options]:
    """The strategy's default, then its other candidates."""
    strategy = strategies.STRATEGIES[name]
    if not strategy.obstacles(problem, target, fixed):
        yield stated(problem, target, (name, fixed))[1]
    for options in strategy.candidates(problem, target):
        merged = {**options, **fixed}
        agrees = all(merged[key] == value for key, value in options.items())
        if agrees and not strategy.obstacles(problem, target, merged):
            yield merged
