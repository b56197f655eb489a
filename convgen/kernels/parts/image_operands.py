"""Operands with a value for each image, or for each image and channel: gates of squeeze-and-excitation.

A thread loads them once for many pixels, since neighboring pixels are of one image, or of few.  Where its rows of
a fragment are pixels, it holds the channels' values of each row; where they are channels, the values of each image
that the tile's pixels touch, and chooses among them by comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from convgen.ir.problem import ConvProblem
from convgen.ir.size import Size
from convgen.ir.tensor import Tensor
from convgen.kernels.parts.lowering import ACCESS, INT_LIMIT, decode, used_operands

#: The most images whose values a thread holds at once.
MOST_IMAGES = 4


@dataclass(frozen=True)
class ImageOperand:
    """Finished text: the `type` of a thread's values, in the array `held`; whether they are of its channels, too; the
    load of one at `image` and `k`; lines that define the epilogue's `value_<name>` from `bits_<name>` or, by channels,
    from the array."""

    name: str
    type: str
    by_channel: bool
    load: str
    values: tuple[str, ...]

    @property
    def held(self) -> str:
        return f"image_{self.name}"


def of_images(problem: ConvProblem) -> tuple[Tensor, ...]:
    """The operands that depend only on the image, and perhaps on the channel."""
    if problem.epilogue is None:
        return ()
    return tuple(t for t in used_operands(problem) if {"n"} <= {*t.dims} <= {"n", "k"} and t.span < INT_LIMIT)


def most_images(problem: ConvProblem, pixels: int) -> int:
    """Images that so many neighboring pixels touch, from a multiple of their number on."""
    plane = math.prod(problem.output)
    touched = (plane - math.gcd(plane, pixels) + pixels - 1) // plane + 1
    return touched if isinstance(problem.n, Size) else min(touched, problem.n)


def registers(tensors: Iterable[Tensor], pixel_rows: int, columns: int) -> int:
    """Registers for `pixel_rows` of a thread and `columns` of their tile."""
    return sum(pixel_rows * (columns // 4 * max(t.element.bytes // 4, 1) if "k" in t.dims else 1) for t in tensors)


def of_rows(problem: ConvProblem, tensors: Sequence[Tensor]) -> list[ImageOperand]:
    """Operands for rows that are pixels: words of two neighboring channels."""
    return [_of_rows(problem, t) for t in tensors]


def _of_rows(problem: ConvProblem, t: Tensor) -> ImageOperand:
    name, size, bits = t.name, t.element.bytes, f"bits_{t.name}"
    start = f"const float value_{name}[2] = {{"
    if "k" not in t.dims:
        value = decode(t.dtype, bits, "f32")
        return ImageOperand(name, ACCESS[size], False, _element(t, "0"), (f"{start}{value}, {value}}};",))
    word = ACCESS[2 * size]
    if t.has_pairs("k"):
        load = f"*reinterpret_cast<const {word}*>(operand_{name} + {_offset(t, 'k')})"
    else:
        second = "k + 1" if problem.k % 2 == 0 else f"min(k + 1, {problem.k - 1})"
        load = f"{word}({_element(t, 'k')}) | {word}({_element(t, second)}) << {8 * size}"
    halves = (bits, f"{bits} >> {8 * size}")
    first, last = (decode(t.dtype, f"u32({half})" if size == 4 else half, "f32") for half in halves)
    return ImageOperand(name, word, True, load, (f"{start}{first},", f"{' ' * len(start)}{last}}};"))


def of_columns(problem: ConvProblem, tensors: Sequence[Tensor], images: int, at: str) -> list[ImageOperand]:
    """Operands for columns that are pixels of at most so many images: elements of each image, for fragment `at`."""
    return [_of_columns(problem, t, images, at) for t in tensors]


def _of_columns(problem: ConvProblem, t: Tensor, images: int, at: str) -> ImageOperand:
    plane, by_channel = math.prod(problem.output), "k" in t.dims
    held = [f"image_{t.name}[{i}]" + (f"[{at}][e / 2 % 2]" if by_channel else "") for i in range(images)]
    value = held.pop()
    for i, earlier in reversed(list(enumerate(held))):
        end = f"next_image + {i * plane}" if i else "next_image"
        value = f"pixel < {end} ? {earlier} : {value}"
    line = f"const float value_{t.name} = {value};"
    return ImageOperand(t.name, "float", by_channel, decode(t.dtype, _element(t, "k"), "f32"), (line,))


def _element(t: Tensor, k: str) -> str:
    """C text: the bits of an element."""
    return f"reinterpret_cast<const {ACCESS[t.element.bytes]}*>(operand_{t.name})[{_offset(t, k)}]"


def _offset(t: Tensor, k: str) -> str:
    terms = [("image", t.stride("n"))]
    if "k" in t.dims:
        terms.append((f"({k})" if " " in k and t.stride("k") > 1 else k, t.stride("k")))
    return " + ".join(name if step == 1 else f"{name} * {step}" for name, step in terms)
