"""The text of the kernel: finished values and lines for templates/tma_im2col/kernel.cu.j2."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from sympy import Integer

from convgen.codegen.c_expr import c_expr
from convgen.codegen.render import render
from convgen.ir import integer
from convgen.ir.formula import number
from convgen.ir.index_map import decompose, derive, variable
from convgen.ir.integer import symbol
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels.parts import fragments, image_operands, lowering, operand_tiles, result_tiles, swizzle
from convgen.kernels.parts.assignment import assignment
from convgen.kernels.parts.constants import Constants
from convgen.kernels.parts.hopper import COLUMNS_BOX, products, register_split
from convgen.kernels.parts.window_sum import WindowSum, fragment_place, look, window_sum
from convgen.kernels.tma_im2col.config import Config
from convgen.kernels.tma_im2col.layout import Layout
from convgen.kernels.tma_im2col.names import names
from convgen.kernels.tma_im2col.phases import phase_text, walk, walk_names
from convgen.kernels.tma_im2col.prologue import last_pixel, prologue


def source(plan: Plan, layout: Layout) -> str:
    """The CUDA source of a plan."""
    # long: a line for each value of the template
    config, g = layout.config, layout.gemm
    problem, sp = g.problem, g.problem.spatial
    constants = Constants()
    load_from, phases = _loads_from(layout), phase_text(layout, constants)
    m0 = "first_m" if load_from else "m0"
    first = _start(layout, m0, constants)
    finds_pixels = g.pointwise or any(m0 in text for _, text in first)
    vector, store = g.store_vector, fragments.store(problem)
    epilogue_of = fragments.of_gemm_elements if config.swap_ab else fragments.of_pairs
    by_value = [*(c.name for c in layout.arriving), *(t.name for t in layout.of_images)]
    row_vectors = (64 if g.plane else layout.epi_tile_n) // vector if vector else 0  # of an epilogue tile
    leaving = result_tiles.text(layout.leaving, vector, lambda t: fragments.offset(problem, t))
    taps, one_step = _taps(layout), _one_step(layout)
    return render(
        "tma_im2col/kernel.cu.j2",
        plan,
        config=config,
        layout=layout,
        launch=plan.launch(),
        finish=plan.launch("finish") if config.stream_k else None,
        # as many blocks as leave each thread its sums and a few registers more
        finish_blocks=plan.target.registers_per_sm // (128 * (config.columns // 2 + 48)),
        prepare=g.prepared.kernel,
        span=layout.span,
        swizzle_field=swizzle.FIELD[layout.span],
        rank=problem.rank + 2,
        spatial=sp,
        pointwise=g.pointwise,
        taps=taps,
        advance=() if one_step and config.k_blocks == 1 else _advance(taps, config),
        one_step=one_step,
        **names(layout, _tap_index(layout, taps), phases),
        start=first,
        extents=() if g.pointwise else constants.all,
        b_columns=g.b_columns,
        b_boxes=layout.b_boxes,
        columns_box=COLUMNS_BOX,
        gemm_m=problem.output_pixels,
        dynamic_m=lowering.number_text(problem.output_pixels) if problem.dynamic else "",
        phase_m=g.pixels,
        phases=phases,
        tap_rows=layout.tap_rows,
        tile_place=_place(layout, columns=False),
        turns_meet=layout.turns_meet,
        # of a tile's pixel in y: its number in the phase, or in y
        pixel="pixel_of(%s, phase)" if phases else "%s",
        gemm_n=problem.k,
        group=g.group,
        c_blocks=layout.channel_blocks,
        products=products(config.tile_k),
        last_products=layout.last_products,
        last_eight=layout.epi_tile_n % 16 > 0,  # columns of an epilogue tile, after the pairs of eights
        m_tail=bool(phases.inside) if phases else g.pixels_together % layout.cluster_m != 0,
        a_planes=g.a_planes,
        n_tail=problem.k % layout.cluster_n != 0,
        registers=register_split(config.consumers, config.blocks),
        rows_per_consumer=config.own_rows,
        columns_n=config.columns,
        shares=config.shared,
        window_sum=_window_sum(layout, {} if g.pointwise else constants.mentioned) if g.own_zeros else None,
        look=_look(layout) if g.own_zeros else "",
        place=_place(layout, pixels=finds_pixels, columns=not config.resident),
        n_tiles=layout.n_tiles,
        finds_pixels=finds_pixels,
        load_from=load_from,
        own_place=_place(layout, own=True, columns=not config.resident),
        block_columns=_own_columns(layout),
        own_columns=_own_columns(layout, own=True),
        operands_place=_place(layout, own=True, ends=False),
        fragment_place=_place(layout, own=True, rows="blockIdx.y * 64"),
        in_type=problem.x.dtype,
        by_tma=g.stores_by_tma,
        plane=g.plane,
        store_vector=vector,
        row_vectors=row_vectors,
        rows_at_once=128 // max(row_vectors, 1),
        store_pairs=layout.stores_pairs,
        y=problem.y,
        pointers=_pointers(problem),
        prologue=prologue(problem, layout.own_pixels, config.tile_k),
        # a consumer's first row of A, where it finishes some of the tile's pixels alone
        first_row="m0 - k_rank * store_m" if config.swap_ab and config.split_k > 1 else "m0",
        epilogue=epilogue_of(problem, by_value, [*(t.name for t in leaving), *(t.name for t in problem.sums)]),
        leaving=leaving,
        partial=layout.partial_sums,
        wide_partial=layout.partial_rows * problem.k > lowering.INT_LIMIT,
        image_count=problem.n,
        phase_rows=layout.phase_rows,
        stores=[("c_map", "epi_tile_base"), *((f"result_{t.name}_map", f"epi_tile_base + {t.at}") for t in leaving)],
        at_coordinates=epilogue_of(problem),
        arriving=operand_tiles.text(
            layout.arriving,
            vector,
            partial(fragments.offset, problem),
            single=config.swap_ab > 0,
            transposed=config.swap_ab > 0 or g.plane > 0,
        ),
        load_early=_loads_early(layout),
        **_images(layout),
        last_pair=fragments.last_pair(problem, "GEMM_N"),
        pack=lowering.PACK.get(problem.y.dtype),
        store=store,
        swizzle=operand_tiles.swizzle(layout.epi_tile_n),
        copies=[result_tiles.copied(vector, "y", store.offset, "place"), *(t.copy for t in leaving)] if vector else [],
    )


@dataclass(frozen=True)
class Tap:
    """An axis of the filter: its counter, the name of its extent, the extent, C text of where the counter ends, of the
    tap's pixels in the box."""

    dim: str
    extent: str
    count: int
    end: str
    offset: str


