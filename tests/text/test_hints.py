"""Hints of syntax errors: what a hint says, written in place of what it is about, is right."""

from __future__ import annotations

import pytest

from convgen import frontend
from convgen.diagnostics import SpecError
from convgen.driver import check_served, load
from convgen.kernels import strategies
from convgen.spec import Spec
from convgen.targets import TARGETS

#: A block that is right; each case below changes a line of it.
LINES = {
    "let n =": "8",
    "conv layer {": "",
    "input": "x: f16[n, h=14, w=14, c=64]",
    "filter": "w: f16[k=64, r=3, s=3, c=64]",
    "output": "y: f16[n, p, q, k]",
    "stride": "1",
    "pad": "1",
    "op": "fprop",
    "strategy": "direct",
    "target": "sm_90a",
    "epilogue": "{ operand b: f32[k]  t = acc + b  y = relu(t) }",
    "}": "",
}
OPTIONS = {name: strategy.options for name, strategy in strategies.STRATEGIES.items()}


CHANNELS = "channels of a larger tensor are written as `c=64 of 256`; the call decides where they begin"
DYNAMIC = "for a size that calls decide, write one to plan for, and `dynamic {}` after the tensors"


def spec(**changed: str) -> str:
    return "\n".join(f"{begin} {changed.get(begin, rest)}".strip() for begin, rest in LINES.items())


def errors(text: str) -> list[str]:
    """The hints of a text's errors."""
    try:
        frontend.load(text, targets=TARGETS, strategies=OPTIONS)
    except SpecError as e:
        return [d.hint or "" for d in e.diagnostics]
    return []


