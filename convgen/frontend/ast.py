"""The syntax tree: what a .conv file says and where, before it is given a meaning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from convgen.diagnostics import Span

#: Among lost names: one that is unknown, so that it may be any.
ANY = "*"


@dataclass(frozen=True)
class Name:
    text: str
    span: Span


# --- expressions: of sizes and of epilogues ---


@dataclass(frozen=True)
class Expr:
    """Base of the expressions.  `depth` counts nested nodes, `parentheses` nested pairs of them."""

    span: Span
    depth: int = field(default=1, kw_only=True)
    parentheses: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Number(Expr):
    text: str

    @property
    def is_whole(self) -> bool:
        return self.text.isdigit()


@dataclass(frozen=True)
class Reference(Expr):
    name: str


@dataclass(frozen=True)
class Unary(Expr):
    op: str
    operand: Expr


@dataclass(frozen=True)
class Binary(Expr):
    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Call(Expr):
    function: Name
    arguments: tuple[Expr, ...]


@dataclass(frozen=True)
class Faulty(Expr):
    """Stands for an expression that has been reported already."""


# --- settings of a conv block ---


@dataclass(frozen=True)
class Dim:
    """`pitch`: of how many channels these are a slice."""

    name: Name
    extent: Expr | None
    span: Span
    pitch: Expr | None = None


@dataclass(frozen=True)
class Tensor:
    """`sure`: its dims have no error, so that it has no others."""

    name: Name
    dtype: Name
    dims: tuple[Dim, ...]
    span: Span
    sure: bool = True

    def dim(self, name: str) -> Dim | None:
        return next((d for d in self.dims if d.name.text == name), None)


@dataclass(frozen=True)
class Setting:
    """Base of the settings; `span` covers the keyword too."""

    keyword: Name
    span: Span


@dataclass(frozen=True)
class TensorSetting(Setting):
    tensor: Tensor


@dataclass(frozen=True)
class LoweredSetting(Setting):
    """Each axis of the matrix is a product of dims; an empty product is the axis `1`."""

    name: Name
    dtype: Name
    axes: tuple[tuple[Name, ...], ...]


@dataclass(frozen=True)
class Amount:
    """One value, or (low, high)."""

    low: Expr
    high: Expr | None
    span: Span


@dataclass(frozen=True)
class Axis:
    name: Name
    amount: Amount


@dataclass(frozen=True)
class AxesSetting(Setting):
    """stride, pad, dilation: one amount for all axes, or amounts by axis; `fill` is what padding is made of."""

    everywhere: Amount | None
    axes: tuple[Axis, ...]
    fill: Name | None = None


@dataclass(frozen=True)
class GroupsSetting(Setting):
    value: Expr


@dataclass(frozen=True)
class NameSetting(Setting):
    """accumulate, target."""

    name: Name


@dataclass(frozen=True)
class OpSetting(Setting):
    ops: tuple[Name, ...]


@dataclass(frozen=True)
class DynamicSetting(Setting):
    dims: tuple[Name, ...]


@dataclass(frozen=True)
class Assignment:
    name: Name
    value: Expr

    @property
    def span(self) -> Span:
        return self.name.span.to(self.value.span)


@dataclass(frozen=True)
class Result:
    """The declaration of a further result."""

    tensor: Tensor


@dataclass(frozen=True)
class PointwiseSetting(Setting):
    """Base of prologue and epilogue.  `lost` has the names in statements whose text has errors; it is None where none
    has."""

    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    body: tuple[Assignment, ...]
    lost: frozenset[str] | None = None


@dataclass(frozen=True)
class PrologueSetting(PointwiseSetting):
    """It declares no results."""


@dataclass(frozen=True)
class EpilogueSetting(PointwiseSetting):
    pass


@dataclass(frozen=True)
class Option:
    """An option of a strategy by its full name: stages, tile.m."""

    name: Name
    value: Expr
    span: Span


@dataclass(frozen=True)
class StrategySetting(Setting):
    name: Name
    options: tuple[Option, ...]


# --- the file ---


@dataclass(frozen=True)
class Let:
    name: Name
    value: Expr

    @property
    def span(self) -> Span:
        return self.name.span.to(self.value.span)


S = TypeVar("S", bound=Setting)


@dataclass(frozen=True)
class Conv:
    """`lost` has the keywords of settings that are there, or may be, but whose text has errors (`conv`: the header's):
    not among the settings, or mended.  `names` has the names in those that are not."""

    name: Name
    settings: tuple[Setting, ...]
    span: Span
    lost: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()

    def all(self, kind: type[S], *keywords: str) -> Iterator[S]:
        """The settings of a kind, of given keywords where some are given."""
        return (s for s in self.settings if isinstance(s, kind) and (not keywords or s.keyword.text in keywords))

    def first(self, kind: type[S], *keywords: str) -> S | None:
        return next(self.all(kind, *keywords), None)


@dataclass(frozen=True)
class Spec:
    """A file.  `lost` names the lets whose text has errors: uses of them are no errors of their own.  `whole`: it was
    read, and not given up as no spec."""

    lets: tuple[Let, ...]
    convs: tuple[Conv, ...]
    lost: frozenset[str]
    whole: bool = True
