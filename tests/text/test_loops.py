"""No loops of one trip in generated source, and what becomes of those that templates write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgen.codegen.loops import without_single_trips
from convgen.codegen.substitute import substitute

GENERATED = Path(__file__).parents[2] / "generated"
COUNTED = re.compile(r"for \(\w+ (\w+) = ([^;]+); \1 < ([^;]+); (?:\+\+\1|\1 \+= ([^,)]+))")


def number(text: str, constants: dict[str, int]) -> int | None:
    """The value of C text, where it is arithmetic on constants that are not negative."""
    words = re.findall(r"[A-Za-z_]\w*", text)
    if not re.fullmatch(r"[\w\s+*/%()-]+", text) or not constants.keys() >= set(words):
        return None
    return eval(text.replace("/", "//"), {}, dict(constants))


def single_trips(text: str) -> Iterator[str]:
    """Loops that run once by the constants above them."""
    constants: dict[str, int] = {}
    for line in text.splitlines():
        if found := re.match(r" *(?:static )?constexpr \w+ (\w+) = ([^;{]+);", line):
            value = number(found[2], constants)
            constants = {
                **{k: v for k, v in constants.items() if k != found[1]},
                **({found[1]: value} if value else {}),
            }
        for found in COUNTED.finditer(line):
            first, end, step = (number(found[part] or "1", constants) for part in (2, 3, 4))
            if None not in (first, end, step) and first < end <= first + step:
                yield line.strip()


@pytest.mark.parametrize("path", sorted(GENERATED.glob("*.cu")), ids=lambda path: path.stem)
def test_no_golden_has_a_loop_of_one_trip(path):
    assert not list(single_trips(path.read_text(encoding="utf-8")))


def unrolled(text: str) -> str:
    return without_single_trips(dedent(text).lstrip("\n"))


def test_a_loop_of_one_trip_is_its_body():
    assert unrolled("""
        constexpr int rows = 64;
        void f() {
          float acc[rows / 64][8];
        #pragma unroll
          for (int i = 0; i < rows / 64; ++i) {
            // all of acc[i]
            for (int j = 0; j < 8; ++j) multiply(acc[i][j], tile + i * (64 * 128) + j * 16, step != 0 || i > 0);
          }
        }
    """) == dedent("""\
        constexpr int rows = 64;
        void f() {
          float acc[rows / 64][8];
          // all of acc[i]
          for (int j = 0; j < 8; ++j) multiply(acc[0][j], tile + j * 16, step != 0);
        }
    """)


def test_what_a_loop_counts_besides_its_variable_is_counted():
    assert unrolled("""
        constexpr int blocks = 1;
        void f() {
          for (int block = 0; block < blocks; ++block, ++use) load(use + block);
        }
    """) == dedent("""\
        void f() {
          load(use);
          ++use;
        }
    """)


def test_a_name_that_means_something_else_around_the_loop_keeps_its_block():
    text = """
        void f(int row) {
          for (int i = 0; i < 1; ++i) {
            const int column = i;
            g(column);
          }
          for (int i = 0; i < 1; ++i) {
            const int row = i;
            g(row);
          }
        }
    """
    assert unrolled(text) == dedent("""\
        void f(int row) {
          const int column = 0;
          g(column);
          {
            const int row = 0;
            g(row);
          }
        }
    """)


@pytest.mark.parametrize(
    "loop",
    [
        "for (int i = 0; i < 2; ++i) f(i);",  # more trips
        "for (int i = 0; i < 0; ++i) f(i);",  # none
        "for (int i = 0; i < n; ++i) f(i);",  # that nobody knows
        "for (int i = 0; i < count; ++i) f(i);",  # of a constant's name, which is something else here
        "for (int i = 0; i < 1; ++i) i = f(i);",  # the body counts, too
        "for (int i = 0; i < 1; ++i) if (f(i)) continue;",  # and what follows would be left out
        "if (n)\n    for (int i = 0; i < 1; ++i) f(i), g(i);",  # all that is conditional
    ],
)
def test_other_loops_stay(loop):
    text = f"constexpr int count = 1;\nint g() {{ return count; }}\nvoid f(int count) {{\n  {loop}\n  g();\n}}\n"
    assert without_single_trips(text) == text


@pytest.mark.parametrize(
    ("text", "zero"),
    [
        ("a[i]", "a[0]"),
        ("a[2 * i + 1]", "a[1]"),
        ("p + i * 64 * n + j", "p + j"),
        ("i * 8 + j", "j"),
        ("(i * 8 + j) * 4", "j * 4"),
        ("(i * 8 + j + k) / 2", "(j + k) / 2"),
        ("n / (i * 8 + j * k)", "n / (j * k)"),
        ("f(i * 8 + j)", "f(j)"),
        ("u64(i) << 3", "u64(0) << 3"),
        ("n - i % 2", "n"),
        ("(i | r | s) != 0", "(r | s) != 0"),
        ("a.i + i", "a.i"),
        ("x = y;  // i of them", "x = y;  // i of them"),
        ("(i + j) % 2 * 16", "j % 2 * 16"),
        ("if (i == 0 && thread == 0)", "if (thread == 0)"),
        ("p[i * (long long)-1]", "p[0 * (long long)-1]"),
        ("p[j + i * (int)-n * 2]", "p[j + 0 * (int)-n * 2]"),
        ("p[i * (long long)n]", "p[0 * (long long)n]"),
        ("p[i * (n) - 1]", "p[0 - 1]"),
    ],
)  # fmt: skip
def test_zero_for_a_name(text, zero):
    assert substitute(text, "i", 0) == zero


@st.composite
def arithmetic(draw, depth: int = 3) -> str:
    """C text over i, a and b, where nothing divides by what may be zero."""
    if not depth or draw(st.booleans()):
        return draw(st.sampled_from(["i", "i", "a", "b", "1", "3"]))
    sign = draw(st.sampled_from(["+", "-", "*", "/", "%", "|", "<<", "&"]))
    left, right = draw(arithmetic(depth=depth - 1)), draw(arithmetic(depth=depth - 1))
    right = draw(st.sampled_from(["2", "7"])) if sign in ("/", "%", "<<") else right
    inside = f"{left} {sign} {right}"
    return f"({inside})" if sign == "<<" or draw(st.booleans()) else inside


@given(text=arithmetic(), value=st.integers(0, 2), a=st.integers(0, 50), b=st.integers(0, 50))
def test_a_number_for_a_name_leaves_the_value(text, value, a, b):
    """Python's operators bind as C's do, and the numbers here are as good as any."""
    made = substitute(text, "i", value)
    assert not re.search(r"\bi\b", made)
    names = {"a": a, "b": b}
    assert eval(made.replace("/", "//"), {}, names) == eval(text.replace("/", "//"), {}, names | {"i": value})
