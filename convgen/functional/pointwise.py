"""What follows a convolution element by element: a chain of steps, in the words of the language.

A chain is text, so that it can stand in a graph and be part of a key: steps divided by blanks, numbers behind a
colon.  Functions of two values, such as `add` and `prelu`, take a number, or the next operand where they have none:

    add relu                    relu(acc + a0)
    mul:0.5 clamp:0.0,6.0 add   clamp(acc * 0.5, 0, 6) + a0

Sums of each channel over all that a chain makes are text, too, a word each:

    value square                of v, of v * v
    value product               of v, of v * (a - b): of the next two operands
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
#: Of two values, the second a number or an operand.  relu_backward is the gradient behind a relu with this result.
_BINARY = {
    "add": "{t} + {o}",
    "sub": "{t} - {o}",
    "mul": "{t} * {o}",
    "div": "{t} / {o}",
    "maximum": "max({t}, {o})",
    "minimum": "min({t}, {o})",
    "prelu": "select({t} > 0.0, {t}, {t} * {o})",
    "relu_backward": "select({o} <= 0.0, 0.0, {t})",
}


@dataclass(frozen=True)
class Sum:
    """What is summed over all but the channels, or but those of each image: its text in the language, of the value and
    so many operands."""

    text: str
    operands: int = 0
    of_images: bool = False

    def expression(self, value: str, operands: Sequence[str]) -> str:
        return self.text.format(*operands, t=value)


SUMS = {
    "value": Sum("{t}"),
    "square": Sum("{t} * {t}"),
    "product": Sum("{t} * ({0} - {1})", 2),
    "image_value": Sum("{t}", of_images=True),
    "image_square": Sum("{t} * {t}", of_images=True),
}


@dataclass(frozen=True)
class Step:
    """One function of the value so far, or of it and a number or the next operand."""

    kind: str
    numbers: tuple[float, ...] = ()

    @property
    def takes_operand(self) -> bool:
        return self.kind in _BINARY and not self.numbers

    def __str__(self) -> str:
        return self.kind + (":" + ",".join(map(repr, self.numbers)) if self.numbers else "")

    def expression(self, value: str, operand: str) -> str:
        """The step in the language, of a value and the operand that it takes."""
        numbers = [repr(n) for n in self.numbers]
        if self.kind in _BINARY:
            return _BINARY[self.kind].format(t=value, o=numbers[0] if numbers else operand)
        return ACTIVATIONS[self.kind].text.format(*numbers, t=value)


def _float(number: object) -> float:
    """NaN for what is not a number, or does not fit a float."""
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
def steps_of(text: str) -> tuple[Step, ...]:
    """A chain from its text.  Raises WrongArguments."""
    found = []
    for word in text.split():
        kind, _, numbers = word.partition(":")
        step = Step(kind, tuple(map(float, numbers.split(","))) if numbers else ())
        if kind in _BINARY:
            right = len(step.numbers) <= 1
        else:
            right = kind in ACTIVATIONS and len(step.numbers) == len(ACTIVATIONS[kind].defaults)
        if not right:
            raise WrongArguments(f"the epilogue {text!r} has a step {word!r} that convgen does not know")
        found.append(step)
    return tuple(found)
