"""Tensors of 2^31 elements and more: offsets are made in 64 bits, in every layout, or the strategy refuses."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from gemm_problems import laid_out
from problems import make

from convgen.ir import epilogue as ep
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.kernels.registry import kernels_of
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
INT_MAX = 2**31 - 1

PROBLEMS: dict[str, ConvProblem] = {
    "many images": make("fprop", 600, 8, 64, (256, 256), (3, 3), pad=1),
    "many channels": make("fprop", 1, 8192, 8, (512, 600), (3, 3), pad=1, stride=4),
    "many output channels": make("fprop", 1, 8, 8192, (512, 600), (3, 3), pad=1),
    "large images": make("fprop", 2, 4, 4, (12000, 24000), (3, 3), pad=1),
    "images of 2^31 elements": make("fprop", 2, 64, 64, (6000, 6000), (3, 3), pad=1),
    "such images, a filter a channel": make("fprop", 2, 64, 64, (6000, 6000), (3, 3), pad=1, groups=64),
    "such images, groups": make("fprop", 2, 64, 64, (6000, 6000), (3, 3), pad=1, groups=4),
    "groups": make("fprop", 3, 2048, 2048, (700, 512), (3, 3), pad=1, groups=64),
    "a filter a channel": make("fprop", 4, 1024, 1024, (1024, 600), (3, 3), pad=1, groups=1024),
    "rows of 2^29 elements": make("fprop", 1, 512, 8, (9, 2**20), (9, 3), pad=(8, 1)),
    "such rows, a filter a channel": make("fprop", 1, 512, 512, (9, 2**20), (9, 3), pad=(8, 1), groups=512),
}
LAYOUTS = {
    "nhwc": {"x": "nhwc", "w": "krsc", "y": "npqk"},
    "nchw": {"x": "nchw", "w": "kcrs", "y": "nkpq"},
    "chwn": {"x": "chwn", "w": "crsk", "y": "kpqn"},
    "whnc": {"x": "whnc", "w": "rsck", "y": "qpnk"},
}
KERNELS: dict[str, tuple[str, Options]] = {
    "tma_im2col": ("tma_im2col", {}),
    "mma_gemm": ("implicit_gemm", {"kernel": "mma_gemm"}),
    "mma_gemm, split": ("implicit_gemm", {"kernel": "mma_gemm", "split_k": 2}),
    "stem_mma": ("implicit_gemm", {"kernel": "stem_mma"}),
    "small_groups": ("implicit_gemm", {"kernel": "small_groups"}),
    "depthwise direct": ("depthwise", {"kernel": "depthwise_direct"}),
    "stream": ("depthwise", {"kernel": "depthwise_stream"}),
    "direct": ("direct", {}),
}


@pytest.mark.costly
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_products_of_32_bit_integers_fit_them(name: str, layout: str) -> None:
    problem = laid_out(PROBLEMS[name], LAYOUTS[layout])
    z = Tensor("z", "operand", "f16", problem.y.dims, problem.y.extents)
    total = ep.Binary("+", ep.Acc(), ep.OperandRef("z"))
    problem = replace(problem, epilogue=ep.Epilogue((z,), (ep.Assignment("y", total),)))
    serving = [(strategies.STRATEGIES[s], options) for s, options in KERNELS.values()]
    serving = [(s, options) for s, options in serving if not s.obstacles(problem, TARGET, options)]
    assert len(serving) >= 3
    for strategy, options in serving:
        source = strategy.render(strategy.plan(problem, TARGET, options))
        # its channels are those of a group, which has a number of its own
        groups = problem.groups if strategy.name == "implicit_gemm" else 1
        assert not overflows(source, problem, groups), source


GRADIENTS: dict[str, ConvProblem] = {
    "large images": make("wgrad", 1, 8, 8, (20000, 20000), (1, 1)),
    "large images, taps": make("wgrad", 1, 24, 16, (12000, 14000), (3, 3), pad=1),
    "many images": make("wgrad", 600, 8, 64, (256, 256), (3, 3), pad=1),
    "a filter a channel": make("wgrad", 4, 1024, 1024, (1024, 600), (3, 3), pad=1, groups=1024),
    "large images, dgrad": make("dgrad", 1, 8, 8, (20000, 20000), (1, 1)),
    "strided, dgrad": make("dgrad", 2, 64, 64, (5000, 5000), (3, 3), pad=1, stride=2),
    "wide filter, strided, dgrad": make("dgrad", 1, 2**10, 2**20, (19, 19), (9, 1), pad=(8, 1), stride=2),
    "rows of 2^29 elements, dgrad": make("dgrad", 1, 8, 512, (9, 2**20), (9, 3), pad=1),
    "such rows, strided, dgrad": make(
        "dgrad", 1, 8, 512, (64, 2**20), (3, 3), pad=(8, 1), stride=(8, 1), dilation=(7, 1)
    ),
}


@pytest.mark.costly
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_products_of_32_bit_integers_fit_them_in_gradients(name: str, layout: str) -> None:
    problem = laid_out(GRADIENTS[name], LAYOUTS[layout])
    serving = [
        (strategy, {"kernel": kernel.name} if len(kernels_of(strategy.name)) > 1 else {})
        for strategy in strategies.STRATEGIES.values()
        for kernel in kernels_of(strategy.name)
    ]
    serving = [(s, options) for s, options in serving if not s.obstacles(problem, TARGET, options)]
    assert serving
    for strategy, options in serving:
        source = strategy.render(strategy.plan(problem, TARGET, options))
        assert not overflows(source, problem, problem.groups), source


@pytest.mark.parametrize("swap_ab", (0, 1))
@pytest.mark.parametrize("dims", (("k",), ("n", "k")))
def test_parts_of_sums_of_2_31_elements_have_offsets_that_fit(dims: tuple[str, ...], swap_ab: int) -> None:
    problem = make("fprop", 4096, 8, 160, (256, 256), (1, 1))
    s = Tensor("s", "result", "f32", dims, tuple(problem.extent(d) for d in dims))
    body = (ep.Assignment("s", ep.Acc()), ep.Assignment("y", ep.Acc()))
    problem = replace(problem, epilogue=ep.Epilogue((), body, results=(s,)))
    options: Options = {"swap_ab": swap_ab, "split_k": 1, "tile.m": 16 if swap_ab else 64}
    strategy = strategies.STRATEGIES["tma_im2col"]
    source = strategy.render(strategy.plan(problem, TARGET, options))
    (row,) = re.findall(r"result_s\[(.*) \* GEMM_N", source)
    assert row.startswith("(long long)")


@pytest.mark.parametrize(
    ("kernel", "problem"),
    (
        ("mma_gemm", make("fprop", 1, 1, 1, (2**16, 2**16), (2**16, 2**16))),
        ("mma_gemm", make("fprop", 1, 2**29, 1, (2, 2), (2, 2))),
        ("mma_gemm", make("dgrad", 1, 1, 2**29, (2, 2), (2, 2))),
        ("mma_wgrad", make("wgrad", 1, 1, 1, (2**16, 2**16), (2**16, 2**16))),
    ),
)
def test_filters_that_32_bits_do_not_count_are_left_to_another(kernel: str, problem: ConvProblem) -> None:
    refusals = strategies.STRATEGIES["implicit_gemm"].obstacles(problem, TARGET, {"kernel": kernel})
    assert any("do not fit 32 bits" in str(refusal) for refusal in refusals), refusals
    assert not strategies.STRATEGIES["direct"].obstacles(problem, TARGET, {})


def test_steps_that_are_asked_for_behind_the_last_fit() -> None:
    """Three of 32 places behind 72 in 9 taps, by whole steps 96: they go on to a 24th, and copy nothing of it."""
    problem = make("fprop", 2, 8, 3, (6, 7), (3, 3), pad=1)
    problem = replace(problem, w=replace(problem.w, pitch=INT_MAX // 15))
    strategy = strategies.STRATEGIES["implicit_gemm"]
    source = strategy.render(strategy.plan(problem, TARGET, {"kernel": "mma_gemm", "tile.k": 32, "stages": 4}))
    assert re.findall(r"const (.*) k_offset = (.*)rs \* ", source) == [("long long", "(long long)")], source


def overflows(source: str, problem: ConvProblem, groups: int) -> list[str]:
    """Products of a coordinate, which is an int, and a number that do not fit an int."""
    code = re.sub(r"//.*", "", source.partition("// ---- kernel")[2])
    found = [f"{name} = {number}" for name, number in constants(code, "int") if int(number) > INT_MAX]
    for name, number in constants(code, "int"):  # a wide one makes a product wide
        code = re.sub(rf"\b{name}\b(?! = )", number, code)
    of_numbers = re.findall(r"(?<!\* )\b\d+(?: \* \d+)+\b", code)
    found += [product for product in of_numbers if math.prod(map(int, product.split(" * "))) > INT_MAX]
    names = re.findall(r"long long (\w+(?:, (?!long )\w+)*)", code)
    wide = {"long long"} | {name for together in names for name in together.split(", ")}
    extents = {d: problem.extent(d) for d in ("n", *problem.spatial.input, *problem.spatial.output)}
    extents |= {"gemm_m": problem.output_pixels, "image": problem.n, "group": groups}
    extents |= {"c": problem.c // groups, "k": problem.k, "e": 8}
    extents["gemm_n"] = (problem.c if problem.op is Op.DGRAD else problem.k) // groups
    for i, f, taps, step in zip(
        problem.spatial.input, problem.spatial.filter, problem.filter, problem.dilation, strict=True
    ):
        extents |= {f"start_{i}": taps * step, f"last_{f}": taps}  # of a phase
    return found + [
        f"{name} * {number}"
        for cast, name, number in re.findall(r"(\(long long\))?\b(\w+) \* (\d+)\b", code)
        if not cast and name not in wide and extents.get(name, 0) * int(number) > INT_MAX
    ]


def constants(code: str, c_type: str) -> list[tuple[str, str]]:
    """The numbers of a type that a source names."""
    definitions = re.findall(rf"constexpr {c_type} (\w+ = \d+(?:, \w+ = \d+)*);", code)
    return [(name, number) for text in definitions for name, number in re.findall(r"(\w+) = (\d+)", text)]


def test_far_taps_are_not_walked_to() -> None:
    """Every shift up to a dilation of 10^9 would take hours."""
    far = make("fprop", 1, 16, 16, (8, 8), (3, 3), pad=10**9, dilation=10**9)
    assert strategies.STRATEGIES["tma_halo"].obstacles(far, TARGET, {})


def test_channels_are_not_counted_one_by_one() -> None:
    """Not where no groups are packed, of which each may need another look for NaNs."""
    wide = make("dgrad", 1, 10**9, 16, (8, 8), (3, 3), pad=1)
    strategy = strategies.STRATEGIES["tma_im2col"]
    assert "window_sum" not in strategy.render(strategy.plan(wide, TARGET, {"kernel": "tma_im2col"}))


@pytest.mark.parametrize(
    ("strategy", "said"), [("implicit_gemm", "output channels"), ("tma_im2col", "channels of the result")]
)
def test_channels_are_counted_by_whole_tiles(strategy: str, said: str) -> None:
    """Whose number NVRTC could not compute in 32 bits."""
    problem = make("fprop", 1, 8, 2**31 - 64, (1, 1), (1, 1))
    found = strategies.STRATEGIES[strategy].obstacles(problem, TARGET, {})
    assert any(f"{said} do not fit 32 bits" in obstacle.message for obstacle in found), [o.message for o in found]
