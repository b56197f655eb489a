"""Configurations that are worth considering."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from convgen.ir.problem import ConvProblem
from convgen.kernels.config import Options, considered
from convgen.kernels.winograd_fused.config import LONGEST_STRIP, MATRIX_ROWS, QUAD, Config
from convgen.kernels.winograd_fused.layout import Layout, layout_of
from convgen.targets import Target

STAGES = (4, 3, 2, 1)
WEIGHT_STAGES = (0, 4, 3, 2)
CLUSTERS = (1, 2, 4)
#: Parts of a row that strips may be.
MOST_PARTS = 8
SCHEDULES = ("pingpong", "cooperative")


def space(problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Layout]:
    """Configurations that go with fixed options, legal or not."""

    values = partial(considered, fixed)
    spans = next(((k,) for k in (64, 32, 16) if problem.c % k == 0), (64 if problem.c > 32 else 32,))
    for schedule, strip, n, k, stages, weight_stages in itertools.product(
        considered(fixed, "schedule", SCHEDULES),
        values("strip", _strips(problem)),
        values("tile.n", (64, 32) if problem.k > 32 else (32,)),
        values("tile.k", spans),
        values("stages", STAGES),
        values("weight_stages", WEIGHT_STAGES),
    ):
        for cluster in values("cluster", CLUSTERS if weight_stages else (1,)):
            config = Config("fused", strip, n, k, stages, weight_stages, schedule, cluster)
            yield layout_of(problem, target, config)


def _strips(problem: ConvProblem) -> list[int]:
    """Equal parts of a row, in quads, and the same in eights of quads, which lie in different banks."""
    quads = -(-problem.output[-1] // QUAD)
    parts = {-(-quads // parts) for parts in range(1, MOST_PARTS + 1)} | {MATRIX_ROWS}
    strips = {QUAD * part for some in parts for part in (some, -(-some // MATRIX_ROWS) * MATRIX_ROWS)}
    return sorted(strip for strip in strips if strip <= LONGEST_STRIP)
