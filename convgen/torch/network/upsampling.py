"""Nearest upsampling folded into the convolution after it, which becomes a transposed one.

    y[p] = sum over r of w[r] x[(p + r - low) // f]    =    sum over j of v[p - f j + R - 1 - low] x[j]

Each pixel of x is f equal pixels of the upsampled image, so a tap of v is the sum of those of w that read one of them:
v is w, mirrored, convolved with f ones.  It has R + f - 1 taps in f phases, so that an output pixel takes
(R + f - 1) / f of them an axis: for f = 2 and 3x3 filters, 2x2 instead of 3x3.  This holds at the edges, too: both sums
are over all pixels of x, and padding adds zeros to neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from convgen.torch.network.chains import Chain
from convgen.torch.network.pixels import constant, takes_pixels
from convgen.torch.network.rounding import before_rounding
from convgen.torch.network.trace import call, is_call, value_of

Node = Any
Tensor = Any
A: Any = torch.ops.aten


def folded(chain: Chain) -> Chain | None:
    """The chain with the upsampling before it folded into its convolution; None if there is none, if others read the
    upsampled image, or if the convolution is not of unit stride and dilation with padding of zeros."""
    source = upsampled(chain.x)
    taps = value_of(chain.w).shape[2:]
    rank = len(chain.stride)
    lows, highs = chain.padding[:rank], chain.padding[-rank:]
    plain = set(chain.stride) == set(chain.dilation) == {1} and chain.padding_mode == "zeros" and not chain.transposed
    if source is None or not plain or any(max(pads) >= r for r, *pads in zip(taps, lows, highs, strict=True)):
        return None
    factors = _factors(source, chain.x)
    with chain.convolution.graph.inserting_before(chain.convolution):
        filters = _filters(chain.w, factors, chain.groups)
    cuts = [r - 1 - p for side in (lows, highs) for p, r in zip(side, taps, strict=True)]
    return replace(chain, x=source, w=filters, stride=factors, padding=cuts, transposed=True, upsampled=True)


def upsampled(x: Node) -> Node | None:
    """The image from which x is made by nearest upsampling by whole numbers, if a single node reads x: torch traces it
    as an index of each axis, in float32, and perhaps a copy with channels last."""
    copies = [x]
    while is_call(x, A.clone.default, A._to_copy.default) and len(x.users) == 1:
        x = x.args[0]
        copies.append(x)
    if not takes_pixels(x) or len(x.users) != 1 or not _is_nearest(x):
        return None
    source = x.args[0]
    if is_call(source, A._to_copy.default) and value_of(source).dtype != value_of(copies[0]).dtype:
        source = source.args[0]
    dtype = value_of(source).dtype
    exact = value_of(copies[0]).dtype == dtype and {value_of(copy).dtype for copy in copies} <= {dtype, torch.float32}
    return source if exact else None


def _is_nearest(x: Node) -> bool:
    """Whether an index of pixels takes each as often as the next, in order."""
    source, indices = x.args
    rank = len(indices) - 2
    for axis, (index, factor) in enumerate(zip(indices[2:], _factors(source, x), strict=True)):
        pixels, extent = constant(index), value_of(source).shape[axis + 2]
        if pixels is None or value_of(x).shape[axis + 2] != extent * factor:
            return False
        nearest = torch.arange(extent, device="cpu").repeat_interleave(factor).view(-1, *[1] * (rank - 1 - axis))
        if pixels.squeeze().shape != nearest.squeeze().shape or not torch.equal(pixels.view_as(nearest), nearest):
            return False
    return True


def _factors(source: Node, x: Node) -> list[int]:
    return [
        large // max(small, 1) for large, small in zip(value_of(x).shape[2:], value_of(source).shape[2:], strict=True)
    ]


def _filters(w: Node, factors: Sequence[int], groups: int) -> Node:
    """The filters of the transposed convolution, (c, k / groups, ...), made from w (k, c / groups, ...): the sums in
    float64, rounded once.  In memory the input's channels are last, as a convolution reads its filters."""
    graph, dtype = w.graph, value_of(w).dtype
    rank = len(factors)
    made = call(graph, A._to_copy.default, before_rounding(w), dtype=torch.float64)
    made = call(graph, A.flip.default, made, list(range(2, rank + 2)))
    for axis, factor in enumerate(factors):
        before = [0] * (2 * (rank - 1 - axis))  # amounts begin with the last axis
        spread = [call(graph, A.constant_pad_nd.default, made, [*before, t, factor - 1 - t]) for t in range(factor)]
        made = spread[0]
        for other in spread[1:]:
            made = call(graph, A.add.Tensor, made, other)
    made = call(graph, A._to_copy.default, made, dtype=dtype)
    k, c, *taps = value_of(made).shape
    made = call(graph, A.reshape.default, made, [groups, k // groups, c, *taps])
    spatial = range(3, rank + 3)
    made = call(graph, A.permute.default, made, [1, *spatial, 0, 2])  # k / groups, ..., groups, c / groups
    made = call(graph, A.clone.default, made, memory_format=torch.contiguous_format)
    made = call(graph, A.view.default, made, [k // groups, *taps, groups * c])
    return call(graph, A.permute.default, made, [rank + 1, *range(rank + 1)])
