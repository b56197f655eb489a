"""Requests to convgen, for tensors or fake ones: convolutions and their gradients, also with sums of each channel, and
in aten's terms."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from convgen.functional.arrays import strides_in
from convgen.functional.layouts import Given, result_order
from convgen.functional.pointwise import SUMS, operands_of, steps_of
from convgen.functional.recipe import Recipe, broadcast, input_gradient, weight_gradient
from convgen.ir.problem import Op
from convgen.torch import aten
from convgen.torch.launch import Served, begins, given, key_of, recipe, remembered, served

if TYPE_CHECKING:
    from convgen.torch.network.timing import Timer

Tensor = Any


class Asked(Protocol):
    """A convolution or a gradient of these very tensors."""

    @property
    def reads(self) -> tuple[Tensor, Tensor]: ...
    @property
    def operands(self) -> Sequence[Tensor]:
        """The operands that an epilogue reads."""

    @property
    def key(self) -> Hashable:
        """A key that requests of one kind share."""

    @property
    def layer(self) -> str: ...
    @property
    def fused(self) -> str:
        """A description of what the kernel fuses with the convolution."""

    def aten_us(self, timer: Timer) -> float:
        """aten's microseconds, with a pass in place of an epilogue, and without sums or a bias."""

    def times(self, timer: Timer) -> tuple[float, float]:
        """convgen's and aten's microseconds; of sums, the second is of the faster one without and the passes for
        them."""

    def recipe(self) -> Recipe:
        """The requested recipe.  Raises ConvgenError."""

    def served(self, tune: str | None = None) -> Served:
        """How convgen serves it, by `launch(*reads, operands)`.  The first one of a kind builds the kernel; the first
        with `tune` measures some."""
        ...


class Forward(NamedTuple):
    """A convolution: the arguments of convgen::fused_conv."""

    input: Tensor
    weight: Tensor
    operands: list[Tensor]
    epilogue: str
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str = "zeros"
    transposed: bool = False

    @property
    def reads(self) -> tuple[Tensor, Tensor]:
        return self.input, self.weight

    @property
    def geometry(self) -> tuple[Any, ...]:
        """The geometry of convgen::conv, if it is not transposed."""
        return self[4:9]

    @property
    def layer(self) -> str:
        return f"{'transposed ' * self.transposed}{tuple(self.input.shape)} by {tuple(self.weight.shape)}"

    @property
    def fused(self) -> str:
        return self.epilogue

    def aten_us(self, timer: Timer) -> float:
        return timer.aten(self, 1 if self.epilogue else None)

    def times(self, timer: Timer) -> tuple[float, float]:
        return timer.fused(self, None), self.aten_us(timer)

    @property
    def key(self) -> Hashable:
        return key_of(*self)

    def recipe(self) -> Recipe:
        return recipe(*self)

    def served(self, tune: str | None = None) -> Served:
        return served(*self, tune=tune)


class Gradient(NamedTuple):
    """One gradient.  DGRAD reads y's gradient and the filters and gives the gradient of the input of `size`; WGRAD
    reads the input and y's gradient and gives that of the filters.  The geometry is convgen::conv's."""

    op: Op
    first: Tensor
    second: Tensor
    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str = "zeros"

    @property
    def reads(self) -> tuple[Tensor, Tensor]:
        return self.first, self.second

    @property
    def operands(self) -> Sequence[Tensor]:
        return ()

    @property
    def layer(self) -> str:
        x, w = (self.size, self.second.shape) if self.op is Op.DGRAD else (self.first.shape, self.size)
        return f"{self.op} of {tuple(x)} by {tuple(w)}"

    @property
    def fused(self) -> str:
        return ""

    def aten_us(self, timer: Timer) -> float:
        return timer.gradient_by_aten(self)

    def times(self, timer: Timer) -> tuple[float, float]:
        return timer.gradient(self)

    @property
    def key(self) -> Hashable:
        described = [(t.shape, t.stride(), t.dtype, begins(t)) for t in self.reads]
        return (*described, self.first.get_device(), self.op, *self[3:])

    @property
    def order(self) -> tuple[int, ...]:
        """The order in memory of the result's axes."""
        return order_of(*self.reads)

    def recipe(self) -> Recipe:
        first, second = (given(name, t) for name, t in zip(_READS[self.op], self.reads, strict=True))
        rank = len(self.stride)
        pads = tuple(zip(self.padding[:rank], self.padding[-rank:], strict=True))
        numbers = self.stride, pads, self.dilation, self.groups, None, self.padding_mode
        if self.op is Op.DGRAD:
            return input_gradient(self.size, second, first, *numbers)
        return weight_gradient(first, self.size, second, *numbers)

    def served(self, tune: str | None = None) -> Served:
        return remembered(self.key, self.recipe, self.reads, tune=tune)

    def by_aten(self) -> Tensor:
        """The result by aten, which is cuDNN on a GPU."""
        order, geometry = self.order, self[4:]
        if self.op is Op.DGRAD:  # aten takes the layout of the filters, or of the input
            made = aten.input_gradient(self.first, in_order(self.second, order), self.size, *geometry)
        else:
            made = aten.weight_gradient(in_order(self.first, order), self.second, self.size, *geometry)
        return made_in_order(made, order)

    def empty(self) -> Tensor:
        """An empty tensor like the result."""
        return empty_in_order(self.first, self.size, self.order)


