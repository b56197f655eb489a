"""tma_patch: fprop with the input patch resident in shared memory, serving every tap.

An im2col load reads each input pixel once a tap; where channels are few, L2 cannot feed it.  Here tiled
TMA loads bring a patch of x with its halo once, and a tap is a shift of wgmma's descriptor by whole rows
of that patch (strategies/patch.py).  The patch is addressed as one line of pixels of padded width: the
outputs that fall on the halo are computed and dropped.  Weights of a block of output channels stay in
shared memory for the kernel's whole life, or stream through it tap by tap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sympy import Integer

from convgen.codegen.c_expr import c_expr
from convgen.codegen.render import render
from convgen.ir import integer
from convgen.ir.index_map import Access, decompose, derive, variable
from convgen.ir.integer import floordiv, mod, symbol
from convgen.ir.plan import Launch, Param, Plan, TensorMap
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.strategies import cost, fragments, lowering, prepare
from convgen.strategies.base import Obstacle, Obstacles, Option, Options
from convgen.strategies.hopper import (
    MAX_BOX,
    MAX_ELEMENT_STRIDE,
    REGISTERS,
    ROW_ALIGNMENT,
    SWIZZLE_FIELD,
    block_threads,
    launch_registers,
    mean_products,
    memory_order,
    products,
)
from convgen.strategies.patch import ALIGNMENT, Patch, Window, aligned, patch, windows
from convgen.targets import Target


@dataclass(frozen=True)
class TmaPatchConfig:
    """`pixels` of padded width a tile, in strips of `strip` output columns, or over `images` whole images;
    `channels` output channels a block; `k` input channels a patch (its swizzle span).

    `pingpong` consumer warpgroups take whole tiles in turn, each with a ring of its own of `stages`
    patches; `cooperative` ones split a tile's channels or pixels and share a ring.  `weight_stages` taps
    of weights go with each ring; 0 keeps all weights in shared memory.  `rows` says what wgmma's m runs
    over, and what cooperative consumers split: output channels or pixels.  `bundle` neighbouring groups are
    multiplied as one.

    A tile's `channels` are those of `fold` output rows: what the rows read in common is then multiplied once
    for all of them, by filters shifted down a row each, with zeros above and below."""

    pixels: int
    strip: int
    images: int
    channels: int
    k: int
    stages: int
    weight_stages: int
    consumers: int
    schedule: str
    rows: str
    bundle: int
    fold: int

    @property
    def own_channels(self) -> int:
        """Output channels of a tile, of each of its rows."""
        return self.channels // self.fold

    @property
    def fills(self) -> bool:
        """Whether filters have zeros filled in: the consumers lay them out, not TMA."""
        return self.bundle > 1 or self.fold > 1

    @property
    def rings(self) -> int:
        return self.consumers if self.schedule == "pingpong" else 1

    @property
    def shares(self) -> int:
        """Consumers that share a tile."""
        return self.consumers // self.rings

    @property
    def consumer_pixels(self) -> int:
        return self.pixels if self.rows == "channels" else self.pixels // self.shares

    @property
    def consumer_channels(self) -> int:
        return self.channels // self.shares if self.rows == "channels" else self.channels

    @property
    def options(self) -> Options:
        """The options that ask for exactly this configuration."""
        return {
            "pixels": self.pixels, "strip": self.strip, "images": self.images, "channels": self.channels,
            "tile.k": self.k, "stages": self.stages, "weight_stages": self.weight_stages,
            "consumers": self.consumers, "schedule": self.schedule, "rows": self.rows,
            "bundle": self.bundle, "fold": self.fold,
        }  # fmt: skip

    def __str__(self) -> str:
        where = f"{self.images} images" if self.images > 1 else f"strips of {self.strip}"
        weights = f"weights {self.weight_stages} taps ahead" if self.weight_stages else "all weights resident"
        bundle = f", {self.bundle} groups as one" if self.bundle > 1 else ""
        bundle += f", {self.fold} output rows as channels" if self.fold > 1 else ""
        patches = f"{self.stages} patch{'es' if self.stages > 1 else ''} a ring"
        return (
            f"{self.pixels} pixels x {self.channels} channels over {self.k}, {where}, {self.consumers} "
            f"{self.schedule} consumer{'s' if self.consumers > 1 else ''}, {patches}, {weights}, "
            f"m runs over {self.rows}{bundle}"
        )


OPTIONS = (
    Option("pixels", "pixels of padded width a tile", choices=tuple(range(16, 257, 16))),
    Option("strip", "output columns a strip", 1, MAX_BOX),
    Option("images", "whole images a tile", 1, MAX_BOX),
    Option("channels", "output channels a block", choices=(16, 32, 48, 64, 128, 192)),
    Option("tile.k", "input channels a patch", choices=(16, 32, 64)),
    Option("stages", "patches in flight for each ring", 1, 8),
    Option("weight_stages", "taps of weights in flight for each ring, 0: all weights resident", 0, 16),
    Option("consumers", "consumer warpgroups", 1, 3),
    Option("schedule", "how consumers share the work", choices=("pingpong", "cooperative")),
    Option("rows", "what wgmma's m runs over", choices=("channels", "pixels")),
    prepare.BUNDLE,
    Option("fold", "output rows whose channels are a tile's: few output channels", choices=(1, 2, 4, 8)),
)


@dataclass(frozen=True)
class Geometry:
    """What follows from a problem and a configuration.  Sizes in bytes."""

    span: int
    blocks: int  # of input channels
    last_products: int  # of 16 channels each, in the last block
    patch: Patch
    weight_box: int
    weights: int
    strips: int
    line_tiles: int
    tiles: int
    channel_tiles: int
    chunk_pixels: int
    chunk: int
    total: int


def geometry(problem: ConvProblem, config: TmaPatchConfig) -> Geometry:
    h, w = windows(problem, config.fold)
    span = config.k * problem.x.element.bytes
    blocks = -(-problem.c_per_group // config.k)
    halo = patch(h, w, config.pixels, config.strip, config.images, span)
    weight_box = config.channels * span
    weights = _weight_bytes(config, weight_box, blocks * len(h.offsets) * len(w.offsets) * weight_box)
    strips, line_tiles = -(-w.output // config.strip), -(-halo.line // config.pixels)
    tiles = -(-problem.n // config.images) * strips * line_tiles
    chunk_pixels = max(c for c in (64, 48, 32, 16) if config.consumer_pixels % c == 0)
    chunk = aligned(chunk_pixels * config.consumer_channels * problem.y.element.bytes)
    return Geometry(
        span, blocks, products(problem.c_per_group - (blocks - 1) * config.k),
        halo, weight_box, weights, strips, line_tiles, tiles, -(-problem.k // config.own_channels),
        chunk_pixels, chunk, _shared_bytes(config, halo.bytes, weights, chunk),
    )  # fmt: skip


def _weight_bytes(config: TmaPatchConfig, weight_box: int, resident: int) -> int:
    """Bytes of weights in shared memory; `resident` of all that a block needs."""
    return aligned(config.rings * config.weight_stages * weight_box or resident)


def _shared_bytes(config: TmaPatchConfig, halo: int, weights: int, chunk: int) -> int:
    """Of a block: patches of `halo` bytes, weights, a chunk for each consumer, barriers, the alignment of the base."""
    barriers = 16 * config.rings * (config.stages + config.weight_stages) + (0 if config.weight_stages else 8)
    return ALIGNMENT + config.rings * config.stages * halo + weights + config.consumers * chunk + barriers


class TmaPatch:
    name = "tma_patch"
    summary = "the input patch stays in shared memory and serves every tap: few channels (sm_90a)"
    options = OPTIONS

    def obstacles(self, problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
        found = Obstacles()
        no = found.no
        x, w, y = problem.x, problem.w, problem.y
        if "wgmma" not in target.features:
            no(f"target {target} has no wgmma", "target sm_90a has it")
        if problem.op is not Op.FPROP:
            no(f"op {problem.op} is not served, fprop alone")
        if problem.rank == 3:
            no("3 spatial dims: one or two alone")
        found += prepare.bundle_obstacle(problem, options)
        if max(problem.stride) > MAX_ELEMENT_STRIDE:
            no(f"stride {max(problem.stride)} is above a tensor map's {MAX_ELEMENT_STRIDE}")
        if problem.taps == 1:
            no("a filter of one tap has nothing to reuse")
        if not (x.dtype == w.dtype and x.dtype in ("f16", "bf16")):
            no(f"types {x.dtype} x {w.dtype}: x and w must both be f16 or bf16")
        if y.dtype not in ("f16", "bf16") or problem.accumulate != "f32":
            no(f"output type {y.dtype}, accumulate {problem.accumulate}: f16 or bf16, f32")
        pixels = problem.spatial.output
        if not (memory_order(y, ("n", *pixels, "k")) or memory_order(y, ("n", "k", *pixels))):
            no(f"layout of {y.name} is {' '.join(y.dims)}", f"n {' '.join(pixels)} k or n k {' '.join(pixels)}")
        if problem.k * y.element.bytes % ROW_ALIGNMENT:
            no(f"a pixel of {y.name} is {problem.k * y.element.bytes} bytes (k={problem.k})",
               f"k must be a multiple of {ROW_ALIGNMENT // y.element.bytes}")  # fmt: skip
        if y.size >= 2**31 or x.size >= 2**31:
            no("a tensor of 2^31 elements or more")
        if found:
            return found
        config = choose(problem, target, options)
        return _illegal(_prepared(problem, config.bundle, config.fold).problem, target, config)

    def candidates(self, problem: ConvProblem, target: Target) -> list[Options]:
        """Configurations worth measuring, the most promising first."""

        def kind(c: TmaPatchConfig) -> object:
            return c.rows, c.schedule, c.consumers, c.weight_stages > 0, c.images > 1, c.bundle, c.fold

        return [c.options for c in cost.varied(ranking(problem, target, ()), kind, of_a_kind=12, most=40)]

    def estimate(self, problem: ConvProblem, target: Target, options: Options) -> float:
        """Microseconds, by the cost model."""
        return estimate(problem, target, choose(problem, target, options))

    def plan(self, problem: ConvProblem, target: Target, options: Options) -> Plan:
        config = choose(problem, target, options)
        given, prepared = problem, _prepared(problem, config.bundle, config.fold)
        problem = prepared.problem
        size = geometry(problem, config)
        params = [
            *(Param(name, "tensor_map", "x", map) for name, map in _x_maps(problem, config, size.patch).values()),
            _w_param(problem, config),
            Param("y", "pointer", "y"),
            *(Param(f"operand_{t.name}", "pointer", t.name) for t in problem.operands),
        ]
        launch = Launch(
            entry=f"convgen_{problem.name}",
            grid=(size.tiles * size.channel_tiles, 1, 1),
            block=_threads(config),
            params=prepared.params(params),
            shared_bytes=size.total,
            persistent=True,
            dependent=True,
            multiple_of=size.channel_tiles,
        )
        steps = (*prepared.launches(), launch)
        notes = prepared.notes + ((prepare.SPREADS,) if config.fills else ())
        return Plan(given, target, self.name, config, steps, prepared.workspaces, notes=notes)

    def render(self, plan: Plan) -> str:
        config = plan.config
        assert isinstance(config, TmaPatchConfig)
        prepared = _prepared(plan.problem, config.bundle, config.fold)
        problem = prepared.problem
        size = geometry(problem, config)
        h, w = windows(problem, config.fold)
        return render(
            "tma_patch.cu.j2",
            plan,
            config=config,
            size=size,
            launch=plan.launches[-1],
            prepare=prepared.kernel,
            formula=_formula(problem),
            output=(windows(problem)[0].output, w.output),
            filter=(len(h.offsets), len(w.offsets)),
            swizzle_field=SWIZZLE_FIELD[size.span],
            loads=_loads(problem, config, size, h, w),
            products=products(config.k),
            phases=_phase_table(size.patch, h, w),
            shift=_shift(h, w),
            group=prepare.group(problem),
            joined=size.patch.width < config.strip + w.reach(),
            place=_place(problem, config, size),
            registers=REGISTERS[config.consumers],
            in_type=problem.x.dtype,
            pack=lowering.PACK[problem.y.dtype],
            epilogue=fragments.of_elements(problem),
            coordinates=("n", *problem.spatial.output, "k"),
            last_pair=fragments.last_pair(problem),
            k_tail=problem.k % config.own_channels != 0,
            filters=_filters(plan.problem, problem, config) if config.fills else None,
            planes=not _pixels_outside(problem),
        )


def _prepared(problem: ConvProblem, bundle: int, fold: int) -> prepare.Prepared:
    return prepare.channels_last(problem, taps_outside=False, bundle=bundle, copy_w=bundle == fold == 1)


def _pixels_outside(problem: ConvProblem) -> bool:
    return memory_order(problem.y, ("n", *problem.spatial.output, "k"))


def _threads(config: TmaPatchConfig) -> int:
    """Streamed weights have a producer, and so a warp, of their own."""
    threads = block_threads(config.consumers)
    return max(threads, 128 * config.consumers + 64) if config.weight_stages else threads


def _illegal(problem: ConvProblem, target: Target, config: TmaPatchConfig) -> list[Obstacle]:
    """What a configuration asks for that the hardware does not have."""
    found = Obstacles()
    no = found.no
    h, w = windows(problem, config.fold)
    if config.schedule == "cooperative" and config.consumers == 1:
        no("schedule cooperative needs 2 or 3 consumers", "consumers 2, or schedule pingpong", "schedule")
    if config.rows == "channels" and config.channels != 64 * config.shares:
        no(f"rows channels goes with 64 channels for each consumer of a tile: channels {64 * config.shares}",
           option="channels")  # fmt: skip
    if config.rows == "pixels" and config.channels > 64:
        no("rows pixels goes with at most 64 channels", option="channels")
    if config.rows == "pixels" and config.pixels % (64 * config.shares):
        no(f"rows pixels takes a multiple of {64 * config.shares} pixels", option="pixels")
    if problem.groups > 1 and problem.k_per_group % config.own_channels:
        no(f"{config.own_channels} channels do not divide the {problem.k_per_group} output channels of a group",
           option="channels")  # fmt: skip
    if problem.groups > 1 and problem.c_per_group % config.k:
        no(f"tile k={config.k} does not divide the {problem.c_per_group} input channels of a group", option="tile.k")
    if config.fills and config.weight_stages:
        no(f"{'fold' if config.fold > 1 else 'bundle'} goes with resident weights", "weight_stages 0", "weight_stages")
    if config.fold > 1:
        rows = windows(problem)[0].output
        if config.fold > rows:
            no(f"fold {config.fold} is more than the output's rows, {rows}", option="fold")
        if config.channels % (8 * config.fold):
            no(f"{config.channels} channels do not split into {config.fold} rows of 8 or more", option="fold")
        if h.stride > MAX_ELEMENT_STRIDE:
            no(f"fold {config.fold} makes a stride of {h.stride}; a tensor map has {MAX_ELEMENT_STRIDE}", option="fold")
        if not h.step:
            no(f"the taps of {config.fold} output rows are not evenly spaced", "fold 1", "fold")
        if not _pixels_outside(problem):
            no(f"fold goes with channels innermost in {problem.y.name}", "fold 1", "fold")
    if config.strip > w.output:
        no(f"strip {config.strip} is wider than the output's {w.output} columns", option="strip")
    if config.images > 1 and config.strip != w.output:
        no(f"images {config.images} go with strips of all {w.output} columns", f"strip {w.output}", "strip")
    if config.images > problem.n:
        no(f"images {config.images} are more than the {problem.n} there are", option="images")
    if config.weight_stages == 1:
        no("a consumer holds two stages of weights", "weight_stages 2 or more, or 0", "weight_stages")
    accumulators = config.consumer_pixels * config.consumer_channels // 128
    registers = REGISTERS[config.consumers]
    # ptxas compiles a wgmma with the registers of the launch, before setmaxnreg gives more
    at_launch = launch_registers(target, _threads(config), 1) - 28
    budget = min((registers.consumer if registers else 255) - 56, at_launch)
    if accumulators > budget:
        no(f"{accumulators} accumulators a thread; {config.consumers} consumers leave {budget} registers for them",
           "fewer pixels or consumers", "pixels")  # fmt: skip
    if found:
        return found
    size = geometry(problem, config)
    if config.images > 1 and size.line_tiles > 1:
        no(
            f"{config.images} images take {size.patch.line} pixels of padded width",
            "fewer images, more pixels",
            "images",
        )
    sides = (size.patch.width * w.stride, size.patch.tallest * h.stride)
    if max(sides) > MAX_BOX:
        no(f"a patch spans {sides[1]} x {sides[0]} pixels of x; a box has at most {MAX_BOX} a side",
           "a narrower strip", "strip")  # fmt: skip
    if size.total > target.shared_bytes_per_block:
        no(
            f"patches, weights and chunks take {size.total} bytes of shared memory; "
            f"{target} has {target.shared_bytes_per_block}",
            "fewer pixels, stages or consumers, streamed weights",
            "pixels",
        )
    return found


# --- defaults ----------------------------------------------------------------------------------------

PIXELS = tuple(range(32, 257, 16))
FOLDS = (1, 2, 4, 8)
FULL = 64  # channels that fill wgmma's m
WEIGHT_STAGES = (6, 4, 3, 2)
#: How many times longer it takes where y is in planes, stored pixel by pixel (ResNet-50 on an NVIDIA H200).
PLANES = 1.2


def estimate(problem: ConvProblem, target: Target, config: TmaPatchConfig) -> float:
    """Microseconds that the cost model gives a configuration."""
    prepared = _prepared(problem, config.bundle, config.fold)
    return prepared.time + _time(prepared.problem, target, config, geometry(prepared.problem, config))


def _time(problem: ConvProblem, target: Target, config: TmaPatchConfig, size: Geometry) -> float:
    time = cost.patch_time(**demands(problem, target, config, size))
    return time if _pixels_outside(problem) else PLANES * time


def demands(problem: ConvProblem, target: Target, config: TmaPatchConfig, size: Geometry) -> dict[str, Any]:
    """A configuration as the cost model sees it."""
    h, w = windows(problem, config.fold)
    return dict(
        pixels=config.consumer_pixels, channels=config.consumer_channels, k=config.k, stages=config.stages,
        weight_stages=config.weight_stages, consumers=config.consumers, shares=config.shares,
        by_channels=config.rows == "channels", blocks=size.blocks,
        products=mean_products(products(config.k), size.last_products, size.blocks),
        box=size.patch.box, weight_box=size.weight_box,
        tiles=size.tiles, channel_tiles=size.channel_tiles, taps=len(h.offsets) * len(w.offsets), sms=target.sms,
        apart=problem.groups > 1 and size.span <= cost.SECTOR, **cost.traffic(problem),
    )  # fmt: skip


@lru_cache(maxsize=64)
def ranking(problem: ConvProblem, target: Target, fixed: tuple[tuple[str, int | str], ...]) -> list[TmaPatchConfig]:
    """Legal configurations that go with fixed options, by estimated time."""
    options = dict(fixed)
    found = []
    bundles = [int(options["bundle"])] if "bundle" in options else prepare.bundles(problem)
    folds = [int(options["fold"])] if "fold" in options else FOLDS
    for bundle, fold in itertools.product(bundles, folds):
        prepared = _prepared(problem, bundle, fold)
        if "fold" in options or _worth_folding(prepared.problem, fold):
            timed = _configurations(prepared.problem, target, options, bundle, fold)
            found += [(prepared.time + time, config) for time, config in timed]
    return [config for _, config in sorted(found, key=lambda row: row[0])]


def _worth_folding(problem: ConvProblem, fold: int) -> bool:
    """Whether rows fill channels of a tile that would be empty otherwise."""
    if fold == 1:
        return True
    own, k = FULL // fold, problem.k_per_group
    fits = k % own == 0 if problem.groups > 1 else -(-k // own) * own < -(-k // FULL) * FULL
    return fits and k < FULL and fold <= windows(problem)[0].output and _pixels_outside(problem)


def _configurations(
    problem: ConvProblem, target: Target, options: Options, bundle: int, fold: int
) -> Iterator[tuple[float, TmaPatchConfig]]:
    """Legal configurations that go with options, of a problem in bundles, and their estimated times."""
    fills = bundle > 1 or fold > 1

    def values(name: str, defaults: Iterable[int]) -> list[int]:
        return [int(options[name])] if name in options else list(defaults)

    c, k_per_group = problem.c_per_group, problem.k_per_group
    spans = next(((k,) for k in (64, 32, 16) if c % k == 0), (64 if c > 32 else 32,))
    strips, ahead = _strips(problem, options, fold), values("weight_stages", (0,) if fills else (0, *WEIGHT_STAGES))
    h, w = windows(problem, fold)
    depths = values("stages", (3, 2, 1))  # the deepest first
    if problem.groups == 1:
        narrow = next((n for n in (16, 32, 48) if n >= k_per_group), 64)
    else:
        narrow = next((n for n in (64, 48, 32) if k_per_group % n == 0), 16)
    narrow = FULL if fold > 1 else narrow
    for rows, schedule, consumers in itertools.product(
        [r for r in ("channels", "pixels") if options.get("rows", r) == r],
        [s for s in ("pingpong", "cooperative") if options.get("schedule", s) == s],
        values("consumers", (3, 2, 1)),
    ):
        shares = consumers if schedule == "cooperative" else 1
        by_channels = rows == "channels"
        for channels, k, pixels, (strip, images) in itertools.product(
            values("channels", (64 * shares if by_channels else narrow,)),
            values("tile.k", spans),
            values("pixels", (p for p in PIXELS if by_channels or p % (64 * shares) == 0)),
            strips,
        ):
            boxes = -(-c // k) * len(h.offsets) * len(w.offsets)
            # if the one that takes the least shared memory is illegal, so are all
            fewest = min(ahead, key=lambda n: n * consumers // shares or boxes)
            least = TmaPatchConfig(
                pixels, strip, images, channels, k, min(depths), fewest, consumers, schedule, rows, bundle, fold
            )
            if _illegal(problem, target, least):
                continue
            size = geometry(problem, least)
            for weight_stages in ahead:
                for stages in depths:
                    config = TmaPatchConfig(
                        pixels, strip, images, channels, k, stages, weight_stages, consumers, schedule, rows, bundle,
                        fold,
                    )  # fmt: skip
                    weights = _weight_bytes(config, size.weight_box, boxes * size.weight_box)
                    if _shared_bytes(config, size.patch.bytes, weights, size.chunk) <= target.shared_bytes_per_block:
                        yield _time(problem, target, config, size), config
                        break  # fewer patches ahead are no faster


def _strips(problem: ConvProblem, options: Options, fold: int) -> list[tuple[int, int]]:
    """Strips, and images a tile, that are worth a thought."""
    h, w = windows(problem, fold)
    strips = {-(-w.output // parts) for parts in range(1, 9) if parts == 1 or w.output // parts >= 12}
    if h.output == 1:  # nothing is dropped where strips are tiles
        strips |= {p for p in PIXELS if p < w.output}
    if "strip" in options:
        strips = {int(options["strip"])}
    if "images" in options:
        return [(strip, int(options["images"])) for strip in sorted(strips)]
    most = PIXELS[-1] // (h.output * w.output) if w.output in strips else 1
    return [(strip, 1) for strip in sorted(strips)] + [(w.output, i) for i in range(2, min(most, problem.n) + 1)]


def choose(problem: ConvProblem, target: Target, options: Options) -> TmaPatchConfig:
    """The cheapest configuration that goes with the options.

    Where nothing legal does, the first of what they ask for, for `obstacles` to explain.
    """
    ranked = ranking(problem, target, tuple(sorted(options.items())))
    if ranked:
        return ranked[0]
    consumers = int(options.get("consumers", 2))
    schedule = str(options.get("schedule", "pingpong"))
    rows = str(options.get("rows", "channels"))
    return TmaPatchConfig(
        int(options.get("pixels", 64)), int(options.get("strip", min(problem.output[-1], 64))),
        int(options.get("images", 1)),
        int(options.get("channels", 64 * (consumers if rows == "channels" and schedule == "cooperative" else 1))),
        int(options.get("tile.k", 64)), int(options.get("stages", 1)), int(options.get("weight_stages", 0)),
        consumers, schedule, rows, int(options.get("bundle", (*prepare.bundles(problem), 1)[0])),
        int(options.get("fold", 1)),
    )  # fmt: skip


# --- tensor maps -------------------------------------------------------------------------------------


def _x_maps(problem: ConvProblem, config: TmaPatchConfig, halo: Patch) -> dict[int, tuple[str, TensorMap]]:
    """A map, and its parameter's name, for each height that a phase may have."""
    h, w = windows(problem, config.fold)
    c, e = problem.c, problem.x.element.bytes
    heights = sorted({phase.height for phase in halo.phases})
    return {
        height: (
            "x_map" if len(heights) == 1 else f"x_map_{height}",
            TensorMap(
                "x", "tiled", problem.x.dtype, (c, w.extent, h.extent, problem.n),
                (c * e, w.extent * c * e, h.extent * w.extent * c * e), (1, w.stride, h.stride, 1),
                # counted in pixels of x: TMA brings one in `stride` of them
                box=(config.k, halo.width * w.stride, height * h.stride, config.images), swizzle=config.k * e,
            ),
        )
        for height in heights
    }  # fmt: skip


