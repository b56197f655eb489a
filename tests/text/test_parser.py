"""The language as it is written: freedom of layout, what each form means, going on after an error."""

from __future__ import annotations

import ast as python
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen import frontend, resources
from convgen.codegen.epilogue import c_epilogue
from convgen.diagnostics import Diagnostic, Report, Span, SpecError
from convgen.frontend import ast
from convgen.frontend.parser import parse
from convgen.frontend.tokens import tokens
from convgen.frontend.wording import KEYWORDS, SETTINGS
from convgen.ir import epilogue as ep

EXAMPLES = Path(__file__).parents[2] / "specs" / "examples"
FULL = """\
let n = 8
conv full {
  input x: f16[n, h=14, w=14, c=256]
  filter w: f16[k=256, r=3, s=3, c=256]
  output y: f16[n, p, q, k]
  stride h=2 w=1
  pad h=(0,1) w=(2,1)
  dilation 1
  groups 1
  accumulate f32
  epilogue {
    operand b: f32[k]
    operand z: f16[n, p, q, k]
    t = acc + b
    y = relu(t + z)
  }
  op fprop wgrad
  strategy tma_im2col { tile m=128 n=128 k=64 stages 5 order channel_first split_k n - 4 }
  target sm_90a
}
"""
BLOCK = "conv a {{ input x: f16[n=1, h=4, w=4, c=8] filter w: f16[k=8, r=1, s=1, c=8] output y: f16[n, p, q, k] {} }}"


