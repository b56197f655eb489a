"""Tensors: an element type, named dims in memory order (outermost first), extents."""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.ir.dtypes import DTYPES, DType


@dataclass(frozen=True)
class Tensor:
    """A packed tensor.

    `role` is x, w, y, lowered or operand.  `dims` are single dim names, outermost first: their order is
    the memory layout.  `axes` groups them for the face a user sees: a lowered matrix over the dims
    n p q c r s with axes (3, 3) has the shape (N*P*Q, C*R*S); every other tensor has one dim an axis.
    """

    name: str
    role: str
    dtype: str
    dims: tuple[str, ...]
    extents: tuple[int, ...]
    axes: tuple[int, ...] | None = None

    @property
    def element(self) -> DType:
        return DTYPES[self.dtype]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.extents)

    @property
    def bytes(self) -> int:
        return self.size * self.element.bytes

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements, one a dim."""
        return tuple(math.prod(self.extents[i + 1 :]) for i in range(len(self.dims)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that a user's array has."""
        if self.axes is None:
            return self.extents
        shape, start = [], 0
        for count in self.axes:
            shape.append(math.prod(self.extents[start : start + count]))
            start += count
        return tuple(shape)

    def extent(self, dim: str) -> int:
        """Extent of a dim; 1 where the tensor does not have it."""
        return self.extents[self.dims.index(dim)] if dim in self.dims else 1

    def stride(self, dim: str) -> int:
        """Stride of a dim in elements; 0 where the tensor does not have it."""
        return self.strides[self.dims.index(dim)] if dim in self.dims else 0

    def __str__(self) -> str:
        if self.axes is None:
            body = ", ".join(f"{d}={e}" for d, e in zip(self.dims, self.extents, strict=True))
        else:
            parts, start = [], 0
            for count in self.axes:
                parts.append("*".join(self.dims[start : start + count]) or "1")
                start += count
            body = ", ".join(parts)
        return f"{self.name}: {self.dtype}[{body}]"
