"""Renders a body template to a whole source file: header, types, the PTX functions in use, the kernels."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2

from convgen.codegen import ptx
from convgen.codegen.loops import without_single_trips
from convgen.ir.plan import Launch, Plan
from convgen.ir.problem import ConvProblem
from convgen.resources import directory

_BLANK_RUN = re.compile(r"\n{3,}")
_INDENTED_DIRECTIVE = re.compile(r"^[ \t]+#", re.MULTILINE)


@cache
def environment() -> jinja2.Environment:
    """The jinja environment: an undefined name is an error, tags leave no blank lines."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(directory("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        auto_reload=False,  # a template is the same as long as a process lasts
    )
    env.filters["format_c"] = str.format
    env.filters["times"] = lambda factor: f" * {factor}" if factor != 1 else ""
    env.filters["plus"] = _plus
    env.filters["minus"] = lambda term: _plus(-term)
    env.filters["then"] = lambda first, second: [*first, *second]
    env.filters["chosen"] = lambda texts: [text for text, wanted in texts.items() if wanted]
    env.filters["lines_at"] = _lines_at
    env.globals["registers"] = _registers
    return env


def _plus(term: int) -> str:
    """C text that adds a number, or nothing."""
    return f" {'+' if term > 0 else '-'} {abs(term)}" if term else ""


def _registers(first: int, count: int) -> str:
    """So many operands of an asm statement, from number `first` on, as a vector of PTX."""
    return f"{{{', '.join(f'%{i}' for i in range(first, first + count))}}}"


def _lines_at(text: str, blanks: int) -> str:
    """Lines moved as one, so that the outermost have so many blanks before them; directives stay at the margin."""
    lines = text.strip("\n").split("\n")
    least = min((len(line) - len(line.lstrip()) for line in lines if line.strip() and line[0] != "#"), default=0)
    return "\n".join(line if line[:1] in ("", "#") else " " * blanks + line[least:] for line in lines)


def render(template: str, plan: Plan, **values: Any) -> str:
    """The whole source of a plan: `template` is the body, `values` are finished values for it; `problem` is the one
    that the kernel's layout is of."""
    env = environment()
    problem = getattr(plan.layout, "problem", plan.problem)
    body = env.get_template(template).render(plan=plan, problem=problem, **values)
    body = without_single_trips(tidy(f"{body.strip()}\n\n{plan.behind}"), _hardware(env))
    # a helper may call PTX functions, a PTX function calls nothing: one round closes the set
    helpers = _helpers_used(env, body, plan.problem)
    instructions = [ptx.render_function(env, name) for name in ptx.functions_used(body + helpers)]
    signatures = [text.partition("{")[0] for text in instructions]
    text = env.get_template("file.cu.j2").render(
        plan=plan,
        problem=plan.problem,
        spec=str(plan.problem).splitlines(),
        launches=_launches(plan),
        ptx=instructions,
        types=_types_used(env, "\n".join((body, helpers, *signatures))),
        helpers=helpers,
        body=body.strip(),
    )
    return tidy(text)


def _launches(plan: Plan) -> list[Launch]:
    """The distinct launches: slices launch the same kernels repeatedly."""
    entries = Counter(launch.entry for launch in plan.launches)
    return [launch for launch in plan.launches if entries[launch.entry] == 1]


def _called(text: str) -> set[str]:
    return set(re.findall(r"\b([a-z_][a-z0-9_]*)\s*[<(]", text))


def _helpers_used(env: jinja2.Environment, body: str, problem: ConvProblem) -> str:
    """Plain device functions in use, for values of the problem's type, and for results of 16 bits or less where they
    are `narrow`."""
    helpers = _helpers(env, problem.narrow, problem.number)
    wanted = _called(body)
    while True:
        kept = [helper for helper in helpers if helper.name in wanted]
        more = wanted.union(*(helper.calls for helper in kept))
        if more == wanted:
            return "\n\n".join(helper.text for helper in kept)
        wanted = more


@dataclass(frozen=True)
class _Helper:
    name: str
    text: str
    calls: frozenset[str]


@cache
def _helpers(env: jinja2.Environment, narrow: bool, number: str) -> tuple[_Helper, ...]:
    """The functions of templates/helpers.cuh.j2, one a block, separated by `//---`."""
    source = env.get_template("helpers.cuh.j2").render(narrow=narrow, number=number)
    blocks = [b.strip() for b in source.split("//---")]
    named = [(re.search(r"\b([a-z_][a-z0-9_]*)\s*\(", _code_of(b)), b) for b in blocks]
    return tuple(_Helper(m[1], b, frozenset(_called(b))) for m, b in named if m)


def _code_of(block: str) -> str:
    return "\n".join(line for line in block.splitlines() if not line.lstrip().startswith("//"))


@cache
def _hardware(env: jinja2.Environment) -> dict[str, int]:
    """The numbers of templates/types.cuh.j2."""
    lines = env.get_template("types.cuh.j2").render()
    return {name: int(value) for name, value in re.findall(r"^constexpr int (\w+) = (\d+);", lines, re.MULTILINE)}


def _types_used(env: jinja2.Environment, text: str) -> str:
    """Lines of templates/types.cuh.j2 (one type, or one fact about the hardware, each) whose name the text mentions."""
    lines = env.get_template("types.cuh.j2").render().splitlines()
    words = set(re.findall(r"\b[A-Za-z_]\w*\b", text)) | {"u16", "u32", "u64"}
    return "\n".join(
        line
        for line in lines
        if (m := re.match(r"(?:using|struct|constexpr int)(?: alignas\(\d+\))? (\w+)", line)) and m.group(1) in words
    )


def tidy(text: str) -> str:
    """No blanks at the ends of lines, no runs of blank lines, directives at the margin."""
    lines = "\n".join(line.rstrip(" \t") for line in text.split("\n"))
    text = _INDENTED_DIRECTIVE.sub("#", lines)
    return _BLANK_RUN.sub("\n\n", text).strip() + "\n"
