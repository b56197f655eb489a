"""`Kernel.raw_module` compiles by CuPy's NVRTC, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import convgen
from convgen.runtime import errors, raw
from convgen.targets import TARGETS

cupy = pytest.importorskip("cupy")
SPEC = """
conv layer {
  input  x: f16[n=1, h=8, w=8, c=64]
  filter w: f16[k=64, r=3, s=3, c=64]
  output y: f16[n, p, q, k]
  pad 1
  strategy tma_im2col
  target sm_90a
}
"""


def test_a_module_of_cupys_is_compiled_for_the_target():
    kernel = convgen.compile(SPEC)
    module = kernel.raw_module()
    assert isinstance(module, cupy.RawModule)
    assert module is kernel.raw_module()
    cubin = Path(module.file_path).read_bytes()
    assert cubin.startswith(b"\x7fELF")
    assert b"convgen_layer" in cubin


def test_what_nvrtc_refuses_is_shown():
    with pytest.raises(errors.CompileError, match=r"CuPy's NVRTC .* failed for sm_90a.*(\n.*)*undefined") as refusal:
        raw.module('extern "C" __global__ void k() { no_such_thing(); }', TARGETS["sm_90a"])
    assert "no_such_thing" in refusal.value.log
