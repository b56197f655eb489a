"""The host's C++17 compiler: the runtime, once for a machine; each generated source, unchanged.

Both are kept in the cache by content, wherever convgen lies.  A source is compiled with the header of include/
before it, and with two sanitizers whose calls the runtime answers: the address sanitizer reports every access to
global memory, the undefined-behavior sanitizer what C++ leaves undefined.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from convgen.cache import Cache
from convgen.diagnostics import ConvgenError
from convgen.emulator.declared import bounds, declared_without_value, is_whole
from convgen.emulator.errors import EmulationError, Finding, NoHostCompiler
from convgen.files import write_all
from convgen.turns import turn

_HERE = Path(__file__).resolve().parent
INCLUDE = _HERE / "include"
RUNTIME = _HERE / "runtime"
#: The generated source's name inside the folder where it is compiled, and so in debug information.
SOURCE = "kernel.cu"

_COMMON = ("-std=c++17", "-fPIC", "-shared", "-pthread")
#: Checks of undefined behavior; no code continues after a report, which leaves less to compile.
_UNDEFINED = (
    "-fsanitize=bounds,alignment,signed-integer-overflow,integer-divide-by-zero,shift-exponent",
    "-fno-sanitize-recover=undefined",
)
#: A trap instead of a report is an eighth less to compile.
_TRAPS = {"gcc": ("-fsanitize-undefined-trap-on-error",), "clang": ("-fsanitize-trap=undefined",)}
#: What makes a compiler call the runtime for each access to memory, by family.
_OUTLINED = {
    "gcc": ("--param=asan-instrumentation-with-call-threshold=0", "--param=asan-stack=0", "--param=asan-globals=0"),
    "clang": tuple(
        f"-mllvm={option}"
        for option in ("-asan-instrumentation-with-call-threshold=0", "-asan-stack=0", "-asan-globals=0")
    ),
}
#: A kernel's own code takes a twentieth of an emulation, the runtime the rest: optimizing it costs more than it saves.
_LEVEL = ("-O0",)
#: What finds variables that are read where nothing need have assigned them: without optimization gcc does not look.
_ASSIGNED = ("-std=c++17", "-Og", "-S", "-DCONVGEN_EMULATE", "-Werror=uninitialized", "-Werror=maybe-uninitialized")
#: A thread's stack is 256 KB (runtime/context.h): a kernel's locals must leave room for the runtime.
_FRAME = 196608
_FAMILY_ONLY = {
    "gcc": ("-fno-gnu-unique", "-fno-var-tracking", f"-Werror=frame-larger-than={_FRAME}"),
    "clang": (f"-Wframe-larger-than={_FRAME}", "-Werror=frame-larger-than"),
}
#: What a kernel's library is linked with.  C's own libraries are in the process that loads it: without them the linker
#: takes half of its time.
_LIBRARIES = {"gcc": ("-nodefaultlibs", "-lgcc"), "clang": ()}
#: Parts of the header, after CONVGEN_, that a source is compiled with where it has a word.
_PARTS = {"atomic": "ATOMICS", "matrix_x": "MATRICES", "mma_m16": "MMAS"}
#: A source's types whose layout PTX and the emulator take for granted (convgen_emulator.h); the latter of sources that
#: are generated, as others may have types of their own by these names.
_LAID_OUT = ("TensorMap", "Vec2", "Vec4")
#: Families of functions, of which a source is compiled with those that it names: by the macro that makes those of one
#: number, their names, and the numbers that there are (wgmma's n: PTX ISA, "wgmma.mma_async").
_FAMILIES = {
    "TMA_TILE": (re.compile(r"tma_(?:load|store)_tile_(\d)d"), range(2, 6)),
    "TMA_IM2COL": (re.compile(r"tma_load_im2col_(\d)d"), range(3, 6)),
    "WGMMA_f32": (re.compile(r"wgmma_m64n(\d+)k\d+_f32_"), range(8, 257, 8)),
    "WGMMA_s32": (re.compile(r"wgmma_m64n(\d+)k\d+_s32_"), (8, 24, *range(16, 257, 16))),
}


@dataclass(frozen=True)
class HostCompiler:
    path: str
    family: str  # "gcc" | "clang"
    version: str

    def run(self, arguments: Sequence[str], folder: Path, made: str) -> str:
        """Runs it in a folder, to make a file there; the text of its errors, empty where there are none."""
        done = subprocess.run([self.path, *arguments], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr or f"{self.path} failed without a message"
        return "" if (folder / made).exists() else f"{self.path} wrote no library: is it a compiler?"


@cache
def host_compiler() -> HostCompiler:
    """CONVGEN_CXX or CXX where set, else the first of c++, g++, clang++.  Raises NoHostCompiler."""
    variable = next((name for name in ("CONVGEN_CXX", "CXX") if os.environ.get(name)), "")
    for name in [os.environ[variable]] if variable else ["c++", "g++", "clang++"]:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        return HostCompiler(path, "clang" if "clang" in shown else "gcc", shown.strip())
    if variable:
        raise NoHostCompiler(
            f"the emulator's compiler {name!r}, which {variable} names, cannot be run\n"
            "hint: set CONVGEN_CXX to the name or the path of a C++17 compiler, such as g++, without options"
        )
    raise NoHostCompiler(
        "no C++17 compiler was found; the emulator needs one\n"
        "hint: install g++ or clang++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; "
        "macOS: xcode-select --install), or name one in CONVGEN_CXX"
    )


@cache
def _folder() -> Path:
    """Where this process keeps the libraries that it loads."""
    import atexit

    folder = Path(tempfile.mkdtemp(prefix="convgen-emulator-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _digest(*parts: str | bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


def _build(key: str, files: dict[str, str | bytes], arguments: Sequence[str], name: str) -> tuple[Path | None, str]:
    """Like `_built`.  Raises ConvgenError where there is no room for temporary files."""
    try:
        with turn(key):
            return _built(key, files, arguments, name)
    except OSError as e:
        where = tempfile.tempdir or "the temporary folder"
        raise ConvgenError(
            f"{where}: cannot be written: {e.strerror or e}\nhint: TMPDIR names another folder"
        ) from None


def _built(key: str, files: dict[str, str | bytes], arguments: Sequence[str], name: str) -> tuple[Path | None, str]:
    """The path of a shared library, from the cache or made of `files`; or the compiler's errors."""
    cache_, library = Cache(), _folder() / f"{key}.so"
    if library.exists():
        return library, ""
    hit = cache_.get(key)
    if hit is None:
        with tempfile.TemporaryDirectory(prefix="convgen-build-") as temporary:
            folder = Path(temporary)
            for file, text in files.items():
                (folder / file).write_bytes(text.encode() if isinstance(text, str) else text)
            errors = host_compiler().run([*arguments, "-o", name], folder, name)
            if (full := os.strerror(errno.ENOSPC)) in errors:
                raise OSError(errno.ENOSPC, full)
            if errors:
                return None, errors
            hit = {name: (folder / name).read_bytes()}
        cache_.put(key, hit)
    staging = library.with_suffix(f".{os.getpid()}")
    staging.write_bytes(hit[name])
    staging.rename(library)
    return library, ""