def _w_param(problem: ConvProblem, config: TmaPatchConfig) -> Param:
    if config.fills:
        return Param("w", "pointer", "w", alignment=problem.w.element.bytes * _filter_vector(problem.w))
    return Param("w_map", "tensor_map", "w", _w_map(problem, config))


def _w_map(problem: ConvProblem, config: TmaPatchConfig) -> TensorMap:
    c, e, taps = problem.c_per_group, problem.w.element.bytes, problem.taps
    return TensorMap(
        "w", "tiled", problem.w.dtype, (c, taps, problem.k), (c * e, taps * c * e), (1, 1, 1),
        box=(config.k, 1, config.channels), swizzle=config.k * e,
    )  # fmt: skip


# --- text of the kernel ------------------------------------------------------------------------------


def _formula(problem: ConvProblem) -> str:
    """The convolution as one line."""
    sp = problem.spatial
    at = [variable(d, problem.extent(d)) for d in ("n", *sp.output, "k", *sp.filter, "c")]
    maps = derive(problem, at, {v.name: v.symbol for v in at})
    x = ", ".join(["n", *(c_expr(maps.loop[d], maps.ranges) for d in sp.input), "c"])
    if problem.groups > 1:
        x = x.removesuffix("c") + f"k / {problem.k_per_group} * {problem.c_per_group} + c"
    taps = ", ".join(sp.filter)
    return f"y[n, {', '.join(sp.output)}, k] = sum over {taps}, c of x[{x}] * w[k, {taps}, c]"


