"""The text of depthwise_wgrad: finished values for templates/depthwise_wgrad/kernel.cu.j2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Integer

from convgen.codegen.c_expr import Names, c_expr
from convgen.codegen.render import render
from convgen.ir.integer import floordiv, symbol
from convgen.ir.plan import Param, Plan
from convgen.ir.tensor import Tensor
from convgen.kernels.depthwise_wgrad.layout import Layout, Walk
from convgen.kernels.parts import gradient, runs
from convgen.kernels.parts.constants import Constants
from convgen.kernels.parts.depthwise import boxes
from convgen.kernels.parts.elementwise import Pointer, window_formulas
from convgen.kernels.parts.lowering import ACCESS, Scope, coordinates, drop_unused, index_type, linear


def pointers(layout: Layout) -> list[Pointer]:
    """The product's parameters."""
    problem = layout.problem
    of_y = gradient.y_sum_pointer(problem, layout.shares)
    factors = [] if layout.shared else [Pointer("x", problem.x.dtype, "x"), Pointer("y", problem.y.dtype, "y")]
    return [*factors, layout.result, *of_y]


def maps(layout: Layout) -> list[Param]:
    """Tensor maps of x and y, if TMA loads rows: boxes of a block's channels, columns, rows and images."""
    if not layout.shared:
        return []
    problem, (_, rows, columns), images = layout.problem, layout.walks, {"n": layout.walkers_n}
    (x_channels, y_channels), (x_columns, y_columns) = layout.box_channels, layout.box_columns
    of_x = {"c": x_channels, columns.input: x_columns, rows.input: layout.rows} | images
    of_y = {"k": y_channels, columns.output: y_columns, rows.output: 1} | images
    sides = ((problem.x, of_x), (problem.y, of_y))  # a tensor that has rows alone has columns of no name
    found = ((t, boxes(t, {d: side for d, side in of.items() if d})) for t, of in sides)
    return [Param(f"{t.role}_map", "tensor_map", t.role, tiled) for t, tiled in found]


@dataclass(frozen=True)
class Place:
    """C text for a strip: the lines that name it, its output rows and columns, the rows to load for it, offsets of its
    first elements in x and y, its first input row and column, a test of its plane, and the condition under which it is
    outside y."""

    lines: Sequence[str]
    outputs: str
    columns: str
    steps: str
    x: str = ""
    y: str = ""
    h: str = ""
    w: str = ""
    inside_depth: str = ""
    beside: str = ""


@dataclass(frozen=True)
class BlockPlace:
    """C text of where the strips of a block lie: the lines that name it, their output rows and the steps down them, and
    of a step's boxes the coordinates: those of x for each part of the filters, and those of y."""

    lines: Sequence[str]
    outputs: str
    steps: str
    x: Sequence[str]
    y: str


def block_place(layout: Layout) -> tuple[BlockPlace, Place]:
    """A block's place for TMA, and a thread's for products."""
    config = layout.config
    _, rows, columns = layout.walks
    scope = Scope("int")
    names, counts = zip(*layout.strip_digits, strict=True)
    at = coordinates(scope, scope.declare("strip", layout.strips), names, counts)
    n = scope.let("first_n", at["n"] * layout.walkers_n)
    p = scope.let(
        "first_p", at["row_class"] + at["band"] * (config.band * rows.apart), names=_named(band_rows=config.band)
    )
    walkers = {"tile_q * walkers_q": config.tile_q * layout.walkers_q}
    q = scope.let("first_q", at["tile"] * (config.tile_q * layout.walkers_q), names=_named(**walkers))
    h = scope.let("first_h", _input(rows, p, Integer(0)))
    w = scope.let("first_w", _input(columns, q, Integer(0)))
    k = scope.declare("first_k", layout.problem.k)
    c = scope.let("first_c", floordiv(k, Integer(layout.multiplier)))
    own_q = q
    if layout.walkers_q > 1:
        own_q = scope.let("own_q", q + scope.declare("walker_q", layout.walkers_q) * config.tile_q)
    lines = scope.take()
    outputs, clipped = _counts(layout, p, own_q)
    beside = f"{own_q} >= Q" if layout.idle_walkers else ""
    steps, j = _steps(layout), symbol("j")

    def corner(*at: Expr, column: Expr) -> str:
        channel, row, image = at
        along = [channel, *([column] if columns.input else []), row, image]
        return ", ".join(c_expr(e, {}, symbols="") for e in along)

    down = [h + (j * rows.step + part * config.tile_r) * rows.axis.dilation for part in range(layout.row_parts)]
    of_x = [corner(c, row, n, column=w) for row in down]
    of_y = corner(k, p + j * rows.apart, n, column=q)
    used = " ".join([*of_x, of_y, outputs])
    return (
        BlockPlace(drop_unused(lines, used), outputs, steps, of_x, of_y),
        Place(drop_unused(lines, f"{outputs} {clipped} {beside}"), outputs, clipped, steps, beside=beside),
    )


