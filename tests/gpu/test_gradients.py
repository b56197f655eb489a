"""Gradients of other projects' tests on a GPU, by what auto takes: exact on integers."""

from __future__ import annotations

import peers
import pytest
from gpu_tma import exact

from convgen.targets import TARGETS, Target

cupy = pytest.importorskip("cupy")
MOST_FLOP = 5e9


@pytest.mark.parametrize("case", peers.gradients())
def test_peers(case: str, seed: int, target: Target) -> None:
    made = exact(str(peers.problem(peers.cases()[case], MOST_FLOP)), seed)
    if target == TARGETS["sm_90a"]:
        assert made.manifest.strategy not in ("im2col", "direct"), made.manifest.reason
