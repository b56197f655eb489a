"""Run each kernel of a spec on random data, and compare every element of its result with a float64 reference.
Runs on the GPU if there is one that the kernel was compiled for; otherwise the generated source runs in the
emulator, which is slow.

The configuration is the one that `convgen compile` takes with the same arguments.  The emulator runs as many
images as it can in about ten seconds; if so few images cannot have that configuration, the command says so.

With --images, the command runs each of a kernel's plans; with --batch N, too, only the plan that N images take.

The exit code is 0 if every result is right, and 1 if one is wrong.

examples:
  convgen run layer.conv
  convgen run layer.conv --device emulate --batch 2   only two images
  convgen run layer.conv --seed 7                     the same data again
  convgen run layer.conv --trace trace.json           a timeline for ui.perfetto.dev; .svg makes a picture
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from convgen import driver, habits, plurals
from convgen.cli import console
from convgen.cli.arguments import add_choice, add_images, add_specs, add_tune, file, read_specs, short
from convgen.diagnostics import ConvgenError, SpecError
from convgen.files import check_writable, write_all
from convgen.ir.problem import ConvProblem
from convgen.ir.verify import Report
from convgen.runtime.kernel import Kernel
from convgen.spec import UsageError

if TYPE_CHECKING:
    from convgen.emulator.trace import Launch

#: A seed has this many bits, whether drawn or given.
_SEED_BITS = 32
#: What the emulator does in about ten seconds: multiply-adds by wgmma, bytes that are moved.
_MACS, _BYTES = 1 << 31, 1 << 25
_DEVICES = ("gpu", "emulate")


def configure(parser: argparse.ArgumentParser) -> None:
    add_specs(parser)
    add_choice(parser)
    add_tune(parser)
    add_images(parser)
    parser.add_argument(
        "--device", type=_device, metavar="DEVICE",
        help="where to run: gpu or emulate (default: the GPU if it fits the target, else emulate)",
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=_batch, metavar="N",
        help="how many images of the batch to run (default: all on a GPU, a few in the emulator)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=_seed, help="seed of the data and of the emulator's order of events (default: random)"
    )
    parser.add_argument(
        "--trace", type=file, metavar="FILE",
        help="write the emulated run's timeline: .json for ui.perfetto.dev and chrome://tracing, .svg as a picture",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    with _tidied_up():
        return _run(arguments)


@contextmanager
def _tidied_up() -> Iterator[None]:
    """Whoever asks the process to end (SIGTERM) interrupts it: nothing is left in the folder for temporary files."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(arguments: argparse.Namespace) -> int:
    specs = read_specs(arguments)
    _check_trace(arguments)
    traced: list[Launch] = []
    seed = random.SystemRandom().getrandbits(_SEED_BITS) if arguments.seed is None else arguments.seed
    right = True
    for spec in specs:
        with console.spinner(f"planning {spec.path}") as say:
            chosen = driver.choose_all(spec, lambda name: say(f"planning {name}"))
        _check_batch(chosen, arguments.batch)
        for compilation in chosen:
            device = "emulate" if arguments.trace else arguments.device or ("gpu" if compilation.gpu else "emulate")
            for own in [compilation.class_at(arguments.batch)] if arguments.batch else compilation.classes:
                with _traced(arguments.trace) as launches:
                    report = _verified(own, device, arguments.batch, seed)
                traced += launches
                right = right and report.ok
    if arguments.trace:
        _write_trace(traced, arguments.trace)
    console.write(f"seed {seed}")
    return 0 if right else 1


def _check_batch(chosen: list[driver.Compilation], batch: int | None) -> None:
    """Raises UsageError where a convolution of fixed sizes has fewer images than are to run."""
    for compilation in chosen:
        n = compilation.request.problem.n
        if batch and not compilation.varies and batch > n:
            name = _let_of_images(compilation, batch)
            hint = f"-D overrides a `let` of the batch: -D {name}={batch}" if name else f"write n={batch} into the spec"
            raise UsageError(f"--batch {batch}: {compilation.name} has {plurals.counted(n, 'image')}\nhint: {hint}")


def _let_of_images(compilation: driver.Compilation, batch: int) -> str | None:
    """The let of the spec that makes so many images where it is that number."""
    from convgen.diagnostics import Report
    from convgen.frontend.parser import parse

    spec = compilation.spec
    for let in parse(spec.text.removeprefix("\ufeff"), Report()).lets:
        with suppress(SpecError):
            made = driver.load(replace(spec, defines={**spec.defines, let.name.text: batch}))
            if any(c.name == compilation.name and c.request.problem.n == batch for c in made):
                return let.name.text
    return None


def _check_trace(arguments: argparse.Namespace) -> None:
    """Raises UsageError where a trace cannot be made or written."""
    if arguments.trace is None:
        return
    if arguments.trace.suffix not in (".json", ".svg"):
        raise UsageError(f"{arguments.trace}: a trace is a .json or a .svg file")
    if arguments.device == "gpu":
        raise UsageError("--trace needs the emulator\nhint: leave out --device gpu")
    check_writable(arguments.trace)


def _traced(path: Path | None) -> AbstractContextManager[list[Launch]]:
    """The launches of what runs inside, where they are asked for."""
    if path is None:
        return nullcontext([])
    from convgen.emulator.trace import recording

    return recording()


def _write_trace(launches: list[Launch], path: Path) -> None:
    """Every launch as Chrome's trace, or the longest as a picture."""
    from convgen.emulator import views
    from convgen.emulator.timeline import timeline

    with console.spinner("drawing the timeline"):
        lines = [timeline(launch) for launch in launches]
        longest = max(lines, key=lambda line: line.cycles)
        text = views.chrome_json(lines) if path.suffix == ".json" else views.picture(longest)
    write_all({path: text.encode()})
    console.write(f"wrote {path}: {plurals.counted(len(lines), 'launch')}")
    if left_out := sum(launch.left_out for launch in launches):
        console.warn(f"{left_out} events are left out of the trace\nhint: run fewer images, such as --batch 1")


