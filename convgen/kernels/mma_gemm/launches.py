"""The launches of mma_gemm: rearranging operands, the product, and if gemm_k is split, the reduction."""

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
    problem = layout.read
    if layout.config.split_k == 1:
        return fprop_pointers(problem)
    return [*factor_pointers(problem), Pointer("partial", problem.accumulate, "partial", written=True)]


def reduce_run(problem: ConvProblem) -> int:
    """Neighboring elements that a thread of the reduction finishes."""
    return math.gcd(output.neighbors(problem.y, output.columns(problem)), 4)


def reduce_pointers(layout: Layout) -> tuple[Pointer, ...]:
    """The reduction's parameters; x and w among them where sums may have to be made once more."""
    problem = layout.read
    factors = factor_pointers(problem) if layout.apart else []
    return (Pointer("partial", problem.accumulate, "partial"), *factors, *result_pointers(problem))


def launches(layout: Layout) -> tuple[Launch, ...]:
    problem, config = layout.read, layout.config
    entry = f"convgen_{problem.name}"
    params = (*layout.prepared.params(p.vector_param for p in pointers(layout)), *size_params(problem))
    grid = (math.prod(layout.tiles) * len(layout.phase_taps), problem.groups, config.split_k)
    first = Launch(entry, grid, config.threads, params, layout.shared_bytes, blocks_per_sm=config.blocks)
    before = layout.prepared.launches()
    if config.split_k == 1:
        return layout.assigned.launches((*before, first))
    threads = -(-problem.y.size // reduce_run(problem))
    reads = layout.prepared.params(p.vector_param for p in reduce_pointers(layout))
    reduce = Launch(f"{entry}_reduce", (-(-threads // REDUCE_BLOCK), 1, 1), REDUCE_BLOCK, reads)
    return layout.assigned.launches((*before, first, reduce))


def workspaces(layout: Layout) -> tuple[Workspace, ...]:
    """Operands laid out anew, and the partial sums of gemm_k's parts."""
    split, found = layout.config.split_k, layout.prepared.workspaces
    return (*found, Workspace("partial", 4 * layout.read.y.size * split)) if split > 1 else found