#: Of a convolution that is alone.
Bare = Forward | Gradient


class Summed(NamedTuple):
    """A convolution without an epilogue, or the gradient of an input, with an epilogue and sums of its results for each
    channel (convgen.functional.pointwise); the sums' operands come last."""

    bare: Bare
    operands: Sequence[Tensor]
    epilogue: str
    sums: str

    @property
    def reads(self) -> tuple[Tensor, Tensor]:
        return self.bare.reads

    @property
    def layer(self) -> str:
        return self.bare.layer

    @property
    def fused(self) -> str:
        """A description of what is fused."""
        return f"{self.epilogue} sums: {self.sums}".lstrip()

    def aten_us(self, timer: Timer) -> float:
        return self.bare.aten_us(timer)

    def times(self, timer: Timer) -> tuple[float, float]:
        return timer.summed(self)

    @property
    def key(self) -> Hashable:
        described = [(o.shape, o.stride(), o.dtype, begins(o)) for o in self.operands]
        return (self.bare.key, *described, self.epilogue, self.sums)

    def recipe(self) -> Recipe:
        operands = tuple(given(f"operand {i}", o) for i, o in enumerate(self.operands))
        made, sums = self.bare.recipe(), tuple(SUMS[word] for word in self.sums.split())
        views, facts = broadcast(operands, given("input", self.reads[0]), made.result.shape)
        ending = replace(made.convolution, steps=steps_of(self.epilogue), operands=facts, sums=sums)
        return replace(made, convolution=ending, views=(*made.views, *views))

    def served(self, tune: str | None = None) -> Served:
        return remembered(self.key, self.recipe, (*self.reads, *self.operands), tune=tune)

    def by_aten(self) -> list[Tensor]:
        """The result by aten, and the sums in float32."""
        operands, epilogue = self.operands, self.epilogue
        if isinstance(self.bare, Forward):  # whose bias is added before anything is rounded
            count = operands_of(steps_of(epilogue))
            made = aten.fused(*self.bare._replace(operands=list(operands[:count]), epilogue=epilogue))
            operands, epilogue = operands[count:], ""
        else:
            made = self.bare.by_aten()
        value, *sums = aten.summed(made, operands, epilogue, self.sums)
        return [made_in_order(value, self.order), *sums]

    @property
    def order(self) -> tuple[int, ...]:
        """The order in memory of the result's axes."""
        return order_of(*self.reads)

    @property
    def result(self) -> Tensor:
        """An empty tensor like the result."""
        bare = self.bare
        if isinstance(bare, Forward):
            return torch.ops.convgen.conv(*bare.reads, None, *bare.geometry)
        return bare.empty()


class WithBias(NamedTuple):
    """The gradient of filters, and that of the bias by the same pass over y's gradient, in float32 at least."""

    bare: Gradient

    @property
    def reads(self) -> tuple[Tensor, Tensor]:
        return self.bare.reads

    @property
    def operands(self) -> Sequence[Tensor]:
        return ()

    @property
    def fused(self) -> str:
        return ""

    def aten_us(self, timer: Timer) -> float:
        return self.bare.aten_us(timer)

    def times(self, timer: Timer) -> tuple[float, float]:
        return timer.with_bias(self)

    @property
    def key(self) -> Hashable:
        return (self.bare.key, "bias")

    @property
    def layer(self) -> str:
        return f"{self.bare.layer}, and the bias"

    def recipe(self) -> Recipe:
        made = self.bare.recipe()
        return replace(made, convolution=replace(made.convolution, bias=True))

    def served(self, tune: str | None = None) -> Served:
        return remembered(self.key, self.recipe, self.reads, tune=tune)

    def sum(self) -> Tensor:
        """The bias's gradient by a pass of torch's."""
        return bias_gradient(self.bare.second)


