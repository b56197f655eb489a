"""Why a configuration of depthwise_stream is meaningless, or beyond the hardware."""

from __future__ import annotations

from convgen.ir.size import Size
from convgen.kernels.base import Obstacle, Obstacles
from convgen.kernels.depthwise_stream.layout import PRODUCER, UNIT, WORD, Layout
from convgen.kernels.depthwise_stream.maths import MATHS
from convgen.kernels.parts.channel_vectors import inputs
from convgen.kernels.parts.depthwise import vector_obstacles, whole_runs
from convgen.kernels.parts.hopper import MAX_BOX
from convgen.kernels.parts.limits import MAX_REGISTERS, MAX_THREADS

MOST_STAGES = 64


def malformed(layout: Layout) -> Obstacles:
    """Why a configuration is meaningless for a problem."""
    problem, config = layout.read, layout.config
    found = vector_obstacles(problem, config.vector, MATHS[config.math].most_channels(problem))
    no = found.no
    columns = layout.axes[1]
    multiplier = problem.k_per_group
    if not found and inputs(problem, config.vector) * problem.x.element.bytes < WORD:
        no(f"vector {config.vector}: a thread's input channels take less than {WORD} bytes",
           "a larger vector", "vector")  # fmt: skip
    if problem.k % config.slice or config.slice % config.vector or config.slice % multiplier:
        no(f"slice {config.slice} does not divide {problem.k} channels into whole vectors", option="slice")
    elif config.slice // multiplier * problem.x.element.bytes % UNIT:
        no(f"slice {config.slice}: its input channels are not a multiple of 16 bytes", option="slice")
    if config.band % config.tile_p:
        no(f"band {config.band} is not a multiple of tile.p {config.tile_p}", option="band")
    if config.strip > columns.output and not isinstance(columns.output, Size):
        no(f"strip {config.strip} is wider than the output's {columns.output} columns", option="strip")
    elif layout.strips > 1 and config.strip % columns.phases:
        no(f"strip {config.strip} is not a multiple of dgrad's stride, {columns.phases}", option="strip")
    found += whole_runs(layout, config.tile_p, config.tile_q)
    found += MATHS[config.math].malformed(problem, config)
    return found


def illegal(layout: Layout) -> list[Obstacle]:
    """Why a configuration is malformed or does not fit the hardware."""
    target, config = layout.target, layout.config
    found = MATHS[config.math].obstacles(layout.assigned) or malformed(layout)
    if found:
        return found
    no = found.no
    if layout.registers > MAX_REGISTERS:
        no(f"tiles and filter rows take {layout.registers} registers a thread; {MAX_REGISTERS} is the most")
        return found
    box = (layout.box_channels, layout.width, layout.step)
    if max(box) > MAX_BOX:
        no(f"a slab of {box[2]} x {box[1]} pixels by {box[0]} channels; a box has at most {MAX_BOX} per side",
           "a narrower strip, band or slice", "strip")  # fmt: skip
    if layout.slabs > MOST_STAGES:
        no(f"a band reads {layout.slabs} slabs of rows; at most {MOST_STAGES} are held", "a smaller band", "band")
    elif config.stages < layout.slabs:
        no(f"stages {config.stages}: a band reads {layout.slabs} slabs of rows", option="stages")
    if layout.consumer_threads + PRODUCER > MAX_THREADS:
        no(f"{layout.consumer_threads + PRODUCER} threads per block", "a smaller slice or fewer threads", "threads")
    if layout.shared_bytes > target.shared_bytes_per_block:
        no(f"rows and filters take {layout.shared_bytes} bytes of shared memory", "fewer stages", "stages")
    return found
