"""The strategies, in the order in which `auto` asks them: the names that users write, and the kernels behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from types import ModuleType
from typing import TYPE_CHECKING

from convgen.ir import estimates
from convgen.ir.estimates import Estimates
from convgen.kernels.base import Obstacle
from convgen.kernels.config import Config, Option, Options, excess, has_all, joined, option_rows
from convgen.kernels.registry import kernel, kernels_of
from convgen.targets import Target

if TYPE_CHECKING:
    from convgen.ir.plan import Plan
    from convgen.ir.problem import ConvProblem
    from convgen.kernels.base import AnyKernel, Layout
    from convgen.kernels.search import Search, Timed

#: Candidates of a strategy for a tuner, and those among them that a kernel calls alike.
MOST_CANDIDATES, OF_A_KIND = 40, 12
#: Of so many of a kernel's best configurations a tuner times variants, too.
VARIED = 3
#: Images for which a plan's time is estimated, where a call decides how many there are.
MOST_ESTIMATED = 1024


@dataclass(frozen=True)
class Strategy:
    """One or more kernels under the name that a spec writes.  Its answers are views of its kernels' searches.
    `by_name`: taken only where a spec names it, since it rounds otherwise than the others.  `fuses`: the kernel that
    multiplies computes the epilogue, too; otherwise a launch behind it does, which reads a whole result once more."""

    name: str
    summary: str
    by_name: bool = False
    fuses: bool = True

    @cached_property
    def options(self) -> Sequence[Option]:
        """The options that a strategy block may set."""
        rows = kernels_of(self.name)
        options = joined({row.name: option_rows(row.config) for row in rows})
        if len(rows) == 1:
            return options
        doc = "; ".join(f"{row.name}: {row.summary}" for row in rows)
        return (Option("kernel", doc, choices=tuple(row.name for row in rows)), *options)

    def searches(self, problem: ConvProblem, target: Target, options: Options) -> list[Search]:
        """The searches of the kernels that have the options; of all kernels, where none has them all."""
        return self._searches(problem, target, options, lambda fixed, config: not excess(fixed, config))

    def _searches(
        self, problem: ConvProblem, target: Target, options: Options, wanted: Callable[[Options, type[Config]], bool]
    ) -> list[Search]:
        """The searches of the kernels whose configurations are wanted; of all kernels, where none is."""
        from convgen.kernels.search import search

        look = _search_with_sums if problem.sums else search
        fixed = {name: value for name, value in options.items() if name != "kernel"}
        rows = [row for row in kernels_of(self.name) if row.asked_for(options)]
        rows = [row for row in rows if wanted(fixed, row.config)] or rows
        return [look(row.kernel, problem, target, fixed) for row in rows]

    def _best(self, problem: ConvProblem, target: Target, options: Options) -> Search:
        from convgen.kernels.search import fastest

        searches = self.searches(problem, target, options)
        return fastest(searches) or min(searches, key=lambda s: s.best is None)

    def obstacles(self, problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
        """Every constraint that fails; empty where the strategy serves the problem with these options.

        For several kernels, the obstacles common to all, else those of the one that comes closest."""
        searches = self.searches(problem, target, options)
        if not searches:
            return [Obstacle(f"{self.name} has no kernel {options['kernel']}", option="kernel")]
        if any(s.serves for s in searches):
            return []
        if apart := self._apart(searches):
            return [apart]
        # where those that have the options do not serve, one may be meant that has them with other values
        found = [list(s.obstacles) for s in self._searches(problem, target, options, has_all)]
        common = [o for o in found[0] if all(o in own for own in found)]
        # an obstacle to the option kernel refers to another kernel, which has its own obstacles here
        nearest = common or min(found, key=lambda own: (any(o.option == "kernel" for o in own), len(own)))
        return self._of_kernels_apart(problem, target, options, nearest)

    def _of_kernels_apart(
        self, problem: ConvProblem, target: Target, options: Options, found: list[Obstacle]
    ) -> list[Obstacle]:
        """Obstacles, with the option that leads to the kernel which has them, where another kernel would serve without
        it."""
        kernels = kernels_of(self.name)
        having = {
            name: [row.name for row in kernels if not excess({name: value}, row.config)]
            for name, value in options.items()
        }
        apart = {name: own for name, own in having.items() if 0 < len(own) < len(kernels)}
        rest = {name: value for name, value in options.items() if name not in apart}
        if "kernel" in options or not apart or not any(s.serves for s in self.searches(problem, target, rest)):
            return found
        name, own = next(iter(apart.items()))
        whose = f"`{name}` is an option only of kernel {' and '.join(own)}"
        return [
            Obstacle(f"{whose}: {o.message}", f"leave `{name}` out", name) if o.option in ("", "kernel") else o
            for o in found
        ]

    def _apart(self, searches: Sequence[Search]) -> Obstacle | None:
        """Options of several kernels, which no kernel has together."""
        faults = {s.kernel.name: excess(s.fixed, s.kernel.config) for s in searches}
        if len(faults) == 1 or not all(faults.values()):
            return None
        hint = "; ".join(f"{name}: {', '.join(own.values())}" for name, own in faults.items())
        first, *_ = (option for own in faults.values() for option in own)
        return Obstacle(f"no kernel of {self.name} has all of these options", hint, first)

    def plan(self, problem: ConvProblem, target: Target, options: Options) -> Plan:
        """The plan of the fastest configuration, where `obstacles` is empty."""
        found = self._best(problem, target, options)
        assert found.best is not None, "obstacles are asked for first"
        plan = found.kernel.plan(found.best.layout)
        us = found.us if found.us < math.inf else 0.0
        plan = replace(plan, strategy=self.name, kernel=found.kernel.name, us=us, estimates=_estimates(found))
        return _sums().completed(plan, problem) if problem.sums else plan

    def stated(self, problem: ConvProblem, target: Target, options: Options) -> Options:
        """The options with every one stated, as the cost model settles it."""
        found = self._best(problem, target, options)
        assert found.best is not None, "obstacles are asked for first"
        return self.options_of(found, found.best.layout)

    def options_of(self, found: Search, layout: Layout) -> Options:
        """A layout's options as a block of this strategy writes them."""
        options = layout.config.options
        return {"kernel": found.kernel.name, **options} if found.kernel.name != self.name else options

    def estimate(self, problem: ConvProblem, target: Target, options: Options) -> float:
        """The cost model's estimate in microseconds, including launches that add up sums; infinite if nothing
        serves."""
        us = self._best(problem, target, options).us
        return self.plan(problem, target, options).us if problem.sums and us < math.inf else us

    def candidates(self, problem: ConvProblem, target: Target) -> list[Options]:
        """Options worth measuring, the most promising first, with variants of each kernel's best few."""
        found = [
            (t.us, self.options_of(search, t.layout))
            for search, ranked in self._ranked(problem, target, MOST_CANDIDATES, OF_A_KIND)
            for t in (*ranked, *search.variants(ranked[:VARIED]))
        ]
        return [options for _, options in sorted(found, key=itemgetter(0))]

    def timed(self, problem: ConvProblem, target: Target, most: int, of_a_kind: int) -> list[tuple[float, Options]]:
        """Estimated microseconds and options of the `most` promising configurations of each kernel, the best first."""
        found = [
            (t.us, self.options_of(search, t.layout))
            for search, ranked in self._ranked(problem, target, most, of_a_kind)
            for t in ranked
        ]
        return sorted(found, key=itemgetter(0))

    def _ranked(
        self, problem: ConvProblem, target: Target, most: int, of_a_kind: int
    ) -> Iterator[tuple[Search, list[Timed]]]:
        """Each kernel's search and its promising configurations, the best first."""
        return ((s, s.candidates(most, of_a_kind)) for s in self.searches(problem, target, {}))

    def render(self, plan: Plan) -> str:
        """The CUDA source of a plan."""
        if plan.problem.sums:
            plan = replace(plan, behind=_sums().source(plan))
        return kernel(plan.kernel).source(plan)


