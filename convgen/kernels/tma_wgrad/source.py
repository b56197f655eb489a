"""The text of the kernel: finished values and lines for templates/tma_wgrad/kernel.cu.j2."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer

from convgen.codegen.c_expr import c_expr
from convgen.codegen.render import render
from convgen.ir.index_map import decompose, derive, variable
from convgen.ir.plan import Plan
from convgen.kernels.parts import gradient, lowering
from convgen.kernels.parts.hopper import SWIZZLE_FIELD, register_split
from convgen.kernels.parts.window_sum import filter_sum, gradient_pointers
from convgen.kernels.tma_wgrad.layout import ELEMENT, Y_SPAN, Layout

#: Why sums are looked at.
SPOILS = "a zero around y's rows makes a NaN of an infinity or NaN of x"


def source(plan: Plan, layout: Layout) -> str:
    """The CUDA source of a plan."""
    config, g = layout.config, layout.gemm
    problem, sp = g.problem, g.problem.spatial
    stored = gradient.stored(layout.problem, layout.left, bool(config.lower_rows), config.sums)
    return render(
        "tma_wgrad/kernel.cu.j2",
        plan,
        config=config,
        layout=layout,
        launch=plan.launch(),
        one=gradient.ONES[problem.x.dtype],
        y_sum=gradient.y_sum(layout.problem),
        prepare=g.prepared.kernel,
        gemm=g,
        y_span=Y_SPAN,
        y_row_bytes=Y_SPAN * ELEMENT,
        ones_words=layout.ones // 4,
        consumers_m=config.warps_m // 4,
        own_fragments=config.own_rows // 64,
        last_pixel=layout.pixels - 1,
        share_sums=layout.y_parts * problem.k,
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
        n_tail=layout.n_tail,
        c_tail=layout.c_tail,
        tests=_tests(layout),
        stored=stored,
        joined=stored.four and config.group_pack == 1 and layout.store_columns % 16 == 0,
        sum=_sum(plan, layout),
        zeros=gradient.zeros(layout.problem, layout.left, plan.launch("zeros")) if config.adds else None,
        factors=gradient_pointers(layout.problem) if layout.fills and layout.stores_w else (),
        filter_sum=filter_sum(layout.problem) if layout.fills else None,
        spoils=SPOILS,
    )


@dataclass(frozen=True)
class Tests:
    """C text of the conditions on which sums are elements of w, empty where all are: a row's; those of a sum that is
    looked at, of neighbors that are stored at once, of each of two."""

    row: str
    sum: str
    neighbors: str
    each: str


def _tests(layout: Layout) -> Tests:
    g = layout.gemm
    in_pack = "k - pack * rows" if g.packs > 1 else "k"
    row = [f"{in_pack} < rows"] * (g.rows % layout.config.tile_m != 0) + ["k < K"] * g.last_fewer

    def within(channel: str) -> list[str]:
        return [f"{channel} < x_channels"] * layout.c_tail

    def own(channel: str) -> list[str]:
        return [f"({in_pack}) / group_rows == {channel} / group_channels"] * (g.group_pack > 1)

    found = (
        row,
        ["box < boxes"] * layout.n_tail + row + within("channel") + own("channel"),
        row + within("c"),
        row + within("channel + e") + own("(channel + e)"),
    )
    return Tests(*map(" && ".join, found))


def _place(layout: Layout) -> list[str]:
    """Lines that find a block's tile, the first of its boxes and of y's channels.  Neighbors in a cluster have the
    operand in common that it shares."""
    split, packs = layout.config.split_k, layout.gemm.packs > 1
    tile = f"blockIdx.x / {split}" if split > 1 else "int(blockIdx.x)"
    inner, outer = ("n_tiles", "m_tiles") if layout.config.shared == "a" else ("m_tiles", "n_tiles")
    place = {inner: f"tile % {inner}", outer: f"tile / {inner}{f' % {outer}' if packs else ''}"}
    return [
        f"const int tile = {tile};",
        *(["const int pack = tile / (m_tiles * n_tiles);"] if packs else []),
        f"const int first_box = {place['n_tiles']} * tile_boxes;",
        f"const int first_k = {'pack * rows + ' if packs else ''}{place['m_tiles']} * tile_m;",
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


def _sum(plan: Plan, layout: Layout) -> gradient.Sum | None:
    if layout.stores_w:
        return None
    spoils = SPOILS if layout.fills else ""
    return gradient.gradient_sum(layout.problem, layout.left, layout.target.sms, plan.launch("sum"), spoils)
