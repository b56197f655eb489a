"""depthwise_stream: TMA streams rows of x through shared memory, and every row is read once.

A block has a slice of the channels and a run of bands: a band is a few output rows of one image, over a strip
of its columns.  Slabs of input rows follow one another through a ring; the next band of the same image needs
one more slab, and a slab is given back when the band is done with it.  TMA fills what lies outside x with
zeros: that is the padding.

The products are made on the ordinary cores (`fma`) or on tensor cores (`mma`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace

from convgen.codegen.render import render
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels import base
from convgen.kernels.base import Obstacle, Obstacles, plan_of
from convgen.kernels.config import Options
from convgen.kernels.depthwise_stream import cost, fma, mma
from convgen.kernels.depthwise_stream.config import Config
from convgen.kernels.depthwise_stream.constraints import illegal, malformed
from convgen.kernels.depthwise_stream.launches import launch, pointers
from convgen.kernels.depthwise_stream.layout import PRODUCER, UNIT, Layout
from convgen.kernels.depthwise_stream.space import space
from convgen.kernels.parts import lowering, partial_sums, runs
from convgen.kernels.parts.assignment import assignment
from convgen.kernels.parts.axes import axes
from convgen.kernels.parts.constants import Constants, extent_name
from convgen.kernels.parts.cost import HALF_LINE, lines, on
from convgen.kernels.parts.counts import Count, count
from convgen.kernels.parts.depthwise import depthwise_obstacles, ends, formulas, run_result
from convgen.kernels.parts.elementwise import sizes
from convgen.kernels.parts.hopper import launch_registers
from convgen.kernels.parts.limits import WARP
from convgen.kernels.parts.window_sum import WindowSum, window_sum
from convgen.targets import Target


class DepthwiseStream(base.Kernel[Config, Layout]):
    name = "depthwise_stream"
    config = Config
    further = True
    slice_roles = base.ANY_SLICES
    dynamic = base.ANY_SIZES

    def adds_up(self, problem: ConvProblem, fixed: Options) -> tuple[str, ...]:
        """Sums of channels over all images: a block's pixels make a row."""
        return partial_sums.summed(problem, of_images=False)

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        if found := depthwise_obstacles(problem, target):
            return found
        assigned = assignment(problem)
        problem = assigned.problem
        found, elsewhere = Obstacles(), "kernel depthwise_direct"
        if not {"tma", "dependent_launch"} <= target.features:
            found.no(f"target {target} has no TMA", elsewhere, "kernel")
        x = problem.x
        for t in (x, problem.y):
            if (t.pitch or 0) * t.element.bytes % UNIT:
                pixels = f"pixels of {t.name} begin {t.pitch} channels apart"
                found.no(f"depthwise_stream needs multiples of 16 bytes: {pixels}", elsewhere, "kernel")
        if x.innermost != "c" or problem.c * x.element.bytes % UNIT:
            found.no("depthwise_stream needs channels innermost in x, in multiples of 16 bytes", elsewhere,
                     "kernel")  # fmt: skip
        if not found and not fma.vectors(problem):
            found.no(_no_vectors(problem), elsewhere, "kernel")
        if any(a.shared < 0 for a in axes(problem, assigned.phases)):
            found.no("depthwise_stream needs windows that cover every input pixel", elsewhere, "kernel")
        if lowering.index_type(problem, ()) != "int":
            found.no("a tensor of 2^31 elements or more", elsewhere, "kernel")
        return found

    def space(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterable[Layout]:
        return space(problem, target, fixed)

    def illegal(self, layout: Layout) -> list[Obstacle]:
        return illegal(layout)

    def kind(self, layout: Layout) -> object:
        c = layout.config
        return c.math, c.tile_p, c.tile_q, c.vector, c.slice

    def time(self, layout: Layout) -> float:
        if malformed(layout):
            return math.inf
        problem, target, config = layout.read, layout.target, layout.config
        rows, columns = layout.axes
        written = sum(t.bytes for t in problem.results)
        workers = max(1, min(target.sms * config.blocks, layout.bands * layout.slices) // layout.slices)
        slice_bytes = layout.x_slice * layout.element_bytes
        inside = layout.inside[1] / columns.input
        # runs that begin inside an image reread the rows that their first band shares with the previous band
        begun = workers * (1 - 1 / layout.p_tiles) * max(0, rows.shared)
        rates = cost.H200_MMA if config.math == "mma" else cost.H200_FMA
        return cost.stream_time(
            bands=-(-layout.bands // workers),
            resident=-(-workers * layout.slices // target.sms),
            held=held(layout),
            rounds=-(-layout.tiles // layout.tiles_at_once),
            warps=layout.consumer_threads // WARP,
            instructions=layout.instructions,
            lines=layout.lines,
            slab_bytes=layout.slab_bytes,
            pixels=layout.step * layout.width + (config.band * config.strip if layout.staged_bytes else 0),
            outside=layout.outside_bytes,
            slabs=layout.slabs,
            loads=layout.loads,
            ahead=config.stages - layout.slabs,
            filter_loads=layout.filters_a_thread,
            reads=problem.min_bytes - written,
            writes=written,
            again=max(0.0, inside * (1 + begun / (problem.n * layout.strips * rows.input)) - 1),
            half_lines=lines(slice_bytes, slice_bytes, HALF_LINE) * HALF_LINE / slice_bytes,
            part_sectors=layout.part_sectors,
            rates=on(rates, target.gpu),
        )

    def plan(self, layout: Layout) -> Plan:
        limits = lowering.index_limits(layout.problem, "int")
        parts = partial_sums.workspaces(layout.read, layout.partial_bytes) if layout.sums else ()
        return plan_of(layout, [launch(layout)], parts, notes=layout.assigned.notes, limits=limits)

    def source(self, plan: Plan) -> str:
        layout = plan.layout
        assert isinstance(layout, Layout)
        problem, config = layout.read, layout.config
        accumulate = problem.accumulate
        rows, columns = layout.axes
        on_tensor_cores = config.math == "mma"
        q_tail = config.strip % config.tile_q > 0
        result = run_result(problem, mma.CHANNELS if on_tensor_cores else config.vector)
        constants = Constants()
        filter_element = f"w[{layout.filter_offset(constants)}]"
        load_filter = filter_element
        if not on_tensor_cores:
            load_filter = lowering.load(problem.w.dtype, filter_element, accumulate)
        store = () if layout.staged_bytes else result.store  # by TMA
        early = [raw.value for raw in result.raws] if layout.early else []
        late = _words(*store, *replace(result, raws=() if early else result.raws).text.split("\n"))
        mentioned = late | _words(*early)
        # of a tile; only y's map drops elements outside y
        asked = {"p", "q"} if not layout.staged_bytes or result.further or layout.sums else mentioned
        guards = {
            "p": rows.output % config.band > 0 and "p" in asked,
            "q": (columns.output % config.strip > 0 or q_tail) and "q" in asked,
            "strip": q_tail and layout.strips > 1,
        }
        inside = [  # what a lane of mma asks before it makes a result
            *(["from_strip < strip_columns"] if q_tail else []),
            *(f"{d} < {end}" for d, end in ends(layout).items() if guards[d]),
        ]
        return render(
            "depthwise_stream/kernel.cu.j2",
            plan,
            config=config,
            layout=layout,
            rows=rows,
            columns=columns,
            guards=guards,
            launch=plan.launch(),
            formulas=formulas(layout),
            pointers=pointers(layout),
            sizes=list(sizes(layout.problem)),
            counts=_counts(layout),
            ends=ends(layout),
            maps=[p.name for p in plan.launch().params if p.kind == "tensor_map"],
            accumulator=lowering.ACCUMULATORS[accumulate].c_type,
            filter_type="u16" if on_tensor_cores else lowering.ACCUMULATORS[accumulate].c_type,
            load_filter=load_filter,
            constants=constants,
            load_input=runs.load_shared_run(problem.x.dtype, "value", "source", layout.inputs, accumulate),
            mma=f"mma_m16n8k8_f32_{problem.x.dtype}_{problem.x.dtype}",
            window_sum=_window_sum(layout, constants) if layout.own_zeros else None,
            mentioned=mentioned,
            mentioned_late=late,
            inside=inside,
            result=result,
        )


def _words(*lines: str) -> set[str]:
    return set(re.findall(r"\w+", "\n".join(lines)))


def _no_vectors(problem: ConvProblem) -> str:
    """Why no vector of outputs is of the channels of a word of x."""
    if problem.y.innermost != "k":
        return "depthwise_stream needs channels innermost in y, unless x is f32"
    return f"depthwise_stream has no vectors of channels of {problem.k_per_group} filters each: threads read words of x"


def _counts(layout: Layout) -> dict[str, Count]:
    """How many bands there are."""
    along = {"p_bands": layout.p_tiles, "strips": layout.strips}
    of_images = " * ".join([lowering.factor(layout.read.n), *(name for name, bands in along.items() if bands > 1)])
    return {
        "strips": count("strips", layout.strips),
        "p_bands": count("p_bands", layout.p_tiles, "down an image"),
        "bands": count("bands", layout.bands, "of all images", of_images),
    }


def _window_sum(layout: Layout, file: Constants) -> WindowSum:
    read = layout.read
    of_file = {**file.mentioned, **{extent_name(f): read.extent(f) for f in read.spatial.filter}}
    return window_sum(read, mirrored=layout.assigned.mirrored, sizes=sizes(layout.problem), file=of_file)


def held(layout: Layout) -> int:
    """Blocks that a multiprocessor has room for, of this launch and the next."""
    threads, target = layout.consumer_threads + PRODUCER, layout.target
    registers = min(layout.registers, launch_registers(target, threads, layout.config.blocks))
    return max(1, target.resident_blocks(threads, registers, layout.shared_bytes))


KERNEL = DepthwiseStream()
