"""The CUDA driver through ctypes: the few calls that loading and launching kernels takes.

Nothing here is imported or loaded until a kernel has to run.  `driver()` is the only entry; without a
driver or a GPU it raises NoGpu.  Structures follow cuda.h (CUDA driver API, "Execution Control").
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from functools import cache
from typing import NamedTuple

from convgen.runtime.errors import DriverError, NoGpu

#: The driver's library and its monitoring library.
LIBRARY = "libcuda.so.1"
MONITOR = "libnvidia-ml.so.1"

SUCCESS = 0
NOT_INITIALIZED = 3
#: What a launch gets in a thread whose current context is none, a destroyed one or another than the kernel's.
WRONG_CONTEXT = (201, 400, 709)

# CUdevice_attribute
MULTIPROCESSOR_COUNT = 16
CAPABILITY_MAJOR = 75
CAPABILITY_MINOR = 76
# CUfunction_attribute
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
# CUlaunchAttributeID
PROGRAMMATIC_STREAM_SERIALIZATION = 6
# CUpointer_attribute, CUmemorytype
POINTER_DEVICE_ORDINAL = 9
# CUstreamCaptureMode, CUstreamCaptureStatus
CAPTURE_RELAXED = 2
CAPTURE_ACTIVE = 1
# CUuserObject_flags, CUuserObjectRetain_flags
NO_DESTRUCTOR_SYNC = 1
GRAPH_USER_OBJECT_MOVE = 1
# CUstream: one handle for a stream of each thread
PER_THREAD_STREAM = 2
# CUevent_flags
EVENT_DISABLE_TIMING = 2
_NAME_BYTES = 256


class Gpu(NamedTuple):
    """A kind of GPU: its name as the driver tells it, and its compute capability."""

    name: str
    capability: tuple[int, int]


class Capture(NamedTuple):
    """The capture of a stream: a number that is unique in the process, and the graph's handle."""

    number: int
    graph: int


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute; the value is a union of 64 bytes, of which convgen sets one int."""

    _fields_ = (("id", c_int), ("pad", c_int), ("value", c_int), ("rest", c_ubyte * 60))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", c_uint),
    )
    keep: object  # lives as long as the configuration: the storage of a launch's parameters


class Driver:
    """A loaded and initialized driver.  Methods raise DriverError; `launch` and `memset` are bare
    functions that return a status, for the hot path: see `check`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        if status := library.cuInit(0):
            raise NoGpu(
                f"the CUDA driver finds no GPU ({self._text(status)}): kernels can be compiled and emulated here"
            )
        count = c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        self.device_count = count.value
        self._contexts: dict[int, c_void_p] = {}
        self._current_context = library.cuCtxGetCurrent
        self._capture_status = library.cuStreamIsCapturing
        #: (byref(LaunchConfig), function, parameter addresses, None) -> status
        self.launch = library.cuLaunchKernelEx
        #: (address, byte value, bytes, stream) -> status
        self.memset = library.cuMemsetD8Async
        self.memset.argtypes = (c_void_p, c_ubyte, c_size_t, c_void_p)

    def check(self, status: int, what: str) -> None:
        if status != SUCCESS:
            # cuInit has succeeded, so that this process must be a copy of the one that called it
            hint = "\nhint: CUDA does not survive a fork: start processes with spawn or forkserver"
            raise DriverError(
                f"{what}: the CUDA driver says {self._text(status)}{hint if status == NOT_INITIALIZED else ''}"
            )

    def gpu(self, device: int) -> Gpu:
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("cuDeviceGetName", name, c_int(_NAME_BYTES), c_int(device))
        return Gpu(name.value.decode(), self.capability(device))

    def capability(self, device: int) -> tuple[int, int]:
        return self.attribute(device, CAPABILITY_MAJOR), self.attribute(device, CAPABILITY_MINOR)

    def attribute(self, device: int, attribute: int) -> int:
        value = c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), c_int(attribute), c_int(device))
        return value.value

    def device_of(self, address: int) -> int | None:
        """The device that an address belongs to; None where it is no CUDA memory."""
        ordinal = c_int()
        status = self._library.cuPointerGetAttribute(
            ctypes.byref(ordinal), c_int(POINTER_DEVICE_ORDINAL), c_void_p(address)
        )
        return ordinal.value if status == SUCCESS else None

    def load(self, cubin: bytes) -> c_void_p:
        """A module in the current context."""
        module = c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), c_char_p(cubin))
        return module

    def function(self, module: c_void_p, name: str, shared_bytes: int) -> c_void_p:
        """An entry point, allowed to use that much dynamic shared memory."""
        function = c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, c_char_p(name.encode()))
        if shared_bytes:
            self._call("cuFuncSetAttribute", function, c_int(MAX_DYNAMIC_SHARED_SIZE_BYTES), c_int(shared_bytes))
        return function

    def clusters_at_once(self, config: LaunchConfig, function: c_void_p) -> int | None:
        """How many clusters of a kernel the GPU can place together; None where it does not say."""
        count = c_int()
        status = self._library.cuOccupancyMaxActiveClusters(ctypes.byref(count), function, ctypes.byref(config))
        return count.value if status == SUCCESS and count.value > 0 else None

    @contextmanager
    def context(self, device: int) -> Iterator[None]:
        """Has the device's primary context, which CuPy and torch use as well, as this thread's current one."""
        self._call("cuCtxPushCurrent_v2", self._primary(device))
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(c_void_p()))

    def is_current(self, device: int) -> bool:
        """Whether the device's primary context is this thread's current one."""
        context = c_void_p()
        status = self._current_context(ctypes.byref(context))
        return status == SUCCESS and context.value == self._primary(device).value

    def device_of_stream(self, stream: int) -> int | None:
        """The device of a stream; None for the default streams, which every device has, and where it is not known."""
        context, device = c_void_p(), c_int()
        if stream <= PER_THREAD_STREAM or self._library.cuStreamGetCtx(c_void_p(stream), ctypes.byref(context)):
            return None
        self._call("cuCtxPushCurrent_v2", context)
        try:
            self._call("cuCtxGetDevice", ctypes.byref(device))
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(context))
        return device.value

    def is_capturing(self, stream: int) -> bool:
        status = c_int()
        self._capture_status(c_void_p(stream), ctypes.byref(status))
        return status.value != 0

    def capture(self, stream: int) -> Capture | None:
        """The capture that a stream is in, if any."""
        status, number, graph = c_int(), c_uint64(), c_void_p()
        failed = self._library.cuStreamGetCaptureInfo_v2(
            c_void_p(stream), ctypes.byref(status), ctypes.byref(number), ctypes.byref(graph), None, None
        )
        return None if failed or status.value != CAPTURE_ACTIVE else Capture(number.value, graph.value or 0)

    def on_destruction(self, graph: int, function: object, argument: int) -> None:
        """Has a C function called with an argument, on a thread of the driver, once a graph and all executable graphs
        made of it are destroyed and have run to their ends (CUDA C++ Programming Guide, "CUDA User Objects")."""
        made = c_void_p()
        flags = c_uint(NO_DESTRUCTOR_SYNC)
        self._call("cuUserObjectCreate", ctypes.byref(made), c_void_p(argument), function, c_uint(1), flags)
        self._call("cuGraphRetainUserObject", c_void_p(graph), made, c_uint(1), c_uint(GRAPH_USER_OBJECT_MOVE))

    @contextmanager
    def relaxed_capture(self) -> Iterator[None]:
        """Lets this thread load code and allocate while one of its streams is being captured."""
        mode = c_int(CAPTURE_RELAXED)
        self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def wait(self, stream: int, earlier: int) -> None:
        """Makes later work on `stream` wait for the work on `earlier`, without blocking the host."""
        event = c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), c_uint(EVENT_DISABLE_TIMING))
        try:
            self._call("cuEventRecord", event, c_void_p(earlier))
            self._call("cuStreamWaitEvent", c_void_p(stream), event, c_uint(0))
        finally:
            self._call("cuEventDestroy_v2", event)

    def encode(self, function: str, *arguments: object) -> int:
        """Calls a tensor map's encoder by name; its status."""
        return getattr(self._library, function)(*arguments)

    def _primary(self, device: int) -> c_void_p:
        """The primary context, retained for the life of the process."""
        if device not in self._contexts:
            context = c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), c_int(device))
            self._contexts[device] = context
        return self._contexts[device]

    def _call(self, function: str, *arguments: object) -> None:
        self.check(getattr(self._library, function)(*arguments), function)

    def _text(self, status: int) -> str:
        name, text = c_char_p(), c_char_p()
        self._library.cuGetErrorName(c_int(status), ctypes.byref(name))
        self._library.cuGetErrorString(c_int(status), ctypes.byref(text))
        return f"{(name.value or b'error').decode()} ({status}): {(text.value or b'no text').decode()}"


