"""Where the commands that measure take their convolutions from: specs, and suites by name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from convgen import driver
from convgen.bench import suites
from convgen.cli import console
from convgen.cli.arguments import add_images, add_specs, one_of, read_specs
from convgen.driver import Compilation
from convgen.ir.problem import Op
from convgen.spec import UsageError

#: What --op may name.
_OPS = (Op.FPROP, Op.DGRAD, Op.WGRAD)


def add_sources(parser: argparse.ArgumentParser) -> None:
    add_specs(parser, nargs="*")
    add_images(parser)
    parser.add_argument(
        "--suite", type=lambda text: [name.strip() for name in text.split(",")], default=[], metavar="NAMES",
        help="suites, separated by commas: specs, or folders of specs, that ship with convgen",
    )  # fmt: skip
    parser.add_argument(
        "--op", type=one_of(*_OPS), default=(), metavar="OPS",
        help=f"of each convolution these, of {', '.join(_OPS)}, separated by commas; a forward convolution has both "
        "gradients, by auto unless --strategy names another (default: what the spec says)",
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
    every = ((spec, compilation) for spec in specs for compilation in driver.load(spec))
    found = [(Path(spec.path).stem, own) for spec, c in every for own in _of_operators(c, arguments.op)]
    if not found:
        raise UsageError(f"no convolution has op {' or '.join(arguments.op)}\nhint: leave out --op")
    named = [(f"{stem}/{c.name}" if len(specs) > 1 else c.name, c) for stem, c in found]
    if not arguments.images:
        return named
    with console.spinner("choosing plans"):
        return [(f"{name}.n{own.request.problem.n}", own) for name, c in named for own in each(c)]


def _of_operators(compilation: Compilation, ops: Iterable[str]) -> Iterator[Compilation]:
    """A convolution as the operators that are asked for: itself, or its bare gradients.  Raises Underivable."""
    request = compilation.request
    problem = request.problem
    if not ops or problem.op in ops:
        yield compilation
    if problem.op is not Op.FPROP or not set(ops) - {Op.FPROP}:
        return
    from convgen.backward import gradients

    made = gradients(problem.static)
    for op, gradient in ((Op.DGRAD, made.dgrad), (Op.WGRAD, made.wgrad)):
        if op in ops:
            bare = replace(gradient, epilogue=None)
            yield Compilation(compilation.spec, replace(request, problem=bare, strategy="auto", options={}))
