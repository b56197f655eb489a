"""A kernel's expectations of each argument, and the messages for an argument that does not meet them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from typing import Any, NoReturn

from convgen.ir.dtypes import numpy_dtype
from convgen.ir.size import Size, whole
from convgen.ir.tensor import Tensor, packed_strides
from convgen.runtime.errors import Misaligned, Overlap, WrongArguments, WrongDevice, WrongLayout, WrongShape, WrongType

#: Element types that NumPy lacks; integers of the same size are taken for their bits.
_RAW_BITS = {"bf16": ("uint16", "int16"), "e4m3": ("uint8",), "e5m2": ("uint8",)}


@dataclass(frozen=True)
class Seen:
    """An argument as its library describes it.  `strides` are in elements; `device` is "cuda:0" or "cpu"."""

    shape: tuple[int, ...]
    dtype: object
    strides: Sequence[int]
    device: str
    transpose: str  # what the library calls a permutation of dims


@dataclass(frozen=True)
class Slot:
    """One argument of a kernel: a tensor in the spec's order of dims, packed or a channel slice.

    `buffer` is what the plan's steps call it; `alignment` is in bytes; `out` is what a call calls a result: "out", or
    "out[1]".  `chosen` are sizes that `at` chose, `reads` the shapes of all tensors that a call is given, by name.
    """

    tensor: Tensor
    buffer: str
    alignment: int
    out: str = ""
    chosen: Mapping[str, int] = field(default_factory=dict, compare=False)
    reads: Mapping[str, tuple[int, ...]] = field(default_factory=dict, compare=False)

    @property
    def written(self) -> bool:
        return self.out != ""

    @property
    def name(self) -> str:
        return self.out or self.tensor.name

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @cached_property
    def varies(self) -> bool:
        """Whether a call decides the shape."""
        return any(isinstance(extent, Size) for extent in self.tensor.extents)

    @cached_property
    def packed(self) -> bool:
        return self.tensor.pitch is None

    def lies(self, strides: Sequence[int]) -> bool:
        """Whether strides, in elements, are the tensor's; that of a dim of one element says nothing."""
        expected = self.tensor.strides if self.tensor.axes is None else packed_strides(self.shape)
        return all(n == 1 or a == b for n, a, b in zip(self.shape, strides, expected, strict=True))

    @cached_property
    def numpy_dtypes(self) -> tuple[Any, ...]:
        """The NumPy types that are accepted; a result has the first."""
        import numpy

        raw = _RAW_BITS.get(self.tensor.dtype, ())
        return (numpy_dtype(self.tensor.dtype), *map(numpy.dtype, raw))

    @cached_property
    def torch_dtype(self) -> Any:
        """torch's type; its names are ml_dtypes' names."""
        import torch

        return getattr(torch, self.tensor.element.numpy)

    def poisoned(self) -> Any:
        """A new NumPy array: NaN, or -1; of channel slices, the first channels of a whole."""
        import numpy

        whole = numpy.empty(self.tensor.whole.shape, self.numpy_dtypes[0])
        whole.reshape(-1).view(numpy.uint8).fill(0xFF)
        return whole[..., : self.tensor.row] if self.tensor.pitch else whole

    def refuse(self, seen: Seen, device: str) -> NoReturn:
        """Raises for the first thing that is wrong with an argument that should be on `device`."""
        dims = " ".join(self.tensor.dims)
        if seen.device != device:
            raise WrongDevice(f"{self.name} is on {seen.device}, the other arguments are on {device}")
        if not _same_type(seen.dtype, self):
            hint = f"pass {self.name} as {self.tensor.element.numpy}, or state its type in the spec"
            if _same_type(getattr(seen.dtype, "newbyteorder", lambda _: None)("="), self):
                hint = f"pass {self.name} as {self.tensor.element.numpy} in the machine's own order of bytes"
            raise WrongType(
                f"{self.name} has elements of {seen.dtype}, the spec says {self.tensor.dtype}\nhint: {hint}"
            )
        says = "these sizes make it" if self.chosen else "the spec says"
        expected = f"{says} {self.tensor} in that order, {'packed' if self.packed else 'a slice of channels'}"
        hint = self._permutation_hint(seen)
        if tuple(seen.shape) != self.shape:
            hint = hint or self._exchange_hint(seen) or self._sizes_hint(seen)
            raise WrongShape(f"{self.name} has shape {tuple(seen.shape)}, expected {self.shape}: {expected}{hint}")
        hint = hint or self._slice_hint(seen)
        hint = hint or f"\nhint: make a packed copy, or state the layout of its memory instead of {dims} in the spec"
        expected_strides = self.tensor.strides if self.tensor.axes is None else packed_strides(self.shape)
        strides = f"strides {tuple(seen.strides)} in elements, expected {expected_strides}"
        raise WrongLayout(f"{self.name} has {strides}: {expected}{hint}")

    def _permutation_hint(self, seen: Seen) -> str:
        """Where the dims' order is another: the view that mends it, or that has to be copied."""
        if len(seen.shape) != len(self.shape):
            return ""
        every = permutations(range(len(self.shape)))
        orders = [order for order in every if tuple(seen.shape[i] for i in order) == self.shape]
        for order in orders:
            if self.lies([seen.strides[i] for i in order]):
                return f"\nhint: {self.name}.{seen.transpose}{order} is the right view of the same memory, at no cost"
        if not orders or seen.shape == self.shape or self.tensor.axes is not None:
            return ""
        order = orders[0]
        dims = ", ".join(f"{self.tensor.dims[i]}={self.tensor.extents[i]}" for i in map(order.index, range(len(order))))
        copy = f"{self.name}.{seen.transpose}{order}"
        return f"\nhint: write `{self.tensor.dtype}[{dims}]` in the spec, or pass a packed copy of {copy}"

    def _exchange_hint(self, seen: Seen) -> str:
        """Where another argument has this shape."""
        others = [name for name, shape in self.reads.items() if shape == tuple(seen.shape) and not self.written]
        if not others:
            return ""
        return f"\nhint: this is the shape of {' and '.join(others)}: a call takes {', '.join(self.reads)}"

    def _sizes_hint(self, seen: Seen) -> str:
        """Where images are more, fewer or of another size: what makes a kernel of them."""
        if self.tensor.role != "x" or self.written or len(seen.shape) != len(self.shape):
            return ""  # of other tensors, the first argument may be what is wrong, or the sizes that a call chose
        wrong = {d: size for d, size, own in zip(self.tensor.dims, seen.shape, self.shape, strict=True) if size != own}
        if not wrong.keys() <= _OF_IMAGES or 0 in wrong.values():
            return ""
        fixed = {d: size for d, size in wrong.items() if d not in self.chosen}
        if not fixed:
            sizes = ", ".join(f"{d}={size}" for d, size in {**self.chosen, **wrong}.items())
            return f"\nhint: `.at({sizes})`, or call the kernel itself, which takes the sizes from its arguments"
        said = " ".join(f"{d}={size}" for d, size in fixed.items())
        dynamic = " ".join((*self.chosen, *fixed))
        return f"\nhint: compile the spec with {said}, or write `dynamic {dynamic}`, so that calls decide"

    def _slice_hint(self, seen: Seen) -> str:
        """Where channels are a slice of more, or should be: what to pass, or to say in the spec."""
        t = self.tensor
        if t.pitch:
            return f"\nhint: pass a view such as whole[..., first:first + {t.row}] of an array of shape {t.whole.shape}"
        if t.axes is None and len(t.dims) > 1 and t.dims[-1] in ("c", "k") and seen.strides[-1] == 1:
            pitch = next((s for n, s in zip(seen.shape[-2::-1], seen.strides[-2::-1], strict=True) if n > 1), 0)
            if pitch > t.row and Slot(replace(t, pitch=pitch), "", 1).lies(seen.strides):
                said = f"{t.dims[-1]}={t.row} of {pitch}"
                return f"\nhint: write `{said}` in the spec for slices of {pitch} channels, or make a packed copy"
        return ""


