"""Convolutions as functions of arrays, with the names, shapes and defaults of torch.nn.functional.

    from convgen import functional as F
    y = F.conv2d(x, w, bias, stride=2, padding=1, activation="relu", residual=z)

A call on NumPy arrays runs on the CPU.  A call on CuPy arrays or torch tensors runs where they are: on a GPU, as a
launch on the current stream.  Axes are torch's, (n, c, h, w) and (k, c, r, s).  Strides give the layout in memory: a
channels_last tensor is NHWC, a contiguous one is NCHW, and the result is NHWC if the input or the filter is.  A slice
of the channels of a channels_last tensor is read, or written with `out=`, without a copy.  Kernels are built on first
use, one for each set of shapes, and kept in memory and on disk.  `kernel(conv2d, x, w, ...)` returns the kernel that a
call would use.  `tune="quick"` measures the best few candidates before the first call (docs/tuning.md).

Element types are float16, bfloat16, float32, float64, and 8-bit types with wider results: int8 (int32), float8_e4m3fn
and float8_e5m2 (float32).  Gradients are functions, too (`conv2d_input`, `conv2d_weight`); convgen.torch has functions
that autograd records.  Raises subclasses of ConvgenError: WrongShape, WrongType, WrongDevice,
WrongArguments, and what `convgen.compile` and a kernel's call raise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from convgen.functional import recipe
from convgen.functional.arrays import Array, library_of
from convgen.functional.call import Call, given
from convgen.functional.parameters import Amounts, Numbers, plain, text, whole
from convgen.functional.pointwise import Step, activation
from convgen.ir.epilogue import BEYOND
from convgen.runtime.errors import WrongArguments, WrongShape

if TYPE_CHECKING:
    from convgen.runtime.kernel import Kernel

__all__ = [
    "col2im",
    "conv1d", "conv1d_input", "conv1d_weight",
    "conv2d", "conv2d_input", "conv2d_tma_im2col", "conv2d_weight",
    "conv3d", "conv3d_input", "conv3d_weight",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "im2col",
    "kernel",
]  # fmt: skip

P = ParamSpec("P")
Activation = str | Sequence[Any] | None


def _conv(
    rank: int,
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Numbers = 1,
    padding: Amounts | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    activation: Activation = None,
    residual: Array | None = None,
    padding_mode: str = "zeros",
    out: Array | None = None,
    strategy: str | None = None,
    tune: str | None = None,
) -> Call:
    """activation(convolution of input (n, c, ...) by weight (k, c / groups, ...) + bias (k) + residual).

    `input` may lack the batch axis.  `padding` is a number, a number per axis, a pair (low, high) per axis, "same" or
    "valid"; `padding_mode` is "zeros", "reflect", "replicate" or "circular", as in torch.nn.Conv2d.  `activation` is a
    name such as "relu", or a name with parameters such as ("leaky_relu", 0.2); `residual` broadcasts to the result.
    `out`, if given, takes the result: an array of its shape, packed, or a slice of the channels of a channels_last one.
    """
    arrays, operands, steps, unbatched = _arguments(rank, input, weight, bias, activation, residual)
    _check_bias(bias, weight.shape[0])
    library = library_of(**arrays, **operands)
    x, w, *others = given(library, **arrays, **operands)
    numbers = _plain(stride=stride, padding=padding, dilation=dilation)
    made = recipe.forward(x, w, tuple(others), steps, *numbers, *_settings(groups, strategy, padding_mode))
    return _into(Call(made, library, (*arrays.values(), *operands.values()), unbatched, tune=tune), out)


def _conv_transpose(
    rank: int,
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
    *,
    activation: Activation = None,
    residual: Array | None = None,
    out: Array | None = None,
    strategy: str | None = None,
    tune: str | None = None,
) -> Call:
    """activation(transposed convolution of input (n, k, ...) by weight (k, c / groups, ...) + bias (c) + residual).

    It is the gradient of a convolution by the same filters, and is computed as such.  `output_padding` may be as large
    as the stride or larger (torch allows that below the dilation), up to the padding.  `out` is as in a convolution.
    """
    arrays, operands, steps, unbatched = _arguments(rank, input, weight, bias, activation, residual)
    groups, strategy, _ = _settings(groups, strategy)
    _check_bias(bias, weight.shape[1] * groups)
    library = library_of(**arrays, **operands)
    y, w, *others = given(library, **arrays, **operands)
    numbers = _plain(stride=stride, padding=padding, output_padding=output_padding)
    made = recipe.transpose(y, w, tuple(others), steps, *numbers, groups, plain("dilation", dilation), strategy)
    return _into(Call(made, library, (*arrays.values(), *operands.values()), unbatched, tune=tune), out)


def _conv_input(
    rank: int,
    input_size: Sequence[int],
    weight: Array,
    grad_output: Array,
    stride: Numbers = 1,
    padding: Amounts | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    strategy: str | None = None,
    tune: str | None = None,
) -> Call:
    """The gradient for a convolution's input, of shape `input_size` (n, c, ...), from the gradient of its output."""
    library = library_of(weight=weight, grad_output=grad_output)
    w, y = given(library, weight=weight, grad_output=grad_output)
    _check_rank(rank, weight=weight, grad_output=grad_output)
    numbers = _plain(stride=stride, padding=padding, dilation=dilation)
    settings = _settings(groups, strategy, padding_mode)
    made = recipe.input_gradient(_size("input_size", input_size), w, y, *numbers, *settings)
    return Call(made, library, (grad_output, weight), tune=tune)


