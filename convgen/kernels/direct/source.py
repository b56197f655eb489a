"""The source of direct: a loop nest over the window."""

from __future__ import annotations

from collections.abc import Mapping

from sympy import Expr, Integer

from convgen.codegen.c_expr import NO_NAMES
from convgen.ir.formula import number
from convgen.ir.index_map import decompose
from convgen.ir.integer import floordiv, mod
from convgen.ir.problem import OPS, ConvProblem, Op, Padding
from convgen.ir.tensor import Tensor
from convgen.kernels.direct.kernel import PRODUCTS
from convgen.kernels.parts import columns
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
    live_dims,
    prologue_formulas,
    prologue_pointers,
    sizes,
    window_formulas,
)
from convgen.kernels.parts.lowering import (
    ACCUMULATORS,
    CONVERSIONS,
    Condition,
    Scope,
    all_hold,
    coordinate_name,
    epilogue,
    index_type,
    load,
    offset,
    prologue,
    used_operands,
    window,
)


def made(problem: ConvProblem, tile: int) -> Kernel:
    """The kernel whose threads each make so many outputs."""
    entry = f"convgen_{problem.name}"
    if problem.op is Op.IM2COL:
        return columns.im2col(problem, entry)
    if problem.op is Op.COL2IM:
        return columns.col2im_gather(problem, entry)
    return _product_kernel(problem, entry, tile)


def _product_kernel(problem: ConvProblem, entry: str, tile: int) -> Kernel:
    # long: one loop nest, from the outputs to the store
    product, result, sp = PRODUCTS[problem.op], problem.result, problem.spatial
    accumulator = ACCUMULATORS[problem.accumulate]
    constants = Constants(problem.result)
    scope = Scope(index_type(problem, ()), limited=bool(problem.dynamic), constants=constants)
    dims, at = _outputs(scope, problem, tile)
    nest = Nest(scope.take())

    inside: list[Condition] = []  # of x, where something else than zero is outside

    def place(dim: str) -> None:
        """Names the coordinate under the window, and skips positions outside, which count as zero."""
        at[dim], tests = window(scope, problem, product.shared, dim, at)
        nest.add(scope.take())
        if problem.padding is Padding.NAN and product.shared == "x":
            inside.extend(tests)
        else:
            nest.only_where(tests)

    if problem.op is Op.WGRAD:
        at["n"] = nest.loop(scope, "n", problem.n)
        for i, o in zip(sp.input, sp.output, strict=True):
            at[o] = nest.loop(scope, o, problem.extent(o))
            place(i)
    else:
        placed = sp.input if problem.op is Op.FPROP else sp.output
        for i, f, dim in zip(sp.input, sp.filter, placed, strict=True):
            at[f] = nest.loop(scope, f, problem.extent(f))
            if problem.op is Op.DGRAD:
                nest.place(scope, problem, i, at)
            place(dim)
        channel = "c" if problem.op is Op.FPROP else "k"
        _open_channels(nest, scope, problem, channel, at)
    blocked = problem.op is Op.WGRAD and problem.accumulate == "f32" and _sum_rows(nest, tile)

    i = scope.declare("i", tile)

    def element_offset(tensor: Tensor) -> str:
        """Offset of the element of output i."""
        # the c of w, and of operands and results like it, is the channel within the group
        within_group = tensor.role == "w" or (tensor.role in ("operand", "result") and result.role == "w")
        base = offset(scope, tensor, {**at, "c": at.get("c_in_group", at["c"])} if within_group else at)
        step = scope.text(i * number(tensor.stride(product.tiled_dim)), scope.constants.strides(tensor))
        return base if step == "0" else step if base == "0" else f"{base} + {step}"

    def value_of(role: str) -> str:
        tensor = problem.tensor(role)
        return load(tensor.dtype, f"{role}[{element_offset(tensor)}]", problem.accumulate)

    shared, tiled = value_of(product.shared), value_of(product.tiled)
    opening: list[str] = []
    if problem.prologue:
        at_x = {t.name: offset(scope, t, at) for t in problem.prologue.operands}
        opening, shared = prologue(problem, f"x[{element_offset(problem.x)}]", at_x, all_hold(inside))
    if inside:
        shared = f"{all_hold(inside)} ? {shared} : {CONVERSIONS[problem.number].nan}"
    offsets = {t.name: element_offset(t) for t in (*used_operands(problem), *problem.elementwise)}
    lines, value = epilogue(problem, "acc" if tile == 1 else "acc[i]", offsets)
    in_order = tile == 1 and dims == live_dims(result) and not result.pitch
    target = "index" if in_order else element_offset(result)
    nest.drop_unused("\n".join([*opening, shared, tiled, *lines, target]))

    pointers = (
        *(Pointer(role, problem.tensor(role).dtype, role) for role in OPS[problem.op].reads),
        *prologue_pointers(problem),
        *epilogue_pointers(problem),
        Pointer(result.role, result.dtype, result.role, written=True),
    )
    return Kernel(
        "direct/kernel.cu.j2",
        entry,
        _comment(problem, tile, blocked),
        pointers,
        scope.index,
        1,
        result.size // tile,
        "",
        {
            "tile": tile,
            "tiled_dim": product.tiled_dim,
            "nest": nest,
            "accumulator": accumulator,
            "blocked": blocked,
            "sum": "partial" if blocked else "acc",
            "opening": opening,
            "factors": ((product.shared, shared), (product.tiled, tiled)),
            "lines": lines,
            "target": f"{result.role}[{target}]",
            "value": value,
        },
        sizes=sizes(problem),
        constants=constants,
    )


