"""A cost model's estimates of one configuration for several numbers of images, and what lies between them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator

#: (images, microseconds), by rising numbers of images; empty where there is no cost model.
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
