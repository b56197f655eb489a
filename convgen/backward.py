"""The gradients of layers, as specs: dgrad and wgrad of a forward convolution, with the backward of epilogues.

Of a layer y = f(acc, ...) the gradients start from that of its sums `acc`, which stands in y's place: dgrad and wgrad
read it.  The layer behind makes it: its dgrad multiplies by f's derivative, which it computes from what the layer's
forward kernel keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from convgen import driver
from convgen.diagnostics import SpecError
from convgen.ir import epilogue as ep
from convgen.ir.derivative import Underivable, added, backward, saved_name
from convgen.ir.problem import ConvProblem, Op, Padding, exchanged_dims
from convgen.ir.tensor import Tensor
from convgen.spec import Spec, UsageError

#: Types of which gradients are computed, and of saved results that they read: others round too much, or saturate.
TYPES = ("f16", "bf16", "f32", "f64")
BRANCH, SUM = "branch", "g"


@dataclass(frozen=True)
class Gradients:
    """The two gradients of a layer, notes on them, and the target that its spec names, if any."""

    dgrad: ConvProblem
    wgrad: ConvProblem
    notes: tuple[str, ...]
    target: str | None = None

    def __str__(self) -> str:
        """A spec."""
        blocks = [str(problem) for problem in (self.dgrad, self.wgrad)]
        if self.target:
            blocks = [f"{block.removesuffix('}')}  target {self.target}\n}}" for block in blocks]
        return "\n".join([*(f"# {note}" for note in self.notes), blocks[0], "", blocks[1], ""])


def spec(source: Spec, only: str | None = None, after: str | None = None, branch: bool = False) -> str:
    """The gradients of a spec's convolutions, or of the one that is named `only`, as a spec for the same target.  Of
    several that are not named, those whose gradients are not derived are comments.  Raises UsageError, SpecError,
    Underivable."""
    for name, given in (("only", only), ("after", after)):
        if given is not None and not isinstance(given, str):
            raise UsageError(f"{name} is of type {type(given).__name__}: expected the name of one convolution")
    named = driver.load(replace(source, only=(after,)))[0].request.problem.static if after else None
    requests = [c.request for c in driver.load(replace(source, only=(only,)) if only else source)]
    wanted = [r for r in requests if r.problem.op is Op.FPROP] or requests
    if after and not only:
        wanted = [r for r in wanted if r.problem.name != after] or wanted
    named_ones = bool(only or source.only or len(wanted) == 1)
    found, left_out = [], []
    for r in wanted:
        try:
            made = replace(gradients(r.problem.static, named, branch), target=r.target)
            found.append(_checked(str(made), r.problem.name))
        except Underivable as e:
            if named_ones or (r is wanted[-1] and not found):
                raise
            left_out.append(f"# No gradients of {r.problem.name}: {str(e).splitlines()[0]}\n")
    return "\n".join(["".join(left_out), *found] if left_out else found)


def _checked(text: str, name: str) -> str:
    """Returns the text if the compiler accepts it as a spec.  Raises Underivable otherwise: numbers are too large, or
    names are taken."""
    try:
        driver.load(Spec(text))
    except SpecError as e:
        first = e.diagnostics[0]
        hint = f"\nhint: {first.hint}" if first.hint else ""
        raise Underivable(f"no spec can say the gradients of {name}: {first.message}{hint}") from None
    return text


def gradients(layer: ConvProblem, after: ConvProblem | None = None, branch: bool = False) -> Gradients:
    """The gradients of a forward convolution.

    `after` is the layer whose result this one's input is: dgrad then gives the gradient of that one's sums.  With
    `branch`, dgrad adds the gradient of another use of x first.  Raises Underivable.
    """
    for problem in (layer, after) if after else (layer,):
        if problem.op is not Op.FPROP:
            also = " (as every `op transposed` is)" if problem.op is Op.DGRAD else ""
            raise Underivable(f"{problem.name} is {problem.op}{also}; gradients are derived only from fprop")
    if layer.prologue:
        raise Underivable(
            f"{layer.name} has a prologue, through which gradients are not derived\n"
            "hint: remove the prologue and derive that layer's gradients, whose x is then the prologue's result; "
            "`--only NAME` derives those of another layer"
        )
    if layer.x.dtype not in TYPES:
        raise Underivable(f"{layer.name} reads {layer.x.dtype}; gradients are of {', '.join(TYPES)}")
    if after:
        _fits(layer, after)
    # what gradients read has one type
    of_sums = replace(layer, y=replace(layer.y, dtype=layer.x.dtype), epilogue=None)
    fill = layer.padding if layer.padding.repeats else Padding.ZERO
    dgrad = replace(of_sums, name=f"{layer.name}_dgrad", op=Op.DGRAD, padding=fill)
    wgrad = replace(of_sums, name=f"{layer.name}_wgrad", op=Op.WGRAD)
    summed, notes = _operands(layer)
    return Gradients(
        replace(dgrad, epilogue=_through(layer, after, branch)),
        replace(wgrad, epilogue=summed),
        (f"Gradients of {layer.name}: {layer.y.name} is that of its sums, before the epilogue.", *notes),
    )


def _fits(layer: ConvProblem, after: ConvProblem) -> None:
    """Raises Underivable where a layer's result is not the input of the next."""
    made, read = after.y.renamed(exchanged_dims()), layer.x
    if (made.dtype, made.dims, made.extents) != (read.dtype, read.dims, read.extents):
        hint = "hint: `--only NAME` names the layer that reads it"
        raise Underivable(f"{layer.x}, which {layer.name} reads, is not the result of {after.name}, {after.y}\n{hint}")


