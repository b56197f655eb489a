"""Mutants of what a kernel computes: bounds, constants, addresses, arguments, conditions, and the PTX functions' text.

As operators of mutate.py, whose own change how threads and asynchronous operations wait for each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from kernel_text import Change, Source, Span, one

#: An operator of two operands, with the spaces that the generator puts around it, and another one.
OTHER_OPERATOR = {"+": "-", "-": "+", "*": "+", "/": "%", "%": "/", "&": "|", "^": "&", "<<": ">>", ">>": "<<"}
#: Functions, and what one might have taken for them.
OTHER_FUNCTION = {
    r"max_nan_f32": "fmaxf",
    r"min_nan_f32": "fminf",
    r"\bmax\b": "min",
    r"\bmin\b": "max",
    r"(?<=cvt_)f16(?=x2_f32|_f32)": "bf16",
    r"(?<=cvt_)bf16(?=x2_f32|_f32)": "f16",
    r"(?<=cvt_f32_)f16": "bf16",
    r"(?<=cvt_f32_)bf16": "f16",
    r"(?<=matrix_x[124])(?=\()": "_trans",
    r"(?<=matrix_x[124])_trans": "",
    r"bulk_wait_group(?=<)": "bulk_wait_group_read",
    r"mbarrier_arrive_expect_tx\((\w+), [^()]*\)": r"mbarrier_arrive(\1)",
    r"__any_sync": "__all_sync",
    r"accumulator_row": "accumulator_column",
    r"accumulator_column": "accumulator_row",
}
#: Functions whose arguments may change places.
SYMMETRIC = {"min", "max", "max_nan_f32", "min_nan_f32"}
#: Calls that other classes leave out, or that only save time.
_ELSEWHERE = (
    r"mbarrier_|fence_|wgmma_(?:fence|commit|wait)|_group|sync|cluster_(?:arrive|wait)|griddep|prefetch|setmaxnreg"
)
#: An assignment or a call, but no declaration.
_ASSIGNS = (
    r"(?:if \([^{}]*?\) )?(?:\+\+|--)?[\w:.*]+(?:<[^<>]*>)?(?:\[[^\]]*\]|\([^{};]*\))*"
    r"(?: [+*^|&/%-]?= [^{};]*|\+\+|--)?;"
)
_WORDS = r"(?:for|while|return|continue|break|const|constexpr)\b"


def loop(source: Source) -> Iterator[Change]:
    """A loop that turns once more, once less, or begins one later."""
    for header in source.find(r"\bfor \("):
        end = source.closing(header.end() - 1)
        parts = [part.strip() for part in source.code[header.end() : end].split(";")]
        if len(parts) != 3:
            continue
        begin = header.end()
        first = re.search(r"= ([^,;]+)", source.code[begin:end].split(";")[0])
        if first:
            span = Span(begin + first.start(1), begin + first.end(1))
            yield one("begins later", span, f"{first[1]} + 1")
        place = source.code.index(";", begin) + 1
        bound = re.match(r"(\s*[^;<>=!]+?) (<=?|>=?) ([^;]+)", source.code[place:end])
        if bound:
            place += bound.start(2)
            turned = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}[bound[2]]
            yield one("turns once more or less", Span(place, place + len(bound[2])), turned)
            place += len(bound[2]) + 1
            yield one("another bound", Span(place, place + len(bound[3])), f"{bound[3]} - 1")


def constant(source: Source) -> Iterator[Change]:
    """A constant of the kernel: one more, 16 bytes fewer, or twice as much."""
    for found in re.finditer(r"(?m)^ *(?:static )?constexpr (\w+) (\w+) = ([^;{]+);", source.code):
        more = "- 16" if found[1] == "u32" and not found[3].isdigit() else "+ 1"  # bytes, mostly
        yield one(f"{found[2]} {more}", Span(*found.span(3)), f"{found[3]} {more}")
        yield one(f"2 * {found[2]}", Span(*found.span(3)), f"2 * ({found[3]})")


def literal(source: Source) -> Iterator[Change]:
    """A number in the code: a stride, a lane, a shift, a descriptor's field."""
    for found in source.find(r"(?<![\w.])(\d+)(u?)(?![\w.])"):
        if source.code[: found.start()].endswith(("int i = ", "bar_sync<")):
            continue  # as other classes have it
        yield one(f"{found[1]} + 1", Span(*found.span(1)), str(int(found[1]) + 1))