def codes(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        frontend.load(text)
    return [d.code for d in caught.value.diagnostics]


def faults(text: str) -> list[Diagnostic]:
    """The errors of the syntax; blocks of tests lack settings."""
    with pytest.raises(SpecError) as caught:
        frontend.load(text)
    return [d for d in caught.value.diagnostics if d.code < "E100"]


def words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


SEPARATORS = st.sampled_from([" ", "\n", "\t", "  \n\n ", "\r\n", "\f", " # let conv { } \u00e9\n", "\n#\n"])


@given(st.data())
def test_line_breaks_and_comments_mean_nothing(data):
    text = "".join(word + data.draw(SEPARATORS) for word in words(FULL))
    assert [r.problem for r in frontend.load(text)] == [r.problem for r in frontend.load(FULL)]
    assert [r.options for r in frontend.load(text)] == [r.options for r in frontend.load(FULL)]


@given(st.permutations(range(12)))
def test_settings_stand_in_any_order(order):
    settings = [
        "input x: f16[n, h=14, w=14, c=4]", "filter w: f16[k=4, r=3, s=3, c]", "output y: f16[n, p, q, k]", "stride 2",
        "pad (1, 0)", "dilation h=2", "groups 1", "accumulate f32", "epilogue { y = acc * 2 }", "op fprop",
        "strategy direct", "target sm_80",
    ]  # fmt: skip
    text = "let n = 3 conv a { " + " ".join(settings[i] for i in order) + " }"
    straight = "let n = 3 conv a { " + " ".join(settings) + " }"
    assert [r.problem for r in frontend.load(text)] == [r.problem for r in frontend.load(straight)]


def test_the_whole_language_at_once():
    fprop, wgrad = frontend.load(FULL)
    assert (fprop.problem.name, wgrad.problem.name) == ("full_fprop", "full_wgrad")
    assert fprop.strategy == "tma_im2col" and fprop.target == "sm_90a"
    assert fprop.options == {
        "tile.m": 128, "tile.n": 128, "tile.k": 64, "stages": 5, "order": "channel_first", "split_k": 4,
    }  # fmt: skip
    assert fprop.problem.stride == (2, 1) and fprop.problem.pad_lo == (0, 2) and fprop.problem.pad_hi == (1, 1)
    assert [str(a) for a in fprop.problem.epilogue.body] == ["t = acc + b", "y = relu(t + z)"]


def test_what_is_not_stated():
    (request,) = frontend.load(BLOCK.format(""))
    assert request.strategy == "auto" and request.options == {} and request.target is None
    assert request.problem.op == "fprop" and request.problem.epilogue is None
    assert request.problem.stride == request.problem.dilation == (1, 1)
    assert request.problem.pad_lo == request.problem.pad_hi == (0, 0)


def test_spans_say_where_things_are_stated():
    lines = FULL.split("\n")
    (request, _) = frontend.load(FULL)

    def text(key: str) -> str:
        span = request.spans[key]
        assert span.line == span.end_line or key == "epilogue"
        return lines[span.line - 1][span.column - 1 : span.end_column - 1 if span.line == span.end_line else None]

    assert {key: text(key) for key in request.spans} == {
        "conv": "full",
        "input": "x: f16[n, h=14, w=14, c=256]",
        "filter": "w: f16[k=256, r=3, s=3, c=256]",
        "output": "y: f16[n, p, q, k]",
        "stride": "stride h=2 w=1",
        "pad": "pad h=(0,1) w=(2,1)",
        "dilation": "dilation 1",
        "groups": "groups 1",
        "accumulate": "accumulate f32",
        "epilogue": "epilogue {",
        "op": "op fprop wgrad",
        "strategy": "tma_im2col",
        "strategy.tile.m": "m=128",
        "strategy.tile.n": "n=128",
        "strategy.tile.k": "k=64",
        "strategy.stages": "stages 5",
        "strategy.order": "order channel_first",
        "strategy.split_k": "split_k n - 4",
        "target": "sm_90a",
    }
    assert request.spans["epilogue"] == Span(11, 3, 16, 4)


@pytest.mark.parametrize(
    ("written", "meaning"),
    [
        ("acc + 1 * 2", "(acc + (1 * 2))"),
        ("acc - 1 - 2", "((acc - 1) - 2)"),
        ("acc / 2 / 4", "((acc / 2) / 4)"),
        ("-acc * 2", "(-acc * 2)"),
        ("-(acc * 2)", "-(acc * 2)"),
        ("--acc", "--acc"),
        ("!acc == 0", "(!acc == 0)"),
        ("acc + 1 < 2 * acc", "((acc + 1) < (2 * acc))"),
        ("acc < 1 && acc > -1 || acc == 3", "(((acc < 1) && (acc > -1)) || (acc == 3))"),
        ("acc != 1 || acc <= 2 && acc >= 3", "((acc != 1) || ((acc <= 2) && (acc >= 3)))"),
        ("(acc + 1) * 2", "((acc + 1) * 2)"),
        ("select(acc > 0, acc, .5 * acc)", "select((acc > 0), acc, (0.5 * acc))"),
        ("acc * 1e3 + 2.5e-3 + 3.", "(((acc * 1000) + 0.0025) + 3)"),
    ],
)
def test_precedence(written, meaning):
    value = parsed(written)
    assert bracketed(value) == meaning
    assert parsed(str(value)) == value, str(value)


def parsed(written: str) -> ep.Expr:
    (request,) = frontend.load(BLOCK.format(f"epilogue {{ y = {written} }}"))
    return request.problem.epilogue.body[0].value


def bracketed(e: ep.Expr) -> str:
    """The text of an expression with parentheses round every operation of two parts."""
    if isinstance(e, ep.Binary):
        return f"({bracketed(e.left)} {e.op} {bracketed(e.right)})"
    if isinstance(e, ep.Unary):
        return f"{e.op}{bracketed(e.operand)}"
    if isinstance(e, ep.Call):
        return f"{e.function}({', '.join(map(bracketed, e.arguments))})"
    return str(e)


def random_value(rng: random.Random, depth: int, operators: Sequence[str], unary: str) -> ep.Expr:
    if not depth or rng.random() < 0.2:
        return rng.choice((ep.Acc(), ep.Number(0.5), ep.Number(3)))
    if rng.random() < 0.2:
        return ep.Unary(rng.choice(unary), random_value(rng, depth - 1, operators, unary))
    left, right = (random_value(rng, depth - 1, operators, unary) for _ in "lr")
    return ep.Binary(rng.choice(operators), left, right)


def test_the_text_of_a_value_is_that_value():
    rng = random.Random(5)
    for _ in range(30):
        value = random_value(rng, 4, tuple(ep.PRECEDENCE), "-!")
        assert parsed(str(value)) == value, str(value)


def test_c_has_the_parentheses_that_it_needs():
    """Arithmetic binds in Python as in C: its parser says what the text means."""
    rng = random.Random(6)
    for _ in range(200):
        value = random_value(rng, 4, "+-*/", "-")
        text = c_epilogue(value, "acc", {}, "f64")  # in f32 a quotient by a number is a product
        assert "--" not in text
        meant = bracketed(value).replace("3", "3.0")
        assert python.dump(python.parse(text)) == python.dump(python.parse(meant)), (text, meant)


@pytest.mark.parametrize(
    ("written", "c"),
    [
        ("relu(acc + 1)", "max_nan_f32(acc + 1.0f, 0.0f)"),
        ("acc < 1", "acc < 1.0f ? 1.0f : 0.0f"),
        ("(acc < 1) * acc", "(acc < 1.0f ? 1.0f : 0.0f) * acc"),
        ("acc + 1 < 2 * acc", "acc + 1.0f < 2.0f * acc ? 1.0f : 0.0f"),
        ("acc < 1 && acc", "(acc < 1.0f ? 1.0f : 0.0f) != 0.0f && acc != 0.0f ? 1.0f : 0.0f"),
        ("!acc == 0", "(acc == 0.0f ? 1.0f : 0.0f) == 0.0f ? 1.0f : 0.0f"),
        ("select(acc, acc < 1, -acc) + 1", "(acc != 0.0f ? (acc < 1.0f ? 1.0f : 0.0f) : -acc) + 1.0f"),
        ("--acc", "-(-acc)"),
        ("(acc + 3) / 6", "(acc + 3.0f) * 0.16666666666666666f"),
        ("2 / acc", "2.0f / acc"),
    ],
)
def test_conditions_in_c(written, c):
    assert c_epilogue(parsed(written), "acc", {}) == c


@pytest.mark.parametrize("text", ["acc < 1 < 2", "acc == 1 == 2", "acc ** 2", "acc 2", "relu acc", "acc += 1", "+acc"])
def test_what_no_expression_is(text):
    assert codes(BLOCK.format(f"epilogue {{ y = {text} }}")) == ["E002"]


@pytest.mark.parametrize(
    ("setting", "stride", "low", "high"),
    [
        ("", (1, 1), (0, 0), (0, 0)),
        ("stride 2 pad 1", (2, 2), (1, 1), (1, 1)),
        ("stride w=3", (1, 3), (0, 0), (0, 0)),
        ("stride w=3 h=2 pad w=1", (2, 3), (0, 1), (0, 1)),
        ("pad (1, 2)", (1, 1), (1, 1), (2, 2)),
        ("pad h=(1, 2) w=(0, 1 + 2)", (1, 1), (1, 0), (2, 3)),
        ("pad h=1 w=(2, 0)", (1, 1), (1, 2), (1, 0)),
        ("stride two pad h=two", (2, 2), (2, 0), (2, 0)),
        ("stride (two) pad ((two), 0)", (2, 2), (2, 2), (0, 0)),
    ],
)
def test_amounts_by_axis(setting, stride, low, high):
    problem = frontend.load("let two = 2 " + BLOCK.format(setting))[0].problem
    assert (problem.stride, problem.pad_lo, problem.pad_hi) == (stride, low, high)


@pytest.mark.parametrize(
    ("block", "options"),
    [
        ("", {}),
        ("{ }", {}),
        ("{ stages 5 }", {"stages": 5}),
        ("{ tile m=1 }", {"tile.m": 1}),
        ("{ tile m=1 n=2 stages 5 tile k=3 }", {"tile.m": 1, "tile.n": 2, "stages": 5, "tile.k": 3}),
        ("{ order taps_inner stages 5 }", {"order": "taps_inner", "stages": 5}),
        ("{ order taps_inner tile m=seven }", {"order": "taps_inner", "tile.m": 7}),
        ("{ swizzle b=none tile m=-2 }", {"swizzle.b": "none", "tile.m": -2}),
        ("{ stages seven - 2 * 3 }", {"stages": 1}),
    ],
)
def test_options_are_flattened(block, options):
    (request,) = frontend.load("let seven = 7 " + BLOCK.format(f"strategy some {block}"))
    assert request.strategy == "some" and request.options == options


def test_operators_stand_beside_each_other_or_between_commas():
    for ops in ("fprop dgrad wgrad", "fprop, dgrad, wgrad", "fprop\n dgrad, wgrad"):
        assert [r.problem.op for r in frontend.load(BLOCK.format(f"op {ops}"))] == ["fprop", "dgrad", "wgrad"]


def test_keywords_are_those_of_the_grammar():
    grammar = (resources.directory("grammar") / "conv.lark").read_text()
    assert set(re.findall(r'^[A-Z]+: "([a-z]+)"$', grammar, re.MULTILINE)) == set(KEYWORDS)
    alternatives = re.search(r"\?setting: (.*?)\n\n", grammar, re.DOTALL)
    assert (
        alternatives and alternatives[1].count("_setting") == len(SETTINGS) - 1
    )  # some share a rule; prologue and dynamic are words elsewhere


@pytest.mark.parametrize("keyword", KEYWORDS)
@pytest.mark.parametrize("place", ["let {} = 1", "conv {} {{ }}", "conv a {{ input {}: f16[n] }}"])
def test_keywords_are_no_names(keyword, place):
    (error,) = faults(place.format(keyword))
    assert (
        f"the keyword `{keyword}`" in error.message and error.hint == f"`{keyword}` is a keyword; choose another name"
    )


STATEMENTS = [
    ("stride", "E002"), ("pad 1 2", "E002"), ("groups = 3", "E002"), ("op", "E002"), ("target 3", "E002"),
    ("input x f16[n]", "E002"), ("filter w: f16[k=]", "E002"), ("dilation $", "E001"), ("frob { a { b } c }", "E002"),
    ("epilogue { y = }", "E002"), ("strategy direct { 3 }", "E002"), ("lowered m: f16[]", "E002"),
]  # fmt: skip


@given(
    st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=8), st.lists(st.integers(1, 3), min_size=1, max_size=3)
)
def test_each_statement_with_an_error_is_reported(statements, blocks):
    """Blocks with errors, and blocks without between them."""
    text, expected = "", []
    for i, count in enumerate(blocks):
        lines = statements[:count]
        text += f"conv bad{i} {{\n" + "".join(f"{s}\naccumulate f32\n" for s, _ in lines) + "}\n"
        text += BLOCK.format("").replace("conv a", f"conv good{i}") + "\n"
        expected += [code for _, code in lines]
    assert [d.code for d in faults(text)] == expected


