"""The general kernel: tiles of both factors are gathered from x and w by gemm_k, and multiplied.

It serves every layout, channel count and alignment.  A block makes one tile of one group (and one slice of
gemm_k); its threads copy the next tiles with cp.async while its warps multiply this one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from convgen.codegen.render import render
from convgen.ir.plan import Launch, Param, Plan, Workspace
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacle, Options
from convgen.kernels.implicit_gemm import cost
from convgen.kernels.implicit_gemm.mma import CHUNK_BYTES, COLUMNS, K_BYTES, MMAS, ROWS, Mma, maths
from convgen.kernels.implicit_gemm.reader import Reader, Tile, loading, reader
from convgen.kernels.implicit_gemm.walk import Walk, walk
from convgen.kernels.parts import lowering, output
from convgen.kernels.parts.elementwise import (
    Pointer,
    epilogue_formulas,
    factor_pointers,
    fprop_pointers,
    result_pointers,
    window_formulas,
)
from convgen.targets import RESERVED_SHARED, Target

ORDER_DOCS = {
    "channel_first": "taps, channels inside",
    "channel_last": "channels, taps inside",
    "taps_inner": "blocks of channels, taps inside them, the block's channels inside these",
}
WARP = 32
REDUCE_BLOCK = 256
MOST_THREADS = 1024  # of a block
MOST_GROUPS = 65535  # blocks along a grid's y
#: Bytes that L2 hands out together.
SECTOR = 32
#: Of a thread, by the estimate: more would spill.
MOST_REGISTERS = 255


@dataclass(frozen=True)
class GatherConfig:
    """Tile (m pixels, n output channels, k of gemm_k), warps along m and n, stages, slices of gemm_k, order
    of gemm_k, arithmetic, blocks a multiprocessor."""

    m: int
    n: int
    k: int
    warps_m: int
    warps_n: int
    stages: int
    split: int
    order: str
    math: str
    blocks: int

    @property
    def threads(self) -> int:
        return WARP * self.warps_m * self.warps_n

    @property
    def options(self) -> Options:
        """What a spec's strategy block would say."""
        said: dict[str, int | str] = {
            "kernel": "gather",
            "tile.m": self.m,
            "tile.n": self.n,
            "tile.k": self.k,
            "warps.m": self.warps_m,
            "warps.n": self.warps_n,
            "stages": self.stages,
            "split": self.split,
            "order": self.order,
            "blocks": self.blocks,
        }
        return {**said, "math": self.math} if self.math else said

    def __str__(self) -> str:
        split = f", gemm_k in {self.split} slices" if self.split > 1 else ""
        math_ = f", {self.math}" if self.math else ""
        return (
            f"gather: tile {self.m}x{self.n}x{self.k}, {self.warps_m}x{self.warps_n} warps, {self.stages} stages, "
            f"{self.order}{math_}{split}"
        )


