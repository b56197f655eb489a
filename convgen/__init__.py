"""convgen compiles a small language to CUDA convolution kernels.

kernel = convgen.compile("spec.conv", defines={"n": 64})
y = kernel(x, w, b=bias)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from convgen.diagnostics import ConvgenError, SpecError

if TYPE_CHECKING:
    from convgen.runtime.kernel import Kernel
else:

    def __getattr__(name: str) -> object:
        if name == "Kernel":  # imported where it is asked for: `import convgen` is quick
            from convgen.runtime.kernel import Kernel

            return Kernel
        raise AttributeError(f"module 'convgen' has no attribute {name!r}")


__version__ = "0.1.0"
__all__ = ["ConvgenError", "Kernel", "SpecError", "__version__", "compile", "compile_all", "load"]


def compile(
    source: str | os.PathLike[str],
    defines: Mapping[str, int] | None = None,
    target: str | None = None,
    strategy: str | None = None,
) -> Kernel:
    """Compile a spec of one convolution, given as a path or as text, to a kernel.

    `defines` override the spec's `let`s; `target` (sm_90a, ...) and `strategy` override what the spec
    says.  Needs no GPU.  Raises SpecError, with every diagnostic of the spec, and ConvgenError.

    Deprecated: a spec of several convolutions, or of several operators, gives the dict of `compile_all`.
    """
    kernels = compile_all(source, defines, target, strategy)
    if len(kernels) == 1:
        return next(iter(kernels.values()))
    import warnings
    from typing import cast

    names = ", ".join(kernels)
    message = f"the spec has several kernels ({names}): convgen.compile_all gives a dict of them"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return cast("Kernel", kernels)


def compile_all(
    source: str | os.PathLike[str],
    defines: Mapping[str, int] | None = None,
    target: str | None = None,
    strategy: str | None = None,
) -> dict[str, Kernel]:
    """Compile every convolution and operator of a spec, as `compile` does: the kernels by name, in the spec's order."""
    from convgen import driver
    from convgen.spec import Spec, read

    return driver.compile_all(Spec(*read(source), defines or {}, target, strategy))


def load(path: str | os.PathLike[str]) -> Kernel:
    """The kernel that `Kernel.save` wrote to a file; it runs without its spec, and without NVRTC.

    Its code is as trustworthy as the file: a kernel is a program.  Raises ConvgenError where the file is damaged,
    is no saved kernel, or cannot be read.
    """
    from convgen.runtime import saved

    return saved.read(path)
