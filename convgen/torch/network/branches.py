"""Sums of convolutions of one tensor, each with the BatchNorm after it, as one convolution: RepVGG's, MobileOne's and
FastViT's blocks as they are trained.

    conv(x, a) + conv(x, b) - norm(x)    =    conv(x, a + b - scale) + shift
    conv(x, a) + 0.5 * conv(conv(x, down), up)    =    conv(x, a + 0.5 * up @ down)    LoRA's adapters, `up` of one tap

The filters of the widest branch take those of the others at the taps that read the same pixels.  A BatchNorm of x
itself is a branch of one tap that reads its own channel.  Filters are rounded once they are summed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from convgen.torch.network.batch_norm import is_constant, layer, normalized, parameters, scale_and_shift
from convgen.torch.network.layouts import uncopied
from convgen.torch.network.rounding import has_bits
from convgen.torch.network.trace import call, erase_unread, is_call, value_of, weighted_sum

Node = Any
A: Any = torch.ops.aten
#: The sums, and what the second addend is multiplied by.
_SUMS = {A.add.Tensor: 1, A.sub.Tensor: -1}


@dataclass(frozen=True)
class _Branch:
    """A convolution, one of one tap after it, and the BatchNorm after these, each of which may be None; what the sum
    multiplies it by."""

    convolution: Node
    up: Node
    norm: Node
    factor: float

    @property
    def x(self) -> Node:
        return uncopied((self.convolution or self.norm).args[0])

    @property
    def axes(self) -> list[tuple[int, int, int, int]]:
        """For each axis of pixels: taps, dilation, padding, stride."""
        if self.convolution is None:
            return [(1, 1, 0, 1)] * (value_of(self.x).dim() - 2)
        _, w, _, stride, padding, dilation, *_ = self.convolution.args
        return list(zip(value_of(w).shape[2:], dilation, padding, stride, strict=True))

    @property
    def extents(self) -> list[int]:
        """Pixels from the first tap to the last one, of each axis."""
        return [dilation * (taps - 1) + 1 for taps, dilation, *_ in self.axes]


def merge_branches(graph: Any, constant: Collection[Node]) -> int:
    """Makes one convolution of each such sum; how many branches became part of another one."""
    merged = 0
    for node in reversed(list(graph.nodes)):
        branches = _branches(node, 1, constant) if is_call(node, *_SUMS) and node.users else None
        if branches and (widest := _widest(branches)):
            node.replace_all_uses_with(_merged(graph, node, branches, widest))
            erase_unread(graph, node)
            merged += len(branches) - 1
    return merged


def _branches(value: Any, factor: float, constant: Collection[Node]) -> list[_Branch] | None:
    """What a value is the sum of; None where one of these is no branch, or is read by others, too."""
    if value == 0:
        return []
    if not isinstance(value, torch.fx.Node):
        return None
    if is_call(value, A.mul.Tensor) and isinstance(value.args[1], int | float) and len(value.args[0].users) == 1:
        return _branches(value.args[0], factor * value.args[1], constant)
    if not is_call(value, *_SUMS):
        branch = _branch(value, factor, constant)
        return None if branch is None else [branch]
    if len(value.args) > 2 or value.kwargs or value.args[0] is value.args[1]:  # a factor, or a value read twice
        return None
    found = list[_Branch]()
    for addend, times in zip(value.args, (1, _SUMS[value.target]), strict=True):
        if isinstance(addend, torch.fx.Node) and (list(addend.users) != [value] or not _is_alike(addend, value)):
            return None
        branches = _branches(addend, factor * times, constant)
        if branches is None:
            return None
        found += branches
    return found


def _is_alike(addend: Node, value: Node) -> bool:
    a, b = value_of(addend), value_of(value)
    return bool(isinstance(a, torch.Tensor) and a.shape == b.shape and a.dtype == b.dtype)


def _branch(value: Node, factor: float, constant: Collection[Node]) -> _Branch | None:
    norm = normalized(value)
    if norm is not None and not is_constant(norm, constant):
        return None
    before = value if norm is None else norm.args[0]
    if not is_of_constants(before, constant) or (norm is not None and list(before.users) != [norm]):
        return None if norm is None else _Branch(None, None, norm, factor)
    down = uncopied(before.args[0])
    alone = len(down.users) == 1 and list(before.args[0].users) == [before] and has_bits(value_of(value).dtype)
    if alone and _is_product(before) and is_of_constants(down, constant) and down.args[8] == 1:
        return _Branch(down, before, norm, factor)
    return _Branch(before, None, norm, factor)


def _is_product(convolution: Node) -> bool:
    """Whether it has one tap, and all channels of all pixels."""
    _, w, _, stride, padding, *_, groups = convolution.args
    return bool(value_of(w).shape[2:].numel() == groups == 1 and set(stride) == {1} and not any(padding))


def is_of_constants(node: Node, constant: Collection[Node]) -> bool:
    """Whether a node is a convolution of floats with constant parameters, and not a transposed one."""
    if not is_call(node, A.convolution.default) or not value_of(node).dtype.is_floating_point:
        return False
    _, w, b, *_, transposed, further, _ = node.args
    return not transposed and not any(further) and w in constant and (b is None or b in constant)


def _widest(branches: Sequence[_Branch]) -> _Branch | None:
    """A single convolution whose taps read all pixels that the others read; None where there is none, or one branch."""
    convolutions = [branch for branch in branches if branch.convolution and not branch.up]
    if len(branches) < 2 or not convolutions:
        return None
    widest = max(convolutions, key=lambda branch: (branch.extents, [taps for taps, *_ in branch.axes]))
    return widest if all(_fits(branch, widest) for branch in branches) else None


def _fits(branch: _Branch, widest: _Branch) -> bool:
    k, c_of_group, *_ = value_of(widest.convolution.args[1]).shape
    groups = widest.convolution.args[8]
    if branch.x is not widest.x or value_of(branch.x).dim() != len(widest.axes) + 2:
        return False
    alike = groups == branch.convolution.args[8] if branch.convolution else k == c_of_group * groups
    return alike and all(
        stride == wide_stride
        and (wide_padding - padding) % wide_dilation == 0
        and (taps == 1 or dilation % wide_dilation == 0)
        and 0 <= wide_padding - padding <= wide_dilation * (wide_taps - 1) - dilation * (taps - 1)
        for (taps, dilation, padding, stride), (wide_taps, wide_dilation, wide_padding, wide_stride)
        in zip(branch.axes, widest.axes, strict=True)
    )  # fmt: skip


def _merged(graph: Any, value: Node, branches: Sequence[_Branch], widest: _Branch) -> Node:
    x, _, _, *geometry = widest.convolution.args
    filters, shifts = list[tuple[float, Node]](), list[tuple[float, Node]]()
    with graph.inserting_before(value):
        for branch in branches:
            own, shift = _parameters(graph, branch, widest)
            filters.append((branch.factor, _among(graph, own, branch, widest)))
            if shift is not None:
                shifts.append((branch.factor, shift))
        shift = weighted_sum(graph, shifts) if shifts else None
        return layer(graph, x, weighted_sum(graph, filters), shift, geometry, value_of(value).dtype)


def _parameters(graph: Any, branch: _Branch, widest: _Branch) -> tuple[Node, Node | None]:
    """Filters and biases, not rounded yet."""
    if branch.up is not None:
        return parameters(graph, branch.up, branch.norm, branch.convolution)
    if branch.convolution is not None:
        return parameters(graph, branch.convolution, branch.norm)
    groups, rank = widest.convolution.args[8], len(widest.axes)
    scale, shift = (call(graph, A.view.default, made, [-1]) for made in scale_and_shift(graph, branch.norm))
    own = call(graph, A.diag_embed.default, call(graph, A.view.default, scale, [groups, -1]))  # group, k, c
    return call(graph, A.view.default, own, [value_of(scale).numel(), -1, *[1] * rank]), shift


def _among(graph: Any, filters: Node, branch: _Branch, widest: _Branch) -> Node:
    """A branch's filters as taps of the widest one's."""
    for axis, (own, wide) in enumerate(zip(branch.axes, widest.axes, strict=True), start=2):
        (taps, dilation, padding, _), (wide_taps, wide_dilation, wide_padding, _) = own, wide
        first, step = (wide_padding - padding) // wide_dilation, max(1, dilation // wide_dilation)
        if (first, step, taps) == (0, 1, wide_taps):
            continue
        shape = [*value_of(filters).shape]
        shape[axis] = wide_taps
        end = first + step * (taps - 1) + 1
        zeros = call(graph, A.new_zeros.default, filters, shape)
        filters = call(graph, A.slice_scatter.default, zeros, filters, axis, first, end, step)
    return filters
