"""Arrays of NumPy, CuPy and torch as the functions see them: shapes, orders of axes in memory, views, new arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from convgen.ir.dtypes import DTYPES
from convgen.runtime.arrays import strides_of
from convgen.runtime.errors import WrongDevice, WrongType

Array = Any
WIDEST = 16  # bytes of a load, and what strides of tensor maps are multiples of
#: Element types by the names that NumPy, ml_dtypes, CuPy and torch have for them.
_NAMES = {row.numpy: row.name for row in DTYPES.values()}


class NumpyLibrary:
    """NumPy's arrays, in the host's memory."""

    on_gpu = False

    def dtype(self, array: Array) -> str:
        """The element type's name in NumPy, which names the machine's byte order alone."""
        return array.dtype.name if array.dtype.isnative else array.dtype.str

    def strides(self, array: Array) -> tuple[int, ...]:
        """Strides in elements."""
        return strides_of(array)

    def aligned(self, array: Array) -> bool:
        """Whether it begins where a kernel's widest loads may."""
        return bool(array.ctypes.data % WIDEST == 0)

    def permuted(self, array: Array, order: Sequence[int]) -> Array:
        """A view with the axes in another order."""
        return array.transpose(order)

    def packed(self, array: Array) -> Array:
        """A copy in C order."""
        return array.copy(order="C")

    def empty(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        """A new array of an element type of the language, where `like` is."""
        import numpy

        from convgen.ir.dtypes import numpy_dtype

        return numpy.empty(shape, numpy_dtype(dtype))

    def host(self, array: Array) -> Array:
        """A NumPy array over the same memory."""
        return array

    def stored(self, array: Array) -> Array:
        """The array, or where its memory has other values, a copy with the same strides."""
        return array

    def unwritable(self, array: Array) -> str:
        """Why a result cannot be written to it, if so."""
        return "" if array.flags.writeable else "read-only"

    def wrote(self, array: Array) -> None:
        """Say that the host's memory has other values: to a library that counts such changes."""


class CupyLibrary(NumpyLibrary):
    """CuPy's arrays, in a GPU's memory."""

    on_gpu = True

    def aligned(self, array: Array) -> bool:
        return array.data.ptr % WIDEST == 0

    def unwritable(self, array: Array) -> str:
        return ""

    def empty(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        import cupy

        from convgen.ir.dtypes import numpy_dtype

        with like.device:
            return cupy.empty(shape, numpy_dtype(dtype))


class TorchLibrary(NumpyLibrary):
    """torch's tensors on a GPU."""

    on_gpu = True

    def dtype(self, array: Array) -> str:
        return str(array.dtype).removeprefix("torch.")

    def strides(self, array: Array) -> tuple[int, ...]:
        return array.stride()

    def aligned(self, array: Array) -> bool:
        return bool(array.data_ptr() % WIDEST == 0)

    def permuted(self, array: Array, order: Sequence[int]) -> Array:
        return array.permute(order)

    def packed(self, array: Array) -> Array:
        import torch

        return array.clone(memory_format=torch.contiguous_format)

    def stored(self, array: Array) -> Array:
        if not array.is_neg():
            return array
        import torch

        made = torch.empty_strided(array.shape, array.stride(), dtype=array.dtype, device=array.device)
        return made.copy_(array)

    def unwritable(self, array: Array) -> str:
        return "a negative view of torch's, whose memory has other values" if array.is_neg() else ""

    def empty(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        import torch

        return torch.empty(shape, dtype=getattr(torch, DTYPES[dtype].numpy), device=like.device)


class TorchOnHost(TorchLibrary):
    """torch's tensors in the host's memory: computed as NumPy's arrays are."""

    on_gpu = False

    def host(self, array: Array) -> Array:
        from convgen.ir.dtypes import numpy_dtype

        dtype = numpy_dtype(_NAMES[self.dtype(array)])
        bits = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}[dtype.itemsize]
        import torch

        return array.view(getattr(torch, bits)).numpy().view(dtype)

    def wrote(self, array: Array) -> None:
        import torch

        torch.autograd.graph.increment_version(array)


NUMPY, CUPY, TORCH, TORCH_ON_HOST = NumpyLibrary(), CupyLibrary(), TorchLibrary(), TorchOnHost()


def library_of(**arrays: Array) -> NumpyLibrary:
    """The library of arrays by their parameters' names.  Raises WrongType, WrongDevice."""
    found: dict[str, NumpyLibrary] = {name: _library(name, array) for name, array in arrays.items()}
    (first, library), *others = found.items()
    for name, other in others:
        if other is not library:
            kinds = f"{first} is {_kind(arrays[first])}, {name} is {_kind(arrays[name])}"
            raise WrongDevice(f"{kinds}: all must be of one library and in one place")
    return library


def _library(name: str, array: Array) -> NumpyLibrary:
    kind: Any = type(array)
    library = _library_of_type(kind)
    if library is None:
        raise WrongType(f"{name} is {_kind(array)}: expected a NumPy, CuPy or torch array")
    if library is TORCH:
        if array.requires_grad and _gradients():
            raise WrongType(
                f"{name} requires a gradient, which convgen.functional does not record"
                f"\nhint: call convgen.torch, or pass {name}.detach()"
            )
        _check_memory(name, array)
        if array.device.type not in ("cuda", "cpu"):
            raise WrongDevice(f"{name} is {_kind(array)}: expected a tensor on a GPU or on the CPU")
        if not array.is_cuda:
            return TORCH_ON_HOST
    return library


def _check_memory(name: str, array: Array) -> None:
    """Raises WrongType for a tensor whose elements are not found in memory by strides."""
    import torch

    if array.layout is not torch.strided:
        raise WrongType(f"{name} has layout {array.layout}\nhint: pass {name}.to_dense()")
    dispatches = type(array).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if dispatches or array.is_nested or not torch._C._has_storage(array):
        raise WrongType(
            f"{name} has no memory of its own: torch.func, a tracer or a subclass of torch.Tensor manages it"
            "\nhint: call convgen.torch"
        )


@cache
def _library_of_type(kind: Any) -> NumpyLibrary | None:
    libraries = {("numpy", "ndarray"): NUMPY, ("cupy", "ndarray"): CUPY, ("torch", "Tensor"): TORCH}
    for base in kind.__mro__:
        name = base.__module__.partition(".")[0], base.__name__
        if name == ("numpy", "MaskedArray"):  # no kernel knows of the mask
            return None
        if found := libraries.get(name):
            return found
    return None


def _gradients() -> bool:
    import torch

    return torch.is_grad_enabled()


def _kind(array: Array) -> str:
    """A description of an argument's type."""
    module = type(array).__module__.partition(".")[0]
    name = type(array).__name__ if module == "builtins" else f"{module}.{type(array).__name__}"
    return f"of type {name}" + (f" on {array.device}" if module == "torch" and hasattr(array, "device") else "")


def element_type(name: str, array: Array, library: NumpyLibrary) -> str:
    """The language's name of an array's element type.  Raises WrongType."""
    dtype = library.dtype(array)
    if dtype not in _NAMES:
        known = ", ".join(_NAMES)
        reordered = getattr(array.dtype, "newbyteorder", lambda _: None)("=")
        if str(reordered) in _NAMES:
            hint = f"convert {name} to {reordered}, in the machine's own order of bytes"
            raise WrongType(f"{name} has elements of {dtype}, whose bytes are in another order\nhint: {hint}")
        raise WrongType(f"{name} has elements of {dtype}; convgen has {known}\nhint: convert {name}, say to float32")
    return _NAMES[dtype]


def order_of(shape: Sequence[int], strides: Sequence[int], *preferred: tuple[int, ...]) -> tuple[int, ...] | None:
    """The order of the axes in memory, outermost first; None where the elements do not follow one another.

    Axes of extent 1 may stand anywhere: of the orders that fit, the first of the preferred ones is taken.
    """
    by_stride = tuple(sorted(range(len(shape)), key=lambda i: (-strides[i], -shape[i])))
    for order in (*preferred, by_stride):
        if is_packed(shape, strides, order):
            return order
    return None


def is_packed(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """Whether the elements follow one another with the axes in this order."""
    expected = 1
    if 0 in shape:
        return True
    for i in reversed(order):
        if shape[i] != 1 and strides[i] != expected:
            return False
        expected *= shape[i]
    return True


def pitch_of(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> int | None:
    """Elements from one run of the innermost axis to the next, where these are slices of longer ones and follow one
    another with the axes in this order; None where that is not so."""
    *outer, inner = order
    if shape[inner] != 1 and strides[inner] != 1:
        return None
    kept = [i for i in outer if shape[i] != 1]
    pitch = strides[kept[-1]] if kept else 0
    expected = pitch
    for i in reversed(kept):
        if strides[i] != expected:
            return None
        expected *= shape[i]
    return pitch if pitch > shape[inner] else None


def channels_last(rank: int) -> tuple[int, ...]:
    """The order of axes (n, *spatial, c)."""
    return (0, *range(2, rank + 2), 1)


def channels_first(rank: int) -> tuple[int, ...]:
    """The order of axes (n, c, *spatial)."""
    return tuple(range(rank + 2))


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The order that undoes another."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of memory from an array's first to its last, of which there are some."""
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def strides_in(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of an array with axes in an order in memory."""
    return tuple(math.prod(shape[j] for j in order[order.index(i) + 1 :]) for i in range(len(shape)))
