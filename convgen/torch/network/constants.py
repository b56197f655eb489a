"""What a graph computes from weights alone: computed once, and again when the weights have changed.

A graph is split in two: `pack` makes packed constants of the weights (BatchNorm folded in, channels last, types
converted), and `run` makes the results of those and the inputs.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import weakref
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from convgen.torch.network.trace import call

Node = Any
GraphModule = Any
Tensor = Any
A: Any = torch.ops.aten


def constant_nodes(graph: Any, weights: Collection[Node]) -> set[Node]:
    """Nodes whose values follow from weights, given as placeholders."""
    found = set(weights)
    for node in graph.nodes:
        inputs = node.all_input_nodes
        if inputs and node.op == "call_function" and _is_pure(node.target) and found.issuperset(inputs):
            found.add(node)
    return found


def move_numbers(graph: Any, constant: Collection[Node]) -> None:
    """Copies constant numbers of the CPU to the GPU whose tensors they meet, where kernels can read them."""
    for node in constant:
        number = node.meta.get("val")
        if not isinstance(number, torch.Tensor) or number.dim() or number.device.type != "cpu":
            continue
        for user in list(node.users):
            made = user.meta.get("val")
            if isinstance(made, torch.Tensor) and made.device != number.device:
                with graph.inserting_before(user):
                    user.replace_input_with(node, call(graph, A._to_copy.default, node, device=made.device))


def _is_pure(target: Any) -> bool:
    """Whether a function gives the same each time, and writes nothing; items of tuples are taken from them."""
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__name__", "") == "getitem"
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


def split(graph_module: GraphModule, weights: Sequence[Node]) -> tuple[GraphModule, GraphModule, int]:
    """(pack, run, n): `pack(*weights)` gives n tensors, and `run` has them as its buffers packed_0, packed_1, ...,
    which are not set yet."""
    graph = graph_module.graph
    constant = constant_nodes(graph, weights)
    wanted = [node for node in graph.nodes if node in constant and any(user not in constant for user in node.users)]
    pack, copies = torch.fx.Graph(), dict[Node, Node]()
    for node in graph.nodes:
        if node in constant:
            copies[node] = pack.node_copy(node, copies.__getitem__)
    pack.output(tuple(copies[node] for node in wanted))
    pack.eliminate_dead_code()
    run = torch.fx.Graph()
    copies = {node: run.get_attr(f"packed_{i}") for i, node in enumerate(wanted)}
    for node in graph.nodes:
        if node not in constant:
            copies[node] = run.node_copy(node, copies.__getitem__)
    for i in range(len(wanted)):
        graph_module.register_buffer(f"packed_{i}", torch.empty(0))
    return torch.fx.GraphModule(graph_module, pack), torch.fx.GraphModule(graph_module, run), len(wanted)


_asked_anew = 0  # how often refresh() was called


def refresh() -> None:
    """Packs the weights of everything that convgen optimized anew, at its next call: of `optimize` and of
    torch.compile(backend="convgen").  For changes that torch does not count: writes to `weight.data`, to weights that
    were made in inference mode, and to BatchNorm's statistics by a forward in training mode."""
    global _asked_anew
    _asked_anew += 1


def _count_fused_steps(optimizer: Any, *_: Any) -> None:
    """Counts the writes of a fused optimizer's step, which torch does not."""
    for group in optimizer.param_groups:
        if group.get("fused"):
            torch.autograd.graph.increment_version([p for p in group["params"] if not p.is_inference()])


@functools.cache
def _watch_optimizers() -> None:
    """Of this process, from now on."""
    register_optimizer_step_post_hook(_count_fused_steps)


class OtherWeights(Exception):
    """The weights are not of the shapes, types or devices that a graph was made for, or one of them is gone."""