def _through(layer: ConvProblem, after: ConvProblem | None, branch: bool) -> ep.Epilogue | None:
    """The epilogue of dgrad: the gradient of x, and through the epilogue that made x."""
    taken = {layer.x.name, layer.w.name, layer.y.name}
    operands = [replace(layer.x, name=_free(BRANCH, taken), role="operand")] if branch else []
    total: ep.Expr = ep.Binary("+", ep.Acc(), ep.OperandRef(operands[0].name)) if branch else ep.Acc()
    body = []
    if after and after.epilogue:
        whole = ep.LocalRef(_free(SUM, taken)) if branch else ep.Acc()
        stored = {t.name: t.dtype for t in (after.y, *after.elementwise) if t.dtype in TYPES}
        through = backward(after.epilogue, after.y.name, stored, whole, taken)
        operands += [_saved(after, name) for name in through.reads]
        if through.value != whole:
            body = [ep.Assignment(whole.name, total)] if isinstance(whole, ep.LocalRef) else []
            body += through.body
            total = through.value
    if total == ep.Acc():
        return None
    return ep.Epilogue(tuple(operands), (*body, ep.Assignment(layer.x.name, total)))


def _saved(after: ConvProblem, name: str) -> Tensor:
    """A result or an operand of the layer before, as an operand of dgrad."""
    tensor = after.y if name == after.y.name else after.tensor(name)
    return replace(tensor, name=saved_name(name), role="operand").renamed(exchanged_dims())


def _operands(layer: ConvProblem) -> tuple[ep.Epilogue | None, tuple[str, ...]]:
    """The epilogue of wgrad: the gradients of operands that are added to the sums; and notes on others."""
    if not layer.epilogue:
        return None, ()
    taken = {layer.x.name, layer.w.name, layer.y.name}
    sums = added(layer.epilogue, layer.y.name)
    results, body, notes = [], [], []
    for t in layer.operands:
        if t.name not in sums:
            notes.append(f"{t.name} is used otherwise than by adding it to the sums; its gradient is not derived.")
        elif set(t.dims) == set(layer.y.dims):
            notes.append(f"{layer.y.name} is the gradient of {t.name}, too.")
        else:
            name = _free(f"d{t.name}", taken)
            results.append(replace(t, name=name, role="result", dtype=layer.number, pitch=None))
            body.append(ep.Assignment(name, ep.TensorRef(layer.y.name)))
    if not results:
        return None, tuple(notes)
    return ep.Epilogue((), (*body, ep.Assignment(layer.w.name, ep.Acc())), tuple(results)), tuple(notes)


def _free(name: str, taken: set[str]) -> str:
    """The name, or a longer one where it is taken."""
    while name in taken:
        name += "_"
    return name
