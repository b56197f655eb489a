"""Finds every extent of a convolution from those that its tensors state.

Dims that two tensors share must agree; output extents follow from the window; with a stride of 1 an input
extent follows from the output's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from convgen import habits
from convgen.diagnostics import Report, Span, listing
from convgen.frontend import ast, padding
from convgen.frontend.dims import DYNAMIC_DIMS, RANK_OF, ROLE_DIMS, SETTING_OF, unknown_dim
from convgen.frontend.geometry import Geometry
from convgen.frontend.sizes import MAX_INT, Sizes
from convgen.ir.problem import SPATIAL, Padding

#: The least value of each setting by axis, which it also has where nothing is written.
_LEAST = {"stride": 1, "dilation": 1, "pad": 0}

#: Settings that state something of the geometry.
_STATING = {*SETTING_OF.values(), *_LEAST, "groups"}

#: (low, high); the same twice for stride and dilation.
Amount = tuple[int, int]
S = TypeVar("S", bound=ast.Setting)


@dataclass(frozen=True)
class _Stated:
    """A tensor's statement about a dim: its extent; 1 if the tensor lacks the dim."""

    value: int
    tensor: str
    dim: str
    span: Span
    explicit: bool
    let: bool = False  # by a let of the dim's name

    def __str__(self) -> str:
        if self.explicit:
            return f"{self.dim} is {self.value} in `{self.tensor}`"
        return f"`{self.tensor}` has no {self.dim}, so {self.dim} is 1 there"


