"""Groups of few channels: halo tiles of the input stay in shared memory, filters stay in registers.

An mma takes 16 input channels and 8 output channels at a time, a group of ResNeXt has 4 and 4.  Groups are
joined until they fill the instruction, with zeros where input and output are of different groups: the
products that this wastes cost less than the memory traffic that bounds such layers.  A block copies the
rows of x under its output rows once, for a slice of the channels; each warp keeps the filters of one joined
group in its registers and takes every tap's fragments from the halo tile, a constant distance apart.

A zero times an infinity or a NaN of a joined neighbor is a NaN: sums that are NaN are made once more (`window_sum`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product

from convgen.codegen.render import render
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels import base
from convgen.kernels.base import Obstacle, Obstacles, plan_of
from convgen.kernels.config import Options, considered
from convgen.kernels.parts import lane_columns, lowering, output, runs
from convgen.kernels.parts.axes import Axis, axes
from convgen.kernels.parts.constants import Constants
from convgen.kernels.parts.cost import on
from convgen.kernels.parts.digits import advance
from convgen.kernels.parts.elementwise import epilogue_formulas, fprop_pointers, sizes, window_formulas
from convgen.kernels.parts.image_count import image_limits, image_obstacles
from convgen.kernels.parts.limits import MAX_THREADS, WARP, register_obstacles
from convgen.kernels.parts.mma import CHUNK_BYTES, COLUMNS, K_BYTES, MMAS, ROWS, Mma, maths, mma_obstacles
from convgen.kernels.parts.persistent import persistent
from convgen.kernels.parts.walk import Digit, number
from convgen.kernels.parts.window_sum import Part, fragment_place, look, window_sum
from convgen.kernels.small_groups import cost
from convgen.kernels.small_groups.config import Config
from convgen.targets import Target

#: Registers of a thread that filters may take.
MOST_FILTER_REGISTERS = 108
#: What all layouts of a search have in common.
OF_PROBLEM = ("axes", "in_channels", "out_channels", "warp_n", "products", "filter_registers")
#: And those of a tile.
OF_TILE = ("threads", "slices", "tiles", "m_tiles", "halo_rows", "halo_columns", "chunks")


@dataclass(frozen=True)
class Layout(base.Layout[Config]):
    """Everything that follows from a problem and a configuration."""

    @cached_property
    def element_bytes(self) -> int:
        return self.problem.x.element.bytes

    @cached_property
    def k_elements(self) -> int:
        """Input channels of one instruction."""
        return K_BYTES // self.element_bytes

    @cached_property
    def join(self) -> int:
        return joined(self.problem)

    @cached_property
    def in_channels(self) -> int:
        """Input channels of a joined group."""
        return self.join * self.problem.c_per_group

    @cached_property
    def out_channels(self) -> int:
        return self.join * self.problem.k_per_group

    @cached_property
    def warp_n(self) -> int:
        """Output channels of a warp."""
        return 16 if self.out_channels % 16 == 0 else 8

    @property
    def units(self) -> int:
        """Warps that compute one pixel's output channels of a slice."""
        return self.config.slice * self.out_channels // self.warp_n

    @cached_property
    def threads(self) -> int:
        return WARP * self.units * self.config.warps_m

    @cached_property
    def products(self) -> int:
        """Instructions of a tap."""
        return self.in_channels // self.k_elements

    @cached_property
    def filter_registers(self) -> int:
        return self.problem.taps * self.products * self.warp_n // COLUMNS * 2

    @cached_property
    def slices(self) -> int:
        return self.problem.groups // (self.join * self.config.slice)

    @cached_property
    def axes(self) -> tuple[Axis, Axis]:
        return axes(self.problem)

    @property
    def p_tiles(self) -> int:
        return -(-self.axes[0].output // self.config.tile_p)

    @cached_property
    def tiles(self) -> int:
        """Tiles of one slice."""
        return self.problem.n * self.p_tiles

    @property
    def pixels(self) -> int:
        """Output pixels of a tile."""
        return self.config.tile_p * self.axes[1].output

    @cached_property
    def m_tiles(self) -> int:
        return -(-self.pixels // ROWS)

    @cached_property
    def halo_rows(self) -> int:
        return self.axes[0].inputs(self.config.tile_p)

    @cached_property
    def halo_columns(self) -> int:
        return self.axes[1].inputs(self.axes[1].output)

    @property
    def in_slice(self) -> int:
        """Input channels of a block."""
        return self.in_channels * self.config.slice

    @property
    def out_slice(self) -> int:
        return self.out_channels * self.config.slice

    @property
    def per_word(self) -> int:
        """Elements of a word."""
        return runs.WORD // self.element_bytes

    @property
    def per_chunk(self) -> int:
        return CHUNK_BYTES // self.element_bytes

    @property
    def element_bits(self) -> int:
        return 8 * self.element_bytes

    @cached_property
    def chunks(self) -> int:
        """Chunks of 16 bytes of a pixel's slice."""
        return self.in_slice * self.element_bytes // CHUNK_BYTES

    @property
    def pitch(self) -> int:
        """Bytes of a pixel in shared memory: an odd number of chunks, so that 8 neighbors are in different banks."""
        return (self.chunks | 1) * CHUNK_BYTES

    @property
    def halo_bytes(self) -> int:
        return self.halo_rows * self.halo_columns * self.pitch

    @property
    def shared_bytes(self) -> int:
        return self.config.stages * self.halo_bytes

    @property
    def mma(self) -> Mma:
        return MMAS[self.problem.x.dtype, ""]

    @property
    def multiply(self) -> str:
        """The PTX function: rows by columns."""
        factors = (self.problem.x.dtype, self.problem.w.dtype)
        return self.mma.function(*factors)

    @property
    def owners(self) -> list[list[Part]]:
        """For each lane of a quad, and each of a joined group's warps, the groups of its sums of a pixel."""
        lanes: list[list[Part]] = []
        for first, lane in product(range(0, self.out_channels, self.warp_n), range(4)):
            columns = (first + lane_columns.lane_column(self.run, place, lane) for place in range(self.warp_n // 4))
            lanes.append([{column // self.problem.k_per_group} for column in columns])
        return lanes

    @cached_property
    def columns(self) -> output.Columns:
        return output.Columns("channels", ("k",), math.gcd(self.problem.k, self.warp_n))

    @cached_property
    def run(self) -> int:
        return output.run_length(self.problem, self.columns, self.warp_n)


def joined(problem: ConvProblem) -> int:
    """How many groups fill an instruction; 0 where no number does."""
    k_elements = K_BYTES // problem.x.element.bytes
    c, k = problem.c_per_group, problem.k_per_group
    join = math.lcm(k_elements // math.gcd(k_elements, c), 8 // math.gcd(8, k))
    return 0 if problem.groups % join else join


def _unserved(problem: ConvProblem, target: Target) -> str:
    """Why this kernel cannot serve a problem, whatever the configuration; empty where it can."""
    x = problem.x
    if problem.groups == 1:
        return "there is one group"
    if problem.rank > 2:
        return "three spatial dims"
    if maths(x.dtype) != ("",):
        return f"{x.dtype} is multiplied in parts"
    if x.dims != tuple(d for d in ("n", *problem.spatial.input, "c") if d in x.dims):
        return f"layout of {x.name} is {' '.join(x.dims)}"
    order = tuple(d for d in output.pixel_dims(problem) if d in problem.y.dims)
    if order != tuple(d for d in ("n", *problem.spatial.output) if d in problem.y.dims) or problem.y.innermost != "k":
        return f"layout of {problem.y.name} is {' '.join(problem.y.dims)}"
    if x.pitch and x.pitch * x.element.bytes % CHUNK_BYTES:
        return f"pixels of {x.name} begin {x.pitch * x.element.bytes} bytes apart; {CHUNK_BYTES} must divide that"
    if not joined(problem):
        return f"no number of groups of {problem.c_per_group} and {problem.k_per_group} channels fills an instruction"
    layout = Layout(problem, target, Config(1, 1, 1, 1))
    if layout.filter_registers > MOST_FILTER_REGISTERS:
        return f"filters of a warp take {layout.filter_registers} registers"
    return ""


class SmallGroups(base.Kernel[Config, Layout]):
    name = "small_groups"
    config = Config
    further = True
    slice_roles = base.ANY_SLICES
    dynamic = base.IMAGES

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        if found := mma_obstacles(problem, target):
            return found
        found = image_obstacles(problem)
        if why := _unserved(problem, target):
            found.no(f"kernel small_groups: {why}", "kernel mma_gemm", "kernel")
        return found

    def space(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Layout]:
        """Enumerates layouts; those with equal estimates in the order of measured speed: wide slices, two halo
        tiles."""

        given = partial(considered, fixed)
        root = Layout(problem, target, Config(1, 1, 1, 1, 1)).knowing(*OF_PROBLEM)
        p = root.axes[0].output
        rows = tuple(sorted({min(r, p) for r in (1, 2, 4, 7, 8, 14, 16)}))
        beside = list(product(given("stages", (2, 1)), given("blocks", (1, 2, 3, 4, 6))))
        for row, slice_, warps in product(
            given("tile.p", rows), given("slice", (8, 4, 2, 1)), given("warps.m", (1, 2, 4, 8))
        ):
            tile = root.having(Config(row, slice_, warps, 1, 1)).knowing(*OF_TILE)
            for stages, blocks in beside:
                yield tile.sibling(stages=stages, blocks=blocks)

    def illegal(self, layout: Layout) -> list[Obstacle]:
        c, found = layout.config, Obstacles()
        slices = layout.problem.groups // layout.join
        if slices % c.slice:
            found.no(f"slice {c.slice} does not divide the {slices} joined groups", option="slice")
        if not 64 <= layout.threads <= MAX_THREADS:
            found.no(f"a block has {layout.threads} threads", f"64 to {MAX_THREADS}: other warps m or slice", "warps.m")
        else:
            found += register_obstacles(layout.target, c.blocks, layout.threads, _registers(layout))
        if layout.shared_bytes > (limit := layout.target.shared_limit(c.blocks)):
            found.no(f"input rows take {layout.shared_bytes} bytes of shared memory; {layout.target} has {limit} for "
                     f"each of {c.blocks} blocks", "fewer rows", "tile.p")  # fmt: skip
        return found

    def time(self, layout: Layout) -> float:
        c = layout.config
        warps = max(layout.threads // WARP, 1)
        return cost.groups_time(
            steps=layout.problem.taps * layout.products * -(-layout.m_tiles // c.warps_m),
            warps=warps,
            tiles=layout.tiles * max(layout.slices, 1),
            blocks=c.blocks,
            stages=c.stages,
            halo_tile=layout.halo_rows * layout.halo_columns * layout.chunks * CHUNK_BYTES,
            filters=warps * WARP * layout.filter_registers * 4,
            bytes=layout.problem.min_bytes,
            sms=layout.target.sms,
            rates=on(cost.H200, layout.target.gpu),
        )

    def plan(self, layout: Layout) -> Plan:
        launch = persistent(
            layout.problem, [p.vector_param for p in fprop_pointers(layout.problem)], tiles=layout.tiles,
            slices=layout.slices, threads=layout.threads, shared_bytes=layout.shared_bytes,
            blocks_per_sm=layout.config.blocks,
        )  # fmt: skip
        return plan_of(layout, [launch], limits=image_limits(layout.problem))

    def source(self, plan: Plan) -> str:
        layout = plan.layout
        assert isinstance(layout, Layout)
        problem, config = layout.problem, layout.config
        bits_type = runs.bits_type(problem.x.element)
        index = lowering.index_type(problem, ())
        maps = output.channel_map(problem)
        result = output.result(problem, maps, layout.columns, output.CHANNEL, layout.run, layout.mma.accumulator)
        digits = (
            Digit("row", layout.halo_rows, 0),
            Digit("column", layout.halo_columns, 0, constant="halo_columns"),
            Digit("chunk", layout.chunks, 0),
        )
        of_x, of_w, of_file = Constants(), Constants(), Constants()
        of_file.extent("p", layout.axes[0].output)
        of_file.extent("q", layout.axes[1].output)
        terms = [("n", problem.x.stride("n")), ("h", problem.x.stride("h")), ("in_w", problem.x.stride("w"))]
        return render(
            "small_groups/kernel.cu.j2",
            plan,
            config=config,
            layout=layout,
            rows=layout.axes[0],
            columns=layout.axes[1],
            launch=plan.launch(),
            formulas=[*window_formulas(problem), *epilogue_formulas(problem)],
            pointers=fprop_pointers(problem),
            sizes=list(sizes(problem)),
            index=index,
            bits_type=bits_type,
            x_source=runs.as_bits(problem.x, bits_type),
            w_source=runs.as_bits(problem.w, bits_type),
            run=layout.run,
            run_pairs=layout.run // 2,
            column_of=lane_columns.column_of(layout.run),
            accumulator=lowering.ACCUMULATORS[layout.mma.accumulator].c_type,
            result=result,
            next_copy=advance(digits, number(digits, layout.threads)),
            window_sum=(
                window_sum(problem, "gemm_m", output.pixel_dims(problem), file=of_file.mentioned)
                if _zeros(layout)
                else None
            ),
            look=look(layout.owners, fragment_place(layout.warp_n // 4)),
            lane_column=lane_columns.lane_column_text(layout.run, "column"),
            x_offset=lowering.linear(terms, "int", of_x.strides(problem.x)),
            height=of_x.extent("h", layout.axes[0].input),
            width=of_x.extent("w", layout.axes[1].input),
            w_offset=lowering.filter_offset(problem, "k", of_w),
            of_x=of_x,
            of_w=of_w,
        )


def _zeros(layout: Layout) -> bool:
    """Whether zeros stand between joined groups, of numbers that may be infinite."""
    return layout.join > 1 and layout.problem.x.element.is_float


def _registers(layout: Layout) -> int:
    """An estimate of the registers a thread needs: two rows of instructions at a time."""
    return layout.filter_registers + 2 * (layout.warp_n // 2 + 4) + 44


KERNEL = SmallGroups()
