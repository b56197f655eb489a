"""`torch.compile(model, backend="convgen")`: Dynamo's graphs, each prepared as `optimize` prepares a model."""

from __future__ import annotations

import functools
import logging
import re
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Any, cast

import torch

from convgen.spec import known_tuning
from convgen.torch.network.inductor import for_any_sizes
from convgen.torch.network.options import Options
from convgen.torch.network.prepare import Prepared, kind, make_room, without_data
from convgen.torch.network.report import WRITES, Report, limit_of_tracers, told, warn
from convgen.torch.network.sizes import AnySizes, Kinds, numbers_of
from convgen.torch.network.trace import tracing
from convgen.torch.network.training import compile_training, is_of_compiled_autograd
from convgen.torch.network.training_sizes import TrainingOfAnySizes
from convgen.torch.network.untaken import hinting
from convgen.torch.network.views import View, joined, views_of

Tensor = Any
_log = logging.getLogger("convgen.torch")
#: convgen's own, and their defaults.
_OPTIONS: dict[str, Any] = {"measure": True, "inductor": True, "sums": True, "tune": None}
#: Dynamo's of tensors that are attributes of modules.
_MARK = "_dynamo_static_input_type"
_reports: deque[Report] = deque(maxlen=64)


def compile_graph(
    graph_module: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """What torch.compile calls.  `mode` and `options` are Inductor's; the options `measure` and `tune` are those of
    `optimize`, and `sums` is convgen's, too.

    Of a graph whose gradients are recorded, convolutions and their gradients go through convgen where it is faster, and
    Inductor compiles the rest.  With `sums` they also give BatchNorm's sums where that saves time.  Each set of shapes
    is prepared at its first call; of a graph with symbols for sizes, those that network.sizes says.
    """
    config: dict[str, Any] = dict(torch._inductor.list_mode_options(mode)) if mode else {}
    config |= options or {}
    own = {name: config.pop(name, default) for name, default in _OPTIONS.items()}
    if own["tune"] is not None:
        known_tuning(own["tune"])
    chosen = Options(**own, config=config)
    if torch.is_grad_enabled():
        records = any(isinstance(given, torch.Tensor) and given.requires_grad for given in example_inputs)
    else:
        records = _takes_gradients(graph_module)
    if records and any(isinstance(given, torch.SymInt) for given in example_inputs):
        return hinting(TrainingOfAnySizes(graph_module, example_inputs, chosen, _tell))
    if records:
        return hinting(compile_training(graph_module, example_inputs, chosen, _tell))
    if is_of_compiled_autograd(example_inputs):
        return compile_training(graph_module, example_inputs, chosen, _tell)
    if _holds_weights(graph_module):
        return _by_inductor(graph_module, example_inputs, chosen)
    return _Graph(graph_module, example_inputs, chosen)


def register() -> None:
    """Registers the backend by its name if convgen is not installed; otherwise torch finds it."""
    if not entry_points(group="torch_dynamo_backends", name="convgen"):
        with suppress(AssertionError):  # it is known
            torch._dynamo.register_backend(compile_graph, name="convgen")


def _takes_gradients(graph_module: Any) -> bool:
    """Whether a graph turns the recording of gradients on, to take some itself."""
    return any(node.target is torch._C._set_grad_enabled and node.args == (True,) for node in graph_module.graph.nodes)


def _holds_weights(graph_module: Any) -> bool:
    """Whether weights are attributes of a graph, as those are that an optimizer's step writes to, and no arguments."""
    return any(True for _ in graph_module.parameters()) or any(hasattr(held, _MARK) for held in graph_module.buffers())


def _by_inductor(graph_module: Any, example_inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """A graph without convgen's part in it."""
    if not options.inductor:
        return cast(Callable[..., Any], graph_module)
    from torch._inductor import compile_fx as fx

    return cast(Callable[..., Any], fx.compile_fx(graph_module, list(example_inputs), config_patches=options.config))


def reports() -> list[Report]:
    """Reports of the graphs that backend "convgen" prepared most recently in this process, the latest last."""
    return list(_reports)


def _tell(report: Report) -> None:
    _reports.append(report)
    _log.info("%s", report)


#: What computes the results of arguments.
_Ready = Callable[[Sequence[Any]], Any]


class _OfModule:
    """The preparations for a module, by kinds of inputs, and the constants that they share."""

    def __init__(self) -> None:
        self.prepared: dict[Any, _Ready] = {}
        self.shared: Any = weakref.WeakValueDictionary()
        self.kinds = Kinds()


class _Graph:
    """A graph of Dynamo's as a callable, which prepares itself for the arguments that come."""

    def __init__(self, graph_module: Any, example_inputs: Sequence[Any], options: Options) -> None:
        self._function, self._options = graph_module, options
        # a graph does not turn on what was on before it, and torch.func.grad within one gives zeros where it is off
        self._with_gradients = torch.is_grad_enabled()
        self._numbers = numbers_of(graph_module)
        nodes = list(graph_module.graph.find_nodes(op="placeholder"))
        self._weights = [i for i, given in enumerate(example_inputs) if _is_weight(given, nodes[i])]
        self._inputs = [i for i, _ in enumerate(example_inputs) if i not in set(self._weights)]
        self._names = [_readable(nodes[i].name) for i in self._weights]
        # by the first weight: one code object may serve several modules, which Dynamo tells apart by weights alone
        self._of_modules: Any = torch.utils.weak.WeakIdKeyDictionary()
        self._without_weights = _OfModule()
        self._is_symbolic = any(isinstance(given, torch.SymInt) for given in example_inputs)
        by_inductor = self._is_symbolic and options.inductor
        self._for_any_sizes = AnySizes(
            graph_module, for_any_sizes(graph_module, options.config) if by_inductor else graph_module
        )

    def __call__(self, *given: Any) -> Any:
        arguments = [each.item() if i in self._numbers else each for i, each in enumerate(given)]
        key = tuple(kind(arguments[i]) for i in self._inputs)
        of = self._of_module(arguments)
        found = of.prepared.get(key) if of else None
        if found is None and self._is_symbolic and of and not of.kinds.is_wanted(key):
            return self._for_any_sizes(*arguments)
        if found is None:
            with tracing():
                found = self._made(key, arguments)
        return found(arguments)

    def _of_module(self, arguments: Sequence[Any]) -> _OfModule | None:
        return self._of_modules.get(arguments[self._weights[0]]) if self._weights else self._without_weights

    def _as_it_is(self, arguments: Sequence[Any]) -> Any:
        return self._function(*arguments)

    def _with_writes(self, arguments: Sequence[Any]) -> Any:
        """Runs a graph unchanged and marks its buffers as written, for graphs that have folded them: BatchNorm's kernel
        writes its statistics silently."""
        results = self._as_it_is(arguments)
        buffers = [arguments[i] for i in self._weights if not isinstance(arguments[i], torch.nn.Parameter)]
        torch.autograd.graph.increment_version([buffer for buffer in buffers if not buffer.is_inference()])
        return results

    def _made(self, key: Any, arguments: Sequence[Any]) -> _Ready:
        of = self._of_module(arguments)
        if of is None:
            of = self._of_modules[arguments[self._weights[0]]] = _OfModule()
        if key not in of.prepared:
            made = self._prepare(arguments, of)
            make_room(of.prepared)
            of.prepared[key] = made
        return of.prepared[key]

    def _prepare(self, arguments: Sequence[Any], of: _OfModule) -> _Ready:
        weights, inputs = ([arguments[i] for i in indices] for indices in (self._weights, self._inputs))
        tensors = _tensors(inputs)
        if without_data((*weights, *tensors)):
            return self._as_it_is
        # the kept object holds no tensors: the model may exchange their memory
        count, others = len(weights), [None if isinstance(given, torch.Tensor) else (given,) for given in inputs]

        def function(*given: Tensor) -> Any:
            left = iter(given[count:])
            arguments = dict(zip(self._weights, given, strict=False))
            for i, other in zip(self._inputs, others, strict=True):
                arguments[i] = other[0] if other else next(left)
            with torch.set_grad_enabled(self._with_gradients):
                return self._function(*(arguments[i] for i in range(len(arguments))))

        def computed(*given: Tensor) -> tuple[Any, ...]:
            return tuple(result for i, result in enumerate(function(*given)) if i not in views)

        views: dict[int, View] = {}
        try:
            try:
                made = Prepared(computed, weights, self._names, tensors, self._options, of.shared)
            except RuntimeError:  # of views among the results, which torch's tracer does not take
                views = views_of(function, [*weights, *tensors])
                if not views:
                    raise
                made = Prepared(computed, weights, self._names, tensors, self._options, of.shared)
        except Exception as error:  # whatever torch cannot trace, or Inductor compile: the graph itself is right
            reason = told(error)
            warn(f"convgen leaves a graph to aten: {reason}")
            _tell(Report(notes=[f"nothing was optimized: {reason}"]))
            return self._with_writes if limit_of_tracers(error) == WRITES else self._as_it_is
        _tell(made.report)
        of.kinds.convolutions.append(len(made.report))
        return functools.partial(self._run, made, views)

    def _run(self, prepared: Prepared, views: Mapping[int, View], arguments: Sequence[Any]) -> Any:
        weights, tensors = [arguments[i] for i in self._weights], _tensors(arguments[i] for i in self._inputs)
        results = prepared.run(weights, tensors)
        return joined(views, results, [*weights, *tensors]) if views else results


def _tensors(inputs: Iterable[Any]) -> list[Tensor]:
    return [given for given in inputs if isinstance(given, torch.Tensor)]


def _is_weight(given: Any, node: Any) -> bool:
    """A parameter, or what Dynamo says is a buffer: of the tensor, and of the node, since the parts of a graph that
    DistributedDataParallel splits come with other tensors, fake ones."""
    marked = hasattr(given, _MARK) or _MARK in node.meta.get("tensor_dict", ())
    return isinstance(given, torch.nn.Parameter) or (isinstance(given, torch.Tensor) and marked)


def _readable(placeholder: str) -> str:
    """l_self_modules_layer1_modules_0_parameters_weight_ as layer1.0.weight."""
    parts = re.findall(r"(?:modules|parameters|buffers)_(.+?)_?(?=_modules_|_parameters_|_buffers_|$)", placeholder)
    return ".".join(parts) or placeholder
