"""Values computed from 16-bit weights, rounded once.

A model standardizes weights, normalizes them, or merges branches in its own type, and torch rounds after each step: to
11 bits in float16, to 8 in bfloat16.  Here each step is computed in float32, and what the steps make is rounded, as in
a kernel that Inductor fuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from convgen.functional.arrays import span
from convgen.torch.network.chains import NARROW

Node = Any
Tensor = Any
A: Any = torch.ops.aten

_READS_BITS = {A.view.dtype}  # takes memory for another type's
#: What rounds nothing, beside views: weights that are packed alone need no memory of float32.
_MOVES = {f.default for f in (A.clone, A._to_copy, A.cat, A.stack, A.constant_pad_nd, A.flip)}


class RoundedOnce(torch.fx.Interpreter):
    """Runs a graph of pure functions in float32 wherever it says float16 or bfloat16; results have the types that the
    graph says.  What only lies otherwise (a view) stays in the memory that it is a view of."""

    def run_node(self, n: Node) -> Any:
        if n.op == "output":
            return torch.fx.map_arg(n.args[0], self._rounded)
        if n.op != "call_function":
            return super().run_node(n)
        args, kwargs = torch.fx.map_arg((n.args, n.kwargs), self._reads_of(n.target))
        made = n.target(*args, **kwargs)
        return _rounded(made, n) if all(user.op == "output" for user in n.users) else made

    def _reads_of(self, target: Any) -> Any:
        """A function's access to the values of the nodes that it reads."""
        if not isinstance(target, torch._ops.OpOverload):  # an item of a tuple
            return self.env.__getitem__
        if target.namespace != "aten" or target in _READS_BITS:
            return self._rounded
        return self.env.__getitem__ if target.is_view or target in _MOVES else self._widened

    def _widened(self, node: Node) -> Any:
        value = self.env[node]
        return value.float() if _is_plain(value) and value.dtype in NARROW else value

    def _rounded(self, node: Node) -> Any:
        return _rounded(self.env[node], node)


def rounded_once(graph_module: Any, weights: Sequence[Tensor]) -> Sequence[Tensor]:
    """The results of a graph of weights."""
    results: Sequence[Tensor] = RoundedOnce(graph_module).run(*weights)
    return results


def _rounded(value: Any, node: Node) -> Any:
    """A node's value in the type that the graph says, with the same strides."""
    meant = node.meta.get("val")
    if not _is_plain(value) or not isinstance(meant, torch.Tensor) or value.dtype == meant.dtype:
        return value
    if not value.numel():
        return value.to(meant.dtype)
    memory = value.as_strided((span(value.shape, value.stride()),), (1,))
    return memory.to(meant.dtype).as_strided(value.shape, value.stride(), 0)


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor whose type says how it is kept: not a quantized one of a class of its own."""
    return type(value) in (torch.Tensor, torch.nn.Parameter)
