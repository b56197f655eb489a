"""depthwise_wgrad: the gradient of depthwise filters on the ordinary cores, one pass over x and y's gradient.

A thread has a few neighboring channels and rows of their filters, whose sums stay in registers.  It walks down strips
of output columns: each row of x is loaded and converted once, and multiplied with every row of y under whose windows it
is, which the thread holds.  At the end the threads of a block that have the same sums add them up in shared memory;
blocks share the pixels, and a second kernel adds their sums in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from convgen.ir.plan import Launch, Plan
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels import base
from convgen.kernels.base import Obstacle, Obstacles, plan_of
from convgen.kernels.config import Options
from convgen.kernels.depthwise_wgrad import cost
from convgen.kernels.depthwise_wgrad.config import MOST_BLOCKS, Config
from convgen.kernels.depthwise_wgrad.layout import Layout, walks
from convgen.kernels.depthwise_wgrad.source import pointers, source
from convgen.kernels.parts import gradient, limits
from convgen.kernels.parts.depthwise import channel_run
from convgen.kernels.parts.hopper import launch_registers
from convgen.kernels.parts.lowering import INT_LIMIT
from convgen.targets import Target

TYPES = ("f16", "bf16", "f32")
WIDEST, LEAST_COPY = 16, 4  # bytes of a load, and of one by cp.async
MOST_COLUMNS = 32  # bits of a word
#: Rows in shared memory, where they are copied there.
STAGES = 4
MOST_REGISTERS = 200
MOST_PIXELS = INT_LIMIT - limits.MAX_THREADS
#: Bands of a column, and their lengths where columns are long.
PARTS, LONG_BANDS = (1, 2, 4, 8), (32, 128)
#: Sums that slices leave, at most.
MOST_SUMS = 128 << 20


class DepthwiseWgrad(base.Kernel[Config, Layout]):
    name = "depthwise_wgrad"
    config = Config
    further = True
    slices = frozenset("xy")

    def adds_up(self, problem: ConvProblem) -> tuple[str, ...]:
        return gradient.adds_up(problem)

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        if problem.op is not Op.WGRAD:
            return [Obstacle(f"op {problem.op}: kernel depthwise_wgrad serves wgrad alone", option="kernel")]
        found = Obstacles(limits.type_obstacles(problem, target))
        no = found.no
        if problem.groups != problem.c:
            no(f"groups {problem.groups} of {problem.c} channels: each channel must be a group")
        for t in (problem.x, problem.y):
            if t.dtype not in TYPES:
                no(f"{t.name} is {t.dtype}: {', '.join(TYPES[:-1])} or {TYPES[-1]} is served")
        if problem.w.dtype not in TYPES:
            no(f"output type {problem.w.dtype}: {', '.join(TYPES[:-1])} or {TYPES[-1]}")
        for t, dim in ((problem.x, "c"), (problem.y, "k")):
            if t.extent(dim) > 1 and t.stride(dim) != 1:
                no(f"channels are not innermost in {t.name}")
        if problem.output_pixels >= MOST_PIXELS:
            no("the pixels of y do not fit 32 bits")
        return found

    def space(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Layout]:
        return _layouts(problem, target, fixed)

    def illegal(self, layout: Layout) -> list[Obstacle]:
        c, problem, target, found = layout.config, layout.problem, layout.target, Obstacles()
        widest = _widest(problem)
        if c.vector > widest or widest % c.vector:
            found.no(f"vector {c.vector}: {widest} channels are aligned neighbors of at most {WIDEST} bytes",
                     f"vector {widest} or less", "vector")  # fmt: skip
            return found
        if c.slice % c.vector:
            found.no(f"slice {c.slice} is no multiple of vector {c.vector}", option="slice")
            return found
        if c.tile_r > layout.walks[1].axis.filter:
            found.no(f"tile r={c.tile_r} is more than the filter's {layout.walks[1].axis.filter} rows", option="tile.r")
            return found
        if c.stages > 1 and "cp_async" not in target.features:
            found.no(f"target {target} has no cp.async", "stages 1", "stages")
        if c.stages > 1 and min(layout.x_bytes, layout.y_bytes) < LEAST_COPY:
            found.no(f"cp.async copies {LEAST_COPY} bytes or more, not {min(layout.x_bytes, layout.y_bytes)}",
                     "a larger vector, or stages 1", "stages")  # fmt: skip
        if c.split_k > 1 and "cluster" not in target.features:
            found.no(f"target {target} has no clusters", "split_k 1", "split_k")
        if layout.columns > MOST_COLUMNS:
            found.no(f"{layout.columns} input columns under {c.tile_q} outputs are more than {MOST_COLUMNS}",
                     "a smaller tile", "tile.q")  # fmt: skip
        if layout.threads > limits.MAX_THREADS:
            found.no(f"{c.slice} channels by {layout.parts} parts of their filters are {layout.threads} threads",
                     f"at most {limits.MAX_THREADS}: a smaller slice, or larger tile r", "slice")  # fmt: skip
            return found
        if layout.registers > min(MOST_REGISTERS, _registers(layout, c.blocks)):
            found.no(f"{c.tile_r} filter rows by {c.tile_q} columns of {c.vector} channels do not fit the registers "
                     f"of a thread with {c.blocks} blocks", "a smaller tile, or fewer blocks", "tile.q")  # fmt: skip
        if layout.shared_bytes > target.shared_limit(c.blocks):
            found.no(f"sums of {layout.threads} threads take {layout.shared_bytes} bytes of shared memory, "
                     f"{target} has {target.shared_limit(c.blocks)}", "fewer threads", "threads")  # fmt: skip
        return found

    def time(self, layout: Layout) -> float:
        return cost.time(layout)

    def kind(self, layout: Layout) -> object:
        c = layout.config
        return c.vector, c.tile_r, c.tile_q, c.split_k > 1

    def plan(self, layout: Layout) -> Plan:
        problem, slices, target = layout.problem, layout.config.slices, layout.target
        dependent = "dependent_launch" in target.features
        main = Launch(
            f"convgen_{problem.name}", (layout.channel_slices * layout.config.split_k, slices, 1), layout.threads,
            tuple(p.vector_param for p in pointers(layout)), layout.shared_bytes, cluster=layout.config.split_k,
            dependent=dependent, blocks_per_sm=layout.config.blocks,
        )  # fmt: skip
        steps = [main]
        if not layout.stores_w:
            steps.append(gradient.sum_launch(problem, slices, target.sms, dependent))
        return plan_of(layout, steps, gradient.workspaces(problem, slices, layout.shares))

    def source(self, plan: Plan) -> str:
        assert isinstance(plan.layout, Layout)
        return source(plan, plan.layout)


def _widest(problem: ConvProblem) -> int:
    """Channels of y that a thread may have, by alignment and the widest load."""
    by_y = WIDEST // problem.y.element.bytes
    by_x = WIDEST // problem.x.element.bytes * problem.k_per_group
    return min(channel_run(problem), 1 << min(by_y, by_x).bit_length() - 1)


def _registers(layout: Layout, blocks: int) -> int:
    """Of a thread, with so many blocks on a multiprocessor."""
    return launch_registers(layout.target, -(-layout.threads // 32) * 32, blocks)


def _blocks(layout: Layout) -> int:
    """Those that a multiprocessor has registers and threads for."""
    most = min(MOST_BLOCKS, layout.target.threads_per_sm // layout.threads)
    return max([b for b in range(1, most + 1) if _registers(layout, b) >= layout.registers], default=1)


def _layouts(problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Layout]:
    def given(name: str, values: list[int]) -> list[int]:
        return [int(fixed[name])] if name in fixed else values

    _, rows, columns = walks(problem)
    widest = _widest(problem)
    taps = rows.axis.filter
    # where a step has few products, loads are to be wide
    vectors = given("vector", sorted({min(v, widest) for v in ((2, 4) if columns.axis.filter > 1 else (4, 8))}))
    tile_rs = given("tile.r", sorted({-(-taps // parts) for parts in (1, 2, taps)}))
    tile_qs = given("tile.q", sorted({min(q, columns.outputs) for q in (2, 4, 7)}))
    bands = given("band", sorted({min(b, rows.outputs) for b in LONG_BANDS} | {-(-rows.outputs // p) for p in PARTS}))
    for v, r, q, band, threads in product(vectors, tile_rs, tile_qs, bands, given("threads", [128, 256, 384])):
        stages = int(fixed.get("stages", _stages(problem, v)))
        for channels in given("slice", _channel_slices(problem, v)):
            one = Layout(problem, target, Config(v, channels, r, q, band, stages, threads, blocks=1))
            one.knowing("walks", "strips")
            if channels % v or one.threads > limits.MAX_THREADS:
                yield one
                continue
            blocks = int(fixed.get("blocks", _blocks(one)))
            one = one.sibling(blocks=blocks)
            for split_k, slices in _shares(one, fixed):
                yield one.sibling(split_k=split_k, slices=slices)


def _stages(problem: ConvProblem, vector: int) -> int:
    inputs = max(vector // problem.k_per_group, 1)
    least = min(inputs * problem.x.element.bytes, vector * problem.y.element.bytes)
    return STAGES if least >= LEAST_COPY else 1


def _channel_slices(problem: ConvProblem, vector: int) -> list[int]:
    """Channels of a block: of half a warp, one, or two."""
    return sorted({min(problem.k, warps * 32 * vector) for warps in (1, 2)} | {min(problem.k, 16 * vector)})


def _shares(layout: Layout, fixed: Options) -> Iterator[tuple[int, int]]:
    """(split_k, slices): a cluster's blocks by slices of the pixels, that fill the GPU once, or half of it."""
    clusters = (1, 4, 8) if "cluster" in layout.target.features else (1,)
    rounds = -(-layout.strips // layout.lanes)
    for split_k in [int(fixed["split_k"])] if "split_k" in fixed else [s for s in clusters if s <= rounds]:
        if "slices" in fixed:
            yield split_k, int(fixed["slices"])
            continue
        most = max(min(rounds // split_k, MOST_SUMS // (4 * layout.problem.w.size), 4096), 1)
        slots = layout.sibling(split_k=split_k).slots
        full = slots // (layout.channel_slices * split_k)
        for slices in {max(min(full, most), 1), max(min(full // 2, most), 1)} if split_k == 1 else {1}:
            yield split_k, slices


KERNEL = DepthwiseWgrad()
