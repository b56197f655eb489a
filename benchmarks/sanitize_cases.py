"""What benchmarks/sanitize.py runs."""

from __future__ import annotations

import re

LAYER = """conv layer {{
  input x: f16[n={n}, h=13, w=15, c={c}]
  filter w: f16[k={k}, r=3, s=3, c={c}]
  output y: f16[n, p, q, k]
  pad 1
  stride {stride}
  epilogue {{
    operand b: f32[k]
    operand z: f16[n, p, q, k]
    y = relu(acc + b + z)
  }}
  strategy {strategy}
}}"""
GROUPS = """conv layer {{
  input x: f16[n=2, h=13, w=15, c={c}]
  filter w: f16[k={c}, r=3, s=3, c={of_group}]
  output y: f16[n, p, q, k]
  pad 1
  groups {groups}
  epilogue {{
    operand b: f32[k]
    operand z: f16[n, p, q, k]
    y = relu(acc + b + z)
  }}
  strategy {strategy}
}}"""
PLANES = """conv layer {{
  input x: f16[n=2, c={c}, h={h}, w={w}]
  filter w: f16[k={k}, c={c}, r={taps}, s={taps}]
  output y: f16[n, k, p, q]
  pad {pad}
  stride {stride}
  epilogue {{
    operand b: f32[k]
    operand z: f16[n, k, p, q]
    y = relu(acc + b + z)
  }}
  strategy {strategy}
}}"""
PLAIN = """conv layer {{
  input x: f16[n=3, h=13, w=15, c=72]
  filter w: f16[k=200, r=3, s=3, c=72]
  output y: f16[n, p, q, k]
  pad 1
  stride 2
  strategy {strategy}
}}"""
SUMS = """conv layer {{
  input x: f16[n=3, h=12, w=16, c=72]
  filter w: f16[k=200, r=3, s=3, c=72]
  output y: f16[n, p, q, k]
  pad 1
  epilogue {{
    operand b: f32[k]
    result s: f32[{dims}]
    result squares: f32[{dims}]
    t = acc + b
    s = t
    squares = t * t
    y = relu(t)
  }}
  strategy {strategy}
}}"""
PROLOGUE = """conv layer {{
  input x: f16[n=5, h=13, w=15, c=72 of 88]
  filter w: f16[k=136, c=72]
  output y: f16[n, p, q, k]
  stride {stride}
  prologue {{
    operand s: f32[c]
    operand g: f16[n, c]
    x = relu(x * s + g)
  }}
  epilogue {{
    operand b: f32[k]
    y = relu(acc + b)
  }}
  strategy {strategy}
}}"""
DEPTHWISE = """conv layer {{
  input x: f16[n=5, h=21, w=15, c=48]
  filter w: f16[k=48, r=5, s=5]
  output y: f16[n, p, q, k]
  groups 48
  pad 2
  epilogue {{
    operand b: f32[k]
    operand z: f16[n, p, q, k]
    y = relu(acc + b + z)
  }}
  strategy depthwise {{ {options} }}
}}"""
LOWERED = """conv layer {{
  input x: f16[n=2, h=13, w=15, c=24]
  filter w: f16[k=16, r=3, s=3, c=24]
  lowered m: f16[n*p*q, r*s*c]
  pad 1
  op {op}
  strategy {strategy}
}}"""
GRADIENT = """conv layer {{
  input x: f16[n=2, h=13, w=15, c=24]
  filter w: f16[k=16, r=3, s=3, c=24]
  output y: f16[n, p, q, k]
  stride 2
  pad 1
  op {op}
  strategy {strategy}
}}"""
GROUPED_DGRAD = """conv layer {{
  input x: f16[n=2, h=13, w=15, c={c}]
  filter w: f16[k={c}, r=3, s=3, c={of_group}]
  output y: f16[n, p, q, k]
  stride {stride}
  pad 1
  groups {groups}
  op dgrad
  strategy {strategy}
}}"""
WGRAD = """conv layer {{
  input x: f16[n=3, h=13, w=15, c={c}]
  filter w: f32[k={k}, r=3, s=3, c={of_group}]
  output y: f16[n, p, q, k]
  pad 1
  groups {groups}
  op wgrad
  epilogue {{
    result db: f32[k]
    db = y
    w = acc
  }}
  strategy {strategy}
}}"""


