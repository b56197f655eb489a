"""What calls of a random case get, and what must come out: for the emulator and for GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from kernel_problems import Case

from convgen.ir import verify
from convgen.ir.problem import ConvProblem
from convgen.ir.reference import decode, references, round_to


def arrays_of(problem: ConvProblem, seed: int, whole: bool) -> dict[str, np.ndarray]:
    """Inputs between poisoned neighbors, where they are slices; `whole`: whole numbers from -2 to 2."""
    arrays, rng = verify.random_inputs(problem, seed), np.random.default_rng(seed)
    if whole:
        for array in arrays.values():
            array[...] = rng.integers(-2, 3, array.shape)
    return arrays


def own_arrays(in_place: Sequence[tuple[str, str]], rng: np.random.Generator) -> dict[str, str]:
    """Half of the results that may be an operand's own array, and whose."""
    own: dict[str, str] = {}
    for operand, result in in_place:
        if operand not in own.values() and rng.integers(2):
            own[result] = operand
    return own


def outputs(problem: ConvProblem, arrays: Mapping[str, Any], own: Mapping[str, str]) -> list[Any]:
    """Poisoned results, and those that are an operand's own array, whose dims of one element may be others."""
    return [arrays[own[t.name]].reshape(t.shape) if t.name in own else verify.poisoned(t) for t in problem.results]


def assert_right(
    case: Case, problem: ConvProblem, given: Mapping[str, np.ndarray], outs: Sequence[np.ndarray], arithmetic: str,
    where: str,
) -> None:  # fmt: skip
    """Fails unless results are those of the float64 reference; of whole numbers, exactly."""
    report = verify.check(problem, given, tuple(outs), arithmetic="exact" if case.whole else arithmetic)
    assert report, f"{report}\n{where}"
    for t, out, right in zip(problem.results, outs, references(problem, given), strict=True):
        if case.whole and t not in problem.sums:  # which may be too large to be exact
            wrong = decode(out, t.dtype) != round_to(right, t.element)
            assert not wrong.any(), f"{wrong.sum()} of {wrong.size} of {t.name} are wrong\n{where}"