def test_blocks_that_parse_are_checked_beside_those_that_do_not():
    text = "conv a { strid 1 }\nconv b { op fprob }\nlet x =\nconv c { stride 1"
    assert [c for c in codes(text) if c != "E201"] == ["E002", "E213", "E002", "E003"]


def test_a_lost_let_is_no_unknown_name():
    assert codes("let a =\nlet b = a + 1\n" + BLOCK.format("stride b pad a")) == ["E002"]


def test_a_let_with_an_error_is_no_error_where_it_is_used():
    assert codes("let n = 1 / 0\nlet m = n\n" + BLOCK.replace("n=1", "n").format("stride m")) == ["E104"]


THREE = """\
let n = 8

conv a {
  input x: f16[n, h=8, w=8, c=8]
  filter w: f16[k=16, r=3, s=3, c=8]
  output y: f16[n, p, q=8, k]
  pad h=1 w=(1, 1) reflect
  epilogue {
    operand b: f32[k]
    result u: f16[n, p, q, k]
    u = acc + b
    y = relu(u)
  }
  strategy direct
}

conv b {
  input x: f16[n, h=8, w=8, c=8]
  filter w: f16[k=16, r=3, s=3, c=8]
  output y: f16[n, p=6, q=6, k]
  op wgrad
  epilogue {
    result db: f32[k]
    db = y
    w = acc
  }
}

conv c {
  input x: f16[n, h=8, w=8, c=8]
  filter w: f16[k=16, c=8]
  output y: f16[n, p, q, k]
  dynamic n
  prologue {
    operand s: f32[c]
    x = relu(x * s)
  }
}
"""
EDITED = [FULL, THREE, *(p.read_text(encoding="utf-8") for p in sorted(EXAMPLES.glob("*.conv")))]