@pytest.mark.parametrize(
    ("setting", "written", "hint", "followed"),
    [
        ("pad", ": {h=1, w=1}", "write a value per axis: `pad h=1 w=1`", "h=1 w=1"),
        ("pad", "= {w: 1, h: 1}", "write a value per axis: `pad w=1 h=1`", "w=1 h=1"),
        ("pad", "[1, 1]", "write a value per axis: `pad h=1 w=1`", "h=1 w=1"),
        ("pad", "= [1]", "write `pad 1`", "1"),
        ("pad", "1x1", "write a value per axis: `pad h=1 w=1`", "h=1 w=1"),
        ("pad", "h:1 w:1", "write `h=1`", "h=1 w=1"),
        ("pad", "h:(1, 1)", "write `h=(...)`", "h=(1, 1) w=(1, 1)"),
        ("pad", "[1, 1, 1, 1]", "write both ends of each axis: `pad h=(1, 1) w=(1, 1)`", "h=(1, 1) w=(1, 1)"),
        ("pad", "(1, 1, 1, 1)", "write both ends of each axis: `pad h=(1, 1) w=(1, 1)`", "h=(1, 1) w=(1, 1)"),
        ("pad", "[1, 2, 1, 2]", "write both ends of each axis: `pad h=(LOW, HIGH) w=(LOW, HIGH)`", "h=(1, 2) w=(1, 2)"),
        ("pad", "(h=1, w=2)", "write a value per axis: `pad h=1 w=2`", "h=1 w=2"),
        ("pad", "h=1, w=2", "write a value per axis: `pad h=1 w=2`", "h=1 w=2"),
        ("pad", "1, 1", "write a value per axis: `pad h=1 w=1`", "h=1 w=1"),
        ("stride", "1, 1", "write a value per axis: `stride h=1 w=1`", "h=1 w=1"),
        ("pad", "t=1 b=2 l=0 r=0", "write `pad h=(1, 2) w=0`", "h=(1, 2) w=0"),
        ("pad", "top=1 bottom=1", "write `pad h=1`", "h=1"),
        ("pad", "1, dilation 1", "settings are not separated by commas", "1 dilation 1"),
        ("op", "fprop, groups 1", "settings are not separated by commas", "fprop groups 1"),
        ("op", "fprop,", "settings are not separated by commas", "fprop"),
        ("target", "sm_90a,", "settings are not separated by commas", "sm_90a"),
        ("pad", "1 accumulator f32", "did you mean `accumulate`?", "1 accumulate f32"),
        ("pad", "1px", "write `1`", "1"),
        ("pad", "1 relu", "apply it in the epilogue: `epilogue { y = relu(acc) }`", "1"),
        ("pad", "1\ndilations = 1", "write `dilation 1`", "1\ndilation 1"),
        ("input", "x: f16[n][h=14][w=14][c=64]", "put all dims in one pair of brackets: `[n, h, w, c]`",
         "x: f16[n, h=14, w=14, c=64]"),
        ("input", "x: f16[8, 64, 14, 14]",
         "name each extent, in the order of memory: `[n=8, c=64, h=14, w=14]`", "x: f16[n=8, h=14, w=14, c=64]"),
        ("filter", "w: f16[k=64, r=3, r=3, c=64]", "did you mean `s`?", "w: f16[k=64, r=3, s=3, c=64]"),
        ("filter", "w: f16[k=64, r=3, s=3, c=32]", "write `c=64` in `w`, or `groups 2`", LINES["filter"]),
        ("pad", "1\ndynamic batch", "did you mean `n`?", "1\ndynamic n"),
        ("pad", "1\nalpha 0.5", "write it in the epilogue: `y = 0.5 * acc + 2.0 * z`, with an `operand z`", "1"),
        ("let n =", "8 // 2", "a comment begins with `#`; a whole division is `/`", "8 / 2"),
        ("pad", "{left=1, right=1}", "write a value per axis as `pad h=1 w=(0, 2)`", "h=1 w=(1, 1)"),
        ("pad", "[n, n]", "write a value per axis as `pad h=1 w=(0, 2)`", "h=n w=(n, n)"),
        ("pad", "0x1", "numbers are decimal, without a suffix: `16`, `0.5`, `1e-3`", "1"),
        ("pad", "1 mode=reflect",
         "name the padding mode after the amounts: `pad 1 reflect`", "1 reflect"),
        ("stride", "= {2, 2}", "write a value per axis: `stride h=2 w=2`", "h=2 w=2"),
        ("input", "x: f6[n, h=14, w=14, c=64]", "did you mean `f16`?", LINES["input"]),
        ("filter", "w: f16[k=64, r=3x3, c=64]", "name each extent: `[r=3, s=3]`", "w: f16[k=64, r=3, s=3, c=64]"),
        ("filter", "w: f16[64x3x3x64]",
         "name each extent: `[k=64, r=3, s=3, c=64]`", "w: f16[k=64, r=3, s=3, c=64]"),
        ("filter", "3x3 w: f16[k=64, r=3, s=3, c=64]",
         "a name cannot start with a digit; leave a space after a number", LINES["filter"]),
        ("filter", "1_024 w: f16[k=64, r=3, s=3, c=64]",
         "a name cannot start with a digit; leave a space after a number", LINES["filter"]),
        ("filter", ":w f16[k=64, r=3, s=3, c=64]",
         "write `filter w: f16[k=64, r=3, s=3, c=64]`", LINES["filter"]),
        ("output", "y: f16[n, p, q, k :]", "", LINES["output"]),
        ("output", "y: f16[n, p, qn, k]", "did you mean `q`?", LINES["output"]),
        ("input", "x: f16[n, h=14, wc=14, c=64]", "did you mean `w`?", LINES["input"]),
        ("output", "y .: f16[n, p, q, k]", "", LINES["output"]),
        ("filter", "w: [k=64, r=3, s=3, c=64]",
         "put the element type before the dims: `w: f16[k, r, s, c]`", "w: f16[k=64, r=3, s=3, c=64]"),
        ("filter", "w: f16[k=64, r=3, s=3, c=1_024 / 16]", "write `1024`", "w: f16[k=64, r=3, s=3, c=1024 / 16]"),
        ("output", "y: f16", "put the dims in brackets: `f16[n, p, q, k]`", "y: f16[n, p, q, k]"),
        ("op", "conv", "did you mean `fprop`?", "fprop"),
        ("strategy", "tma-im2col", "names consist of letters, digits and _: write `tma_im2col`", "tma_im2col"),
        ("strategy", "direct, im2col", "a conv has one strategy, which `--strategy` overrides", "direct"),
        ("strategy", "tma_im2col { tile 128 64 64 }",
         "write a group as `tile m=128 n=64 k=64`", "tma_im2col { tile m=128 n=64 k=64 }"),
        ("strategy", "tma_im2col { stages 4 4 }", "an option has one value: `stages 4`", "tma_im2col { stages 4 }"),
        ("strategy", "tma_im2col { stages stages }", "no `let` is named `stages`", "tma_im2col { stages 4 }"),
        ("target", "sm-90a", "did you mean `sm_90a`?", "sm_90a"),
        ("target", "sm_90a sm_80", "a conv has one target, which `--target` overrides", "sm_90a"),
        ("let n =", "8, 000", "a `let` has one value", "8"),
        ("let n =", "+8", "leave the sign out", "8"),
        ("target", "90", "a target has a name, such as `sm_90a`", "sm_90a"),
        ("target", "9.0", "a target has a name, such as `sm_90a`", "sm_90a"),
        ("target", "90a", "a target has a name, such as `sm_90a`", "sm_90a"),
        ("pad", "reflect 1", "write the amount first: `pad 1 reflect`", "1 reflect"),
        ("input", "x: f16[n, h=14, w=14, c=0:64]", CHANNELS, "x: f16[n, h=14, w=14, c=64 of 256]"),
        ("output", "y: f16[n, p, q, k[0:64]]", CHANNELS, "y: f16[n, p, q, k=64 of 256]"),
        ("output", "y: f16[n, p, q, k of 256 at 128]", CHANNELS, "y: f16[n, p, q, k=64 of 256]"),
        *(("epilogue", f"{{ operand b: f32[k]  y = select({written}, acc, b) }}", f"write `{sign}`",
           f"{{ operand b: f32[k]  y = select({meant}, acc, b) }}") for written, sign, meant in (
            ("acc > 0 and b > 0", "&&", "acc > 0 && b > 0"), ("acc > 0 or (b > 0)", "||", "acc > 0 || (b > 0)"),
        )),
        *(("epilogue", f"{{ operand b: f32[k]  y = select(not {negated}, acc, b) }}",
           f"a condition is negated by `!`: `!{shown}`", f"{{ operand b: f32[k]  y = select(!{negated}, acc, b) }}")
          for negated, shown in (("b", "b"), ("(b > 0)", "(...)"))),
        ("epilogue", "{ operand b: f32[k]  t = acc + b, y = relu(t) }",
         "statements are not separated by commas", LINES["epilogue"]),
        ("epilogue", "{ operand b: f32[k]  y = gelu(acc + b, approximate=1) }",
         "gelu by its tanh approximation is `gelu_tanh(x)`", "{ operand b: f32[k]  y = gelu_tanh(acc + b) }"),
        ("pad", "1\n  depthwise", "write `groups` for as many groups as channels, and one channel in the filter: "
         "`w: f16[k, r, s, c=1]`", "1"),
        ("pad", "1\n  relu", "apply it in the epilogue: `epilogue { y = relu(acc) }`", "1"),
        ("pad", "1\n  reflex", "did you mean `reflect`?", "1 reflect"),
        *(("input", size, DYNAMIC.format(dim), LINES["input"]) for dim, size in (
            ("n", "x: f16[n=?, h=14, w=14, c=64]"), ("n", "x: f16[n=*, h=14, w=14, c=64]"),
            ("n", "x: f16[n=None, h=14, w=14, c=64]"), ("h", "x: f16[n, h=dynamic, w=14, c=64]"),
            ("n", "x: f16[n=-1, h=14, w=14, c=64]"), ("n", "x: f16[?, h=14, w=14, c=64]"),
            ("w", "x: f16[n, h=14, w=-1, c=64]"), ("w", "x: f16[n, h=14, w=?, c=64]"),
            ("h", "x: f16[n, h=*, w=14, c=64]"),
        )),
        ("input", "", "a tensor has a name: `input x: f16[...]`", LINES["input"]),
        ("output", "", "a tensor has a name: `output y: f16[...]`", LINES["output"]),
        ("output", "y y: f16[n, p, q, k]", "write a tensor as `y: f16[...]`", LINES["output"]),
        ("output", "y float16[n, p, q, k]", "write a tensor as `y: f16[...]`", LINES["output"]),
        ("output", "y f32[n, p, q, k]", "write a tensor as `y: f32[...]`", "y: f32[n, p, q, k]"),
        ("input", "x: f16 n, h=14, w=14, c=64]", "put the dims in brackets: `f16[n, h, w, c]`", LINES["input"]),
        ("filter", "w: f16 k=64, r=3, s=3, c=64]", "put the dims in brackets: `f16[k, r, s, c]`", LINES["filter"]),
        ("output", "output y: f16[n, p, q, k]", "remove one `output`", LINES["output"]),
        ("stride", "stride 2", "remove one `stride`", "2"),
        ("let n =", "2**3", "there is no power operator: write the product", "2*2*2"),
    ],
)  # fmt: skip
def test_a_setting_that_is_written_as_elsewhere(setting, written, hint, followed):
    assert errors(spec(**{setting: written})) == [hint]
    assert not errors(spec(**{setting: followed}))


