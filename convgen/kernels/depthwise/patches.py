"""patches: from global memory, on the ordinary cores, for any layout and target.

A thread makes a patch of output pixels for a few neighbouring channels.  It walks the input rows under its
patch once, holds one row in registers, and adds it to every output row whose window it is in.  Filters wait
in shared memory (in registers where they are few) while a block takes patch after patch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sympy import Expr, Integer

from convgen.codegen.render import render
from convgen.ir.index_map import IndexMap, derive, variable
from convgen.ir.integer import floordiv, symbol
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacle, Options
from convgen.kernels.depthwise import cost
from convgen.kernels.parts import lowering, output
from convgen.kernels.parts.axes import Axis, axes
from convgen.kernels.parts.elementwise import element, epilogue_formulas, fprop_pointers, window_formulas
from convgen.kernels.several import persistent
from convgen.targets import Target

#: Filters of at most so many values a thread stay in its registers.
MOST_REGISTER_FILTER = 40
MOST_SLICE = 64  # channel vectors of a block
MOST_REGISTERS = 224  # of a thread, by `_registers`
#: Channels a thread, the fastest first: with 8, lanes meet in the banks of shared memory.
VECTORS = (4, 2, 8, 1)
WARP, LINE = 32, 128


@dataclass(frozen=True)
class DepthwiseConfig:
    """Output rows and columns of a thread, its channels, threads of a block, blocks a multiprocessor."""

    p: int
    q: int
    vector: int
    threads: int
    blocks: int

    @property
    def options(self) -> Options:
        """What a spec's strategy block would say."""
        return {
            "kernel": "patches",
            "tile.p": self.p,
            "tile.q": self.q,
            "vector": self.vector,
            "threads": self.threads,
            "blocks": self.blocks,
        }

    def __str__(self) -> str:
        return (
            f"{self.p}x{self.q} pixels by {self.vector} channel{'s' if self.vector > 1 else ''} a thread, "
            f"{self.threads} threads, {self.blocks} blocks a multiprocessor"
        )


