"""Gradients of convolutions, of tensors or of fake ones: what is asked, how convgen serves it, what aten computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from convgen.functional.arrays import inverse, strides_in
from convgen.functional.recipe import Given, Recipe, input_gradient, result_order, weight_gradient
from convgen.ir.problem import Op
from convgen.torch import aten
from convgen.torch.launch import Served, begins, given, remembered

Tensor = Any


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
    def layer(self) -> str:
        x, w = (self.size, self.second.shape) if self.op is Op.DGRAD else (self.first.shape, self.size)
        return f"{self.op} of {tuple(x)} by {tuple(w)}"

    @property
    def key(self) -> tuple[Any, ...]:
        """What gradients of one kind have in common."""
        described = [(t.shape, t.stride(), t.dtype, begins(t)) for t in self.reads]
        return (*described, self.first.get_device(), self.op, *self[3:])

    @property
    def order(self) -> tuple[int, ...]:
        """The order in memory of the result's axes."""
        return order_of(*self.reads)

    def recipe(self) -> Recipe:
        """What is asked of convgen.  Raises ConvgenError."""
        first, second = (given(name, t) for name, t in zip(_READS[self.op], self.reads, strict=True))
        rank = len(self.stride)
        pads = tuple(zip(self.padding[:rank], self.padding[-rank:], strict=True))
        numbers = self.stride, pads, self.dilation, self.groups, None, self.padding_mode
        if self.op is Op.DGRAD:
            return input_gradient(self.size, second, first, *numbers)
        return weight_gradient(first, self.size, second, *numbers)

    def served(self) -> Served:
        """How convgen serves it: `launch(first, second, ())`.  The first one of a kind builds the kernel."""
        return remembered(self.key, self.recipe, self.reads)

    def by_aten(self) -> Tensor:
        """By aten, which is cuDNN on a GPU."""
        order, geometry = self.order, self[4:]
        if self.op is Op.DGRAD:  # aten takes the layout of the filters, or of the input
            made = aten.input_gradient(self.first, in_order(self.second, order), self.size, *geometry)
        else:
            made = aten.weight_gradient(in_order(self.first, order), self.second, self.size, *geometry)
        return in_order(made, order)

    def empty(self) -> Tensor:
        """An empty tensor like the result."""
        order = self.order
        return self.first.new_empty([self.size[i] for i in order]).permute(inverse(order))


_READS = {Op.DGRAD: ("grad_output", "weight"), Op.WGRAD: ("input", "grad_output")}


def order_of(first: Tensor, second: Tensor) -> tuple[int, ...]:
    """The order in memory of the axes of a result that is computed from these two."""
    a, b = (Given(tuple(t.shape), tuple(t.stride()), "") for t in (first, second))
    return result_order(a, b)


def in_order(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """The tensor with its axes in this order in memory, and strides that say so; a copy where it lies otherwise."""
    packed = tensor.permute(order).contiguous()
    return packed.as_strided(tensor.shape, strides_in(tensor.shape, order))
