"""The goldens made small, to be emulated: their specs with the extents of a row here, one for each of specs/golden."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from convgen import driver
from convgen.ir.plan import Plan
from convgen.planner import database
from convgen.spec import read


@dataclass(frozen=True)
class Small:
    """Extents that replace the golden's, by letter, its groups, and multiprocessors enough for few blocks."""

    extents: Mapping[str, int]
    groups: int = 1
    sms: int = 1


GEOMETRIES = {
    "col2im_gather": Small({"n": 2, "h": 7, "w": 9, "c": 3, "k": 4}),
    "depthwise_bands": Small({"n": 3, "h": 11, "w": 59, "c": 96, "k": 96}, groups=96),
    "depthwise_dgrad": Small({"n": 3, "h": 9, "w": 31, "c": 144, "k": 144}, groups=144),
    "depthwise_gradient_sums": Small({"n": 5, "h": 7, "w": 9, "c": 1152, "k": 1152}, groups=1152),
    "depthwise_mma": Small({"n": 3, "h": 27, "w": 29, "c": 128, "k": 128}, groups=128),
    "depthwise_nhwc": Small({"n": 12, "h": 25, "w": 21, "c": 10, "k": 10}, groups=10),
    "depthwise_statistics": Small({"n": 4, "h": 9, "w": 15, "c": 576, "k": 576}, groups=576),
    "depthwise_stream": Small({"n": 3, "h": 9, "w": 31, "c": 144, "k": 144}, groups=144),
    "depthwise_strided_dgrad": Small({"n": 3, "h": 9, "w": 59, "c": 96, "k": 96}, groups=96),
    "depthwise_wgrad": Small({"n": 33, "h": 16, "w": 10, "c": 40, "k": 40}, groups=40),
    "depthwise_wgrad_shared": Small({"n": 2, "h": 9, "w": 39, "c": 104, "k": 104}, groups=104),
    "direct_depthwise": Small({"n": 2, "h": 7, "w": 9, "c": 5, "k": 5}, groups=5),
    "direct_dgrad": Small({"n": 2, "h": 9, "w": 7, "c": 5, "k": 6}),
    "direct_dynamic": Small({"n": 2, "h": 9, "w": 7, "c": 5, "k": 8}),
    "direct_sums": Small({"n": 7, "h": 9, "w": 9, "c": 3, "k": 32}),
    "direct_wgrad": Small({"n": 2, "h": 7, "w": 6, "c": 5, "k": 7}),
    "im2col_gemm": Small({"n": 3, "h": 7, "w": 6, "c": 5, "k": 9}),
    "im2col_lowered": Small({"n": 2, "h": 9, "w": 7, "c": 3, "k": 4}),
    "im2col_planes": Small({"n": 3, "h": 9, "w": 7, "c": 3, "k": 4}),
    "im2col_pixel": Small({"n": 2, "h": 9, "w": 7, "c": 3, "k": 4}),
    "im2col_channels": Small({"n": 2, "h": 5, "w": 6, "c": 16, "k": 5}),
    "im2col_taps": Small({"n": 2, "h": 9, "w": 7, "c": 3, "k": 4}),
    "implicit_gemm_cardinality": Small({"n": 3, "h": 13, "w": 11, "c": 64, "k": 64}, groups=8),
    "implicit_gemm_dynamic": Small({"n": 3, "h": 31, "w": 26, "c": 3, "k": 72}),
    "implicit_gemm_f32": Small({"n": 2, "h": 7, "w": 9, "c": 28, "k": 72}),
    "implicit_gemm_first_layer": Small({"n": 3, "h": 61, "w": 56, "c": 3, "k": 72}),
    "implicit_gemm_first_layer_wgmma": Small({"n": 3, "h": 58, "w": 56, "c": 3, "k": 72}),
    "implicit_gemm_fp8": Small({"n": 2, "h": 9, "w": 11, "c": 48, "k": 136}),
    "implicit_gemm_grouped": Small({"n": 3, "h": 10, "w": 12, "c": 80, "k": 144}, groups=2),
    "implicit_gemm_pieces": Small({"n": 2, "h": 7, "w": 10, "c": 28, "k": 72}),
    "implicit_gemm_planes": Small({"n": 2, "h": 6, "w": 6, "c": 70, "k": 72}),
    "implicit_gemm_strided_dgrad": Small({"n": 3, "h": 25, "w": 19, "c": 136, "k": 72}),
    "implicit_gemm_s8": Small({"n": 2, "h": 7, "w": 9, "c": 80, "k": 144}),
    "tl_conv1d_im2col": Small({"n": 7, "w": 104, "k": 40}),
    "tma_halo_dynamic": Small({"n": 9, "h": 6, "w": 7, "c": 40, "k": 72}, sms=2),
    "tma_halo_three_axes": Small({"n": 2, "d": 3, "h": 6, "w": 70, "c": 72, "k": 40}, sms=2),
    "tma_im2col_1d": Small({"n": 3, "w": 101, "c": 72, "k": 104}),
    "tma_im2col_1x1": Small({"n": 3, "h": 9, "w": 11, "c": 168, "k": 264}),
    "tma_im2col_1x1_nchw": Small({"n": 3, "h": 8, "w": 8, "c": 328, "k": 264}),
    "tma_im2col_3d_dilated": Small({"n": 2, "d": 5, "h": 8, "w": 11, "c": 72, "k": 44}),
    "tma_im2col_3x3": Small({"n": 7, "h": 9, "w": 7, "c": 72, "k": 264}, sms=2),
    "tma_im2col_channels_as_rows": Small({"n": 3, "h": 7, "w": 9, "c": 520, "k": 136}),
    "tma_im2col_cluster": Small({"n": 3, "h": 13, "w": 11, "c": 136, "k": 264}, sms=2),
    "tma_im2col_dilated_far": Small({"c": 72, "k": 72}, sms=2),
    "tma_im2col_dynamic": Small({"n": 3, "h": 9, "w": 7, "c": 72, "k": 136}),
    "tma_im2col_further_result": Small({"n": 7, "h": 9, "w": 11, "c": 264, "k": 264}),
    "tma_im2col_grouped_dgrad": Small({"n": 5, "h": 17, "w": 15, "c": 64, "k": 64}, groups=8),
    "tma_im2col_groups": Small({"n": 3, "h": 17, "w": 15, "c": 64, "k": 64}, groups=16),
    "tma_im2col_last_channels": Small({"n": 3, "h": 9, "w": 11, "c": 72, "k": 328}),
    "tma_im2col_nchw": Small({"n": 3, "h": 12, "w": 16, "c": 19, "k": 72}),
    "tma_im2col_odd_channels": Small({"n": 3, "h": 9, "w": 10, "c": 392, "k": 263}),
    "tma_im2col_one_step": Small({"n": 7, "h": 9, "w": 11, "c": 56}, sms=1),
    "tma_im2col_pingpong": Small({"n": 5, "h": 7, "w": 7, "c": 136, "k": 264}),
    "tma_im2col_prologue": Small({"n": 3, "h": 13, "w": 11, "c": 328, "k": 136}),
    "tma_im2col_resident": Small({"n": 15, "h": 9, "w": 11, "c": 104, "k": 72}),
    "tma_im2col_resident_cluster": Small({"n": 5, "h": 9, "w": 11, "c": 104, "k": 440}, sms=4),
    "tma_im2col_residual": Small({"n": 3, "h": 9, "w": 11, "c": 328, "k": 264}),
    "tma_im2col_slices": Small({"n": 3, "h": 9, "w": 11, "c": 72, "k": 168}),
    "tma_im2col_split_k": Small({"n": 3, "h": 7, "w": 6, "c": 264, "k": 72}, sms=4),
    "tma_im2col_split_k_cluster": Small({"n": 3, "h": 7, "w": 6, "c": 328, "k": 168}, sms=8),
    "tma_im2col_split_k_in_place": Small({"n": 5, "h": 7, "w": 6, "c": 136, "k": 520}, sms=4),
    "tma_im2col_statistics": Small({"n": 3, "h": 9, "w": 11, "c": 136, "k": 136}, sms=1),
    "tma_im2col_stream_k": Small({"n": 137, "h": 7, "w": 9, "c": 40, "k": 168}),
    "tma_im2col_strided_dgrad": Small({"n": 3, "h": 15, "w": 13, "c": 264, "k": 72}),
    "tma_im2col_transposed": Small({"n": 3, "h": 13, "w": 11, "c": 392, "k": 136}, sms=2),
    "tma_im2col_strided_7x7": Small({"n": 3, "h": 21, "w": 19, "c": 24, "k": 136}),
    "tma_plain_3x3": Small({"n": 3, "h": 9, "w": 7, "c": 72, "k": 72}),
    "mma_wgrad": Small({"n": 21, "h": 9, "w": 7, "c": 40, "k": 136}),
    "mma_wgrad_few_channels": Small({"n": 21, "h": 9, "w": 7, "c": 40, "k": 40}),
    "stem_wgrad": Small({"n": 3, "h": 17, "w": 227, "c": 3, "k": 40}),
    "winograd_fused": Small({"n": 2, "h": 30, "w": 35, "c": 40, "k": 72}),
    "winograd_fused_streamed": Small({"n": 3, "h": 12, "w": 37, "c": 136, "k": 72}, sms=2),
    "winograd_f32": Small({"n": 2, "h": 9, "w": 11, "c": 136, "k": 72}),
    "tma_wgrad_3x3": Small({"n": 23, "h": 9, "w": 7, "c": 72, "k": 136}),
    "tma_wgrad_halo": Small({"n": 49, "h": 13, "w": 10}),
    "tma_wgrad_atomic": Small({"n": 29, "h": 9, "w": 7, "c": 72, "k": 136}),
    "tma_wgrad_cluster": Small({"n": 21, "h": 9, "w": 7, "c": 40, "k": 136}),
    "tma_wgrad_ends": Small({"n": 73, "h": 9, "w": 7, "c": 136, "k": 136}),
    "tma_wgrad_accumulated": Small({"n": 46, "h": 15, "w": 11, "c": 40, "k": 72}),
    "tma_halo_dgrad": Small({"n": 2, "h": 5, "w": 80, "c": 72, "k": 40}, sms=2),
    "tma_halo_wide_groups": Small({"n": 3, "h": 17, "w": 31, "c": 48, "k": 80}, groups=2, sms=2),
    "tma_halo_many_taps": Small({"n": 2, "h": 13, "w": 45, "c": 24, "k": 40}, sms=2),
    "tma_halo_strided_dgrad": Small({"n": 2, "h": 31, "w": 75, "c": 72, "k": 72}, groups=3, sms=4),
    "tma_halo_few_channels": Small({"n": 2, "h": 5, "w": 80, "c": 40, "k": 72}, sms=2),
    "tma_halo_fold": Small({"n": 2, "h": 29, "w": 39, "c": 32, "k": 32}, groups=8, sms=2),
    "tma_halo_groups": Small({"n": 27, "h": 7, "w": 9, "c": 64, "k": 64}, groups=2, sms=4),
    "tma_halo_last_channels": Small({"n": 2, "h": 11, "w": 53, "c": 72, "k": 72}, sms=2),
    "tma_halo_nchw": Small({"n": 3, "h": 9, "w": 20, "c": 40, "k": 72}, sms=2),
    "tma_halo_statistics": Small({"n": 3, "h": 5, "w": 75, "c": 40, "k": 72}, sms=2),
    "tma_halo_pixels": Small({"n": 2, "h": 11, "w": 17, "c": 24, "k": 40}, sms=2),
    "tma_halo_residual": Small({"n": 2, "h": 6, "w": 61, "c": 40, "k": 72}, sms=2),
    "tma_halo_streamed": Small({"n": 8, "h": 7, "w": 7, "c": 136, "k": 136}, sms=2),
    "tma_halo_stride": Small({"n": 2, "h": 19, "w": 33, "c": 40, "k": 72}, sms=2),
}

