"""Sums by the definition, for kernels that multiply extra zeros, which x does not have.

Where a kernel fills its tiles up with zeros of its own (in the filters of packed groups or folded rows, between the
bands of a banded matrix, around the rows of a gradient), such a zero times an infinity or a NaN of x is a NaN, in sums
to which x's element does not belong.  So is the difference of a factor and its rounding, where f32 is taken apart for
tf32's tensor cores.  A kernel of that kind looks for NaNs among its sums and computes those again, each from its own
window and group.  Where there are none, the look is the only cost.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sympy import Expr, Integer

from convgen.ir import formula
from convgen.ir.index_map import decompose
from convgen.ir.integer import floordiv
from convgen.ir.problem import ConvProblem, Padding, exchanged_dims
from convgen.kernels.parts.constants import Constants, Definition
from convgen.kernels.parts.elementwise import Level, Nest, Pointer, all_zero, element, factor_pointers
from convgen.kernels.parts.lowering import (
    CONVERSIONS,
    Scope,
    any_fails,
    coordinate_name,
    index_type,
    load,
    offset,
    window,
)

#: What a sum reads of x, as far as zeros are concerned: groups, or pairs of a group and an input row.
Part = Collection[Hashable]


@dataclass(frozen=True)
class WindowSum:
    """A device function, as finished text for templates/parts/window_sum.j2."""

    formula: str
    parameters: tuple[str, ...]
    nest: Nest
    factors: tuple[tuple[str, str], ...]  # their tensors, and C text
    name: str = "window_sum"
    of: str = "its own window and group"
    constants: tuple[Definition, ...] = ()


def window_sum(
    problem: ConvProblem, name: str = "", dims: Sequence[str] = (), *, whole: bool = False, mirrored: bool = False,
    strided: ConvProblem | None = None, sizes: Iterable[str] = (), file: Mapping[str, int] | None = None,
) -> WindowSum:  # fmt: skip
    """The sum of an element of y of a forward convolution, from x and w as they lie in memory.

    Its parameters are x, w and the element's coordinates n, those of the pixel, k.  `name`, a number over `dims`,
    stands for these of them; where it is the `whole` place in y, the others are of dims of one element.  With a
    `mirrored` filter, the window's first tap is w's last.  A `strided` dgrad, where the forward convolution is its
    assignment, says which pixels of x the taps bring.  `sizes` that a call decides are the last parameters.
    Constants of the `file` are there already, and mean what they mean there.
    """
    sp = problem.spatial
    constants = Constants(file=file or {})
    scope = Scope(index_type(problem, ()), limited=bool(problem.dynamic), constants=constants)
    named = [d for d in ("n", *sp.output, "k") if d not in dims and not whole]
    at = all_zero(problem) | {d: scope.declare(d, problem.extent(d)) for d in named}
    if name:
        number = scope.declare(name, math.prod(problem.extent(d) for d in dims))
        names = scope.constants.of_index(dims, problem.extent)
        for dim, value in decompose(number, dims, lambda d: formula.number(problem.extent(d))).items():
            at[dim] = scope.let(dim, value, problem.extent(dim), names=names)
    grouped = constants.of_group(problem.c_per_group, problem.k_per_group, 1)
    group = scope.let("group", floordiv(at["k"], Integer(problem.k_per_group)), problem.groups, names=grouped)
    nest = Nest(scope.take())
    backward = exchanged_dims()
    for f, i in zip(sp.filter, sp.input, strict=True):
        at[f] = _loop(nest, scope, f, problem.extent(f))
        if strided:
            from_x = {backward.get(d, d): e for d, e in at.items()}
            at[i], tests = window(scope, strided, "y", backward[i], from_x, name=i)
        else:
            at[i], tests = window(scope, problem, "x", i, at)
        nest.add(scope.take())
        if tests and problem.padding is Padding.NAN:
            nest.add([f"if ({any_fails(tests)}) return {CONVERSIONS['f32'].nan};"])
        else:
            nest.only_where(tests)
    c = _loop(nest, scope, "c", problem.c_per_group, problem.groups > 1)
    last = {f: problem.extent(f) - 1 - at[f] for f in sp.filter} if mirrored else {}
    x, w = (
        load(t.dtype, f"{t.role}[{offset(scope, t, place, groups)}]", "f32")
        for t, groups, place in (
            (problem.x, problem.groups, {**at, "c": group * problem.c_per_group + c}),
            (problem.w, 1, {**at, **last, "c": c, "g": group, "k_in_group": at["k"] - group * problem.k_per_group}),
        )
    )
    nest.drop_unused(x + w)
    coordinates = (*([name] if name else []), *named)
    return WindowSum(
        f"{element('y', ('n', *sp.output, 'k'))} before the epilogue",
        (
            *(p.declaration for p in factor_pointers(problem)),
            *(f"{scope.index} {name}" for name in (*coordinates, *sizes)),
        ),
        nest,
        (("x", x), ("w", w)),
        constants=constants.within(f"{nest}{x}{w}"),
    )


def filter_sum(problem: ConvProblem, file: Mapping[str, int] | None = None) -> WindowSum:
    """The sum of an element of w of a wgrad, from x and y as they lie in memory: its own pixels, and no others.

    Its parameters are x, y and the element's `offset` in w.  Constants of the `file` are there already."""
    sp = problem.spatial
    constants = Constants(file=file or {})
    scope = Scope(index_type(problem, ()), constants=constants)
    extents = {d: problem.c_per_group if d == "c" else problem.extent(d) for d in problem.w.dims}
    at = all_zero(problem)
    number = scope.declare("offset", problem.w.size)
    filter_dims = ["c_in_group" if d == "c" and problem.groups > 1 else d for d in problem.w.dims]
    names = scope.constants.of_index(filter_dims, lambda d: extents["c" if d == "c_in_group" else d])
    for dim, value in decompose(number, problem.w.dims, lambda d: Integer(extents[d])).items():
        at[dim] = scope.let(coordinate_name(dim), value, extents[dim], names=names)
    grouped = constants.of_group(problem.c_per_group, problem.k_per_group, 1)
    group = scope.let("group", floordiv(at["k"], Integer(problem.k_per_group)), problem.groups, names=grouped)
    nest = Nest(scope.take())
    at["n"] = _loop(nest, scope, "n", problem.n)
    for o, i in zip(sp.output, sp.input, strict=True):
        at[o] = _loop(nest, scope, o, problem.extent(o))
        at[i], tests = window(scope, problem, "x", i, at)
        nest.add(scope.take())
        nest.only_where(tests)
    x, y = (
        load(t.dtype, f"{t.role}[{offset(scope, t, place, problem.groups)}]", "f32")
        for t, place in ((problem.x, {**at, "c": group * problem.c_per_group + at["c"]}), (problem.y, at))
    )
    nest.drop_unused(y + x)
    pointers = [p.declaration for p in gradient_pointers(problem)]
    return WindowSum(
        f"{element('w', problem.w.dims)} before the epilogue", (*pointers, f"{scope.index} offset"), nest,
        (("y", y), ("x", x)), "filter_sum", "the pixels that its tap reads",
        constants.within(f"{nest}{x}{y}"),
    )  # fmt: skip


