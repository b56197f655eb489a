"""Fits the cost models of `convgen/kernels/tma_*/cost.py` to measurements, and says how well they choose.

    python benchmarks/fit_cost.py sweep1.sqlite sweep2.sqlite --out benchmarks/results/cost_fit_h200.json

Reads tuning databases, in which `sweep.py` and `convgen tune` keep every candidate that they timed.  The rates are
fitted by least squares on the logarithm of the time, the fast configurations of a convolution counting most.  Two
figures say how good a model is: the error of its estimates, and its *regret*, the time of the configuration that it
chooses among the measured ones over the best of them.  Both are also taken by cross-validation: the layers, at all
their batches, are dealt into five parts, and each part is judged by rates that were fitted to the other four.
`--no-fit` judges the rates that are in `cost.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy
from geometries import with_epilogue
from scipy.optimize import least_squares, minimize

from convgen.bench.results import command, commit, geomean
from convgen.ir.problem import SPATIAL, ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.kernels import registry, renamed, strategies
from convgen.kernels.config import Options
from convgen.kernels.search import search
from convgen.kernels.tma_halo import cost as halo_cost
from convgen.kernels.tma_halo.space import demands as halo_demands
from convgen.kernels.tma_im2col import cost as im2col_cost
from convgen.kernels.tma_im2col.demands import demands as im2col_demands
from convgen.planner import database
from convgen.targets import TARGETS

FOLDS = 5
#: A configuration this many times slower than its convolution's best counts for nothing.
SLOWEST = 3.0
#: A configuration's weight falls with this power of its time over the best.
PREFERENCE = 2.0
#: Residuals beyond this share of the time count less: where a term is missing, not all others should bend.
ROBUST = 0.1
#: How much a choice counts beside the fit, and how far off estimates are that it is made by.
REGRET, DOUBT = 0.3, 0.06
#: What the hardware does not exceed: wgmma's rate, bytes of device memory a microsecond (NVIDIA H200's data sheet).
LIMITS = {"mma": (1.01, math.inf), "memory": (1e5, 4.75e6)}
TARGET = TARGETS["sm_90a"]


@dataclass(frozen=True)
class Model:
    """A strategy's cost model: its rates, and the time of a configuration's demands under them."""

    rates: Any
    time: Callable[..., float]
    demands: Callable[[Any], dict[str, Any]]


def layout_of(strategy: str, problem: ConvProblem, options: Options) -> Any:
    """The layout that options ask for, which may have names of the time that they were measured at."""
    found = search(registry.kernel(strategy), problem, TARGET, renamed.options(strategy, options)).best
    return found.layout if found else None


MODELS = {
    "tma_im2col": Model(im2col_cost.H200, im2col_cost.time, im2col_demands),
    "tma_halo": Model(halo_cost.H200, halo_cost.time, halo_demands),
}


@dataclass(frozen=True)
class Row:
    """One measured configuration.  `demands` is empty where the strategy's model is not fitted here, and has a
    fixed `estimate` instead."""

    key: str
    n: int
    layer: str  # the key at any batch
    strategy: str
    us: float
    demands: dict[str, Any]
    config: str
    estimate: float = math.nan


# ---- reading ---------------------------------------------------------------------------------------------


@cache
def problem_of(key: str) -> ConvProblem:
    """A convolution that a database's key stands for: of an epilogue, it says what it reads and writes, and no
    arithmetic.  Raises ValueError where it has sums of what it reads, a prologue, or other layouts than channels
    last."""
    op, _, parts = key.partition(" ")
    said = dict(re.findall(r"(\w+)=(\S*(?: [^\s=]+(?!\S))*)", parts))  # results have a space: `result f16:npqk`

    def numbers(name: str) -> tuple[int, ...]:
        return tuple(map(int, said[name].split("x")))

    (n,), (c,), (k,), (groups,) = (numbers(name) for name in ("n", "c", "k", "groups"))
    size, taps, out = (numbers(name) for name in ("input", "filter", "output"))
    pads = [tuple(map(int, pad.split(":"))) for pad in said["pad"].split("x")]
    sp = SPATIAL[len(size)]
    x, w, y = (
        Tensor(role, role, said[role].split(":")[0], dims, extents)
        for role, dims, extents in (
            ("x", ("n", *sp.input, "c"), (n, *size, c)),
            ("w", ("k", *sp.filter, "c"), (k, *taps, c // groups)),
            ("y", ("n", *sp.output, "k"), (n, *out, k)),
        )
    )
    problem = ConvProblem(
        "a", Op(op), n, c, k, size, taps, out, numbers("stride"), numbers("dilation"),
        tuple(lo for lo, _ in pads), tuple(hi for _, hi in pads), groups, x, w, y, accumulate=said["acc"],
    )  # fmt: skip
    problem = with_epilogue(problem, _epilogue(problem, said["epilogue"]))
    if database.key(problem) != key:
        raise ValueError(f"not a convolution without sums, channels last: {key}")
    return problem


def _epilogue(problem: ConvProblem, kind: str) -> str:
    """In the language, the sum of an epilogue's operands, which its further results are, too; empty where it has
    others."""
    pointwise, *rest = kind.split("+")
    if pointwise != "elementwise" or any("sum(" in part for part in rest):
        return ""
    total, declared = "acc", ""
    for i, part in enumerate(rest):
        further, _, layout = part.rpartition(" ")
        dtype, dims = layout.split(":")
        if further:  # dims of extent 1, which a key leaves out, are none that it is summed over
            dims = [d for d, e in zip(problem.y.dims, problem.y.extents, strict=True) if d in dims or e == 1]
        declared += f"{'result' if further else 'operand'} t{i}: {dtype}[{', '.join(dims)}]\n"
        if further:
            declared += f"t{i} = {total}\n"
        else:
            total += f" + t{i}"
    return f"{declared} y = relu({total})"


def read(paths: Iterable[Path]) -> list[Row]:
    """Every timed configuration of the strategies that have a cost model, the later files' where several have it."""
    found: dict[tuple[str, tuple[str, str]], Row] = {}
    problems: dict[str, ConvProblem | None] = {}
    for path in paths:
        for m in database.read_all(path):
            if m.us is None or m.status not in (database.Status.TIMED, database.Status.RIGHT):
                continue
            if m.key not in problems:
                try:
                    problems[m.key] = problem_of(m.key)
                except (ValueError, KeyError):
                    problems[m.key] = None
            problem, strategy = problems[m.key], strategies.STRATEGIES[m.strategy]
            if problem is None or problem.op is not Op.FPROP or not hasattr(strategy, "estimate"):
                continue
            row = Row(m.key, problem.n, re.sub(r" n=\d+", "", m.key), m.strategy, m.us, {}, str(dict(m.options)))
            model = MODELS.get(m.strategy)
            if model and not strategy.plan(problem, TARGET, m.options).workspaces:  # the kernel alone
                row = replace(row, demands=model.demands(layout_of(m.strategy, problem, m.options)))
            else:
                row = replace(row, estimate=strategy.estimate(problem, TARGET, m.options))
            found[m.key, m.candidate] = row
    return list(found.values())