def _verified(asked: driver.Compilation, device: str, batch: int | None, seed: int) -> Report:
    """Runs one kernel, and says how that went."""
    images = asked.request.problem.n
    compilation = asked
    if batch:
        compilation = _on_images(asked, batch)
    elif device == "emulate":
        compilation = _emulable(asked)
        _warn_of_defines(asked)
    _warn_if_other(compilation, asked, "--batch takes more images")
    problem = compilation.request.problem
    _require_memory(problem)
    with console.spinner(f"compiling {compilation.name}"):
        kernel = compilation.kernel() if device == "gpu" else compilation.uncompiled()
    report = (_on_gpu if device == "gpu" else _emulated)(kernel, problem.static, seed)
    where = "on the GPU" if device == "gpu" else "emulated"
    if asked.varies:
        where += f" on {plurals.counted(int(problem.n), 'image')}, planned for {images}"
    elif problem.n < images:
        where += f" on {problem.n} of {images} images"
    console.write(f"{compilation.name}: {problem.op} by {compilation.plan.strategy}, {where}: {report}")
    return report


def _on_images(asked: driver.Compilation, batch: int) -> driver.Compilation:
    """Raises ConvgenError where so few images cannot have the configuration: the spec is not to blame."""
    try:
        return asked.on_images(batch)
    except SpecError as e:
        raise ConvgenError(
            f"--batch {batch} is too few for the plan of {asked.request.problem.n} images: {e.diagnostics[0].message}\n"
            "hint: without --batch, as many images are run as the plan needs"
        ) from None


def _emulable(asked: driver.Compilation) -> driver.Compilation:
    """The compilation on no more images than the emulator can do, or than its configuration needs."""
    problem = asked.request.problem
    images = max(min(_MACS * problem.n // max(problem.macs, 1), _BYTES * problem.n // problem.min_bytes), 1)
    while images < problem.n:
        with suppress(SpecError):
            return asked.on_images(images)
        images *= 2
    return asked


def _warn_of_defines(asked: driver.Compilation) -> None:
    """Where -D made the batch smaller, and so another kernel of it."""
    if asked.spec.defines:
        with suppress(SpecError):
            for own in driver.load(replace(asked.spec, defines={})):
                if own.name == asked.name and own.request.problem.n > asked.request.problem.n:
                    hint = "without -D, `convgen run` runs a few images of that batch"
                    _warn_if_other(asked, own, hint, " without -D")


def _warn_if_other(run: driver.Compilation, compiled: driver.Compilation, hint: str, how: str = "") -> None:
    """Warns if the kernel that runs has another configuration than `convgen compile` would write."""
    (mine, images), (theirs, all_) = (
        (f"{c.plan.strategy}, {c.plan.config}", c.request.problem.n) for c in (run, compiled)
    )
    if mine != theirs:
        console.warn(
            f"{run.name}: this run's plan, for n={images}, is {mine}; "
            f"`convgen compile`{how} writes the plan for n={all_}: {theirs}\nhint: {hint}"
        )


def _seed(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,20}", text) or int(text) >= 1 << _SEED_BITS:
        raise argparse.ArgumentTypeError(f"{short(text)} is not a whole number from 0 to {(1 << _SEED_BITS) - 1}")
    return int(text)


def _batch(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{short(text)} is not a number of images, such as 1")
    return int(text)


def _device(text: str) -> str:
    if text in _DEVICES:
        return text
    hint = habits.did_you_mean(text, _DEVICES, habits.DEVICES) or "choose gpu or emulate"
    raise argparse.ArgumentTypeError(f"unknown device {short(text)}\nhint: {hint}")


def _on_gpu(kernel: Kernel, problem: ConvProblem, seed: int) -> Report:
    from convgen.bench.backend import CupyBackend
    from convgen.bench.measure import Checker
    from convgen.runtime import cuda, cupy_library

    with console.gpu_needed("`--device emulate` runs the generated source on the CPU"):
        cuda.driver()
        cupy_library.load()
    with console.spinner(f"running and verifying {kernel.name}"):
        return Checker(problem, CupyBackend(), seed)(kernel, kernel.manifest.arithmetic)


def _emulated(kernel: Kernel, problem: ConvProblem, seed: int) -> Report:
    from convgen.ir import verify

    arrays = verify.random_inputs(problem, seed)
    with console.progress_bar(f"emulating {kernel.name}") as advance:
        result = kernel.emulate(*(arrays[t.buffer] for t in problem.arguments), seed=seed, progress=advance)
    with console.spinner(f"verifying {kernel.name}"):
        return verify.check(problem, arrays, result, arithmetic=kernel.manifest.arithmetic)


def _require_memory(problem: ConvProblem) -> None:
    """The reference holds every tensor in float64, the input with padding that repeats its pixels, and the result with
    its bounds.  Raises ConvgenError."""
    needed = sum(t.bytes + 8 * t.size for t in problem.tensors) + 6 * 8 * sum(t.size for t in problem.results)
    if problem.padding.repeats:
        needed += 8 * problem.n * problem.c * math.prod(problem.padded)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        hint = "fewer images may fit: --batch 1" if problem.n > 1 else "write smaller extents, or less padding"
        raise ConvgenError(
            f"verifying {problem.name} takes about {needed / 1e9:.0f} GB of memory, and this machine has "
            f"{there / 1e9:.0f} GB\nhint: {hint}"
        )
