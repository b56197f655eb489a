"""Runs of neighboring elements: C text that loads, stores and decodes them as vectors of at most 16 bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convgen.ir.dtypes import DTYPES, DType
from convgen.ir.tensor import Tensor
from convgen.kernels.parts import lowering

WORD = 4
VECTOR_BYTES = 16  # the widest load or store of a thread
LINE = 100  # characters of generated text before it is indented
#: C text of a 4-byte element's bits, by its type and the accumulator's.
WHOLE_WORDS = {
    ("f32", "f32"): "__float_as_uint({0})",
    ("f32", "s32"): "__float_as_uint(float({0}))",
    ("s32", "f32"): "u32(__float2int_rn({0}))",
    ("s32", "s32"): "u32({0})",
}


@dataclass(frozen=True)
class Raw:
    """A load of a vector: its C type, name and text."""

    type: str
    name: str
    value: str


def bits_type(element: DType) -> str:
    """C type of an element's bits; that of floats of less than a word is their bits' already."""
    return element.c_type if element.is_float and element.bytes < WORD else lowering.ACCESS[element.bytes]


def as_bits(tensor: Tensor, c_type: str) -> str:
    """C text of a tensor as a pointer to bits."""
    return tensor.role if c_type == tensor.element.c_type else f"reinterpret_cast<const {c_type}*>({tensor.role})"


def bracket(text: str) -> str:
    return text if text.isidentifier() else f"({text})"


def run_words(dtype: str, run: int, accumulator: str, values: str = "v") -> tuple[str, ...]:
    """C text of the 32-bit words of a run of stored elements `values`; none of a run of less than a word."""
    size = DTYPES[dtype].bytes
    if run * size < WORD:
        return ()
    if size == WORD:
        text = WHOLE_WORDS[dtype, accumulator]
        return tuple(text.format(f"{values}[{i}]") for i in range(run))
    if dtype in lowering.PACK and accumulator == "f32":
        return tuple(f"{lowering.PACK[dtype]}({values}[{i}], {values}[{i + 1}])" for i in range(0, run, 2))
    per_word, bits = WORD // size, 8 * size
    unsigned = lowering.ACCESS[size]
    return tuple(
        " | ".join(
            f"u32({unsigned}({lowering.store(dtype, f'{values}[{i + j}]', accumulator)}))"
            + (f" << {bits * j}" if j else "")
            for j in range(per_word)
        )
        for i in range(0, run, per_word)
    )


def store_run(dtype: str, pointer: str, run: int, accumulator: str, values: str = "v") -> tuple[str, ...]:
    """Lines that store `values[0..run)` as vectors of at most 16 bytes."""
    size = DTYPES[dtype].bytes
    if run * size < WORD:
        stored = (lowering.store(dtype, f"{values}[{i}]", accumulator) for i in range(run))
        return tuple(f"({pointer})[{i}] = {value};" for i, value in enumerate(stored))
    words = run_words(dtype, run, accumulator, values)
    lines = []
    for start in range(0, len(words), VECTOR_BYTES // WORD):
        vector = words[start : start + VECTOR_BYTES // WORD]
        at = pointer if start == 0 else f"{pointer} + {start * WORD // size}"
        target = f"*reinterpret_cast<{lowering.ACCESS[WORD * len(vector)]}*>({at}) = "
        if len(vector) == 1:
            lines.append(f"{target}{vector[0]};")
        elif len(vector) == 2:
            lines += _broken(target, (f"u64({vector[1]}) << 32 |", vector[0]), " ", ";")
        else:
            lines += _broken(f"{target}Vec4{{", vector, ", ", "};")
    return tuple(lines)


def _broken(head: str, parts: Sequence[str], separator: str, tail: str) -> list[str]:
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
    return _broken(f"const {lowering.ACCUMULATORS[accumulator].c_type} {name}[{run}] = {{", values, ", ", "};")


def _parts(name: str, width: int) -> Sequence[str]:
    return {
        1: [name],
        2: [name],
        4: [name],
        8: [f"u32({name})", f"u32({name} >> 32)"],
        16: [f"{name}.{p}" for p in "xyzw"],
    }[width]
