"""Fits the cost models that `auto` chooses between together, so that their estimates compare with one another.

    python benchmarks/fit_jointly.py --no-fit
    python benchmarks/fit_jointly.py --fit

`fit_cost.py` and `fit_kernels.py` fit each kernel to its own measurements; whether tma_halo or tma_im2col or mma_gemm
is faster then hangs on how far each of them is off.  Here the rates of all are fitted at once, by least squares on the
logarithm of the time, to what `benchmarks/results` and the tuning database that ships hold: estimates of every
configuration, and, of a layer of which several were timed, how each compares with the fastest.  A fit starts from the
rates in the code and holds each near its own (`HOLD`), because few measurements tell all of them; another fit to the
same measurements therefore moves them again.  The rates in the code are of such a fit of 2026-11-23, which started from
others and read partly other measurements: 60 random geometries are not kept.  `start` and `spread` of tma_im2col and
mma_gemm were then fitted alone, and so was tma_wgrad, which no other kernel's rates meet, with a HOLD of 0.1.

The table gives, by source, the error of the estimates, their bias (positive: too slow) and the *regret*: the time of
the configuration with the least estimate, over the least time that was measured of the layer.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import fit_kernels
import numpy
from fit_cost import problem_of
from fit_kernels import Model, layout_of
from scipy.optimize import least_squares

from convgen.diagnostics import ConvgenError
from convgen.frontend import load
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels import registry, renamed
from convgen.kernels.base import Layout, Options
from convgen.kernels.config import defaults
from convgen.kernels.mma_gemm import layout as mma_gemm
from convgen.kernels.tma_halo import cost as tma_halo
from convgen.kernels.tma_im2col import cost as tma_im2col
from convgen.kernels.tma_im2col import ends
from convgen.kernels.tma_im2col import layout as tma_im2col_layout
from convgen.kernels.tma_im2col.epi_tiles import WIDEST_EPI_TILE
from convgen.kernels.tma_wgrad import cost as tma_wgrad
from convgen.planner import database
from convgen.targets import TARGETS

RESULTS = Path(__file__).parent / "results"
SHIPPED = Path(database.__file__).parent / "tuning.sqlite"
GPU = TARGETS["sm_90a"].gpu.name  # what the rates are of
GEMM_FILES = ("implicit_gemm_sweep", "implicit_gemm_aligned", "implicit_gemm_grouped_depthwise")
#: What `fit_kernels.py` takes, but for depthwise's files and the candidates, which are a source of their own.
BENCHES = (*GEMM_FILES, "bench_n8", "bench_n64", "unseen")

SWEEPS = (
    "sweep", "sweep_spans", "sweep_weak", "sweep_pointwise", "sweep_odd", "sweep_large", "sweep_wide", "sweep_pieces",
    "sweep_seams", "sweep_promoted", "sweep_narrow", "sweep_ends",
)  # fmt: skip
#: Of them, those in which mma_gemm deals out pieces among threads.
DEALT = ("sweep_pieces", "sweep_seams", "sweep_promoted", "sweep_narrow", "sweep_ends")
#: And those in which boxes of tma_im2col's B end with the last output channel.
ENDED = ("sweep_ends",)

STEMS = ("ragged_writes", "odd_writes", "word_writes")
#: The rates that are fitted.  Nothing here tells the others.
MODELS = {
    "tma_halo": Model(tma_halo, told=(
        "start", "shared_wait", "row", "ragged", "latency", "stages_held", "tap", "resident_bytes", "serial_store",
        "ragged_writes", "odd_writes",
    )),
    "tma_im2col": Model(tma_im2col, told=(
        "start", "spread", "shared_wait", "l2", "row", "b_row", "stage", "straddle", "ragged_line",
        "latency", "stages_held", "store", "epi_tile", "turn", "multicast", "joint", "split", "split_store",
        "cut_sector", "cut_by_threads", "seam",
    )),
    "tma_wgrad": Model(tma_wgrad, told=tuple(f.name for f in fields(tma_wgrad.Rates))),
    "mma_gemm": replace(
        fit_kernels.MODELS["mma_gemm"], told=(*fit_kernels.MMA, "gathered", "spread", "odd_writes", "word_writes")
    ),
    "stem_mma": replace(fit_kernels.MODELS["stem_mma"], told=STEMS),
    "stem_wgmma": replace(fit_kernels.MODELS["stem_wgmma"], told=STEMS),
}  # fmt: skip
#: The options that a configuration's text leaves out.
DEFAULTS = {kernel: defaults(registry.kernel(kernel).config) for kernel in MODELS}
#: How strongly the logarithm of a rate is held to where it was.
HOLD = 0.35
#: How much a comparison with a layer's fastest counts beside an estimate; and of it, a slower one's being thought
#: slower still, which misleads nobody.
COMPARISON, STILL_SLOWER = 2.5, 0.2
#: Residuals beyond this count less: of estimates, of comparisons.
ROBUST, ROBUST_COMPARISON = 0.15, 0.1
#: Gradients are one operator at two batches, and run the same kernels: they count less than the rest.
COUNTS = {"gradients": 0.6}
#: Bytes of device memory a microsecond that no fit may pass.
MOST = {"memory": 4.4e6}
EVALUATIONS = 25


@dataclass(frozen=True)
class Row:
    """One timed configuration.  `us`: alone, or behind another launch, or the geometric mean where both are known."""

    source: str
    layer: str
    kernel: str
    layout: Layout
    us: float

    @property
    def key(self) -> tuple[str, str]:
        return self.source, self.layer


def _layout(
    kernel: str, problem: ConvProblem, options: Options, *, dealt: bool = False, ended: bool = False
) -> Layout | None:
    """Of what was timed, of which options that were not written had their defaults; None of a kernel without rates, and
    of what takes less time since: of mma_gemm where it copies less than 16 bytes at once, unless pieces were `dealt`
    out to neighboring threads; of tma_im2col where tiles reach past the last output channel, unless boxes `ended`
    there."""
    if kernel not in MODELS:
        return None
    layout = layout_of(kernel, problem, DEFAULTS[kernel] | dict(options))
    stale = isinstance(layout, mma_gemm.Layout) and not dealt and any(how.dealt for how in layout.loads.values())
    stale |= isinstance(layout, tma_im2col_layout.Layout) and not ended and ends.of_b(layout).last > 0
    return None if stale else layout


def _json(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}_h200.json").read_text())
    return found


def in_words(
    source: str, layer: str, spec: str, strategy: str, config: str, us: float, *, dealt: bool = False
) -> Iterator[Row]:
    """A configuration as results write it, which is how a spec does, without the options that have their defaults."""
    (request,) = load(spec.rstrip().removesuffix("}") + f"\n  strategy {strategy} {{ {config} }}\n}}")
    said = renamed.options(strategy, request.options)
    kernel = str(said.get("kernel", strategy))
    if layout := _layout(kernel, request.problem, said, dealt=dealt):
        yield Row(source, layer, kernel, layout, us)


def candidates() -> Iterator[Row]:
    """A few configurations of each kernel, of random geometries and of recent networks, some with gelu or silu."""
    for row in _json("candidates")["rows"] + _json("functions")["rows"]:
        kernel = row["options"]["kernel"]
        problem = load(row["spec"])[0].problem
        if layout := _layout(kernel, problem, row["options"]):
            us = math.sqrt(row.get("us", row["chain_us"]) * row["chain_us"])
            yield Row("candidates", f"{row['layer']} n={row['n']}", kernel, layout, us)


def _columns(source: str, file: str, op: Op, columns: tuple[str, ...]) -> Iterator[Row]:
    """What `backward.py` timed of an operator, in columns that begin so."""
    for row in _json(file)["rows"]:
        for column, result in row["results"].items() if row["op"] == op else ():
            if column.startswith(columns) and result["us"]:
                layer = f"{row['name']} n={row['n']}"
                yield from in_words(source, layer, row["spec"], result["strategy"], result["config"], result["us"])


def gradients() -> Iterator[Row]:
    """Gradients of ResNet-50's inputs, up to five configurations each."""
    yield from _columns("gradients", "dgrad", Op.DGRAD, ("candidate",))


