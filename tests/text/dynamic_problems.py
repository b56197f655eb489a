"""Problems whose sizes a call decides, and the same ones of fixed sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from convgen.ir import dynamic
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.ir.size import evaluate
from convgen.runtime.manifest import Manifest


def with_dynamic(problem: ConvProblem) -> ConvProblem:
    """The problem with every dim dynamic that may be."""
    outputs = zip(("n", *problem.spatial.input), ("n", *problem.spatial.output), strict=True)
    return replace(problem, dynamic=tuple(d for d, o in outputs if d in problem.x.dims and o in problem.y.dims))


def all_sizes(problem: ConvProblem, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of a dynamic problem's dims, with those of the output."""
    return {**sizes, **{dim: evaluate(size.formula, sizes) for dim, size in dynamic.derived(problem).items()}}


def at(problem: ConvProblem, sizes: Mapping[str, int]) -> ConvProblem:
    """A dynamic problem as one of fixed sizes."""
    found = all_sizes(problem, sizes)
    return replace(problem, dynamic=(), **dynamic.resized(problem, lambda _, dim: found[dim]))


def manifest(plan: Plan) -> Manifest:
    return Manifest.of(plan, {}, "", ())
