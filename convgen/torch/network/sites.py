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

from convgen.torch.launch import REFUSALS

Tensor = Any
Launch = Callable[..., Any]
#: How many of torch's dispatch modes are on.
_modes = torch._C._len_torch_dispatch_stack
#: Arguments of each operator that are tensors, or lists of them.  They come first.
_TENSORS = {
    "fused_conv": 3, "fused_conv_into": 4, "conv": 3, "conv_sums": 3,
    "conv_input": 2, "conv_input_sums": 3, "conv_weight": 2, "conv_weight_bias": 2,
}  # fmt: skip


def site(name: str, *constants: Any) -> Callable[..., Any]:
    """The operator of this name as a function of its tensors, whose shapes, strides and types never change."""
    by_operator = _by_operator(name, constants)
    launch: Launch | None = None

    def call(*tensors: Any) -> Any:
        nonlocal launch
        if launch is None:
            launch = _launch_of(name, tensors, constants)
        if launch is None or _modes():  # which see operators alone: torch's FLOP counter
            return by_operator(*tensors)
        try:
            return launch(*tensors)
        except REFUSALS:
            return by_operator(*tensors)

    return call


def _by_operator(name: str, constants: Sequence[Any]) -> Launch:
    operator = getattr(torch.ops.convgen, name).default
    return lambda *tensors: operator(*tensors, *constants)


def _launch_of(name: str, tensors: Sequence[Any], constants: Sequence[Any]) -> Launch | None:
    """The function that launches the kernel, or the operator if no kernel serves; None if that is not known yet:
    tensors that are misaligned now may be aligned at the next call, which other kernels serve."""
    from convgen.torch import launch

    given = [each for each in torch.utils._pytree.tree_leaves(tensors) if each is not None]
    if not _is_on_gpu(given[0]):
        return _by_operator(name, constants)
    if any(map(launch.begins, given)):
        return None
    if name in ("conv_input", "conv_weight", "conv_weight_bias"):
        return _gradient(name, tensors, constants)
    return _forward(name, tensors, constants) or _by_operator(name, constants)


def _forward(name: str, tensors: Sequence[Any], constants: Sequence[Any]) -> Launch | None:
    """Fused calls, and those with sums, are convgen's wherever it serves them."""
    from convgen.torch import launch, ops, summed

    if name == "conv_sums":
        return summed.of_convolution(*tensors, *constants).served().launch
    if name == "conv_input_sums":
        return summed.of_input(*tensors, *constants).served().launch
    if name == "fused_conv":
        return launch.served(*tensors, *constants).launch
    if name == "conv":
        input, weight, bias = tensors
        plain = launch.served(input, weight, *ops.as_operands(bias, input.dim()), *constants).launch
        return plain and (lambda x, w, b: plain(x, w, ops.as_operands(b, x.dim())[0]))
    out, *reads = tensors
    into = launch.served(*reads, *constants, out=out).launch
    return into and _nothing_of(into)


def _nothing_of(into: Launch) -> Launch:
    """Gives nothing: Inductor's code would hold the tensor that is written until it ends, with all that it is a slice
    of."""

    def write(out: Tensor, *reads: Any) -> None:
        into(*reads, out)

    return write


def _gradient(name: str, tensors: Sequence[Any], constants: Sequence[Any]) -> Launch | None:
    """The choice for a gradient: convgen or aten."""
    from convgen.torch import ops
    from convgen.torch.asked import WithBias

    bare = (ops.of_input if name == "conv_input" else ops.of_weight)(*tensors, *constants)
    asked = WithBias(bare) if name == "conv_weight_bias" else bare
    launch = ops.choices.launch(asked)
    if launch is None:
        return _by_operator(name, constants) if ops.choices.is_decided(asked) else None
    if name == "conv_weight_bias":
        return lambda first, second: ops.with_bias(launch(first, second, ()))
    return lambda first, second: launch(first, second, ())


def _is_on_gpu(tensor: Tensor) -> bool:
    return bool(tensor.is_cuda)


@cache
def write_sites(is_convgens: Callable[[], bool]) -> None:
    """From here the code that Inductor writes has sites where `is_convgens` says so: what it keeps of other graphs for
    later processes is for any version of convgen."""
    try:
        from torch._inductor.codegen.custom_extern_kernel_codegen import CUSTOM_EXTERN_KERNEL_CODEGEN, CustomCodegen
    except ImportError:  # it is not public: another torch may not have it
        return
    for name in _TENSORS:
        write = partial(_write_call, name, is_convgens)
        CUSTOM_EXTERN_KERNEL_CODEGEN[f"torch.ops.convgen.{name}.default"] = CustomCodegen(python=write)


def _write_call(name: str, is_convgens: Callable[[], bool], node: Any, writeline: Callable[[Any], None]) -> None:
    """Writes the call of an operator that Inductor has no lowering for."""
    from torch._inductor.codegen.wrapper import ExternKernelAllocLine
    from torch._inductor.virtualized import V

    wrapper = V.graph.wrapper_code
    if not (is_convgens() and _has_fixed_sizes(node)):
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
