"""depthwise_direct: from global memory, on the ordinary cores, for any layout and target.

A thread computes a tile of output pixels for a few neighboring channels, its thread tile.  It walks the input rows
under the tile once, holds one row in registers, and adds it to every output row whose window it is in.  Filters wait
in shared memory (in registers where they are few) while a block computes tile after tile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product

from convgen.codegen.render import render
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.ir.size import Size
from convgen.kernels import base
from convgen.kernels.base import Obstacle, plan_of
from convgen.kernels.config import Options, considered
from convgen.kernels.depthwise_direct import cost
from convgen.kernels.depthwise_direct.config import Config
from convgen.kernels.parts import lowering, runs
from convgen.kernels.parts.assignment import assignment
from convgen.kernels.parts.axes import Axis, axes
from convgen.kernels.parts.channel_vectors import filter_pitch, inputs
from convgen.kernels.parts.constants import Constants
from convgen.kernels.parts.cost import LINE, on
from convgen.kernels.parts.counts import Count, count
from convgen.kernels.parts.depthwise import (
    Depthwise,
    channel_run,
    depthwise_obstacles,
    ends,
    formulas,
    run_result,
    vector_obstacles,
    whole_runs,
)
from convgen.kernels.parts.elementwise import fprop_pointers, sizes
from convgen.kernels.parts.limits import WARP, register_obstacles
from convgen.kernels.parts.persistent import persistent
from convgen.targets import Target

#: Filters of at most so many values a thread stay in its registers.
MOST_REGISTER_FILTER = 40
MOST_SLICE = 64  # channel vectors of a block
MOST_REGISTERS = 224  # of a thread, by `registers`
LEAST_PLACES = 8  # registers for places, where a launch leaves no more
#: Channels a thread, the fastest first: with 8, lanes meet in the banks of shared memory.
VECTORS = (4, 2, 8, 1)
#: How many of these are enough, where they fit.
LIKED = 2


@dataclass(frozen=True)
class Layout(Depthwise[Config]):
    """Everything that follows from a problem and a configuration."""

    @cached_property
    def planes(self) -> bool:
        """Whether a pixel's channels are not neighbors in x: then neighboring threads go along q."""
        return channel_run(self.read) == 1 and self.read.x.stride("c") != 1

    @property
    def inputs(self) -> int:
        """Input channels of a thread."""
        return inputs(self.read, self.config.vector)

    @property
    def vectors(self) -> int:
        return -(-self.read.k // self.config.vector)  # a whole number, also where it is illegal

    @cached_property
    def slice_vectors(self) -> int:
        """Channel vectors of a block: all of them, or a divisor."""
        if self.planes:
            return 1
        vectors = self.vectors
        return next(d for d in range(MOST_SLICE, 0, -1) if vectors % d == 0)

    @property
    def slice(self) -> int:
        """Channels of a block."""
        return self.slice_vectors * self.config.vector

    @property
    def slices(self) -> int:
        return self.vectors // self.slice_vectors

    @property
    def tiles_at_once(self) -> int:
        """Thread tiles that a block makes at once."""
        return max(1, self.config.threads // self.slice_vectors)

    @property
    def threads(self) -> int:
        return self.tiles_at_once * self.slice_vectors

    @property
    def p_tiles(self) -> int:
        return -(-self.axes[0].output // self.config.tile_p)

    @property
    def q_tiles(self) -> int:
        return -(-self.axes[1].output // self.config.tile_q)

    @property
    def thread_tiles(self) -> int:
        """Thread tiles of one channel slice."""
        return self.read.n * self.p_tiles * self.q_tiles

    @property
    def block_rounds(self) -> int:
        return -(-self.thread_tiles // self.tiles_at_once)

    @property
    def in_registers(self) -> bool:
        return self.read.taps * self.config.vector <= MOST_REGISTER_FILTER

    @property
    def pitch(self) -> int:
        """Elements of a tap's filters in shared memory."""
        return filter_pitch(self.slice)

    @property
    def shared_bytes(self) -> int:
        return self.read.taps * self.pitch * 4

    @property
    def held(self) -> int:
        """Numbers that a thread holds in registers: sums, a row of x, filters."""
        c = self.config
        row = self.axes[1].inputs(c.tile_q) * self.inputs
        filters = self.read.taps if self.in_registers else self.read.filter[-1]
        return c.tile_p * c.tile_q * c.vector + row + filters * c.vector

    @property
    def registers(self) -> int:
        """An estimate of the registers a thread needs; where a launch has fewer, ptxas computes addresses anew."""
        c = self.config
        addresses = 44 + c.tile_p * c.tile_q if c.vector == 1 else 36  # single elements each take their own
        return self.held + addresses


class DepthwiseDirect(base.Kernel[Config, Layout]):
    name = "depthwise_direct"
    config = Config
    further = True
    slice_roles = base.ANY_SLICES
    dynamic = base.ANY_SIZES

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        found = depthwise_obstacles(problem, target)
        if problem.dynamic and lowering.index_type(problem, ()) != "int":
            found.append(Obstacle("tensors of 2^31 elements need fixed sizes", "leave `dynamic` out"))
        return found

    def space(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Layout]:
        """Enumerates configurations with few channels per thread where the window is wide."""
        if "vector" in fixed:
            return iter(_layouts(problem, target, fixed, (int(fixed["vector"]),)))
        read = assignment(problem).problem
        most = min(channel_run(read), max(1, 16 // read.x.element.bytes))
        vectors = tuple(v for v in VECTORS if v <= most)
        liked, others = (list(_layouts(problem, target, fixed, vs)) for vs in (vectors[:LIKED], vectors[LIKED:]))
        return iter(liked if any(x.registers <= MOST_REGISTERS for x in liked) else [*liked, *others])

    def illegal(self, layout: Layout) -> list[Obstacle]:
        c, most = layout.config, 16 // layout.read.x.element.bytes
        found = vector_obstacles(layout.read, c.vector, most) or whole_runs(layout, c.tile_p, c.tile_q)
        if found:
            return found
        if layout.registers > MOST_REGISTERS:
            columns = layout.axes[1].inputs(c.tile_q)
            what = f"the {columns} columns of x under a thread's outputs, and its outputs, do not fit its registers"
            found.no(what, "a smaller tile", "tile.q")
        else:
            found += register_obstacles(layout.target, c.blocks, layout.threads, layout.held + LEAST_PLACES)
        if layout.shared_bytes > layout.target.shared_bytes_per_block and not layout.planes:
            channels = layout.slice_vectors * c.vector
            found.no(f"filters of {channels} channels take {layout.shared_bytes} bytes of shared memory")
        return found

    def time(self, layout: Layout) -> float:
        c, problem, (rows, columns) = layout.config, layout.read, layout.axes
        loads = rows.inputs(c.tile_p) * columns.inputs(c.tile_q)
        # loads of 4 filters, or of 1; lanes are `vector` words apart, so that each load takes the banks so many cycles
        filters = 0 if layout.in_registers else c.tile_p / rows.phases * problem.taps * (c.vector // 4 or c.vector)
        outputs = c.tile_p * c.tile_q
        products, conversions = outputs / layout.run_outputs * problem.taps * c.vector, loads * layout.inputs
        load_lines = max(1, layout.inputs * problem.x.element.bytes * WARP / LINE)
        return cost.direct_time(
            instructions=products + conversions + 2 * loads + filters + outputs * (c.vector / 2 + 2),
            rows=rows.inputs(c.tile_p),
            lines=filters * c.vector + loads * load_lines,
            warps=layout.threads / WARP,
            blocks=c.blocks,
            tiles=layout.block_rounds * layout.slices,
            filters=problem.taps * layout.slice_vectors * c.vector / layout.threads,
            bytes=problem.min_bytes,
            sms=layout.target.sms,
            rates=on(cost.H200, layout.target.gpu),
        )

    def plan(self, layout: Layout) -> Plan:
        launch = persistent(
            layout.problem, layout.assigned.params(p.vector_param for p in fprop_pointers(layout.read)),
            tiles=layout.block_rounds, slices=layout.slices, threads=layout.threads, shared_bytes=layout.shared_bytes,
            blocks_per_sm=layout.config.blocks,
        )  # fmt: skip
        limits = lowering.index_limits(layout.problem, lowering.index_type(layout.problem, ()))
        return plan_of(layout, [launch], notes=layout.assigned.notes, limits=limits)

    def source(self, plan: Plan) -> str:
        layout = plan.layout
        assert isinstance(layout, Layout)
        problem, config = layout.read, layout.config
        accumulate = problem.accumulate
        index = lowering.index_type(problem, ())
        result = run_result(problem, config.vector)
        constants = Constants()
        x_offset = _x_offset(problem, index, constants)
        text = "\n".join([x_offset, result.text, *result.store])
        return render(
            "depthwise_direct/kernel.cu.j2",
            plan,
            config=config,
            layout=layout,
            rows=layout.axes[0],
            columns=layout.axes[1],
            launch=plan.launch(),
            formulas=formulas(layout),
            pointers=fprop_pointers(problem),
            sizes=list(sizes(layout.problem)),
            ends=_ends(layout),
            counts=_counts(layout, index),
            inside=" && ".join(
                f"u32({at}) < {_input(d, axis, constants)}"
                for d, at, axis in zip("hw", ("h", "first_w + j"), layout.axes, strict=True)
            ),
            constants=constants,
            index=index,
            accumulator=lowering.ACCUMULATORS[accumulate].c_type,
            load_filter=lowering.load(problem.w.dtype, f"w[{layout.filter_offset(constants)}]", accumulate),
            load_input=runs.load_run(
                problem.x.dtype, "value", "source + j * column_step", layout.inputs, "inside", accumulate
            ),
            x_offset=x_offset,
            mentioned=set(re.findall(r"\w+", text)),
            result=result,
        )


def _counts(layout: Layout, index: str) -> list[Count]:
    """How many thread tiles there are, and how far columns of x lie apart."""
    of_images = f"{lowering.factor(layout.read.n)} * p_tiles * q_tiles"
    return [
        count("p_tiles", layout.p_tiles, "down an image"),
        count("q_tiles", layout.q_tiles, "across"),
        count("thread_tiles", layout.thread_tiles, "of all images", of_images),
        count("column_step", layout.read.x.stride("w"), "elements of x from one column to the next", c_type=index),
    ]


def _ends(layout: Layout) -> dict[str, str]:
    """C text of the output's extents, by coordinate; empty where thread tiles end with it."""
    tiles = layout.config.tile_p, layout.config.tile_q
    return {
        d: end if axis.output % tile else ""
        for (d, end), tile, axis in zip(ends(layout).items(), tiles, layout.axes, strict=True)
    }


def _layouts(problem: ConvProblem, target: Target, fixed: Options, vectors: tuple[int, ...]) -> Iterator[Layout]:
    given = partial(considered, fixed)
    assigned = assignment(problem)
    rows, columns = axes(assigned.problem, assigned.phases)
    ps = given("tile.p", sorted({rows.whole(p) for p in (1, 2, 4) if p <= rows.output}))
    qs = given("tile.q", sorted({columns.whole(int(min(q, columns.output))) for q in (1, 2, 4, 5, 7, 8)}))
    for v, p, q, threads in product(vectors, ps, qs, given("threads", [128, 256])):
        layout = Layout(problem, target, Config(p, q, v, threads, 1))
        most = max(1, min(8, target.register_blocks(layout.registers, threads)))
        yield replace(layout, config=replace(layout.config, blocks=int(fixed.get("blocks", most))))


def _input(dim: str, axis: Axis, constants: Constants) -> str:
    """C text of the inputs along an axis."""
    return lowering.number_text(axis.input) if isinstance(axis.input, Size) else constants.extent(dim, axis.input)


def _x_offset(problem: ConvProblem, index: str, constants: Constants) -> str:
    """C text of the offset of input channel `c` of row `h`, column `first_w`, image `n`."""
    x = problem.x
    names = {"n": "n", "h": "h", "w": "first_w", "c": "c"}
    # a column is first_w and some more, also where x has but one
    terms = [(names[d], x.stride(d)) for d in x.dims if x.extent(d) > 1 or d == "w"]
    return lowering.linear(terms, index, constants.strides(x))


KERNEL = DepthwiseDirect()
