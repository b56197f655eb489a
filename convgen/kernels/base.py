"""What a kernel answers, and the records that its answers are made of.

A kernel is a folder of this package, and a row of `registry`.  It turns a problem into configurations, a
configuration into a layout, and a layout into obstacles, a time, a plan and a source.  `search` asks the
questions in that order, once; everything that convgen wants to know of a kernel is a view of a search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from convgen.ir.problem import Op, Padding
from convgen.kernels.config import Config, Option, Options  # noqa: F401
from convgen.targets import Target

if TYPE_CHECKING:
    from convgen.ir.plan import Launch, Plan, Step, Workspace
    from convgen.ir.problem import ConvProblem

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Obstacle:
    """Why a kernel cannot serve a problem: the constraint, and what would lift it, apart from other strategies.

    `option` names the option of the strategy block that is to blame, where one is.
    """

    message: str
    hint: str = ""
    option: str = ""


class Obstacles(list[Obstacle]):
    """Obstacles that are found one by one."""

    def no(self, message: str, hint: str = "", option: str = "") -> None:
        self.append(Obstacle(message, hint, option))


@dataclass(frozen=True)
class Layout(Generic[C]):
    """A problem, a configuration and a target, and all that follows from them: operands, tiles, shared memory,
    registers.

    A kernel's own layout has what follows as cached properties, so that what a constraint, the cost model,
    the plan and the source read of it is found once.
    """

    problem: ConvProblem
    target: Target
    config: C

    def knowing(self, *names: str) -> Self:
        """The same, which has found these cached properties, for its siblings to have."""
        for name in names:
            getattr(self, name)
        return self

    def sibling(self, **changes: int | str) -> Self:
        """The layout with other values of these fields of the configuration.  It inherits the cached properties found
        so far, which must not depend on these fields, so that what many layouts share is computed once."""
        return self.having(self.config.but(**changes))

    def having(self, config: C) -> Self:
        """The same of a whole configuration."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, config=config)
        return made

    @property
    def shared_table(self) -> tuple[tuple[str, str], ...]:
        """The contents of shared memory, in order: purpose, count, and bytes of each.  Empty if there is at most one
        thing."""
        return ()


L = TypeVar("L", bound=Layout)


@dataclass(frozen=True)
class Part(Generic[L]):
    """A part of a kernel's space.  None of its layouts takes less than `least` microseconds; layouts and smaller parts
    are made one by one."""

    least: float
    within: Iterable[L | Part[L]]

    @property
    def layouts(self) -> Iterator[L]:
        """All of them."""
        for each in self.within:
            if isinstance(each, Part):
                yield from each.layouts
            else:
                yield each


#: Of a kernel that takes slices of any tensor.
ANY_SLICES = frozenset({"x", "w", "y", "operand", "result"})
#: Of a kernel that takes the number of images from a call, and of one that takes every size that may be dynamic.
IMAGES = frozenset({"n"})
ANY_SIZES = IMAGES | {"d", "h", "w"}


class Kernel(Generic[C, L]):
    """One kernel.  `name` is its folder's."""

    name: ClassVar[str]
    ops: ClassVar[frozenset[Op]] = frozenset(Op)  # for others, this is its only obstacle
    paddings: ClassVar[frozenset[Padding]] = frozenset({Padding.ZERO})  # which it supports
    config: type[C]
    #: Roles of tensors of which it takes channel slices: x, w, y, operand, result (of the epilogue).
    slice_roles: ClassVar[frozenset[str]] = frozenset()
    #: Whether it writes further results of epilogues; sums of them are computed after it.
    further: ClassVar[bool] = False

    #: Whether it applies prologues.
    prologues: ClassVar[bool] = False
    #: Whether it computes in f64.
    doubles: ClassVar[bool] = False
    #: Whether `correction.json` in its folder holds corrections from measurements of its layouts.
    corrected: ClassVar[bool] = False
    #: Dims whose sizes it takes from a call: none, those of `IMAGES`, or `ANY_SIZES`.
    dynamic: ClassVar[frozenset[str]] = frozenset()

    def adds_up(self, problem: ConvProblem, fixed: Options) -> tuple[str, ...]:
        """Names of the sums that the kernel computes with these options: as partial sums, in rows of a workspace
        `partial.<name>`, or without such a workspace, completely.  For other sums, it must write the values of their
        elements instead."""
        return ()

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> Sequence[Obstacle]:
        """Constraints that fail whatever the options that are not fixed; empty where some configuration may serve."""
        raise NotImplementedError

    def space(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterable[L]:
        """Layouts worth considering that go with the options that are fixed, legal or not.

        Where nothing that is worth considering goes with them, the nearest that does: its obstacles will be shown.
        Called where `unserved` is empty.  A kernel has either this or `parts`.
        """
        return (layout for part in self.parts(problem, target, fixed) for layout in part.layouts)

    def parts(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterable[Part[L]]:
        """The space in parts, for a search to make the layouts of few of them."""
        return [Part(self.least(problem, target, fixed), self.space(problem, target, fixed))]

    def least(self, problem: ConvProblem, target: Target, fixed: Options) -> float:
        """Microseconds that nothing of `space` goes below."""
        return 0.0

    def refine(self, best: Iterator[L], fixed: Options) -> Iterable[L]:
        """More layouts: variations of the best legal ones of `space`, which come fastest first."""
        return ()

    def refined(self, us: float) -> float:
        """Microseconds that nothing of `refine` goes below where nothing of `space` goes below `us`: searches for the
        fastest of several kernels rest on it."""
        return us

    def illegal(self, layout: L) -> Sequence[Obstacle]:
        """Why the hardware cannot run a layout."""
        raise NotImplementedError

    def time(self, layout: L) -> float:
        """Microseconds by the cost model; infinite for a kernel without one."""
        raise NotImplementedError

    def traits(self, layout: L) -> Mapping[str, Any] | None:
        """The cost model's input for a layout, by name: trees tell layouts apart by it (correction.py).  None if no
        layout like it was measured."""
        return None

    def kind(self, layout: L) -> object:
        """The kind of a layout: a cost model is more reliable within a kind than between kinds."""
        return None

    def variants(self, layout: L) -> Iterable[L]:
        """Layouts that the cost model does not tell from this one, for a tuner to time where they are legal."""
        return ()

    def plan(self, layout: L) -> Plan:
        """The plan of a legal layout.  It carries the layout, for `source`."""
        raise NotImplementedError

    def source(self, plan: Plan) -> str:
        """The CUDA source of a plan that this kernel made."""
        raise NotImplementedError


#: A kernel of any configuration.
AnyKernel = Kernel[Any, Any]


def plan_of(layout: Layout, steps: Iterable[Step], workspaces: Iterable[Workspace] = (), **more: Any) -> Plan:
    """A layout's plan; the strategy fills in its own name."""
    from convgen.ir.plan import Plan

    made = tuple(_spread(step, layout.target) for step in steps)
    return Plan(layout.problem, layout.target, "", layout.config, made, tuple(workspaces), layout=layout, **more)


def _spread(step: Step, target: Target) -> Step:
    from convgen.ir.plan import Launch

    return spread(step, target) if isinstance(step, Launch) and step.persistent else step


def spread(launch: Launch, target: Target) -> Launch:
    """A launch whose blocks should be spread, one per multiprocessor, although two fit: it requests enough shared
    memory for that."""
    if not launch.dependent or launch.blocks_per_sm > 1:
        return launch
    half = target.shared_bytes_per_sm // 2  # a block takes some bytes besides: two do not fit
    return replace(launch, spread_bytes=half) if launch.shared_bytes < half else launch
