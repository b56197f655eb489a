"""Arrays of the libraries that a user may come with: where they are, what they are, and new ones.

A library answers in terms of `Slot`: `pointer` gives an argument's address or refuses it.  The answers
for CuPy and torch read attributes alone, since they are on the path of every call.  torch is never
imported: its module is taken from where its tensors came from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple, Protocol, SupportsFloat

from convgen.runtime import cuda, cupy_library
from convgen.runtime.arguments import Seen, Slot, packed_strides
from convgen.runtime.errors import Misaligned, WrongDevice, WrongShape, WrongType
from convgen.runtime.warm import Reading

Array = Any


class Library(Protocol):
    def device(self, array: Array, slot: Slot) -> int:
        """The GPU that an array is on, by number.  Raises WrongDevice."""
        ...

    def pointer(self, array: Array, slot: Slot, device: int, stream: int) -> int:
        """The address of an array that is as the slot says.  Raises a LaunchError's subclass."""
        ...

    def stream(self, device: int) -> int:
        """Handle of the library's current stream."""
        ...

    def empty(self, slot: Slot, device: int, stream: int | None) -> Array:
        """A new array, in order with a stream; None is the library's current one.  Of a slice, the first channels of a
        new array of all of them."""
        ...


class CupyLibrary:
    def device(self, array: Array, slot: Slot) -> int:
        return array.data.device_id

    def pointer(self, array: Array, slot: Slot, device: int, stream: int) -> int:
        data = array.data
        if (
            array.shape != slot.shape
            or array.dtype not in slot.numpy_dtypes
            or data.device_id != device
            or not (array._c_contiguous if slot.packed else slot.lies(strides_of(array)))  # flags take 150 ns more
        ):
            strides = strides_of(array)
            slot.refuse(
                Seen(array.shape, array.dtype, strides, f"cuda:{data.device_id}", "transpose"), f"cuda:{device}"
            )
        return data.ptr

    @cached_property
    def reading(self) -> Reading:
        """How a warm call reads arrays."""
        return Reading(
            "{a}.dtype is _dtype_{i} and {shape} and {layout} and {a}.data.device_id == _device",
            "{a}._c_contiguous",
            "not {a}._c_contiguous and {a}.strides == _strides_{i}",
            "{a}.data.ptr",
            "_current(_device).ptr",
            self._current_stream,
        )

    def strides(self, slot: Slot) -> tuple[int, ...]:
        """The strides, in bytes, of an array that meets the slot."""
        return tuple(s * slot.tensor.element.bytes for s in slot.tensor.strides)

    def stream(self, device: int) -> int:
        return self._current_stream(device).ptr

    @cached_property
    def _current_stream(self) -> Callable[[int], Any]:
        return cupy_library.load().cuda.get_current_stream

    def empty(self, slot: Slot, device: int, stream: int | None) -> Array:
        if stream is None and cupy_library.load().cuda.runtime.getDevice() == device:
            return _empty(slot)
        with on_stream(device, self.stream(device) if stream is None else stream):
            return _empty(slot)


def _empty(slot: Slot) -> Array:
    dtype, cupy = slot.numpy_dtypes[0], cupy_library.load()
    narrow = dtype.name.startswith("float8")  # CuPy makes no array of these, but views one as such
    made = cupy.empty(slot.tensor.whole.shape, "u1" if narrow else dtype)
    made = made.view(dtype) if narrow else made
    return made if slot.packed else made[..., : slot.tensor.row]


class TorchLibrary:
    def device(self, array: Array, slot: Slot) -> int:
        if not array.is_cuda:
            raise WrongDevice(f"{slot.name} is on {array.device}: a kernel runs on a GPU\nhint: {slot.name}.cuda()")
        return array.get_device()

    def pointer(self, array: Array, slot: Slot, device: int, stream: int) -> int:
        if (
            array.shape != slot.shape
            or array.dtype is not slot.torch_dtype
            or array.get_device() != device
            or not (array.is_contiguous() if slot.packed else slot.lies(array.stride()))
        ):
            seen = Seen(tuple(array.shape), array.dtype, array.stride(), str(array.device), "permute")
            slot.refuse(seen, f"cuda:{device}")
        return array.data_ptr()

    @cached_property
    def reading(self) -> Reading:
        """How a warm call reads tensors."""
        return Reading(
            "{a}.dtype is _dtype_{i} and {shape} and {layout} and {a}.get_device() == _device",
            "{a}.is_contiguous()",
            "{a}.stride() == _strides_{i}",
            "{a}.data_ptr()",
            "_current(_device)",
            self._raw_stream,
            self.wrote,
        )

    def strides(self, slot: Slot) -> tuple[int, ...]:
        """The strides, in elements, of a tensor that meets the slot."""
        return slot.tensor.strides

    def stream(self, device: int) -> int:
        return self._raw_stream(device)

    def empty(self, slot: Slot, device: int, stream: int | None) -> Array:
        torch = sys.modules["torch"]
        if stream is not None:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
                return self.empty(slot, device, None)
        made = torch.empty(slot.tensor.whole.shape, dtype=slot.torch_dtype, device=_torch_device(device))
        return made if slot.packed else made[..., : slot.tensor.row]

    @cached_property
    def wrote(self) -> Callable[[Sequence[Array]], object]:
        """Tells autograd, which counts the versions of tensors, that these have another one."""
        torch = sys.modules["torch"]
        # what torch's own function calls, in half of the time
        return getattr(torch._C, "_increment_version", None) or torch.autograd.graph.increment_version

    @cached_property
    def _raw_stream(self) -> Callable[[int], int]:
        torch = sys.modules["torch"]
        # what torch's own compiler calls on its hot path: no Stream object is made
        direct = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        return direct or (lambda device: torch.cuda.current_stream(device).cuda_stream)


