"""Sums: further results of epilogues that leave out dims.

A kernel writes partial sums to a workspace, or the value of every element, as it does further results of all dims.
Launches behind it add these up until one is left, in the same order in every run.  Sums of what the operator reads are
made alike, of the tensor itself: one more pass over it, where the kernel makes no partial sums.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sympy import Expr

from convgen.codegen.c_expr import NO_NAMES, Names
from convgen.codegen.render import environment, tidy
from convgen.ir.dtypes import DTYPES
from convgen.ir.formula import number
from convgen.ir.index_map import decompose
from convgen.ir.plan import Launch, Plan, Step, Workspace
from convgen.ir.problem import ConvProblem
from convgen.ir.size import Size
from convgen.ir.tensor import Tensor
from convgen.kernels.base import Layout
from convgen.kernels.parts.constants import Constants
from convgen.kernels.parts.elementwise import Kernel, Pointer, element, sizes
from convgen.kernels.parts.lowering import ACCUMULATORS, Scope, factor, index_type, load, number_text, offset

#: How many values a thread adds up at least and at most: enough for few launches, and few enough for many threads.
LEAST, MOST = 16, 80
#: Threads of a block, where there are many blocks and where there are few, and neighboring elements that they add up at
#: most.
BLOCK, LARGE_BLOCK, WIDTH = 256, 1024, 16
#: How many values a thread of a large block adds up at most.  More takes longer than a second launch.
MOST_OF_LARGE = 32
#: Microseconds of a launch.
LAUNCH = 2.0
#: By the type of sums: C text that stores {1} at an address of shared memory, {0}, and that loads it.
_SHARED = {
    "f32": ("st_shared_u32({0}, __float_as_uint({1}))", "__uint_as_float(ld_shared_u32({0}))"),
    "f64": ("st_shared_u64({0}, u64(__double_as_longlong({1})))", "__longlong_as_double(ld_shared_u64({0}))"),
}


def spread(problem: ConvProblem, kept: Collection[str] = ()) -> ConvProblem:
    """The problem with each element's value in place of each sum, except for kept sums, and without sums of tensors
    that the operator reads, whose values exist already."""
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
    """The values to sum: a tensor that the operator reads, or values that the kernel writes, packed, in the order of
    the operator's result."""
    return _read(problem, t) or t.over(problem.result.dims, problem.result.extents)


def completed(plan: Plan, problem: ConvProblem) -> Plan:
    """The plan of a problem with sums, from the plan of the same `spread`."""
    rows = _partial_rows(plan)
    others = [t for t in problem.sums if t.name not in rows]
    buffers = {t.name: f"values.{t.name}" for t in others if not _read(problem, t)}
    levels = _levels(problem, rows, _dependent(plan))
    each = DTYPES[problem.number].bytes
    values = (Workspace(buffer, each * problem.result.size) for buffer in buffers.values())
    parts = (
        Workspace(target, each * level.parts * level.columns)
        for level in levels
        if level.parts > 1
        for target in level.targets
    )
    moved = sum(_values(problem, t).bytes for t in others) / plan.target.gpu.memory.per_second
    return replace(
        plan,
        problem=problem,
        steps=(*(_renamed(step, buffers) for step in plan.steps), *map(_launch, levels)),
        workspaces=(*plan.workspaces, *values, *parts),
        us=plan.us and plan.us + LAUNCH * len(levels) + moved * 1e6,
    )


def source(plan: Plan) -> str:
    """The source of the launches that add up."""
    kernels = [_kernel(level) for level in _levels(plan.problem, _partial_rows(plan), _dependent(plan))]
    return tidy(environment().get_template("kernels.cu.j2").render(comment=(), kernels=kernels))


def _dependent(plan: Plan) -> bool:
    """Whether the launches after the plan's kernel may start before it ends and wait, as its own launches do."""
    return any(launch.dependent for launch in plan.launches)


