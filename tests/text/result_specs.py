"""Specs with several results: for each kernel, with operands that may be results' own arrays, and with sums."""

from __future__ import annotations

#: The pre-activation beside the result, and the sum of channels' squares in another layout and type; `z` and `a` may be
#: the arrays of `t` and of the operator's result.
EPILOGUE = """
  epilogue {{
    operand b: f32[{channel}]
    operand z: f16[{dims}]
    operand a: {type}[{dims}]
    result t: f16[{dims}]
    result u: f32[{turned}]
    t = acc + b + z
    u = t * t
    {result} = relu(t) + a
  }}"""


def spec(op: str, tensors: str, strategy: str, settings: str = "", type: str = "f16", layout: str = "") -> str:
    """A conv block of that operator, whose tensors are given as `x y` or in full."""
    result = {"fprop": "y", "dgrad": "x", "wgrad": "w"}[op]
    dims = layout or {"fprop": "n, p, q, k", "dgrad": "n, h, w, c", "wgrad": "k, r, s, c"}[op]
    turned = ", ".join(reversed(dims.split(", ")))
    epilogue = EPILOGUE.format(result=result, dims=dims, turned=turned, channel="kc"[op != "fprop"], type=type)
    return f"conv a {{ {tensors} op {op} {settings} {epilogue}\n  strategy {strategy}\n}}"


SMALL = "input x: f16[n=2, h=6, w=5, c=8] filter w: f16[k=8, r=3, s=2, c] output y: f16[n, p, q, k]"
ODD = "input x: f16[n=1, h=9, w=7, c=5] filter w: f16[k=7, r=3, s=3, c] output y: f16[n, p, q, k]"
PLANES = "input x: f16[n=2, c=16, h=7, w=9] filter w: f16[k=16, r=3, s=3, c] output y: f16[n, k, p, q]"
STEM = "input x: f16[n=2, h=11, w=20, c=3] filter w: f16[k=32, r=3, s=3, c] output y: f16[n, p, q, k]"
GROUPS = "input x: f16[n=1, h=6, w=10, c=32] filter w: f16[k=32, r=3, s=3, c=4] output y: f16[n, p, q, k]"
DEPTHWISE = "input x: f16[n=1, h=10, w=18, c=16] filter w: f16[k=16, r=3, s=3] output y: f16[n, p, q, k]"
STREAM = "kernel depthwise_stream slice 16 strip 18 band 4 stages 3 threads 128"
HOPPER = "input x: f16[n=3, h=9, w=7, c=24] filter w: f16[k=40, r=3, s=3, c] output y: f16[n, p, q, k]"
HOPPER_ODD = "input x: f16[n=3, h=9, w=7, c=24] filter w: f16[k=37, r=3, s=3, c] output y: f16[n, p, q, k]"
HOPPER_PLANES = "input x: f16[n=5, c=24, h=8, w=8] filter w: f16[k=40, c, r=3, s=3] output y: f16[n, k, p, q]"
TMA = "tma_im2col { tile m=64 n=16 k=16  stages 2  consumers 1  schedule cooperative  %s }"
HALO = "tma_halo { tile m=64 k=16 n=64  stages 2  consumers 1  weight_stages 0  swap_ab %d }"
CASES = {
    "direct": spec("fprop", SMALL, "direct { tile 2 }"),
    "direct_dgrad": spec("dgrad", SMALL, "direct", "stride 2"),
    "direct_wgrad": spec("wgrad", SMALL, "direct { tile 1 }"),
    "im2col": spec("fprop", SMALL, "im2col"),
    "im2col_dgrad": spec("dgrad", SMALL, "im2col { method gather }", "pad 1"),
    "im2col_scatter": spec("dgrad", SMALL, "im2col { method scatter }", "stride 2"),
    "im2col_wgrad": spec("wgrad", SMALL, "im2col"),
    "mma_gemm": spec("fprop", ODD, "implicit_gemm { kernel mma_gemm }", "pad 1"),
    "mma_gemm_planes": spec("fprop", PLANES, "implicit_gemm { kernel mma_gemm }", layout="n, k, p, q"),
    "mma_gemm_split": spec("fprop", PLANES, "implicit_gemm { kernel mma_gemm split_k 2 }", layout="n, k, p, q"),
    "stem_mma": spec("fprop", STEM, "implicit_gemm { kernel stem_mma }"),
    "stem_wgmma": spec("fprop", STEM, "implicit_gemm { kernel stem_wgmma }"),
    "small_groups": spec("fprop", GROUPS, "implicit_gemm { kernel small_groups }", "groups 8 pad 1"),
    "depthwise_direct": spec("fprop", DEPTHWISE, "depthwise { kernel depthwise_direct }", "groups 16"),
    "depthwise_fma": spec(
        "fprop", DEPTHWISE, f"depthwise {{ {STREAM} math fma tile p=2 q=4 vector 4 }}", "groups 16 pad 1"
    ),
    "depthwise_mma": spec(
        "fprop", DEPTHWISE, f"depthwise {{ {STREAM} math mma tile p=4 q=16 vector 8 }}", "groups 16 pad 1"
    ),
    "tma_im2col": spec("fprop", HOPPER, TMA % ""),
    "tma_im2col_dgrad": spec("dgrad", HOPPER, (TMA % "").replace("n=16", "n=64")),
    "tma_im2col_strided_dgrad": spec("dgrad", HOPPER, (TMA % "").replace("n=16", "n=64"), "stride 2"),
    "tma_im2col_odd_dgrad": spec("dgrad", HOPPER.replace("c=24", "c=23"), TMA % ""),
    "tma_im2col_odd": spec("fprop", HOPPER_ODD, TMA % ""),
    "tma_im2col_planes": spec("fprop", HOPPER_PLANES, TMA % "", "pad 1", layout="n, k, p, q"),
    "tma_im2col_rows_of_4_bytes": spec("fprop", HOPPER_ODD.replace("k=37", "k=42"), TMA % ""),
    "tma_im2col_planes_of_4_bytes": spec(
        "fprop", HOPPER_PLANES.replace("h=8, w=8", "h=7, w=6"), TMA % "", "pad 1", layout="n, k, p, q"
    ),
    "tma_im2col_last_columns": spec(
        "fprop", HOPPER, (TMA % "").replace("n=16", "n=24").replace("1  schedule cooperative", "2  schedule pingpong")
    ),
    "tma_im2col_split_k": spec("fprop", HOPPER, TMA % "split_k 2"),
    "tma_im2col_stream_k": spec("fprop", HOPPER, TMA % "stream_k 1"),
    "tma_im2col_swap_ab": spec("fprop", HOPPER, (TMA % "swap_ab 1").replace("n=16", "n=64")),
    "tma_halo": spec("fprop", HOPPER, HALO % 0, "pad 1"),
    "tma_halo_swap_ab": spec("fprop", HOPPER, HALO % 1, "pad 1"),
    "winograd": spec("fprop", ODD, "winograd { tile 2  product mma_gemm }", "pad 1"),
    "winograd_fused": spec("fprop", HOPPER, "winograd { form fused }", "pad 1"),
}

