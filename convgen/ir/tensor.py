"""Tensors: an element type, named dims in memory order (outermost first), extents, and the pitch of a channel slice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from convgen.ir.dtypes import DTYPES, DType


@dataclass(frozen=True)
class Tensor:
    """A tensor that is packed, or a slice of the innermost channels of one that is.

    `role` is x, w, y, lowered, operand or result (a further one, of the epilogue).  `dims` are single dim names,
    outermost first: their order is the memory layout.  `axes` groups them for the face a user sees: a lowered matrix
    over the dims n p q c r s with axes (3, 3) has the shape (N*P*Q, C*R*S); every other tensor has one dim an axis.

    `pitch` is how many channels the whole tensor has of which this one is a slice: elements from one row of the
    innermost dim to the next.  It is None of a packed tensor, and so of a single row of a problem, whatever was asked
    for: a row of the sizes in a spec may be one of several in a call.
    """

    name: str
    role: str
    dtype: str
    dims: tuple[str, ...]
    extents: tuple[int, ...]
    axes: tuple[int, ...] | None = None
    pitch: int | None = None

    def __post_init__(self) -> None:
        if self.pitch is not None and self.pitch == self.row:
            object.__setattr__(self, "pitch", None)

    @cached_property
    def element(self) -> DType:
        return DTYPES[self.dtype]

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.extents)

    @property
    def bytes(self) -> int:
        """The size of its elements in bytes."""
        return self.size * self.element.bytes

    def lies_like(self, other: Tensor) -> bool:
        """Whether both have elements of one type in the same places, whatever dims of one element they have."""
        mine, its = ([(d, e) for d, e in zip(t.dims, t.extents, strict=True) if e != 1] for t in (self, other))
        return mine == its and (self.dtype, self.axes, self.pitch) == (other.dtype, other.axes, other.pitch)

    @property
    def long_dims(self) -> tuple[str, ...]:
        """The dims of more than one element, which alone decide how it lies in memory."""
        return tuple(d for d, e in zip(self.dims, self.extents, strict=True) if e > 1)

    @property
    def innermost(self) -> str:
        """The dim whose elements are neighbors in memory; empty if there is none."""
        return self.dims[-1] if self.dims else ""

    @property
    def buffer(self) -> str:
        """The name of its memory in launches and of its array in references: its role, or its name if it is an operand
        or a further result."""
        return self.name if self.role in ("operand", "result") else self.role

    def has_pairs(self, dim: str) -> bool:
        """Whether two neighbors along a dim, the first at an even place, lie side by side and aligned."""
        return self.innermost == dim and self.extent(dim) % 2 == (self.pitch or 0) % 2 == 0

    @property
    def row(self) -> int:
        """Elements of the innermost dim."""
        return self.extents[-1] if self.extents else 1

    @property
    def rows(self) -> int:
        return math.prod(self.extents[:-1])

    @property
    def settled(self) -> Tensor:
        """Packed, where it is a single row."""
        return replace(self, pitch=None) if self.pitch and self.rows == 1 else self

    @property
    def span(self) -> int:
        """Elements of memory from the first to the last, with those of other slices in between."""
        return (self.rows - 1) * (self.pitch or self.row) + self.row

    @property
    def whole(self) -> Tensor:
        """The packed tensor that this one is a slice of."""
        return replace(self, extents=(*self.extents[:-1], self.pitch), pitch=None) if self.pitch else self

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements, one per dim."""
        return packed_strides((*self.extents[:-1], self.pitch) if self.pitch else self.extents)

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

    def over(self, dims: Sequence[str], extents: Sequence[int]) -> Tensor:
        """A packed tensor of the same name and elements over these dims."""
        return Tensor(self.name, self.role, self.dtype, tuple(dims), tuple(extents))

    def renamed(self, names: Mapping[str, str]) -> Tensor:
        """The same memory with other names of dims."""
        return replace(self, dims=tuple(names.get(d, d) for d in self.dims))

    def extent(self, dim: str) -> int:
        """Extent of a dim; 1 where the tensor does not have it."""
        return self.extents[self.dims.index(dim)] if dim in self.dims else 1

    def stride(self, dim: str) -> int:
        """Stride of a dim in elements; 0 where the tensor does not have it."""
        return self.strides[self.dims.index(dim)] if dim in self.dims else 0

    def __str__(self) -> str:
        if self.axes is None:
            body = ", ".join(f"{d}={e}" for d, e in zip(self.dims, self.extents, strict=True))
            body += f" of {self.pitch}" if self.pitch else ""
        else:
            parts, start = [], 0
            for count in self.axes:
                parts.append("*".join(self.dims[start : start + count]) or "1")
                start += count
            body = ", ".join(parts)
        return f"{self.name}: {self.dtype}[{body}]"


def packed_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a packed array of that shape."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
