"""Kernels whose blocks share sums: runs must not differ by the order in which blocks finish.

Results are f32 where that is possible, which no rounding to a narrower type makes equal again."""

from __future__ import annotations

from problems import make
from tma_specs import PLAIN, laid_out, typed

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options

_HALF = make("fprop", 8, 512, 256, (8, 8), (3, 3), pad=1)
_WIDE = typed(_HALF, y="f32")
_TILE: Options = {**PLAIN, "tile.m": 64, "tile.n": 64, "consumers": 1}
_SUMS = "result s: f32[{dims}]  result squares: f32[{dims}]  s = acc  squares = acc * acc  y = acc"
_CHANNELS, _IMAGES = _SUMS.format(dims="k"), _SUMS.format(dims="n, k")
_ROWS: Options = {"swap_ab": 1}
_ONE_SPLIT: Options = {"split_k": 2, "cluster": 2, "multicast": "a"}
_OTHER_SPLIT: Options = {"split_k": 4, "cluster": 2, "multicast": "b"}

#: By name: problem, options of tma_im2col, and epilogue.
TMA_SPLITS: dict[str, tuple[ConvProblem, Options, str]] = {
    "split in two": (_WIDE, {**_TILE, "split_k": 2}, ""),
    "split in four, channels as rows": (_WIDE, {**_TILE, **_ROWS, "split_k": 4}, ""),
    "split in eight": (_WIDE, {**_TILE, "split_k": 8}, ""),
    "split in eight, in place of stages": (_WIDE, {**_TILE, "tile.n": 128, "split_k": 8, "stages": 9}, ""),
    "split, clusters sharing x": (_WIDE, {**_TILE, **_ONE_SPLIT}, ""),
    "split, clusters sharing w": (_WIDE, {**_TILE, **_OTHER_SPLIT}, ""),
    "stream": (_WIDE, {**_TILE, "stream_k": 1}, ""),
    "stream, channels as rows": (_WIDE, {**_TILE, **_ROWS, "stream_k": 1}, ""),
    "sums of channels": (_HALF, _TILE, _CHANNELS),
    "sums of channels, split": (_HALF, {**_TILE, "split_k": 4}, _CHANNELS),
    "sums of channels as rows, split, clusters": (_HALF, {**_TILE, **_ROWS, **_ONE_SPLIT}, _CHANNELS),
    "sums of images": (_HALF, {**_TILE, **_ROWS}, _IMAGES),
    "sums of images, split, clusters": (_HALF, {**_TILE, **_OTHER_SPLIT}, _IMAGES),
    "sums of planes, stream": (laid_out(_HALF, y="nkpq"), {**_TILE, "stream_k": 1}, _CHANNELS),
}

#: By name: problem, options of implicit_gemm, and epilogue.
MMA_SPLITS: dict[str, tuple[ConvProblem, Options, str]] = {
    "mma_gemm": (_WIDE, {"kernel": "mma_gemm", "split_k": 6}, ""),
    "mma_wgrad": (
        typed(make("wgrad", 16, 64, 96, (28, 28), (3, 3), pad=1), w="f32"),
        {"kernel": "mma_wgrad", "slices": 16},
        "result db: f32[k]  db = y  w = acc",
    ),
    "mma_wgrad, small groups": (
        typed(make("wgrad", 16, 64, 64, (28, 28), (3, 3), pad=1, groups=16, dtype="bf16"), w="f32"),
        {"kernel": "mma_wgrad", "slices": 64, "group_pack": 8},
        "",
    ),
}
