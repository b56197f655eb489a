"""Gradients of max pooling with overlapping windows, in graphs for training.

For each pixel, Inductor checks every window that may contain it: four, for 3x3 windows at stride 2.  But a pixel's
phase, its coordinates modulo the strides, determines which windows contain it:

    row 2u        is the second row of window u                                             (padding 1)
    row 2u + 1    is the third row of window u and the first row of window u + 1

So the gradient of a phase is a sum of taps.  A tap is the gradient of a window whose maximum lies there, or else zero.
Four pixels have 9 taps instead of 16, without divisions: on an H200, 64 images of 112x112 pixels and 64 channels take
118 us instead of 383.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._inductor import inductor_prims  # noqa: F401  (it registers the places)

from convgen.torch.network.layouts import is_channels_last
from convgen.torch.network.lowerings import phases as phases_of
from convgen.torch.network.trace import call, filled, is_call, value_of

Node = Any
Tensor = Any
A: Any = torch.ops.aten
#: As aten has it: gradient, input, windows, strides, padding, dilation, ceil_mode, indices of the maxima.
_GRADIENT = A.max_pool2d_with_indices_backward.default
#: From the places of maxima within their windows, which take a byte each, to indices of pixels.
_AS_INDICES = torch.ops.prims._low_memory_max_pool_offsets_to_indices.default


class _Table(dict[Any, Any]):
    """Decompositions, of which the key of Inductor's cache, a pickle, has the name alone: it knows torch's version, and
    convgen's."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Table, ()


def with_gradients_kept(decompositions: Mapping[Any, Any]) -> dict[Any, Any]:
    """A table of decompositions that leaves these gradients whole where windows overlap.  (torch 2.13 has one, into
    atomic additions.)"""
    usual = decompositions.get(_GRADIENT)
    if usual is None:
        return _Table(decompositions)

    def decomposed(gradient: Tensor, image: Tensor, windows: Any, strides: Any, *others: Any) -> Any:
        kept = image.dim() == 4 and is_channels_last(image) and _overlap(_pair(windows), _pair(strides or windows))
        return NotImplemented if kept else usual(gradient, image, windows, strides, *others)

    return _Table({**decompositions, _GRADIENT: decomposed})


def write_by_phases(graph: Any) -> bool:
    """Rewrites the gradients of max pooling in a graph of Inductor's, and says whether there were such."""
    served = [node for node in graph.nodes if is_call(node, _GRADIENT) and _is_served(node)]
    for node in served:
        with graph.inserting_before(node):
            made = _by_phases(graph, node)
        node.replace_all_uses_with(made)
        indices = node.args[7]
        graph.erase_node(node)
        if not indices.users:
            graph.erase_node(indices)
    return bool(served)


def _pair(given: Any) -> list[int]:
    given = [given] if isinstance(given, int) else list(given)
    return given * (2 // len(given))


def _overlap(windows: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether windows overlap, and there are several phases."""
    return any(window > stride for window, stride in zip(windows, strides, strict=True)) and max(strides) > 1


def _is_served(node: Node) -> bool:
    gradient, image, windows, strides, _, dilation, _, indices = node.args
    if not is_call(indices, _AS_INDICES) or value_of(gradient).dim() != 4 or any(d != 1 for d in _pair(dilation)):
        return False
    sizes = (*value_of(gradient).shape, *value_of(image).shape)
    fixed = all(isinstance(size, int) and size for size in sizes)
    return fixed and is_channels_last(value_of(image)) and _overlap(_pair(windows), _pair(strides or windows))


def _by_phases(graph: Any, node: Node) -> Node:
    gradient, image, windows, strides, padding, *_, indices = node.args
    windows, strides, padding = _pair(windows), _pair(strides or windows), _pair(padding)
    places, shape = indices.args[0], value_of(image).shape
    pooled = value_of(gradient).shape[2:]
    phases = []
    for phase in phases_of(strides):
        extents = [len(range(first, size, step)) for first, size, step in zip(phase, shape[2:], strides, strict=True)]
        taps = [
            _tap(graph, gradient, places, [tap for tap, _ in both], windows, [ahead for _, ahead in both], extents)
            for both in itertools.product(*map(_taps_of, phase, windows, strides, padding))
            if all(_rows(ahead, n, p)[1] for (_, ahead), n, p in zip(both, extents, pooled, strict=True))
        ]
        phases.append(_sum(graph, taps, gradient, [*shape[:2], *extents]))
    made = value_of(node)
    return call(graph, torch.ops.convgen.interleaved.default, phases, strides, list(made.shape), list(made.stride()))


def _taps_of(phase: int, window: int, stride: int, padding: int) -> Iterator[tuple[int, int]]:
    """For the pixels stride * u + phase of an axis: each tap that falls on them, and its window's number minus u."""
    for tap in range(window):
        if (phase + padding - tap) % stride == 0:
            yield tap, (phase + padding - tap) // stride


def _rows(ahead: int, extent: int, pooled: int) -> tuple[int, int]:
    """Among the windows u + ahead, for u < extent: the first that exists, and how many do."""
    first = max(ahead, 0)
    return first, max(min(ahead + extent, pooled) - first, 0)


def _tap(
    graph: Any, gradient: Node, places: Node, tap: list[int], windows: list[int], ahead: list[int], extents: list[int]
) -> Node:
    """A tap of all pixels of a phase."""
    margins: list[int] = []
    for axis in range(2):
        first, count = _rows(ahead[axis], extents[axis], value_of(gradient).shape[2 + axis])
        gradient, places = (call(graph, A.slice.Tensor, t, 2 + axis, first, first + count) for t in (gradient, places))
        low = first - ahead[axis]
        margins = [low, extents[axis] - low - count, *margins]
    here = call(graph, A.eq.Scalar, places, tap[0] * windows[1] + tap[1])
    made = call(graph, A.where.self, here, gradient, filled(graph, gradient, [], 0.0))
    return call(graph, A.constant_pad_nd.default, made, margins, 0.0) if any(margins) else made


def _sum(graph: Any, taps: list[Node], gradient: Node, shape: list[int]) -> Node:
    if not taps:  # pixels between windows, or past the last
        return filled(graph, gradient, shape, 0.0)
    total = taps[0]
    for tap in taps[1:]:
        total = call(graph, A.add.Tensor, total, tap)
    return total
