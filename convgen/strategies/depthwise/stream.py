"""stream: rows of x pass through shared memory, brought by TMA, and every row is read once.

A block has a slice of the channels and a run of bands: a band is a few output rows of one image, over a strip
of its columns.  Chunks of input rows follow one another through a ring; the next band of the same image needs
one more chunk, and a chunk is given back when the band is done with it.  TMA fills what lies outside x with
zeros: that is the padding.

The products are made on the ordinary cores (`fma`), each thread for a patch of outputs and a few channels, or
on tensor cores (`mma`): along a row, a channel's convolution is a product with a banded matrix,
y[q] = sum over w of x[w] B[w, q] with B[w, q] = filter[w - q], so a warp multiplies 16 x 16 inputs of one
channel (blocks of 8 columns, of several rows) with the 16 x 8 band of a filter row, and adds the filter's rows.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from convgen.codegen.render import render
from convgen.ir.plan import Param, Plan, TensorMap
from convgen.ir.problem import ConvProblem
from convgen.strategies import lowering, output
from convgen.strategies.axes import Axis, axes
from convgen.strategies.base import Obstacle, Obstacles, Options
from convgen.strategies.cost import varied
from convgen.strategies.depthwise import cost
from convgen.strategies.depthwise.patches import channel_run, formulas, run_result
from convgen.strategies.elementwise import Pointer, fprop_pointers
from convgen.strategies.hopper import MAX_BOX, launch_registers
from convgen.strategies.kernels import persistent
from convgen.targets import Target

MATHS = ("fma", "mma")
ALIGNMENT = 128  # bytes: where TMA may write
UNIT = 16  # bytes that a lane of an mma kernel loads of a pixel: 8 channels
PRODUCER = 32  # threads
MMA_OUTPUTS = 8  # columns of an mma's result
MMA_DEPTH = 16  # input columns of one mma
MMA_TYPES = ("f16", "bf16")
OTHER_REGISTERS = 14  # a thread's, for places and counters
MMA_REGISTERS = 76  # the same around mmas
FEW_TAPS, FEW_TAPS_TILES = 9, ((2, 4), (1, 4), (1, 7), (2, 7), (4, 4))
MMA_TAPS = 25  # from so many on, tensor cores are worth a trial
MOST_REGISTER_FILTER = 100  # values of a thread's filters that stay in its registers
SECTOR = 32  # bytes: what device memory is written by; parts of one cost as much as several
IN_FLIGHT = 64 << 10  # bytes a multiprocessor: memory's rate times its latency, and some more
WHOLE_PLANE = 16  # output rows: images so low are taken whole, too
MOST_CANDIDATES, MOST_OF_A_KIND = 48, 6


@dataclass(frozen=True)
class StreamConfig:
    """Output rows `p` and columns `q` of a thread (mma: of a warp) and its channels; a block's slice of output
    channels, strip of columns, band of rows, and chunks of input rows in flight."""

    math: str
    p: int
    q: int
    vector: int
    slice: int
    strip: int
    band: int
    stages: int
    threads: int
    blocks: int

    @property
    def options(self) -> Options:
        """What a spec's strategy block would say."""
        return {
            "kernel": "stream", "math": self.math, "tile.p": self.p, "tile.q": self.q, "vector": self.vector,
            "slice": self.slice, "strip": self.strip, "band": self.band, "stages": self.stages,
            "threads": self.threads, "blocks": self.blocks,
        }  # fmt: skip

    def __str__(self) -> str:
        return (
            f"{self.math}: {self.p}x{self.q} pixels by {self.vector} channels a "
            f"{'warp' if self.math == 'mma' else 'thread'}, bands of {self.band}x{self.strip} pixels by {self.slice} "
            f"channels, {self.stages} chunks of rows, {self.threads} threads, {self.blocks} "
            f"block{'s' if self.blocks > 1 else ''} a multiprocessor"
        )


@dataclass(frozen=True)
class Bands:
    """How a warp's 16 x 8 results of an mma lie on its tile: result row m is a block of 8 output columns of one
    output row; rows m and m + 8 are neighbours, so that they share input rows from tap to tap."""

    blocks: int  # column blocks of an mma
    pairs: int  # pairs of output rows of an mma
    p_sets: int
    q_sets: int
    depth: int  # mmas along the input columns
    first: int  # the band's entry for input column 0 of output column 0
    entries: int


