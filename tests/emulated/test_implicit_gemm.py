"""implicit_gemm and depthwise, emulated: random problems, and each kernel's own cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from gemm_problems import CHANNELS_LAST, PLANES, depthwise_problems, gemm_problems, laid_out
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make
from runs import check_channel_sums, emulated
from special_values import with_specials

from convgen.ir import verify
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.parts import lines, lowering
from convgen.kernels.strategies import Strategy
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
GEMM, DEPTHWISE = strategies.STRATEGIES["implicit_gemm"], strategies.STRATEGIES["depthwise"]
SEEDS = st.integers(0, 2**32 - 1)


def check(problem: ConvProblem, options: Mapping[str, int | str], seed: int, strategy: Strategy = GEMM) -> str:
    """Fails unless every element of the result is within rounding of the reference; gives the source."""
    arrays = verify.random_inputs(problem, seed)
    out, source = emulated(strategy, problem, options, arrays)
    arithmetic = strategy.plan(problem, TARGET, options).arithmetic
    report = verify.check(problem, arrays, out, arithmetic=arithmetic)
    assert report, f"{report}\nseed {seed}, options {dict(options)}\n{problem}\n{source}"
    return source


# ---- any problem ---------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(problem=gemm_problems(), seed=SEEDS, order=st.sampled_from(("channel_first", "channel_last", "taps_inner")))
def test_gather_serves_any_problem(problem: ConvProblem, seed: int, order: str) -> None:
    options = {"kernel": "mma_gemm", "order": order, "split_k": 1 + seed % 2}
    if GEMM.obstacles(problem, TARGET, options):
        options["split_k"] = 1  # more slices than gemm_k has elements
    check(problem, options, seed)


@settings(max_examples=8, deadline=None)
@given(problem=gemm_problems(), seed=SEEDS)
def test_the_default_serves_any_problem(problem: ConvProblem, seed: int) -> None:
    assert not GEMM.obstacles(problem, TARGET, {})
    check(problem, {}, seed)


@settings(max_examples=8, deadline=None)
@given(problem=depthwise_problems(), seed=SEEDS)
def test_depthwise_serves_any_problem(problem: ConvProblem, seed: int) -> None:
    options = {"kernel": "depthwise_direct", "tile.p": 1 + seed % 3, "tile.q": 1 + seed // 3 % 4}
    assert not DEPTHWISE.obstacles(problem, TARGET, options)
    check(problem, options, seed, DEPTHWISE)


@settings(max_examples=2, deadline=None)
@given(problem=gemm_problems(), seed=SEEDS)
def test_64_bit_indices_give_the_same(problem: ConvProblem, seed: int) -> None:
    limit, lowering.INT_LIMIT = lowering.INT_LIMIT, 0
    try:
        source = check(problem, {"kernel": "mma_gemm"}, seed)
    finally:
        lowering.INT_LIMIT = limit
    assert "const long long first_m" in source


# ---- mma_gemm ----------------------------------------------------------------------------------

TILES = [
    {"tile.m": 64, "tile.n": 64, "warps.m": 2, "warps.n": 2, "stages": 2},
    {"tile.m": 128, "tile.n": 32, "warps.m": 4, "warps.n": 1, "stages": 4, "tile.k": 32},
    {"tile.m": 16, "tile.n": 128, "warps.m": 1, "warps.n": 2},
    {"tile.m": 96, "tile.n": 48, "warps.m": 2, "warps.n": 1, "split_k": 3},
    {"tile.m": 96, "tile.n": 128, "warps.m": 2, "warps.n": 2, "stages": 6, "blocks": 1},
]


@pytest.mark.parametrize("options", TILES, ids=lambda o: f"{o['tile.m']}x{o['tile.n']}")
@pytest.mark.parametrize("layouts", [CHANNELS_LAST, PLANES], ids=["nhwc", "nchw"])
def test_tiles(options: Mapping[str, int | str], layouts: Mapping[str, str], seed: int) -> None:
    problem = laid_out(make("fprop", 2, 40, 56, (9, 8), (3, 3), stride=(2, 1), pad=1), layouts)
    check(problem, {"kernel": "mma_gemm", **options}, seed)


def test_threads_without_work_stay_inside(seed: int) -> None:
    """64 threads load the filters' tile, element by element, of 128 that the block has."""
    problem = laid_out(make("fprop", 1, 64, 8, (7, 6), (3, 3), pad=1, dtype="s8"), {"w": "rsck"})
    options = {"tile.m": 256, "tile.n": 16, "tile.k": 64, "warps.m": 4, "warps.n": 1}
    check(problem, {"kernel": "mma_gemm", **options}, seed)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("k", [2, 4, 24, 64])
