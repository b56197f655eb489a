"""The passes, in order: from a spec's text to kernels.

    load      text -> requests (parse, check)           frontend
    choose    request -> strategy and options           planner
    plan      problem -> plan                           strategy
    render    plan -> CUDA source                       strategy, templates
    build     source -> cubin and ptxas's figures       NVRTC, cached by content

`load` gives a spec's compilations; each runs a pass when the pass's record is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from convgen.diagnostics import Diagnostic, SpecError
from convgen.ir.estimates import takes
from convgen.lazy import cached_property
from convgen.spec import Spec, UsageError, known_target, unknown
from convgen.targets import DEFAULT_TARGET, TARGETS, Target, target_for

if TYPE_CHECKING:
    from convgen.cache import Cache
    from convgen.frontend import Request
    from convgen.gpus import Gpu
    from convgen.ir.plan import Plan
    from convgen.kernels.base import Option
    from convgen.planner import CannotServe, Choice
    from convgen.runtime.artifacts import Artifact
    from convgen.runtime.kernel import Kernel
    from convgen.tables import Explanation

#: Each pass and the record of a `Compilation` that it makes.
PASSES: dict[str, str] = {"load": "request", "choose": "choice", "plan": "plan", "render": "source"}


class Compilation:
    """One convolution of a spec as it goes through the passes."""

    def __init__(self, spec: Spec, request: Request) -> None:
        self.spec, self.request = spec, request
        self.progress: Callable[[str], None] | None = None  # of measuring
        self.unmeasured = False  # though it was to be

    @property
    def name(self) -> str:
        return self.request.problem.name

    @cached_property
    def target(self) -> Target:
        """The target that the command line or the spec names, else the GPU at hand, else the default."""
        name = self.spec.target or self.request.target
        return known_target(name) if name else target_at_hand()

    @property
    def strategy(self) -> str:
        """The strategy that the command line or the spec names, else auto."""
        return self.spec.strategy or self.request.strategy

    @property
    def options(self) -> Mapping[str, int | str]:
        """Those of the spec's options that the strategy has."""
        return self.request.options if self.strategy == self.request.strategy else {}

    @property
    def gpu(self) -> str | None:
        """The name of the GPU at hand, if the kernel can run on it: its tuned choices come first."""
        from convgen.runtime.launch import gpu_at_hand

        found = gpu_at_hand()
        return found.name if found and self.target.runs_on(found.capability) else None

    @cached_property
    def choice(self) -> Choice:
        """Raises SpecError, with every obstacle of every strategy that was asked for."""
        from convgen import planner

        if self.spec.tune:
            self._measure()
        try:
            return planner.choose(self.request.problem, self.target, self.strategy, self.options, self.gpu)
        except planner.CannotServe as e:
            raise self._refused(e) from None

    def _measure(self) -> None:
        """Has the tuning database know the best candidates."""
        from convgen.bench.build import Job
        from convgen.tune import quick

        job = Job(self.request.problem, self.target, self.strategy, self.options, True, self.gpu)
        self.unmeasured = not quick.tune(job, self.progress)

    def check_served(self) -> None:
        """Whether there is a choice, not which: for `auto` the first strategy that serves is enough, and none is timed.

        Raises SpecError as `choice` does.
        """
        from convgen.kernels import strategies

        names = [self.strategy] if self.strategy in strategies.NAMES else reversed(strategies.AUTO)
        asked = (strategies.STRATEGIES[name] for name in names)
        if all(s.obstacles(self.request.problem, self.target, self.options) for s in asked):
            _ = self.choice

    @cached_property
    def plan(self) -> Plan:
        plan = self.choice.strategy.plan(self.request.problem, self.target, self.choice.options)
        return replace(plan, reason=self.choice.reason)

    @cached_property
    def source(self) -> str:
        """The CUDA source."""
        return render(self.plan)

    def build(self, cache: Cache | None = None) -> Artifact:
        """The compiled kernel.  Raises CompileError."""
        from convgen.runtime import artifacts

        return artifacts.build(self.source, self.plan, cache=cache)

    def kernel(self) -> Kernel:
        """The callable.  Raises CompileError."""
        return self._callable(self.build())

    def uncompiled(self) -> Kernel:
        """The callable for `emulate` alone: it has no code for a GPU, and takes no NVRTC."""
        from convgen.runtime import artifacts

        return self._callable(artifacts.uncompiled(self.source, self.plan))

    def _callable(self, artifact: Artifact) -> Kernel:
        from convgen.runtime.kernel import Kernel

        return Kernel(artifact, replan=lambda: self.plan, explain=lambda: str(self.explain()))

    def on_images(self, n: int) -> Compilation:
        """The same configuration for n images.  Raises SpecError where these cannot have it."""
        from convgen import planner

        problem, strategy = self.request.problem.with_images(n), self.choice.strategy
        options = strategy.stated(self.request.problem, self.target, self.choice.options)
        made = Compilation(self.spec, replace(self.request, problem=problem))
        if obstacles := strategy.obstacles(problem, self.target, options):
            raise made._refused(planner.CannotServe({strategy.name: tuple(obstacles)}))
        made.choice = replace(self.choice, options=options)
        return made

    def planned_for(self, n: int) -> Compilation:
        """The same convolution planned for n images alone."""
        problem = self.request.problem.with_images(n)
        made = Compilation(replace(self.spec, images=()), replace(self.request, problem=problem))
        made.progress = self.progress
        return made

    @property
    def varies(self) -> bool:
        """Whether a call decides how many images there are."""
        return "n" in self.request.problem.dynamic

    def class_at(self, n: int) -> Compilation:
        """The one of `classes` that a call of n images of the spec's size takes."""
        by_images = {int(own.request.problem.n): own for own in self.classes}
        return by_images[takes({m: own.plan.size_class for m, own in by_images.items()}, n)]

    @property
    def compared(self) -> tuple[Compilation, ...]:
        """One for each number of images that classes are chosen among; itself, where calls are not said to have any of
        several.  Raises UsageError where the number of images is fixed."""
        from convgen.planner import classes

        if not self.spec.images:
            return (self,)
        if not self.varies:
            raise UsageError(f"{self.name}: its number of images is fixed\nhint: write `dynamic n` into the conv block")
        return tuple(map(self.planned_for, classes.compared(self.spec.images)))

    @cached_property
    def classes(self) -> tuple[Compilation, ...]:
        """One for each class of sizes.  Raises SpecError, and UsageError as `compared` does."""
        from convgen.planner import classes, refusals

        if not self.spec.images:
            return (self,)
        plans = {}
        for own in self.compared:
            n = int(own.request.problem.n)
            if self.progress:
                self.progress(f"{self.name} for n={n}")
            try:
                plans[n] = Compilation(replace(own.spec, tune=None), own.request).plan
            except SpecError as e:
                raise refusals.too_many(self.request, self.target, self.strategy, self.options, n) or e from None
        return tuple(map(self.planned_for, classes.chosen(plans, self.spec.images)))

    def explain(self, gpu: Gpu | None = None) -> Explanation:
        """Formulas, roofline (of `gpu`, else of the part that stands for the target) and every strategy; the plan too,
        where the strategy that was asked for serves, and the classes of sizes."""
        from convgen.explain import classes, explain
        from convgen.kernels import strategies
        from convgen.tables import Explanation

        try:
            plan = self.plan
        except SpecError:
            plan = None
        found = explain(self.request, plan, strategies.STRATEGIES, self.target, gpu)
        if plan is None or not self.spec.images:
            return found
        plans = {int(own.request.problem.n): own.plan for own in self.classes}
        of = {n: (p.size_class, f"{p.strategy}, {p.configuration}") for n, p in plans.items()}
        return Explanation((*found.tables, classes(of, self.spec.images)))

    def _refused(self, error: CannotServe) -> SpecError:
        from convgen.planner import refusals

        found = refusals.diagnostics(error, self.request, self.target)
        return SpecError(found, self.spec.path, self.spec.text)


