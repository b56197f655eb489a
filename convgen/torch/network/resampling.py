"""Interpolation moved after convolutions of one tap, which then take the pixels that there are:

    conv(up(x))               =  up(conv(x))
    conv(cat([a, up(x)], 1))  =  conv(a) + up(conv(x))         each with its channels of the filters

Interpolation mixes pixels, such a convolution channels; both are linear.  The large image is written with the
convolution's channels instead of x's, and no convolution reads it.  SegFormer's decoder has four such parts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from convgen.torch.network.pixels import constant, takes_pixels
from convgen.torch.network.trace import call, is_call, value_of
from convgen.torch.network.upsampling import upsampled

Node = Any
Tensor = Any
A: Any = torch.ops.aten
_CASTS = (A._to_copy.default, A.clone.default)
_PACKED = torch.contiguous_format
_SUMS = (A.add.Tensor, A.sub.Tensor)


@dataclass(frozen=True)
class Resampled:
    """An image made of a source's pixels, by weights that are the same for each image and channel."""

    source: Node
    steps: tuple[Node, ...]  # each behind those that it reads; the last one makes the image

    def of(self, graph: Any, other: Node) -> Node:
        """The same of another source, made where the graph inserts."""
        made = {self.source: other}
        for step in self.steps:
            arguments, keywords = torch.fx.map_arg((step.args, step.kwargs), lambda node: made.get(node, node))
            made[step] = call(graph, step.target, *arguments, **keywords)
        return made[self.steps[-1]]

    def is_identity(self) -> bool:
        """Whether each pixel is the source's."""
        extents = value_of(self.source).shape[2:]
        if value_of(self.steps[-1]).shape[2:] != extents:
            return False
        pixels = torch.arange(math.prod(extents), device="cpu", dtype=torch.float64).view(1, 1, *extents)
        made = {self.source: pixels}

        def value(node: Node) -> Tensor:
            return made[node] if node in made else constant(node)

        for step in self.steps:
            arguments = torch.fx.map_arg(step.args, value)
            made[step] = arguments[0] if _is_cast(step) else step.target(*arguments)
        return torch.equal(made[self.steps[-1]], pixels)


#: An image that a convolution takes, and what it is an interpolation of, if that is to be moved.
Part = tuple[Node, Resampled | None]


def move_interpolation(graph: Any, constants: Collection[Node]) -> int:
    """Moves interpolation after convolutions of constant filters, if at most half is then left to write; returns the
    number of images."""
    count = 0
    for node in list(graph.nodes):
        if not is_call(node, A.convolution.default) or not _mixes_channels(node, constants):
            continue
        x, k = node.args[0], value_of(node).shape[1]
        if list(x.users) != [node] or upsampled(x):  # that is folded: no large image is written but the result
            continue
        parts = [_part(image) for image in (x.args[0] if _is_concatenation(x) else [x])]
        if 2 * k <= sum(value_of(image).shape[1] for image, moved in parts if moved):
            with graph.inserting_before(node):
                made = _sum(graph, node, parts)
            node.replace_all_uses_with(made)
            count += sum(moved is not None for _, moved in parts)
    graph.eliminate_dead_code()
    return count


def _mixes_channels(node: Node, constants: Collection[Node]) -> bool:
    """Whether a convolution takes each pixel by itself, with constant filters."""
    _, w, bias, stride, padding, _, transposed, _, groups = node.args
    taps = value_of(w).shape[2:]
    alone = set(taps) == set(stride) == {1} and set(padding) == {0} and not transposed and groups == 1
    return alone and w in constants and (bias is None or bias in constants)


def _is_concatenation(x: Node) -> bool:
    return is_call(x, A.cat.default) and x.args[1:] == (1,) and len(set(x.args[0])) == len(x.args[0])


def _part(image: Node) -> Part:
    if len(image.users) != 1 or (found := resampled(image)) is None:
        return image, None
    if found.is_identity():
        return found.source, None
    pixels = (math.prod(value_of(node).shape[2:]) for node in (found.source, image))
    return image, found if next(pixels) < next(pixels) else None


