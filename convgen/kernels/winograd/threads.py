"""The threads of winograd's transforms: each has a filter or a tile, of one channel or a few neighbors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from sympy import Expr, Integer

from convgen.codegen.c_expr import Names
from convgen.ir.index_map import derive, variable
from convgen.ir.integer import floordiv, mod, symbol
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor
from convgen.ir.winograd import TAPS
from convgen.kernels.parts import output, runs
from convgen.kernels.parts.constants import Constants, extent_name
from convgen.kernels.parts.elementwise import (
    Kernel,
    Pointer,
    all_zero,
    epilogue_formulas,
    factor_pointers,
    result_pointers,
    window_formulas,
)
from convgen.kernels.parts.lowering import Scope, all_hold, coordinates, drop_unused, index_type, offset, window
from convgen.kernels.parts.runs import bracket
from convgen.kernels.parts.window_sum import window_sum
from convgen.kernels.winograd.layout import Layout, M, U, V

#: Threads of a block; for more, ptxas holds registers back, and spills.
BLOCK = 128
#: A line: the number of a transform's point i, j.
POINT = "const int point = i * size + j;"


@dataclass(frozen=True)
class Tile:
    """A thread's tile: its number, the coordinates of its first pixel of y and first channel, and the number of
    threads."""

    number: Expr
    at: dict[str, Expr]
    threads: int


def channels_name(problem: ConvProblem, channels: int, dim: str) -> str:
    """The name of an extent in U and V, which may have more input channels than x."""
    return "padded_channels" if dim == "c" and channels != problem.c else extent_name(dim)


def filters(layout: Layout) -> Kernel:
    """U, from w: channels beyond the last are zeros."""
    problem, w, scope = layout.problem, layout.problem.w, _scope(layout)
    pairs = layout.columns * layout.channels
    index = scope.declare("index", pairs)
    extents = {"k": layout.columns, "c": layout.channels}
    name = partial(channels_name, problem, layout.channels)
    names = scope.constants.of_index(tuple(extents), extents.__getitem__, name)
    at = {
        "k": scope.let("k", floordiv(index, Integer(layout.channels)), layout.columns, names=names),
        "c": scope.let("c", mod(index, Integer(layout.channels)), layout.channels, names=names),
    }
    lines = scope.take()
    inside = all_hold([t for d in ("k", "c") for t in scope.bound_tests(at[d], 0, Integer(problem.extent(d)), d)])
    taps = {"r": scope.declare("i", TAPS), "s": scope.declare("j", TAPS)}
    loads = runs.load_run(w.dtype, "loaded", f"w + {bracket(offset(scope, w, at | taps))}", 1, inside)
    names = scope.constants.strides(_points(layout, "u", ("point", "pair"), (pairs,)))
    target = scope.text(scope.declare("point", layout.points) * pairs + index, names)
    stores = [POINT, *runs.store_run(w.dtype, f"u + {bracket(target)}", 1, "f32", "held[i][j]")]
    comment = ("U[point, k, c] = G w[k, :, :, c] G^T: a thread has a pair of channels.",)
    pointers = (Pointer("w", w.dtype, "w"), Pointer("u", w.dtype, U, written=True))
    text = {"lines": drop_unused(lines, "\n".join([*loads, *stores])), "loads": loads, "stores": stores, "run": 1}
    return _kernel(layout, "filter", comment, pointers, scope, pairs, text)


def inputs(layout: Layout) -> Kernel:
    """V, from x: pixels outside the image and channels beyond the last are zeros."""
    problem, x, scope = layout.problem, layout.problem.x, _scope(layout)
    run = layout.channels_at_once(x, "c")
    tile = _tile(scope, layout, "c", layout.channels, run)
    lines = scope.take()
    at = tile.at | {"r": scope.declare("i", layout.size), "s": scope.declare("j", layout.size)}
    at["h"], tests = window(scope, problem, "x", "h", at)
    row = scope.take()
    at["w"], more = window(scope, problem, "x", "w", at)
    column = scope.take()
    inside = all_hold([*tests, *more, *scope.bound_tests(at["c"], 0, Integer(problem.c), "c")])
    loads = runs.load_run(x.dtype, "loaded", f"x + {bracket(offset(scope, x, at))}", run, inside)
    v = _points(layout, "v", ("tile", "point", "c"), (layout.channels,))
    target = offset(scope, v, {"tile": tile.number, "point": scope.declare("point", layout.points), "c": at["c"]})
    stores = [POINT, *runs.store_run(x.dtype, f"v + {bracket(target)}", run, "f32", "held[i][j]")]
    comment = (f"V[tile, point, c] = B^T x B: a thread has a tile of {_channels(run)}.", *window_formulas(problem))
    pointers = (Pointer("x", x.dtype, "x"), Pointer("v", x.dtype, V, written=True))
    later = "\n".join([*row, *column, *loads, *stores])
    text = {
        "lines": drop_unused(lines, later), "row": drop_unused(row, later), "column": drop_unused(column, later),
        "loads": loads, "stores": stores, "run": run,
    }  # fmt: skip
    return _kernel(layout, "input", comment, pointers, scope, tile.threads, text)


def outputs(layout: Layout) -> Kernel:
    """y, from M, and the epilogue."""
    problem, scope, m = layout.problem, _scope(layout), layout.config.tile
    along = output.columns(problem)
    run = layout.channels_at_once(problem.y, "k") if along.role == "channels" else 1
    tile = _tile(scope, layout, "k", problem.k, run)
    lines = scope.take()
    if tile.at["k"] == 0 and problem.k > 1:  # one vector, whose first channel formulas name
        lines.append("const int k = 0;")
    sums = _points(layout, "m", ("tile", "point", "k"), (layout.columns,))
    place = {"tile": tile.number, "point": scope.declare("point", layout.points), "k": tile.at["k"]}
    loads = [POINT, *runs.load_run("f32", "loaded", f"m + {bracket(offset(scope, sums, place))}", run)]
    dims = ("n", *problem.spatial.output, "k")
    maps = derive(problem, [variable(d, problem.extent(d)) for d in dims], {d: symbol(d) for d in dims})
    result = output.result(problem, maps, along, symbol("k" if along.role == "channels" else "q"), run, "f32")
    first = {d: scope.text(tile.at[d]) for d in problem.spatial.output}
    comment = (f"y = A^T M A: a thread has a tile of {_channels(run)}.", *epilogue_formulas(problem))
    pointers = (Pointer("m", "f32", M), *factor_pointers(problem), *result_pointers(problem))
    text = {
        "lines": drop_unused(lines, "\n".join([*loads, *first.values(), result.text, result.at, "x w n k"])),
        "loads": loads, "run": run, "row_run": m * run, "results": m * m * run, "result": result, "first": first,
        "extents": {d: scope.extent(d, e) for d, e in zip(problem.spatial.output, problem.output, strict=True)}, "m": m,
        "coordinates": {d: scope.text(tile.at[d]) for d in ("n", "k")},
        "window_sum": window_sum(problem),
    }  # fmt: skip
    return _kernel(layout, "output", comment, pointers, scope, tile.threads, text)


def _kernel(
    layout: Layout, part: str, comment: tuple[str, ...], pointers: tuple[Pointer, ...], scope: Scope, threads: int,
    text: Mapping[str, object],
) -> Kernel:  # fmt: skip
    """Finished values for templates/winograd/transforms.cu.j2, which has all three."""
    entry = f"convgen_{layout.problem.name}_{part}"
    return Kernel(
        "winograd/transforms.cu.j2", entry, comment, pointers, scope.index, 1, threads, "", text, BLOCK,
        constants=scope.constants,
    )  # fmt: skip


def _scope(layout: Layout) -> Scope:
    made = layout.product_problem
    return Scope(index_type(layout.problem, (made.x.size, made.w.size, made.y.size)), constants=Constants())


def _points(layout: Layout, name: str, dims: tuple[str, ...], last: tuple[int, ...]) -> Tensor:
    """A workspace of the products' kernel, by points."""
    extents = {"tile": layout.tile_count, "point": layout.points}
    return Tensor(name, "workspace", "f32", dims, (*(extents[d] for d in dims if d in extents), *last))


