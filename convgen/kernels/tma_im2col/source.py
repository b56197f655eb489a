"""The text of the kernel: finished values and lines for templates/tma_im2col.cu.j2."""

from __future__ import annotations

from sympy import Integer

from convgen.codegen.c_expr import c_expr
from convgen.codegen.render import render
from convgen.ir.index_map import decompose, derive, tma_axes, variable
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels.parts import fragments, lowering, operand_tiles, prepare
from convgen.kernels.parts.hopper import SWIZZLE_FIELD, products, register_split
from convgen.kernels.tma_im2col.config import TmaIm2colConfig
from convgen.kernels.tma_im2col.tiles import (
    accumulators_of,
    as_read,
    channel_blocks,
    footprint,
    is_pointwise,
    last_products,
    m_tiles,
    pixels_together,
    plane,
    registers_of,
    store_vector,
    stores_by_tma,
    stores_pairs,
    taps_outside,
    x_in_planes,
)
from convgen.targets import Target


def source(plan: Plan) -> str:
    """The CUDA source of a plan."""
    config = plan.config
    assert isinstance(config, TmaIm2colConfig)
    prepared = as_read(plan.problem, config.bundle)
    problem = prepared.problem
    sp = problem.spatial
    size = footprint(problem, config)
    load_from = _loads_from(problem, config)
    m0 = variable("first_m" if load_from else "m0", problem.output_pixels)
    start = derive(
        problem,
        (m0,),
        decompose(m0.symbol, ("n", *sp.output), lambda d: Integer(problem.extent(d)))
        | {f: Integer(0) for f in sp.filter}
        | {"c": Integer(0), "k": Integer(0)},
    ).simplified()
    first = [(d, c_expr(start.loop[d], start.ranges)) for d in ("n", *sp.input)]
    finds_pixels = is_pointwise(problem) or any(m0.name in text for _, text in first)
    axes = () if is_pointwise(problem) else tma_axes(problem)
    vector, store = store_vector(problem), fragments.store(problem)
    epilogue_of = fragments.of_gemm_elements if config.by_channels else fragments.of_pairs
    taps = [
        {
            "dim": f,
            "extent": problem.extent(f),
            "offset": _affine(a.offset_base, a.offset_step, f),
        }
        for f, a in zip(sp.filter, axes, strict=bool(axes))
    ]
    return render(
        "tma_im2col.cu.j2",
        plan,
        config=config,
        size=size,
        launch=plan.launches[-2] if config.stream else plan.launches[-1],
        finish=plan.launches[-1],
        # as many blocks as leave each thread its sums and a few registers more
        finish_blocks=plan.target.registers_per_sm // (128 * (config.columns // 2 + 48)),
        prepare=prepared.kernel,
        span=config.k * problem.x.element.bytes,
        swizzle_field=SWIZZLE_FIELD[config.k * problem.x.element.bytes],
        rank=problem.rank + 2,
        pointwise=is_pointwise(problem),
        taps=taps,
        advance=_advance([str(t["dim"]) for t in taps], config),
        tap_index=_tap_index([str(t["dim"]) for t in taps]),
        start=first,
        w_taps_outside=taps_outside(problem),
        gemm_m=problem.output_pixels,
        gemm_n=problem.k,
        group=prepare.group(problem),
        c_blocks=channel_blocks(problem, config.k),
        products=products(config.k),
        last_products=last_products(problem, config),
        m_tail=pixels_together(problem) % (config.m * (config.cluster if config.shared == "w" else 1)) != 0,
        x_planes=x_in_planes(problem),
        n_tail=problem.k % (config.n * (config.cluster if config.shared == "x" else 1)) != 0,
        registers=register_split(config.consumers, config.blocks),
        rows_per_consumer=config.own_rows,
        columns_n=config.columns,
        shares=config.shared,
        place=_place(problem, config, pixels=finds_pixels),
        finds_pixels=finds_pixels,
        load_from=load_from,
        own_place=_place(problem, config, own=True),
        fragment_place=_place(problem, config, own=True, rows="blockIdx.y * 64"),
        in_type=problem.x.dtype,
        by_tma=stores_by_tma(problem),
        plane=plane(problem),
        store_vector=vector,
        store_pairs=stores_pairs(problem, config),
        y=problem.y,
        epilogue=epilogue_of(problem, [c.name for c in size.arriving]),
        at_coordinates=epilogue_of(problem),
        arriving=operand_tiles.text(
            size.arriving, vector, single=config.by_channels, transposed=config.by_channels or plane(problem) > 0
        ),
        load_early=_loads_early(problem, config, plan.target),
        last_pair=fragments.last_pair(problem),
        pack=lowering.PACK.get(problem.y.dtype),
        store=store,
        copy=fragments.copied(vector, store.offset) if vector else "",
    )