def _partial_rows(plan: Plan) -> dict[str, int]:
    """For the sums that the plan's kernel computes, by name: how many parts of each element; none where it makes all of
    the sum."""
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
    """A launch that reduces `rows` values to `parts` partial sums, for each of `columns` elements of similar sums, from
    one buffer to another.  Level 0 reads values, later levels partial sums; the last writes the sums."""

    problem: ConvProblem
    sums: tuple[Tensor, ...]
    number: int
    rows: int
    sources: tuple[str, ...]
    dependent: bool

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(f"parts.{t.name}.{self.number}" if self.parts > 1 else t.name for t in self.sums)

    @property
    def columns(self) -> int:
        return self.sums[0].size

    @property
    def width(self) -> int:
        """Elements of a block."""
        return min(WIDTH, 1 << (self.columns - 1).bit_length())

    @property
    def sharers(self) -> int:
        """Threads of a block that share an element.  Partial sums leave few blocks, which are bound by latency: these
        are large, so that a thread has about `LEAST` values."""
        usual, large = BLOCK // self.width, LARGE_BLOCK // self.width
        if self.number and usual * LEAST < self.rows <= large * MOST_OF_LARGE:
            return min(large, 1 << ((self.rows - 1) // LEAST).bit_length())
        return min(usual, 1 << (self.rows - 1).bit_length())

    @property
    def each(self) -> int:
        """Values that a block adds up to a partial sum: two launches do where that is possible."""
        if self.rows <= MOST * self.sharers:
            return self.rows
        return min(max(LEAST * self.sharers, math.isqrt(self.rows - 1) + 1), MOST * self.sharers)

    @property
    def parts(self) -> int:
        return -(-self.rows // self.each)


def _levels(problem: ConvProblem, partial_rows: Mapping[str, int], dependent: bool) -> list[_Level]:
    """The launches of all sums, in order.  Sums that are alike share theirs."""
    alike: dict[object, list[_Level]] = {}
    for t in problem.sums:
        if (rows := partial_rows.get(t.name)) == 0:
            continue
        read = _read(problem, t)
        source = read.role if read else f"values.{t.name}"
        like = problem.like(t)
        summed = math.prod(like.extent(d) for d in like.dims if d not in t.dims)
        first = _Level(problem, (t,), 0, summed, (source,), dependent)
        if rows:
            first = replace(first, number=1, rows=rows, sources=(partial(t),))
        alike.setdefault((replace(t, name=""), rows, read), []).append(first)
    found = []
    for group in alike.values():
        tensors, sources = (sum((getattr(one, name) for one in group), ()) for name in ("sums", "sources"))
        found.append(replace(group[0], sums=tensors, sources=sources))
        while (last := found[-1]).parts > 1:
            found.append(replace(last, number=last.number + 1, rows=last.parts, sources=last.targets))
    return found


def _kernel(level: _Level) -> Kernel:
    """Blocks are of a part and neighboring elements of a sum; several threads share each element."""
    problem, t, rows, columns = level.problem, level.sums[0], level.rows, level.columns
    values = _values(problem, t)
    kept = [d for d in values.dims if d in t.dims]
    constants = Constants()
    scope = Scope(index_type(problem, (values.size,)), limited=bool(problem.dynamic), constants=constants)
    column, row = scope.declare("column", columns), scope.declare("row", rows)

    def coordinates(index: Expr, dims: Sequence[str]) -> dict[str, Expr]:
        return decompose(index, dims, lambda d: number(values.extent(d)))

    at = coordinates(column, kept)
    target = offset(scope, t, at, name="sums")
    elements = number_text(columns) if isinstance(columns, Size) else constants.number("elements", columns)
    of_elements = Names({columns: elements}) if elements == "elements" else NO_NAMES
    if level.parts > 1:
        target = scope.text(scope.declare("part", level.parts) * number(columns) + column, of_elements)
    if level.number:
        read = scope.text(row * number(columns) + column, of_elements)
    else:
        place = at | coordinates(row, [d for d in values.dims if d not in t.dims])
        read = offset(scope, values, place, name="values")
    dtype = problem.number if level.number else values.dtype
    what = "partial sums" if level.number else f"elements of {level.sources[0]}" if _read(problem, t) else "values"
    names = [f"_{i}" for i in range(len(level.sums))] if len(level.sums) > 1 else [""]
    pointers = (
        (Pointer(f"values{name}", dtype, source), Pointer(f"sums{name}", problem.number, target, written=True))
        for name, source, target in zip(names, level.sources, level.targets, strict=True)
    )
    blocks = -(-columns // level.width)
    fixed = not isinstance(blocks, Size)
    across = "" if fixed and blocks == 1 else constants.number("column_blocks", blocks) if fixed else factor(blocks)
    of_sum = ["part_count"] * (level.parts > 1) + [across] * bool(across)
    return Kernel(
        "parts/sum.cu.j2",
        f"convgen_{problem.name}_sum_{t.name}_{level.number}",
        (f"{', '.join(element(s.name, s.dims) for s in level.sums)}: {rows} {what} of each, in a fixed order.",),
        tuple(pointer for pair in pointers for pointer in pair),
        scope.index,
        len(level.sums) * level.parts * blocks,
        level.width * level.sharers,
        "",
        {
            "level": level,
            "columns": elements if columns % level.width else "",
            "blocks": across,
            "blocks_of_sum": f"({' * '.join(of_sum)})" if len(of_sum) > 1 else "".join(of_sum),
            "names": names,
            "value": load(dtype, f"values[{read}]", problem.number),
            "target": f"sums[{target}]",
            "types": (DTYPES[dtype].c_type, DTYPES[problem.number].c_type),
            "zero": ACCUMULATORS[problem.number].zero,
            "bytes": DTYPES[problem.number].bytes,
            "shared": _SHARED[problem.number],
        },
        block=level.width * level.sharers,
        sizes=sizes(problem),
        constants=constants,
    )


def _launch(level: _Level) -> Launch:
    shared = DTYPES[level.problem.number].bytes * level.width * level.sharers if level.sharers > 1 else 0
    return replace(_kernel(level).launch(), shared_bytes=shared, dependent=level.dependent)
