"""Fits the trees that choose between configurations that the cost models put close together (kernels/correction.py).

    python benchmarks/fit_correction.py --judge
    python benchmarks/fit_correction.py --write

They are fitted to the logarithm of measured time over estimate, of what `fit_jointly.py` reads of the kernels that have
such trees.  A layer's fastest configurations count most.  `--judge` fits to five sixths of the layers at a time, and
gives the regret of the cost model, and of the choice with the trees, for the others: the time of what is chosen, over
the least that was measured of the layer.  `--write` fits to all, and writes the kernels' `correction.json`.
Needs scikit-learn.  Rates of cost models that change make the trees stale: write them anew behind a fit.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fit_jointly
import numpy
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import GroupKFold

from convgen.kernels import correction, registry
from convgen.planner import keys

KERNELS = Path(correction.__file__).parent


def near() -> Iterator[fit_jointly.Row]:
    """Choices of the model and of trees that differ, timed alone, not in a chain as the rest."""
    for i, row in enumerate(json.loads((fit_jointly.RESULTS / "near_h200.json").read_text())["rows"]):
        for took in (row["before"], row["after"]):
            layer, dealt = f"{row['layer']} {i}", row["run"] in DEALT_RUNS
            yield from fit_jointly.in_words(
                "near", layer, row["spec"], took["strategy"], took["config"], took["us"], dealt=dealt
            )


def unseen() -> Iterator[fit_jointly.Row]:
    """What was chosen for random geometries: one configuration of each, which tells how far off its estimate was."""
    for path in sorted(fit_jointly.RESULTS.glob("unseen_*_h200.json")):
        for row in json.loads(path.read_text())["unseen"]["rows"]:
            took = row["results"]["auto"]
            if took["us"]:
                layer = f"{row['name']} {path.stem}"
                yield from fit_jointly.in_words(
                    "unseen", layer, row["spec"], took["strategy"], took["config"], took["us"]
                )


def ships() -> Iterator[fit_jointly.Row]:
    """What shipped, beside a few that the trees of that day favored, timed alone."""
    for row in json.loads((fit_jointly.RESULTS / "ships_h200.json").read_text())["rows"]:
        for column, us in row["us"].items():
            if us:
                strategy, config = row["config"][column].split(": ", 1)
                yield from fit_jointly.in_words("ships", row["layer"], row["spec"], strategy, config, us, dealt=True)


SOURCES = (
    fit_jointly.candidates, fit_jointly.gradients, fit_jointly.networks, fit_jointly.tuned, fit_jointly.swept, unseen,
    near, ships,
)  # fmt: skip
#: Runs of near_h200.json in which mma_gemm deals out pieces among threads.
DEALT_RUNS = (7, 8, 9, 10, 11, 12, 13)
#: Sources whose times compare with one another alone.
APART = ("near", "ships")
#: How much more a source counts: pairs are what the trees are asked to decide, and were timed as users launch.
COUNTS = {"near": 8.0, "ships": 8.0}
#: Microseconds of a layer below which launches in a chain, as in other sources, rank otherwise than alone.
ALONE = 4.0
#: Of pairs that had no part in the fit, 150 trees of 12 leaves gained 0.4% less; 300 of 16, or 200 of 32, as much.
TREES = {"max_iter": 200, "learning_rate": 0.1, "max_leaf_nodes": 16, "min_samples_leaf": 60, "l2_regularization": 1.0}
FOLDS = 6
#: How fast a configuration's weight falls with its time over the layer's least.
SLOWER = 4.0


@dataclass
class Timed:
    """A configuration that was measured: its traits, and microseconds; the problem, by which several sources may have
    the same layer."""

    source: str
    problem: str
    layer: str
    kernel: str
    traits: Mapping[str, float]
    us: float
    corrected: float = 0.0

    @property
    def estimate(self) -> float:
        return self.traits["us"]


def read() -> list[Timed]:
    """What was measured of kernels that have trees."""
    found = []
    for row in (row for source in SOURCES for row in source()):
        kernel = registry.kernel(row.kernel)
        us = kernel.time(row.layout)
        if kernel.corrected and (seen := correction.traits(kernel, row.layout, us)):
            problem = keys.key(row.layout.problem)
            found.append(Timed(row.source, problem, f"{row.source} {row.layer}", row.kernel, seen, row.us))
    pairs = by_layer([t for t in found if t.source in APART])
    for pair in pairs.values():
        off = math.exp(sum(math.log(t.us / t.estimate) for t in pair) / len(pair))
        for t in pair:
            t.us /= off
    return [t for t in found if t.source not in APART or t.layer in pairs]


class Boosted:
    """Trees of one kernel, fitted to what was timed."""

    def __init__(self, timed: Sequence[Timed], least: Mapping[str, float]) -> None:
        self.names = sorted({name for t in timed for name in t.traits})
        weights = [COUNTS.get(t.source, 1.0) / (1 + SLOWER * (t.us / least[t.layer] - 1)) for t in timed]
        logs = [math.log(t.us / t.estimate) for t in timed]
        self.model = HistGradientBoostingRegressor(**TREES).fit(self._table(timed), logs, weights)

    def _table(self, timed: Sequence[Timed]) -> numpy.ndarray:
        return numpy.array([[t.traits.get(name, 0.0) for name in self.names] for t in timed])

    def correct(self, timed: Sequence[Timed]) -> None:
        for t, log in zip(timed, self.model.predict(self._table(timed)), strict=True):
            t.corrected = t.estimate * math.exp(log)

    @property
    def trees(self) -> list[Any]:
        """As `correction.json` has them, behind the mean that all begin with."""
        boosted = (predictor.nodes for (predictor,) in self.model._predictors)
        return [round(float(numpy.ravel(self.model._baseline_prediction)[0]), 5), *(self._tree(n, 0) for n in boosted)]

    def _tree(self, nodes: numpy.ndarray, i: int) -> Any:
        node = nodes[i]
        if node["is_leaf"]:
            return round(float(node["value"]), 5)
        threshold = float(f"{float(node['num_threshold']):.7g}")
        name = self.names[node["feature_idx"]]
        return [name, threshold, self._tree(nodes, node["left"]), self._tree(nodes, node["right"])]


def grouped(timed: Sequence[Timed], field: str) -> dict[str, list[Timed]]:
    """By what they have in a field: kernel, layer."""
    found: dict[str, list[Timed]] = defaultdict(list)
    for t in timed:
        found[getattr(t, field)].append(t)
    return found


def by_layer(timed: Sequence[Timed]) -> dict[str, list[Timed]]:
    """Of layers of which several configurations were timed."""
    return {layer: own for layer, own in grouped(timed, "layer").items() if len(own) > 1}


def modeled(layer: Sequence[Timed]) -> Timed:
    """What the cost model takes of a layer's configurations."""
    return min(layer, key=lambda t: t.estimate)


