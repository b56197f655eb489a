"""stream: rows of x pass through shared memory, brought by TMA, and every row is read once.

A block has a slice of the channels and a run of bands: a band is a few output rows of one image, over a strip
of its columns.  Chunks of input rows follow one another through a ring; the next band of the same image needs
one more chunk, and a chunk is given back when the band is done with it.  TMA fills what lies outside x with
zeros: that is the padding.

The products are made on the ordinary cores (`fma`) or on tensor cores (`mma`).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

from convgen.codegen.render import render
from convgen.ir.plan import Param, Plan, TensorMap
from convgen.ir.problem import SECTOR, ConvProblem
from convgen.ir.tensor import Tensor
from convgen.kernels.base import Obstacle, Obstacles, Options
from convgen.kernels.depthwise import cost
from convgen.kernels.depthwise.patches import channel_run, formulas, run_result
from convgen.kernels.depthwise.stream import fma, mma
from convgen.kernels.depthwise.stream.layout import UNIT, WARP, Layout, StreamConfig
from convgen.kernels.parts import lowering, output
from convgen.kernels.parts.axes import axes
from convgen.kernels.parts.cost import lines, varied
from convgen.kernels.parts.elementwise import Pointer, factor_pointers, operand_pointers, result_pointers
from convgen.kernels.parts.hopper import MAX_BOX, launch_registers
from convgen.kernels.several import persistent
from convgen.targets import RESERVED_SHARED, Target

PRODUCER = 32  # threads
HALF_LINE = 64  # bytes that L2 takes from device memory at once
IN_FLIGHT = 64 << 10  # bytes a multiprocessor: memory's rate times its latency, and some more
WHOLE_PLANE = 16  # output rows: images so low are taken whole, too
MOST_CANDIDATES, MOST_OF_A_KIND = 48, 6
MOST_STAGES = 64


class Maths(Protocol):
    """A way to multiply: a module with these."""

    @property
    def Layout(self) -> type[Layout]: ...

    @property
    def THREADS(self) -> tuple[int, ...]:
        """That are worth a thought."""
        ...

    @property
    def BLOCKS(self) -> tuple[int, ...]:
        """A multiprocessor."""
        ...

    def obstacles(self, problem: ConvProblem, /) -> Obstacles: ...

    def malformed(self, problem: ConvProblem, config: StreamConfig, /) -> Obstacles:
        """What a configuration asks for that means nothing here."""
        ...

    def most_channels(self, problem: ConvProblem, /) -> int:
        """Of a vector."""
        ...

    def vectors(self, problem: ConvProblem, /) -> list[int]: ...

    def slices(self, problem: ConvProblem, divisors: list[int], /) -> set[int]:
        """Of these, in ascending order, those worth a thought."""
        ...

    def tiles(self, problem: ConvProblem, vector: int, /) -> list[tuple[int, int]]:
        """Rows and columns of a thread, or of a warp."""
        ...


MATHS: Mapping[str, Maths] = {"fma": fma, "mma": mma}


def layout_of(problem: ConvProblem, config: StreamConfig) -> Any:
    """The layout, as the configuration's way to multiply has it."""
    return MATHS[config.math].Layout(problem, config)


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
    if "math" in options:
        found += MATHS[str(options["math"])].obstacles(problem)
    if found:
        return found
    config = choose(problem, target, options)
    return _illegal(problem, target, config) if config else [Obstacle("no stream of rows fits", "kernel patches")]


def _malformed(problem: ConvProblem, config: StreamConfig) -> Obstacles:
    """What a configuration asks for that means nothing for a problem."""
    found = Obstacles()
    no = found.no
    _, columns = axes(problem)
    run = channel_run(problem)
    multiplier = problem.k_per_group
    most = MATHS[config.math].most_channels(problem)
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
    found += MATHS[config.math].malformed(problem, config)
    return found


