"""Configurations near the fastest by the cost models, and which of them measurements of other layers favor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make
from test_search import problems

from convgen.frontend import load
from convgen.ir.problem import ConvProblem
from convgen.kernels import correction, strategies
from convgen.kernels.registry import KERNELS, kernel
from convgen.kernels.search import Search, near
from convgen.planner import untuned
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
CORRECTED = ("mma_gemm", "stem_mma", "stem_wgmma", "tma_halo", "tma_im2col")
#: Of which both kernels have configurations near the fastest.
LAYER = make("fprop", 8, 128, 128, (28, 28), (3, 3), pad=1)
STEM = make("fprop", 8, 3, 64, (56, 56), (7, 7), pad=3, stride=2)
ONE_TAP = make("fprop", 8, 256, 256, (28, 28), (1, 1))


def searches(problem: ConvProblem) -> list[Search]:
    """New ones, which share nothing with other tests'."""
    return [Search(kernel(name), problem, TARGET, {}) for name in (*CORRECTED, "small_groups")]


def of_trees(trees: Any) -> Iterator[tuple[str, float]]:
    """Traits and thresholds."""
    for tree in trees:
        if isinstance(tree, list):
            trait, threshold, *within = tree
            yield trait, threshold
            yield from of_trees(within)


@settings(max_examples=25, deadline=None)
@given(problem=problems(("fprop", "dgrad")), times=st.sampled_from((1.0, 1.1, 1.4)), most=st.sampled_from((3, 50)))
def test_near_is_the_beginning_of_each_ranking(problem: ConvProblem, times: float, most: int) -> None:
    found = near(searches(problem), lambda s: times * s.us, most, lambda s: s.kernel.name in CORRECTED)
    alone = searches(problem)
    fastest = min(alone, key=lambda s: s.us)
    for name in CORRECTED:
        own = [(t.us, t.layout.config) for search, t in found if search.kernel.name == name]
        expected = []
        if fastest.us < float("inf") and fastest.kernel.name in CORRECTED:
            ranked = next(s for s in alone if s.kernel.name == name).ranked()
            expected = [(t.us, t.layout.config) for t, _ in zip(ranked, range(most), strict=False)]
        assert own == [(us, config) for us, config in expected if us <= times * fastest.us]


@pytest.mark.parametrize("name", CORRECTED)
def test_trees_ask_for_traits_that_layouts_have(name: str) -> None:
    """An option or a demand that is renamed would be 0 for all trees."""
    trees = correction._trees(name)
    row = kernel(name)
    layout = next(Search(row, STEM if name.startswith("stem") else LAYER, TARGET, {}).ranked()).layout
    known = set(correction.traits(row, layout, 10.0) or ())
    strategy = next(row.strategy for row in KERNELS if row.name == name)
    known |= {f"{o.name}={value}" for o in strategies.STRATEGIES[strategy].options for value in o.choices or ()}
    asked = list(of_trees(trees))
    assert {trait for trait, _ in asked} <= known
    assert len(trees) > 50 and len({trait for trait, _ in asked}) > 10


def test_kernels_with_trees() -> None:
    assert {row.name for row in KERNELS if row.kernel.corrected} == set(CORRECTED)


@pytest.mark.parametrize("problem", [LAYER, ONE_TAP], ids=["3x3", "1x1"])
def test_what_is_expected_to_be_faster_is_taken(problem: ConvProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    every = near(searches(problem), correction.reach, correction.MOST_NEAR, correction.measured)
    model = min(timed.us for _, timed in every)
    within = [found for found in every if found[1].us <= correction.NEAR * model]
    search, wanted = max(within, key=lambda found: found[1].us)
    assert model < wanted.us
    options = wanted.layout.config.options

    def factor(name: str, seen: Mapping[str, float]) -> float:
        mine = name == search.kernel.name and all(
            seen.get(f"{o}={v}" if isinstance(v, str) else o) == (1.0 if isinstance(v, str) else v)
            for o, v in options.items()
        )
        return 0.8 if mine else 1.0

    monkeypatch.setattr(correction, "factor", factor)
    choice = untuned(problem, TARGET, "auto", {})
    assert (choice.strategy.name, choice.options) == (search.kernel.name, options)
    assert "measurements of other layers" in choice.reason
    plan = choice.strategy.plan(problem, TARGET, choice.options)
    assert plan.config == wanted.layout.config and plan.us == pytest.approx(wanted.us)


def test_what_the_trees_expect_of_the_models_choice_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the fastest by the model is expected to take 1.3 times as long, so may what is taken."""
    model = min(s.us for s in searches(LAYER))
    limit = correction.NEAR * model
    monkeypatch.setattr(correction, "factor", lambda name, seen: 1.3 if seen["us"] <= limit else 1.0)
    choice = untuned(LAYER, TARGET, "auto", {})
    us = choice.strategy.plan(LAYER, TARGET, choice.options).us
    assert limit < us <= 1.3 * model


def test_the_model_decides_where_little_is_to_be_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correction, "factor", lambda name, seen: 1.0)
    assert not untuned(LAYER, TARGET, "auto", {}).options
    assert "favor" not in untuned(LAYER, TARGET, "auto", {}).reason


UNMEASURED = {
    "float32": "x: f32[n=8, h=28, w=28, c=128]  filter w: f32[k=128, r=3, s=3, c=128]"
    "  output y: f32[n, p, q, k]  pad 1",
    "sizes of a call": "x: f16[n=8, h=28, w=28, c=128]  filter w: f16[k=128, r=3, s=3, c=128]"
    "  output y: f16[n, p, q, k]  pad 1  dynamic n",
    "sums": "x: f16[n=8, h=28, w=28, c=128]  filter w: f16[k=128, r=3, s=3, c=128]  output y: f16[n, p, q, k]  pad 1"
    "  epilogue { result total: f32[k]  y = acc  total = acc }",
    "another kernel": "x: f16[n=8, h=28, w=28, c=64]  filter w: f16[k=64, r=3, s=3, c=1]  output y: f16[n, p, q, k]"
    "  pad 1  groups 64",
    "planes": "x: f16[n=8, c=3, h=224, w=224]  filter w: f16[k=64, c=3, r=7, s=7]  output y: f16[n, k, p, q]  pad 3"
    "  stride 2",
}


@pytest.mark.parametrize("layer", UNMEASURED)
def test_the_model_decides_where_nothing_like_it_was_measured(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correction, "factor", lambda name, seen: 2.0 - seen["us"] / 1e4)  # the slower, the better
    (request,) = load(f"conv layer {{ input {UNMEASURED[layer]} }}")
    assert not untuned(request.problem, TARGET, "auto", {}).options


def test_factors_are_near_one() -> None:
    """What the trees say of the layers that people run: beyond a third, something is stale."""
    for problem in (LAYER, ONE_TAP, make("fprop", 64, 512, 512, (7, 7), (3, 3), pad=1)):
        for search, timed in near(searches(problem), correction.reach, 50, correction.measured):
            seen = correction.traits(search.kernel, timed.layout, timed.us)
            assert seen and 0.75 < correction.factor(search.kernel.name, seen) < 1.33