@cache
def _runtime_sources() -> str:
    files = sorted([*RUNTIME.iterdir(), *INCLUDE.iterdir()])
    return _digest(*(part for f in files for part in (f.name, f.read_bytes())))


@cache
def runtime_library() -> Path:
    """The runtime, compiled where it is not in the cache.  Raises NoHostCompiler."""
    compiler = host_compiler()
    # nobody replaces its functions, and 24 bytes a thread find room beside those of the libraries loaded first
    fast = ("-O3", "-fno-semantic-interposition", "-ftls-model=initial-exec")
    # frame pointers lead to the calls that a kernel's threads meet at (CONVGEN_SITE)
    flags = [*_COMMON, *fast, "-fno-omit-frame-pointer", "-fno-exceptions", "-fno-rtti"]
    if platform.system() != "Darwin":
        flags.append("-Wl,-z,defs")  # a C compiler leaves out C++'s library: it is heard here
    key = "emulator-" + _digest(_runtime_sources(), compiler.version, platform.machine(), *flags)
    library, errors = _build(key, {}, [*flags, f"-I{INCLUDE}", str(RUNTIME / "runtime.cc"), "-ldl"], "runtime.so")
    if library is None:
        raise NoHostCompiler(
            f"{compiler.path} cannot compile the emulator (C++17 on x86-64 or 64-bit ARM):\n{_head(errors)}\n"
            "hint: CONVGEN_CXX names a C++ compiler, such as g++ or clang++"
        )
    return library


