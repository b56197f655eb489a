"""The one ranking: a kernel's configurations for a problem, enumerated, timed and checked once.

Obstacles, the estimate, the tuner's candidates and the plan are views of a search.
Bounds come before times, and times before checks: a layout is made, timed and checked when it is its turn, so that a
plan costs little more than those of the few that are faster than the first legal one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush, merge
from itertools import chain, islice, takewhile, tee
from operator import attrgetter
from typing import Any, TypeVar

from convgen.diagnostics import listing
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import AnyKernel, Layout, Obstacle, Part
from convgen.kernels.collector import no_collections
from convgen.kernels.config import Options, excess
from convgen.targets import Target
from convgen.turns import turn

#: Options that change nothing else.
DEPTHS = ("stages", "weight_stages")


@dataclass(frozen=True)
class Timed:
    """A layout and its estimated microseconds."""

    us: float
    layout: Layout


class _Space(Iterator[Timed]):
    """A kernel's space, the fastest first, by branch and bound: a part's contents are made and timed once everything
    known to be faster has come.  Ties come in the space's order."""

    def __init__(self, kernel: AnyKernel, parts: Iterable[Part[Any]]) -> None:
        self._kernel = kernel
        self._queue: list[tuple[float, tuple[int, ...], Part[Any] | Layout]]
        self._queue = [(part.least, (i,), part) for i, part in enumerate(parts)]
        heapify(self._queue)

    @property
    def least(self) -> float:
        """Microseconds that nothing goes below that is still to come; infinite where nothing is."""
        return self._queue[0][0] if self._queue else math.inf

    def step(self) -> Timed | None:
        """Expands the part, or takes the layout, with the smallest lower bound."""
        us, order, first = heappop(self._queue)
        if not isinstance(first, Part):
            return Timed(us, first)
        for i, each in enumerate(first.within):
            us = each.least if isinstance(each, Part) else self._kernel.time(each)
            heappush(self._queue, (us, (*order, i), each))
        return None

    def __next__(self) -> Timed:
        while self._queue:
            if timed := self.step():
                return timed
        raise StopIteration


