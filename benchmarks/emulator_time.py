"""Processor seconds that the emulator takes for a layer of 64 to 64 channels, its compilation included.

    python benchmarks/emulator_time.py
    python benchmarks/emulator_time.py tma_im2col 28

Each run is a process of its own with an empty cache; the seconds are those of the process and of the
compilers that it starts.  Needs a C++17 compiler and no GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The 56 x 56 layer has a thousand cp.async under way.
LAYERS = (("tma_im2col", "14"), ("implicit_gemm", "56"))
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
before = sum(os.times()[:4])
y = kernel.emulate(x, w)
seconds = sum(os.times()[:4]) - before
assert y[0, 5, 5, 5] == 576 and y[0, 0, 0, 0] == 256, "the result is wrong"
print(f"{strategy}, {size} x {size}: {seconds:.1f} s")
"""


def measure(strategy: str, size: str) -> None:
    """Prints the seconds of one layer."""
    with tempfile.TemporaryDirectory(prefix="convgen-bench-") as cache:
        environment = {**os.environ, "CONVGEN_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", RUN, strategy, size], env=environment, check=True)


if __name__ == "__main__":
    if len(sys.argv) not in (1, 3):
        sys.exit("usage: emulator_time.py [STRATEGY SIZE]")
    for layer in [tuple(sys.argv[1:])] if len(sys.argv) == 3 else LAYERS:
        measure(*layer)