def wgrad(strategy: str, c: int = 72, k: int = 200, of_group: int = 0) -> str:
    return WGRAD.format(strategy=strategy, c=c, k=k, of_group=of_group or c, groups=c // (of_group or c))


def groups(strategy: str, c: int, of_group: int) -> str:
    return GROUPS.format(strategy=strategy, c=c, of_group=of_group, groups=c // of_group)


def layer(strategy: str, c: int = 72, k: int = 200, stride: int = 1, n: int = 2) -> str:
    return LAYER.format(strategy=strategy, c=c, k=k, stride=stride, n=n)


def planes(strategy: str, c: int, k: int, size: tuple[int, int], taps: int = 3, stride: int = 1) -> str:
    h, w = size
    return PLANES.format(strategy=strategy, c=c, k=k, h=h, w=w, taps=taps, pad=taps // 2, stride=stride)


def depthwise(options: str) -> str:
    return DEPTHWISE.format(options=options)


def sums(strategy: str, dims: str = "k") -> str:
    return SUMS.format(dims=dims, strategy=strategy)


def prologue(strategy: str, stride: int = 1) -> str:
    return PROLOGUE.format(strategy=strategy, stride=stride)


def dynamic(text: str) -> str:
    """The same, of sizes that a call decides."""
    return text.replace("conv layer {", "conv layer {\n  dynamic n h w", 1)


def slices(text: str) -> str:
    """The same, of channels of tensors that have more."""
    text = re.sub(r"(input .*c=(\d+))\]", lambda m: f"{m[1]} of {int(m[2]) + 8}]", text)
    return re.sub(r"(output .*|operand z.*) k\]", r"\1 k of 256]", text)


#: Specs by what is particular about them: every kernel, small problems with tails.
CASES = {
    "direct": layer("direct"),
    "im2col": layer("im2col"),
    "implicit_gemm": layer("implicit_gemm"),
    "implicit_gemm, few channels": layer("implicit_gemm { kernel stem_mma }", c=3, k=40, stride=2),
    "implicit_gemm, few channels by wgmma": layer("implicit_gemm { kernel stem_wgmma }", c=3, k=40, stride=2),
    "implicit_gemm, classes of columns by wgmma": layer("implicit_gemm { kernel stem_wgmma stages 1 }", c=3, k=40),
    "implicit_gemm, several tiles a block": layer(
        "implicit_gemm { kernel stem_wgmma stages 2 blocks 1 }", c=3, k=40, n=300
    ),
    "tma_im2col": layer("tma_im2col"),
    "tma_im2col, stride 2": layer("tma_im2col", stride=2),
    "tma_im2col, ping-pong": layer("tma_im2col { tile m=64 n=64 schedule pingpong consumers 2 }"),
    "tma_im2col, three consumers": layer("tma_im2col { tile m=192 n=96 consumers 3 }"),
    "tma_im2col, split, several tiles a block": (
        layer("tma_im2col { tile m=64 n=64 swap_ab 0 split_k 4 }", n=4).replace("h=13, w=15", "h=56, w=56")
    ),
    "tma_im2col, split": layer("tma_im2col { tile m=64 n=64 consumers 1 split_k 4 }"),
    "tma_im2col, merged": layer("tma_im2col { tile m=64 n=64 k=16 k_blocks 5 consumers 1 }", c=80),
    "tma_im2col, rows of channels": layer("tma_im2col { swap_ab 1 tile m=48 n=64 consumers 1 cluster 1 stream_k 0 }"),
    "tma_im2col, clusters sharing x": layer("tma_im2col { tile m=64 n=32 consumers 1 cluster 2 multicast a }"),
    "tma_im2col, clusters sharing w": layer("tma_im2col { tile m=64 n=64 consumers 1 cluster 2 multicast b raster 2 }"),
    "tma_im2col, odd channels": layer("tma_im2col { tile m=64 n=64 consumers 2 schedule pingpong swap_ab 0 }", k=135),
    "tma_im2col, odd channels as rows": layer("tma_im2col { tile m=48 n=64 consumers 1 swap_ab 1 }", k=135),
    "tma_im2col, wide epilogue tiles": layer("tma_im2col { tile m=128 n=144 swap_ab 0 }"),
    "tma_im2col, last channels": layer("tma_im2col { tile m=64 n=64 k=64 consumers 1 k_blocks 1 }", c=136),
    "tma_halo, last channels": layer("tma_halo { tile k=64 weight_stages 0 }", c=72, k=64),
    "tma_halo, last channels, streamed": layer("tma_halo { tile k=64 weight_stages 4 }", c=136, k=64),
    "tma_im2col, resident filters": layer(
        "tma_im2col { resident 1 tile m=64 n=72 k=64 swap_ab 0 consumers 2 schedule pingpong }", c=40, k=72
    ),
    "tma_im2col, resident filters in a cluster": layer(
        "tma_im2col { resident 1 cluster 4 multicast a tile m=64 n=40 k=64 swap_ab 0 consumers 2 schedule pingpong }",
        c=40,
        k=136,
    ),
    "tma_im2col, resident filters in clusters, channels as rows": layer(
        "tma_im2col { resident 1 cluster 2 multicast a tile m=64 n=64 k=32 swap_ab 1 consumers 1 }", c=72, k=200
    ),
    "tma_im2col, resident filters in parts": layer(
        "tma_im2col { resident 1 tile m=64 n=64 k=32 swap_ab 1 consumers 1 }", c=72, k=136
    ),
    "tma_im2col, stream": layer("tma_im2col { tile m=64 n=64 consumers 1 stream_k 1 }"),
    "tma_im2col, split, clusters sharing x": layer(
        "tma_im2col { tile m=64 n=32 consumers 1 split_k 2 cluster 2 multicast a }"
    ),
    "tma_im2col, split, clusters sharing w": layer(
        "tma_im2col { tile m=128 n=64 consumers 2 split_k 4 cluster 2 multicast b }"
    ),
    "tma_plain": PLAIN.format(strategy="tma_im2col { kernel tma_plain tile n=64 }"),
    "sums of channels, tma_im2col": sums("tma_im2col { tile m=64 n=64 consumers 1 swap_ab 0 split_k 1 }"),
    "sums of channels, channels as rows, split": sums("tma_im2col { tile m=64 n=64 consumers 1 swap_ab 1 split_k 2 }"),
    "sums of channels, planes, stream": SUMS.replace("n, p, q, k]", "n, k, p, q]").format(
        dims="k", strategy="tma_im2col { tile m=64 n=64 consumers 1 stream_k 1 }"
    ),
    "sums of channels, direct": sums("direct"),
    "sums of images, tma_im2col": sums("tma_im2col { tile m=64 n=64 consumers 1 swap_ab 0 split_k 1 }", "n, k"),
    "sums of images, channels as rows": sums("tma_im2col { tile m=32 n=64 consumers 1 swap_ab 1 split_k 1 }", "n, k"),
    "sums of images, split": sums("tma_im2col { tile m=64 n=64 consumers 1 swap_ab 0 split_k 2 }", "n, k"),
    "prologue, tma_im2col": prologue("tma_im2col { tile m=64 n=64 schedule cooperative consumers 1 }"),
    "prologue, tma_im2col, ping-pong": prologue("tma_im2col { tile m=128 schedule pingpong consumers 2 }", stride=2),
    "prologue, tma_im2col, channels as rows, split": prologue("tma_im2col { swap_ab 1 split_k 2 consumers 1 }"),
    "prologue, direct": prologue("direct"),
    "dynamic sizes, direct": dynamic(layer("direct")),
    "dynamic sizes, mma_gemm": dynamic(layer("implicit_gemm { kernel mma_gemm }")),
    "dynamic sizes, tma_im2col": dynamic(layer("tma_im2col { tile m=64 n=64 schedule pingpong consumers 2 }")),
    "dynamic sizes, tma_im2col, split": dynamic(layer("tma_im2col { tile m=64 n=64 swap_ab 0 split_k 2 }")),
    "dynamic sizes, tma_halo": dynamic(layer("tma_halo", c=64, k=64)),
    "dynamic sizes, depthwise": dynamic(depthwise("kernel depthwise_stream math fma")),
    "tma_halo, channels": layer("tma_halo { swap_ab 1 }", c=64, k=64),
    "tma_halo, pixels": layer("tma_halo { swap_ab 0 }", c=64, k=32),
    "groups, tma_im2col": groups("tma_im2col { group_pack 4 }", c=64, of_group=4),
    "groups, small_groups": groups("implicit_gemm { kernel small_groups }", c=64, of_group=4),
    "groups, tma_halo": groups("tma_halo { group_pack 1  fold 1 }", c=64, of_group=32),
    "groups, tma_halo, ends inside a product": groups("tma_halo { group_pack 1  weight_stages 3 }", c=112, of_group=56),
    "groups, tma_halo, bundles": groups("tma_halo { group_pack 8  fold 1 }", c=64, of_group=4),
    "groups, tma_halo, folded": groups("tma_halo { group_pack 4  fold 4 }", c=64, of_group=4),
    "planes, tma_im2col": planes("tma_im2col", 75, 72, (16, 10)),
    "planes, tma_im2col, odd": planes("tma_im2col", 136, 71, (13, 15)),
    "planes, tma_im2col, 1x1": planes("tma_im2col", 136, 72, (16, 10), taps=1),
    "planes, tma_im2col, 1x1, stride 2": planes("tma_im2col", 72, 72, (16, 10), taps=1, stride=2),
    "planes, float32": planes("implicit_gemm { kernel mma_gemm relayout 1 }", 42, 72, (16, 10)).replace("f16", "f32"),
    "planes, tma_halo": planes("tma_halo", 64, 64, (13, 15)),
    "planes, few channels by wgmma": planes("implicit_gemm { kernel stem_wgmma }", 3, 40, (32, 30), taps=7, stride=2),
    "depthwise, direct": depthwise("kernel depthwise_direct"),
    "depthwise, stream": depthwise(
        "kernel depthwise_stream math fma tile p=2 q=4 vector 4 slice 24 strip 8 band 4 stages 3"
    ),
    "depthwise, two channels a product": depthwise(
        "kernel depthwise_stream math mma tile p=4 q=16 vector 8 slice 48 strip 15 band 4 stages 3 threads 192"
    ),
    "depthwise, the same with bands in shared memory": DEPTHWISE.replace("r=5, s=5", "r=7, s=7")
    .replace("pad 2", "pad 3")
    .format(
        options="kernel depthwise_stream math mma tile p=8 q=8 vector 8 slice 16 strip 8 band 8 stages 3 threads 128"
    ),
    "slices, direct": slices(layer("direct")),
    "slices, implicit_gemm": slices(layer("implicit_gemm")),
    "slices, tma_im2col": slices(layer("tma_im2col")),
    "slices, tma_im2col, odd channels": slices(layer("tma_im2col { tile m=64 n=64 consumers 1 swap_ab 0 }", k=135)),
    "slices, tma_halo": slices(layer("tma_halo", c=64, k=64)),
    "slices, depthwise": slices(depthwise("kernel depthwise_stream math fma")),
    "direct dgrad": GRADIENT.format(op="dgrad", strategy="direct"),
    "direct wgrad": GRADIENT.format(op="wgrad", strategy="direct"),
    "winograd": layer("winograd { tile 4 product mma_gemm }"),
    "winograd, products by TMA": layer("winograd { tile 2 product tma_im2col }"),
    "winograd, slices": slices(layer("winograd { tile 2 product mma_gemm }")),
    "winograd, fused": layer("winograd { form fused schedule pingpong weight_stages 0 }"),
    "winograd, fused, streamed": layer("winograd { form fused schedule cooperative weight_stages 2 }"),
    "strided dgrad, implicit_gemm": GRADIENT.format(op="dgrad", strategy="implicit_gemm { kernel mma_gemm }"),
    "dgrad, implicit_gemm, groups": GROUPED_DGRAD.format(
        c=60, of_group=20, groups=3, stride=1, strategy="implicit_gemm { kernel mma_gemm }"
    ),
    "im2col dgrad": GRADIENT.format(op="dgrad", strategy="im2col"),
    "im2col dgrad, scatter": GRADIENT.format(op="dgrad", strategy="im2col { method scatter }"),
    "im2col wgrad": GRADIENT.format(op="wgrad", strategy="im2col"),
    "im2col wgrad, planes": GRADIENT.replace("n, p, q, k", "n, k, p, q").format(op="wgrad", strategy="im2col"),
    "wgrad, tma_wgrad": wgrad("tma_im2col { kernel tma_wgrad row_taps 1 slices 3 split_k 1 }"),
    "wgrad, tma_wgrad, halo": wgrad("tma_im2col { kernel tma_wgrad halo 1 slices 3 split_k 1 }"),
    "wgrad, tma_wgrad, atomic": wgrad("tma_im2col { kernel tma_wgrad row_taps 0 slices 3 sums atomic }"),
    "wgrad, tma_wgrad, split": wgrad("tma_im2col { kernel tma_wgrad split_k 4 slices 2 }"),
    "wgrad, tma_wgrad, clusters sharing y": wgrad("tma_im2col { kernel tma_wgrad tile n=192 cluster 2 multicast a }"),
    "wgrad, tma_wgrad, clusters sharing x": wgrad("tma_im2col { kernel tma_wgrad tile m=64 cluster 4 multicast b }"),
    "wgrad, tma_wgrad, fewer groups": wgrad("tma_im2col { kernel tma_wgrad group_pack 2 }", c=72, k=72, of_group=24),
    "wgrad, tma_wgrad, boxes that end": wgrad("tma_im2col { kernel tma_wgrad tile m=128 n=256 span 64 halo 0 }", k=136),
    "wgrad, mma_wgrad": wgrad("implicit_gemm { kernel mma_wgrad slices 3 }"),
    "wgrad, mma_wgrad, packed groups, slices": wgrad(
        "implicit_gemm { kernel mma_wgrad group_pack 8 slices 2 }", c=64, k=64, of_group=4
    ),
    "wgrad, stem_wgrad": wgrad("implicit_gemm { kernel stem_wgrad tile k=16 slices 3 }", c=3),
    "wgrad, depthwise_wgrad": wgrad("depthwise { kernel depthwise_wgrad slices 3 loads own }", k=72, of_group=1),
    "wgrad, depthwise_wgrad, shared rows": wgrad(
        "depthwise { kernel depthwise_wgrad split_k 4 loads shared }", k=72, of_group=1
    ),
    "strided dgrad": GRADIENT.format(
        op="dgrad", strategy="tma_im2col { tile m=64 n=64 stages 3 consumers 2 schedule pingpong }"
    ),
    "strided dgrad, channels as rows": GRADIENT.format(
        op="dgrad", strategy="tma_im2col { tile m=64 n=64 stages 2 consumers 1 schedule cooperative swap_ab 1 }"
    ),
    "strided dgrad, tma_halo": GRADIENT.format(op="dgrad", strategy="tma_halo"),
    "strided dgrad, tma_halo, groups": GROUPED_DGRAD.format(
        c=72, of_group=24, groups=3, stride=2, strategy="tma_halo { group_pack 2 }"
    ),
    "dgrad, tma_halo, groups": GROUPED_DGRAD.format(
        c=64, of_group=8, groups=8, stride=1, strategy="tma_halo { group_pack 4  fold 2 }"
    ),
    "im2col of itself": LOWERED.format(op="im2col", strategy="im2col"),
    "im2col, an element a thread": LOWERED.format(op="im2col", strategy="im2col { form loop_free }"),
    "im2col, a window a thread": LOWERED.format(op="im2col", strategy="im2col { form taps }"),
    "im2col, a pixel a thread": LOWERED.format(op="im2col", strategy="im2col { form pixel }"),
    "col2im of itself": LOWERED.format(op="col2im", strategy="im2col"),
}
