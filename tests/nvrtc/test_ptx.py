"""Every PTX function of the catalog compiles, for the lowest target that has it, without a C75xx warning.

ptxas is the judge of operands and types.
"""

from __future__ import annotations

import re
from itertools import product

import pytest
from ptx_calls import ALL_N, FAMILIES, WGMMA_ORDER, catalog, lowest_target, source_calling, wgmma_functions

from convgen.codegen import ptx
from convgen.resources import directory
from convgen.targets import TARGETS

nvrtc = pytest.importorskip("cupy.cuda").nvrtc


def compile_for(source: str, target: str) -> str:
    """The log of a compilation to a cubin (ptxas included); fails the test where there is none."""
    program = nvrtc.createProgram(source, "ptx.cu", [], [])
    try:
        try:
            nvrtc.compileProgram(program, ["-std=c++17", f"-arch={target}", "--ptxas-options=-v"])
        except nvrtc.NVRTCError as e:
            pytest.fail(f"{e}\n{nvrtc.getProgramLog(program)}\n{source}")
        assert nvrtc.getCUBIN(program)
        return nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


def test_every_file_is_in_the_catalog():
    files = {path.name.removesuffix(".cuh.j2") for path in (directory("templates") / "ptx").iterdir()}
    assert files == {row.template if isinstance(row, ptx.Family) else row for row in ptx.CATALOGUE}


def test_every_row_of_the_catalog_is_tried():
    families = [row.template for row in ptx.CATALOGUE if isinstance(row, ptx.Family)]
    assert sorted(families) == sorted(FAMILIES)
    for name in (*catalog(), *wgmma_functions(8)):
        assert ptx.lookup(name), name
    for_sm_90a = {name for name in catalog() if lowest_target(name) == "sm_90a"}
    assert for_sm_90a == {*WGMMA_ORDER, "setmaxnreg_dec", "setmaxnreg_inc"}


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90"])
def test_functions_compile_for_their_lowest_target(target):
    names = [name for name in catalog() if lowest_target(name) == target]
    log = compile_for(source_calling(names), target)
    assert not re.search(r"C75\d\d", log), log


@pytest.mark.parametrize("name", ["setmaxnreg_dec", "setmaxnreg_inc"])
def test_setmaxnreg_compiles(name):
    log = compile_for(source_calling([name]), "sm_90a")
    assert not re.search(r"C75\d\d", log), log


@pytest.mark.parametrize("n", ALL_N)
def test_wgmma_compiles(n):
    """All types at three n; at the others one of each kind, since further types change no more than the name and k."""
    kinds = ("_f16_f16", "_tf32_tf32", "_s8_s8")
    names = [name for name in wgmma_functions(n) if n in (8, 16, 64) or any(kind in name for kind in kinds)]
    log = compile_for(source_calling(names, WGMMA_ORDER), "sm_90a")
    assert not re.search(r"C75\d\d", log), log


@pytest.mark.parametrize("majors", list(product((0, 1), (0, 1))))
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_wgmma_operands_may_lie_along_m_or_n(majors, dtype):
    a, b = majors
    ss, rs = (f"wgmma_m64n64k16_f32_{dtype}_{dtype}{suffix}" for suffix in ("", "_rs"))
    source = source_calling([ss, rs], WGMMA_ORDER)
    source = source.replace(f"  {ss}(", f"  {ss}<{a}, {b}>(").replace(f"  {rs}(", f"  {rs}<{b}>(")
    assert source.count(f"{ss}<{a}, {b}>(") == 2
    log = compile_for(source, "sm_90a")
    assert not re.search(r"C75\d\d", log), log


def test_the_targets_are_known():
    assert {lowest_target(name) for name in catalog()} <= set(TARGETS)
