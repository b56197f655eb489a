"""The launches of mma_gemm: the product, and where gemm_k is split, the reduction behind it."""

from __future__ import annotations

import math

from convgen.ir.plan import Launch, Workspace
from convgen.ir.problem import ConvProblem
from convgen.kernels.mma_gemm.layout import Layout
from convgen.kernels.parts import output
from convgen.kernels.parts.elementwise import Pointer, factor_pointers, fprop_pointers, result_pointers, size_params

REDUCE_BLOCK = 256


def pointers(layout: Layout) -> list[Pointer]:
    """The product's parameters."""
    problem = layout.problem
    if layout.config.split_k == 1:
        return fprop_pointers(problem)
    return [*factor_pointers(problem), Pointer("partial", problem.accumulate, "partial", written=True)]


def reduce_run(problem: ConvProblem) -> int:
    """Neighboring elements that a thread of the reduction finishes."""
    return math.gcd(output.neighbors(problem.y, output.columns(problem)), 4)


def reduce_pointers(layout: Layout) -> tuple[Pointer, ...]:
    """The reduction's parameters; x and w among them where sums may have to be made once more."""
    problem = layout.problem
    factors = factor_pointers(problem) if layout.apart else []
    return (Pointer("partial", problem.accumulate, "partial"), *factors, *result_pointers(problem))


def launches(layout: Layout) -> tuple[Launch, ...]:
    problem, config = layout.problem, layout.config
    entry = f"convgen_{problem.name}"
    params = (*(p.vector_param for p in pointers(layout)), *size_params(problem))
    grid = (math.prod(layout.tiles), problem.groups, config.split_k)
    first = Launch(entry, grid, config.threads, params, layout.shared_bytes, blocks_per_sm=config.blocks)
    if config.split_k == 1:
        return (first,)
    threads = -(-problem.y.size // reduce_run(problem))
    reads = tuple(p.vector_param for p in reduce_pointers(layout))
    return first, Launch(f"{entry}_reduce", (-(-threads // REDUCE_BLOCK), 1, 1), REDUCE_BLOCK, reads)


def workspaces(layout: Layout) -> tuple[Workspace, ...]:
    """The slices' partial sums."""
    split = layout.config.split_k
    return (Workspace("partial", 4 * layout.problem.y.size * split),) if split > 1 else ()
