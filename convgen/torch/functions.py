"""conv1d, conv2d and conv3d of torch tensors, as in torch.nn.functional, with an activation and a residual."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from convgen.functional.parameters import Amounts, Numbers, by_axis, output_extents, padding_of, paddings, whole
from convgen.functional.pointwise import Step, text_of
from convgen.functional.pointwise import activation as steps_of_activation
from convgen.runtime.errors import WrongShape, WrongType
from convgen.spec import known_tuning
from convgen.torch import aten, ops
from convgen.torch.launch import served

Tensor = Any
Activation = str | Sequence[Any] | None
__all__ = ["conv1d", "conv2d", "conv3d"]
_OPS = (ops.library, torch.ops.convgen)  # the library defines the operators


def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Numbers = 1, padding: Amounts | str = 0,
    dilation: Numbers = 1, groups: int = 1, *, activation: Activation = None, residual: Tensor | None = None,
    padding_mode: str = "zeros", tune: str | None = None,
) -> Tensor:  # fmt: skip
    """activation(conv1d(input, weight, bias) + residual); see `conv2d`."""
    return _conv(1, input, weight, bias, stride, padding, dilation, groups, activation, residual, padding_mode, tune)


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Numbers = 1, padding: Amounts | str = 0,
    dilation: Numbers = 1, groups: int = 1, *, activation: Activation = None, residual: Tensor | None = None,
    padding_mode: str = "zeros", tune: str | None = None,
) -> Tensor:  # fmt: skip
    """activation(conv2d(input, weight, bias) + residual), with torch's shapes, layouts, types and defaults.

    On a GPU, convgen's kernel computes it if it serves the call; otherwise aten does.  The faster of the two computes
    each gradient: the first backward pass of a kind times both (convgen.torch.gradients() reports them).  `activation`
    is a name such as "relu", or a name with parameters such as ("leaky_relu", 0.2); `residual` broadcasts to the
    result, which has the input's type; `padding_mode` is as in torch.nn.Conv2d.  If gradients are recorded, activation
    and residual are torch's own; under torch.func's transforms, forward-mode gradients and torch.jit.trace, so is the
    convolution.  `tune="quick"` measures the best few kernels for the result before the first call of a kind
    (docs/tuning.md).
    Raises WrongArguments, WrongShape, WrongType, UsageError.
    """
    return _conv(2, input, weight, bias, stride, padding, dilation, groups, activation, residual, padding_mode, tune)


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Numbers = 1, padding: Amounts | str = 0,
    dilation: Numbers = 1, groups: int = 1, *, activation: Activation = None, residual: Tensor | None = None,
    padding_mode: str = "zeros", tune: str | None = None,
) -> Tensor:  # fmt: skip
    """activation(conv3d(input, weight, bias) + residual); see `conv2d`."""
    return _conv(3, input, weight, bias, stride, padding, dilation, groups, activation, residual, padding_mode, tune)


def _conv(
    rank: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Numbers, padding: Amounts | str,
    dilation: Numbers, groups: int, activation: Activation, residual: Tensor | None, padding_mode: str,
    tune: str | None,
) -> Tensor:  # fmt: skip
    given = input, weight, bias, residual
    if has_torch_function(given):  # torch.fx's proxies, subclasses of tensors, and modes
        own: Any = dict(activation=activation, residual=residual, padding_mode=padding_mode, tune=tune)
        function: Any = (conv1d, conv2d, conv3d)[rank - 1]
        return handle_torch_function(function, given, input, weight, bias, stride, padding, dilation, groups, **own)
    _check(rank, input, weight, bias, residual)
    if input.device.type != "meta" and torch.is_autocast_enabled(input.device.type):
        dtype = torch.get_autocast_dtype(input.device.type)
        input, weight, bias, residual = (
            None if t is None else _cast(t, dtype) for t in (input, weight, bias, residual)
        )
    if input.dim() == rank + 1:
        batch = input.unsqueeze(0)
        return _conv(
            rank, batch, weight, bias, stride, padding, dilation, groups, activation, residual, padding_mode, tune
        ).squeeze(0)
    strides, dilations = by_axis("stride", stride, rank, 1), by_axis("dilation", dilation, rank, 1)
    image, filters = _sizes(input), _sizes(weight)
    pads = paddings(padding, filters[2:], strides, dilations)
    lows, highs = [low for low, _ in pads], [high for _, high in pads]
    amounts, count = lows if lows == highs else lows + highs, whole("groups", groups)
    geometry = list(strides), amounts, list(dilations), count, padding_mode
    padding_of(padding_mode, image[2:], pads)  # raises
    steps = steps_of_activation(activation)
    if residual is not None:
        extents = output_extents(image[2:], filters[2:], strides, pads, dilations)
        _check_residual(_sizes(residual), (image[0], filters[0], *extents))
    tensors = [t for t in (input, weight, bias, residual) if t is not None]
    if _is_torchs(input) or _transformed(tensors, padding_mode):  # torch.nn.functional's may be several of aten's
        made = aten.composite(input, weight, bias, *geometry)
        return _finished(made, residual, steps)
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    bare = recorded or (residual is None and len(steps) == 0)
    operands = [] if bias is None else [bias.view(-1, *(1,) * rank)]
    operands += [] if bare or residual is None else [residual]
    epilogue = text_of((*(Step("add"),) * len(operands), *(() if bare else steps)))
    if tune is not None and known_tuning(tune) and input.is_cuda and not torch.compiler.is_compiling():
        served(input, weight, operands, epilogue, *geometry, tune=tune)  # as the operator will ask
    if not bare:
        return torch.ops.convgen.fused_conv(input, weight, operands, epilogue, *geometry)
    made = torch.ops.convgen.conv(input, weight, bias, *geometry)
    return _finished(made, residual, steps)


def _finished(made: Tensor, residual: Tensor | None, steps: Sequence[Step]) -> Tensor:
    """A convolution's result after its residual and activation, computed by torch, in its own type."""
    return aten.apply(steps, made if residual is None else made + residual, ()).to(made.dtype)


