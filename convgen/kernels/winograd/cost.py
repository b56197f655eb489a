"""The cost model of winograd: microseconds of its four launches.

The transforms are bound by memory: U, V and M are written, and read again, in device memory.  The rates are those of
other kernels that copy (`parts.prepare`): nobody has timed these.
"""

from __future__ import annotations

from convgen.kernels.parts.cost import memory_on
from convgen.kernels.parts.prepare import BYTES_PER_US, LAUNCH_US
from convgen.kernels.winograd.layout import Layout


def time(layout: Layout) -> float:
    """Microseconds of a layout's launches."""
    problem, made = layout.problem, layout.product_problem
    others = sum(t.bytes for t in (*problem.operands, *problem.results))
    moved = problem.w.bytes + made.w.bytes + problem.x.bytes + made.x.bytes + made.y.bytes + others
    return 3 * LAUNCH_US + moved / BYTES_PER_US / memory_on(layout.target.gpu) + layout.product.us