def _taps(layout: Layout) -> list[Tap]:
    g = layout.gemm
    dims = g.problem.spatial.filter
    if g.phases:
        return [
            Tap(
                d,
                str(g.problem.extent(d)),
                g.problem.extent(d),
                f"phase.{d}_taps",
                _affine(f"phase.{d}_offset", -a.offset_step, d),
            )
            for d, a in zip(dims, g.phases.axes, strict=True)
        ]
    walks = zip(dims, g.axes, strict=bool(g.axes))
    return [
        Tap(d, d.upper(), g.problem.extent(d), d.upper(), _affine(a.offset_base, a.offset_step, d)) for d, a in walks
    ]


def _start(layout: Layout, m0: str, constants: Constants) -> list[tuple[str, str]]:
    """The coordinates of x at which the windows of a tile begin, and C text of them, from its first pixel `m0`."""
    g, problem, sp = layout.gemm, layout.gemm.problem, layout.gemm.problem.spatial
    if g.phases:
        (at, ranges), names = walk(layout, symbol(m0)), walk_names(layout, constants)
        corners = zip(sp.input, sp.output, g.axes, strict=True)
        found = {"n": at["n"]} | {i: at[o] + axis.lower for i, o, axis in corners}
        return [(lowering.coordinate_name(d), c_expr(e, ranges, names=names)) for d, e in found.items()]
    m = variable(m0, problem.output_pixels)
    start = derive(
        problem,
        (m,),
        decompose(m.symbol, ("n", *sp.output), lambda d: number(problem.extent(d)))
        | {f: Integer(0) for f in sp.filter}
        | {"c": Integer(0), "k": Integer(0)},
    )
    symbols, names = lowering.symbols(problem), constants.of_index(("n", *sp.output), problem.extent)
    found = {d: integer.simplify(start.loop[d], start.ranges) for d in ("n", *sp.input)}
    return [(lowering.coordinate_name(d), c_expr(e, start.ranges, symbols, names)) for d, e in found.items()]


def _pointers(problem: ConvProblem) -> dict[str, str]:
    """The C types that pointers point to, by their names."""
    read = {"x": problem.x, "w": problem.w} | {f"operand_{t.name}": t for t in problem.operands}
    written = {"y": problem.y} | {f"result_{t.name}": t for t in problem.further}
    return {name: f"const {t.element.c_type}" for name, t in read.items()} | {
        name: t.element.c_type for name, t in written.items()
    }


