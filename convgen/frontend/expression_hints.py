"""Guesses at what people mean in a prologue or an epilogue that does not parse: one function per guess gives a hint, or
nothing if it does not apply."""

from __future__ import annotations

from convgen import habits
from convgen.diagnostics import did_you_mean
from convgen.frontend import wording
from convgen.frontend.place import Place
from convgen.ir.dtypes import TENSOR_DTYPES

GELU_TANH = "gelu by its tanh approximation is `gelu_tanh(x)`"


def is_juxtaposed(place: Place) -> bool:
    """Whether the previous word, which should be assigned, follows a value in its line: `relu acc`."""
    if place.kinds != {"ASSIGN"} or len(place.braces) < 2 or place.at < 2 or place.before is None:
        return False
    earlier = place.words[place.at - 2]
    return earlier.end_line == place.before.line and earlier.type in ("NAME", "INT", "FLOAT", "RPAR")


def function(place: Place) -> str | None:
    if is_juxtaposed(place):
        if place.before in ("if", "?") or place.words[place.at - 2] in ("if", "?"):
            return "a choice is written `select(condition, x, y)`"
        if place.before in ("and", "or"):
            return "conditions are joined by `&&` and `||`"
        if place.words[place.at - 2] == "not":
            return f"a condition is negated by `!`: `!{place.before}`"
        return "a function is called with parentheses, `relu(acc)`; values need an operator between them"
    return None


def power(place: Place) -> str | None:
    return wording.POWER if place.word == "*" and place.before == "*" else None


def division(place: Place) -> str | None:
    return "divide by one `/`" if place.word == "/" and place.before == "/" else None


def comparison(place: Place) -> str | None:
    if place.word in ("<", ">") and place.before is not None and place.before.type == "COMPARE":
        if place.word != place.before:
            return "write `!=`" if place.word == ">" else None
        return f"there are no shifts: write the {'product' if place.word == '<' else 'quotient'}"
    if place.word.type == "COMPARE" and "PLUS" in place.kinds and "COMPARE" not in place.kinds:
        return "join comparisons by `&&`: `0 < acc && acc < 1`"
    return None


def operand(place: Place) -> str | None:
    before = place.before
    after = place.after
    if place.kinds == {"ASSIGN"} and before == "result" and after is not None and after.type in ("NAME", "LSQB"):
        name = place.word if place.word.type == "NAME" else "r"
        return f"write a result with its type and dims, such as `result {name}: f32[k]`"
    declares = after is not None and after.type == "COLON" and place.kinds == {"ASSIGN"}
    if declares and place.word.type == "NAME" and place.keyword in ("epilogue", "operand", "prologue"):
        return f"write `operand {place.word}: {place.rest_of_line(2) or '...'}`"
    if "OPERAND" in place.kinds and place.word.type == "NAME":
        return did_you_mean(place.word, ("operand",))
    if place.kinds == {"ASSIGN"} and place.word.type == "COLON" and len(place.braces) > 1:
        behind = place.words[place.at + 2] if place.at + 2 < len(place.words) else None
        if behind is not None and behind.type == "ASSIGN":
            return f"values have no types: write `{before} = {place.rest_of_line(3) or '...'}`"
        if after is not None and after.type != "ASSIGN":
            is_tensor = after in {*TENSOR_DTYPES, *habits.TYPES} or (behind is not None and behind.type == "LSQB")
            start = f"operand {before}:" if is_tensor else f"{before} ="
            return f"write `{start} {place.rest_of_line() or '...'}`"
    if place.word.type == "INT" and before == "," and place.keyword == "operand" and place.kinds == {"NAME"}:
        return "dims have names; leave out those along which the operand does not vary"
    if (place.kinds == {"LSQB"} or (before is not None and before.type == "LSQB")) and place.keyword == "operand":
        return "write an operand with its dims, such as `f32[k]`; a scalar has none: `f32[]`"
    return None


def assignment(place: Place) -> str | None:
    """A value that is assigned to nothing, or by `+=`."""
    word, before, after = place.word, place.before, place.after
    if place.kinds != {"ASSIGN"} or place.keyword not in ("epilogue", "operand") or before is None or after is None:
        return None
    if word == "(":
        return f"assign the value: `y = {before}(...)`"
    if word.type == "COMPARE" or (word == ":" and after.type == "ASSIGN"):
        return f"write `{before} = ...`"
    if word.type == "NAME" and after.type == "ASSIGN":
        if place.begins_line:  # the line before lacks a value
            return f"write `{before} = ...`"
        name = before if place.is_tensor(before) else word  # `y t = ...`, `float t = ...`
        return f"values have no types: write `{name} = {place.rest_of_line(2) or '...'}`"
    if before in ("return", "yield", "result"):
        return "assign the result to its tensor: `y = ...`"
    if after.type == "ASSIGN":
        if place.is_tensor(before):  # which an epilogue cannot read
            return f"there is no `{word}=`: `{before}` is assigned once, and values before it have other names"
        other = "t" if before != "t" else "u"
        value = f"{before} {word} {place.rest_of_line(2) or '...'}"
        return f"there is no `{word}=`: assign to another name, as in `{other} = {value}`"
    return None


def argument(place: Place) -> str | None:
    """Hints for an assignment inside an expression: an argument by its name, a comparison, a second name."""
    if not place.is_assigned_value:
        return None
    if place.at > 1 and (behind := place.words[place.at - 2]).type in wording.OPERATORS:
        return f"the expression before `{place.before}` ends in `{behind}`: a value is missing"
    if place.before == "approximate":
        return GELU_TANH
    if {"COMMA", "RPAR"} <= place.kinds:
        return "arguments have no names, and values are compared by `==`"
    return "one name is assigned, and values are compared by `==`"


def index(place: Place) -> str | None:
    """Hints for brackets and commas that other languages use."""
    word, before, after = place.word, place.before, place.after
    if before is None or after is None or not place.in_epilogue:
        return None
    if word.type == "LSQB" and before.type == "NAME" and place.kinds != {"COLON"}:  # of which a tensor's name lacks one
        return f"operands broadcast by the names of their dims: write just `{before}`"
    if place.separates_assignments:
        return "statements are not separated by commas"
    if word.type == "COMMA" and before.type == after.type == "INT":
        return f"a fraction has a point: `{before}.{after}`"
    return None
