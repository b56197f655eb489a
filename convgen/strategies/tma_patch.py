"""tma_patch: fprop with the input patch resident in shared memory, serving every tap.

An im2col load reads each input pixel once a tap; where channels are few, L2 cannot feed it.  Here one
tiled TMA load brings a patch of x with its halo, `strip` + (S - 1) * dilation pixels wide, and a tap is a
shift of wgmma's descriptor by whole rows of that patch.  The patch is addressed as one line of pixels of
padded width: the outputs that fall on the halo are computed and dropped.  Weights of a block of output
channels stay in shared memory for the kernel's whole life.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from convgen.codegen.render import render
from convgen.ir.index_map import tma_axes
from convgen.ir.plan import Launch, Param, Plan, TensorMap
from convgen.ir.problem import ConvProblem, Op
from convgen.strategies import cost, fragments
from convgen.strategies.base import Obstacle, Option, Options
from convgen.strategies.tma_im2col import REGISTERS, ROW_ALIGNMENT, SWIZZLE_FIELD, _memory_order, block_threads
from convgen.targets import Target

MAX_TRANSACTION = 2**20  # bytes a phase of an mbarrier counts, exclusive (PTX ISA, "mbarrier")
MAX_BOX = 256  # elements a side of a tensor map's box (CUDA driver API, cuTensorMapEncodeTiled)


@dataclass(frozen=True)
class TmaPatchConfig:
    """`pixels` of padded width a tile, in strips of `strip` output columns; `channels` output channels a
    block; `k` input channels a patch (its swizzle span); consumer warpgroups, each with a ring of its own
    of `stages` patches.  `rows` says what wgmma's m runs over: output channels or pixels."""

    pixels: int
    strip: int
    channels: int
    k: int
    stages: int
    consumers: int
    rows: str

    def __str__(self) -> str:
        return (
            f"{self.pixels} pixels x {self.channels} channels over {self.k}, strips of {self.strip}, "
            f"{self.consumers} consumers with {self.stages} patches each, m runs over {self.rows}"
        )


OPTIONS = (
    Option("pixels", "pixels of padded width a tile", choices=tuple(range(16, 257, 16))),
    Option("strip", "output columns a strip", 1, MAX_BOX),
    Option("channels", "output channels a block", choices=(16, 32, 48, 64)),
    Option("tile.k", "input channels a patch", choices=(16, 32, 64)),
    Option("stages", "patches in flight for each consumer", 1, 8),
    Option("consumers", "consumer warpgroups", 1, 3),
    Option("rows", "what wgmma's m runs over", choices=("channels", "pixels")),
)