def _place(
    layout: Layout, own: bool = False, rows: str = "", pixels: bool = True, columns: bool = True, ends: bool = True
) -> list[str]:
    """Lines that find a tile's first pixel (where `pixels` matter) and channel (where `columns` do) from its number,
    and where its image ends (where `ends` matter); `own`: those that a consumer finishes, or those from `rows` on."""
    config, planes = layout.config, layout.gemm.a_planes
    lines, m, n = [], "tile / n_tiles", "tile % n_tiles"
    if config.raster > 1:
        lines = [
            "const int band = tile / (raster * n_tiles) * raster;",
            "const int within = tile % (raster * n_tiles);",
            "const int band_tiles = min(raster, m_tiles - band);",
        ]
        m, n = "(band + within % band_tiles)", "within / band_tiles"
    if planes:
        image, pixel = f"{m} / image_tiles", f"{m} % image_tiles * tile_m"
    if config.shared == "b":
        m = f"({m} * cluster + rank)"
    if config.shared == "a":
        n = f"({n} * cluster + rank)"
    m, n = f"{m} * tile_m", f"{n} * tile_n"
    if planes and not own:
        return [*lines, f"const int image = {image};", f"const int pixel = {pixel};", f"const int n0 = {n};"]
    if not pixels:
        return [*lines, *([f"const int n0 = {n};"] if columns else [])]
    if planes:
        m = f"{image} * plane + {pixel}"
        if ends and layout.gemm.plane % config.tile_m:
            lines.append(f"const int m_end = ({image} + 1) * plane;  // a tile's pixels belong to one image")
    if own:
        consumer_rows = _consumer_rows(layout)
        rows = f" + {rows or consumer_rows}" if rows or consumer_rows else ""
        part = f" + k_rank * store_{'m' if config.swap_ab else 'n'}" if config.split_k > 1 else ""
        m, n = (m + part, n + rows) if config.swap_ab else (m + rows, n + part)
    return [*lines, f"const int m0 = {m};", *([f"const int n0 = {n};"] if columns else [])]


def _consumer_rows(layout: Layout) -> str:
    """C text: a consumer's first row of a tile that several share; nothing where it is the tile's."""
    return "consumer * own_rows" if layout.config.schedule != "pingpong" and layout.config.consumers > 1 else ""


def _own_columns(layout: Layout, own: bool = False) -> str:
    """C text: the first channel of all tiles of a block that keeps B; `own`: of those that a consumer finishes."""
    tiles = layout.n_tiles > 1
    if layout.config.shared == "a":
        first = "(blockIdx.x / cluster % n_tiles * cluster + rank) * tile_n" if tiles else "rank * tile_n"
    else:
        first = "blockIdx.x % n_tiles * tile_n" if tiles else ""
    rows = _consumer_rows(layout) if own and layout.config.swap_ab else ""
    return " + ".join(filter(None, (first, rows))) or "0"


def _loads_from(layout: Layout) -> str:
    """C text of the pixel that a block loads from, where that is not the tile's first.

    What lies behind the last pixel is not stored, but a load by windows must begin at a legal one."""
    config = layout.config
    slices = config.shared == "a"
    first = "m0 + rank * a_slice" if slices else "m0"
    if layout.gemm.pointwise:
        return first if slices else ""
    behind = slices or (config.shared == "b" and layout.gemm.m_tiles(config.tile_m) % config.cluster > 0)
    return f"min({first}, {'phase_m' if layout.gemm.phases else 'GEMM_M'} - 1)" if behind else ""


def _images_held(layout: Layout) -> str:
    """How long threads hold the operands of images: for the k `loop` and what follows; if that leaves too few
    registers, for the `tile` after the loop, or for one `epi_tile`."""
    config, few = layout.config, layout.tile_images <= image_operands.MOST_IMAGES
    if (few or not config.swap_ab) and _loads_early(layout, layout.image_registers):
        return "loop"
    fit = config.accumulators + layout.image_registers + layout.prologue_registers + 32 <= layout.registers
    return "tile" if config.swap_ab and few and fit else "epi_tile"


def _images(layout: Layout) -> dict[str, object]:
    """The values that templates/tma_im2col/image_operands.j2 takes."""
    problem, held = layout.gemm.problem, _images_held(layout)
    pixels = math.prod(problem.output)
    most = image_operands.most_images(problem, layout.epi_tile_m) if held == "epi_tile" else layout.tile_images
    if layout.config.swap_ab:
        images = image_operands.of_columns(problem, layout.of_images, most, "0" if held == "epi_tile" else "i")
    else:
        images = image_operands.of_rows(problem, layout.of_images)
    return dict(
        images=images, images_held=held, image_pixels=pixels, image_step=math.gcd(pixels, 8), most_images=most,
        last_image=lowering.number_text(problem.n - 1), last_pixel=last_pixel(problem),
    )  # fmt: skip