def kernel_library(
    source: str, entries: Sequence[str], checks: bool, explains: bool = False, zeros: bool = False
) -> Path:
    """A generated source as a shared library with one `convgen_call_<entry>` an entry, and the numbers of its
    `declared.bounds`, `convgen_bounds_<entry>`.  What C++ leaves undefined ends in a trap (`steps.Trapped`), or, where
    it `explains`, in a report.  Variables that nobody assigns hold 0xfe in every byte, or, with `zeros` and gcc, 0.

    CONVGEN_EMULATOR_DEBUG names a folder to put the source in, for a debugger to find.  Raises EmulationError with
    the compiler's words where the source is no C++, NoHostCompiler, and UsageError where the folder is none.
    """
    compiler = host_compiler()
    runtime_library()  # a compiler that fails this is not tried on a kernel
    place, symbols = SOURCE, ["-g1", "-gdwarf-4"]
    if debug := os.environ.get("CONVGEN_EMULATOR_DEBUG"):
        place, symbols, explains = os.path.abspath(os.path.join(debug, SOURCE)), ["-g"], True
        write_all({Path(place): source.encode()}, hint="CONVGEN_EMULATOR_DEBUG names another folder")
    sanitizers = ["-fsanitize=kernel-address", *_OUTLINED[compiler.family], *_UNDEFINED] if checks else []
    if checks and not explains:
        sanitizers += _TRAPS[compiler.family]
    unassigned = "zero" if zeros and compiler.family == "gcc" else "pattern"  # clang before 16 refuses zero
    flags = [
        *_COMMON, *_LEVEL, *symbols, *_FAMILY_ONLY[compiler.family], *sanitizers,
        "-fno-exceptions", f"-ftrivial-auto-var-init={unassigned}",
        "-Wl,-undefined,dynamic_lookup" if platform.system() == "Darwin" else "-Wl,-Bsymbolic",
        "-DCONVGEN_EMULATE",
    ]  # fmt: skip
    lines = [f"#define CONVGEN_{part}" for word, part in _PARTS.items() if word in source]
    lines += ['#include "convgen_emulator.h"']
    for macro, (names, numbers) in _FAMILIES.items():
        lines += [f"CONVGEN_{macro}({n})" for n in sorted(set(map(int, names.findall(source)))) if n in numbers]
    lines += [f'#include "{place}"']
    named = _LAID_OUT if is_whole(source) else _LAID_OUT[:1]
    defined = (name for name in named if re.search(rf"^struct\b[^;]*\b{name} {{", source, re.MULTILINE))
    lines += [f"CONVGEN_LAYOUT_{name}" for name in defined]
    lines += [f"CONVGEN_ENTRY({name}, {bounds(source, name)})" for name in entries]
    entry = "\n".join(lines) + "\n"
    key = "emulated-" + _digest(_runtime_sources(), compiler.version, platform.machine(), source, entry, *flags)
    texts: dict[str, str | bytes] = {SOURCE: source, "entry.cc": entry}
    if checks and compiler.family == "gcc" and (variables := declared_without_value(source)):
        _, errors = _build(f"{key}-assigned", texts, [*_ASSIGNED, f"-I{INCLUDE}", "entry.cc"], "kernel.s")
        if findings := _unassigned_findings(errors, variables, source):
            raise EmulationError(", ".join(entries), findings)
    arguments = [*flags, f"-I{INCLUDE}", "entry.cc", *_LIBRARIES[compiler.family]]
    library, errors = _build(key, texts, arguments, "kernel.so")
    if library is None:
        raise EmulationError(", ".join(entries), _compile_findings(errors, source))
    return library


_ERROR = re.compile(rf"^(?:\S*/)?{re.escape(SOURCE)}:(\d+):\d+: (?:fatal )?error: (.*)$", re.MULTILINE)


_UNASSIGNED = re.compile(
    rf"^(?:\S*/)?{re.escape(SOURCE)}:(\d+):\d+: error: \W(\w+)\W (?:may be|is) used uninitialized", re.MULTILINE
)


def _unassigned_findings(errors: str, names: Collection[str], source: str) -> list[Finding]:
    lines = source.splitlines()
    return [
        Finding(
            "uninitialized",
            f"`{name}` may be read before it is assigned: give it a value where it is declared",
            int(line),
            lines[int(line) - 1].strip(),
        )
        for line, name in dict.fromkeys(_UNASSIGNED.findall(errors))
        if name in names
    ]


def _compile_findings(errors: str, source: str) -> list[Finding]:
    lines = source.splitlines()
    found = [
        Finding("compile", message, int(line), lines[int(line) - 1].strip() if int(line) <= len(lines) else "")
        for line, message in _ERROR.findall(errors)[:12]
    ]
    return found or [Finding("compile", f"{host_compiler().path} refuses the source:\n{_head(errors)}")]


def _head(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[:lines])


def line_of(library: Path, address: int) -> int:
    """The line of the generated source that an instruction of a kernel's library comes from; 0 if unknown."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line") or shutil.which("llvm-symbolizer")
    if tool is None:
        return 0
    command = [tool, f"--obj={library}" if tool.endswith("symbolizer") else f"--exe={library}", "-i", hex(address)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(rf"{re.escape(SOURCE)}:(\d+)", shown)
    return int(found[1]) if found else 0
