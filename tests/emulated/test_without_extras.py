"""Without CuPy and without NVRTC: what needs neither works, and the rest says what to install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from convgen.cache import Cache
from convgen.emulator import compiler

#: Python in which nothing that runs kernels on a GPU can be imported; and the same without NVRTC.
NO_CUPY = """
import sys
sys.modules |= dict.fromkeys(["cupy", "cupyx", "cupy_backends", "torch", "scipy"])
"""
BARE = f"""
{NO_CUPY}
from convgen.runtime import nvrtc_library
nvrtc_library._NAMES = ()
"""
MAIN = "from convgen.cli import main\nsys.exit(main(sys.argv[1:]))\n"
CALL = """
import convgen
from convgen.runtime import cuda, errors
kernel = convgen.compile("layer.conv")
class Array:
    __cuda_array_interface__ = {"data": (1 << 20, False), "typestr": "<f2", "shape": (1, 4, 4, 16), "version": 3}
try:
    kernel(Array(), Array())
except errors.NoCupy as e:
    print(e)
"""
SPEC = """\
conv layer {
  input  x: f16[n=1, h=4, w=4, c=16]
  filter w: f16[k=16, r=3, s=3, c=16]
  output y: f16[n, p, q, k]
  pad 1
  epilogue { y = gelu(acc) }
  strategy direct
  target sm_80
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("layer.conv").write_text(SPEC)


def python(code: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a process with no GPU, and a cache of its own that has the emulator's runtime."""
    compiler.runtime_library()
    for entry in Cache().root.glob("??/emulator-*"):
        shutil.copytree(entry, Path("cache", entry.parent.name, entry.name), dirs_exist_ok=True)
    hidden = {"CUDA_PATH": "/nowhere", "CUDA_VISIBLE_DEVICES": "", "CONVGEN_CACHE_DIR": str(Path("cache").absolute())}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env={**os.environ, **hidden}, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("check", "no errors"),
        ("explain", "direct"),
        ("compile --dump-after render", "__global__"),
        ("run", "layer: fprop by direct, emulated: y is right"),
    ],
)
def test_commands_that_need_neither(command, said):
    name, *options = command.split()
    code, output, errors = python(BARE + MAIN, name, "layer.conv", *options)
    assert (code, errors) == (0, "")
    assert said in output


def test_compiling_says_what_to_install():
    code, output, errors = python(BARE + MAIN, "compile", "layer.conv")
    assert (code, output) == (1, "")
    assert errors.startswith("convgen: error: NVRTC") and "pip install 'convgen[nvrtc]'" in errors
    assert not list(Path().glob("layer.cu*"))


def test_compiling_needs_no_cupy():
    code, _, errors = python(NO_CUPY + MAIN, "compile", "layer.conv")
    assert (code, errors) == (0, "")
    assert Path("layer.cubin").stat().st_size


def test_running_on_a_gpu_says_what_to_install():
    there = "from convgen.runtime import cuda\ncuda.driver = lambda: None\n"
    code, output, errors = python(NO_CUPY + there + MAIN, "run", "layer.conv", "--device", "gpu")
    assert (code, output) == (1, "")
    for said in ("needs CuPy", "pip install 'convgen[cuda13]', or 'convgen[cuda12]'", "--device emulate"):
        assert said in errors


def test_a_call_on_a_gpu_says_what_to_install():
    there = "from types import SimpleNamespace\n" + CALL.replace(
        "kernel =", "cuda.driver = lambda: SimpleNamespace(device_of=lambda _: 0)\nkernel ="
    )
    code, output, errors = python(NO_CUPY + there)
    assert (code, errors) == (0, "")
    assert output.startswith("a call on a GPU needs CuPy, which is not installed\nhint: pip install 'convgen[cuda13]'")
