"""What people write who come from elsewhere: every hint leads to something that the language has."""

from __future__ import annotations

import re
from importlib import import_module

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convgen import frontend, habits
from convgen.cli import COMMANDS
from convgen.cli.arguments import Parser
from convgen.diagnostics import Diagnostic, SpecError
from convgen.frontend.dims import ROLE_DIMS
from convgen.frontend.operators import OPERATORS
from convgen.frontend.wording import KEYWORDS, SETTINGS
from convgen.functional.pointwise import ACTIVATIONS
from convgen.ir.dtypes import TENSOR_DTYPES
from convgen.ir.epilogue import FUNCTIONS
from convgen.kernels import strategies
from convgen.targets import TARGETS

INPUT, FILTER, OUTPUT = (
    "input x: f16[n=8, h=14, w=14, c=64]", "filter w: f16[k=64, r=3, s=3, c=64]", "output y: f16[n, p, q, k]",
)  # fmt: skip


def block(*settings: str) -> str:
    return "conv a {\n" + "".join(f"  {s}\n" for s in settings) + "}\n"


def errors(text: str, **known) -> tuple[Diagnostic, ...]:
    with pytest.raises(SpecError) as caught:
        frontend.load(text, targets=TARGETS, **known)
    return caught.value.diagnostics


def hint(text: str, **known) -> str | None:
    """Of a text with one error."""
    (found,) = errors(text, **known)
    return found.hint


# ---- the tables --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "known"),
    [
        (habits.SETTINGS, SETTINGS),
        (habits.STATEMENTS, KEYWORDS),
        *((habits.DIMS[role], ROLE_DIMS[role]) for role in ROLE_DIMS),
        (habits.TYPES, TENSOR_DTYPES),
        (habits.OPS, tuple(OPERATORS)),
        (habits.STRATEGIES, ("auto", *strategies.NAMES)),
        (habits.TARGETS, tuple(TARGETS)),
        (habits.DEVICES, ("gpu", "emulate")),
        (habits.COMMANDS, (*COMMANDS, "--help")),
        (habits.ACTIVATIONS, ("none", *ACTIVATIONS)),
        (habits.LAYOUTS, ("channels_last", "channels_first")),
    ],
)
def test_what_is_meant_exists_and_what_is_written_does_not(others, known):
    assert set(others.values()) <= set(known)
    assert not others.keys() & set(known)
    assert all(word == habits.plain(word) for word in others)


def test_options_of_commands_exist():
    known: set[str] = set()
    for name in COMMANDS:
        parser = Parser()
        import_module(f"convgen.cli.{name}").configure(parser)
        known |= parser._option_string_actions.keys()
    assert {*habits.ARGUMENTS.values(), *habits.LAYER_ARGUMENTS.values()} <= known
    of_some = {"--device", "--batch", "--out", "--output", "--images", "--gpu"}  # and other names elsewhere
    others = *habits.ARGUMENTS, *habits.LAYER_ARGUMENTS, *habits.NO_ARGUMENTS
    assert not {f"--{word}" for word in others} & known - of_some


@pytest.mark.parametrize("name", [*habits.FUNCTIONS, *habits.NO_FUNCTIONS])
def test_a_function_of_another_project_is_written_in_this_language(name):
    assert name not in FUNCTIONS
    if name == "conv":  # a keyword
        return
    said = hint(block(INPUT, FILTER, OUTPUT, f"epilogue {{ y = {name}(acc) }}"))
    assert said == habits.NO_FUNCTIONS.get(name, f"write `{habits.FUNCTIONS.get(name)}`")
    if written := re.fullmatch("write `(.*)`", said):
        value = re.sub(r"\b(slope|low|high|condition|x|y)\b", "acc", written[1])
        frontend.load(block(INPUT, FILTER, OUTPUT, f"epilogue {{ y = {value} }}"))


@pytest.mark.parametrize("word", habits.NO_SETTINGS)
def test_what_takes_the_place_of_a_setting_can_be_written(word):
    if word in KEYWORDS:
        return
    said = hint(block(INPUT, FILTER, OUTPUT, f"{word} 1"))
    assert said == habits.NO_SETTINGS[word]
    for snippet in re.findall(r"`(\w+ [^`]*)`", said):
        if snippet.split()[0] in SETTINGS and "..." not in snippet:
            given = [s for s in (INPUT, FILTER, OUTPUT) if s.split()[0] != snippet.split()[0]]
            frontend.load(block(*given, snippet))


