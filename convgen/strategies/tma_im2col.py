"""tma_im2col: fprop as an implicit GEMM on Hopper, fed by TMA's im2col mode.

gemm_m runs over output pixels (n, p, q), gemm_n over output channels, gemm_k over taps and channels.
One producer thread asks TMA for a tile of x (a walk of the im2col box, shifted by the tap) and a tile of
w for each k step; consumer warpgroups multiply them with wgmma; a tile of y leaves through shared memory
and a TMA store.  Blocks are persistent: each takes tiles until none is left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sympy import Integer

from convgen.codegen.c_expr import c_expr
from convgen.codegen.render import render
from convgen.ir.index_map import decompose, derive, tma_axes, variable
from convgen.ir.plan import Launch, Param, Plan, TensorMap, Workspace
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.strategies import cost, fragments, prepare
from convgen.strategies.base import Obstacle, Option, Options
from convgen.targets import Target

# --- facts -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Im2colLimits:
    """Ranges of an im2col tensor map by rank (CUDA driver API, cuTensorMapEncodeIm2col; PTX ISA, im2col offsets)."""

    corner_low: int
    corner_high: int
    offset_high: int


LIMITS: dict[int, Im2colLimits] = {
    3: Im2colLimits(-32768, 32767, 65535),
    4: Im2colLimits(-128, 127, 255),
    5: Im2colLimits(-16, 15, 31),
}
MAX_ELEMENT_STRIDE = 8
ROW_ALIGNMENT = 16  # bytes: strides of a tensor map
LARGEST_TILE = 256  # pixels
#: wgmma's smem descriptor: swizzle span in bytes -> value of its field.
SWIZZLE_FIELD = {128: 1, 64: 2, 32: 3, 0: 0}


@dataclass(frozen=True)
class RegisterSplit:
    """Registers a thread after setmaxnreg, for a number of consumer warpgroups at one block a
    multiprocessor.  Producer plus consumers never exceed what the launch has: a kernel that asks for
    more waits for ever.  None: the launch's own registers do."""

    producer: int
    consumer: int


REGISTERS: dict[int, RegisterSplit | None] = {1: None, 2: RegisterSplit(40, 232), 3: RegisterSplit(32, 160)}


def register_split(consumers: int, blocks: int) -> RegisterSplit | None:
    return REGISTERS[consumers] if blocks == 1 else None


def block_threads(consumers: int, blocks: int = 1) -> int:
    """Threads of a block: the consumers' warpgroups, then a warp for the producer, which setmaxnreg asks to be a
    warpgroup of its own."""
    return 128 * consumers + (128 if register_split(consumers, blocks) else 32)


