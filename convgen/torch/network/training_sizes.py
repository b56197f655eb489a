"""A graph with symbols for sizes whose gradients are recorded.

As soon as a size has changed, as with the last batch of an epoch, Dynamo has symbols for it, and from there on all
batches go to the graph with symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from convgen.torch.memory import is_out_of_memory
from convgen.torch.network.inductor import fixed_sizes, with_symbols, without_graphs
from convgen.torch.network.options import Options
from convgen.torch.network.prepare import kind, without_data
from convgen.torch.network.report import Report, told, warn
from convgen.torch.network.sizes import AnySizes, Kinds, numbers_of, with_numbers
from convgen.torch.network.trace import tracing
from convgen.torch.network.training import compile_training

#: A graph as a callable of its tensors.
_Compiled = Callable[..., Any]


class TrainingOfAnySizes:
    """A graph of Dynamo's as a callable whose results have gradients; `inputs` say which of its arguments are numbers,
    and `tell` hears the report of each pass."""

    def __init__(
        self, graph_module: Any, inputs: Sequence[Any], options: Options, tell: Callable[[Report], None]
    ) -> None:
        self._graph_module, self._options, self._tell = graph_module, options, tell
        self._floats = numbers_of(graph_module)
        sizes = (i for i, given in enumerate(inputs) if not isinstance(given, torch.Tensor))
        self._numbers = sorted({*sizes, *self._floats})
        self._kinds = Kinds()
        self._compiled: dict[Any, _Compiled] = {}
        self._for_any_sizes = AnySizes(graph_module, with_symbols(graph_module, self._with_symbols))

    def __call__(self, *given: Any) -> Any:
        if without_data(given):
            return self._graph_module(*given)
        numbers = {i: given[i].item() if i in self._floats else given[i] for i in self._numbers}
        tensors = [each for i, each in enumerate(given) if i not in numbers]
        key = tuple(map(kind, numbers.values()))
        if compiled := self._compiled.get(key):
            return compiled(*tensors)
        arguments = [numbers.get(i, each) for i, each in enumerate(given)]
        # what a checkpoint computes again, within a backward pass, goes the way that it went, and ends by raising
        if torch._C._current_graph_task_id() != -1:
            return self._for_any_sizes.run(*arguments)
        with tracing():
            compiled = self._compiled.get(key) or self._compile(key, numbers, tensors)
        return compiled(*tensors) if compiled else self._for_any_sizes(*arguments)

    def _compile(self, key: Any, numbers: dict[int, Any], tensors: Sequence[Any]) -> _Compiled | None:
        """The graph for these numbers; None for those that it is not compiled for."""
        if not self._kinds.is_wanted(key):
            return None
        reports: list[Report] = []

        def tell(report: Report) -> None:
            reports.append(report)
            self._tell(report)

        try:
            with fixed_sizes(tensors) as fakes:
                made = compile_training(with_numbers(self._graph_module, numbers), fakes, self._options, tell)
        except Exception as error:  # what torch does not compile so; it may for any sizes, or says what is wrong
            if is_out_of_memory(error):
                raise
            warn(f"convgen leaves a graph to Inductor, for sizes that change from call to call: {told(error)}")
            self._kinds.convolutions.append(0)
            return None
        self._kinds.convolutions.append(sum(map(len, reports)))
        self._compiled[key] = made
        return made

    def _with_symbols(self, graph_module: Any, inputs: Sequence[Any]) -> _Compiled:
        options = replace(self._options, config=without_graphs(self._options.config))
        return compile_training(graph_module, inputs, options, self._tell)
