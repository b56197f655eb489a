"""Graphs whose gradients are recorded: convolutions and their gradients go through convgen where it is faster.

AOTAutograd splits a training step into a graph of the forward pass and one of the backward pass.  In both, each
aten::convolution and each gradient of aten::convolution_backward is timed beside aten's; those that convgen computes
faster become operators of convgen.  Where BatchNorm's sums follow (network.sums), a kernel that makes them, too, is
timed beside the faster of the two and the passes over memory that it spares.  Inductor compiles the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from convgen.diagnostics import ConvgenError
from convgen.functional.arrays import channels_last, is_packed
from convgen.functional.prebuild import prebuilding
from convgen.ir.problem import Op
from convgen.torch import ops
from convgen.torch.asked import (
    Asked,
    Bare,
    Forward,
    Gradient,
    Summed,
    bias_axes,
    of_backward,
    of_convolution,
    order_of,
)
from convgen.torch.choices import Choices
from convgen.torch.network.gated_sums import sum_before_gates
from convgen.torch.network.inductor import OF_TRAINING, compiled_combined, keyed
from convgen.torch.network.layouts import FORMATS, same_strides
from convgen.torch.network.options import Options
from convgen.torch.network.pool_gradients import with_gradients_kept, write_by_phases
from convgen.torch.network.report import Report, Row
from convgen.torch.network.sigmoids import write_sigmoids
from convgen.torch.network.sizes import has_symbols
from convgen.torch.network.sums import Ending, ending_of
from convgen.torch.network.trace import call, is_call, value_of
from convgen.torch.network.training_layout import with_channels_last
from convgen.torch.summed import operator_of

pytree = torch.utils._pytree

Tensor = Any
Node = Any
A: Any = torch.ops.aten
Compiler = Callable[..., Any]


def compile_training(
    graph_module: Any, inputs: Sequence[Any], options: Options, tell: Callable[[Report], None]
) -> Callable[..., Any]:
    """A graph of Dynamo's as a callable whose results have gradients; or that of a backward pass, whose inputs compiled
    autograd gives in a list.  `tell` hears the report of each pass."""
    in_list = is_of_compiled_autograd(inputs)
    if _is_on_gpu(inputs):
        graph_module = with_channels_last(graph_module, inputs) or graph_module

    def rewritten(graph_module: Any, backward: bool) -> Any:
        rows = take_convolutions(graph_module.graph, ops.choices, options.measure, options.sums, options.tune)
        if rows:
            tell(Report(rows, [f"of a {'backward' if backward or in_list else 'forward'} pass, for training"]))
            graph_module.recompile()
        return graph_module

    if not options.inductor:
        from torch._dynamo.backends.common import aot_autograd
        from torch._dynamo.utils import flatten_graph_inputs
        from torch._functorch.aot_autograd import make_boxed_func
        from torch._functorch.partitioners import min_cut_rematerialization_partition as partition

        def by_aten(backward: bool, graph_module: Any, inputs: Sequence[Any]) -> Any:
            return make_boxed_func(rewritten(graph_module, backward).forward)

        passes = {"fw_compiler": partial(by_aten, False), "bw_compiler": partial(by_aten, True)}
        # BatchNorm's statistics are written in the graph, as Inductor has it: a checkpoint reads what was before them
        compiler = aot_autograd(**passes, partition_fn=partition, keep_inference_input_mutations=True)
        return flatten_graph_inputs(graph_module, inputs, compiler) if in_list else compiler(graph_module, inputs)
    from torch._functorch import config as functorch
    from torch._inductor import compile_fx as fx
    from torch._inductor.decomposition import select_decomp_table

    def by_inductor(graph_module: Any, inputs: Sequence[Any], **facts: Any) -> Any:
        wrote = write_sigmoids(graph_module.graph)  # first: gradients of SiLU are known by them
        graph_module = rewritten(graph_module, bool(facts.get("is_backward")))
        if any([wrote, write_by_phases(graph_module.graph), sum_before_gates(graph_module.graph)]):
            graph_module.recompile()
        return compiled_combined(graph_module, inputs, **facts)

    with functorch.patch(enable_autograd_cache=False):  # its key is the graph before this
        return fx.compile_fx(
            graph_module,
            list(inputs),
            inner_compile=by_inductor,
            config_patches=keyed({**OF_TRAINING, **options.config}),
            decompositions=with_gradients_kept(select_decomp_table()),
        )


def is_of_compiled_autograd(inputs: Sequence[Any]) -> bool:
    """Whether a graph is a backward pass of torch's compiled autograd, which gives tensors in a list."""
    return any(isinstance(given, list) for given in inputs)


def _is_on_gpu(inputs: Sequence[Any]) -> bool:
    return any(isinstance(given, torch.Tensor) and given.is_cuda for given in inputs)


