"""A convolution and the chain of functions that alone reads its result, step by step, as far as an epilogue can go."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from convgen.functional.pointwise import Step, text_of
from convgen.torch.network.activations import scaled, written_out
from convgen.torch.network.batch_norm import normalization_of, scale_and_shift
from convgen.torch.network.crops import crop_of
from convgen.torch.network.padding import padded
from convgen.torch.network.trace import argument, call, erase_unread, is_call, value_of

Node = Any
A: Any = torch.ops.aten
#: Types of 16 bits, which round more coarsely than sums in float32 do.
NARROW = (torch.float16, torch.bfloat16)
#: Types that are fused.
FLOATS = (*NARROW, torch.float32)


@dataclass(frozen=True)
class End:
    """A place where a chain may stop: the node whose value it then makes, and how much of the chain that takes."""

    node: Node
    steps: int
    operands: int


@dataclass
class Chain:
    """A convolution's arguments and the steps after it.  `padding`, `padding_mode` and `transposed` are as of
    convgen::fused_conv; `upsampled` says that an upsampling before it is part of it.  `opening` are the steps of a
    prologue, with operands `opening_operands`.  `uncropped` is the convolution's own padding where slices of its result
    are part of the chain.

    `ends[0]` is the bare convolution, with its slices; every end has the shape and type of that.
    """

    convolution: Node
    x: Node
    w: Node
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int
    padding_mode: str = "zeros"
    transposed: bool = False
    upsampled: bool = False
    opening: tuple[Step, ...] = ()
    opening_operands: tuple[Node, ...] = ()
    uncropped: list[int] | None = None
    steps: list[Step] = field(default_factory=list)
    operands: list[Node] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)

    def epilogue(self, end: End) -> str:
        """The steps up to an end, as text."""
        return text_of(self.steps[: end.steps])

    def fused(self, end: End) -> str:
        """What is fused up to an end, for people."""
        before = f"before: {text_of(self.opening)}" if self.opening else "upsampling folded" * self.upsampled
        return "; ".join(filter(None, (before, "cropped" if self.uncropped else "", self.epilogue(end))))

    def arguments(self, end: End) -> tuple[Any, ...]:
        """The arguments of convgen::fused_conv, with nodes for tensors."""
        geometry = self.stride, self.padding, self.dilation, self.groups, self.padding_mode, self.transposed
        opening = (text_of(self.opening),) if self.opening else ()
        operands = [*self.opening_operands, *self.operands[: end.operands]]
        return self.x, self.w, operands, self.epilogue(end), *geometry, *opening

    def fuse(self, graph: Any, end: End) -> Node:
        """Replaces the chain up to an end by one node."""
        with graph.inserting_after(end.node):
            made = call(graph, torch.ops.convgen.fused_conv.default, *self.arguments(end))
        end.node.replace_all_uses_with(made)
        erase_unread(graph, end.node)
        return made


def chain_of(node: Node) -> Chain | None:
    """The chain after a convolution; None if the node is not one, or one that convgen's operators do not have."""
    if not is_call(node, A.convolution.default):
        return None
    x, w, bias, stride, padding, dilation, transposed, further, groups = node.args
    if value_of(x).dtype not in FLOATS or len(stride) > 3:
        return None
    if transposed:
        highs = [p - more for p, more in zip(padding, further, strict=True)]
        padding, mode = [*padding, *highs] if any(further) else list(padding), "zeros"
    else:
        x, padding, mode = padded(x, padding)
    found = Chain(node, x, w, list(stride), padding, list(dilation), groups, mode, transposed)
    if bias is not None:
        shape = [-1, *[1] * len(stride)]
        with node.graph.inserting_before(node):
            found.operands.append(call(node.graph, A.view.default, bias, shape))
        found.steps.append(Step("add"))
    result = _cropped(found)
    found.ends.append(End(result, len(found.steps), len(found.operands)))
    _grow(found, result)
    return found


def _cropped(chain: Chain) -> Node:
    """The slice that is left of the convolution's result, where padding can be less by that; else the convolution."""
    crop = crop_of(chain.convolution)
    if crop is None:
        return chain.convolution
    padding = crop.padding(chain.padding, chain.stride, chain.transposed)
    if not chain.transposed and min(padding) < 0:
        return chain.convolution
    chain.uncropped, chain.padding = chain.padding, padding
    return crop.value


