"""Graphs whose sizes change from call to call, for which Dynamo has symbols: with the number of objects in an image, or
that of images in the last batch of an epoch.

convgen's kernels are for fixed sizes.  So such a graph is prepared for some kinds of inputs, and for all others it is
compiled once, by Inductor, for any sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import torch

from convgen.torch.memory import is_out_of_memory
from convgen.torch.network.report import told, warn

#: Kinds of inputs that a graph is prepared for when they first come: the batches of a data set whose last one is short.
AT_ONCE = 2
#: And in all, with kinds that come again.
MOST_KINDS = 8
#: Kinds of which a graph knows that they came.
_MOST_SEEN = 64
#: What Dynamo says of an argument, and of all that a graph has: AOTAutograd knows by it what lies at the same place in
#: each call.
_SOURCE, _SOURCES = "_dynamo_source", "_param_name_to_source"
#: What it says of a node's value, in terms of symbols.
_OF_SYMBOLS = ("example_value", "unbacked_bindings")


class Kinds:
    """Which kinds of inputs a graph is prepared for: each takes seconds, or minutes for training.  `convolutions` is
    their number in each that is."""

    def __init__(self) -> None:
        self.convolutions: list[int] = []
        self._seen: dict[Hashable, None] = {}

    def is_wanted(self, key: Hashable) -> bool:
        """Whether the graph should be prepared for a kind that it is not prepared for yet, and which comes now."""
        comes_again = key in self._seen
        self._seen[key] = None
        if len(self._seen) > _MOST_SEEN:
            self._seen.pop(next(iter(self._seen)), None)
        if self.convolutions and not any(self.convolutions):  # nothing to gain
            return False
        return len(self.convolutions) < (MOST_KINDS if comes_again else AT_ONCE)


class AnySizes:
    """A graph, `function`, as `compiled` computes it for any sizes; as it is where torch does not compile it so."""

    def __init__(self, function: Callable[..., Any], compiled: Callable[..., Any]) -> None:
        self._function, self.run = function, compiled

    def __call__(self, *arguments: Any) -> Any:
        if self.run is self._function:
            return self.run(*arguments)
        try:
            return self.run(*arguments)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            results = self._function(*arguments)  # which raises the error in the arguments
            warn(f"convgen leaves a graph to aten, for sizes that change from call to call: {told(error)}")
            self.run = self._function
            return results


def has_symbols(values: Iterable[Any]) -> bool:
    """Whether symbols are among these, or among the sizes and strides of tensors."""
    return any(
        isinstance(number, torch.SymInt)
        for value in values
        for number in ((*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,))
    )


def numbers_of(graph_module: Any) -> set[int]:
    """The indices of arguments that are numbers, which the graph then takes as such: with dynamic sizes, Dynamo passes
    floats as tensors, and its graph calls item() on them, or that of a checkpoint within it does."""
    arguments = graph_module.graph.find_nodes(op="placeholder")
    found = {i for i, argument in enumerate(arguments) if _is_number(graph_module, argument)}
    for i in found:
        _take_number(graph_module, arguments[i])
    return found


def _is_number(graph_module: Any, argument: Any) -> bool:
    """Whether all that reads an argument calls item() on it."""

    def takes_number(reader: Any) -> bool:
        if (reader.op, reader.target) == ("call_method", "item"):
            return True
        within = _within(graph_module, reader, argument)
        return bool(within) and all(_is_number(*each) for each in within)

    return bool(argument.users) and all(map(takes_number, argument.users))


def _take_number(graph_module: Any, argument: Any) -> None:
    for reader in list(argument.users):
        if reader.op == "call_method":
            reader.replace_all_uses_with(argument)
            graph_module.graph.erase_node(reader)
        else:
            for within in _within(graph_module, reader, argument):
                _take_number(*within)
    graph_module.recompile()


def _within(graph_module: Any, call: Any, argument: Any) -> list[tuple[Any, Any]]:
    """The graph that a call runs as a whole, such as a checkpoint's, with each of its arguments that this one is."""
    body: Any = call.args[0] if call.args else None
    if isinstance(call.target, torch._ops.HigherOrderOperator) and getattr(body, "op", "") == "get_attr":
        inner = getattr(graph_module, body.target)
        parameters = inner.graph.find_nodes(op="placeholder") if isinstance(inner, torch.fx.GraphModule) else []
        if len(parameters) == len(call.args) - 1:
            return [(inner, own) for own, given in zip(parameters, call.args[1:], strict=True) if given is argument]
    return []


def with_numbers(graph_module: Any, numbers: Mapping[int, Any]) -> Any:
    """The graph with numbers in place of its arguments of these indices: those are left for tensors alone."""
    graph, copies = torch.fx.Graph(), {}
    for i, node in enumerate(graph_module.graph.nodes):  # arguments come first
        if i in numbers:
            copies[node] = numbers[i]
        else:
            copies[node] = made = graph.node_copy(node, copies.__getitem__)
            made.meta = {key: value for key, value in node.meta.items() if key not in _OF_SYMBOLS}
            _copy(_SOURCE, node, made)
    made = torch.fx.GraphModule(graph_module, graph)
    made.meta.update(graph_module.meta)
    _copy(_SOURCES, graph_module, made)
    return made


def _copy(name: str, source: Any, target: Any) -> None:
    if hasattr(source, name):
        setattr(target, name, getattr(source, name))
