"""Whatever a file holds, loading it gives requests or a SpecError whose messages can be shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen import frontend
from convgen.diagnostics import CODES, SpecError, format_json

ROOT = Path(__file__).parents[2]
SPECS = [p.read_text(encoding="utf-8") for p in sorted(ROOT.glob("specs/examples/*.conv"))]
SPECS += [p.read_text(encoding="utf-8") for p in sorted(Path(__file__).parent.glob("diagnostics/*.conv"))]
WORDS = sorted({word for spec in SPECS for word in re.findall(r"\w+|[^\w\s]", spec)})
ODD = ["\x00", "\ufeff", "\u2028", "\ud800", "漢", "\r", "\x0b", "9" * 30, "1e999", "-1", "0", "((((", "}}", "# ", "\n"]


def holds(text: str, **arguments) -> None:
    try:
        requests = frontend.load(text, **arguments)
    except SpecError as error:
        assert error.diagnostics
        lines = error.text.split("\n")
        for d in error.diagnostics:
            assert d.code in CODES and d.message
            if d.span:
                assert 1 <= d.span.line <= len(lines)
                assert 1 <= d.span.column <= len(lines[d.span.line - 1]) + 1
        str(error).encode()  # can be printed
        format_json(error.diagnostics, "p").encode()
    else:
        assert requests


@given(st.text(max_size=300))
def test_any_text(text):
    holds(text)


@given(st.lists(st.sampled_from([*WORDS, *ODD]), max_size=80).map(" ".join))
def test_any_words(text):
    holds(text)


@st.composite
def mutated(draw) -> str:
    """A spec with some of its words taken out, doubled, swapped or replaced, and cut somewhere."""
    parts = re.findall(r"\s+|\w+|[^\w\s]", draw(st.sampled_from(SPECS)))
    start = draw(st.one_of(st.just(0), st.integers(0, len(parts) - 1)))
    parts = parts[start : start + 400]
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(parts) - 1))
        parts[at] = draw(st.sampled_from([*WORDS, *ODD, "", parts[at] * 2, parts[at - 1]]))
    return "".join(parts)


@settings(max_examples=200)
@given(mutated(), st.one_of(st.none(), st.integers(-(2**70), 2**70)))
def test_mutated_specs(text, n):
    holds(text, defines=None if n is None else {"n": n})


MANY = 5_000  # far beyond Python's limit of 1000 calls
EPILOGUE = (
    "conv a {{ input x: f16[n=1, h=4, w=4, c=8] filter w: f16[k=8, c=8] output y: f16[n, p=4, q=4, k] "
    "epilogue {{ y = {} }} }}"
)


@pytest.mark.costly
@pytest.mark.parametrize(
    "text",
    [
        f"let a = {'(' * MANY}1{')' * MANY}",
        f"let a = {'(' * MANY}1",
        f"let a = {'-' * MANY}1",
        f"let a = {'1+' * MANY}1",
        f"let a = {'1+' * MANY}1 +",
        EPILOGUE.format("acc" + " + acc" * MANY + " +"),
        f"let a = {'9' * MANY}",
        EPILOGUE.format("relu(" * MANY + "acc" + ")" * MANY),
        EPILOGUE.format("!" * MANY + "acc"),
        EPILOGUE.format("acc" + "*acc" * MANY),
        EPILOGUE.format("acc * " + "9" * MANY),
        EPILOGUE.format("frobnicate(" * MANY),
        "{" * MANY,
        "}" * MANY,
        "conv a { input x: f16[" + "n," * MANY,
        "conv a { frob " + "{ " * MANY,
        "$" * MANY,
        f"let {'x' * MANY} = 1",
        "".join(f"let a{i} = {f'a{i - 1} * a{i - 1}' if i else '3'}\n" for i in range(100)),
    ],
    ids=lambda text: text[:32],
)
def test_depth_and_length_are_no_trouble(text):
    with pytest.raises(SpecError) as caught:
        frontend.load(text)
    assert len(caught.value.diagnostics) < 20
    assert len(str(caught.value)) < MANY  # it is not repeated
