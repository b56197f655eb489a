"""Convolutions of channel slices."""

from __future__ import annotations

#: A conv for each kernel, and each way in which it loads and stores.
KERNELS = {
    "mma_gemm": """
      input x: f16[n=2, h=5, w=6, c=16 of 24]
      filter w: f16[k=24, r=3, s=3, c=16 of 32]
      output y: f16[n, p, q, k of 40]
      epilogue {
        operand z: f16[n, p, q, k of 25]
        operand b: f32[n, k of 26]
        result t: f16[n, p, q, k of 28]
        t = acc + z * b
        y = relu(t)
      }
      strategy implicit_gemm { kernel mma_gemm }""",
    "mma_gemm, split": """
      input x: f16[n=1, h=5, w=6, c=40 of 60]
      filter w: f16[r=1, s=1, c=40, k=12 of 20]
      output y: f32[n, p, q, k of 14]
      strategy implicit_gemm { kernel mma_gemm  split_k 2 }""",
    "mma_gemm, one channel": """
      input x: f16[n=2, h=5, w=6, c=1 of 3]
      filter w: f16[k=1, r=3, s=3]
      output y: f16[n, p, q, k of 8]
      epilogue { operand z: f16[n, p, q, k of 2]  y = acc + z }
      strategy implicit_gemm { kernel mma_gemm }""",
    "small_groups": """
      input x: f16[n=2, h=5, w=6, c=32 of 48]
      filter w: f16[k=32, r=3, s=3, c=8 of 12]
      output y: f16[n, p, q, k of 36]
      groups 4
      strategy implicit_gemm { kernel small_groups }""",
    "stem_mma": """
      input x: f16[n=1, h=9, w=8, c=3]
      filter w: f16[k=16, r=3, s=3, c=3 of 4]
      output y: f16[n, p, q, k of 24]
      strategy implicit_gemm { kernel stem_mma }""",
    "stem_wgmma": """
      input x: f16[n=1, h=9, w=8, c=3]
      filter w: f16[k=16, r=3, s=3, c=3]
      output y: f16[n, p, q, k of 20]
      strategy implicit_gemm { kernel stem_wgmma }""",
    "depthwise_direct": """
      input x: f16[n=2, h=5, w=6, c=12 of 18]
      filter w: f16[k=12, r=3, s=3]
      output y: f16[n, p, q, k of 20]
      groups 12
      strategy depthwise { kernel depthwise_direct }""",
    "depthwise_stream": """
      input x: f16[n=1, h=9, w=9, c=32 of 48]
      filter w: f16[k=32, r=3, s=3]
      output y: f16[n, p, q, k of 40]
      groups 32  pad 1
      strategy depthwise { kernel depthwise_stream  math fma }""",
    "depthwise_stream, mma": """
      input x: f16[n=1, h=9, w=9, c=32 of 48]
      filter w: f16[k=32, r=3, s=3]
      output y: f16[n, p, q, k of 40]
      groups 32  pad 1
      strategy depthwise { kernel depthwise_stream  math mma }""",
    "tma_im2col": """
      input x: f16[n=1, h=9, w=8, c=64 of 96]
      filter w: f16[k=64, r=3, s=3, c=64 of 72]
      output y: f16[n, p, q, k of 128]
      epilogue { operand z: f16[n, p, q, k of 80]  y = relu(acc + z) }
      pad 1
      strategy tma_im2col""",
    "tma_im2col, by threads": """
      input x: f16[n=1, h=9, w=8, c=64 of 72]
      filter w: f16[k=64, r=1, s=1, c=64]
      output y: f16[n, p, q, k of 66]
      epilogue { operand z: f32[n, p, q, k of 67]  operand v: f16[n, p, q, k of 70]  y = acc * z + v }
      strategy tma_im2col""",
    "tma_im2col, copies of x and w": """
      input x: f16[n=1, h=5, w=6, c=64 of 68]
      filter w: f16[r=3, s=3, c=64, k=64 of 72]
      output y: f32[n, p, q, k of 67]
      strategy tma_im2col""",
    "tma_im2col, padded copy of x": """
      input x: f16[n=1, h=5, w=6, c=64 of 72]
      filter w: f16[k=64, r=3, s=3, c=64]
      output y: f16[n, p, q, k of 72]
      pad 1 reflect
      strategy tma_im2col""",
    "tma_im2col, channels that TMA fills up": """
      input x: f16[n=2, h=9, w=8, c=18 of 24]
      filter w: f16[k=24, r=3, s=3, c=18]
      output y: f16[n, p, q, k of 32]
      stride 2  pad 1
      strategy tma_im2col""",
    "tma_im2col, rows that TMA fills up": """
      input x: f16[n=1, h=9, w=8, c=83 of 96]
      filter w: f16[k=40, r=1, s=1, c=83]
      output y: f16[n, p, q, k of 42]
      strategy tma_im2col""",
    "tma_im2col, gradients that TMA fills up": """
      input x: f16[n=1, h=7, w=6, c=24 of 32]
      filter w: f16[k=18, r=3, s=3, c=24]
      output y: f16[n, p, q, k of 40]
      stride 2  pad 1  op dgrad
      strategy tma_im2col""",
    "tma_halo, channels that TMA fills up": """
      input x: f16[n=2, h=9, w=8, c=18 of 24]
      filter w: f16[k=24, r=3, s=3, c=18]
      output y: f16[n, p, q, k of 32]
      pad 1
      strategy tma_halo""",
    "tma_halo, strided, channels that TMA fills up": """
      input x: f16[n=1, h=11, w=10, c=3 of 8]
      filter w: f16[k=32, r=3, s=3, c=3]
      output y: f16[n, p, q, k]
      stride 2  pad 1
      strategy tma_halo""",
    "tma_im2col, dgrad": """
      input x: f16[n=1, h=5, w=6, c=64 of 80]
      filter w: f16[k=64, r=3, s=3, c=64 of 72]
      output y: f16[n, p, q, k of 128]
      op dgrad
      strategy tma_im2col""",
    "tma_im2col, dgrad of one channel of several": """
      input x: bf16[n=2, h=4, w=5, c=8]
      filter w: bf16[k=1, r=2, s=2, c=8]
      output y: bf16[n, p, q, k=1 of 5]
      pad 1
      op dgrad
      strategy tma_im2col""",
    "tma_im2col, strided dgrad": """
      input x: f16[n=1, h=9, w=8, c=64 of 80]
      filter w: f16[k=64, r=3, s=3, c=64 of 72]
      output y: f16[n, p, q, k of 128]
      stride 2
      op dgrad
      epilogue { operand z: f16[n, h, w, c of 72]  x = acc + z }
      strategy tma_im2col""",
    "depthwise_wgrad": """
      input x: f16[n=2, h=9, w=8, c=12 of 20]
      filter w: f32[k=12, r=3, s=3]
      output y: f16[n, p, q, k of 18]
      pad 1
      groups 12
      op wgrad
      strategy depthwise { kernel depthwise_wgrad  threads 64 }""",
    "mma_wgrad": """
      input x: f16[n=2, h=9, w=8, c=12 of 20]
      filter w: f16[k=24, r=3, s=3, c=12]
      output y: f16[n, p, q, k of 27]
      pad 1
      op wgrad
      strategy implicit_gemm { kernel mma_wgrad }""",
    "stem_wgrad": """
      input x: f16[n=2, h=9, w=8, c=3 of 4]
      filter w: f16[k=24, r=3, s=3, c=3]
      output y: f16[n, p, q, k of 40]
      pad 1
      op wgrad
      strategy implicit_gemm { kernel stem_wgrad }""",
    "tma_wgrad": """
      input x: f16[n=2, h=9, w=8, c=40 of 64]
      filter w: f32[k=24, r=3, s=3, c=40]
      output y: f16[n, p, q, k of 40]
      pad 1
      op wgrad
      strategy tma_im2col { kernel tma_wgrad  row_taps 1 }""",
    "tma_wgrad, a copy of y": """
      input x: f16[n=2, h=9, w=8, c=40 of 64]
      filter w: f16[k=24, r=1, s=1, c=40]
      output y: f16[n, p, q, k of 27]
      op wgrad
      strategy tma_im2col { kernel tma_wgrad }""",
    "tma_halo": """
      input x: f16[n=1, h=9, w=8, c=16 of 24]
      filter w: f16[k=16, r=3, s=3, c=16 of 24]
      output y: f16[n, p, q, k of 48]
      epilogue { operand z: f16[n, p, q, k of 20]  operand v: f16[n, p, q, k of 17]  y = relu(acc + z) - v }
      pad 1
      strategy tma_halo""",
    "winograd": """
      input x: f16[n=2, h=5, w=6, c=18 of 20]
      filter w: f16[k=10, r=3, s=3, c=18 of 25]
      output y: f16[n, p, q, k of 14]
      epilogue { operand z: f16[n, p, q, k of 11]  y = relu(acc + z) }
      pad 1
      strategy winograd { product mma_gemm }""",
    "winograd_fused": """
      input x: f16[n=2, h=5, w=6, c=18 of 20]
      filter w: f16[k=10, r=3, s=3, c=18 of 25]
      output y: f16[n, p, q, k of 14]
      epilogue { operand z: f16[n, p, q, k of 11]  y = relu(acc + z) }
      pad 1
      strategy winograd { form fused }""",
    "winograd_fused, fills up channels": """
      input x: f16[n=2, h=5, w=6, c=18 of 24]
      filter w: f16[k=16, r=3, s=3, c=18]
      output y: f16[n, p, q, k]
      pad 1
      strategy winograd { form fused }""",
    "im2col": """
      input x: f16[n=2, h=5, w=6, c=8 of 9]
      filter w: f16[k=8, r=3, s=3, c=8]
      output y: f16[n, p, q, k of 11]
      strategy im2col""",
    "im2col, dgrad": """
      input x: f32[n=2, h=5, w=6, c=8 of 9]
      filter w: f32[k=8, r=3, s=3, c=8]
      output y: f32[n, p, q, k of 11]
      op dgrad
      strategy im2col { method scatter }""",
    "im2col, wgrad": """
      input x: f16[n=2, h=5, w=6, c=8 of 9]
      filter w: f16[k=8, r=3, s=3, c=8]
      output y: f16[n, p, q, k of 11]
      op wgrad
      strategy im2col""",
}
