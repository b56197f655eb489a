"""The planner: which strategy serves a problem, and why.

`auto` takes what the tuning database knows to be fastest.  Where it knows nothing, it takes, of the
strategies that serve the problem and have a cost model, the one with the least estimated time, or one that
measurements of other layers favor among those near it (kernels/correction.py); where none has, the first that
`strategies.AUTO` lists.  A strategy that is named without options gets its tuned ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Obstacle, Options
from convgen.kernels.strategies import Strategy
from convgen.planner import database
from convgen.targets import Target


@dataclass(frozen=True)
class Choice:
    """A strategy, its options, and the reason."""

    strategy: Strategy
    options: Options
    reason: str


class CannotServe(Exception):
    """No strategy that was asked for serves the problem; `obstacles` by strategy name."""

    def __init__(self, obstacles: Mapping[str, tuple[Obstacle, ...]]):
        super().__init__("; ".join(o.message for found in obstacles.values() for o in found))
        self.obstacles = obstacles


def choose(problem: ConvProblem, target: Target, strategy: str, options: Options, gpu: str | None = None) -> Choice:
    """The strategy for a problem.  `gpu` is the name of the GPU at hand: measurements made on it go before
    those of the GPU that stands for the target.  Raises CannotServe."""
    if choice := tuned(problem, target, strategy, options, gpu):
        return choice
    return untuned(problem, target, strategy, options)


def untuned(problem: ConvProblem, target: Target, strategy: str, options: Options) -> Choice:
    """The strategy for a problem where no measurement is known.  Raises CannotServe."""
    if strategy != "auto":
        chosen = strategies.STRATEGIES[strategy]
        obstacles = tuple(chosen.obstacles(problem, target, options))
        if obstacles:
            raise CannotServe({strategy: obstacles})
        return Choice(chosen, options, "named in the spec")
    rejected: dict[str, tuple[Obstacle, ...]] = {}
    serving: list[Strategy] = []
    for name in strategies.AUTO:
        candidate = strategies.STRATEGIES[name]
        if obstacles := tuple(candidate.obstacles(problem, target, {})):
            rejected[name] = obstacles
        else:
            serving.append(candidate)
    if not serving:
        raise CannotServe(rejected)
    estimates, favored = _estimates(serving, problem, target)
    if not estimates:
        passed = f"; {', '.join(rejected)} cannot serve" if rejected else ""
        return Choice(serving[0], {}, f"auto: the first that serves{passed}")
    best = min((name for name, (_, exact) in estimates.items() if exact), key=lambda name: estimates[name][0])
    others = ", ".join(
        f"{name} {'' if exact else 'at least '}{us:.1f} us" for name, (us, exact) in estimates.items() if name != best
    )
    reason = f"auto: {estimates[best][0]:.1f} us by the cost model" + (f" ({others})" if others else "")
    if favored:
        return replace(favored, reason=f"{reason}; {favored.reason}")
    return Choice(strategies.STRATEGIES[best], {}, reason)


Estimated = dict[str, tuple[float, bool]]


def _estimates(serving: Sequence[Strategy], problem: ConvProblem, target: Target) -> tuple[Estimated, Choice | None]:
    """Microseconds by strategy, of those that have a cost model, and whether the strategy takes so many: of those that
    are slower than another, it is enough to know that.  With it comes what measurements of other layers favor over the
    fastest of all, if they do."""
    from convgen.kernels import correction
    from convgen.kernels.search import near, nearest

    searches = {s.name: s.searches(problem, target, {}) for s in serving}
    choice = None
    if problem.sums:  # later launches add them up, which a search does not count
        found = {s.name: (s.estimate(problem, target, {}), True) for s in serving}
    else:
        every = [search for own in searches.values() for search in own]
        close = near(every, correction.reach, correction.MOST_NEAR, correction.measured)
        if favored := correction.favored(close):
            search, timed = favored
            strategy = next(s for s in serving if search in searches[s.name])
            reason = f"measurements of other layers favor {strategy.name} at {timed.us:.1f} us"
            choice = Choice(strategy, strategy.options_of(search, timed.layout), reason)
        found = {name: nearest(own)[1:] for name, own in searches.items()}
    return {name: (us, exact) for name, (us, exact) in found.items() if us < math.inf}, choice


def serving(problem: ConvProblem, target: Target) -> list[str]:
    """The names of the strategies that serve a problem, among those of `auto`."""
    return [name for name in strategies.AUTO if not strategies.STRATEGIES[name].obstacles(problem, target, {})]


#: What yields where the epilogue's operands need shared memory, too, or threads: in this order.  The tile does not: the
#: cost model, free to choose all options, finds faster configurations than with the rest of such a tile.
YIELDING = ((), ("stages",), ("stages", "blocks"))
#: How much longer a configuration that yields may be expected to take than it did without the epilogue, the operands'
#: bytes counted.  Beyond, what the models choose was faster on each of five layers; where less is expected to be lost,
#: it is no better than what was measured (docs/decisions/tuning.md).
MOST_LOST = 1.3


def tuned(problem: ConvProblem, target: Target, strategy: str, options: Options, gpu: str | None) -> Choice | None:
    """What the database knows, as long as it is still legal: strategies change, measurements stay.  Nothing where
    options are stated.

    Where a call decides sizes, each strategy is looked up: the fastest of all may be one that needs fixed sizes."""
    if options:
        return None
    names: Sequence[str | None] = [None if strategy == "auto" else strategy]
    if strategy == "auto" and problem.dynamic:
        names = strategies.AUTO
    known = (filter(_is_known, database.ranked(problem, target, gpu, name)) for name in names)
    rows = [row for found in known if (row := next(found, None))]
    choices = (_legal(row, problem, target) for row in sorted(rows, key=lambda row: (row.left_out != "", row.us)))
    return next((choice for choice in choices if choice), None)


def _is_known(tuned: database.Tuned) -> bool:
    """Whether this version has the strategy, and its options with these values."""
    if tuned.strategy not in strategies.NAMES:
        return False
    rows = {option.name: option for option in strategies.STRATEGIES[tuned.strategy].options}
    return all(name in rows and rows[name].allows(value) for name, value in tuned.options.items())


def _legal(tuned: database.Tuned, problem: ConvProblem, target: Target) -> Choice | None:
    """A measured configuration as a choice, where the problem can have it.

    What was measured without the epilogue may have to make do with fewer stages, then with fewer blocks per
    multiprocessor.  It says nothing about sums, which some kernels compute themselves and others through memory."""
    of_result = any(problem.like(t) is problem.result for t in problem.sums)
    if of_result and tuned.left_out == database.THE_EPILOGUE:
        return None
    chosen = strategies.STRATEGIES[tuned.strategy]
    for yielding in YIELDING if tuned.left_out else YIELDING[:1]:
        options = {name: value for name, value in tuned.options.items() if name not in yielding}
        if not chosen.obstacles(problem, target, options):
            without = yielding and tuned.left_out == database.THE_EPILOGUE
            lost = without and _expected(problem, target, chosen, options, tuned.options) > MOST_LOST
            return None if lost else Choice(chosen, options, tuned.reason)
    return None


def _expected(problem: ConvProblem, target: Target, chosen: Strategy, options: Options, tuned: Options) -> float:
    """How many times as long as the tuned choice, measured without the epilogue, options take by the cost model; the
    epilogue adds its bytes."""
    plain = replace(problem, epilogue=None)
    us = (problem.min_bytes - plain.min_bytes) / target.gpu.memory.per_second * 1e6
    return chosen.estimate(problem, target, options) / (chosen.estimate(plain, target, tuned) + us)
