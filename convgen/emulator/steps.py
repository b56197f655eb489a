"""The steps of a plan, one after another, on buffers of the emulated GPU."""

from __future__ import annotations

import ctypes
import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from inspect import unwrap
from pathlib import Path
from typing import Any

import numpy

from convgen.emulator import native, tensor_map, trace
from convgen.emulator.compiler import line_of
from convgen.emulator.declared import launch_findings, registers_at_launch
from convgen.emulator.errors import EmulationError, Finding
from convgen.ir.dtypes import numpy_dtype
from convgen.ir.plan import Fill, Gemm, Launch, Param, launch_grid

Buffers = Mapping[str, native.Buffer]


class Trapped(EmulationError):
    """A kernel ran into a trap: it does what C++ leaves undefined, and a library that explains says what."""


@dataclass(frozen=True)
class Emulation:
    """The settings that hold for every launch of one call of `emulate`."""

    library: Path
    source: str
    seed: int
    sms: int
    threads: int
    checks: bool
    progress: Callable[[int, int], None] | None

    def launch(self, step: Launch, buffers: Buffers) -> None:
        """Runs one kernel.  Raises EmulationError with its findings."""
        declared = native.bounds(str(self.library), step.entry)
        grid = launch_grid(step, self.sms)
        if findings := [*launch_findings(step, grid, declared, self.source)]:
            raise EmulationError(step.entry, findings, self.seed)
        parameters = _Parameters(step, buffers, self.seed)
        named = {p.buffer for p in step.params if p.kind != "int"}
        distinct = {buffers[name].address: buffers[name] for name in sorted(named)}
        regions = [buffer.region() for buffer in distinct.values()] + [parameters.buffer.region(shared=False)]
        failure: list[BaseException] = []

        interrupts: list[int] = []

        def report(done: int, total: int) -> int:
            try:
                if self.progress:
                    self.progress(done, total)
            except BaseException as e:
                failure.append(e)
            return len(failure) + len(interrupts)

        found, recording = ctypes.c_void_p(), trace.at_hand()
        entry = getattr(native.kernel(str(self.library)), f"convgen_call_{step.entry}")
        request = native.Request(
            entry=ctypes.cast(entry, ctypes.c_void_p),
            parameters=parameters.pointers,
            seed=self.seed,
            grid=grid,
            block=step.block,
            cluster=step.cluster,
            shared_bytes=step.shared_bytes,
            registers=registers_at_launch(step, declared),
            checks=int(self.checks),
            threads=self.threads if recording is None else 1,
            region_count=len(regions),
            dependent=int(step.dependent),
            regions=(native.Region * len(regions))(*regions),
            progress=native.Progress(report),
        )
        try:
            with (
                _interrupts_held(interrupts),
                recording.of(step.entry, self.source) if recording else nullcontext() as request.events,
            ):
                status = native.runtime().convgen_emulator_run(ctypes.byref(request), ctypes.byref(found))
            if failure:
                raise failure[0]
            if status in (1, 3):
                raise (Trapped if status == 3 else EmulationError)(step.entry, self._findings(found), self.seed)
        finally:
            if found.value:
                native.runtime().convgen_emulator_free(found)
            parameters.buffer.release()

    def _findings(self, text: ctypes.c_void_p) -> list[Finding]:
        lines = self.source.splitlines()
        findings = []
        for row in json.loads(ctypes.string_at(text.value or 0).decode()):
            line = row["line"] or (line_of(self.library, row["address"]) if row["address"] else 0)
            shown = lines[line - 1].strip() if 0 < line <= len(lines) else ""
            findings.append(Finding(row["kind"], row["message"], line, shown, row["block"], tuple(row["threads"])))
        return findings


