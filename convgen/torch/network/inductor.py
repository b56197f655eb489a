"""Inductor, kept from printing graphs, and with a cache that knows convgen.

Where Inductor meets an operator that it has no lowering for, as convgen's, it prints the operator's arguments for its
log (torch 2.11 even if nobody reads that), and an argument with all that it is made of: each residual block doubles
the text, so that a network of fifty layers takes hours, by torch.compile's own backend, too.

What Inductor compiles it keeps for other processes, under a key of the graph (its FX graph cache).  How convgen's
operators lay out their results is compiled, too, and not in the graph: convgen's own files are added to the key.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass

from convgen.runtime.artifacts import schema_digest
from convgen.torch.network.lowerings import lower_copies
from convgen.torch.network.reductions import in_loops
from convgen.torch.network.sites import write_sites

_log = logging.getLogger("convgen.torch")
_brief: ContextVar[bool] = ContextVar("brief", default=False)
#: Inductor's option for launches of several kernels that do not read each other's results.  Graphs for training have
#: hundreds of small ones: a step of ResNet-50 with 8 images takes 2.14 ms on an H200 instead of 2.60.
COMBINED = "combo_kernels"
#: Inductor's options for graphs that train.  A value of more reads or functions than these is written to memory, in
#: float32, if several kernels need it; one of fewer is computed in each kernel.  Inductor's own limits are 4, 8 and 30,
#: and BatchNorm's result has five reads, four of which are of a number for each channel: what it is computed from is
#: less to read.  A step of EfficientNet-B0 with 64 images takes 6.37 ms on an H200 instead of 7.69.
OF_TRAINING = {
    COMBINED: True,
    "realize_reads_threshold": 12,
    "realize_acc_reads_threshold": 16,
    "realize_opcount_threshold": 60,
}
#: Inductor's option of a pass that comes before its own.
_PASS = "post_grad_custom_pre_pass"


def compiled(run: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """The graph by Inductor, for inputs of these shapes.  Raises what Inductor raises."""
    from torch._inductor import compile as inductor

    # else AOTAutograd takes a module's buffers for inputs that lie elsewhere at each call: Inductor's code looks at the
    # alignment of each, and its CUDA graphs copy them all
    run.meta.setdefault("dynamo_compile_id", None)
    with torch.no_grad(), brief(), fixed_sizes(inputs) as fakes:
        return inductor(run, fakes, keyed(options))


@contextmanager
def fixed_sizes(inputs: Sequence[Any]) -> Iterator[list[Any]]:
    """Where something is compiled for tensors like these: fake ones, with which to do so."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # a tracing context as Dynamo's: Inductor keeps nothing that is compiled where none has a ShapeEnv
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    with tracing(TracingContext(mode)):
        # as fake ones: where there is a ShapeEnv, Inductor takes the sizes of others for symbols
        yield [mode.from_tensor(tensor, static_shapes=True) for tensor in inputs]


def compiled_combined(graph_module: Any, inputs: Sequence[Any], **facts: Any) -> Any:
    """A graph by Inductor, within its options; without `COMBINED` where it fails with it."""
    from torch._inductor import compile_fx as fx

    again = copy.deepcopy(graph_module) if getattr(inductor_config, COMBINED) else None
    with brief(), in_loops():
        try:
            return fx.compile_fx_inner(graph_module, inputs, **facts)
        except Exception as error:
            if again is None:
                raise
            _log.info("Inductor cannot combine these kernels, and compiles them one by one: %s", error)
        with inductor_config.patch({COMBINED: False}):
            return fx.compile_fx_inner(again, inputs, **facts)


def for_any_sizes(function: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """A function as Inductor compiles it, at its first call, for symbols in place of sizes."""
    from torch._inductor import compile_fx as fx

    def backend(graph_module: Any, inputs: Sequence[Any]) -> Any:
        return fx.compile_fx(graph_module, list(inputs), config_patches=without_graphs(options))

    return with_symbols(function, backend)


def without_graphs(options: Mapping[str, Any]) -> dict[str, Any]:
    """Inductor's options without CUDA graphs: each size would need its own."""
    return {**options, "triton.cudagraphs": False}


def with_symbols(
    function: Callable[..., Any], backend: Callable[[Any, Sequence[Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """A function as a backend compiles it, at its first call, for symbols in place of sizes.

    It may be called amid CUDA graphs: to torch, a call of something that is compiled ends the life of what these gave
    before, so what counts such calls is put back."""
    from torch._dynamo.mutation_guard import GenerationTracker

    made = torch.compile(function, backend=backend, dynamic=True)

    def call(*arguments: Any) -> Any:
        generation = GenerationTracker.generation
        try:
            return made(*arguments)
        finally:
            GenerationTracker.generation = generation

    return call


@contextmanager
def brief() -> Iterator[None]:
    """Within, and in this thread, Inductor tells of any operator by its name alone, and calls convgen's by sites; it
    copies into slices by passes."""
    write_sites(is_brief)
    lower_copies()
    before = _brief.set(True)
    try:
        yield
    finally:
        _brief.reset(before)


def is_brief() -> bool:
    """Whether Inductor compiles something of convgen's."""
    return _brief.get()


class _Version(CustomGraphPass):
    """A pass that does nothing, and whose name is part of the cache's key: the convgen that the graph is for."""

    def __call__(self, graph: Any) -> None:
        pass

    def uuid(self) -> str:
        return f"convgen {schema_digest()}"


def keyed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Inductor's options with `_Version`, where the user has no pass in its place."""
    taken = options.get(_PASS) or getattr(inductor_config, _PASS, None)
    return dict(options) if taken else {**options, _PASS: _Version()}


def tell_briefly(namespace: str) -> None:
    """From here on, Inductor mentions this namespace's operators only by their names."""
    try:
        from torch._inductor.exc import OperatorIssue
    except ImportError:  # it is not public: another torch may not have it
        return
    in_full = OperatorIssue.operator_str

    def operator_str(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        short = _brief.get() or str(target).startswith(f"{namespace}.")
        return f"  target: {target}" if short else in_full(target, args, kwargs)

    OperatorIssue.operator_str = staticmethod(operator_str)
