"""Loads of neighboring elements by one thread, as vectors: lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convgen.ir.dtypes import DTYPES
from convgen.kernels.parts import lowering

WORD = 4
VECTOR_BYTES = 16  # the widest load or store of a thread
LINE = 100  # characters of generated text before it is indented


@dataclass(frozen=True)
class Raw:
    """A load of a vector: its C type, name and text."""

    type: str
    name: str
    value: str


def broken(head: str, parts: Sequence[str], separator: str, tail: str) -> list[str]:
    """The parts between head and tail: on one line, or as many on each as it has room for."""
    whole = head + separator.join(parts) + tail
    if len(whole) <= LINE:
        return [whole]
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1] + separator + part) <= LINE - 4:
            lines[-1] += separator + part
        else:
            lines[-1] += separator.rstrip()
            lines.append(part)
    return [head.rstrip(), *(f"    {line}" for line in lines[:-1]), f"    {lines[-1]}{tail}"]


def load_run(dtype: str, name: str, pointer: str, run: int, condition: str = "", accumulator: str = "f32") -> list[str]:
    """Lines that load `run` neighbors, as vectors of at most 16 bytes, into `name[run]` of the accumulator's
    type; zeros where `condition` is given and does not hold."""
    when = f"{condition} ? " if condition else ""
    if raws := raw_run(dtype, name, pointer, run):
        lines = [f"const {r.type} {r.name} = {when}{r.value}{f' : {r.type}{{}}' if when else ''};" for r in raws]
        return [*lines, *decode_run(dtype, name, [r.name for r in raws], run, accumulator)]
    zero = f" : {lowering.ACCUMULATORS[accumulator].zero}" if condition else ""
    values = [when + lowering.load(dtype, f"({pointer})[{i}]", accumulator) + zero for i in range(run)]
    return [f"const {lowering.ACCUMULATORS[accumulator].c_type} {name}[{run}] = {{{', '.join(values)}}};"]


def raw_run(dtype: str, name: str, pointer: str, run: int) -> list[Raw]:
    """The loads of `run` neighbors as vectors; none of a run of less than a word, or of one element."""
    size = DTYPES[dtype].bytes
    if run * size < WORD or run == 1:
        return []
    width = min(run * size, VECTOR_BYTES)
    access, made = lowering.ACCESS[width], []
    for i in range(run * size // width):
        at = f"{pointer} + {i * width // size}" if i else pointer
        made.append(Raw(access, f"raw_{name.removeprefix('value_')}_{i}", f"*reinterpret_cast<const {access}*>({at})"))
    return made


def load_shared_run(dtype: str, name: str, address: str, run: int, accumulator: str) -> list[str]:
    """The same from shared memory, where the run takes 4 bytes or more."""
    width = min(run * DTYPES[dtype].bytes, VECTOR_BYTES)
    lines: list[str] = []
    raws: list[str] = []
    for start in range(0, run * DTYPES[dtype].bytes, width):
        raws.append(f"raw_{start // width}")
        at = address if start == 0 else f"{address} + {start}"
        lines.append(f"const {lowering.ACCESS[width]} {raws[-1]} = {lowering.SHARED_LOADS[width]}({at});")
    return [*lines, *decode_run(dtype, name, raws, run, accumulator)]


def decode_run(dtype: str, name: str, raws: Sequence[str], run: int, accumulator: str) -> list[str]:
    """The lines that make `name[run]` of `raws`, loaded vectors, or an element of less than a word."""
    size = DTYPES[dtype].bytes
    words = [word for raw in raws for word in _parts(raw, run * size // len(raws))]
    values = []
    for i in range(run):
        word, bits = words[i * size // WORD], 8 * (i * size % WORD)
        shifted = f"{word} >> {bits}" if bits else word
        values.append(lowering.decode(dtype, shifted, accumulator))
    return broken(f"const {lowering.ACCUMULATORS[accumulator].c_type} {name}[{run}] = {{", values, ", ", "};")


def _parts(name: str, width: int) -> Sequence[str]:
    return {
        1: [name],
        2: [name],
        4: [name],
        8: [f"u32({name})", f"u32({name} >> 32)"],
        16: [f"{name}.{p}" for p in "xyzw"],
    }[width]