def filter_gradients() -> Iterator[Row]:
    """Gradients of filters: what was chosen, and of some layers up to twelve more configurations."""
    for name in ("wgrad_candidates", "wgrad_clusters", "wgrad_networks", "wgrad", "backward", "backward_networks"):
        yield from _columns(name, name, Op.WGRAD, ("chain", "candidate"))


def networks() -> Iterator[Row]:
    """What convgen took for the layers of whole networks, with their epilogues: each geometry once.

    Networks with prologues are left out.  Where a prologue was not fused, its pass is in the layer's time, and the row
    does not say so."""
    seen = set()
    for network in _json("networks")["rows"]:
        if any(layer["fused"].startswith("before") for layer in network["layers"]):
            continue
        for layer in network["layers"]:
            strategy, _, config = layer["kernel"].partition(": ")
            if config and layer["us"] and layer["spec"] and layer["spec"] not in seen:
                seen.add(layer["spec"])
                name = f"{network['network']} {layer['layer']} n={network['batch']}"
                yield from in_words("networks", name, layer["spec"], strategy, config, layer["us"])


def tuned() -> Iterator[Row]:
    """What the tuner found to be fastest."""
    for m in database.read_all(SHIPPED):
        kernel = str(m.options.get("kernel", m.strategy))
        if m.gpu != GPU or m.us is None or kernel not in MODELS or not m.key.startswith(Op.FPROP.value):
            continue
        try:
            problem = problem_of(m.key)
        except (ValueError, KeyError):  # with an epilogue, or in another layout
            continue
        if layout := layout_of(kernel, problem, m.options):
            yield Row("tuned", m.key, kernel, layout, m.us)


