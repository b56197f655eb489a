"""A function of weights and inputs, made ready for one set of shapes: traced, fused, measured, packed, compiled."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch._subclasses import FakeTensor

from convgen.diagnostics import ConvgenError
from convgen.functional.prebuild import prebuilding
from convgen.torch.launch import recipe
from convgen.torch.memory import is_out_of_memory
from convgen.torch.network.aliases import writes_alike
from convgen.torch.network.batch_norm import fold_batch_norms, write_out_batch_norms
from convgen.torch.network.before_concatenations import move_before_concatenations
from convgen.torch.network.borders import leave_to_passes
from convgen.torch.network.branches import merge_branches
from convgen.torch.network.chains import chain_of
from convgen.torch.network.choice import Chooser, Measured, OnCpu
from convgen.torch.network.concatenations import in_place, rebuilt
from convgen.torch.network.constants import OtherWeights, Packed, constant_nodes, move_numbers, packing, split
from convgen.torch.network.filled_rows import fill_rows
from convgen.torch.network.halves import split_in_halves
from convgen.torch.network.image_sums import sums_behind, use_sums
from convgen.torch.network.inductor import compiled
from convgen.torch.network.layouts import (
    FORMATS,
    Layout,
    check_strides,
    has_one_channel,
    is_channels_last,
    keep_strides,
    lay_out,
    layouts_of_results,
    reads_memory,
    same_strides,
    settle,
    with_channels_last,
)
from convgen.torch.network.linears import linears_as_convolutions, restore
from convgen.torch.network.low_rank import merge_products
from convgen.torch.network.normalizations import write_out
from convgen.torch.network.options import Options
from convgen.torch.network.passes import lay_out_passes
from convgen.torch.network.pools import split_pools
from convgen.torch.network.report import Report, Row, told, warn
from convgen.torch.network.resampling import move_interpolation
from convgen.torch.network.sink import sink_views
from convgen.torch.network.trace import faked, flat_graph, is_call, placeholders, value_of
from convgen.torch.network.views import joined, placed, take_out_views, views_among
from convgen.torch.network.writes import on_copies, overlap, written_inputs

Tensor = Any
Node = Any
A: Any = torch.ops.aten


def kind(argument: Any) -> Any:
    """A preparation's key of an argument."""
    if isinstance(argument, torch.Tensor) and (argument.is_nested or argument.layout != torch.strided):
        return type(argument), argument.is_nested, argument.layout, argument.dtype, argument.device, argument.dim()
    if isinstance(argument, torch.Tensor):
        marks = argument.is_conj(), argument.is_neg(), isinstance(argument, FakeTensor)
        return argument.shape, argument.stride(), argument.dtype, argument.device, marks
    # 1, 1.0 and True are equal, as 0.0 and -0.0 are
    return type(argument), repr(argument) if isinstance(argument, float) else argument


def without_data(tensors: Iterable[Tensor]) -> bool:
    """Whether there are fake ones, whose memory a compiled graph would read, and constants be made of."""
    return any(isinstance(tensor, FakeTensor) for tensor in tensors)


def resolved(tensor: Tensor) -> Tensor:
    """A tensor without torch's marks of conjugates and negatives: a trace is for tensors of the same marks, and
    Inductor overlooks that of a negative.  Of a subclass that only names what it holds, torch's own, of which graphs
    are."""
    kind = type(tensor)
    own = kind in (torch.Tensor, torch.nn.Parameter)
    if not own and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        tensor = tensor.as_subclass(torch.Tensor)
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def context() -> tuple[Any, ...]:
    """A preparation's key of the context: the type and the device of new tensors, and the types that autocast casts
    to."""
    device = torch.get_default_device() if torch._C._len_torch_function_stack() else None
    return (
        torch.get_default_dtype(),
        device,
        *(
            torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
            for device in ("cpu", "cuda")
        ),
    )


#: Kinds of inputs that a model stays prepared for.
MOST_PREPARED = 64