@pytest.mark.parametrize("order", ["channel_first", "channel_last", "taps_inner"])
def test_filters_with_output_channels_innermost(k: int, order: str, groups: int, seed: int) -> None:
    """Their tile lies in rows of gemm_k, which ldmatrix transposes."""
    problem = make("fprop", 2, 40 * groups, k * groups, (9, 8), (3, 3), stride=(2, 1), pad=1, groups=groups)
    split_k = 3 if (k // 2 + groups) % 2 else 1
    options = {"kernel": "mma_gemm", "order": order, "split_k": split_k}
    assert "ldmatrix_x4_trans" in check(laid_out(problem, {"w": "rsck"}), options, seed)


@pytest.mark.parametrize("c", [1, 2, 3, 4, 6, 8, 12, 24])
@pytest.mark.parametrize("dtype", ["f16", "s8"])
def test_every_alignment(c: int, dtype: str, seed: int) -> None:
    for k in (c, 32):
        check(make("fprop", 1, c, k, (7, 6), (3, 2), pad=1, dtype=dtype), {"kernel": "mma_gemm"}, seed)


@pytest.mark.parametrize("tile", [(96, 64, 64, 2, 1), (64, 128, 32, 2, 2), (192, 128, 64, 4, 2)], ids=str)
@pytest.mark.parametrize("order", ["channel_first", "taps_inner"])
@pytest.mark.parametrize("groups, split", [(1, 1), (1, 3), (2, 1)])
def test_steps_within_a_tap(tile: tuple[int, ...], order: str, groups: int, split: int, seed: int) -> None:
    """All threads have the digits of their step, in which rows of both tiles are asked for slice by slice."""
    problem = make("fprop", 2, 64 * groups, 40 * groups, (13, 7), (3, 3), stride=(2, 1), pad=((2, 1), 1), groups=groups)
    names = ("tile.m", "tile.n", "tile.k", "warps.m", "warps.n")
    options = {"kernel": "mma_gemm", "order": order, "split_k": split, **dict(zip(names, tile, strict=True))}
    source = check(problem, options, seed)
    assert source.count("gemm_k of this step") == 2


@pytest.mark.parametrize(
    "c, groups, split, planes",
    [(10, 1, 1, "xw"), (33, 1, 2, "xw"), (24, 3, 1, "x"), (24, 2, 1, "w"), (8, 1, 1, "xw")],
)
def test_planes_laid_out_with_channels_innermost(c: int, groups: int, split: int, planes: str, seed: int) -> None:
    problem = make("fprop", 2, c, 12, (9, 5), (3, 2), (1, 2), pad=1, groups=groups, dtype="f32")
    layouts = {**CHANNELS_LAST, **{t: PLANES[t] for t in planes}}
    options = {"kernel": "mma_gemm", "relayout": 1, "split_k": split}
    source = check(laid_out(problem, layouts), options, seed)
    assert {t for t in "xw" if f"prepare_{t}(" in source} == set(planes)


def test_planes_of_narrow_types_stay_as_they_lie() -> None:
    problem = laid_out(make("fprop", 2, 16, 16, (9, 9), (3, 3), dtype="s8"), PLANES)
    (obstacle,) = GEMM.obstacles(problem, TARGET, {"kernel": "mma_gemm", "relayout": 1})
    assert obstacle.option == "relayout"


def test_slices_are_added_in_order(seed: int) -> None:
    """Two runs give the same bits, whatever order the blocks ran in."""
    problem = make("fprop", 1, 64, 24, (5, 5), (3, 3), pad=1)
    arrays = verify.random_inputs(problem, seed)
    runs = [emulated(GEMM, problem, {"kernel": "mma_gemm", "split_k": 4}, arrays)[0] for _ in range(2)]
    assert np.array_equal(runs[0], runs[1])


@pytest.mark.parametrize("kernel", ["stem_mma", "mma_gemm", "mma_gemm, split_k"])
@pytest.mark.parametrize("size", [13, 1])
def test_dims_of_one_element_left_out(kernel: str, size: int, seed: int) -> None:
    options = {"kernel": "mma_gemm", "split_k": 2} if "split_k" in kernel else {"kernel": kernel}
    problem = make("fprop", 1, 24, 1, (size, 1), (3, 1), stride=(2, 1), pad=((1, 1), 0), dtype="f32")
    for role in "xwy":
        tensor = problem.tensor(role)
        kept = [(d, e) for d, e in zip(tensor.dims, tensor.extents, strict=True) if e > 1]
        bare = replace(tensor, dims=tuple(d for d, _ in kept), extents=tuple(e for _, e in kept))
        problem = replace(problem, **{role: bare})  # type: ignore[arg-type]
    check(problem, options, seed)


# ---- stems ---------------------------------------------------------------------------------------

STEMS = {
    "resnet50": make("fprop", 2, 3, 64, (20, 20), (7, 7), stride=2, pad=3),
    "vgg16": make("fprop", 2, 3, 64, (12, 12), (3, 3), pad=1),
    "alexnet": make("fprop", 1, 3, 64, (27, 27), (11, 11), stride=4, pad=2),
    "zfnet": make("fprop", 1, 3, 96, (18, 18), (7, 7), stride=2, pad=1),
    "lenet": make("fprop", 2, 1, 20, (12, 12), (5, 5)),
    "odd width": make("fprop", 2, 3, 16, (9, 11), (3, 3), pad=1),
    "five channels": make("fprop", 1, 5, 33, (9, 9), (3, 3), pad=1),
    "one dimension": make("fprop", 2, 2, 24, (33,), (7,), stride=3, pad=2),
    "asymmetric": make("fprop", 1, 3, 16, (10, 10), (4, 6), stride=(1, 2), pad=((2, 1), (3, 0)), dilation=(2, 1)),
    "many output channels": make("fprop", 1, 3, 150, (8, 8), (3, 3), pad=1),
}


def stages(stem: str, x: str) -> int:
    """1 in one of the layouts, 2 in the other, by turns."""
    return 1 + (list(STEMS).index(stem) + (x == "nchw")) % 2


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("x", ["nhwc", "nchw"])
def test_rows(stem: str, x: str, seed: int) -> None:
    problem = laid_out(STEMS[stem], {"x": x})
    check(problem, {"kernel": "stem_mma", "stages": stages(stem, x)}, seed)


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("x", ["nhwc", "nchw"])
def test_rows_wgmma(stem: str, x: str, seed: int) -> None:
    problem = laid_out(STEMS[stem], {"x": x})
    options: dict[str, int | str] = {"kernel": "stem_wgmma", "stages": stages(stem, x)}
    if obstacles := GEMM.obstacles(problem, TARGET, options):
        assert "less than the words" in obstacles[0].message and lines.window(problem).run < 7
        return
    check(problem, options, seed)
    check(problem, options | {"tile.m": 256, "warps.m": 8, "stages": 2}, seed)


@pytest.mark.parametrize("dtype", ["f32", "s8", "bf16"])
def test_rows_of_other_types(dtype: str, seed: int) -> None:
    for width in (8, 9, 10, 11):
        problem = make("fprop", 1, 3, 32, (9, width), (3, 3), pad=1, dtype=dtype)
        check(problem, {"kernel": "stem_mma"}, seed)
        if dtype == "bf16":
            check(problem, {"kernel": "stem_wgmma"}, seed)


@pytest.mark.parametrize("kernel", ["stem_mma", "stem_wgmma"])
def test_a_neighbors_nan_stays_out_of_the_window(kernel: str, seed: int) -> None:
    """Words hold elements of the next pixel, which count as zero even where they are not numbers."""
    for problem in (STEMS["vgg16"], STEMS["resnet50"], laid_out(STEMS["resnet50"], {"x": "nchw"}), STEMS["alexnet"]):
        arrays = verify.random_inputs(problem, seed)
        arrays["x"].reshape(-1)[::37] = np.inf
        out, _ = emulated(GEMM, problem, {"kernel": kernel}, arrays)
        with np.errstate(invalid="ignore"):
            assert verify.check(problem, arrays, out)


SUM_TILES: dict[str, dict[str, int | str]] = {
    "stem_mma": {"kernel": "stem_mma", "tile.m": 64, "warps.m": 2},
    "stem_wgmma": {"kernel": "stem_wgmma", "tile.m": 128, "warps.m": 8},
}


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("kernel", SUM_TILES)
def test_sums_of_channels(kernel: str, stem: str, seed: int) -> None:
    """Blocks have several tiles, and every second stem has planes."""
    x = "nchw" if list(STEMS).index(stem) % 2 else "nhwc"
    problem = laid_out(STEMS[stem], {"x": x})
    options = {**SUM_TILES[kernel], "stages": stages(stem, x), "blocks": 1}
    if not GEMM.obstacles(problem, TARGET, options):
        check_channel_sums(GEMM, problem, options, verify.random_inputs(problem, seed), seed)


@pytest.mark.parametrize("kernel", SUM_TILES)
def test_sums_of_what_is_not_finite(kernel: str, seed: int) -> None:
    problem = STEMS["odd width"]
    check_channel_sums(GEMM, problem, SUM_TILES[kernel], with_specials(problem, "w", seed), seed)


# ---- grouped -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("c", "k", "groups", "stride", "stages"),
    [(32, 32, 8, 1, 1), (64, 64, 8, 2, 2), (64, 64, 4, 1, 2), (64, 64, 2, 2, 1), (32, 64, 8, 2, 1), (48, 24, 6, 1, 2)],
)
def test_groups(c: int, k: int, groups: int, stride: int, stages: int, seed: int) -> None:
    problem = make("fprop", 2, c, k, (9, 7), (3, 3), stride=stride, pad=1, groups=groups)
    check(problem, {"kernel": "small_groups", "stages": stages, "tile.p": 2}, seed)


