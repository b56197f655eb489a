"""How Inductor writes `convgen::copy_into` and `convgen::interleaved`: the pass that makes a result writes it where it
belongs.

Of `copy_into(slice, pool(x))` Inductor would make the pool's result and a copy.  Where nothing else reads the result,
it is told that the slice is its memory.  So it is of the parts of `interleaved`, each of which is a slice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

A: Any = torch.ops.aten


@cache
def lower_copies() -> None:
    """From here on, Inductor knows how to write convgen's copies."""
    try:
        from torch._inductor.lowering import register_lowering
    except ImportError:  # it is not public: another torch may call the operator
        return
    register_lowering(torch.ops.convgen.copy_into.default, type_promotion_kind=None)(_copy_into)
    register_lowering(torch.ops.convgen.interleaved.default, type_promotion_kind=None)(_interleaved)


def _copy_into(out: Any, input: Any) -> None:
    from torch._inductor.virtualized import V

    _write(out, input, V.graph.current_node.args[1])


def _write(out: Any, input: Any, node: Any) -> None:
    """Writes a node's result into a slice."""
    from torch._inductor import ir
    from torch._inductor.lowering import mutate_to

    alias = _may_be_slice(input, node)
    if not alias:
        input = ir.ExternKernel.require_stride_order(input, ir.get_stride_order(out.get_stride()))
    mutate_to(out, input, unsafe_alias=alias)


def _interleaved(parts: Sequence[Any], steps: Sequence[int], size: Sequence[int], stride: Sequence[int]) -> Any:
    from torch._inductor.lowering import lowerings
    from torch._inductor.virtualized import V

    make, cut = lowerings[A.empty_strided.default], lowerings[A.slice.Tensor]
    whole = make(size, stride, dtype=parts[0].get_dtype(), device=parts[0].get_device())
    whole.realize()
    nodes = V.graph.current_node.args[0]
    for phase, part, node in zip(phases(steps), parts, nodes, strict=True):
        piece = whole
        for axis, (first, step) in enumerate(zip(phase, steps, strict=True), len(size) - len(steps)):
            piece = cut(piece, axis, first, size[axis], step)
        if 0 not in part.get_size():
            _write(piece, part, node)
    return whole


def phases(steps: Sequence[int]) -> list[tuple[int, ...]]:
    """The phases of pixels, by their coordinates modulo these numbers, in the order of `interleaved`'s parts."""
    return list(itertools.product(*map(range, steps)))


def _may_be_slice(input: Any, node: Any) -> bool:
    """Whether a pass makes a tensor, of this node, that nothing reads but the copy, and that may lie anywhere."""
    from torch._inductor import ir

    if len(node.users) > 1 or not isinstance(box := input.data, ir.StorageBox):
        return False
    box.realize()
    return isinstance(box.data, ir.ComputedBuffer) and isinstance(box.data.layout, ir.FlexibleLayout)