def make_room(prepared: dict[Any, Any]) -> None:
    """For another kind of inputs: the first ones go."""
    while len(prepared) >= MOST_PREPARED:
        del prepared[next(iter(prepared))]


class Rewritten(Enum):
    """How much of a network is rewritten, by the message that says why it is not more."""

    ALL = ""
    CONVOLUTIONS = "linear layers, normalizations and concatenations stay as they are, because this fails with them"
    NOTHING = "the whole is left to Inductor, because this fails where convolutions are convgen's"

    @property
    def next(self) -> Rewritten:
        levels = list(Rewritten)
        return levels[min(levels.index(self) + 1, len(levels) - 1)]


def _why_simpler(level: Rewritten, simpler: Rewritten, error: Exception, options: Options) -> str:
    """The message if a network cannot be rewritten so far, or Inductor then fails to compile it; raises the error if
    nothing simpler is left, or if parts do as well."""
    if not options.inductor or level is Rewritten.NOTHING or isinstance(error, OtherWeights) or is_out_of_memory(error):
        raise error
    note = f"{simpler.value}: {told(error)}"
    warn(f"convgen.torch.optimize: {note}")
    return note


class Prepared:
    """`run(weights, inputs)` gives the function's results, a sequence of tensors; `report` says how.

    `function(*weights, *inputs)` is traced here, with these tensors; constants that are packed of the weights, by their
    names, are `shared` with those of the same model.  Raises what torch raises where it cannot be.
    """

    def __init__(
        self, function: Callable[..., Any], weights: Sequence[Tensor], names: Sequence[str], inputs: Sequence[Any],
        options: Options, shared: MutableMapping[Any, Packed],
    ) -> None:  # fmt: skip
        weights, inputs = [weight.detach() for weight in weights], [resolved(tensor) for tensor in inputs]
        self._written: list[int] = []
        try:
            traced = _traced(function, weights, inputs)
        except RuntimeError:  # of writes to inputs, which torch's tracer does not take
            self._written = written_inputs(function, weights, inputs)
            if not self._written or overlap(self._written, weights, inputs):
                raise
            self._function = function
            function = on_copies(function, len(weights), self._written)
            traced = _traced(function, weights, inputs)
        level, notes = Rewritten.ALL, list[str]()
        while True:
            self.report, simpler = Report(notes=[*notes]), level.next
            try:
                meanwhile = self._rewrite(traced, level, names, options)
                simpler = Rewritten.NOTHING
                with prebuilding(meanwhile):  # while Inductor compiles
                    self._compile(traced[0], function, weights, names, inputs, options, shared)
                return
            except Exception as error:
                notes.append(_why_simpler(level, simpler, error, options))
            level, traced = simpler, _traced(function, weights, inputs)

    def _rewrite(
        self, traced: tuple[Any, list[Node], bool], level: Rewritten, names: Sequence[str], options: Options
    ) -> list[str]:
        """Makes the graph's convolutions convgen's, with what they fuse.  Returns the kernels that may be built
        meanwhile."""
        graph_module, first, memory = traced
        graph, constants = graph_module.graph, first[: len(names)]
        if level is Rewritten.NOTHING:
            return []
        move_numbers(graph, constant_nodes(graph, constants))
        every = level is Rewritten.ALL
        if every:
            moved = move_before_concatenations(graph, constant_nodes(graph, constants))
            self._note(moved, "function", "moved before concatenations")
        merged = merge_branches(graph, constant_nodes(graph, constants))
        self._note(merged, "layer", "merged into a convolution of the same input")
        folded = fold_batch_norms(graph, constant_nodes(graph, constants))
        behind = "the convolution before it" if folded == 1 else "the convolutions before them"
        self._note(folded, "BatchNorm", f"folded into {behind}")
        if every:
            split_pools(graph)
            moved = move_interpolation(graph, constant_nodes(graph, constants))
            self._note(moved, "interpolation", "moved behind 1x1 convolutions")
            merged = merge_products(graph, constant_nodes(graph, constants))
            self._note(merged, "linear layer", "merged into another one of the same input")
            write_out_batch_norms(graph, constant_nodes(graph, constants))
            linears_as_convolutions(graph)
            sink_views(graph)
            filled = fill_rows(graph, constant_nodes(graph, constants))
            self._note(filled, "convolution", "given more channels, for rows of 16 bytes")
        _name_layers(graph, constants, names)
        if every and options.inductor:
            leave_to_passes(graph)
        on_gpu = any(isinstance(value := node.meta.get("val"), torch.Tensor) and value.is_cuda for node in first)
        chooser = Measured(options.measure, options.tune) if on_gpu else OnCpu()
        # what is left of a normalization is a pass of several functions, which Inductor makes one, and lies otherwise
        normalizes = every and options.inductor and not memory
        self.report.rows += _fuse(graph, chooser, normalizes and options.sums)
        if normalizes and on_gpu:
            write_out(graph)
        restore(graph)
        joined = every and in_place(graph, options.inductor)
        self._note(joined, "concatenation", "written in place")
        if every and options.inductor:
            lay_out_passes(graph, constant_nodes(graph, constants))
        return texts_of_slices(graph) if joined and on_gpu else []

    def _note(self, count: int, noun: str, done: str) -> None:
        """Has the report say how many of something were rewritten, if any were."""
        if count:
            self.report.notes.append(f"1 {noun} is {done}" if count == 1 else f"{count} {noun}s are {done}")

    def _compile(
        self, graph_module: Any, function: Callable[..., Any], weights: Sequence[Tensor], names: Sequence[str],
        inputs: Sequence[Any], options: Options, shared: MutableMapping[Any, Packed],
    ) -> None:  # fmt: skip
        """Makes what runs of a graph in which convolutions are convgen's."""
        graph = graph_module.graph
        own = cache(lambda: faked(function, [*weights, *inputs])[1])
        self._shown = take_out_views(graph, own, keep_strides(graph, own))
        if not options.inductor:
            check_strides(graph)
        self._expected, self._own, self._looking = layouts_of_results(graph), function, threading.Lock()
        pack, run = split(graph_module, placeholders(graph)[: len(weights)])
        # by one and the same way of packing: inputs of other shapes often want the same constants
        key = packing(pack, weights, names)
        self._packed = shared[key] = shared.get(key) or Packed(pack, weights)
        self._packed.held_by(run)
        self._run = compiled(run, inputs, options.config) if options.inductor else run

    def run(self, weights: Sequence[Tensor], inputs: Sequence[Any]) -> Sequence[Tensor]:
        """For inference: no gradients are recorded."""
        with torch.no_grad():
            if self._written and overlap(self._written, weights, inputs):
                return self._function(*weights, *inputs)
            self._packed.update(weights)
            as_traced = [resolved(tensor) for tensor in inputs]
            results = list(self._run(*as_traced))
            if self._expected:
                self._look_at(results, [*weights, *as_traced])
            views, layouts = self._shown
            for i, layout in layouts.items():
                results[i] = layout.laid_out(results[i])
            count = len(results) - len(self._written)
            for i, value in zip(self._written, results[count:], strict=True):
                inputs[i].copy_(value)
            return joined(views, results[:count], results) if views else results[:count]

    def _look_at(self, results: Sequence[Any], given: Sequence[Tensor]) -> None:
        """Checks the first results: if their strides differ from those of fake ones, such as torch.roll's, a run of the
        model itself tells the right ones.  Other threads wait for that."""
        with self._looking:
            if not all(same_strides(results[i], layout) for i, layout in self._expected.items()):
                with torch.random.fork_rng({tensor.device.index for tensor in given if tensor.is_cuda}):
                    own = self._own(*given)
                found = views_among(own)
                if found.keys() == self._shown[0].keys():
                    every = {i: Layout.of(result) for i, result in enumerate(own) if isinstance(result, torch.Tensor)}
                    self._shown = placed(found, own, every)
            self._expected = {}

    def forget_weights(self) -> None:
        """Lets the next run pack the weights anew."""
        self._packed.forget()


