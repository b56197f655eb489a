"""Training of networks whose channels are not last in memory, as convgen's kernels, and cuDNN's fast ones, want them.

A convolution whose filters have channels last gives a result that has, too, and so does what is computed from that.  So
a graph of Dynamo's gets copies of its filters with channels last, and its results are copied to lie as before.  (For
inference, network.layouts decides for each convolution.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from convgen.torch.network.sizes import with_numbers

GraphModule = Any
Node = Any
Tensor = Any
_CONVOLUTIONS = (torch.conv2d, torch.conv3d, torch.conv_transpose2d, torch.conv_transpose3d)
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
#: Libraries whose operators go by the strides of what they read.
_LIBRARIES = ("aten", "prims", "torchvision", "convgen")


def with_channels_last(graph_module: GraphModule, inputs: Sequence[Any]) -> GraphModule | None:
    """The graph with channels last within.  None where they are already, where sizes are symbolic, or where the graph
    takes nothing else: a view may not fit then."""
    tensors = [given for given in inputs if isinstance(given, torch.Tensor)]
    if len(tensors) < len(inputs) or not any(map(_is_other, tensors)):
        return None
    if any(map(_has_symbols, tensors)) or any(map(_takes_strides_for_granted, graph_module.graph.nodes)):
        return None
    with suppress(Exception):  # whatever fake tensors do not do
        made = with_numbers(graph_module, {})
        before = _Values(made).of(tensors)
        copied = [_copied(node, before) for node in list(made.graph.nodes)]
        if any(copied):
            made.recompile()
            _lay_out_results(made, before, _Values(made).of(tensors))
            made.recompile()
            return made
    return None


class _Values(torch.fx.Interpreter):
    """Fake tensors of all nodes, and nothing computed."""

    def of(self, like: Sequence[Tensor]) -> dict[Node, Any]:
        self.values: dict[Node, Any] = {}
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            self.run(*[torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in like])
        return self.values

    def run_node(self, node: Node) -> Any:
        self.values[node] = result = super().run_node(node)
        return result


def _is_other(tensor: Tensor) -> bool:
    """Whether it has channels, and not last."""
    return tensor.dim() in _FORMATS and not tensor.is_contiguous(memory_format=_FORMATS[tensor.dim()])


def _has_symbols(tensor: Tensor) -> bool:
    return any(isinstance(number, torch.SymInt) for number in (*tensor.shape, *tensor.stride()))


def _takes_strides_for_granted(node: Node) -> bool:
    """Whether Dynamo may have written strides down that a node's tensors had, or its kernel may expect them."""
    if node.op == "call_method":
        return str(node.target) in ("as_strided", "as_strided_", "set_", "untyped_storage")
    if node.op != "call_function":
        return False
    name = str(getattr(node.target, "__name__", node.target))
    library = getattr(node.target, "namespace", "aten")  # of an operator
    return "as_strided" in name or "triton_kernel" in name or library not in (*_LIBRARIES, "higher_order")


def _copied(node: Node, values: dict[Node, Any]) -> bool:
    """Lets a convolution read a copy of its filters."""
    if node.op != "call_function" or node.target not in _CONVOLUTIONS:
        return False
    filters = node.kwargs.get("weight", node.args[1] if len(node.args) > 1 else None)
    if not (isinstance(filters, torch.fx.Node) and _is_other(values[filters])):
        return False
    keywords = {"memory_format": _FORMATS[values[filters].dim()]}
    with node.graph.inserting_before(node):
        node.replace_input_with(filters, node.graph.call_method("contiguous", (filters,), keywords))
    return True


def _lay_out_results(graph_module: GraphModule, before: dict[Node, Any], after: dict[Node, Any]) -> None:
    """Copies results to lie as before.  Raises ValueError where torch has no name for that."""
    (output,) = graph_module.graph.find_nodes(op="output")
    for node in list(_tensors_of(output, after)):
        if before[node].stride() != after[node].stride():
            if not before[node].is_contiguous():
                raise ValueError
            with graph_module.graph.inserting_before(output):
                output.replace_input_with(node, graph_module.graph.call_method("contiguous", (node,)))


def _tensors_of(output: Node, values: dict[Node, Any]) -> Iterator[Node]:
    return (node for node in output.all_input_nodes if isinstance(values[node], torch.Tensor))
