"""The machine: sizes and rates.  The defaults are those of one core of Google's TPU v2."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.spec import UsageError

LEAST_ARRAY, LARGEST_ARRAY = 2, 4096


@dataclass(frozen=True)
class Machine:
    """array x array PEs; a vector memory of one port for each row, which is also a column's, with words of `word`
    elements; off-chip memory that moves `dram` bytes a second.  Raises UsageError.

    A column's first result is complete array - 1 cycles after its row's first element was read, and its word is
    written word cycles later: where `word` divides `array`, no memory is ever read and written in one cycle.
    """

    array: int = 128
    word: int = 8
    hertz: float = 700e6
    dram: float = 350e9  # half of a chip's
    memory: int = 256 << 10  # bytes of a vector memory

    def __post_init__(self) -> None:
        if not LEAST_ARRAY <= self.array <= LARGEST_ARRAY:
            raise UsageError(f"array {self.array}: {LEAST_ARRAY} to {LARGEST_ARRAY} rows are possible")
        if self.word < 1 or self.array % self.word:
            raise UsageError(f"word {self.word}: its elements must divide the array's {self.array} rows")

    @property
    def bytes_a_cycle(self) -> float:
        """Bytes per cycle of off-chip memory."""
        return self.dram / self.hertz

    @property
    def peak(self) -> float:
        """Operations a second, a multiplication and an addition in each PE."""
        return 2 * self.array**2 * self.hertz
