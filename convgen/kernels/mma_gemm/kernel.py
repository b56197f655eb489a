"""mma_gemm: tiles of both factors are gathered from x and w by gemm_k, and multiplied by mma.sync, for sm_80 and up.

It serves every layout, channel count and alignment, and groups; a dgrad as the forward convolutions of its phases.  A
block makes one tile of one group (and one part of gemm_k, or one phase); its threads copy the next tiles with cp.async
while its warps multiply this one.  After
"Characterizing and Demystifying the Implicit Convolution Algorithm on Commercial Matrix-Multiplication
Accelerators" (2021), section V: the lowered matrix is never made, blocks of it are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels import base
from convgen.kernels.base import Obstacle, Obstacles, Part, plan_of
from convgen.kernels.config import Options, considered
from convgen.kernels.mma_gemm import cost
from convgen.kernels.mma_gemm.config import Config
from convgen.kernels.mma_gemm.gradients import gradient_obstacles, illegal_phases
from convgen.kernels.mma_gemm.launches import launches, workspaces
from convgen.kernels.mma_gemm.layout import MOST_HELD, Layout
from convgen.kernels.mma_gemm.sizes import illegal_sizes, limits, size_obstacles
from convgen.kernels.mma_gemm.source import source
from convgen.kernels.parts.assignment import forward
from convgen.kernels.parts.cost import memory_on, on, traffic, written
from convgen.kernels.parts.limits import MAX_REGISTERS, MAX_THREADS, register_obstacles
from convgen.kernels.parts.mma import COLUMNS, ROWS, math_obstacles, maths, mma_obstacles
from convgen.kernels.parts.prepare import words_last
from convgen.targets import Target

#: What layouts of tiles of one depth have in common.
OF_DEPTH = ("assigned", "prepared", "phases", "phase_taps", "pixels", "columns", "walks", "depths")
MOST_GROUPS = 65535  # blocks along a grid's y
MOST_PART = 64 * 96  # accumulators of a warp


@dataclass(frozen=True)
class Shape:
    """A tile and the warps that share it."""

    m: int
    n: int
    warps_m: int
    warps_n: int


#: Tiles that are worth a try, by warp tiles of at most 64 x 64: larger ones read shared memory less often.
SHAPES = tuple(
    Shape(wm * m, wn * n, wm, wn)
    for m, n in ((64, 64), (48, 64), (64, 32), (32, 64), (32, 32), (32, 16), (16, 32), (16, 64), (64, 16))
    for wm, wn in ((1, 2), (2, 1), (2, 2), (4, 1), (1, 4), (2, 4), (4, 2))
)
#: Stages that are worth a try, of rows of 128 bytes and of shorter ones.  Six of large tiles leave room for one block a
#: multiprocessor, which is all that few tiles need.
STAGES, SHORT_STAGES = (3, 4, 6), (4,)


class MmaGemm(base.Kernel[Config, Layout]):
    name = "mma_gemm"
    config = Config
    further = corrected = True
    slice_roles = base.ANY_SLICES
    dynamic = base.ANY_SIZES

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        found = gradient_obstacles(problem) or mma_obstacles(forward(problem), target)
        if problem.groups > MOST_GROUPS:
            message = f"{problem.groups} groups are more than the {MOST_GROUPS} that a grid has room for"
            found.append(Obstacle(message))
        if problem.dynamic and not found:
            found += size_obstacles(problem)
        return found

    def parts(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Part[Layout]]:
        """The search's parts, one per tile: with x and w as they lie, and where it may be faster, with channels
        innermost."""
        found = words_last(problem)
        wanted = [0, 1] if found and found.copies else [0]
        for relayout in considered(fixed, "relayout", wanted):
            yield from self._parts(problem, target, {**fixed, "relayout": relayout})

    def _parts(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Part[Layout]]:
        read = forward(problem)
        size = read.x.element.bytes
        trial = _layout(problem, target, Shape(64, 64, 2, 2), 64 // size, fixed)
        # elements that are gathered wait in registers: shorter rows
        gathered = not all(how.asynchronous for how in trial.loads.values())
        depth = read.taps * read.c_per_group
        k = int(fixed.get("tile.k", (64 if gathered or depth * size <= 256 else 128) // size))
        stages = SHORT_STAGES if size * k <= 64 else STAGES
        pipelines = considered(fixed, "stages", stages)
        held = max(MOST_HELD, int(fixed.get("blocks", 0)))
        alike = _layout(problem, target, Shape(64, 64, 2, 2), k, fixed).knowing(*OF_DEPTH)
        for shape in _shapes(fixed):
            layout = alike.sibling(tile_m=shape.m, tile_n=shape.n, warps_m=shape.warps_m, warps_n=shape.warps_n)
            few = layout.tile_count < target.sms
            few = few and len(layout.phase_taps) == 1
            splits = considered(fixed, "split_k", (1, 2, 3, 4, 6, 8) if few else (1,))
            yield Part(
                _least(layout, max(splits), held), _divided(layout, splits, pipelines, held, fixed.get("blocks"))
            )

    def illegal(self, layout: Layout) -> list[Obstacle]:
        c, problem, found = layout.config, layout.assigned.problem, Obstacles()
        found += math_obstacles(problem, c.math)
        found += illegal_sizes(layout)
        found += illegal_phases(layout)
        if c.relayout and not layout.prepared.copies:
            found.no("relayout 1 lays out planes of 4-byte elements, and no tensor has such planes",
                     "leave relayout out", "relayout")  # fmt: skip
        for name, extent, warps, step in (
            ("m", c.tile_m, c.warps_m, COLUMNS * 2 if layout.swapped else ROWS),
            ("n", c.tile_n, c.warps_n, ROWS if layout.swapped else COLUMNS * 2),
        ):
            if extent % (warps * step):
                found.no(f"tile {name}={extent} does not split into {warps} warps of a multiple of {step}",
                         f"a multiple of {warps * step}", f"tile.{name}")  # fmt: skip
        if layout.row_bytes not in (64, 128):
            sizes = " or ".join(str(b // layout.element_bytes) for b in (64, 128))
            found.no(f"tile k={c.tile_k} makes rows of {layout.row_bytes} bytes in shared memory",
                     f"k must be {sizes} for {problem.x.dtype}", "tile.k")  # fmt: skip
        if c.threads > MAX_THREADS:
            found.no(f"a block has {c.threads} threads", f"at most {MAX_THREADS}", "warps.m")
        return found or self._room(layout)

    def _room(self, layout: Layout) -> list[Obstacle]:
        """Why a layout does not fit shared memory or registers."""
        c, target, found = layout.config, layout.target, Obstacles()
        if layout.shared_bytes > (limit := target.shared_limit(c.blocks)):
            of_each = f" for each of {c.blocks} blocks" if c.blocks > 1 else ""
            found.no(f"{c.stages} stages take {layout.shared_bytes} bytes of shared memory, {target} has "
                     f"{limit}{of_each}", "fewer stages or a smaller tile", "stages")  # fmt: skip
        if layout.warp_rows * layout.warp_columns > MOST_PART:
            found.no(f"a warp's part of {layout.warp_rows}x{layout.warp_columns} does not fit its registers",
                     "more warps, or a smaller tile", "tile.n")  # fmt: skip
        found += register_obstacles(target, c.blocks, c.threads, min(layout.registers, MAX_REGISTERS))
        if c.split_k > max(*layout.depths, 1):
            found.no(f"split_k {c.split_k} is more than gemm_k", "a smaller split_k", "split_k")
        return found

    def time(self, layout: Layout) -> float:
        asked = dict(**_demands(layout), rates=on(cost.H200, layout.target.gpu))
        us = cost.gemm_time(**asked)
        if len(layout.phase_steps) > 1:  # the tiles of the longest one take their time
            longest = {"tiles": layout.tile_count // len(layout.phase_steps), "steps": layout.steps}
            us = max(us, cost.gemm_time(**(asked | longest)))
        us *= cost.GRADIENT if layout.assigned.backward else 1
        us *= 1 + max(0, layout.registers - MAX_REGISTERS) / 10
        return us + layout.prepared.time / memory_on(layout.target.gpu)

    def traits(self, layout: Layout) -> Mapping[str, Any] | None:
        return None if layout.assigned.backward or layout.problem.x.stride("c") != 1 else _demands(layout)

    def plan(self, layout: Layout) -> Plan:
        math = layout.config.math
        notes = (*layout.assigned.notes, *layout.prepared.notes)
        return plan_of(
            layout, launches(layout), workspaces(layout), arithmetic=math, limits=limits(layout), notes=notes
        )

    def source(self, plan: Plan) -> str:
        assert isinstance(plan.layout, Layout)
        return source(plan, plan.layout)


def _shapes(fixed: Options) -> list[Shape]:
    """The tiles that agree with the options; if none is worth trying, the one that the options ask for."""
    names = {"m": "tile.m", "n": "tile.n", "warps_m": "warps.m", "warps_n": "warps.n"}
    found = [s for s in SHAPES if all(o not in fixed or getattr(s, f) == fixed[o] for f, o in names.items())]
    defaults = zip(names.values(), (64, 64, 2, 2), strict=True)
    return found or [Shape(*(int(fixed.get(option, default)) for option, default in defaults))]


def _layout(problem: ConvProblem, target: Target, shape: Shape, k: int, fixed: Options) -> Layout:
    """The layout of a tile, with two stages and a whole gemm_k."""
    math = str(fixed.get("math", maths(forward(problem).x.dtype)[0]))
    order, relayout = str(fixed.get("order", "channel_first")), int(fixed.get("relayout", 0))
    config = Config(shape.m, shape.n, k, shape.warps_m, shape.warps_n, 2, order=order, math=math, relayout=relayout)
    return Layout(problem, target, config)


def _divided(
    layout: Layout, splits: Sequence[int], pipelines: Sequence[int], held: int, blocks: int | str | None
) -> Iterator[Part[Layout]]:
    """The same tiles with gemm_k in parts."""
    for split_k in splits:
        yield Part(_least(layout, split_k, held), _staged(layout, split_k, pipelines, blocks))


def _staged(layout: Layout, split_k: int, pipelines: Sequence[int], blocks: int | str | None) -> Iterator[Layout]:
    """Layouts with no more stages than a part has steps."""
    most = -(-max(layout.depths) // (layout.config.tile_k * split_k))
    for stages in pipelines:
        if stages <= max(pipelines[0], most):
            yield layout.split(split_k, stages, blocks)


def _demands(layout: Layout) -> dict[str, Any]:
    """The cost model's input."""
    c = layout.config
    return dict(
        steps=layout.mean_steps,
        stages=c.stages,
        shared_bytes=layout.shared_bytes,
        held=max(c.blocks, layout.held),
        tiles=layout.tile_count * c.split_k,
        ragged=layout.ragged,
        reduced=2 * layout.read.y.size * 4 * c.split_k if c.split_k > 1 else 0,
        bytes=_bytes(layout),
        sms=layout.target.sms,
        shared_per_sm=layout.target.shared_bytes_per_sm,
        **layout.tile_demands,
    )


