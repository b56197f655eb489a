"""Borders of an image's own pixels, which a pass over the image adds as it goes.

A convolution pads by zeros for free, but by mirrored or repeated pixels its kernel needs a copy of the image: a launch
of its own.  Where Inductor compiles a pass that makes the image anyway, such as a normalization with its activation,
the pass writes the padded image instead.
"""

from __future__ import annotations

from typing import Any

import torch

from convgen.torch.network.chains import POINTWISE
from convgen.torch.network.layouts import copied
from convgen.torch.network.padding import is_border
from convgen.torch.network.trace import STAYS, is_call, value_of, with_sources

Node = Any
A: Any = torch.ops.aten
_VIEWS = (A.view.default, A.permute.default)
_COPY = A.clone.default
_SHUFFLES = (A.pixel_shuffle.default, A.pixel_unshuffle.default)


def leave_to_passes(graph: Any) -> None:
    """Puts a copy between a convolution and the border that a pass makes: then the border is not the convolution's, and
    the copy, which Inductor makes in the pass, too, has channels last."""
    for node in list(graph.nodes):
        if not is_call(node, A.convolution.default) or not is_border(border := node.args[0]):
            continue
        if _is_pass(border.args[0]) and not _is_rearranged(border.args[0]):
            with graph.inserting_before(node):
                made = copied(graph, border)
            made.meta[STAYS] = True
            node.replace_input_with(border, made)


def _is_pass(image: Node) -> bool:
    """Whether a pass, and no convolution's epilogue, makes an image that only one node reads."""
    made = image
    while is_call(made, *_VIEWS) and len(made.users) == 1:
        made = made.args[0]
    behind = with_sources(made, lambda node: node.target in (*POINTWISE, *_VIEWS, _COPY))
    if any(is_call(node, A.convolution.default) for node in behind):
        return False
    return len(made.users) == 1 and made.target in (*POINTWISE, _COPY)


def _is_rearranged(image: Node) -> bool:
    """Whether pixels of an image come from other places, as by PixelShuffle, after the convolutions before it: torch
    2.13's Inductor fails where it repeats such pixels."""
    rank = value_of(image).dim() - 2
    behind = with_sources(image, lambda node: not is_call(node, A.convolution.default))
    return any(
        is_call(node, *_SHUFFLES) or (is_call(node, A.view.default) and _moves_pixels(node, rank)) for node in behind
    )


def _moves_pixels(view: Node, rank: int) -> bool:
    """Whether a view has other spatial axes than what it is of; where either has one pixel, none moves."""
    before, after = (value_of(node).shape[-rank:] for node in (view.args[0], view))
    return before != after and min(before.numel(), after.numel()) > 1
