"""Layers that the benchmarks state in Python."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from convgen.driver import Spec, load

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import implicit_gemm
import strides

LAYERS = [*strides.LAYERS, *(layer for layers in implicit_gemm.SUITES.values() for layer in layers)]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer.name} {layer.layout}")
def test_a_layer_is_a_convolution_whatever_its_name_says(layer: implicit_gemm.Layer):
    """Names are for people to read; what they name parses, and makes a kernel."""
    problem = implicit_gemm.problem(layer, 2)
    (only,) = load(Spec(str(problem)))
    assert only.request.problem == problem
    (launch, *_) = only.plan.launches
    assert f"void {launch.entry}(" in only.source and launch.entry.isidentifier()