@dataclass(frozen=True)
class Layout:
    """What follows from a problem and a configuration."""

    problem: ConvProblem
    config: DepthwiseConfig

    @property
    def multiplier(self) -> int:
        return self.problem.k_per_group

    @cached_property
    def axes(self) -> tuple[Axis, Axis]:
        return axes(self.problem)

    @cached_property
    def planes(self) -> bool:
        """Whether a pixel's channels are not neighbours in x: then neighbouring threads go along q."""
        return channel_run(self.problem) == 1 and self.problem.x.stride("c") != 1

    @property
    def inputs(self) -> int:
        """Input channels of a thread."""
        return max(1, self.config.vector // self.multiplier)

    @property
    def vectors(self) -> int:
        return self.problem.k // self.config.vector

    @property
    def slice_vectors(self) -> int:
        """Channel vectors of a block: all of them, or a divisor."""
        if self.planes:
            return 1
        return max(d for d in range(1, MOST_SLICE + 1) if self.vectors % d == 0)

    @property
    def slices(self) -> int:
        return self.vectors // self.slice_vectors

    @property
    def lanes(self) -> int:
        """Patches that a block makes at once."""
        return max(1, self.config.threads // self.slice_vectors)

    @property
    def threads(self) -> int:
        return self.lanes * self.slice_vectors

    @property
    def p_tiles(self) -> int:
        return -(-self.axes[0].output // self.config.p)

    @property
    def q_tiles(self) -> int:
        return -(-self.axes[1].output // self.config.q)

    @property
    def patches(self) -> int:
        """Patches of one channel slice."""
        return self.problem.n * self.p_tiles * self.q_tiles

    @property
    def block_rounds(self) -> int:
        return -(-self.patches // self.lanes)

    @property
    def in_registers(self) -> bool:
        return self.problem.taps * self.config.vector <= MOST_REGISTER_FILTER

    @property
    def pitch(self) -> int:
        """Elements of a tap's filters in shared memory: a multiple of 4 that is no multiple of 32, for banks."""
        width = self.slice_vectors * self.config.vector
        return -(-width // 4) * 4 + 4

    @property
    def shared_bytes(self) -> int:
        return self.problem.taps * self.pitch * 4


def channel_run(problem: ConvProblem) -> int:
    """Channels that are neighbours in x and in y, as a power of two that divides all offsets: of outputs."""
    along = output.Columns("channels", ("k",), problem.k)
    in_x = problem.x.dims[-1] == "c"
    multiplier = problem.k_per_group
    if not in_x or output.neighbours(problem.y, along) <= 1:
        return 1
    run = math.gcd(problem.k, 16)
    while run > 1 and multiplier % run and run % multiplier:
        run //= 2
    # a run of inputs must be aligned as well
    while run > multiplier and problem.c % (run // multiplier):
        run //= 2
    return run


def choose(problem: ConvProblem, target: Target, options: Options) -> DepthwiseConfig:
    """The cheapest."""
    return candidates(problem, target, options)[0]


def _configs(problem: ConvProblem, target: Target, options: Options) -> list[DepthwiseConfig]:
    """Those that are taken to fit a thread's registers: with few channels a thread, where the window is wide."""
    most = min(channel_run(problem), max(1, 16 // problem.x.element.bytes))
    vectors = [int(options["vector"])] if "vector" in options else [v for v in VECTORS if v <= most]
    liked, others = vectors[:2], vectors[2:]
    return list(_fitting(problem, target, options, liked)) or list(_fitting(problem, target, options, others))


def _fitting(
    problem: ConvProblem, target: Target, options: Options, vectors: Sequence[int]
) -> Iterator[DepthwiseConfig]:
    rows, columns = axes(problem)
    ps = [int(options["tile.p"])] if "tile.p" in options else [p for p in (1, 2, 4) if p <= rows.output]
    qs = (
        [int(options["tile.q"])]
        if "tile.q" in options
        else sorted({min(q, columns.output) for q in (1, 2, 4, 5, 7, 8)})
    )
    threads = [int(options["threads"])] if "threads" in options else [128, 256]
    stated = {"tile.p", "tile.q", "vector"} <= set(options)
    for v in vectors:
        for p in ps:
            for q in qs:
                for t in threads:
                    registers = _registers(Layout(problem, DepthwiseConfig(p, q, v, t, 1)))
                    # what is stated in full goes beyond the estimate, not beyond what sums alone take
                    if (p * q * v if stated else registers) > MOST_REGISTERS:
                        continue
                    most = max(1, min(8, target.register_blocks(registers, t)))
                    blocks = int(options.get("blocks", most))
                    yield DepthwiseConfig(p, q, v, t, blocks)


def _registers(layout: Layout) -> int:
    """An estimate of the registers a thread needs."""
    c = layout.config
    row = layout.axes[1].inputs(c.q) * layout.inputs
    filters = layout.problem.taps if layout.in_registers else layout.problem.filter[-1]
    places = 44 + c.p * c.q if c.vector == 1 else 36  # elements one by one have each a place of its own
    return c.p * c.q * c.vector + row + filters * c.vector + places


def time(problem: ConvProblem, target: Target, config: DepthwiseConfig) -> float:
    """Microseconds, by the cost model."""
    return cost.patches_time(**demands(problem, target, config), rates=cost.PATCHES)


def demands(problem: ConvProblem, target: Target, config: DepthwiseConfig) -> dict[str, Any]:
    """A configuration as the cost model sees it."""
    layout, c = Layout(problem, config), config
    rows, columns = layout.axes
    loads = rows.inputs(c.p) * columns.inputs(c.q)
    # loads of 4 filters, or of 1; lanes are `vector` words apart, so that each load takes the banks so many cycles
    filters = 0 if layout.in_registers else c.p * problem.taps * (c.vector // 4 or c.vector)
    products, conversions = c.p * c.q * problem.taps * c.vector, loads * layout.inputs
    stores = c.p * c.q * (c.vector / 2 + 2)
    load_lines = max(1, layout.inputs * problem.x.element.bytes * WARP / LINE)
    return dict(
        instructions=products + conversions + 2 * loads + filters + stores,
        rows=rows.inputs(c.p),
        lines=filters * c.vector + loads * load_lines,
        warps=layout.threads / WARP,
        blocks=c.blocks,
        tiles=layout.block_rounds * layout.slices,
        filters=problem.taps * layout.slice_vectors * c.vector / layout.threads,
        bytes=problem.min_bytes,
        sms=target.sms,
    )


def run_result(problem: ConvProblem, vector: int) -> output.Result:
    """The epilogue and the store of `vector` neighbouring channels from channel k of output pixel n, p, q."""
    along = output.Columns("channels", ("k",), problem.k)
    return output.result(problem, _element_map(problem), along, symbol("k"), vector, problem.accumulate)


def _element_map(problem: ConvProblem) -> IndexMap:
    """y and the operands over an output pixel and its channel."""
    dims = ("n", *problem.spatial.output, "k")
    variables = [variable(d, problem.extent(d)) for d in dims]
    at: dict[str, Expr] = {v.name: v.symbol for v in variables}
    return derive(problem, variables, {**at, "g": floordiv(symbol("k"), Integer(problem.k_per_group))})


def formulas(problem: ConvProblem) -> list[str]:
    """What a depthwise convolution is, for comments."""
    sp, m = problem.spatial, problem.k_per_group
    x = element("x", ("n", *sp.input, "k" if m == 1 else f"k / {m}"))
    product = f"{x} * {element('w', ('k', *sp.filter))}"
    return [
        f"{element('y', ('n', *sp.output, 'k'))} = sum over {', '.join(sp.filter)} of {product}, where",
        *window_formulas(problem),
        *epilogue_formulas(problem),
    ]


def obstacles(problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
    run = channel_run(problem)
    vector = int(options.get("vector", 1))
    if run % vector or vector * problem.x.element.bytes > 16:
        message = f"vector {vector}: {run} channels are aligned neighbours"
        return [Obstacle(message, f"vector {min(run, 8)} or less", "vector")]
    if not _configs(problem, target, options):
        columns = axes(problem)[1].inputs(int(options.get("tile.q", 1)))
        message = f"the {columns} columns of x under a thread's outputs, or its outputs, do not fit its registers"
        option = next((o for o in ("tile.p", "tile.q", "vector") if o in options), "")
        return [Obstacle(message, "a smaller tile", option)]
    layout = Layout(problem, choose(problem, target, options))
    if layout.shared_bytes > target.shared_bytes_per_block and not layout.planes:
        channels = layout.slice_vectors * layout.config.vector
        message = f"filters of {channels} channels take {layout.shared_bytes} bytes"
        return [Obstacle(message)]
    return []


def plan(problem: ConvProblem, target: Target, config: DepthwiseConfig, strategy: str) -> Plan:
    layout = Layout(problem, config)
    launch = persistent(
        problem, [p.vector_param for p in fprop_pointers(problem)], tiles=layout.block_rounds, slices=layout.slices,
        threads=layout.threads, shared_bytes=layout.shared_bytes, blocks_per_sm=config.blocks,
    )  # fmt: skip
    return Plan(problem, target, strategy, config, (launch,))


def source(plan: Plan) -> str:
    problem, config = plan.problem, plan.config
    assert isinstance(config, DepthwiseConfig)
    layout = Layout(problem, config)
    accumulate = problem.accumulate
    index = lowering.index_type(problem, ())
    result = run_result(problem, config.vector)
    x_offset = _x_offset(problem, index)
    text = "\n".join([x_offset, result.text, *result.store])
    return render(
        "depthwise/patches.cu.j2",
        plan,
        config=config,
        layout=layout,
        rows=layout.axes[0],
        columns=layout.axes[1],
        launch=plan.launches[0],
        formulas=formulas(problem),
        pointers=fprop_pointers(problem),
        index=index,
        accumulator=lowering.ACCUMULATORS[accumulate].c_type,
        load_filter=lowering.load(problem.w.dtype, f"w[{lowering.filter_offset(problem, 'channel')}]", accumulate),
        load_input=output.load_run(
            problem.x.dtype, "value", "source + j * COLUMN_STEP", layout.inputs, "inside", accumulate
        ),
        x_offset=x_offset,
        mentioned=set(re.findall(r"\w+", text)),
        column_step=problem.x.stride("w"),
        result=result,
    )


def candidates(problem: ConvProblem, target: Target, options: Options) -> list[DepthwiseConfig]:
    """Configurations worth measuring, the most promising first."""
    return sorted(_configs(problem, target, options), key=lambda c: time(problem, target, c))


def _x_offset(problem: ConvProblem, index: str) -> str:
    """C text of the offset of input channel `c` of row `h`, column `first_w`, image `n`."""
    x = problem.x
    names = {"n": "n", "h": "h", "w": "first_w", "c": "c"}
    # a column is first_w and some more, also where x has but one
    terms = [(names[d], x.stride(d)) for d in x.dims if x.extent(d) > 1 or d == "w"]
    return lowering.linear(terms, index)


CONFIG = DepthwiseConfig
