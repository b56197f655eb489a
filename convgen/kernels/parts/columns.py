"""The kernels around a lowered matrix: im2col, col2im as a gather and as a scatter, and finish.

Without a loop over the matrix, after H. Zhang, "A Simple and Efficient Implementation of im2col in
Convolution Neural Networks" (2017), Algorithms 1 and 2: a thread finds its element's coordinates from
its index by divisions and modulos.  The order of the lowered tensor's dims is free, so that both the
C*R*S x P*Q form of that paper and the N*P*Q x C*R*S form are served.

A lowered tensor of a grouped convolution may have the dims g and c_in_group instead of c.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sympy import Expr, Integer

from convgen.ir.integer import floordiv, mod
from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.ir.tensor import Tensor
from convgen.kernels.parts.constants import Constants
from convgen.kernels.parts.elementwise import (
    Kernel,
    Nest,
    Pointer,
    all_zero,
    element,
    epilogue_formulas,
    epilogue_pointers,
    fill,
    flat_formula,
    live_dims,
    window_formulas,
)
from convgen.kernels.parts.lowering import (
    ACCUMULATORS,
    CONVERSIONS,
    Condition,
    Scope,
    all_hold,
    any_fails,
    coordinates,
    drop_unused,
    epilogue,
    epilogue_offsets,
    index_type,
    load,
    offset,
    window,
)


def im2col(problem: ConvProblem, entry: str, buffer: str = "lowered", sliced: bool = False, run: int = 1) -> Kernel:
    """Fills problem.lowered from x: each thread one element, or a run of so many channels that are neighbors in both.
    A sliced kernel fills a run of rows."""
    problem = _in_runs(problem, run)
    x, lowered = problem.x, lowered_of(problem)
    constants = Constants(problem.result)
    scope = Scope(index_type(problem, (lowered.size,)), constants=constants)
    at = _matrix_coordinates(scope, problem, lowered, sliced)
    where, tests = _forward_window(scope, problem, at)
    at |= where
    source = f"x[{offset(scope, x, at)}]"
    lines, value = scope.take(), source
    pointers = (Pointer("x", x.dtype, "x", run=run), Pointer("lowered", lowered.dtype, buffer, written=True, run=run))
    if tests:
        lines += [f"// everything else is padding, {fill(problem)}", f"const bool inside = {all_hold(tests)};"]
        zero = f"{pointers[0].c_type}({'' if pointers[0].c_type == 'Vec4' else 0})"
        value = f"inside ? {source} : {CONVERSIONS[lowered.dtype].nan if problem.padding is Padding.NAN else zero}"
    units, per_unit = units_of(lowered, head_of(lowered) if sliced else 0)
    return Kernel(
        "im2col/im2col.cu.j2",
        entry,
        (
            f"im2col: {lowered_element(lowered)} = {element('x', x.dims)}, where",
            *matrix_formulas(lowered),
            *window_formulas(problem),
            *([f"Channels are counted in runs of {run}, which move as one element."] if run > 1 else []),
            "One thread per element; divisions and modulos recover the indices, so that there is no loop.",
        ),
        pointers,
        scope.index,
        units,
        per_unit,
        "row" if sliced else "",
        {"lines": drop_unused(lines, value), "value": value},
        constants=constants,
    )


def channel_run(problem: ConvProblem) -> int:
    """How many channels are neighbors in x and in the lowered tensor: 16 bytes, or as many as divide."""
    x, lowered = problem.x, lowered_of(problem)
    together = x.innermost == "c" and lowered.innermost in ("c", "c_in_group")
    if not together or problem.padding is Padding.NAN:
        return 1
    return math.gcd(lowered.extents[-1], x.pitch or 0, 16 // x.element.bytes)


def _in_runs(problem: ConvProblem, run: int) -> ConvProblem:
    """The problem whose channels are these runs."""

    def cut(tensor: Tensor) -> Tensor:
        pitch = tensor.pitch // run if tensor.pitch else None
        return replace(tensor, extents=(*tensor.extents[:-1], tensor.extents[-1] // run), pitch=pitch)

    if run == 1:
        return problem
    lowered = lowered_of(problem)
    # a run may have channels of several groups, where the lowered tensor has all of them
    groups = problem.groups if "g" in lowered.dims else 1
    return replace(problem, c=problem.c // run, groups=groups, x=cut(problem.x), lowered=cut(lowered))


def col2im_gather(problem: ConvProblem, entry: str, buffer: str = "lowered", sliced: bool = False) -> Kernel:
    """Sum for every element of x the elements of the lowered tensor that stem from it.

    Sums in a fixed order, so it is deterministic.  A sliced kernel makes a run of images, and finds their
    part of the lowered tensor at its start.
    """
    x, lowered = problem.x, lowered_of(problem)
    constants = Constants(problem.result)
    scope = Scope(index_type(problem, (lowered.size,)), constants=constants)
    dims, extents = _image_order(x) if sliced else (x.dims, x.extents)
    at = all_zero(problem) | thread_coordinates(scope, dims, extents, 1, "image" if sliced else "", sliced)
    if "g" in lowered.dims:
        at["g"] = scope.let("g", floordiv(at["c"], Integer(problem.c_per_group)))
        at["c_in_group"] = scope.let("c_in_group", mod(at["c"], Integer(problem.c_per_group)))
    target = offset(scope, x, at) if sliced or x.pitch else "index"
    nest = Nest(scope.take())
    source_at = at | {"n": at.get("image", at["n"])}
    sp = problem.spatial
    for i, f, o in zip(sp.input, sp.filter, sp.output, strict=True):
        source_at[f] = nest.loop(scope, f, problem.extent(f))
        nest.place(scope, problem, i, source_at)
        source_at[o], tests = window(scope, problem, "lowered", o, source_at)
        nest.add(scope.take())
        nest.only_where(tests)
    addend = load(lowered.dtype, f"lowered[{offset(scope, lowered, source_at)}]", problem.accumulate)
    lines, value = epilogue(problem, "acc", epilogue_offsets(scope, problem, at))
    nest.drop_unused("\n".join([addend, *lines, target]))
    pointers = (
        Pointer("lowered", lowered.dtype, buffer),
        *epilogue_pointers(problem),
        Pointer("x", x.dtype, "x", written=True),
    )
    units, per_unit = units_of(x.over(dims, extents), 1 if sliced else 0)
    return Kernel(
        "im2col/col2im_gather.cu.j2",
        entry,
        (
            f"col2im: {element('x', x.dims)} = sum over {', '.join(problem.spatial.filter)} "
            f"of {lowered_element(lowered)}, where",
            *matrix_formulas(lowered),
            *window_formulas(problem),
            "provided that the divisions are exact and the window lies within the output.",
            *epilogue_formulas(problem),
            "One thread per element of x, which gathers in a fixed order: no atomics, identical bits every time.",
        ),
        pointers,
        scope.index,
        units,
        per_unit,
        "image" if sliced else "",
        {
            "nest": nest,
            "accumulator": ACCUMULATORS[problem.accumulate],
            "addend": addend,
            "lines": lines,
            "target": f"x[{target}]",
            "value": value,
        },
        constants=constants,
    )


def scatter_sums(problem: ConvProblem) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Dims and extents of the float sums that a scatter makes: x's, images outermost."""
    return _image_order(problem.x)


