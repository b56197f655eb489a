"""tma_halo compiles for sm_90a over its option space: wgmma not serialized, registers within the launch's.

`compile_source` raises where ptxas says that it makes a kernel slow (C75xx).
"""

from __future__ import annotations

import ptxas
import pytest
from hypothesis import assume, given, settings
from problems import make
from tma_specs import (
    first_choices,
    halo_problems,
    in_turn,
    laid_out,
    serves,
    some_options,
    typed,
)

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options
from convgen.runtime.nvrtc import Resources


def compiled(problem: ConvProblem, options: Options, epilogue: str = "") -> Resources:
    return ptxas.compiled(problem, "tma_halo", options, epilogue)


LAYER = make("fprop", 8, 64, 192, (56, 56), (3, 3), pad=1)
TWO_BLOCKS = make("fprop", 8, 128, 192, (28, 28), (3, 3), pad=1, dtype="bf16")
GROUPS = make("fprop", 8, 128, 128, (56, 56), (3, 3), pad=1, groups=32)

CONFIGURATIONS: dict[str, tuple[ConvProblem, Options]] = {
    **{
        f"{pixels} pixels": (LAYER, {"swap_ab": 1, "tile.m": pixels, "consumers": consumers})
        for pixels, consumers in ((32, 3), (80, 2), (112, 2), (144, 2), (176, 3), (240, 2))
    },
    "one consumer": (LAYER, {"swap_ab": 1, "tile.m": 256, "consumers": 1}),
    "channels shared": (TWO_BLOCKS, {"swap_ab": 1, "schedule": "cooperative", "consumers": 2}),
    "channels shared by three": (TWO_BLOCKS, {"swap_ab": 1, "schedule": "cooperative", "consumers": 3}),
    "pixels in rows": (LAYER, {"swap_ab": 0, "tile.m": 128, "tile.n": 64, "consumers": 2}),
    "pixels, 48 channels": (LAYER, {"swap_ab": 0, "tile.m": 256, "tile.n": 48, "consumers": 2}),
    "pixels shared": (TWO_BLOCKS, {"swap_ab": 0, "schedule": "cooperative", "tile.n": 16, "consumers": 2}),
    "resident": (TWO_BLOCKS, {"weight_stages": 0, "tile.m": 32}),
    "streamed": (TWO_BLOCKS, {"weight_stages": 4, "schedule": "pingpong"}),
    "streamed, shared": (TWO_BLOCKS, {"weight_stages": 3, "schedule": "cooperative"}),
    "whole images": (make("fprop", 8, 64, 64, (7, 7), (3, 3), pad=1), {"images": 3}),
    "16 channels": (make("fprop", 8, 16, 64, (56, 56), (7, 7), pad=3), {}),
    "stride 2": (make("fprop", 8, 64, 64, (57, 56), (3, 3), stride=2, pad=1), {}),
    "stride 3, dilated": (make("fprop", 8, 32, 64, (57, 56), (5, 3), stride=3, dilation=2), {}),
    "one axis": (make("fprop", 8, 64, 64, (999,), (5,), dilation=3), {}),
    "3 channels": (make("fprop", 1, 128, 3, (512, 512), (3, 3), pad=1), {}),
    "three axes": (make("fprop", 1, 64, 32, (128, 128, 128), (3, 3, 3), pad=1), {}),
    "three axes, rows folded": (make("fprop", 1, 32, 32, (64, 64, 64), (3, 3, 3), pad=1), {"fold": 2}),
    "groups": (make("fprop", 8, 1024, 1024, (7, 7), (3, 3), pad=1, groups=32), {"group_pack": 1, "fold": 1}),
    "packs": (GROUPS, {"group_pack": 8, "fold": 1, "consumers": 3, "schedule": "pingpong"}),
    "rows folded": (GROUPS, {"group_pack": 8, "fold": 2, "swap_ab": 1, "tile.m": 160, "consumers": 3}),
    "rows folded, pixels": (GROUPS, {"group_pack": 4, "fold": 4, "swap_ab": 0, "consumers": 2}),
    "rows folded, filters in planes": (
        laid_out(make("fprop", 8, 32, 16, (56, 56), (3, 3), pad=1), w="kcrs"), {"fold": 4},
    ),
    "dgrad": (make("dgrad", 8, 64, 64, (56, 56), (3, 3), pad=1), {"swap_ab": 1}),
    "dgrad, pixels": (make("dgrad", 8, 64, 64, (56, 56), (3, 3), pad=1), {"swap_ab": 0}),
    "dgrad, streamed": (
        make("dgrad", 8, 128, 256, (28, 28), (3, 3), pad=1), {"weight_stages": 4, "schedule": "pingpong"},
    ),
    "dgrad, channels shared": (
        make("dgrad", 8, 128, 128, (28, 28), (3, 3), pad=1), {"schedule": "cooperative", "consumers": 2, "swap_ab": 1},
    ),
    "to f16": (typed(make("fprop", 8, 32, 64, (28, 28), (3, 3), dtype="bf16"), y="f16"), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for i, name in enumerate(CONFIGURATIONS) if i % 3])
def test_configuration(name: str) -> None:
    problem, options = CONFIGURATIONS[name]
    found = compiled(problem, options)
    assert not found.spill_stores and not found.stack


@pytest.mark.parametrize(("epilogue", "swap_ab"), in_turn(1, 0))
def test_epilogue(epilogue: str, swap_ab: int) -> None:
    found = compiled(LAYER, {"swap_ab": swap_ab, "tile.m": 64, "consumers": 2, "schedule": "pingpong"}, epilogue)
    assert not found.spill_stores and not found.stack


@settings(max_examples=12, deadline=None)
@given(problem=halo_problems(), options=some_options("tma_halo"))
def test_any_problem(problem: ConvProblem, options: Options) -> None:
    assume(serves(problem, "tma_halo", options))
    compiled(problem, options)


def test_the_first_choices_for_layers_of_networks_spill_nothing(some) -> None:
    found = {name: compiled(*chosen) for name, chosen in first_choices("tma_halo", some).items()}
    assert not {name: r for name, r in found.items() if r.spill_stores or r.spill_loads or r.stack}