def _place(
    problem: ConvProblem, config: TmaIm2colConfig, own: bool = False, rows: str = "", pixels: bool = True
) -> list[str]:
    """Lines that find a tile's first pixel (where `pixels` matter) and channel from its number; `own`: those that a
    consumer finishes, or those from `rows` on."""
    lines, m, n = [], "tile / n_tiles", "tile % n_tiles"
    if config.raster > 1:
        lines = [
            "const int band = tile / (raster * n_tiles) * raster;",
            "const int within = tile % (raster * n_tiles);",
            "const int band_tiles = min(raster, m_tiles - band);",
        ]
        m, n = "(band + within % band_tiles)", "within / band_tiles"
    if x_in_planes(problem):
        image, pixel = f"{m} / image_tiles", f"{m} % image_tiles * tile_m"
    if config.shared == "w":
        m = f"({m} * cluster + rank)"
    if config.shared == "x":
        n = f"({n} * cluster + rank)"
    m, n = f"{m} * tile_m", f"{n} * tile_n"
    if x_in_planes(problem) and not own:
        return [*lines, f"const int image = {image};", f"const int pixel = {pixel};", f"const int n0 = {n};"]
    if not pixels:
        return [*lines, f"const int n0 = {n};"]
    if x_in_planes(problem):
        m = f"{image} * plane + {pixel}"
        if plane(problem) % config.m:
            lines.append(f"const int m_end = ({image} + 1) * plane;  // a tile's pixels are of one image")
    if own:
        consumers_rows = "consumer * rows" if config.schedule != "pingpong" and config.consumers > 1 else ""
        rows = f" + {rows or consumers_rows}" if rows or consumers_rows else ""
        columns = f" + rank * store_{'m' if config.by_channels else 'n'}" if config.split > 1 else ""
        m, n = (m + columns, n + rows) if config.by_channels else (m + rows, n + columns)
    return [*lines, f"const int m0 = {m};", f"const int n0 = {n};"]


def _loads_from(problem: ConvProblem, config: TmaIm2colConfig) -> str:
    """C text of the pixel that a block loads from, where that is not the tile's first.

    What lies behind the last pixel is not stored, but a load by windows must begin at a legal one."""
    slices = config.shared == "x"
    first = "m0 + rank * x_slice" if slices else "m0"
    if is_pointwise(problem):
        return first if slices else ""
    behind = slices or (config.shared == "w" and m_tiles(problem, config.m) % config.cluster > 0)
    return f"min({first}, gemm_m - 1)" if behind else ""


def _loads_early(problem: ConvProblem, config: TmaIm2colConfig, target: Target) -> bool:
    """Whether registers are left, beside the accumulators, for the channels' operands during the k loop."""
    operands = sum(t.dims == ("k",) for t in problem.operands)
    sums = accumulators_of(config) // config.split if config.split > 1 else 0
    values = config.own_rows // 32 if config.by_channels else config.n // config.split // 4
    return accumulators_of(config) + sums + operands * values + 48 <= registers_of(problem, config, target)


def _affine(base: int, step: int, name: str) -> str:
    text = name if step == 1 else f"{step} * {name}"
    if step == -1:
        return f"{base} - {name}"
    return f"{base} + {text}" if base else text


def _tap_index(taps: list[str]) -> str:
    """C text of a tap's number among all: (t * r_extent + r) * s_extent + s."""
    text = taps[0] if taps else "0"
    for i, tap in enumerate(taps[1:]):
        text = f"{f'({text})' if i else text} * {tap}_extent + {tap}"
    return text


def _advance(taps: list[str], config: TmaIm2colConfig) -> list[str]:
    """Lines that move (taps..., c) one k step on: like an odometer, its fastest wheel first."""
    wheels = [(d, f"++{d}", f"{d}_extent") for d in reversed(taps)]
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