def load(spec: Spec) -> list[Compilation]:
    """Parse and check.  Raises SpecError, with every diagnostic, and UsageError."""
    from convgen import frontend
    from convgen.kernels import renamed

    requests = frontend.load(
        spec.text, spec.path, spec.defines, strategies=_Options(), targets=TARGETS, renamed=renamed
    )
    found = [Compilation(spec, request) for request in requests]
    names = dict.fromkeys(name for c in found for name in (c.request.conv, c.name))
    for name in spec.only:
        if name not in names:
            raise UsageError(f"{spec.path}: {unknown('convolution', name, names)}")
    return [c for c in found if not spec.only or not {c.name, c.request.conv}.isdisjoint(spec.only)]


class _Options(Mapping[str, "Sequence[Option]"]):
    """Each strategy's options by its name; a strategy is loaded when its options are asked for."""

    def __getitem__(self, name: str) -> Sequence[Option]:
        from convgen.kernels import strategies

        return strategies.STRATEGIES[name].options

    def __iter__(self) -> Iterator[str]:
        from convgen.kernels import strategies

        return iter(strategies.NAMES)

    def __len__(self) -> int:
        from convgen.kernels import strategies

        return len(strategies.NAMES)


def choose_all(spec: Spec, progress: Callable[[str], None] | None = None) -> list[Compilation]:
    """The compilations of a spec, each with its choice made; `progress` hears each name before.

    Raises SpecError with what stands against all of them."""
    return _each(load(spec), lambda compilation: [own.choice for own in compilation.classes], progress)


def _each(
    found: list[Compilation], ask: Callable[[Compilation], object], progress: Callable[[str], None] | None = None
) -> list[Compilation]:
    """The same compilations, each asked; `progress` hears its name before.  Raises SpecError with what all raised."""
    refused: list[Diagnostic] = []
    for compilation in found:
        compilation.progress = progress
        if progress:
            progress(compilation.name)
        try:
            ask(compilation)
        except SpecError as e:
            refused += e.diagnostics
    if refused:
        raise SpecError(refused, found[0].spec.path, found[0].spec.text)
    return found


def check_served(found: list[Compilation], progress: Callable[[str], None] | None = None) -> list[Compilation]:
    """The same compilations; `progress` hears each name before.  Raises SpecError with what stands against each that no
    strategy serves."""
    return _each(found, Compilation.check_served, progress)


def render(plan: Plan) -> str:
    """The CUDA source of a plan."""
    from convgen.kernels import strategies

    return strategies.STRATEGIES[plan.strategy].render(plan)


def target_at_hand() -> Target:
    """The target of this machine's GPU, else the default."""
    from convgen.runtime.launch import gpu_at_hand

    found = gpu_at_hand()
    return (target_for(found.capability) if found else None) or TARGETS[DEFAULT_TARGET]
