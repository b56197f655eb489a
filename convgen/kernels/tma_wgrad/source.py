"""The text of the kernel: finished values and lines for templates/tma_wgrad/kernel.cu.j2."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer

from convgen.codegen.c_expr import c_expr
from convgen.codegen.render import render
from convgen.ir.index_map import decompose, derive, variable
from convgen.ir.plan import Plan
from convgen.kernels.parts import gradient, lowering, swizzle
from convgen.kernels.parts.constants import Constants, extent_name, walk_name
from convgen.kernels.parts.hopper import register_split
from convgen.kernels.parts.window_axis import WindowAxis
from convgen.kernels.parts.window_sum import filter_sum
from convgen.kernels.tma_wgrad.ends import a_boxes
from convgen.kernels.tma_wgrad.layout import A_SPAN, ELEMENT, Layout

#: A test that every tile passes.  Without any, ptxas moves the conversions of single sums in between the MMAs, and
#: serializes these (C7514).
EVERY_TILE = "tile < tiles"


def source(plan: Plan, layout: Layout) -> str:
    """The CUDA source of a plan."""
    config, g = layout.config, layout.gemm
    problem, sp = g.problem, g.problem.spatial
    stored = gradient.stored(layout, bool(config.lower_rows))
    constants = Constants()
    tests = _tests(layout)
    start = {} if g.pointwise else _start(layout, constants)
    tap_offsets = _tap_offsets(layout, constants)
    part_place = _part_place(layout, constants) if config.halo else []
    return render(
        "tma_wgrad/kernel.cu.j2",
        plan,
        config=config,
        layout=layout,
        launch=plan.launch(),
        one=gradient.ones(problem.x.dtype),
        y_sum_parts=layout.shares * layout.y_parts,
        y_sum=gradient.y_sum(layout.problem),
        prepare=g.prepared.kernel,
        gemm=g,
        a_span=A_SPAN,
        a_row_bytes=A_SPAN * ELEMENT,
        ones_words=layout.ones // 4,
        consumers_m=config.warps_m // 4,
        own_fragments=config.own_rows // 64,
        swizzle_field=swizzle.FIELD[layout.span],
        registers=register_split(config.consumers, config.blocks),
        rank=problem.rank + 2,
        place=_place(layout),
        start=start,
        extents=constants.all,
        x_at=[lowering.coordinate_name(d) for d in sp.input],
        offsets=tap_offsets,
        tap_offsets=", ".join([*_phase_offsets(layout), *(f"offset_{f}" for f in reversed(_apart(layout)))]),
        walk=_walk(layout),
        part_place=part_place,
        in_type=problem.x.dtype,
        a_boxes=a_boxes(layout),
        n_tail=layout.n_tail,
        c_tail=layout.c_tail,
        tests=tests,
        counts_tiles=tests.each == EVERY_TILE and not stored.pair,
        stored=stored,
        joined=stored.four and layout.store_columns % 16 == 0 and problem.c_per_group >= min(16, g.channels),
        sum=gradient.gradient_sum(plan, layout),
        zeros=gradient.zeros(plan, layout),
        factors=layout.factors,
        filter_sum=filter_sum(layout.problem, constants.mentioned) if layout.own_zeros else None,
        nan_cause=layout.nan_cause,
    )


def _apart(layout: Layout) -> tuple[str, ...]:
    """The filter's axes whose taps are loaded separately."""
    filter = layout.gemm.problem.spatial.filter
    return filter[: len(filter) - layout.shared_axes]


@dataclass(frozen=True)
class TapOffset:
    """Where taps' pixels lie along an axis of the filter: `step` pixels apart; C text of how many taps there are, empty
    for the outermost axis."""

    dim: str
    extent: str
    step: int


def _tap_offsets(layout: Layout, constants: Constants) -> list[TapOffset]:
    problem = layout.gemm.problem
    return [
        TapOffset(f, constants.extent(f, problem.extent(f)) if i else "", axis.offset_step)
        for i, (f, axis) in enumerate(zip(_apart(layout), layout.gemm.axes, strict=False))
    ]


def _phase_offsets(layout: Layout) -> list[str]:
    """C text of a phase's offset, added to the start of a load of x along the axes whose taps share it, innermost
    first."""
    h, w = (len(axis.phases) for axis in layout.windows)
    offsets = {
        "w": f"phase % {w}" if h > 1 and w > 1 else "phase" if w > 1 else "0",
        "h": f"phase / {w}" if h > 1 and w > 1 else "phase" if h > 1 else "0",
    }
    return [f"u16({offsets[axis]})" for axis in "wh"[: layout.shared_axes]]


def _walk(layout: Layout) -> str:
    """How y is walked where taps share a box of x, in words."""
    shared = layout.shared_axes
    axes = list(zip(("rows", "images"), layout.gemm.windows[::-1][:shared], ("pixels", "rows"), strict=False))
    longer = [f"{w.pitch} {parts}, not {w.output}" for _, w, parts in axes if w.pitch > w.output]
    whose = [what for what, w, _ in axes if w.pitch > w.output]
    if not longer:
        return "as it lies, since neighbors share their padding"
    said = f"as if its {whose[0]} had {longer[0]}" + "".join(f", and its {whose[1]} {more}" for more in longer[1:])
    return f"{said}; y is zero in between"


