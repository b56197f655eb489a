"""Passes that Inductor writes: the layouts of their results, and which of them are written.

Inductor gives a result the layout of what the pass reads, or the one that an operator behind it asks for.  Where a pass
takes pixels by indices, as interpolation does, it cannot tell the layout and takes channels first: an image with
channels last is then read and written at a fifth of the speed.  So these are laid out with channels last:

- operands of epilogues, which are a list: Inductor heeds what operators ask of tensors, but not of lists of them
- the smallest part of a concatenation that passes alone make; the others follow it
- an interpolated image that is interpolated again: it is written first, since a pixel of the result would otherwise
  compute all the pixels that it takes
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch._inductor import inductor_prims  # noqa: F401  (it registers what lays out)

from convgen.torch.network.chains import POINTWISE
from convgen.torch.network.layouts import FORMATS, is_channels_last
from convgen.torch.network.pixels import takes_pixels
from convgen.torch.network.trace import VIEWS, call, is_call, value_of, with_sources

Node = Any
A: Any = torch.ops.aten
_LAID_OUT = torch.ops.prims.inductor_force_stride_order.default
_SEES = (*VIEWS, A.permute.default, A.transpose.int, A.slice.Tensor, A.squeeze.dim, A.unsqueeze.default)
#: Besides convgen's operators, what gives tensors that Inductor takes as they are.
_OPERATORS = (A.convolution.default, A.empty_strided.default)


def lay_out_passes(graph: Any, constants: Collection[Node]) -> None:
    """Marks the images of `graph` that Inductor is to write with channels last."""
    for node in list(graph.nodes):
        for image in _wanted(node):
            if image not in constants and not _is_given(image):
                _lay_out(graph, image)


def _wanted(node: Node) -> Iterator[Node]:
    """Images that are to be laid out for a node."""
    if node.op != "call_function":
        return
    if getattr(node.target, "namespace", "") == "convgen":
        for operands in node.args:
            if isinstance(operands, list | tuple):
                yield from (each for each in operands if isinstance(each, torch.fx.Node) and _is_image(each))
    elif takes_pixels(node):
        source = node.args[0]
        if _is_image(source) and _is_taken(source):
            yield source
    elif is_call(node, A.cat.default) and _is_image(node):
        parts = node.args[0]
        if len(parts) > 1 and not any(map(_is_given, parts)):
            yield min(parts, key=lambda part: value_of(part).numel())


def _is_image(node: Node) -> bool:
    """Whether a value has channels last, and several of them and of pixels."""
    value = value_of(node)
    if value.dim() not in FORMATS or value.shape[1] == 1 or math.prod(value.shape[2:]) == 1:
        return False
    return is_channels_last(value) and value.is_floating_point()


def _is_given(image: Node) -> bool:
    """Whether Inductor takes a tensor as it is given, or as an operator makes it, and not as suits a pass."""
    while is_call(image, *_SEES) or image.target is operator.getitem:
        image = image.args[0]
    if image.op != "call_function" or is_call(image, _LAID_OUT, *_OPERATORS):
        return True
    return getattr(image.target, "namespace", "") == "convgen"


def _is_taken(image: Node) -> bool:
    """Whether a pass that makes an image takes pixels of another."""
    behind = with_sources(image, lambda node: is_call(node, *POINTWISE, A.clone.default))
    return any(takes_pixels(node) for node in behind)


def _lay_out(graph: Any, image: Node) -> None:
    """All that reads the image reads it as it is laid out."""
    readers = list(image.users)
    with graph.inserting_after(image):
        made = call(graph, _LAID_OUT, image, list(value_of(image).stride()))
    for reader in readers:
        reader.replace_input_with(image, made)
