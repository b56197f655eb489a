"""Loops of one trip become their bodies.

A template writes the loop that some configuration needs.  Where the numbers of another leave it one trip, a reader
should not have to find out: `for (int i = 0; i < rows / 64; ++i) multiply(acc[i]);` is `multiply(acc[0]);` where rows
are 64.  This works on text as templates lay it out, two blanks for each level; what it does not know remains a loop.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from convgen.codegen.substitute import substitute

_LOOP = re.compile(
    r" *for \((?:int|u32) (?P<name>\w+) = (?P<first>[^;]+); (?P=name) < (?P<end>[^;]+); "
    r"(?:\+\+(?P=name)|(?P=name) \+= (?P<step>[^,()]+))(?P<also>(?:, [^,()]+)*)\) (?P<rest>.+)"
)
_CONSTANT = re.compile(r" *(?:static )?constexpr (?:int|u16|u32) (\w+) = ([^;{]+);")
_DECLARATION = re.compile(
    r"(?:const |static |constexpr )*(?!(?:return|else|using|case|for|if|while|switch)\b)[A-Za-z_][\w:]*"
    r"(?:<[\w, ]+>)?(?: long)?[ *&]+\(?&?(?P<name>\w+)\)?(?=[\[ ;={,:])"
)
_VARIABLE = re.compile(r"(?<!constexpr )\b(?:int|u16|u32|u64|long|bool|float|auto)\b[ *&(]+(\w+)")
#: How many lines are remembered: a source is read several times, and sources share most of them.
_LINES = 1 << 14
_ARITHMETIC = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip


def without_single_trips(text: str, known: Mapping[str, int] | None = None) -> str:
    """A source without loops to which constants leave one trip; some are `known` besides those that it defines."""
    known = dict(known or {})
    regions = re.split(r"(?<=\n\}\n)|(?<=\n\};\n)", text)  # of a function, or a struct, and what is before it
    made = ["\n".join(_Region(region.split("\n"), known).unrolled()) for region in regions]
    inside = "".join(_without_unused(new, old, " +") for new, old in zip(made, regions, strict=True))
    return _without_unused(inside, text, "")


def _without_unused(text: str, before: str, indentation: str) -> str:
    """A source without the constants, of an indentation, that had uses before."""
    had, constant = _words(before), re.compile(rf"{indentation}(?:static )?constexpr \w+ (\w+) =")
    while True:
        words = _words(text)
        lines = text.split("\n")
        kept = [line for line in lines if not (m := constant.match(line)) or words[m[1]] > 1 or had[m[1]] == 1]
        if len(kept) == len(lines):
            return text
        text = "\n".join(kept)


def _words(text: str) -> Counter[str]:
    """How often names occur outside comments and strings."""
    return Counter(chain.from_iterable(map(_words_of, text.split("\n"))))


@lru_cache(_LINES)
def _words_of(line: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", re.sub(r"\".*?\"", "", _code(line))))


@dataclass(frozen=True)
class _Loop:
    """A loop from line `start` on, to before line `end`: its header, with its body's lines."""

    start: int
    end: int
    header: re.Match[str]
    body: list[str]

    @property
    def name(self) -> str:
        return self.header["name"]


