"""BatchNorm after a convolution, folded: y = conv(x, w * scale) + shift, with scale and shift of constants alone; and
BatchNorm as a scale and a shift of each channel, where a prologue can be made of it, or the epilogue of a linear
layer."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch

from convgen.torch.network.rounding import rounded
from convgen.torch.network.trace import VIEWS, call, is_call, value_of

Node = Any
A: Any = torch.ops.aten
#: BatchNorm's operators: the places of epsilon, and of `training` where there is one.  The first five arguments are
#: input, weight, bias, running mean and running variance in each.
OPERATORS: dict[Any, tuple[int, int | None]] = {
    A.batch_norm.default: (7, 5),
    A.native_batch_norm.default: (7, 5),
    A.cudnn_batch_norm.default: (7, 5),
    A._native_batch_norm_legit.default: (7, 5),
    A._native_batch_norm_legit_no_training.default: (6, None),
    A._batch_norm_no_update.default: (6, None),
}

#: What is between a linear layer's product and a BatchNorm of its rows.
_SEEN_BY = (*VIEWS, A.permute.default, A.transpose.int)


def fold_batch_norms(graph: Any, constant: Collection[Node]) -> int:
    """Folds each BatchNorm of constants whose input is a convolution that nothing else reads; returns how many there
    were."""
    found = [node for node in graph.nodes if is_call(node, *OPERATORS) and _foldable(node, constant)]
    for node in found:
        _fold(graph, node)
    graph.eliminate_dead_code()
    return len(found)


def _foldable(node: Node, constant: Collection[Node]) -> bool:
    convolution = node.args[0]
    _, training = OPERATORS[node.target]
    return (
        is_call(convolution, A.convolution.default)
        and not (convolution.args[6] and convolution.args[8] > 1)  # transposed, of groups
        and list(convolution.users) == [node]
        and not (training is not None and node.args[training])
        and None not in node.args[3:5]
        and is_constant(node, constant)
        and all(s is None or s in constant for s in convolution.args[1:3])
        and all(user.target is operator.getitem and user.args[1] == 0 for user in _outputs(node))
    )


def is_constant(norm: Node, constant: Collection[Node]) -> bool:
    """Whether a BatchNorm's statistics and parameters are constants."""
    return all(s is None or s in constant for s in norm.args[1:5])


def _outputs(node: Node) -> list[Node]:
    """The readers of a BatchNorm's result: items of its tuple, if it returns one."""
    return [] if node.target is A.batch_norm.default else [u for u in node.users if u.users]


def _fold(graph: Any, node: Node) -> None:
    convolution = node.args[0]
    x, _, _, *geometry = convolution.args
    with graph.inserting_before(node):
        made = layer(graph, x, *parameters(graph, convolution, node), geometry, value_of(convolution).dtype)
    if node.target is A.batch_norm.default:
        node.replace_all_uses_with(made)
        return
    for output in _outputs(node):
        output.replace_all_uses_with(made)


def parameters(
    graph: Any, convolution: Node, norm: Node | None = None, before: Node | None = None
) -> tuple[Node, Node | None]:  # fmt: skip
    """Filters and biases (None: no biases) of a convolution and the BatchNorm after it, not rounded yet; of both where
    one of one tap has another convolution `before` it."""
    w, b = (_exact(graph, node) if node else None for node in convolution.args[1:3])
    if before is not None:
        w, b = _of_both(graph, parameters(graph, before), (w, b))
    if norm is None:
        return w, b
    rank, transposed = len(convolution.args[3]), convolution.args[6]
    scale, shift = _scale_and_shift(graph, norm, b)
    return call(graph, A.mul.Tensor, w, _per_channel(graph, scale, rank + (not transposed))), shift


def _of_both(
    graph: Any, down: tuple[Node, Node | None], up: tuple[Node, Node | None]
) -> tuple[Node, Node | None]:  # fmt: skip
    """The filters and bias of both convolutions as one, in float64, whose products are exact on any GPU."""
    shape, dtype = [value_of(up[0]).shape[0], *value_of(down[0]).shape[1:]], value_of(up[0]).dtype

    def product(of: Node) -> Node:
        """The second convolution's filters times values for each channel between the two."""
        factors = (call(graph, A._to_copy.default, node, dtype=torch.float64) for node in (up[0], of))
        a, b = (call(graph, A.reshape.default, factor, [value_of(factor).shape[0], -1]) for factor in factors)
        return call(graph, A._to_copy.default, call(graph, A.mm.default, a, b), dtype=dtype)

    w = call(graph, A.view.default, product(down[0]), shape)
    if down[1] is None:
        return w, up[1]
    shift = call(graph, A.view.default, product(down[1]), [-1])
    return w, shift if up[1] is None else call(graph, A.add.Tensor, shift, up[1])