def _check(rank: int, input: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> None:
    """Raises WrongShape, WrongType: of what aten would say later and in other words, or not at all."""
    given = {"input": input, "weight": weight, "bias": bias, "residual": residual}
    for name, tensor in given.items():
        if not isinstance(tensor, torch.Tensor) and (tensor is not None or name in ("input", "weight")):
            raise WrongType(f"{name} is of type {type(tensor).__name__}: expected a torch.Tensor")
    if weight.dim() != rank + 2 or input.dim() not in (rank + 1, rank + 2):
        axes = f"weight of {rank + 2} axes, and input of as many, or of one less"
        raise WrongShape(f"input has shape {tuple(input.shape)} and weight {tuple(weight.shape)}: expected {axes}")
    if bias is not None and _sizes(bias) != (_sizes(weight)[0],):
        raise WrongShape(f"bias has shape {tuple(bias.shape)}: expected {weight.shape[0]} values, one for each channel")
    for name, operand in (("bias", bias), ("residual", residual)):
        if operand is None or operand.dtype == input.dtype:
            continue
        if not (operand.is_floating_point() and input.is_floating_point()):
            raise WrongType(f"{name} has elements of {operand.dtype}, input of {input.dtype}: expected one type")


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    """The shape.  Where torch.jit.trace records, it would be of tensors, and each look at one a warning."""
    if not torch.jit.is_tracing():
        return tuple(tensor.shape)
    recording = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        return tuple(tensor.shape)
    finally:
        torch._C._set_tracing_state(recording)


def _check_residual(residual: Sequence[int], result: Sequence[int]) -> None:
    """Raises WrongShape where it does not broadcast to the result."""
    lead = len(result) - len(residual)
    if lead < 0 or any(e not in (1, r) for e, r in zip(residual, result[lead:], strict=True)):
        raise WrongShape(f"residual has shape {tuple(residual)}: it does not broadcast to {tuple(result)}")


_PLAIN = threading.local()


@contextmanager
def plainly() -> Iterator[None]:
    """Makes this thread's convolutions use torch's own operators, which `optimize` fuses with what follows them."""
    before, _PLAIN.wanted = getattr(_PLAIN, "wanted", False), True
    try:
        yield
    finally:
        _PLAIN.wanted = before


def _is_torchs(input: Tensor) -> bool:
    """Whether it has a type or a layout (mkldnn) that torch.nn.functional takes, and convgen's operators do not."""
    return bool(input.is_complex() or input.layout is not torch.strided)


def _transformed(tensors: Sequence[Tensor], padding_mode: str) -> bool:
    """Whether torch's own operators are needed: torch.func transforms the call, jit.trace records it, tensors have
    tangents, or `plainly` asks for them."""
    if getattr(_PLAIN, "wanted", False) and padding_mode == "zeros":  # others would be copies
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.jit.is_tracing():
        return True
    return any(torch.autograd.forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def _cast(tensor: Tensor, dtype: Any) -> Tensor:
    """Casts as autocast does: floating types except float64."""
    wanted = tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(dtype) if wanted else tensor