@pytest.mark.parametrize(
    ("written", "hint", "followed"),
    [
        ("t = acc + b", None, "t = acc + b"),
        ("t = acc * 2.5e", "an exponent has digits: `2.5e-3`", "t = acc * 2.5e-3 + b"),
        ("t = acc + b\n y t = relu(t)", "values have no types: write `y = relu(t)`", "t = acc + b"),
        ("float t = acc + b", "values have no types: write `t = acc + b`", "t = acc + b"),
        ("t\nu = acc", "write `t = ...`", "t = acc + b"),
        ("t: f32 = acc + b", "values have no types: write `t = acc + b`", "t = acc + b"),
        ("t <- acc + b", "write `t = ...`", "t = acc + b"),
        ("t := acc + b", "write `t = ...`", "t = acc + b"),
        ("t: acc + b", "write `t = acc + b`", "t = acc + b"),
        ("acc += b\n t = acc",
         "there is no `+=`: assign to another name, as in `t = acc + b`", "t = acc + b"),
        ("t = acc\n y += b",
         "there is no `+=`: `y` is assigned once, and values before it have other names", "t = acc + b"),
        ("t = leaky_relu(acc + b, slope=0.1)",
         "arguments have no names, and values are compared by `==`", "t = leaky_relu(acc + b, 0.1)"),
        ("t = select(acc = 0, acc, b)",
         "arguments have no names, and values are compared by `==`", "t = select(acc == 0, acc, b)"),
        ("t = acc +", "the expression before `y` ends in `+`: a value is missing", "t = acc + b"),
        ("t = acc = b", "one name is assigned, and values are compared by `==`", "t = acc == b"),
        ("t = pow(acc + b, 3)", "write a power as a product, `x * x * x`, and a root as `sqrt(x)`",
         "t = (acc + b) * (acc + b)"),
        ("t = cast(acc + b, f16)", "values are 32-bit floats, and the result is converted when it is stored",
         "t = acc + b"),
        ("t = not acc + b", "a condition is negated by `!`: `!acc`", "t = !acc + b"),
        ("t = acc <> b", "write `!=`", "t = acc != b"),
        ("t = acc % 2 + b", "values have `+ - * /`, and functions", "t = acc / 2 + b"),
        ("t = fma(acc, 2, b)", "write the product and the sum", "t = acc * 2 + b"),
    ],
)  # fmt: skip
def test_an_assignment_that_is_written_as_elsewhere(written, hint, followed):
    wrong, right = (f"{{\n operand b: f32[k]\n {line}\n y = relu(t)\n}}" for line in (written, followed))
    assert errors(spec(epilogue=wrong)) == ([hint] if hint else [])
    assert not errors(spec(epilogue=right))


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("operand f32 b[k]", "the name goes before the type: `b: f32[...]`"),
        ("operand: b: f32[k]", "settings are written without `:`: `operand b: f32[k]`"),
        ("operand: b f32[k]", "write `operand b: f32[k]`"),
        ("operand: f32[k]", "a tensor has a name: `operand b: f32[k]`"),
        ("operand: float[k]", "a tensor has a name: `operand b: float[k]`"),
        ("operand b. f32[k]", "write `:`"),
        ("operand :: f32[k]", "settings are written without `:`: `operand : f32[k]`"),
        ("operand f32[k] b", "write a name before the type: `x: f32[...]`"),
        ("operand b, c: f32[k]", "declare each tensor by itself"),
        ("operand b: f32[k], c: f32[k]", "declare each operand by itself: `operand c: f32[k]`"),
        ("input b: f32[k]", "write `operand b: f32[k]`"),
        ("b: f32[k]", "write `operand b: f32[k]`"),
        ("operand b: f32[n, 1, 1, k]", "dims have names; leave out those along which the operand does not vary"),
    ],
)
def test_an_operand_that_is_written_as_elsewhere(written, hint):
    assert errors(spec(epilogue=LINES["epilogue"].replace("operand b: f32[k]", f"\n {written}\n"))) == [hint]


