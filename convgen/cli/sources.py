"""Where the commands that measure take their convolutions from: specs, and suites by name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from convgen import driver
from convgen.bench import suites
from convgen.cli import console
from convgen.cli.arguments import add_choice, add_images, add_specs, names, one_of, read_specs
from convgen.driver import Compilation
from convgen.ir.problem import Op
from convgen.spec import UsageError

#: What can be done in place of measuring.
EMULATED = "`convgen run --device emulate` runs kernels on the CPU, and `convgen explain` estimates their time"
#: What --op may name.
_OPS = (Op.FPROP, Op.DGRAD, Op.WGRAD)


def add_sources(parser: argparse.ArgumentParser) -> None:
    add_specs(parser, nargs="*")
    add_choice(parser)
    add_images(parser)
    parser.add_argument(
        "--suite", action="extend", type=names, default=[], metavar="NAMES",
        help="suites, separated by commas: specs, or folders of specs, that ship with convgen",
    )  # fmt: skip
    parser.add_argument(
        "--op", type=one_of(*_OPS), default=(), metavar="OPS",
        help=f"operators of each convolution, any of {', '.join(_OPS)}, separated by commas; forward convolutions of "
        "f16, bf16, f32 and f64 have both gradients, by auto unless --strategy names another (default: the spec's)",
    )  # fmt: skip


def read_sources(
    arguments: argparse.Namespace, each: Callable[[Compilation], Iterable[Compilation]]
) -> list[tuple[str, Compilation]]:
    """Every convolution that the arguments name, with a name for reports; `each` gives those for several numbers of
    images, where it has them.  Raises UsageError, SpecError."""
    specs = read_specs(arguments, (str(path) for name in arguments.suite for path in suites.find(name)))
    if not specs:
        raise UsageError(
            f"nothing to measure\nhint: name a .conv file, or a suite with --suite, of {', '.join(suites.names())}"
        )
    if arguments.images and set(arguments.op) - {Op.FPROP}:
        raise UsageError("--op makes gradients of a fixed number of images\nhint: leave out --images, and set it by -D")
    found = [(Path(spec.path).stem, own) for spec in specs for own in _of_operators(driver.load(spec), arguments.op)]
    if not found:
        raise UsageError(f"no convolution has op {' or '.join(arguments.op)}\nhint: leave out --op")
    named = [(f"{stem}/{c.name}" if len(specs) > 1 else c.name, c) for stem, c in found]
    if not arguments.images:
        return named
    with console.spinner("choosing plans"):
        return [(f"{name}.n{own.request.problem.n}", own) for name, c in named for own in each(c)]


def _of_operators(every: Sequence[Compilation], ops: Collection[str]) -> Iterator[Compilation]:
    """A spec's convolutions as the operators that are asked for: themselves, or their bare gradients, but for those
    that the spec has.  Warns where gradients are not derived."""
    stated = {(c.request.conv, c.request.problem.op) for c in every}
    for compilation in every:
        request, problem = compilation.request, compilation.request.problem
        if not ops or problem.op in ops:
            yield compilation
        wanted = [op for op in (Op.DGRAD, Op.WGRAD) if op in ops and (request.conv, op) not in stated]
        if problem.op is not Op.FPROP or not wanted:
            continue
        from convgen.backward import Underivable, gradients

        try:
            made = gradients(problem.static)
        except Underivable as e:
            console.warn(str(e).splitlines()[0])
            continue
        for op in wanted:
            bare = replace(made.dgrad if op is Op.DGRAD else made.wgrad, epilogue=None)
            yield Compilation(compilation.spec, replace(request, problem=bare, strategy="auto", options={}))
