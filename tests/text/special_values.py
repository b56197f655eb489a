"""Infinities, NaNs, signed zeros, subnormals and the largest numbers, as inputs of every function and kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from problems import make
from tma_specs import laid_out, typed

from convgen.ir import epilogue as ep
from convgen.ir import verify
from convgen.ir.dtypes import DTYPES
from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.ir.reference import accumulate
from convgen.ir.tensor import Tensor
from convgen.ir.verify import Expectation
from convgen.kernels.base import Options

_INFO = np.finfo(np.float32)
#: float32 values, of which every function gets every combination.
VALUES = np.array(
    [np.inf, -np.inf, np.nan, 0.0, -0.0, _INFO.smallest_subnormal, -_INFO.smallest_subnormal, _INFO.max, -_INFO.max,
     0.5, -0.5, 3.0, -4.0, 100.0, -100.0],
    np.float32,
)  # fmt: skip


def _expressions() -> dict[str, ep.Expr]:
    arguments = (ep.Acc(), ep.OperandRef("a"), ep.OperandRef("b"))
    found: dict[str, ep.Expr] = {f: ep.Call(f, arguments[: row.arity]) for f, row in ep.FUNCTIONS.items()}
    found |= {op: ep.Binary(op, *arguments[:2]) for op in ep.PRECEDENCE}
    return found | {f"unary {op}": ep.Unary(op, ep.Acc()) for op in "-!"}


#: What an epilogue may compute, a function or an operator each.
EXPRESSIONS = _expressions()
#: All of them stored as float32, and one as every other type.
EPILOGUES = [*((name, "f32") for name in EXPRESSIONS), *(("relu", dtype) for dtype in DTYPES if dtype != "f32")]


def of_all_values(expression: ep.Expr, result: str = "f32") -> tuple[ConvProblem, dict[str, np.ndarray]]:
    """A 1x1 convolution whose epilogue is the expression of every combination of values."""
    count = len(VALUES)
    dtype = "f64" if result == "f64" else "f32"  # f64 is not mixed with other types
    base = make(n=count, input=(count, count), filter=(1, 1), dtype=dtype)
    used = {e.name for e in expression.walk() if isinstance(e, ep.OperandRef)}
    along = {name: dim for name, dim in (("a", "p"), ("b", "q")) if name in used}
    operands = tuple(Tensor(name, "operand", dtype, (dim,), (count,)) for name, dim in along.items())
    problem = replace(
        base,
        y=replace(base.y, dtype=result),
        epilogue=ep.Epilogue(operands, (ep.Assignment("y", expression),)),
    )
    x = np.broadcast_to(VALUES[:, None, None, None], problem.x.shape)
    arrays = {"x": x, "w": np.ones(problem.w.shape)} | dict.fromkeys(along, VALUES)
    return problem, {name: np.ascontiguousarray(a, "f8" if dtype == "f64" else "f4") for name, a in arrays.items()}


_IM2COL: Options = {
    "tile.m": 64, "tile.n": 16, "tile.k": 16, "stages": 3, "consumers": 1, "schedule": "cooperative",
    "order": "channels_inner", "blocks": 1, "k_blocks": 1, "split_k": 1, "swap_ab": 0, "cluster": 1, "raster": 1,
    "stream_k": 0,
}  # fmt: skip
_HALO: Options = {
    "strip": 5, "images": 1, "schedule": "pingpong", "weight_stages": 0, "stages": 1, "swap_ab": 1, "tile.m": 32,
    "tile.n": 64, "tile.k": 16, "consumers": 2,
}  # fmt: skip
_BANDS: Options = {
    "kernel": "depthwise_stream", "math": "mma", "tile.p": 4, "tile.q": 16, "vector": 8, "slice": 16, "band": 4,
    "stages": 4, "threads": 64,
}  # fmt: skip
_ROWS: Options = {
    "kernel": "tma_wgrad", "row_taps": 1, "tile.m": 64, "tile.n": 48, "tile.k": 32, "span": 16, "stages": 3,
    "warps.m": 4, "warps.n": 1, "split_k": 1, "slices": 1, "blocks": 1, "cluster": 1,
}  # fmt: skip
_HALO_OF_X: Options = {**_ROWS, "row_taps": 0, "halo": 1, "tile.n": 144}
_STEM: Options = {
    "kernel": "stem_wgrad", "tile.m": 64, "tile.k": 16, "stages": 2, "depth": 2, "warps.m": 4, "warps.n": 1,
    "slices": 1,
}  # fmt: skip
#: Kernels whose products have zeros of their own, or factors that are taken apart or transformed: a strategy, a problem
#: and options.
FILLED: dict[str, tuple[str, ConvProblem, Options]] = {
    "joined groups of 4": (
        "implicit_gemm", make("fprop", 2, 64, 64, (9, 7), (3, 3), pad=1, groups=16), {"kernel": "small_groups"},
    ),
    "joined groups of 8, stride 2": (
        "implicit_gemm", make("fprop", 2, 64, 64, (9, 8), (3, 3), 2, 1, groups=8), {"kernel": "small_groups"},
    ),
    "joined groups, more outputs": (
        "implicit_gemm", make("fprop", 2, 32, 96, (9, 7), (3, 3), pad=1, groups=8, dtype="bf16"),
        {"kernel": "small_groups"},
    ),
    "joined groups, few outputs": (
        "implicit_gemm", make("fprop", 2, 64, 16, (9, 7), (3, 3), pad=1, groups=8), {"kernel": "small_groups"},
    ),
    "joined groups, fp8": (
        "implicit_gemm", make("fprop", 2, 64, 64, (9, 7), (3, 3), pad=1, groups=16, dtype="e5m2"),
        {"kernel": "small_groups"},
    ),
    "bands": (
        "depthwise", make("fprop", 2, 16, 16, (13, 19), (3, 3), pad=1, groups=16), {**_BANDS, "strip": 19},
    ),
    "bands of 7x7, two sets, strips": (
        "depthwise", make("fprop", 1, 16, 16, (17, 37), (7, 7), pad=3, groups=16, dtype="bf16"),
        {**_BANDS, "tile.p": 8, "band": 8, "strip": 16},
    ),
    "bands, stride 2": (
        "depthwise", make("fprop", 2, 64, 64, (21, 37), (3, 3), 2, 1, groups=64), {**_BANDS, "slice": 32, "strip": 19},
    ),
    "bands, dilation": (
        "depthwise", make("fprop", 1, 16, 16, (21, 37), (3, 3), pad=2, dilation=2, groups=16), {**_BANDS, "strip": 20},
    ),
    "bands, one dimension": (
        "depthwise", make("fprop", 3, 16, 16, (33,), (5,), pad=2, groups=16),
        {**_BANDS, "tile.p": 2, "tile.q": 32, "strip": 33, "band": 2, "stages": 2},
    ),
    "float32": (
        "implicit_gemm", make("fprop", 2, 24, 72, (9, 7), (3, 3), pad=1, dtype="f32"), {"kernel": "mma_gemm"},
    ),
    "float32, split": (
        "implicit_gemm", make("fprop", 1, 24, 37, (9, 7), (3, 3), pad=1, dtype="f32"),
        {"kernel": "mma_gemm", "split_k": 3},
    ),
    "float32, y in planes": (
        "implicit_gemm", laid_out(make("fprop", 2, 24, 24, (9, 7), (3, 3), pad=1, dtype="f32"), y="nkpq"),
        {"kernel": "mma_gemm"},
    ),
    "float32, groups": (
        "implicit_gemm", make("fprop", 2, 24, 48, (9, 7), (3, 3), pad=1, groups=2, dtype="f32"),
        {"kernel": "mma_gemm"},
    ),
    "float32 stem": (
        "implicit_gemm", make("fprop", 2, 3, 40, (20, 19), (5, 5), 2, 2, dtype="f32"), {"kernel": "stem_mma"},
    ),
    "packed groups": (
        "tma_im2col", make("fprop", 2, 64, 96, (9, 7), (3, 3), pad=1, groups=16),
        {**_IM2COL, "tile.n": 24, "consumers": 2, "schedule": "pingpong", "group_pack": 8},
    ),
    "packed groups wider than a tile": (
        "tma_im2col", make("fprop", 2, 64, 192, (9, 7), (3, 3), stride=2, pad=1, groups=8),
        {**_IM2COL, "group_pack": 4},
    ),
    "packed groups, taps that reach far": (
        "tma_im2col", make("fprop", 2, 32, 32, (9, 9), (3, 3), pad=8, dilation=8, groups=2),
        {**_IM2COL, "group_pack": 2},
    ),
    "packed groups, split": (
        "tma_im2col", make("fprop", 2, 32, 32, (4, 5, 4), (2, 3, 3), pad=1, groups=8, dtype="bf16"),
        {**_IM2COL, "group_pack": 4, "split_k": 2},
    ),
    "packed groups, in parts": (
        "tma_im2col", make("fprop", 2, 64, 64, (9, 7), (3, 3), pad=1, groups=16),
        {**_IM2COL, "group_pack": 4, "stream_k": 1},
    ),
    "packed groups, in planes": (
        "tma_im2col", laid_out(make("fprop", 2, 64, 64, (8, 8), (1, 1), groups=16), x="nchw", y="nkpq"),
        {**_IM2COL, "tile.n": 32, "tile.k": 32, "group_pack": 8},
    ),
    "packed groups, channels as rows": (
        "tma_im2col", make("fprop", 2, 64, 128, (9, 7), (3, 3), pad=1, groups=16),
        {**_IM2COL, "swap_ab": 1, "tile.m": 32, "tile.n": 64, "group_pack": 8},
    ),
    "packed groups of 4, channels as rows, to float32": (
        "tma_im2col", typed(make("fprop", 2, 64, 64, (9, 7), (3, 3), pad=1, groups=16), y="f32"),
        {**_IM2COL, "swap_ab": 1, "tile.m": 32, "tile.n": 64, "group_pack": 16},
    ),
    "groups that end inside a product": (
        "tma_im2col", make("fprop", 2, 72, 72, (9, 7), (3, 3), pad=1, groups=3),
        {**_IM2COL, "tile.n": 24, "tile.k": 32},
    ),
    "packed groups, the last ones fewer": (
        "tma_im2col", make("fprop", 2, 120, 120, (9, 7), (3, 3), pad=1, groups=5),
        {**_IM2COL, "tile.n": 48, "tile.k": 64, "group_pack": 2},
    ),
    "groups that end inside a stage": (
        "tma_im2col", make("fprop", 2, 48, 48, (9, 7), (3, 3), pad=1, groups=2, dtype="bf16"),
        {**_IM2COL, "tile.n": 24, "k_blocks": 9, "order": "taps_inner"},
    ),
    "packed groups, halo": (
        "tma_halo", make("fprop", 2, 64, 64, (9, 8), (3, 3), pad=1, groups=16), {**_HALO, "group_pack": 16},
    ),
    "packed groups, halo, pixels as rows": (
        "tma_halo", make("fprop", 2, 64, 128, (9, 8), (3, 3), pad=1, groups=16),
        {**_HALO, "swap_ab": 0, "tile.m": 64, "tile.n": 32, "group_pack": 8},
    ),
    "packed odd groups, halo": (
        "tma_halo", make("fprop", 2, 48, 32, (9, 8), (3, 3), pad=1, groups=16),
        {**_HALO, "swap_ab": 0, "tile.m": 64, "tile.n": 16, "group_pack": 16},
    ),
    "packed groups, halo, the last ones fewer": (
        "tma_halo", make("fprop", 2, 120, 120, (9, 8), (3, 3), pad=1, groups=5),
        {**_HALO, "swap_ab": 0, "tile.m": 64, "tile.n": 48, "group_pack": 2},
    ),
    "packed groups, halo, the last ones fewer, rows of 64 channels": (
        "tma_halo", make("fprop", 2, 72, 72, (9, 8), (3, 3), 2, 1, groups=3, dtype="bf16"),
        {**_HALO, "strip": 4, "swap_ab": 0, "tile.m": 64, "tile.n": 48, "tile.k": 64, "group_pack": 2},
    ),
    "groups that end inside a product, halo": (
        "tma_halo", make("fprop", 2, 112, 112, (9, 8), (3, 3), pad=1, groups=2), {**_HALO, "tile.k": 64},
    ),
    "groups that end inside a product, halo, streamed": (
        "tma_halo", make("fprop", 2, 72, 48, (9, 8), (3, 3), pad=1, groups=3, dtype="bf16"),
        {**_HALO, "tile.k": 32, "swap_ab": 0, "tile.m": 64, "tile.n": 16, "weight_stages": 2, "group_pack": 1},
    ),
    "groups that end inside a product, halo, dgrad": (
        "tma_halo", make("dgrad", 2, 80, 80, (9, 8), (3, 3), pad=1, groups=2), {**_HALO, "tile.k": 64},
    ),
    "packed groups, halo, dgrad": (
        "tma_halo", make("dgrad", 2, 64, 32, (9, 8), (3, 3), pad=1, groups=8), {**_HALO, "fold": 2, "group_pack": 4},
    ),
    "packed groups, halo, phases of dgrad": (
        "tma_halo", make("dgrad", 2, 72, 72, (9, 8), (3, 3), 2, 1, groups=3),
        {**_HALO, "strip": 4, "tile.k": 64, "group_pack": 2},
    ),
    "phases of dgrad": (
        "tma_halo", make("dgrad", 2, 32, 24, (11, 9), (3, 3), 2, 1, dtype="bf16"),
        {**_HALO, "strip": 5, "swap_ab": 0, "tile.m": 64},
    ),
    "phases of dgrad, one axis": (
        "tma_halo", make("dgrad", 2, 40, 24, (29,), (5,), 4, 2), {**_HALO, "strip": 8},
    ),
    "folded rows": (
        "tma_halo", make("fprop", 2, 24, 16, (11, 8), (3, 3), pad=1), {**_HALO, "fold": 4},
    ),
    "eight folded rows": (
        "tma_halo", make("fprop", 2, 16, 8, (19, 8), (3, 1), pad=(1, 0)), {**_HALO, "fold": 8},
    ),
    "folded rows, pixels as rows": (
        "tma_halo", make("fprop", 2, 24, 24, (11, 8), (5, 3), pad=1),
        {**_HALO, "swap_ab": 0, "tile.m": 64, "fold": 2},
    ),
    "folded rows, tail of channels": (
        "tma_halo", make("fprop", 2, 16, 40, (9, 8), (3, 3), pad=1), {**_HALO, "fold": 4},
    ),
    "folded rows, stride 2": (
        "tma_halo", make("fprop", 2, 24, 16, (17, 12), (3, 3), 2, 1), {**_HALO, "fold": 4},
    ),
    "folded rows, dilation 3": (
        "tma_halo", make("fprop", 2, 24, 16, (21, 12), (3, 3), dilation=(3, 1), pad=((3, 0), (1, 1))),
        {**_HALO, "fold": 4},
    ),
    "folded rows, shared": (
        "tma_halo", make("fprop", 2, 24, 32, (9, 8), (3, 3), pad=1),
        {**_HALO, "tile.n": 128, "schedule": "cooperative", "fold": 4, "tile.k": 32},
    ),
    "folded rows, images": (
        "tma_halo", make("fprop", 5, 24, 16, (7, 6), (3, 3), pad=1),
        {**_HALO, "strip": 6, "fold": 4, "images": 3, "tile.m": 96},
    ),
    "folded rows of packed groups": (
        "tma_halo", make("fprop", 2, 64, 64, (9, 8), (3, 3), pad=1, groups=16), {**_HALO, "group_pack": 4, "fold": 4},
    ),
    "folded rows of packed groups, beyond them the edge": (
        "tma_halo", make("fprop", 2, 64, 64, (9, 8), (3, 3), pad=1, groups=16, padding=Padding.REPLICATE),
        {**_HALO, "group_pack": 4, "fold": 4},
    ),
    "packed groups, halo, in planes": (
        "tma_halo",
        laid_out(make("fprop", 2, 48, 48, (9, 8), (3, 3), pad=1, groups=2), x="nchw", w="kcrs", y="nkpq"),
        {**_HALO, "swap_ab": 0, "tile.m": 64, "tile.n": 16, "group_pack": 2},
    ),
    "rows of y with zeros around them": (
        "tma_im2col", make("wgrad", 3, 16, 64, (5, 4), (3, 3), pad=1), _ROWS,
    ),
    "rows of y with zeros around them, tails": (
        "tma_im2col", make("wgrad", 3, 24, 72, (5, 4), (3, 3), pad=1, dtype="bf16"),
        {**_ROWS, "tile.m": 128, "tile.n": 96, "warps.m": 8},
    ),
    "rows of y with zeros around them, columns shared": (
        "tma_im2col", make("wgrad", 2, 32, 40, (4, 5), (2, 3), dilation=(1, 2), pad=((1, 0), (2, 2))),
        {**_ROWS, "tile.n": 96, "warps.n": 2},
    ),
    "rows of y with zeros around them, slices": (
        "tma_im2col", make("wgrad", 3, 16, 64, (5, 4), (3, 3), pad=1), {**_ROWS, "slices": 3},
    ),
    "rows of y with zeros around them, many slices": (
        "tma_im2col", make("wgrad", 9, 16, 24, (7, 6), (1, 3), pad=1), {**_ROWS, "slices": 12},
    ),
    "rows of y with zeros around them, slices as they come": (
        "tma_im2col", typed(make("wgrad", 3, 16, 64, (5, 4), (3, 3), pad=1), w="f32"),
        {**_ROWS, "slices": 3, "sums": "atomic"},
    ),
    "rows of y with zeros around them, a cluster": (
        "tma_im2col", make("wgrad", 3, 16, 64, (5, 4), (3, 3), pad=1), {**_ROWS, "split_k": 2},
    ),
    "rows of y with zeros around them, groups": (
        "tma_im2col", make("wgrad", 3, 32, 128, (5, 4), (3, 3), pad=1, groups=2), _ROWS,
    ),
    "rows of y with zeros around them, packed groups": (
        "tma_im2col", make("wgrad", 3, 32, 64, (5, 4), (3, 3), pad=1, groups=4), {**_ROWS, "group_pack": 2},
    ),
    "rows of y with zeros around them, of planes, beyond them the edge": (
        "tma_im2col",
        laid_out(
            make("wgrad", 3, 16, 64, (5, 4), (3, 3), pad=1, padding=Padding.REPLICATE), x="nchw", w="kcrs", y="nkpq"
        ),
        {**_ROWS, "slices": 2},
    ),
    "zeros between rows and images of y": (
        "tma_im2col", make("wgrad", 3, 16, 64, (5, 4), (3, 3), pad=1), _HALO_OF_X,
    ),
    "zeros between rows and images of y, a cluster, tails": (
        "tma_im2col", make("wgrad", 3, 24, 72, (6, 5), (3, 3), dtype="bf16"), {**_HALO_OF_X, "split_k": 2},
    ),
    "zeros between rows and images of y, phases, slices": (
        "tma_im2col", make("wgrad", 3, 16, 64, (8, 6), (3, 3), 2, 1), {**_HALO_OF_X, "slices": 2},
    ),
    "zeros between rows and images of y, consumers, packed groups": (
        "tma_im2col", make("wgrad", 3, 32, 64, (8, 6), (3, 3), (2, 1), 1, groups=4),
        {**_HALO_OF_X, "warps.n": 3, "group_pack": 2},
    ),
    "zeros behind rows of y": ("implicit_gemm", make("wgrad", 2, 3, 40, (7, 9), (3, 3), pad=1), _STEM),
    "zeros behind rows of y, slices": (
        "implicit_gemm", make("wgrad", 3, 3, 24, (7, 9), (3, 3), pad=1, dtype="bf16"), {**_STEM, "slices": 2},
    ),
    "zeros behind rows of y, stride 2": (
        "implicit_gemm", laid_out(make("wgrad", 2, 2, 136, (9, 14), (7, 7), 2, 3), x="nchw", w="kcrs", y="nkpq"),
        {**_STEM, "tile.m": 128, "warps.m": 4, "warps.n": 2},
    ),
    "tiles of Winograd": (
        "winograd", make("fprop", 2, 24, 18, (9, 7), (3, 3), pad=1), {"tile": 2, "product": "mma_gemm"},
    ),
    "tiles of Winograd along rows": (
        "winograd", make("fprop", 2, 24, 18, (9, 7), (3, 3), pad=1), {"form": "fused"},
    ),
    "tiles of Winograd, float32": (
        "winograd", make("fprop", 2, 12, 10, (9, 7), (3, 3), pad=1, dtype="f32"), {"tile": 4},
    ),
}  # fmt: skip


def with_specials(problem: ConvProblem, role: str, seed: int) -> dict[str, np.ndarray]:
    """Random inputs; one of them, by its role or operand name, has an infinity of each sign, a NaN, a negative zero and
    a subnormal, each at a place of its own."""
    arrays = verify.random_inputs(problem, seed)
    array = arrays[role]  # which may be a slice of channels
    info = ml_dtypes.finfo(array.dtype)
    values = (np.inf, -np.inf, np.nan, -0.0, float(info.smallest_subnormal))
    places = np.random.default_rng(seed).choice(array.size, len(values), replace=False)
    with np.errstate(invalid="ignore"):
        array.flat[places] = np.array(values).astype(array.dtype)
    return arrays


def expected(problem: ConvProblem, arrays: Mapping[str, Any], arithmetic: str = "", xp: Any = np) -> Expectation:
    """What a right kernel may answer.  A kernel may multiply padding, or leave it out: where the product of its zero
    and a special value of the other factor decides, both are right.  What dgrad pads is y."""
    found = verify.expect(problem, arrays, xp, arithmetic)
    if problem.op not in (Op.FPROP, Op.DGRAD, Op.WGRAD) or {"x", "w", "y"} - {problem.result.role} - arrays.keys():
        return found
    ones = {t.role: xp.ones(t.shape) for t in problem.reads}
    bare = replace(problem, prologue=None)
    padded = accumulate(bare, ones, xp).reshape(problem.result.shape) < xp.asarray(_products(problem))
    if problem.op is not Op.DGRAD:
        return replace(found, special=found.special & ~(padded & xp.isnan(found.value)))
    # the reference leaves these products out, so that any value may stand where a kernel has them
    free = padded & xp.asarray(_special_channels(problem, arrays["w"]))
    nan = xp.where(free, xp.nan, 0.0)
    return Expectation(found.value + nan, found.low + nan, found.high + nan, found.special & ~free)


def _products(problem: ConvProblem) -> np.ndarray:
    """Of each element of the result, were there no padding."""
    if problem.op is Op.FPROP:
        return np.array(problem.taps * problem.c_per_group)
    if problem.op is Op.WGRAD:
        return np.array(problem.output_pixels)
    found = np.array(problem.k_per_group)
    for i, dim in enumerate(problem.spatial.input):
        stride, dilation = problem.stride[i], problem.dilation[i]
        at = np.arange(problem.input[i])[:, None] + problem.pad_lo[i]
        taps = ((at - dilation * np.arange(problem.filter[i])) % stride == 0).sum(axis=1)
        found = found * taps.reshape([-1 if d == dim else 1 for d in problem.x.dims])
    return found


def _special_channels(problem: ConvProblem, w: Any) -> np.ndarray:
    """Whether a filter of an input channel has an infinity or a NaN, along the channels of x."""
    bad = ~np.isfinite(np.asarray(w, "f4"))
    dims = ("k", "c", *problem.spatial.filter)
    order = [problem.w.dims.index(d) for d in dims if d in problem.w.dims]  # depthwise filters may have no c
    bad = bad.transpose(order).reshape(problem.groups, problem.k_per_group, problem.c_per_group, -1)
    return bad.any(axis=(1, 3)).reshape([-1 if d == "c" else 1 for d in problem.x.dims])