def _grow(chain: Chain, value: Node) -> None:
    made = value_of(value)
    while (following := _next(value)) is not None:
        user, steps, operands = following
        if value_of(user).shape != made.shape or value_of(user).dtype not in FLOATS:
            return
        chain.steps += steps
        chain.operands += operands
        value = user
        if value_of(user).dtype == made.dtype:
            chain.ends.append(End(user, len(chain.steps), len(chain.operands)))


#: What a function does to a value: steps (none where it only changes the type), and the operand that one takes.
Match = tuple[tuple[Step, ...], Node | None] | None


def _next(value: Node) -> tuple[Node, tuple[Step, ...], list[Node]] | None:
    """The node that alone reads a value, or the last one of an activation that is written out; steps and operands."""
    value = _last_copy(value)
    if activation := written_out(value):
        return *activation, []
    if len(value.users) != 1:
        return None
    (user,) = value.users
    if (norm := normalization_of(value)) is not None:
        with user.graph.inserting_before(user):
            return norm, (Step("mul"), Step("add")), list(scale_and_shift(user.graph, user))
    steps, operand = _match(user, value) or (None, None)
    return None if steps is None else (user, steps, [] if operand is None else [operand])


def _last_copy(value: Node) -> Node:
    """The copy of a value that alone is read, as of contiguous(): a step of it is one of the value."""
    while len(value.users) == 1 and is_call(next(iter(value.users)), A.clone.default):
        (value,) = value.users
    return value


def is_pointwise(user: Node, value: Node) -> bool:
    """Whether a node is a step of one value, and of no other that it is."""
    return _match(user, value) is not None


def steps_of_one(user: Node, value: Node) -> tuple[Step, ...]:
    """The steps that a node is of a value alone; none where it is no such."""
    match = _match(user, value)
    return match[0] if match and match[1] is None else ()


def _match(user: Node, value: Node) -> Match:
    match = _MATCHES.get(user.target) if user.op == "call_function" else None
    return match(user, value) if match else None


# ---- steps of aten's functions --------------------------------------------------------------------


def _unary(kind: str, *parameters: tuple[int, str, float]) -> Callable[[Node, Node], Match]:
    """A function of one value; each number by its place, its name and its default."""

    def match(user: Node, value: Node) -> Match:
        numbers = [argument(user, *parameter) for parameter in parameters]
        if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
            return None
        return (Step(kind, tuple(map(float, numbers))),), None

    return match


def _binary(kind: str) -> Callable[[Node, Node], Match]:
    """A function of two values, or of a value and a number."""

    def match(user: Node, value: Node) -> Match:
        a, b = user.args[:2]
        factor = argument(user, 2, "alpha", 1)  # of the second
        if a is b:
            return _doubled(kind, factor)
        if (factor != 1 and a is value) or not _is_number(factor):
            return None
        if a is value:
            return _with_operand((Step(kind),), b, value)
        if kind == "sub":
            return _with_operand((Step("mul", (-float(factor),)), Step("add")), a, value)
        return _with_operand((*([Step("mul", (float(factor),))] if factor != 1 else []), Step(kind)), a, value)

    return match


def _doubled(kind: str, factor: Any) -> Match:
    """A function of a value and itself, as when the skip connection of a U-Net's innermost layer is its own result."""
    steps = {"mul": Step("square"), "add": Step("mul", (2.0,))}
    return ((steps[kind],), None) if kind in steps and factor == 1 else None


_NEGATED = Step("mul", (-1.0,))
#: The reciprocals of smaller numbers may be infinite in float32.
_LEAST_DIVISOR = torch.finfo(torch.float32).tiny
#: The numbers that change nothing.
_NOTHING = {"add": 0, "sub": 0, "mul": 1}


def _with_operand(steps: tuple[Step, ...], other: Any, value: Node) -> Match:
    """Steps, the last of which takes a tensor in the value's place, or a number."""
    if isinstance(other, torch.fx.Node):
        operand = value_of(other)
        taken = isinstance(operand, torch.Tensor) and operand.dtype in FLOATS
        return (steps, other) if taken and operand.device == value_of(value).device else None
    if not _is_number(other):
        return None
    *before, last = steps
    return (*before, *([] if _NOTHING.get(last.kind) == other else [Step(last.kind, (float(other),))])), None


def _reversed_difference(user: Node, value: Node) -> Match:
    """A number or tensor less the value."""
    a, b = user.args[:2]
    if a is not value or a is b or argument(user, 2, "alpha", 1) != 1:
        return None
    return _with_operand((_NEGATED, Step("add")), b, value)


def _prelu(user: Node, value: Node) -> Match:
    a, slope = user.args
    return _with_operand((Step("prelu"),), slope, value) if a is value and slope is not value else None


