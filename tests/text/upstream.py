"""Convolutions of PyTorch's and ONNX's own tests (tests/collect_upstream.py), and how they are asked of convgen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convgen import functional as F

DATA = Path(__file__).parents[1] / "data"
TORCH, ONNX = (json.loads((DATA / f"{name}_convolutions.json").read_text()) for name in ("torch", "onnx"))
#: Why convgen does not compute what an operator of ONNX does.
REFUSED = {
    "DeformConv": "reads x at offsets that are data",
    "QLinearConv": "multiplies unsigned bytes and rounds the sums by scales and zero points",
}
Array = np.ndarray
Attributes = Mapping[str, Any]


def function(name: str, array: Array, spatial: int = 2) -> Callable[..., Array]:
    """convgen.functional's function for an array's number of spatial axes; `spatial` axes of it are not spatial."""
    return getattr(F, name.format(array.ndim - spatial))


def of_case(array: Mapping[str, Any]) -> Array:
    """An array of a case of ONNX."""
    return np.array(array["data"], array["dtype"]).reshape(array["shape"])


def pairs(attributes: Attributes, x: Sequence[int], taps: Sequence[int]) -> list[tuple[int, int]]:
    """ONNX's pads, all that come before and then all behind, or by auto_pad, as (low, high) of each axis."""
    rank = len(taps)
    auto = attributes.get("auto_pad", "NOTSET")
    if not auto.startswith("SAME"):
        pads = attributes.get("pads", [0] * 2 * rank)
        return list(zip(pads[:rank], pads[rank:], strict=True))
    steps = zip(x, taps, attributes.get("strides", [1] * rank), attributes.get("dilations", [1] * rank), strict=True)
    return [halves((-(-e // s) - 1) * s + d * (r - 1) + 1 - e, auto) for e, r, s, d in steps]


def halves(total: int, auto: str) -> tuple[int, int]:
    total = max(total, 0)
    low = total // 2 if auto == "SAME_UPPER" else total - total // 2
    return low, total - low


def conv(attributes: Attributes, x: Array, w: Array, b: Array | None = None) -> tuple[Array, ...]:
    rank = w.ndim - 2
    pads = pairs(attributes, x.shape[2:], w.shape[2:])
    numbers = attributes.get("strides", [1] * rank), pads, attributes.get("dilations", 1), attributes.get("group", 1)
    return (function("conv{}d", w)(x, w, b, *numbers),)


def conv_integer(attributes: Attributes, x: Array, w: Array, *zeros: Array) -> tuple[Array, ...]:
    """The differences to the zero points, which the cases' bytes have in 8 bits with a sign."""
    point = [z.astype(np.int16) for z in zeros] + [np.int16(0)] * (2 - len(zeros))
    shape = (-1, *(1,) * (w.ndim - 1))
    differences = x.astype(np.int16) - point[0], w.astype(np.int16) - np.reshape(point[1], shape)
    assert all(abs(d).max() < 128 for d in differences)
    return conv(attributes, *(d.astype(np.int8) for d in differences))


def conv_transpose(attributes: Attributes, x: Array, w: Array) -> tuple[Array, ...]:
    """The gradient, for its input, of a convolution by the same filters."""
    rank, groups = w.ndim - 2, attributes.get("group", 1)
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    extra = attributes.get("output_padding", [0] * rank)
    axes = zip(x.shape[2:], w.shape[2:], strides, dilations, extra, strict=True)
    whole = [(e - 1) * s + d * (r - 1) + 1 + more for e, r, s, d, more in axes]
    auto = attributes.get("auto_pad", "NOTSET")
    wanted = attributes.get("output_shape")
    if wanted is None and auto.startswith("SAME"):
        wanted = [e * s for e, s in zip(x.shape[2:], strides, strict=True)]
    pads = pairs(attributes | {"auto_pad": "NOTSET"}, x.shape[2:], w.shape[2:])
    if wanted is not None:
        pads = [halves(extent - out, auto) for extent, out in zip(whole, wanted, strict=True)]
    output = wanted or [extent - sum(pair) for extent, pair in zip(whole, pads, strict=True)]
    size = (x.shape[0], w.shape[1] * groups, *output)
    return (function("conv{}d_input", w)(size, w, x, strides, pads, dilations, groups),)


def causal_conv(
    attributes: Attributes, x: Array, w: Array, b: Array | None = None, state: Array | None = None
) -> tuple[Array, ...]:
    """The state, the last inputs of the step before, stands where padding would."""
    before = w.shape[-1] - 1
    source = x if state is None else np.concatenate([state, x], -1)
    padding = [(before if state is None else 0, 0)]
    activation = {"none": None, "swish": "silu"}.get(name := attributes.get("activation", "none"), name)
    y = F.conv1d(source, w, b, padding=padding, groups=x.shape[1], activation=activation)
    padded = np.concatenate([np.zeros((*x.shape[:2], before), x.dtype) if state is None else state, x], -1)
    return y, padded[..., padded.shape[-1] - before :]


def col2im(attributes: Attributes, x: Array, image: Array, block: Array) -> tuple[Array, ...]:
    pads = pairs(attributes, image, block)
    numbers = attributes.get("dilations", 1), pads, attributes.get("strides", 1)
    return (F.col2im(x, image.tolist(), block.tolist(), *numbers),)


OPERATORS: dict[str, Callable[..., tuple[Array, ...]]] = {
    "Conv": conv,
    "ConvInteger": conv_integer,
    "ConvTranspose": conv_transpose,
    "CausalConvWithState": causal_conv,
    "Col2Im": col2im,
}


def by_convgen(case: Mapping[str, Any]) -> tuple[Array, ...]:
    """The outputs of a case of ONNX."""
    inputs = [None if a is None else of_case(a) for a in case["inputs"]]
    return OPERATORS[case["operator"]](case["attributes"], *inputs)


def check_onnx(case: Mapping[str, Any]) -> None:
    """Fails unless convgen's outputs are ONNX's."""
    for found, expected in zip(by_convgen(case), case["outputs"], strict=True):
        expected = of_case(expected)
        assert found.shape == expected.shape and found.dtype == expected.dtype
        tolerance = 2e-3 if expected.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(
            found.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance
        )  # fmt: skip