def col2im_scatter(
    problem: ConvProblem, entry: str, buffer: str = "lowered", sums: str = "x", sliced: bool = False
) -> Kernel:
    """Add every element of the lowered tensor, atomically, to the element of x that it stems from.

    Adds into buffer `sums`: x itself, or floats over `scatter_sums`, zero beforehand.  A sliced kernel
    takes a run of images, whose part of the lowered tensor, and of sums that are not x, is at the start.
    """
    x, lowered = problem.x, lowered_of(problem)
    into_x = sums == "x"
    constants = Constants(problem.result)
    scope = Scope(index_type(problem, (lowered.size,)), constants=constants)
    if sliced:
        dims, head, unit = lowered.dims, 1, "image"
        at = all_zero(problem) | thread_coordinates(scope, dims, lowered.extents, head, unit, sliced)
        at |= group_channel(scope, problem, at)
    else:
        at = _matrix_coordinates(scope, problem, lowered, sliced)
    where, tests = _forward_window(scope, problem, at)
    at |= where
    if into_x:
        target = f"x[{offset(scope, x, at)}]"
    else:
        dims, extents = scatter_sums(problem)
        target_at = at | {"n": at.get("image", at["n"])}
        target = f"sums[{offset(scope, Tensor('sums', 'workspace', 'f32', dims, extents), target_at)}]"
    value = load(lowered.dtype, "lowered[index]", "f32")
    lines = scope.take()
    outside = any_fails(tests)
    pointers = (
        Pointer("lowered", lowered.dtype, buffer),
        Pointer("x" if into_x else "sums", "f32", sums, written=True),
    )
    units, per_unit = units_of(lowered, 1 if sliced else 0)
    return Kernel(
        "im2col/col2im_scatter.cu.j2",
        entry,
        (
            f"col2im: adds {lowered_element(lowered)} to {element('x' if into_x else 'sums', x.dims)}, where",
            *matrix_formulas(lowered),
            *window_formulas(replace(problem, op=Op.IM2COL)),
            "One thread per element of the lowered matrix.  Additions come in any order: the last bits may vary.",
        ),
        pointers,
        scope.index,
        units,
        per_unit,
        "image" if sliced else "",
        {
            "lines": drop_unused(lines, f"{outside}\n{target}"),
            "outside": outside,
            "target": target,
            "value": value,
        },
        needs_first=into_x,
        constants=constants,
    )


