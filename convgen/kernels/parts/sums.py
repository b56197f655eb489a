"""Sums: further results of epilogues that leave out dims.

A kernel writes partial sums to a workspace, or the value of every element, as it does further results of all dims.
Launches behind it add these up, some of them a thread, until one is left: in the same order in every run.  Sums of what
the operator reads are made alike, of the tensor itself: one more pass over it, where the kernel makes no partial sums.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sympy import Expr, Integer

from convgen.codegen.render import environment, tidy
from convgen.gpus import reference
from convgen.ir.index_map import decompose
from convgen.ir.integer import floordiv, mod
from convgen.ir.plan import Launch, Plan, Step, Workspace
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor
from convgen.kernels.base import Layout
from convgen.kernels.parts.elementwise import Kernel, Pointer, element
from convgen.kernels.parts.lowering import Scope, drop_unused, index_type, load, offset

#: What a thread adds up at least and at most: enough for few launches, and few enough for many threads.
LEAST, MOST = 64, 128
#: Microseconds of a launch.
LAUNCH = 2.0


def spread(problem: ConvProblem, kept: Collection[str] = ()) -> ConvProblem:
    """The problem with each element's value in place of each sum, but of those that are kept, and without the sums of
    what the operator reads, whose values are there."""
    if not problem.epilogue:
        return problem
    others = [t for t in problem.sums if t.name not in kept]
    there = [t.name for t in others if _read(problem, t)]
    results = tuple(_values(problem, t) if t in others else t for t in problem.further if t.name not in there)
    body = tuple(a for a in problem.epilogue.body if a.name not in there)
    return replace(problem, epilogue=replace(problem.epilogue, results=results, body=body))


def _read(problem: ConvProblem, t: Tensor) -> Tensor | None:
    """The tensor that the operator reads and `t` is the sum of."""
    like = problem.like(t)
    return None if like is problem.result else like


def _values(problem: ConvProblem, t: Tensor) -> Tensor:
    """What is summed: a tensor that the operator reads, or values that the kernel writes, packed, in the order of the
    operator's result."""
    return _read(problem, t) or replace(t, dims=problem.result.dims, extents=problem.result.extents, pitch=None)


def completed(plan: Plan, problem: ConvProblem) -> Plan:
    """The plan of a problem with sums, from the plan of the same `spread`."""
    rows = _partial_rows(plan)
    others = [t for t in problem.sums if t.name not in rows]
    buffers = {t.name: f"values.{t.name}" for t in others if not _read(problem, t)}
    levels = _levels(problem, rows)
    values = (Workspace(buffer, 4 * problem.result.size) for buffer in buffers.values())
    parts = (Workspace(level.target, 4 * level.parts * level.columns) for level in levels if level.parts > 1)
    moved = sum(_values(problem, t).bytes for t in others) / reference(plan.target.name).memory.per_second
    return replace(
        plan,
        problem=problem,
        steps=(*(_renamed(step, buffers) for step in plan.steps), *(_kernel(level).launch() for level in levels)),
        workspaces=(*plan.workspaces, *values, *parts),
        us=plan.us and plan.us + LAUNCH * len(levels) + moved * 1e6,
    )


def source(plan: Plan) -> str:
    """The source of the launches that add up."""
    kernels = [_kernel(level) for level in _levels(plan.problem, _partial_rows(plan))]
    return tidy(environment().get_template("kernels.cu.j2").render(comment=(), kernels=kernels))


def _partial_rows(plan: Plan) -> dict[str, int]:
    """Of the sums that the plan's kernel makes, by name: how many parts of each element; none where it makes all of the
    sum."""
    sizes = {w.name: w.bytes for w in plan.workspaces}
    kept = plan.layout.problem.sums if isinstance(plan.layout, Layout) else ()
    return {t.name: sizes.get(partial(t), 0) // t.bytes for t in kept}


def partial(t: Tensor) -> str:
    """The workspace of a kernel's partial sums: rows of the sum's elements."""
    return f"partial.{t.name}"


def _renamed(step: Step, buffers: dict[str, str]) -> Step:
    """The step on other buffers."""
    if not isinstance(step, Launch):
        return step
    return replace(step, params=tuple(p.over(buffers) for p in step.params))


# ---- the kernels -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Level:
    """A launch that adds up `rows` values to `parts` partial sums, for each of `columns` elements of a sum: from a
    buffer to another.  Level 0 reads values, those behind it partial sums; the last writes the sum."""

    problem: ConvProblem
    sum: Tensor
    number: int
    rows: int
    source: str

    @property
    def target(self) -> str:
        return f"parts.{self.sum.name}.{self.number}" if self.parts > 1 else self.sum.name

    @property
    def each(self) -> int:
        """Values that a thread adds up: two launches do where that is possible."""
        return self.rows if self.rows <= MOST else min(max(LEAST, math.isqrt(self.rows - 1) + 1), MOST)

    @property
    def parts(self) -> int:
        return -(-self.rows // self.each)

    @property
    def columns(self) -> int:
        return self.sum.size


def _levels(problem: ConvProblem, partial_rows: Mapping[str, int]) -> list[_Level]:
    """The launches of all sums, in order."""
    found = []
    for t in problem.sums:
        if partial_rows.get(t.name) == 0:
            continue
        read = _read(problem, t)
        level = _Level(problem, t, 0, problem.like(t).size // t.size, read.role if read else f"values.{t.name}")
        if t.name in partial_rows:
            level = _Level(problem, t, 1, partial_rows[t.name], partial(t))
        found.append(level)
        while level.parts > 1:
            level = _Level(problem, t, level.number + 1, level.parts, level.target)
            found.append(level)
    return found


def _kernel(level: _Level) -> Kernel:
    """Threads are of a part and an element of the sum; neighbors have neighboring elements."""
    problem, t, rows, columns = level.problem, level.sum, level.rows, level.columns
    values = _values(problem, t)
    kept = [d for d in values.dims if d in t.dims]
    scope = Scope(index_type(problem, (values.size,)))
    index = scope.declare("index", level.parts * columns)
    column = scope.let("column", mod(index, Integer(columns)), columns)
    first = scope.let("first", floordiv(index, Integer(columns)) * level.each) if level.parts > 1 else Integer(0)

    def coordinates(index: Expr, dims: Sequence[str]) -> dict[str, Expr]:
        return decompose(index, dims, lambda d: Integer(values.extent(d)))

    at = coordinates(column, kept)
    target = "index" if level.parts > 1 else offset(scope, t, at)
    lines = scope.take()
    row = scope.declare("row", rows)
    if level.number:
        read = scope.text(row * columns + column)
    else:
        read = offset(scope, values, at | coordinates(row, [d for d in values.dims if d not in t.dims]))
    last = f"{rows}{'ll' if scope.index != 'int' else ''}"
    end = f"min(first + {level.each}, {last})" if level.parts > 1 else last
    dtype = "f32" if level.number else values.dtype
    what = "parts of sums" if level.number else f"elements of {level.source}" if _read(problem, t) else "values"
    return Kernel(
        "sum.cu.j2",
        f"convgen_{problem.name}_sum_{t.name}_{level.number}",
        (f"{element(t.name, t.dims)}: {rows} {what} of each, up to {level.each} a thread, in order.",),
        (Pointer("values", dtype, level.source), Pointer("sums", "f32", level.target, written=True)),
        scope.index,
        1,
        level.parts * columns,
        "",
        {
            "coordinates": drop_unused(lines, f"{read} {target} {first}"),
            "first": str(first),
            "end": end,
            "value": load(dtype, f"values[{read}]", "f32"),
            "target": f"sums[{target}]",
        },
    )