def launch_registers(target: Target, threads: int, blocks: int) -> int:
    """Registers a thread that ptxas has for a launch: the warps of a multiprocessor's blocks share them, in fours,
    one for each of its quarters."""
    fours = -(-(threads // 32 * blocks) // 4)
    return min(target.registers_per_sm // (128 * fours) // 8 * 8, 255)


# --- configuration -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TmaIm2colConfig:
    """Tile in GEMM terms (m pixels, n output channels, k channels of a tap), pipeline stages, consumer
    warpgroups, and how they share the work: `cooperative` consumers split a tile's rows, `pingpong`
    consumers take whole tiles in turn, one multiplying while the other stores.

    `rows` says what wgmma's m runs over: `pixels`, 64 at a time, with 8 to 256 channels as its n, or
    `channels`, 64 at a time, with 16 to 256 pixels: tiles that fit the number of multiprocessors better.
    `stream` deals out all k steps of all tiles evenly, and a second kernel finishes the tiles that blocks share.
    The blocks of a `cluster` take neighbouring tiles that have pixels (`shares` x) or channels (w) in common,
    and TMA brings those to all of them at once.  `raster` pixel tiles go with all channels before the next."""

    m: int
    n: int
    k: int
    stages: int
    consumers: int
    schedule: str
    order: str
    blocks: int
    merge: int
    split: int
    rows: str
    cluster: int
    shares: str
    raster: int
    stream: int
    bundle: int

    @property
    def options(self) -> Options:
        """The options that ask for exactly this configuration."""
        return {
            "tile.m": self.m, "tile.n": self.n, "tile.k": self.k, "stages": self.stages,
            "consumers": self.consumers, "schedule": self.schedule, "order": self.order,
            "blocks": self.blocks, "merge": self.merge, "split": self.split,
            "rows": self.rows, "cluster": self.cluster, "shares": self.shares, "raster": self.raster,
            "stream": self.stream,
            "bundle": self.bundle,
        }  # fmt: skip

    @property
    def shared(self) -> str:
        """The operand that a cluster's blocks load together: "x", "w", or "" for none."""
        return self.shares if self.cluster > 1 else ""

    @property
    def by_channels(self) -> bool:
        return self.rows == "channels"

    @property
    def own_rows(self) -> int:
        """Rows of a consumer's accumulators."""
        rows = self.n if self.by_channels else self.m
        return rows if self.schedule == "pingpong" else rows // self.consumers

    @property
    def columns(self) -> int:
        """Columns of the accumulators: wgmma's n."""
        return self.m if self.by_channels else self.n

    def __str__(self) -> str:
        blocks = f", {self.blocks} blocks a multiprocessor" if self.blocks > 1 else ""
        blocks += f", {self.merge} k steps a stage" if self.merge > 1 else ""
        blocks += f", k split over {self.split} blocks" if self.split > 1 else ""
        blocks += ", m runs over channels" if self.by_channels else ""
        blocks += f", {self.cluster} blocks share {self.shares}" if self.shared else ""
        blocks += f", {self.raster} pixel tiles together" if self.raster > 1 else ""
        blocks += ", k steps shared evenly" if self.stream else ""
        blocks += f", {self.bundle} groups as one" if self.bundle > 1 else ""
        return (
            f"tile {self.m}x{self.n}x{self.k}, {self.stages} stages, {self.consumers} {self.schedule} "
            f"consumer{'s' if self.consumers > 1 else ''}, {self.order}{blocks}"
        )


OPTIONS = (
    Option("tile.m", "output pixels a tile", choices=tuple(range(16, 257, 16))),
    Option("tile.n", "output channels a tile", choices=tuple(range(8, 257, 8))),
    Option("tile.k", "channels a k step: the swizzle span (16, 32, 64 for 2-byte types)", choices=(16, 32, 64)),
    Option("stages", "k steps in flight", 2, 32),
    Option("consumers", "consumer warpgroups", 1, 3),
    Option("schedule", "how consumers share the work", choices=("cooperative", "pingpong")),
    Option("order", "what the k loop runs over inside", choices=("channels_inner", "taps_inner")),
    Option("blocks", "blocks a multiprocessor", 1, 4),
    Option("merge", "k steps that share a stage: for few channels", 1, 64),
    Option("split", "blocks of a cluster that share a tile's k steps, summed in a fixed order", choices=(1, 2, 4, 8)),
    Option("rows", "what wgmma's m runs over", choices=("pixels", "channels")),
    Option("cluster", "blocks of neighbouring tiles that load an operand together", choices=(1, 2, 4)),
    Option("shares", "the operand that they load together", choices=("x", "w")),
    Option("raster", "pixel tiles that go with all output channels before the next", 1, 64),
    Option("stream", "1: blocks share all k steps evenly; a second kernel finishes the tiles in parts", choices=(0, 1)),
    prepare.BUNDLE,
)


@dataclass(frozen=True)
class Footprint:
    """Shared memory of a configuration, in bytes.  A box is one TMA load; a stage holds `merge` of each."""

    x_box: int
    w_box: int
    stage: int
    chunk_m: int
    chunk_n: int
    chunk: int
    aligned: bool  # the chunks start at the next 1024 bytes
    partials: int
    total: int


def footprint(problem: ConvProblem, config: TmaIm2colConfig) -> Footprint:
    span = config.k * problem.x.element.bytes
    x_box, w_box = config.m * span, config.n * span
    stage = config.merge * (x_box + w_box)
    # the output leaves in chunks, one swizzle span wide, two a consumer: 64 pixels by up to 64 channels, or up to
    # 64 pixels by 64 channels
    columns = config.columns // config.split
    if config.by_channels:
        chunk_m, chunk_n = max(d for d in (16, 32, 48, 64) if columns % d == 0 or d == 16), 64
    else:
        chunk_m, chunk_n = 64, next(c for c in (64, 32, 16, 8, 1) if columns % c == 0)
    chunk = chunk_m * chunk_n * 2 if stores_by_tma(problem) or plane(problem) else 0
    stages = config.stages * stage
    aligned = plane(problem) > 0 or (chunk > 0 and config.by_channels and stages % 1024 > 0)
    partials = config.m * config.n * 4 // config.split * (config.split - 1)
    barriers = 16 * config.stages + 16 + 8 * config.consumers
    # 1024 to align the base
    total = 1024 + stages + 1024 * aligned + 2 * config.consumers * chunk + partials + barriers
    return Footprint(x_box, w_box, stage, chunk_m, chunk_n, chunk, aligned, partials, total)


def stores_by_tma(problem: ConvProblem) -> bool:
    """Whether a tile of y can leave by TMA stores: channels innermost, pixels in order, rows aligned; or planes,
    where 64 pixels are never of two images."""
    y = problem.y
    if pixels := plane(problem):
        return pixels % 64 == 0 or x_in_planes(problem)
    in_order = tuple(d for d in ("n", *problem.spatial.output, "k") if d in y.dims)
    return y.dims == in_order and y.element.bytes == 2 and problem.k * 2 % ROW_ALIGNMENT == 0


def plane(problem: ConvProblem) -> int:
    """The pixels of an image where they are neighbours in y, channels outside of them; else 0."""
    y, pixels = problem.y, math.prod(problem.output)
    order = [d for d in ("n", "k", *problem.spatial.output) if y.extent(d) > 1]
    in_order = [d for d in y.dims if y.extent(d) > 1] == order
    return pixels if in_order and y.element.bytes == 2 and pixels > 1 and problem.k > 1 else 0


def x_in_planes(problem: ConvProblem) -> bool:
    """Whether x is multiplied as it lies, in planes: an image is the matrix [channels, pixels] already."""
    x, pixels = problem.x, plane(problem)
    order = [d for d in ("n", "c", *problem.spatial.input) if x.extent(d) > 1]
    in_order = [d for d in x.dims if x.extent(d) > 1] == order
    return is_pointwise(problem) and in_order and pixels > 0 and pixels % 8 == problem.c % 8 == 0


def m_tiles(problem: ConvProblem, m: int) -> int:
    """Tiles of m pixels; where x is in planes, of one image each."""
    if x_in_planes(problem):
        return problem.n * -(-plane(problem) // m)
    return -(-problem.output_pixels // m)


def is_pointwise(problem: ConvProblem) -> bool:
    """1x1, unit stride, no padding: x is a matrix already, and a plain tiled map serves."""
    return problem.taps == 1 and set(problem.stride) == {1} and not any((*problem.pad_lo, *problem.pad_hi))


# --- the strategy ------------------------------------------------------------------------------------


def _memory_order(tensor: Tensor, dims: tuple[str, ...]) -> bool:
    return tensor.dims == tuple(d for d in dims if d in tensor.dims)


class TmaIm2col:
    name = "tma_im2col"
    summary = "implicit GEMM on TMA im2col loads and wgmma: warp-specialised, persistent, any layout (sm_90a)"
    options = OPTIONS

    def obstacles(self, problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
        found: list[Obstacle] = []

        def no(message: str, hint: str = "", option: str = "") -> None:
            found.append(Obstacle(message, hint, option))

        x, w = problem.x, problem.w
        if "wgmma" not in target.features:
            no(f"target {target} has no wgmma", "target sm_90a has it")
        if problem.op is not Op.FPROP:
            no(f"op {problem.op} is not served yet, fprop alone", "strategy direct or im2col serves it")
        found += prepare.bundle_obstacle(problem, options)
        if not (x.dtype == w.dtype and x.dtype in ("f16", "bf16")):
            no(f"types {x.dtype} x {w.dtype}: x and w must both be f16 or bf16")
        if problem.accumulate != "f32":
            no(f"accumulate {problem.accumulate}: f32 alone")
        if problem.y.dtype not in ("f16", "bf16", "f32"):
            no(f"output type {problem.y.dtype}: f16, bf16 or f32")
        if problem.output_pixels + LARGEST_TILE >= 2**31:
            no(f"{problem.output_pixels} output pixels do not fit 32 bits, counted by whole tiles",
               "strategy direct counts in 64")  # fmt: skip
        if problem.op is Op.FPROP:
            found += _map_obstacles(problem)
        if not found:
            config = choose(problem, target, options)
            found += _illegal(_prepared(problem, config.bundle).problem, target, config)
        return found

    def candidates(self, problem: ConvProblem, target: Target) -> list[Options]:
        """Configurations worth measuring, the most promising first."""
        return [c.options for c in _ranked(problem, target, ())[:40]]

    def estimate(self, problem: ConvProblem, target: Target, options: Options) -> float:
        """Microseconds, by the cost model."""
        return estimate(problem, target, choose(problem, target, options))

    def plan(self, problem: ConvProblem, target: Target, options: Options) -> Plan:
        config = choose(problem, target, options)
        given, prepared = problem, _prepared(problem, config.bundle)
        problem = prepared.problem
        prefix = f"convgen_{problem.name}"
        size = footprint(problem, config)
        params = [
            Param("x_map", "tensor_map", "x", _x_map(problem, config)),
            Param("w_map", "tensor_map", "w", _w_map(problem, config)),
        ]
        if stores_by_tma(problem):
            params.append(Param("y_map", "tensor_map", "y", _y_map(problem, size)))
        else:
            params.append(Param("y", "pointer", "y"))
        params += [Param(f"operand_{t.name}", "pointer", t.name) for t in problem.operands]
        blocks = _tiles(problem, config) * config.split
        workspaces = prepared.workspaces
        if config.stream:
            blocks = min(target.sms, blocks * _steps(problem, config))
            parts = Param("partials", "pointer", "workspace.partials")
            workspaces = (*workspaces, Workspace("workspace.partials", 2 * blocks * config.m * config.n * 4))
            params.insert(len(params) - len(problem.operands), parts)
        launch = Launch(
            entry=prefix,
            grid=(blocks, 1, 1),
            block=block_threads(config.consumers, config.blocks),
            params=prepared.params(params),
            shared_bytes=size.total,
            cluster=config.split * config.cluster,
            persistent=not config.stream,  # the second kernel must know how many blocks there are
            dependent=True,
            blocks_per_sm=config.blocks,
        )
        steps: tuple[Launch, ...] = (*prepared.launches(), launch)
        if config.stream:
            operands = (Param(f"operand_{t.name}", "pointer", t.name) for t in problem.operands)
            finish = Launch(
                entry=f"{prefix}_finish",
                grid=(max(blocks - 1, 1), config.m * config.n // (64 * config.columns), 1),
                block=128,
                params=(parts, Param("y", "pointer", "y"), *operands),
                dependent=True,
            )
            steps = (*steps, finish)
        notes = prepared.notes + ((prepare.SPREADS,) if config.bundle > 1 else ())
        return Plan(given, target, self.name, config, steps, workspaces, notes=notes)

    def render(self, plan: Plan) -> str:
        config = plan.config
        assert isinstance(config, TmaIm2colConfig)
        prepared = _prepared(plan.problem, config.bundle)
        problem = prepared.problem
        sp = problem.spatial
        size = footprint(problem, config)
        m0 = variable("first_m" if config.shared == "x" else "m0", problem.output_pixels)
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
            start=first,
            w_taps_outside=_taps_outside(problem),
            gemm_m=problem.output_pixels,
            gemm_n=problem.k,
            group=prepare.group(problem),
            c_blocks=-(-problem.c_per_group // config.k),
            m_tail=_pixels_together(problem) % (config.m * (config.cluster if config.shared == "w" else 1)) != 0,
            x_planes=x_in_planes(problem),
            n_tail=problem.k % (config.n * (config.cluster if config.shared == "x" else 1)) != 0,
            registers=register_split(config.consumers, config.blocks),
            rows_per_consumer=config.own_rows,
            columns_n=config.columns,
            shares=config.shared,
            place=_place(problem, config, pixels=finds_pixels),
            finds_pixels=finds_pixels,
            own_place=_place(problem, config, own=True),
            fragment_place=_place(problem, config, own=True, rows="blockIdx.y * 64"),
            in_type=problem.x.dtype,
            by_tma=stores_by_tma(problem),
            plane=plane(problem),
            plane_vector=math.gcd(plane(problem), 8),
            y=problem.y,
            epilogue=fragments.of_gemm_elements(problem) if config.by_channels else fragments.of_pairs(problem),
            load_early=_loads_early(problem, config, plan.target),
            last_pair=fragments.last_pair(problem),
            pack=fragments.PACK.get(problem.y.dtype),
            store=fragments.store(problem),
        )


def _prepared(problem: ConvProblem, bundle: int) -> prepare.Prepared:
    """The problem as the kernel reads it."""
    return prepare.channels_last(problem, copy_x=not x_in_planes(problem), bundle=bundle)


def _tiles(problem: ConvProblem, config: TmaIm2colConfig) -> int:
    """Tiles, counted by whole clusters."""
    m = config.m * (config.cluster if config.shared == "w" else 1)
    n = config.n * (config.cluster if config.shared == "x" else 1)
    return m_tiles(problem, m) * -(-problem.k // n) * config.cluster


def _pixels_together(problem: ConvProblem) -> int:
    """Pixels that tiles cut up as one row: those of an image where x is in planes, else all."""
    return plane(problem) if x_in_planes(problem) else problem.output_pixels


def _steps(problem: ConvProblem, config: TmaIm2colConfig) -> int:
    """Stages of k in a tile."""
    return problem.taps * -(-problem.c_per_group // config.k) // config.merge


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


def _accumulators(config: TmaIm2colConfig) -> int:
    """Accumulators of a consumer's thread."""
    return config.own_rows // 64 * config.columns // 2


def _registers(config: TmaIm2colConfig, target: Target) -> int:
    """Registers that a consumer's thread may use."""
    split = register_split(config.consumers, config.blocks)
    threads = block_threads(config.consumers, config.blocks)
    return split.consumer if split else launch_registers(target, threads, config.blocks)


def _loads_early(problem: ConvProblem, config: TmaIm2colConfig, target: Target) -> bool:
    """Whether registers are left, beside the accumulators, for the channels' operands during the k loop."""
    operands = sum(t.dims == ("k",) for t in problem.operands)
    sums = _accumulators(config) // config.split if config.split > 1 else 0
    values = config.own_rows // 32 if config.by_channels else config.n // config.split // 4
    return _accumulators(config) + sums + operands * values + 48 <= _registers(config, target)


def _affine(base: int, step: int, name: str) -> str:
    text = name if step == 1 else f"{step} * {name}"
    if step == -1:
        return f"{base} - {name}"
    return f"{base} + {text}" if base else text


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


def _taps_outside(problem: ConvProblem) -> bool:
    return problem.w.dims[0] != "k" and problem.taps > 1


def _map_obstacles(problem: ConvProblem) -> list[Obstacle]:
    """What the im2col tensor map cannot express."""
    found: list[Obstacle] = []
    if is_pointwise(problem):
        return found
    rank = problem.rank + 2
    limits = LIMITS[rank]
    for axis, taps in zip(tma_axes(problem), problem.filter, strict=True):
        if axis.element_stride > MAX_ELEMENT_STRIDE:
            found.append(
                Obstacle(
                    f"stride {axis.dim}={axis.element_stride} is above a tensor map's {MAX_ELEMENT_STRIDE}",
                    "strategy implicit_gemm or direct serves any stride",
                )
            )
        for name, corner in (("lower", axis.lower), ("upper", axis.upper)):
            if not limits.corner_low <= corner <= limits.corner_high:
                found.append(
                    Obstacle(
                        f"the im2col box's {name} corner on {axis.dim} is {corner}; "
                        f"rank {rank} allows [{limits.corner_low}, {limits.corner_high}]",
                        "less padding or dilation, or strategy implicit_gemm or direct",
                    )
                )
        furthest = axis.offset(taps - 1)
        if furthest > limits.offset_high:
            found.append(
                Obstacle(
                    f"the last tap on {axis.dim} is {furthest} pixels away; rank {rank} allows {limits.offset_high}",
                    "a smaller dilation, or strategy implicit_gemm or direct",
                )
            )
    return found


def _illegal(problem: ConvProblem, target: Target, config: TmaIm2colConfig) -> list[Obstacle]:
    """What a configuration asks for that the hardware does not have."""
    found: list[Obstacle] = []

    def no(message: str, hint: str = "", option: str = "") -> None:
        found.append(Obstacle(message, hint, option))

    pingpong = config.schedule == "pingpong"
    if pingpong and config.consumers == 1:
        no("schedule pingpong needs 2 or 3 consumers", "consumers 2", "schedule")
    rows, axis = (config.n, "n") if config.by_channels else (config.m, "m")
    share = 64 * (1 if pingpong else config.consumers)
    if rows % share:
        each = "" if pingpong else f" for each of {config.consumers} consumers"
        no(f"tile {axis}={rows} does not split into 64 rows{each}", f"{axis}={share} or a multiple", f"tile.{axis}")
    if config.by_channels and plane(problem):
        no("rows channels is not served where channels lie outside of the pixels of y", "rows pixels", "rows")
    accumulators, budget = _accumulators(config), _registers(config, target) - 40
    # ptxas compiles a wgmma with the registers of the launch, before setmaxnreg gives more
    at_launch = launch_registers(target, block_threads(config.consumers, config.blocks), config.blocks) - 28
    if config.columns // 2 > at_launch:
        axis = "m" if config.by_channels else "n"
        no(f"tile {axis}={config.columns} with {config.consumers} consumers: ptxas has {at_launch + 28} registers for "
           f"it", f"{axis}={at_launch * 2 // 16 * 16} or less", f"tile.{axis}")  # fmt: skip
    if accumulators > budget:
        no(
            f"tile {config.m}x{config.n} keeps {accumulators} accumulators a thread; "
            f"{config.consumers} consumers leave {max(budget, 0)} registers for them",
            "a smaller tile, or more cooperative consumers",
            "tile.n",
        )
    if problem.groups > 1 and problem.k_per_group % config.n:
        no(f"tile n={config.n} does not divide the {problem.k_per_group} output channels of a group", option="tile.n")
    if problem.groups > 1 and problem.c_per_group % config.k:
        no(f"tile k={config.k} does not divide the {problem.c_per_group} input channels of a group", option="tile.k")
    steps = problem.taps * -(-problem.c_per_group // config.k)
    if steps % config.merge:
        no(f"merge {config.merge} does not divide {steps} k steps", option="merge")
    if config.split > 1:
        if pingpong:
            no("split goes with schedule cooperative", option="split")
        least = 16 if config.by_channels else 8
        if config.columns % (least * config.split):
            what = "pixels" if config.by_channels else "channels"
            axis = "m" if config.by_channels else "n"
            no(f"tile {axis}={config.columns} does not split into {config.split} times {least} {what}", option="split")
        if config.cluster > 1:
            no("split makes clusters of its own", "cluster 1", "cluster")
        if steps // config.merge < config.split:
            no(f"{steps // config.merge} stages of k are fewer than split {config.split}", option="split")
    if config.stream:
        for name, value, plain in (
            ("schedule", config.schedule, "cooperative"), ("split", config.split, 1), ("cluster", config.cluster, 1),
            ("blocks", config.blocks, 1),
        ):  # fmt: skip
            if value != plain:
                no(f"stream goes with {name} {plain}, not {value}", f"{name} {plain}", name)
        if _tiles(problem, config) * _steps(problem, config) >= 2**31:
            no("stream counts the k steps of all tiles in 32 bits, which these do not fit", "stream 0", "stream")
        if x_in_planes(problem):
            no("stream is not served where x is multiplied in planes", "stream 0", "stream")
    if config.shared and x_in_planes(problem):
        no("a cluster does not share what lies in planes", "cluster 1", "cluster")
    if problem.groups > 1 and config.shared == "x" and problem.k_per_group % (config.n * config.cluster):
        no(f"the {config.cluster} tiles of a cluster are of several groups, which read other channels of x",
           "shares w, or cluster 1", "shares")  # fmt: skip
    if config.shared:
        slice_of = config.m if config.shared == "x" else config.n
        if slice_of % (8 * config.cluster):
            axis = "m" if config.shared == "x" else "n"
            no(f"tile {axis}={slice_of} does not split into {config.cluster} slices of whole 8 rows", option="cluster")
    if found:
        return found
    size, limit = footprint(problem, config), _shared_limit(target, config)
    if size.total > limit:
        fits = (limit - (size.total - config.stages * size.stage)) // size.stage
        no(
            f"{config.stages} stages of a {config.m}x{config.n}x{config.k} tile take {size.total} bytes "
            f"of shared memory; {target} has {limit}",
            f"at most {fits} stages fit" if fits >= 2 else "a smaller tile",
            "stages" if fits >= 2 else "tile.m",
        )
    return found


# --- defaults ----------------------------------------------------------------------------------------

#: wgmma's rows of a tile, and how many consumers share them in which way, that are worth a thought.
SHAPES = (
    (128, 2, "cooperative"),
    (64, 1, "cooperative"),
    (192, 3, "cooperative"),
    (256, 2, "cooperative"),
    (64, 2, "pingpong"),
    (64, 3, "pingpong"),
    (128, 2, "pingpong"),
)
#: And its columns: output channels, or pixels.
COLUMNS = {"pixels": (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256), "channels": range(16, 257, 16)}
MAX_STAGES = 12
#: (blocks, operand) of the clusters that are considered, for the best so many configurations without one.  Four
#: blocks leave multiprocessors idle: an H200 places them within groups of 16 and 18.
CLUSTERS = ((2, "x"), (2, "w"))
CLUSTERED = 24
#: The best so many are considered with their k steps shared evenly, too.
STREAMED = 4


def estimate(problem: ConvProblem, target: Target, config: TmaIm2colConfig) -> float:
    """Microseconds that the cost model gives a configuration."""
    prepared = _prepared(problem, config.bundle)
    return prepared.time + cost.im2col_time(**demands(prepared.problem, target, config))


def demands(problem: ConvProblem, target: Target, config: TmaIm2colConfig) -> dict[str, Any]:
    """A configuration as the cost model sees it."""
    rows, columns = (config.n, config.m) if config.by_channels else (config.m, config.n)
    return dict(
        rows=rows, columns=columns, m=config.m, n=config.n, k=config.k, stages=config.stages,
        consumers=config.consumers, pingpong=config.schedule == "pingpong", blocks=config.blocks, merge=config.merge,
        split=config.split, cluster=config.cluster, shared=config.shared, stream=config.stream,
        tiles=_tiles(problem, config),
        steps=problem.taps * -(-problem.c_per_group // config.k), sms=target.sms, **cost.traffic(problem),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _ranked(problem: ConvProblem, target: Target, fixed: tuple[tuple[str, int | str], ...]) -> list[TmaIm2colConfig]:
    """Legal configurations that go with fixed options, by estimated time."""
    options = dict(fixed)
    found: list[tuple[float, TmaIm2colConfig]] = []
    for bundle in [int(options["bundle"])] if "bundle" in options else prepare.bundles(problem):
        prepared = _prepared(problem, bundle)
        times = _configurations(prepared.problem, target, options, bundle)
        found += [(prepared.time + time, config) for config, time in times.items()]
    return [config for _, config in sorted(found, key=lambda row: row[0])]


def _configurations(
    problem: ConvProblem, target: Target, options: Options, bundle: int
) -> dict[TmaIm2colConfig, float]:
    """Legal configurations that go with options, of a problem in bundles, with their estimated times."""
    found: dict[TmaIm2colConfig, float] = {}

    def consider(configs: Iterable[TmaIm2colConfig]) -> None:
        for trial in configs:
            stages = int(options["stages"]) if "stages" in options else _stages(problem, target, trial)
            config = replace(trial, stages=stages)
            if not _illegal(problem, target, config):
                found[config] = cost.im2col_time(**demands(problem, target, config))

    clusters = [(blocks, operand) for blocks, operand in CLUSTERS if options.get("shares", operand) == operand]
    blocks = int(options.get("cluster", 1))
    if blocks > 1:
        operands = dict.fromkeys(operand for _, operand in clusters)
        plain = _plain(problem, target, options, bundle)
        consider(replace(c, cluster=blocks, shares=operand) for c in plain for operand in operands)
        return found
    consider(_plain(problem, target, options, bundle))
    if "cluster" not in options:
        alone = [config for config in sorted(found, key=lambda c: found[c]) if config.split == 1][:CLUSTERED]
        consider(
            replace(c, cluster=blocks, shares=operand)
            for c in alone
            for blocks, operand in clusters
            if _neighbours(problem, c, operand) >= blocks
        )
        if "stream" not in options:
            cooperative = [config for config in alone if config.schedule == "cooperative" and config.blocks == 1]
            consider(replace(config, stream=1) for config in cooperative[:STREAMED])
    return found


def _neighbours(problem: ConvProblem, config: TmaIm2colConfig, operand: str) -> int:
    """Tiles that read the same part of an operand: all that differ in the other's dim alone."""
    return -(-problem.k_per_group // config.n) if operand == "x" else -(-problem.output_pixels // config.m)


def _plain(problem: ConvProblem, target: Target, options: Options, bundle: int) -> Iterator[TmaIm2colConfig]:
    """Configurations without a cluster that shares operands, and with stages to be found, that go with options."""

    def values(name: str, defaults: Iterable[int]) -> list[int]:
        return [int(options[name])] if name in options else list(defaults)

    c = problem.c_per_group
    spans = [k for k in (64, 32, 16) if c % k == 0][:1]
    spans += [k for k in (64, 32, 16) if k not in spans and -(-c // k) * k <= 1.5 * c][:1]
    order, shares = str(options.get("order", "channels_inner")), str(options.get("shares", "x"))
    raster, stream = int(options.get("raster", 1)), int(options.get("stream", 0))
    for k, (m, n, consumers, schedule, rows) in itertools.product(
        values("tile.k", spans or (16,)), _tile_shapes(problem, options)
    ):
        steps = problem.taps * -(-c // k)
        merges = [d for d in (1, 2, 3, 5, 7, 9) if steps % d == 0 and k * d <= 160]
        tiles = m_tiles(problem, m) * -(-problem.k // n)
        splits = (1, 2, 4, 8) if schedule == "cooperative" and tiles < target.sms else (1,)
        many = (n if rows == "channels" else m) == 64 and consumers == 1 and tiles > target.sms
        blocks = (1, 2, 3) if many else (1,)
        for merge, split, block in itertools.product(
            values("merge", merges), values("split", splits), values("blocks", blocks)
        ):
            yield TmaIm2colConfig(
                m, n, k, 2, consumers, schedule, order, block, merge, split, rows, 1, shares, raster, stream, bundle
            )  # fmt: skip


def _tile_shapes(problem: ConvProblem, options: Options) -> Iterator[tuple[int, int, int, str, str]]:
    """(m, n, consumers, schedule, rows) that go with the options; where no row of SHAPES does, what they ask for."""
    for rows in ("pixels", "channels"):
        if options.get("rows", rows) != rows:
            continue
        by_channels = rows == "channels"
        of_rows, of_columns = ("tile.n", "tile.m") if by_channels else ("tile.m", "tile.n")
        extent, least = (problem.output_pixels, 16) if by_channels else (problem.k_per_group, 8)
        widest = min(256, -(-extent // least) * least)
        columns = [int(options[of_columns])] if of_columns in options else [c for c in COLUMNS[rows] if c <= widest]
        fitting = [
            (r, consumers, schedule)
            for r, consumers, schedule in SHAPES
            if options.get(of_rows, r) == r
            and options.get("consumers", consumers) == consumers
            and options.get("schedule", schedule) == schedule
            and (of_rows in options or not by_channels or r <= -(-problem.k_per_group // 64) * 64)
        ]
        if not fitting and (of_rows in options or "rows" in options or not by_channels):
            fitting = [(int(options.get(of_rows, 128)), int(options.get("consumers", 2)),
                        str(options.get("schedule", "cooperative")))]  # fmt: skip
        for (r, consumers, schedule), c in itertools.product(fitting, columns):
            m, n = (c, r) if by_channels else (r, c)
            yield m, n, consumers, schedule, rows


def _stages(problem: ConvProblem, target: Target, config: TmaIm2colConfig) -> int:
    """As many stages as fit, but no more than a tile has use for."""
    size = footprint(problem, config)
    room = _shared_limit(target, config) - (size.total - config.stages * (size.stage + 16))
    steps = problem.taps * -(-problem.c_per_group // config.k)
    useful = max(-(-steps // (config.merge * config.split)), 4)
    stages = max(2, min(room // (size.stage + 16), MAX_STAGES, useful))
    # another number of stages may need room to align the chunks
    while stages > 2 and footprint(problem, replace(config, stages=stages)).total > _shared_limit(target, config):
        stages -= 1
    return stages


def _shared_limit(target: Target, config: TmaIm2colConfig) -> int:
    # a block takes 1 KB of a multiprocessor's shared memory for itself
    return min(target.shared_bytes_per_block, target.shared_bytes_per_sm // config.blocks - 1024)


def choose(problem: ConvProblem, target: Target, options: Options) -> TmaIm2colConfig:
    """The configuration: what the options say, the rest by the cost model.

    Where nothing legal goes with the options, the first of what they ask for, for `obstacles` to explain.
    """
    ranked = _ranked(problem, target, tuple(sorted(options.items())))
    if ranked:
        return ranked[0]
    if "stages" in options:
        fewer = _ranked(problem, target, tuple(sorted((o, v) for o, v in options.items() if o != "stages")))
        if fewer:
            return replace(fewer[0], stages=int(options["stages"]))
    m, n, consumers, schedule, rows = next(_tile_shapes(problem, options))
    trial = TmaIm2colConfig(
        m, n, int(options.get("tile.k", 64)), 2, consumers,
        schedule, str(options.get("order", "channels_inner")),
        int(options.get("blocks", 1)), int(options.get("merge", 1)), int(options.get("split", 1)),
        rows, int(options.get("cluster", 1)), str(options.get("shares", "x")), int(options.get("raster", 1)),
        int(options.get("stream", 0)), int(options.get("bundle", (*prepare.bundles(problem), 1)[0])),
    )  # fmt: skip
    ready = _prepared(problem, trial.bundle).problem
    return replace(trial, stages=int(options.get("stages", _stages(ready, target, trial))))


# --- tensor maps -------------------------------------------------------------------------------------


def _x_map(problem: ConvProblem, config: TmaIm2colConfig) -> TensorMap:
    x, size = problem.x, problem.x.element.bytes
    span = config.k * size
    if x_in_planes(problem):
        image = plane(problem)
        return TensorMap(
            "x", "tiled", x.dtype, (image, problem.c, problem.n), (image * size, problem.c * image * size), (1, 1, 1),
            box=(64, config.k, 1), swizzle=128,
        )  # fmt: skip
    pixels = config.m // (config.cluster if config.shared == "x" else 1)
    if is_pointwise(problem):
        return TensorMap(
            "x", "tiled", x.dtype, (problem.c, problem.output_pixels), (problem.c * size,), (1, 1),
            box=(config.k, pixels), swizzle=span,
        )  # fmt: skip
    axes = tma_axes(problem)[::-1]
    dims = (problem.c, *problem.input[::-1], problem.n)
    strides, bytes_ = [], size
    for extent in dims[:-1]:
        bytes_ *= extent
        strides.append(bytes_)
    return TensorMap(
        "x", "im2col", x.dtype, dims, tuple(strides), (1, *(a.element_stride for a in axes), 1),
        lower=tuple(a.lower for a in axes), upper=tuple(a.upper for a in axes),
        channels=config.k, pixels=pixels, swizzle=span,
    )  # fmt: skip


def _w_map(problem: ConvProblem, config: TmaIm2colConfig) -> TensorMap:
    w, size = problem.w, problem.w.element.bytes
    c, k, taps = problem.c_per_group, problem.k, problem.taps
    outer = ((k, c), (taps, c * k)) if _taps_outside(problem) else ((taps, c), (k, c * taps))
    rows = config.n // (config.cluster if config.shared == "w" else 1)
    box = (config.k, rows, 1) if _taps_outside(problem) else (config.k, 1, rows)
    return TensorMap(
        "w", "tiled", w.dtype, (c, *(e for e, _ in outer)), tuple(s * size for _, s in outer), (1, 1, 1),
        box=box, swizzle=config.k * size,
    )  # fmt: skip


def _y_map(problem: ConvProblem, size: Footprint) -> TensorMap:
    y, pixels = problem.y, plane(problem)
    if pixels:
        return TensorMap(
            "y", "tiled", y.dtype, (pixels, problem.k, problem.n), (pixels * 2, problem.k * pixels * 2), (1, 1, 1),
            box=(64, size.chunk_n, 1), swizzle=128,
        )  # fmt: skip
    span = size.chunk_n * 2
    return TensorMap(
        "y", "tiled", y.dtype, (problem.k, problem.output_pixels), (problem.k * 2,), (1, 1),
        box=(size.chunk_n, size.chunk_m), swizzle=span if span >= 32 else 0,
    )  # fmt: skip


STRATEGY = TmaIm2col()
