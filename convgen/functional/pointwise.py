"""The pointwise steps after a convolution: a chain, in the words of the language.

A chain is text, so that it can stand in a graph and be part of a key: steps divided by blanks, numbers behind a
colon.  Functions of two values, such as `add` and `prelu`, take a number, or the next operand where they have none:

    add relu                    relu(acc + a0)
    mul:0.5 clamp:0.0,6.0 add   clamp(acc * 0.5, 0, 6) + a0

Gradients of activations take an operand, z, which is what the activation read.  With `_of_norm` they compute z from
what BatchNorm read, and the mean, 1 / deviation, weight and bias of each channel:

    hardtanh_backward:0.0,6.0   select(a0 <= 0 || a0 >= 6, 0, acc)
    relu_backward_of_norm       select(z <= 0, 0, acc), z = (a0 - a1) * a2 * a3 + a4

Sums of each channel over all that a chain makes are text, too, a word each:

    value square                of v, of v * v
    value product               of v, of v * (a - b): of the next two operands
    value product_of_norm       of v, of v * (a - b): of what BatchNorm read, and the next operand
    image_value image_square    of v, of v * v, for each image
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real

from convgen import habits, plurals
from convgen.runtime.errors import WrongArguments


@dataclass(frozen=True)
class Activation:
    """A function of one value: its text in the language, and its parameters' defaults in order."""

    text: str
    defaults: tuple[float, ...] = ()


#: By the names of torch.nn.functional.
ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation("relu({t})"),
    "relu6": Activation("clamp({t}, 0.0, 6.0)"),
    "hardtanh": Activation("clamp({t}, {0}, {1})", (-1.0, 1.0)),
    "clamp": Activation("clamp({t}, {0}, {1})", (0.0, 1.0)),
    "clamp_min": Activation("max({t}, {0})", (0.0,)),
    "clamp_max": Activation("min({t}, {0})", (0.0,)),
    "leaky_relu": Activation("leaky_relu({t}, {0})", (0.01,)),
    "elu": Activation("select({t} > 0.0, {t}, {0} * (exp({t}) - 1.0))", (1.0,)),
    "gelu": Activation("gelu({t})"),
    "gelu_tanh": Activation("gelu_tanh({t})"),
    "silu": Activation("silu({t})"),
    "sigmoid": Activation("sigmoid({t})"),
    "tanh": Activation("tanh({t})"),
    "hardswish": Activation("{t} * clamp({t} + 3.0, 0.0, 6.0) / 6.0"),
    "hardsigmoid": Activation("clamp({t} + 3.0, 0.0, 6.0) / 6.0"),
    "softplus": Activation("select({t} > 20.0, {t}, log(1.0 + exp(min({t}, 20.0))))"),
    "mish": Activation("{t} * tanh(select({t} > 20.0, {t}, log(1.0 + exp(min({t}, 20.0)))))"),
    "softsign": Activation("{t} / (1.0 + abs({t}))"),
    "exp": Activation("exp({t})"),
    "sqrt": Activation("sqrt({t})"),
    "square": Activation("{t} * {t}"),
    "abs": Activation("abs({t})"),
}
#: Of two values, the second a number or an operand.
_BINARY = {
    "add": "{t} + {o}",
    "sub": "{t} - {o}",
    "mul": "{t} * {o}",
    "div": "{t} / {o}",
    "maximum": "max({t}, {o})",
    "minimum": "min({t}, {o})",
    "prelu": "select({t} > 0.0, {t}, {t} * {o})",
}


@dataclass(frozen=True)
class Gradient:
    """The gradient of what an activation reads, {o}, from that of its result: text in the language, with so many
    numbers, and of {g} where that is text, too."""

    text: str
    numbers: int = 0
    gate: str = ""


#: Conditions are such that a NaN passes the gradient where torch's does.  relu's argument may be its result.
_GRADIENTS = {
    "relu_backward": Gradient("select({o} <= 0.0, 0.0, {t})"),
    "hardtanh_backward": Gradient("select({o} <= {0} || {o} >= {1}, 0.0, {t})", 2),
    "silu_backward": Gradient("{t} * {g} * (1.0 + {o} * (1.0 - {g}))", gate="sigmoid({o})"),
    "hardswish_backward": Gradient(
        f"select({{o}} <= -3.0, 0.0, select({{o}} < 3.0, {{t}} * ({{o}} * {1 / 3} + 0.5), {{t}}))"
    ),
}
_OF_NORM = "_of_norm"
#: BatchNorm's result, of the five operands.
_NORM = "({0} - {1}) * {2} * {3} + {4}"


@dataclass(frozen=True)
class Sum:
    """A sum over all dims but the channels, or also but the images: its text in the language, from the value and so
    many operands.  `of_norm`: before them comes what BatchNorm read in the epilogue."""

    text: str
    operands: int = 0
    of_images: bool = False
    of_norm: bool = False

    def expression(self, value: str, operands: Sequence[str]) -> str:
        return self.text.format(*operands, t=value)


SUMS = {
    "value": Sum("{t}"),
    "square": Sum("{t} * {t}"),
    "product": Sum("{t} * ({0} - {1})", 2),
    "product_of_norm": Sum("{t} * ({0} - {1})", 1, of_norm=True),
    "image_value": Sum("{t}", of_images=True),
    "image_square": Sum("{t} * {t}", of_images=True),
}


