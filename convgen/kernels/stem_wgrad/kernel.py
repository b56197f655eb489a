"""stem_wgrad: the gradient of a first layer's filter on Hopper: few channels, large images.

gemm_m runs over y's channels, gemm_n over taps and x's channels, gemm_k over y's pixels.  y is the large tensor, and is
read once, by TMA.  A pixel of x is too short for TMA, and for wgmma, which reads runs of 8 elements along n: a
warpgroup reads x element by element and lays it out in shared memory as vectors of 8, a few taps of a filter row by all
channels.  The vectors of neighboring output columns lie 16 bytes apart, which is wgmma's layout without a swizzle; so
all output rows that a row of x is under read the same lines of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from convgen.ir.plan import Launch, Param, Plan, TensorMap
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacle, Obstacles, plan_of
from convgen.kernels.config import Options, considered
from convgen.kernels.parts import gradient
from convgen.kernels.parts.gradient import GradientKernel
from convgen.kernels.parts.hopper import MAX_BOX, target_obstacles, wgrad_type_obstacles
from convgen.kernels.parts.lowering import INT_LIMIT
from convgen.kernels.stem_wgrad import cost
from convgen.kernels.stem_wgrad.config import Config
from convgen.kernels.stem_wgrad.layout import A_ROW_BYTES, A_SPAN, VECTOR, Layout, room_for_ones
from convgen.kernels.stem_wgrad.source import source
from convgen.targets import Target

#: Consumer warpgroups of a block, and columns of a product (PTX ISA, "wgmma.mma_async").
MOST_CONSUMERS, MOST_COLUMNS = 3, 256
#: Registers of a consumer's thread besides its sums, and of a builder's besides its elements.
OTHER_REGISTERS = 36
MOST_STAGES = 8
#: Output channels of a block.
WIDEST = 256


class StemWgrad(GradientKernel[Config, Layout]):
    name = "stem_wgrad"
    config = Config

    def adds_up(self, problem: ConvProblem, fixed: Options) -> tuple[str, ...]:
        return super().adds_up(problem, fixed) if room_for_ones(problem) else ()

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        found = target_obstacles(target)
        found += wgrad_type_obstacles(problem)
        no = found.no
        if problem.rank != 2 or problem.groups > 1 or set(problem.dilation) != {1}:
            no("kernel stem_wgrad serves two axes, without dilation or groups")
        if problem.c >= VECTOR:
            no(f"{problem.c} input channels: kernel stem_wgrad serves fewer than {VECTOR}")
        if max(problem.output_pixels, problem.x.size) >= INT_LIMIT:
            no("the pixels of y, or the elements of x, do not fit 32 bits")
        return found

    def space(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Layout]:
        return _layouts(problem, target, fixed)

    def illegal(self, layout: Layout) -> list[Obstacle]:
        c, target, found = layout.config, layout.target, Obstacles()
        if c.consumers > MOST_CONSUMERS:
            found.no(f"{c.warps_m} by {c.warps_n} warps are {c.consumers} warpgroups",
                     f"at most {MOST_CONSUMERS}", "warps.n")  # fmt: skip
        if c.tile_m % (16 * c.warps_m):
            found.no(f"tile m={c.tile_m} does not split into 64 rows for each of {c.warps_m // 4} warpgroups",
                     f"m={16 * c.warps_m} or a multiple", "tile.m")  # fmt: skip
        if layout.vectors % c.warps_n:
            found.no(f"{layout.vectors} vectors of a filter row do not split for {c.warps_n} along n", option="warps.n")
        if layout.part_columns > MOST_COLUMNS:
            found.no(f"{layout.filter_rows} filter rows are {layout.part_columns} columns, more than {MOST_COLUMNS}")
        if found:
            return found
        needed = max(layout.accumulators, layout.thread_vectors * layout.used) + OTHER_REGISTERS
        if needed > layout.registers:
            found.no(f"a thread needs {needed} registers for {layout.accumulators} sums, or to make "
                     f"{layout.thread_vectors} vectors; it has {layout.registers}",
                     "more warps", "warps.n")  # fmt: skip
        if layout.shared_bytes > (limit := target.shared_limit()):
            found.no(f"{c.stages} stages of {c.tile_m} channels of {c.tile_k} pixels, and x under {c.depth} rows, "
                     f"take {layout.shared_bytes} bytes of shared memory; {target} has {limit}",
                     "fewer stages, or less depth", "stages")  # fmt: skip
        if c.slices > layout.rows:
            found.no(f"{layout.rows} output rows are fewer than {c.slices} slices", "fewer slices", "slices")
        return found

    def time(self, layout: Layout) -> float:
        return cost.time(layout)

    def kind(self, layout: Layout) -> object:
        c = layout.config
        return c.warps_m, c.warps_n, c.depth

    def plan(self, layout: Layout) -> Plan:
        problem, slices, prepared = layout.problem, layout.config.slices, layout.prepared
        params = (
            Param("x", "pointer", "x", alignment=problem.x.element.bytes),
            Param("a_map", "tensor_map", "y", _a_map(layout)),
            layout.result.vector_param,
            *(p.vector_param for p in gradient.y_sum_pointer(problem, slices) if layout.sums_y),
        )
        product = Launch(
            f"convgen_{problem.name}", (layout.m_tiles, slices, 1), layout.threads,
            (*prepared.params(params), *(p.param for p in layout.factors[1:])), layout.shared_bytes, dependent=True,
        )  # fmt: skip
        steps = (*prepared.launches(), *gradient.launches(layout, product))
        workspaces = (*prepared.workspaces, *gradient.workspaces(layout, slices))
        return plan_of(layout, steps, workspaces, notes=prepared.notes)

    def source(self, plan: Plan) -> str:
        assert isinstance(plan.layout, Layout)
        return source(plan, plan.layout)


def _a_map(layout: Layout) -> TensorMap:
    """Boxes of some pixels of an output row by 64 channels."""
    y = layout.prepared.problem.y
    channels, columns = y.extent("k"), layout.problem.output[1]
    pixel = (y.pitch or channels) * y.element.bytes
    return TensorMap(
        "y", "tiled", y.dtype, (channels, columns, layout.rows), (pixel, pixel * columns), (1, 1, 1),
        box=(A_SPAN, layout.config.tile_k, 1), swizzle=A_ROW_BYTES,
    )  # fmt: skip


def _layouts(problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Layout]:
    """Layouts with every channel of y in one block, if it has room, and as many slices as fill the GPU once."""

    given = partial(considered, fixed)
    fitting = min(-(-problem.k // A_SPAN) * A_SPAN, WIDEST)
    shapes = product(given("tile.m", sorted({64, fitting})), given("warps.m", [4, 8, 12]), given("warps.n", [1, 2, 3]))
    for (m, warps_m, warps_n), depth in product(shapes, given("depth", [2, 3])):
        for k in given("tile.k", _pixels(problem.output[1])):
            one = Layout(problem, target, Config(m, k, 2, depth, warps_m, warps_n))
            fitting_stages = (target.shared_limit() - one.shared_bytes) // (one.stage + 16) + 2
            stages = max(min(fitting_stages, MOST_STAGES), 2)
            for slices in given("slices", _slices(one)):
                config = Config(m, k, int(fixed.get("stages", stages)), depth, warps_m, warps_n, slices)
                yield Layout(problem, target, config)


def _pixels(columns: int) -> list[int]:
    """Pixels a stage: an output row's, or a half or a quarter, that leave few columns empty."""
    return sorted({16 * -(-columns // (16 * parts)) for parts in (1, 2, 4) if columns <= MAX_BOX * parts})


def _slices(layout: Layout) -> list[int]:
    """Blocks that fill the GPU, once or half of it."""
    most = max(layout.target.sms // layout.m_tiles, 1)
    return sorted({max(min(most // parts, layout.rows), 1) for parts in (1, 2)})


KERNEL = StemWgrad()