def benches() -> Iterator[Row]:
    """implicit_gemm's kernels, configuration by configuration."""
    for row in fit_kernels.read([RESULTS / f"{name}_h200.json" for name in BENCHES]):
        if row.kernel in MODELS:
            yield Row("benches", f"{row.layer} n={row.n}", row.kernel, row.layout, row.us)


def resident() -> Iterator[Row]:
    """1x1 layers with filters that stay in shared memory, and without: as the kernel stores them today."""
    for row in _json("resident")["rows"]:
        n, hw, c, k, taps = (row[name] for name in ("n", "hw", "c", "k", "filter"))
        spec = (
            f"conv a {{\n input x: f16[n={n}, h={hw}, w={hw}, c={c}]\n"
            f" filter w: f16[k={k}, r={taps}, s={taps}, c={c}]\n"
            f" output y: f16[n, p, q, k]\n stride {row['stride']}\n pad {taps // 2}\n}}"
        )
        for timed in row["timed"]:
            config, whole = timed["config"], timed.get("whole_pixels", False)
            if "group" not in config and "warps" not in config and (whole or k % 16 == 0 or k <= WIDEST_EPI_TILE):
                strategy = "tma_halo" if "strip" in config else "tma_im2col"
                try:
                    yield from in_words("resident", f"{n} {hw} {c} {k}", spec, strategy, config, timed["us"])
                except ConvgenError:
                    continue


def swept() -> Iterator[Row]:
    """What `sweep.py` and the tuner timed: the seven networks' layers, recent networks', geometries at random."""
    for name in SWEEPS:
        for row in _json(name)["rows"]:
            problem = problem_of(row["key"])
            for kernel, options, us in row["timed"]:
                if layout := _layout(kernel, problem, options, dealt=name in DEALT, ended=name in ENDED):
                    yield Row("swept", row["key"], kernel, layout, us)


SOURCES: tuple[Callable[[], Iterator[Row]], ...] = (
    candidates, gradients, filter_gradients, networks, tuned, benches, swept, resident,
)  # fmt: skip


