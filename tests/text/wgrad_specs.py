"""Ways in which the kernels for wgrad compute a gradient, with problems that have tails in every direction."""

from __future__ import annotations

from dataclasses import replace

from problems import make
from tma_specs import laid_out, typed

from convgen.ir.problem import ConvProblem, Padding
from convgen.kernels.base import Options

#: What a row does not say, so that no cost model does.
PLAIN: Options = {
    "kernel": "tma_wgrad", "tile.m": 64, "tile.k": 64, "span": 64, "stages": 2, "warps.m": 4, "warps.n": 1,
    "row_taps": 0, "halo": 0, "split_k": 1, "slices": 1, "blocks": 1, "group_pack": 1,
}  # fmt: skip
ROWS: Options = {"row_taps": 1}
HALO: Options = {"halo": 1}

GEOMETRIES: dict[str, tuple[ConvProblem, Options]] = {
    "boxes of a tap": (make("wgrad", 2, 72, 88, (9, 8), (3, 3), pad=1), {"tile.n": 256}),
    "boxes of a row": (make("wgrad", 3, 72, 88, (9, 8), (3, 3), pad=1), {**ROWS, "tile.n": 192, "stages": 3}),
    "two consumers along m, two fragments": (
        make("wgrad", 2, 72, 200, (9, 8), (3, 3), pad=1), {"tile.m": 256, "warps.m": 8, "tile.n": 192},
    ),
    "three consumers along n, a filter row each": (
        make("wgrad", 3, 40, 88, (9, 8), (3, 3), pad=1), {**ROWS, "tile.n": 576, "warps.n": 3, "split_k": 2},
    ),
    "two parts of a consumer": (
        make("wgrad", 3, 40, 64, (9, 8), (3, 3), pad=1), {**ROWS, "span": 32, "tile.n": 192, "split_k": 4},
    ),
    "a halo, a consumer for each filter row": (
        make("wgrad", 3, 64, 64, (9, 8), (3, 3), pad=1), {**HALO, "tile.n": 576, "warps.n": 3, "slices": 2},
    ),
    "a halo, filter rows of a consumer, without padding": (
        make("wgrad", 2, 40, 72, (9, 10), (3, 3)), {**HALO, "span": 32, "tile.n": 288, "tile.k": 32, "stages": 3},
    ),
    "a halo, two boxes, two fragments": (
        make("wgrad", 2, 40, 136, (8, 9), (3, 2), pad=(1, (2, 0))),
        {**HALO, "tile.m": 128, "span": 16, "tile.n": 192, "split_k": 2},
    ),
    "a halo by phases": (
        make("wgrad", 3, 64, 64, (14, 15), (3, 3), 2, 1), {**HALO, "tile.n": 576, "warps.n": 3, "slices": 2},
    ),
    "a halo by phases, dilated": (
        make("wgrad", 2, 40, 64, (21, 17), (4, 3), (3, 2), (2, (1, 0)), (1, 2)),
        {**HALO, "span": 16, "tile.n": 192, "tile.k": 32},
    ),
    "a halo by phases of rows alone": (
        make("wgrad", 2, 40, 64, (15, 9), (3, 3), (2, 1), 1, dtype="bf16"), {**HALO, "span": 32, "tile.n": 288},
    ),
    "a halo of two axes of three": (
        make("wgrad", 2, 24, 40, (4, 7, 6), (2, 3, 3), (1, 1, 2), 1), {**HALO, "span": 16, "tile.n": 144, "slices": 2},
    ),
    "a halo of one axis": (make("wgrad", 3, 24, 40, (51,), (5,), 2, 2), {**HALO, "span": 32, "tile.n": 160}),
    "a halo, small groups": (
        make("wgrad", 3, 64, 128, (9, 7), (3, 3), pad=1, groups=16),
        {**HALO, "tile.n": 576, "warps.n": 3, "group_pack": 8, "slices": 2},
    ),
    "a halo, groups in three boxes": (
        make("wgrad", 2, 72, 72, (9, 7), (3, 3), pad=1, groups=3),
        {**HALO, "span": 16, "tile.n": 288, "group_pack": 1, "slices": 2},
    ),
    "a halo, padding by reflection": (
        replace(make("wgrad", 2, 24, 40, (9, 7), (3, 3), pad=(1, 2)), padding=Padding.REFLECT),
        {**HALO, "span": 32, "tile.n": 288},
    ),
    "stride and dilation": (
        make("wgrad", 3, 24, 40, (17, 14), (3, 2), stride=(2, 3), dilation=(2, 3), pad=(2, (1, 0))),
        {"span": 32, "tile.n": 96, "slices": 2, "tile.k": 16},
    ),
    "dilated rows of one axis": (
        make("wgrad", 3, 24, 40, (50,), (3,), dilation=3, pad=((4, 1),)), {**ROWS, "span": 16, "tile.n": 48},
    ),
    "three axes": (
        make("wgrad", 2, 24, 24, (4, 6, 5), (2, 3, 3), (1, 2, 1), ((1, 0), 1, (0, 2)), (2, 1, 1), dtype="bf16"),
        {**ROWS, "span": 16, "tile.n": 48, "tile.k": 32},
    ),
    "1x1": (make("wgrad", 4, 72, 136, (7, 7), (1, 1)), {"tile.n": 192, "split_k": 3}),
    "two share y": (make("wgrad", 4, 200, 72, (7, 7), (1, 1)), {"tile.n": 64, "cluster": 2, "slices": 2}),
    "four share x, packs, bias": (
        make("wgrad", 3, 80, 400, (9, 8), (3, 3), pad=1, groups=2),
        {"tile.n": 192, "tile.k": 32, "cluster": 4, "multicast": "b", "stages": 3},
    ),
    "1x1, stride 2": (make("wgrad", 4, 72, 136, (13, 14), (1, 1), stride=2), {"tile.n": 64, "slices": 3}),
    "stride above the filter": (make("wgrad", 4, 40, 40, (20, 17), (2, 2), stride=(4, 3)), {"span": 32, "tile.n": 64}),
    "channels before pixels, odd": (
        laid_out(make("wgrad", 2, 19, 37, (9, 7), (3, 3), pad=1), x="nchw", y="nkpq", w="kcrs"),
        {**ROWS, "span": 32, "tile.n": 96, "slices": 2},
    ),
    "padding by reflection": (
        replace(make("wgrad", 2, 24, 40, (9, 7), (3, 3), pad=(1, 2)), padding=Padding.REFLECT),
        {**ROWS, "span": 32, "tile.n": 96},
    ),
    "three channels": (typed(make("wgrad", 2, 3, 40, (15, 13), (5, 5), 2, 2), w="f32"), {"span": 16, "tile.n": 256}),
    "filter rows as channels": (
        make("wgrad", 2, 3, 40, (15, 13), (5, 7), 2, ((2, 1), (3, 2)), (1, 2)),
        {"lower_rows": 1, "span": 32, "tile.n": 160},
    ),
    "filter rows as channels, in planes": (
        laid_out(make("wgrad", 2, 4, 72, (9, 11), (3, 3), pad=1, dtype="bf16"), x="nchw", y="nkpq", w="kcrs"),
        {"lower_rows": 1, "span": 16, "tile.n": 48, "slices": 2},
    ),
    "two large groups": (make("wgrad", 2, 144, 160, (9, 7), (3, 3), pad=1, groups=2), {"tile.n": 192}),
    "whole tiles, stored one by one": (
        laid_out(make("wgrad", 2, 64, 64, (9, 7), (3, 3), pad=1), w="kcrs"), {"tile.n": 64, "tile.k": 128},
    ),
    "boxes past the last of y's channels and of x's": (
        make("wgrad", 2, 200, 72, (9, 7), (1, 1)), {"tile.m": 256, "warps.m": 8, "tile.n": 128, "slices": 2},
    ),
    "the same, for clusters that share y": (
        make("wgrad", 2, 200, 72, (9, 7), (3, 1), pad=(1, 0)),
        {"tile.m": 128, "warps.n": 2, "tile.n": 192, "span": 32, "cluster": 4, "tile.k": 32, "slices": 2, "stages": 3},
    ),
    "the last pack has tiles without channels": (
        make("wgrad", 2, 120, 144, (9, 7), (3, 3), pad=1, groups=3), {"tile.n": 256, "group_pack": 2, "split_k": 2},
    ),
    "small groups as one": (
        make("wgrad", 3, 64, 128, (9, 7), (3, 3), pad=1, groups=16),
        {**ROWS, "tile.n": 192, "group_pack": 8, "slices": 2},
    ),
    "one channel a group": (
        make("wgrad", 3, 40, 40, (9, 7), (3, 3), pad=1, groups=40),
        {**ROWS, "span": 32, "tile.n": 96, "group_pack": 8},
    ),
}  # fmt: skip

