"""Every kernel against float64, on a GPU: network layers and the problems of tests/data/peers.json.

    python benchmarks/verify.py --out benchmarks/results/verify_h200.json

Each row says, for one problem and one strategy, that the result agrees (with the largest error), that it
does not, or why the strategy refuses.  Outputs are poisoned, inputs are fresh, every element is compared.
Problems above --gflop run at a smaller n.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from pathlib import Path

from at_hand import need_gpu

from convgen.bench import backend as backends
from convgen.bench.build import Builder, Failure, Job
from convgen.bench.measure import Checker
from convgen.bench.results import command, commit
from convgen.frontend import load
from convgen.ir.problem import SPATIAL, ConvProblem, Op
from convgen.runtime.kernel import Kernel
from convgen.targets import TARGETS

ROOT = Path(__file__).resolve().parent.parent
#: Strategies that each operator is checked with.
STRATEGIES = {
    Op.FPROP: ("auto", "direct", "im2col", "tma_im2col", "tma_halo", "implicit_gemm"),
    Op.DGRAD: ("auto", "direct", "im2col"),
    Op.WGRAD: ("auto", "direct", "im2col"),
    Op.IM2COL: ("auto", "direct", "im2col"),
    Op.COL2IM: ("auto", "direct", "im2col"),
}


def spec_of(case: dict) -> str:
    """The spec of a peer's problem: NHWC, KRSC, NHWC."""
    spatial = SPATIAL[len(case["input"])]

    def dims(names: tuple[str, ...], values: list[int]) -> str:
        return ", ".join(f"{d}={v}" for d, v in zip(names, values, strict=True))

    def axes(values: list) -> str:
        return " ".join(f"{d}={v}" for d, v in zip(spatial.input, values, strict=True))

    t, c = case["dtype"], case["c"]
    pads = [f"({lo},{hi})" for lo, hi in zip(case["pad_lo"], case["pad_hi"], strict=True)]
    out = ", ".join(spatial.output)
    lowered = (
        f"lowered m: {t}[n*{'*'.join(spatial.output)}, {'*'.join(spatial.filter)}*c]" if "col" in case["op"] else ""
    )
    return f"""conv {case["id"].replace("-", "_")} {{
  input x: {t}[n={case["n"]}, {dims(spatial.input, case["input"])}, c={c}]
  filter w: {t}[k={case["k"]}, {dims(spatial.filter, case["filter"])}, c={c // case["groups"]}]
  output y: {t}[n, {out}, k]
  {lowered}
  stride {axes(case["stride"])}
  pad {axes(pads)}
  dilation {axes(case["dilation"])}
  groups {case["groups"]}
  op {case["op"]}
}}"""


def shrunk(case: dict, gflop: float) -> dict:
    """The case at an n that keeps its work below a bound."""
    each = 2e-9 * case["k"] * case["c"] / case["groups"] * math.prod(case["out"]) * math.prod(case["filter"])
    return {**case, "n": max(1, min(case["n"], int(gflop / each)))} if each * case["n"] > gflop else case


def problems(args: argparse.Namespace) -> list[tuple[str, ConvProblem]]:
    found = []
    for name in args.suites:
        path = ROOT / "specs" / f"{name}.conv"
        for request in load(path.read_text(), str(path), {"n": args.n}):
            found.append((f"{name}/{request.problem.name}", request.problem))
    for case in json.loads((ROOT / "tests/data/peers.json").read_text())["cases"]:
        found.append((case["id"], load(spec_of(shrunk(case, args.gflop)))[0].problem))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--suites", nargs="*", default=["resnet50", "vgg16"])
    parser.add_argument("-n", type=int, default=8, help="batch of the suites")
    parser.add_argument("--gflop", type=float, default=20.0)
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--strategies", nargs="*", help="only these")
    parser.add_argument("--match", default="", help="only problems whose name holds this")
    parser.add_argument("--commit", help="what the results are recorded under (default: the checkout's)")
    args = parser.parse_args()
    need_gpu()
    backend, target = backends.at_hand(), TARGETS[args.target]
    work = [
        (name, problem, strategy)
        for name, problem in problems(args)
        if args.match in name
        for strategy in STRATEGIES[problem.op]
        if not args.strategies or strategy in args.strategies
    ]
    jobs = [Job(problem, target, strategy, {}, planned=True) for _, problem, strategy in work]
    rows, checker, of = [], None, None
    started = time.perf_counter()
    with Builder() as builder:
        for (name, problem, asked), (_, made) in zip(work, builder.build_all(jobs), strict=True):
            row = {"problem": name, "n": problem.n, "op": str(problem.op), "asked": asked}
            if isinstance(made, Failure):
                rows.append(row | {"result": "refused", "reason": made.message})
                continue
            if of is not problem:
                del checker
                backend.release()
                checker, of = Checker(problem, backend), problem
            kernel = Kernel(made)
            row |= {"strategy": kernel.manifest.strategy, "config": kernel.manifest.config}
            try:
                report = checker(kernel, kernel.manifest.arithmetic)
                row |= {"result": "agrees" if report.ok else "differs", "max_error": float(report.max_error)}
                row |= {"rel_l2": float(report.rel_l2)}
                if not report.ok:
                    row["reason"] = report.message
            except Exception as e:
                row |= {"result": "failed", "reason": f"{type(e).__name__}: {e}"}
            rows.append(row)
            if row["result"] in ("differs", "failed"):
                print(json.dumps(row), flush=True)
    header = {
        "date": time.strftime("%F"),
        "commit": args.commit or commit(),
        "command": command(),
        "n": args.n,
    }
    header |= backend.environment() | {"seconds": round(time.perf_counter() - started, 1)}
    args.out.write_text(json.dumps({"header": header, "rows": rows}, indent=1) + "\n")
    table = Counter((r["asked"], r["op"], r["result"]) for r in rows)
    for (asked, op, result), count in sorted(table.items()):
        print(f"{asked:14s} {op:7s} {result:8s} {count}")
    return int(any(r["result"] in ("differs", "failed") for r in rows))


if __name__ == "__main__":
    sys.exit(main())
