"""The array on data, cycle by cycle: skewed reads, serializers, PEs, deserializers, vector memories of one port.

Row i's memory is read one cycle after row i - 1's, so that data need not be skewed where it lies.  A memory holds
words of one pixel's channel in several images (HWCN).  Its serializer hands the array an element a cycle and reads a
word when it has none left; the deserializer below a column collects as many results before it writes.  A write adds to
what is there: the document does not say where the sums of several passes meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from convgen.diagnostics import ConvgenError
from convgen.ir.problem import ConvProblem
from convgen.systolic.machine import Machine
from convgen.systolic.schedule import Pass, auto_tiles, check_tiles, passes, shape_of

Position = tuple[int, ...]
#: Of a word: an output position, and which block of images.
Key = tuple[Position, int]


class PortConflict(ConvgenError):
    """A vector memory would be used twice in a cycle."""


@dataclass
class VectorMemory:
    """Words of inputs and of sums behind one port.  `uses` says what the port did in each cycle of the last pass."""

    inputs: dict[Key, np.ndarray] = field(default_factory=dict)
    sums: dict[tuple[int, Key], np.ndarray] = field(default_factory=dict)
    uses: dict[int, str] = field(default_factory=dict)

    def read(self, key: Key, cycle: int) -> np.ndarray:
        self._use(cycle, "read")
        return self.inputs[key]

    def add(self, channel: int, key: Key, values: np.ndarray, cycle: int) -> None:
        self._use(cycle, "write")
        self.sums[channel, key] = self.sums.get((channel, key), 0) + values

    def _use(self, cycle: int, what: str) -> None:
        if cycle in self.uses:
            raise PortConflict(f"cycle {cycle}: a {what} meets a {self.uses[cycle]} at the port of one vector memory")
        self.uses[cycle] = what


class SystolicArray:
    """A convolution without groups on a machine.  x is (n, c, ...), w is (k, c, ...)."""

    def __init__(self, problem: ConvProblem, machine: Machine, x: np.ndarray, w: np.ndarray) -> None:
        self.problem, self.machine, self.x, self.w = problem, machine, x, w
        self.memories = [VectorMemory() for _ in range(machine.array)]
        self.cycles = 0

    def convolve(self, tiles: int | None = None) -> np.ndarray:
        """y, (n, k, ...), of all passes; `tiles` taps in each, by default as many as a TPU takes."""
        shape = shape_of(self.problem)
        tiles = auto_tiles(shape, self.machine) if tiles is None else check_tiles(shape, self.machine, tiles)
        for one in passes(shape, self.machine, tiles):
            self.load(one)
            self.execute(one)
        return self.result()

    def load(self, one: Pass) -> None:
        """Fill the memories with what the rows of a pass read: an input that two taps read lies in two memories."""
        for memory in self.memories:
            memory.inputs = {}
        for memory, (tap, channel) in zip(self.memories, one.rows, strict=False):
            memory.inputs = {key: self._word(key, tap, channel) for key in self.keys()}

    def execute(self, one: Pass) -> None:
        """Stream every word through the array."""
        size, word = self.machine.array, self.machine.word
        weights = np.zeros((size, size))
        for i, (tap, channel) in enumerate(one.rows):
            index: Any = (slice(one.columns.start, one.columns.stop), channel, *tap)
            weights[i, : len(one.columns)] = self.w[index]
        stream = [(key, lane) for key in self.keys() for lane in range(self._images(key))]
        for memory in self.memories:
            memory.uses = {}
        serializers: dict[int, np.ndarray] = {}
        deserializers = [np.zeros(word) for _ in range(size)]
        values, sums = np.zeros((size, size)), np.zeros((size, size))
        for cycle in range(len(stream) + 2 * size - 1):
            self._write(one, stream, deserializers, cycle)
            entering = np.zeros(size)
            for i in range(len(one.rows)):
                if 0 <= (m := cycle - i) < len(stream):
                    key, lane = stream[m]
                    if lane == 0:
                        serializers[i] = self.memories[i].read(key, cycle)
                    entering[i] = serializers[i][lane]
            values = np.column_stack((entering, values[:, :-1]))
            sums = np.vstack((np.zeros(size), sums[:-1])) + values * weights
            for j in range(len(one.columns)):
                if 0 <= (m := cycle - (size - 1) - j) < len(stream):
                    deserializers[j][stream[m][1]] = sums[-1, j]
        self.cycles += len(stream) + 2 * size - 1

    def _write(self, one: Pass, stream: list[tuple[Key, int]], deserializers: list[np.ndarray], cycle: int) -> None:
        """Each column writes the word that the cycle before completed."""
        for j, channel in enumerate(one.columns):
            m = cycle - self.machine.array - j
            if 0 <= m < len(stream) and stream[m][1] == self._images(stream[m][0]) - 1:
                key = stream[m][0]
                self.memories[j].add(channel, key, deserializers[j][: self._images(key)].copy(), cycle)

    def result(self) -> np.ndarray:
        problem, word = self.problem, self.machine.word
        y = np.zeros((problem.n, problem.k, *problem.output))
        for memory in self.memories:
            for (channel, (position, block)), values in memory.sums.items():
                index: Any = (slice(block * word, block * word + len(values)), channel, *position)
                y[index] = values
        return y

    def keys(self) -> list[Key]:
        """Keys in the order of the stream: pixel after pixel, and for each, its images."""
        blocks = range(-(-self.problem.n // self.machine.word))
        return list(product(product(*map(range, self.problem.output)), blocks))

    def _images(self, key: Key) -> int:
        """The number of images in a word; all words but a batch's last are full."""
        return min(self.machine.word, self.problem.n - key[1] * self.machine.word)

    def _word(self, key: Key, tap: Position, channel: int) -> np.ndarray:
        """The word that a tap reads of a channel for an output position; zeros in the padding."""
        p, (position, block) = self.problem, key
        axes = zip(position, tap, p.stride, p.dilation, p.pad_lo, strict=True)
        at = tuple(o * stride + t * dilation - pad for o, t, stride, dilation, pad in axes)
        first, images = block * self.machine.word, self._images(key)
        if not all(0 <= a < extent for a, extent in zip(at, p.input, strict=True)):
            return np.zeros(images)
        index: Any = (slice(first, first + images), channel, *at)
        return self.x[index]
