"""Infinities, NaNs and other special values on a GPU: what becomes of them is what the reference says.

What is infinite or NaN reaches the outputs whose window and group have it, and no others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_runs
import numpy
import pytest
from special_values import EPILOGUES, EXPRESSIONS, FILLED, expected, of_all_values, with_specials

from convgen import driver
from convgen.ir import verify
from convgen.ir.problem import ConvProblem
from convgen.runtime.kernel import Kernel
from convgen.spec import read

cupy = pytest.importorskip("cupy")
SPECS = Path(__file__).parents[2] / "specs"


@pytest.mark.parametrize(("name", "result"), EPILOGUES)
def test_epilogues(name: str, result: str) -> None:
    problem, arrays = of_all_values(EXPRESSIONS[name], result)
    kernel = gpu_runs.compiled(problem, "direct")
    given = {role: gpu_runs.on_device(a) for role, a in arrays.items()}
    out = gpu_runs.run(kernel, problem, given, gpu_runs.poisoned(problem.result))
    report = verify.check(problem, arrays, cupy.asnumpy(out))  # in NumPy: CuPy's kernels flush subnormals to 0
    assert report, f"{name}: {report}"


def check(kernel: Kernel, problem: ConvProblem, role: str, seed: int, xp: Any) -> None:
    """`xp` computes the reference: NumPy, or for large problems CuPy, whose kernels flush subnormals to 0."""
    arrays = with_specials(problem, role, seed)
    given = {name: gpu_runs.on_device(a) for name, a in arrays.items()}
    out = gpu_runs.run(kernel, problem, given, gpu_runs.poisoned(problem.result))
    if xp is numpy:
        given, out = arrays, cupy.asnumpy(out)
    right = expected(problem, given, kernel.manifest.arithmetic, xp)
    assert not bool(right.special.all())
    assert bool(right.special.any()) or any(s > r for s, r in zip(problem.stride, problem.filter, strict=True))
    report = verify.compare(problem, out, right, xp)
    assert report, f"{role}: {report}\nseed {seed}, {kernel.manifest.strategy}\n{problem}"


@pytest.mark.parametrize("factor", [0, 1])
@pytest.mark.parametrize("case", FILLED)
def test_zeros_of_their_own(case: str, factor: int, seed: int) -> None:
    strategy, problem, options = FILLED[case]
    check(gpu_runs.compiled(problem, strategy, options), problem, problem.reads[factor].role, seed, numpy)


@pytest.mark.parametrize("name", ["grouped", "convnext", "mobilenet_v2", "resnet50"])
def test_layers_of_networks(name: str, seed: int) -> None:
    """As `auto` multiplies them, whatever their kernels are."""
    for one in driver.load(driver.Spec(*read(SPECS / f"{name}.conv"), defines={"n": 4})):
        check(one.kernel(), one.request.problem, "x", seed, cupy)