def texts_of_slices(graph: Any) -> list[str]:
    """Specs of the convolutions that read or write slices."""
    texts = []
    for arguments in rebuilt(graph):
        with suppress(ConvgenError):  # the caller that needs the kernel gets the error
            texts.append(recipe(*arguments).convolution.text)
    return [text for text in texts if " of " in text]


# ---- tracing ------------------------------------------------------------------------------------


def _traced(
    function: Callable[..., Any], weights: Sequence[Tensor], inputs: Sequence[Any]
) -> tuple[Any, list[Node], bool]:
    """The graph of the function on tensors with channels last; its placeholders, which stay as they are given; and
    whether the function itself reads memory, whatever axes mean."""
    given = [*weights, *inputs]
    images = [with_channels_last(t) if has_one_channel(t) else _channels_last(t) for t in inputs]
    laid_out = [*map(_channels_last, weights), *images]
    try:
        as_given = not writes_alike(function, given, laid_out)
        if not as_given:
            graph_module = flat_graph(function, laid_out)
            as_given = reads_memory(graph_module.graph)
    except (RuntimeError, ValueError):  # a view of the model's own needs the layout that it was written for
        as_given = True
    if as_given:
        graph_module = flat_graph(function, given)
    first = placeholders(graph_module.graph)
    graph = graph_module.graph
    memory = reads_memory(graph)
    lay_out(graph, first, given, constant_nodes(graph, first[: len(weights)]))
    return graph_module, first, memory


