"""What a user sees of errors: golden messages, their places, the JSON form."""

from __future__ import annotations

import io
import json
import pickle
import re
from pathlib import Path

import pytest
from effort import calls
from hypothesis import given
from hypothesis import strategies as st

from convgen import driver, frontend
from convgen.diagnostics import (
    CODES,
    ConvgenError,
    Diagnostic,
    Report,
    Span,
    SpecError,
    did_you_mean,
    format_json,
    format_rich,
    format_text,
    listing,
    parse_json,
)
from convgen.kernels.base import Option
from convgen.spec import Spec

FOLDER = Path(__file__).parent / "diagnostics"
SPECS = sorted(FOLDER.glob("*.conv"))
TARGETS = ("sm_80", "sm_90a", "sm_100a")


STRATEGIES = {
    "implicit_gemm": (
        Option("tile.m", "", choices=(64, 128, 256)),
        Option("tile.n", "", choices=tuple(range(8, 257, 8))),
        Option("stages", "", 2, 8),
        Option("order", "", choices=("channel_first", "taps_inner")),
        Option("swizzle", "", choices=(0, 32, 64, 128)),
        Option("split", "", 1, 16),
    ),
    "direct": (Option("tile", "", 1, 8),),
}


def errors(text: str, path: str = "a.conv", **arguments) -> SpecError:
    with pytest.raises(SpecError) as caught:
        frontend.load(text, path, strategies=STRATEGIES, targets=TARGETS, **arguments)
    return caught.value


def errors_of(spec: Path) -> SpecError:
    """A first line `# defines: n=4` gives the defines."""
    text = spec.read_text(encoding="utf-8")
    first = text.partition("\n")[0]
    defines = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", first)} if first.startswith("# defines:") else {}
    return errors(text, spec.name, defines=defines)


@pytest.mark.parametrize("spec", SPECS, ids=lambda p: p.stem)
def test_messages(spec, golden):
    error = errors_of(spec)
    golden.check(spec.with_suffix(".txt"), f"{error}\n")
    assert str(error) == format_text(error.diagnostics, error.text, error.path)


def test_every_message_has_its_spec(golden):
    golden.only(FOLDER, [name for s in SPECS for name in (s.name, s.with_suffix(".txt").name)])


def test_every_code_of_the_frontend_has_a_message():
    seen = {d.code for spec in SPECS for d in errors_of(spec).diagnostics}
    assert seen == CODES.keys() - {"E401"}  # E401 is the planner's


@pytest.mark.parametrize("spec", SPECS, ids=lambda p: p.stem)
def test_places_lie_in_the_text_and_in_order(spec):
    error = errors_of(spec)
    lines = error.text.split("\n")
    places = [(d.span.line, d.span.column) if d.span else (0, 0) for d in error.diagnostics]
    assert places == sorted(places)
    for d in error.diagnostics:
        if d.span:
            assert 1 <= d.span.line <= d.span.end_line <= len(lines)
            assert 1 <= d.span.column <= len(lines[d.span.line - 1]) + 1  # one behind: something is missing there
            assert (d.span.line, d.span.column) <= (d.span.end_line, d.span.end_column)


@pytest.mark.parametrize("spec", SPECS, ids=lambda p: p.stem)
def test_messages_are_in_words(spec):
    """No name of lark's, no Python, no line break."""
    for d in errors_of(spec).diagnostics:
        for text in filter(None, (d.message, d.hint)):
            assert not re.search(r"__|ANON|[LR]BRACE|[LR]SQB|[LR]PAR|\$END|<\w+ object|None|\n", text), text


@pytest.mark.parametrize("spec", SPECS, ids=lambda p: p.stem)
def test_json_says_the_same(spec):
    error = errors_of(spec)
    assert parse_json(format_json(error.diagnostics, error.path)) == error.diagnostics
    rows = json.loads(format_json(error.diagnostics, error.path))
    assert len(rows) == len(error.diagnostics)
    for row, d in zip(rows, error.diagnostics, strict=True):
        place = [getattr(d.span, key) if d.span else None for key in ("line", "column", "end_line", "end_column")]
        assert row == {
            "code": d.code, "severity": "error", "message": d.message, "hint": d.hint, "path": spec.name,
            "line": place[0], "column": place[1], "end_line": place[2], "end_column": place[3],
        }  # fmt: skip


@pytest.mark.parametrize("spec", SPECS, ids=lambda p: p.stem)
def test_colors_change_no_word(spec):
    from rich.console import Console

    error = errors_of(spec)
    stream = io.StringIO()
    rendered = format_rich(error.diagnostics, error.text, error.path)
    Console(file=stream, force_terminal=True, color_system="truecolor").print(rendered, soft_wrap=True)
    colored = stream.getvalue()
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored).rstrip("\n") == str(error)


def caret_of(text: str, line: str, span: Span) -> str:
    """What stands above the carets."""
    shown = format_text([Diagnostic("E001", "m", span)], text, "p").split("\n")
    assert shown[0] == f"p:{span.line}:{span.column}: error[E001]: m"
    source, carets = shown[1], shown[2]
    assert source.startswith(f"{span.line:5} | ") and carets.startswith("      | ")
    start = carets.index("^")
    return source[start : start + carets.count("^")]


@given(
    st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=400), st.data()
)
def test_carets_stand_under_the_span(line, data):
    start = data.draw(st.integers(0, len(line) - 1))
    end = data.draw(st.integers(start + 1, len(line)))
    shown = caret_of(f"\n{line}\n", line, Span(2, start + 1, 2, end + 1))
    assert line[start:end].startswith(shown) and (shown == line[start:end] or len(line) > 120)