@dataclass(frozen=True)
class _Candidate:
    """A convolution, or one gradient of a convolution_backward: its result number `index`.

    It reads the node's arguments of these numbers.
    """

    node: Node
    asked: Bare
    reads: tuple[int, ...]
    index: int | None = None

    @property
    def results(self) -> list[Node]:
        """The nodes whose value it is."""
        return [self.node] if self.index is None else _readers(self.node, self.index)

    @property
    def ending(self) -> Ending | None:
        """The sums that follow it, as the graph is now."""
        of_filters = isinstance(self.asked, Gradient) and self.asked.op is Op.WGRAD
        return None if of_filters or len(self.results) != 1 else ending_of(self.results[0])

    def lies_as_before(self) -> bool:
        """Whether convgen's result has the same strides as aten's, as far as they matter."""
        operator, numbers = _operator(self.asked)
        first, second = self.asked.reads
        made = operator(first, second, *numbers)
        return same_strides(made, value_of(self.results[0]))


@torch.no_grad()
def take_convolutions(
    graph: Any, choices: Choices, measure: bool = True, sums: bool = True, tune: str | None = None
) -> list[Row]:
    """Puts convgen's operators in the place of aten's where the choices say so, and without `measure` wherever convgen
    serves; with `sums`, those that give BatchNorm's sums, too; with `tune`, the best of some kernels.  Gives the
    report's rows."""
    candidates: list[_Candidate] = []
    rows = []
    for node in graph.nodes:
        if is_call(node, A.convolution.default, A.convolution_backward.default):
            if why_not := _obstacle(node):
                rows.append(Row(_layer(node), "aten", why_not=why_not))
            else:
                candidates += _candidates(graph, node)
    for candidate in [c for c in candidates if not c.lies_as_before()]:
        rows.append(Row(candidate.asked.layer, "aten", why_not="aten lays the result out otherwise"))
        candidates.remove(candidate)
    asked: list[Asked] = [candidate.asked for candidate in candidates]
    asked += [ending.asked(c.asked) for c in candidates if sums and (ending := c.ending)]
    with ThreadPoolExecutor(1) as thread:  # in which no tracer's mode is in effect, and no autocast
        thread.submit(_decide, asked, choices, measure, tune).result()
    taken, passed = _take_sums(graph, candidates, choices) if sums else ({}, {})
    for i, candidate in enumerate(candidates):
        row = choices.row(taken.get(i, candidate.asked))
        rows.append(replace(row, why_not=row.why_not or passed.get(i, "")))
        if i not in taken and choices.launch(candidate.asked) is not None:
            _replace(graph, candidate)
    for node in {candidate.node for candidate in candidates}:
        _drop_unread(graph, node)
    return rows


def _take_sums(
    graph: Any, candidates: Sequence[_Candidate], choices: Choices
) -> tuple[dict[int, Summed], dict[int, str]]:
    """Puts convgen's operators that give sums where the choices say so.  Returns those that were taken, and why others
    were not, by the candidates' numbers."""
    taken, passed = {}, {}
    # the last first: of two gradients that add up, the later one gives the sums, as it has the other one at hand
    for i, candidate in reversed(list(enumerate(candidates))):
        if ending := candidate.ending:
            asked = ending.asked(candidate.asked)
            if choices.launch(asked) is not None:
                _replace_with_sums(graph, candidate, ending, asked)
                taken[i] = asked
            else:
                row = choices.row(asked)
                timed = row.us and row.aten_us
                reason = f"{row.us:.1f} us, for {row.aten_us:.1f} of the parts" if timed else row.why_not
                passed[i] = f"with sums: {reason}"
    return taken, passed


def _decide(asked: Sequence[Asked], choices: Choices, measure: bool, tune: str | None) -> None:
    """Kernels are built many at a time; meanwhile aten's are timed, among which cuDNN takes a while to choose."""
    served = []
    for one in asked:
        with suppress(ConvgenError):  # the row says why
            served.append((one, one.recipe().convolution.text))
    if any(one.reads[0].is_cuda for one in asked):
        with prebuilding([text for _, text in served]):
            for one, _ in served if measure else []:
                choices.time_aten(one)
    for one in asked:
        if tune:
            one.served(tune)
        if measure:
            choices.measure(one)
        else:
            choices.take(one)


# ---- what is asked ------------------------------------------------------------------------------


def _tensors(node: Node) -> tuple[Node, Node]:
    """The tensors of a convolution or its gradients: the input and the filters."""
    first = 0 if is_call(node, A.convolution.default) else 1
    return node.args[first], node.args[first + 1]


def _layer(node: Node) -> str:
    x, w = (tuple(value_of(t).shape) for t in _tensors(node))
    return f"{x} by {w}" if is_call(node, A.convolution.default) else f"gradients of {x} by {w}"


