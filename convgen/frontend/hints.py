"""The message of a syntax error: what the grammar expects there, and what the writer probably meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import takewhile

from convgen import habits
from convgen.diagnostics import Span, listing, quote
from convgen.frontend import wording
from convgen.frontend.build import span_of
from convgen.frontend.expression_hints import (
    GELU_TANH,
    argument,
    assignment,
    comparison,
    division,
    function,
    index,
    is_juxtaposed,
    operand,
    power,
)  # fmt: skip
from convgen.frontend.operators import OPERATORS
from convgen.frontend.place import Place
from convgen.frontend.sign_hints import bracket, listed, separated, sign
from convgen.frontend.size_hints import (
    any_size,
    axes,
    by_x,
    channels,
    extent,
    listed_by_axis,
    positional,
)
from convgen.frontend.tokens import COMMENT, MIXED, meant
from convgen.ir.dtypes import TENSOR_DTYPES


def explain_stray(place: Place) -> tuple[str, Span, str | None]:
    """Message, place and hint for a character, a word or a comment that is not part of the language."""
    return wording.stray(place.word), span_of(place.word), _stray_hint(place)


def _stray_hint(place: Place) -> str | None:
    word = place.word
    if word.type == COMMENT:
        in_size = place.keyword == "let" and word == "//" and not place.begins_line
        return f"{wording.COMMENT_HINT}; a whole division is `/`" if in_size else wording.COMMENT_HINT
    if hint := _parts_of_name(place) or _point(place):
        return hint
    if word == ";" and {"COMMA", "RSQB"} <= place.kinds:
        return "separate dims by commas"
    if word == "?" and not place.in_epilogue:
        return any_size(place)
    if word == "not" and place.after is not None:
        return f"a condition is negated by `!`: `!{'(...)' if place.after == '(' else place.after}`"
    if place.after == "tanh" and place.before == ",":
        return GELU_TANH
    if word == "$" and (place.after is None or place.after.type != "NAME"):
        return None
    if hint := wording.HABITS.get(str(word)):
        return hint
    if word[0].isalnum():
        return "names and numbers consist of ASCII letters, digits and _"
    sign = meant(word)
    if sign == ("", ""):
        return "write a plain space" if word.isspace() else "remove it: it is invisible"
    return f"write `{sign[1]}`" if sign and sign[1] else None


def _point(place: Place) -> str | None:
    word, before, after = place.word, place.before, place.after
    if word != "." or before is None or after is None:
        return None
    if place.keyword == "strategy":
        return f"write an option of a group as `{before} {after}=...`"
    if place.kinds == {"COLON"} and after.type == "NAME":
        return "write `:`"
    if known := habits.meant(after, TENSOR_DTYPES, habits.TYPES):
        return f"did you mean `{known}`?"
    if place.in_epilogue and after.type == "NAME":
        return f"a function is called by its bare name: `{after}(...)`"
    return None


def explain(place: Place) -> tuple[str, Span, str | None]:
    """Message, place and hint for a word that does not fit."""
    word, before = place.word, place.before
    if is_juxtaposed(place):
        assert before is not None
        earlier = place.words[place.at - 2]
        return f"expected an operator between {quote(earlier)} and {quote(before)}", span_of(before), _hint(place)
    if place.is_setting and word.type == "NAME":
        fault = "malformed setting" if word in wording.CONTEXTUAL else "no setting is named"
        return f"{fault} {quote(word)}", span_of(word), _hint(place)
    message = f"expected {wording.expected(place.kinds, before.type if before else '', place.keyword)}"
    span = span_of(word)
    if before is not None:
        message += f" after {quote(before)}"
        if place.begins_line and not place.kinds & wording.STARTERS:  # the line before is not complete
            end = span_of(before)
            span = Span(end.end_line, end.end_column, end.end_line, end.end_column + 1)
    return f"{message}, found {wording.found(word)}", span, _hint(place)


def _hint(place: Place) -> str | None:
    return next((hint for rule in _RULES if (hint := rule(place))), None)


# --- what people mean, a function each: a hint, or nothing where that is not it ---


def _comment(place: Place) -> str | None:
    signs = place.word + place.after if place.after is not None else place.word
    return wording.COMMENT_HINT if place.begins_line and (signs == "--" or place.word == "%") else None


def _only_one(place: Place) -> str | None:
    """A second target, or a second strategy, after the first: `target sm_90a sm_80`."""
    first = place.words[place.at - 2].type if place.at > 1 else ""
    kinds = ("COMMA", "NAME") if first == "TARGET" else ("COMMA",)
    if place.begins_line or first not in ("TARGET", "STRATEGY") or place.word.type not in kinds:
        return None
    return f"a conv has one {first.lower()}, which `--{first.lower()}` overrides"


def _setting(place: Place) -> str | None:
    """A name where a setting should stand."""
    word = place.word
    if not place.is_setting or word.type not in ("NAME", "OPERAND"):
        return None
    if form := wording.CONTEXTUAL.get(word) or (place.is_assigned and wording.CONTEXTUAL.get(str(place.before))):
        return form
    if tensor := _undeclared(place):
        return tensor
    if place.is_option:
        return habits.OPTION
    if (no_setting := habits.NO_SETTINGS.get(habits.plain(word))) and not place.is_assigned:
        return no_setting
    if keyword := place.keyword_meant:
        is_signed = place.after is not None and place.after.type in ("ASSIGN", "COLON")
        value = place.rest_of_line(2).strip("\"'")
        is_value = is_signed and value and keyword not in _NAMES and habits.plain(value) not in habits.PADDINGS
        return f"write `{keyword} {value}`" if is_value else f"did you mean `{keyword}`?"
    if one := _only_one(place):
        return one
    if place.keyword == "strategy" and not place.begins_line and place.before is not None:
        if place.before.type == "RBRACE":
            return f"the brace before `{word}` closes the strategy's options"
        return f"put options in braces: `strategy {place.before} {{ {word} ... }}`"
    if place.is_assigned and place.keyword in wording.AXES and word in "dhw":
        return f"write one value for all axes, or a value per axis as `{wording.AXES[place.keyword]}`"
    if word.type == "OPERAND" or place.is_assigned:
        return "operands and assignments belong in `epilogue { ... }`"
    return f"the settings are {listing((*wording.SETTINGS, *wording.CONTEXTUAL), 'and')}"


def _undeclared(place: Place) -> str | None:
    """A tensor without the word that says which it is, `x: f16[n, c]`."""
    behind = place.words[place.at + 1 : place.at + 4]
    if [word.type for word in behind] != ["COLON", "NAME", "LSQB"] or place.keyword_meant:
        return None
    declared = next((keyword for keyword, name in _NAMES.items() if name == place.word), "input")
    return f"say which tensor it is: `{declared} {place.word}: {place.rest_of_line(2)}`"


def _statement(place: Place) -> str | None:
    """Hints for a statement outside of blocks that is neither a let nor a conv block."""
    word = place.word
    if "LET" not in place.kinds:
        return None
    if place.is_assigned or (word.type == "NAME" and place.after is not None and place.after.type == "COLON"):
        value = place.rest_of_line(2) or "..."
        if "[" in value:
            return f"a tensor belongs in a conv block: `conv NAME {{ input {word}: ... }}`"
        return f"write `let {word} = {value}`"
    if word.type in wording.SETTING_KINDS or word in wording.CONTEXTUAL:
        return f"`{word}` belongs in a conv block: `conv NAME {{ {word} ... }}`"
    if word.type == "RBRACE":
        return "this brace closes nothing"
    if word.type == "NAME" and place.opens_block:
        return f"a block begins with `conv`: `conv {word} {{ ... }}`"
    if word.type == "NAME" and (keyword := place.keyword_meant):
        return f"did you mean `{keyword}`?"
    return "a file has `let NAME = SIZE` and `conv NAME { ... }`" if word.type in ("NAME", "LBRACE", "LSQB") else None


def _keyword(place: Place) -> str | None:
    word = place.word
    if word in wording.KEYWORDS and place.declares and place.begins_line:
        return f"`{word}` is a keyword; choose another name" if place.is_assigned_keyword else _nameless(place)
    if word not in wording.KEYWORDS or place.begins_line:
        return None
    if place.before == word and (place.after is None or place.after.type not in ("ASSIGN", "COLON", "LBRACE")):
        return f"remove one `{word}`"
    if word.type == "CONV" and len(place.braces) > 1:
        return "the convolution's sum is `acc`"
    if place.keyword == "op" and (operator := habits.did_you_mean(word, OPERATORS, habits.OPS)):
        return operator
    if "NAME" in place.kinds and "OPERAND" not in place.kinds:
        return f"`{word}` is a keyword; choose another name"
    return None


def _nameless(place: Place) -> str:
    """The hint for a line that ends after the word that declares something."""
    before = str(place.before)
    if before == "let":
        return "write `let NAME = SIZE`"
    if before == "conv":
        return "write `conv NAME { ... }`"
    return f"a tensor has a name: `{before} {_NAMES.get(before, 't')}: f16[...]`"


#: What tensors are called in the documents.
_NAMES = {"input": "x", "filter": "w", "output": "y", "lowered": "m", "operand": "b"}


def _assigned_setting(place: Place) -> str | None:
    word, before, after = place.word, place.before, place.after
    if word.type not in ("ASSIGN", "COLON") or before not in (*wording.SETTINGS, *_NAMES, "dynamic"):
        return None
    rest = place.rest_of_line() or "..."
    if name := after in {*TENSOR_DTYPES, *habits.TYPES} and _NAMES.get(str(before)):
        return f"a tensor has a name: `{before} {name}: {rest}`"
    behind = [word.type for word in place.words[place.at + 1 : place.at + 3]]
    if before in _NAMES and behind == ["NAME", "NAME"]:  # `operand :b f32[k]`
        return f"write `{before} {after}: {place.rest_of_line(2)}`"
    if place.keyword in wording.AXES and rest[0] in "[{":
        return listed_by_axis(place, place.at + 2)
    if place.kinds == {"LBRACE"} and rest[0] != "{":
        return None  # the braces that it lacks are said
    return f"settings are written without `{word}`: `{before} {rest}`"


def _slice(place: Place) -> str | None:
    """A slice that is written after the brackets, `[n, c=64] of 256`."""
    of = place.at if place.word == "of" else place.at - 1
    behind = place.words[of + 1] if of + 1 < len(place.words) else None
    if of < 1 or place.words[of] != "of" or place.words[of - 1].type != "RSQB" or behind is None:
        return None
    dim: list[str] = []
    for word in reversed(place.words[: of - 1]):
        if word.type in ("COMMA", "LSQB"):
            break
        dim.insert(0, word)
    return f"write it inside the brackets: `{''.join(dim)} of {behind}`"


def _parts_of_name(place: Place) -> str | None:
    """A name in parts."""
    before, word, after = place.before, place.word, place.after
    named = place.kinds <= {"ASSIGN", "LBRACE"} or place.words[place.at - 2].type == "STRATEGY"
    if before is None or after is None or before.type != "NAME" or not named:
        return None
    if word.type == "NAME" and place.kinds == {"LBRACE"} and place.keyword == "conv":
        return f"a name is one word: `{before}_{word}`"
    if word not in ("-", ".", "/"):
        return None
    return f"names consist of letters, digits and _: write `{before}_{after}`"


def _name(place: Place) -> str | None:
    """No name where one is given, or a number in one word with letters."""
    before = place.before
    if place.kinds == {"NAME"} and before is not None and before.type in ("CONV", "LET"):
        if place.word.type in ("LBRACE", "COLON"):
            return "write `conv NAME { ... }`"
        if place.word[:1].isalpha() and (name := re.sub(r"[^A-Za-z0-9]+", "_", place.word)).isidentifier():
            return f"names consist of letters, digits and _: write `{name}`"
        return "a name consists of ASCII letters, digits and _, and does not start with a digit"
    if before is not None and before.type == "TARGET" and place.word.type in (MIXED, "INT", "FLOAT"):
        return "a target has a name, such as `sm_90a`"
    target = place.at > 1 and place.words[place.at - 2].type == "TARGET"
    if target and place.word.type == "MINUS" and place.after is not None:
        return f"did you mean `{before}_{place.after}`?"
    if place.word.type != MIXED:
        return None
    word = place.word.lower()
    if "INT" in place.kinds and (digits := re.sub("_|px$|pixels?$", "", word)).isdigit():
        return f"write `{digits}`"
    if word[-1] == "e" and word[:-1].replace(".", "", 1).isdigit():
        return f"an exponent has digits: `{word}-3`"
    if word.startswith("0x") or word[-1:] in "fhklmu":
        return "numbers are decimal, without a suffix: `16`, `0.5`, `1e-3`"
    return "a name cannot start with a digit; leave a space after a number"


def _group(name: str, sizes: Sequence[str]) -> str:
    if name not in wording.GROUPS:
        return f"an option has one value: `{name} {sizes[0]}`"
    return f"write a group as `{' '.join((name, *map('{}={}'.format, 'mnk', sizes)))}`"


def _options(place: Place) -> str | None:
    word, before = place.word, place.before
    if place.keyword != "strategy" or before is None:
        return None
    if word.type == "LPAR" and "LBRACE" in place.kinds:
        return f"put options in braces: `strategy {before} {{ ... }}`"
    if len(place.braces) < 2:
        return "write `strategy NAME { ... }`" if before.type == "STRATEGY" and word.type == "LBRACE" else None
    if word.type == "COMMA":
        return "separate options by spaces, not commas"
    if sizes := by_x(word):
        return _group(before, sizes)
    if word.type == "INT" and before.type == "INT":  # `tile 128 64 64`
        sizes = [before, *takewhile(lambda word: word.type == "INT", place.words[place.at :])]
        return _group(place.words[place.at - 2], sizes)
    if word.type == "INT" and before.type == "NAME":
        group = place.words[place.at - 2]
        if group.type == "ASSIGN":
            return f"is a value missing after `{place.words[place.at - 3]}=`?"
        return f"write an option of a group as `{f'{group} ' if group.type == 'NAME' else ''}{before}={word}`"
    if word.type == before.type == "ASSIGN":
        return "remove one `=`"
    if word.type in ("COLON", "ASSIGN") and before.type == "NAME":
        return f"write an option as `{before} VALUE`, or a group as `{before} m=VALUE n=VALUE`"
    return None


def _let(place: Place) -> str | None:
    """A `let` with something between its name and its value, or without one of them."""
    word, before = place.word, place.before
    if place.kinds != {"ASSIGN"} or place.keyword != "let":
        return None
    if word.type == "COMMA":
        return "write a `let` for each name"
    line = () if place.begins_line else [*takewhile(lambda w: w.line == word.line, place.words[place.at :])]
    assigned = next((i for i, w in enumerate(line) if w.type == "ASSIGN"), 0)
    if assigned:  # `let n: int = 8`, `let int n = 8`
        name = before if word.type == "COLON" else line[assigned - 1]
        return f"write `let {name} = {place.rest_of_line(assigned + 1) or '...'}`"
    value = next((w for w in line[:2] if w.type in ("INT", "NAME")), "...")
    return f"write `let {before} = {value}`"


_RULES: tuple[Callable[[Place], str | None], ...] = (
    separated, function, _comment, power, division, comparison, _slice, _setting, _statement, operand, _keyword,
    _assigned_setting, argument, assignment, _parts_of_name, axes, _options, positional, _name, index, channels, extent,
    _only_one, listed, bracket, _let, sign,
)  # fmt: skip
