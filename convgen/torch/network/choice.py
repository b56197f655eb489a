"""Which part of each chain convgen computes: on a GPU whatever is fastest there, measured; on a CPU all of it.

A chain may end after any of its steps.  What is compared is the whole, kernel and one elementwise pass for the steps
that are left, beside aten's convolution with such a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from convgen.diagnostics import ConvgenError
from convgen.functional.prebuild import prebuild
from convgen.torch.launch import recipe, served
from convgen.torch.network.chains import Chain, End
from convgen.torch.network.report import Row
from convgen.torch.network.timing import Timer
from convgen.torch.network.trace import value_of


@dataclass(frozen=True)
class Choice:
    """Where convgen's part of a chain ends (None: aten computes it), and the report's row."""

    end: End | None
    row: Row


class Chooser(Protocol):
    def prepare(self, chains: Sequence[Chain]) -> None:
        """Hears all chains before it is asked for any."""
        ...

    def choose(self, chain: Chain, layer: str) -> Choice: ...


class OnCpu:
    """Fuses whatever can be fused: the operators are aten's functions there."""

    def prepare(self, chains: Sequence[Chain]) -> None:
        pass

    def choose(self, chain: Chain, layer: str) -> Choice:
        why_not = "not on a GPU"
        end = chain.ends[-1]
        if not end.steps:
            return Choice(None, Row(layer, "aten", why_not=why_not))
        return Choice(end, Row(layer, "aten", fused=chain.epilogue(end), why_not=why_not))


class Measured:
    """Times every candidate on the GPU, once a kind of layer, and remembers the times on disk.

    Without `measure` convgen is taken wherever it serves.
    """

    def __init__(self, measure: bool = True) -> None:
        self._timer = Timer() if measure else None

    def prepare(self, chains: Sequence[Chain]) -> None:
        """Builds all candidates' kernels, many at a time."""
        texts = []
        for chain in chains:
            for end in _candidates(chain):
                try:
                    texts.append(recipe(*_values(chain, end)).convolution.text)
                except ConvgenError:  # the one who asks for the kernel is told
                    continue
        prebuild(texts)

    def choose(self, chain: Chain, layer: str) -> Choice:
        found, why_not = [], ""
        for end in _candidates(chain):
            arguments = _values(chain, end)
            serving = served(*arguments)
            if serving.launch is None:
                why_not = serving.why_not
                continue
            us = self._timer.fused(arguments, _passes(chain, end)) if self._timer else None
            found.append((us or 0.0, end, Row(layer, serving.kernel, us, None, chain.epilogue(end), "", serving.spec)))
        if not found:
            return Choice(None, Row(layer, "aten", why_not=why_not))
        us, end, row = min(found, key=lambda candidate: candidate[0])
        if self._timer is None:
            return Choice(end, row)
        linear = bool(chain.convolution.meta.get("linear"))
        # cuBLAS adds a bias on the way; behind cuDNN's convolution it is a pass, or part of one
        passes = _passes(chain, chain.ends[0], bare=not linear)
        aten_us = self._timer.aten(_values(chain, chain.ends[0]), passes, linear)
        row = replace(row, aten_us=aten_us)
        if us < aten_us:
            return Choice(end, row)
        return Choice(None, replace(row, kernel="aten", fused="", why_not=f"{row.kernel} is slower"))


def _candidates(chain: Chain) -> list[End]:
    """The whole chain, and the part before the first operand that is as large as the result."""
    whole = chain.ends[-1]
    size = value_of(chain.convolution).numel()
    small = [len(chain.operands)] + [i for i, o in enumerate(chain.operands) if value_of(o).numel() == size]
    before = [end for end in chain.ends if end.operands <= min(small)]
    return [whole] if before[-1] is whole else [whole, before[-1]]


def _values(chain: Chain, end: End) -> tuple[Any, ...]:
    """Arguments of convgen::fused_conv with fake tensors."""
    x, w, operands, *others = chain.arguments(end)
    return value_of(x), value_of(w), [value_of(o) for o in operands], *others


def _passes(chain: Chain, end: End, bare: bool = False) -> int | None:
    """Tensors as large as the result that an elementwise pass over the rest of the chain reads; None where nothing is
    left to do.  `bare`: nothing is done before it, not even the bias."""
    steps, operands = (0, 0) if bare else (end.steps, end.operands)
    if steps == len(chain.steps):
        return None
    size = value_of(chain.convolution).numel()
    return 1 + sum(value_of(o).numel() == size for o in chain.operands[operands:])