def gradient_pointers(problem: ConvProblem) -> tuple[Pointer, ...]:
    """The pointers that `filter_sum` reads."""
    return tuple(Pointer(t.role, t.dtype, t.role) for t in (problem.x, problem.y))


def _loop(nest: Nest, scope: Scope, dim: str, extent: int, grouped: bool = False) -> Expr:
    """A loop, unless over one value.  It ends where the sum has become a NaN, which it stays."""
    counter = scope.declare(dim, extent)
    if extent > 1:
        limit = scope.extent("c_in_group" if grouped and dim == "c" else dim, extent)
        opening = f"for ({scope.index} {dim} = 0; {dim} < {limit} && sum == sum; ++{dim})"
        nest.levels.append(Level(opening, before=["#pragma unroll 1"]))
    return counter


def witnesses(threads: Iterable[Sequence[Part]]) -> tuple[int, ...]:
    """Which of a pixel's sums a thread must check to detect every sum that zeros have turned into NaN.

    `threads` has, for each kind of thread, the part of x that each of these sums belongs to, in order.  An infinity or
    NaN of x spoils the sums of all parts that it is not in.
    """
    found: set[int] = set()
    for sums in threads:
        elements = {element for part in sums for element in part}
        spoiled = [{i for i, part in enumerate(sums) if element not in part} for element in elements]
        for some in sorted([*spoiled, set(range(len(sums)))], key=len):
            if some and not some & found:
                found.add(min(some))
    return tuple(sorted(found))


def look(threads: Sequence[Sequence[Part]], place: str) -> str:
    """C text: whether sum i has to be looked at (see `witnesses`), where `place` is C text of its place among the sums
    of its pixel.  Empty where all have to be."""
    places = witnesses(threads)
    if len(places) == max(map(len, threads)):
        return ""
    return " || ".join(f"{place} == {p}" for p in places)


def fragment_place(sums: int) -> str:
    """C text of the position of sum i in its row of a fragment (PTX ISA, "Matrix fragments for mma.m16n8k16"), for
    fragments one after another in which a thread has so many sums of a row."""
    return f"(i % {2 * sums} / 4 * 2 + i % 2)"
