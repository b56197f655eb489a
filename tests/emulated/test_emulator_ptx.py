"""The emulator's header has every PTX function of the catalog, with the signature that the template has, and
emulates no function of another text."""

from __future__ import annotations

import numpy as np
import pytest
from handwritten import kernel_source, launch, run, whole_source
from ptx_calls import ALL_N, WGMMA_ORDER, catalog, source_calling, wgmma_functions

from convgen import emulator
from convgen.emulator.compiler import kernel_library


def compiles(names: list[str], also: tuple[str, ...] = ()) -> None:
    source = source_calling(names, also, guarded=True)
    kernel_library(source, [f"call_{name}" for name in names], checks=False)


def test_functions_compile_for_the_host():
    compiles([name for name in catalog() if name not in WGMMA_ORDER], WGMMA_ORDER)


@pytest.mark.parametrize("first", ALL_N[::8])
def test_wgmma_compiles_for_the_host(first):
    names = [name for n in range(first, first + 64, 8) for name in wgmma_functions(n)]
    compiles(names, WGMMA_ORDER)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ('"fence.mbarrier_init.release.cluster;" ::: "memory"', '"fence.mbarrier_init.release.cluster;" ::'),
        ("asm volatile(\"mbarrier.arrive.expect_tx", "asm(\"mbarrier.arrive.expect_tx"),
        ('"r"(barrier), "r"(bytes)', '"r"(bytes), "r"(barrier)'),
        ("barrier.cluster.arrive.release", "barrier.cluster.arrive.relaxed"),
        ("@!done bra again", "@done bra again"),
        (".tile.mbarrier::complete_tx::bytes.multicast", ".tile.mbarrier::complete_tx::bytes"),
    ],
)  # fmt: skip
def test_an_instruction_of_another_text_is_found(was: str, now: str):
    source = kernel_source("multicast.cu")
    assert source.count(was) == 1
    changed = source.replace(was, now)
    with pytest.raises(emulator.EmulationError) as error:
        emulator.emulate(changed, [launch("multicast", ("y",))], {"y": np.zeros(1)})
    (finding,) = error.value.findings
    assert finding.kind == "instruction"
    assert finding.line == source.count("\n", 0, source.index(was)) + 1
    assert finding.source_line == changed.splitlines()[finding.line - 1].strip()


SUMS = """
extern "C" __global__ __launch_bounds__(64) void sums(const u32* __restrict__ unused, float* __restrict__ result) {
  const float i = float(threadIdx.x);
  red_global_add_f32(result, i);
  red_global_add_v2_f32(result + 2, i, 2.0f * i);
  red_global_add_v4_f32(result + 4, 1.0f, i, 3.0f, -i);
}
"""


def test_sums_of_vectors_are_sums_of_their_elements():
    result = np.zeros(8, np.float32)
    arrays = {"unused": np.zeros(1, np.uint32), "result": result}
    run(whole_source(SUMS), "sums", ("unused", "result"), arrays, block=64)
    np.testing.assert_array_equal(result, [2016, 0, 2016, 4032, 64, 2016, 192, -2016])
