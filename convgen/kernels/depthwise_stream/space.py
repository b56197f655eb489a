"""Configurations of depthwise_stream that are worth considering."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import partial

from convgen.ir.problem import SECTOR, ConvProblem
from convgen.kernels.config import Options, considered
from convgen.kernels.depthwise_stream.config import Config
from convgen.kernels.depthwise_stream.constraints import MOST_STAGES, malformed
from convgen.kernels.depthwise_stream.layout import UNIT, Layout
from convgen.kernels.depthwise_stream.maths import MATHS, layout_of
from convgen.kernels.parts.assignment import assignment
from convgen.kernels.parts.axes import axes
from convgen.kernels.parts.hopper import MAX_BOX
from convgen.kernels.parts.limits import MAX_REGISTERS
from convgen.targets import Target

IN_FLIGHT = 64 << 10  # bytes a multiprocessor: memory's rate times its latency, and some more
WHOLE_PLANE = 16  # output rows: images so low are taken whole, too
LEAST_STRIP = 7  # output columns of a part of a row
FEW_THREADS = 96  # which leave a thread as many registers as it may have
#: What follows from a part, whatever its threads, blocks and stages.
OF_PARTS = (
    "registers", "instructions", "lines", "inside", "step", "slabs", "slab_bytes", "outside_bytes", "tiles",
    "fixed_bytes", "slices", "strips", "p_tiles", "vectors", "sums",
)  # fmt: skip


def space(problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Layout]:
    named = {"tile.p", "tile.q", "vector", "threads"} <= fixed.keys()
    tight: list[tuple[Layout, int]] = []
    room = False
    for part in _parts(problem, target, fixed):
        if malformed(part):  # with any threads and blocks
            yield part
            continue
        numbers = considered(fixed, "blocks", MATHS[part.config.math].BLOCKS)
        for layout, blocks in itertools.product(_threads(part.knowing(*OF_PARTS), fixed), numbers):
            if named or layout.fits_registers(blocks):
                room = True
                yield _settled(layout, blocks, fixed)
            else:
                tight.append((layout, blocks))
    if tight and not room:
        yield from _least(tight, fixed)


def _parts(problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Layout]:
    """Layouts by slices, bands, strips and a thread's tile, with one stage; threads and blocks are still open."""
    assigned = assignment(problem.static)  # the candidates for the sizes in the spec
    read = assigned.problem
    rows, columns = axes(read, assigned.phases)

    values = partial(considered, fixed)
    parts = (parts for parts in (1, 2, 4) if columns.output // parts >= LEAST_STRIP)
    # a strip that may be one of several is of whole runs
    widest = columns.whole(columns.output) if "w" in problem.dynamic else columns.output
    strips = sorted({min(columns.whole(-(-columns.output // n)), widest) for n in parts})
    for name, maths in MATHS.items():
        if name != fixed.get("math", name) or ("math" not in fixed and maths.obstacles(assigned)):
            continue
        threads, blocks = values("threads", maths.THREADS)[0], values("blocks", maths.BLOCKS)[0]
        for vector in values("vector", maths.vectors(read)):
            slices = values("slice", sorted(maths.slices(read, _slices(read, vector)), reverse=True))
            for slice_, (p, q) in itertools.product(slices, maths.tiles(assigned, vector)):
                p, q = int(fixed.get("tile.p", p)), int(fixed.get("tile.q", q))
                whole = -(-rows.output // p) * p
                bands = sorted({p, min(2 * p, whole)} | ({whole} if whole <= WHOLE_PLANE else set()))
                config = Config(name, p, q, vector, slice_, widest, p, 1, threads, blocks)
                tile = layout_of(problem, target, config).knowing("axes")
                for band, strip in itertools.product(values("band", bands), values("strip", strips or [widest])):
                    yield tile.sibling(band=band, strip=strip)


def _threads(part: Layout, fixed: Options) -> Iterable[Layout]:
    """A part with as many threads as are worth considering; of threads that there is no work for, none."""
    found = dict[int, Layout]()
    for threads in considered(fixed, "threads", MATHS[part.config.math].THREADS):
        layout = part.sibling(threads=threads)
        found.setdefault(layout.consumer_threads, layout)
    return found.values()


def _least(tight: list[tuple[Layout, int]], fixed: Options) -> Iterator[Layout]:
    """Among layouts that are short of registers, the one that takes the fewest, on few threads: if it has enough, or
    none has."""
    least, blocks = min(tight, key=lambda pair: (pair[0].registers, pair[1]))
    if "threads" not in fixed:
        least = layout_of(least.problem, least.target, least.config.but(threads=FEW_THREADS))
    if least.fits_registers(blocks, may_spill=True) or least.registers > MAX_REGISTERS:
        yield _settled(least, blocks, fixed)


def _settled(layout: Layout, blocks: int, fixed: Options) -> Layout:
    """Settles threads and stages: no more threads than there is work for, and as many slabs in flight as shared memory
    holds, up to the number that hides memory's latency."""
    threads = layout.config.threads if "threads" in fixed else layout.consumer_threads
    if "stages" in fixed:
        stages = int(fixed["stages"])
    else:
        most = (layout.target.shared_limit(blocks) - layout.fixed_bytes) // layout.stage_bytes
        ahead = -(-IN_FLIGHT // (blocks * layout.slab_bytes))
        stages = max(1, layout.slabs, min(most, MOST_STAGES, layout.slabs + ahead))
    return layout.sibling(threads=threads, blocks=blocks, stages=stages)


def _slices(problem: ConvProblem, vector: int) -> list[int]:
    """Divisors of the channels that fit a box, and write whole sectors where some do."""
    unit = math.lcm(vector, UNIT // problem.x.element.bytes * problem.k_per_group)
    most = MAX_BOX * problem.k_per_group
    # a vector that does not divide the channels has none, which `malformed` reports
    found = [s for s in range(unit, min(problem.k, most) + 1, unit) if problem.k % s == 0] or [unit]
    return [s for s in found if s == problem.k or s * problem.y.element.bytes % SECTOR == 0] or found