def errors_of(text: str) -> tuple[Diagnostic, ...]:
    try:
        frontend.load(text)
    except SpecError as error:
        return error.diagnostics
    return ()


@settings(max_examples=150)
@given(st.sampled_from(EDITED), st.data())
def test_a_word_that_is_wrong_has_no_consequences_elsewhere(spec, data):
    """Errors are in its line, or in the next, where the parser finds out.

    By their nature, some are not: a brace that is missing or too much is found where blocks do not end as they should,
    and E003 shows where one began; and what the grammar takes is another spec: `op fprop` for `op fprop dgrad`."""
    word = data.draw(st.sampled_from([w for w in tokens(spec)[:-1] if w.type != "RBRACE"]))
    doubled = [word + word[-1]] if word in KEYWORDS else []
    edit = data.draw(st.sampled_from(["", f"{word} {word}", "$", *doubled]))
    errors = errors_of(spec[: word.start_pos] + edit + spec[word.end_pos :])
    if any(d.code < "E100" for d in errors):
        assert {d.span.line for d in errors if d.code != "E003"} <= {word.line, word.line + 1}, errors


#: Of THREE: what follows the operand.
U = "    result u: f16[n, p, q, k]\n    u = acc + b\n    y = relu(u)"


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("let n = 8", "let = 8", ["E002"]),
        ("r=3, s=3, c=8]\n  output y: f16[n, p, q", "r=3 s3, c=8]\n  output y: f16[n, p, q", ["E002"]),
        ("[n, p, q=8, k]", "[n, pq, q=8, k]", ["E203"]),
        ("[n, p, q=8, k]", "[n, q, q=8, k]", ["E204"]),
        ("w=(1, 1) reflect", "w=(1, ) reflect", ["E002"]),
        ("w=(1, 1) reflect", "w=(1, 1) v=3", ["E203"]),
        ("w=(1, 1) reflect", "w=(1, 1) frob", ["E216"]),
        ("epilogue {\n    operand", "epilogue\n    operand", ["E002"]),
        ("operand b: f32[k]", "operand b: f32[k", ["E002"]),
        (f"f32[k]\n{U}", "f32[k\n    y = acc + b", ["E002"]),
        ("operand b: f32[k]", "operand : f32[k]", ["E002"]),
        ("result u: f16[n, p, q, k]", "result u: f16[n, p, , k]", ["E002"]),
        ("y = relu(u)", "y = relu(acc + bb)", ["E301"]),
        ("acc + b", "max(acc)", ["E303"]),
        ("op wgrad", "op", ["E002"]),
        ("op wgrad", "wgrad", ["E002"]),
        ("op wgrad", "op backwards", ["E213"]),
        ("w = acc", "v = acc", ["E304"]),
        ("h=8, w=8, c=8]\n  filter w: f16[k=16, c", "h=8, w=8 8]\n  filter w: f16[k=16, c", ["E002"]),
        ("prologue {", "prologue", ["E002"]),
    ],
)
def test_consequences_of_an_error_are_not_reported(right, wrong, found):
    assert THREE.count(right) == 1
    assert [d.code for d in errors_of(THREE.replace(right, wrong))] == found