# ---- fitting ---------------------------------------------------------------------------------------------


def estimates(rows: Sequence[Row], rates: dict[str, Any]) -> numpy.ndarray:
    return numpy.array(
        [
            MODELS[row.strategy].time(**row.demands, rates=rates[row.strategy]) if row.demands else row.estimate
            for row in rows
        ]
    )


def fit(strategy: str, rows: Sequence[Row], begin: Any) -> Any:
    """The rates that fit a strategy's rows best, then moved to where its choices are best."""
    names = [f.name for f in fields(begin)]
    rows = [row for row in rows if row.strategy == strategy]
    best: dict[str, float] = defaultdict(lambda: math.inf)
    for row in rows:
        best[row.key] = min(best[row.key], row.us)
    rows = [row for row in rows if row.us <= SLOWEST * best[row.key]]
    place = {key: i for i, key in enumerate(best)}
    layer = numpy.array([place[row.key] for row in rows])
    us, behind = (
        numpy.array(values) for values in zip(*((row.us, row.us / best[row.key]) for row in rows), strict=True)
    )
    weights = behind**-PREFERENCE
    weights /= numpy.bincount(layer, weights)[layer] * len(best)  # every convolution counts alike

    def rates(logs: numpy.ndarray) -> Any:
        values = [float(f"{value:.4g}") for value in numpy.exp(logs).tolist()]
        return type(begin)(**dict(zip(names, values, strict=True)))

    def errors(logs: numpy.ndarray) -> numpy.ndarray:
        made = type(begin)(**dict(zip(names, numpy.exp(logs).tolist(), strict=True)))
        return numpy.log(estimates(rows, {strategy: made}) / us)

    def loss(logs: numpy.ndarray) -> float:
        """Of the estimates, and of the choice by estimates that are off by a few percent."""
        found = errors(logs)
        misfit = (weights * 2 * ROBUST**2 * (numpy.sqrt(1 + (found / ROBUST) ** 2) - 1)).sum()
        promise = -(found + numpy.log(us)) / DOUBT
        most = numpy.full(len(best), -math.inf)
        numpy.maximum.at(most, layer, promise)
        chance = numpy.exp(promise - most[layer])
        expected = numpy.bincount(layer, chance * behind) / numpy.bincount(layer, chance)
        return float(misfit + REGRET * numpy.log(expected).mean())

    low, high = numpy.log([LIMITS.get(name, (1e-9, 1e9)) for name in names]).T
    start = numpy.clip(numpy.log([getattr(begin, name) or 1e-3 for name in names]), low + 1e-6, high - 1e-6)
    close = least_squares(
        lambda logs: numpy.sqrt(weights) * errors(logs), start, bounds=(low, high), loss="soft_l1",
        f_scale=ROBUST * math.sqrt(weights.mean()), diff_step=1e-3, max_nfev=30,
    ).x  # fmt: skip
    around = [(max(x - 0.4, a), min(x + 0.4, b)) for x, a, b in zip(close, low, high, strict=True)]
    return rates(minimize(loss, close, method="L-BFGS-B", bounds=around, options={"maxiter": 20, "eps": 2e-3}).x)