SUMS = """
  epilogue {{
    operand b: f32[{channel}]
    result s: f32[{channel}]
    result t: f16[{dims}]
    result squares: f32[{channel}, {image}]
    result factor: f32[{channel}]
    result all: f32[]
    t = acc + b
    s = t
    factor = {factor}
    squares = t * t
    {result} = relu(t)
    all = abs(acc)
  }}"""
SUMMED = {
    "direct": (SMALL, "fprop", "direct"),
    "direct, two levels": (PLANES.replace("n=2", "n=40"), "fprop", "direct"),
    "im2col": (SMALL, "wgrad", "im2col"),
    "tma_im2col": (HOPPER, "fprop", TMA % ""),
    "tma_im2col, odd channels": (HOPPER_ODD, "fprop", TMA % ""),
    "tma_im2col, last columns": (HOPPER, "fprop", (TMA % "").replace("n=16", "n=24")),
    "tma_im2col, split_k": (HOPPER, "fprop", TMA % "split_k 2"),
    "tma_im2col, swap_ab": (HOPPER, "fprop", (TMA % "swap_ab 1").replace("n=16", "n=64").replace("m=64", "m=48")),
    "tma_im2col, swap_ab, split_k": (HOPPER, "fprop", (TMA % "swap_ab 1 split_k 2").replace("n=16", "n=64")),
    "tma_im2col, stream_k": (HOPPER_PLANES, "fprop", TMA % "stream_k 1"),
    "tma_im2col, dgrad": (HOPPER, "dgrad", (TMA % "swap_ab 0").replace("n=16", "n=64")),
    "tma_im2col, strided dgrad": (f"{HOPPER} stride 2", "dgrad", (TMA % "swap_ab 0").replace("n=16", "n=64")),
    "tma_im2col, strided dgrad, swap_ab": (
        f"{HOPPER} stride 2",
        "dgrad",
        (TMA % "swap_ab 1").replace("n=16", "n=64").replace("m=64", "m=32"),
    ),
    "tma_halo": (HOPPER, "fprop", HALO % 1),
    "tma_halo, odd channels": (HOPPER_ODD, "fprop", HALO % 1),
    "tma_halo, folded rows": (HOPPER, "fprop", (HALO % 1).replace("}", "fold 2 }")),
    "tma_halo, dgrad": (HOPPER, "dgrad", HALO % 1),
    "tma_halo, strided dgrad": (f"{HOPPER} stride 2", "dgrad", (HALO % 1).replace("}", "fold 4 }")),
}

