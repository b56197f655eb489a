"""The text of the kernel: finished values and lines for templates/tma_halo/kernel.cu.j2."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial

from convgen.codegen.c_expr import c_expr
from convgen.codegen.render import render
from convgen.ir.index_map import derive, variable
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor
from convgen.kernels.parts import fragments, lowering, operand_tiles, swizzle
from convgen.kernels.parts.counts import Count, count
from convgen.kernels.parts.elementwise import sizes
from convgen.kernels.parts.hopper import COLUMNS_BOX, REGISTERS, products
from convgen.kernels.parts.window_axis import WindowAxis
from convgen.kernels.parts.window_sum import WindowSum, fragment_place, look, window_sum
from convgen.kernels.tma_halo.filters import filters
from convgen.kernels.tma_halo.halo import depth, phased, windows
from convgen.kernels.tma_halo.layout import Layout
from convgen.kernels.tma_halo.maps import a_maps
from convgen.kernels.tma_halo.rings import STORE_VECTOR, stored, y_channels_last

#: Products of the loops over taps that are unrolled: 100 take ptxas 2 s, 196 take 9, and spill where they are more.
MOST_UNROLLED = 64


def source(plan: Plan, layout: Layout) -> str:
    """The CUDA source of a plan."""
    # long: a line for each value of the template
    config, problem = layout.config, layout.read
    _, h, w = layout.windows
    planes = not y_channels_last(problem)
    deep = _depth(problem)
    taps = "T * R * S" if deep and deep.taps > 1 else "R * S"
    tap = f"{taps} - 1 - i % ({taps})" if layout.assigned.mirrored else f"i % ({taps})"
    offset = partial(element_offset, "(n * O + o)" if deep else "n")
    return render(
        "tma_halo/kernel.cu.j2",
        plan,
        config=config,
        layout=layout,
        launch=plan.launch(),
        sizes=list(sizes(problem)),
        counts=counts(layout),
        K=problem.k,
        y=problem.y,
        b_columns=layout.b_columns,
        wide_boxes=layout.b_columns and config.tile_n % COLUMNS_BOX > 0,
        columns_box=COLUMNS_BOX,
        column_boxes=layout.column_boxes,
        depth=deep,
        taps=taps,
        tap=tap,
        boxes="R * S",
        filters_each="tap by tap",
        filters_at=f"i / ({taps}) * tile_k, {tap}, k0",
        prepare=layout.prepared.kernel,
        formula=formula(layout.assigned.problem, layout.strided, layout.assigned.backward),
        output=tuple(window.output for window in windows(problem)),
        filter=(len(h.offsets), len(w.offsets)),
        swizzle_field=swizzle.FIELD[layout.span],
        loads=_loads(layout),
        products=products(config.tile_k),
        rolled=_rolled(layout),
        phases=_phase_table(layout),
        shift=_shift(h, w),
        group=layout.group if problem.groups > 1 else None,
        group_tail=problem.k % layout.group.k > 0,
        joined=layout.halo.width < config.strip + w.reach(),
        place=_place(layout),
        registers=REGISTERS[config.consumers],
        in_type=problem.x.dtype,
        pack=lowering.PACK[problem.y.dtype],
        epilogue=fragments.of_elements(problem, [c.name for c in layout.arriving], [t.name for t in problem.sums]),
        arriving=operand_tiles.text(layout.arriving, STORE_VECTOR, offset, single=True, transposed=config.swap_ab > 0),
        stored=stored(
            layout.store_vector, _channels(layout), offset(problem.y), operand_tiles.swizzle(config.consumer_channels)
        ),
        plane_offset=f"(({'(n * K + k) * O + o' if deep else 'n * K + k'}) * P + p) * Q + q",
        coordinates=("n", *problem.spatial.output, "k", *sizes(problem)),
        last_pair=fragments.last_pair(problem, "K"),
        k_tail=layout.uneven or problem.k % config.own_channels != 0,
        end_k="end_k" if layout.uneven else "K",
        filters=filters(layout) if config.lays_out_filters else None,
        planes=planes,
        idle_threads=128 % layout.epi_tile_pixels > 0,
        swizzle=operand_tiles.swizzle(layout.epi_tile_pixels if planes else config.consumer_channels),
        window_sum=_window_sum(layout) if layout.own_zeros else None,
        look=_look(layout) if layout.own_zeros and not layout.uneven else "",
        nan_cause=_nan_cause(layout),
    )


def _rolled(layout: Layout) -> dict[str, bool]:
    """Which loops over taps are not unrolled: those with more products than ptxas compiles in reasonable time."""
    _, h, w = layout.windows
    of_row = len(w.offsets) * products(layout.config.tile_k)
    return {"r": len(h.offsets) * of_row > MOST_UNROLLED, "s": of_row > MOST_UNROLLED}


def counts(layout: Layout) -> dict[str, Count]:
    """How many tiles there are."""
    images, along = lowering.factor(layout.read.n), {"strips": layout.strips, "line_tiles": layout.line_tiles}
    if layout.config.images > 1:
        images = f"({images} + images - 1) / images"
    planes = ["O"] if layout.read.rank == 3 else []
    of_images = " * ".join([images, *planes, *(name for name, tiles in along.items() if tiles > 1)])
    return {
        "strips": count("strips", layout.strips),
        "line_tiles": count("line_tiles", layout.line_tiles, "tiles down a strip"),
        "tiles": count("tiles", layout.tiles, "of pixels, all images", of_images),
    }


def _nan_cause(layout: Layout) -> str:
    """The zeros in filters that x's elements are multiplied by, for a comment."""
    if not layout.config.lays_out_filters:
        return "a zero after a group's channels"
    folded = "phases" if layout.strided else "folded rows"
    packed = ["packed groups"] if layout.config.group_pack > 1 else []
    return f"a zero between {' or '.join([*packed, *([folded] if layout.config.fold > 1 else [])])}"