@cache
def driver() -> Driver:
    """The driver of this machine.  Raises NoGpu."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        raise NoGpu(f"no NVIDIA driver here ({LIBRARY} is not found): kernels can be compiled and emulated") from None
    return Driver(library)


def nvml_gpus() -> set[Gpu]:
    """The kinds of GPU that the machine has, by NVML; empty where it does not say, or where a GPU is shared
    out in instances, which have names and sizes of their own."""
    try:
        monitor = ctypes.CDLL(MONITOR)
    except OSError:
        return set()
    if monitor.nvmlInit_v2():
        return set()
    try:
        count, found = c_uint(), set()
        monitor.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            device, major, minor = c_void_p(), c_int(), c_int()
            instances, pending = c_uint(), c_uint()
            name = ctypes.create_string_buffer(_NAME_BYTES)
            if (
                monitor.nvmlDeviceGetHandleByIndex_v2(c_uint(index), ctypes.byref(device))
                or monitor.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
                or monitor.nvmlDeviceGetName(device, name, c_uint(_NAME_BYTES))
            ):
                return set()
            monitor.nvmlDeviceGetMigMode(device, ctypes.byref(instances), ctypes.byref(pending))  # or has no such mode
            if instances.value:
                return set()
            found.add(Gpu(name.value.decode(), (major.value, minor.value)))
    finally:
        monitor.nvmlShutdown()
    return found