ROOT = Path(__file__).parents[2]
SPECS = {path.stem: path for path in sorted((ROOT / "specs" / "golden").glob("*.conv"))}


def spec(name: str) -> driver.Spec:
    return driver.Spec(*read(SPECS[name]))


@contextmanager
def untuned() -> Iterator[None]:
    """Without what was measured: goldens are chosen by cost models alone."""
    lookup = database.lookup
    database.lookup = lambda *_, **__: None
    try:
        yield
    finally:
        database.lookup = lookup


@cache
def golden_plan(name: str) -> Plan:
    with untuned():
        (only,) = driver.choose_all(spec(name))
        return only.plan


def shrunk(name: str) -> str:
    """The golden's spec with the small extents, and every option of its plan said."""
    text, small, plan = spec(name).text, GEOMETRIES[name], golden_plan(name)
    for letter, extent in small.extents.items():
        text, count = re.subn(rf"\b{letter}=\d+(?=[\],]| of )", f"{letter}={extent}", text)
        assert count, f"specs/golden/{name}.conv has no extent of {letter}"
    if small.groups > 1:
        # a filter's channels are a group's
        text = re.sub(r"(filter.*\bc=)\d+", lambda m: f"{m[1]}{small.extents['c'] // small.groups}", text)
        text = re.sub(r"groups \d+", f"groups {small.groups}", text)
    said = "  ".join(
        f"tile {name[5:]}={v}" if name[:5] == "tile." else f"warps {name[6:]}={v}" if name[:6] == "warps." else
        f"{name} {v}" for name, v in plan.options.items()
    )  # fmt: skip
    text, count = re.subn(r"strategy \w+( \{.*\})?", f"strategy {plan.strategy} {{ {said} }}", text)
    assert count == 1
    return text