#: The same with slices that are added as they come: to the result, where that is float32 and bare, or to a workspace.
ATOMIC: Options = {"sums": "atomic"}
ATOMIC_GEOMETRIES: dict[str, tuple[ConvProblem, Options]] = {
    "to a workspace": (
        make("wgrad", 3, 72, 88, (9, 8), (3, 3), pad=1), {**ATOMIC, "tile.n": 256, "slices": 3},
    ),
    "to w": (typed(make("wgrad", 3, 72, 88, (9, 8), (3, 3), pad=1), w="f32"), {**ATOMIC, "tile.n": 256, "slices": 3}),
    "to a workspace, boxes of a row, bias": (
        typed(make("wgrad", 3, 72, 88, (9, 8), (3, 3), pad=1), w="f32"),
        {**ATOMIC, **ROWS, "tile.n": 192, "stages": 3, "slices": 2},
    ),
    "to w, slices of clusters": (
        typed(make("wgrad", 4, 72, 136, (7, 7), (1, 1), dtype="bf16"), w="f32"),
        {**ATOMIC, "tile.n": 192, "tile.k": 16, "split_k": 3, "slices": 4},
    ),
    "to w, pairs, two share y": (
        typed(make("wgrad", 4, 200, 72, (7, 7), (1, 1)), w="f32"),
        {**ATOMIC, "span": 16, "tile.n": 16, "cluster": 2, "slices": 2},
    ),
    "to w, two and two columns": (
        typed(make("wgrad", 4, 38, 40, (7, 7), (1, 1)), w="f32"), {**ATOMIC, "tile.n": 64, "slices": 2},
    ),
    "to w, one by one": (
        typed(laid_out(make("wgrad", 2, 19, 37, (9, 7), (2, 3), pad=1), x="nchw", y="nkpq", w="kcrs"), w="f32"),
        {**ATOMIC, "span": 32, "tile.n": 96, "slices": 2},
    ),
    "to w, filter rows as channels": (
        typed(make("wgrad", 2, 3, 40, (15, 13), (5, 7), 2, ((2, 1), (3, 2)), (1, 2)), w="f32"),
        {**ATOMIC, "lower_rows": 1, "span": 32, "tile.n": 160, "tile.k": 16, "slices": 2},
    ),
    "to w, small groups as one": (
        typed(make("wgrad", 3, 64, 128, (9, 7), (3, 3), pad=1, groups=16), w="f32"),
        {**ATOMIC, "tile.n": 192, "group_pack": 8, "slices": 2},
    ),
}  # fmt: skip

