"""tma_im2col: fprop as an implicit GEMM on Hopper, fed by TMA's im2col mode.

gemm_m runs over output pixels (n, p, q), gemm_n over output channels, gemm_k over taps and channels.
One producer thread asks TMA for a tile of x (a walk of the im2col box, shifted by the tap) and a tile of
w for each k step; consumer warpgroups multiply them with wgmma; a tile of y leaves through shared memory
and a TMA store.  Blocks are persistent: each takes tiles until none is left.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from sympy import Integer

from convgen.codegen.c_expr import c_expr
from convgen.codegen.render import render
from convgen.ir.index_map import decompose, derive, tma_axes, variable
from convgen.ir.plan import Launch, Param, Plan, TensorMap
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.strategies import cost, fragments
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
    warpgroups, and how they share the work: `cooperative` consumers split a tile's pixels, `pingpong`
    consumers take whole tiles in turn, one multiplying while the other stores."""

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

    def __str__(self) -> str:
        blocks = f", {self.blocks} blocks a multiprocessor" if self.blocks > 1 else ""
        blocks += f", {self.merge} k steps a stage" if self.merge > 1 else ""
        blocks += f", k split over {self.split} blocks" if self.split > 1 else ""
        return (
            f"tile {self.m}x{self.n}x{self.k}, {self.stages} stages, {self.consumers} {self.schedule} "
            f"consumer{'s' if self.consumers > 1 else ''}, {self.order}{blocks}"
        )


OPTIONS = (
    Option("tile.m", "output pixels a tile", choices=(64, 128, 192, 256)),
    Option("tile.n", "output channels a tile", choices=tuple(range(8, 257, 8))),
    Option("tile.k", "channels a k step: the swizzle span (16, 32, 64 for 2-byte types)", choices=(16, 32, 64)),
    Option("stages", "k steps in flight", 2, 32),
    Option("consumers", "consumer warpgroups", 1, 3),
    Option("schedule", "how consumers share the work", choices=("cooperative", "pingpong")),
    Option("order", "what the k loop runs over inside", choices=("channels_inner", "taps_inner")),
    Option("blocks", "blocks a multiprocessor", 1, 4),
    Option("merge", "k steps that share a stage: for few channels", 1, 64),
    Option("split", "blocks of a cluster that share a tile's k steps, summed in a fixed order", choices=(1, 2, 4, 8)),
)


@dataclass(frozen=True)
class Footprint:
    """Shared memory of a configuration, in bytes.  A box is one TMA load; a stage holds `merge` of each."""

    x_box: int
    w_box: int
    stage: int
    chunk_n: int
    chunk: int
    partials: int
    total: int


def footprint(problem: ConvProblem, config: TmaIm2colConfig) -> Footprint:
    span = config.k * problem.x.element.bytes
    x_box, w_box = config.m * span, config.n * span
    stage = config.merge * (x_box + w_box)
    # the output leaves in chunks of 64 pixels by `chunk_n` channels, one swizzle span wide; two a consumer
    store_n = config.n // config.split
    chunk_n = next(c for c in (64, 32, 16, 8, 1) if store_n % c == 0)
    chunk = 64 * chunk_n * 2 if stores_by_tma(problem) else 0
    partials = config.m * config.n * 4 if config.split > 1 else 0
    barriers = 16 * config.stages + 16 + 8 * config.consumers
    # 1024 to align the base
    total = 1024 + config.stages * stage + 2 * config.consumers * chunk + partials + barriers
    return Footprint(x_box, w_box, stage, chunk_n, chunk, partials, total)


def stores_by_tma(problem: ConvProblem) -> bool:
    """Whether a tile of y can leave by a TMA store: channels innermost, pixels in order, rows aligned."""
    y = problem.y
    in_order = tuple(d for d in ("n", *problem.spatial.output, "k") if d in y.dims)
    return y.dims == in_order and y.element.bytes == 2 and problem.k * 2 % ROW_ALIGNMENT == 0


def is_pointwise(problem: ConvProblem) -> bool:
    """1x1, unit stride, no padding: x is a matrix already, and a plain tiled map serves."""
    return problem.taps == 1 and set(problem.stride) == {1} and not any((*problem.pad_lo, *problem.pad_hi))


# --- the strategy ------------------------------------------------------------------------------------


def _memory_order(tensor: Tensor, dims: tuple[str, ...]) -> bool:
    return tensor.dims == tuple(d for d in dims if d in tensor.dims)


