"""The declarations of a source: PTX functions, whose text the emulator does not run, and its launch bounds.

The emulator gives each PTX function its meaning by name, so the text must be the catalog's.  A launch beyond what
`__launch_bounds__` and `__cluster_dims__` say fails on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

from convgen.codegen.ptx import functions_used
from convgen.emulator.errors import Finding
from convgen.ir.plan import Launch
from convgen.targets import TARGETS

#: What a generated file leaves out for the emulator.
_PTX = re.compile(r"^#ifndef CONVGEN_EMULATE\n(.*?)^#endif", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"^__device__ __forceinline__ \w+ (\w+)\(", re.MULTILINE)
_COMMENT = re.compile(r"//.*")
#: Functions and tables that a GPU's code cannot use.
_OF_THE_HOST = re.compile(
    r"(?:__forceinline__|__noinline__|inline|static)\b(?!.*\b__(?:device|global)__).*\(|const\b[^(]*\w\[.*\] = "
)
#: Text with brackets in it.
_NESTED = r"(?:[^()]|\([^()]*\))*"
_REGISTERS_PER_SM = 65536
_MAX_REGISTERS = 255
_MAX_THREADS = 1024
#: Blocks of a cluster that every GPU with clusters takes, and of a grid in y and z.
_MAX_CLUSTER, _MAX_GRID = 8, 65535
_MAX_SHARED_BYTES = max(target.shared_bytes_per_block for target in TARGETS.values())


#: Variables that a function declares without a value: numbers, outside of structs.
_STRUCT = re.compile(r"^struct\b.*?^\};", re.MULTILINE | re.DOTALL)
_UNASSIGNED = re.compile(r"^ +(?:int|u16|u32|u64|bool|float|double|long long) (\w+(?:, \w+)*);", re.MULTILINE)


def declared_without_value(source: str) -> set[str]:
    """Names of local variables that have no initializer: what reads them may come before what assigns them."""
    text = _STRUCT.sub("", _COMMENT.sub("", _PTX.sub("", source)))
    return {name for found in _UNASSIGNED.finditer(text) for name in found[1].split(", ")}


def is_whole(source: str) -> bool:
    """Whether a source is generated, or written like that: it declares what it calls, which others leave to the
    emulator."""
    return re.search(r"\bCONVGEN_EMULATE\b", source) is not None


@lru_cache(maxsize=16)
def instruction_findings(source: str) -> tuple[Finding, ...]:
    """PTX functions whose text is not the catalog's, by the first line that differs, and missing ones: a compiler for a
    GPU would refuse the source, but one for this machine does not."""
    found = [*_text_findings(source), *_shared_findings(source)]
    if is_whole(source):
        found += [*_missing_findings(source), *_host_findings(source)]
    return tuple(found)


def _missing_findings(source: str) -> Iterator[Finding]:
    """PTX functions that are called and not declared."""
    lines = source.splitlines()
    declared = {name for section in _PTX.finditer(source) for name in _FUNCTION.findall(section[1])}
    for name in functions_used(_COMMENT.sub("", _PTX.sub("", source))):
        if name not in declared:
            at = next(i for i, text in enumerate(lines) if re.search(rf"\b{name}\s*[<(]", text))
            yield Finding("instruction", f"no function {name} is declared", at + 1, lines[at].strip())


def _shared_findings(source: str) -> Iterator[Finding]:
    """Static shared memory: the emulator would give each thread its own copy."""
    for at, text in enumerate(source.splitlines()):
        if re.search(r"\b__shared__\b", code := _COMMENT.sub("", text)) and not re.search(r"\bextern\b", code):
            message = (
                "static shared memory is not emulated: declare `extern __shared__ u8 shared_memory[];`, add the bytes "
                "to the launch's shared_bytes, and use addresses behind shared_address(shared_memory) with "
                "ld_shared_u32, st_shared_u32 and the like"
            )
            yield Finding("compile", message, at + 1, text.strip())


def _host_findings(source: str) -> Iterator[Finding]:
    for at, text in enumerate(source.splitlines()):
        if _OF_THE_HOST.match(text):
            message = "kernels use what is __device__, __constant__ or constexpr"
            yield Finding("compile", message, at + 1, text.strip())
        if text.startswith("__global__"):
            yield Finding("compile", 'a kernel is found by its name: extern "C" __global__', at + 1, text.strip())


def _text_findings(source: str) -> Iterator[Finding]:
    for section in _PTX.finditer(source):
        line = source.count("\n", 0, section.start(1)) + 1
        for text in section[1].split("\n\n"):
            declared = _FUNCTION.search(text)
            if not declared and "asm" in text:
                message = "PTX in a function that is not declared as `__device__ __forceinline__ TYPE NAME(`"
                yield Finding("instruction", message, line, text.splitlines()[0].strip())
            known = _cataloged(declared[1]) if declared else None
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
def _cataloged(name: str) -> tuple[str, ...] | None:
    """The lines of a PTX function of the catalog; None if it has none of this name."""
    from convgen.codegen import ptx
    from convgen.codegen.render import environment

    if ptx.lookup(name) is None:
        return None
    return tuple(_code(ptx.render_function(environment(), name)).values())


def bounds(source: str, entry: str) -> str:
    """A kernel's launch bounds, in C++: threads a block at most (0: not said), blocks that share an SM (0: not said),
    blocks a cluster along x, y and z."""
    found = _declaration(source, entry)
    said = dict(re.findall(rf"__(launch_bounds|cluster_dims)__\(({_NESTED})\)", found[1])) if found else {}
    threads, _, blocks = said.get("launch_bounds", "0").partition(",")
    cluster = [*said.get("cluster_dims", "1").split(","), "1", "1"][:3]
    return f"{threads}, {blocks.strip() or 0}, {', '.join(cluster)}"


def _declaration(source: str, entry: str) -> re.Match[str] | None:
    return re.search(rf"__global__\b((?:[^;{{}}](?!__global__))*?)\bvoid\s+{entry}\(", source)


def _body(source: str, declaration: re.Match[str] | None) -> str:
    """A kernel's text after its declaration, up to the next one's."""
    behind = source[declaration.end() :] if declaration else ""
    return behind.partition("__global__")[0]


def _tensor_maps(source: str, declaration: re.Match[str] | None) -> list[str]:
    """A kernel's parameters that are tensor maps by value, as they are declared."""
    behind = source[declaration.end() :] if declaration else ""
    parameters = re.match(rf"{_NESTED}", behind)
    declared = parameters[0].split(",") if parameters else []
    return [text.strip() for text in declared if re.search(r"\bTensorMap\s+\w+\s*$", text)]


