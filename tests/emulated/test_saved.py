"""A kernel that was pickled or saved runs in another process, without its spec and without a compilation."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np

import convgen

SPEC = """\
conv layer {
  input  x: f16[n=1, h=6, w=6, c=16]
  filter w: f16[k=16, r=3, s=3, c=16]
  output y: f16[n, p, q, k]
  pad 1
  epilogue {
    operand b: f32[k]
    y = relu(acc + b)
  }
  strategy direct
  target sm_80
}
"""
ELSEWHERE = """
import pickle, sys
import numpy as np
import convgen
from convgen.runtime import nvrtc_library
nvrtc_library.load = None
made = [convgen.load("layer.kernel"), pickle.load(open("layer.pickle", "rb"))]
given = dict(np.load("given.npz"))
np.savez("results.npz", *(kernel.emulate(**given) for kernel in made))
"""


def test_another_process_gets_the_same_result(tmp_path):
    kernel = convgen.compile(SPEC)
    kernel.save(tmp_path / "layer.kernel")
    (tmp_path / "layer.pickle").write_bytes(pickle.dumps(kernel))
    rng = np.random.default_rng(0)
    given = {t.name: rng.integers(-3, 3, t.shape).astype(t.element.numpy) for t in kernel.manifest.arguments}
    np.savez(tmp_path / "given.npz", **given)
    expected = kernel.emulate(**given)
    assert expected.any()
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = np.load(tmp_path / "results.npz")
    assert len(results.files) == 2
    for name in results.files:
        assert np.array_equal(results[name], expected)
