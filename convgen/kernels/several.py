"""Strategies of several kernels: what each kernel answers, and how the strategy hands its questions on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from convgen.ir.plan import Launch, Param, Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacle, Options
from convgen.targets import Target

#: Output pixels, by whole tiles, and patches of them are counted in 32 bits.
MOST_PIXELS = 2**31 - 512


class Kernel(Protocol):
    """One kernel of a strategy: a module with these functions.  Configurations are of type `CONFIG`, each with the
    `options` that ask for it."""

    @property
    def CONFIG(self) -> type: ...

    def obstacles(self, problem: ConvProblem, target: Target, options: Options, /) -> list[Obstacle]:
        """Every constraint of the kernel's own that fails."""
        ...

    def choose(self, problem: ConvProblem, target: Target, options: Options, /) -> Any:
        """The configuration that the options fix, the rest by estimate.  Where none is legal: the first that they ask
        for, or None."""
        ...

    def candidates(self, problem: ConvProblem, target: Target, options: Options, /) -> Sequence[Any]:
        """Configurations worth measuring that the options allow, the most promising first."""
        ...

    def time(self, problem: ConvProblem, target: Target, config: Any, /) -> float:
        """Microseconds, by the cost model."""
        ...

    def plan(self, problem: ConvProblem, target: Target, config: Any, strategy: str, /) -> Plan: ...

    def source(self, plan: Plan, /) -> str:
        """The CUDA source of a plan that the kernel made."""
        ...


class KernelStrategy:
    """A strategy that hands its questions on to the kernel that an option names, or that serves best."""

    name: str
    kernels: Mapping[str, Kernel]

    def unserved(self, problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
        """What stands against every kernel."""
        raise NotImplementedError

    def best(self, problem: ConvProblem, target: Target, options: Options) -> Kernel:
        """The kernel for a problem, where the options name none."""
        raise NotImplementedError

    def _kernel(self, problem: ConvProblem, target: Target, options: Options) -> Kernel:
        return self.kernels[str(options["kernel"])] if "kernel" in options else self.best(problem, target, options)

    def obstacles(self, problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
        found = self.unserved(problem, target, options)
        return found or self._kernel(problem, target, options).obstacles(problem, target, options)

    def plan(self, problem: ConvProblem, target: Target, options: Options) -> Plan:
        kernel = self._kernel(problem, target, options)
        return kernel.plan(problem, target, kernel.choose(problem, target, options), self.name)

    def render(self, plan: Plan) -> str:
        return next(k for k in self.kernels.values() if isinstance(plan.config, k.CONFIG)).source(plan)

    def candidates(self, problem: ConvProblem, target: Target) -> list[Options]:
        """Options worth measuring, the most promising first."""
        found = [
            (kernel.time(problem, target, config), config.options)
            for kernel in self.kernels.values()
            if not kernel.obstacles(problem, target, {})
            for config in kernel.candidates(problem, target, {})
        ]
        return [options for _, options in sorted(found, key=lambda row: row[0])]

    def estimate(self, problem: ConvProblem, target: Target, options: Options) -> float:
        """Microseconds, by the kernels' cost models."""
        kernel = self._kernel(problem, target, options)
        return kernel.time(problem, target, kernel.choose(problem, target, options))


def persistent(
    problem: ConvProblem, params: Sequence[Param], *, tiles: int, slices: int, threads: int, shared_bytes: int,
    blocks_per_sm: int, dependent: bool = False,
) -> Launch:  # fmt: skip
    """The launch of a problem's only kernel, whose blocks take tile after tile of one of `slices` slices of the
    channels: each has `tiles` of them."""
    return Launch(
        f"convgen_{problem.name}", (tiles * slices, 1, 1), threads, tuple(params), shared_bytes, persistent=True,
        blocks_per_sm=blocks_per_sm, multiple_of=slices, dependent=dependent,
    )  # fmt: skip
