"""The emulator's header has every PTX function of the catalogue, with the signature that the template has."""

from __future__ import annotations

import pytest
from ptx_calls import ALL_N, WGMMA_ORDER, catalogue, source_calling, wgmma_functions

from convgen.emulator.compiler import kernel_library


def compiles(names: list[str], also: tuple[str, ...] = ()) -> None:
    source = source_calling(names, also, guarded=True)
    kernel_library(source, [f"call_{name}" for name in names], checks=False)


def test_functions_compile_for_the_host():
    compiles([name for name in catalogue() if name not in WGMMA_ORDER], WGMMA_ORDER)


@pytest.mark.parametrize("first", ALL_N[::8])
def test_wgmma_compiles_for_the_host(first):
    names = [name for n in range(first, first + 64, 8) for name in wgmma_functions(n)]
    compiles(names, WGMMA_ORDER)