@dataclass(frozen=True)
class Geometry:
    """What follows from a problem and a configuration.  Sizes in bytes, extents in pixels."""

    span: int
    blocks: int  # of input channels
    width: int  # of a patch
    height: int
    slack: int  # pixels past a patch that dropped outputs read
    patch_box: int
    patch: int
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
    (r, s), (dh, dw), (p, q) = problem.filter, problem.dilation, problem.output
    span = config.k * problem.x.element.bytes
    blocks = -(-problem.c // config.k)
    width = config.strip + (s - 1) * dw
    height = (config.pixels + width - 2) // width + 1 + (r - 1) * dh
    slack = (s - 1) * dw
    patch_box = height * width * span
    patch = _align(patch_box + slack * span)
    weight_box = config.channels * span
    weights = _align(blocks * r * s * weight_box)
    strips, line_tiles = -(-q // config.strip), -(-p * width // config.pixels)
    chunk_pixels = max(c for c in (64, 48, 32, 16) if config.pixels % c == 0)
    chunk = chunk_pixels * min(config.channels, 64) * problem.y.element.bytes
    total = 1024 + config.consumers * (config.stages * patch + _align(chunk)) + weights
    total += 16 * config.consumers * config.stages + 8
    return Geometry(
        span, blocks, width, height, slack, patch_box, patch, weight_box, weights, strips, line_tiles,
        problem.n * strips * line_tiles, -(-problem.k // config.channels), chunk_pixels, chunk, total,
    )  # fmt: skip


def _align(size: int) -> int:
    return -(-size // 1024) * 1024


class TmaPatch:
    name = "tma_patch"
    summary = "the input patch stays in shared memory and serves every tap: few channels, unit stride (sm_90a)"
    options = OPTIONS

    def obstacles(self, problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
        found: list[Obstacle] = []

        def no(message: str, hint: str = "", option: str = "") -> None:
            found.append(Obstacle(message, hint, option))

        sp = problem.spatial
        x, w, y = problem.x, problem.w, problem.y
        if "wgmma" not in target.features:
            no(f"target {target} has no wgmma", "target sm_90a has it")
        if problem.op is not Op.FPROP:
            no(f"op {problem.op} is not served, fprop alone")
        if problem.rank != 2:
            no(f"{problem.rank} spatial dims: two alone")
        if problem.groups != 1:
            no(f"groups {problem.groups}: one group alone")
        if set(problem.stride) != {1}:
            no("a stride above 1", "strategy tma_im2col serves it")
        if problem.taps == 1:
            no("a 1x1 filter has nothing to reuse", "strategy tma_im2col serves it")
        if not (x.dtype == w.dtype and x.dtype in ("f16", "bf16")):
            no(f"types {x.dtype} x {w.dtype}: x and w must both be f16 or bf16")
        if y.dtype not in ("f16", "bf16") or problem.accumulate != "f32":
            no(f"output type {y.dtype}, accumulate {problem.accumulate}: f16 or bf16, f32")
        for tensor, order in ((x, ("n", *sp.input, "c")), (w, ("k", *sp.filter, "c")), (y, ("n", *sp.output, "k"))):
            if not _memory_order(tensor, order):
                no(f"layout of {tensor.name} is {' '.join(tensor.dims)}", f"{' '.join(order)} alone")
        for tensor, extent, dim in ((x, problem.c, "c"), (y, problem.k, "k")):
            if extent * tensor.element.bytes % ROW_ALIGNMENT:
                no(f"a pixel of {tensor.name} is {extent * tensor.element.bytes} bytes ({dim}={extent})",
                   f"{dim} must be a multiple of {ROW_ALIGNMENT // tensor.element.bytes}")  # fmt: skip
        if y.size >= 2**31 or x.size >= 2**31:
            no("a tensor of 2^31 elements or more", "strategy tma_im2col or direct")
        if found:
            return found
        return _illegal(problem, target, choose(problem, target, options))

    def candidates(self, problem: ConvProblem, target: Target) -> list[Options]:
        """Configurations worth measuring, the most promising first."""
        return [as_options(c) for c in _ranked(problem, target, ())[:40]]

    def estimate(self, problem: ConvProblem, target: Target, options: Options) -> float:
        """Microseconds, by the cost model."""
        return estimate(problem, target, choose(problem, target, options))

    def plan(self, problem: ConvProblem, target: Target, options: Options) -> Plan:
        config = choose(problem, target, options)
        size = geometry(problem, config)
        params = [
            Param("x_map", "tensor_map", "x", _x_map(problem, config, size)),
            Param("w_map", "tensor_map", "w", _w_map(problem, config)),
            Param("y", "pointer", "y"),
            *(Param(f"operand_{t.name}", "pointer", t.name) for t in problem.operands),
        ]
        launch = Launch(
            entry=f"convgen_{problem.name}",
            grid=(size.tiles * size.channel_tiles, 1, 1),
            block=block_threads(config.consumers),
            params=tuple(params),
            shared_bytes=size.total,
            persistent=True,
            dependent=True,
            multiple_of=size.channel_tiles,
        )
        return Plan(problem, target, self.name, config, (launch,))

    def render(self, plan: Plan) -> str:
        problem, config = plan.problem, plan.config
        assert isinstance(config, TmaPatchConfig)
        size = geometry(problem, config)
        h, w = tma_axes(problem)
        return render(
            "tma_patch.cu.j2",
            plan,
            config=config,
            size=size,
            launch=plan.launches[0],
            swizzle_field=SWIZZLE_FIELD[size.span],
            start={"h": h.lower, "w": w.lower},
            dilation=problem.dilation,
            registers=REGISTERS[config.consumers],
            in_type=problem.x.dtype,
            pack=fragments.PACK[problem.y.dtype],
            epilogue=fragments.of_elements(problem),
            chunk_channels=min(config.channels, 64),
            last_pair=fragments.last_pair(problem),
            k_tail=problem.k % config.channels != 0,
        )


def _illegal(problem: ConvProblem, target: Target, config: TmaPatchConfig) -> list[Obstacle]:
    """What a configuration asks for that the hardware does not have."""
    found: list[Obstacle] = []

    def no(message: str, hint: str = "", option: str = "") -> None:
        found.append(Obstacle(message, hint, option))

    if config.rows == "channels" and config.channels != 64:
        no("rows channels goes with channels 64", option="channels")
    if config.rows == "pixels" and config.pixels % 64:
        no("rows pixels takes a multiple of 64 pixels", option="pixels")
    if config.strip > problem.output[1]:
        no(f"strip {config.strip} is wider than the output's {problem.output[1]} columns", option="strip")
    accumulators = config.pixels * config.channels // 128
    registers = REGISTERS[config.consumers]
    # ptxas compiles a wgmma with the registers of the launch, before setmaxnreg gives more
    at_launch = target.registers_per_sm // block_threads(config.consumers) // 8 * 8 - 28
    budget = min((registers.consumer if registers else 255) - 56, at_launch)
    if accumulators > budget:
        no(f"{accumulators} accumulators a thread; {config.consumers} consumers leave {budget} registers for them",
           "fewer pixels or consumers", "pixels")  # fmt: skip
    if found:
        return found
    size = geometry(problem, config)
    if max(size.width, size.height) > MAX_BOX:
        no(f"a patch of {size.height} x {size.width} pixels; a box has at most {MAX_BOX} a side",
           "a narrower strip", "strip")  # fmt: skip
    if size.total > target.shared_bytes_per_block:
        no(
            f"patches, weights and chunks take {size.total} bytes of shared memory; "
            f"{target} has {target.shared_bytes_per_block}",
            "fewer pixels, stages or consumers; with many channels strategy tma_im2col serves better",
            "pixels",
        )
    if size.blocks * problem.taps * size.weight_box >= MAX_TRANSACTION:
        no("the weights of a block are more bytes than a barrier counts", "fewer channels", "channels")
    return found


# --- defaults ----------------------------------------------------------------------------------------

CHANNELS = (16, 32, 48, 64)
PIXELS = tuple(range(32, 257, 16))


def estimate(problem: ConvProblem, target: Target, config: TmaPatchConfig) -> float:
    """Microseconds that the cost model gives a configuration."""
    size = geometry(problem, config)
    return cost.patch_time(
        pixels=config.pixels, channels=config.channels, k=config.k, stages=config.stages, consumers=config.consumers,
        by_channels=config.rows == "channels", blocks=size.blocks, box=size.patch_box, weights=size.weights,
        tiles=size.tiles, channel_tiles=size.channel_tiles, taps=problem.taps, bytes=problem.min_bytes,
        sms=target.sms,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _ranked(problem: ConvProblem, target: Target, fixed: tuple[tuple[str, int | str], ...]) -> list[TmaPatchConfig]:
    """Legal configurations that go with fixed options, by estimated time."""
    options = dict(fixed)
    width = problem.output[1]
    spans = next(((k,) for k in (64, 32, 16) if problem.c % k == 0), (64 if problem.c > 32 else 32,))
    strips = sorted({-(-width // parts) for parts in range(1, 9) if parts == 1 or width // parts >= 12})

    def values(name: str, defaults: Iterable[int]) -> list[int]:
        return [int(options[name])] if name in options else list(defaults)

    found = []
    for rows in [str(options["rows"])] if "rows" in options else ("channels", "pixels"):
        by_channels = rows == "channels"
        narrow = next((c for c in CHANNELS if c >= problem.k), 64)
        for channels, k, consumers, pixels, strip, stages in itertools.product(
            values("channels", (64,) if by_channels else (narrow,)),
            values("tile.k", spans),
            values("consumers", (2, 3, 1)),
            values("pixels", (p for p in PIXELS if by_channels or p % 64 == 0)),
            values("strip", strips),
            values("stages", (3, 2, 1)),
        ):
            config = TmaPatchConfig(pixels, strip, channels, k, stages, consumers, rows)
            if not _illegal(problem, target, config):
                found.append((estimate(problem, target, config), config))
    return [config for _, config in sorted(found, key=lambda row: row[0])]


def choose(problem: ConvProblem, target: Target, options: Options) -> TmaPatchConfig:
    """The cheapest configuration that goes with the options.

    Where nothing legal does, the first of what they ask for, for `obstacles` to explain.
    """
    ranked = _ranked(problem, target, tuple(sorted(options.items())))
    if ranked:
        return ranked[0]
    return TmaPatchConfig(
        int(options.get("pixels", 64)), int(options.get("strip", min(problem.output[1], 64))),
        int(options.get("channels", 64)), int(options.get("tile.k", 64)), int(options.get("stages", 1)),
        int(options.get("consumers", 2)), str(options.get("rows", "channels")),
    )  # fmt: skip


def as_options(config: TmaPatchConfig) -> Options:
    """The options that ask for exactly this configuration."""
    return {
        "pixels": config.pixels, "strip": config.strip, "channels": config.channels, "tile.k": config.k,
        "stages": config.stages, "consumers": config.consumers, "rows": config.rows,
    }  # fmt: skip


# --- tensor maps -------------------------------------------------------------------------------------


def _x_map(problem: ConvProblem, config: TmaPatchConfig, size: Geometry) -> TensorMap:
    h, w = problem.input
    c, e = problem.c, problem.x.element.bytes
    return TensorMap(
        "x", "tiled", problem.x.dtype, (c, w, h, problem.n), (c * e, w * c * e, h * w * c * e), (1, 1, 1, 1),
        box=(config.k, size.width, size.height, 1), swizzle=size.span,
    )  # fmt: skip


def _w_map(problem: ConvProblem, config: TmaPatchConfig) -> TensorMap:
    c, e, taps = problem.c, problem.w.element.bytes, problem.taps
    return TensorMap(
        "w", "tiled", problem.w.dtype, (c, taps, problem.k), (c * e, taps * c * e), (1, 1, 1),
        box=(config.k, 1, config.channels), swizzle=config.k * e,
    )  # fmt: skip


STRATEGY = TmaPatch()