#: The same of mma_wgrad, which has no limits of tensor maps.
MMA_PLAIN: Options = {"kernel": "mma_wgrad", "tile.m": 64, "tile.n": 64, "slices": 1, "group_pack": 1}
MMA_GEOMETRIES: dict[str, tuple[ConvProblem, Options]] = {
    "vectors of 16 bytes": (make("wgrad", 2, 72, 88, (9, 8), (3, 3), pad=1), {}),
    "8 and 4 bytes, large tile": (
        make("wgrad", 3, 20, 134, (9, 8), (3, 3), pad=1, dtype="bf16"), {"tile.m": 128, "tile.n": 128, "slices": 2},
    ),
    "one by one": (typed(make("wgrad", 2, 3, 37, (15, 13), (5, 5), 2, 2), w="f32"), {"tile.n": 128}),
    "stride, dilation, a large stride": (
        make("wgrad", 3, 24, 40, (40, 14), (3, 2), (9, 3), (2, (1, 0)), (12, 3)), {"tile.m": 128, "slices": 2},
    ),
    "few output channels, with a bias": (
        make("wgrad", 2, 40, 24, (9, 8), (3, 3), pad=1),
        {"tile.m": 32, "tile.n": 256, "warps.m": 1, "warps.n": 4, "slices": 2},
    ),
    "fewer output channels, with a bias": (
        make("wgrad", 2, 40, 10, (9, 8), (3, 3), pad=1),
        {"tile.m": 16, "tile.n": 128, "tile.k": 64, "warps.m": 1, "warps.n": 4},
    ),
    "one axis, taps outside": (
        laid_out(make("wgrad", 3, 24, 40, (50,), (3,), 1, ((4, 1),), 3), w="skc"), {"tile.k": 16, "warps.m": 2},
    ),
    "channels before pixels": (
        laid_out(make("wgrad", 2, 19, 37, (9, 7), (3, 3), pad=1), x="nchw", y="knpq", w="kcrs"), {},
    ),
    "three axes": (make("wgrad", 2, 24, 24, (4, 6, 5), (2, 3, 3), (1, 2, 1), ((1, 0), 1, (0, 2)), (2, 1, 1)), {}),
    "two large groups": (make("wgrad", 2, 144, 160, (9, 7), (3, 3), pad=1, groups=2), {"slices": 2}),
    "small groups as one": (make("wgrad", 3, 64, 128, (9, 7), (3, 3), pad=1, groups=16), {"group_pack": 8}),
    "one channel a group": (make("wgrad", 3, 40, 40, (9, 7), (3, 3), pad=1, groups=40), {"group_pack": 20}),
}  # fmt: skip