@pytest.mark.parametrize(
    ("begun", "hint"),
    [
        ("layer {", "a block begins with `conv`: `conv layer { ... }`"),
        ("conv layer.1 {", "names consist of letters, digits and _: write `layer_1`"),
        ("conv layer(x, w) {", "put the block in braces: `conv layer { ... }`"),
        ("conv layer, other {", "put the block in braces: `conv layer { ... }`"),
    ],
)
def test_a_block_that_begins_as_elsewhere_is_one_error(begun, hint):
    assert errors(spec().replace("conv layer {", begun)) == [hint]


@pytest.mark.parametrize("text", ['{"conv": {"input": 3}}', "[conv]\n"])
def test_a_file_of_another_format_is_told_what_a_spec_has(text):
    assert errors(text)[0] == "a file has `let NAME = SIZE` and `conv NAME { ... }`"


def test_a_name_that_is_a_keyword_is_one_error_wherever_it_stands():
    text = spec(output="output: f16[n, p, q, k]", epilogue="{ output = relu(acc) }")
    assert errors(text) == ["`output` is a keyword; choose another name"]


def test_a_result_that_lacks_its_channels_is_one_error():
    assert errors(spec(output="y: f16[n, p, q]")) == ["give `y` the dim `k`"]


def test_a_result_that_is_read_and_assigned_again_is_one_error():
    text = spec(epilogue="{ operand b: f32[k]  y = acc  y = y + b }")
    assert errors(text) == ["give the earlier value another name"]