def _part_place(layout: Layout, constants: Constants) -> list[str]:
    """Lines that find where a part of a tile's columns begins in x: after the boxes before, the phase of its tap and
    the shift in it."""
    h, w = layout.windows
    rows, columns = ([1, *layout.taps])[-2:]
    r, s = constants.extent("r", rows), constants.extent("s", columns) if layout.tap_parts else ""

    def parted(tap: str, axis: WindowAxis) -> tuple[str, str]:
        """A tap's phase and shift."""
        offset = axis.offset_of(tap)
        phase = f"{offset} % {axis.stride}" if len(axis.phases) > 1 else ""
        return phase, f"{offset} / {axis.stride}" if axis.stride > 1 else offset

    of_box, row_part = r, "part"
    lines: list[str] = []
    if layout.tap_parts:
        of_box, row_part = f"({r} * {s})" if rows > 1 else s, f"part / {s}"
        lines.append(f"const int s = part % {s};")
    if rows > 1:
        lines.insert(0, f"const int r = {row_part} % {r};")
    row_phase, row_shift = parted("r", h) if rows > 1 else ("", "")
    column_phase, column_shift = parted("s", w) if layout.tap_parts else ("", "")
    if row_phase and column_phase:
        row_phase += f" * {len(w.phases)}"
    phase = " + ".join(filter(None, (row_phase, column_phase)))
    shift = " + ".join(filter(None, (row_shift and f"{row_shift} * row_pixels", column_shift)))
    box = (f"part / {of_box} * b_box_room" if of_box != "1" else "part * b_box_room") if layout.tile_boxes > 1 else ""
    terms = (box, phase and f"({phase}) * b_phase_room", shift and f"({shift}) * b_row_bytes")
    return [*lines, f"return {' + '.join(filter(None, terms)) or '0'};"]


@dataclass(frozen=True)
class Tests:
    """C text of the conditions under which sums are elements of w, empty if all are: for a row; for a sum that is
    checked; for neighbors that are stored at once; for each of two."""

    row: str
    sum: str
    neighbors: str
    each: str


def _tests(layout: Layout) -> Tests:
    g = layout.gemm
    in_pack = "k - pack * GEMM_M" if g.packs > 1 else "k"
    last = ["k < K"] * g.last_fewer
    row = [f"{in_pack} < GEMM_M"] * (g.rows % layout.config.tile_m != 0) + last
    kept = last if g.group_pack > 1 else row  # a row whose group is that of a channel is one of the pack's

    converts = layout.stores_w and layout.problem.w.dtype != "f32"

    def within(channel: str) -> list[str]:
        return [f"{channel} < x_channels"] * layout.c_tail

    def own(channel: str) -> list[str]:
        return [f"({in_pack}) / group_m == {channel} / group_channels"] * (g.group_pack > 1)

    found = (
        row,
        ["box < boxes"] * layout.n_tail + kept + within("channel") + own("channel"),
        kept + (within("channel") + own("channel") if g.group_pack > 1 else within("c")),
        kept + within("channel + e") + own("(channel + e)") or [EVERY_TILE] * converts,
    )
    return Tests(*map(" && ".join, found))


def _place(layout: Layout) -> list[str]:
    """Lines that find a block's tile, and the first of its boxes and of y's channels.  Neighbors in a cluster have the
    shared operand in common."""
    split, packs = layout.config.split_k, layout.gemm.packs > 1
    tile = f"blockIdx.x / {split}" if split > 1 else "int(blockIdx.x)"
    inner, outer = ("n_tiles", "m_tiles") if layout.config.shared == "a" else ("m_tiles", "n_tiles")
    place = {inner: f"tile % {inner}", outer: f"tile / {inner}{f' % {outer}' if packs else ''}"}
    return [
        f"const int tile = {tile};",
        *(["const int pack = tile / (m_tiles * n_tiles);"] if packs else []),
        f"const int first_box = {place['n_tiles']} * tile_boxes;",
        f"const int first_k = {'pack * GEMM_M + ' if packs else ''}{place['m_tiles']} * tile_m;",
    ]


def _start(layout: Layout, constants: Constants) -> dict[str, str]:
    """C text of where a step's walks begin, from its first `pixel`: x's coordinates, and y's if it is walked, too."""
    problem, sp = layout.gemm.problem, layout.gemm.problem.spatial
    walked = dict(zip(sp.output, layout.gemm.walked(layout.shared_axes), strict=True))
    pixel = variable("pixel", layout.pixels)
    extents = {d: walked.get(d) or problem.extent(d) for d in ("n", *sp.output)}
    as_y = all(problem.extent(d) == extents[d] for d in sp.output)
    names = constants.of_index(("n", *sp.output), extents.__getitem__, extent_name if as_y else walk_name)
    loop = decompose(pixel.symbol, ("n", *sp.output), lambda d: Integer(extents[d]))
    taps = {f: Integer(0) for f in sp.filter}
    at = derive(problem, (pixel,), loop | taps | {"c": Integer(0), "k": Integer(0)}).simplified().loop
    return {
        lowering.coordinate_name(d): c_expr(at[d], {pixel.symbol: (0, pixel.extent - 1)}, names=names)
        for d in ("n", *(sp.output if layout.shared_axes else ()), *sp.input)
    }
