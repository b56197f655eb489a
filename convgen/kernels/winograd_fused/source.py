"""The text of the kernel: finished values for templates/winograd_fused/kernel.cu.j2, which extends tma_halo's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sympy import Expr, Rational

from convgen.codegen.render import environment, render
from convgen.ir.plan import Plan
from convgen.ir.winograd import transforms
from convgen.kernels.parts import fragments, lowering, operand_tiles, swizzle
from convgen.kernels.parts.counts import count
from convgen.kernels.parts.hopper import REGISTERS
from convgen.kernels.parts.window_sum import window_sum
from convgen.kernels.tma_halo.halo import windows
from convgen.kernels.tma_halo.rings import STORE_VECTOR, stored, y_channels_last
from convgen.kernels.tma_halo.source import Load, Place, affine, element_offset, formula
from convgen.kernels.winograd.source import weighted
from convgen.kernels.winograd_fused.config import QUAD, QUADS
from convgen.kernels.winograd_fused.filters import filters
from convgen.kernels.winograd_fused.layout import EPI_TILE_PIXELS, POINTS, Layout, M

#: 0.5 twice, in the bits of each type.
HALVES = {"f16": "0x38003800", "bf16": "0x3F003F00"}


def source(plan: Plan, layout: Layout) -> str:
    """The CUDA source of a plan: the kernel, followed by the filters' transform."""
    # long: a line for each value of the template
    config, problem, f = layout.config, layout.read, transforms(M)
    h, _ = windows(problem)
    planes = not y_channels_last(problem)
    behind = environment().get_template("winograd_fused/filter.cu.j2").render(filters=filters(layout))
    at = partial(element_offset, "n")
    step = h.offsets[1] if len(h.offsets) > 1 else 1
    return render(
        "winograd_fused/kernel.cu.j2",
        replace(plan, behind=f"{behind}\n\n{plan.behind}"),
        config=config,
        layout=layout,
        launch=plan.launch(),
        K=problem.k,
        y=problem.y,
        b_columns=False,
        wide_boxes=False,
        depth=None,
        boxes="R",
        filters_each="a filter row at a time",
        filters_at="i / R * tile_k, k0, i % R * points" + " + rank * (points / cluster)" * (config.cluster > 1),
        prepare=layout.prepared.kernel,
        formula=formula(layout.problem),
        output=(h.output, problem.output[-1]),
        filter_rows=len(h.offsets),
        points=POINTS,
        swizzle_field=swizzle.FIELD[layout.span],
        swizzle_mask=f"0x{swizzle.mask(layout.span):02x}",
        loads=_loads(layout),
        products=layout.last_products,
        phases=[],
        group=None,
        place=_place(layout),
        lane_row=_lane_row(layout),
        row_shift="r" if step == 1 else f"r * {step}",
        inputs=[(i // 2, i % 2 * 2) for i in range(POINTS)],
        transform=[_of_two(f.inputs.row(i), problem.x.dtype) for i in range(POINTS)],
        halves=HALVES[problem.x.dtype],
        outputs=[weighted(f.outputs.row(i), "m[{}][i]") for i in range(M)],
        registers=REGISTERS[config.consumers],
        in_type=problem.x.dtype,
        pack=lowering.PACK[problem.y.dtype],
        epilogue=fragments.of_elements(problem, [c.name for c in layout.arriving]),
        arriving=operand_tiles.text(layout.arriving, STORE_VECTOR, at, single=True, transposed=False),
        stored=stored(layout.store_vector, "channels", at(problem.y), operand_tiles.swizzle(config.tile_n)),
        plane_offset="((n * K + k) * P + p) * Q + q",
        coordinates=("n", *problem.spatial.output, "k"),
        last_pair=fragments.last_pair(problem, "K"),
        k_tail=problem.k % config.tile_n != 0,
        end_k="K",
        filters=None,
        sizes=[],
        counts={"tiles": count("tiles", layout.tiles, "of pixels, all images")},
        planes=planes,
        idle_threads=128 % layout.epi_tile_pixels > 0,
        swizzle=operand_tiles.swizzle(EPI_TILE_PIXELS if planes else config.tile_n),
        window_sum=window_sum(layout.problem, file={"R": len(h.offsets)}),
        look="",
        nan_cause="a transform",
    )


def _of_two(weights: Sequence[Expr], dtype: str) -> str:
    """C text of a row of B^T, from halves of d0 to d3: each is a sum or a difference of two."""
    first, second = sorted((i for i, weight in enumerate(weights) if weight), key=lambda i: -weights[i])
    assert weights[first] == abs(weights[second]) == Rational(1, 2)
    return f"{'sub' if weights[second] < 0 else 'add'}_{dtype}x2(d{first}, d{second})"


def _loads(layout: Layout) -> list[Load]:
    """The phases of a halo tile."""
    h, w = windows(layout.read)
    row = affine("quad0 / quads", 1, h.lower) if layout.line_tiles > 1 else str(h.lower)
    found = []
    for i, phase in enumerate(layout.halo.phases):
        first, start = w.lower + phase.w, "phase_bytes" if i == 1 else f"{i} * phase_bytes" if i else 0
        found.append(Load("a_map", start, affine("q0", 1, first) if layout.strips > 1 else str(first), row))
    return found


def _lane_row(layout: Layout) -> str:
    """C text: the row of a phase, for the first filter row, on which a lane's quad lies; quads past the last row of a
    small image, which are dropped, read the last."""
    row = "lane_quad / quads"
    if layout.line_tiles > 1:
        row += f" - {'tile_quad0' if layout.config.shares > 1 else 'quad0'} / quads"
    spanned, served = layout.lane_rows
    return row if spanned <= served else f"min({row}, {served - 1})"


def _place(layout: Layout) -> Place:
    """Where tiles, and the outputs of an epilogue tile's `line`, are."""
    config = layout.config
    rest = []
    image = "tile / (line_tiles * strips)"
    if layout.strips == 1:
        image = "tile / line_tiles" if layout.line_tiles > 1 else "tile"
    elif layout.line_tiles == 1:
        image = "tile / strips"
    if layout.strips > 1:
        strip = "tile / line_tiles % strips" if layout.line_tiles > 1 else "tile % strips"
        rest.append(f"const int q0 = {strip} * ({QUAD} * quads);")
    rest.append(f"const int n = {image};")
    first = "tile % line_tiles * tile_quads" if layout.line_tiles > 1 else "0"
    tile = [f"const int quad0 = {first};"] if layout.line_tiles > 1 else []
    if config.shares > 1:
        begin = [f"const int tile_quad0 = {first};", f"const int quad0 = tile_quad0 + consumer * {QUADS};"]
        if layout.line_tiles == 1:
            begin = [f"const int quad0 = consumer * {QUADS};"]
    else:
        begin = [f"const int quad0 = {first};"]
    column = "quad % quads * 4 + line / 8 % 2 * 2 + line / wgmma_m"
    pixel = (
        "const int quad = quad0 + line % wgmma_m / warp_rows * 8 + line % 8;",
        "const int p = quad / quads;",
        f"const int q = {'q0 + ' if layout.strips > 1 else ''}{column};",
    )
    n_tail = layout.tiles > layout.own_tiles
    kept = "q < Q && p < P" + " && n < N" * n_tail
    channel_kept = " && k < K" if layout.read.k % config.tile_n else ""
    return Place(tuple(tile + rest), tuple(begin + rest), "", "", pixel, kept, kept + channel_kept, n_tail=n_tail)
