"""What a source declares: PTX functions, whose text the emulator does not run, and the launches that it is made for.

The emulator gives each PTX function its meaning by name, so the text must be the catalogue's.  A launch beyond what
`__launch_bounds__` and `__cluster_dims__` say fails on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from convgen.emulator.errors import Finding
from convgen.ir.plan import Launch

#: What a generated file leaves out for the emulator.
_PTX = re.compile(r"^#ifndef CONVGEN_EMULATE\n(.*?)^#endif", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"^__device__ __forceinline__ \w+ (\w+)\(", re.MULTILINE)
#: Text with brackets in it.
_NESTED = r"(?:[^()]|\([^()]*\))*"
_REGISTERS_PER_SM = 65536
_MAX_REGISTERS = 255
_MAX_THREADS = 1024


def instruction_findings(source: str) -> Iterator[Finding]:
    """PTX functions whose text is not the catalogue's, by the first line that differs."""
    for section in _PTX.finditer(source):
        line = source.count("\n", 0, section.start(1)) + 1
        for text in section[1].split("\n\n"):
            declared = _FUNCTION.search(text)
            known = _catalogued(declared[1]) if declared else None
            code = _code(text)
            if declared and known and list(code.values()) != [*known]:
                pairs = zip(code, code.values(), (*known, *[""] * len(code)), strict=False)
                at = next((i for i, own, right in pairs if own != right), 0)
                message = f"{declared[1]} is not the function that the emulator knows by this name"
                yield Finding("instruction", message, line + at, text.splitlines()[at].strip())
            line += text.count("\n") + 2


def _code(text: str) -> dict[int, str]:
    """Lines of code, by number."""
    return {i: line.rstrip() for i, line in enumerate(text.splitlines()) if line.strip() and not line.startswith("//")}


@cache
def _catalogued(name: str) -> tuple[str, ...] | None:
    """The lines of a PTX function of the catalogue; None where it has none of this name."""
    from convgen.codegen import ptx
    from convgen.codegen.render import environment

    if ptx.lookup(name) is None:
        return None
    return tuple(_code(ptx.render_function(environment(), name)).values())


def bounds(source: str, entry: str) -> str:
    """What a kernel is compiled for, in C++: threads a block at most, blocks that share an SM (0: not said), blocks a
    cluster."""
    found = _declaration(source, entry)
    said = dict(re.findall(rf"__(launch_bounds|cluster_dims)__\(({_NESTED})\)", found[1])) if found else {}
    threads, _, blocks = said.get("launch_bounds", str(_MAX_THREADS)).partition(",")
    cluster = " * ".join(f"({extent})" for extent in said.get("cluster_dims", "1").split(","))
    return f"{threads}, {blocks.strip() or 0}, {cluster}"


def _declaration(source: str, entry: str) -> re.Match[str] | None:
    return re.search(rf"__global__\b((?:[^;{{}}](?!__global__))*?)\bvoid\s+{entry}\(", source)


def launch_findings(step: Launch, declared: Sequence[int], source: str) -> Iterator[Finding]:
    """Where a launch is not one that its kernel is compiled for."""
    threads, _, cluster = declared
    found = _declaration(source, step.entry)
    line = source.count("\n", 0, found.start()) + 1 if found else 0
    shown = source.splitlines()[line - 1].strip() if line else ""
    if step.block > threads:
        yield Finding("launch", f"blocks of {step.block} threads: the kernel is compiled for {threads}", line, shown)
    if step.cluster != cluster:
        yield Finding("launch", f"clusters of {step.cluster} blocks: the kernel is compiled for {cluster}", line, shown)


def registers_at_launch(step: Launch, declared: Sequence[int]) -> int:
    """The most registers a thread that a block of this launch can have been compiled for."""
    threads, blocks, _ = declared
    most = _REGISTERS_PER_SM // (min(threads, step.block) * (blocks or step.blocks_per_sm)) // 8 * 8
    return min(most, _MAX_REGISTERS // 8 * 8)