@dataclass(frozen=True)
class Step:
    """One function of the value so far, or of it and a number or the next operands."""

    kind: str
    numbers: tuple[float, ...] = ()

    @property
    def operands(self) -> int:
        """How many it takes."""
        if self.of_norm:
            return 5
        return 1 if self.kind in _GRADIENTS else int(self.kind in _BINARY and not self.numbers)

    @property
    def of_norm(self) -> bool:
        """Whether it computes BatchNorm's result."""
        return self.kind.endswith(_OF_NORM)

    @property
    def gradient(self) -> str:
        """The kind of gradient that it is; else its own kind."""
        return self.kind.removesuffix(_OF_NORM)

    def __str__(self) -> str:
        return self.kind + (":" + ",".join(map(repr, self.numbers)) if self.numbers else "")

    def assignments(self, name: str, value: str, operands: Sequence[str], suffix: str) -> list[str]:
        """The step in the language: assigns to a name, from a value and the operands that it takes; intermediate names
        have a suffix."""
        numbers, known = [repr(n) for n in self.numbers], _GRADIENTS.get(self.gradient)
        if known is None:
            if self.kind in _BINARY:
                return [f"{name} = {_BINARY[self.kind].format(t=value, o=(numbers or operands)[0])}"]
            return [f"{name} = {ACTIVATIONS[self.kind].text.format(*numbers, t=value)}"]
        lines, (operand, *_), gate = [], operands, f"g{suffix}"
        if self.of_norm:
            operand = f"z{suffix}"
            lines.append(f"{operand} = {_NORM.format(*operands)}")
        if known.gate:
            lines.append(f"{gate} = {known.gate.format(o=operand)}")
        return [*lines, f"{name} = {known.text.format(*numbers, t=value, o=operand, g=gate)}"]


def read_by_norm(steps: Sequence[Step]) -> int | None:
    """The index of the operand of an epilogue that BatchNorm read; None if no step computes BatchNorm's result."""
    count = 0
    for step in steps:
        if step.of_norm:
            return count
        count += step.operands
    return None


def _float(number: object) -> float:
    """The number as a float; NaN if it is not a number, or does not fit."""
    try:
        return float(number) if isinstance(number, Real) and not isinstance(number, bool) else math.nan
    except OverflowError:
        return math.nan


def activation(given: str | Sequence[object] | None, beyond: float = math.inf) -> tuple[Step, ...]:
    """The steps of `activation=`: a name, or a name and numbers such as ("leaky_relu", 0.2), below `beyond`.  Raises
    WrongArguments."""
    if given is None:
        return ()
    if not isinstance(given, Sequence):
        raise WrongArguments(f"activation is of type {type(given).__name__}: expected a name, or a name and numbers")
    name, *numbers = [given] if isinstance(given, str) else given or [None]
    if not isinstance(name, str):
        raise WrongArguments(f"activation has no name in front: {given!r:.80}: expected one such as 'relu', or None")
    known = ACTIVATIONS.get(name)
    if known is None:
        found = "None" if habits.plain(name) == "none" else habits.meant(name, ACTIVATIONS, habits.ACTIVATIONS)
        hint = f"did you mean `{found}`?" if found else f"known are {', '.join(ACTIVATIONS)}"
        raise WrongArguments(f"there is no activation {name!r}\nhint: {hint}")
    finite = [value for value in map(_float, numbers) if math.isfinite(value)]
    if len(finite) < len(numbers) or len(numbers) > len(known.defaults):
        count = len(known.defaults)
        takes = f"at most {plurals.counted(count, 'finite number')}" if count else "no numbers"
        raise WrongArguments(f"activation {name!r} takes {takes}, not {', '.join(map(repr, numbers))}")
    if too_large := [value for value in finite if abs(value) >= beyond]:
        raise WrongArguments(f"activation {name!r} computes with float32, which does not hold {too_large[0]!r}")
    return (Step(str(name), (*finite, *known.defaults[len(numbers) :])),)


def text_of(steps: Iterable[Step]) -> str:
    """A chain as text."""
    return " ".join(map(str, steps))


@lru_cache(maxsize=1024)
def operands_of(steps: Iterable[Step]) -> int:
    """How many operands a chain takes."""
    return sum(step.operands for step in steps)


def steps_of(text: str) -> tuple[Step, ...]:
    """A chain from its text.  Raises WrongArguments."""
    found = []
    for word in text.split():
        kind, _, numbers = word.partition(":")
        step = Step(kind, tuple(map(float, numbers.split(","))) if numbers else ())
        if step.gradient in _GRADIENTS:
            right = len(step.numbers) == _GRADIENTS[step.gradient].numbers
        elif kind in _BINARY:
            right = len(step.numbers) <= 1
        else:
            right = kind in ACTIVATIONS and len(step.numbers) == len(ACTIVATIONS[kind].defaults)
        if not right:
            raise WrongArguments(f"the epilogue {text!r} has a step {word!r} that convgen does not know")
        found.append(step)
    return tuple(found)