def _affine(position: str, scale: int, constant: int) -> str:
    text = position if scale == 1 else f"{position} * {scale}"
    return f"{text} {'+' if constant > 0 else '-'} {abs(constant)}" if constant else text


@dataclass(frozen=True)
class Load:
    """A phase of a patch: its tensor map, byte of the patch, and start coordinates along w and h."""

    map: str
    start: int
    w: str
    h: str


def _loads(problem: ConvProblem, config: TmaPatchConfig, size: Geometry, h: Window, w: Window) -> list[Load]:
    maps = _x_maps(problem, config, size.patch)
    return [
        Load(
            maps[phase.height][0],
            phase.start,
            _affine("q0", w.stride, w.lower + phase.w) if size.strips > 1 else str(w.lower + phase.w),
            _affine("line0 / width", h.stride, h.lower + phase.h) if size.line_tiles > 1 else str(h.lower + phase.h),
        )
        for phase in size.patch.phases
    ]


def _phase_table(halo: Patch, h: Window, w: Window) -> list[list[int]]:
    """Where phase (a, b) starts in a patch; 0 for one that no tap needs.  Empty where there is one phase."""
    if h.stride == w.stride == 1:
        return []
    starts = {(phase.h, phase.w): phase.start for phase in halo.phases}
    return [[starts.get((a, b), 0) for b in range(w.stride)] for a in range(h.stride)]