class ForeignLibrary(CupyLibrary):
    """Anything with `__cuda_array_interface__` or DLPack, seen through a CuPy view; results are CuPy's."""

    def device(self, array: Array, slot: Slot) -> int:
        return self.view(array, slot.name).data.device_id

    def pointer(self, array: Array, slot: Slot, device: int, stream: int) -> int:
        return super().pointer(self.view(array, slot.name, stream, slot.written), slot, device, stream)

    def view(self, array: Array, name: str, stream: int | None = None, written: bool = False) -> Array:
        """A CuPy array over the same memory.

        `stream` is the one that will use it; it is made to wait for the stream on which the array is made.
        """
        interface = getattr(array, "__cuda_array_interface__", None)
        if interface is not None:
            return _interface_view(interface, array, name, stream, written)
        kind, device = array.__dlpack_device__()
        if kind not in _DLPACK_GPU:
            hint = "cupy.asarray copies it there; kernel.emulate runs on the CPU"
            raise WrongDevice(f"{name}, of type {type(array).__name__}, is not on a GPU\nhint: {hint}")
        with nullcontext() if stream is None else on_stream(device, stream):
            try:
                return cupy_library.load().from_dlpack(array)
            except (TypeError, ValueError, NotImplementedError, BufferError) as error:
                raise WrongType(
                    f"{name}, of type {type(array).__name__}: CuPy cannot read it by DLPack: {error}"
                ) from None


#: DLDeviceType: CUDA, CUDA managed.
_DLPACK_GPU = (2, 13)
#: What the widest load or tensor map over scratch memory needs, in bytes.
_SCRATCH_ALIGNMENT = 16
CUPY, TORCH, FOREIGN = CupyLibrary(), TorchLibrary(), ForeignLibrary()


def library_of(array: object, slot: Slot) -> Library:
    """The library of an array.  Raises WrongType where it is not an array."""
    for base in type(array).__mro__:
        where = base.__module__.partition(".")[0]
        if where == "cupy" and base.__name__ == "ndarray":
            return CUPY
        if where == "torch" and base.__name__ == "Tensor":
            return TORCH
    if hasattr(array, "__cuda_array_interface__") or hasattr(array, "__dlpack_device__"):
        return FOREIGN
    raise WrongType(
        f"{slot.name} is of type {type(array).__name__}: expected a CuPy array, a torch tensor, or an object with "
        "__cuda_array_interface__ or DLPack"
    )


class Readers(NamedTuple):
    """How arguments of given types are read: the library that makes the result, the one that they are all of if there
    is one, what tells the GPU of the first argument, what gives the address of each and what it should be, and which
    of them are torch's that the call writes."""

    library: Library
    own: CupyLibrary | TorchLibrary | None
    device_of: Callable[..., int]
    each: tuple[tuple[Callable[..., int], Slot], ...]
    counted: tuple[int, ...]


def readers_of(given: Sequence[Array], slots: Sequence[Slot]) -> Readers:
    """For arguments like these.  Raises WrongType."""
    found = [(library_of(array, slot), slot) for array, slot in zip(given, slots, strict=False)]
    torch = any(library is TORCH for library, slot in found if not slot.written)
    first = found[0][0]
    own: Any = first if first is not FOREIGN and all(library is first for library, _ in found) else None
    counted = tuple(i for i, (library, slot) in enumerate(found) if slot.written and library is TORCH)
    each = tuple((library.pointer, slot) for library, slot in found)
    return Readers(TORCH if torch else CUPY, own, first.device, each, counted)


def handle(stream: object) -> int:
    """The handle of a stream: CuPy's, torch's, anything with `__cuda_stream__`, or the handle itself."""
    if isinstance(stream, int):
        return stream
    for attribute in ("ptr", "cuda_stream"):
        if isinstance(found := getattr(stream, attribute, None), int):
            return found
    if (protocol := getattr(stream, "__cuda_stream__", None)) is not None:
        return protocol()[1]
    raise WrongType(f"stream is of type {type(stream).__name__}: expected a CuPy or torch stream, or a stream's handle")


def on_stream(device: int, stream: int) -> ExitStack:
    """A context in which a GPU and one of its streams are CuPy's current ones."""
    cupy = cupy_library.load()
    stack = ExitStack()
    stack.enter_context(cupy.cuda.Device(device))
    stack.enter_context(external_stream(stream))
    return stack