def test_an_option_outside_of_its_block_is_known():
    """But for those that mean something else to most people."""
    names = {
        option.name.partition(".")[0] for strategy in strategies.STRATEGIES.values() for option in strategy.options
    }
    for name in names - {"kernel", "method", "images", "depth"}:
        assert (hint(block(INPUT, FILTER, OUTPUT, f"{name} 4")) or "").startswith("put options in the strategy's block")


@pytest.mark.parametrize("setting", ["kernel mma_gemm", "kernel mma_gemm  stages 2", "method gather", "method scatter"])
def test_an_option_that_is_another_name_of_a_setting_is_known_by_its_value(setting):
    found = errors(block(INPUT, FILTER, OUTPUT, setting, "strategy implicit_gemm"))
    assert found[0].message == f"no setting is named `{setting.split()[0]}`"
    assert {d.hint for d in found} == {habits.OPTION}


@pytest.mark.parametrize("filter", [FILTER, FILTER.replace(":", " "), FILTER.replace("w:", ":")])
def test_a_kernel_that_is_a_tensor_is_a_filter(filter):
    first, *_ = errors(block(INPUT, filter.replace("filter", "kernel"), OUTPUT))
    assert first.hint == "did you mean `filter`?"


@pytest.mark.parametrize("word", habits.SETTINGS)
def test_a_setting_by_another_name_is_taken_for_what_it_means(word):
    if word in KEYWORDS:
        return
    found = errors(block(INPUT, FILTER, OUTPUT, f"{word} 0"))
    assert (found[0].message, found[0].hint) == (
        f"no setting is named `{word}`", f"did you mean `{habits.SETTINGS[word]}`?",
    )  # fmt: skip


# ---- padding by a word -------------------------------------------------------------------------


def padded(word: str, extent: int, taps: int, stride: int, dilation: int) -> frontend.Request:
    """The convolution that the hint for a word leads to."""
    settings = [f"input x: f16[n=1, w={extent}, c=8]", f"filter w: f16[k=8, s={taps}, c=8]", "output y: f16[n, q, k]"]
    settings += [f"stride {stride}", f"dilation {dilation}"]
    said = hint(block(*settings, f"pad {word}"))
    assert said
    written = re.search("`(pad [^`]*)`", said)
    assert (written is None) == ("leave `pad` out" in said)
    (request,) = frontend.load(block(*settings, *([written[1]] if written else [])))
    return request


@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 4), st.integers(1, 3), st.sampled_from(["same", "SAME"]))
def test_same_keeps_the_size(extent, taps, stride, dilation, word):
    problem = padded(word, extent, taps, stride, dilation).problem
    assert problem.output == (-(-extent // stride),)
    assert problem.pad_hi[0] - problem.pad_lo[0] in (0, 1)


@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 3))
def test_causal_padding_is_in_front_and_full_padding_on_both_sides(extent, taps, dilation):
    window = (taps - 1) * dilation + 1
    causal, full = (padded(word, extent, taps, 1, dilation).problem for word in ("causal", "full"))
    assert (causal.pad_lo, causal.pad_hi, causal.output) == ((window - 1,), (0,), (extent,))
    assert full.output == (extent + window - 1,)


@given(st.integers(1, 40), st.integers(1, 7))
def test_valid_is_no_padding(extent, taps):
    assume(taps <= extent)
    assert padded("valid", extent, taps, 1, 1).problem.pad_hi == (0,)


# ---- all errors at once ------------------------------------------------------------------------