def _shift(h: Window, w: Window) -> str:
    """Bytes from a pixel of a patch to what tap (r, s) reads for it."""
    r, s = (
        f"{window.offsets[1]} * {tap}" if len(window.offsets) > 1 and window.offsets[1] > 1 else tap
        for window, tap in ((h, "r"), (w, "s"))
    )
    if h.stride == w.stride == 1:
        return f"({r} * width + {s}) * row_bytes"
    rows, columns = (f"{tap} / {window.stride}" if window.stride > 1 else tap for window, tap in ((h, r), (w, s)))
    phase = "".join(f"[{tap} % {window.stride}]" for window, tap in ((h, r), (w, s)))
    return f"phases{phase} + ({rows} * width + {columns}) * row_bytes"


@dataclass(frozen=True)
class Filters:
    """How consumers lay a block's filters out in shared memory, as C: `vectors` of `vector` elements each, of which
    number `at` is at `coordinates` and at `offset` in w; it goes to the bundle's `channel`, and for row `i` of a
    fold to tap `tap` along h.  `mask`: the swizzle's bits."""

    vector: int
    type: str
    vectors: int
    in_flight: int
    coordinates: tuple[tuple[str, str], ...]
    offset: str
    channel: str
    tap: str
    mask: int


def _filter_vector(w: Tensor) -> int:
    """Channels of a filter that are one aligned load."""
    return math.gcd(prepare.VECTOR, w.extent("c")) if w.dims[-1:] == ("c",) else 1


