"""A cost model's estimates of one configuration for several numbers of images, and what lies between them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

#: (images, microseconds), in ascending order of images; empty without a cost model.
Estimates = tuple[tuple[int, float], ...]
#: Up to here each number of images has an estimate of its own, and then so many in each doubling: half as many take
#: a step of a wave for a slope, and choose 1% worse on ResNet-50's layers.
EACH, IN_A_DOUBLING = 8, 4


def numbers(most: int) -> Iterator[int]:
    """The numbers of images that are estimated, up to the first that is `most` or more."""
    n = 1
    yield n
    while n < most:
        n += 1 if n < EACH else (1 << n.bit_length() - 1) // IN_A_DOUBLING
        yield n


def between(estimates: Estimates, images: float) -> float:
    """Microseconds for a number of images, not always a whole one; infinite where there is no estimate.

    A kernel of fewer images than are estimated takes as long as the first; of more, as much longer as they are more."""
    if not estimates:
        return math.inf
    i = bisect_left(estimates, (images,))
    if i == 0:
        return estimates[0][1]
    low, us = estimates[i - 1]
    if i == len(estimates):
        return us * images / low
    high, more = estimates[i]
    return us + (more - us) * (images - low) / (high - low)


class SizeClass(NamedTuple):
    """A class of sizes: its estimates, and the most images, of the spec's size, that it serves."""

    estimates: Estimates
    most: int


def behind(estimates: Estimates, planned: int, images: float) -> tuple[float, float]:
    """What ranks a class of sizes for a number of images, the least first: its time by the cost model, which does not
    overrule what was chosen for that very number; how many times as many images it was planned for, or as many as
    it was."""
    apart = max(images, planned) / min(images, planned)
    return 0.0 if apart == 1 else between(estimates, images), apart


def takes(classes: Mapping[int, SizeClass], images: float) -> int:
    """From classes by the numbers of images that they are planned for, the one that a call of `images` runs; if none
    serves so many, the one that refuses the call."""
    going = [planned for planned, known in classes.items() if images <= known.most]
    return min(going or classes, key=lambda planned: behind(classes[planned].estimates, planned, images))


def takers(classes: Mapping[int, SizeClass], images: Iterable[int]) -> dict[int, str]:
    """Which of these numbers of images, in ascending order, run each class, such as 1-5, 8."""
    runs: dict[int, list[list[int]]] = {planned: [] for planned in classes}
    for n in images:
        own = runs[takes(classes, n)]
        if own and n == own[-1][-1] + 1:
            own[-1].append(n)
        else:
            own.append([n])
    return {
        planned: ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in own)
        for planned, own in runs.items()
    }
