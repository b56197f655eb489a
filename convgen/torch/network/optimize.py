"""`optimize(model, example)`: a module that computes what the model does, for inference, by convgen's kernels."""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from convgen.diagnostics import ConvgenError
from convgen.runtime.errors import WrongArguments
from convgen.spec import known_tuning
from convgen.torch.functions import plainly
from convgen.torch.memory import is_out_of_memory
from convgen.torch.network.arguments import Given, WatchedContainers
from convgen.torch.network.attributes import MakesLayers, Watched, forget_hooks, hooked, remembers
from convgen.torch.network.constants import OtherWeights
from convgen.torch.network.copies import copy_of, hooks_see, sharing_tensors
from convgen.torch.network.exported import Exported
from convgen.torch.network.held import tensors_of
from convgen.torch.network.models import check_model, with_modes
from convgen.torch.network.options import Options
from convgen.torch.network.parts import WithParts, parts_of
from convgen.torch.network.prepare import Prepared, context, make_room, resolved, without_data
from convgen.torch.network.report import NOT_ON_GPU, Report, limit_of_tracers, listed, told, warn
from convgen.torch.network.sizes import MOST_KINDS
from convgen.torch.network.stand_in import StandIn
from convgen.torch.network.trace import quiet_export, tracing
from convgen.torch.network.weights import Structure, Weights

Tensor = Any
pytree = torch.utils._pytree
_training = operator.attrgetter("training")
#: How often a call prepares a model that others change at the same time.
_TRIES = 2
#: Of so many kinds of calls that differ in Python's numbers alone, a model has to be prepared for each.
_MANY_NUMBERS = 8
_NUMBERS = (
    f"convgen.torch.optimize prepares for the {_MANY_NUMBERS + 1}th kind of call that differs only in Python numbers"
    "\nhint: pass a number that changes from call to call as a tensor"
)
#: Dynamo's message if it must not break a graph.
_WHY_NOT_COMPILED = "an optimized model is compiled already, and runs as it is without fullgraph=True"
#: What is prepared, which holds compiled code.
_PREPARED = frozenset({"_prepared", "_parts", "_with_parts", "_shared", "_structure"})


