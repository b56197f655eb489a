"""A spec as an editor has it: maybe half-written, asked about places in it.

Places are 1-based lines and columns, as in spans.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from lark import Token

from convgen import driver
from convgen.diagnostics import Diagnostic, RenamedWarning, Report, Span, SpecError
from convgen.editor import facts
from convgen.frontend import ast
from convgen.frontend.build import span_of
from convgen.frontend.dims import ROLE_DIMS, SETTING_OF
from convgen.frontend.operators import OPERATORS
from convgen.frontend.parser import parse
from convgen.frontend.sizes import Sizes
from convgen.frontend.tokens import END, tokens
from convgen.frontend.wording import AXES, SETTING_KINDS
from convgen.ir.dtypes import ACCUMULATORS, DTYPES
from convgen.ir.epilogue import FUNCTIONS
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.config import Option
from convgen.targets import TARGETS
from convgen.units import si

_ROLE_OF = {keyword: role for role, keyword in SETTING_OF.items()}


@dataclass(frozen=True)
class Completion:
    """A word that may be inserted at a position, and its meaning."""

    word: str
    meaning: str


class Document:
    """The text of a spec, and what follows from it."""

    def __init__(self, text: str, path: str = "<text>") -> None:
        self.text, self.path = text.removeprefix("\ufeff"), path
        self._words = tokens(self.text)

    @cached_property
    def tree(self) -> ast.Spec:
        """The syntax tree of the statements that parse."""
        return parse(self.text, Report())

    @cached_property
    def _loaded(self) -> tuple[list[driver.Compilation], tuple[Diagnostic, ...]]:
        """Every convolution and the warnings; or none, and every error."""
        found: list[driver.Compilation] = []
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                found = driver.load(driver.Spec(self.text, self.path))
                driver.check_served(found)
            except SpecError as e:
                return found, e.diagnostics
        outdated = [w.message for w in said if isinstance(w.message, RenamedWarning)]
        return found, tuple(Diagnostic("", str(w), w.span, severity="warning") for w in outdated)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The diagnostics of `convgen check`, and warnings about former names."""
        return self._loaded[1]

    def _problems(self, conv: ast.Conv | None) -> list[ConvProblem]:
        """The semantic errors of a block, if the file parses."""
        return [c.request.problem for c in self._loaded[0] if conv and c.request.conv == conv.name.text]

    # --- places ---

    def word_at(self, line: int, column: int) -> Token | None:
        """The word of letters that a place is in, or right behind."""
        for word in self._words:
            if word.line == line and (word.column or 0) <= column <= (word.end_column or 0) and word[:1].isidentifier():
                return word
        return None

    def _conv_at(self, line: int, column: int) -> ast.Conv | None:
        at = (line, column)
        return next((c for c in self.tree.convs if _begin(c.span) <= at <= _end(c.span)), None)

    # --- meanings ---

    def hover(self, line: int, column: int) -> tuple[str, Span] | None:
        """The meaning of a word, as Markdown, and its position."""
        word = self.word_at(line, column)
        if word is None:
            return None
        span = span_of(word)
        text = next(self._meanings(word, self._conv_at(line, column)), None)
        return (text, span) if text else None

    def _meanings(self, word: Token, conv: ast.Conv | None) -> Iterator[str]:
        """The possible meanings of a word, the likeliest first."""
        before = self._before(word)
        context = _Context(self._words, before)
        problem = next(iter(self._problems(conv)), None)
        if before is not None and before.type == "CONV" and problem:
            yield _block(problem)
        if context.options:
            yield from (
                _option(o) for o in self._options(context.strategy) if o.name in (word, f"{context.group}.{word}")
            )
        if before is not None and before.type == "STRATEGY":
            yield from (s.summary for name, s in strategies.STRATEGIES.items() if name == word)
        if before is not None and before.type == "TARGET" and word in TARGETS:
            yield f"compute capability {'.'.join(map(str, TARGETS[word].capability))}, such as {TARGETS[word].gpu.name}"
        if before is not None and before.type == "COLON" and word in DTYPES:
            yield f"{DTYPES[word].numpy}, {DTYPES[word].bytes} bytes an element"
        if self._is_dim(word, context) and word in facts.DIMS:
            yield _dim(word, problem)
        if word.type.lower() in facts.SOFT_KEYWORDS:
            yield facts.SOFT_KEYWORDS[word.type.lower()]
        yield from self._names(word, conv, context)
        if word.type.lower() == word and word in facts.KEYWORDS:
            yield facts.KEYWORDS[word]

    def _is_dim(self, word: Token, context: _Context) -> bool:
        """Whether a word names a dim of a tensor, or an axis; else it is part of a size there."""
        after = self._words[self._index_of(word) + 1]
        names = context.in_dims and after.type in ("ASSIGN", "COMMA", "RSQB", "STAR") and not context.in_size
        return names or (context.in_axes and after.type == "ASSIGN")

    def _names(self, word: Token, conv: ast.Conv | None, context: _Context) -> Iterator[str]:
        if context.in_epilogue and word in FUNCTIONS:
            f = FUNCTIONS[word]
            yield f"`{f.name}({', '.join(f.parameters)})`: {f.doc}"
        if context.in_epilogue and word == "acc":
            yield facts.ACC
        for tensor in () if context.in_dims or context.in_sizes else _tensors(conv):
            if tensor.name.text == word:
                role = next((r for r, s in _stated(conv).items() if s.tensor is tensor), str(word))
                for problem in self._problems(conv):  # an operand may be of one alone
                    with suppress(KeyError):
                        yield _tensor(problem, role, str(word))
        if any(let.name.text == word for let in self.tree.lets):
            value = Sizes(self.tree, {}, Report()).evaluate(ast.Reference(span_of(word), str(word)))
            yield f"`{word} = {value}`" if value is not None else f"`{word}`: a size"

    def _before(self, word: Token) -> Token | None:
        at = self._index_of(word)
        return self._words[at - 1] if at else None

    def _index_of(self, word: Token) -> int:
        return next(i for i, other in enumerate(self._words) if other is word)

    def _options(self, strategy: str) -> tuple[Option, ...]:
        return tuple(strategies.STRATEGIES[strategy].options) if strategy in strategies.STRATEGIES else ()

    # --- definitions ---

    def definition(self, line: int, column: int) -> Span | None:
        """Where the name at a place is declared."""
        word = self.word_at(line, column)
        if word is None:
            return None
        conv = self._conv_at(line, column)
        names = [t.name for t in _tensors(conv)]
        names += [a.name for part in (conv.all(ast.PointwiseSetting) if conv else ()) for a in part.body]
        context = _Context(self._words, self._before(word))
        is_dim = self._is_dim(word, context)
        is_stated = is_dim and self._words[self._index_of(word) + 1].type == "ASSIGN"
        own = [] if context.in_dims or context.in_sizes else [n.span for n in names if n.text == word]
        lets = [] if is_stated else [let.name.span for let in self.tree.lets if let.name.text == word]
        stated = [d.name.span for t in _tensors(conv) for d in t.dims if d.name.text == word and d.extent]
        return next(iter([*own, *lets, *(stated if is_dim else [])]), None)

    # --- completions ---

    def completions(self, line: int, column: int) -> list[Completion]:
        """The words that may be inserted at a position; none in a comment."""
        if "#" in "".join(self.text.split("\n")[line - 1 : line])[: column - 1]:
            return []
        ahead = [w for w in self._words if w.type != END and _begin(span_of(w)) < (line, column)]
        if ahead and _end(span_of(ahead[-1])) >= (line, column) and ahead[-1][:1].isidentifier():
            ahead.pop()  # the word that is being written
        before = ahead[-1] if ahead else None
        context = _Context(ahead, before)
        found = self._after(before, context)
        if found is None:
            found = self._within(context, self._conv_at(line, column))
        return [Completion(str(word), meaning) for word, meaning in found.items()]

    def _after(self, before: Token | None, context: _Context) -> dict[str, str] | None:
        """The words that may follow a word; None if the block decides."""
        match before.type if before else "":
            case "STRATEGY":
                return {"auto": "convgen chooses"} | {n: s.summary for n, s in strategies.STRATEGIES.items()}
            case "TARGET":
                return {name: f"such as {target.gpu.name}" for name, target in TARGETS.items()}
            case "OP":
                return {
                    name: f"computes {row.writes} from {' and '.join(row.reads)}" for name, row in OPERATORS.items()
                }
            case "ACCUMULATE":
                return {name: DTYPES[name].numpy for name in ACCUMULATORS}
            case "COLON":
                return {name: row.numpy for name, row in DTYPES.items()}
            case "LET" | "CONV":
                return {}
            case "STRIDE" | "PAD" | "DILATION" | "GROUPS":
                return self._sizes
            case "ASSIGN" if not (context.in_epilogue or context.options):
                return self._sizes
        for option in self._options(context.strategy) if context.options else ():
            if before == option.name and option.choices:
                return {str(choice): option.doc for choice in option.choices if isinstance(choice, str)}
        return None

    @property
    def _sizes(self) -> dict[str, str]:
        return {let.name.text: "a size" for let in self.tree.lets}

    def _within(self, context: _Context, conv: ast.Conv | None) -> dict[str, str]:
        """The words that may begin a statement of a block, or be part of an expression."""
        if context.in_dims:
            roles = [_ROLE_OF[context.setting]] if context.setting in _ROLE_OF else list(ROLE_DIMS)
            return {d: facts.DIMS[d] for role in roles for d in ROLE_DIMS[role]}
        if context.options:
            return {
                o.name.replace(".", " ") + ("=" if "." in o.name else ""): o.doc
                for o in self._options(context.strategy)
            }
        if context.in_epilogue:
            functions = {f.name: f.doc for f in FUNCTIONS.values()}
            names = {t.name.text: "a tensor" for t in _tensors(conv)}
            return {
                "acc": facts.ACC,
                "result": facts.RESULT,
                "operand": facts.KEYWORDS["operand"],
                **names,
                **functions,
            }
        if context.depth:
            settings = {w: m for w, m in facts.KEYWORDS.items() if w not in ("let", "conv", "operand")}
            return {**settings, "prologue": facts.PROLOGUE, "dynamic": facts.DYNAMIC, **self._sizes}
        return {w: facts.KEYWORDS[w] for w in ("let", "conv")}


