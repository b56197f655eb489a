"""Borders of an image's own pixels, by which a pass over the image pads on its way.

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
from convgen.torch.network.trace import STAYS, is_call

Node = Any
A: Any = torch.ops.aten
_VIEWS = (A.view.default, A.permute.default)
_COPY = A.clone.default


def leave_to_passes(graph: Any) -> None:
    """Puts a copy between a convolution and the border that a pass makes: then the border is not the convolution's, and
    the copy, which Inductor makes in the pass, too, has channels last."""
    for node in list(graph.nodes):
        if is_call(node, A.convolution.default) and is_border(border := node.args[0]) and _is_pass(border.args[0]):
            with graph.inserting_before(node):
                made = copied(graph, border)
            made.meta[STAYS] = True
            node.replace_input_with(border, made)


def _is_pass(image: Node) -> bool:
    """Whether a pass, and no convolution's epilogue, makes an image that only one node reads."""
    made = image
    while is_call(made, *_VIEWS) and len(made.users) == 1:
        made = made.args[0]
    pending, seen = [made], set()
    while pending:
        node = pending.pop()
        if is_call(node, A.convolution.default):
            return False
        if node not in seen and node.target in (*POINTWISE, *_VIEWS, _COPY):
            pending += node.all_input_nodes
        seen.add(node)
    return len(made.users) == 1 and made.target in (*POINTWISE, _COPY)
