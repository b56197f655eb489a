"""The text of the kernel: finished values and lines for templates/tma_wgrad/kernel.cu.j2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Integer

from convgen.codegen.c_expr import c_expr
from convgen.codegen.render import render
from convgen.ir.index_map import decompose, derive, extent, variable
from convgen.ir.plan import Launch, Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels.parts import lowering, output
from convgen.kernels.parts.elementwise import Pointer, epilogue_formulas, epilogue_pointers
from convgen.kernels.parts.hopper import SWIZZLE_FIELD, register_split
from convgen.kernels.tma_wgrad.layout import SUM_BLOCK, Y_SPAN, Layout


def source(plan: Plan, layout: Layout) -> str:
    """The CUDA source of a plan."""
    config, g = layout.config, layout.gemm
    problem, sp = g.problem, g.problem.spatial
    return render(
        "tma_wgrad/kernel.cu.j2",
        plan,
        config=config,
        layout=layout,
        launch=plan.launch(),
        pointers=plan.launch().params[2:],
        prepare=g.prepared.kernel,
        gemm=g,
        y_span=Y_SPAN,
        swizzle_field=SWIZZLE_FIELD[layout.span],
        registers=register_split(config.consumers, config.blocks),
        rank=problem.rank + 2,
        place=_place(layout),
        start=_start(layout),
        x_at=[lowering.coordinate_name(d) for d in sp.input],
        offsets=[
            {"dim": f, "extent": problem.extent(f), "step": a.offset_step}
            for f, a in zip(sp.filter, g.axes, strict=True)
        ],
        in_type=problem.x.dtype,
        m_tail=g.rows % config.tile_m != 0,
        n_tail=layout.boxes % layout.tile_boxes != 0,
        c_tail=g.channels % config.span != 0,
        stored=_stored(layout),
        sum=_sum(plan, layout) if not layout.stores_w else None,
    )


def _place(layout: Layout) -> list[str]:
    """Lines that find a block's tile, the first of its boxes and of y's channels."""
    g, split = layout.gemm, layout.config.split_k
    tile = f"blockIdx.x / {split}" if split > 1 else "int(blockIdx.x)"
    if g.packs == 1:
        return [
            f"const int tile = {tile};",
            "const int first_box = tile / m_tiles * tile_boxes;",
            "const int first_k = tile % m_tiles * tile_m;",
        ]
    return [
        f"const int tile = {tile};",
        "const int pack = tile / (m_tiles * n_tiles);",
        "const int first_box = tile / m_tiles % n_tiles * tile_boxes;",
        "const int first_k = pack * rows + tile % m_tiles * tile_m;",
    ]


def _start(layout: Layout) -> dict[str, str]:
    """C text of where a step's walks begin, of its first `pixel`: x's coordinates, and y's where it is walked, too."""
    problem, sp = layout.gemm.problem, layout.gemm.problem.spatial
    reach = {sp.output[-1]: layout.reach}
    pixel = variable("pixel", layout.pixels)
    loop = decompose(pixel.symbol, ("n", *sp.output), lambda d: Integer(problem.extent(d) + reach.get(d, 0)))
    taps = {f: Integer(0) for f in sp.filter}
    at = derive(problem, (pixel,), loop | taps | {"c": Integer(0), "k": Integer(0)}).simplified().loop
    return {
        lowering.coordinate_name(d): c_expr(at[d], {pixel.symbol: (0, pixel.extent - 1)})
        for d in ("n", *sp.output, *sp.input)
    }


@dataclass(frozen=True)
class Stored:
    """How a pair of neighboring columns leaves: C text of an element's offset in the filter, from k, tap and c, and
    whether both are stored at once."""

    index: str
    offset: str
    pair: bool
    target: str
    c_type: str
    one: str
    both: str


def _stored(layout: Layout) -> Stored:
    problem, config = layout.problem, layout.config
    w, sp = problem.w, problem.spatial
    index = lowering.index_type(problem, (w.size * config.slices,))
    taps, channels = layout.gemm.problem.taps, layout.gemm.problem.c_per_group
    k, tap, c = variable("k", problem.k), variable("tap", taps), variable("c", channels)
    if config.lower_rows:
        at = decompose(tap.symbol, sp.filter[:-1], lambda d: Integer(problem.extent(d)))
        at |= decompose(c.symbol, (sp.filter[-1], "c_in_group"), lambda d: Integer(extent(problem, d)))
    else:
        at = decompose(tap.symbol, sp.filter, lambda d: Integer(problem.extent(d))) | {"c_in_group": c.symbol}
    maps = derive(problem, (k, tap, c), at | {"k": k.symbol})
    dtype = w.dtype if layout.stores_w else "f32"
    inner = (sp.filter[-1], "c") if config.lower_rows else ("c",)
    pair = w.dims[-len(inner) :] == inner and channels % 2 == 0
    both = f"{lowering.PACK[dtype]}({{0}}, {{1}})" if dtype in lowering.PACK else "Vec2{{{0}, {1}}}"
    return Stored(
        index, c_expr(maps.offset("w"), maps.ranges, index), pair, "w" if layout.stores_w else "partials",
        "u32" if dtype in lowering.PACK else "Vec2", lowering.store(dtype, "{0}", "f32"), both,
    )  # fmt: skip


@dataclass(frozen=True)
class Sum:
    """The kernel that adds the slices' sums, in order, and finishes w's gradient."""

    launch: Launch
    pointers: tuple[Pointer, ...]
    formulas: list[str]
    slices: int
    lanes: int
    size: int
    run: int
    index: str
    load: Sequence[str]
    result: output.Result


def sum_pointers(problem: ConvProblem) -> tuple[Pointer, ...]:
    """Its parameters."""
    w = Pointer("w", problem.w.dtype, "w", written=True)
    return (Pointer("partials", "f32", "workspace.partials"), w, *epilogue_pointers(problem))


def sum_run(problem: ConvProblem) -> int:
    """Neighboring elements that a thread of it finishes."""
    return math.gcd(problem.w.size, 4)


def _sum(plan: Plan, layout: Layout) -> Sum:
    problem, run = layout.problem, sum_run(layout.problem)
    w, slices = problem.w, layout.config.slices
    names = {"c": "c_in_group"}
    absent: dict[str, Expr] = {names.get(d, d): Integer(0) for d in ("k", *problem.spatial.filter, "c")}
    dims = [names.get(d, d) for d in w.dims]
    loop = absent | decompose(output.OFFSET, dims, lambda d: Integer(extent(problem, d)))
    maps = derive(problem, (variable("offset", w.size),), loop)
    live = tuple(d for d in w.dims if w.extent(d) > 1)
    along = output.Columns("elements", live, w.size)
    index = lowering.index_type(problem, (w.size * slices + SUM_BLOCK * run,))
    load = output.load_run("f32", "part", "partials + slice * size + offset", run)
    return Sum(
        plan.launch("sum"), sum_pointers(problem), epilogue_formulas(problem), slices, layout.lanes, w.size, run,
        index, load, output.result(problem, maps, along, output.OFFSET, run, "f32"),
    )  # fmt: skip