class _Context:
    """The braces and brackets that are open after a word, and what they belong to."""

    def __init__(self, words: list[Token], last: Token | None) -> None:
        self.depth = 0
        self.in_dims = self.in_epilogue = self.options = self.in_size = False
        self.strategy = self.setting = self.group = ""
        for before, word in zip([None, *words], words, strict=False):
            if last is None:
                break
            self._track(before, word)
            if word is last:
                break

    def _track(self, before: Token | None, word: Token) -> None:
        match word.type:
            case "LBRACE":
                self.depth += 1
                self.in_epilogue = before is not None and before.type in ("PROLOGUE", "EPILOGUE")
                self.options = bool(self.strategy) and before == self.strategy
            case "RBRACE":
                self.depth -= 1
                self.in_epilogue = self.options = False
            case "LSQB" | "RSQB" | "COMMA":
                self.in_dims = word.type == "LSQB" or (word.type == "COMMA" and self.in_dims)
                self.in_size = False
            case "ASSIGN":
                self.in_size = self.in_dims
            case "NAME" if before is not None and before.type == "STRATEGY":
                self.strategy = str(word)
            case "NAME" if self.options and before is not None and before.type != "ASSIGN":
                self.group = str(word) if before.type != "NAME" else self.group
            case _ if word.type in SETTING_KINDS or word.type == "OPERAND":
                self.setting = str(word)

    @property
    def in_axes(self) -> bool:
        """Whether amounts by axis stand here."""
        return self.setting in AXES and self.depth == 1 and not self.in_dims

    @property
    def in_sizes(self) -> bool:
        """Whether numbers and lets do."""
        return (self.in_axes or self.setting == "groups") and self.depth == 1


