"""Guesses at what people mean by signs that do not fit, or are missing: commas, brackets, the signs of a tensor."""

from __future__ import annotations

from convgen import habits
from convgen.frontend import wording
from convgen.frontend.place import Place, setting_meant
from convgen.frontend.size_hints import CHANNEL_SLICE, LAYOUTS
from convgen.frontend.tokens import TEXTS
from convgen.ir.dtypes import TENSOR_DTYPES

SEPARATED = "settings are not separated by commas"


def separated(place: Place) -> str | None:
    """A comma, or what follows one, between two settings."""
    at = place.at if place.word.type == "COMMA" else place.at - 1
    in_brackets = not place.kinds.isdisjoint({"RSQB", "RPAR"})
    if at < 1 or place.words[at].type != "COMMA" or in_brackets or len(place.braces) != 1:
        return None
    behind = place.words[at + 1]
    begins = behind.type in wording.SETTING_KINDS or (behind.type == "NAME" and setting_meant(behind) is not None)
    ends = behind.line != place.words[at].line and at == place.at
    return SEPARATED if begins or (ends and place.is_setting) else None


def listed(place: Place) -> str | None:
    """Statements and names joined by signs, or not."""
    word, before = place.word, place.before
    if place.is_setting and word.type == "COMMA":
        return SEPARATED
    if "LET" in place.kinds and word.type in ("COMMA", "ASSIGN"):
        is_number = word.type == "COMMA" and place.after is not None and place.after.type == "INT"
        return "a `let` has one value" if is_number else "write a `let` for each name"
    if place.kinds == {"COLON"} and word.type == "COMMA" and place.after is not None and place.after.type == "NAME":
        return "declare each tensor by itself"
    if word.type == "COMMA" and before is not None and before.type == "RSQB" and place.in_epilogue:
        return f"declare each operand by itself: `operand {place.rest_of_line()}`"
    if word.type == "LSQB" and before is not None and before.type == "RSQB" and place.keyword in LAYOUTS:
        return "put all dims in one pair of brackets: `[n, h, w, c]`"
    if "COMMA" in place.kinds and "RSQB" in place.kinds and word == "at":
        return CHANNEL_SLICE
    if "COMMA" in place.kinds and "RSQB" in place.kinds and word.type in ("NAME", "INT"):
        return "separate dims by commas" + (", or close the `[`" if place.begins_line else "")
    if word.type == "RPAR" and before is not None and before.type == "COMMA" and place.keyword in wording.AXES:
        return f"write both sides, or one number: `{wording.AXES[place.keyword]}`"
    if before is not None and before.type == "COMMA" and word.type in ("RSQB", "RPAR", "COMMA"):
        return "remove one of the commas" if word.type == "COMMA" else "remove the last comma"
    return None


#: What a bracket closes.
_OPENING = {"RPAR": "(", "RSQB": "["}


def bracket(place: Place) -> str | None:
    """Braces and parentheses that are missing, or too many."""
    before, word = place.before, place.word
    is_closing = word.type in _OPENING
    if bracket := place.bracket_meant:
        return f"a `{_OPENING[bracket]}` is closed by `{TEXTS[bracket]}`"
    if is_closing and not place.is_open(word):
        return f"this `{word}` closes nothing"
    if place.kinds == {"LBRACE"} and before is not None:
        return f"put the block in braces: `{place.keyword} {'' if before == place.keyword else f'{before} '}{{ ... }}`"
    if not (place.begins_line or is_closing or word.type in {"RBRACE", *wording.SETTING_KINDS}):
        return None
    return next((f"a `{opening}` is not closed" for kind, opening in _OPENING.items() if kind in place.kinds), None)


def sign(place: Place) -> str | None:
    """A sign that is missing or another one, in a tensor."""
    word, before = place.word, place.before
    if before is None:
        return None
    if word.type == "PLUS" and "INT" in place.kinds:
        return "leave the sign out"
    if place.kinds == {"COLON"} and before in TENSOR_DTYPES and word.type == "LSQB":
        return f"write a name before the type: `x: {before}[...]`"
    if place.kinds == {"COLON"} and before in {*TENSOR_DTYPES, *habits.TYPES} and word not in TENSOR_DTYPES:
        return f"the name goes before the type: `{word}: {before}[...]`"
    if place.kinds == {"COLON"}:
        known = word if word in TENSOR_DTYPES else habits.meant(word, TENSOR_DTYPES, habits.TYPES)
        return f"write a tensor as `{before}: {'f16' if place.begins_line or not known else known}[...]`"
    dims = ", ".join(LAYOUTS.get(place.keyword, LAYOUTS["input"])[4])
    if before.type == "COLON" and word.type == "LSQB":
        return f"put the element type before the dims: `{place.words[place.at - 2]}: f16[{dims}]`"
    if place.kinds == {"LSQB"}:
        setting = habits.NO_SETTINGS.get(habits.plain(word)) if len(word) > 1 else None  # a letter is a dim
        return setting or f"put the dims in brackets: `{before}[{dims}]`"
    return None