@pytest.mark.parametrize("dtype", ["bf16", "s8"])
def test_groups_of_other_types(dtype: str, seed: int) -> None:
    check(make("fprop", 1, 64, 64, (8, 8), (5, 5), pad=2, groups=16, dtype=dtype), {"kernel": "small_groups"}, seed)


# ---- depthwise -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("layouts", [CHANNELS_LAST, PLANES], ids=["nhwc", "nchw"])
def test_depthwise_filters(size: int, stride: int, layouts: Mapping[str, str], seed: int) -> None:
    multiplier = 1 + (size // 2 + stride + (layouts is PLANES)) % 2
    problem = make("fprop", 2, 24, 24 * multiplier, (11, 10), (size, size), stride, size // 2, groups=24)
    check(laid_out(problem, layouts), {"kernel": "depthwise_direct", "tile.p": 2, "tile.q": 4}, seed, DEPTHWISE)


def test_depthwise_vectors(seed: int) -> None:
    problem = make("fprop", 1, 16, 16, (8, 8), (3, 3), pad=1, groups=16)
    for vector in (1, 2, 4, 8):
        check(problem, {"kernel": "depthwise_direct", "vector": vector, "tile.p": 2, "tile.q": 2}, seed, DEPTHWISE)
    (found,) = DEPTHWISE.obstacles(replace(problem), TARGET, {"kernel": "depthwise_direct", "vector": 16})
    assert found.option == "vector"


def test_depthwise_of_one_column(seed: int) -> None:
    """Outputs beside the only column of x see padding alone."""
    problem = make("fprop", 2, 24, 24, (7, 1), (3, 3), pad=(1, 2), groups=24)
    check(problem, {"kernel": "depthwise_direct"}, seed, DEPTHWISE)


def test_depthwise_says_where_rows_do_not_fit_registers() -> None:
    far = make("fprop", 2, 64, 64, (2000,), (3,), pad=512, dilation=512, groups=64)
    (found,) = DEPTHWISE.obstacles(far, TARGETS["sm_80"], {})
    assert "columns of x under a thread's outputs" in found.message
    near = make("fprop", 2, 24, 24, (9, 9), (3, 3), pad=1, groups=24)
    (found,) = DEPTHWISE.obstacles(near, TARGET, {"kernel": "depthwise_direct", "tile.q": 64, "vector": 8})
    assert found.option == "tile.q"