def _least(layout: Layout, splits: int, held: int) -> float:
    """Microseconds that the tile does not go below, with gemm_k in up to so many parts and so many blocks a
    multiprocessor, whatever its stages."""
    asked = layout.tile_demands
    us = cost.least(
        instructions=asked["instructions"], shared=asked["shared_reads"] + asked["shared_writes"],
        copies=asked["copies"], alone=asked["alone"], pieces=asked["pieces"], warps=asked["warps"],
        steps=layout.mean_steps, splits=splits, held=held,
        results=asked["results"], stores=asked["stores"],
        tiles=layout.tile_count, traffic=asked["traffic"], ragged=layout.ragged_x,
        bytes=sum(traffic(layout.assigned.problem)[way] for way in ("reads", "writes")),
        sms=layout.target.sms, rates=on(cost.H200, layout.target.gpu),
    )  # fmt: skip
    return us + layout.prepared.time / memory_on(layout.target.gpu)


def _bytes(layout: Layout) -> float:
    """Bytes of device memory read and written; a reduction stores results in vectors, whatever their pixels are."""
    moved = traffic(layout.assigned.problem)
    odd, words = (0.0, 0.0) if layout.config.split_k > 1 else (cost.H200.odd_writes, cost.H200.word_writes)
    return moved["reads"] + written(moved["writes"], moved["y_pitch"], 0.0, odd, words=words)


KERNEL = MmaGemm()