def _conv_weight(
    rank: int,
    input: Array,
    weight_size: Sequence[int],
    grad_output: Array,
    stride: Numbers = 1,
    padding: Amounts | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    strategy: str | None = None,
    tune: str | None = None,
) -> Call:
    """The gradient for a convolution's filters, of shape `weight_size` (k, c / groups, ...), from y's gradient."""
    library = library_of(input=input, grad_output=grad_output)
    x, y = given(library, input=input, grad_output=grad_output)
    _check_rank(rank, input=input, grad_output=grad_output)
    numbers = _plain(stride=stride, padding=padding, dilation=dilation)
    settings = _settings(groups, strategy, padding_mode)
    made = recipe.weight_gradient(x, _size("weight_size", weight_size), y, *numbers, *settings)
    return Call(made, library, (input, grad_output), tune=tune)


def _tma_im2col(
    input_nhwc: Array,
    weight: Array,
    stride: int = 1,
    padding: int = 0,
    BLOCK_M: int = 64,
    BLOCK_N: int = 64,
    BLOCK_K: int = 64,
    num_warps: int = 4,
) -> Call:
    """Convolution of input (n, h, w, c) by weight (k, r, s, c) to (n, p, q, k), by strategy tma_im2col.

    It has the signature of the function of that name in Triton's tutorial "TMA im2col mode and Convolution via Implicit
    GEMM".  A tile has BLOCK_M pixels by BLOCK_N output channels, and a k block has BLOCK_K channels of a tap;
    `num_warps` warps multiply them, four per warpgroup.
    """
    library = library_of(input_nhwc=input_nhwc, weight=weight)
    for name, array in (("input_nhwc", input_nhwc), ("weight", weight)):
        if len(array.shape) != 4:
            raise WrongArguments(f"{name} has shape {tuple(array.shape)}: expected four axes, channels last")
    c, taken = input_nhwc.shape[3], weight.shape[3]
    if c != taken:
        dims = f"weight {tuple(weight.shape)}, of (k, r, s, c), takes {taken}"
        raise WrongShape(f"input_nhwc {tuple(input_nhwc.shape)}, of (n, h, w, c), has {c} channels, and {dims}")
    if whole("num_warps", num_warps) not in (4, 8, 12):
        raise WrongArguments(f"num_warps is {num_warps!r}: expected 4, 8 or 12, one to three warpgroups")
    m, n, k = (whole(f"BLOCK_{axis}", size) for axis, size in zip("MNK", (BLOCK_M, BLOCK_N, BLOCK_K), strict=True))
    arrays = tuple(library.permuted(array, (0, 3, 1, 2)) for array in (input_nhwc, weight))
    x, w = given(library, input_nhwc=arrays[0], weight=arrays[1])
    made = recipe.forward(x, w, (), (), *_plain(stride=stride, padding=padding), 1, 1, "tma_im2col")
    tile = f"tile m={m} n={n} k={k}  consumers {num_warps // 4}"
    made = replace(made, convolution=replace(made.convolution, options=tile))
    return Call(made, library, arrays, axes=(0, 2, 3, 1))