def bias_axes(rank: int) -> list[int]:
    """The axes of a result's gradient, of so many, over which a bias's is the sum."""
    return [i for i in range(rank) if i != 1]


def bias_gradient(grad: Tensor) -> Tensor:
    return grad.sum(bias_axes(grad.dim()))


_READS = {Op.DGRAD: ("grad_output", "weight"), Op.WGRAD: ("input", "grad_output")}


# ---- aten's terms -------------------------------------------------------------------------------


def of_convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Bare | None:  # fmt: skip
    """The request of aten::convolution.  A transposed one without bias is the gradient of another; None if it would not
    be, or if aten refuses the bias."""
    if bias is not None and bias.shape != (aten.filter_count(weight, groups, transposed),):
        return None
    stride, padding, dilation, output_padding = of_each_axis(weight, stride, padding, dilation, output_padding)
    geometry = stride, padding, dilation, groups
    operands = [] if bias is None else [bias.view(-1, *(1,) * len(stride))]
    epilogue = "add" if operands else ""
    if not transposed:
        return Forward(input, weight, operands, epilogue, *geometry)
    if not _is_gradient(output_padding, stride):
        return None
    if operands:
        highs = (p - extra for p, extra in zip(padding, output_padding, strict=True))
        cut = geometry[0], (*padding, *highs), *geometry[2:]
        return Forward(input, weight, operands, epilogue, *cut, transposed=True)
    axes = zip(input.shape[2:], weight.shape[2:], stride, padding, dilation, output_padding, strict=True)
    extents = ((e - 1) * s - 2 * p + d * (taps - 1) + extra + 1 for e, taps, s, p, d, extra in axes)
    return Gradient(Op.DGRAD, input, weight, (input.shape[0], weight.shape[1] * groups, *extents), *geometry)


def of_backward(
    grad: Tensor, input: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> tuple[Bare, Bare] | tuple[()]:  # fmt: skip
    """The gradients of the input and of the filters that aten::convolution_backward requests.  Those of a transposed
    convolution are a convolution of y's gradient, and the gradient of the filters that lead from that to the input."""
    stride, padding, dilation, output_padding = of_each_axis(weight, stride, padding, dilation, output_padding)
    geometry = stride, padding, dilation, groups
    if not transposed:
        of_input = Gradient(Op.DGRAD, grad, weight, tuple(input.shape), *geometry)
        return of_input, Gradient(Op.WGRAD, input, grad, tuple(weight.shape), *geometry)
    if not _is_gradient(output_padding, stride):
        return ()
    of_filters = Gradient(Op.WGRAD, grad, input, tuple(weight.shape), *geometry)
    return Forward(grad, weight, [], "", *geometry), of_filters


def of_each_axis(weight: Tensor, *numbers: Sequence[int]) -> list[tuple[int, ...]]:
    """aten's convolutions take one number for all axes, as which `padding="valid"` arrives."""
    rank = weight.dim() - 2
    return [tuple(given) * rank if len(given) == 1 else tuple(given) for given in numbers]


def _is_gradient(output_padding: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether a transposed convolution is the gradient of one: of its input, which has no further windows."""
    return all(extra < step for extra, step in zip(output_padding, stride, strict=True))


# ---- layouts ------------------------------------------------------------------------------------


def order_of(first: Tensor, second: Tensor) -> tuple[int, ...]:
    """The order in memory of the axes of a result that is computed from these two."""
    a, b = (Given(tuple(t.shape), tuple(t.stride()), "") for t in (first, second))
    return result_order(a, b)


def empty_in_order(like: Tensor, shape: Sequence[int], order: Sequence[int]) -> Tensor:
    """An empty tensor with its axes in this order in memory."""
    return like.new_empty_strided(tuple(shape), strides_in(shape, order))


def made_in_order(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """An operator's result with its axes in this order in memory: itself or a copy, but no view, to which autograd lets
    nobody write."""
    if tensor.stride() == strides_in(tensor.shape, order) and not tensor._is_view():
        return tensor
    return empty_in_order(tensor, tensor.shape, order).copy_(tensor)


def in_order(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """The tensor with its axes in this order in memory, and strides that say so; a copy where it lies otherwise."""
    packed = tensor.permute(order).contiguous()
    return packed.as_strided(tensor.shape, strides_in(tensor.shape, order))