class _Region:
    """A function or a struct, with what stands before it; `known` are constants of the whole source."""

    def __init__(self, lines: list[str], known: dict[str, int]) -> None:
        self._lines = lines
        self._known = known
        self._local: list[tuple[int, str, int]] = []  # constants with their indentation
        self._variables = {name for line in lines for name in _VARIABLE.findall(_code(line))}

    def unrolled(self) -> list[str]:
        at = 0
        while at < len(self._lines):
            self._read_constant(self._lines[at])
            loop = self._loop(at)
            first = self._only_value(loop) if loop else None
            body = self._body(loop, first) if loop and first is not None else None
            if loop is None or body is None:
                at += 1
                continue
            at -= self._lines[at - 1].startswith("#pragma unroll")
            self._lines[at : loop.end] = body
        return self._lines

    # ---- numbers -------------------------------------------------------------------------------

    def _read_constant(self, line: str) -> None:
        code = _code(line)
        if code and self._local:
            self._local = [entry for entry in self._local if entry[0] <= _indentation(line)]
        if "constexpr" in code and (found := _CONSTANT.match(code)) and (value := self._value(found[2])) is not None:
            if _indentation(line):
                self._local.append((_indentation(line), found[1], value))
            else:
                self._known[found[1]] = value

    def _value(self, text: str) -> int | None:
        if text.isdecimal():
            return int(text)
        names = {name: value for name, value in self._known.items() if name not in self._variables}
        names |= {name: value for _, name, value in self._local}
        try:
            return _evaluated(ast.parse(text.strip().replace("/", "//"), mode="eval").body, names)
        except (SyntaxError, LookupError, ZeroDivisionError):
            return None

    def _only_value(self, loop: _Loop) -> int | None:
        """The value of a loop's variable, if it takes only one."""
        first, end, step = (self._value(loop.header[part] or "1") for part in ("first", "end", "step"))
        if first is None or end is None or step is None or not 0 <= first < end <= first + step:
            return None
        return first

    # ---- text ----------------------------------------------------------------------------------

    def _loop(self, at: int) -> _Loop | None:
        header = _LOOP.fullmatch(self._lines[at]) if "for (" in self._lines[at] else None
        if header is None:
            return None
        before = next((code for code in map(_code, reversed(self._lines[:at])) if code), "{")
        if before[-1] not in "{};:":  # the whole of another loop, or of a condition
            return None
        indentation, rest = _indentation(self._lines[at]), _code(header["rest"])
        if rest == "{":
            closes = " " * indentation + "}"
            end = next((i for i in range(at, len(self._lines)) if self._lines[i] == closes), None)
            if end is None:
                return None
            comment = header["rest"][1:].strip()
            body = [" " * indentation + comment] * bool(comment)
            return _Loop(at, end + 1, header, body + [_dedented(line) for line in self._lines[at + 1 : end]])
        if not rest.endswith(";"):
            return None
        return _Loop(at, at + 1, header, [" " * indentation + header["rest"]])

    def _body(self, loop: _Loop, value: int) -> list[str] | None:
        """The lines that a loop becomes; None where it must stay."""
        text = "\n".join(loop.body)
        if re.search(rf"(\+\+|--){loop.name}\b|\b{loop.name} ([-+*/%&|^]|<<|>>)?= |\b(int|u32) {loop.name}\b", text):
            return None
        if any(_leaves(loop.body, i) for i in range(len(loop.body))) and not self._is_last_of_a_loop(loop):
            return None
        lines = substitute(text, loop.name, value).split("\n")
        blanks = " " * _indentation(self._lines[loop.start])
        lines += [f"{blanks}{statement};" for statement in loop.header["also"].split(", ") if statement]
        if not self._collides(loop):
            return lines
        return [f"{blanks}{{", *(f"  {line}" if line and line[0] != "#" else line for line in lines), f"{blanks}}}"]

    def _is_last_of_a_loop(self, loop: _Loop) -> bool:
        """Whether `continue` says the same without the loop: another one ends with it."""
        if loop.header["also"] or any(re.search(r"\bbreak\b", _code(line)) for line in loop.body):
            return False
        start, end = self._block(loop)
        return _code(self._lines[start]).lstrip().startswith("for (") and loop.end == end

    def _collides(self, loop: _Loop) -> bool:
        """Whether a name that the body declares means something else around the loop."""
        level = _indentation(self._lines[loop.start])
        names = {name for line in loop.body if _indentation(line) == level for name in _declared(line)}
        start, end = self._block(loop)
        return bool(names & _words("\n".join([*self._lines[start : loop.start], *self._lines[loop.end : end]])).keys())

    def _block(self, loop: _Loop) -> tuple[int, int]:
        """The line, or a signature's first, that opens the block around a loop, and the line that closes it."""
        indentation = _indentation(self._lines[loop.start])

        def inside(at: int) -> bool:
            return not _code(self._lines[at]) or _indentation(self._lines[at]) >= indentation

        start, end = loop.start, loop.end
        while start and inside(start):
            start -= 1
        while end < len(self._lines) and inside(end):
            end += 1
        while start and self._lines[start].lstrip().startswith(")"):  # a signature of several lines
            start -= 1
            while start and _indentation(self._lines[start]) >= indentation:
                start -= 1
        return start, end


def _declared(line: str) -> list[str]:
    """Names that a line declares, and perhaps some others that follow commas."""
    found = _DECLARATION.match(_code(line).lstrip())
    return [found["name"], *re.findall(r", [*&]*(\w+)(?=[ =\[,;])", line)] if found else []


@lru_cache(_LINES)
def _code(line: str) -> str:
    """A line without its comment; nothing of a directive."""
    return "" if line.startswith("#") else re.sub(r"\s*//.*", "", line).rstrip()


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _dedented(line: str) -> str:
    return line.removeprefix("  ")


def _leaves(body: list[str], at: int) -> bool:
    """Whether a line leaves the loop whose body it stands in, rather than one in there."""
    line, own = _code(body[at]), _indentation(body[0])
    if not re.search(r"\b(break|continue)\b", line) or re.search(r"\b(for|while|switch) \(", line):
        return False
    level = _indentation(line)
    for before in reversed([code for code in map(_code, body[:at]) if code]):
        if _indentation(before) < level:
            level = _indentation(before)
            if re.match(r" *(for|while|switch) \(", before):
                return False
    return level >= own


def _evaluated(tree: ast.expr, names: Mapping[str, int]) -> int:
    """The value of arithmetic on constants.  Raises LookupError where it is more than that."""
    match tree:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name():
            return names[tree.id]
        case ast.BinOp():
            return _ARITHMETIC[type(tree.op)](_evaluated(tree.left, names), _evaluated(tree.right, names))
    raise LookupError
