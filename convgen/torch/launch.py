"""Turns an operator's arguments on a GPU into a launch, by one look-up if the same was requested before.

What convgen does not serve, and why, is remembered as well: `Served.why_not`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from convgen.diagnostics import ConvgenError
from convgen.functional.arrays import TORCH, WIDEST, element_type, strides_in
from convgen.functional.call import viewed
from convgen.functional.kernels import kernel_of
from convgen.functional.layouts import Given
from convgen.functional.pointwise import steps_of
from convgen.functional.recipe import Recipe, View, forward_padded, into, transpose_cut
from convgen.ir.problem import Op
from convgen.runtime import cuda
from convgen.runtime.arrays import TORCH as TORCH_TENSORS
from convgen.runtime.arrays import capturing
from convgen.runtime.errors import Misaligned, NoCupy, Overlap, WrongDevice, WrongType
from convgen.runtime.kernel import Kernel
from convgen.torch.memory import is_out_of_memory

Tensor = Any
#: Element types whose results have the same type, as torch wants them.
_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Served:
    """How convgen serves a call: `launch(input, weight, operands)`, and `out` after these if the call has one; or why
    it does not.  A launch gives the result; where sums are asked for, a list of it and of these."""

    launch: Callable[..., Tensor] | None
    why_not: str = ""
    kernel: str = ""  # what serves, in words
    spec: str = ""  # the kernel's
    tuned: bool = False  # whether candidates were measured for it, or would have been
    for_now: bool = False  # memory was short: the next call may be served


#: What a launch refuses of very tensors: an address that the kernel's loads cannot have, memory in common, another GPU;
#: and a product by cuBLAS without CuPy.  Where the driver fails, what follows is not to be trusted.
REFUSALS = (Misaligned, Overlap, WrongDevice, NoCupy)

_SERVED: dict[Hashable, Served] = {}


def served(
    input: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
    transposed: bool = False, prologue: str = "", *, out: Tensor | None = None,
    tune: str | None = None,
) -> Served:  # fmt: skip
    """How convgen serves a call like this.  The first one of a kind builds the kernel; the first with `tune` measures
    the best few candidates, for all that follow."""
    geometry = stride, padding, dilation, groups, padding_mode, transposed
    arguments = input, weight, operands, epilogue, *geometry, prologue, out
    return remembered(key_of(*arguments), lambda: recipe(*arguments), (input, weight, *operands), out, tune)


def remembered(
    key: Hashable, make: Callable[[], Recipe], tensors: Sequence[Tensor], out: Tensor | None = None,
    tune: str | None = None,
) -> Served:  # fmt: skip
    """How convgen serves the recipe for these tensors; made once per key, and once more if it is to be tuned."""
    found = _SERVED.get(key)
    if found is None or (tune and not found.tuned and not capturing()):
        try:
            found = _serve(make(), tensors, out, tune)
        except Exception as error:
            if is_out_of_memory(error):
                return Served(None, str(error), for_now=True)
            found = _unserved(error)
        found = _SERVED[key] = replace(found, tuned=tune is not None)
    return found


def _unserved(error: Exception) -> Served:
    """Why aten computes it: a defect of convgen's must not end a network that aten can run."""
    if isinstance(error, ConvgenError):
        return Served(None, str(error))
    why = f"{type(error).__name__}: {error}"
    warnings.warn(f"convgen leaves a convolution to aten: {why}", stacklevel=5)
    return Served(None, why)


def launched(launch: Callable[..., Any] | None, *arguments: Any) -> Any:
    """The result of a launch; None if there is no launch, or if it refuses these very tensors, which aten takes."""
    if launch is None:
        return None
    try:
        return launch(*arguments)
    except REFUSALS:
        return None