def _begin(span: Span) -> tuple[int, int]:
    return span.line, span.column


def _end(span: Span) -> tuple[int, int]:
    return span.end_line, span.end_column


def _stated(conv: ast.Conv | None) -> dict[str, ast.TensorSetting]:
    """The input, filter and output of a block by role."""
    return {_ROLE_OF[s.keyword.text]: s for s in (conv.all(ast.TensorSetting) if conv else ())}


def _tensors(conv: ast.Conv | None) -> list[ast.Tensor]:
    """The tensors and operands of a block."""
    if conv is None:
        return []
    own = (t for part in conv.all(ast.PointwiseSetting) for t in (*part.operands, *part.results))
    return [*(s.tensor for s in conv.all(ast.TensorSetting)), *own]


# --- texts ---


def _block(problem: ConvProblem) -> str:
    """A convolution in numbers, and its formulas."""
    from convgen.explain import formulas

    rows = "\n".join(f"{f.name} = {f.after}" for f in formulas(problem))
    facts_ = f"{si(2 * problem.macs, 'FLOP')}, {si(problem.min_bytes, 'B')} at least"
    return f"**{problem.name}**: {problem.op}, {facts_}\n\n```\n{rows}\n```"


def _dim(name: str, problem: ConvProblem | None) -> str:
    text = f"`{name}`: {facts.DIMS[name]}"
    if problem is None:
        return text
    spatial = problem.spatial
    extents = {"n": problem.n, "c": problem.c, "k": problem.k}
    for dims, values in (
        (spatial.input, problem.input),
        (spatial.filter, problem.filter),
        (spatial.output, problem.output),
    ):
        extents |= dict(zip(dims, values, strict=True))
    return f"{text}, {extents[name]}" if name in extents else text


def _tensor(problem: ConvProblem, role: str, name: str) -> str:
    tensor = problem.tensor(role)
    dims = ", ".join(f"{d}={e}" for d, e in zip(tensor.dims, tensor.shape, strict=True))
    return f"`{name}: {tensor.dtype}[{dims}]`, {si(tensor.bytes, 'B')}"


def _option(option: Option) -> str:
    return f"`{option.name}`: {option.doc}; {option.legal}"
