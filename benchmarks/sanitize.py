"""Every kernel, and a sample of tma_im2col's and tma_halo's family, under compute-sanitizer.

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
from sanitize_cases import CASES

from convgen.bench.results import commit

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


def launch(name: str) -> None:
    """Launches one case, twice."""
    import cupy

    import convgen
    from convgen.ir.dtypes import numpy_dtype
    from convgen.runtime.dynamic import DynamicKernel

    kernel = convgen.compile(CASES[name])
    if isinstance(kernel, DynamicKernel):  # at other sizes than the spec's
        kernel = kernel.at(**{dim: size + 3 for dim, size in kernel.manifest.written.items() if dim in "nhw"})
    given = [
        cupy.random.standard_normal(t.whole.shape, dtype="f4").astype(numpy_dtype(t.dtype))
        for t in kernel.manifest.arguments
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
