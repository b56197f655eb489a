"""The part of a graph that depends only on weights: computed once, and again when the weights have changed.

A graph is split in two: `pack` makes packed constants of the weights (BatchNorm folded in, channels last, types
converted), and `run` makes the results of those and the inputs.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import threading
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from convgen.functional.arrays import WIDEST, span
from convgen.runtime.arrays import torch_is_capturing
from convgen.torch.network.precision import rounded_once
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


def split(graph_module: GraphModule, weights: Sequence[Node]) -> tuple[GraphModule, GraphModule]:
    """(pack, run): `pack(*weights)` gives tensors, and `run` has them as its buffers packed_0, packed_1, ..., which are
    not set yet."""
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
    _own_results(run)
    for i in range(len(wanted)):
        graph_module.register_buffer(f"packed_{i}", torch.empty(0))
    return torch.fx.GraphModule(graph_module, pack), torch.fx.GraphModule(graph_module, run)


def _own_results(run: Any) -> None:
    """Copies the constants among a graph's results: who calls it may write to these, and keep them."""
    (output,) = run.find_nodes(op="output")
    for node in output.all_input_nodes:
        if node.op == "get_attr":
            with run.inserting_before(output):
                output.replace_input_with(node, run.call_function(A.clone.default, (node,)))


_version = operator.attrgetter("_version")
_asked_anew = 0  # how often refresh() was called


def refresh() -> None:
    """Makes everything that convgen optimized, by `optimize` or torch.compile(backend="convgen"), pack its weights anew
    at its next call.  Call it after changes that torch does not count: writes to `weight.data`, to weights that were
    made in inference mode, and to BatchNorm's statistics by a forward pass in training mode."""
    global _asked_anew
    _asked_anew += 1


def asked_anew() -> int:
    """How often `refresh` was called."""
    return _asked_anew


def _count_fused_steps(optimizer: Any, *_: Any) -> None:
    """Counts the writes of a fused optimizer's step, which torch does not."""
    for group in optimizer.param_groups:
        if group.get("fused"):
            torch.autograd.graph.increment_version([p for p in group["params"] if not p.is_inference()])


@functools.cache
def _watch_optimizers() -> None:
    """Watches the optimizers of this process, from now on."""
    register_optimizer_step_post_hook(_count_fused_steps)


class OtherWeights(Exception):
    """The weights or modules are not those that a graph was made for: more or fewer, of other shapes or types."""


class Packed:
    """Packed constants of the weights that were seen last, held as buffers of the modules that read them."""

    def __init__(self, pack: GraphModule, weights: Sequence[Any]) -> None:
        _watch_optimizers()
        self._pack, self._seen, self._alive = pack, _state(weights), _memory(weights)
        self._kinds = _kinds(weights)
        self._lock = threading.Lock()
        self._held = [_aligned(value.detach()) for value in self._values(weights)]
        self._packing = self._recorded()

    def held_by(self, run: GraphModule) -> None:
        """Gives a module the constants."""
        for i, held in enumerate(self._held):
            run.register_buffer(f"packed_{i}", held)

    def update(self, weights: Sequence[Any]) -> bool:
        """Packs anew where a weight has changed since; whether one had.  Raises OtherWeights."""
        seen = _state(weights)
        if seen != self._seen:
            if _kinds(weights) != self._kinds:
                raise OtherWeights
            with self._lock:
                if seen != self._seen:  # else another thread was faster
                    self._renew(weights)
                    # what a capture records is done at a replay, of which nobody knows here: it is packed again then
                    self._seen = [] if torch_is_capturing() else seen
                    self._alive = _memory(weights)
                    return True
        if self._packing:
            self._wait()
        return False

    def _renew(self, weights: Sequence[Any]) -> None:
        try:
            values = self._values(weights)
        except RuntimeError as error:  # of a view that needs the strides that were
            raise OtherWeights from error
        self._hold(values, weights)
        self._packing = self._recorded()

    def _recorded(self) -> list[Any]:
        """Events after the packing, on each GPU's current stream."""
        if torch_is_capturing():
            return []
        gpus = {held.device for held in self._held if held.is_cuda}
        return [torch.cuda.current_stream(gpu).record_event() for gpu in gpus]

    def _wait(self) -> None:
        """Lets the current streams wait for the packing, which another stream may be at.  A stream that is captured
        waits for nothing outside: torch.cuda.graph waits for the GPU before."""
        packing = self._packing
        if not packing or torch_is_capturing():
            return
        if all(event.query() for event in packing):
            with self._lock:
                if self._packing is packing:  # no other thread has packed since
                    self._packing = []
            return
        for event in packing:
            torch.cuda.current_stream(event.device).wait_event(event)

    def forget(self) -> None:
        """Lets the next update pack, whatever the weights say."""
        self._seen = []

    def _hold(self, values: Sequence[Any], weights: Sequence[Any]) -> None:
        """Holds what is a weight as it lies by where it lies now: its former memory may be read by others.  Other
        values take the place of those that were."""
        own = {w.untyped_storage()._cdata for w in weights}
        for held, value in zip(self._held, values, strict=True):
            if value.untyped_storage()._cdata not in own:
                held.copy_(value)
            elif held.stride() != value.stride():
                raise OtherWeights
            else:
                held.data = _aligned(value)

    def _values(self, weights: Sequence[Any]) -> Sequence[Any]:
        # ordinary tensors, also where they are first packed in inference mode: later calls need not be in it
        with torch.inference_mode(False), torch.no_grad():
            return rounded_once(self._pack, weights)


def packing(pack: GraphModule, weights: Sequence[Any], names: Sequence[str]) -> Hashable:
    """The key of a graph's packing: each of its results, by what it is computed from."""
    given = iter(f"{name} {w.data_ptr()} {w.stride()}" for name, w in zip(names, weights, strict=True))
    texts = dict[Node, str]()
    for node in pack.graph.nodes:
        if node.op == "output":
            return tuple(texts[result] for result in node.args[0]), str(_kinds(weights))
        if node.op == "get_attr":  # something of this very graph
            break
        if node.op == "placeholder":
            text = next(given)
        else:
            read = torch.fx.map_arg((node.args, node.kwargs), texts.__getitem__)
            text = f"{node.target} {read}"
        texts[node] = hashlib.sha256(text.encode()).hexdigest()
    return object()


def _kinds(weights: Sequence[Any]) -> list[Any]:
    return [(w.shape, w.dtype, w.device, is_traceable_wrapper_subclass(w)) for w in weights]


def _memory(weights: Sequence[Any]) -> list[Any]:
    """The weights' storages, held so that no other weights are allocated there unnoticed."""
    return [w.untyped_storage() for w in weights]


def _aligned(value: Any) -> Any:
    """A tensor, or a copy that lies alike and begins at a multiple of 16 bytes: on a GPU, Inductor's kernels rely on
    that for what a graph holds."""
    if not value.is_cuda or value.data_ptr() % WIDEST == 0:
        return value
    memory = value.as_strided((span(value.shape, value.stride()),), (1,))
    return memory.clone().as_strided(value.shape, value.stride())


def _state(weights: Sequence[Any]) -> list[Any]:
    """A state that changes whenever a weight is written or moved: its memory, its strides and number of elements, and
    torch's count of writes (none of tensors that were made in inference mode)."""
    try:
        written = [*map(_version, weights)]
    except RuntimeError:  # one of inference mode
        written = [0 if weight.is_inference() else weight._version for weight in weights]
    tensor = torch.Tensor
    return [_asked_anew, written, *([*map(of, weights)] for of in (tensor.data_ptr, tensor.stride, tensor.numel))]
