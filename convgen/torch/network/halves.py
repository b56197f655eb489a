"""Convolutions whose result is read in halves of its channels, as two convolutions:

    a, b = convolution(x).chunk(2, 1);  y = tanh(a) * sigmoid(b)    a gate: WaveNet's, GLU, NAFNet's
    a, b = convolution(x).chunk(2, 1);  y, z = u + a, v + b         functions of each: WaveNet's residual and skip

Each has half of the filters, and of a convolution of groups half of the input.  Epilogues then do the rest: one makes
the gate, which is an operand of the other.  A single convolution writes both halves, and a pass reads them; two read
x twice.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from convgen.torch.network.chains import Chain, chain_of, is_pointwise
from convgen.torch.network.prologues import opened
from convgen.torch.network.trace import argument, call, is_call, value_of
from convgen.torch.network.upsampling import folded

Node = Any
A: Any = torch.ops.aten


@dataclass(frozen=True)
class Halves:
    """A convolution that was split: its chain up to where it was, and those of either half.

    `left` says how many tensors as large as the convolution's result a pass behind it would read; None for a gate, of
    which a pass reads both halves and writes one.
    """

    whole: Chain
    first: Chain
    second: Chain
    left: int | None
    _replaced: tuple[tuple[Node, Node], ...]

    def undo(self) -> None:
        """Puts the one convolution back."""
        for old, new in self._replaced:
            new.replace_all_uses_with(old)


def split_in_halves(graph: Any) -> list[Halves]:
    """Splits convolutions where epilogues of the halves have something to do that one of the whole cannot do."""
    convolutions = [node for node in graph.nodes if is_call(node, A.convolution.default)]
    return [halves for node in convolutions if (halves := _split(graph, node))]


def _split(graph: Any, convolution: Node) -> Halves | None:
    whole = chain_of(convolution)
    if whole is None or not _has_halves(whole) or folded(whole) or opened(whole):
        return None
    path = list(_path(whole))
    halves = _halves(path[-1])
    if halves is None:
        return None
    made = tuple(_half(graph, path, part) for part in range(2))
    if isinstance(halves, torch.fx.Node):
        with graph.inserting_before(halves):
            product = call(graph, A.mul.Tensor, made[0], call(graph, A.sigmoid.default, made[1]))
        replaced: tuple[tuple[Node, Node], ...] = ((halves, product),)
    else:
        replaced = tuple(zip(halves, made, strict=True))
    for old, new in replaced:
        old.replace_all_uses_with(new)
    first, second = (chain_of(node) for node in graph.nodes if node.meta.get("half_of") is convolution)
    if first and second and (gated := _gated(first, second) or _gated(second, first)):
        return Halves(whole, *gated, None, replaced)
    if first and second and first.ends[1:] and second.ends[1:]:
        return Halves(whole, first, second, 1 + min(map(_large_operands, (first, second))), replaced)
    for old, new in replaced:
        new.replace_all_uses_with(old)
    return None


def _gated(chain: Chain, other: Chain) -> tuple[Chain, Chain] | None:
    """Two halves, one of which takes the other's result as an operand: both, the other up to that point."""
    for i, end in enumerate(other.ends):
        if end.node in chain.operands:
            steps, operands = other.steps[: end.steps], other.operands[: end.operands]
            return chain, replace(other, steps=steps, operands=operands, ends=other.ends[: i + 1])
    return None


def _large_operands(chain: Chain) -> int:
    """How many operands are as large as the result, besides the bias."""
    size = value_of(chain.ends[0].node).numel()
    return sum(value_of(o).numel() == size for o in chain.operands[chain.ends[0].operands :])


def _has_halves(chain: Chain) -> bool:
    """Whether the convolution is one of either half of its filters."""
    filters = value_of(chain.w).shape[0]
    plain = not chain.transposed and not chain.convolution.meta.get("linear")
    return plain and filters % 2 == 0 and (chain.groups == 1 or chain.groups % 2 == 0)