class Shared:
    """Packed constants that are the same for several kinds of inputs, by what they are computed from: each is in memory
    once, as long as anybody holds it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, list[Any]]] = {}

    def held(self, key: str, value: Tensor, seen: list[Any]) -> Tensor:
        """The constant that is held under a key, with this value, which is that of weights as they were seen."""
        reference, of = self._known.get(key, (lambda: None, []))
        found = reference()
        if found is None or (found.shape, found.stride(), found.dtype) != (value.shape, value.stride(), value.dtype):
            self._known = {k: row for k, row in self._known.items() if row[0]() is not None}
            self._known[key] = weakref.ref(value), seen
            return value
        if of != seen:
            found.copy_(value)
            self._known[key] = reference, seen
        return found


class Packed:
    """Packed constants of the weights that were seen last, held as a module's buffers."""

    def __init__(
        self, pack: GraphModule, run: GraphModule, count: int, weights: Sequence[Any], names: Sequence[str],
        shared: Shared,
    ) -> None:  # fmt: skip
        _watch_optimizers()
        self._pack, self._seen, self._alive = pack, _state(weights), _memory(weights)
        self._kinds = _kinds(weights)
        self._lock = threading.Lock()
        own = _storages(weights)
        keys = _keys(pack.graph, [f"{n} {w.data_ptr()}" for n, w in zip(names, weights, strict=True)])
        self._held = [
            value if value.untyped_storage()._cdata in own else shared.held(key, value, self._seen)
            for key, value in zip(keys, (value.detach() for value in self._values(weights)), strict=True)
        ]
        for i in range(count):
            run.register_buffer(f"packed_{i}", self._held[i])

    def update(self, weights: Sequence[Any]) -> bool:
        """Packs anew where a weight has changed since; whether one had.  Raises OtherWeights."""
        seen = _state(weights)
        if seen == self._seen:
            return False
        if _kinds(weights) != self._kinds:
            raise OtherWeights
        with self._lock:
            if seen == self._seen:  # another thread was faster
                return False
            self._hold(self._values(weights), weights)
            self._seen, self._alive = seen, _memory(weights)
        return True

    def forget(self) -> None:
        """Lets the next update pack, whatever the weights say."""
        self._seen = []

    def _hold(self, values: Sequence[Any], weights: Sequence[Any]) -> None:
        """Holds what is a weight as it lies by where it lies now: its former memory may be read by others.  Other
        values take the place of those that were."""
        own = _storages(weights)
        for held, value in zip(self._held, values, strict=True):
            if value.untyped_storage()._cdata not in own:
                held.copy_(value)
            elif held.stride() != value.stride():
                raise OtherWeights
            else:
                held.data = value

    def _values(self, weights: Sequence[Any]) -> Sequence[Any]:
        # ordinary tensors, also where they are first packed in inference mode: later calls need not be in it
        with torch.inference_mode(False), torch.no_grad():
            return self._pack(*weights)


def _keys(graph: Any, weights: Sequence[str]) -> list[str]:
    """What tells the results of a graph from those of others: how they are computed, from which weights."""
    given, keys = iter(weights), dict[Node, str]()
    for node in graph.nodes:
        if node.op == "output":
            return [keys[result] for result in node.args[0]]
        if node.op == "placeholder":
            text = next(given)
        elif node.op == "get_attr":
            text = f"{id(graph.owning_module)} {node.target}"
        else:
            text = repr((str(node.target), *torch.fx.map_arg((node.args, node.kwargs), keys.__getitem__)))
        keys[node] = hashlib.sha256(text.encode()).hexdigest()
    return []


def _storages(weights: Sequence[Any]) -> set[int]:
    return {w.untyped_storage()._cdata for w in weights}


def _kinds(weights: Sequence[Any]) -> list[Any]:
    return [None if w is None else (w.shape, w.dtype, w.device) for w in weights]


def _memory(weights: Sequence[Any]) -> list[Any]:
    """What keeps the weights' memory, so that no other weights come to lie there unnoticed."""
    return [w.untyped_storage() for w in weights]


def _state(weights: Sequence[Any]) -> list[Any]:
    """What changes whenever a weight is written: its memory, and torch's count of writes (none of tensors that were
    made in inference mode)."""
    written = (None if w is None else (w.data_ptr(), 0 if w.is_inference() else w._version) for w in weights)
    return [_asked_anew, *written]
