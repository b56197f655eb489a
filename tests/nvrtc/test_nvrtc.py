"""Compiling without a GPU: cubins for every target, ptxas's figures, and errors that point at the line."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys

import pytest

from convgen.runtime import nvrtc, nvrtc_library
from convgen.runtime.errors import CompileError
from convgen.targets import TARGETS

SM_90A = TARGETS["sm_90a"]
TWO_ENTRIES = """\
extern "C" __global__ void __launch_bounds__(128) first(float* p) {
  __shared__ float row[64];
  row[threadIdx.x % 64] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = row[63 - threadIdx.x % 64];
}
extern "C" __global__ void __launch_bounds__(1024, 2) second(float* p, int n) {
  float v[80];
  #pragma unroll
  for (int i = 0; i < 80; ++i) v[i] = p[i * n + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 80; ++i) p[(79 - i) * n + threadIdx.x] = v[i] * v[(i * 7) % 80];
}
"""
# wgmma whose accumulators go through a call: ptxas must wait after each one
SERIALIZED = """\
__device__ __noinline__ void multiply(float (&d)[4], unsigned long long a, unsigned long long b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
}
extern "C" __global__ void slow(float* p, unsigned long long a, unsigned long long b) {
  float d[4] = {p[0], p[1], p[2], p[3]};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  multiply(d, a, b);
  multiply(d, a + 2, b + 2);
  asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 4; ++i) p[4 * threadIdx.x + i] = d[i];
}
"""


def architecture(cubin: bytes) -> int:
    """The SM number that an ELF is for, in e_flags: bits 8 to 15 in CUDA 13's ABI, 0 to 7 in CUDA 12's."""
    assert cubin[:4] == b"\x7fELF"
    abi, flags = cubin[8], struct.unpack_from("<I", cubin, 0x30)[0]
    return (flags >> 8 if abi >= 8 else flags) & 0xFF


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_cubin_is_for_its_target(target):
    compiled = nvrtc.compile_source(TWO_ENTRIES, target)
    major, minor = target.capability
    assert architecture(compiled.cubin) == 10 * major + minor
    assert re.search(rf"^\.target {target}\b", compiled.ptx, re.M)
    assert compiled.resources.keys() == {"first", "second"}


def test_ptxas_figures():
    figures = nvrtc.compile_source(TWO_ENTRIES, SM_90A).resources
    first, second = figures["first"], figures["second"]
    assert first.shared == 64 * 4
    assert 0 < first.registers <= 32
    assert (first.spill_loads, first.spill_stores, first.stack) == (0, 0, 0)
    assert second.registers == 65536 // 2048
    assert second.spill_stores > 0
    assert second.spill_loads > 0
    assert second.stack > 0
    assert second.shared == 0


def test_figures_of_a_log():
    log = """\
ptxas info    : 8 bytes gmem
ptxas info    : Compiling entry function 'convgen_a' for 'sm_90a'
ptxas info    : Function properties for convgen_a
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers, 1024 bytes smem, 592 bytes cmem[0], 8 bytes cmem[2]
"""
    expected = nvrtc.Resources(registers=168, spill_loads=12, spill_stores=4, stack=16, shared=1024, constant=600)
    assert nvrtc.resources(log) == {"convgen_a": expected}


def test_cubin_is_whole():
    cubin = nvrtc.compile_source(TWO_ENTRIES, SM_90A).cubin
    programs, sections = struct.unpack_from("<QQ", cubin, 0x20)
    program_bytes, program_count, section_bytes, section_count = struct.unpack_from("<HHHH", cubin, 0x36)
    assert max(programs + program_bytes * program_count, sections + section_bytes * section_count) <= len(cubin)


def test_same_source_gives_the_same_wherever_and_whenever_it_is_compiled(tmp_path):
    here = nvrtc.compile_source(TWO_ENTRIES, SM_90A)
    assert "Used 32 registers" in here.log and "Compile time" not in here.log
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        assert nvrtc.compile_source(TWO_ENTRIES, SM_90A) == here
    finally:
        os.chdir(before)


def failure(source: str, target=SM_90A) -> CompileError:
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_source(source, target)
    return caught.value


def test_error_shows_the_source_line():
    source = 'extern "C" __global__ void k(float* p) {\n  int a = 1;\n  p[0] = nobody;\n  p[1] = 2;\n}\n'
    text = str(failure(source))
    assert 'convgen.cu:3: identifier "nobody" is undefined' in text
    assert ">     3 |   p[0] = nobody;" in text
    assert "      2 |   int a = 1;" in text
    assert "nobody" in failure(source).log


def test_error_shows_template_line_and_source_line():
    source = (
        "// one\n// two\n" + '#line 70 "body.cu.j2"\nextern "C" __global__ void k(float* p) {\n  p[0] = nobody;\n}\n'
    )
    text = str(failure(source))
    assert 'body.cu.j2:71: identifier "nobody" is undefined' in text
    assert ">     5 |   p[0] = nobody;" in text


def test_ptx_error_shows_the_source_line():
    source = 'extern "C" __global__ void k(float* p) {\n  p[0] = 1;\n  asm volatile("wgmma.fence.sync.aligned;");\n}\n'
    text = str(failure(source, TARGETS["sm_90"]))
    assert "'wgmma.fence' not supported on .target 'sm_90'" in text
    assert "in PTX: wgmma.fence.sync.aligned;" in text
    assert '>     3 |   asm volatile("wgmma.fence.sync.aligned;");' in text


def test_many_errors_are_cut_short():
    source = 'extern "C" __global__ void k(float* p) {\n' + "".join(f"  p[{i}] = a{i};\n" for i in range(40)) + "}\n"
    text = str(failure(source))
    assert "a0" in text
    assert "a39" not in text
    assert re.search(r"and 3\d more errors", text)


def test_too_much_shared_memory_shows_the_log():
    source = (
        'extern "C" __global__ void k(int* p) {\n  __shared__ int s[99999];\n  s[p[0]] = 1;\n  p[1] = s[p[2]];\n}\n'
    )
    assert "uses too much shared data" in str(failure(source))


def test_serialized_wgmma_is_a_failure():
    assert re.search(r"\(C75\d\d\)", str(failure(SERIALIZED)))


def test_a_target_that_nvrtc_does_not_know():
    from dataclasses import replace

    assert "does not know the target sm_55" in str(failure("", replace(SM_90A, name="sm_55")))


def test_compiling_says_nothing_and_plans_nothing():
    code = (
        "import sys\nfrom convgen.runtime import nvrtc\nfrom convgen.targets import TARGETS\n"
        "assert nvrtc.compile_source('extern \"C\" __global__ void k() {}', TARGETS['sm_90a']).cubin\n"
        "assert not {'sympy', 'jinja2', 'lark', 'torch', 'cupy', 'numpy'} & set(sys.modules), 'heavy imports'\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(nvrtc_library, "load", nvrtc_library.load.__wrapped__)
    monkeypatch.setattr(nvrtc_library, "find_spec", lambda _: None)
    monkeypatch.setattr(nvrtc_library, "_NAMES", ("libnvrtc-that-is-not-there.so",))
    monkeypatch.setenv("CUDA_PATH", "/nowhere")
    with pytest.raises(CompileError, match=r"is-not-there.so: cannot open .*\n.*pip install 'convgen\[nvrtc\]'"):
        nvrtc.nvrtc_version()
