"""tma_im2col and tma_halo as plans: what they refuse and how, what they choose, and that a plan is within the
hardware's limits and its tensor maps walk the tensors as the convolution is defined."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from problems import make
from strategy_problems import unused_names
from tma_specs import (
    EPILOGUES,
    PROBLEMS,
    TARGET,
    compilation,
    im2col_problems,
    laid_out,
    serves,
    some_options,
    spec,
    typed,
)

from convgen.diagnostics import Diagnostic, SpecError
from convgen.emulator import tensor_map
from convgen.ir.plan import Launch, Plan, TensorMap
from convgen.ir.problem import ConvProblem, Padding
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.kernels.config import option_rows
from convgen.kernels.parts.patches import folded
from convgen.kernels.parts.prepare import group_packs

BOTH = ("tma_im2col", "tma_halo")


def refusals(text: str) -> Sequence[Diagnostic]:
    """What is said of a spec that no plan is made for."""
    with pytest.raises(SpecError) as caught:
        compilation(text)
    assert all(d.code == "E401" for d in caught.value.diagnostics), str(caught.value)
    return caught.value.diagnostics


# ---- obstacles ---------------------------------------------------------------------------------------

LAYER = make("fprop", 2, 64, 64, (14, 14), (3, 3), pad=1)
GROUPED = make("fprop", 2, 256, 128, (14, 14), (3, 3), pad=1, groups=16)
ODD_GROUPS = make("fprop", 2, 6, 48, (14, 14), (3, 3), groups=3)
_LAST = laid_out(make("dgrad", 2, 64, 64, (14, 14), (3, 3), 2, 1, groups=2), w="crsk")
SLICED = replace(_LAST, w=replace(_LAST.w, pitch=128))  # output channels of a filter that has more of them
TYPES = "x and w must both be f16 or bf16"


def like(op: str = "fprop", dtype: str = "f16") -> ConvProblem:
    return make(op, 2, 64, 64, (14, 14), (3, 3), pad=1, dtype=dtype)


#: A problem, what is said of it, and what is said to do.
REFUSED: dict[str, tuple[str, ConvProblem, str, str]] = {
    "dgrad of many phases": (
        "tma_im2col", make("dgrad", 2, 64, 64, (40, 40), (20, 20), stride=20), "400 phases of dgrad", "direct",
    ),
    "dgrad of more phases than can be listed": (
        "tma_im2col", make("dgrad", 1, 8, 8, (98306, 98306), (2, 2), stride=32768), "1073741824 phases", "direct",
    ),
    "dgrad of a slice of a grouped filter": ("tma_im2col", SLICED, "except for a slice of a grouped filter", "direct"),
    "wgrad": ("tma_im2col", like("wgrad", dtype="f32"), "types f32 x f32: x and y must both be f16 or bf16", ""),
    "groups": (
        "tma_im2col", ODD_GROUPS,
        "3 groups of 2 input and 16 output channels: no group_pack makes them multiples of 8 and 8", "implicit_gemm",
    ),
    "dgrad with groups": (
        "tma_im2col", make("dgrad", 2, 6, 48, (14, 14), (3, 3), groups=3),
        "3 groups of 2 input and 16 output channels: no group_pack makes them multiples of 8 and 8", "direct",
    ),
    "halo: layout of dgrad": (
        "tma_halo", laid_out(make("dgrad", 2, 64, 64, (14, 14), (3, 3)), x="cnhw"), "layout of x is c n h w", "n h w c",
    ),
    "f32": ("tma_im2col", like(dtype="f32"), TYPES, ""),
    "s8": ("tma_im2col", like(dtype="s8"), "accumulate s32", ""),
    "fp8": ("tma_im2col", like(dtype="e4m3"), TYPES, ""),
    "fp8 out": ("tma_im2col", typed(LAYER, y="e4m3"), "output type e4m3", ""),
    "stride 9": (
        "tma_im2col", make("fprop", 2, 8, 8, (40, 40), (3, 3), stride=(9, 1)), "stride h=9 is above", "implicit_gemm",
    ),
    "lower corner": (
        "tma_im2col", make("fprop", 2, 8, 8, (4, 4), (1, 2), pad=((0, 0), (129, 0))), "lower corner on w is -129", "",
    ),
    "upper corner": (
        "tma_im2col", make("fprop", 2, 8, 8, (200, 4), (2, 1), dilation=(129, 1)), "upper corner on h is -129", "",
    ),
    "offset": (
        "tma_im2col", make("fprop", 2, 8, 8, (300, 4), (3, 1), dilation=(128, 1), pad=((128, 128), 0)),
        "last tap on h is 256 pixels away", "smaller dilation",
    ),
    "corner of three axes": (
        "tma_im2col", make("fprop", 1, 8, 8, (4, 4, 4), (1, 1, 2), pad=(0, 0, (17, 0))), "rank 5 allows [-16, 15]", "",
    ),
    "offset of three axes": (
        "tma_im2col", make("fprop", 1, 8, 8, (40, 4, 4), (3, 1, 1), dilation=(16, 1, 1), pad=(16, 0, 0)),
        "last tap on d is 32 pixels away; rank 5 allows 31", "",
    ),
    "corner of one axis": (
        "tma_im2col", make("fprop", 1, 8, 8, (70000,), (2,), dilation=40000), "upper corner on w is -40000", "",
    ),
    "pixels": (
        "tma_im2col", make("fprop", 1, 8, 8, (2**31 - 200,), (1,)), "pixels of the result do not fit 32 bits", "direct",
    ),
    "mma: dgrad": ("implicit_gemm", like("dgrad", dtype="f32"), "op dgrad of f32 is not served", "im2col"),
    "mma: wgrad": ("implicit_gemm", like("wgrad", dtype="e5m2"), "types e5m2 x e5m2: x and y must both be", ""),
    "halo: strided dgrad": (
        "tma_halo", make("dgrad", 2, 64, 64, (14, 14), (3, 3), stride=3), "9 phases of dgrad", "tma_im2col",
    ),
    "halo: strided dgrad of volumes": (
        "tma_halo", make("dgrad", 2, 64, 64, (6, 6, 6), (3, 3, 3), stride=(1, 1, 2)), "one or two spatial dims", "",
    ),
    "halo: wgrad": ("tma_halo", like("wgrad"), "op wgrad", ""),
    "halo: one tap in a plane": (
        "tma_halo", make("fprop", 1, 8, 8, (4, 4, 4), (3, 1, 1)), "one tap in a plane", "tma_im2col",
    ),
    "halo: groups": ("tma_halo", ODD_GROUPS, "3 groups of 2 input and 16 output channels", "implicit_gemm"),
    "halo: stride 9": (
        "tma_halo", make("fprop", 2, 64, 64, (40, 40), (3, 3), stride=9), "stride 9 is above", "implicit_gemm",
    ),
    "halo: 1x1": ("tma_halo", make("fprop", 2, 64, 64, (14, 14), (1, 1)), "nothing to reuse", "tma_im2col"),
    "halo: types": ("tma_halo", like(dtype="e5m2"), TYPES, ""),
    "halo: f32 out": ("tma_halo", typed(LAYER, y="f32"), "output type f32", ""),
    "halo: KNPQ": ("tma_halo", laid_out(LAYER, y="knpq"), "layout of y is k n p q", "n p q k or n k p q"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_what_is_wrong(name: str) -> None:
    strategy, problem, message, hint = REFUSED[name]
    found = refusals(spec(problem, strategy, {}))
    right = [d for d in found if message in d.message]
    assert right, [d.message for d in found]
    assert hint in (right[0].hint or "")
    assert right[0].message.startswith(f"{strategy} cannot serve {problem.name}: ")


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100a"])
def test_targets_without_wgmma(strategy: str, target: str) -> None:
    assert any(f"target {target} has no wgmma" in d.message for d in refusals(spec(LAYER, strategy, {}, target=target)))


def test_every_constraint_that_fails_is_named() -> None:
    problem = make("dgrad", 2, 12, 64, (14, 14), (3, 3), 2, 1, groups=2, dtype="e4m3", padding=Padding.REFLECT)
    words = " ".join(d.message for d in refusals(spec(problem, "tma_im2col", {}, target="sm_80")))
    for part in ("sm_80", "op dgrad", "2 groups of 6 input", "types e4m3"):
        assert part in words


def test_phases_in_parts_are_all_that_is_wrong() -> None:
    problem = make("dgrad", 2, 64, 64, (14, 14), (3, 3), stride=2)
    (found,) = refusals(spec(problem, "tma_halo", {"fold": 2}))
    assert "channels of 4 phases" in found.message and found.hint == "fold 4"


#: Options that the hardware does not have, for a 3x3 of 64 channels: the option to blame, message, hint.
OVERFLOWS: dict[str, tuple[str, Options, str, str, str]] = {
    "rows of a consumer": (
        "tma_im2col", {"swap_ab": 0, "tile.m": 128, "consumers": 3}, "tile.m", "does not split into 64 rows",
        "m=192",
    ),
    "ping-pong of one": ("tma_im2col", {"schedule": "pingpong", "consumers": 1}, "schedule", "2 or 3 consumers", "2"),
    "wide tile of three": ("tma_im2col", {"tile.n": 256, "consumers": 3}, "tile.n", "ptxas has 128 registers", "n="),
    "wide pixels of three": (
        "tma_im2col", {"swap_ab": 1, "tile.m": 256, "tile.n": 192, "consumers": 3}, "tile.m",
        "ptxas has 128 registers", "m=",
    ),
    "channels of a consumer": (
        "tma_im2col", {"swap_ab": 1, "tile.n": 96}, "tile.n", "does not split into 64 rows", "n=",
    ),
    "slices": (
        "tma_im2col", {"swap_ab": 0, "tile.n": 40, "cluster": 4, "multicast": "b"}, "cluster", "4 slices of whole 8",
        "",
    ),
    "cluster of a split": (
        "tma_im2col", {"split_k": 4, "cluster": 4, "tile.n": 64}, "cluster", "a cluster of 16 blocks", "cluster 2",
    ),
    "stream of a split": (
        "tma_im2col", {"split_k": 2, "stream_k": 1, "tile.n": 64}, "split_k", "needs split_k 1", "1",
    ),
    "split of pixels": (
        "tma_im2col", {"swap_ab": 1, "tile.m": 48, "split_k": 2}, "split_k", "2 times 16 pixels", "",
    ),
    "accumulators": (
        "tma_im2col", {"swap_ab": 0, "tile.m": 256, "tile.n": 256}, "tile.n", "256 accumulators per thread",
        "smaller",
    ),
    "k_blocks": ("tma_im2col", {"k_blocks": 4}, "k_blocks", "k_blocks 4 does not divide the 9 of a tile", ""),
    "resident in bands": (
        "tma_im2col", {"resident": 1, "raster": 2, "tile.n": 16}, "raster", "a block's tiles differ", "raster 1",
    ),
    "resident in a cluster that shares B": (
        "tma_im2col", {"resident": 1, "cluster": 2, "multicast": "b", "tile.n": 64}, "multicast",
        "each block loads all of its B once", "multicast a",
    ),
    "resident, k shared evenly": (
        "tma_im2col", {"resident": 1, "stream_k": 1, "tile.n": 64}, "stream_k", "begin within a tile", "stream_k 0",
    ),
    "split and ping-pong": ("tma_im2col", {"split_k": 2, "schedule": "pingpong"}, "split_k", "cooperative", ""),
    "split of channels": (
        "tma_im2col", {"swap_ab": 0, "split_k": 4, "tile.n": 48}, "split_k", "4 times 8 channels", "",
    ),
    "split of k": ("tma_im2col", {"split_k": 8, "k_blocks": 3, "tile.n": 64}, "split_k", "3 stages of k, fewer", ""),
    "stages": ("tma_im2col", {"tile.m": 128, "tile.n": 128, "stages": 20}, "stages", "bytes of shared memory", "fit"),
    "channels in rows": ("tma_halo", {"swap_ab": 1, "tile.n": 32}, "tile.n", "tile n=64", ""),
    "too many channels": ("tma_halo", {"swap_ab": 0, "tile.n": 128}, "tile.n", "at most 64", ""),
    "pixels in rows": ("tma_halo", {"swap_ab": 0, "tile.m": 96}, "tile.m", "multiple of 64", ""),
    "strip": ("tma_halo", {"strip": 15}, "strip", "wider than the output's 14 columns", ""),
    "strip of images": ("tma_halo", {"strip": 7, "images": 2}, "strip", "strips of all 14", "strip 14"),
    "too many consumers for their blocks": (
        "tma_im2col", {"consumers": 3, "blocks": 4, "tile.m": 192, "tile.n": 64}, "tile.n", "ptxas has 32 registers",
        "fewer consumers",
    ),
    "images": ("tma_halo", {"strip": 14, "images": 3}, "images", "more than the 2 there are", ""),
    "one to cooperate": ("tma_halo", {"schedule": "cooperative", "consumers": 1}, "schedule", "2 or 3", "2"),
    "one stage of weights": ("tma_halo", {"weight_stages": 1}, "weight_stages", "holds two stages", "2 or more"),
    "folded channels": ("tma_halo", {"fold": 4, "swap_ab": 0, "tile.n": 16}, "fold", "4 rows of 8 or more", ""),
    "folded weights": ("tma_halo", {"fold": 2, "weight_stages": 3}, "weight_stages", "resident filters", "0"),
    "halo accumulators": (
        "tma_halo", {"tile.m": 256, "consumers": 3, "schedule": "pingpong", "swap_ab": 1}, "tile.m",
        "128 accumulators per thread", "fewer",
    ),
    "a value of wgrad's kernel": ("tma_im2col", {"tile.k": 128}, "tile.k", "tile.k is 16 or 32 or 64, not 128", ""),
    "halo memory": (
        "tma_halo", {"tile.m": 256, "stages": 8, "schedule": "pingpong", "weight_stages": 0}, "tile.m",
        "bytes of shared memory", "fewer pixels",
    ),
}  # fmt: skip


@pytest.mark.costly
@pytest.mark.parametrize("name", OVERFLOWS)
def test_an_option_that_does_not_fit_is_pointed_at(name: str) -> None:
    strategy, options, option, message, hint = OVERFLOWS[name]
    text = spec(LAYER, strategy, options)
    found = refusals(text)
    right = [d for d in found if message in d.message]
    assert right, [d.message for d in found]
    assert hint in (right[0].hint or "")
    if option in options:
        span = right[0].span
        assert span and option.removeprefix("tile.") in text.splitlines()[span.line - 1][span.column - 1 :]


#: Options that do not go with 16 groups of 16 input and 8 output channels: the option to blame, message.
OF_GROUPS: dict[str, tuple[str, Options, str, str]] = {
    "packs": ("tma_im2col", {"group_pack": 17}, "group_pack", "group_pack 17 is more than the 16 groups"),
    "halo: group_pack": ("tma_halo", {"group_pack": 17}, "group_pack", "group_pack 17 is more than the 16 groups"),
    "tile of two groups": ("tma_im2col", {"group_pack": 1, "tile.n": 16}, "tile.n", "the 8 output channels of a group"),
    "halo: channels of two groups": (
        "tma_halo",
        {"group_pack": 4, "fold": 1, "swap_ab": 1, "schedule": "cooperative", "consumers": 3},
        "tile.n",
        "192 channels do not go with the 32 output channels",
    ),
    "halo: streamed": (
        "tma_halo",
        {"group_pack": 2, "weight_stages": 3},
        "weight_stages",
        "group_pack needs resident",
    ),
}


@pytest.mark.parametrize("name", OF_GROUPS)
def test_an_option_that_does_not_go_with_groups_is_pointed_at(name: str) -> None:
    strategy, options, option, message = OF_GROUPS[name]
    found = [d for d in strategies.STRATEGIES[strategy].obstacles(GROUPED, TARGET, options) if message in d.message]
    assert found and found[0].option == option


#: Problems whose output rows do not go as channels.
UNFOLDED: dict[str, tuple[ConvProblem, int, str]] = {
    "rows": (make("fprop", 2, 16, 16, (3, 14), (3, 3), pad=1), 4, "fold 4 is more than the output's rows, 3"),
    "one axis": (make("fprop", 2, 16, 16, (140,), (3,), pad=1), 2, "fold 2 is more than the output's rows, 1"),
    "stride": (make("fprop", 2, 16, 16, (64, 64), (3, 3), stride=3), 4, "fold 4 makes a stride of 12"),
    "spacing": (make("fprop", 2, 16, 16, (64, 64), (2, 3), stride=3), 2, "are not evenly spaced"),
    "planes": (laid_out(make("fprop", 2, 16, 16, (14, 14), (3, 3), pad=1), y="nkpq"), 4, "channels innermost in y"),
}


@pytest.mark.parametrize("name", UNFOLDED)
def test_rows_that_cannot_be_folded(name: str) -> None:
    problem, fold, message = UNFOLDED[name]
    assert any(
        message in o.message for o in strategies.STRATEGIES["tma_halo"].obstacles(problem, TARGET, {"fold": fold})
    )
    assert not strategies.STRATEGIES["tma_halo"].obstacles(problem, TARGET, {"fold": 1})


@pytest.mark.parametrize("c, k, groups, expected", [
    (64, 64, 1, (1,)),
    (128, 128, 32, (4, 8, 16)),  # 4 channels a group
    (512, 512, 32, (1, 2, 4)),
    (48, 96, 2, (2,)),  # 24 a group
    (80, 80, 2, (2,)),  # wider than the widest that is worth it, but there is no other
    (160, 160, 2, (1,)),
    (96, 24, 6, (2,)),  # 16 to 4
    (40, 80, 5, ()),
])  # fmt: skip
def test_group_packs_are_whole_k_steps(c: int, k: int, groups: int, expected: tuple[int, ...]) -> None:
    assert group_packs(make("fprop", 2, c, k, (9, 9), (3, 3), groups=groups)) == expected


@pytest.mark.parametrize("c, k, groups, expected", [
    (216, 216, 9, (1, 2)),  # 24 a group, RegNet's
    (40, 80, 5, (1, 2, 3, 4, 5)),
    (12, 48, 3, (2,)),  # the last one alone
    (6, 48, 3, ()),
])  # fmt: skip
def test_group_packs_may_be_whole_vectors(c: int, k: int, groups: int, expected: tuple[int, ...]) -> None:
    assert group_packs(make("fprop", 2, c, k, (9, 9), (3, 3), groups=groups), 8, fewer=True) == expected


def test_the_last_pack_may_have_fewer_groups() -> None:
    problem = make("fprop", 2, 216, 216, (9, 9), (3, 3), groups=9)
    assert group_packs(problem) == ()
    assert group_packs(problem, fewer=True) == (2,)


@settings(max_examples=30, deadline=None)
@given(m=st.sampled_from((64, 128, 192, 256)), n=st.sampled_from(range(8, 129, 8)), blocks=st.integers(1, 2))
def test_the_stages_that_a_hint_says_fit_do(m: int, n: int, blocks: int) -> None:
    options: Options = {"tile.m": m, "tile.n": n, "tile.k": 64, "blocks": blocks, "split_k": 1}
    assume(serves(LAYER, "tma_im2col", options))
    (found,) = strategies.STRATEGIES["tma_im2col"].obstacles(LAYER, TARGET, {**options, "stages": 32})
    (fits,) = re.findall(r"at most (\d+) stages fit", found.hint)
    assert found.option == "stages" and 2 <= int(fits) < 32
    assert serves(LAYER, "tma_im2col", {**options, "stages": int(fits)})
    assert not serves(LAYER, "tma_im2col", {**options, "stages": int(fits) + 2})


#: At the very end of what the tensor map's fields hold.
EXTREMES: dict[str, ConvProblem] = {
    "stride 8": make("fprop", 2, 8, 8, (40, 40), (3, 3), stride=8),
    "corners of two axes": make("fprop", 1, 8, 8, (300, 4), (2, 1), dilation=(128, 1), pad=((128, 0), 0)),
    "offset of two axes": make("fprop", 1, 8, 8, (300, 4), (2, 1), dilation=(255, 1), pad=((128, 127), 0)),
    "corners of three axes": make("fprop", 1, 8, 8, (40, 4, 4), (2, 1, 1), dilation=(16, 1, 1), pad=((16, 0), 0, 0)),
    "offset of three axes": make("fprop", 1, 8, 8, (40, 4, 4), (2, 1, 1), dilation=(31, 1, 1), pad=((16, 15), 0, 0)),
    "corners of one axis": make("fprop", 1, 8, 8, (70000,), (2,), dilation=32768, pad=((32768, 0),)),
    "most pixels": make("fprop", 1, 8, 8, (2**31 - 257,), (1,)),
    "one element": make("fprop", 1, 8, 1, (1, 1), (1, 1)),
    "widest": make("fprop", 1, 8192, 4096, (1, 1), (1, 1)),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_are_served(name: str) -> None:
    check_plan(compilation(spec(EXTREMES[name], "tma_im2col", {})).plan)


# ---- plans -------------------------------------------------------------------------------------------


def check_plan(plan: Plan) -> str:
    """A plan's main launch is within the hardware's limits, and its source is whole; gives the source."""
    launch = main_launch(plan)
    source = strategies.STRATEGIES[plan.strategy].render(plan)
    check_launch(plan, launch, source)
    sizes = {t.name: t.bytes for t in (*plan.problem.reads, *plan.problem.operands, *plan.problem.results)}
    prepared = {w.name: w.bytes for w in plan.workspaces}
    for param in launch.params:
        if param.map is not None:
            assert not list(tensor_map.problems(param.map, (sizes | prepared)[param.buffer])), param
    needed = {f"workspace.{b}" if f"workspace.{b}" in prepared else b for b in sizes}
    given = {"x", "w"} if "window_sum" in source else set()  # sums may be made once more, of these
    assert {p.buffer for p in launch.params} - {"workspace.partials"} == needed | given
    parameters = re.search(rf"void {launch.entry}\((.*?)\n?\) {{", source, re.S)
    assert parameters and re.findall(r"(\w+)(?:,|\n|$)", parameters[1]) == [p.name for p in launch.params]
    assert not unused_names(source), source
    for step in plan.launches:
        if step.spread_bytes:
            assert step.dependent and step.blocks_per_sm == 1 and step.shared_bytes < step.spread_bytes
            assert TARGET.resident_blocks(step.block, 24, step.spread_bytes) == 1
        elif step.persistent and step.blocks_per_sm == 1:
            assert TARGET.resident_blocks(step.block, 24, step.shared_bytes) == 1
    return source


def main_launch(plan: Plan) -> Launch:
    """The kernel that multiplies: it comes last, but for one that finishes what blocks share."""
    return plan.launch()


def check_launch(plan: Plan, launch: Launch, source: str) -> None:
    target, blocks = plan.target, launch.blocks_per_sm
    assert launch.shared_bytes <= target.shared_bytes_per_block
    assert blocks * (launch.shared_bytes + 1024) <= target.shared_bytes_per_sm
    assert launch.block <= 1024 and launch.block * blocks <= 2048
    assert 1 <= launch.cluster <= 8 and launch.grid[0] % (launch.cluster * launch.multiple_of) == 0
    assert launch.grid[1:] == (1, 1) and launch.dependent
    assert launch.persistent != getattr(plan.config, "stream_k", False)
    # setmaxnreg hands round what the launch has, or waits for ever
    at_launch = min(target.registers_per_sm // (launch.block * blocks) // 8 * 8, 255)
    less, more = (re.findall(rf"int {role}_registers = (\d+);", source) for role in ("producer", "consumer"))
    for call, found in (("dec<producer_registers>();", less), ("inc<consumer_registers>();", more)):
        assert source.count(f"setmaxnreg_{call}") == source.count(f"setmaxnreg_{call[:4]}") == len(found)
    assert len(less) == len(more) <= 1
    for producer, consumer in zip(map(int, less), map(int, more), strict=True):
        assert 24 <= producer <= at_launch <= consumer <= 255 and producer % 8 == consumer % 8 == 0
        warpgroups = launch.block // 128
        assert producer + consumer * (warpgroups - 1) <= at_launch * warpgroups
    barriers = {int(b) for b in re.findall(r"bar_sync<(\d+), 128>", source)}
    assert 0 not in barriers and (len(barriers) + 1) * blocks <= 16


def test_strips_of_images_too_wide_for_a_strip() -> None:
    wide = make("fprop", 2, 16, 16, (8, 300), (3, 3), pad=1)
    options = {"images": 2, "strip": 30}
    (found,) = (o for o in strategies.STRATEGIES["tma_halo"].obstacles(wide, TARGET, options) if "strips" in o.message)
    assert found.hint == "images 1"


def test_strips_of_images_of_dynamic_sizes() -> None:
    dynamic = replace(LAYER, dynamic=("n", "h", "w"))
    options = {"images": 2, "strip": LAYER.output[-1]}
    found = [o.message for o in strategies.STRATEGIES["tma_halo"].obstacles(dynamic, TARGET, options)]
    assert any("fixed sizes" in message for message in found)
    assert not any("strips" in message for message in found)


@pytest.mark.parametrize("strategy", BOTH)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_options_are_refused_in_words_or_planned(strategy: str, data: st.DataObject) -> None:
    problem = data.draw(PROBLEMS[strategy])
    options = data.draw(some_options(strategy, most=9))
    found = strategies.STRATEGIES[strategy].obstacles(problem, TARGET, options)
    for obstacle in found:
        assert obstacle.message and obstacle.option in ("", *(o.name for o in strategies.STRATEGIES[strategy].options))
    if found:
        return
    plan = compilation(spec(problem, strategy, options)).plan
    assert str(plan.problem) == str(problem)
    for name, value in options.items():
        if (name, value) != ("kernel", strategy):  # a strategy's own kernel goes by the strategy's name
            assert plan.options[name] == value
    check_plan(plan)


@pytest.mark.parametrize("strategy", BOTH)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_candidates_are_legal_and_ask_for_exactly_themselves(strategy: str, data: st.DataObject) -> None:
    problem, serving = data.draw(PROBLEMS[strategy]), strategies.STRATEGIES[strategy]
    assume(serves(problem, strategy, {}))
    candidates = serving.candidates(problem, TARGET)  # type: ignore[attr-defined]
    times = [serving.estimate(problem, TARGET, options) for options in candidates]  # type: ignore[attr-defined]
    assert times == sorted(times), "the most promising first"
    plans = [serving.plan(problem, TARGET, options) for options in candidates]
    assert len({str(p.config) for p in plans}) == len(plans) > 0
    assert plans[0].config == serving.plan(problem, TARGET, {}).config
    for options, plan in zip(candidates, plans, strict=True):
        rows = option_rows(type(plan.config))
        assert set(options) - {"kernel"} == {row.name for row in rows}
        for row in rows:
            value = options[row.name]
            assert row.allows(value)
            assert plan.options[row.name] == value
    for options in data.draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=3)):
        assert not serving.obstacles(problem, TARGET, options)
        check_plan(compilation(spec(problem, strategy, options)).plan)


@pytest.mark.costly
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("strategy", BOTH)
def test_generated_lines_are_of_a_width_that_people_read(strategy: str, epilogue: str) -> None:
    source = check_plan(compilation(spec(LAYER, strategy, {}, epilogue)).plan)
    kernel = source.partition("// ---- kernel")[2].splitlines()
    assert not [line for line in kernel if len(line) > 120 or line != line.rstrip() or "\t" in line]
    assert not [line for line in kernel if "  " in line.split("//")[0].strip()]


# ---- tensor maps -------------------------------------------------------------------------------------


def maps(plan: Plan, buffer: str) -> list[TensorMap]:
    return [p.map for p in plan.launches[-1].params if p.map is not None and p.buffer == buffer]


def byte_offset(map: TensorMap, at: Sequence[int]) -> int:
    """Of an element of two bytes at a map's coordinates, innermost first."""
    return sum(c * s for c, s in zip(at, (2, *map.strides), strict=True))