def finish(
    problem: ConvProblem, entry: str, sums: Tensor, buffer: str, unit: str = "", head: int = 0, parts: int = 1
) -> Kernel:
    """The epilogue, type and layout of sums that a GEMM or a scatter left in a workspace, in so many parts, one after
    the other.

    With a unit the kernel is sliced: it takes a run of the first `head` dims of the sums, found at the
    start of the buffer.
    """
    result = problem.result
    accumulate = "s32" if sums.dtype == "s32" else "f32"
    constants = Constants(problem.result)
    scope = Scope(index_type(problem, (sums.size * parts,)), constants=constants)
    at = all_zero(problem) | thread_coordinates(scope, sums.dims, sums.extents, head, unit, bool(unit))
    in_order = not unit and live_dims(sums) == live_dims(result) and not result.pitch
    target = "index" if in_order else offset(scope, result, at)
    lines, value = epilogue(problem, "acc", epilogue_offsets(scope, problem, at), accumulate)
    pointers = (
        Pointer("sums", sums.dtype, buffer),
        *epilogue_pointers(problem),
        Pointer(result.role, result.dtype, result.role, written=True),
    )
    units, per_unit = units_of(sums, head)
    return Kernel(
        "im2col/finish.cu.j2",
        entry,
        (
            f"finish: from {problem.op}'s sums over {' '.join(sums.dims)}{f', {parts} parts,' if parts > 1 else ''}"
            f" to {element(result.role, result.dims)}",
            *epilogue_formulas(problem),
        ),
        pointers,
        scope.index,
        units,
        per_unit,
        unit,
        {
            "coordinates": drop_unused(scope.take(), "\n".join([*lines, value, target])),
            "accumulator": ACCUMULATORS[accumulate],
            "parts": parts,
            "part": sums.size,
            "lines": lines,
            "target": f"{result.role}[{target}]",
            "value": value,
        },
        constants=constants,
    )


# ---- coordinates -------------------------------------------------------------------------------