def _steps(layout: Layout, outputs: str = "outputs") -> str:
    """C text of the steps down a strip of so many rows."""
    return f"max({outputs}, 1)" if layout.idle_step else f"{outputs} + held_rows - 1"


def place(layout: Layout, index: str, constants: Constants) -> tuple[Place, Place]:
    """A thread's places for loads and for products."""
    problem, config = layout.problem, layout.config
    depth, rows, columns = layout.walks
    scope = Scope("int")
    names, counts = zip(*layout.strip_digits, strict=True)
    at = coordinates(scope, scope.declare("strip", layout.strips), names, counts)
    names_p, names_q = _named(band_rows=config.band), _named(tile_q=config.tile_q)
    first_p = scope.let("first_p", at["row_class"] + at["band"] * (config.band * rows.apart), names=names_p)
    first_q = scope.let("first_q", at["column_class"] + at["tile"] * (config.tile_q * columns.apart), names=names_q)
    first_r = scope.declare("first_r", layout.row_parts * config.tile_r) if layout.row_parts > 1 else Integer(0)
    plane = scope.declare("t", depth.axis.filter)
    in_d = scope.let("in_d", _input(depth, at["depth"], plane))
    first_h = scope.let("first_h", _input(rows, first_p, first_r))
    first_w = scope.let("first_w", _input(columns, first_q, Integer(0)))
    lines = scope.take()

    def offset(role: str, places: Sequence[tuple[str, object]]) -> str:
        tensor = problem.tensor(role)
        return linear([(str(e), tensor.stride(d)) for d, e in places if d and e != 0], index, constants.strides(tensor))

    x = offset("x", [("n", at["n"]), (depth.input, in_d), (rows.input, first_h), (columns.input, first_w), ("c", "c")])
    y = offset("y", [("n", at["n"]), (depth.output, at["depth"]), (rows.output, first_p), (columns.output, first_q),
                     ("k", "thread_k")])  # fmt: skip
    inside = f" && u32({in_d}) < {depth.axis.input}" if depth.input else ""
    outputs, clipped = _counts(layout, first_p, first_q)
    ahead, steps = _steps(layout, "ahead_outputs"), _steps(layout)
    later = " ".join([x, y, str(first_h), str(first_w), inside, outputs, clipped])
    return (
        Place(drop_unused(lines, later), outputs, clipped, ahead, x, y, str(first_h), str(first_w), inside),
        Place(drop_unused(lines, f"{outputs} {clipped}"), outputs, clipped, steps),
    )


def _input(walk: Walk, output: Expr, tap: Expr) -> Expr:
    """The input coordinate under an output and a tap."""
    axis = walk.axis
    return output * axis.stride + tap * axis.dilation - axis.pad


def _named(**numbers: int) -> Names:
    return Names({number: name for name, number in numbers.items() if number > 1})


def _counts(layout: Layout, first_p: Expr, first_q: Expr) -> tuple[str, str]:
    """C text: rows of a strip, and columns of a thread's tile."""
    config, (_, rows, columns) = layout.config, layout.walks
    return (
        _count("P", first_p, rows, config.band, "band_rows"),
        _count("Q", first_q, columns, config.tile_q, "tile_q"),
    )