def launch_findings(step: Launch, grid: Sequence[int], declared: Sequence[int], source: str) -> Iterator[Finding]:
    """Findings about a launch of so many blocks that the driver would refuse, or that its kernel is not compiled
    for."""
    threads, _, *cluster = declared
    found = _declaration(source, step.entry)
    line = source.count("\n", 0, found.start()) + 1 if found else 0
    shown = source.splitlines()[line - 1].strip() if line else ""
    if not found and re.search(rf"^extern \"C\" .*\bvoid\s+{step.entry}\(", source, re.MULTILINE):
        yield Finding("launch", f"{step.entry} is no __global__ function")
    if step.block > (threads or _MAX_THREADS):
        message = f"blocks of {step.block} threads: the kernel is compiled for {threads or _MAX_THREADS}"
        yield Finding("launch", message, line, shown)
    if step.shared_bytes > _MAX_SHARED_BYTES:
        message = f"{step.shared_bytes} bytes of shared memory: a block has {_MAX_SHARED_BYTES} at most"
        yield Finding("launch", message, line, shown)
    if grid[0] % step.cluster or step.cluster > _MAX_CLUSTER or max(grid[1:]) > _MAX_GRID:
        message = (
            f"{' x '.join(map(str, grid))} blocks in clusters of {step.cluster}: a grid has whole clusters, of "
            f"{_MAX_CLUSTER} blocks at most, and up to {_MAX_GRID} blocks along y and z"
        )
        yield Finding("launch", message, line, shown)
    if [step.cluster, 1, 1] != cluster:
        compiled = " x ".join(map(str, cluster))
        yield Finding(
            "launch", f"clusters of {step.cluster} blocks: the kernel is compiled for {compiled}", line, shown
        )
    if not threads and "setmaxnreg" in _body(source, found):
        yield Finding("launch", "setmaxnreg without __launch_bounds__, on which it depends", line, shown)
    for text in _tensor_maps(source, found):
        if "__grid_constant__" not in text:
            message = "a tensor map is a const __grid_constant__ parameter: TMA cannot read a copy"
            yield Finding("launch", message, line, text)


def registers_at_launch(step: Launch, declared: Sequence[int]) -> int:
    """The most registers a thread that a block of this launch can have been compiled for."""
    threads, blocks, *_ = declared
    most = _REGISTERS_PER_SM // ((threads or step.block) * (blocks or step.blocks_per_sm)) // 8 * 8
    return min(most, _MAX_REGISTERS // 8 * 8)
