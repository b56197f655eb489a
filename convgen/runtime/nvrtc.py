"""CUDA source to cubin through NVRTC, without a GPU or a driver.

ptxas's figures are read from the log.  An error shows the source lines it is about, also where ptxas
speaks of lines of PTX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from convgen.runtime import nvrtc_library
from convgen.runtime.errors import CompileError
from convgen.runtime.nvrtc_library import Library
from convgen.targets import Target

#: What NVRTC calls the source in its log.
FILE = "convgen.cu"
_CONTEXT = 2  # source lines shown before and after the one to blame
_MOST_SHOWN = 5  # errors shown in full

# ptxas's reports that wgmma is serialized or setmaxnreg ignored: the kernel would run, several times slower
_SLOW = re.compile(r"^.*\(C75\d\d\).*$", re.MULTILINE)
_ERROR = re.compile(
    r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): (?:catastrophic )?error\b[^:]*: (?P<message>.*)$", re.M
)
_PTX_ERROR = re.compile(r"^ptxas .*, line (?P<line>\d+); (?:error|fatal)\s*: (?P<message>.*)$", re.M)
_TIME = re.compile(r"^ptxas info\s*: Compile time = .*\n?", re.MULTILINE)  # which differs from run to run
_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_FIGURES: dict[str, re.Pattern[str]] = {
    "registers": re.compile(r"Used (\d+) registers"),
    "spill_stores": re.compile(r"(\d+) bytes spill stores"),
    "spill_loads": re.compile(r"(\d+) bytes spill loads"),
    "stack": re.compile(r"(\d+) bytes stack frame"),
    "shared": re.compile(r"(\d+) bytes smem"),
    "constant": re.compile(r"(\d+) bytes cmem"),
}


@dataclass(frozen=True)
class Resources:
    """The resources of one entry point, as ptxas reports them: registers per thread, the rest in bytes.

    `shared` is static shared memory; the dynamic part is in the plan's `Launch`.
    """

    registers: int
    spill_loads: int
    spill_stores: int
    stack: int
    shared: int
    constant: int


@dataclass(frozen=True)
class Compiled:
    """NVRTC's output for a source, the same in every run; `resources` are ptxas's figures by entry point."""

    cubin: bytes
    ptx: str
    log: str
    resources: Mapping[str, Resources]


def flags(target: Target) -> tuple[str, ...]:
    """NVRTC's options for a target."""
    return ("-std=c++17", f"-arch={target.name}", "--ptxas-options=-v")


def nvrtc_version() -> str:
    """Version of the NVRTC library in use, such as "13.0".  Raises CompileError where there is none."""
    return nvrtc_library.load().version


def compile_source(source: str, target: Target) -> Compiled:
    """Compiles a source for one target.  Raises CompileError, with the log and the lines to blame."""
    library = nvrtc_library.load()
    made = library.compile(source, FILE, flags(target))
    if made.error:
        raise CompileError(_explain(library, source, target, made.error, made.log), made.log)
    if slow := _SLOW.findall(made.log):
        why = f"ptxas of NVRTC {library.version} made the kernel slow for {target}"
        hint = f"install NVRTC {'.'.join(map(str, nvrtc_library.OLDEST))} or newer: pip install 'convgen[nvrtc]'"
        text = [f"{why}:", *slow, f"hint: {hint}"] if library.is_old else [f"{why}, which is a defect:", *slow]
        raise CompileError("\n".join(text), made.log)
    return Compiled(made.cubin, made.ptx, _TIME.sub("", made.log), resources(made.log))


def resources(log: str) -> dict[str, Resources]:
    """ptxas's figures by entry point, from the log of a compilation with --ptxas-options=-v."""
    found = {}
    parts = _ENTRY.split(log)  # text, name, text, name, text...
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        found[name] = Resources(**{field: sum(map(int, row.findall(text))) for field, row in _FIGURES.items()})
    return found


def _explain(library: Library, source: str, target: Target, error: str, log: str) -> str:
    """The message of a failed compilation: each error with its place in the source."""
    if "--gpu-architecture" in log:
        return f"NVRTC {library.version} does not know the target {target}\nhint: a newer nvidia-cuda-nvrtc may"
    errors = [*_source_errors(source, log), *_ptx_errors(library, source, target, log)]
    shown = [text for text in errors[:_MOST_SHOWN]] or [log or error]
    more = len(errors) - len(shown)
    return "\n".join([f"NVRTC failed for {target}:", *shown, *([f"... and {more} more errors"] if more > 0 else [])])


def _source_errors(source: str, log: str) -> Iterator[str]:
    where = _physical_lines(source)
    for found in _ERROR.finditer(log):
        file, line = found["file"], int(found["line"])
        yield _excerpt(source, where.get((file, line)), f"{file}:{line}: {found['message']}")


def _ptx_errors(library: Library, source: str, target: Target, log: str) -> Iterator[str]:
    """ptxas names lines of PTX.  Compiled again with -lineinfo, PTX says which source line each is from."""
    if not _PTX_ERROR.search(log):
        return
    made = library.compile(source, FILE, (*flags(target), "-lineinfo"))
    lines, log = made.ptx.splitlines(), made.log
    where = _physical_lines(source)
    files = {number: path for number, path in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', "\n".join(lines))}
    for found in _PTX_ERROR.finditer(log):
        at = int(found["line"])
        physical = None
        locations = (re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", line) for line in reversed(lines[:at]))
        if location := next(filter(None, locations), None):
            path = files.get(location[1], "")
            matching = (p for (file, line), p in where.items() if path.endswith(file) and line == int(location[2]))
            physical = next(matching, None)
        ptx = lines[at - 1].strip() if at <= len(lines) else ""
        yield _excerpt(source, physical, f"ptxas: {found['message']}\n  in PTX: {ptx}")


def _physical_lines(source: str) -> dict[tuple[str, int], int]:
    """The line of the source text for each (file, line) that a log may name, after `#line` directives."""
    where: dict[tuple[str, int], int] = {}
    file, number = FILE, 1
    for physical, text in enumerate(source.splitlines(), 1):
        if found := re.match(r'\s*#\s*line\s+(\d+)(?:\s+"([^"]*)")?', text):
            number, file = int(found[1]), found[2] or file
            continue
        where.setdefault((file, number), physical)
        number += 1
    return where


def _excerpt(source: str, physical: int | None, title: str) -> str:
    """A title and the source lines around a place."""
    if physical is None:
        return title
    lines = source.splitlines()
    first, last = max(1, physical - _CONTEXT), min(len(lines), physical + _CONTEXT)
    rows = [f"{'>' if i == physical else ' '} {i:5} | {lines[i - 1]}" for i in range(first, last + 1)]
    return "\n".join([title, *rows])