def _sum(graph: Any, convolution: Node, parts: Sequence[Part]) -> Node:
    """A convolution's result, by convolutions of its parts.  That of the parts that stay as they are can take the
    others as an operand of its epilogue."""
    _, w, bias, *geometry = convolution.args
    plain, terms, first = list[Node](), list[Node](), 0
    filters = []
    for image, moved in parts:
        last = first + value_of(image).shape[1]
        of_part = w if len(parts) == 1 else _channels(graph, w, first, last)
        first = last
        if moved:
            small = call(graph, A.convolution.default, moved.source, of_part, None, *geometry)
            terms.append(moved.of(graph, small))
        else:
            plain.append(image)
            filters.append(of_part)
    made = terms[0]
    for term in terms[1:]:
        made = call(graph, A.add.Tensor, made, term)
    if plain:
        rest = call(graph, A.convolution.default, *(_joined(graph, each) for each in (plain, filters)), bias, *geometry)
        return call(graph, A.add.Tensor, rest, made)
    if bias is not None:
        made = call(graph, A.add.Tensor, made, call(graph, A.view.default, bias, [-1, *[1] * len(geometry[0])]))
    return made


def _channels(graph: Any, w: Node, first: int, last: int) -> Node:
    """The channels of filters, in separate memory."""
    return call(graph, A.clone.default, call(graph, A.slice.Tensor, w, 1, first, last), memory_format=_PACKED)


def _joined(graph: Any, nodes: Sequence[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else call(graph, A.cat.default, list(nodes), 1)


# ---- what interpolation is traced to --------------------------------------------------------------


def resampled(image: Node) -> Resampled | None:
    """The image of which another is an interpolation; None if it is none."""
    steps: dict[Node, None] = {}
    sources: set[Node] = set()
    if not _visit(image, steps, sources) or len(sources) != 1:
        return None
    (source,), first = sources, list[Node]()
    while _is_cast(source):  # before pixels are taken
        first.insert(0, source)
        source = source.args[0]
    alike = value_of(source).dtype == value_of(image).dtype
    return Resampled(source, (*first, *steps)) if alike else None


def _visit(node: Node, steps: dict[Node, None], sources: set[Node]) -> bool:
    """Collects the nodes that make an image, each after its inputs, and the images whose pixels are taken.  Returns
    whether all of them are interpolation."""
    images = _images(node)
    for image in images:
        if takes_pixels(node):
            sources.add(image)
        elif image not in steps and not _visit(image, steps, sources):
            return False
    steps[node] = None
    return bool(images)


def _images(node: Node) -> list[Node]:
    """The images that a node is a linear function of, each pixel and channel by itself, or whose pixels it takes; none
    where it is no such function."""
    if _is_cast(node):
        return [node.args[0]]
    if takes_pixels(node):
        return [node.args[0]] if all(constant(index) is not None for index in node.args[1][2:]) else []
    if is_call(node, *_SUMS) and not node.kwargs:
        return list(node.args) if all(_is_like(argument, node) for argument in node.args) else []
    if is_call(node, A.mul.Tensor):
        images = [argument for argument in node.args if _is_like(argument, node)]
        weights = [argument for argument in node.args if argument not in images]
        return images if len(images) == 1 and all(_is_weight(each, node) for each in weights) else []
    return []


def _is_cast(node: Node) -> bool:
    """A copy, or another type of the same."""
    if not is_call(node, *_CASTS) or "device" in node.kwargs:
        return False
    return all(value_of(each).is_floating_point() for each in (node, node.args[0]))


def _is_like(argument: Any, node: Node) -> bool:
    return isinstance(argument, torch.fx.Node) and value_of(argument).shape == value_of(node).shape


def _is_weight(argument: Any, node: Node) -> bool:
    """Whether an argument is a number, or one for each pixel."""
    if isinstance(argument, int | float):
        return True
    weights = constant(argument)
    return weights is not None and math.prod(weights.shape[: 2 - value_of(node).dim()]) == 1
