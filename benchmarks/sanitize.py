"""One kernel of each strategy, and a sample of tma_im2col's and tma_halo's family, under compute-sanitizer.

    python benchmarks/sanitize.py --out benchmarks/results/sanitize_h200.json

Runs itself once for each tool (memcheck, racecheck, synccheck, initcheck); a kernel is clean when the tool
counts no error.  The problems are small, with tails.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

from at_hand import need_gpu

from convgen.bench.results import commit

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
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


def slices(text: str) -> str:
    """The same, of channels of tensors that have more."""
    text = re.sub(r"(input .*c=(\d+))\]", lambda m: f"{m[1]} of {int(m[2]) + 8}]", text)
    return re.sub(r"(output .*|operand z.*) k\]", r"\1 k of 256]", text)


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
    "tma_im2col, resident filters in parts": layer(
        "tma_im2col { resident 1 tile m=64 n=64 k=32 swap_ab 1 consumers 1 }", c=72, k=136
    ),
    "tma_im2col, stream": layer("tma_im2col { tile m=64 n=64 consumers 1 stream_k 1 }"),
    "tma_halo, channels": layer("tma_halo { swap_ab 1 }", c=64, k=64),
    "tma_halo, pixels": layer("tma_halo { swap_ab 0 }", c=64, k=32),
    "groups, tma_im2col": groups("tma_im2col { group_pack 4 }", c=64, of_group=4),
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
    "im2col dgrad": GRADIENT.format(op="dgrad", strategy="im2col"),
    "im2col dgrad, scatter": GRADIENT.format(op="dgrad", strategy="im2col { method scatter }"),
    "im2col wgrad": GRADIENT.format(op="wgrad", strategy="im2col"),
    "im2col wgrad, planes": GRADIENT.replace("n, p, q, k", "n, k, p, q").format(op="wgrad", strategy="im2col"),
    "wgrad, tma_wgrad": wgrad("tma_im2col { kernel tma_wgrad row_taps 1 slices 3 split_k 1 }"),
    "wgrad, tma_wgrad, split": wgrad("tma_im2col { kernel tma_wgrad split_k 4 slices 2 }"),
    "wgrad, tma_wgrad, atomic": wgrad("tma_im2col { kernel tma_wgrad row_taps 0 slices 3 sums atomic }"),
    "wgrad, tma_wgrad, clusters sharing y": wgrad("tma_im2col { kernel tma_wgrad tile n=192 cluster 2 multicast a }"),
    "wgrad, tma_wgrad, clusters sharing x": wgrad("tma_im2col { kernel tma_wgrad tile m=64 cluster 4 multicast b }"),
    "wgrad, tma_wgrad, fewer groups": wgrad("tma_im2col { kernel tma_wgrad group_pack 2 }", c=72, k=72, of_group=24),
    "wgrad, mma_wgrad": wgrad("implicit_gemm { kernel mma_wgrad slices 3 }"),
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


def launch(name: str) -> None:
    """Launches one case, twice."""
    import cupy

    import convgen
    from convgen.ir.dtypes import numpy_dtype

    kernel = convgen.compile(CASES[name])
    given = [
        cupy.random.standard_normal(t.whole.shape, dtype="f4").astype(numpy_dtype(t.dtype))
        for t in (*kernel.manifest.reads, *kernel.manifest.operands)
    ]
    given = [a[..., : t.row] if t.pitch else a for t, a in zip(kernel.manifest.tensors, given, strict=False)]
    outs = [(t, cupy.zeros(t.whole.shape, numpy_dtype(t.dtype))) for t in kernel.manifest.results]
    outs = tuple(a[..., : t.row] if t.pitch else a for t, a in outs)
    # initcheck does not see what cuBLAS stores through TMA: memory that was set counts as initialized
    workspace = cupy.zeros(max(kernel.workspace_bytes, 1), "u1")
    for _ in range(2):
        kernel(*given, out=outs if len(outs) > 1 else outs[0], workspace=workspace if kernel.workspace_bytes else None)
    cupy.cuda.Device().synchronize()


def build(name: str) -> None:
    """Compiles one case, into the cache."""
    import convgen

    convgen.compile(CASES[name])


def sanitized(tool: str, name: str) -> str:
    """What a tool says of one case: `clean`, or its summary; prints the end of its output then."""
    command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9"]
    command += [sys.executable, __file__, "--launch", name]
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = process.stdout.decode(errors="replace")
    found = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", text)
    summary = found.group(1) if found else f"no summary (exit {process.returncode}): {text[-300:]}"
    if process.returncode == 0 and re.match(r"0 (errors|hazards)", summary):
        return "clean"
    print(tool, name, text[-1500:], flush=True)
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--launch", help=argparse.SUPPRESS)
    parser.add_argument("--commit", help="what the results are recorded under (default: the checkout's)")
    parser.add_argument("--tools", nargs="*", default=TOOLS)
    parser.add_argument("--cases", default="", help="those whose names begin so")
    args = parser.parse_args()
    need_gpu()
    if args.launch:
        launch(args.launch)
        return 0
    names = [name for name in CASES if name.startswith(args.cases)]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as processes:
        list(processes.map(build, names))
    rows: dict[str, dict[str, str]] = {name: {} for name in names}
    # a run of a tool for each case: its exit code says which case an error is of
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = {(tool, name): threads.submit(sanitized, tool, name) for tool in args.tools for name in names}
        for (tool, name), result in found.items():
            rows[name][tool] = result.result()
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    header = {"gpu": properties["name"].decode(), "date": time.strftime("%F"), "commit": args.commit or commit()}
    clean = all(result == "clean" for row in rows.values() for result in row.values())
    if args.out:
        args.out.write_text(json.dumps({"header": header, "rows": rows}, indent=1) + "\n")
    for name, row in rows.items():
        print(f"{name:28s}", *(f"{tool} {result}" for tool, result in row.items()))
    return int(not clean)


if __name__ == "__main__":
    sys.exit(main())