def arithmetic(source: Source) -> Iterator[Change]:
    """Another operator."""
    for found in source.find(r"(?<=[\w)\]]) (\+|-|\*|/|%|&|\^|<<|>>) (?=[\w(~-])"):
        other = OTHER_OPERATOR[found[1]]
        yield one(f"{other} for {found[1]}", Span(*found.span(1)), other)


def argument(source: Source) -> Iterator[Change]:
    """Two neighboring arguments of a call change places."""
    for call in source.calls(r"\b(?!if\b|for\b|while\b)[a-z_]\w*(?=[<(])"):
        if call.name in SYMMETRIC:
            continue
        for one_, next_ in zip(call.arguments, call.arguments[1:], strict=False):
            if source[one_] != source[next_]:
                edits = ((one_, source[next_]), (next_, source[one_]))
                yield Change(f"{call.name}'s arguments change places", edits)
        values = [v.strip() for v in source[call.template].split(",")]
        if len({*values}) > 1:
            yield one(f"{call.name}'s numbers change places", call.template, ", ".join(reversed(values)))


def statement(source: Source) -> Iterator[Change]:
    """An assignment or a call that is not there; what synchronizes is left to others."""
    for block in source.blocks:
        for span in block:
            text = source[span]
            if re.fullmatch(_ASSIGNS, text) and not re.match(_WORDS, text) and not re.search(_ELSEWHERE, text):
                yield one("not there", span, "(void)0;")


def condition(source: Source) -> Iterator[Change]:
    """A condition that is turned round, or has a term less."""
    for found in source.find(r"\bif (?:constexpr )?\("):
        span = Span(found.end(), source.closing(found.end() - 1))
        yield one("turned round", span, f"!({source[span]})")
    for found in source.find(r"[\w)\]] (&&|\|\|) "):
        yield one("another connective", Span(*found.span(1)), "||" if found[1] == "&&" else "&&")
        if found[1] == "&&":
            yield one("without what follows", Span(*found.span(1)), "|| false &&")


def function(source: Source) -> Iterator[Change]:
    """A relative of the function that is due."""
    for pattern, other in OTHER_FUNCTION.items():
        for found in source.find(pattern):
            now = found.expand(other)
            yield one(f"{now or 'none'} for {found[0] or 'none'}", Span(*found.span()), now)


def compiled_for(source: Source) -> Iterator[Change]:
    """Launches that the kernel is not compiled for."""
    for found in re.finditer(r"__(launch_bounds|cluster_dims)__\(([^(),]*)", source.code):
        what = {"launch_bounds": "half of the threads", "cluster_dims": "half of the blocks"}[found[1]]
        yield one(what, Span(*found.span(2)), f"({found[2]}) / 2")
    for found in re.finditer(r"__cluster_dims__\([^()]*\) ", source.code):
        yield one("no cluster", Span(*found.span()), "")


def instruction(source: Source) -> Iterator[Change]:
    """A PTX function that the compiler may move or leave out, or with operands in another order."""
    section = re.search(r"(?s)#ifndef CONVGEN_EMULATE\n.*?\n#endif", source.text)
    if not section:
        return
    for found in re.finditer(r'asm (volatile)|(: "memory")|(%0)(?=[^;]*(%1))', section[0]):
        spans = [Span(section.start() + found.start(i), section.start() + found.end(i)) for i in range(1, 5)]
        if found[1]:
            yield one("not volatile", spans[0], "")
        elif found[2]:
            yield one("no clobber", spans[1], "")
        else:
            yield Change("operands change places", ((spans[2], "%1"), (spans[3], "%0")))


OPERATORS: dict[str, Callable[[Source], Iterator[Change]]] = {
    "loop": loop,
    "constant": constant,
    "literal": literal,
    "arithmetic": arithmetic,
    "argument": argument,
    "statement": statement,
    "condition": condition,
    "function": function,
    "compiled for": compiled_for,
    "instruction": instruction,
}
