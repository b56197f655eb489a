"""How Inductor writes `convgen::copy_into`: the pass that makes a result writes it where it belongs.

Of `copy_into(slice, pool(x))` Inductor would make the pool's result and a copy.  Where nothing else reads the result,
it is told that the slice is its memory.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def lower_copies() -> None:
    """From here Inductor knows how to write convgen::copy_into."""
    try:
        from torch._inductor.lowering import register_lowering
    except ImportError:  # it is not public: another torch may call the operator
        return
    register_lowering(torch.ops.convgen.copy_into.default, type_promotion_kind=None)(_copy_into)


def _copy_into(out: Any, input: Any) -> None:
    from torch._inductor import ir
    from torch._inductor.lowering import mutate_to

    alias = _may_be_slice(input)
    if not alias:
        input = ir.ExternKernel.require_stride_order(input, ir.get_stride_order(out.get_stride()))
    mutate_to(out, input, unsafe_alias=alias)


def _may_be_slice(input: Any) -> bool:
    """Whether a pass makes a tensor that nothing reads but the copy, and that may lie anywhere."""
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    if len(V.graph.current_node.args[1].users) > 1 or not isinstance(box := input.data, ir.StorageBox):
        return False
    box.realize()
    return isinstance(box.data, ir.ComputedBuffer) and isinstance(box.data.layout, ir.FlexibleLayout)