def key_of(
    input: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
    transposed: bool = False, prologue: str = "", out: Tensor | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """A key that calls of one kind share."""
    return (
        input.shape, input.stride(), input.dtype, weight.shape, weight.stride(), weight.dtype, input.get_device(),
        begins(input), *[(o.shape, o.stride(), o.dtype, begins(o)) for o in operands],
        epilogue, tuple(stride), tuple(padding), tuple(dilation), groups, padding_mode, transposed,
        prologue, None if out is None else (out.shape, out.stride(), out.dtype, begins(out)),
    )  # fmt: skip


def recipe(
    input: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
    transposed: bool = False, prologue: str = "", out: Tensor | None = None,
) -> Recipe:  # fmt: skip
    """The requested recipe, for tensors or fake ones.  Raises ConvgenError."""
    rank = len(stride)
    lows, highs = padding[:rank], padding[-rank:]
    x, w, *others = (given(name, t) for name, t in (("input", input), ("weight", weight), *_named(operands)))
    pads = tuple(zip(map(int, lows), map(int, highs), strict=True))
    common = x, w, tuple(others), steps_of(epilogue), tuple(stride), pads, tuple(dilation), groups
    made = transpose_cut(*common) if transposed else forward_padded(*common, padding_mode, steps_of(prologue))
    return made if out is None else into(made, given("out", out))


def _named(operands: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    return [(f"operand {i}", operand) for i, operand in enumerate(operands)]


def given(name: str, tensor: Tensor) -> Given:
    """The properties of a tensor, or of a fake one, that recipes use.  Raises WrongType."""
    if tensor.dtype not in _TYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _TYPES)
        raise WrongType(f"{name} has elements of {tensor.dtype}: convgen serves torch's {known}")
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return Given(shape, strides, element_type(name, tensor, TORCH), begins(tensor) == 0, name)


def begins(tensor: Tensor) -> int:
    """Where the tensor begins in the memory that torch allocated, in bytes, as far as alignment is concerned."""
    return tensor.storage_offset() * tensor.itemsize % WIDEST


def _serve(made: Recipe, tensors: Sequence[Tensor], out: Tensor | None, tune: str | None) -> Served:
    """Raises SpecError, CompileError."""
    shape, device, dtype = made.result.shape, tensors[0].device, tensors[0].dtype
    sums_over_images = made.convolution.op is Op.WGRAD
    sums = [shape[not s.of_images : 2] for s in made.convolution.sums] + [shape[:1]] * made.convolution.bias
    sum_type = torch.promote_types(dtype, torch.float32)
    if 0 in shape or (sums_over_images and not tensors[0].shape[0]):  # an empty batch, of which sums are zero

        def zeros(*_: Any) -> Any:
            strides = strides_in(shape, made.result.order)
            value = torch.empty_strided(shape, strides, dtype=dtype, device=device).zero_()
            further = [torch.zeros(extents, dtype=sum_type, device=device) for extents in sums]
            return [value, *further] if sums else value

        return Served(zeros)
    kernel = kernel_of((made.convolution.text, made.convolution.strategy, tune))
    packed = [(extents, strides_in(extents, tuple(range(len(extents)))), sum_type) for extents in map(tuple, sums)]
    launch = _launcher(kernel, made, tensors, out, packed)
    return Served(launch, "", f"{kernel.manifest.strategy}: {kernel.manifest.config}", made.convolution.text)


def _launcher(
    kernel: Kernel, made: Recipe, tensors: Sequence[Tensor], out: Tensor | None, sums: Sequence[tuple[Any, ...]]
) -> Callable[..., Any]:
    """A function that launches the kernel for tensors like those given; `sums` are shapes, strides and types of further
    results.

    A call with addresses that an earlier one had is enqueued at once: tensors like these lie as the kernel wants, and
    their views begin where they do.  So this is as short as Python allows.

    Scratch memory comes from torch's allocator, which gives it to others on the stream as soon as the call is enqueued.
    A captured call has the kernel's own: who captures may be another than torch, whose allocator does not know then
    what a graph reads."""
    shape, order, device, dtype = made.result.shape, made.result.order, tensors[0].device, tensors[0].dtype
    strides, index, allocate = strides_in(shape, order), device.index, _allocator(device)
    views = [_viewer(tensor, view) for tensor, view in zip(tensors, made.views, strict=True)]
    view_out = _viewer(out, View(order)) if out is not None else None
    known: Mapping[tuple[int, ...], Callable[[], None]] = {}
    if not any(view.copied for view in made.views):
        known = kernel.prepared(index)
    stream, scratch_bytes = TORCH_TENSORS.reading.current, kernel.workspace_bytes
    is_captured = cuda.driver().is_capturing if scratch_bytes else None

    def launch(input: Tensor, weight: Tensor, operands: Sequence[Tensor], out: Tensor | None = None) -> Any:
        value = allocate(shape, strides, dtype) if out is None else out
        further = [allocate(*each) for each in sums] if sums else ()
        handle, scratch = stream(index), None
        given = (input, weight, *operands, value, *further)
        if is_captured and not is_captured(handle):
            scratch = allocate((scratch_bytes,), (1,), torch.uint8)
            given = (*given, scratch)
        enqueue = known.get((handle, *[tensor.data_ptr() for tensor in given]))
        if enqueue is not None:
            enqueue()
        else:
            # autograd lets nobody write to an operator's result that is a view, so the kernel gets the view
            to = view_out(value) if view_out else value.permute(order)
            arrays = [view(tensor) for view, tensor in zip(views, given)]  # noqa: B905
            kernel(*arrays, out=(to, *further) if sums else to, workspace=scratch)
        return [value, *further] if sums else value

    return launch


def _allocator(device: torch.device) -> Callable[[Sequence[int], Sequence[int], torch.dtype], Tensor]:
    """A function that makes an empty tensor on a GPU, as Inductor's code does."""
    quick = getattr(getattr(torch._C._dynamo, "guards", None), "_empty_strided_cuda", None)
    if quick is None or device.type != "cuda":
        return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)
    if torch.cuda.device_count() == 1:
        return cast(Any, quick)
    index, current = device.index, torch.cuda.current_device

    def allocate(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
        if current() == index:
            return quick(shape, strides, dtype)
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    return allocate


def _viewer(like: Tensor, view: View) -> Callable[[Tensor], Tensor]:
    """A function that gives the kernel's view of tensors like this one, with the same extents and strides for all."""
    if view.copied:
        return lambda tensor: viewed(tensor, view, TORCH)
    kept = [i for i in range(like.dim()) if view.index is None or view.index[i] != 0]
    axes = [kept[i] for i in view.order]
    size, strides = [like.shape[i] for i in axes], [like.stride(i) for i in axes]
    return lambda tensor: tensor.as_strided(size, strides)
