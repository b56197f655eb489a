"""What there is to try for a problem: every legal configuration that its strategies offer.

A strategy may have a method `candidates(problem, target)` that gives options worth measuring, the most
promising first; every strategy's defaults are tried in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from convgen import strategies
from convgen.ir.problem import ConvProblem
from convgen.planner.database import canonical
from convgen.strategies.base import Options
from convgen.targets import Target

#: A strategy's name and its options.
Candidate = tuple[str, Options]


def candidates(
    problem: ConvProblem, target: Target, names: Sequence[str], fixed: Options | None = None
) -> list[Candidate]:
    """The legal candidates of the strategies named, without repetition.

    Defaults come first, then the strategies take turns, so that a search which stops early has seen some
    of each.  `fixed` are options that all must have; candidates that say otherwise drop out.
    """
    turns = zip_longest(*(_offers(problem, target, name, fixed or {}) for name in names))
    found: dict[tuple[str, str], Candidate] = {}
    for offer in (offer for turn in turns for offer in turn if offer):
        found.setdefault((offer[0], canonical(offer[1])), offer)
    return list(found.values())


def _offers(problem: ConvProblem, target: Target, name: str, fixed: Options) -> Iterator[Candidate]:
    strategy = strategies.load(name)
    offered: Iterable[Options] = getattr(strategy, "candidates", lambda *_: ())(problem, target)
    for options in ({}, *offered):
        merged = {**options, **fixed}
        agrees = all(merged[key] == value for key, value in options.items())
        if agrees and not strategy.obstacles(problem, target, merged):
            yield name, merged
