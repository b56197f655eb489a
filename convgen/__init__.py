"""convgen compiles a small language to CUDA convolution kernels.

kernel = convgen.compile("spec.conv", defines={"n": 64})
y = kernel(x, w, b=bias)
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from convgen.diagnostics import ConvgenError, SpecError

if TYPE_CHECKING:
    from convgen.runtime.kernel import Kernel
else:

    def __getattr__(name: str) -> object:
        if name == "Kernel":  # imported on first use: `import convgen` is quick
            from convgen.runtime.kernel import Kernel

            return Kernel
        if name in ("functional", "torch"):
            from importlib import import_module

            return import_module(f"convgen.{name}")
        raise AttributeError(f"module 'convgen' has no attribute {name!r}")


__version__ = "0.1.0"
__all__ = ["ConvgenError", "Kernel", "SpecError", "__version__", "compile", "compile_all", "gradient", "load"]


def compile(
    source: str | os.PathLike[str],
    defines: Mapping[str, int] | None = None,
    target: str | None = None,
    strategy: str | None = None,
    tune: str | None = None,
    images: Collection[int] = (),
) -> Kernel:
    """Compile a spec with one convolution, given as a path or as text, to a kernel.

    `defines` override the spec's `let`s; `target` (such as "sm_90a") and `strategy` override the spec's.
    `tune="quick"` measures the best few candidates on this machine's GPU, for at most a second, unless that was done
    before, and takes the fastest; without a GPU, a warning says that nothing is measured (docs/tuning.md).

    `images`, for a spec with `dynamic n`, are the numbers of images that calls will have, such as range(1, 65): the
    kernel then has up to four plans, each with its code, and a call runs the fastest of them (docs/calling.md).

    Needs no GPU.  Raises SpecError, which has every diagnostic of the spec, or another ConvgenError.

    Deprecated: for a spec with several convolutions or operators, it returns the dict of `compile_all`.
    """
    kernels = compile_all(source, defines, target, strategy, tune, images)
    if len(kernels) == 1:
        return next(iter(kernels.values()))
    import warnings
    from typing import cast

    names = ", ".join(kernels)
    message = f"the spec has several kernels ({names}): call convgen.compile_all, which returns a dict of them"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return cast("Kernel", kernels)


def compile_all(
    source: str | os.PathLike[str],
    defines: Mapping[str, int] | None = None,
    target: str | None = None,
    strategy: str | None = None,
    tune: str | None = None,
    images: Collection[int] = (),
) -> dict[str, Kernel]:
    """Compile every convolution and operator of a spec, as `compile` does.  Returns the kernels by name, in the
    order of the spec."""
    from convgen import requests
    from convgen.spec import Spec, read

    return requests.compile_all(Spec(*read(source), defines or {}, target, strategy, tune=tune, images=images))


def gradient(
    source: str | os.PathLike[str],
    only: str | None = None,
    after: str | None = None,
    branch: bool = False,
    defines: Mapping[str, int] | None = None,
) -> str:
    """Return the gradients of a spec's layers as a spec: for each convolution `NAME`, `NAME_dgrad` and `NAME_wgrad`.

    `only` names one convolution.  `after` names the convolution whose result is its input: dgrad then also goes back
    through the epilogue of `after`.  With `branch`, dgrad adds an operand `branch`, the gradient of another use of the
    input.  Raises a ConvgenError if a gradient cannot be derived.  docs/gradients.md has the definitions.
    """
    from convgen import backward
    from convgen.spec import Spec, read

    return backward.spec(Spec(*read(source), defines or {}), only, after, branch)


def load(path: str | os.PathLike[str]) -> Kernel:
    """Load a kernel that `Kernel.save` wrote.  It needs neither its spec nor NVRTC.

    A kernel is a program: load only files that you trust.  Raises ConvgenError if the file cannot be read, is
    damaged, or is not a saved kernel.
    """
    from convgen.runtime import saved

    return saved.read(path)
