"""Random integer expressions over four symbols, and their values by brute force."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st
from sympy import Add, Integer, Mul

from convgen.ir.integer import floordiv, mod, symbol

SYMBOLS = tuple(symbol(name) for name in "abcd")
DIVISORS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24)
FACTORS = (-12, -3, -1, 2, 3, 4, 5, 8, 12, 24)


def build(choose: Callable[[int, int], int], depth: int):
    """A tree of at most that depth; `choose` gives an integer between two, both included."""

    def pick(row):
        return row[choose(0, len(row) - 1)]

    kind = choose(0, 9) if depth else 0
    if kind == 0:
        return pick(SYMBOLS) if choose(0, 3) else Integer(choose(-20, 20))
    if kind <= 3:
        return Add(*(build(choose, depth - 1) for _ in range(choose(2, 3))))
    if kind == 4:
        return build(choose, depth - 1) * build(choose, depth - 1)
    if kind == 5:
        return Mul(Integer(pick(FACTORS)), build(choose, depth - 1))
    if kind <= 7:
        return floordiv(build(choose, depth - 1), Integer(pick(DIVISORS)))
    return mod(build(choose, depth - 1), Integer(pick(DIVISORS)))


def build_index(choose: Callable[[int, int], int]):
    """What index maps are made of: the digits of one flat index, each with a coefficient, in a sum."""
    index, total = SYMBOLS[choose(0, 1)], Integer(choose(-9, 9))
    scale = 1
    for _ in range(choose(1, 4)):
        radix = choose(1, 6)
        scale = scale * radix if choose(0, 3) else choose(1, 12)
        total += scale * mod(index, Integer(radix)) if choose(0, 4) else Integer(0)
        index = floordiv(index, Integer(radix))
    return total + choose(1, 24) * index


def build_ranges(choose: Callable[[int, int], int]):
    """Bounds of each symbol: some negative, some of one value."""
    found = {}
    for s in SYMBOLS:
        low = (0, 0, 0, -3, -7, 2)[choose(0, 5)]
        found[s] = (low, low + (0, 1, 2, 3, 5, 8)[choose(0, 5)])
    return found


@st.composite
def expressions(draw, depth=5):
    def choose(low, high):
        return draw(st.integers(low, high))

    return build(choose, choose(1, depth)) if choose(0, 2) else build_index(choose)


@st.composite
def ranges(draw):
    return build_ranges(lambda low, high: draw(st.integers(low, high)))


def every_assignment(of, most=20000):
    """All values of the symbols within ranges, as one array a symbol; a sample where there are more."""
    runs = [range(low, high + 1) for low, high in of.values()]
    table = np.array(list(itertools.islice(itertools.product(*runs), most)), dtype=np.int64)
    return dict(zip(of, table.T, strict=True)), len(table)


def random_expression(rng: random.Random):
    return build(rng.randint, rng.randint(1, 5)) if rng.random() < 0.7 else build_index(rng.randint)
