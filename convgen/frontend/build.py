"""lark's tree to the syntax tree."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from lark import Token, v_args
from lark.visitors import Transformer_NonRecursive

from convgen.diagnostics import Report, Span, quote
from convgen.frontend import ast
from convgen.frontend.wording import GROUPS

#: Levels that an expression may nest, in nodes and in parentheses: whatever walks a tree may recurse.
MAX_NESTING = 100
#: Stands for the group of options that belong to none, which is reported once.
_LOST = "?"


def span_of(token: Token) -> Span:
    assert token.line and token.column and token.end_line and token.end_column
    return Span(token.line, token.column, token.end_line, token.end_column)


def name_of(token: Token) -> ast.Name:
    return ast.Name(str(token), span_of(token))


E = TypeVar("E", bound=ast.Expr)


@v_args(inline=True)
class Build(Transformer_NonRecursive):
    """Lark's tree to ours: one method a rule of the grammar."""

    def __init__(self, report: Report) -> None:
        super().__init__(visit_tokens=False)
        self._report = report

    def let(self, _, name, value):
        return ast.Let(name_of(name), value)

    def conv(self, keyword, name, *rest):
        *settings, brace = rest
        return ast.Conv(name_of(name), tuple(settings), span_of(keyword).to(span_of(brace)))

    def tensor_setting(self, keyword, tensor):
        return ast.TensorSetting(name_of(keyword), span_of(keyword).to(tensor.span), tensor)

    def tensor(self, name, dtype, *rest):
        *dims, bracket = rest
        return ast.Tensor(name_of(name), name_of(dtype), tuple(dims), span_of(name).to(span_of(bracket)))

    def dim(self, name, *rest):
        sliced = len(rest) > 1 and isinstance(rest[-2], Token)  # `of` and of how many
        extent = rest[0] if rest and not isinstance(rest[0], Token) else None
        span = span_of(name).to(rest[-1].span) if rest else span_of(name)
        return ast.Dim(name_of(name), extent, span, rest[-1] if sliced else None)

    def lowered_setting(self, keyword, name, dtype, *rest):
        *axes, bracket = rest
        span = span_of(keyword).to(span_of(bracket))
        return ast.LoweredSetting(name_of(keyword), span, name_of(name), name_of(dtype), tuple(axes))

    def matrix_axis(self, *factors):
        return tuple(name_of(f) for f in factors)

    def axes_setting(self, keyword, *rest):
        everywhere = rest[0] if isinstance(rest[0], ast.Amount) else None
        last = everywhere or rest[-1].amount
        return ast.AxesSetting(
            name_of(keyword), span_of(keyword).to(last.span), everywhere, () if everywhere else tuple(rest)
        )

    def pad_setting(self, keyword, *rest):
        *amounts, last = rest
        if not isinstance(last, Token):
            return self.axes_setting(keyword, *rest)
        setting, fill = self.axes_setting(keyword, *amounts), name_of(last)
        return replace(setting, span=setting.span.to(fill.span), fill=fill)

    def axis(self, name, amount):
        return ast.Axis(name_of(name), amount)

    def amount(self, value):
        return ast.Amount(value, None, value.span)

    def pair(self, left, low, high, right):
        return ast.Amount(low, high, span_of(left).to(span_of(right)))

    def groups_setting(self, keyword, value):
        return ast.GroupsSetting(name_of(keyword), span_of(keyword).to(value.span), value)

    def accumulate_setting(self, keyword, name):
        return ast.NameSetting(name_of(keyword), span_of(keyword).to(span_of(name)), name_of(name))

    target_setting = accumulate_setting

    def op_setting(self, keyword, *ops):
        return ast.OpSetting(name_of(keyword), span_of(keyword).to(span_of(ops[-1])), tuple(name_of(o) for o in ops))

    def dynamic_setting(self, keyword, *dims):
        span = span_of(keyword).to(span_of(dims[-1]))
        return ast.DynamicSetting(name_of(keyword), span, tuple(name_of(d) for d in dims))

    def prologue_setting(self, keyword, *rest):
        return self._pointwise(ast.PrologueSetting, keyword, *rest)

    def epilogue_setting(self, keyword, *rest):
        return self._pointwise(ast.EpilogueSetting, keyword, *rest)

    def _pointwise(self, kind, keyword, *rest):
        *statements, brace = rest
        operands = tuple(s for s in statements if isinstance(s, ast.Tensor))
        results = tuple(s.tensor for s in statements if isinstance(s, ast.Result))
        body = tuple(s for s in statements if isinstance(s, ast.Assignment))
        return kind(name_of(keyword), span_of(keyword).to(span_of(brace)), operands, results, body)

    def operand(self, tensor):
        return tensor

    def result(self, _, tensor):
        return ast.Result(tensor)

    def assignment(self, name, value):
        return ast.Assignment(name_of(name), value)

    def strategy_setting(self, keyword, name, options=None):
        entries, end = options or ((), span_of(name))
        return ast.StrategySetting(name_of(keyword), span_of(keyword).to(end), name_of(name), entries)

    def options(self, *rest):
        *entries, brace = rest
        found: list[ast.Option] = []
        group = ""
        for entry in entries:
            if isinstance(entry, ast.Option):
                group = self._compared(entry) or self._taken_for_value(entry)
                if not group:
                    found.append(entry)
                continue
            head, name, value = entry
            group = head or group
            span = span_of(name).to(value.span)
            if not group:
                option = f"{name} VALUE`, or a group such as `tile m=128"
                hint = f"write `{f'{name} m=128' if name in GROUPS else option} n=128`"
                self._report.error("E002", f"{quote(name)} belongs to no group of options", span, hint)
                group = _LOST
            elif group != _LOST:
                found.append(ast.Option(ast.Name(f"{group}.{name}", span_of(name)), value, span))
        return tuple(found), span_of(brace)

    def _taken_for_value(self, option: ast.Option) -> str:
        """The group whose name stands where an option's value should, `stages tile m=64`, which is reported; or ""."""
        value = option.value
        if not (isinstance(value, ast.Reference) and value.name in GROUPS):
            return ""
        hint = f"remove one `{value.name}`" if option.name.text == value.name else f"write `{option.name.text} VALUE`"
        self._report.error("E002", f"{quote(option.name.text)} has no value", option.span, hint)
        return value.name

    def _compared(self, option: ast.Option) -> str:
        """The group whose first option is written as a comparison, `tile m==64`, which is reported; or ""."""
        value = option.value
        if not (isinstance(value, ast.Binary) and value.op == "==" and isinstance(value.left, ast.Reference)):
            return ""
        number = value.right.text if isinstance(value.right, ast.Number) else "..."
        hint = f"write `{option.name.text} {value.left.name}={number}`"
        self._report.error("E002", f"`==` compares: {quote(value.left.name)} has no value", value.span, hint)
        return option.name.text

    def option(self, name, value):
        return ast.Option(name_of(name), value, span_of(name).to(value.span))

    def first_of_group(self, group, name, value):
        return group, name, value

    def next_of_group(self, name, value):
        return None, name, value

    # expressions

    def number(self, token):
        return ast.Number(span_of(token), str(token))

    def reference(self, token):
        return ast.Reference(span_of(token), str(token))

    def unary(self, op, operand):
        return self._nest(ast.Unary(span_of(op).to(operand.span), str(op), operand), operand)

    def binary(self, left, op, right):
        return self._nest(ast.Binary(left.span.to(right.span), str(op), left, right), left, right)

    def call(self, function, *rest):
        *arguments, bracket = rest
        span = span_of(function).to(span_of(bracket))
        return self._nest(ast.Call(span, name_of(function), tuple(arguments)), *arguments)

    def parenthesized(self, left, inner, right):
        outer = replace(inner, span=span_of(left).to(span_of(right)), parentheses=inner.parentheses + 1)
        return outer if isinstance(inner, ast.Faulty) else self._limit(outer)

    def _nest(self, outer: E, *inner: ast.Expr) -> E | ast.Faulty:
        if any(isinstance(e, ast.Faulty) for e in inner):
            return ast.Faulty(outer.span)
        return self._limit(
            replace(
                outer,
                depth=1 + max((e.depth for e in inner), default=0),
                parentheses=max((e.parentheses for e in inner), default=0),
            )
        )

    def _limit(self, e: E) -> E | ast.Faulty:
        if max(e.depth, e.parentheses) <= MAX_NESTING:
            return e
        self._report.error(
            "E004",
            f"an expression is at most {MAX_NESTING} levels deep; in a long sum, each term is one",
            e.span,
            "name a part of it: `let` for sizes, a separate assignment in an epilogue",
        )
        return ast.Faulty(e.span)
