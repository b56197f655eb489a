"""One row per kernel, with the strategy that it belongs to: a strategy, which users write, is one or more kernels.

A row names a folder of this package.  Its `config` module has the class `Config`, and imports nothing that is
slow to load; its `kernel` module has `KERNEL`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module

from convgen.kernels.base import AnyKernel
from convgen.kernels.config import Config, Options, defaults, excess, has_all


@dataclass(frozen=True)
class KernelRow:
    """A kernel: its folder, the strategy that it belongs to, and a one-line description.  `by_name`: taken only where a
    spec names it, or its value of the option `form`."""

    name: str
    strategy: str
    summary: str
    by_name: bool = False

    @property
    def config(self) -> type[Config]:
        """The class of its configurations."""
        return import_module(f"convgen.kernels.{self.name}.config").Config

    def asked_for(self, options: Options) -> bool:
        """Whether a spec with these options may take it."""
        if "kernel" in options:
            return options["kernel"] == self.name
        return not self.by_name or ("form" in options and not excess({"form": options["form"]}, self.config))

    @property
    def kernel(self) -> AnyKernel:
        return import_module(f"convgen.kernels.{self.name}.kernel").KERNEL


#: In the order in which `auto` prefers them where no cost model tells them apart.
KERNELS: tuple[KernelRow, ...] = (
    KernelRow("tma_im2col", "tma_im2col", "TMA im2col loads and wgmma"),
    KernelRow("tma_wgrad", "tma_im2col", "the gradient of the filter, summed over pixels"),
    KernelRow(
        "tma_plain", "tma_im2col", "TMA im2col loads and wgmma, in source that reads from top to bottom", by_name=True
    ),
    KernelRow("tma_halo", "tma_halo", "the input tile with its halo serves every tap"),
    KernelRow("depthwise_stream", "depthwise", "TMA streams rows of x through shared memory"),
    KernelRow("depthwise_direct", "depthwise", "reads global memory directly, for any layout and target"),
    KernelRow("depthwise_wgrad", "depthwise", "the gradient of the filter, in one pass over x and y"),
    KernelRow("mma_gemm", "implicit_gemm", "gathers operands from computed addresses, for any problem"),
    KernelRow("mma_wgrad", "implicit_gemm", "the gradient of the filter, summed over pixels"),
    KernelRow("stem_wgmma", "implicit_gemm", "first layers with few channels, by wgmma"),
    KernelRow("stem_mma", "implicit_gemm", "first layers with few channels, by mma.sync"),
    KernelRow("stem_wgrad", "implicit_gemm", "the gradient of a first layer's filter, by wgmma"),
    KernelRow("small_groups", "implicit_gemm", "groups with few channels"),
    KernelRow("im2col", "im2col", "im2col or col2im, and a GEMM by cuBLAS"),
    KernelRow("winograd", "winograd", "transforms tiles and filters, which another kernel multiplies"),
    KernelRow("winograd_fused", "winograd", "F(2, 3) along rows of a halo tile, by wgmma (form fused)", by_name=True),
    KernelRow("direct", "direct", "one output per thread, or a few along the channels"),
)


@cache
def kernels_of(strategy: str) -> tuple[KernelRow, ...]:
    """The kernels of a strategy."""
    return tuple(row for row in KERNELS if row.strategy == strategy)


def completed(name: str, options: Options) -> Options:
    """A kernel's options as stored, with the defaults of those added since.  Anything that is not one of its options
    stays as it is."""
    config = next((row.config for row in KERNELS if row.name == name), None)
    said = {option: value for option, value in options.items() if option != "kernel"}
    return defaults(config) | dict(options) if config and has_all(said, config) else options


def kernel(name: str) -> AnyKernel:
    """The kernel of a name.  Raises KeyError."""
    return {row.name: row for row in KERNELS}[name].kernel
