"""Layers that the benchmarks state in Python."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from convgen.bench.results import Result, Row
from convgen.driver import Spec, load
from convgen.kernels import strategies
from convgen.kernels.registry import KERNELS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import backward
import documents
import epilogues
import implicit_gemm
import sanitize_cases

LAYERS = [layer for layers in implicit_gemm.SUITES.values() for layer in layers]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer.name} {layer.layout}")
def test_a_layer_is_a_convolution_whatever_its_name_says(layer: implicit_gemm.Layer):
    """Names are for people to read; what they name parses, and makes a kernel."""
    problem = implicit_gemm.problem(layer, 2)
    (only,) = load(Spec(str(problem), strategy="direct"))  # the quickest to plan
    assert only.request.problem == problem
    (launch, *_) = only.plan.launches
    assert f"void {launch.entry}(" in only.source and launch.entry.isidentifier()


@pytest.mark.costly
@pytest.mark.parametrize("name", documents.EXPERIMENTS)
def test_an_experiment_s_kernels_are_served(name: str):
    rows = list(islice(documents.EXPERIMENTS[name](2), 20))
    assert len({(str(row.problem), *row.about.values()) for row in rows}) == len(rows)
    for job in (job for row in rows for job in row.jobs if job.strategy != "auto"):
        assert not strategies.STRATEGIES[job.strategy].obstacles(job.problem, job.target, job.options), job


@pytest.mark.parametrize("variant", epilogues.VARIANTS)
def test_an_epilogue_is_that_of_a_layer_of_resnet(variant: str):
    wanted = argparse.Namespace(batch=[2], suite="resnet50", only=list(epilogues.LAYERS), layout="nhwc")
    found = list(epilogues.layers(wanted))
    assert sum(count for _, count in found) == 16
    for problem, _ in found:
        closed = epilogues.with_epilogue(problem, epilogues.VARIANTS[variant].text)
        shaped = [t for t in (*closed.operands, *closed.further) if t.dims == problem.y.dims]
        assert replace(closed, epilogue=None) == problem and bool(closed.operands) == (variant != "plain")
        assert epilogues.shaped_like_y(closed) == sum(t.bytes for t in shaped)


def test_layers_count_as_often_as_the_network_has_them():
    shares = {"a": (1, 0.5), "b": (3, 1.0)}
    rows = [
        {"n": 8, "count": count, "columns": {"plain": {"alone": {"share": share}}}} for count, share in shares.values()
    ]
    found = epilogues.summarize(rows)["n=8 plain alone"]
    assert found == {"mean": round(0.5**0.25, 4), "least": 0.5, "layers": 4}


def test_gradients_of_layers_are_served_by_kernels_for_wgrad(some):
    named = list(backward.layers(["resnet50", "grouped", "mobilenet_v2"], [8], ["wgrad"]))
    assert {backward.kind(p) for _, p in named} == {"first layers", "unit stride", "strided", "grouped", "depthwise"}
    assert len({p.digest for _, p in named}) == len(named)
    for name, problem in some(named):
        entry = backward.entry(name, problem, 2, "")
        kernels = [column.job.options.get("kernel") for c, column in entry.columns.items() if c.startswith("candidate")]
        special = {"depthwise": {"depthwise_wgrad"}, "first layers": {"stem_wgrad"}}
        own = {"tma_wgrad"} | special.get(backward.kind(problem), set())
        assert len(kernels) == 2 and own.issuperset(kernels), name
        assert not strategies.STRATEGIES["tma_im2col"].obstacles(problem, backward.TARGET, {}), name


def test_candidates_that_have_other_options_are_timed_too():
    ((_, problem),) = backward.layers(["resnet50"], [64], ["wgrad"], ["res4_1x1_b"])
    found = backward.entry("layer", problem, 2, "", [backward.asked("cluster=2,multicast=b")]).columns
    asked = [c.job.options for name, c in found.items() if name in ("candidate 3", "candidate 4")]
    assert [(o["kernel"], o["cluster"], o["multicast"]) for o in asked] == [("tma_wgrad", 2, "b")] * 2


def test_speedups_over_cudnn_are_summed_up_by_kind_of_layer():
    def row(us: float, best: float, cudnn: float) -> Row:
        times = {"auto": us, "chain": us - 1, "candidate 1": best}
        return Row("layer", "wgrad", 8, "", 1, 1, {c: Result("", us=t, cudnn_us=cudnn) for c, t in times.items()})

    (_, problem), *_ = backward.layers(["resnet50"], [8], ["wgrad"])
    summary = backward.summarize([(problem, row(10, 5, 20)), (problem, row(5, 8, 40))])
    (columns,) = summary.values()
    assert columns["auto"]["mean"] == pytest.approx(4) and columns["auto"]["least"] == 2
    assert columns["best"]["mean"] == pytest.approx((4 * 10) ** 0.5)


@pytest.mark.costly
@pytest.mark.parametrize("name", sanitize_cases.CASES)
def test_a_case_of_the_sanitizers_is_served(name: str):
    (only,) = load(Spec(sanitize_cases.CASES[name], target="sm_90a"))
    assert only.plan.launches


def test_the_sanitizers_see_every_kernel():
    plans = [load(Spec(text, target="sm_90a"))[0].plan for text in sanitize_cases.CASES.values()]
    assert {plan.kernel for plan in plans} == {row.name for row in KERNELS}
