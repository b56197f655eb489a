"""Calls of convgen's operators in the code that Inductor writes, past torch's dispatcher.

Behind the dispatcher, an operator looks up what is asked of it, by the shapes and strides of all tensors and by the
geometry; both take the host as much time as the launch does.  A place in the code of a graph of fixed sizes always asks
the same, so each has a function of its own, which keeps what it finds:

    from convgen.torch.network.sites import site as convgen_site
    convgen_buf3 = convgen_site('fused_conv', 'add relu', [1, 1], [0, 0], [1, 1], 1)
    ...
    buf3 = convgen_buf3(buf2, arg5_1, [arg6_1])

torch has a registry of functions that write calls; where it has none (torch 2.9), Inductor calls the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

from convgen.diagnostics import ConvgenError

Tensor = Any
#: Arguments of each operator that are tensors, or lists of them.  They come first.
_TENSORS = {"fused_conv": 3, "fused_conv_into": 4, "conv_sums": 3}


def site(name: str, *constants: Any) -> Callable[..., Any]:
    """The operator of this name as a function of its tensors, whose shapes, strides and types never change."""
    operator = getattr(torch.ops.convgen, name).default
    launch: Callable[..., Any] | None = None

    def call(*tensors: Any) -> Any:
        nonlocal launch
        if launch is None:
            if not _are_aligned(tensors):  # the next ones may be, for which other kernels serve
                return operator(*tensors, *constants)
            launch = _launch_of(name, tensors, constants) or (lambda *given: operator(*given, *constants))
        try:
            return launch(*tensors)
        except ConvgenError:  # of an address that the kernel's loads cannot have
            return operator(*tensors, *constants)

    return call


def _are_aligned(tensors: Sequence[Any]) -> bool:
    from convgen.torch.launch import begins

    return not any(map(begins, torch.utils._pytree.tree_leaves(tensors)))


def _is_on_gpu(tensor: Tensor) -> bool:
    return bool(tensor.is_cuda)


def _launch_of(name: str, tensors: Sequence[Any], constants: Sequence[Any]) -> Callable[..., Any] | None:
    """What launches the kernel that serves; None where none does."""
    from convgen.torch.launch import served
    from convgen.torch.summed import of_convolution

    if not _is_on_gpu(tensors[0]):
        return None
    if name == "conv_sums":
        return of_convolution(*tensors, *constants).served().launch
    if name == "fused_conv":
        return served(*tensors, *constants).launch
    out, *reads = tensors
    launch = served(*reads, *constants, out=out).launch
    return launch and (lambda out, *reads: launch(*reads, out))


@cache
def write_sites() -> None:
    """From here Inductor's code has sites."""
    try:
        from torch._inductor.codegen.custom_extern_kernel_codegen import CUSTOM_EXTERN_KERNEL_CODEGEN, CustomCodegen
    except ImportError:  # it is not public: another torch may not have it
        return
    for name in _TENSORS:
        write = partial(_write_call, name)
        CUSTOM_EXTERN_KERNEL_CODEGEN[f"torch.ops.convgen.{name}.default"] = CustomCodegen(python=write)


def _write_call(name: str, node: Any, writeline: Callable[[Any], None]) -> None:
    """Writes the call of an operator that Inductor has no lowering for."""
    from torch._inductor.codegen.wrapper import ExternKernelAllocLine
    from torch._inductor.virtualized import V

    wrapper = V.graph.wrapper_code
    if not _has_fixed_sizes(node):
        writeline(ExternKernelAllocLine(wrapper, node))
        return
    arguments = [*node.codegen_args(), *node.codegen_kwargs()]
    tensors, constants = arguments[: _TENSORS[name]], arguments[_TENSORS[name] :]
    result, function = node.get_name(), f"convgen_{node.get_name()}"
    module = wrapper
    while hasattr(module, "parent_wrapper"):  # of a part of the graph
        module = module.parent_wrapper
    module.add_import_once(f"from {__name__} import site as convgen_site")
    module.add_import_once(f"{function} = convgen_site({', '.join([repr(name), *constants])})")
    writeline(f"{result} = {function}({', '.join(tensors)})")


def _has_fixed_sizes(node: Any) -> bool:
    numbers = [number for each in node.inputs for number in (*each.get_size(), *each.get_stride())]
    return all(isinstance(number, int) or number.is_Integer for number in numbers)
