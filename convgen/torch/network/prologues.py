"""Functions before a 1x1 convolution, as its prologue: BatchNorm and an activation, or a gate.

    convolution(relu(batch_norm(x)))    the prologue mul add relu, with a scale and a shift for each channel
    convolution(x * gate[n, c, 1, 1])   the prologue mul

So DenseNet's and ResNet-v2's BatchNorms, and the gates of squeeze-and-excitation, take no pass over the image.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from convgen.functional.pointwise import Step
from convgen.torch.network.activations import written_out
from convgen.torch.network.batch_norm import normalized, scale_and_shift
from convgen.torch.network.chains import Chain, steps_of_one
from convgen.torch.network.trace import is_call, value_of

Node = Any
A: Any = torch.ops.aten
#: Nodes before a convolution among which its activation may begin, at most.
_LOOKED_AT = 8
#: Input channels are a multiple of so many.
_CHANNELS = 8


def opened(chain: Chain) -> Chain | None:
    """The chain with functions that only its convolution reads as its prologue; None if tma_im2col serves none: it
    takes prologues of one tap without padding, in one group."""
    taps = value_of(chain.w).shape[2:]
    plain = not chain.transposed and chain.groups == 1 and not any(chain.padding) and set(taps) == {1}
    linear = chain.convolution.meta.get("linear")
    if linear or not plain or value_of(chain.x).shape[1] % _CHANNELS or len(chain.x.users) != 1:
        return None
    activation, value = _activation(chain.x)
    if (norm := normalized(value)) is not None:
        with norm.graph.inserting_before(chain.convolution):
            operands = scale_and_shift(norm.graph, norm)
        return replace(
            chain, x=norm.args[0], opening=(Step("mul"), Step("add"), *activation), opening_operands=operands
        )
    if (found := _gated(value)) is not None:
        source, gate = found
        return replace(chain, x=source, opening=(Step("mul"), *activation), opening_operands=(gate,))
    return None


def _activation(x: Node) -> tuple[tuple[Step, ...], Node]:
    """The steps of the activation, perhaps written out, whose result is x, and the value of which it is the only
    reader; no steps and x itself if there is none."""
    seen = [x]
    for node in seen:
        seen += [each for each in node.all_input_nodes if each not in seen and len(seen) < _LOOKED_AT]
        found = written_out(node) if len(node.users) > 1 else None  # such as x * sigmoid(x), which reads x twice
        if found and found[0] is x:
            return found[1], node
    source: Any = x.args[0] if x.args else None
    steps = steps_of_one(x, source)
    return (steps, source) if steps and len(source.users) == 1 else ((), x)


def _gated(value: Node) -> tuple[Node, Node] | None:
    """An image and its gate, whose product a value is."""
    if not is_call(value, A.mul.Tensor):
        return None
    shape, dtype = value_of(value).shape, value_of(value).dtype
    for source, gate in (value.args, value.args[::-1]):
        if not (isinstance(source, torch.fx.Node) and isinstance(gate, torch.fx.Node)) or source is gate:
            continue
        whole, part = value_of(source), value_of(gate)
        by_channel = part.dim() == len(shape) and part.shape[0] in (1, shape[0]) and set(part.shape[2:]) == {1}
        if (whole.shape, whole.dtype, part.dtype) == (shape, dtype, dtype) and by_channel and part.shape[1] == shape[1]:
            return source, gate
    return None
