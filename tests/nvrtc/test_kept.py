"""Whatever becomes of the cache's files, a kernel is what its spec says."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import convgen
from convgen.codegen import render
from convgen.frontend import tokens
from convgen.runtime import artifacts, nvrtc

SPEC = """\
conv kept {
  input  x: f16[n=1, h=4, w=4, c=16]
  filter w: f16[k=16, r=1, s=1, c=16]
  output y: f16[n, p, q, k]
  strategy direct
  target sm_90a
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A cache's folder that a first compilation has filled."""
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path))
    compiled()
    yield tmp_path
    forget()


def forget() -> None:
    tokens.grammar.cache_clear()
    render.environment.cache_clear()


def compiled() -> tuple[str, bytes, str]:
    """As a new process compiles it."""
    forget()
    kernel = convgen.compile(SPEC)
    return kernel.source, kernel.cubin, kernel.manifest.to_json()


@pytest.mark.parametrize("request_is_new", [False, True])
def test_a_flipped_bit_changes_no_kernel(folder, monkeypatch, request_is_new):
    expected = compiled()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"kernel.cu", "kernel.cubin", "tables.json"}
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        if request_is_new:  # grammar and artifact are read, not what the request gave the last time
            monkeypatch.setattr(artifacts, "schema_digest", lambda path=path: str(path))
        assert compiled() == expected, path


def test_everything_that_is_kept_has_its_sum(folder):
    """So nothing is: no pickle, no byte code, no file that a library keeps by itself."""
    files = {path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS"}
    summed = set()
    for sums in folder.rglob("SHA256SUMS"):
        subprocess.run(["sha256sum", "--check", "--strict", sums], cwd=sums.parent, check=True, capture_output=True)
        summed |= {sums.parent / line.split("  ")[1] for line in sums.read_text().splitlines()}
    assert files == summed


def test_threads_that_want_the_same_kernel_compile_it_once(folder, monkeypatch):
    runs, compile_source = [], nvrtc.compile_source
    monkeypatch.setattr(nvrtc, "compile_source", lambda *given: runs.append(given) or compile_source(*given))
    with ThreadPoolExecutor(4) as pool:
        kernels = list(pool.map(lambda _: convgen.compile(SPEC.replace("kept", "wanted")), range(4)))
    assert len({kernel.cubin for kernel in kernels}) == len(runs) == 1