class Search:
    """A kernel's configurations for one problem on one target that go with the options that are `fixed`."""

    def __init__(self, kernel: AnyKernel, problem: ConvProblem, target: Target, fixed: Options) -> None:
        self.kernel, self.problem, self.target, self.fixed = kernel, problem, target, fixed
        self._checked: dict[object, tuple[Obstacle, ...]] = {}  # by configuration
        self._bound = 0.0  # microseconds, of what `fastest` has looked at: whoever looked furthest

    @cached_property
    def unserved(self) -> tuple[Obstacle, ...]:
        """The obstacles to the kernel, whatever the options that are not fixed."""
        if self.problem.op not in self.kernel.ops:
            alone = " and ".join(sorted(self.kernel.ops))
            message = f"op {self.problem.op}: kernel {self.kernel.name} serves {alone} alone"
            return (Obstacle(message, option="kernel"),)
        if self.problem.number == "f64" and not self.kernel.doubles:
            return (Obstacle(f"kernel {self.kernel.name} does not compute in f64"),)
        found = (
            *_unwritten(self.kernel, self.problem),
            *_unapplied(self.kernel, self.problem),
            *_undecided(self.kernel, self.problem),
            *(self._slices or self._padding or self.kernel.unserved(self.problem, self.target, self.fixed)),
        )
        return found or tuple(
            Obstacle(f"kernel {self.kernel.name}: {fault}", option=name)
            for name, fault in excess(self.fixed, self.kernel.config).items()
        )

    @property
    def _slices(self) -> tuple[Obstacle, ...]:
        """Channel slices that the kernel does not take."""
        wrong = [t for t in self.problem.tensors if t.pitch and t.role not in self.kernel.slice_roles]
        hint = "pass a packed tensor"
        return tuple(
            Obstacle(f"kernel {self.kernel.name}: {t.name} is a slice of {t.pitch} channels; it must be packed", hint)
            for t in wrong
        )

    @property
    def _padding(self) -> tuple[Obstacle, ...]:
        """Padding that the kernel does not make."""
        problem, name = self.problem, self.kernel.name
        if problem.padding in self.kernel.paddings:
            return ()
        return (Obstacle(f"kernel {name} reads zeros beyond {problem.x.name}, not `{problem.padding}`"),)

    @property
    def _parts(self) -> Iterable[Part[Any]]:
        return () if self.unserved else self.kernel.parts(self.problem, self.target, self.fixed)

    @cached_property
    def serves(self) -> bool:
        """Whether some configuration is legal: the first that is found will do, and none is timed."""
        layouts = (layout for part in self._parts for layout in part.layouts)
        return any(not self.kernel.illegal(layout) for layout in layouts) or self.best is not None

    def _all(self, space: Iterable[Timed] | None = None) -> Iterator[Timed]:
        """Every configuration, the fastest first.  They are not kept: thousands of layouts a search are a burden."""
        space, best = tee(self._space() if space is None else space)
        more = self.kernel.refine((t.layout for t in self._legal(best)), self.fixed)
        return _distinct(merge(space, self._timed(more), key=_us))

    def _space(self) -> _Space:
        return _Space(self.kernel, self._parts)

    def _timed(self, layouts: Iterable[Layout]) -> list[Timed]:
        return sorted((Timed(self.kernel.time(layout), layout) for layout in layouts), key=_us)

    def _legal(self, ranked: Iterable[Timed]) -> Iterator[Timed]:
        return (t for t in ranked if not self._obstacles_of(t.layout))

    def _obstacles_of(self, layout: Layout) -> tuple[Obstacle, ...]:
        found = self._checked.get(layout.config)
        if found is None:
            found = self._checked[layout.config] = tuple(self.kernel.illegal(layout))
        return found

    def ranked(self) -> Iterator[Timed]:
        """Legal configurations, the fastest by the cost model first."""
        return self._legal(self._all())

    @cached_property
    def best(self) -> Timed | None:
        """The first of `ranked`; None where no configuration is legal."""
        with no_collections:
            return next(self.ranked(), None)

    @property
    def settled(self) -> bool:
        """Whether the best is known."""
        return "best" in vars(self)

    @property
    def least(self) -> float:
        """The lower bound known so far, in microseconds; the best's time once the search is settled."""
        return self.us if self.settled else self._bound

    @property
    def known(self) -> tuple[float, bool]:
        """`least`, and whether it is the best's.  Another thread may settle the search in between: what was settled
        first has its last `least`, and what was not may only be more."""
        settled = self.settled
        return self.least, settled

    def _know(self, least: float) -> None:
        """No configuration takes less than so many microseconds."""
        with turn((Search, id(self))):
            self._bound = max(self._bound, least)

    @cached_property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """Why no configuration serves; empty where one does.

        Of many reasons, those of the configuration that fails by the fewest choices other than the user's own; of
        several such, one that asks for another depth of a pipeline alone; then the plainest one's: with the fewest
        special options that the user did not ask for.
        """
        if self.unserved or self.serves:
            return self.unserved

        def strangeness(t: Timed) -> tuple[int, ...]:
            found = self._obstacles_of(t.layout)
            special = [name for name in t.layout.config.special if name not in self.fixed]
            deep = all(o.option in DEPTHS for o in found)
            return sum(o.option not in self.fixed for o in found), not deep, len(special), len(found)

        nearest = min(self._all(), key=strangeness, default=None)
        return self._obstacles_of(nearest.layout) if nearest else (self._nothing,)

    @property
    def _nothing(self) -> Obstacle:
        """Where no configuration is worth considering."""
        what = f"kernel {self.kernel.name} has no configuration"
        if not self.fixed:
            return Obstacle(f"{what} that fits", option="kernel")
        said = listing([f"{name} {value}" for name, value in self.fixed.items()], "and")
        hint = "leave one of them out" if len(self.fixed) > 1 else "leave it out"
        return Obstacle(f"{what} with {said}", hint, min(self.fixed))

    @property
    def us(self) -> float:
        """The best's time in microseconds; infinite if there is none."""
        return self.best.us if self.best else math.inf

    def candidates(self, most: int, of_a_kind: int = 1 << 30) -> list[Timed]:
        """The `most` promising, at most `of_a_kind` of those that the kernel calls alike."""
        found: list[Timed] = []
        alike: Counter[object] = Counter()
        for t in self.ranked():
            kind = self.kernel.kind(t.layout)
            alike[kind] += 1
            if alike[kind] <= of_a_kind:
                found.append(t)
            if len(found) == most:
                break
        return found

    def variants(self, ranked: Iterable[Timed]) -> Iterator[Timed]:
        """Legal configurations that the cost model does not tell from these, for a tuner to time."""
        return self._legal(self._timed(v for t in ranked for v in self.kernel.variants(t.layout)))