def _channels_last(given: Any) -> Any:
    if not isinstance(given, torch.Tensor) or is_channels_last(given):
        return given
    return given.detach().contiguous(memory_format=FORMATS[given.dim()])


# ---- convolutions -------------------------------------------------------------------------------


#: What a layer's parameter is called behind the layer's name, those of weight_norm and spectral_norm, too.
_PARAMETER = re.compile(r"[._]?(parametrizations\.)?(weight|bias)(_g|_v|_orig|\.original\d*)?$")


def _name_layers(graph: Any, weights: Sequence[Node], names: Sequence[str]) -> None:
    """Each convolution's node has the name of the layer that its filters belong to."""
    layers = {node: _PARAMETER.sub("", name) for node, name in zip(weights, names, strict=True)}
    constants = constant_nodes(graph, weights)
    for node in _convolutions(graph):
        node.meta["layer"] = _layer_of(node.args[1], layers, constants)


def _layer_of(filters: Node, layers: Mapping[Node, str], constants: Collection[Node]) -> str:
    """For filters that are computed for each image, the layer that is mixed, not the one that decides how."""
    pending = [filters]
    while pending:
        node = pending.pop()
        if node in layers:
            return layers[node]
        pending += sorted(reversed(node.all_input_nodes), key=constants.__contains__)
    return "?"


def _convolutions(graph: Any) -> list[Node]:
    return [node for node in graph.nodes if is_call(node, A.convolution.default)]


def _fuse(graph: Any, chooser: Chooser, sums: bool) -> list[Row]:
    halved = split_in_halves(graph)
    chooser.prepare([found for node in _convolutions(graph) if (found := chain_of(node))], sums)
    for halves in halved:
        if not chooser.splits(halves):
            halves.undo()
    graph.eliminate_dead_code()
    rows = []
    for node in _convolutions(graph):
        layer = node.meta.get("layer", "?")
        chain = chain_of(node)
        if chain is None:
            dtype = str(value_of(node.args[0]).dtype).removeprefix("torch.")
            rows.append(Row(layer, "aten", why_not=f"it is of {dtype}: cast the model to float16, bfloat16 or float32"))
            continue
        choice = chooser.choose(chain, layer)
        rows.append(choice.row)
        if choice.end is not None:
            before = value_of(choice.end.node)
            asked = sums_behind(choice.chain, choice.end) if sums else None
            row = chooser.sums(asked, choice.row) if asked else None
            settle(graph, made := choice.chain.fuse(graph, choice.end), before)
            if row:
                rows[-1] = row
                use_sums(graph, made)
    chooser.release()
    graph.eliminate_dead_code()
    return rows
