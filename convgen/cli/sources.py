"""Where the commands that measure take their convolutions from: specs, and suites by name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from convgen import driver
from convgen.bench import suites
from convgen.cli import console
from convgen.cli.arguments import add_images, add_specs, read_specs
from convgen.driver import Compilation
from convgen.spec import UsageError


def add_sources(parser: argparse.ArgumentParser) -> None:
    add_specs(parser, nargs="*")
    add_images(parser)
    parser.add_argument(
        "--suite", type=lambda text: [name.strip() for name in text.split(",")], default=[], metavar="NAMES",
        help="suites, separated by commas: specs, or folders of specs, that ship with convgen",
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
    found = [(Path(spec.path).stem, compilation) for spec in specs for compilation in driver.load(spec)]
    named = [(f"{stem}/{c.name}" if len(specs) > 1 else c.name, c) for stem, c in found]
    if not arguments.images:
        return named
    with console.spinner("choosing plans"):
        return [(f"{name}.n{own.request.problem.n}", own) for name, c in named for own in each(c)]