class _Look:
    """One caller's progress toward a search's best: threads share searches, and each that compares them keeps its
    own."""

    def __init__(self, search: Search) -> None:
        self.search: Search = search
        self._space: _Space | None = None
        self._ahead: list[Timed] = []
        self._rest: Iterator[Timed] | None = None  # legal ones, the best included, where this look has found it
        if not search.least:
            self._find(self._begun)

    @property
    def least(self) -> float:
        return self.search.least

    @property
    def known(self) -> tuple[float, bool]:
        return self.search.known

    @property
    def _begun(self) -> _Space:
        self._space = self._space or self.search._space()
        return self._space

    def _find(self, space: _Space) -> None:
        self.search._know(self.search.kernel.refined(space.least))

    def approach(self, limit: float) -> None:
        """Look on for the best until it is known, or known to take `limit` microseconds or more."""
        search, space = self.search, self._begun
        while not search.settled and space.least < math.inf:
            if timed := space.step():
                self._ahead.append(timed)
                if not search._obstacles_of(timed.layout):
                    legal = self._legal
                    found = next(legal, None)
                    vars(search)["best"] = found
                    self._rest = legal if found is None else chain([found], legal)
            if search.kernel.refined(space.least) >= limit:
                break
        self._find(space)

    @property
    def _legal(self) -> Iterator[Timed]:
        """Legal configurations, the fastest first: those that this look has met, then the rest."""
        return self.search._legal(self.search._all(chain(self._ahead, self._begun)))

    def within(self, limit: float) -> Iterator[Timed]:
        """Legal configurations of at most `limit` microseconds, the fastest first.  It can be asked once."""
        if self.least > limit:
            return iter(())
        return takewhile(lambda t: t.us <= limit, self._rest or self._legal)


T = TypeVar("T", Search, _Look)

#: Of two searches for the fastest, the nearer one goes on until it is so many times as far as the other.
AHEAD = 1.05


def fastest(searches: Sequence[Search]) -> Search | None:
    """The search whose best takes the least time; None where no cost model tells.  Others are looked through as far as
    it takes to know that they are slower."""
    with no_collections:
        return _nearest([_Look(search) for search in searches])


def near(
    searches: Sequence[Search], reach: Callable[[Search], float], most: int, wanted: Callable[[Search], bool]
) -> list[tuple[Search, Timed]]:
    """From each of the wanted searches, up to `most` configurations, the fastest first, that take no longer than the
    microseconds that `reach` gives for the search with the fastest of all; none where that one is not wanted.  It is
    settled, as by `fastest`."""
    with no_collections:
        looks = [_Look(search) for search in searches]
        first = _nearest(looks)
        if first is None or not wanted(first):
            return []
        limit = reach(first)
        looks = [look for look in looks if wanted(look.search)]
        return [(look.search, t) for look in looks for t in islice(look.within(limit), most)]


def _nearest(looks: Sequence[_Look]) -> Search | None:
    while True:
        found, least, settled = nearest(looks)
        if settled or least == math.inf:
            return found.search if least < math.inf else None
        found.approach(AHEAD * min((look.least for look in looks if look is not found), default=math.inf))


def nearest(searches: Iterable[T]) -> tuple[T, float, bool]:
    """The search that is known to take the least, a settled one before others; how long, and whether it is settled.
    None is asked twice: threads have searches in common, and settle them meanwhile."""
    known = [(each, each.known) for each in searches]
    found, (least, settled) = min(known, key=lambda row: (row[1][0], not row[1][1]))
    return found, least, settled


_us = attrgetter("us")


def _distinct(ranked: Iterable[Timed]) -> Iterator[Timed]:
    """Each configuration once."""
    seen: set[object] = set()
    for t in ranked:
        if t.layout.config not in seen:
            seen.add(t.layout.config)
            yield t


def _unwritten(kernel: AnyKernel, problem: ConvProblem) -> list[Obstacle]:
    """Further results, where the kernel does not write them."""
    if kernel.further or not problem.further:
        return []
    names = listing([t.name for t in problem.further], "and")
    return [Obstacle(f"kernel {kernel.name} does not write further results of the epilogue: {names}")]


def _unapplied(kernel: AnyKernel, problem: ConvProblem) -> list[Obstacle]:
    """A prologue, where the kernel does not apply it."""
    if kernel.prologues or not problem.prologue:
        return []
    hint = f"apply it to {problem.x.name} before the call"
    return [Obstacle(f"kernel {kernel.name} multiplies {problem.x.name} as it is, without the prologue", hint)]


def _undecided(kernel: AnyKernel, problem: ConvProblem) -> list[Obstacle]:
    """Sizes that a call decides, where the kernel is compiled for fixed ones."""
    fixed = [d for d in problem.dynamic if d not in kernel.dynamic]
    if not fixed:
        return []
    if kernel.dynamic:
        hint = f"leave {listing(fixed, 'and')} out of `dynamic`"
        return [Obstacle(f"kernel {kernel.name} is compiled for fixed sizes of {listing(fixed, 'and')}", hint)]
    return [Obstacle(f"kernel {kernel.name} is compiled for fixed sizes", "leave `dynamic` out")]


_Stated = tuple[tuple[str, int | str], ...]


@lru_cache(maxsize=256)
def _search(kernel: AnyKernel, problem: ConvProblem, target: Target, fixed: _Stated) -> Search:
    return Search(kernel, problem, target, dict(fixed))


def search(kernel: AnyKernel, problem: ConvProblem, target: Target, fixed: Options) -> Search:
    """The search of a kernel for a problem; asked again, the same one."""
    return _search(kernel, problem, target, tuple(sorted(fixed.items())))
