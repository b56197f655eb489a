"""Infinities, NaNs and other special values, emulated: what becomes of them is what the reference says."""

from __future__ import annotations

import pytest
from runs import emulated
from special_values import EPILOGUES, EXPRESSIONS, of_all_values

from convgen.ir import verify
from convgen.kernels import strategies

DIRECT = strategies.load("direct")


@pytest.mark.parametrize(("name", "result"), EPILOGUES)
def test_epilogues(name: str, result: str) -> None:
    problem, arrays = of_all_values(EXPRESSIONS[name], result)
    out, source = emulated(DIRECT, problem, {}, arrays)
    report = verify.check(problem, arrays, out)
    assert report, f"{report}\n{source}"
