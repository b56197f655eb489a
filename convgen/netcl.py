"""Functions and a module with the names and signatures of netcl's im2col page ("im2col", netcl wiki), on convgen's
kernels: arrays of NumPy, CuPy and torch take the place of its tensors.

    from convgen import netcl as nc
    cols = nc.im2col(x, kernel_h=3, kernel_w=3, stride=1, padding=1, dilation=1)
    layer = nc.Conv2d(64, 128, kernel_size=3, padding=1, strategy=nc.CONV2D_IMPLICIT_GEMM)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from convgen import functional as F
from convgen.functional import recipe
from convgen.functional.arrays import Array, library_of
from convgen.functional.call import Call, given
from convgen.functional.parameters import by_axis, plain, whole
from convgen.runtime.errors import WrongArguments, WrongShape

#: Strategies by netcl's names; None lets convgen choose.
CONV2D_IM2COL = "im2col"
CONV2D_IMPLICIT_GEMM = "implicit_gemm"
CONV2D_WINOGRAD = "winograd"
STRATEGIES = (None, CONV2D_IM2COL, CONV2D_IMPLICIT_GEMM, CONV2D_WINOGRAD)
#: What netcl's Winograd wants extents of the input and output channels to be multiples of; convgen's own does not.
WINOGRAD_EXTENTS, WINOGRAD_CHANNELS = 4, 8

#: One number, or one for each axis.
Numbers = int | tuple[int, int]


def im2col(
    x: Array, kernel_h: int, kernel_w: int, stride: Numbers = 1, padding: Numbers = 0, dilation: Numbers = 1
) -> Array:
    """cols (N * H_out * W_out, C * kernel_h * kernel_w) of x (N, C, H, W).

    cols[(n * H_out + h) * W_out + w, (c * kernel_h + kh) * kernel_w + kw] is
    x[n, c, h * stride - padding + kh * dilation, w * stride - padding + kw * dilation], and 0 outside of x.
    Raises WrongShape, WrongType, WrongArguments.
    """
    library = library_of(x=x)
    _check_axes("x", x)
    numbers = plain("dilation", dilation), plain("padding", padding), plain("stride", stride)
    window = plain("kernel", (kernel_h, kernel_w))
    made = recipe.lower(*given(library, x=x), window, *numbers, None, rows=True)
    return Call(made, library, (x,)).run()


def col2im(
    cols: Array,
    input_shape: Sequence[int],
    kernel_h: int,
    kernel_w: int,
    stride: Numbers = 1,
    padding: Numbers = 0,
    dilation: Numbers = 1,
) -> Array:
    """The array of `input_shape` (N, C, H, W) whose elements are the sums of their copies in cols: im2col's adjoint.

    The sums are made in a fixed order, without atomics.  Raises WrongShape, WrongType, WrongArguments.
    """
    shape = by_axis("input_shape", plain("input_shape", input_shape), 4, 1)
    library = library_of(cols=cols)
    (known,) = given(library, cols=cols)
    numbers = plain("dilation", dilation), plain("padding", padding), plain("stride", stride)
    made = recipe.scatter_rows(known, shape, plain("kernel", (kernel_h, kernel_w)), *numbers)
    return Call(made, library, (cols,)).run()


class Conv2d:
    """A convolution of x (N, C_in, H, W) by `weight` (C_out, C_in / groups, kH, kW) plus `bias` (C_out), which are
    NumPy arrays at first, drawn as torch draws them; assign others to compute elsewhere.

    `strategy` is CONV2D_IM2COL, CONV2D_IMPLICIT_GEMM, CONV2D_WINOGRAD (3x3 and unit stride; H and W multiples of 4,
    C_out of 8), or None, which lets convgen choose.  Raises WrongArguments.
    """

    weight: Array
    bias: Array | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        bias: bool = True,
        strategy: str | None = None,
        seed: int = 0,
    ) -> None:
        import numpy as np

        in_channels, out_channels, groups = (
            by_axis(name, whole(name, number), 1, 1)[0]
            for name, number in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups))
        )
        taps = by_axis("kernel_size", plain("kernel_size", kernel_size), 2, 1)
        (seed,) = by_axis("seed", whole("seed", seed), 1, 0)
        if strategy not in STRATEGIES:
            raise WrongArguments(
                f"strategy is {strategy!r}: expected netcl.CONV2D_IM2COL, netcl.CONV2D_IMPLICIT_GEMM, "
                "netcl.CONV2D_WINOGRAD or None"
            )
        if strategy == CONV2D_WINOGRAD and out_channels % WINOGRAD_CHANNELS:
            raise WrongArguments(f"CONV2D_WINOGRAD wants a multiple of 8 output channels, not {out_channels}")
        if in_channels % groups or out_channels % groups:
            raise WrongArguments(f"groups {groups} must divide {in_channels} and {out_channels} channels")
        shape = (out_channels, in_channels // groups, *taps)
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        random = np.random.default_rng(seed)
        self.weight = random.uniform(-bound, bound, shape).astype(np.float32)
        self.bias = random.uniform(-bound, bound, out_channels).astype(np.float32) if bias else None
        self.strategy = strategy
        self._parameters: dict[str, Any] = {
            "stride": stride, "padding": padding, "dilation": dilation, "groups": groups
        }  # fmt: skip

    def __call__(self, x: Array) -> Array:
        """y (N, C_out, H_out, W_out).  Raises WrongShape, WrongType."""
        library_of(x=x)
        if self.strategy == CONV2D_WINOGRAD and any(extent % WINOGRAD_EXTENTS for extent in x.shape[2:]):
            raise WrongShape(f"x has shape {tuple(x.shape)}: CONV2D_WINOGRAD wants H and W to be multiples of 4")
        return F.conv2d(x, self.weight, self.bias, **self._parameters, strategy=self.strategy)

    def backward(self, x: Array, grad_output: Array) -> tuple[Array, Array, Array | None]:
        """Gradients for x, the weight and the bias, from that of the output.  Raises WrongShape, WrongType."""
        library_of(x=x, grad_output=grad_output)
        grad_x = F.conv2d_input(x.shape, self.weight, grad_output, **self._parameters)
        grad_weight = F.conv2d_weight(x, self.weight.shape, grad_output, **self._parameters)
        return grad_x, grad_weight, None if self.bias is None else _channel_sums(grad_output)


def _check_axes(name: str, array: Array) -> None:
    if len(array.shape) != 4:
        raise WrongShape(f"{name} has shape {tuple(array.shape)}: expected N, C, H and W")


def _channel_sums(array: Array) -> Array:
    """Sums an array (N, C, H, W) over all but C: NumPy would sum 16-bit elements in their own type, where sums stall at
    2048."""
    import numpy as np

    if not isinstance(array.dtype, np.dtype):
        return array.sum((0, 2, 3))
    return array.sum((0, 2, 3), dtype=np.promote_types(array.dtype, np.float32)).astype(array.dtype)
