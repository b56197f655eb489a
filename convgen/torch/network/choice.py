"""Chooses the part of each chain that convgen computes: on a GPU the part that measures fastest; on a CPU all of it.

A chain may end after any of its steps, and an upsampling before it may be folded in, or what it can have as a prologue.
What is compared is the whole: the upsampling or the pass before if that is left, the kernel, and one elementwise pass
for the steps that are left, beside aten's convolution with the upsampling and such passes.  Where a normalization
reads the result, its pass takes the steps that are left on its way, and what counts is what it reads and writes more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from convgen.diagnostics import ConvgenError
from convgen.functional.prebuild import prebuilding
from convgen.torch.asked import Summed
from convgen.torch.launch import recipe, served
from convgen.torch.memory import where_memory_suffices
from convgen.torch.network.chains import Chain, End
from convgen.torch.network.halves import Halves
from convgen.torch.network.image_sums import sums_behind
from convgen.torch.network.prologues import opened
from convgen.torch.network.report import NO_MEMORY, NOT_ON_GPU, Row
from convgen.torch.network.stops import is_normalized, why_stopped
from convgen.torch.network.timing import Timer
from convgen.torch.network.trace import value_of
from convgen.torch.network.upsampling import folded, upsampled


@dataclass(frozen=True)
class Choice:
    """The chain that was taken, where convgen's part of it ends (None: aten computes it), and the report's row."""

    chain: Chain
    end: End | None
    row: Row


class Chooser(Protocol):
    def prepare(self, chains: Sequence[Chain], sums: bool) -> None:
        """Is told all chains before it is asked about any."""
        ...

    def splits(self, halves: Halves) -> bool:
        """Whether two convolutions are better than the one that was split."""
        ...

    def choose(self, chain: Chain, layer: str) -> Choice: ...

    def sums(self, asked: Summed, without: Row) -> Row | None:
        """The row of a convolution that gives sums, too, beside its row without; None where it should not."""
        ...

    def release(self) -> None:
        """Gives back what choosing took of a GPU's memory."""
        ...


class OnCpu:
    """Fuses whatever can be fused: the operators are aten's functions there."""

    def prepare(self, chains: Sequence[Chain], sums: bool) -> None:
        pass

    def splits(self, halves: Halves) -> bool:
        return True

    def choose(self, chain: Chain, layer: str) -> Choice:
        chain = _ways(chain)[0]
        end = chain.ends[-1]
        fused = chain.fused(end)
        why_not = "; ".join(filter(None, (NOT_ON_GPU, why_stopped(end.node))))
        return Choice(chain, end if fused else None, Row(layer, "aten", fused=fused, why_not=why_not))

    def sums(self, asked: Summed, without: Row) -> Row | None:
        return replace(without, fused=asked.fused, why_not=NOT_ON_GPU)

    def release(self) -> None:
        pass


class Measured:
    """Times every candidate on the GPU, once a kind of layer, and remembers the times on disk.

    Without `measure` convgen is taken wherever it serves; with `tune`, by the best of some kernels.
    """

    def __init__(self, measure: bool = True, tune: str | None = None) -> None:
        self._timer, self._tune = Timer() if measure else None, tune

    def prepare(self, chains: Sequence[Chain], sums: bool) -> None:
        """Builds all candidates' kernels, many at a time: those with sums, too, where they may be asked for.  Meanwhile
        aten's are timed, among which cuDNN takes a while to choose."""
        texts: list[str] = []
        compared: list[Callable[[], float]] = []
        for chain in chains:
            ways = _ways(chain)
            found = list(_texts(ways))
            texts += found
            if self._timer and found:
                compared.append(partial(_aten_us, self._timer, chain, _opens(ways)))
            if sums and self._timer and (asked := sums_behind(chain, chain.ends[-1])):
                with suppress(ConvgenError):  # the caller that needs the kernel gets the error
                    texts.append(asked.recipe().convolution.text)
        with prebuilding(texts):
            for time in compared:
                where_memory_suffices(time)

    def splits(self, halves: Halves) -> bool:
        """Whether a split measures faster, or less is read and written: x once more, instead of what a pass reads."""
        return bool(where_memory_suffices(lambda: self._splits(halves)))

    def choose(self, chain: Chain, layer: str) -> Choice:
        found = where_memory_suffices(lambda: self._choose(chain, layer))
        return found or Choice(chain, None, Row(layer, "aten", why_not=NO_MEMORY))

    def sums(self, asked: Summed, without: Row) -> Row | None:
        """Takes sums only if measured faster: otherwise, a separate pass may be."""
        return where_memory_suffices(lambda: self._sums(asked, without))

    def release(self) -> None:
        if self._timer:
            self._timer.release()

    def _splits(self, halves: Halves) -> bool:
        whole, left = halves.whole, halves.left
        chosen = [self.choose(half, "") for half in (halves.first, halves.second)]
        if not all(half.end for half in chosen):
            return False
        if self._timer is None:
            return whole.groups > 1 or value_of(whole.x).numel() <= value_of(whole.convolution).numel()
        gated = left is None
        times = [self._timer.aten(_plain(whole), left, gated=gated)]
        fused = _values(whole, whole.ends[-1])
        if served(*fused, tune=self._tune).launch is not None:
            times.append(self._timer.fused(fused, left, gated=gated))
        return sum(half.row.us or 0.0 for half in chosen) < min(times)

    def _choose(self, chain: Chain, layer: str) -> Choice:
        found, why_not = [], ""
        ways = _ways(chain)
        opens = _opens(ways)
        for way, end in _candidates(ways):
            arguments = _values(way, end)
            serving = served(*arguments, tune=self._tune)
            if serving.launch is None:
                why_not = serving.why_not
                continue
            before = _source(way), opens and not way.opening
            us = _fused_us(self._timer, way, end, arguments, before) if self._timer else None
            stopped = why_stopped(end.node) if end is way.ends[-1] else ""
            row = Row(layer, serving.kernel, us, None, way.fused(end), stopped, serving.spec)
            found.append((us or 0.0, Choice(way, end, row)))
        if not found:
            return Choice(chain, None, Row(layer, "aten", why_not=why_not))
        us, choice = min(found, key=lambda candidate: candidate[0])
        if self._timer is None:
            return choice
        aten_us = _aten_us(self._timer, chain, opens)
        row = replace(choice.row, aten_us=aten_us)
        if us < aten_us:
            return replace(choice, row=row)
        return Choice(chain, None, replace(row, kernel="aten", fused="", why_not=f"{row.kernel} is slower"))

    def _sums(self, asked: Summed, without: Row) -> Row | None:
        if self._timer is None or without.us is None or without.aten_us is None:
            return None
        serving = asked.served(tune=self._tune)
        if serving.launch is None:
            return None
        us, passes_us = self._timer.with_sums(asked), self._timer.passes(asked, tensors=1)
        if us >= without.us + passes_us:
            return None
        return Row(without.layer, serving.kernel, us, without.aten_us + passes_us, asked.fused, spec=serving.spec)