@dataclass(frozen=True)
class Layout:
    """What follows from a problem and a configuration."""

    problem: ConvProblem
    config: GatherConfig

    @cached_property
    def columns(self) -> output.Columns:
        return output.columns(self.problem)

    @property
    def swapped(self) -> bool:
        """Whether the product's rows are output channels, and its columns pixels."""
        return self.columns.role == "pixels"

    @property
    def warp_rows(self) -> int:
        c = self.config
        return c.n // c.warps_n if self.swapped else c.m // c.warps_m

    @property
    def warp_columns(self) -> int:
        c = self.config
        return c.m // c.warps_m if self.swapped else c.n // c.warps_n

    @property
    def warps_across(self) -> int:
        return self.config.warps_m if self.swapped else self.config.warps_n

    @cached_property
    def run(self) -> int:
        return output.run_length(self.problem, self.columns, self.warp_columns)

    @property
    def element_bytes(self) -> int:
        return self.problem.x.element.bytes

    @property
    def row_bytes(self) -> int:
        return self.config.k * self.element_bytes

    @cached_property
    def walks(self) -> dict[str, Walk]:
        return {role: walk(self.problem, role, self.config.order, self.config.k) for role in ("x", "w")}

    @property
    def steps(self) -> int:
        """k steps of one slice."""
        return -(-self.walks["x"].depth // (self.config.k * self.config.split))

    def tile(self, role: str) -> Tile:
        c = self.config
        return Tile(c.m if role == "x" else c.n, c.k, c.threads, self.element_bytes)

    def reader(self, role: str) -> Reader:
        c = self.config
        tile = self.tile(role)
        permuted = self.run > 2 and (role == "x") == self.swapped
        return reader(self.problem, self.walks[role], role, tile, self.steps * c.k, c.split, permuted)

    @property
    def mma(self) -> Mma:
        return MMAS[self.problem.x.dtype, self.config.math]

    @property
    def multiply(self) -> str:
        """The PTX function: rows by columns."""
        factors = (self.problem.x.dtype, self.problem.w.dtype)
        return self.mma.function(*(factors[::-1] if self.swapped else factors))

    @property
    def shared_bytes(self) -> int:
        return self.config.stages * (self.config.m + self.config.n) * self.row_bytes

    @property
    def tiles(self) -> tuple[int, int]:
        p, c = self.problem, self.config
        return -(-p.output_pixels // c.m), -(-p.k_per_group // c.n)

    @property
    def index(self) -> str:
        return lowering.index_type(self.problem, (self.tiles[0] * self.config.m,))


# --- configuration -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A tile and the warps that share it."""

    m: int
    n: int
    warps_m: int
    warps_n: int


#: Cycles of an element that is loaded by itself: from a sector that others share, or from one of its own
#: (ResNet-50 in NCHW on an NVIDIA H200; the model was 2 to 10 times too fast without).
TOGETHER, APART = 0.12, 0.5
#: Tiles that are worth a try, by warp tiles of at most 64 x 64: larger ones read shared memory less often.
SHAPES = tuple(
    Shape(wm * m, wn * n, wm, wn)
    for m, n in ((64, 64), (48, 64), (64, 32), (32, 64), (32, 32), (32, 16), (16, 32), (16, 64), (64, 16))
    for wm, wn in ((1, 2), (2, 1), (2, 2), (4, 1), (1, 4), (2, 4), (4, 2))
)
#: Stages that are worth a try, of rows of 128 bytes and of shorter ones.  Six of large tiles leave room for one block a
#: multiprocessor, which is all that few tiles need.
STAGES, SHORT_STAGES = (3, 4, 6), (4,)


def choose(problem: ConvProblem, target: Target, options: Options) -> GatherConfig:
    """The configuration that `options` fix, the rest by estimate; one that cannot run where none can."""
    found = sorted(_configs(problem, target, options), key=lambda c: time(problem, target, c))
    return next((c for c in found if not unfit(Layout(problem, c), target)), found[0])


def candidates(problem: ConvProblem, target: Target, options: Options) -> list[GatherConfig]:
    """Configurations worth measuring that `options` allow, the most promising first."""
    found = sorted(_configs(problem, target, options), key=lambda c: time(problem, target, c))
    layouts = [Layout(problem, c) for c in dict.fromkeys(found)]
    return [x.config for x in layouts if _registers(x) <= MOST_REGISTERS and not unfit(x, target)]


def _configs(problem: ConvProblem, target: Target, options: Options) -> Iterator[GatherConfig]:
    size = problem.x.element.bytes
    depth = problem.taps * problem.c_per_group
    # elements that are gathered wait in registers: shorter rows
    gathered = any(
        not loading(walk(problem, r, "channel_first", 32), Tile(64, 64 // size, 128, size)).asynchronous for r in "xw"
    )
    k = int(options.get("tile.k", (64 if gathered or depth * size <= 256 else 128) // size))
    order = str(options.get("order", "channel_first"))
    math_ = str(options.get("math", maths(problem.x.dtype)[0]))
    fixed = {"m": "tile.m", "n": "tile.n", "warps_m": "warps.m", "warps_n": "warps.n"}
    shapes = [s for s in SHAPES if all(o not in options or getattr(s, f) == options[o] for f, o in fixed.items())]
    if not shapes:
        shapes = [Shape(*(int(options.get(o, d)) for o, d in zip(fixed.values(), (64, 64, 2, 2), strict=True)))]
    pipelines = (int(options["stages"]),) if "stages" in options else SHORT_STAGES if size * k <= 64 else STAGES
    for s in shapes:
        layout = Layout(problem, GatherConfig(s.m, s.n, k, s.warps_m, s.warps_n, 2, 1, order, math_, 1))
        if "split" in options:
            splits = [int(options["split"])]
        else:
            tiles = math.prod(layout.tiles) * problem.groups
            splits = [1] if tiles >= target.sms else [1, 2, 3, 4, 6, 8]
        for split, stages in product(splits, pipelines):
            if stages > max(pipelines[0], -(-layout.walks["x"].depth // (k * split))):
                continue  # no slice has as many steps
            blocks = int(options.get("blocks", _blocks(layout, stages, target)))
            yield GatherConfig(s.m, s.n, k, s.warps_m, s.warps_n, stages, split, order, math_, blocks)


def _registers(layout: Layout) -> int:
    """An estimate of the registers a thread needs."""
    r, c = layout.warp_rows, layout.warp_columns
    total = r * c // WARP + (r + c) // 4 * (3 if layout.config.math == "tf32x3" else 2) + 28
    for role in ("x", "w"):
        walk_, tile = layout.walks[role], layout.tile(role)
        loads = loading(walk_, tile)
        total += loads.share.rows * (1 + len(walk_.bounds))
        if not loads.asynchronous:
            # elements on their way, and where each piece of them comes from
            pieces = CHUNK_BYTES // tile.element_bytes // loads.piece
            total += 4 * loads.share.rows * loads.share.chunks + 4 * pieces
    return total


def _blocks(layout: Layout, stages: int, target: Target) -> int:
    """Blocks that a multiprocessor holds, as far as registers and shared memory go; at most 4."""
    shared = stages * (layout.config.m + layout.config.n) * layout.row_bytes + RESERVED_SHARED
    by_registers = target.register_blocks(min(_registers(layout), MOST_REGISTERS), layout.config.threads)
    return max(1, min(4, target.shared_bytes_per_sm // shared, by_registers))


def time(problem: ConvProblem, target: Target, config: GatherConfig) -> float:
    """Estimated microseconds."""
    layout = Layout(problem, config)
    p, c = problem, config
    slices = layout.row_bytes // K_BYTES
    warps = c.warps_m * c.warps_n
    loads = [(layout.tile(role).rows, loading(layout.walks[role], layout.tile(role))) for role in "xw"]
    copied = sum(rows * c.k / how.piece for rows, how in loads if how.asynchronous)
    alone = sum(rows * c.k * (TOGETHER if how.together else APART) for rows, how in loads if not how.asynchronous)
    instructions = slices * layout.warp_rows / ROWS * layout.warp_columns / COLUMNS
    results = c.m * c.n / c.threads
    us = cost.gather_time(
        instructions=instructions * (3 if c.math == "tf32x3" else 1) * (2 if layout.element_bytes == 4 else 1),
        reads=slices * warps * (layout.warp_rows + layout.warp_columns) / 4,
        writes=(c.m + c.n) * layout.row_bytes / 128,
        copies=copied,
        alone=alone,
        warps=warps,
        steps=layout.steps,
        stages=c.stages,
        held=max(c.blocks, _blocks(layout, c.stages, target)),
        results=results,
        stores=results / layout.run,
        tiles=math.prod(layout.tiles) * p.groups * c.split,
        traffic=(c.m + c.n) * layout.row_bytes,
        ragged=_ragged(layout),
        reduced=2 * p.y.size * 4 * c.split if c.split > 1 else 0,
        bytes=p.min_bytes,
        sms=target.sms,
        rates=cost.GATHER,
    )
    return us * (1 + max(0, _registers(layout) - MOST_REGISTERS) / 10)


def _ragged(layout: Layout) -> int:
    """Of how many of x and y the pixels begin inside a sector.  y counts where no reduction stores it and threads can
    store 16 bytes at once: what narrower stores cost is told by their number."""
    x_pixel, y_pixel = layout.problem.c * layout.element_bytes, layout.problem.k * layout.problem.y.element.bytes
    stores = not layout.swapped and layout.config.split == 1
    return (x_pixel % SECTOR != 0) + (stores and y_pixel % CHUNK_BYTES == 0 and y_pixel % SECTOR != 0)


def obstacles(problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
    """What stands against a configuration that `options` ask for."""
    return unfit(Layout(problem, choose(problem, target, options)), target)


def unfit(layout: Layout, target: Target) -> list[Obstacle]:
    config = layout.config
    found = []
    for name, extent, warps, step in (
        ("m", config.m, config.warps_m, COLUMNS * 2 if layout.swapped else ROWS),
        ("n", config.n, config.warps_n, ROWS if layout.swapped else COLUMNS * 2),
    ):
        if extent % (warps * step):
            message = f"tile {name}={extent} does not split into {warps} warps of a multiple of {step}"
            found.append(Obstacle(message, f"a multiple of {warps * step}", f"tile.{name}"))
    if layout.row_bytes not in (64, 128):
        sizes = " or ".join(str(b // layout.element_bytes) for b in (64, 128))
        message = f"tile k={config.k} makes rows of {layout.row_bytes} bytes in shared memory"
        found.append(Obstacle(message, f"k must be {sizes} for {layout.problem.x.dtype}", "tile.k"))
    if config.threads > MOST_THREADS:
        found.append(Obstacle(f"a block has {config.threads} threads", f"at most {MOST_THREADS}", "warps.m"))
    if layout.problem.groups > MOST_GROUPS:
        message = f"{layout.problem.groups} groups are more than the {MOST_GROUPS} that a grid has room for"
        found.append(Obstacle(message, "strategy direct"))
    if config.stages < 2:
        found.append(Obstacle("one stage cannot be copied while it is multiplied", "at least 2 stages", "stages"))
    if found:
        return found
    if layout.shared_bytes > target.shared_bytes_per_block:
        message = f"{config.stages} stages take {layout.shared_bytes} bytes of shared memory, {target} has "
        message += f"{target.shared_bytes_per_block}"
        found.append(Obstacle(message, "fewer stages or a smaller tile", "stages"))
    if layout.warp_rows * layout.warp_columns > 64 * 96:
        message = f"a warp's part of {layout.warp_rows}x{layout.warp_columns} does not fit its registers"
        found.append(Obstacle(message, "more warps, or a smaller tile", "tile.n"))
    if config.split > layout.walks["x"].depth:
        found.append(Obstacle(f"split {config.split} is more than gemm_k", "a smaller split", "split"))
    return found


@dataclass(frozen=True)
class Part:
    """Rows `first` to `last` of a thread's share, asked for among the products of one slice of a step."""

    slice: int
    reader: Reader
    first: int
    last: int


def dealt(readers: Sequence[Reader], slices: int) -> tuple[Part, ...]:
    """A step's copies over its slices but the last, which waits; none where a reader needs more than a copy a row."""
    if not all(r.divisible for r in readers):
        return ()
    rows = [(r, i) for r in readers for i in range(r.share.rows)]
    share = -(-len(rows) // (slices - 1))
    found = []
    for k in range(slices - 1):
        for r in readers:
            if own := [i for owner, i in rows[k * share : (k + 1) * share] if owner is r]:
                found.append(Part(k, r, own[0], own[-1] + 1))
    return tuple(found)


# --- plan and source ---------------------------------------------------------------------------------


def _pointers(problem: ConvProblem, config: GatherConfig) -> list[Pointer]:
    if config.split == 1:
        return fprop_pointers(problem)
    return [*factor_pointers(problem), Pointer("partial", problem.accumulate, "partial", written=True)]


def plan(problem: ConvProblem, target: Target, config: GatherConfig, strategy: str) -> Plan:
    layout = Layout(problem, config)
    entry = f"convgen_{problem.name}"
    pixels, channels = layout.tiles
    params = tuple(p.vector_param for p in _pointers(problem, config))
    first = Launch(
        entry, (pixels * channels, problem.groups, config.split), config.threads, params, layout.shared_bytes,
        blocks_per_sm=config.blocks,
    )  # fmt: skip
    if config.split == 1:
        return Plan(problem, target, strategy, config, (first,))
    threads = -(-problem.y.size // _reduce_run(problem))
    reads = [Param("partial", "pointer", "partial"), *(p.vector_param for p in result_pointers(problem))]
    second = Launch(f"{entry}_reduce", (-(-threads // REDUCE_BLOCK), 1, 1), REDUCE_BLOCK, tuple(reads))
    workspace = Workspace("partial", 4 * problem.y.size * config.split)
    return Plan(problem, target, strategy, config, (first, second), (workspace,))


def _reduce_run(problem: ConvProblem) -> int:
    return math.gcd(output.neighbours(problem.y, output.columns(problem)), 4)


def source(plan_: Plan) -> str:
    problem, config = plan_.problem, plan_.config
    assert isinstance(config, GatherConfig)
    layout = Layout(problem, config)
    along, run, index = layout.columns, layout.run, layout.index
    maps = output.product_map(problem)
    accumulator = layout.mma.accumulator
    readers = [layout.reader("x"), layout.reader("w")]
    if config.split > 1:
        result = output.partial_result(problem, maps, run, accumulator)
    else:
        result = output.result(problem, maps, along, along.index, run, accumulator)
    return render(
        "implicit_gemm.cu.j2",
        plan_,
        config=config,
        layout=layout,
        launch=plan_.launches[0],
        columns=along,
        pixel_dims=output.pixel_dims(problem),
        order_doc=ORDER_DOCS[config.order],
        formulas=[*window_formulas(problem), *epilogue_formulas(problem)],
        row_mmas=layout.warp_rows // ROWS,
        col_mmas=layout.warp_columns // COLUMNS,
        run=run,
        column_of=output.column_of(run),
        readers=readers,
        copies=dealt(readers, layout.row_bytes // K_BYTES),
        pointers=_pointers(problem, config),
        index=index,
        accumulator=lowering.ACCUMULATORS[accumulator].c_type,
        result=result,
        reduction=_reduction(plan_, accumulator) if config.split > 1 else None,
    )


@dataclass(frozen=True)
class Reduction:
    """The kernel that adds the slices' sums, in order, and finishes y."""

    launch: Launch
    pointers: tuple[Pointer, ...]
    slices: int
    size: int
    run: int
    index: str
    accumulator: str
    result: output.Result


def _reduction(plan_: Plan, accumulator: str) -> Reduction:
    problem, config = plan_.problem, plan_.config
    assert isinstance(config, GatherConfig)
    run = _reduce_run(problem)
    index = lowering.index_type(problem, (problem.y.size * config.split,))
    maps = output.element_map(problem)
    result = output.result(problem, maps, output.columns(problem), output.OFFSET, run, accumulator)
    pointers = (Pointer("partial", accumulator, "partial"), *result_pointers(problem))
    return Reduction(
        plan_.launches[1], pointers, config.split, problem.y.size, run, index,
        lowering.ACCUMULATORS[accumulator].c_type, result,
    )  # fmt: skip


CONFIG = GatherConfig
