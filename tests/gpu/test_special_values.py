"""Infinities, NaNs and other special values on a GPU: what becomes of them is what the reference says."""

from __future__ import annotations

import gpu_runs
import pytest
from special_values import EPILOGUES, EXPRESSIONS, of_all_values

from convgen.ir import verify

cupy = pytest.importorskip("cupy")


@pytest.mark.parametrize(("name", "result"), EPILOGUES)
def test_epilogues(name: str, result: str) -> None:
    problem, arrays = of_all_values(EXPRESSIONS[name], result)
    kernel = gpu_runs.compiled(problem, "direct")
    given = {role: gpu_runs.on_device(a) for role, a in arrays.items()}
    out = gpu_runs.run(kernel, problem, given, gpu_runs.poisoned(problem.result))
    report = verify.check(problem, arrays, cupy.asnumpy(out))  # in NumPy: CuPy's kernels flush subnormals to 0
    assert report, f"{name}: {report}"