def _channels(layout: Layout) -> str:
    """C text: the channels of a consumer that are stored, those past the last left out at once where no other block has
    any."""
    config, problem = layout.config, layout.read
    alone = layout.channel_tiles == config.fold == 1 and config.consumer_channels == config.tile_n
    return "K" if alone and problem.k < config.tile_n and not layout.in_vectors else "channels"


def _window_sum(layout: Layout) -> WindowSum:
    """The sum of a result's element, from the factors as they were given."""
    assigned = layout.assigned
    mirrored, strided = assigned.mirrored, layout.strided
    # where rows are folded, R and S are of the filters that the kernel makes
    file = dict(zip("TRS", (len(w.offsets) for w in layout.windows), strict=True))
    return window_sum(assigned.problem, sizes=sizes(layout.read), mirrored=mirrored, strided=strided, file=file)


def _look(layout: Layout) -> str:
    """C text: whether sum i of a thread tells of a NaN that the filters' zeros have made."""
    config, problem = layout.config, layout.assigned.problem
    reads = _reads(layout)

    def part(k0: int, channel: int) -> set[tuple[int, ...]]:
        """The group and the input rows and columns of a tile's channel, counted from the tile's first ones."""
        folded, k = divmod(channel, config.own_channels)
        return {((k0 + k) // problem.k_per_group, *at) for at in reads[folded]}

    tiles = range(0, layout.group.k, config.own_channels)
    if config.swap_ab:  # a thread has two channels of a pixel
        rows = [first + row for first in range(0, config.tile_n, 16) for row in range(8)]
        threads = [[part(k0, row), part(k0, row + 8)] for k0, row in itertools.product(tiles, rows)]
        return look(threads, "i / 2 % 2")
    threads = [
        [part(k0, column + 2 * lane + e) for column in range(0, config.tile_n, 8) for e in (0, 1)]
        for k0, lane in itertools.product(tiles, range(4))
    ]
    return look(threads, fragment_place(config.tile_n // 4))


def _reads(layout: Layout) -> list[list[tuple[int, int]]]:
    """The input rows and columns that each folded row, or phase, reads."""
    if layout.strided:
        alone: tuple[tuple[int, ...], ...] = ((0,),)
        h_reads, w_reads = [alone] * (2 - layout.read.rank) + [axis.reads for axis in phased(layout.strided)]
        return [list(itertools.product(*along)) for along in itertools.product(h_reads, w_reads)]
    h, _ = windows(layout.read)  # x with its padding, where that is not zeros
    return [[(row * h.stride + offset, 0) for offset in h.offsets] for row in range(layout.config.fold)]


def element_offset(image: str, tensor: Tensor) -> str:
    """C text of where y, or an operand that lies as it does, has its element at (n, p, q, k): `image` is n, or the
    plane of all images' planes."""
    return f"(({image} * P + p) * Q + q) * {tensor.pitch or 'K'} + k"


@dataclass(frozen=True)
class Depth:
    """The third spatial dim: `taps` along it, `output` planes, and as C where the halo tile of step `block` lies."""

    taps: int
    output: int
    at: str


def _depth(problem: ConvProblem) -> Depth | None:
    if problem.rank < 3:
        return None
    d = depth(problem)
    at = affine("o", d.stride, d.lower)
    if len(d.offsets) > 1:
        at += " + block % T" + (f" * {d.offsets[1]}" if d.offsets[1] > 1 else "")
    return Depth(len(d.offsets), d.output, at)


def formula(problem: ConvProblem, strided: ConvProblem | None = None, backward: bool = False) -> str:
    """The convolution as one line; or a dgrad, `backward`, of which it is the assignment: that reads the filter as it
    lies in memory with its channels exchanged and, where it is not `strided`, from the last tap on."""
    sp = problem.spatial
    at = [variable(d, problem.extent(d)) for d in ("n", *sp.output, "k", *sp.filter, "c")]
    maps = derive(problem, at, {v.name: v.symbol for v in at})
    pixel = [c_expr(maps.loop[d], maps.ranges, lowering.symbols(problem)) for d in sp.input]
    if strided:
        axes = zip(sp.output, sp.filter, strided.stride, strided.pad_lo, strided.dilation, strict=True)
        pixel = [
            f"({affine(d, 1, pad)} - {tap}{f' * {dilation}' if dilation > 1 else ''}) / {stride}"
            for d, tap, stride, pad, dilation in axes
        ]
    grouped = problem.groups > 1
    channel = f"k / {problem.k_per_group} * {problem.c_per_group} + c" if grouped else "c"
    x = ", ".join(["n", *pixel, channel])
    tap = [f"{f.upper()} - 1 - {f}" if backward and not strided else f for f in sp.filter]
    w = [channel, *tap, f"k % {problem.k_per_group}" if grouped else "k"] if backward else ["k", *tap, "c"]
    taps = ", ".join(sp.filter)
    return f"y[n, {', '.join(sp.output)}, k] = sum over {taps}, c of x[{x}] * w[{', '.join(w)}]"


def affine(position: str, scale: int, constant: int) -> str:
    text = position if scale == 1 else f"{position} * {scale}"
    return f"{text} {'+' if constant > 0 else '-'} {abs(constant)}" if constant else text


@dataclass(frozen=True)
class Load:
    """A phase of a halo tile: its tensor map, byte of the halo tile (a number, or C text), and start coordinates along
    w and h."""

    map: str
    start: int | str
    w: str
    h: str


def _loads(layout: Layout) -> list[Load]:
    _, h, w = layout.windows
    maps = a_maps(layout)
    return [
        Load(
            maps[phase.height][0],
            phase.name if phase.start else 0,
            affine("q0", w.stride, w.lower + phase.w) if layout.strips > 1 else str(w.lower + phase.w),
            affine("line0 / width", h.stride, h.lower + phase.h) if layout.line_tiles > 1 else str(h.lower + phase.h),
        )
        for phase in layout.halo.phases
    ]


def _phase_table(layout: Layout) -> list[list[int | str]]:
    """Where phase (a, b) starts in a halo tile; 0 for one that no tap needs.  Empty where there is one phase."""
    _, h, w = layout.windows
    if h.stride == w.stride == 1:
        return []
    starts = {(phase.h, phase.w): phase.name for phase in layout.halo.phases if phase.start}
    return [[starts.get((a, b), 0) for b in range(w.stride)] for a in range(h.stride)]


def _shift(h: WindowAxis, w: WindowAxis) -> str:
    """Bytes from a pixel of a halo tile to the pixel that tap (r, s) reads for it."""
    r, s = h.offset_of("r"), w.offset_of("s")
    if h.stride == w.stride == 1:
        return f"({r} * width + {s}) * row_bytes"
    rows, columns = (f"{tap} / {window.stride}" if window.stride > 1 else tap for window, tap in ((h, r), (w, s)))
    phase = "".join(f"[{tap} % {window.stride}]" if window.stride > 1 else "[0]" for window, tap in ((h, r), (w, s)))
    return f"phases{phase} + ({rows} * width + {columns}) * row_bytes"


@dataclass(frozen=True)
class Place:
    """C text of coordinates: a tile's for the producer and for a consumer (line0, q0, n), the consumer's first pixel in
    the halo tile, what to add to its pixels for a `line`, the output pixel of a `line`, whether it is kept, and whether
    its channel is, too; whether images past the last have to be left out."""

    tile: tuple[str, ...]
    consumer_tile: tuple[str, ...]
    first: str
    origin: str
    pixel: tuple[str, ...]
    pixel_kept: str
    kept: str
    n_tail: bool


def _place(layout: Layout) -> Place:
    problem, config = layout.read, layout.config
    strips, line_tiles, image_pixels = layout.strips, layout.line_tiles, layout.halo.image
    line0 = "tile % line_tiles * tile_pixels" if line_tiles > 1 else ""
    image = "tile / (line_tiles * strips)"
    if strips == 1:
        image = "tile / line_tiles" if line_tiles > 1 else "tile"
    elif line_tiles == 1:
        image = "tile / strips"
    q0 = "tile / line_tiles % strips * strip" if line_tiles > 1 else "tile % strips * strip"
    rest = [f"const int q0 = {q0};"] if strips > 1 else []
    n = "n0" if config.images > 1 else "plane" if problem.rank == 3 else "n"
    rest.append(f"const int {n} = {image}{' * images' if config.images > 1 else ''};")
    if problem.rank == 3:
        rest += ["const int n = plane / O;", "const int o = plane % O;"]
    tile = [f"const int line0 = {line0};"] if line0 else []
    if not config.swap_ab and config.shares > 1:
        first = "(line0 - tile_line0 / width * width)" if line0 else "line0"
        begin = [f"const int tile_line0 = {line0};"] if line0 else []
        begin.append(f"const int line0 = {'tile_line0 + ' if line0 else ''}consumer * pixels;")
    else:
        begin, first = tile, "line0 % width" if line0 else ""
    line = "line % image_pixels" if config.images > 1 else "line"
    column = "line % width"
    row, at_column = f"{line} / width", f"{'q0 + ' if strips > 1 else ''}{column}"
    if layout.strided:
        phase = "channel / own_channels"
        row += f" * phase_rows + {phase} / phase_columns"
        at_column = f"({at_column}) * phase_columns + {phase} % phase_columns"
    elif config.fold > 1:
        row += " * fold + channel / own_channels"
    pixel = [f"const int p = {row};", f"const int q = {at_column};"]
    kept = ["q < Q", "p < P"]
    if strips > 1:
        whole = problem.output[-1] % (config.strip * layout.folds[1]) == 0
        kept = [f"{column} < strip", "p < P"] if whole else [f"{column} < strip", *kept]
    if config.images > 1:
        pixel = ["const int n = n0 + line / image_pixels;", *pixel]
        if config.tile_m > config.images * image_pixels:
            kept.append("line < images * image_pixels")
        if problem.n % config.images:
            kept.append("n < N")
    channel_kept = ["k < end_k"] if layout.uneven else ["k < K"] if problem.k % config.own_channels else []
    origin = "line0 + " if begin else ""
    return Place(
        tuple(tile + rest), tuple(begin + rest), first, origin, tuple(pixel),
        " && ".join(kept), " && ".join(kept + channel_kept), n_tail="n < N" in kept,
    )  # fmt: skip