def _obstacle(node: Node) -> str:
    """Why nothing is requested from convgen; empty if something is."""
    x, w = map(value_of, _tensors(node))
    rank = w.dim() - 2
    read = [value_of(arg) if isinstance(arg, torch.fx.Node) else arg for arg in pytree.tree_leaves(node.args)]
    if has_symbols(read):
        return "its sizes are symbolic: they change from call to call"
    if rank > 1 and order_of(x, w) != channels_last(rank):
        return "channels are not last (model.to(memory_format=torch.channels_last)), nor can they be within this graph"
    return ""


def _candidates(graph: Any, node: Node) -> Iterator[_Candidate]:
    values = [value_of(arg) if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
    if is_call(node, A.convolution.default):
        x, w, _, *geometry = values
        if (asked := of_convolution(x, w, None, *geometry)) is not None:
            yield _Candidate(node, asked, _numbers(asked, values))
        return
    _lay_out_tangent(graph, node)
    values[0] = value_of(node.args[0])
    *geometry, wanted = values[4:]
    for i, gradient in enumerate(of_backward(*values[:3], *geometry)):
        if wanted[i] and _readers(node, i):
            yield _Candidate(node, gradient, _numbers(gradient, values), i)


def _numbers(asked: Asked, values: Sequence[Any]) -> tuple[int, ...]:
    """The numbers of a node's arguments that it reads."""
    return tuple(next(i for i, value in enumerate(values) if value is read) for read in asked.reads)


def _lay_out_tangent(graph: Any, node: Node) -> None:
    """Lets a convolution_backward read y's gradient with channels last, as the other tensors have them."""
    grad = node.args[0]
    value = value_of(grad)
    rank = value.dim() - 2
    if rank == 1 or is_packed(value.shape, value.stride(), channels_last(rank)):
        return
    with graph.inserting_before(node):
        made = call(graph, A.clone.default, grad, memory_format=FORMATS[value.dim()])
    node.args = (made, *node.args[1:])


# ---- what is put in its place -------------------------------------------------------------------


def _replace(graph: Any, candidate: _Candidate) -> None:
    node = candidate.node
    first, second = (node.args[i] for i in candidate.reads)
    operator, numbers = _operator(candidate.asked)
    with graph.inserting_after(node):
        made = call(graph, operator, first, second, *numbers)
    if candidate.index is not None:
        _want_no_longer(candidate)
    elif (bias := node.args[2]) is not None:
        made = _with_bias(graph, made, bias)
    for old in candidate.results:
        old.replace_all_uses_with(made)
        graph.erase_node(old)


def _replace_with_sums(graph: Any, candidate: _Candidate, ending: Ending, asked: Summed) -> None:
    first, second = (candidate.node.args[i] for i in candidate.reads)
    operator, numbers = operator_of(asked)

    def make(operands: list[Node]) -> Node:
        return call(graph, operator, first, second, operands, asked.epilogue, asked.sums, *numbers)

    (result,) = candidate.results
    ending.put(graph, make)
    graph.erase_node(result)
    if candidate.index is not None:
        _want_no_longer(candidate)


def _want_no_longer(candidate: _Candidate) -> None:
    *others, wanted = candidate.node.args
    candidate.node.args = (*others, [want and i != candidate.index for i, want in enumerate(wanted)])


def _operator(asked: Bare) -> tuple[Any, list[Any]]:
    """convgen's operator, and its arguments after the two tensors."""
    convgen: Any = torch.ops.convgen
    numbers: tuple[Any, ...]
    if isinstance(asked, Forward):
        operator, numbers = convgen.conv, (None, *asked.geometry)  # without bias it is not transposed
    else:
        assert isinstance(asked, Gradient)
        operator = convgen.conv_input if asked.op is Op.DGRAD else convgen.conv_weight
        numbers = asked[3:]
    return operator.default, [list(number) if isinstance(number, tuple) else number for number in numbers]


def _with_bias(graph: Any, made: Node, bias: Node) -> Node:
    """Inductor fuses the sum into what reads it."""
    with graph.inserting_after(made):
        shaped = call(graph, A.view.default, bias, [-1, *(1,) * (value_of(made).dim() - 2)])
    with graph.inserting_after(shaped):
        return call(graph, A.add.Tensor, made, shaped)


def _readers(node: Node, index: int) -> list[Node]:
    """Who reads this result of a node with several."""
    return [user for user in node.users if user.args[1] == index]


def _drop_unread(graph: Any, node: Node) -> None:
    """Removes a convolution_backward whose gradients nothing reads; if only the bias's is read, it becomes a sum."""
    if not is_call(node, A.convolution_backward.default) or any(node.args[-1][:2]):
        return
    grad = node.args[0]
    for reader in _readers(node, 2):
        with graph.inserting_after(node):
            made = call(graph, A.sum.dim_IntList, grad, bias_axes(value_of(grad).dim()))
        reader.replace_all_uses_with(made)
        graph.erase_node(reader)
    for reader in list(node.users):
        graph.erase_node(reader)
    graph.erase_node(node)