def test_a_filter_of_one_channel_in_all_groups_is_told_how_many_there_are():
    text = spec(filter="w: f16[k=1, r=3, s=3, c=1]", pad="1\ngroups 64")
    assert errors(text) == ["k counts the channels of all groups: k=64 has one in each"]


def test_a_define_that_is_a_dims_other_name_names_the_lets():
    with pytest.raises(SpecError) as error:
        frontend.load(spec(), defines={"m": 1})
    assert (error.value.diagnostics[0].hint or "").endswith("; the file's lets are `n`")


def test_what_is_too_large_for_every_strategy_is_one_error():
    with pytest.raises(SpecError) as error:
        check_served(load(Spec(spec(strategy="auto", input="x: f16[n, h=99999, w=99999, c=64]"))))
    (only,) = error.value.diagnostics
    assert only.message.startswith("no strategy serves layer: ") and only.hint


def test_a_name_of_a_file_is_no_conv_block():
    assert errors('include "other.conv"\n' + spec()) == ["a file has `let NAME = SIZE` and `conv NAME { ... }`"]


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("let int n = 4 * 2", "write `let n = 4 * 2`"),
        ("let mut n = 8", "write `let n = 8`"),
        ("let n: int = 8", "write `let n = 8`"),
        ("let n := 8", "write `let n = 8`"),
        ("let n == 8", "write `let n = 8`"),
        ("let n 8", "write `let n = 8`"),
        ("let n, m = 8, 4", "write a `let` for each name"),
        ("let n = 8\nlet m", "write `let m = ...`"),
        ("let n = 1 << 3", "there are no shifts: write the product"),
        ("let n = 64 >> 3", "there are no shifts: write the quotient"),
    ],
)
def test_a_let_that_is_written_as_elsewhere(written, hint):
    first, *_ = errors(spec().replace("let n = 8", written))
    assert first == hint


