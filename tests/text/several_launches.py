"""Plans of several launches that share memory, by the way in which they come to them: what a spec says but for `pad 1`,
and the strategy.  Their tensors are small enough for f16 to hold sums of products of -1, 0 and 1."""

from __future__ import annotations

CHANNELS_LAST = "input x: f16[n=8, h=14, w=14, c=64]  filter w: f16[k=64, r=3, s=3, c=64]  output y: f16[n, p, q, k]"
_CHANNELS_FIRST = "input x: f16[n=8, c=64, h=14, w=14]  filter w: f16[k=64, c=64, r=3, s=3]  output y: f16[n, k, p, q]"
_FEW_TILES = "input x: f16[n=8, h=7, w=7, c=512]  filter w: f16[k=512, r=3, s=3, c=512]  output y: f16[n, p, q, k]"
_FIRST_LAYER = "input x: f16[n=8, h=14, w=14, c=3]  filter w: f32[k=64, r=3, s=3, c=3]  output y: f16[n, p, q, k]"
_DEPTHWISE = "input x: f16[n=8, h=14, w=14, c=64]  filter w: f32[k=64, r=3, s=3]  output y: f16[n, p, q, k]  groups 64"
_IMAGES = CHANNELS_LAST.replace("14", "16")
_SUMS = "epilogue {{ result s: f32[{dims}]  result a: f32[{dims}]  s = acc  a = abs(acc)  y = acc }}"

PLANS = {
    "im2col wgrad": (f"{CHANNELS_LAST} op wgrad", "im2col"),
    "split_k": (CHANNELS_LAST, "implicit_gemm { kernel mma_gemm  split_k 4 }"),
    "NCHW": (_CHANNELS_FIRST, "tma_im2col"),
    "stream_k": (_FEW_TILES, "tma_im2col { stream_k 1 }"),
    "winograd": (CHANNELS_LAST, "winograd { tile 2  product mma_gemm }"),
    "winograd, products by TMA": (CHANNELS_LAST, "winograd { tile 2  product tma_im2col }"),
    "winograd fused": (_IMAGES, "winograd { form fused }"),
    "relayout": (_CHANNELS_FIRST.replace("f16", "f32"), "implicit_gemm { kernel mma_gemm  relayout 1 }"),
    "sums of channels": (f"{CHANNELS_LAST} {_SUMS.format(dims='k')}", "tma_im2col"),
    "sums of channels, direct": (f"{CHANNELS_LAST} {_SUMS.format(dims='k')}", "direct"),
    "sums of images": (f"{_IMAGES} {_SUMS.format(dims='n, k')}", "tma_im2col"),
    "tma_wgrad": (f"{CHANNELS_LAST} op wgrad", "tma_im2col { kernel tma_wgrad  slices 4 }"),
    "lower_rows": (f"{_FIRST_LAYER} op wgrad", "tma_im2col { kernel tma_wgrad  lower_rows 1  slices 4 }"),
    "mma_wgrad": (f"{CHANNELS_LAST} op wgrad", "implicit_gemm { kernel mma_wgrad  slices 4 }"),
    "stem_wgrad": (f"{_FIRST_LAYER} op wgrad", "implicit_gemm { kernel stem_wgrad  slices 4 }"),
    "depthwise_wgrad": (f"{_DEPTHWISE} op wgrad", "depthwise { kernel depthwise_wgrad  slices 4 }"),
    "depthwise_wgrad, sums": (
        f"{_DEPTHWISE} op wgrad  epilogue {{ result s: f32[k]  s = y  w = acc }}",
        "depthwise { kernel depthwise_wgrad  slices 4 }",
    ),
    "strided dgrad, NCHW": (f"{_CHANNELS_FIRST} stride 2  op dgrad", "tma_im2col"),
    "strided dgrad, sums": (
        f"{CHANNELS_LAST} stride 2  op dgrad  epilogue {{ result s: f32[c]  s = acc  x = acc }}",
        "tma_im2col",
    ),
    "strided dgrad, scattered": (f"{CHANNELS_LAST} stride 2  op dgrad", "im2col { method scatter }"),
}