class Estimates:
    """Of some rows, in microseconds; a kernel's are kept, for when only the rates of another change."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.own = {kernel: [i for i, row in enumerate(rows) if row.kernel == kernel] for kernel in MODELS}
        self.kept: dict[str, tuple[Any, numpy.ndarray]] = {}

    def by(self, rates: Mapping[str, Any]) -> numpy.ndarray:
        found = numpy.empty(len(self.rows))
        for kernel, given in rates.items():
            if kernel not in self.kept or self.kept[kernel][0] != given:
                self.kept[kernel] = given, self._of(kernel, given)
            found[self.own[kernel]] = self.kept[kernel][1]
        return found

    def _of(self, kernel: str, rates: Any) -> numpy.ndarray:
        model, time = MODELS[kernel], registry.kernel(kernel).time
        before = model.rates
        model.use(rates)
        try:
            return numpy.array([time(self.rows[i].layout) for i in self.own[kernel]])
        finally:
            model.use(before)


def in_the_code() -> dict[str, Any]:
    return {kernel: model.rates for kernel, model in MODELS.items()}


def by_layer(rows: Sequence[Row]) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        found[row.key].append(i)
    return found


def soft(errors: numpy.ndarray, scale: float) -> numpy.ndarray:
    """Residuals whose squares grow like the error itself beyond `scale`, and like its square before."""
    return numpy.sign(errors) * scale * numpy.sqrt(2 * (numpy.sqrt(1 + (errors / scale) ** 2) - 1))


def fit(rows: Sequence[Row], begin: Mapping[str, Any], evaluations: int = EVALUATIONS) -> dict[str, Any]:
    """All kernels' rates, near those to begin with, that fit rows and comparisons of a layer's rows best."""
    names = [(kernel, name) for kernel, model in MODELS.items() for name in model.told]
    held = numpy.log([getattr(begin[kernel], name) for kernel, name in names])
    most = numpy.log([MOST.get(name, math.inf) for _, name in names])
    us = numpy.array([row.us for row in rows])
    weights = numpy.array([COUNTS.get(row.source, 1.0) for row in rows])
    pairs: list[tuple[int, int]] = []
    pair_weights: list[float] = []
    for layer in by_layer(rows).values():
        best = min(layer, key=lambda i: us[i])
        weights[layer] *= us[best] / us[layer] / math.sqrt(len(layer))
        pairs += [(i, best) for i in layer if i != best]
        pair_weights += [COMPARISON / math.sqrt(len(layer))] * (len(layer) - 1)
    others, fastest = numpy.array(pairs, dtype=int).reshape(-1, 2).T
    estimates = Estimates(rows)

    def rates(logs: numpy.ndarray) -> dict[str, Any]:
        found = dict(begin)
        for (kernel, name), log in zip(names, logs.tolist(), strict=True):
            found[kernel] = replace(found[kernel], **{name: math.exp(log)})
        return found

    def residuals(logs: numpy.ndarray) -> numpy.ndarray:
        errors = numpy.log(estimates.by(rates(logs)) / us)
        apart = errors[others] - errors[fastest]
        apart = numpy.where(apart > 0, STILL_SLOWER * apart, apart)
        return numpy.concatenate([
            soft(weights * errors, ROBUST), soft(pair_weights * apart, ROBUST_COMPARISON), HOLD * (logs - held),
        ])  # fmt: skip

    found = least_squares(residuals, held, bounds=(-math.inf, most), diff_step=1e-3, max_nfev=evaluations)
    return rates(found.x)


def table(rows: Sequence[Row], guesses: numpy.ndarray) -> str:
    """Error, bias and regret, by source."""
    lines = [f"{'source':12s}{'timed':>7s}{'layers':>8s}{'error':>8s}{'bias':>8s}{'regret':>8s}{'worst':>8s}"]
    for source in dict.fromkeys(row.source for row in rows):
        own = [i for i, row in enumerate(rows) if row.source == source]
        errors = numpy.log([guesses[i] / rows[i].us for i in own])
        layers = [layer for key, layer in by_layer(rows).items() if key[0] == source]
        regrets = [
            rows[min(layer, key=lambda i: guesses[i])].us / min(rows[i].us for i in layer)
            for layer in layers
            if len(layer) > 1
        ]
        line = f"{source:12s}{len(own):7d}{len(layers):8d}"
        line += f"{numpy.sqrt((errors**2).mean()):8.1%}{errors.mean():+8.1%}"
        if regrets:
            line += f"{numpy.exp(numpy.log(regrets).mean()) - 1:8.1%}{max(regrets) - 1:8.0%}"
        lines.append(line)
    return "\n".join(lines)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The rates that are fitted, as they were and as they are."""
    lines = [f"{'kernel':12s}{'rate':16s}{'code':>12s}{'fitted':>12s}"]
    for kernel, model in MODELS.items():
        for name in model.told:
            values = (getattr(rates[kernel], name) for rates in (before, after))
            lines.append(f"{kernel:12s}{name:16s}" + "".join(f"{value:12.4g}" for value in values))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    fit_or_judge = parser.add_mutually_exclusive_group(required=True)
    fit_or_judge.add_argument("--fit", action="store_true", help="print fitted rates, and the table of both")
    fit_or_judge.add_argument("--no-fit", action="store_true", help="judge the rates in the code")
    args = parser.parse_args()
    rows = [row for source in SOURCES for row in source()]
    begin = in_the_code()
    print(f"as in the code\n{table(rows, Estimates(rows).by(begin))}")
    if args.fit:
        fitted = fit(rows, begin)
        print(f"\nfitted\n{table(rows, Estimates(rows).by(fitted))}\n\n{changes(begin, fitted)}")


if __name__ == "__main__":
    main()