class TmaIm2col:
    name = "tma_im2col"
    summary = "implicit GEMM on TMA im2col loads and wgmma: warp-specialised, persistent (sm_90a)"
    options = OPTIONS

    def obstacles(self, problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
        found: list[Obstacle] = []

        def no(message: str, hint: str = "", option: str = "") -> None:
            found.append(Obstacle(message, hint, option))

        sp = problem.spatial
        x, w = problem.x, problem.w
        if "wgmma" not in target.features:
            no(f"target {target} has no wgmma", "target sm_90a has it")
        if problem.op is not Op.FPROP:
            no(f"op {problem.op} is not served yet, fprop alone", "strategy direct or im2col serves it")
        if problem.groups != 1:
            no(f"groups {problem.groups}: one group alone", "strategy implicit_gemm or direct serves groups")
        if not (x.dtype == w.dtype and x.dtype in ("f16", "bf16")):
            no(f"types {x.dtype} x {w.dtype}: x and w must both be f16 or bf16")
        if problem.accumulate != "f32":
            no(f"accumulate {problem.accumulate}: f32 alone")
        if problem.y.dtype not in ("f16", "bf16", "f32"):
            no(f"output type {problem.y.dtype}: f16, bf16 or f32")
        if not _memory_order(x, ("n", *sp.input, "c")):
            no(f"layout of {x.name} is {' '.join(x.dims)}", f"TMA walks {' '.join(('n', *sp.input, 'c'))}")
        if not (_memory_order(w, ("k", *sp.filter, "c")) or _memory_order(w, (*sp.filter, "k", "c"))):
            no(f"layout of {w.name} is {' '.join(w.dims)}", f"k {' '.join(sp.filter)} c, or the taps outside k")
        row = problem.c * x.element.bytes
        if row % ROW_ALIGNMENT:
            no(
                f"a pixel of {x.name} is {row} bytes (c={problem.c}); TMA wants a multiple of {ROW_ALIGNMENT}",
                f"c must be a multiple of {ROW_ALIGNMENT // x.element.bytes}",
            )
        if problem.output_pixels + LARGEST_TILE >= 2**31:
            no(f"{problem.output_pixels} output pixels do not fit 32 bits, counted by whole tiles",
               "strategy direct counts in 64")  # fmt: skip
        if problem.op is Op.FPROP:
            found += _map_obstacles(problem)
        if not found:
            found += _illegal(problem, target, choose(problem, target, options))
        return found

    def candidates(self, problem: ConvProblem, target: Target) -> list[Options]:
        """Configurations worth measuring, the most promising first."""
        return [as_options(c) for c in _ranked(problem, target, ())[:40]]

    def estimate(self, problem: ConvProblem, target: Target, options: Options) -> float:
        """Microseconds, by the cost model."""
        return estimate(problem, target, choose(problem, target, options))

    def plan(self, problem: ConvProblem, target: Target, options: Options) -> Plan:
        config = choose(problem, target, options)
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
        tiles = -(-problem.output_pixels // config.m) * -(-problem.k // config.n)
        launch = Launch(
            entry=prefix,
            grid=(tiles * config.split, 1, 1),
            block=block_threads(config.consumers, config.blocks),
            params=tuple(params),
            shared_bytes=size.total,
            cluster=config.split,
            persistent=True,
            dependent=True,
            blocks_per_sm=config.blocks,
        )
        return Plan(problem, target, self.name, config, (launch,))

    def render(self, plan: Plan) -> str:
        problem, config = plan.problem, plan.config
        assert isinstance(config, TmaIm2colConfig)
        sp = problem.spatial
        size = footprint(problem, config)
        m0 = variable("m0", problem.output_pixels)
        start = derive(
            problem,
            (m0,),
            decompose(m0.symbol, ("n", *sp.output), lambda d: Integer(problem.extent(d)))
            | {f: Integer(0) for f in sp.filter}
            | {"c": Integer(0), "k": Integer(0)},
        ).simplified()
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
            launch=plan.launches[0],
            span=config.k * problem.x.element.bytes,
            swizzle_field=SWIZZLE_FIELD[config.k * problem.x.element.bytes],
            rank=problem.rank + 2,
            pointwise=is_pointwise(problem),
            taps=taps,
            advance=_advance([str(t["dim"]) for t in taps], config),
            start=[(d, c_expr(start.loop[d], start.ranges)) for d in ("n", *sp.input)],
            w_taps_outside=_taps_outside(problem),
            gemm_m=problem.output_pixels,
            gemm_n=problem.k,
            c=problem.c,
            c_blocks=-(-problem.c // config.k),
            m_tail=problem.output_pixels % config.m != 0,
            n_tail=problem.k % config.n != 0,
            registers=register_split(config.consumers, config.blocks),
            rows_per_consumer=config.m if config.schedule == "pingpong" else config.m // config.consumers,
            in_type=problem.x.dtype,
            by_tma=stores_by_tma(problem),
            y=problem.y,
            epilogue=fragments.of_pairs(problem),
            load_early=_loads_early(problem, config, plan.target),
            last_pair=fragments.last_pair(problem),
            pack=fragments.PACK.get(problem.y.dtype),
            store=fragments.store(problem),
        )


def _accumulators(config: TmaIm2colConfig) -> int:
    """Accumulators of a consumer's thread."""
    rows = config.m if config.schedule == "pingpong" else config.m // config.consumers
    return rows // 64 * config.n // 2


def _registers(config: TmaIm2colConfig, target: Target) -> int:
    """Registers that a consumer's thread may use."""
    split = register_split(config.consumers, config.blocks)
    threads = block_threads(config.consumers, config.blocks)
    return split.consumer if split else launch_registers(target, threads, config.blocks)


def _loads_early(problem: ConvProblem, config: TmaIm2colConfig, target: Target) -> bool:
    """Whether registers are left, beside the accumulators, for the channels' operands during the k loop."""
    operands = sum(t.dims == ("k",) for t in problem.operands)
    sums = _accumulators(config) // config.split if config.split > 1 else 0
    return _accumulators(config) + sums + operands * config.n // config.split // 4 + 48 <= _registers(config, target)


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
    if not pingpong and config.m % (64 * config.consumers):
        no(
            f"tile m={config.m} does not split into 64 rows for each of {config.consumers} consumers",
            f"m={64 * config.consumers} or a multiple",
            "tile.m",
        )
    accumulators, budget = _accumulators(config), _registers(config, target) - 40
    # ptxas compiles a wgmma with the registers of the launch, before setmaxnreg gives more
    at_launch = launch_registers(target, block_threads(config.consumers, config.blocks), config.blocks) - 28
    if config.n // 2 > at_launch:
        no(f"tile n={config.n} with {config.consumers} consumers: ptxas has {at_launch + 28} registers for it",
           f"n={at_launch * 2 // 8 * 8} or less", "tile.n")  # fmt: skip
    if accumulators > budget:
        no(
            f"tile {config.m}x{config.n} keeps {accumulators} accumulators a thread; "
            f"{config.consumers} consumers leave {max(budget, 0)} registers for them",
            "a smaller tile, or more cooperative consumers",
            "tile.n",
        )
    steps = problem.taps * -(-problem.c // config.k)
    if steps % config.merge:
        no(f"merge {config.merge} does not divide {steps} k steps", option="merge")
    if config.split > 1:
        if pingpong:
            no("split goes with schedule cooperative", option="split")
        if config.n % (8 * config.split):
            no(f"tile n={config.n} does not split into {config.split} times 8 channels", option="split")
        if steps // config.merge < config.split:
            no(f"{steps // config.merge} stages of k are fewer than split {config.split}", option="split")
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

#: Rows of a tile, and how many consumers share them in which way, that are worth a thought.
SHAPES = (
    (128, 2, "cooperative"),
    (64, 1, "cooperative"),
    (192, 3, "cooperative"),
    (256, 2, "cooperative"),
    (64, 2, "pingpong"),
    (64, 3, "pingpong"),
    (128, 2, "pingpong"),
)
TILE_N = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
MAX_STAGES = 12


def estimate(problem: ConvProblem, target: Target, config: TmaIm2colConfig) -> float:
    """Microseconds that the cost model gives a configuration."""
    return cost.im2col_time(
        m=config.m, n=config.n, k=config.k, stages=config.stages, consumers=config.consumers,
        pingpong=config.schedule == "pingpong", blocks=config.blocks, merge=config.merge, split=config.split,
        tiles=-(-problem.output_pixels // config.m) * -(-problem.k // config.n),
        steps=problem.taps * -(-problem.c // config.k), bytes=problem.min_bytes, sms=target.sms,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _ranked(problem: ConvProblem, target: Target, fixed: tuple[tuple[str, int | str], ...]) -> list[TmaIm2colConfig]:
    """Legal configurations that go with fixed options, by estimated time."""
    options = dict(fixed)

    def values(name: str, defaults: Iterable[int]) -> list[int]:
        return [int(options[name])] if name in options else list(defaults)

    spans = [k for k in (64, 32, 16) if problem.c % k == 0][:1]
    spans += [k for k in (64, 32, 16) if k not in spans and -(-problem.c // k) * k <= 1.5 * problem.c][:1]
    widest = min(256, -(-problem.k // 8) * 8)
    found = []
    for k in values("tile.k", spans or (16,)):
        steps = problem.taps * -(-problem.c // k)
        merges = [d for d in (1, 2, 3, 5, 7, 9) if steps % d == 0 and k * d <= 160]
        for (m, consumers, schedule), n in itertools.product(
            _shapes(options), values("tile.n", (n for n in TILE_N if n <= widest) if widest >= 8 else (8,))
        ):
            tiles = -(-problem.output_pixels // m) * -(-problem.k // n)
            splits = (1, 2, 4, 8) if schedule == "cooperative" and tiles < target.sms else (1,)
            blocks = (1, 2, 3) if m == 64 and consumers == 1 and tiles > target.sms else (1,)
            for merge, split, block in itertools.product(
                values("merge", merges), values("split", splits), values("blocks", blocks)
            ):
                order = str(options.get("order", "channels_inner"))
                trial = TmaIm2colConfig(m, n, k, 2, consumers, schedule, order, block, merge, split)
                if "stages" in options:
                    config = replace(trial, stages=int(options["stages"]))
                else:
                    config = replace(trial, stages=_stages(problem, target, trial, steps))
                if not _illegal(problem, target, config):
                    found.append((estimate(problem, target, config), config))
    return [config for _, config in sorted(found, key=lambda row: row[0])]


def _shapes(options: Options) -> list[tuple[int, int, str]]:
    """The rows of SHAPES that go with the options; where none does, what they ask for."""
    return [
        (m, consumers, schedule)
        for m, consumers, schedule in SHAPES
        if options.get("tile.m", m) == m
        and options.get("consumers", consumers) == consumers
        and options.get("schedule", schedule) == schedule
    ] or [
        (int(options.get("tile.m", 128)), int(options.get("consumers", 2)), str(options.get("schedule", "cooperative")))
    ]


def _stages(problem: ConvProblem, target: Target, config: TmaIm2colConfig, steps: int) -> int:
    """As many stages as fit, but no more than a tile has use for."""
    size = footprint(problem, config)
    room = _shared_limit(target, config) - (size.total - 2 * (size.stage + 16))
    useful = max(-(-steps // (config.merge * config.split)), 4)
    return max(2, min(room // (size.stage + 16), MAX_STAGES, useful))


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
    m, consumers, schedule = _shapes(options)[0]
    trial = TmaIm2colConfig(
        m, int(options.get("tile.n", 128)), int(options.get("tile.k", 64)), 2, consumers,
        schedule, str(options.get("order", "channels_inner")),
        int(options.get("blocks", 1)), int(options.get("merge", 1)), int(options.get("split", 1)),
    )  # fmt: skip
    steps = problem.taps * -(-problem.c // trial.k)
    return replace(trial, stages=int(options.get("stages", _stages(problem, target, trial, steps))))


def as_options(config: TmaIm2colConfig) -> Options:
    """The options that ask for exactly this configuration."""
    return {
        "tile.m": config.m, "tile.n": config.n, "tile.k": config.k, "stages": config.stages,
        "consumers": config.consumers, "schedule": config.schedule, "order": config.order,
        "blocks": config.blocks, "merge": config.merge, "split": config.split,
    }  # fmt: skip


# --- tensor maps -------------------------------------------------------------------------------------


def _x_map(problem: ConvProblem, config: TmaIm2colConfig) -> TensorMap:
    x, size = problem.x, problem.x.element.bytes
    span = config.k * size
    if is_pointwise(problem):
        return TensorMap(
            "x", "tiled", x.dtype, (problem.c, problem.output_pixels), (problem.c * size,), (1, 1),
            box=(config.k, config.m), swizzle=span,
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
        channels=config.k, pixels=config.m, swizzle=span,
    )  # fmt: skip


def _w_map(problem: ConvProblem, config: TmaIm2colConfig) -> TensorMap:
    w, size = problem.w, problem.w.element.bytes
    c, k, taps = problem.c, problem.k, problem.taps
    outer = ((k, c), (taps, c * k)) if _taps_outside(problem) else ((taps, c), (k, c * taps))
    box = (config.k, config.n, 1) if _taps_outside(problem) else (config.k, 1, config.n)
    return TensorMap(
        "w", "tiled", w.dtype, (c, *(e for e, _ in outer)), tuple(s * size for _, s in outer), (1, 1, 1),
        box=box, swizzle=config.k * size,
    )  # fmt: skip


def _y_map(problem: ConvProblem, size: Footprint) -> TensorMap:
    y = problem.y
    span = size.chunk_n * 2
    return TensorMap(
        "y", "tiled", y.dtype, (problem.k, problem.output_pixels), (problem.k * 2,), (1, 1),
        box=(size.chunk_n, 64), swizzle=span if span >= 32 else 0,
    )  # fmt: skip


STRATEGY = TmaIm2col()
