"""The scripts that fit the cost models: keys read back, rates recovered, regret counted."""

from __future__ import annotations

import math
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy
import pytest

from convgen.frontend import load
from convgen.planner import database
from convgen.planner.database import Database, Measurement, Status
from convgen.targets import TARGETS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import fit_cost
import geometries

GPU = "NVIDIA H200"


def test_the_same_seed_draws_the_same_and_another_does_not():
    assert geometries.drawn(3, 20) == geometries.drawn(3, 20)
    assert not set(geometries.drawn(3, 20)) & set(geometries.drawn(4, 20))


@pytest.mark.parametrize("seed", range(3))
def test_a_key_says_which_convolution_it_stands_for(seed: int):
    for problem in geometries.random_problems(seed, 20):
        read = fit_cost.problem_of(database.key(problem))
        assert replace(read, name=problem.name) == problem
    assert {p.n for p in geometries.suites((8, 64), ("resnet50",))} == {8, 64}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "epilogue",
    [
        "operand z: f16[n, p, q, k]  y = acc * z",
        "operand b: f32[k]  operand z: bf16[n, p, q, k]  operand u: f16[p, q, k]  y = acc + b * z + u",
        "operand b: f32[k]  result t: f16[n, p, q, k]  t = acc + b  y = relu(t)",
    ],
)
def test_a_key_says_what_an_epilogue_reads_and_writes(epilogue: str, n: int):
    text = f"conv a {{ input x: f16[n={n}, h=8, w=8, c=64] filter w: f16[k=32, c=64] output y: f16[n, p, q, k] "
    (only,) = load(f"{text} epilogue {{ {epilogue} }} }}")
    read = fit_cost.problem_of(database.key(only.problem))
    assert database.key(read) == database.key(only.problem) and not read.sums
    assert len(read.operands) == len(only.problem.operands)


def test_a_key_of_sums_of_what_is_read_stands_for_no_single_convolution():
    text = "conv a { input x: f16[n=2, h=8, w=8, c=64] filter w: f16[k=32, c=64] output y: f16[n, p, q, k] "
    (only,) = load(f"{text} epilogue {{ result s: f32[c]  s = x  y = acc }} }}")
    with pytest.raises(ValueError, match="without sums"):
        fit_cost.problem_of(database.key(only.problem))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[fit_cost.Row]:
    """Configurations whose times are those of models with rates of our own, give or take a few percent."""
    rng = random.Random(5)
    made = tmp_path_factory.mktemp("rows") / "made.sqlite"
    with Database(made) as db:
        for problem in geometries.random_problems(11, 12):
            for name, model in fit_cost.MODELS.items():
                strategy = fit_cost.strategies.STRATEGIES[name]
                if strategy.obstacles(problem, TARGETS["sm_90a"], {}):
                    continue
                for options in strategy.candidates(problem, TARGETS["sm_90a"])[::9]:
                    demands = model.demands(fit_cost.layout_of(name, problem, options))
                    us = model.time(**demands, rates=true_rates(name)) * rng.uniform(0.98, 1.02)
                    key = database.key(problem)
                    db.record(Measurement(key, GPU, name, options, Status.TIMED, us))
                    db.record(Measurement(key, GPU, "direct", {}, Status.FAILED, None))
    return fit_cost.read([made])


def true_rates(name: str):
    rates = fit_cost.MODELS[name].rates
    return replace(rates, mma=1.3 * rates.mma, memory=0.8 * rates.memory, start=1.5 * rates.start)


def test_a_fit_recovers_the_rates_that_times_were_made_with(rows: list[fit_cost.Row]):
    us = numpy.array([row.us for row in rows])
    before = {name: model.rates for name, model in fit_cost.MODELS.items()}
    after = {name: fit_cost.fit(name, rows, rates) for name, rates in before.items()}
    errors = [numpy.abs(numpy.log(fit_cost.estimates(rows, rates) / us)).mean() for rates in (before, after)]
    assert errors[0] > 0.1 and errors[1] < 0.03
    report = fit_cost.report(rows, fit_cost.estimates(rows, after))
    assert report["across strategies"]["layers"] == 12 and 1 <= report["across strategies"]["regret"] < 1.02


def test_regret_is_the_time_of_the_choice_over_the_best():
    def row(key: str, us: float, estimate: float) -> fit_cost.Row:
        return fit_cost.Row(key, 8, key, "direct", us, {}, "", estimate)

    rows = [row("a", 10, 5), row("a", 8, 6), row("b", 4, 1), row("b", 5, 2)]
    guesses = fit_cost.estimates(rows, {})
    assert [c.regret for c in fit_cost.choices(rows, guesses, ["direct"])] == [1.25, 1]
    report = fit_cost.report(rows, guesses)["direct"]
    assert report["regret"] == pytest.approx(math.sqrt(1.25)) and (report["worst"], report["worst_layer"]) == (
        1.25,
        "a",
    )


def test_a_layer_is_in_one_part_at_all_its_batches(rows: list[fit_cost.Row]):
    other = [replace(row, n=row.n + 1) for row in rows]
    parts = fit_cost.folds(rows + other, seed=1)
    assert len(parts) == fit_cost.FOLDS and sum(map(len, parts)) == len({row.layer for row in rows}) == 12