def _illegal(problem: ConvProblem, target: Target, config: StreamConfig) -> list[Obstacle]:
    """What a configuration asks for that is malformed or does not fit."""
    found = _malformed(problem, config)
    if found:
        return found
    no = found.no
    layout = layout_of(problem, config)
    box = (layout.box_channels, layout.width, layout.step)
    if max(box) > MAX_BOX:
        no(f"a chunk of {box[2]} x {box[1]} pixels by {box[0]} channels; a box has at most {MAX_BOX} a side",
           "a narrower strip, band or slice", "strip")  # fmt: skip
    if layout.chunks > MOST_STAGES:
        no(f"a band reads {layout.chunks} chunks of rows; at most {MOST_STAGES} are held", "a smaller band", "band")
    elif config.stages < layout.chunks:
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
        layout = layout_of(problem, config)
        if "threads" not in options:
            config = replace(config, threads=layout.consumers)
        if "stages" in options:
            return replace(config, stages=int(options["stages"]))
        most = (target.shared_limit(config.blocks) - layout.fixed_bytes) // layout.stage_bytes
        ahead = -(-IN_FLIGHT // (config.blocks * layout.chunk_bytes))
        return replace(config, stages=max(1, layout.chunks, min(most, MOST_STAGES, layout.chunks + ahead)))

    named = {"tile.p", "tile.q", "vector", "threads"} <= options.keys()
    for name, maths in MATHS.items():
        if name != options.get("math", name) or maths.obstacles(problem):
            continue
        for vector in values("vector", maths.vectors(problem)):
            slices = values("slice", sorted(maths.slices(problem, _slices(problem, vector)), reverse=True))
            for slice_, (p, q) in itertools.product(slices, maths.tiles(problem, vector)):
                p, q = int(options.get("tile.p", p)), int(options.get("tile.q", q))
                whole = -(-rows.output // p) * p
                bands = sorted({p, min(2 * p, whole)} | ({whole} if whole <= WHOLE_PLANE else set()))
                strips = sorted({-(-columns.output // parts) for parts in (1, 2, 4) if columns.output // parts >= 7})
                for band, strip, threads, blocks in itertools.product(
                    values("band", bands), values("strip", strips or [columns.output]),
                    values("threads", maths.THREADS), values("blocks", maths.BLOCKS),
                ):  # fmt: skip
                    config = canonical(StreamConfig(name, p, q, vector, slice_, strip, band, 1, threads, blocks))
                    if named or _malformed(problem, config) or _fits_registers(target, layout_of(problem, config)):
                        yield config


def _fits_registers(target: Target, layout: Layout) -> bool:
    threads = layout.consumers + PRODUCER
    return threads <= 1024 and layout.registers <= launch_registers(target, threads, layout.config.blocks)


def _slices(problem: ConvProblem, vector: int) -> list[int]:
    """Divisors of the channels that fit a box, and write whole sectors where some do."""
    unit = math.lcm(vector, UNIT // problem.x.element.bytes * problem.k_per_group)
    most = MAX_BOX * problem.k_per_group
    # a vector of more channels than there are, or than divide them, has none, which `_malformed` says
    found = [s for s in range(unit, min(problem.k, most) + 1, unit) if problem.k % s == 0] or [unit]
    return [s for s in found if s == problem.k or s * problem.y.element.bytes % SECTOR == 0] or found


def time(problem: ConvProblem, target: Target, config: StreamConfig) -> float:
    """By the cost model."""
    rates = cost.STREAM_MMA if config.math == "mma" else cost.STREAM_FMA
    return cost.stream_time(**demands(problem, target, config), rates=rates)


def demands(problem: ConvProblem, target: Target, config: StreamConfig) -> dict[str, Any]:
    """A configuration as the cost model sees it."""
    layout: Layout = layout_of(problem, config)
    rows, columns = layout.axes
    workers = max(1, min(target.sms * config.blocks, layout.items * layout.slices) // layout.slices)
    slice_bytes = layout.x_slice * layout.element_bytes
    inside = layout.inside[1] / columns.input
    # runs that begin inside an image read the rows once more that its first band has in common with the band before
    begun = workers * (1 - 1 / layout.p_tiles) * max(0, rows.inputs(1) - rows.stride)
    return dict(
        bands=-(-layout.items // workers),
        resident=-(-workers * layout.slices // target.sms),
        held=_held(target, layout),
        rounds=-(-layout.tiles // layout.lanes),
        warps=layout.consumers // WARP,
        instructions=layout.instructions,
        lines=layout.lines,
        chunk_bytes=layout.chunk_bytes,
        pixels=layout.step * layout.width + (config.band * config.strip if layout.staged_bytes else 0),
        outside=layout.outside_bytes,
        chunks=layout.chunks,
        loads=layout.loads,
        ahead=config.stages - layout.chunks,
        filter_loads=layout.filters_a_thread,
        reads=problem.min_bytes - problem.y.bytes,
        writes=problem.y.bytes,
        again=max(0.0, inside * (1 + begun / (problem.n * layout.strips * rows.input)) - 1),
        half_lines=lines(slice_bytes, slice_bytes, HALF_LINE) * HALF_LINE / slice_bytes,
        part_sectors=layout.part_sectors,
    )


def _held(target: Target, layout: Layout) -> int:
    """Blocks that a multiprocessor has room for, of this launch and the next."""
    threads = layout.consumers + PRODUCER
    registers = min(layout.registers, launch_registers(target, threads, layout.config.blocks))
    by_shared = target.shared_bytes_per_sm // (layout.shared_bytes + RESERVED_SHARED)
    return max(1, min(by_shared, target.register_blocks(registers, threads)))


# --- the plan ----------------------------------------------------------------------------------------


def _images(tensor: Tensor, box: tuple[int, int, int], swizzle: int) -> TensorMap:
    """Boxes of rows of an image: channels, columns and rows of `tensor`, whose channels are innermost."""
    size = tensor.element.bytes
    channels, column, row, image = ("c", "w", "h", "n") if tensor.role == "x" else ("k", "q", "p", "n")
    outer = (column, row, image)
    strides = tuple(
        (tensor.stride(d) or tensor.size) * size if tensor.extent(d) > 1 else UNIT * -(-tensor.bytes // UNIT)
        for d in outer
    )
    extents = tuple(tensor.extent(d) for d in (channels, *outer))
    return TensorMap(tensor.role, "tiled", tensor.dtype, extents, strides, (1, 1, 1, 1), box=(*box, 1), swizzle=swizzle)


def _maps(problem: ConvProblem, layout: Layout) -> list[Param]:
    """x comes by its tensor map, and y leaves by one where results wait in shared memory."""
    c, rows = layout.config, (layout.box_channels, layout.width, layout.step)
    maps = [Param("x_map", "tensor_map", "x", _images(problem.x, rows, layout.swizzle))]
    if layout.staged_bytes:
        band = (layout.result_channels, c.strip, c.band)
        maps.append(Param("y_map", "tensor_map", "y", _images(problem.y, band, layout.swizzle)))
    return maps


def _pointers(problem: ConvProblem, layout: Layout) -> list[Pointer]:
    results = operand_pointers if layout.staged_bytes else result_pointers
    return [*factor_pointers(problem)[1:], *results(problem)]


def plan(problem: ConvProblem, target: Target, config: StreamConfig, strategy: str) -> Plan:
    layout = layout_of(problem, config)
    params = [*_maps(problem, layout), *(p.vector_param for p in _pointers(problem, layout))]
    launch = persistent(
        problem, params, tiles=layout.items, slices=layout.slices, threads=layout.consumers + PRODUCER,
        shared_bytes=layout.shared_bytes, blocks_per_sm=config.blocks, dependent=True,
    )  # fmt: skip
    return Plan(problem, target, strategy, config, (launch,))


def source(plan: Plan) -> str:
    problem, config = plan.problem, plan.config
    assert isinstance(config, StreamConfig)
    layout = layout_of(problem, config)
    accumulate = problem.accumulate
    rows, columns = layout.axes
    on_tensor_cores = config.math == "mma"
    q_tail = config.strip % config.q > 0
    result = run_result(problem, mma.CHANNELS if on_tensor_cores else config.vector)
    filter_element = f"w[{lowering.filter_offset(problem, 'channel')}]"
    store = () if layout.staged_bytes else result.store  # by TMA
    text = "\n".join([result.text, *store])
    mentioned = set(re.findall(r"\w+", text))
    guards = {  # of what a tile holds; y's map drops what lies outside y
        "p": rows.output % config.band > 0 and (not layout.staged_bytes or "p" in mentioned),
        "q": (columns.output % config.strip > 0 or q_tail) and (not layout.staged_bytes or "q" in mentioned),
        "strip": q_tail and layout.strips > 1,
    }
    inside = [  # what a lane of mma asks before it makes a result
        *([f"from_strip < {config.strip if layout.strips == 1 else 'STRIP'}"] if q_tail else []),
        *(f"{d} < {d.upper()}" for d in "pq" if guards[d]),
    ]
    return render(
        "depthwise/stream.cu.j2",
        plan,
        config=config,
        layout=layout,
        rows=rows,
        columns=columns,
        guards=guards,
        launch=plan.launches[0],
        formulas=formulas(problem),
        pointers=_pointers(problem, layout),
        maps=[p.name for p in plan.launches[0].params if p.kind == "tensor_map"],
        accumulator=lowering.ACCUMULATORS[accumulate].c_type,
        filter_type="u16" if on_tensor_cores else lowering.ACCUMULATORS[accumulate].c_type,
        load_filter=filter_element if on_tensor_cores else lowering.load(problem.w.dtype, filter_element, accumulate),
        load_input=output.load_shared_run(problem.x.dtype, "value", "source", layout.inputs, accumulate),
        mma=f"mma_m16n8k8_f32_{problem.x.dtype}_{problem.x.dtype}",
        mentioned=mentioned,
        inside=inside,
        result=result,
    )


CONFIG = StreamConfig