@dataclass(frozen=True)
class Layout:
    """What follows from a problem and a configuration."""

    problem: ConvProblem
    config: StreamConfig

    @cached_property
    def axes(self) -> tuple[Axis, Axis]:
        return axes(self.problem)

    @property
    def multiplier(self) -> int:
        return self.problem.k_per_group

    @property
    def inputs(self) -> int:
        """Input channels of a thread."""
        return max(1, self.config.vector // self.multiplier)

    @property
    def x_slice(self) -> int:
        """Input channels of a block."""
        return self.config.slice // self.multiplier

    @property
    def slices(self) -> int:
        return self.problem.k // self.config.slice

    @property
    def element_bytes(self) -> int:
        return self.problem.x.element.bytes

    @property
    def box_channels(self) -> int:
        """Channels of a pixel in shared memory: for mma an odd number of units, for banks."""
        if self.config.math == "fma":
            return self.x_slice
        per_unit = UNIT // self.element_bytes
        return (self.x_slice // per_unit | 1) * per_unit

    @property
    def pitch(self) -> int:
        """Bytes from a pixel to the next."""
        return self.box_channels * self.element_bytes

    @property
    def strips(self) -> int:
        return -(-self.axes[1].output // self.config.strip)

    @property
    def p_tiles(self) -> int:
        return -(-self.axes[0].output // self.config.band)

    @property
    def row_tiles(self) -> int:
        """Tiles of a thread or a warp down a band."""
        return self.config.band // self.config.p

    @property
    def column_tiles(self) -> int:
        return -(-self.config.strip // self.config.q)

    @property
    def tiles(self) -> int:
        return self.row_tiles * self.column_tiles

    @property
    def step(self) -> int:
        """Input rows of a chunk: what a band adds to the one before."""
        rows = self.axes[0]
        return rows.inputs(self.config.band) if self.p_tiles == 1 else self.config.band * rows.stride

    @property
    def chunks(self) -> int:
        """Chunks that a band reads."""
        return -(-self.axes[0].inputs(self.config.band) // self.step)

    @cached_property
    def bands(self) -> Bands | None:
        if self.config.math == "fma":
            return None
        columns = self.axes[1]
        blocks = min(4, self.config.q // MMA_OUTPUTS)
        pairs = 8 // blocks
        depth = -(-columns.inputs(MMA_OUTPUTS) // MMA_DEPTH)
        first = (MMA_OUTPUTS - 1) * columns.stride
        return Bands(
            blocks, pairs, self.config.p // (2 * pairs), self.config.q // (MMA_OUTPUTS * blocks),
            depth, first, first + MMA_DEPTH * depth,
        )  # fmt: skip

    @cached_property
    def width(self) -> int:
        """Pixels of a row in shared memory: what the tiles read, and as many more as alignment and banks want."""
        rows, columns = self.axes
        outputs = self.column_tiles * self.config.q
        if self.bands is None:
            least = columns.inputs(outputs)
        else:
            least = (outputs - MMA_OUTPUTS) * columns.stride + MMA_DEPTH * self.bands.depth
        aligned = [w for w in range(least, least + 16) if w * self.step * self.pitch % ALIGNMENT == 0]
        # lanes of neighbouring row pairs, 2 rows apart, load at once: then from different banks
        spread = [w for w in aligned if self.bands is None or w * rows.stride % 4 == 2]
        return (spread or aligned)[0]

    @property
    def row_bytes(self) -> int:
        return self.width * self.pitch

    @property
    def chunk_bytes(self) -> int:
        return self.step * self.row_bytes

    @property
    def vectors(self) -> int:
        """Channel vectors of a block."""
        return self.config.slice // self.config.vector

    @property
    def lanes(self) -> int:
        """Tiles that a block makes at once."""
        at_once = self.config.threads // (self.vectors * (1 if self.bands is None else 32))
        return max(1, min(self.tiles, at_once))

    @property
    def consumers(self) -> int:
        """Threads that multiply."""
        return -(-self.lanes * self.vectors // 32) * 32 if self.bands is None else self.lanes * self.vectors * 32

    @property
    def items(self) -> int:
        """Bands of one slice."""
        return self.problem.n * self.strips * self.p_tiles

    @property
    def in_registers(self) -> bool:
        return self.problem.taps * self.config.vector <= MOST_REGISTER_FILTER

    @property
    def filter_pitch(self) -> int:
        """fma: elements of a tap's filters in shared memory: a multiple of 4 that is no multiple of 32, for banks."""
        return -(-self.config.slice // 4) * 4 + 4

    @property
    def filter_bytes(self) -> int:
        if self.bands is None:
            return self.problem.taps * self.filter_pitch * 4
        return self.axes[0].filter * (self.config.slice // 8) * self.bands.entries * UNIT

    @property
    def filters_a_thread(self) -> int:
        """Filter elements that a thread brings."""
        return -(-self.config.slice * self.problem.taps // self.consumers)

    @property
    def stage_bytes(self) -> int:
        """Of a chunk, with its barriers."""
        return self.chunk_bytes + 16

    @property
    def fixed_bytes(self) -> int:
        """Filters, and the alignment of the base."""
        return ALIGNMENT + -(-self.filter_bytes // 16) * 16

    @property
    def shared_bytes(self) -> int:
        return self.fixed_bytes + self.config.stages * self.stage_bytes


def obstacles(problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
    found = Obstacles()
    no = found.no
    if not {"tma", "dependent_launch"} <= target.features:
        no(f"target {target} has no TMA", "kernel patches", "kernel")
    x = problem.x
    if x.dims[-1] != "c" or problem.c * x.element.bytes % UNIT:
        no("stream wants the channels of x innermost, and 16-byte multiples of them", "kernel patches", "kernel")
    rows, columns = axes(problem)
    if any(a.stride > a.inputs(1) for a in (rows, columns)):
        no("stream wants windows that leave no input out", "kernel patches", "kernel")
    if lowering.index_type(problem, ()) != "int":
        no("a tensor of 2^31 elements or more", "kernel patches", "kernel")
    if options.get("math") == "mma":
        found += _mma_obstacles(problem)
    if found:
        return found
    config = choose(problem, target, options)
    return _illegal(problem, target, config) if config else [Obstacle("no stream of rows fits", "kernel patches")]


def _mma_obstacles(problem: ConvProblem) -> list[Obstacle]:
    x, w, y = problem.x, problem.w, problem.y
    found = []
    if not (x.dtype == w.dtype and x.dtype in MMA_TYPES and problem.accumulate == "f32"):
        message = f"math mma multiplies f16 or bf16 and adds f32, not {x.dtype} x {w.dtype}"
        found.append(Obstacle(message, "math fma", "math"))
    if problem.k_per_group > 1 or channel_run(problem) < 8 or y.element.bytes != 2:
        message = "math mma wants aligned runs of 8 channels, 2-byte outputs, multiplier 1"
        found.append(Obstacle(message, "math fma", "math"))
    return found


def _malformed(problem: ConvProblem, config: StreamConfig) -> Obstacles:
    """What a configuration asks for that means nothing for a problem."""
    found = Obstacles()
    no = found.no
    _, columns = axes(problem)
    run = channel_run(problem)
    multiplier = problem.k_per_group
    most = 16 if config.math == "mma" else UNIT // problem.x.element.bytes
    if run % config.vector or config.vector > most:
        no(
            f"vector {config.vector}: {run} channels are aligned neighbours",
            f"vector {min(run, most)} or less",
            "vector",
        )
    elif max(1, config.vector // multiplier) * problem.x.element.bytes < 4:
        no(f"vector {config.vector}: a thread's input channels take less than 4 bytes", "a larger vector", "vector")
    if problem.k % config.slice or config.slice % config.vector or config.slice % multiplier:
        no(f"slice {config.slice} does not divide {problem.k} channels into whole vectors", option="slice")
    elif config.slice // multiplier * problem.x.element.bytes % UNIT:
        no(f"slice {config.slice}: its input channels are no multiple of 16 bytes", option="slice")
    if config.band % config.p:
        no(f"band {config.band} is not a multiple of tile.p {config.p}", option="band")
    if config.strip > columns.output:
        no(f"strip {config.strip} is wider than the output's {columns.output} columns", option="strip")
    if config.math == "mma":
        if config.vector not in (8, 16):
            no("math mma goes with vector 8 or 16", option="vector")
        if config.q not in (8, 16, 32, 64):
            no(f"math mma makes 8, 16, 32 or 64 columns a warp, not {config.q}", option="tile.q")
        elif config.p % (16 // min(4, config.q // 8)):
            no(
                f"with {config.q} columns a warp makes a multiple of {16 // min(4, config.q // 8)} rows",
                option="tile.p",
            )
    return found


def _illegal(problem: ConvProblem, target: Target, config: StreamConfig) -> list[Obstacle]:
    """What a configuration asks for that is malformed or does not fit."""
    found = _malformed(problem, config)
    if found:
        return found
    no = found.no
    layout = Layout(problem, config)
    box = (layout.box_channels, layout.width, layout.step)
    if max(box) > MAX_BOX:
        no(f"a chunk of {box[2]} x {box[1]} pixels by {box[0]} channels; a box has at most {MAX_BOX} a side",
           "a narrower strip, band or slice", "strip")  # fmt: skip
    if config.stages < layout.chunks:
        no(f"stages {config.stages}: a band reads {layout.chunks} chunks of rows", option="stages")
    if layout.consumers + PRODUCER > 1024:
        no(f"{layout.consumers + PRODUCER} threads a block", "a smaller slice or fewer threads", "threads")
    if layout.shared_bytes > target.shared_bytes_per_block:
        no(f"rows and filters take {layout.shared_bytes} bytes of shared memory", "fewer stages", "stages")
    return found


# --- defaults ----------------------------------------------------------------------------------------


def choose(problem: ConvProblem, target: Target, options: Options) -> StreamConfig | None:
    """The cheapest legal configuration that goes with the options; where none is, the first that they ask for."""
    ranked, first = _ranked(problem, target, tuple(sorted(options.items())))
    return ranked[0] if ranked else first


def candidates(problem: ConvProblem, target: Target, options: Options) -> list[StreamConfig]:
    """Legal configurations worth measuring, the most promising first."""
    if obstacles(problem, target, options):
        return []
    ranked, _ = _ranked(problem, target, tuple(sorted(options.items())))
    return varied(ranked, lambda c: (c.math, c.p, c.q, c.vector, c.slice), MOST_OF_A_KIND, MOST_CANDIDATES)


@lru_cache(maxsize=64)
def _ranked(
    problem: ConvProblem, target: Target, fixed: tuple[tuple[str, int | str], ...]
) -> tuple[tuple[StreamConfig, ...], StreamConfig | None]:
    """Legal configurations that go with fixed options, by estimated time; and the first, legal or not."""
    found = list(dict.fromkeys(_configs(problem, target, dict(fixed))))
    legal = [c for c in found if not _illegal(problem, target, c)]
    ranked = sorted(legal, key=lambda c: time(problem, target, c))
    return tuple(ranked), found[0] if found else None


def _configs(problem: ConvProblem, target: Target, options: Options) -> Iterator[StreamConfig]:
    """What is worth a thought."""
    rows, columns = axes(problem)

    def values(name: str, defaults: Iterable[int]) -> list[int]:
        return [int(options[name])] if name in options else list(defaults)

    def canonical(config: StreamConfig) -> StreamConfig:
        """No more threads than there is work for, and as many chunks in flight as shared memory holds, up to what
        memory's latency asks for."""
        if _malformed(problem, config):
            return config
        layout = Layout(problem, config)
        if "threads" not in options:
            config = replace(config, threads=layout.consumers)
        if "stages" in options:
            return replace(config, stages=int(options["stages"]))
        most = (target.shared_limit(config.blocks) - layout.fixed_bytes) // layout.stage_bytes
        ahead = -(-IN_FLIGHT // (config.blocks * layout.chunk_bytes))
        return replace(config, stages=max(1, layout.chunks, min(most, layout.chunks + ahead)))

    named = {"tile.p", "tile.q", "vector", "threads"} <= options.keys()
    for maths in [m for m in MATHS if options.get("math", m) == m]:
        tensor_cores = maths == "mma"
        if tensor_cores and "math" not in options and not _multiplies_by_mma(problem):
            continue
        for vector in values("vector", _vectors(problem, tensor_cores)):
            tiles = _mma_tiles(columns) if tensor_cores else _fma_tiles(problem, vector)
            slices = values("slice", _slices(problem, vector, tensor_cores))
            for slice_, (p, q) in itertools.product(slices, tiles):
                p, q = int(options.get("tile.p", p)), int(options.get("tile.q", q))
                whole = -(-rows.output // p) * p
                bands = sorted({p, min(2 * p, whole)} | ({whole} if whole <= WHOLE_PLANE else set()))
                strips = sorted({-(-columns.output // parts) for parts in (1, 2, 4) if columns.output // parts >= 7})
                for band, strip, threads, blocks in itertools.product(
                    values("band", bands), values("strip", strips or [columns.output]),
                    values("threads", (512, 352, 256) if not tensor_cores else (384, 192)), values("blocks", (1, 2)),
                ):  # fmt: skip
                    config = StreamConfig(maths, p, q, vector, slice_, strip, band, 1, threads, blocks)
                    config = canonical(config)
                    if named or _malformed(problem, config) or _fits_registers(target, Layout(problem, config)):
                        yield config


def _fits_registers(target: Target, layout: Layout) -> bool:
    threads = layout.consumers + PRODUCER
    return threads <= 1024 and _registers(layout) <= launch_registers(target, threads, layout.config.blocks)


def _registers(layout: Layout) -> int:
    """What a thread needs, by experience."""
    c, columns = layout.config, layout.axes[1]
    if layout.bands is None:
        filters = layout.problem.taps if layout.in_registers else columns.filter
        return (c.p * c.q + filters) * c.vector + columns.inputs(c.q) * layout.inputs + OTHER_REGISTERS
    b = layout.bands
    sets = b.p_sets * b.q_sets
    return sets * (32 + 32 * b.depth + c.vector) + 16 * b.depth + MMA_REGISTERS


def _multiplies_by_mma(problem: ConvProblem) -> bool:
    return not _mma_obstacles(problem) and problem.taps >= MMA_TAPS


def _fma_tiles(problem: ConvProblem, vector: int) -> list[tuple[int, int]]:
    """Rows and columns of a thread, as its registers allow: filters may take most of them."""
    rows, columns = axes(problem)
    few = vector * problem.x.element.bytes <= 4
    sizes = ((2, 7), (1, 7), (2, 4)) if problem.taps > FEW_TAPS else ((2, 7),) if few else FEW_TAPS_TILES
    return list(dict.fromkeys((min(p, rows.output), min(q, columns.output)) for p, q in sizes))


def _mma_tiles(columns: Axis) -> list[tuple[int, int]]:
    """Rows and columns of a warp: columns as the output has them."""
    q = min(64, max(MMA_OUTPUTS, 1 << (columns.output - 1).bit_length()))
    return [(16 // min(4, w // MMA_OUTPUTS), w) for w in ((64, 32) if q == 64 else (q,))]


def _vectors(problem: ConvProblem, tensor_cores: bool) -> list[int]:
    run = channel_run(problem)
    if tensor_cores:
        return [v for v in (16, 8) if run % v == 0][:1]
    size, m = problem.x.element.bytes, problem.k_per_group
    return [v for v in (4, 2, 8) if run % v == 0 and v * size <= UNIT and max(1, v // m) * size >= 4][:2]


def _slices(problem: ConvProblem, vector: int, tensor_cores: bool) -> list[int]:
    """Divisors of the channels: the largest that fit a box, those that write whole sectors first."""
    unit = math.lcm(vector, UNIT // problem.x.element.bytes * problem.k_per_group)
    most = MAX_BOX * problem.k_per_group
    # a vector of more channels than there are, or than divide them, has none, which `_malformed` says
    found = [s for s in range(unit, min(problem.k, most) + 1, unit) if problem.k % s == 0] or [unit]
    sectors = [s for s in found if s == problem.k or s * problem.y.element.bytes % SECTOR == 0] or found
    limits = (96, 48, 32) if tensor_cores else (most, 96, 48)
    return sorted({max((s for s in sectors if s <= limit), default=min(sectors)) for limit in limits}, reverse=True)


def time(problem: ConvProblem, target: Target, config: StreamConfig) -> float:
    """By the cost model."""
    layout = Layout(problem, config)
    columns = layout.axes[1]
    blocks = min(target.sms * config.blocks, layout.items * layout.slices)
    workers = max(1, blocks // layout.slices)
    each = -(-layout.items // workers)
    slice_bytes = config.slice * problem.y.element.bytes
    part = (layout.slices > 1 and slice_bytes % SECTOR) or (layout.bands is not None and config.vector < 16)
    return cost.stream_time(
        bands=each,
        blocks=min(config.blocks, -(-workers * layout.slices // target.sms)),
        rounds=-(-layout.tiles // layout.lanes),
        warps=layout.consumers // 32,
        instructions=_instructions(layout),
        mma=layout.bands is not None,
        chunk_bytes=layout.step * columns.inputs(config.strip) * layout.x_slice * layout.element_bytes,
        chunks=layout.chunks,
        ahead=config.stages - layout.chunks,
        filter_loads=layout.filters_a_thread,
        reads=problem.min_bytes - problem.y.bytes,
        writes=problem.y.bytes,
        part_sectors=bool(part),
        rates=cost.STREAM,
    )


def _instructions(layout: Layout) -> float:
    """Of a warp, for a tile: products, conversions, loads and stores."""
    c, (rows, columns) = layout.config, layout.axes
    if layout.bands is None:
        loads = rows.inputs(c.p) * columns.inputs(c.q)
        products = c.p * c.q * layout.problem.taps * c.vector
        filters = 0 if layout.in_registers else c.p * layout.problem.taps * max(1, c.vector // 4) * 4
        return products + loads * (layout.inputs + 1) + filters + c.p * c.q * (c.vector / 2 + 2)
    b = layout.bands
    sets = b.p_sets * b.q_sets
    # a row of inputs or of the band: loads, exchanges of halves, moves; then the mmas
    row = b.depth * (8 + 32)
    return c.vector / 8 * (rows.filter * (row * (sets + 1) / 2 + sets * b.depth * (8 + 16)) + sets * 100)


# --- the plan ----------------------------------------------------------------------------------------


def _x_map(problem: ConvProblem, layout: Layout) -> TensorMap:
    x, size = problem.x, problem.x.element.bytes
    rows, columns = layout.axes
    extents = (problem.c, columns.input, rows.input, problem.n)
    strides = tuple(
        (x.stride(d) or x.size) * size if x.extent(d) > 1 else UNIT * -(-x.bytes // UNIT) for d in ("w", "h", "n")
    )
    return TensorMap(
        "x", "tiled", x.dtype, extents, strides, (1, 1, 1, 1),
        box=(layout.box_channels, layout.width, layout.step, 1),
    )  # fmt: skip


def _pointers(problem: ConvProblem) -> list[Pointer]:
    """x comes by its tensor map."""
    return fprop_pointers(problem)[1:]


def plan(problem: ConvProblem, target: Target, config: StreamConfig, strategy: str) -> Plan:
    layout = Layout(problem, config)
    x_map = Param("x_map", "tensor_map", "x", _x_map(problem, layout))
    launch = persistent(
        problem, [x_map, *(p.vector_param for p in _pointers(problem))], tiles=layout.items, slices=layout.slices,
        threads=layout.consumers + PRODUCER, shared_bytes=layout.shared_bytes, blocks_per_sm=config.blocks,
        dependent=True,
    )  # fmt: skip
    return Plan(problem, target, strategy, config, (launch,))


def source(plan: Plan) -> str:
    problem, config = plan.problem, plan.config
    assert isinstance(config, StreamConfig)
    layout = Layout(problem, config)
    accumulate = problem.accumulate
    rows, columns = layout.axes
    q_tail = config.strip % config.q > 0
    guards = {  # of what a tile holds; mma's have one in any case
        "p": rows.output % config.band > 0 or layout.bands is not None,
        "q": columns.output % config.strip > 0 or q_tail or layout.bands is not None,
        "strip": q_tail and layout.strips > 1,
    }
    result = run_result(problem, 8 if layout.bands else config.vector)
    filter_element = f"w[{lowering.filter_offset(problem, 'channel')}]"
    text = "\n".join([*result.loads, *result.body, *result.store])
    return render(
        "depthwise/stream.cu.j2",
        plan,
        config=config,
        layout=layout,
        bands=layout.bands,
        rows=rows,
        columns=columns,
        guards=guards,
        launch=plan.launches[0],
        formulas=formulas(problem),
        pointers=_pointers(problem),
        accumulator=lowering.ACCUMULATORS[accumulate].c_type,
        filter_type="u16" if layout.bands else lowering.ACCUMULATORS[accumulate].c_type,
        load_filter=(filter_element if layout.bands else lowering.load(problem.w.dtype, filter_element, accumulate)),
        load_input=output.load_shared_run(problem.x.dtype, "value", "source", layout.inputs, accumulate),
        mma=f"mma_m16n8k16_f32_{problem.x.dtype}_{problem.x.dtype}",
        mentioned=set(re.findall(r"\w+", text)),
        result=result,
    )


CONFIG = StreamConfig