@pytest.mark.parametrize("role", ["input", "filter", "output", "epilogue"])
def test_a_setting_that_is_lost_is_not_the_one_before_in_its_line(role):
    """What is reported is in the text: no tensor is said to be missing."""
    lost = spec(**{role: LINES[role].replace("]", "[0:8]]").replace("acc", "acc (")})
    assert len(errors(lost)) == 1
    assert len(errors(lost.replace("\n", " "))) == 1


@pytest.mark.parametrize(("begun", "hint"), [("let", "write `let NAME = SIZE`"), ("conv", "write `conv NAME { ... }`")])
def test_a_word_that_declares_nothing(begun, hint):
    assert errors(f"{begun}\n{spec()}") == [hint]


@pytest.mark.parametrize("value", ["relu(acc)", "acc + relu(acc)", "acc * -relu(acc)"])
def test_an_assignment_outside_of_an_epilogue(value):
    """A function in it is no setting."""
    assert errors(spec(target=f"sm_90a\ny = {value}")) == ["operands and assignments belong in `epilogue { ... }`"]


def test_a_let_in_the_line_of_an_epilogue():
    written = LINES["epilogue"].replace("t =", "let t =").replace("y =", "let y =")
    assert errors(spec(epilogue=written)) == ["write `t = acc + b`", "write `y = relu(t)`"]


@pytest.mark.parametrize("word", ["v2", "static", "# a file\nwords"])
def test_a_word_before_a_conv_block_is_no_let(word):
    assert errors(f"{word}\n{spec()[len('let n = 8') :].replace('[n,', '[n=8,')}") == [
        "a file has `let NAME = SIZE` and `conv NAME { ... }`"
    ]


def test_a_brace_that_closes_too_early():
    first, *_ = errors(spec(strategy="implicit_gemm { } m=64 n=128 }"))
    assert first == "the brace before `m` closes the strategy's options"
    hints = errors(spec(input="} x: f16[n, h=14, w=14, c=64]"))
    assert "a tensor belongs in a conv block: `conv NAME { input x: ... }`" in hints
    assert "write `let k = 8`" in errors("k: 8\n" + spec())


def test_an_extent_and_an_option_without_their_signs():
    assert errors(spec(filter="w: f16[k=64, r=3, s3, c=64]")) == ["write `s=3`"]
    assert errors(spec(strategy="implicit_gemm { tile m==64 n=64 k=32 }")) == ["write `tile m=64`"]


