"""The effect of `dynamic n h w` on a problem: which extents a call decides, and how some follow from others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from convgen.ir.size import Size
from convgen.ir.tensor import Tensor

if TYPE_CHECKING:
    from convgen.ir.problem import ConvProblem


def varying(problem: ConvProblem) -> tuple[str, ...]:
    """The dims whose extents a call decides: the dynamic ones, and the output's that follow from them."""
    sp = problem.spatial
    return (*problem.dynamic, *(o for i, o in zip(sp.input, sp.output, strict=True) if i in problem.dynamic))


def derived(problem: ConvProblem) -> dict[str, Size]:
    """The output's extents that follow from dynamic ones, by dim: the formula of a window's positions."""
    found = {}
    for i, (dim, output) in enumerate(zip(problem.spatial.input, problem.spatial.output, strict=True)):
        if dim in problem.dynamic:
            window = (problem.filter[i] - 1) * problem.dilation[i] + 1
            extent, lost = Size(problem.input[i], dim), window - problem.pad_lo[i] - problem.pad_hi[i]
            stride = problem.stride[i]
            found[output] = (extent - lost) // stride + 1 if stride > 1 else extent - (lost - 1)
    return found


def resized(problem: ConvProblem, change: Callable[[int, str], int]) -> dict[str, Any]:
    """The fields of a problem with another extent for each dim that varies, wherever it is."""
    dims, sp = varying(problem), problem.spatial

    def extents(values: tuple[int, ...], names: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(change(e, d) if d in dims else e for e, d in zip(values, names, strict=True))

    def tensor(t: Tensor) -> Tensor:
        return replace(t, extents=extents(t.extents, t.dims))

    prologue, epilogue = problem.prologue, problem.epilogue
    if prologue:
        prologue = replace(prologue, operands=tuple(map(tensor, prologue.operands)))
    if epilogue:
        operands, results = (tuple(map(tensor, tensors)) for tensors in (epilogue.operands, epilogue.results))
        epilogue = replace(epilogue, operands=operands, results=results)
    return {
        "n": extents((problem.n,), ("n",))[0],
        "input": extents(problem.input, sp.input),
        "output": extents(problem.output, sp.output),
        "x": tensor(problem.x),
        "y": tensor(problem.y),
        "lowered": tensor(problem.lowered) if problem.lowered else None,
        "prologue": prologue,
        "epilogue": epilogue,
    }