#: Sums of the channels of each image, where 16 pixels are never of two.
_IMAGES = "input x: f16[n=3, h=8, w=4, c=32] filter w: f16[k=40, r=3, s=3, c=32] output y: f16[n, p, q, k] pad 1"
SUMS_OF_IMAGES = {
    name: f"""conv a {{ {_IMAGES} strategy {strategy}
      epilogue {{ operand b: f32[k]  result s: f32[n, k]  result all: f32[k]  result squares: f32[n, k]
        t = acc + b  s = t  squares = t * t  all = t  y = relu(t) }} }}"""
    for name, strategy in {
        "rows": TMA % "", "last columns": (TMA % "").replace("n=16", "n=24"), "split_k": TMA % "split_k 2",
        "swap_ab": (TMA % "swap_ab 1").replace("n=16", "n=64").replace("m=64", "m=32"),
        "swap_ab, split_k": (TMA % "swap_ab 1 split_k 2").replace("n=16", "n=64"),
        "halo": HALO % 1, "halo, folded rows": (HALO % 1).replace("}", "fold 4  strip 3 }"),
    }.items()
}  # fmt: skip

SUMS_OF_IMAGES["dgrad"] = f"""conv a {{ {_IMAGES} op dgrad strategy {(TMA % "swap_ab 1").replace("n=16", "n=64")}
  epilogue {{ operand z: f16[n, h, w, c]  result s: f32[n, c]  result products: f32[n, c]
    t = acc + z  s = t  products = t * z  x = t }} }}"""

#: Sums of what the operator reads: y of each channel (a bias's gradient), and others.
READ = "input x: f16[n=2, h=6, w=5, c=8 of 16] filter w: f32[k=24, r=3, s=2, c=4] output y: f16[n, k, p, q] groups 2"
READ_SUMS = {
    "direct": f"""conv a {{ {READ} op wgrad  strategy direct
      epilogue {{ result db: f32[k]  result sx: f32[c, n]  result s: f32[k]  db = y  sx = x  s = acc  w = acc }} }}""",
    "im2col, transposed": """conv a { input x: f16[n=2, h=6, w=5, c=8] filter w: f16[c, r=3, s=2, k=4]
      output y: f16[n, p, q, k]  op transposed  strategy im2col
      epilogue { result sx: f32[c]  result sw: f32[k, s]  sx = x  sw = w  y = relu(acc) } }""",
}
for _name, _options in {
    "mma_wgrad": "slices 1  tile m=64 n=128 k=16  warps m=1 n=4",
    "mma_wgrad, slices": "slices 2  tile m=64 n=64 k=16",
}.items():
    READ_SUMS[_name] = f"""conv a {{ {READ} op wgrad  strategy implicit_gemm {{ kernel mma_wgrad  {_options} }}
      epilogue {{ result db: f32[k]  result t: f16[k, r, s, c]  db = y  t = acc  w = relu(acc) }} }}"""
for _name, _options in {"cluster": "split_k 3  stages 1", "slices": "slices 2  stages 2"}.items():
    READ_SUMS[f"depthwise_wgrad, {_name}"] = f"""conv a {{
      input x: f16[n=2, h=6, w=5, c=12]  filter w: f32[k=12, r=3, s=2]  output y: f16[n, p, q, k]  groups 12  op wgrad
      strategy depthwise {{ kernel depthwise_wgrad  vector 2  slice 8  tile r=2 q=3  band 2  threads 32  {_options} }}
      epilogue {{ result db: f32[k]  db = y  w = acc }} }}"""
READ_SUMS["depthwise_wgrad, shared rows"] = """conv a {
      input x: f16[n=2, h=6, w=5, c=16]  filter w: f32[k=16, r=3, s=2]  output y: f16[n, p, q, k]  groups 16  op wgrad
      strategy depthwise {
        kernel depthwise_wgrad  vector 1  slice 8  tile r=2 q=3  band 2  threads 64  slices 2  stages 2  loads shared
      }
      epilogue { result db: f32[k]  db = y  w = acc } }"""
READ_SUMS["stem_wgrad"] = """conv a {
      input x: f16[n=2, h=9, w=8, c=3]  filter w: f32[k=24, r=3, s=2, c=3]  output y: f16[n, p, q, k]  op wgrad
      strategy implicit_gemm { kernel stem_wgrad  tile m=64 k=16  stages 2  depth 2  warps m=4  slices 3 }
      epilogue { result db: f32[k]  result t: f16[k, r, s, c]  db = y  t = acc  w = relu(acc) } }"""


def sums_spec(name: str) -> str:
    """The conv block of a row of SUMMED."""
    tensors, op, strategy = SUMMED[name]
    result, dims, channel, image, factor = {
        "fprop": ("y", "n, k, p, q" if "y: f16[n, k" in tensors else "n, p, q, k", "k", "n", "w"),
        "dgrad": ("x", "n, h, w, c", "c", "n", "w"),
        "wgrad": ("w", "k, r, s, c", "c", "r", "x"),
    }[op]
    epilogue = SUMS.format(channel=channel, image=image, dims=dims, result=result, factor=factor)
    return f"conv a {{ {tensors} op {op} {epilogue} strategy {strategy} }}"