def _path(chain: Chain) -> Iterator[Node]:
    """The convolution and what alone reads it of all channels alike, up to what is halved."""
    yield (node := chain.convolution)
    while len(node.users) == 1 and _is_of_each_channel(user := next(iter(node.users)), node):
        yield (node := user)


def _is_of_each_channel(user: Node, value: Node) -> bool:
    """Steps, copies and slices of pixels."""
    if is_call(user, A.slice.Tensor):
        return bool(argument(user, 1, "dim", 0) > 1)
    return is_call(user, A.clone.default) or (
        is_pointwise(user, value) and value_of(user).shape == value_of(value).shape
    )


def _halves(value: Node) -> tuple[Node, Node] | Node | None:
    """The only readers of the halves of a value's channels: both, or a GLU."""
    half = value_of(value).shape[1] // 2
    readers = list(value.users)
    if len(readers) == 1 and is_call(readers[0], A.glu.default):
        return readers[0] if argument(readers[0], 1, "dim", -1) in (1, 1 - value_of(value).dim()) else None
    if len(readers) == 1 and is_call(readers[0], A.split.Tensor, A.split_with_sizes.default):
        items = {user.args[1]: user for user in readers[0].users if user.target is operator.getitem}
        right = readers[0].args[1] in (half, [half, half]) and argument(readers[0], 2, "dim", 0) == 1
        found = [items.get(i) for i in range(2)] if right else []
    else:
        found = [next((r for r in readers if _is_slice(r, i * half, half)), None) for i in range(2)]
        found = found if len(readers) == 2 else []
    if len(found) != 2 or None in found:
        return None
    return found[0], found[1]


def _is_slice(node: Node, first: int, length: int) -> bool:
    """Whether a node is a slice of these channels."""
    if not is_call(node, A.slice.Tensor) or argument(node, 1, "dim", 0) != 1 or argument(node, 4, "step", 1) != 1:
        return False
    start, stop, _ = slice(argument(node, 2, "start", None), argument(node, 3, "end", None)).indices(2 * length)
    return (start, stop) == (first, first + length)


def _half(graph: Any, path: list[Node], part: int) -> Node:
    """One half of the channels of what a path makes, by nodes of its own: the first (part 0) or the second."""
    convolution, channels = path[0], value_of(path[0]).shape[1]
    x, w, bias, stride, padding, dilation, transposed, further, groups = convolution.args

    def halved(node: Node, axis: int) -> Node:
        extent = value_of(node).shape[axis]
        return call(graph, A.slice.Tensor, node, axis, part * extent // 2, (part + 1) * extent // 2)

    with graph.inserting_before(convolution):
        filters = call(graph, A.clone.default, halved(w, 0))  # beginning at a separate address
        if groups > 1:
            x, groups = halved(x, 1), groups // 2
        bias = None if bias is None else call(graph, A.clone.default, halved(bias, 0))
        geometry = stride, padding, dilation, transposed, further, groups
        made = call(graph, A.convolution.default, x, filters, bias, *geometry)
    name = convolution.meta.get("layer", "?")
    made.meta |= {"layer": f"{name} ({('first', 'second')[part]} half)", "half_of": convolution}
    axis = 1 - value_of(convolution).dim()
    for before, node in pairwise(path):
        with graph.inserting_before(node):
            arguments = []
            for argument in node.args:
                if argument is before:
                    argument = made
                elif isinstance(argument, torch.fx.Node) and _spans(argument, axis, channels):
                    argument = halved(argument, axis)
                arguments.append(argument)
            made = call(graph, node.target, *arguments, **node.kwargs)
    return made


def _spans(operand: Node, axis: int, channels: int) -> bool:
    """Whether it has a value for each channel."""
    value = value_of(operand)
    return bool(value.dim() >= -axis and value.shape[axis] == channels)