MMA_ATOMIC_GEOMETRIES: dict[str, tuple[ConvProblem, Options]] = {
    "to a workspace, bias": (make("wgrad", 2, 72, 88, (9, 8), (3, 3), pad=1), {**ATOMIC, "slices": 3}),
    "to w, bias": (
        typed(make("wgrad", 3, 20, 134, (9, 8), (3, 3), pad=1, dtype="bf16"), w="f32"),
        {**ATOMIC, "tile.m": 128, "tile.n": 128, "slices": 2},
    ),
    "to w, odd channels": (
        typed(laid_out(make("wgrad", 2, 19, 37, (9, 7), (3, 3), pad=1), x="nchw", y="knpq", w="kcrs"), w="f32"),
        {**ATOMIC, "slices": 2},
    ),
    "to w, small groups as one": (
        typed(make("wgrad", 3, 64, 128, (9, 7), (3, 3), pad=1, groups=16), w="f32"),
        {**ATOMIC, "group_pack": 8, "slices": 2},
    ),
}  # fmt: skip

#: The same of depthwise_wgrad.
DEPTHWISE_PLAIN: Options = {"kernel": "depthwise_wgrad", "stages": 3, "threads": 64, "blocks": 1, "slices": 1}


def _depthwise(c: int, size: tuple[int, ...], filter: tuple[int, ...], *more, n: int = 2, m: int = 1, dtype="f16"):
    return make("wgrad", n, c, m * c, size, filter, *more, groups=c, dtype=dtype)


