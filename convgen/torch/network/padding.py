"""Padding by a separate function before a convolution, which becomes the convolution's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from convgen.torch.network.trace import argument, is_call, value_of

Node = Any
A: Any = torch.ops.aten
_MODES = {
    **{A.reflection_pad1d.default: "reflect", A.reflection_pad2d.default: "reflect"},
    **{A.reflection_pad3d.default: "reflect", A.replication_pad1d.default: "replicate"},
    **{A.replication_pad2d.default: "replicate", A.replication_pad3d.default: "replicate"},
}
#: What pads images.
PADDINGS = (A.constant_pad_nd.default, *_MODES)


def is_border(x: Node) -> bool:
    """Whether a node pads an image with the image's own pixels."""
    return is_call(x, *_MODES)


class Padded(NamedTuple):
    """The input of a convolution that pads by itself: `padding` as of convgen::conv, and what it is made of."""

    x: Node
    padding: list[int]
    mode: str = "zeros"


def padded(x: Node, padding: Sequence[int]) -> Padded:
    """The padded input of a convolution that reads x with this padding, one number per axis."""
    rank = len(padding)
    plain = Padded(x, list(padding))
    if is_call(x, A.constant_pad_nd.default) and not argument(x, 2, "value", 0):
        mode = "zeros"
    elif is_call(x, *_MODES) and not any(padding):
        mode = _MODES[x.target]
    else:
        return plain
    source, amounts = x.args[:2]  # of the last axis first
    if len(amounts) > 2 * rank or min(amounts) < 0 or value_of(source).dim() != rank + 2:
        return plain
    amounts = [*amounts, *[0] * (2 * rank - len(amounts))]
    lows, highs = ([p + a for p, a in zip(padding, amounts[side::2][::-1], strict=True)] for side in (0, 1))
    return Padded(source, lows if lows == highs else lows + highs, mode)