def test_errors_that_depend_on_nothing_unread_are_reported():
    text = THREE.replace("strategy direct", "frob 3").replace("operand b: f32", "operand b: f23")
    text = text.replace("db = y", "db = z").replace("k=16, c=8", "k=16, c=4")
    assert [d.code for d in errors_of(text)] == ["E205", "E002", "E301", "E208"]


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", None, "the file has no conv block"),
        ("conv", 5, "expected a name for the conv after `conv`, found the end of the file"),
        ("conv a", 7, "expected `{` after `a`, found the end of the file"),
        ("conv a { stride }", 17, "expected a value after `stride`, found `}`"),
        ("conv a { input x: f16[n", 24, "expected `=`, `,` or `]` after `n`, found the end of the file"),
        ("conv a { input x: f16[n, ] }", 26, "expected a dim after `,`, found `]`"),
        ("conv a { input x: [n] }", 19, "expected an element type after `:`, found `[`"),
        ("conv a { lowered m: f16[] }", 25, "expected a dim or `1` after `[`, found `]`"),
        ("conv a { strategy { } }", 19, "expected the name of a strategy after `strategy`, found `{`"),
        ("let a = (1", 11, "expected an operator or `)` after `1`, found the end of the file"),
        ("} conv a { }", 1, "expected `let`, `conv` or the end of the file, found `}`"),
    ],
)
def test_syntax_errors_say_what_was_expected(text, column, message):
    assert (message, column) in [(d.message, d.span.column if d.span else None) for d in faults(text)]


def test_expressions_have_spans_that_cover_them():
    text = "let a = (1 + 2) * -(3)"
    product = parse(text, Report()).lets[0].value
    assert isinstance(product, ast.Binary)
    spans = product.span, product.left.span, product.right.span
    assert [text[s.column - 1 : s.end_column - 1] for s in spans] == ["(1 + 2) * -(3)", "(1 + 2)", "-(3)"]


def test_the_grammar_is_kept_only_where_it_may_be(tmp_path, monkeypatch):
    """The prepared grammar is a convenience: the cache may be off or unwritable."""
    from convgen import cache
    from convgen.frontend import tokens

    expected = frontend.load(FULL)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(cache, "_warned", {tmp_path / "file"})
    for environment in (
        {"CONVGEN_CACHE": "0"},
        {"CONVGEN_CACHE_DIR": str(tmp_path / "file")},
        {"CONVGEN_CACHE_DIR": str(tmp_path / "new")},
        {"CONVGEN_CACHE_DIR": str(tmp_path / "new")},  # now from the cache
    ):
        with monkeypatch.context() as patch:
            for key, value in environment.items():
                patch.setenv(key, value)
            tokens.grammar.cache_clear()
            assert frontend.load(FULL) == expected
    tokens.grammar.cache_clear()
    (kept,) = (tmp_path / "new").glob("*/grammar-*/tables.json")
    json.loads(kept.read_bytes())


def test_importing_the_frontend_imports_no_parser():
    import subprocess
    import sys

    code = "import sys, convgen.frontend; print(*(m for m in ('lark', 'sympy', 'jinja2', 'cupy') if m in sys.modules))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
