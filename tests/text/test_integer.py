"""Simplification against brute force over random trees, and the forms that it should find."""

from __future__ import annotations

import random

import numpy as np
import pytest
from expressions import SYMBOLS, build_ranges, every_assignment, expressions, random_expression, ranges
from hypothesis import given, settings
from sympy import Integer, sin

from convgen.ir.integer import bounds, count_operations, evaluate, floordiv, mod, simplify, symbol

A, B, C, D = SYMBOLS
WIDE = {A: (0, 999), B: (0, 7), C: (0, 99), D: (-50, 50)}


# ---- properties --------------------------------------------------------------------------------


def assert_simplify_and_bounds_hold(e, within):
    simple = simplify(e, within)
    values, count = every_assignment(within)
    before = np.broadcast_to(evaluate(e, values), count)
    after = np.broadcast_to(evaluate(simple, values), count)
    np.testing.assert_array_equal(before, after, err_msg=f"{e}  became  {simple}")
    assert count_operations(simple) <= count_operations(e), f"{e}  became  {simple}"
    for form in (e, simple):
        low, high = bounds(form, within)
        assert low <= before.min(), f"{form} is {before.min()}"
        assert before.max() <= high, f"{form} is {before.max()}"


@settings(max_examples=200, deadline=None)
@given(expressions(), ranges())
def test_simplify_and_bounds_hold(e, within):
    assert_simplify_and_bounds_hold(e, within)


def test_simplify_and_bounds_hold_in_bulk(seed, some):
    """Uniform trees, which reach rare combinations sooner."""
    rng = random.Random(seed)
    for _ in some(range(1500)):
        e, within = random_expression(rng), build_ranges(rng.randint)
        try:
            assert_simplify_and_bounds_hold(e, within)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {e} within {within}") from error


@settings(max_examples=100, deadline=None)
@given(expressions(), ranges())
def test_simplify_is_stable(e, within):
    """What is simple stays as it is, or gets simpler still; it never grows."""
    once = simplify(e, within)
    assert count_operations(simplify(once, within)) <= count_operations(once)


@settings(max_examples=100, deadline=None)
@given(expressions())
def test_bounds_of_symbolic_divisors_hold(e):
    within = {s: (-4, 4) for s in SYMBOLS} | {symbol("F"): (1, 5)}
    values, count = every_assignment(within)
    for quotient in (floordiv(e, symbol("F")), mod(e, symbol("F")), mod(mod(e, Integer(7)), symbol("F"))):
        got = np.broadcast_to(evaluate(quotient, values), count)
        low, high = bounds(quotient, within)
        assert low <= got.min()
        assert got.max() <= high


# ---- rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # what the ranges decide
        (floordiv(B, Integer(8)), Integer(0)),
        (mod(B, Integer(8)), B),
        (mod(B + 16, Integer(8)), B),
        (floordiv(B - 8, Integer(8)), Integer(-1)),
        # multiples
        (floordiv(12 * A + B, Integer(4)), 3 * A + floordiv(B, Integer(4))),
        (mod(12 * A + C, Integer(4)), mod(C, Integer(4))),
        (floordiv(16 * A + B, Integer(8)), 2 * A),
        (mod(16 * A + B, Integer(8)), B),
        # blocks: B < 8 is the position in a block of 8
        (floordiv(8 * A + B, Integer(64)), floordiv(A, Integer(8))),
        (mod(8 * A + B, Integer(64)), 8 * mod(A, Integer(8)) + B),
        # nests
        (floordiv(floordiv(A, Integer(3)), Integer(5)), floordiv(A, Integer(15))),
        (mod(mod(A, Integer(15)), Integer(5)), mod(A, Integer(5))),
        (floordiv(mod(A, Integer(15)), Integer(5)), mod(floordiv(A, Integer(5)), Integer(3))),
        # an index comes apart and meets again
        (5 * floordiv(A, Integer(5)) + mod(A, Integer(5)), A),
        (30 * floordiv(A, Integer(15)) + 10 * mod(floordiv(A, Integer(5)), Integer(3)) + 2 * mod(A, Integer(5)), 2 * A),
        (5 * mod(floordiv(A, Integer(5)), Integer(3)) + mod(A, Integer(5)), mod(A, Integer(15))),
        # constants
        (floordiv(A + 7, Integer(3)), floordiv(A + 7, Integer(3))),
        (floordiv(A + 1, Integer(3)) + 2, floordiv(A + 7, Integer(3))),
        (mod(A + 7, Integer(3)), mod(A + 1, Integer(3))),
    ],
)
def test_rules(before, after):
    assert simplify(before, WIDE) == after


def test_a_symbol_of_one_value_is_that_value():
    assert simplify(A + B, {A: (3, 3), B: (0, 9)}) == B + 3


def test_counting():
    assert count_operations(A) == 0
    assert count_operations(-A) == 0
    assert count_operations(A - B) == 1
    assert count_operations(3 * A - 2 * B + 1) == 4
    assert count_operations(A * A * B) == 2
    assert count_operations(mod(floordiv(A, Integer(3)), Integer(5))) == 2


def test_text_reads_as_it_computes():
    assert str(mod(floordiv(A + 1, Integer(3)), Integer(5))) == "((a + 1) / 3) % 5"
    assert str(4 * floordiv(A, Integer(3)) + mod(B, Integer(2))) == "4*(a / 3) + b % 2"
    assert str(floordiv(D - 4, Integer(3))) == "(d - 4) / 3"


def test_what_is_not_an_integer_expression_is_refused():
    for function in (lambda: bounds(sin(A), WIDE), lambda: evaluate(sin(A), {A: 1})):
        with pytest.raises(TypeError, match="sin"):
            function()
    with pytest.raises(KeyError):
        bounds(symbol("unknown"), WIDE)
