"""Classes of sizes: which few plans serve calls of many numbers of images, by the cost model's estimates.

A class is a plan with code of its own; a call takes the one whose estimate at its size is the least.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations
from operator import mul

from convgen.ir.estimates import between, numbers
from convgen.ir.plan import Plan

#: Classes of a kernel, and numbers of images that are planned for to choose these.
MOST, MOST_COMPARED = 4, 12
#: What another class must gain, as a logarithm of the mean time.
WORTH_A_CLASS = 0.01


def compared(images: Iterable[int]) -> tuple[int, ...]:
    """The numbers of images to plan for: all of these, or the first, the last and the roundest in base 2."""
    asked = sorted(set(images))

    def rank(n: int) -> tuple[bool, int, int]:
        digits = n.bit_length() - (n & -n).bit_length()  # behind the first, up to the last that is 1
        return n not in (asked[0], asked[-1]), digits, n

    return tuple(sorted(sorted(asked, key=rank)[:MOST_COMPARED]))


def chosen(plans: Mapping[int, Plan], images: Collection[int]) -> tuple[int, ...]:
    """The numbers of images whose plans are the least behind for these `images`, of plans by numbers of images: as few
    as are about as good as `MOST`.  Each doubling counts as much as any other."""
    estimated = sorted(set(numbers(max(images))).intersection(images) | plans.keys())
    spans = zip(estimated[:1] + estimated, estimated, estimated[1:] + estimated[-1:], strict=False)
    weights = [math.log(after / before) for before, _, after in spans]
    distinct: dict[tuple[str, str, int], int] = {}
    for n, plan in plans.items():
        distinct.setdefault(_code(plan), n)
    behind = {n: _behind(n, plans, estimated) for n in distinct.values()}

    def mean(of: tuple[int, ...]) -> float:
        least = map(min, zip(*(behind[n] for n in of), strict=True))
        return sum(map(mul, weights, least)) / sum(weights) if len(weights) > 1 else 0.0

    best = [min(combinations(behind, count), key=mean) for count in range(1, min(MOST, len(behind)) + 1)]
    return next(of for of in best if mean(of) <= mean(best[-1]) + WORTH_A_CLASS)


def _code(plan: Plan) -> tuple[str, str, int]:
    """A key of the code of a plan of dynamic sizes; larger sizes may count in more bits."""
    return plan.strategy, plan.configuration, plan.size_class.most


def _behind(planned: int, plans: Mapping[int, Plan], images: Iterable[int]) -> list[float]:
    """How far one of the plans is behind the best for each of these numbers: the logarithm of the times' ratio.

    The best is the plan for that very number, which may have been measured; else the least estimate.  Infinitely far
    is a plan that does not go up to so many."""
    found = []
    most = plans[planned].size_class.most
    for n in images:
        if n > most:
            found.append(math.inf)
            continue
        us = between(plans[planned].estimates, n)
        best = between(plans[n].estimates, n) if n in plans else min(between(p.estimates, n) for p in plans.values())
        if n in plans and _code(plans[n]) == _code(plans[planned]):
            found.append(0.0)
        elif math.isinf(us):  # without a cost model, plans for sizes as near as possible
            found.append(abs(math.log(n / planned)))
        else:
            found.append(max(math.log(us / best), 0.0))
    return found
