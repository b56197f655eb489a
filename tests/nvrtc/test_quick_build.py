"""Quick tuning with the compiler: candidates are built by threads, and the cache keeps what they led to."""

from __future__ import annotations

from pathlib import Path

import fake_driver
import pytest
from measuring_machine import install

import convgen
from convgen.planner import database
from convgen.tune.quick import NotMeasured

SPEC = """
conv quick {
  input x: f16[n=1, h=4, w=4, c=16]
  filter w: f16[k=16, r=1, s=1, c=16]
  output y: f16[n, p, q, k]
  strategy implicit_gemm
  target sm_90a
}
"""


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of the user's own, empty."""
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(tmp_path / "tuning.sqlite"))
    monkeypatch.setattr(database, "PACKAGED", tmp_path / "packaged.sqlite")


def test_the_fastest_of_the_candidates_is_what_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_driver.install(tmp_path, monkeypatch)
    machine = install(monkeypatch, [9.0, 2.0], compiles=True)
    kernel = convgen.compile(SPEC, tune="quick")
    assert kernel.manifest.config == machine.timed[1]
    assert kernel.manifest.reason == "tuned on NVIDIA H200: 2.0 us"

    again = install(monkeypatch, [1.0], compiles=True)
    for tune in ("quick", None):
        kernel = convgen.compile(SPEC, tune=tune)
        assert kernel.manifest.config == machine.timed[1] and kernel.plan is not None
    assert again.methods == []


def test_the_cache_does_not_hide_that_nothing_was_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for _ in range(2):
        with pytest.warns(NotMeasured, match="quick: tune="):
            convgen.compile(SPEC, tune="quick")