def _filters(given: ConvProblem, problem: ConvProblem, config: TmaPatchConfig) -> Filters:
    w, vector, taps = given.w, _filter_vector(given.w), problem.spatial.filter
    h, _ = windows(problem)
    step = windows(problem, config.fold)[0].step
    extents = {"k": config.own_channels, "c": w.extent("c") // vector, **{d: problem.extent(d) for d in taps}}
    vectors = math.prod(extents.values())
    # neighbouring threads read neighbours
    order = [*(d for d in w.dims if d in extents), *(d for d in extents if d not in w.dims)]
    at = symbol("at")
    ranges = {at: (0, vectors - 1)}
    coordinates = decompose(at, order, lambda d: Integer(extents[d]))
    coordinates["k"] = symbol("k0") + coordinates["k"]
    coordinates["c"] *= vector
    ranges[symbol("k0")] = (0, max(given.k - config.own_channels, 0))
    known = {symbol("k"): (0, given.k - 1), symbol("c"): (0, w.extent("c") - 1)}
    known |= {symbol(d): (0, problem.extent(d) - 1) for d in taps}
    place = integer.simplify(Access(w, {d: symbol(d) for d in w.dims}).offset, known)
    channel = symbol("c") + mod(floordiv(symbol("k"), given.k_per_group), config.bundle) * given.c_per_group
    i, r = symbol("i"), symbol("r") if problem.rank == 2 else Integer(0)
    dilation = h.offsets[1] if len(h.offsets) > 1 else 0
    known[i] = (0, config.fold - 1)
    return Filters(
        vector, {1: "u16", 2: "u32", 4: "u64", 8: "Vec4"}[vector], vectors,
        min(-(-vectors // (128 * config.consumers)), prepare.IN_FLIGHT),
        tuple((d, c_expr(integer.simplify(e, ranges), ranges)) for d, e in coordinates.items()),
        c_expr(place, known), c_expr(integer.simplify(channel, known), known),
        c_expr(integer.simplify(i * (h.stride // step) + r * (dilation // step), known), known),
        {128: 0x70, 64: 0x30, 32: 0x10}[config.k * w.element.bytes],
    )  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where things are, as C: a tile for the producer and for a consumer (line0, q0, n), the consumer's first
    pixel in the patch, what to add to its pixels for a `line`, the output pixel of a `line` and whether it
    is kept."""

    tile: tuple[str, ...]
    consumer_tile: tuple[str, ...]
    first: str
    origin: str
    pixel: tuple[str, ...]
    kept: str


def _place(problem: ConvProblem, config: TmaPatchConfig, size: Geometry) -> Place:
    line0 = "tile % line_tiles * tile_pixels" if size.line_tiles > 1 else ""
    image = "tile / (line_tiles * strips)"
    if size.strips == 1:
        image = "tile / line_tiles" if size.line_tiles > 1 else "tile"
    elif size.line_tiles == 1:
        image = "tile / strips"
    q0 = "tile / line_tiles % strips * strip" if size.line_tiles > 1 else "tile % strips * strip"
    rest = [f"const int q0 = {q0};"] if size.strips > 1 else []
    n = "n0" if config.images > 1 else "n"
    rest.append(f"const int {n} = {image}{' * images' if config.images > 1 else ''};")
    tile = [f"const int line0 = {line0};"] if line0 else []
    if config.rows == "pixels" and config.shares > 1:
        first = "(line0 - tile_line0 / width * width)" if line0 else "line0"
        begin = [f"const int tile_line0 = {line0};"] if line0 else []
        begin.append(f"const int line0 = {'tile_line0 + ' if line0 else ''}consumer * pixels;")
    else:
        begin, first = tile, "line0 % width" if line0 else ""
    line = "line % image_pixels" if config.images > 1 else "line"
    column = "line % width"
    row = f"{line} / width" + (" * fold + channel / own_channels" if config.fold > 1 else "")
    pixel = [f"const int p = {row};", f"const int q = {'q0 + ' if size.strips > 1 else ''}{column};"]
    kept = ["q < Q", "p < P"]
    if size.strips > 1:
        kept = [f"{column} < strip", *kept] if problem.output[-1] % config.strip else [f"{column} < strip", "p < P"]
    if config.images > 1:
        pixel = ["const int n = n0 + line / image_pixels;", *pixel]
        if config.pixels > config.images * size.patch.image:
            kept.append("line < images * image_pixels")
        if problem.n % config.images:
            kept.append("n < N")
    if problem.k % config.own_channels:
        kept.append("k < K")
    origin = "line0 + " if begin else ""
    return Place(tuple(tile + rest), tuple(begin + rest), first, origin, tuple(pixel), " && ".join(kept))


STRATEGY = TmaPatch()