def element_offset(problem: ConvProblem, role: str, at: dict[str, int]) -> int:
    tensor = problem.tensor(role)
    return sum(at[d] * s for d, s in zip(tensor.dims, tensor.strides, strict=True))


def index(flat: int, extents: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, tuple(extents)))


def walk(map: TensorMap, start: Sequence[int], tap: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Coordinates (w, h, d, n) that an im2col load of a tap reads, from a start pixel (PTX ISA, "im2col mode"): the
    box is walked innermost axis first, then the next image; the tap's offset is added at the access."""
    *pixel, image = start
    for _ in range(map.pixels):
        yield (*(p + t for p, t in zip(pixel, tap, strict=True)), image)
        for i in range(len(pixel)):
            pixel[i] += map.element_strides[1 + i]
            if pixel[i] <= map.dims[1 + i] - 1 + map.upper[i]:
                break
            pixel[i] = map.lower[i]
        else:
            image += 1


@pytest.mark.parametrize("tile_n", range(16, 257, 16))
def test_y_s_boxes_are_whole_sectors(tile_n: int) -> None:
    """Of 32 bytes; a sector that two stores fill costs more than its bytes."""
    problem = make("fprop", 8, 64, tile_n, (28, 28), (1, 1))
    options: Options = {"tile.m": 64, "tile.n": tile_n, "swap_ab": 0, "split_k": 1}
    (found,) = maps(compilation(spec(problem, "tma_im2col", options)).plan, "y")
    assert found.box[0] * 2 % 32 == 0 and tile_n % found.box[0] == 0


@settings(max_examples=60, deadline=None)
@given(problem=im2col_problems(pixels=150), m=st.sampled_from((64, 128)), data=st.data())
def test_x_s_map_walks_the_pixels_of_each_tile_in_order(problem: ConvProblem, m: int, data: st.DataObject) -> None:
    options: Options = {"tile.m": m, "tile.n": 8, "cluster": 1}
    assume(problem.c % 8 == 0 and folded(problem) == problem)  # x as it lies
    assume(serves(problem, "tma_im2col", options))
    found, *last = maps(compilation(spec(problem, "tma_im2col", options)).plan, "x")
    sp, lo = problem.spatial, problem.pad_lo
    pixels = list(itertools.product(range(problem.n), *map(range, problem.output)))
    m0 = data.draw(st.sampled_from(range(0, len(pixels), m)))
    tile = pixels[m0 : m0 + m]
    if found.mode == "tiled":  # x is a matrix as it stands
        assert found.dims == (problem.c, len(pixels)) and found.box[1] == min(m, len(pixels))
        assert [box.box[1] for box in last] == [len(pixels) % m] * (len(pixels) > m and len(pixels) % m > 0)
        for row, (n, *at) in enumerate(tile):
            place = {"n": n, "c": 0, **dict(zip(sp.input, at, strict=True))}
            assert byte_offset(found, (0, m0 + row)) == 2 * element_offset(problem, "x", place)
        return
    assert found.pixels == m and found.dims == (problem.c, *problem.input[::-1], problem.n)
    first = [o * s - low for o, s, low in zip(tile[0][1:], problem.stride, lo, strict=True)]
    for tap in itertools.product(*map(range, problem.filter)):
        offsets = [t * d for t, d in zip(tap, problem.dilation, strict=True)]
        walked = walk(found, (*first[::-1], tile[0][0]), offsets[::-1])
        for read, (n, *at) in zip(walked, tile, strict=False):
            defined = [o * s + t - low for o, s, t, low in zip(at, problem.stride, offsets, lo, strict=True)]
            assert read == (*defined[::-1], n)
            if all(0 <= c < e for c, e in zip(defined, problem.input, strict=True)):
                place = {"n": n, "c": 0, **dict(zip(sp.input, defined, strict=True))}
                assert byte_offset(found, (0, *read)) == 2 * element_offset(problem, "x", place)


@pytest.mark.parametrize("strategy", BOTH)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_w_s_map_has_a_tap_a_box(strategy: str, data: st.DataObject) -> None:
    """A box is some channels of one tap for some output channels, at (c, tap, k), or at (c, k, tap) where the taps
    lie outside of k in memory."""
    problem = data.draw(PROBLEMS[strategy])
    assume(serves(problem, strategy, {}))
    plan = compilation(spec(problem, strategy, {})).plan
    assume(maps(plan, "w") and not any("patches" in note for note in plan.notes))  # whose taps are channels
    found, *_ = maps(plan, "w")
    if problem.k == 1:  # both are the same memory
        outside = found.box[1] > 1
    else:
        outside = problem.taps > 1 and next(d for d in problem.w.dims if problem.w.extent(d) > 1) != "k"
    assert found.box[2 if outside else 1] == 1
    for tap, k, c in itertools.product(range(problem.taps), {0, problem.k - 1}, {0, problem.c_per_group - 1}):
        at = {"k": k, "c": c, **dict(zip(problem.spatial.filter, index(tap, problem.filter), strict=True))}
        assert byte_offset(found, (c, k, tap) if outside else (c, tap, k)) == 2 * element_offset(problem, "w", at)


@settings(max_examples=60, deadline=None)
@given(problem=im2col_problems(), planes=st.booleans())
def test_y_s_map_is_the_matrix_of_pixels_and_channels(problem: ConvProblem, planes: bool) -> None:
    """Of all pixels, or of an image's where the channels lie outside of them."""
    y, sp = problem.y, problem.spatial
    if planes:
        problem = laid_out(problem, y=("n", "k", *sp.output))  # type: ignore[arg-type]
        y = problem.y
    assume(serves(problem, "tma_im2col", {}))
    found = maps(compilation(spec(problem, "tma_im2col", {})).plan, "y")
    live = [d for d in y.dims if y.extent(d) > 1]
    area = math.prod(problem.output)
    in_planes = live == [d for d in ("n", "k", *sp.output) if y.extent(d) > 1] and min(area, problem.k) > 1
    as_a_matrix = not in_planes and y.dims == tuple(d for d in ("n", *sp.output, "k") if d in y.dims)
    rows = area % 64 == 0 if in_planes else as_a_matrix and problem.k % 8 == 0
    assert len(found) == int(rows and y.element.bytes == 2)
    for map, pixel, k in itertools.product(found, range(0, problem.output_pixels, 7), {0, problem.k - 1}):
        n, *at = index(pixel, (problem.n, *problem.output))
        place = {"n": n, "k": k, **dict(zip(sp.output, at, strict=True))}
        assert map.dims == ((area, problem.k, problem.n) if in_planes else (problem.k, problem.output_pixels))
        box = (pixel % area, k, n) if in_planes else (k, pixel)
        assert byte_offset(map, box) == 2 * element_offset(problem, "y", place)


@pytest.mark.parametrize("strategy", BOTH)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_maps_reach_to_the_last_byte_and_rows_fill_a_swizzle(strategy: str, data: st.DataObject) -> None:
    problem = data.draw(PROBLEMS[strategy])
    assume(serves(problem, strategy, {}))
    plan = compilation(spec(problem, strategy, {})).plan
    for role in ("x", "w", "y"):
        for found in maps(plan, role):
            tensor = problem.tensor(role)
            assert found.dtype == tensor.dtype and math.prod(found.dims) == tensor.size
            assert byte_offset(found, [d - 1 for d in found.dims]) + 2 == tensor.bytes
            row = 2 * (found.channels if found.mode == "im2col" else found.box[0])
            # whole pixels of y leave as they lie
            assert row == found.swizzle or (row, found.swizzle) == (16, 0) or (role == "y" and not found.swizzle)


@pytest.mark.parametrize(("channels", "fetched"), [(24, 128), (64, 128), (192, 128), (128, 256), (384, 256)])
@pytest.mark.parametrize("window", [1, 3])
def test_l2_fetches_blocks_of_256_bytes_only_where_rows_are_such_blocks(
    window: int, channels: int, fetched: int
) -> None:
    """Of rows that begin inside a block, the rest of it is another pixel's or filter's."""
    problem = make("fprop", 2, channels, 64, (14, 14), (window, window), pad=window // 2)
    plan = compilation(spec(problem, "tma_im2col", {})).plan
    assert {found.l2_promotion for role in ("x", "w") for found in maps(plan, role)} == {fetched}
    halo = compilation(spec(make("fprop", 2, channels, 64, (14, 14), (3, 3), pad=1), "tma_halo", {})).plan
    assert {found.l2_promotion for role in ("x", "w", "y") for found in maps(halo, role)} == {128}


@pytest.mark.parametrize(
    ("k", "options", "boxes"),
    [
        (136, {"tile.n": 128}, [128, 8]),
        (128, {"tile.n": 128}, [128]),
        (72, {"tile.n": 128}, [72]),
        (136, {"tile.n": 128, "cluster": 2, "multicast": "b"}, [64, 8]),
        (40, {"tile.n": 128, "cluster": 2, "multicast": "b"}, [64, 40]),
        (136, {"tile.n": 64, "cluster": 2, "multicast": "a"}, [64, 8]),
    ],
)  # fmt: skip
def test_w_s_boxes_end_with_the_last_output_channel(k: int, options: Options, boxes: list[int]) -> None:
    """TMA takes about five times as long to make up a row as to load one."""
    problem = make("fprop", 8, 64, k, (28, 28), (3, 3), pad=1)
    plan = compilation(spec(problem, "tma_im2col", {"swap_ab": 0, "tile.m": 128, "split_k": 1, **options})).plan
    assert [found.box[2] for found in maps(plan, "w")] == boxes