def _ways(chain: Chain) -> list[Chain]:
    """The ways to begin: with the upsampling folded, or with a prologue; and unchanged."""
    return [way for way in (folded(chain) or opened(chain), chain) if way is not None]


def _opens(ways: Sequence[Chain]) -> bool:
    """Whether a prologue is among them, so that a pass stands before those without."""
    return any(way.opening for way in ways)


def _candidates(ways: Sequence[Chain]) -> list[tuple[Chain, End]]:
    """Each way with each of its ends; of float32, no fast kernel has several phases, or a prologue."""
    fast = [way for way in ways if value_of(way.w).element_size() == 2]
    return [(way, end) for way in fast or ways[-1:] for end in _ends(way)]


def _texts(ways: Sequence[Chain]) -> Iterator[str]:
    """The specs of the candidates that convgen serves."""
    for way, end in _candidates(ways):
        with suppress(ConvgenError):  # the caller that needs the kernel gets the error
            yield recipe(*_values(way, end)).convolution.text


def _ends(chain: Chain) -> list[End]:
    """The whole chain, and the part before the first operand after the bias that is as large as the result."""
    bare, whole = chain.ends[0], chain.ends[-1]
    size = value_of(chain.ends[0].node).numel()
    large = [i for i, o in enumerate(chain.operands) if i >= bare.operands and value_of(o).numel() == size]
    before = [end for end in chain.ends if end.operands <= min(large, default=len(chain.operands))]
    return [whole] if before[-1] is whole else [whole, before[-1]]


def _values(chain: Chain, end: End) -> tuple[Any, ...]:
    """Arguments of convgen::fused_conv with fake tensors."""
    x, w, operands, *others = chain.arguments(end)
    return value_of(x), value_of(w), [value_of(o) for o in operands], *others


def _plain(chain: Chain) -> tuple[Any, ...]:
    """The input of aten's bare convolution; slices of its result are views."""
    return _values(replace(chain, padding=chain.uncropped) if chain.uncropped else chain, chain.ends[0])


def _source(chain: Chain) -> Any:
    """The fake image that has to be upsampled before the chain, if that is not folded into it."""
    source = None if chain.upsampled else upsampled(chain.x)
    return None if source is None else value_of(source)


def _fused_us(timer: Timer, way: Chain, end: End, arguments: tuple[Any, ...], before: tuple[Any, bool]) -> float:
    rest = _rest(way, end)
    return timer.fused(arguments, rest.passes, *before) + _moved_us(timer, way, rest.moved)


def _aten_us(timer: Timer, chain: Chain, opens: bool) -> float:
    linear = bool(chain.convolution.meta.get("linear"))
    # cuBLAS adds a bias itself; after cuDNN's convolution it takes a pass, or part of one
    rest = _rest(chain, chain.ends[0], bare=not linear)
    us = timer.aten(_plain(chain), rest.passes, linear, _source(chain), opens)
    return us + _moved_us(timer, chain, rest.moved)


def _moved_us(timer: Timer, chain: Chain, tensors: int) -> float:
    """Reading or writing so many tensors as large as the result: half a copy each."""
    return tensors * timer.copy(value_of(chain.ends[0].node)) / 2 if tensors else 0.0


@dataclass(frozen=True)
class _Rest:
    """The cost of a chain's remaining steps: a pass that reads so many tensors as large as the result (None: there is
    none), or so many that another pass reads or writes more (`moved`)."""

    passes: int | None = None
    moved: int = 0


def _rest(chain: Chain, end: End, bare: bool = False) -> _Rest:
    """`bare`: nothing is done before it, not even the bias."""
    steps, operands = (0, 0) if bare else (end.steps, end.operands)
    if steps == len(chain.steps):
        return _Rest()
    last = chain.ends[-1].node
    size = value_of(chain.ends[0].node).numel()
    large = sum(value_of(o).numel() == size for o in chain.operands[operands:])
    if is_normalized(last):
        return _Rest(moved=large + (len(last.users) > 1))  # others read it, too: it is written
    return _Rest(1 + large)