def _outputs(scope: Scope, problem: ConvProblem, tile: int) -> tuple[list[str], dict[str, Expr]]:
    """The dims that threads run over, outermost first, and the coordinates of a thread's first output.

    Neighboring threads take neighboring pixels, and read the same filters.  With groups they follow
    the result's layout, because neighboring channels then read neighboring elements of x.
    """
    result, tiled_dim = problem.result, PRODUCTS[problem.op].tiled_dim
    dims = list(result.dims)
    if problem.groups == 1 and tiled_dim in dims:
        dims.remove(tiled_dim)
        dims.insert(0, tiled_dim)
    extents = {d: result.extent(d) // (tile if d == tiled_dim else 1) for d in dims}
    index = scope.declare("index", result.size // tile)
    at = all_zero(problem)
    names = scope.constants.of_index(dims, extents.__getitem__) if tile == 1 or dims[0] == tiled_dim else NO_NAMES
    for dim, value in decompose(index, dims, lambda d: number(extents[d])).items():
        # the filter's c is the channel within the group
        name = "c_in_group" if problem.op is Op.WGRAD and problem.groups > 1 and dim == "c" else dim
        comment = f"the first of {tile}" if dim == tiled_dim and tile > 1 else ""
        scaled = value * tile if dim == tiled_dim else value
        at[name] = scope.let(coordinate_name(name), scaled, result.extent(dim), comment, names)
    if problem.groups > 1:
        at |= _group(scope, problem, at)
    return [d for d in dims if result.extent(d) > 1], at


def _group(scope: Scope, problem: ConvProblem, at: Mapping[str, Expr]) -> dict[str, Expr]:
    """The group of an output, and the channels that follow from it."""
    c_per_group, k_per_group = Integer(problem.c_per_group), Integer(problem.k_per_group)
    if problem.op is Op.DGRAD:
        g = scope.let("g", floordiv(at["c"], c_per_group), problem.groups)
        return {"g": g, "c_in_group": scope.let("c_in_group", mod(at["c"], c_per_group), problem.c_per_group)}
    g = scope.let("g", floordiv(at["k"], k_per_group), problem.groups)
    if problem.op is Op.WGRAD:
        within = at.get("c_in_group", Integer(0))
        return {"g": g, "c_in_group": within, "c": scope.let("c", g * c_per_group + within, problem.c)}
    return {"g": g}


def _open_channels(nest: Nest, scope: Scope, problem: ConvProblem, channel: str, at: dict[str, Expr]) -> None:
    """Loop over the channels of a group: c for fprop, k for dgrad."""
    extent = problem.c_per_group if channel == "c" else problem.k_per_group
    if problem.groups == 1:
        at[channel] = nest.loop(scope, channel, extent)
        return
    within = nest.loop(scope, f"{channel}_in_group", extent)
    at[channel] = at["g"] * extent + within
    if channel == "c":
        at["c_in_group"] = within


def _sum_rows(nest: Nest, tile: int) -> bool:
    """Sum each round of the innermost loop on its own before it joins the rest, if there are several."""
    loops = [level for level in nest.levels if level.opening.startswith("for")]
    if len(loops) < 2:
        return False
    if tile == 1:
        loops[-1].before.append("float partial = 0.0f;")
        loops[-1].after.append("acc += partial;")
    else:
        loops[-1].before.append("float partial[tile] = {};")
        loops[-1].after += ["#pragma unroll", "for (int i = 0; i < tile; ++i) acc[i] += partial[i];"]
    return True


def _comment(problem: ConvProblem, tile: int, blocked: bool) -> tuple[str, ...]:
    product, result, sp = PRODUCTS[problem.op], problem.result, problem.spatial
    grouped = problem.groups > 1
    over = {
        Op.FPROP: (*sp.filter, "c"),
        Op.DGRAD: (*sp.filter, "k"),
        Op.WGRAD: ("n", *sp.output),
    }[problem.op]
    filter_dims = ["c_in_group" if d == "c" and grouped else d for d in problem.w.dims]
    names = {
        role: element(role, filter_dims if role == "w" else problem.tensor(role).dims)
        for role in (result.role, product.shared, product.tiled)
    }
    lines = [
        f"{problem.op}: {names[result.role]} = "
        f"sum over {', '.join(over)} of {names[product.shared]} * {names[product.tiled]}, where",
        *window_formulas(problem),
    ]
    if problem.op is Op.DGRAD:
        lines.append("and the divisions are exact; positions outside y add nothing.")
    else:
        lines.append(f"and positions outside x are padding, {fill(problem)}.")
    if grouped:
        lines.append(
            f"Group g joins channels c = g * {problem.c_per_group} + c_in_group with the outputs "
            f"k / {problem.k_per_group} = g."
        )
    lines += prologue_formulas(problem) + epilogue_formulas(problem)
    if tile > 1:
        lines.append(
            f"A thread makes {tile} consecutive outputs along {product.tiled_dim}, "
            f"and loads {product.shared} once for all."
        )
    if blocked:
        lines.append("Each row of pixels is summed separately first: short sums round less.")
    return tuple(lines)
