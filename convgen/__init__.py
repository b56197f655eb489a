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

__version__ = "0.1.0"
__all__ = ["ConvgenError", "SpecError", "__version__", "compile"]


def compile(
    source: str | os.PathLike[str],
    defines: Mapping[str, int] | None = None,
    target: str | None = None,
    strategy: str | None = None,
) -> Kernel | dict[str, Kernel]:
    """Compile a spec, given as a path or as text, to a kernel.

    `defines` override the spec's `let`s; `target` (sm_90a, ...) and `strategy` override what the spec
    says.  A file of several convolutions, or of several operators, gives a dict of kernels by name.
    Needs no GPU.  Raises SpecError, with every diagnostic of the spec, and ConvgenError.
    """
    from convgen.driver import compile_all
    from convgen.spec import Spec, read

    kernels = compile_all(Spec(*read(source), defines or {}, target, strategy))
    return next(iter(kernels.values())) if len(kernels) == 1 else kernels