def _division(user: Node, value: Node) -> Match:
    """A division of the value by a number or a tensor."""
    a, b = user.args[:2]
    if a is not value or a is b or user.kwargs or (_is_number(b) and abs(b) < _LEAST_DIVISOR):
        return None
    return _with_operand((Step("mul"),), 1.0 / b, value) if _is_number(b) else _with_operand((Step("div"),), b, value)


def _power(user: Node, value: Node) -> Match:
    kind = {2: "square", 0.5: "sqrt"}.get(user.args[1])
    return ((Step(kind),), None) if kind else None


def _threshold(user: Node, value: Node) -> Match:
    """A clamp, where values below the threshold become the threshold itself."""
    _, least, other = user.args
    return ((Step("clamp_min", (float(least),)),), None) if least == other else None


def _clamp(user: Node, value: Node) -> Match:
    low, high = argument(user, 1, "min", None), argument(user, 2, "max", None)
    if low is None or high is None:
        kind, bound = ("clamp_max", high) if low is None else ("clamp_min", low)
        return ((Step(kind, (float(bound),)),), None) if _is_number(bound) else None
    return ((Step("clamp", (float(low), float(high))),), None) if _is_number(low) and _is_number(high) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _gelu(user: Node, value: Node) -> Match:
    return (Step("gelu_tanh" if user.kwargs.get("approximate") == "tanh" else "gelu"),), None


def _elu(user: Node, value: Node) -> Match:
    """selu's scale, too."""
    alpha, scale, inner = (argument(user, *each, 1) for each in ((1, "alpha"), (2, "scale"), (3, "input_scale")))
    return (scaled(1.0, Step("elu", (float(alpha),)), scale), None) if inner == 1 else None


def _celu(user: Node, value: Node) -> Match:
    alpha = float(argument(user, 1, "alpha", 1))
    return (scaled(1 / alpha, Step("elu", (1.0,)), alpha), None) if alpha > 0 else None


def _softplus(user: Node, value: Node) -> Match:
    beta, threshold = float(argument(user, 1, "beta", 1)), argument(user, 2, "threshold", 20)
    return (scaled(beta, Step("softplus"), 1 / beta), None) if beta and threshold == 20 else None


def _conversion(user: Node, value: Node) -> Match:
    """Only a conversion to another type."""
    same = {name for name, given in user.kwargs.items() if given is not None} <= {"dtype", "non_blocking"}
    return ((), None) if same else None


_MATCHES: dict[Any, Callable[[Node, Node], Match]] = {
    A.relu.default: _unary("relu"),
    A.hardtanh.default: _unary("hardtanh", (1, "min_val", -1.0), (2, "max_val", 1.0)),
    A.leaky_relu.default: _unary("leaky_relu", (1, "negative_slope", 0.01)),
    A.silu.default: _unary("silu"),
    A.sigmoid.default: _unary("sigmoid"),
    A.tanh.default: _unary("tanh"),
    A.hardswish.default: _unary("hardswish"),
    A.hardsigmoid.default: _unary("hardsigmoid"),
    A.mish.default: _unary("mish"),
    A.exp.default: _unary("exp"),
    A.sqrt.default: _unary("sqrt"),
    A.abs.default: _unary("abs"),
    A.pow.Tensor_Scalar: _power,
    A.threshold.default: _threshold,
    A.clamp_min.default: _unary("clamp_min", (1, "min", math.nan)),
    A.clamp_max.default: _unary("clamp_max", (1, "max", math.nan)),
    A.clamp.default: _clamp,
    A.gelu.default: _gelu,
    A.elu.default: _elu,
    A.celu.default: _celu,
    A.softplus.default: _softplus,
    A._prelu_kernel.default: _prelu,
    A.neg.default: lambda user, value: ((_NEGATED,), None),
    A.rsub.Scalar: _reversed_difference,
    A.rsub.Tensor: _reversed_difference,
    A.add.Tensor: _binary("add"),
    A.add.Scalar: _binary("add"),
    A.sub.Tensor: _binary("sub"),
    A.sub.Scalar: _binary("sub"),
    A.maximum.default: _binary("maximum"),
    A.minimum.default: _binary("minimum"),
    A.mul.Tensor: _binary("mul"),
    A.mul.Scalar: _binary("mul"),
    A.div.Tensor: _division,
    A.div.Scalar: _division,
    A._to_copy.default: _conversion,
}
#: aten's functions of one element, or of one of each of two tensors.
POINTWISE = frozenset(_MATCHES)