def _estimates(found: Search) -> Estimates:
    """Estimates for the best configuration, if a call decides the number of images."""
    from convgen.kernels.search import Search

    problem, best = found.problem, found.best
    if "n" not in problem.dynamic or best is None or best.us == math.inf:
        return ()
    options = best.layout.config.options
    of = ((n, problem.with_images(n).static) for n in estimates.numbers(max(MOST_ESTIMATED, problem.n)))
    timed = ((n, Search(found.kernel, p, found.target, options).us) for n, p in of)
    return tuple((n, round(us, 2)) for n, us in timed if us < math.inf)


def _search_with_sums(kernel: AnyKernel, problem: ConvProblem, target: Target, fixed: Options) -> Search:
    """The search of a kernel that adds up what it can; if no configuration can, and no fixed option is the reason, of
    one that writes values, which later launches add up."""
    from convgen.kernels.search import search

    kept = kernel.adds_up(problem, fixed)
    found = search(kernel, _sums().spread(problem, kept), target, fixed)
    if found.serves or not kept or any(o.option in fixed for o in found.obstacles):
        return found
    apart = search(kernel, _sums().spread(problem), target, fixed)
    return apart if apart.serves else found


def _sums() -> ModuleType:
    """The module of sums, which takes long to load."""
    from convgen.kernels.parts import sums

    return sums


_ROWS: tuple[Strategy, ...] = (
    Strategy(
        "tma_im2col", "implicit GEMM on TMA im2col loads and wgmma: warp-specialized, persistent, any layout (sm_90a)"
    ),
    Strategy(
        "tma_halo",
        "the input tile with its halo stays in shared memory and serves every tap; for few channels (sm_90a)",
    ),
    Strategy(
        "depthwise",
        "one filter per channel (groups = c): any filter size, stride and layout; any channel multiplier (dgrad: 1)",
    ),
    Strategy(
        "implicit_gemm",
        "implicit GEMM on mma.sync and cp.async, with computed addresses: any layout, alignment and groups",
    ),
    Strategy(
        "im2col",
        "im2col or col2im, and a GEMM by cuBLAS, in slices that fit a workspace limit",
        fuses=False,
    ),
    Strategy(
        "winograd",
        "F(2x2, 3x3), F(4x4, 3x3), F(2, 3): fewer products, different rounding; only if a spec names it",
        by_name=True,
    ),
    Strategy("direct", "one output per thread, or a few along the channels: every operator, layout and type"),
)
#: Name -> strategy, in the order in which `auto` prefers them.
STRATEGIES: dict[str, Strategy] = {row.name: row for row in _ROWS}

#: Their names; those that `auto` chooses among, and the others.
NAMES: tuple[str, ...] = tuple(STRATEGIES)
AUTO: tuple[str, ...] = tuple(name for name, row in STRATEGIES.items() if not row.by_name)
BY_NAME: tuple[str, ...] = tuple(name for name, row in STRATEGIES.items() if row.by_name)
#: Those whose times without an epilogue say nothing about one with it.
UNFUSED: tuple[str, ...] = tuple(name for name, row in STRATEGIES.items() if not row.fuses)

#: Values of options that make results vary in their last bits from run to run, by option: taken where they are asked
#: for, and not because they were measured.
VARYING = {"sums": "atomic", "method": "scatter"}


def varies(options: Options) -> bool:
    """Whether results vary from run to run."""
    return any(options.get(name) == value for name, value in VARYING.items())