def external_stream(stream: int) -> Any:
    """CuPy's object for a stream's handle."""
    return cupy_library.load().cuda.Stream.from_external(_Stream(stream))


@dataclass(frozen=True)
class _Stream:
    """A stream's handle, in the protocol that CuPy expects."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


#: A library's array as NumPy's, wherever its memory is.
_NUMPY_COPIES = {"torch": "{}.numpy(force=True)", "cupy": "cupy.asnumpy({})"}


def check_numpy(array: object, slot: Slot) -> None:
    """Raises a LaunchError's subclass where a NumPy array is not as the slot says."""
    import numpy

    if not isinstance(array, numpy.ndarray) or isinstance(array, numpy.ma.MaskedArray):
        meant = _numpy_of(array, slot)
        hint = meant and f"\nhint: {meant} is one"
        raise WrongType(f"{slot.name} is of type {type(array).__name__}: the emulator takes NumPy arrays{hint}")
    if slot.written and not array.flags.writeable:
        raise WrongType(f"{slot.name} is read-only")
    if array.shape != slot.shape or array.dtype not in slot.numpy_dtypes or not slot.lies(strides_of(array)):
        slot.refuse(Seen(array.shape, array.dtype, strides_of(array), "cpu", "transpose"), "cpu")


def _numpy_of(array: object, slot: Slot) -> str:
    """The text of a call that turns an argument of another kind into a NumPy array; empty if there is none."""
    if slot.written:
        return ""
    library = type(array).__module__.partition(".")[0]
    if slot.shape == () and isinstance(array, SupportsFloat) and library not in _NUMPY_COPIES:
        return f"numpy.array({slot.name}, {slot.numpy_dtypes[0].name!r})"
    name, raw = slot.name, slot.numpy_dtypes[1:]
    taken = [f"torch.{dtype.name}" for dtype in slot.numpy_dtypes]
    if library == "torch" and str(getattr(array, "dtype", None)) not in taken:
        name = f"{name}.to({taken[0]})"
    if library == "torch" and raw:  # torch gives NumPy no bf16 and no fp8, but their bits
        name = f"{name}.view(torch.{raw[-1].name})"
    return _NUMPY_COPIES.get(library, "").format(name)


def strides_of(array: Array) -> tuple[Any, ...]:
    """The strides of a NumPy or CuPy array, in elements.  Those of a record's field may not be whole numbers; a
    tensor's are."""
    size = array.dtype.itemsize
    return tuple(s / size if s % size else s // size for s in array.strides)


def scratch(array: Array, size: int, device: int, stream: int) -> Any:
    """The memory of an array that a user gives as workspace.  Raises a LaunchError's subclass."""
    view = (
        array
        if isinstance(array, cupy_library.load().ndarray)
        else FOREIGN.view(array, "workspace", stream, written=True)
    )
    if view.data.device_id != device:
        raise WrongDevice(f"workspace is on cuda:{view.data.device_id}, the other arguments are on cuda:{device}")
    if view.nbytes < size or not view.flags.c_contiguous:
        raise WrongShape(f"workspace has {view.nbytes} bytes, the kernel needs {size} in one piece")
    if view.data.ptr % _SCRATCH_ALIGNMENT:
        raise Misaligned(f"workspace starts at {view.data.ptr:#x}, the kernel needs a multiple of {_SCRATCH_ALIGNMENT}")
    return view.data


def _interface_view(interface: dict[str, Any], owner: Array, name: str, stream: int | None, written: bool) -> Array:
    """A CuPy array over memory described by the CUDA Array Interface, version 2 or 3."""
    import numpy

    cupy = cupy_library.load()
    address, read_only = interface["data"]
    if written and read_only:
        raise WrongType(f"{name}, of type {type(owner).__name__}, is read-only")
    device = cuda.driver().device_of(address)
    if device is None:
        raise WrongDevice(f"{name}, of type {type(owner).__name__}, is not in a GPU's memory")
    dtype = numpy.dtype(interface["typestr"])
    if dtype.kind == "V":  # what NumPy has no name for: bits
        dtype = numpy.dtype(f"u{dtype.itemsize}")
    shape = interface["shape"]
    strides = interface.get("strides") or tuple(s * dtype.itemsize for s in packed_strides(shape))
    extent = dtype.itemsize + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    memory = cupy.cuda.UnownedMemory(address, extent, owner, device)
    written_on = interface.get("stream")
    if stream is not None and written_on is not None and written_on != stream:
        driver = cuda.driver()
        with driver.context(device):
            driver.wait(stream, written_on)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)


@cache
def _torch_device(device: int) -> Any:
    return sys.modules["torch"].device("cuda", device)


def torch_is_capturing() -> bool:
    """Whether torch's current stream is being captured."""
    torch = sys.modules.get("torch")
    return bool(torch and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def capturing() -> bool:
    """Whether the current stream of torch or CuPy is being captured."""
    if torch_is_capturing():
        return True
    cupy = sys.modules.get("cupy")
    return cupy is not None and cuda.driver().is_capturing(cupy.cuda.get_current_stream().ptr)