def _tile(scope: Scope, layout: Layout, channel: str, channels: int, run: int) -> Tile:
    """Names the coordinates of a thread's tile; neighboring threads have neighboring channels."""
    chunks = channels // run
    index = scope.declare("index", layout.tile_count * chunks)
    extents = {"tile": layout.tile_count, channel: chunks}
    name = (
        partial(channels_name, layout.problem, layout.channels)
        if run == 1
        else lambda d: "channel_vectors" if d == channel else d
    )
    names = scope.constants.of_index(tuple(extents), extents.__getitem__, name)
    number = scope.let("tile", floordiv(index, Integer(chunks)), layout.tile_count, names=names)
    own = scope.let(channel, mod(index, Integer(chunks)) * run, channels, names=names)
    at = all_zero(layout.problem) | {channel: own}
    tiles = {"tile_p": "p_tiles", "tile_q": "q_tiles"}
    place = coordinates(scope, number, ("n", *tiles), (layout.problem.n, *layout.tiles), lambda d: tiles.get(d, d))
    at["n"] = place["n"]
    for d in layout.problem.spatial.output:
        names = Names({layout.config.tile: "outputs"})
        at[d] = scope.let(f"first_{d}", place[f"tile_{d}"] * layout.config.tile, names=names)
    return Tile(number, at, layout.tile_count * chunks)


def _channels(run: int) -> str:
    return f"{run} neighboring channels" if run > 1 else "a channel"
