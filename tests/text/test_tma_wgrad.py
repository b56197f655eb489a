"""tma_wgrad as plans: what `auto` takes, what is refused and how, and that candidates are legal and no faster than the
hardware."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import TARGET, compilation, laid_out, serves, spec, typed, wgrad_problems

from convgen.diagnostics import Diagnostic, SpecError
from convgen.emulator import tensor_map
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.planner import untuned

#: Of an H200 (NVIDIA's data sheet): dense f16 operations, and bytes of device memory, a microsecond.
PEAK_OPERATIONS, PEAK_BYTES = 989.5e6, 4.8e6
LAYERS: dict[str, ConvProblem] = {
    "3x3": make("wgrad", 64, 128, 128, (28, 28), (3, 3), pad=1),
    "1x1": make("wgrad", 8, 256, 1024, (14, 14), (1, 1), dtype="bf16"),
    "first layer, in planes": laid_out(make("wgrad", 8, 3, 64, (224, 224), (7, 7), 2, 3), x="nchw", w="kcrs", y="nkpq"),
    "groups": make("wgrad", 64, 128, 128, (56, 56), (3, 3), pad=1, groups=32),
    "depthwise": make("wgrad", 64, 96, 96, (56, 56), (7, 7), pad=3, groups=96),
    "three axes": make("wgrad", 2, 64, 64, (16, 28, 28), (3, 3, 3), pad=1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_auto_takes_it_for_gradients_of_the_filter(name: str) -> None:
    problem = LAYERS[name]
    choice = untuned(problem, TARGET, "auto", {})
    plan = choice.strategy.plan(problem, TARGET, choice.options)
    special = {
        "depthwise": ("depthwise", "depthwise_wgrad"), "first layer, in planes": ("implicit_gemm", "stem_wgrad"),
    }  # fmt: skip
    own = special.get(name, ("tma_im2col", "tma_wgrad"))
    assert (plan.strategy, plan.kernel) == own
    assert plan.us > max(2 * problem.macs / problem.groups / PEAK_OPERATIONS, problem.min_bytes / PEAK_BYTES)


LAYER, STRIDED = LAYERS["3x3"], make("wgrad", 2, 64, 64, (14, 14), (3, 3), stride=2)
#: A problem, options, the option to blame, what is said, and what is said to do.
REFUSED: dict[str, tuple[ConvProblem, Options, str, str, str]] = {
    "another operator": (
        make("fprop", 2, 64, 64, (14, 14), (3, 3)), {"kernel": "tma_wgrad"}, "kernel", "serves wgrad alone", "",
    ),
    "options of another kernel": (
        LAYER, {"swap_ab": 1}, "swap_ab", "tma_im2col serves fprop and dgrad", "leave `swap_ab` out",
    ),
    "strided rows": (STRIDED, {"row_taps": 1}, "row_taps", "not 3 and stride w=2", "row_taps 0"),
    "a row's columns": (
        make("wgrad", 2, 64, 64, (14, 14), (5, 5)), {"row_taps": 1, "span": 64}, "span",
        "5 taps of 64 channels are more than a product's 256 columns", "smaller span",
    ),
    "a long row's corner": (
        make("wgrad", 2, 8, 8, (1, 4, 4), (1, 1, 5), pad=(0, 0, (0, 16))), {"row_taps": 1}, "row_taps",
        "upper corner on w is", "row_taps 0",
    ),
    "a long row's corner in y": (
        make("wgrad", 1, 8, 8, (130, 140), (1, 3), dilation=(1, 64)), {"row_taps": 1, "span": 16}, "row_taps",
        "upper corner on q is 128", "row_taps 0",
    ),
    "a long row's pixels": (
        make("wgrad", 1, 8, 8, (2048,), (3,), dilation=512), {"row_taps": 1, "span": 16, "tile.k": 16}, "row_taps",
        "has 1040 pixels", "row_taps 0",
    ),
    "a halo of rows": (LAYER, {"halo": 1, "row_taps": 1}, "row_taps", "serves the taps of filter rows", "row_taps 0"),
    "a halo of one tap": (make("wgrad", 2, 64, 64, (14, 14), (1, 1)), {"halo": 1}, "halo", "has none", "halo 0"),
    "a halo of phases alone": (
        make("wgrad", 2, 64, 64, (14, 14), (2, 2), stride=2), {"halo": 1}, "halo", "has none", "halo 0",
    ),
    "a halo with gaps": (
        make("wgrad", 2, 64, 64, (19, 19), (3, 2), stride=3, dilation=2), {"halo": 1}, "halo",
        "taps are 0, 2 pixels off a stride of 3", "halo 0",
    ),
    "a row's columns of a halo": (
        make("wgrad", 2, 64, 64, (14, 14), (2, 5)), {"halo": 1, "span": 64}, "span",
        "5 taps of 64 channels are more than a product's 256 columns", "smaller span",
    ),
    "a halo's pixels": (
        make("wgrad", 2, 64, 64, (16, 482), (3, 3)), {"halo": 1, "tile.k": 64}, "halo", "has 1030 pixels", "halo 0",
    ),
    "a halo's consumers": (
        LAYER, {"halo": 1, "span": 32, "warps.n": 2, "tile.n": 288}, "tile.n", "for 2 along n", "n=576",
    ),
    "clusters of a halo": (LAYER, {"cluster": 2, "halo": 1}, "halo", "boxes that serve several taps", "halo 0"),
    "columns": (LAYER, {"tile.n": 200}, "tile.n", "does not split into boxes of", "or a multiple"),
    "warpgroups": (LAYER, {"warps.m": 8, "warps.n": 3}, "warps.n", "are 6 warpgroups", "at most 3"),
    "accumulators": (
        LAYER, {"tile.m": 256, "tile.n": 256, "warps.m": 8, "row_taps": 0, "span": 64}, "tile.n",
        "keeps 256 accumulators", "smaller tile",
    ),
    "shares": (STRIDED, {"slices": 64}, "slices", "64 shares are more than the", "fewer slices"),
    "atomic sums of one slice": (LAYER, {"sums": "atomic", "slices": 1}, "sums", "there is one", "leave sums out"),
    "stages": (LAYER, {"stages": 32, "tile.m": 128}, "stages", "bytes of shared memory", "stages fit"),
    "clusters of two kinds": (LAYER, {"cluster": 2, "split_k": 2}, "split_k", "not both", "split_k 1"),
    "clusters of filter rows": (LAYER, {"cluster": 2, "row_taps": 1}, "row_taps", "boxes that serve", "row_taps 0"),
    "tiles of a cluster": (
        LAYER, {"cluster": 4, "multicast": "b", "tile.m": 64}, "cluster", "2 tiles along m", "cluster 1",
    ),
    "pixels of a cluster": (LAYER, {"cluster": 4, "tile.k": 16}, "tile.k", "4 times a multiple of 8", "tile k=32"),
    "one tap to lower": (
        make("wgrad", 2, 3, 8, (14, 14), (3, 1)), {"lower_rows": 1}, "lower_rows", "nothing to lower", "lower_rows 0",
    ),
    "packs": (LAYERS["groups"], {"group_pack": 33}, "group_pack", "is more than the 32 groups", ""),
    "packs off 16 bytes": (
        make("wgrad", 2, 24, 48, (14, 14), (3, 3), groups=12), {"group_pack": 2}, "group_pack",
        "2 of 12 groups have 4 input and 8 output channels, not multiples of 8", "",
    ),
}  # fmt: skip


def refusals(text: str) -> Sequence[Diagnostic]:
    with pytest.raises(SpecError) as caught:
        compilation(text)
    return caught.value.diagnostics


@pytest.mark.costly
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_said_in_words(name: str) -> None:
    problem, options, blamed, message, hint = REFUSED[name]
    found = strategies.STRATEGIES["tma_im2col"].obstacles(problem, TARGET, options)
    right = [o for o in found if message in o.message]
    assert right, [o.message for o in found]
    assert right[0].option == blamed and hint in right[0].hint
    said = refusals(spec(problem, "tma_im2col", options))
    assert any(right[0].message in d.message for d in said)


@settings(max_examples=10, deadline=None)
@given(data=st.data(), problem=wgrad_problems())
def test_candidates_are_legal_and_ask_for_exactly_themselves(data: st.DataObject, problem: ConvProblem) -> None:
    serving = strategies.STRATEGIES["tma_im2col"]
    candidates = serving.candidates(problem, TARGET)
    assert serves(problem, "tma_im2col", {}) and candidates
    options = data.draw(st.sampled_from(candidates))
    plan = serving.plan(problem, TARGET, options)
    assert all(plan.options[name] == value for name, value in options.items())
    sizes = {role: problem.tensor(role).bytes for role in "xwy"} | {w.name: w.bytes for w in plan.workspaces}
    for launch in plan.launches:
        assert launch.shared_bytes <= TARGET.shared_bytes_per_block
        for param in launch.params:
            if param.map:
                assert not list(tensor_map.problems(param.map, sizes[param.buffer])), param


@pytest.mark.parametrize(("name", "strategy", "kernel"), [
    ("3x3", "tma_im2col", "tma_wgrad"), ("1x1", "tma_im2col", "tma_wgrad"), ("3x3", "implicit_gemm", "mma_wgrad"),
])  # fmt: skip
def test_atomic_sums_are_taken_where_they_are_asked_for_alone(name: str, strategy: str, kernel: str) -> None:
    problem, serving = typed(LAYERS[name], w="f32"), strategies.STRATEGIES[strategy]
    assert not any(map(strategies.varies, serving.candidates(problem, TARGET)))
    asked: Options = {"kernel": kernel, "sums": "atomic"}
    if kernel == "tma_wgrad":
        asked |= {"row_taps": 0, "halo": 0}  # which fill zeros in, and so look at sums behind all additions
    for options in (stated := serving.stated(problem, TARGET, asked), asked):
        plan = serving.plan(problem, TARGET, options)
        assert plan.kernel == kernel and plan.options["sums"] == "atomic" and "sums atomic" in plan.configuration
        zeros, product = plan.launches
        assert zeros.entry.endswith("_zeros") and zeros.dependent == product.dependent
        assert not plan.workspaces and product.grid[1] == plan.options["slices"] > 1
    ordered = serving.plan(problem, TARGET, {**stated, "sums": "ordered"})
    assert [launch.entry.rpartition("_")[2] for launch in ordered.launches] == ["example", "sum"]


def test_varying_options_are_options() -> None:
    rows = [row for strategy in strategies.STRATEGIES.values() for row in strategy.options]
    for name, value in strategies.VARYING.items():
        assert any(row.name == name and row.choices and value in row.choices for row in rows)
