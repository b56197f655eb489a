"""Kernels that other processes build, for this one to take from the cache."""

from __future__ import annotations

import os

import pytest

import convgen
from convgen.functional.prebuild import prebuilding
from convgen.runtime import nvrtc

SPECS = [
    f"""conv built {{ input x: f16[n=1, h=4, w=4, c=8]  filter w: f16[k={k}, r=1, s=1, c=8]  output y: f16[n, p, q, k]
    strategy direct  target sm_90a }}"""
    for k in (1, 2, 3, 4)
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty one, and more processors than one."""
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def cannot_compile(*_):
    raise AssertionError("this process compiles")


def test_what_is_built_is_at_hand(monkeypatch):
    with prebuilding([*SPECS, "conv wrong {}"]):  # whoever asks for the last one is told
        pass
    monkeypatch.setattr(nvrtc, "compile_source", cannot_compile)
    assert [convgen.compile(spec).cubin[:4] for spec in SPECS] == 4 * [b"\x7fELF"]


def test_this_process_goes_on_meanwhile(monkeypatch):
    with prebuilding(SPECS):
        own = convgen.compile(SPECS[0]).cubin
    monkeypatch.setattr(nvrtc, "compile_source", cannot_compile)
    assert own and all(convgen.compile(spec).cubin for spec in SPECS)
    with pytest.raises(AssertionError, match="this process compiles"):
        convgen.compile(SPECS[0].replace("c=8", "c=16"))


def test_an_error_within_ends_the_others():
    with pytest.raises(RuntimeError, match="within"), prebuilding(SPECS):
        raise RuntimeError("within")
