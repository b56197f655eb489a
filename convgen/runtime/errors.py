"""The errors that can occur between a kernel's source and its result, each with a stable name.

All are `ConvgenError`s; those for a caller's arguments are also the TypeError or ValueError that Python
programs expect.
"""

from __future__ import annotations

from convgen.diagnostics import ConvgenError


class CompileError(ConvgenError):
    """NVRTC refused the source, or ptxas warned that the kernel would be slow (C75xx).

    `log` is NVRTC's whole log; the message shows each error with the source lines around it.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class SavedKernelError(ConvgenError, ValueError):
    """A file was not written by `Kernel.save`, or by another version of convgen."""


class NoGpu(ConvgenError, RuntimeError):
    """No NVIDIA driver or no GPU: kernels can be compiled and emulated, not launched."""


class NoCupy(ConvgenError, ImportError):
    """A call on a GPU needs CuPy, which is not installed or cannot be imported."""


class WrongGpu(ConvgenError, RuntimeError):
    """The kernel was compiled for an architecture that this GPU does not have."""


class LaunchError(ConvgenError):
    """A kernel could not be launched.  Base of the refusals below."""


class DriverError(LaunchError, RuntimeError):
    """The CUDA driver or cuBLAS returned an error."""


class WrongArguments(LaunchError, TypeError):
    """A tensor is missing, given twice, or unknown."""


class WrongType(LaunchError, TypeError):
    """Not an array, or its element type differs from the spec's."""


class WrongShape(LaunchError, ValueError):
    """The shape differs from the spec's."""


class WrongLayout(LaunchError, ValueError):
    """Neither packed in the spec's order of dims nor the slice of channels that the spec states."""


class WrongDevice(LaunchError, ValueError):
    """An argument is on the CPU, or on another GPU than the other arguments."""


class Misaligned(LaunchError, ValueError):
    """The base address is not a multiple of what the kernel's loads need."""


class Overlap(LaunchError, ValueError):
    """`out` shares memory with a tensor that the kernel reads."""
