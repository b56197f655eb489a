"""The script that fits the cost models together: what it reads, and that a fit moves the right way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import fit_jointly
from fit_jointly import Estimates, Row

SOURCES = (fit_jointly.candidates, fit_jointly.gradients, fit_jointly.networks, fit_jointly.tuned, fit_jointly.swept)


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_read_has_estimates_near_its_times(source: Callable[[], Iterator[Row]]):
    rows = list(islice(source(), 6))
    guesses = Estimates(rows).by(fit_jointly.in_the_code())
    assert len(rows) == 6 and all(row.us / 3 < us < 3 * row.us for row, us in zip(rows, guesses, strict=True))


def test_a_configurations_text_is_read_back_as_it_is():
    """The first gradient's was written without options that a search would choose otherwise."""
    row = next(fit_jointly.gradients())
    assert str(row.layout.config) == "tile m=192 n=64 k=64  stages 4  consumers 1  schedule cooperative  swap_ab 1"
    tile = row.layout.config.options
    assert (tile["blocks"], tile["k_blocks"], tile["cluster"]) == (1, 1, 1)


def test_a_fit_comes_nearer_to_times_that_other_rates_made_and_leaves_the_code_alone():
    rows, begin = list(islice(fit_jointly.candidates(), 48)), fit_jointly.in_the_code()
    true = {
        kernel: replace(begin[kernel], **{name: 1.5 * getattr(begin[kernel], name) for name in model.told})
        for kernel, model in fit_jointly.MODELS.items()
    }
    made = [replace(row, us=us) for row, us in zip(rows, Estimates(rows).by(true).tolist(), strict=True)]
    fitted = fit_jointly.fit(made, begin, evaluations=6)
    us = numpy.array([row.us for row in made])
    before, after = (numpy.abs(numpy.log(Estimates(made).by(rates) / us)).mean() for rates in (begin, fitted))
    assert after < 0.5 * before
    assert fit_jointly.in_the_code() == begin


def test_regret_is_the_time_of_the_choice_over_the_best():
    row = next(fit_jointly.candidates())
    rows = [replace(row, source="made", layer="a", us=us) for us in (10.0, 8.0)]
    line = fit_jointly.table(rows, numpy.array([5.0, 6.0])).splitlines()[1]
    assert line.split()[:3] == ["made", "2", "1"] and line.split()[-2:] == ["25.0%", "25%"]
