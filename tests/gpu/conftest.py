"""Tests of this folder need a GPU; elsewhere they are skipped with the reason."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from convgen.diagnostics import ConvgenError
from convgen.runtime import cuda
from convgen.targets import Target, target_for


def _take_turns() -> None:
    """Each of pytest-xdist's processes begins with another of the machine's GPUs.  CUDA reads this when it starts."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    gpus = [str(i) for i in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
    if worker and len(gpus) > 1 and "CUDA_VISIBLE_DEVICES" not in os.environ:
        first = int(worker.removeprefix("gw")) % len(gpus)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first:] + gpus[:first])


_take_turns()


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


def return_memory() -> None:
    """Gives back what CuPy and PyTorch keep for later: pytest-xdist's other processes share the GPU."""
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
        sys.modules["torch"].cuda.empty_cache()


@pytest.fixture(autouse=True)
def _keeps_no_memory(_needs_gpu: None) -> Iterator[None]:
    yield
    return_memory()


@pytest.fixture
def torch_cuda() -> None:
    """Skips where torch was built for a CPU."""
    if not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("torch has no CUDA")


@pytest.fixture
def much_memory() -> Iterator[None]:
    """Tests that take up to 24 GiB run one at a time, whatever process they are in, once others leave as much."""
    cupy = pytest.importorskip("cupy")
    with open(Path(tempfile.gettempdir()) / "convgen_tests_much_memory", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return_memory()
        for _ in range(60):
            if cupy.cuda.runtime.memGetInfo()[0] >= 24 << 30:
                break
            time.sleep(1)
        else:
            pytest.skip("needs 24 GiB of free memory")
        yield
        return_memory()


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)