def lowered_of(problem: ConvProblem) -> Tensor:
    assert problem.lowered is not None, "im2col and col2im have a lowered tensor"
    return problem.lowered


def _image_order(x: Tensor) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """x's dims and extents with images outermost."""
    dims = ("n", *(d for d in x.dims if d != "n"))
    return dims, tuple(x.extent(d) for d in dims)


def head_of(lowered: Tensor) -> int:
    """The number of dims that form the rows of a lowered matrix; 0 unless it has both rows and columns."""
    rows = lowered.axes[0] if lowered.axes and len(lowered.axes) == 2 else 0
    return rows if rows < len(lowered.dims) else 0


def units_of(tensor: Tensor, head: int) -> tuple[int, int]:
    """Number of units, and elements in each, where the first `head` dims count units."""
    return math.prod(tensor.extents[:head]), math.prod(tensor.extents[head:])


def thread_coordinates(
    scope: Scope, dims: Sequence[str], extents: Sequence[int], head: int, unit: str, sliced: bool
) -> dict[str, Expr]:
    """Names the coordinates of a thread's element.

    With a unit, its index splits into that of the unit (over the first `head` dims) and of the element
    within it.  The unit `image` keeps its place in the slice as the coordinate "image".
    """
    index = scope.declare("index", math.prod(extents))
    if not unit:
        return coordinates(scope, index, dims, extents)
    units, per_unit = math.prod(extents[:head]), math.prod(extents[head:])
    place, rest = floordiv(index, Integer(per_unit)), mod(index, Integer(per_unit))
    first: Expr = scope.declare(f"first_{unit}", units) if sliced else Integer(0)
    at: dict[str, Expr] = {}
    names = scope.constants.of_index(
        (unit, *dims[head:]), {unit: units, **dict(zip(dims, extents, strict=True))}.__getitem__
    )
    if unit == "image":
        at["image"] = scope.let("image", place, units, names=names)
        at["n"] = scope.let("n", first + at["image"], units)
    else:
        at |= coordinates(scope, scope.let(unit, first + place, units, names=names), dims[:head], extents[:head])
    if len(dims) > head + 1:
        rest = scope.let("column" if unit == "row" else "element", rest, per_unit, names=names)
    return at | coordinates(scope, rest, dims[head:], extents[head:])


def _matrix_coordinates(scope: Scope, problem: ConvProblem, lowered: Tensor, sliced: bool) -> dict[str, Expr]:
    """Coordinates of an element of the lowered tensor, by row and column where it is a matrix."""
    head = head_of(lowered)
    at = all_zero(problem)
    at |= thread_coordinates(scope, lowered.dims, lowered.extents, head, "row" if head else "", sliced)
    return at | group_channel(scope, problem, at)


def group_channel(scope: Scope, problem: ConvProblem, at: dict[str, Expr]) -> dict[str, Expr]:
    """The channel of a group and a channel within it, where the lowered tensor has those."""
    if "g" not in at:
        return {}
    return {"c": scope.let("c", at["g"] * problem.c_per_group + at.get("c_in_group", Integer(0)), problem.c)}


def _forward_window(scope: Scope, problem: ConvProblem, at: dict[str, Expr]) -> tuple[dict[str, Expr], list[Condition]]:
    """Name x's coordinates under the window; the conditions for being inside of x."""
    where, tests = {}, []
    for i in problem.spatial.input:
        where[i], more = window(scope, problem, "x", i, at)
        tests += more
    return where, tests


# ---- comments ----------------------------------------------------------------------------------


def lowered_element(lowered: Tensor) -> str:
    return "lowered[row, column]" if head_of(lowered) else element("lowered", lowered.dims)


def matrix_formulas(lowered: Tensor) -> list[str]:
    head = head_of(lowered)
    if not head:
        return []
    return [f"  row = {flat_formula(lowered.dims[:head])}", f"  column = {flat_formula(lowered.dims[head:])}"]
