"""Flat graphs of aten's functions: tensors in, tensors out, nothing written in place, no modules left."""

from __future__ import annotations

import functools
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch

from convgen.torch.asked import of_each_axis

Node = Any
GraphModule = Any
parametrize: Any = torch.nn.utils.parametrize
A: Any = torch.ops.aten
#: In a node's meta: a copy stays though it lies like what it is of.
STAYS = "convgen_stays"
#: What raises where strides do not let it see a tensor otherwise.
VIEWS = (A.view.default, A._unsafe_view.default)


#: Operators with axes of what they read, and which of their arguments these are.
_AXES: dict[Any, tuple[int, ...]] = {
    A.cat.default: (1,), A.slice.Tensor: (1,), A.select.int: (1,), A.split.Tensor: (2,),
    A.split_with_sizes.default: (2,), A.permute.default: (1,), A.transpose.int: (1, 2),
}  # fmt: skip


#: Where torch writes what its shape functions raise, and that code branches on data.
_LOGS = tuple(map(logging.getLogger, ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")))


def _nothing(_: logging.LogRecord) -> bool:
    return False


@contextmanager
def _unlogged() -> Iterator[None]:
    outermost = _nothing not in _LOGS[0].filters
    if outermost:
        for log in _LOGS:
            log.addFilter(_nothing)
    try:
        yield
    finally:
        if outermost:
            for log in _LOGS:
                log.removeFilter(_nothing)


@contextmanager
def tracing() -> Iterator[None]:
    """Where something may be traced: torch's tracers put functions of their own in place of others, for all threads, so
    one thread at a time has its turn, Dynamo among them.  The flag is Dynamo's while it compiles: without it, compiled
    functions that other threads call meanwhile take themselves for what is traced, and raise.  What shape functions
    raise, which torch logs with tracebacks, is told by warnings."""
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock, _unlogged():
        before = torch.compiler._is_compiling_flag
        torch.compiler._is_compiling_flag = True
        try:
            yield
        finally:
            torch.compiler._is_compiling_flag = before


@contextmanager
def quiet_export() -> Iterator[None]:
    """For torch.export: where it fails, it prints the graph that it has so far, which may be thousands of lines; and it
    warns of each attribute that forward sets, as an LSTM does with all of its weights, which reports tell of.  What
    parametrizations compute meanwhile, of fake weights, is not kept, not even within `parametrize.cached()`.

    Anything else that is written to stderr appears at the end."""
    graph, held = None, io.StringIO()
    cached = parametrize._cache_enabled, parametrize._cache
    parametrize._cache_enabled, parametrize._cache = 0, {}
    try:
        with redirect_stderr(held), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The tensor attributes? .* assigned during export")
            yield
    except Exception as error:
        graph = getattr(error, "partial_fx_graph", None)
        raise
    finally:
        parametrize._cache_enabled, parametrize._cache = cached
        written = held.getvalue()
        sys.stderr.write(written.replace(f"{graph}\n", "") if graph else written)


def flat_graph(function: Callable[..., Any], arguments: Sequence[Any]) -> GraphModule:
    """The graph of a function of these tensors, for inference; each node's `meta["val"]` is its fake tensor.

    Raises what torch raises where it cannot be had: a function that writes into its arguments, say.
    """
    from torch._functorch.aot_autograd import aot_export_joint_simple

    with torch.no_grad():
        made = aot_export_joint_simple(function, tuple(arguments), trace_joint=False, decompositions={})
    for node in list(made.graph.nodes):
        if is_call(node, A._assert_tensor_metadata.default):  # holds here, and would count as a reader
            made.graph.erase_node(node)
        elif is_call(node, *_AXES):
            _count_axes(node)
        elif is_call(node, A.convolution.default):
            x, w, bias, stride, padding, dilation, transposed, further, groups = node.args
            *numbers, further = map(list, of_each_axis(value_of(w), stride, padding, dilation, further))
            node.args = x, w, bias, *numbers, transposed, further, groups
    drop_identities(made.graph)
    made.recompile()
    return made


def _count_axes(node: Node) -> None:
    """States a node's axes from the first, where they are stated from the last."""
    rank, indices = value_of(node.args[0] if node.target is not A.cat.default else node).dim(), _AXES[node.target]

    def counted(axis: Any) -> Any:
        return [i % rank for i in axis] if isinstance(axis, list | tuple) else axis % rank

    node.args = tuple(counted(a) if i in indices and rank else a for i, a in enumerate(node.args))


def faked(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Fake tensors like the arguments, and what the function makes of them; nothing is computed."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.inference_mode(False), torch.no_grad():
        fakes = [_with_version(mode.from_tensor(tensor.detach())) for tensor in arguments]
        return fakes, list(function(*fakes))


def _with_version(fake: Any) -> Any:
    """A fake tensor that counts writes, which one does not that was made in inference mode."""
    if not fake.is_inference():
        return fake
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)


def drop_identities(graph: Any) -> None:
    """Removes copies and aliases that are other values as they lie, as of a Dropout."""
    for node in list(graph.nodes):
        if _is_identity(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def erase_unread(graph: Any, *nodes: Node) -> None:
    """Removes nodes that nothing reads, and what they alone read: the rest of the graph is not looked at."""
    candidates, gone = list(nodes), set()
    while candidates:
        node = candidates.pop()
        if node.op == "call_function" and not (node in gone or node.users or node.is_impure()):
            candidates += node.all_input_nodes
            graph.erase_node(node)
            gone.add(node)


def with_sources(node: Node, goes_on: Callable[[Node], bool]) -> Iterator[Node]:
    """A node, and those that it is made of, each once; not what a node is made of at which it does not go on."""
    pending, seen = [node], {node}
    while pending:
        node = pending.pop()
        yield node
        if goes_on(node):
            pending += [source for source in node.all_input_nodes if source not in seen]
            seen.update(node.all_input_nodes)


def _is_identity(node: Node) -> bool:
    """Whether a node only passes its input on; a result of the function stays a separate tensor."""
    if any(user.op == "output" for user in node.users):
        return False
    if is_call(node, A.as_strided.default):
        return _lies_in_order(value_of(node)) and _lies_in_order(value_of(node.args[0]), value_of(node).shape)
    copy = is_call(node, A.clone.default, A.alias.default) and not node.meta.get(STAYS)
    return bool(copy and value_of(node).stride() == value_of(node.args[0]).stride())


def _lies_in_order(value: Any, shape: Any = None) -> bool:
    """Whether a tensor of this shape has one layout, whatever the network's: as pooled to one pixel by aten, which
    says in the strides of that one's axes that channels are last."""
    alone = value.dim() in (4, 5) and value.shape[2:].numel() == 1 and value.shape == (shape or value.shape)
    return bool(alone and value.is_contiguous() and not value.storage_offset())


def placeholders(graph: Any) -> list[Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def weighted_sum(graph: Any, terms: Sequence[tuple[float, Node]]) -> Node:
    """A sum of values, each times its factor, inserted at the graph's insertion point."""
    values = (v if factor == 1 else call(graph, A.mul.Tensor, v, factor) for factor, v in terms)
    return functools.reduce(lambda a, b: call(graph, A.add.Tensor, a, b), values)


def is_call(node: Any, *operators: Any) -> bool:
    """Whether a node calls one of these overloads."""
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target in operators


def argument(node: Node, index: int, name: str, default: Any) -> Any:
    """A call's argument, by its place or by its name."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def value_of(node: Node) -> Any:
    """A node's fake tensor."""
    return node.meta["val"]


def channel_axis(operand: Node, image: Node) -> int | None:
    """The axis of a function's operand, beside an image, that is of channels; None where one number is for all."""
    value = value_of(operand)
    axis = value.dim() - value_of(image).dim() + 1
    return None if axis < 0 or value.shape[axis] == 1 else int(axis)


def call(graph: Any, operator: Any, *arguments: Any, **keywords: Any) -> Node:
    """A new node where the graph inserts, with its fake value."""
    node = graph.call_function(operator, arguments, keywords)
    renew(node)
    return node


def filled(graph: Any, like: Node, shape: Sequence[int], number: float) -> Node:
    """A new node of one number everywhere, with the type and the device of another."""
    value = value_of(like)
    node = graph.call_function(A.full.default, (list(shape), number), {"dtype": value.dtype, "device": value.device})
    node.meta["val"] = value.new_full(tuple(shape), number)
    return node


def renew(node: Node) -> None:
    """Makes a node's fake value of those that it reads."""
    values = torch.fx.map_arg((node.args, node.kwargs), value_of)
    tensors = [v for v in torch.utils._pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]
    with tensors[0].fake_mode:
        node.meta["val"] = node.target(*values[0], **values[1])
