"""Slices of a convolution's result along its spatial axes, which are less padding: as of causal convolutions that pad
both ends and drop what they make behind the last pixel, and of transposed ones that are trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from convgen.torch.network.trace import is_call, value_of

Node = Any
A: Any = torch.ops.aten


class Crop(NamedTuple):
    """The slice that alone is left of a result, and the pixels of each axis that it lacks at either end."""

    value: Node
    lows: list[int]
    highs: list[int]

    def padding(self, padding: Sequence[int], stride: Sequence[int], transposed: bool) -> list[int]:
        """The padding, as in convgen::fused_conv, of a convolution with this padding that computes only the slice; it
        may be negative."""
        rank = len(stride)
        factors = [1] * rank if transposed else [-s for s in stride]
        pads = zip([*padding[:rank], *padding[-rank:]], [*self.lows, *self.highs], factors * 2, strict=True)
        return [pad + cut * factor for pad, cut, factor in pads]


def crop_of(convolution: Node) -> Crop | None:
    """The consecutive slices of unit step along spatial axes that are a result's only readers, if there are any."""
    rank = value_of(convolution).dim() - 2
    value, cuts = convolution, ([0] * rank, [0] * rank)
    while len(value.users) == 1:
        (user,) = value.users
        if not is_call(user, A.slice.Tensor):
            break
        given: tuple[Any, ...] = (*user.args[1:], *(0, None, None, 1)[len(user.args) - 1 :])
        axis, start, stop, step = given
        extent = value_of(value).shape[axis]
        first, last, _ = slice(start, stop).indices(extent)
        if axis < 2 or step != 1 or first >= last:
            break
        cuts[0][axis - 2] += first
        cuts[1][axis - 2] += extent - last
        value = user
    return Crop(value, *cuts) if value is not convolution else None