@pytest.mark.parametrize(
    ("tensor", "written", "hint"),
    [
        ("input", "x: f16[n, 14, w=14, c=64]", "h=14"),
        ("input", "x: f16[n, h=14, 14, c=64]", "w=14"),
        ("filter", "w: f16[k=64, 3, 3, c=64]", "r=3"),
        ("filter", "w: f16[k=64, r=3, 5, c=64]", "s=5"),
        ("output", "y: f16[n, 14, 14, k]", "p=14"),
    ],
)
def test_an_extent_without_a_name_takes_that_of_its_tensor(tensor, written, hint):
    assert errors(spec(**{tensor: written}))[0] == f"name each extent, as in `{hint}`"


@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
def test_an_activation_is_named_in_the_hint(name):
    assert errors(spec(stride=f"1\n{name} 1")) == [f"apply it in the epilogue: `epilogue {{ y = {name}(acc) }}`"]


@pytest.mark.parametrize("dtype", ["f16", "f32", "bf16"])
@pytest.mark.parametrize("missing", ["input", "filter", "output"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_tensor_that_is_missing_goes_with_the_others(missing, rank, dtype):
    sizes, taps = (", ".join(f"{dim}={size}" for dim in dims[-rank:]) for dims, size in (("dhw", 9), ("trs", 2)))
    lines = {
        "input": f"input x: {dtype}[n=4, {sizes}, c=24]",
        "filter": f"filter w: {dtype}[k=40, {taps}, c=24]",
        "output": f"output y: {dtype}[n, {', '.join('opq'[-rank:])}, k]",
    }
    del lines[missing]
    (hint,) = errors(f"conv layer {{ {' '.join(lines.values())} }}")
    assert not errors(f"conv layer {{ {' '.join(lines.values())} {hint.removeprefix('write `').removesuffix('`')} }}")


@pytest.mark.parametrize("sign", [":", "=", ""])
def test_a_block_without_braces_is_one_error(sign):
    lines = {**LINES, "pad": f"1\n epilogue{sign} y = relu(acc)"}
    del lines["epilogue"], lines["op"], lines["strategy"], lines["target"]
    assert errors("\n".join(f"{begin} {rest}" for begin, rest in lines.items())) == [
        "put the block in braces: `epilogue { ... }`"
    ]


@pytest.mark.parametrize(
    ("options", "hint", "followed"),
    [
        ("stages tile m=128 n=64 k=64", "write `stages VALUE`", "stages 4 tile m=128 n=64 k=64"),
        ("tile tile m=128 n=64 k=64", "remove one `tile`", "tile m=128 n=64 k=64"),
        ("m=128 n=64 k=64", "write `m VALUE`, or a group such as `tile m=128 n=128`", "tile m=128 n=64 k=64"),
        ("tile=128 n=64 k=64", "write `tile m=128 n=128`", "tile m=128 n=64 k=64"),
        ("tile m= =128 n=64 k=64", "remove one `=`", "tile m=128 n=64 k=64"),
    ],
)
def test_an_option_without_its_value_is_one_error(options, hint, followed):
    assert errors(spec(strategy=f"tma_im2col {{ {options} }}")) == [hint]
    assert not errors(spec(strategy=f"tma_im2col {{ {followed} }}"))


@pytest.mark.parametrize("role", ["input", "filter", "output"])
def test_a_tensor_without_its_keyword_is_told_which_it_is(role):
    setting = LINES[role]
    hint = f"say which tensor it is: `{role} {setting}`"
    assert hint in errors(spec().replace(f"{role} {setting}", setting))


def test_an_extent_that_every_conv_lacks_is_one_error():
    conv = "conv {} {{ input x: f16[n, h=8, w=8, c=64] filter w: f16[k=64, r=3, s=3, c=64] output y: f16[n, p, q, k] }}"
    with pytest.raises(SpecError) as e:
        frontend.load("\n".join(map(conv.format, "abc")))
    assert [d.message for d in e.value.diagnostics] == ["the extent of `n` is not known, here and in 2 more places"]


@pytest.mark.parametrize(
    "text",
    [
        "conv a input { x: f16[n=1, h=8, w=8, c=64] filter w: f16[k=64, r=3, s=3, c=64] output y: f16[n, p, q, k] }",
        spec(input="x: f16[n, h=14, w=let 14, c=64]"),
        spec(input="x: f16[n, h=14, } w=14, c=64]"),
    ],
)
def test_a_tensor_behind_a_block_that_is_closed_too_early_is_not_missing(text):
    with pytest.raises(SpecError) as e:
        frontend.load(text)
    assert "E201" not in {d.code for d in e.value.diagnostics}


@pytest.mark.parametrize("name", ["b", "bias", "scale"])
@pytest.mark.parametrize("behind", ["pad", "target", "groups"])
def test_an_operand_outside_of_the_epilogue_is_one_error(name, behind):
    lines = {"pad": "1", "target": "sm_90a", "groups": "1"}
    text = spec(epilogue=f"{{ y = relu(acc + {name}) }}", **{behind: f"{lines[behind]}\n  operand {name}: f32[k]"})
    if behind == "groups":
        text = text.replace("op fprop", f"op fprop\n  groups 1\n  operand {name}: f32[k]")
    assert errors(text) == ["operands and assignments belong in `epilogue { ... }`"]


def test_names_of_operands_may_be_words_of_logic():
    assert errors(spec(epilogue="{ operand or: f32[k]  and = acc + or  not = and * or  y = not }")) == []


@pytest.mark.parametrize(
    ("strategy", "option"),
    [("tma_im2col", "span 32"), ("implicit_gemm", "tile p=2"), ("depthwise", "slices 4")],
)
def test_an_option_of_a_kernel_that_does_not_serve_is_what_is_shown(strategy, option):
    depthwise = {"filter": "w: f16[k=64, r=3, s=3, c=1]", "pad": "1\ngroups 64"} if strategy == "depthwise" else {}
    text = spec(strategy=f"{strategy} {{ {option} }}", **depthwise)
    with pytest.raises(SpecError) as error:
        check_served(load(Spec(text)))
    first = error.value.diagnostics[0]
    name = option.partition(" ")[0]
    assert f"`{name}" in first.message and "is an option only of kernel" in first.message
    assert (first.hint or "").startswith(f"leave `{name}") and first.span
    shown = text.splitlines()[first.span.line - 1][first.span.column - 1 : first.span.end_column - 1]
    assert shown == option.removeprefix("tile ")


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ("stride 1 w=2", "write one value for all axes, or a value per axis as `stride h=2 w=1`"),
        ("pad 1 prolog { x = relu(x) }", "did you mean `prologue`?"),
        ("pad 1 epilog { y = relu(acc) }", "did you mean `epilogue`?"),
        ("pad 1 constant 0", "zeros need no word: `pad 1`"),
        (
            "pad 1 constant 2",
            "padding is made of zeros, or of what `pad 1 reflect`, `replicate`, `circular` or `nan` says",
        ),
        ("pad h=1 w=1 d=1", "no tensor has `d`: leave it out of stride, pad and dilation"),
        ("strategy tma_im2col { schedule ping-pong }", "did you mean `pingpong`?"),
        ("strategy winograd { tile m=2 }", "`tile` takes a number, `tile NUMBER`, or `n` and `k`"),
        (
            "epilogue { result: f32[k]  y = acc }",
            "write a result with its type and dims, such as `result r: f32[k]`",
        ),
    ],
)
def test_what_a_hand_slips_on_in_a_line(settings, hint):
    tensors = "input x: f16[n=1, h=8, w=8, c=8]  filter w: f16[k=8, r=3, s=3, c=8]  output y: f16[n, p, q, k]"
    with pytest.raises(SpecError) as error:
        for compilation in load(Spec(f"conv a {{ {tensors} {settings} }}")):
            compilation.check_served()
    assert [d.hint for d in error.value.diagnostics] == [hint]
