"""Integer expressions as C: compiled once with the host's compiler, compared with `evaluate`."""

from __future__ import annotations

import random
import re
import shutil
import subprocess

import pytest
from expressions import SYMBOLS, build_ranges, random_expression
from sympy import Integer, cos

from convgen.codegen.c_expr import Names, c_expr
from convgen.ir.integer import bounds, evaluate, floordiv, mod
from convgen.resources import directory

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
A, B, C, D = SYMBOLS
PROGRAM = """
#define __device__
#define __forceinline__ inline
#include <cstdio>
{helpers}
int main() {{
{lines}
}}
"""


def helpers():
    """floor_div and floor_mod as they stand in generated source."""
    blocks = (directory("templates") / "helpers.cuh.j2").read_text().split("//---")
    return "\n".join(b for b in blocks if re.search(r"\bfloor_(div|mod)\(int", b))


def fits(e, within):
    """Whether every intermediate value is an int."""
    return all(-(2**31) <= end < 2**31 for part in _parts(e) for end in bounds(part, within))


def _parts(e):
    yield e
    for a in e.args:
        yield from _parts(a)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_c_text_has_the_value(tmp_path, seed):
    rng = random.Random(seed)
    lines, expected = [], []
    while len(expected) < 2000:
        within, e = build_ranges(rng.randint), random_expression(rng)
        if not fits(e, within):
            continue
        text = c_expr(e, within)
        for _ in range(5):
            values = {s: rng.randint(*within[s]) for s in SYMBOLS}
            given = ", ".join(f"{s.name} = {v}" for s, v in values.items())
            lines.append(f'  {{ [[maybe_unused]] int {given}; std::printf("%d\\n", {text}); }}')
            expected.append((evaluate(e, values), e, text, values))
    source, program = tmp_path / "expressions.cpp", tmp_path / "expressions"
    source.write_text(PROGRAM.format(helpers=helpers(), lines="\n".join(lines)))
    subprocess.run([COMPILER, "-O0", "-std=c++17", "-w", "-o", program, source], check=True)
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    for got, (value, e, text, values) in zip(output.split(), expected, strict=True):
        assert int(got) == value, f"seed {seed}: {e} as {text} with {values}"


def test_division_of_what_may_be_negative_calls_a_helper():
    within = {A: (0, 9), B: (-1, 9)}
    assert c_expr(floordiv(A, Integer(3)), within) == "a / 3"
    assert c_expr(mod(A + 1, Integer(3)), within) == "(a + 1) % 3"
    assert c_expr(floordiv(B, Integer(3)), within) == "floor_div(b, 3)"
    assert c_expr(mod(A - 1, Integer(3)), within) == "floor_mod(a - 1, 3)"


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (Integer(-3), "-3"),
        (A - B, "a - b"),
        (-A, "-a"),
        (-A - B, "-a - b"),
        (64 * A + B - 3, "a * 64 + b - 3"),
        (A * (B + 1), "a * (b + 1)"),
        (A * A * 2, "a * a * 2"),
        (3 * floordiv(A, Integer(2)) + mod(A, Integer(2)), "(a / 2) * 3 + a % 2"),
        (mod(floordiv(A, Integer(2)), Integer(7)), "(a / 2) % 7"),
    ],
)
def test_text_is_what_a_person_writes(e, text):
    assert c_expr(e, {s: (0, 99) for s in SYMBOLS}) == text


@pytest.mark.parametrize(
    ("e", "text", "mentioned"),
    [
        (A * 12 + B * 4 + C, "a * S + b * T + c", {"S", "T"}),
        (A * 24, "a * 2 * S", {"S"}),
        (A * 40 + B, "a * 40 + b", set()),
        (A * 12 - 28, "a * S - 2 * S - T", {"S", "T"}),
        (A * 12 - 27, "a * S - 2 * S - 3", {"S"}),
        (A * 5 + 1000, "a * 5 + 1000", set()),
    ],
)
def test_factors_that_are_a_few_strides_have_names(e, text, mentioned):
    heard: set[str] = set()
    names = Names(strides={12: "S", 4: "T"}, mention=heard.add)
    assert c_expr(e, {s: (0, 99) for s in SYMBOLS}, names=names) == text
    assert heard == mentioned


def test_what_an_index_is_divided_by_has_a_name_by_its_place():
    """14 is P of a remainder behind a division by Q, and Q of one of the index itself."""
    names = Names(divisors={14: ("Q",), 196: ("P", "Q")}, moduli={(1, 14): ("Q",), (14, 14): ("P",)})
    within = {A: (0, 999)}
    for e, text in [
        (floordiv(A, Integer(196)), "a / (P * Q)"),
        (mod(floordiv(A, Integer(14)), Integer(14)), "(a / Q) % P"),
        (mod(A, Integer(14)), "a % Q"),
        (mod(A, Integer(15)), "a % 15"),
    ]:
        assert c_expr(e, within, names=names) == text


BILLION = 10**9


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (5 * A, "(long long)a * 5"),
        (A + B, "(long long)a + b"),
        (A + B - C, "(long long)a + b - c"),
        (3 * C + 7 * D + A, "(long long)d * 7 + c * 3 + a"),
        (A - 3 * B, "(long long)a - (long long)b * 3"),
        (2 * floordiv(A, Integer(3)) + 4 * B, "(long long)b * 4 + (a / 3) * 2"),
        (9 * floordiv(A, Integer(3)), "(long long)(a / 3) * 9"),
        (floordiv(3 * A, Integer(7)), "((long long)a * 3) / 7"),
        (2 * C + D, "c * 2 + d"),
    ],
)
def test_what_may_leave_32_bits_is_made_in_64(e, text):
    within = {A: (0, 2 * BILLION), B: (0, BILLION), C: (0, BILLION // 2), D: (0, BILLION // 2)}
    assert c_expr(e, within) == text
    assert "long long" not in c_expr(e, within, symbols="long long")


def test_what_is_not_an_integer_expression_is_refused():
    with pytest.raises(TypeError, match="cos"):
        c_expr(cos(A), {})