def _count(extent: str, first: Expr, walk: Walk, tile: int, name: str) -> str:
    """C text: outputs of a class from the first of a tile on, as many as the axis has."""
    if not walk.ragged(tile):
        return name
    rest = f"{extent} - {first}" if first != 0 else extent
    if walk.apart > 1:
        rest = f"({rest} + {walk.apart - 1}) / {walk.apart}"
    return f"min({name}, {rest})"


def source(plan: Plan, layout: Layout) -> str:
    """The CUDA source of a plan."""
    problem, config = layout.problem, layout.config
    index = index_type(problem, ())
    _, rows, columns = layout.walks
    x, y = problem.x, problem.y
    constants = Constants()
    ahead: Place | BlockPlace
    ahead, own = block_place(layout) if layout.shared else place(layout, index, constants)
    return render(
        "depthwise_wgrad/kernel.cu.j2",
        plan,
        config=config,
        layout=layout,
        launch=plan.launch(),
        maps=[p.name for p in maps(layout)],
        tma=f"tma_load_tile_{4 if columns.output else 3}d",
        pointers=pointers(layout),
        formulas=_formulas(layout),
        index=index,
        constants=constants,
        inputs={"h": constants.extent("h", rows.axis.input), "w": constants.extent("w", columns.axis.input)},
        place=ahead,
        own_place=own,
        steps={
            "x_row": x.stride(rows.input) * rows.axis.dilation,
            "x_column": x.stride(columns.input) * columns.axis.dilation,
            "y_row": y.stride(rows.output) * rows.apart,
            "y_column": y.stride(columns.output) * columns.apart,
        },
        bytes={"x": layout.x_bytes, "y": layout.y_bytes},
        words={"x": _access(x, layout.inputs), "y": _access(y, config.vector)},
        loads={role: _LOADS.get(size, "") for role, size in (("x", layout.x_bytes), ("y", layout.y_bytes))},
        decode={"x": _decode(x, layout.inputs), "y": _decode(y, config.vector)},
        tap=_tap(layout),
        past=_past(layout),
        y_sum=gradient.y_sum(problem),
        stored=gradient.stored(layout),
        sum=gradient.gradient_sum(plan, layout),
    )


#: Loads from shared memory, by bytes.
_LOADS = {2: "ld_shared_u16", 4: "ld_shared_u32", 8: "ld_shared_v2_f32", 16: "ld_shared_v4_u32"}


def _access(tensor: Tensor, run: int) -> str:
    """C type of a load of so many neighbors.  Two words are a pair, whose halves can be used directly; the halves of a
    64-bit integer would have to be shifted out."""
    size = run * tensor.element.bytes
    return "Vec2" if size == 8 else ACCESS[size]


def _decode(tensor: Tensor, run: int) -> list[str]:
    """Lines that make `value[run]` of such a load `raw`."""
    size = run * tensor.element.bytes
    raws = [f"__float_as_uint(raw.{part})" for part in "xy"] if size == 8 else ["raw"]
    return runs.decode_run(tensor.dtype, "value", raws, run, "f32")


def _tap(layout: Layout) -> str:
    """C text of a tap from `own`, that of a thread's, and `of_part`."""
    if layout.parts == 1:
        return "own"
    if layout.row_parts == 1:
        return "of_part * (R * S) + own"
    plane = "of_part / row_parts * R + " if layout.walks[0].axis.filter > 1 else ""
    return f"({plane}of_part % row_parts * tile_r) * S + own"


def _past(layout: Layout) -> list[str]:
    """C text of the condition that a thread's sum is past the last channel or tap."""
    channels = [f"k >= {layout.problem.k}"] if layout.channel_tail else []
    return [*channels, *(["of_part % row_parts * tile_r + own / S >= R"] if layout.row_tail else [])]


def _formulas(layout: Layout) -> list[str]:
    problem = layout.problem
    sp, m = problem.spatial, problem.k_per_group
    pixels = ", ".join(("n", *sp.output))
    x = f"x[n, {', '.join(f'in_{i}' for i in sp.input)}, {'k' if m == 1 else f'k / {m}'}]"
    return [
        f"w[k, {', '.join(sp.filter)}] = sum over {pixels} of y[{pixels}, k] * {x}, where",
        *window_formulas(problem),
    ]