@contextmanager
def _interrupts_held(came: list[int]) -> Iterator[None]:
    """Ctrl-C, or what interrupts as it does, is noted, and raised afterwards: from a callback of native code it would
    be lost."""
    main, ends = threading.current_thread() is threading.main_thread(), (signal.SIGINT, signal.SIGTERM)
    handlers = {s: signal.getsignal(s) for s in ends if main}
    held = {s: h for s, h in handlers.items() if callable(h) and unwrap(h) is signal.default_int_handler}
    for one in held:
        signal.signal(one, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for one, handler in held.items():
            signal.signal(one, handler)
    if came:
        raise KeyboardInterrupt


class _Parameters:
    """A launch's parameters in memory that the kernel may read: a slot of 128 bytes each, then their addresses."""

    def __init__(self, step: Launch, buffers: Buffers, seed: int) -> None:
        count = max(1, len(step.params))
        findings = [f for p in step.params for f in _parameter_findings(p, buffers)]
        if findings:
            raise EmulationError(step.entry, findings, seed)
        pointer = ctypes.sizeof(ctypes.c_void_p)
        self.buffer = native.Buffer("parameters", (native.MAP_BYTES + pointer) * count)
        self.pointers = (ctypes.c_void_p * count).from_address(self.buffer.address + native.MAP_BYTES * count)
        self.maps: list[native.Map] = []
        for i, param in enumerate(step.params):
            address = self.buffer.address + native.MAP_BYTES * i
            data = self._value(param, buffers)
            ctypes.memmove(address, data, len(data))
            self.pointers[i] = address

    def _value(self, param: Param, buffers: Buffers) -> bytes:
        if param.kind == "int":
            return param.value.to_bytes(4, "little", signed=True)
        address = buffers[param.buffer].address
        if param.map is None:
            return address.to_bytes(8, "little")
        self.maps.append(tensor_map.pack(param.map, address))
        fields = ctypes.addressof(self.maps[-1])
        return native.MAP_MAGIC.to_bytes(8, "little") + fields.to_bytes(8, "little")


def _parameter_findings(param: Param, buffers: Buffers) -> list[Finding]:
    if param.kind == "int":
        return []
    if param.buffer not in buffers:
        return [Finding("parameter", f"{param.name} needs a buffer {param.buffer!r}; there are {', '.join(buffers)}")]
    if param.map is None:
        return []
    buffer = buffers[param.buffer]
    wrong = tensor_map.problems(param.map, buffer.size, buffer.row, buffer.pitch)
    return [Finding("tensor map", f"{param.name}: {text}") for text in wrong]


# ---- steps that are no kernels ---------------------------------------------------------------------------


def fill(step: Fill, buffers: Buffers) -> None:
    buffers[step.buffer].bytes[:] = 0


def gemm(step: Gemm, buffers: Buffers) -> None:
    """C = A B + beta C, summed in float64 (int64 for integers), rounded once to C's type."""
    integer = step.dtype == "s8"
    wide = numpy.int64 if integer else numpy.float64
    c_type = numpy_dtype(step.c_dtype)
    for i in range(step.batch):
        a = _matrix(
            buffers[step.a], step.dtype, step.offset_a + i * step.stride_a, step.m, step.k, step.lda, step.trans_a
        )
        b = _matrix(
            buffers[step.b], step.dtype, step.offset_b + i * step.stride_b, step.k, step.n, step.ldb, step.trans_b
        )
        c = _matrix(buffers[step.c], step.c_dtype, step.offset_c + i * step.stride_c, step.m, step.n, step.ldc, False)
        with numpy.errstate(over="ignore", invalid="ignore"):  # factors may be infinite
            result = a.astype(wide) @ b.astype(wide)
            if step.beta:
                result = result + step.beta * c.astype(wide)
            c[...] = result.astype(c_type)


def _matrix(
    buffer: native.Buffer, dtype: str, offset: int, rows: int, columns: int, leading: int, transposed: bool
) -> Any:
    """A view of rows x columns elements; in memory columns x rows where transposed."""
    kind = numpy_dtype(dtype)
    outer, inner = (columns, rows) if transposed else (rows, columns)
    elements = buffer.bytes[: buffer.size // kind.itemsize * kind.itemsize].view(kind)[offset:]
    if (outer - 1) * leading + inner > elements.size:
        text = f"a {rows} x {columns} matrix at element {offset} with leading dimension {leading} leaves {buffer.name}"
        raise EmulationError("gemm", [Finding("out of bounds", text)])
    view = numpy.lib.stride_tricks.as_strided(elements, (outer, inner), (leading * kind.itemsize, kind.itemsize))
    return view.T if transposed else view
