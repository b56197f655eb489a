"""What measurements say of configurations that the cost models put close together.

A cost model is a few terms with fitted rates.  How far measured times are from it is not all noise: it depends on the
tile, the schedule, how rows lie in memory.  Trees fitted to these differences (gradient boosting: Friedman, "Greedy
Function Approximation: A Gradient Boosting Machine", 2001) tell which of several configurations that the model puts
within a few percent of one another is faster.  Further apart, and where no such kernel was measured, the model decides
alone: docs/decisions/correction.md.

`correction.json` in a kernel's folder has its trees; benchmarks/fit_correction.py writes it.  A tree is a number, the
logarithm of a factor, or [trait, threshold, tree where the trait is at most that, tree where it is more].
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from convgen.ir.problem import SECTOR, ConvProblem
from convgen.kernels.base import AnyKernel, Layout
from convgen.kernels.parts.cost import LINE, traffic
from convgen.kernels.search import Search, Timed

#: How much longer than the fastest, by the cost model, a configuration may take to be looked at, and how many are: so
#: far, predictions held for 484 layers that had no part in the fit (benchmarks/results/near_h200.json).
NEAR, MOST_NEAR = 1.1, 48
#: The part of the time that a configuration has to save, by the trees, to be taken.
LEAST_GAIN = 0.01

VECTOR = 8  # channels that a thread loads or stores at once, at most

Found = tuple[Search, Timed]  # a configuration, and whose it is


def measured(search: Search) -> bool:
    """Whether layers like the search's were: of 2-byte elements, of sizes that no call decides."""
    problem = search.problem
    return search.kernel.corrected and problem.x.element.bytes == 2 and not problem.dynamic


def reach(search: Search) -> float:
    """The longest estimated time of configurations to consider: little more than that of the search's best, or the time
    that the trees predict for it."""
    best = search.best
    assert best is not None, "a search that is settled"
    return max(NEAR * best.us, _corrected(search, best) or 0.0)


def favored(near: Sequence[Found]) -> Found | None:
    """Among configurations that the cost models put near the fastest, the one that measurements of other layers favor;
    None where that is the fastest, or measurements say nothing about it."""
    corrected = [(us, found) for found in near if (us := _corrected(*found)) is not None]
    model = min(near, key=lambda found: found[1].us, default=None)
    expected = next((us for us, found in corrected if found is model), None)
    if expected is None:
        return None
    least, best = min(corrected, key=lambda c: c[0])
    return best if least <= (1 - LEAST_GAIN) * expected else None


def _corrected(search: Search, timed: Timed) -> float | None:
    """The microseconds that the trees expect; None where nothing like it was measured."""
    seen = traits(search.kernel, timed.layout, timed.us)
    return None if seen is None else timed.us * factor(search.kernel.name, seen)


def traits(kernel: AnyKernel, layout: Layout, us: float) -> dict[str, float] | None:
    """The trees' features of a layout with an estimate of `us`: how the problem lies in memory, the kernel's own
    traits, the options (for a word, 1.0 under `name=word`), and what follows from them."""
    if (own := kernel.traits(layout)) is None:
        return None
    options = layout.config.options
    named = (*_memory(layout.problem).items(), *own.items(), *options.items())
    seen = {name: float(value) for name, value in named if not isinstance(value, str)}
    seen |= {f"{name}={value}": 1.0 for name, value in options.items() if isinstance(value, str)}
    pitch, waves, moved = seen["x_pitch"], seen["tiles"] / seen["sms"], seen["reads"] / us
    return seen | {"us": us, "waves": waves, "moved": moved, "in_line": pitch % LINE, "in_sector": pitch % SECTOR}


@lru_cache(maxsize=64)  # called for each configuration
def _memory(problem: ConvProblem) -> Mapping[str, int]:
    """Features of memory: bytes read, bytes between pixels of x, and how many channels threads can load or store at
    once."""
    moved = traffic(problem)
    vectors = {f"{name}_vector": math.gcd(extent, VECTOR) for name, extent in (("c", problem.c), ("k", problem.k))}
    return {"reads": moved["reads"], "x_pitch": moved["x_pitch"], **vectors}


def factor(kernel: str, seen: Mapping[str, float]) -> float:
    """How many times as long as the cost model says layouts with such traits take."""
    total, trait_of = 0.0, seen.get
    for tree in _trees(kernel):
        while isinstance(tree, list):
            trait, threshold, low, high = tree
            tree = low if trait_of(trait, 0.0) <= threshold else high
        total += tree
    return math.exp(total)


@cache
def _trees(kernel: str) -> Sequence[Any]:
    text = files(f"convgen.kernels.{kernel}").joinpath("correction.json").read_text(encoding="utf-8")
    trees: Sequence[Any] = json.loads(text)
    return trees