def _loads_early(layout: Layout, more: int = 0) -> bool:
    """Whether registers are left, beside the accumulators, for the channels' operands during the k loop, and for so
    many `more`."""
    config, held = layout.config, layout.config.accumulators
    operands = sum(t.dims == ("k",) for t in layout.gemm.problem.operands)
    sums = held // config.split_k if config.split_k > 1 else 0
    values = config.own_rows // 32 if config.swap_ab else config.tile_n // config.split_k // 4
    return held + sums + operands * values + layout.prologue_registers + more + 48 <= layout.registers


def _window_sum(layout: Layout, file: Mapping[str, int]) -> WindowSum:
    """The sum of a result's element, from the factors as they were given."""
    assigned = assignment(layout.problem)
    problem = assigned.problem
    strided = assigned.strided
    pixel = ("n", *problem.spatial.output)
    walked = _taps(layout)[1:] if layout.tap_rows else _taps(layout)  # rows of taps are another number in each tile
    taps = {} if strided else {t.extent: t.count for t in walked}
    return window_sum(problem, "gemm_m", pixel, mirrored=assigned.mirrored, strided=strided, file={**file, **taps})


def _look(layout: Layout) -> str:
    """C text: whether sum i of a thread tells of a NaN that the zeros between packed groups have made."""
    config, k = layout.config, assignment(layout.problem).problem.k_per_group
    columns = config.columns // config.split_k
    if config.swap_ab:  # a thread has two channels of a pixel in each fragment of 64
        rows = range(0, layout.gemm.group_columns, config.own_rows)
        threads = [
            [{(first + block + thread + half) // k} for block in range(0, config.own_rows, 64) for half in (0, 8)]
            for first, thread in itertools.product(rows, [warp * 16 + row for warp in range(4) for row in range(8)])
        ]
        return look(threads, f"(i / {columns // 2} * 2 + i / 2 % 2)")
    threads = [
        [{(first + column + 2 * lane + e) // k} for column in range(0, columns, 8) for e in (0, 1)]
        for first, lane in itertools.product(range(0, layout.gemm.group_columns, columns), range(4))
    ]
    return look(threads, fragment_place(columns // 4))


def _affine(base: int | str, step: int, name: str) -> str:
    text = name if abs(step) == 1 else f"{abs(step)} * {name}"
    if step < 0:
        return f"{base} - {text}"
    return f"{base} + {text}" if base else text


def _tap_index(layout: Layout, taps: list[Tap]) -> str:
    """C text of a tap's number among all: (t * R + r) * S + s; counted from the last where they are
    mirrored.  Those of a phase are some of all, by equal steps."""
    g = layout.gemm
    axes = g.phases.axes if g.phases else (None,) * len(taps)
    counters = [_affine(f"phase.{t.dim}", a.tap_step, t.dim) if a else t.dim for t, a in zip(taps, axes, strict=True)]
    text = counters[0] if taps else "0"
    for i, (tap, counter) in enumerate(zip(taps[1:], counters[1:], strict=True)):
        text = f"{f'({text})' if i or ' ' in text else text} * {tap.extent} + {counter}"
    return f"{g.problem.taps - 1} - ({text})" if g.assigned.mirrored and g.problem.taps > 1 else text


def _one_step(layout: Layout) -> bool:
    """Whether each tile has one k step, and so no other whose stage becomes free before the tile's end."""
    shared_out = layout.config.split_k > 1 or layout.config.stream_k
    return layout.k_stages == 1 and not (shared_out or layout.gemm.phases or layout.tap_rows)


def _advance(taps: list[Tap], config: Config) -> list[str]:
    """Lines that move (taps..., c) one k step on: like an odometer, its fastest wheel first."""
    wheels = [(t.dim, f"++{t.dim}", t.end) for t in reversed(taps)]
    channel = ("c", "c += tile_k", "channel_blocks * tile_k")
    wheels = [*wheels, channel] if config.order == "taps_inner" else [channel, *wheels]
    lines, indent = [], ""
    for i, (name, step, end) in enumerate(wheels):
        if i == len(wheels) - 1:
            lines.append(f"{indent}{step};")
            break
        lines.append(f"{indent}{step};")
        lines.append(f"{indent}if ({name} == {end}) {{")
        indent += "  "
        lines.append(f"{indent}{name} = 0;")
    for i in range(len(wheels) - 1, 0, -1):
        lines.append("  " * (i - 1) + "}")
    return lines
