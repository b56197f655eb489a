"""Filters rounded to 16 bits so that each keeps its sum.

The nearest 16-bit numbers err at random, and a filter's errors add up: what activations have in common (behind a ReLU
all are positive) then shifts each of its results by the same amount, which no mean over pixels takes away.  Here the
weights that lie closest to the middle of two numbers are rounded to the other one, until the sum is the exact one to
half a unit in the last place.  Each weight is still one of the two numbers beside the exact one.
"""

from __future__ import annotations

from typing import Any

import torch

from convgen.torch.network.trace import call, is_call, value_of

Node = Any
Tensor = Any
A: Any = torch.ops.aten
#: Weights that are rounded at once: a sort takes some 40 bytes for each.
_AT_ONCE = 1 << 22
#: The largest step between two numbers beside a filter's weights is so many units of the sum of steps.
_UNITS = 1 << 40

_library = torch.library.Library("convgen", "FRAGMENT")
_library.define("rounded_filters(Tensor filters, ScalarType dtype, int axis) -> Tensor")


def rounded(graph: Any, filters: Node, dtype: torch.dtype, axis: int) -> Node:
    """Filters of float32 or float64, which are slices along the axis, as a node of this type."""
    if dtype.itemsize > 2:
        return call(graph, A._to_copy.default, filters, dtype=dtype)
    return call(graph, torch.ops.convgen.rounded_filters.default, filters, dtype, axis)


def has_bits(dtype: torch.dtype) -> bool:
    """Whether numbers of a type can have what an adapter adds to a weight."""
    return dtype.is_floating_point and dtype != torch.bfloat16


def before_rounding(filters: Node) -> Node:
    """Floating-point filters before the conversion to their type, if a node does only that."""
    rounds = is_call(filters, A._to_copy.default, torch.ops.convgen.rounded_filters.default)
    return filters.args[0] if rounds and value_of(filters.args[0]).is_floating_point() else filters


def _rounded_filters(filters: Tensor, dtype: torch.dtype, axis: int) -> Tensor:
    made = torch.empty_like(filters, dtype=dtype)
    if filters.numel():
        rows = max(1, _AT_ONCE * filters.shape[axis] // filters.numel())
        for exact, out in zip(filters.split(rows, axis), made.split(rows, axis), strict=True):
            by_filter = exact.movedim(axis, 0)
            out.copy_(_with_sums(by_filter.flatten(1), dtype).view(by_filter.shape).movedim(0, axis))
    return made


def _with_sums(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to a 16-bit type, with each row's sum."""
    near = exact.to(dtype)
    rest = exact.double() - near
    total = rest.sum(1, keepdim=True)
    away = (rest > 0) == (near > 0)  # from zero
    other = (near.view(torch.int16) + torch.where(away, 1, -1).to(torch.int16)).view(dtype)
    gain = other.double() - near
    movable = (rest * total > 0) & (near != 0) & gain.isfinite()
    order = torch.where(movable, rest / gain, -1).argsort(dim=1, descending=True, stable=True)
    gain = torch.where(movable, gain, 0).gather(1, order).abs()
    unit = gain.amax(1, keepdim=True).clamp_min(torch.finfo(torch.double).tiny) / _UNITS
    units = (gain / unit).long()  # torch has no sums of floats so far that are deterministic on a GPU
    taken = (units > 0) & (units.cumsum(1) - units // 2 <= total.abs() / unit)
    return torch.where(torch.zeros_like(taken).scatter(1, order, taken), other, near)


_library.impl("rounded_filters", _rounded_filters, "CompositeExplicitAutograd")
torch.library.register_fake(
    "convgen::rounded_filters",
    lambda filters, dtype, axis: torch.empty_like(filters, dtype=dtype),
    lib=_library,
)
