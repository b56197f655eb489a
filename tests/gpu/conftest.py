"""Tests of this folder need a GPU; elsewhere they are skipped with the reason."""

from __future__ import annotations

import numpy as np
import pytest

from convgen.diagnostics import ConvgenError
from convgen.runtime import cuda
from convgen.targets import Target, target_for


@pytest.fixture(scope="session")
def target() -> Target:
    """The best target for GPU 0.  Skips where there is no GPU."""
    try:
        capability = cuda.driver().capability(0)
    except ConvgenError as error:
        pytest.skip(str(error))
    found = target_for(capability)
    if found is None:
        pytest.skip(f"convgen has no target for compute capability {capability}")
    return found


@pytest.fixture(autouse=True)
def _needs_gpu(target: Target) -> None:
    """Every test of this folder."""


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)
