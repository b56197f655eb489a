"""The launch of a persistent kernel that is a problem's only one, on as many blocks as fit or on a fixed number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convgen.ir.plan import Launch, Param
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import spread
from convgen.kernels.parts.elementwise import size_params
from convgen.targets import Target


def persistent(
    problem: ConvProblem, params: Sequence[Param], *, tiles: int, slices: int, threads: int, shared_bytes: int,
    blocks_per_sm: int, dependent: bool = False,
) -> Launch:  # fmt: skip
    """The launch of a problem's only kernel, whose blocks take tile after tile of one of `slices` slices of the
    channels: each has `tiles` of them.  Sizes that a call decides are its last parameters."""
    return Launch(
        f"convgen_{problem.name}", (tiles * slices, 1, 1), threads, (*params, *size_params(problem)), shared_bytes,
        persistent=True, blocks_per_sm=blocks_per_sm, multiple_of=slices, dependent=dependent,
    )  # fmt: skip


def workers(target: Target, blocks_per_sm: int, tiles: int, slices: int) -> int:
    """Blocks of a slice on the plan's own GPU, each with a run of the tiles of that slice: one at least."""
    return max(1, min(target.sms * blocks_per_sm, tiles * slices) // slices)


def fixed(launch: Launch, blocks: int, target: Target) -> Launch:
    """A launch of the same number of blocks on every GPU: each computes a part of a sum, whose last bits then do not
    depend on how many blocks a GPU holds."""
    return spread(replace(launch, grid=(blocks, 1, 1), persistent=False, multiple_of=1), target)
