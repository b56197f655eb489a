"""Layers whose sizes a call decides, small enough to be emulated: some for each kernel of its own limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from convgen import frontend
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]


@dataclass(frozen=True)
class Layer:
    """A conv block's text, in which {n}, {h} and {w} are sizes, and what settles its configuration."""

    text: str
    strategy: str
    options: Mapping[str, int | str] = field(default_factory=dict)

    def problem(self, n: int = 3, h: int = 9, w: int = 13) -> ConvProblem:
        (request,) = frontend.load(f"conv layer {{ {self.text.format(n=n, h=h, w=w)} }}")
        return request.problem

    def plan(self, problem: ConvProblem, **options: int | str) -> Plan:
        found, options = strategies.STRATEGIES[self.strategy], {**self.options, **options}
        obstacles = found.obstacles(problem, TARGET, options)
        assert not obstacles, obstacles
        return found.plan(problem, TARGET, options)


def _of(x: str, w: str, settings: str, epilogue: str = "", y: str = "n, p, q, k", dtype: str = "f16") -> str:
    body = f"epilogue {{{{ {epilogue} }}}}" if epilogue else ""
    return f"input x: {dtype}[{x}] filter w: {dtype}[{w}] output y: {dtype}[{y}] {settings} {body}"


RESIDUAL = "operand b: f32[k] operand z: f16[n, p, q, k] y = relu(acc + b + z)"
GATE = "operand g: f32[n, k] result t: f16[n, p, q, k] t = acc * g y = relu(t)"
NORM = "prologue {{ operand s: f32[c] operand e: f16[n, c] x = relu(x * s) * e }}"
LAYERS = {
    "tma_im2col, images": Layer(
        _of("n={n}, h=5, w=7, c=24", "k=40, r=3, s=3, c=24", "pad 1 dynamic n", GATE),
        "tma_im2col",
        {"tile.m": 128, "tile.n": 40, "swap_ab": 0},
    ),
    "tma_im2col, images as columns": Layer(
        _of("n={n}, h=5, w=7, c=24", "k=40, r=3, s=3, c=24", "pad 1 dynamic n", GATE),
        "tma_im2col",
        {"tile.m": 48, "tile.n": 64, "swap_ab": 1},
    ),
    "tma_im2col, prologue": Layer(
        _of("n={n}, h=5, w=7, c=24", "k=40, c=24", f"dynamic n {NORM}", RESIDUAL),
        "tma_im2col",
        {"tile.m": 128, "cluster": 1},
    ),
    "depthwise_stream, fma": Layer(
        _of("n={n}, h={h}, w={w}, c=64", "k=64, r=3, s=3", "pad 1 stride 2 groups 64 dynamic n h w", RESIDUAL),
        "depthwise",
        {"kernel": "depthwise_stream", "math": "fma", "strip": 5, "band": 2, "tile.p": 2, "slice": 32},
    ),
    "depthwise_stream, mma": Layer(
        _of("n={n}, h={h}, w={w}, c=64", "k=64, r=5, s=5", "pad 2 groups 64 dynamic n h w", GATE),
        "depthwise",
        {"kernel": "depthwise_stream", "math": "mma", "strip": 8, "band": 8, "tile.p": 8},
    ),
    "depthwise_stream, dgrad": Layer(
        _of("n={n}, h={h}, w={w}, c=64", "k=64, r=3, s=3", "pad 1 stride 2 groups 64 dynamic n h w op dgrad"),
        "depthwise",
        {"kernel": "depthwise_stream", "strip": 8, "band": 4},
    ),
    "stem_mma": Layer(
        _of("n={n}, c=3, h=11, w=14", "k=24, r=3, s=3, c=3", "pad 1 stride 2 dynamic n", GATE, "n, p, q, k", "f32"),
        "implicit_gemm",
        {"kernel": "stem_mma", "math": "tf32x3"},
    ),
    "stem_wgmma": Layer(
        _of("n={n}, h=21, w=19, c=3", "k=40, r=7, s=7, c=3", "pad 3 stride 2 dynamic n", RESIDUAL),
        "implicit_gemm",
        {"kernel": "stem_wgmma"},
    ),
    "small_groups": Layer(
        _of("n={n}, h=9, w=10, c=32", "k=32, r=3, s=3, c=4", "pad 1 groups 8 dynamic n", GATE),
        "implicit_gemm",
        {"kernel": "small_groups", "tile.p": 2},
    ),
    "tma_halo, images": Layer(
        _of("n={n}, h=7, w=6, c=16", "k=24, r=3, s=3, c=16", "pad 1 dynamic n", RESIDUAL), "tma_halo", {"images": 2}
    ),
    "tma_halo, fold": Layer(
        _of("n={n}, h={h}, w={w}, c=16", "k=16, r=3, s=3, c=16", "pad 1 dynamic n h w", GATE),
        "tma_halo",
        {"fold": 2, "strip": 10, "tile.m": 64},
    ),
    "tma_halo, strided": Layer(
        _of("n={n}, h={h}, w={w}, c=24", "k=40, r=3, s=3, c=24", "pad 1 stride 2 dynamic n h w", RESIDUAL),
        "tma_halo",
        {"strip": 5, "tile.m": 32},
    ),
    "tma_halo, three axes": Layer(
        _of("n={n}, d=3, h={h}, w={w}, c=24", "k=40, t=3, r=3, s=3, c=24", "pad 1 dynamic n h w", "", "n, k, o, p, q"),
        "tma_halo",
        {"tile.m": 64, "strip": 10},
    ),
    "tma_halo, dgrad": Layer(
        _of("n={n}, h=9, w=14, c=24", "k=16, r=3, s=3, c=24", "pad 1 dynamic n op dgrad"),
        "tma_halo",
        {"weight_stages": 2},
    ),
    "tma_halo, strided dgrad": Layer(
        _of("n={n}, h=9, w=14, c=24", "k=24, r=3, s=3, c=8", "pad 1 stride 2 groups 3 dynamic n op dgrad"),
        "tma_halo",
        {},
    ),
    "depthwise_direct": Layer(
        _of("n={n}, h={h}, w={w}, c=20", "k=40, r=3, s=3", "pad 1 stride h=1 w=2 groups 20 dynamic n h w", GATE),
        "depthwise",
        {"kernel": "depthwise_direct"},
    ),
    "depthwise_direct, planes": Layer(
        _of("n={n}, c=6, h={h}, w={w}", "k=6, r=3, s=3", "pad 1 groups 6 dynamic h w", RESIDUAL, "n, k, p, q"),
        "depthwise",
        {"kernel": "depthwise_direct"},
    ),
    "depthwise_direct, dgrad": Layer(
        _of("n={n}, h={h}, w={w}, c=20", "k=20, r=3, s=3", "pad 1 stride 2 groups 20 dynamic n h w op dgrad"),
        "depthwise",
        {"kernel": "depthwise_direct"},
    ),
}