def taken(layer: Sequence[Timed]) -> Timed:
    """What `correction.favored` takes of a layer's configurations."""
    model = modeled(layer)
    reach = max(correction.NEAR * model.estimate, model.corrected)
    best = min((t for t in layer if t.estimate <= reach), key=lambda t: t.corrected)
    return best if best.corrected <= (1 - correction.LEAST_GAIN) * model.corrected else model


def judge(timed: Sequence[Timed], least: Mapping[str, float]) -> str:
    """Regret of the cost model and with trees that have not seen the layer, by source."""
    for own in grouped(timed, "kernel").values():
        problems = [t.problem for t in own]
        for fitted, left_out in GroupKFold(FOLDS, shuffle=True, random_state=0).split(own, groups=problems):
            Boosted(told([own[i] for i in fitted], least), least).correct([own[i] for i in left_out])
    lines = [f"{'source':12s}{'layers':>8s}{'model':>9s}{'> 15%':>7s}{'trees':>9s}{'> 15%':>7s}"]
    every = by_layer(timed).values()
    for source in dict.fromkeys(t.source for t in timed):
        columns = ""
        layers = [own for own in every if own[0].source == source]
        if not layers:  # one configuration of each
            continue
        for choice in (modeled, taken):
            logs = [math.log(choice(own).us / least[own[0].layer]) for own in layers]
            columns += f"{math.exp(numpy.mean(logs)) - 1:9.2%}{sum(log > math.log(1.15) for log in logs):7d}"
        lines.append(f"{source:12s}{len(layers):8d}{columns}")
    return "\n".join(lines)


def told(timed: Sequence[Timed], least: Mapping[str, float]) -> list[Timed]:
    """What the trees are fitted to."""
    return [t for t in timed if t.source in APART or least[t.layer] >= ALONE]


def write(timed: Sequence[Timed], least: Mapping[str, float]) -> None:
    for kernel, own in grouped(timed, "kernel").items():
        lines = ",\n".join(json.dumps(tree, separators=(",", ":")) for tree in Boosted(told(own, least), least).trees)
        (KERNELS / kernel / "correction.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--judge", action="store_true", help="print regrets of layers that had no part in a fit")
    what.add_argument("--write", action="store_true", help="write the kernels' correction.json")
    args = parser.parse_args()
    timed = read()
    least = {layer: min(t.us for t in own) for layer, own in grouped(timed, "layer").items()}
    if args.judge:
        print(judge(timed, least))
    else:
        write(timed, least)


if __name__ == "__main__":
    main()
