"""A cost model of the Hopper kernels: microseconds from a configuration, before anything is compiled.

A few terms, each a resource: the tensor cores (whose narrow tiles wait for shared memory), L2, the rate at
which TMA fetches rows, the latency that stages in flight must cover, the tail of a partly filled wave, the
epilogue, device memory.  The rates are fitted to measurements on an H200 (benchmarks/fit_cost.py, which
also says how far the model's choice is from the best that was measured: benchmarks/NOTES.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, replace
from functools import cache, lru_cache
from typing import Any, TypeVar

from convgen.gpus import FITTED, Gpu
from convgen.ir.epilogue import Binary
from convgen.ir.problem import SECTOR, ConvProblem
from convgen.ir.tensor import Tensor

#: Of a multiprocessor, a microsecond: what rates by the cycle rest on.
CYCLES = 1755.0
#: Rates that follow from a GPU's own, by name: bytes of device memory a microsecond, and cycles, or times, of products
#: on the tensor cores.
OF_MEMORY, OF_PRODUCTS = ("memory", "reads", "writes"), ("products", "mma", "mma_busy")
SCHEDULERS = 4  # of a multiprocessor
HALF_LINE = 64  # bytes that L2 takes from device memory at once
LINE = 128  # bytes that L2 holds together; it moves a sector
LEAST_STORE = 8  # bytes that a store takes at least, if it is not to be slow
BANKS, WORD = 32, 4  # of shared memory, and bytes that one gives at a time
LANES = 128  # of a multiprocessor: elements that it computes at a time
#: Cycles of a scheduler for a function of 32 elements, where all results have 16 bits or less and elsewhere: its
#: instructions (templates/helpers.cuh.j2), more if they wait for the special function units.
FUNCTIONS = {
    "gelu": (12, 34), "gelu_tanh": (12, 30), "silu": (10, 24), "sigmoid": (10, 22), "tanh": (24, 24), "exp": (9, 9),
    "log": (12, 12), "sqrt": (10, 10), "round_f16": (2, 2), "round_bf16": (2, 2),
}  # fmt: skip
#: Operations of relu(acc * s + b + z), and one more.
ARITHMETIC = 4


Rates = TypeVar("Rates", bound=Any)  # a record of numbers, fitted on one GPU


@lru_cache(maxsize=64)
def _on(rates: Rates, gpu: Gpu) -> Rates:
    own = {field.name: getattr(rates, field.name) for field in fields(rates)}
    faster, longer = memory_on(gpu), FITTED.products_a_sm / gpu.products_a_sm
    of_memory = {name: own[name] * faster for name in OF_MEMORY if name in own}
    return replace(rates, **of_memory, **{name: own[name] * longer for name in OF_PRODUCTS if name in own})


def on(rates: Rates, gpu: Gpu) -> Rates:
    """Scales rates fitted on an H200 to another GPU by its device memory and tensor cores; the rest, cycles of the
    H200's clock, are assumed to be equal."""
    return rates if gpu is FITTED else _on(rates, gpu)


def memory_on(gpu: Gpu) -> float:
    """How many times as fast as an H200's its device memory is."""
    return gpu.memory.per_second / FITTED.memory.per_second


#: Of a bound, for what rounding adds to it.
LESS = 1 - 1e-9


def turns(words: Iterable[int]) -> int:
    """Turns in which shared memory serves these words: a bank serves one word at a time, to all threads that read
    it."""
    return max(Counter(word % BANKS for word in set(words)).values())


def over(time: float, memory: float) -> float:
    """The larger of two times, rounded where they are close: neither overlaps the other perfectly."""
    return (time**4 + memory**4) ** 0.25


def product(n: int, shared_wait: float) -> float:
    """Cycles of a wgmma of 64 x n x 16 at the tensor cores' peak: a narrow one waits for its A operand."""
    return max(n / 2, n / 4 + shared_wait)


@cache
def lines(row: int, pitch: int, line: int = LINE) -> float:
    """Lines of L2 that a row of so many bytes touches on average, rows beginning `pitch` bytes apart."""
    step = math.gcd(pitch, line)
    starts = range(0, line, step)
    return sum(-(-(start + row) // line) for start in starts) / len(starts)


@cache
def requests(row: int, pitch: int, span: int) -> float:
    """Requests per line for loads of rows of so many bytes, `pitch` apart, in boxes of at most `span` bytes of each."""
    return -(-row // span) * lines(min(row, span), math.gcd(pitch, span)) * LINE / row


@lru_cache(maxsize=64)  # called for each configuration of a search
def traffic(problem: ConvProblem) -> dict[str, int]:
    """The models' input from a problem: bytes of device memory read and written, bytes of a row of x and y, which is a
    pixel, or a channel's plane."""
    written = sum(t.bytes for t in problem.results)

    def pitch(tensor: Tensor, channel: str) -> int:
        plane = tensor.stride(channel)
        return (plane if plane > 1 else tensor.extent(channel)) * tensor.element.bytes

    # plain numbers, where a call decides sizes, too: models multiply them many times
    return dict(
        reads=int(problem.min_bytes - written),
        writes=int(written),
        x_pitch=pitch(problem.x, "c"),
        y_pitch=pitch(problem.y, "k"),
    )


@lru_cache(maxsize=64)
def functions(problem: ConvProblem) -> float:
    """Cycles of a multiprocessor that the epilogue's functions take per element of the operator's result, and its
    arithmetic, of which `ARITHMETIC` operations are part of the time to store."""
    if problem.epilogue is None:
        return 0.0
    called = sum(FUNCTIONS.get(name, (0, 0))[not problem.narrow] for name in problem.epilogue.calls)
    operations = sum(isinstance(e, Binary) for a in problem.epilogue.pointwise for e in a.value.walk())
    return (called + max(0, operations - ARITHMETIC)) / LANES


def ragged(more: float, pitch: int) -> float:
    """How many times dearer rows, or pixels, `pitch` bytes apart are than aligned ones: `more`, where they begin inside
    a sector."""
    return 1 + more * (pitch % SECTOR != 0)


def written(
    bytes: int, pitch: int, ragged: float, odd: float, in_parts: bool = True, *, words: float | None = None
) -> float:
    """Bytes of device memory that results count for, whose pixels lie `pitch` bytes apart: `ragged` times more where
    pixels begin inside a sector and several blocks fill it, which store pixels `in_parts`, and `odd` times more where
    no store of `LEAST_STORE` bytes fits; `words` times, if that is given, where one of a word does."""
    narrow = odd if words is None or pitch % WORD else words
    return bytes * (1 + ragged * (in_parts and pitch % SECTOR != 0) + narrow * (pitch % LEAST_STORE != 0))