class Solver:
    """Finds the geometry of one conv block.

    `tensors` are the block's x, w and y, as far as they are there; y is not needed where `lowers` (im2col, col2im),
    whose filter need not have c and k either.
    """

    #: The channels of which the filter has a group's, and those that it has all of; each with the tensor that has them.
    _grouped, _whole = ("c", "x"), ("k", "y")
    _geometry = Geometry

    def __init__(
        self, conv: ast.Conv, tensors: Mapping[str, ast.Tensor], lowers: bool, sizes: Sizes, report: Report
    ) -> None:
        self._conv, self._tensors, self._lowers = conv, tensors, lowers
        self._sizes, self._report = sizes, report
        self._rank = max((RANK_OF.get(name, 1) for name in self._mentioned()), default=1)
        self.spatial = SPATIAL[self._rank]
        #: What `solve` finds, errors or not: extents of dims, and what the input is padded with.
        self.known: dict[str, int | None] = {}
        self.padding = Padding.ZERO
        self._stated: dict[str, dict[str, _Stated | None]] = {}
        self._windows: list[padding.Axis] = []
        needed = {"x", "w"} if lowers else SETTING_OF.keys()
        #: Whether something that is stated has an error, or is missing.
        self._unclear = not needed <= tensors.keys() or bool(conv.lost & _STATING)
        self._unclear |= not (sizes.complete and all(t.sure for t in tensors.values()))

    def _mentioned(self) -> list[str]:
        """Names that imply a rank."""
        names = [d.name.text for t in self._tensors.values() for d in t.dims]
        axes = [a.name.text for s in self._conv.all(ast.AxesSetting) for a in s.axes]
        names += [name for name in axes if name in SPATIAL[3].input]
        names += [n.text for s in self._conv.all(ast.LoweredSetting) for axis in s.axes for n in axis]
        return names

    def solve(self) -> Geometry | None:
        """The geometry; None where there is an error, which is then in the report."""
        before = len(self._report)
        self._stated = {role: self._statements(role, t) for role, t in self._tensors.items()}
        stride, dilation = self._amounts("stride"), self._amounts("dilation")
        self._windows = self._axes_so_far(stride, dilation)
        pad, groups = self._amounts("pad"), self._groups()
        n = self._agree("n", "x", "y")
        if "op" in self._conv.lost:  # which says how the others follow
            return None
        channels = {self._whole[0]: self._agree(self._whole[0], "w", self._whole[1])}
        channels[self._grouped[0]] = self._channels(*self._grouped, groups) if groups else None
        c, k = channels["c"], channels["k"]
        if k is None and self._lowers and not self._is_open("w", "k") and not self._is_open("y", "k"):
            k = groups  # nothing reads it
        if groups:
            self._divides(groups, {"c": c, "k": k})
        self.known |= {"n": n, "c": c, "k": k}
        axes = []
        fill, *_ = [padding.filled(setting, self._report) for setting in self._each(ast.AxesSetting, "pad")]
        if fill and (pad is None or any(map(any, pad))):
            self.padding = fill
        if stride and dilation and pad and fill:
            each = [(i, stride[i][0], dilation[i][0], pad[i]) for i in range(self._rank)]
            inputs = [self._input(*axis) for axis in each]
            self._fits(fill, inputs, pad)
            axes = [self._axis(extent, *axis) for extent, axis in zip(inputs, each, strict=True)]
            for dims, extents in zip(self._axes(), axes, strict=True):
                self.known |= zip(dims, extents or (), strict=False)
        if fill and not self._unclear:
            self._missing({"n": n, "c": c, "k": k}, axes, [low for low, _ in stride or ()])
        if self._unclear or len(self._report) > before:
            return None
        assert n and c and k and groups and stride and dilation and pad and fill
        input_, filter_, output = zip(*(axis for axis in axes if axis), strict=True)
        (strides, _), (dilations, _), (lo, hi) = (zip(*a, strict=True) for a in (stride, dilation, pad))
        return self._geometry(n, c, k, input_, filter_, output, strides, dilations, lo, hi, groups, self.padding)

    # --- what is stated ---

    def _statements(self, role: str, tensor: ast.Tensor) -> dict[str, _Stated | None]:
        """A tensor's statement about each of its role's dims; None for a dim whose extent it leaves open."""
        found: dict[str, _Stated | None] = {}
        for dim in tensor.dims:
            name = dim.name.text
            if name not in ROLE_DIMS[role]:
                unknown_dim(role, tensor.name, dim.name, self._rank, self._report)
                self._unclear = True
            elif name in found:
                lacking = [d for d in self._own(role) if tensor.dim(d) is None]
                hint = f"did you mean `{lacking[0]}`?" if len(lacking) == 1 else None
                self._report.error("E204", f"`{tensor.name.text}` has the dim `{name}` twice", dim.name.span, hint)
            else:
                value = self._extent(dim)
                let = dim.extent is None
                found[name] = None if value is None else _Stated(value, tensor.name.text, name, dim.span, True, let)
        optional = ("c", "k") if self._lowers and role == "w" else ()
        for name in self._own(role):
            if name not in found:
                lacks = _Stated(1, tensor.name.text, name, tensor.name.span, False)
                found[name] = lacks if tensor.sure and name not in optional else None
        return found

    def _own(self, role: str) -> list[str]:
        """The dims that the tensor of a role may have, at this rank."""
        return [d for d in ("n", "c", "k", *getattr(self.spatial, SETTING_OF[role])) if d in ROLE_DIMS[role]]

    def _extent(self, dim: ast.Dim) -> int | None:
        """The extent that a dim states: written, or a let of its name."""
        name = dim.name.text
        if dim.extent is None and name not in self._sizes:
            return None
        size = dim.extent or ast.Reference(dim.span, name)
        any_size = dict.fromkeys(habits.ANY_SIZES, habits.ANY_SIZE.format(name)) if name in DYNAMIC_DIMS else {}
        return self._checked(name, self._sizes.evaluate(size, any_size), 1, size)

    def _checked(self, what: str, value: int | None, least: int, size: ast.Expr) -> int | None:
        """The value of a size that is stated, or None where it has an error."""
        if value is not None and not least <= value <= MAX_INT:
            hint = self._sizes.refuse(size)
            if not hint and value == -1 and what in DYNAMIC_DIMS:
                hint = habits.ANY_SIZE.format(what)
            self._report.error("E209", f"{what} is {value}; it must be from {least} to {MAX_INT}", size.span, hint)
            value = None
        self._unclear |= value is None
        return value

    def _each(self, kind: type[S], *keywords: str) -> list[S | None]:
        """A setting, as often as it is given: the first is meant, and all may have errors."""
        return [*self._conv.all(kind, *keywords)] or [None]

    def _amounts(self, keyword: str) -> list[Amount] | None:
        """(low, high) of stride, dilation or pad for each axis; None where one has an error."""
        first, *_ = [self._by_axis(keyword, setting) for setting in self._each(ast.AxesSetting, keyword)]
        return None if keyword in self._conv.lost else first

    def _by_axis(self, keyword: str, setting: ast.AxesSetting | None) -> list[Amount] | None:
        least = _LEAST[keyword]
        found: dict[str, Amount | None] = dict.fromkeys(self.spatial.input, (least, least))
        if setting and setting.everywhere:
            found = dict.fromkeys(found, self._amount(keyword, setting.everywhere))
        seen, unknown = set[str](), list[str]()
        if setting and (by_axis := padding.by_side(setting, self._evaluate)):
            self._unclear = True
            fault = setting.axes[0].name
            self._report.error("E203", f"`pad` has no axis named `{fault.text}`", fault.span, f"write `{by_axis}`")
            return None
        for axis in setting.axes if setting else ():
            name = axis.name.text
            if name not in found:
                unknown.append(name)
                hint = habits.did_you_mean(name, found, habits.DIMS["x"])
                hint = hint or f"axes are named by the input's dims: {listing(tuple(found), 'and')}"
                self._report.error("E203", f"`{keyword}` has no axis named `{name}`", axis.name.span, hint)
                continue
            if name in seen:
                self._report.error("E204", f"`{keyword}` has the axis `{name}` twice", axis.name.span)
                unknown.append(name)
            seen.add(name)
            found[name] = self._amount(keyword, axis.amount)
        amounts = [a for a in found.values() if a]
        self._unclear |= bool(unknown)
        return amounts if len(amounts) == len(found) and not unknown else None

    def _amount(self, keyword: str, amount: ast.Amount) -> Amount | None:
        if amount.high is not None and keyword != "pad":
            self._unclear = True
            values = [self._sizes.evaluate(e) for e in (amount.low, amount.high)]
            axes = " ".join(f"{d}={v or 1}" for d, v in zip(self.spatial.input, (*values, values[-1]), strict=False))
            hint = f"only `pad` takes (low, high); an amount for each axis is written `{keyword} {axes}`"
            self._report.error("E209", f"`{keyword}` takes one value", amount.span, hint)
            return None
        both = (amount.low, amount.high or amount.low)
        if keyword == "pad" and (word := padding.word(both, self._sizes)):
            self._unclear = True
            padding.report_word(word, self._windows, self._report)
            return None
        low, high = (self._checked(f"`{keyword}`", self._evaluate(e), _LEAST[keyword], e) for e in both)
        return None if low is None or high is None else (low, high)

    def _axes_so_far(self, stride: list[Amount] | None, dilation: list[Amount] | None) -> list[padding.Axis]:
        """The axes before they are padded."""
        axes = []
        for i, dim in enumerate(self.spatial.input):
            x, w = self._get("x", dim), self._get("w", self.spatial.filter[i])
            window = (w.value - 1) * dilation[i][0] + 1 if w and dilation else None
            axes.append(padding.Axis(dim, x.value if x else None, window, stride[i][0] if stride else None))
        return axes

    def _evaluate(self, e: ast.Expr) -> int | None:
        """Value of a size that may name a dim instead of a let."""
        roles = [role for role in ("y", "w", "x") if role in self._stated]  # c is the input's
        stated = {dim: s.value for role in roles for dim, s in self._stated[role].items() if s}
        hints = {dim: f"`{dim}` is a dim: write `{value}`, or `let {dim} = {value}`" for dim, value in stated.items()}
        if "c" in stated:
            hints |= dict.fromkeys(habits.EACH_CHANNEL, f"one group per channel is `groups {stated['c']}`")
        return self._sizes.evaluate(e, hints)

    def _groups(self) -> int | None:
        first, *_ = [
            self._checked("`groups`", self._evaluate(setting.value), 1, setting.value) if setting else 1
            for setting in self._each(ast.GroupsSetting)
        ]
        return None if "groups" in self._conv.lost else first

    def _get(self, role: str, name: str) -> _Stated | None:
        return self._stated.get(role, {}).get(name)

    def _is_open(self, role: str, name: str) -> bool:
        """Whether the tensor has the dim and leaves its extent open."""
        return role in self._tensors and self._tensors[role].dim(name) is not None and self._get(role, name) is None

    # --- what follows ---

    def _agree(self, name: str, *roles: str) -> int | None:
        """The extent of a dim that several tensors have; they must agree."""
        said = [s for role in roles if (s := self._get(role, name))]
        for other in said[1:]:
            if other.value != said[0].value:
                self._disagree(other, said[0])
        return said[0].value if said else None

    def _disagree(self, one: _Stated, other: _Stated, hint: str | None = None) -> None:
        lacking = next((s for s in (one, other) if not s.explicit), None)
        hint = f"give `{lacking.tensor}` the dim `{lacking.dim}`" if lacking else hint
        if by_let := next((s for s in (one, other) if s.let), None):
            hint = hint or f"`{by_let.dim}` alone in `{by_let.tensor}` is the `let {by_let.dim}`"
        self._report.error("E208", f"{one}, but {other}", (lacking or one).span, hint)

    def _channels(self, name: str, role: str, groups: int) -> int | None:
        """Channels of all groups: those of the role's tensor, or the filter's times groups."""
        every, one = self._get(role, name), self._get("w", name)
        if every and one and one.value * groups != every.value and every.value % groups == 0:
            if groups == 1:
                fewer = one.explicit and every.value % one.value == 0 and "groups" not in self._conv.lost
                by_groups = f"write `c={every.value}` in `{one.tensor}`, or `groups {every.value // one.value}`"
                self._disagree(one, every, by_groups if fewer else None)
            else:
                message = f"{one}, which makes {one.value * groups} with {groups} groups, but {every}"
                hint = (
                    f"the filter's {name} is the {SETTING_OF[role]}'s {name} / groups: {name}={every.value // groups}"
                )
                self._report.error("E208", message, one.span, hint)
            return None
        if every:
            return every.value
        return one.value * groups if one else None

    def _divides(self, groups: int, channels: Mapping[str, int | None]) -> None:
        setting = self._conv.first(ast.GroupsSetting)
        for name, value in channels.items():
            if setting and value and value % groups:
                hint = f"{name} counts the channels of all groups: {name}={groups} has one in each"
                message = f"{groups} groups do not divide {name}={value}"
                self._report.error("E210", message, setting.span, hint if value < groups else None)

    def _infers_input(self, stride: int) -> bool:
        """Whether an input extent follows from the output's."""
        return stride == 1

    def _fits(self, fill: Padding, inputs: Sequence[int | None], pad: Sequence[Amount]) -> None:
        """Whether the input has the pixels that the padding repeats; if not, that is reported.  `inputs` are its
        extents, None where they are not known."""
        setting = self._conv.first(ast.AxesSetting, "pad")
        if setting is None:
            return
        for dim, extent, amounts in zip(self.spatial.input, inputs, pad, strict=True):
            if extent:
                padding.check_fits(fill, dim, extent, amounts, setting.span, self._report)

    def _axes(self) -> list[tuple[str, str, str]]:
        """Dims of input, filter and output along each axis."""
        return list(zip(self.spatial.input, self.spatial.filter, self.spatial.output, strict=True))

    def _along(self, i: int) -> tuple[_Stated | None, _Stated | None, _Stated | None]:
        """The statements about input, filter and output along an axis."""
        x, w, y = self._axes()[i]
        return self._get("x", x), self._get("w", w), self._get("y", y)

    def _input(self, i: int, stride: int, dilation: int, pad: Amount) -> int | None:
        """The input's extent along an axis; None where it does not follow or has an error."""
        x, w, y = self._along(i)
        if x or not (w and y and self._infers_input(stride)):
            return x.value if x else None
        extent = y.value + (w.value - 1) * dilation - sum(pad)
        if not 1 <= extent <= MAX_INT:
            message = f"{y.dim}={y.value} needs {self.spatial.input[i]}={extent}; it must be from 1 to {MAX_INT}"
            self._report.error("E209", message, y.span)
            return None
        return extent

    def _axis(self, extent: int | None, i: int, stride: int, dilation: int, pad: Amount) -> tuple[int, int, int] | None:
        """Extents of input, filter and output along an axis; None where they do not follow or have an error."""
        sp, (x, w, y) = self.spatial, self._along(i)
        if not (extent and w):
            return None
        window = (w.value - 1) * dilation + 1
        padded = extent + sum(pad)
        shown = f"{sp.input[i]} + padding = {extent} + {pad[0]} + {pad[1]} = {padded}"
        if padded > MAX_INT:
            self._report.error("E209", f"{shown}; it must be at most {MAX_INT}", (x or w).span)
            return None
        if window > padded:
            message = f"the output is empty along {sp.input[i]}: the window is {window}, but {shown}"
            hint = f"the window is ({w.dim} - 1) * dilation + 1 = ({w.value} - 1) * {dilation} + 1"
            self._report.error("E211", message, w.span, hint)
            return None
        output = (padded - window) // stride + 1
        if y and y.value != output:
            formula = f"({padded} - {window}) / {stride} + 1, rounded down"
            hint = f"(padded {sp.input[i]} - window) / stride + 1 = {formula}"
            if not any(stated and stated.explicit for stated in (x, w, y)):
                hint = f"no tensor has `{sp.input[i]}`: leave it out of stride, pad and dilation"
            elif not y.explicit:
                hint = f"give `{y.tensor}` the dim `{y.dim}`; {hint}"
            self._report.error("E208", f"{y}, but the window makes it {output}", y.span, hint)
            return None
        return extent, w.value, output

    def _missing(
        self,
        shared: Mapping[str, int | None],
        axes: Sequence[tuple[int, int, int] | None],
        strides: Sequence[int],
    ) -> None:
        """One error for all extents that are left open."""
        candidates = [(role, name) for name, value in shared.items() if value is None for role in self._tensors]
        strided = []
        for i, axis in enumerate(axes):
            if axis is None:
                x, w, y = self._axes()[i]
                follows = self._get("y", y) is not None
                if follows and not self._infers_input(strides[i]):
                    strided.append(f"{x} cannot be inferred from {y} with a stride of {strides[i]}")
                    follows = False
                candidates += [("w", w)] if follows else [("w", w), ("x", x)]
        found = [(role, name) for role, name in candidates if self._is_open(role, name)]
        dims = [dim for role, name in found if (dim := self._tensors[role].dim(name))]
        if dims:
            dims.sort(key=lambda d: (d.span.line, d.span.column))
            names = list(dict.fromkeys(d.name.text for d in dims))
            many = len(names) > 1
            message = f"the extent{'s' if many else ''} of {listing(names, 'and')} {'are' if many else 'is'} not known"
            if (let := self._sizes.like(names[0])) and not many:
                example = f"write `{names[0]}={let}` for `let {let}`"
            else:
                example = f"write {'them' if many else 'it'}, as in `{names[0]}=8`, or declare `let {names[0]} = 8`"
            self._report.error("E207", message, dims[0].span, "; ".join([*strided, example]))
