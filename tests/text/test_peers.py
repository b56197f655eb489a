"""Gradients of other projects' tests: none is left to im2col or direct."""

from __future__ import annotations

import peers
import pytest
from tma_specs import TARGET, compilation


def test_how_many_there_are():
    rows = [peers.cases()[name] for name in peers.gradients()]
    assert {op: sum(row["op"] == op for row in rows) for op in ("dgrad", "wgrad")} == {"dgrad": 41, "wgrad": 292}


@pytest.mark.costly
@pytest.mark.parametrize("case", peers.gradients())
def test_auto_takes_a_kernel_for_gradients(case: str):
    problem = peers.problem(peers.cases()[case])
    plan = compilation(f"{str(problem).removesuffix('}')}  target {TARGET}\n}}").plan
    assert plan.strategy not in ("im2col", "direct"), plan.reason