#: Dims that a call may decide (`dynamic`).
_OF_IMAGES = {"n", "d", "h", "w"}


def _same_type(dtype: object, slot: Slot) -> bool:
    kind = type(dtype).__module__.partition(".")[0]
    return dtype is slot.torch_dtype if kind == "torch" else dtype in slot.numpy_dtypes


def overlap(one: Tensor, address: int, other: Tensor, start: int) -> bool:
    """Whether two tensors that begin at these addresses share bytes.  Slices of different channels do not."""
    size, other_size = one.element.bytes, other.element.bytes
    if address >= start + other.span * other_size or start >= address + one.span * size:
        return False
    pitch = (one.pitch or 0) * size
    if not pitch or pitch != (other.pitch or 0) * other_size:
        return True
    apart = (start - address) % pitch
    return apart < one.row * size or apart + other.row * other_size > pitch


def check_addresses(slots: Sequence[Slot], addresses: Sequence[int], in_place: Collection[tuple[str, str]]) -> None:
    """Checks whatever depends only on the addresses, so that a prepared launch need not be checked again.

    Raises Misaligned, and Overlap as `check_overlap` does."""
    for slot, address in zip(slots, addresses, strict=False):
        if address % slot.alignment:
            hint = f"pass a copy of {slot.name}: new arrays are aligned"
            if not slot.packed:
                channels = slot.alignment // slot.tensor.element.bytes
                hint = f"begin the slice at a multiple of {channels} channels, or compile with strategy direct"
            raise Misaligned(
                f"{slot.name} starts at {address:#x}, the kernel needs a multiple of {slot.alignment} bytes"
                f"\nhint: {hint}"
            )
    check_overlap(slots, addresses, in_place)


def check_overlap(slots: Sequence[Slot], addresses: Sequence[int], in_place: Collection[tuple[str, str]]) -> None:
    """Raises Overlap where a result shares memory with another tensor, but for the operands that are `in_place`: pairs
    of an operand and a result."""
    spans = list(zip(slots, addresses, strict=False))
    for i, (out, start) in enumerate(spans):
        for slot, address in spans[:i] if out.written else ():
            own = address == start and (slot.tensor.name, out.tensor.name) in in_place
            if not own and overlap(slot.tensor, address, out.tensor, start):
                why = "both are written" if slot.written else "the kernel would read what it has written"
                raise Overlap(f"{out.name} overlaps {slot.name} in memory: {why}")


def check_number(name: str, value: object, least: int, most: int) -> None:
    """Raises WrongType and WrongArguments where an argument that must be a number is not one, or is out of range."""
    if (number := whole(value)) is None:
        raise WrongType(f"{name} is of type {type(value).__name__}: expected a whole number")
    if not least <= number <= most:
        raise WrongArguments(f"{name} is {value}: from {least} to {most} are possible")
