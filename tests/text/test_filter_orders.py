"""Grouped filters whose dims lie in any order have source."""

from __future__ import annotations

import itertools

import pytest
from problems import make
from tma_specs import laid_out, spec

from convgen import driver
from convgen.diagnostics import SpecError


@pytest.mark.costly
@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("order", ["".join(dims) for dims in itertools.permutations("krsc")])
def test_source(op: str, order: str) -> None:
    problem = laid_out(make(op, 1, 16, 16, (4, 4), (2, 1), stride=2, groups=2), w=order)
    made = 0
    for strategy in ("tma_im2col", "implicit_gemm", "direct"):
        try:
            (found,) = driver.choose_all(driver.Spec(spec(problem, strategy, {})))
        except SpecError:
            continue  # it says that the strategy does not serve it
        made += bool(found.source)
    assert made