#: Each line of a block that is right, and what people make of it: errors that no other line is needed to find.
LINES: dict[str, tuple[str, ...]] = {
    INPUT: (
        "imput x: f16[n=8, h=14, w=14, c=64]", "input x f16[n=8, h=14, w=14, c=64]", "input",
        "input x: fp16[n=8, h=14, w=14, c=64]", "input x: f16[N=8, C=64, H=14, W=14]", "input x: f16[8, 14, 14, 64]",
        "input x: f16[n=8 h=14 w=14 c=64]", "input x: f16[n=8, h=14, w=$, c=64]",
        "input x: f16[n=0, h=14, w=14, c=64]",
        "input x: f16(n=8, h=14, w=14, c=64)",
    ),
    FILTER: (
        "weight w: f16[k=64, r=3, s=3, c=64]", "filter w: f16[oc=64, kh=3, kw=3, ic=64]",
        "filter w: f16[k=64, r=3, s=3, c=64,]", "filter w: f16[k=64, r=3, s=3, c=64u]",
        "filter w: f16[k=64, r=3, s=3, c=lat]", "filter filter: f16[k=64, r=3, s=3, c=64]",
        "filter w = f16[k=64, r=3, s=3, c=64]", "filter w: f16[k=64, r=3, r=3, s=3, c=64]",
    ),
    OUTPUT: (
        "ouput y: f16[n, p, q, k]", "output y: f16[n, oh, ow, oc]", "output y: f15[n, p, q, k]",
        "output y [n, p, q, k] f16", "output y: f16[n p q k]", "output y: f16[n, p, q, 64]",
    ),
    "stride 1": (
        "strides 1", "stride 1 1", "stride = 1", "stride 0", "stride (1, 1)", "stride x=1 h=one", "stride",
        "stride 1, 1",
    ),
    "pad 1": (
        "padding 1", "pad same", "pad 1 1", "pad: -1", "pad [1, 1]", "pad (1, 1, 1, 1)", "pad 0x1", "pad h=1, w=1",
    ),
    "dilation 1": (
        "dilate 1", "dilation 1;", "dilation one", "dilation 1.5",
    ),
    "groups 1": (
        "group 1", "groups = 1", "groups c", "groups 3 + ", "groups 0",
    ),
    "accumulate f32": (
        "accum f32", "accumulate fp16", "accumulate 32",
    ),
    "op fprop": (
        "op forward", "op fprop +", "operation fprop", "op fprop fprop", "op",
    ),
    "strategy direct": (
        "strategy naiv", "strategy 3", "stratgy direct", "strategy 'direct'",
    ),
    "target sm_90a": (
        "target sm_70", "target h100", "arch sm_90a", "target",
    ),
    "epilogue { y = relu(acc) }": (
        "epilogue { y = relu6(acc) }", "epilogue { y = relu(acc }", "epilogue { y = acc acc }",
        "epilogue { y = acc + $ }", "epilogue { operand b f32[k]  y = acc + b }", "epilogue { y = }",
        "epilogue y = acc }", "epilogue { y = acc ** 2 }",
    ),
    "# nothing": (
        "bias b", "layout NHWC", "frobnicate 3", "wibble { wobble 1 }", "// a comment", "tile m=128",
    ),
}  # fmt: skip


@settings(max_examples=30)
@given(st.data())
def test_each_line_with_a_fault_is_reported_and_no_other(data):
    order = data.draw(st.permutations(list(LINES)))
    wrong = set(data.draw(st.lists(st.sampled_from(list(LINES)), min_size=1, unique=True)))
    lines = [data.draw(st.sampled_from(LINES[line])) if line in wrong else line for line in order]
    text = block(*lines)
    found = errors(text, strategies={"direct": (), "naive": ()})
    assert {d.span.line - 2 for d in found if d.span} == {order.index(line) for line in wrong}, text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("kh", "`kh` is dim `r` of the filter: for a define to set it, write `let kh = 2` and `r=kh` there"),
        ("N", "`N` is dim `n` of the input: for a define to set it, write `let N = 2` and `n=N` there"),
        ("k", "`k` is a dim of the filter: for a define to set it, write `let k = 2` and `k` there"),
        ("kernel_size", habits.NO_SETTINGS["kernelsize"]),
        ("bias", habits.NO_SETTINGS["bias"]),
        ("frobnicate", "the file has no let; write `let n = 8` and use `n` as a size"),
    ],
)
def test_a_define_without_a_let(name: str, says: str):
    assert hint(block(INPUT, FILTER, OUTPUT), defines={name: 2}) == says


def test_what_the_hint_for_a_define_says_to_write_is_right():
    text = "let kh = 2\n" + block(INPUT, FILTER.replace("r=3", "r=kh"), OUTPUT)
    (request,) = frontend.load(text, defines={"kh": 1})
    assert request.problem.filter == (1, 3)


@pytest.mark.parametrize("setting", ["padding same", "padding=same", "paddng: same", "auto_pad=SAME_UPPER"])
def test_a_word_for_padding_is_computed_under_another_name(setting: str):
    first, *_, last = errors(block(INPUT, FILTER, OUTPUT, setting))
    assert first.hint == "did you mean `pad`?"
    assert last.hint == "for an output of the input's size / stride, write `pad 1`"
