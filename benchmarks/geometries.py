"""Convolutions to measure: the networks' layers, the strided suite, and geometries drawn at random.

All are f16, fprop, channels last.  Channels are multiples of 8, as TMA takes them, unless any number is asked for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

from convgen.bench.suites import find
from convgen.frontend import load
from convgen.ir.problem import ConvProblem

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = ("alexnet", "zfnet", "vgg16", "googlenet", "resnet50", "densenet121", "yolov2")
#: Filters to draw from, the common ones more often.
FILTERS = (*((1, 1),) * 3, *((3, 3),) * 4, (5, 5), (1, 7), (7, 1))
#: What a drawn geometry may take: GFLOP of a launch, bytes of its tensors.
LEAST_GFLOP, MOST_GFLOP, MOST_BYTES = 0.05, 250, 1 << 30
#: What channels are multiples of, where any number will do: one, the step, of these is drawn for each tensor.
STEPS = (1, 4, 8, 8)


def of_suite(name: str, n: int) -> Iterator[ConvProblem]:
    """Every convolution of a suite at a batch."""
    for path in find(name):
        for request in load(path.read_text(), str(path), {"n": n}):
            yield request.problem


def with_epilogue(problem: ConvProblem, text: str) -> ConvProblem:
    """The problem with an epilogue in the language, `{y}` being y's dims."""
    if not text:
        return problem
    text = text.format(y=", ".join(problem.y.dims))
    (only,) = load(str(problem).replace("\n  op ", f"\n  epilogue {{ {text} }}\n  op ", 1), problem.name)
    return only.problem


def suites(batches: tuple[int, ...], names: tuple[str, ...] = (*NETWORKS, "strided")) -> Iterator[ConvProblem]:
    """The suites' layers whose rows TMA can load, at each batch."""
    for name in names:
        for n in batches:
            yield from (p for p in of_suite(name, n) if p.c % 8 == 0 and p.k % 8 == 0)


def drawn(seed: int, count: int, any_channels: bool = False, most_images: int = 64) -> list[tuple[str, str]]:
    """`count` geometries at random: (name, spec).  The same seed draws the same."""
    rng = random.Random(seed)
    found: list[tuple[str, str]] = []
    while len(found) < count:
        n, size = _log_uniform(rng, 1, most_images), _log_uniform(rng, 7, 112)
        steps = [rng.choice(STEPS) if any_channels else 8 for _ in "ck"]
        c, k = (step * _log_uniform(rng, 16 // step, 1024 // step) for step in steps)
        (r, s), stride = rng.choice(FILTERS), rng.choice((1, 1, 2))
        dilation = rng.choice((1, 1, 1, 1, 1, 2)) if max(r, s) > 1 else 1
        pads = tuple(dilation * (taps - 1) // 2 for taps in (r, s))
        gflop = 2e-9 * n * (size / stride) ** 2 * c * k * r * s
        bytes_moved = 2 * n * size**2 * (c + k / stride**2)
        if not LEAST_GFLOP < gflop < MOST_GFLOP or bytes_moved > MOST_BYTES:
            continue
        name = f"n{n}_{size}x{size}_c{c}_k{k}_{r}x{s}_s{stride}" + (f"_d{dilation}" if dilation > 1 else "")
        spec = (
            f"conv {name} {{ input x: f16[n={n}, h={size}, w={size}, c={c}]  filter w: f16[k={k}, r={r}, s={s}, c={c}]"
            f"  output y: f16[n, p, q, k]  pad h={pads[0]} w={pads[1]}  stride {stride}  dilation {dilation} }}"
        )
        found.append((name, spec))
    return found


def random_problems(seed: int, count: int, any_channels: bool = False, most_images: int = 64) -> list[ConvProblem]:
    return [load(spec)[0].problem for _, spec in drawn(seed, count, any_channels, most_images)]


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    """Small sizes are as likely as large ones, by the factor."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))