DEPTHWISE_GEOMETRIES: dict[str, tuple[ConvProblem, Options]] = {
    "a tail of columns, bands": (
        _depthwise(12, (9, 11), (3, 3), 1, 1), {"vector": 2, "slice": 12, "tile.r": 3, "tile.q": 4, "band": 4},
    ),
    "in registers": (
        _depthwise(12, (9, 11), (3, 3), (2, 1), 1),
        {"vector": 4, "slice": 12, "tile.r": 3, "tile.q": 4, "band": 2, "stages": 1, "slices": 2},
    ),
    "parts of filter rows, uneven padding": (
        _depthwise(8, (13, 12), (7, 5), 1, ((3, 2), (1, 4)), dtype="bf16"),
        {"vector": 2, "slice": 8, "tile.r": 4, "tile.q": 3, "band": 5, "stages": 2, "slices": 3},
    ),
    "strides and dilations without a common factor": (
        typed(_depthwise(6, (21, 25), (3, 2), (2, 3), (2, (1, 0)), (3, 2)), w="f32"),
        {"vector": 2, "slice": 6, "tile.r": 2, "tile.q": 2, "band": 2, "slices": 2},
    ),
    "strides and dilations with one": (
        _depthwise(4, (26, 19), (3, 3), (2, 3), 2, (4, 3)),
        {"vector": 4, "slice": 4, "tile.r": 3, "tile.q": 3, "band": 3},
    ),
    "strides above the filter": (
        _depthwise(4, (20, 17), (2, 2), (4, 3), (0, 1)), {"vector": 2, "slice": 4, "tile.r": 2, "tile.q": 2, "band": 5},
    ),
    "odd channels of one image, a tail of channels": (
        _depthwise(37, (8, 7), (3, 1), 1, (1, 0), n=1),
        {"vector": 1, "slice": 16, "tile.r": 3, "tile.q": 7, "band": 8, "stages": 1, "slices": 2},
    ),
    "one axis, causal": (
        _depthwise(40, (50,), (4,), 1, ((3, 0),)),
        {"vector": 8, "slice": 16, "tile.r": 4, "tile.q": 1, "band": 12, "slices": 4},
    ),
    "three axes": (
        _depthwise(8, (4, 7, 5), (3, 3, 2), (1, 2, 1), (1, (1, 0), 1), (1, 1, 2)),
        {"vector": 2, "slice": 8, "tile.r": 2, "tile.q": 4, "band": 4, "threads": 32, "slices": 2},
    ),
    "two filters a channel": (
        _depthwise(6, (9, 7), (3, 3), 1, 1, m=2), {"vector": 4, "slice": 12, "tile.r": 3, "tile.q": 2, "band": 9},
    ),
    "a cluster": (
        _depthwise(9, (11, 9), (3, 3), 1, 1),
        {"vector": 1, "slice": 5, "tile.r": 2, "tile.q": 4, "band": 4, "stages": 1, "split_k": 3},
    ),
    "slices of clusters": (
        typed(_depthwise(20, (13, 9), (3, 3), 1, 1, n=3), w="f32"),
        {"vector": 4, "slice": 16, "tile.r": 3, "tile.q": 2, "band": 3, "split_k": 2, "slices": 3},
    ),
    "float32, three filters a channel": (
        _depthwise(4, (9, 7), (1, 5), 1, (0, 2), m=3, dtype="f32"),
        {"vector": 1, "slice": 12, "tile.r": 1, "tile.q": 7, "band": 3, "slices": 2},
    ),
    "shared rows: a tail of columns and of images": (
        _depthwise(24, (9, 11), (3, 3), 1, 1, n=5),
        {"loads": "shared", "vector": 2, "slice": 16, "tile.r": 3, "tile.q": 4, "band": 4, "threads": 96},
    ),
    "shared rows: parts of filter rows, uneven padding": (
        _depthwise(16, (13, 12), (7, 5), 1, ((3, 2), (1, 4)), dtype="bf16"),
        {"loads": "shared", "vector": 1, "slice": 16, "tile.r": 4, "tile.q": 3, "band": 5, "stages": 2, "slices": 3},
    ),
    "shared rows: strides, tiles beside tiles": (
        typed(_depthwise(16, (21, 40), (3, 3), (2, 3), 1), w="f32"),
        {"loads": "shared", "vector": 1, "slice": 8, "tile.r": 3, "tile.q": 3, "band": 4, "threads": 32, "slices": 2},
    ),
    "shared rows: dilated, a row at a time": (
        _depthwise(32, (26, 9), (3, 2), (1, 2), 2, (3, 1)),
        {"loads": "shared", "vector": 1, "slice": 32, "tile.r": 1, "tile.q": 7, "band": 3, "threads": 96},
    ),
    "shared rows: one axis, two filters a channel": (
        _depthwise(16, (50,), (4,), 1, ((3, 0),), n=5, m=2),
        {"loads": "shared", "vector": 4, "slice": 32, "tile.r": 4, "tile.q": 1, "band": 12, "threads": 32, "slices": 3},
    ),
    "shared rows: a cluster": (
        _depthwise(20, (11, 9), (3, 3), 1, 1, n=3, dtype="f32"),
        {"loads": "shared", "vector": 1, "slice": 8, "tile.r": 2, "tile.q": 4, "band": 4, "threads": 32, "split_k": 3},
    ),
    "shared rows: slices of clusters": (
        typed(_depthwise(40, (13, 8), (3, 3), 1, 1, n=4), w="f32"),
        {"loads": "shared", "vector": 4, "slice": 16, "tile.r": 3, "tile.q": 2, "band": 3, "split_k": 2, "slices": 3},
    ),
}  # fmt: skip