# ---- judging ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What a model chose for one convolution: its time over the best, and which two they are."""

    key: str
    n: int
    regret: float
    chosen: str
    best: str


def choices(rows: Sequence[Row], guesses: numpy.ndarray, names: Sequence[str]) -> list[Choice]:
    """The model's choice for every convolution, among the strategies named."""
    groups: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        if row.strategy in names:
            groups[row.key].append(i)
    found = []
    for key, group in groups.items():
        chosen = rows[min(group, key=lambda i: guesses[i])]
        best = rows[min(group, key=lambda i: rows[i].us)]
        said = [f"{row.strategy} {row.us:.2f} us {row.config}" for row in (chosen, best)]
        found.append(Choice(key, chosen.n, chosen.us / best.us, *said))
    return found


def report(rows: Sequence[Row], guesses: numpy.ndarray) -> dict[str, Any]:
    """Error and regret by strategy, and regret across strategies, by batch too."""
    found: dict[str, Any] = {}
    names = list(dict.fromkeys(row.strategy for row in rows))
    for asked in (*([name] for name in names), names):
        label = asked[0] if len(asked) == 1 else "across strategies"
        here = [i for i, row in enumerate(rows) if row.strategy in asked]
        errors = numpy.log(guesses[here] / numpy.array([rows[i].us for i in here]))
        made = choices(rows, guesses, asked)
        worst = max(made, key=lambda c: c.regret)
        found[label] = {
            "configurations": len(here),
            "layers": len(made),
            "error": float(numpy.sqrt((errors**2).mean())),
            "regret": geomean(c.regret for c in made),
            "regret_by_batch": {
                str(n): geomean(c.regret for c in made if c.n == n) for n in (8, 64) if any(c.n == n for c in made)
            },
            "worst": worst.regret,
            "worst_layer": worst.key,
        }
    return found


def show(title: str, found: dict[str, Any]) -> None:
    print(title)
    for label, row in found.items():
        batches = ", ".join(f"n={n} {100 * (r - 1):.1f}%" for n, r in row["regret_by_batch"].items())
        regret = f"regret {100 * (row['regret'] - 1):5.1f}% ({batches}), worst {row['worst']:.2f}x"
        timed = f"{row['configurations']:5d} timed on {row['layers']:3d} layers"
        print(f"  {label:18s} {timed}: error {100 * row['error']:5.1f}%, {regret}")


def folds(rows: Sequence[Row], seed: int) -> list[set[str]]:
    layers = sorted({row.layer for row in rows})
    random.Random(seed).shuffle(layers)
    return [set(layers[i::FOLDS]) for i in range(FOLDS)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("databases", type=Path, nargs="+")
    parser.add_argument("--no-fit", action="store_true", help="judge the rates as they are")
    parser.add_argument("--no-folds", action="store_true", help="leave cross-validation out")
    parser.add_argument("--seed", type=int, default=0, help="of the five parts")
    parser.add_argument("--worst", type=int, default=10, help="choices to show, the worst first")
    parser.add_argument("--out", type=Path, help="write rates and figures as JSON")
    args = parser.parse_args()
    rows = read(args.databases)
    begin = {name: model.rates for name, model in MODELS.items()}
    summary: dict[str, Any] = {"before": report(rows, estimates(rows, begin))}
    show("as in cost.py", summary["before"])
    guesses, rates = estimates(rows, begin), begin
    if not args.no_fit:
        if not args.no_folds:
            guesses = numpy.empty(len(rows))
            for held in folds(rows, args.seed):
                fitted = {name: fit(name, [r for r in rows if r.layer not in held], begin[name]) for name in MODELS}
                here = [i for i, row in enumerate(rows) if row.layer in held]
                guesses[here] = estimates([rows[i] for i in here], fitted)
            summary["unseen layers"] = report(rows, guesses)
            show(f"fitted, layers unseen ({FOLDS} parts, seed {args.seed})", summary["unseen layers"])
        rates = {name: fit(name, rows, begin[name]) for name in MODELS}
        summary["fitted"] = report(rows, estimates(rows, rates))
        show("fitted to all", summary["fitted"])
        for name in MODELS:
            print(rates[name])
    names = list(dict.fromkeys(row.strategy for row in rows))
    for choice in sorted(choices(rows, guesses, names), key=lambda c: -c.regret)[: args.worst]:
        print(f"{choice.regret:.2f}x {choice.key}\n    chose {choice.chosen}\n    best  {choice.best}")
    if args.out:
        header = {"command": command(), "commit": commit(), "date": database.now(), "folds_seed": args.seed}
        shown = {name: asdict(row) for name, row in rates.items()}
        args.out.write_text(json.dumps(header | {"rates": shown} | summary, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
