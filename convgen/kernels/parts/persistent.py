"""The launch of a persistent kernel that is a problem's only one."""

from __future__ import annotations

from collections.abc import Sequence

from convgen.ir.plan import Launch, Param
from convgen.ir.problem import ConvProblem
from convgen.kernels.parts.elementwise import size_params


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
