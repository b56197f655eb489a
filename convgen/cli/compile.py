"""Write the kernels of a spec: for each convolution NAME.cu (source), NAME.cubin and NAME.json (the manifest:
launch, shared memory, tensor maps, operands, registers, spills, digest); if asked for, NAME.ptx, NAME_host.cpp (a C++
program that runs the kernel through the CUDA driver API), and NAME.kernel (which convgen.load reads).  Needs no GPU.

With --images, a kernel has up to four plans.  The files of the plan for 8 images are NAME.n8.cu and so on;
NAME.kernel has all plans.

examples:
  convgen compile layer.conv                            into the current folder
  convgen compile layer.conv -o out -D n=64             another batch size, into out/
  convgen compile layer.conv --target sm_80 --emit cu   only the source, for another GPU
  convgen compile layer.conv --emit cubin,host          a cubin and NAME_host.cpp, a C++ program that runs it
  convgen compile layer.conv --images 1-64 --emit kernel   for `dynamic n`: plans for batches from 1 to 64
  convgen compile layer.conv --dump-after plan          print the result of a pass; write no files
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from convgen import driver, plurals, requests
from convgen.cli import console, records
from convgen.cli.arguments import add_choice, add_images, add_specs, add_tune, one_of, read_specs
from convgen.files import check_folder, write_all

if TYPE_CHECKING:
    from convgen.runtime.kernel import Kernel


def _host(kernel: Kernel) -> bytes:
    from convgen.runtime import host

    return host.program(kernel.manifest).encode()


def _saved(kernel: Kernel) -> bytes:
    from convgen.runtime import saved

    return saved.packed(kernel)


#: What may be written: how the name of a kernel's file ends, and what it holds.
FILES: dict[str, tuple[str, Callable[[Kernel], bytes]]] = {
    "cu": (".cu", lambda kernel: kernel.source.encode()),
    "ptx": (".ptx", lambda kernel: kernel.ptx.encode()),
    "cubin": (".cubin", lambda kernel: kernel.cubin),
    "json": (".json", lambda kernel: kernel.manifest.to_json().encode()),
    "host": ("_host.cpp", _host),
    "kernel": (".kernel", _saved),
}
_USUAL = ("cu", "cubin", "json")
#: The ending of the file that has all of a kernel's classes of sizes; the others are written of each.
_WHOLE = ".kernel"


def configure(parser: argparse.ArgumentParser) -> None:
    add_specs(parser)
    add_choice(parser)
    add_tune(parser)
    add_images(parser)
    parser.add_argument(
        "-o", "--output", dest="folder", type=_folder, metavar="DIR",
        help="folder to write to (default: the current one)",
    )  # fmt: skip
    parser.add_argument(
        "--emit", type=one_of(*FILES), metavar="KINDS",
        help=f"which files to write, any of {','.join(FILES)} (default: {','.join(_USUAL)})",
    )  # fmt: skip
    parser.add_argument(
        "--dump-after", choices=tuple(driver.PASSES), metavar="PASS",
        help=f"print the result of a pass ({', '.join(driver.PASSES)}), and write no files",
    )  # fmt: skip


def _folder(text: str) -> Path:
    if not text:  # of a variable that is not set; a Path takes it for this folder
        raise argparse.ArgumentTypeError("it names no folder\nhint: for this folder, leave it out")
    if text == "-":
        raise argparse.ArgumentTypeError("`-` is standard output, and kernels are several files\nhint: name a folder")
    return Path(text)


def run(arguments: argparse.Namespace) -> int:
    specs = read_specs(arguments)
    if arguments.dump_after:
        _check_dump(arguments)
        for spec in specs:
            _dump(spec, driver.PASSES[arguments.dump_after])
        return 0
    folder, hint = arguments.folder or Path(), "-o names another folder"
    check_folder(folder, hint)
    with console.spinner("compiling") as say:
        kernels = _compile(specs, say)
    kinds = [FILES[kind] for kind in arguments.emit or _USUAL]
    files = {folder / name: data for kernel in kernels.values() for name, data in _files(kernel, kinds)}
    write_all(files, hint=hint)
    console.table(("kernel", "op", "strategy", "configuration", "registers", "spilled"), _rows(kernels))
    endings = ", ".join(ending for ending, _ in kinds)
    targets = ", ".join(dict.fromkeys(kernel.manifest.target for kernel in kernels.values()))
    console.write(f"\nwrote {plurals.counted(len(files), 'file')} ({endings}) for {targets} to {folder}")
    return 0


def _check_dump(arguments: argparse.Namespace) -> None:
    """Raises UsageError if a dump is combined with output files."""
    for option, given in (("-o", arguments.folder), ("--emit", arguments.emit)):
        if given is not None:
            raise driver.UsageError(f"--dump-after prints, and writes no files\nhint: leave out {option}")


def _files(kernel: Kernel, kinds: Iterable[tuple[str, Callable[[Kernel], bytes]]]) -> Iterator[tuple[str, bytes]]:
    """Names and contents; of several classes of sizes, of each what is not of all."""
    for ending, content in kinds:
        for name, of in [(kernel.name, kernel)] if ending == _WHOLE else _classes(kernel):
            yield f"{name}{ending}", content(of)


def _classes(kernel: Kernel) -> list[tuple[str, Kernel]]:
    """The kernel under its name, or of several classes of sizes each, `NAME.n8` for the one that has 8 images."""
    found = getattr(kernel, "classes", (kernel,))
    if len(found) == 1:
        return [(kernel.name, kernel)]
    return [(f"{kernel.name}.n{of.manifest.written['n']}", of) for of in found]


def _compile(specs: list[driver.Spec], say: Callable[[str], None]) -> dict[str, Kernel]:
    """Every kernel by name.  Raises UsageError where two specs would write the same files."""
    if len(specs) > 1:
        _check_names(specs)
    kernels: dict[str, Kernel] = {}
    for spec in specs:
        kernels |= requests.compile_all(spec, lambda name: say(f"compiling {name}"))
    return kernels


def _check_names(specs: list[driver.Spec]) -> None:
    """Checks output names before anything is compiled."""
    origin: dict[str, str] = {}
    for spec in specs:
        names = [compilation.name for compilation in driver.load(spec)]
        for name in names:
            if name in origin:
                raise driver.UsageError(
                    f"{origin[name]} and {spec.path} both have a convolution {name!r}, and would write the same files"
                    "\nhint: compile them one by one, each with its own -o"
                )
        origin |= dict.fromkeys(names, spec.path)


def _rows(kernels: dict[str, Kernel]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, kernel in (row for whole in kernels.values() for row in _classes(whole)):
        m = kernel.manifest
        registers = max((r.registers for r in m.resources.values()), default=0)
        spilled = sum(r.spill_stores for r in m.resources.values())
        spills = f"{spilled} bytes" if spilled else "none"
        rows.append((name, m.op, m.strategy, m.config, str(registers), spills))
    return rows


def _dump(spec: driver.Spec, record: str) -> None:
    for own in (own for compilation in driver.load(spec) for own in compilation.classes):
        with console.spinner(f"compiling {own.name}"):
            made = getattr(own, record)
        console.write(records.text(made))