@torch.compiler.disable(reason="convgen.torch.optimize traces and compiles by itself: call it outside")
def optimize(
    model: Any,
    example: Any = (),
    *,
    measure: bool = True,
    inductor: bool = True,
    options: Mapping[str, Any] | None = None,
    tune: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Optimized:
    """Prepare a model for inference: convgen computes convolutions where it is faster, fused with what follows them.

        fast = convgen.torch.optimize(model, x)     # example: a tensor, or a tuple of the model's arguments;
                                                    # kwargs={"x": x} has those that are passed by name
        y = fast(x)
        print(fast.report)

    BatchNorm is folded; biases, activations, residual sums and products go into epilogues; tensors have channels last;
    weights are packed once, and again when they change.  With `measure`, each convolution and aten's (cuDNN's) are
    timed, and the faster one is taken; `tune="quick"` first measures the best few kernels of each (docs/tuning.md).
    With `inductor`, Inductor compiles the rest, with `options` of torch._inductor.config.  Inputs of other shapes are
    prepared at their first call.  The model is not changed, and shares its weights with the result.  If a model cannot
    be traced, its parts are prepared one by one, and the rest runs unchanged; the report says why.

    Raises WrongArguments for a model that is not a module, has no weights yet, is in training mode or is sharded by
    FSDP, for an example that has no tensor or that the model does not take, and for an unknown option; UsageError for
    an unknown `tune`.
    """
    if tune is not None:
        known_tuning(tune)
    if isinstance(model, Optimized):
        model = model._model
    check_model(model)
    kwargs = {} if kwargs is None else kwargs
    if not isinstance(kwargs, Mapping):
        expected = "expected a dict of the arguments that are passed by name"
        raise WrongArguments(f"kwargs is of type {type(kwargs).__name__}: {expected}")
    if wrong := [name for name in kwargs if not isinstance(name, str)]:
        raise WrongArguments(f"kwargs has the key {wrong[0]!r}: expected names of the model's arguments")
    made = Optimized(model, Options(measure, inductor, {} if options is None else options, tune=tune))
    hint = "hint: pass a tensor, a tuple of the model's arguments, or kwargs={...}, those that are passed by name"
    if not isinstance(example, tuple) and not any(isinstance(e, torch.Tensor) for e in pytree.tree_leaves(example)):
        raise WrongArguments(f"the example is of type {type(example).__name__}, without a tensor\n{hint}")
    arguments = example if isinstance(example, tuple) else (example,)
    try:
        made.prepare(*arguments, **kwargs)
    except (ConvgenError, Warning):  # a warning where warnings are errors
        raise
    except Exception as error:  # the model's own
        if is_out_of_memory(error):
            raise
        raise WrongArguments(f"the model does not take the example: {told(error)}\n{hint}") from error
    return made


class Optimized(StandIn):
    """A model prepared for inference.  `report` describes what was prepared for the latest inputs."""

    options: Options

    def __init__(self, model: Any, options: Options) -> None:
        super().__init__(model, options=options)
        self._report = Report()
        self._modes = with_modes(model)
        self._forget()
        self.training = False

    def _forget(self) -> None:
        """Forgets all preparations."""
        self._prepared: dict[Any, _Ready] = {}
        self._parts: dict[str, _Part] = {}
        self._with_parts: WithParts | None = None
        self._shared: Any = weakref.WeakValueDictionary()
        self._structure: Structure | None = None

    @property
    def report(self) -> Report:
        """The report of the model, or of its parts."""
        made = self._whole_report()
        if made.rows and all(row.why_not.startswith(NOT_ON_GPU) for row in made):
            made.notes.append("aten computes it on the CPU: move the model and its inputs to a GPU")
        return made

    def _whole_report(self) -> Report:
        rows, notes = list(self._report.rows), list(self._report.notes)
        for name, part in self._parts.items():
            inner = part._whole_report()
            rows += [replace(row, layer=f"{name}.{row.layer}".rstrip(".")) for row in inner]
            notes += [f"{name}: {note}" for note in inner.notes]
        return Report(rows, notes)

    @torch.compiler.disable(reason=_WHY_NOT_COMPILED)
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's results, without gradients; warns where an argument requires some.  Raises WrongArguments where
        the model, or a module of it, is in training mode again."""
        if any(map(_training, self._modes)):
            self._look_at_model()  # which may find that a module that was the model's trains
        given = Given.of(args, kwargs)
        if _of_functorch():  # torch.func takes the model's own derivatives
            return self._itself(*given.args, **given.kwargs)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given.tensors()) and not _traced():
            hint = "hint: for gradients, call the original model; for results only, use torch.no_grad()"
            why = "an argument requires gradients, but an optimized model records none"
            warn(f"convgen.torch.optimize: {why}\n{hint}")
        if _transformed():
            return self._as_it_is(given)
        if self.options.config.get("triton.cudagraphs"):
            torch.compiler.cudagraph_mark_step_begin()
        return self._run(given)

    def _look_at_model(self) -> None:
        """Raises WrongArguments."""
        self._modes = with_modes(self._model)
        check_model(self._model)

    def _changed(self) -> None:
        with tracing():
            self._forget()

    @torch.compiler.disable(reason=_WHY_NOT_COMPILED)
    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Makes arguments like these ready, without computing anything of them."""
        with suppress(OtherWeights):  # changed meanwhile: a call prepares it
            if not _transformed():  # as of fake tensors: a call of real ones prepares it
                self._for(Given.of(args, kwargs))

    def refresh(self) -> None:
        """Makes the next call pack the weights anew, and look for modules in lists and the like.

        Call it after writes that torch does not count, such as to `weight.data`."""
        if self._structure:
            self._structure.refresh()
        for ready in list(self._prepared.values()):
            ready.refresh()

    def train(self, mode: bool = True) -> Optimized:
        """Raises WrongArguments for training mode: what was folded cannot be trained."""
        if mode:
            hint = "train the model that it was made of; within another module that is trained, keep it out of"
            hint += " that one's children, in a tuple or a function"
            raise WrongArguments(f"an optimized model is for inference\nhint: {hint}")
        return super().train(False)

    def _replicate_for_data_parallel(self) -> Any:
        """Raises WrongArguments: torch.nn.DataParallel makes replicas at every call, of which each would prepare."""
        hint = "hint: optimize a copy of the model on each GPU, each in a separate thread or process"
        raise WrongArguments(f"torch.nn.DataParallel does not serve an optimized model\n{hint}")

    def __getstate__(self) -> dict[str, Any]:
        """The state without preparations: copies prepare themselves."""
        return {name: value for name, value in self.__dict__.items() if name not in _PREPARED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def _run(self, given: Given, most: float = math.inf) -> Any:
        for _ in range(_TRIES):
            try:
                return self._for(given, most)(given)
            except OtherWeights:
                with tracing():
                    self._forget()
        return self._as_it_is(given)  # others change the model all the time

    def _for(self, given: Given, most: float = math.inf) -> Callable[[Given], Any]:
        key = (given.structure, context(), *given.kinds())
        try:
            found = self._prepared.get(key)
        except TypeError:  # of a structure that has no hash: nobody can tell it from others
            return self._as_it_is
        if found is None:
            if len(self._prepared) >= most or without_data((*given.tensors(), *tensors_of(self._model))):
                return self._as_it_is
            with tracing():
                found = self._prepared.get(key)
                if found is None:
                    self._look_at_model()
                    if given.count_but_for_numbers(key, self._prepared) == _MANY_NUMBERS:
                        warn(_NUMBERS)
                    make_room(self._prepared)
                    found = self._prepared[key] = self._made(given)
        return found.run

    def _made(self, given: Given) -> _Ready:
        try:
            return self._exported(given)
        except OtherWeights:  # another thread has changed the model meanwhile
            raise
        except Exception as error:  # whatever torch cannot trace, or Inductor compile: the model itself is always right
            if not limit_of_tracers(error) or given.has_arrays:
                _try(self._model, given.args, given.kwargs)
            if not all(tensor.numel() for tensor in given.tensors()):  # some of torch's shape functions refuse these
                return _Ready(self._as_it_is)
            short = is_out_of_memory(error)
            why = "memory is short for the whole" if short else "the whole cannot be traced"
            return self._in_parts(f"{why}: {told(error)}", hooks_see(self._model) or isinstance(error, MakesLayers))

    #: Whether a result that is a view of an argument or a weight may be a copy.
    _may_copy_views = True
    #: Said where a model is optimized in parts.
    _instead_of_parts = '\nhint: torch.compile(model, backend="convgen") also compiles the code between them'

    def _in_parts(self, reason: str, is_bound: bool) -> _Ready:
        """Its parts prepare themselves when they are called, unless its functions are bound to the model itself."""
        if not self._parts and not is_bound:
            self._parts = {name: _Part(part, self.options) for name, part in parts_of(self._model).items()}
            self._with_parts = WithParts(self._model, {name: part.call for name, part in self._parts.items()})
        if not self._parts:
            warn(f"convgen.torch.optimize leaves the model as it is: {reason}")
            self._report = Report(notes=[f"nothing was optimized: {reason}"])
            return _Ready(self._as_it_is)
        note = f"its parts are optimized at their first call, because {reason}"
        warn(f"convgen.torch.optimize: {note}{self._instead_of_parts}")
        self._report = Report(notes=[note])
        return _Ready(lambda given: self._as_it_is(given, self._with_parts), self._refresh_parts)

    def _refresh_parts(self) -> None:
        for part in self._parts.values():
            part.refresh()

    def _as_it_is(self, given: Given, model: Callable[..., Any] | None = None) -> Any:
        with torch.no_grad():
            return (model or self._itself)(*given.args, **given.kwargs)

    @property
    def _itself(self) -> Callable[..., Any]:
        """The function that the model itself computes."""
        function: Callable[..., Any] = self._model
        return function

    def _to_trace(self) -> tuple[Any, dict[int, Any]]:
        """Like `sharing_tensors`."""
        return sharing_tensors(self._model)

    def _exported(self, given: Given) -> _Ready:
        """Raises what torch.export and Inductor raise."""
        given.check()
        # torch.export takes one tensor that is given twice for one argument
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: resolved(t).detach(), (given.args, given.kwargs))
        if self._structure is None or not self._structure.holds():
            self._structure = Structure(self._model)
        values = self._structure.values()
        model, copies = self._to_trace()
        with (
            torch.no_grad(),
            quiet_export(),
            plainly(),
            WatchedContainers(model) as containers,
            Watched(model) as watched,
        ):
            program = torch.export.export(model, args, kwargs, strict=False)
        if containers.written:
            raise RuntimeError("containers among the arguments that calls write to")
        names = listed(watched.names)
        if watched.makes_layers:
            raise MakesLayers("layers that calls make")
        if replaced := watched.registered:
            raise RuntimeError(f"parameters and buffers that calls put in the place of others: {listed(replaced)}")
        if names and remembers(self._model, watched.names, given.args, given.kwargs):
            raise RuntimeError(f"attributes that calls leave to later ones: {names}")
        flat = Exported(program, given.leaves)
        weights = Weights(self._structure, values, copies, program)
        made = Prepared(flat, weights.now(), weights.names, given.tensors(), self.options, self._shared)
        if flat.copies_views and not self._may_copy_views:
            raise RuntimeError("results that are views of arguments, which the model may write to")
        self._report = made.report
        if names:
            made.report.notes.append(f"its forward sets attributes, which stay as they were: {names}")
        if hooks := hooked(self._model):
            made.report.notes.append(f"hooks were traced, and are not called: of {listed(hooks)}")

        def run(given: Given) -> Any:
            now, tensors = weights.now(), given.tensors()
            return flat.results(made.run(now, tensors), [*now, *tensors])

        return _Ready(run, made.forget_weights)


class _Part(Optimized):
    """A module of a model that cannot be traced as a whole."""

    _instead_of_parts = ""
    _may_copy_views = False

    @property
    def _itself(self) -> Callable[..., Any]:
        """The function without the module's hooks, which its caller has already called."""
        function: Callable[..., Any] = self._model.forward
        return function

    def _to_trace(self) -> tuple[Any, dict[int, Any]]:
        model, copies = sharing_tensors(self._model)
        if model is not self._model:
            forget_hooks(model)
        return model, copies

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Replaces the module's own forward.  Inputs run unprepared once too many kinds of them have been seen: their
        shapes depend on data, and each preparation takes seconds.  So do inputs of which the model takes gradients."""
        if torch.is_grad_enabled() or _transformed():
            return self._itself(*args, **kwargs)
        return self._run(Given.of(args, kwargs), most=MOST_KINDS)


def _traced() -> bool:
    """Whether a model that contains this one is being traced."""
    return bool(torch._C._len_torch_dispatch_stack() or torch.jit.is_tracing() or is_fx_symbolic_tracing())


def _of_functorch() -> bool:
    """Whether torch.func transforms this one."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _transformed() -> bool:
    """Whether a tracer or torch.func is at work, or numbers have tangents, which a compiled graph does not support."""
    return _traced() or _of_functorch() or forward_ad._current_level >= 0


def _try(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises what the model itself raises for these arguments; neither they nor its parameters and buffers are
    written."""
    try:
        model = copy_of(model, ())
    except Exception:  # it holds what cannot be copied
        return
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
    with torch.no_grad():
        model(*args, **kwargs)


@dataclass(frozen=True)
class _Ready:
    """A function that computes results from arguments, and one that makes it repack its weights."""

    run: Callable[[Given], Any]
    refresh: Callable[[], None] = lambda: None