def _unfold(
    input: Array,
    kernel_size: Numbers,
    dilation: Numbers = 1,
    padding: Amounts = 0,
    stride: Numbers = 1,
    *,
    strategy: str | None = None,
    tune: str | None = None,
) -> Call:
    """Windows of input (n, c, ...) as columns, (n, c * taps, pixels), as torch.nn.functional.unfold makes them.

    For 1 to 3 spatial axes.  `input` may lack the batch axis if `kernel_size` has a number for each spatial axis.
    """
    library = library_of(input=input)
    numbers = _plain(kernel_size=kernel_size, dilation=dilation, padding=padding, stride=stride)
    unbatched = isinstance(numbers[0], tuple) and 1 < len(numbers[0]) == input.ndim - 1
    whole = input[None] if unbatched else input
    made = recipe.lower(*given(library, input=whole), *numbers, text("strategy", strategy))
    return Call(made, library, (whole,), unbatched, tune=tune)


def _fold(
    input: Array,
    output_size: Numbers,
    kernel_size: Numbers,
    dilation: Numbers = 1,
    padding: Amounts = 0,
    stride: Numbers = 1,
    *,
    strategy: str | None = None,
    tune: str | None = None,
) -> Call:
    """Sums (n, c, *output_size) of columns (n, c * taps, pixels), each added where unfold reads it, as in torch's fold.

    An `output_size` of one number is the size along two spatial axes.  `input` may lack the batch axis.
    """
    library = library_of(input=input)
    unbatched = input.ndim == 2
    input = input[None] if unbatched else input
    sizes = _plain(output_size=output_size, kernel_size=kernel_size)
    numbers = _plain(dilation=dilation, padding=padding, stride=stride)
    made = recipe.scatter(*given(library, input=input), *sizes, *numbers, text("strategy", strategy))
    return Call(made, library, (input,), unbatched, tune=tune)


# ---- the functions -------------------------------------------------------------------------------

_CALLS: dict[object, Callable[..., Call]] = {}


def _named(name: str, call: Callable[P, Call]) -> Callable[P, Call]:
    """`call`, except that a wrong number of arguments, or an unknown one, is the public function's."""
    parameters = signature(call)

    @wraps(call)
    def named(*args: P.args, **kwargs: P.kwargs) -> Call:
        try:
            return call(*args, **kwargs)
        except TypeError:
            try:
                parameters.bind(*args, **kwargs)
            except TypeError as e:
                raise TypeError(f"{name}(): {e}") from None
            raise

    return named


def _public(name: str, call: Callable[P, Call]) -> Callable[P, Array]:
    """The function of that name, which makes a call and runs it."""
    call = _named(name, call)

    @wraps(call)
    def function(*args: P.args, **kwargs: P.kwargs) -> Array:
        return call(*args, **kwargs).run()

    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__  # a `partial` has that of functools
    function.__signature__ = signature(call).replace(return_annotation=Array)  # type: ignore[attr-defined]
    _CALLS[function] = call
    return function


def _of_rank(rank: int, name: str, call: Callable[Concatenate[int, P], Call]) -> Callable[P, Array]:
    """The function of that name for so many spatial axes."""
    bound = partial(call, rank)
    bound.__doc__ = call.__doc__
    return _public(name, bound)


