"""NVRTC 12 and 13, each from its wheel, compile what convgen generates; an old one is used where there is no other."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from convgen.runtime import nvrtc, nvrtc_library
from convgen.runtime.errors import CompileError
from convgen.runtime.nvrtc_library import Library, Result
from convgen.targets import TARGETS

GOLDENS = sorted((Path(__file__).parents[2] / "generated").glob("*.cu"))
WHEELS = {path.name: path for path in nvrtc_library.wheel_files()}


@pytest.fixture(params=nvrtc_library._NAMES)
def library(request, monkeypatch) -> Library:
    """One library at a time, in the place of the one that would be taken."""
    if request.param not in WHEELS:
        pytest.skip(f"the wheel of {request.param} is not installed")
    found = Library(ctypes.CDLL(str(WHEELS[request.param])))
    monkeypatch.setattr(nvrtc_library, "load", lambda: found)
    return found


def stated(source: str) -> tuple[str, str]:
    """Strategy and target, by the head of a generated file."""
    strategy, target = re.search(r"^// strategy (\w+).*\n// target +(\w+)$", source, re.MULTILINE).groups()
    return strategy, target


#: One of each strategy and target, and so of each family of instructions.
CHOSEN = list({stated(path.read_text()): path for path in GOLDENS}.values())
#: The library that is taken compiles all of them in test_goldens.py.
TAKEN = next((name for name in nvrtc_library._NAMES if name in WHEELS), "")
CASES = [(name, path) for name in nvrtc_library._NAMES for path in (CHOSEN[:1] if name == TAKEN else CHOSEN)]


@pytest.mark.parametrize(("library", "golden"), CASES, indirect=["library"], ids=lambda one: getattr(one, "stem", one))
def test_a_golden_compiles(library, golden):
    source = golden.read_text()
    target = TARGETS[stated(source)[1]]
    compiled = nvrtc.compile_source(source, target)
    entries = re.findall(r'^extern "C" __global__.*?\b(convgen_\w+)\(', source, re.MULTILINE | re.DOTALL)
    assert compiled.resources.keys() == set(entries) and entries
    assert all(r.registers and not r.spill_stores for r in compiled.resources.values())
    assert compiled.cubin[:4] == b"\x7fELF"


def test_what_a_wheel_s_library_opens_is_loaded_before_it(monkeypatch, tmp_path):
    """That of CUDA 13.0, which torch brings, does not find it beside itself."""
    names = ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"]
    for name in (*names, "libnvrtc-builtins.alt.so.13.0"):
        (tmp_path / name).touch()
    opened = []
    monkeypatch.setattr(nvrtc_library, "wheel_files", lambda: sorted(tmp_path.iterdir()))
    monkeypatch.setattr(nvrtc_library.ctypes, "CDLL", opened.append)
    monkeypatch.setattr(nvrtc_library, "Library", lambda _: SimpleNamespace(is_old=False))
    nvrtc_library.load.__wrapped__()
    assert opened == [str(tmp_path / name) for name in names]


def test_nothing_is_taken_from_the_cache_of_the_driver(library):
    """Which gives a kernel without a log: the figures would be missing."""
    given = []

    class Recorded:
        def __getattr__(self, name):
            function = getattr(library._library, name)
            return (lambda *args: given.extend(args[2]) or function(*args)) if "Compile" in name else function

    recorded = Library(Recorded())
    assert not recorded.compile("__global__ void k() {}", "k.cu", ["-arch=sm_90a"]).error
    assert given == [b"-arch=sm_90a", b"--no-cache"]
    recorded.is_old = True
    assert not recorded.compile("__global__ void k() {}", "k.cu", ["-arch=sm_90a"]).error
    assert given[2:] == [b"-arch=sm_90a"]


def test_the_figures_and_the_errors_are_read_in_the_same_way(library):
    assert nvrtc.nvrtc_version() == library.version
    for target in TARGETS.values():
        figures = nvrtc.compile_source('extern "C" __global__ void k(float* p) { p[0] = 1; }', target).resources["k"]
        assert figures.registers > 0 and not (figures.stack or figures.spill_loads)
    wrong = 'extern "C" __global__ void k(float* p) {\n  p[0] = nobody;\n  asm volatile("nothing;");\n}\n'
    with pytest.raises(CompileError, match=r'convgen\.cu:2: identifier "nobody" is undefined'):
        nvrtc.compile_source(wrong, TARGETS["sm_90a"])
    with pytest.raises(CompileError, match=r">     3 \|   asm volatile"):
        nvrtc.compile_source(wrong.replace("nobody", "1"), TARGETS["sm_90a"])


class Old:
    """A library that makes products of wgmma wait for one another."""

    version, is_old = "12.8", True

    def __init__(self, _: object = None) -> None:
        pass

    def compile(self, *_: object) -> Result:
        return Result("", "ptxas info    : (C7515) Potential Performance Loss: serialized", "", b"\x7fELF")


def test_an_old_library_that_makes_a_kernel_slow_says_what_to_install(monkeypatch):
    monkeypatch.setattr(nvrtc_library, "load", Old)
    said = r"NVRTC 12\.8 made .*\n.*C7515.*\nhint: install NVRTC 12\.9 or newer: .*convgen\[nvrtc\]"
    with pytest.raises(CompileError, match=said):
        nvrtc.compile_source("", TARGETS["sm_90a"])


@pytest.mark.parametrize(("there", "taken"), [(["a", "b", "c"], "b"), (["a"], "a"), (["a", "c"], "c")])
def test_an_old_library_is_taken_where_there_is_no_other(monkeypatch, there, taken):
    class Found:
        def __init__(self, place: str) -> None:
            self.place, self.is_old = place, place == "a"

    def loaded(place: str) -> str:
        if place not in there:
            raise OSError("not there")
        return place

    monkeypatch.setattr(nvrtc_library, "_NAMES", ("a", "b", "c"))
    monkeypatch.setattr(nvrtc_library, "find_spec", lambda _: None)
    monkeypatch.setattr(nvrtc_library.ctypes, "CDLL", loaded)
    monkeypatch.setattr(nvrtc_library, "Library", Found)
    assert nvrtc_library.load.__wrapped__().place == taken
