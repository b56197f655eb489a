"""Sums of linear layers of one tensor, of which some may be products of two, as one linear layer: LoRA's adapters.

    linear(x, w, b) + 0.5 * linear(linear(x, down), up)    =    linear(x, w + 0.5 * up @ down, b)

The matrices are multiplied and summed in float64, and rounded once.  Not to bfloat16: with its 8 bits, most of what an
adapter adds to a weight is less than half a step, and would be gone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch

from convgen.torch.network.linears import product_of
from convgen.torch.network.rounding import has_bits, rounded
from convgen.torch.network.trace import VIEWS, call, erase_unread, is_call, value_of, weighted_sum

Node = Any
A: Any = torch.ops.aten


@dataclass(frozen=True)
class _Term:
    """A linear layer, or several in a row: what they read, the last one's product with its bias, and the matrices, the
    last layer's first; how often the sum has it."""

    x: Node
    product: Node
    bias: Node | None
    matrices: tuple[Node, ...]
    factor: float


def merge_products(graph: Any, constant: Collection[Node]) -> int:
    """Makes one linear layer of each such sum; how many terms became part of another one."""
    merged = 0
    for node in reversed(list(graph.nodes)):
        terms = _terms(node, 1.0, constant) if is_call(node, A.add.Tensor) and node.users else None
        if terms and (whole := _whole(terms)):
            node.replace_all_uses_with(_merged(graph, node, terms, whole))
            erase_unread(graph, node)
            merged += len(terms) - 1
    return merged


def _whole(terms: Sequence[_Term]) -> _Term | None:
    """The term that takes the others: a single layer of what all read, with the only bias."""
    single = sorted((term for term in terms if len(term.matrices) == 1), key=lambda term: term.bias is None)
    alike = len(terms) > 1 and len({term.x for term in terms}) == 1
    biases = [term for term in terms if term.bias]
    return single[0] if alike and single and biases in ([], single[:1]) and single[0].factor == 1 else None


def _terms(value: Any, factor: float, constant: Collection[Node]) -> list[_Term] | None:
    """The terms of a sum; None if one of them is not a linear layer, or has other readers."""
    if is_call(value, A.add.Tensor) and len(value.args) == 2 and not value.kwargs:
        found = list[_Term]()
        for addend in value.args:
            alike = isinstance(addend, torch.fx.Node) and value_of(addend).shape == value_of(value).shape
            alone = alike and list(addend.users) == [value] and value.args[0] is not value.args[1]
            terms = _terms(addend, factor, constant) if alone else None
            if terms is None:
                return None
            found += terms
        return found
    if is_call(value, A.mul.Tensor) and isinstance(value.args[1], int | float) and len(value.args[0].users) == 1:
        return _terms(value.args[0], factor * value.args[1], constant)
    term = _term(value, constant)
    return None if term is None else [replace(term, factor=factor)]


def _term(value: Node, constant: Collection[Node]) -> _Term | None:
    product = _seen(value, alone=True)
    if (found := product_of(product)) is None or not has_bits(value_of(product).dtype):
        return None
    rows, matrix, bias = found
    if matrix not in constant or not (bias is None or bias in constant):
        return None
    before = _term(rows, constant) if is_call(_seen(rows, alone=True), A.mm.default) else None
    if before is None:
        return _Term(_seen(rows, alone=False), product, bias, (matrix,), 1.0)
    return replace(before, product=product, bias=bias, matrices=(matrix, *before.matrices))


def _seen(value: Node, alone: bool) -> Node:
    """The value of which another is a view with the same channels; `alone`: it must have no other reader, or a wider
    type."""
    while _is_same(value, alone) and not (alone and len(value.args[0].users) > 1):
        value = value.args[0]
    return value


def _is_same(value: Node, alone: bool) -> bool:
    if is_call(value, *VIEWS):
        return bool(value_of(value).shape[-1:] == value_of(value.args[0]).shape[-1:])
    if alone or not is_call(value, A._to_copy.default):
        return False
    made, read = value_of(value).dtype, value_of(value.args[0]).dtype
    return made.is_floating_point and read.is_floating_point and torch.promote_types(made, read) == made


def _merged(graph: Any, value: Node, terms: Sequence[_Term], whole: _Term) -> Node:
    rows = whole.product.args[-2]
    with graph.inserting_before(value):
        matrices = list[tuple[float, Node]]()
        for term in terms:
            exact = [call(graph, A._to_copy.default, matrix, dtype=torch.float64) for matrix in term.matrices]
            matrices.append((term.factor, reduce(lambda a, b: call(graph, A.mm.default, a, b), exact)))
        matrix = weighted_sum(graph, matrices)
        columns = call(graph, A.t.default, rounded(graph, matrix, value_of(whole.product).dtype, 0))
        if whole.bias is None:
            product = call(graph, A.mm.default, rows, columns)
        else:
            product = call(graph, A.addmm.default, whole.bias, rows, columns)
        made = call(graph, A.view.default, product, list(value_of(value).shape))
        wider = value_of(value).dtype != value_of(made).dtype  # of an adapter in float32
        return call(graph, A._to_copy.default, made, dtype=value_of(value).dtype) if wider else made
