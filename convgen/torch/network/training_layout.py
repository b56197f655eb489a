"""Training of networks whose channels are not last in memory, as convgen's kernels, and cuDNN's fast ones, want them.

A convolution whose filters have channels last gives a result that has, too, and so does what is computed from that.  So
a graph of Dynamo's gets copies of its filters with channels last, and its results are copied to lie as before.  (For
inference, network.layouts decides for each convolution.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from convgen.torch.network.aliases import memory_of, tensors_among
from convgen.torch.network.layouts import FORMATS
from convgen.torch.network.sizes import has_symbols, with_numbers
from convgen.torch.network.trace import argument

GraphModule = Any
Node = Any
Tensor = Any
_CONVOLUTIONS = (torch.conv2d, torch.conv3d, torch.conv_transpose2d, torch.conv_transpose3d)
#: Libraries whose operators go by the strides of what they read, and modules whose functions do.
_LIBRARIES = ("aten", "prims", "torchvision", "convgen")
_MODULES = ("torch", "_operator", "builtins", "math")
#: Methods and functions for which Dynamo has written strides down, whose results lie otherwise than fake tensors say,
#: or which must not be tried, as they change what holds for the thread.
_EXCEPTIONS = ("as_strided", "as_strided_", "set_", "untyped_storage", "roll", "channel_shuffle", "_enter_autocast")


def with_channels_last(graph_module: GraphModule, inputs: Sequence[Any]) -> GraphModule | None:
    """The graph with channels last within.  None where they are already, where sizes are symbolic, or where the graph
    takes nothing else: a view may not fit then, or become a copy of what is written to."""
    tensors = [given for given in inputs if isinstance(given, torch.Tensor)]
    if len(tensors) < len(inputs) or not any(map(_is_other, tensors)) or has_symbols(tensors):
        return None
    graphs = [module.graph for module in graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    if not all(_goes_by_strides(node) for graph in graphs for node in graph.nodes):
        return None
    with suppress(Exception):  # whatever fake tensors do not do
        made = with_numbers(graph_module, {})  # a copy
        before = _Trial(made, tensors)
        copied = [_copied(node, before.values) for node in list(made.graph.nodes)]
        if any(copied):
            made.recompile()
            after = _Trial(made, tensors)
            if before.shared() == after.shared(before.values):
                _lay_out_results(made, before.values, after.values)
                made.recompile()
                return made
    return None


class _Trial(torch.fx.Interpreter):
    """A run with fake tensors: `values` of all nodes, of which none is computed."""

    def __init__(self, graph_module: GraphModule, like: Sequence[Tensor]) -> None:
        super().__init__(graph_module)
        self.values: dict[Node, Any] = {}
        self._written: set[int] = set()
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            self.run(*[torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in like])

    def run_node(self, node: Node) -> Any:
        read = tensors_among([self.values[each] for each in node.all_input_nodes])
        versions = [tensor._version for tensor in read]
        self.values[node] = result = super().run_node(node)
        self._written |= {memory_of(t) for t, version in zip(read, versions, strict=True) if t._version != version}
        return result

    def shared(self, nodes: Any = None) -> set[frozenset[Node]]:
        """Nodes whose tensors share memory that is written to, or that a result has."""
        sharing = defaultdict(set)
        for node in self.values if nodes is None else nodes:
            for tensor in tensors_among(self.values[node]):
                sharing[memory_of(tensor)].add(node)
        (output,) = self.module.graph.find_nodes(op="output")
        results = {memory_of(self.values[node]) for node in _tensors_of(output, self.values)}
        outside = {*output.all_input_nodes, *self.module.graph.find_nodes(op="placeholder")}
        return {frozenset(sharing[memory]) for memory in self._written} | {
            frozenset(sharing[memory] & outside) for memory in results
        }


def _is_other(tensor: Tensor) -> bool:
    """Whether it has channels, and not last."""
    return tensor.dim() in FORMATS and not tensor.is_contiguous(memory_format=FORMATS[tensor.dim()])


def _goes_by_strides(node: Node) -> bool:
    """Whether a node gives the same elements whatever the layout of its inputs, and determines its result's layout."""
    if node.op == "call_method":
        return str(node.target) not in _EXCEPTIONS
    if node.op != "call_function":
        return True
    target, name = node.target, str(getattr(node.target, "__name__", "")).split(".")[0]
    if isinstance(target, torch._ops.HigherOrderOperator):  # its functions are graphs themselves
        return "triton" not in target.name()
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target).split(".")[0].split("::")[0] in _LIBRARIES and name not in _EXCEPTIONS
    module = str(getattr(target, "__module__", None) or "torch")
    return module.split(".")[0] in _MODULES and "_functorch" not in module and name not in _EXCEPTIONS


def _copied(node: Node, values: dict[Node, Any]) -> bool:
    """Lets a convolution read a copy of its filters."""
    if node.op != "call_function" or node.target not in _CONVOLUTIONS:
        return False
    filters = argument(node, 1, "weight", None)
    if not (isinstance(filters, torch.fx.Node) and _is_other(values[filters])):
        return False
    keywords = {"memory_format": FORMATS[values[filters].dim()]}
    with node.graph.inserting_before(node):
        node.replace_input_with(filters, node.graph.call_method("contiguous", (filters,), keywords))
    return True


def _lay_out_results(graph_module: GraphModule, before: dict[Node, Any], after: dict[Node, Any]) -> None:
    """Copies results to lie as before.  Raises ValueError where torch has no name for that."""
    (output,) = graph_module.graph.find_nodes(op="output")
    for node in list(_tensors_of(output, after)):
        was, value = before[node], after[node]
        if was.stride() != value.stride():
            if not was.is_contiguous():
                raise ValueError
            with graph_module.graph.inserting_before(output):
                made = graph_module.graph.call_method("contiguous", (node,))
                if value.is_contiguous():  # strides of axes of one element
                    made = graph_module.graph.call_method("as_strided", (made, tuple(was.shape), was.stride()))
                output.replace_input_with(node, made)


def _tensors_of(output: Node, values: dict[Node, Any]) -> Iterator[Node]:
    return (node for node in output.all_input_nodes if isinstance(values[node], torch.Tensor))