#: The same of stem_wgrad: few channels, two axes.
STEM_PLAIN: Options = {
    "kernel": "stem_wgrad", "tile.m": 64, "tile.k": 16, "stages": 2, "depth": 2, "warps.m": 4, "warps.n": 1,
    "slices": 1,
}  # fmt: skip
STEM_GEOMETRIES: dict[str, tuple[ConvProblem, Options]] = {
    "7x7, stride 2, bias": (make("wgrad", 2, 3, 40, (19, 37), (7, 7), 2, 3), {"warps.n": 2, "slices": 3}),
    "3x3, two stages a row, bias": (
        make("wgrad", 3, 3, 72, (9, 30), (3, 3), pad=1, dtype="bf16"), {"tile.m": 128, "warps.m": 8, "slices": 4},
    ),
    "11x11, stride 4": (
        make("wgrad", 2, 3, 40, (27, 51), (11, 11), 4, 2), {"warps.n": 3, "stages": 3, "slices": 2},
    ),
    "one channel, in planes": (
        laid_out(make("wgrad", 3, 1, 24, (12, 13), (5, 9), (1, 3), (2, (4, 5))), x="nchw", w="kcrs"), {"depth": 3},
    ),
    "y in planes, odd channels, bias": (
        laid_out(make("wgrad", 3, 3, 19, (9, 13), (3, 3), pad=1), x="nchw", y="nkpq", w="kcrs"), {"slices": 3},
    ),
    "two channels, rows far apart": (make("wgrad", 2, 2, 136, (17, 20), (2, 5), (3, 1), (1, 0)), {"slices": 2}),
    "vectors of a tap, columns far apart, bias": (
        typed(make("wgrad", 2, 5, 8, (8, 29), (3, 2), (2, 5), 1), w="f32"), {"depth": 3, "slices": 2},
    ),
}  # fmt: skip

#: The gradient of a bias beside the filter's, and the rows that have it.
BIAS = "result db: f32[k]  db = y  w = acc"
BIASES = {
    "boxes of a row", "two consumers along m, two fragments", "three consumers along n, a filter row each",
    "two parts of a consumer", "stride and dilation", "1x1", "channels before pixels, odd", "two large groups",
    "small groups as one", "8 and 4 bytes, large tile", "one by one",
    "few output channels, with a bias", "fewer output channels, with a bias",
    *(
        name
        for rows in (GEOMETRIES, ATOMIC_GEOMETRIES, MMA_ATOMIC_GEOMETRIES, STEM_GEOMETRIES)
        for name in rows
        if name.endswith(", bias")
    ),
}  # fmt: skip


def bias(name: str) -> str:
    """The epilogue of a row."""
    return BIAS if name in BIASES else ""
