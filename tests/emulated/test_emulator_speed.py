"""Layers of 64 to 64 channels in so many seconds of one core, from an empty cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = """
import os
import sys
import numpy as np
import convgen
strategy, size = sys.argv[1:]
kernel = convgen.compile('''let size = 0
conv layer {
  input x: f16[n=1, h=size, w=size, c=64]
  filter w: f16[k=64, r=3, s=3, c=64]
  output y: f16[n, p, q, k]
  pad 1
}''', {"size": int(size)}, "sm_90a", strategy)
x, w = (np.ones(t.shape, np.float16) for t in kernel.manifest.reads)
before = sum(os.times()[:4])  # this process and the compilers that it starts, in processor seconds
y = kernel.emulate(x, w)
assert y[0, 5, 5, 5] == 576 and y[0, 0, 0, 0] == 256
print(sum(os.times()[:4]) - before)
"""


@pytest.mark.parametrize(
    "strategy, size, seconds",
    [("tma_im2col", 14, 5.0), ("implicit_gemm", 56, 10.0)],  # the latter has a thousand cp.async under way
)
def test_a_layer_takes_seconds(strategy: str, size: int, seconds: float, tmp_path: Path):
    environment = {**os.environ, "CONVGEN_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RUN, strategy, str(size)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert float(done.stdout) <= seconds