conv1d, conv2d, conv3d = (_of_rank(rank, f"conv{rank}d", _conv) for rank in (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = (
    _of_rank(rank, f"conv_transpose{rank}d", _conv_transpose) for rank in (1, 2, 3)
)
conv1d_input, conv2d_input, conv3d_input = (_of_rank(rank, f"conv{rank}d_input", _conv_input) for rank in (1, 2, 3))
conv1d_weight, conv2d_weight, conv3d_weight = (
    _of_rank(rank, f"conv{rank}d_weight", _conv_weight) for rank in (1, 2, 3)
)
conv2d_tma_im2col = _public("conv2d_tma_im2col", _tma_im2col)
im2col, col2im = _public("im2col", _unfold), _public("col2im", _fold)


def kernel(function: Callable[..., Array], *args: Any, **kwargs: Any) -> Kernel:
    """The kernel that `function(*args, **kwargs)` would use: its source, manifest and explanation.

    Needs no GPU: NumPy arrays lead to the kernel for GPU arrays of the same shapes, layouts and types.
    """
    if not isinstance(function, Hashable) or function not in _CALLS:
        said = getattr(function, "__name__", f"`function`, which is of type {type(function).__name__},")
        raise WrongArguments(f"{said} is not a function of convgen.functional\nhint: kernel(conv2d, input, weight)")
    return _CALLS[function](*args, **kwargs).kernel()


# ---- arguments -----------------------------------------------------------------------------------


def _arguments(
    rank: int, input: Array, weight: Array, bias: Array | None, given_activation: Activation, residual: Array | None
) -> tuple[dict[str, Array], dict[str, Array], tuple[Step, ...], bool]:
    """The tensors that a convolution reads, its operands with the result's axes, its steps, and whether it has no
    batch."""
    unbatched = getattr(input, "ndim", 0) == rank + 1
    if unbatched:
        input = input[None]
    operands, steps = {}, list[Step]()
    if bias is not None:
        library_of(bias=bias)
        if bias.ndim != 1:
            raise WrongArguments(f"bias has shape {tuple(bias.shape)}: expected one value per channel")
        operands["bias"] = bias[(slice(None), *(None,) * rank)]
        steps.append(Step("add"))
    if residual is not None:
        operands["residual"] = residual
        steps.append(Step("add"))
    arrays = {"input": input, "weight": weight}
    library_of(**arrays)
    _check_rank(rank, **arrays)
    for name, extents in (("input", input.shape[1:]), ("weight", weight.shape)):
        if 0 in extents:
            raise WrongShape(f"{name} has shape {tuple(arrays[name].shape)}: a batch may be empty, and nothing else")
    beyond = BEYOND["f64" if str(weight.dtype).endswith("float64") else "f32"]
    return arrays, operands, (*steps, *activation(given_activation, beyond)), unbatched


def _into(call: Call, out: Array | None) -> Call:
    """The call with its result in an array of the caller's, if that is given.  Raises a LaunchError's subclass."""
    if out is None:
        return call
    if why := library_of(input=call.arrays[0], out=out).unwritable(out):
        raise WrongArguments(f"out is {why}")
    (known,) = given(call.library, out=out[None] if call.unbatched else out)
    return replace(call, recipe=recipe.into(call.recipe, known), out=out)


def _check_bias(bias: Array | None, channels: int) -> None:
    if bias is not None and bias.shape[0] != channels:
        raise WrongShape(f"bias has shape {tuple(bias.shape)}: expected {channels} values, one for each channel")


def _check_rank(rank: int, **arrays: Array) -> None:
    for name, array in arrays.items():
        if len(array.shape) != rank + 2:
            raise WrongArguments(
                f"{name} has shape {tuple(array.shape)}: expected {rank + 2} axes, the last {rank} of them spatial"
            )


def _size(name: str, given: Sequence[int]) -> tuple[int, ...]:
    """A shape.  Raises WrongArguments."""
    try:
        return tuple(map(operator.index, given))
    except TypeError:
        parts = given if isinstance(given, tuple | list) else ()
        wrong = next((part for part in parts if isinstance(part, float | str)), None)
        said = f"is of type {type(given).__name__}" if wrong is None else f"has {wrong!r:.40}"
        raise WrongArguments(f"{name} {said}: expected whole numbers") from None


def _plain(**named: Any) -> list[Any]:
    """Parameters by their names as recipes take them: numbers and tuples.  Raises WrongArguments."""
    return [plain(name, value) for name, value in named.items()]


def _settings(groups: Any, strategy: Any, padding_mode: Any = "zeros") -> tuple[int, str | None, str]:
    """Raises WrongArguments."""
    return whole("groups", groups), text("strategy", strategy), text("padding_mode", padding_mode)
