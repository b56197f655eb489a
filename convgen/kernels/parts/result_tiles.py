"""Further results shaped like y, which are stored the same way: by epilogue tiles in shared memory, after y's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor
from convgen.kernels.parts.hopper import ROW_ALIGNMENT, lies_as
from convgen.kernels.parts.lowering import ACCESS, PACK, SHARED_LOADS
from convgen.kernels.parts.operand_tiles import EpilogueTile, at_once, epi_tiles


def result_tiles(problem: ConvProblem, row: int, vector: int, rows: int, columns: int) -> tuple[EpilogueTile, ...]:
    """Epilogue tiles, after y's own, of the further results that are stored as y is: in its layout, floats of 2 bytes.
    TMA stores them, with rows of `row` elements if packed; without such rows, threads do, `vector` elements at once."""

    def alike(t: Tensor) -> bool:
        fits = (t.pitch or row) * t.element.bytes % ROW_ALIGNMENT == 0 if row else at_once(t, vector) == vector
        return t.dtype in PACK and lies_as(t, problem.y.dims) and fits

    own = EpilogueTile(problem.y, rows, columns)
    return epi_tiles(filter(alike, problem.elementwise), rows, columns, own.bytes)


@dataclass(frozen=True)
class Leaving:
    """Finished text of a further result that is stored as y is: the offset of its epilogue tile from y's, and that
    offset's name; words of two elements each; the statement by which threads copy a vector of it."""

    name: str
    start: int
    at: str
    words: tuple[str, ...]
    copy: str


def text(epi_tiles: Sequence[EpilogueTile], vector: int, offsets: Callable[[Tensor], str]) -> list[Leaving]:
    """`offsets`: C text of where a tensor's element is in memory."""
    return [
        Leaving(
            c.name,
            c.start,
            f"result_{c.name}_at",
            tuple(f"{PACK[c.tensor.dtype]}(further_{c.name}[{i}], further_{c.name}[{i + 1}])" for i in range(0, 8, 2)),
            copied(vector, f"result_{c.name}", offsets(c.tensor), f"place + result_{c.name}_at"),
        )
        for c in epi_tiles
    ]


def copied(vector: int, pointer: str, offset: str, place: str) -> str:
    """C text: so many elements of 2 bytes at once from a place in shared memory."""
    return f"{elements(vector, pointer, offset)} = {SHARED_LOADS[2 * vector]}({place});"


def elements(vector: int, pointer: str, offset: str) -> str:
    """C text of so many elements of 2 bytes in memory."""
    return f"{pointer}[{offset}]" if vector == 1 else f"*reinterpret_cast<{ACCESS[2 * vector]}*>({pointer} + {offset})"