def test_carets_count_columns_of_wide_and_hidden_characters():
    shown = format_text([Diagnostic("E001", "m", Span(1, 4, 1, 5))], "漢e\u0301x", "p").split("\n")
    assert shown[2] == "      |    ^"  # two columns, one, none
    shown = format_text([Diagnostic("E001", "m", Span(1, 2, 1, 3))], "\tx\x1b[31m", "p").split("\n")
    assert shown[1] == "    1 |  x\ufffd[31m" and shown[2] == "      |  ^"


def test_a_span_of_several_lines_is_marked_to_the_end_of_its_first():
    text = "ab cde\nfg"
    assert format_text([Diagnostic("E001", "m", Span(1, 4, 2, 2))], text, "p").endswith("ab cde\n      |    ^^^")


def test_what_has_no_place_has_no_line():
    assert format_text([Diagnostic("E007", "m", None, "h")], "", "p") == "p: error[E007]: m\n      = hint: h"


def test_a_mark_at_the_start_of_the_file_is_no_part_of_its_columns():
    error = errors("\ufeffconv a { strid 1 }")
    assert error.diagnostics[-1].span == Span(1, 10, 1, 15)
    assert str(error).split("\n")[1].endswith("| conv a { strid 1 }")


def test_windows_line_ends_leave_no_trace():
    text = "conv a {\n  strid 1\n}\n"
    unix, windows = errors(text), errors(text.replace("\n", "\r\n"))
    assert windows.diagnostics == unix.diagnostics and str(windows) == str(unix)


def test_long_names_make_no_long_messages():
    error = errors("let a = " + "x" * 100_000 + " conv a { }")
    assert all(len(d.message) < 500 and len(d.hint or "") < 500 for d in error.diagnostics)
    assert max(map(len, str(error).split("\n"))) < 500


def test_spec_errors_survive_pickling():
    error = errors("conv a { strid 1 }")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, ConvgenError) and str(again) == str(error) and again.diagnostics == error.diagnostics


def test_a_report_keeps_the_order_of_the_text_and_each_finding_once():
    report = Report()
    report.error("E002", "b", Span(2, 1, 2, 2))
    report.error("E002", "a", Span(1, 5, 1, 6))
    report.error("E002", "b", Span(2, 1, 2, 2))
    report.error("E007", "c")
    assert [d.message for d in report.diagnostics] == ["c", "a", "b"] and len(report) == 3


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("relv", ("relu", "exp"), "did you mean `relu`?"),
        ("RELU", ("relu", "exp"), "did you mean `relu`?"),
        ("Gelu", ("relu", "gelu"), "did you mean `gelu`?"),
        ("--suit", ("--emit", "--suite"), "did you mean `--suite`?"),
        ("--suite", ("--emit", "--only"), None),
        ("frobnicate", ("relu", "exp"), None),
        ("relu", ("relu",), None),
        ("tma_im3col", ("im2col", "tma_im2col"), "did you mean `tma_im2col`?"),
        ("im3col", ("tma_im2col", "im2col"), "did you mean `im2col`?"),
        ("sm_75", ("sm_80", "sm_90a"), None),
        ("resnet18", ("resnet50", "densenet121"), None),
        ("x", (), None),
    ],
)
def test_did_you_mean(name, known, hint):
    assert did_you_mean(name, known) == hint


def test_names_that_are_far_from_a_misspelled_one_take_no_time():
    names = [f"layer_{i}_channels" for i in range(1000)]
    assert calls(lambda: did_you_mean("batch", names)) < 10 * len(names)
    assert did_you_mean("batch", [*names, "batches", "batch_size"]) == "did you mean `batches`?"


@pytest.mark.parametrize("statement", ["let size{0} = sise{0}", "size{0} = acc + sise{0}"])
def test_many_unknown_names_are_no_trouble(statement: str):
    """The first have hints; to compare each with all names of the file would take calls by the square."""
    lines = "\n".join(statement.format(i) for i in range(1000))
    lets, assigned = (lines, "") if statement.startswith("let") else ("", lines)
    text = f"""{lets}
        conv a {{
          input x: f16[n=1, h=8, w=8, c=8]  filter w: f16[k=8, r=3, s=3, c=8]  output y: f16[n, p, q, k]
          epilogue {{ {assigned}\n  y = acc }}
        }}"""
    assert calls(lambda: errors(text)) < 3_000_000
    hints = [str(d.hint) for d in errors(text).diagnostics]
    assert "did you mean" in hints[1] and "declare it" in hints[-1]


def test_listings():
    assert listing(["a"]) == "`a`" and listing(["a", "b"]) == "`a` or `b`"
    assert listing(["a", "b", 3], "and") == "`a`, `b` and `3`"
    assert listing(range(100)) == "`0`, `1`, `2`, `3`, ... or `99`"


@pytest.mark.parametrize(
    ("stated", "asked", "blamed"),
    [("depthwise", None, "depthwise"), ("direct { tile 1 }", "depthwise", "layer"), ("auto", "depthwise", "layer")],
)
def test_a_strategy_of_the_command_line_is_not_the_specs_fault(stated: str, asked: str | None, blamed: str) -> None:
    text = (
        "conv layer { input x: f16[n=1, h=8, w=8, c=8]  filter w: f16[k=8, r=3, s=3, c=8]  output y: f16[n, p, q, k]\n"
        f"  strategy {stated} }}"
    )
    with pytest.raises(SpecError) as error:
        driver.check_served(driver.load(Spec(text, strategy=asked)))
    span = error.value.diagnostics[0].span
    assert span and text.splitlines()[span.line - 1][span.column - 1 : span.end_column - 1] == blamed
