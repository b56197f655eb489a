"""The grammar as railroad diagrams: a page with one diagram a rule, drawn from grammar/conv.lark."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import lark
import railroad

_CSS = """
path{stroke-width:2;stroke:#7d8590;fill:none}text{font:13px ui-monospace,monospace;text-anchor:middle;fill:#7d8590}
a text{fill:#4493f8}rect{stroke-width:1.5;stroke:#7d8590;fill:none}.terminal rect{stroke:#3fb950}
"""
_REPEATED = {"*": railroad.ZeroOrMore, "+": railroad.OneOrMore, "?": railroad.Optional}


def page(grammar: str) -> tuple[str, dict[str, bytes]]:
    """Markdown, and the pictures beside it by file name."""
    words = {}
    rules = {}
    for item in _parsed(grammar).children:
        if isinstance(item, lark.Tree) and item.data in ("token", "rule"):
            name = str(item.children[0]).lstrip("?!")
            if item.data == "rule":
                rules[name] = item.children[-1]
            else:
                words[name] = item.children[-1]
    parts = [
        "# The grammar",
        "Drawn from `grammar/conv.lark`, which is the language's grammar, and nothing else. Words in round boxes are "
        "written as they are, but for `NAME`, a name, and `INT` and `FLOAT`, numbers; those in square boxes have a "
        "diagram of their own.",
    ]
    pictures = {}
    for name, tree in rules.items():
        made = io.StringIO()
        railroad.Diagram(_drawn(tree, words)).writeStandalone(made.write, _CSS)
        pictures[f"{name}.svg"] = made.getvalue().encode()
        parts += [f"## {name}", f"![{name}]({name}.svg)"]
    return "\n\n".join(parts) + "\n", pictures


def _parsed(grammar: str) -> lark.Tree:
    """The grammar's own tree, by lark's grammar of grammars."""
    text = (Path(lark.__file__).parent / "grammars" / "lark.lark").read_text(encoding="utf-8")
    return lark.Lark(text, parser="lalr").parse(grammar + "\n")


def _drawn(tree: Any, words: dict[str, Any]) -> railroad.DiagramItem:
    if isinstance(tree, lark.Token):
        return _word(str(tree), words)
    parts = [_drawn(child, words) for child in tree.children if child is not None and not _is_mark(tree, child)]
    match str(tree.data):
        case "expansions":
            return railroad.Choice(0, *parts)
        case "expansion":
            return railroad.Sequence(*parts)
        case "expr" if (operator := next((str(c) for c in tree.children[1:] if c), "")) in _REPEATED:
            return _REPEATED[operator](parts[0])
        case "maybe":
            return railroad.Optional(parts[0])
    return parts[0]


def _is_mark(tree: lark.Tree, child: Any) -> bool:
    """Whether a child is an operator or the alias of an expansion, not a part of what is drawn."""
    return isinstance(child, lark.Token) and child is not tree.children[0]


def _word(text: str, words: dict[str, Any]) -> railroad.DiagramItem:
    if text.startswith('"'):
        return railroad.Terminal(text.strip('"'))
    if text in words:
        literals = [str(t) for t in words[text].scan_values(lambda t: str(t).startswith('"'))]
        if literals:
            shown = [railroad.Terminal(literal.strip('"')) for literal in literals]
            return railroad.Choice(0, *shown) if len(shown) > 1 else shown[0]
        return railroad.Terminal(text)
    if text.isupper():  # declared: a word in some places, a name in others
        return railroad.Terminal(text.lower())
    return railroad.NonTerminal(text)