def layer(
    graph: Any, x: Node, filters: Node, shift: Node | None, geometry: Sequence[Any], dtype: torch.dtype
) -> Node:  # fmt: skip
    """A convolution of this type, with filters and biases that are not rounded yet; geometry as of aten's."""
    rank, transposed = len(geometry[0]), geometry[3]  # whose filters are the second axis
    filters = rounded(graph, filters, dtype, int(transposed))
    made = call(graph, A.convolution.default, x, filters, None, *geometry)
    if shift is not None:
        made = call(graph, A.add.Tensor, made, _per_channel(graph, shift, rank))
    return call(graph, A._to_copy.default, made, dtype=dtype)


def _scale_and_shift(graph: Any, norm: Node, bias: Node | None = None) -> tuple[Node, Node]:
    """The scale and the shift of each channel by a BatchNorm after a bias: (b - mean) * scale + its own bias."""
    _, weight, own, mean, variance = norm.args[:5]
    scale = _scale(graph, weight, variance, norm.args[OPERATORS[norm.target][0]])
    shift = call(graph, A.neg.default, _exact(graph, mean))
    if bias is not None:
        shift = call(graph, A.add.Tensor, bias, shift)
    shift = call(graph, A.mul.Tensor, shift, scale)
    return scale, shift if own is None else call(graph, A.add.Tensor, shift, _exact(graph, own))


def _scale(graph: Any, weight: Node | None, variance: Node, epsilon: float) -> Node:
    scale = call(graph, A.rsqrt.default, call(graph, A.add.Tensor, _exact(graph, variance), epsilon))
    return scale if weight is None else call(graph, A.mul.Tensor, scale, _exact(graph, weight))


def normalized(value: Node) -> Node | None:
    """The BatchNorm for inference whose result a value is, and alone is; None where it is no such."""
    node = value.args[0] if is_call(value, operator.getitem) and value.args[1] == 0 else value
    if not is_call(node, *OPERATORS) or None in node.args[3:5]:
        return None
    _, training = OPERATORS[node.target]
    alone = node is value or _outputs(node) == [value]
    return node if alone and not (training is not None and node.args[training]) else None


def normalization_of(value: Node) -> Node | None:
    """The result of the inference BatchNorm that is a value's only reader; None if there is none."""
    (user,) = value.users
    if not is_call(user, *OPERATORS) or user.args[0] is not value:
        return None
    outputs = [user] if user.target is A.batch_norm.default else _outputs(user)
    return outputs[0] if len(outputs) == 1 and normalized(outputs[0]) is user else None


def write_out_batch_norms(graph: Any, constant: Collection[Node]) -> None:
    """Turns those of constants after linear layers into products and sums, past which views of the result can move."""
    for node in list(graph.nodes):
        if not is_call(node, *OPERATORS) or not _is_of_product(value := node.args[0]) or len(value.users) != 1:
            continue
        result = normalization_of(value)
        if result is None or not is_constant(node, constant):
            continue
        with graph.inserting_before(node):
            scale, shift = scale_and_shift(graph, node)
            made = call(graph, A.add.Tensor, call(graph, A.mul.Tensor, value, scale), shift)
            made = call(graph, A._to_copy.default, made, dtype=value_of(result).dtype)
        result.replace_all_uses_with(made)
    graph.eliminate_dead_code()


def _is_of_product(value: Node) -> bool:
    while is_call(value, *_SEEN_BY):
        value = value.args[0]
    return is_call(value, A.addmm.default, A.mm.default)


def of_own_statistics(node: Node) -> float | None:
    """Epsilon of a BatchNorm that takes mean and variance of its input, and keeps them for nothing; None for others."""
    if is_call(node, A._native_batch_norm_legit.no_stats):
        return float(node.args[5])
    if not is_call(node, *OPERATORS) or any(s is not None for s in node.args[3:5]):
        return None
    return float(node.args[OPERATORS[node.target][0]])


def scale_and_shift(graph: Any, node: Node) -> tuple[Node, Node]:
    """The scale and the shift of each channel by a BatchNorm, in float32, inserted at the graph's insertion point."""
    trailing = value_of(node.args[0]).dim() - 2
    scale, shift = (_per_channel(graph, made, trailing) for made in _scale_and_shift(graph, node))
    return scale, shift


def _exact(graph: Any, node: Node) -> Node:
    """Converts to float32, unless it is float64."""
    known = (torch.float32, torch.float64)
    return node if value_of(node).dtype in known else call(graph, A._to_copy.default, node, dtype=torch.float32)


def _per_channel(graph: Any, node: Node, trailing: int) -> Node:
    """A tensor of one value per channel that broadcasts over the axes after it."""
    return call(graph, A.view.default, node, [-1, *[1] * trailing])
