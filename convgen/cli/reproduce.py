"""Repeat an experiment of the documents that convgen implements: our figures beside theirs, and why they differ.
docs/reproduction.md lists every claim, with its command.

examples:
  convgen reproduce --list
  convgen reproduce memory
  convgen reproduce memory --out memory.json --plot memory.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

from convgen import reproduce
from convgen.bench import plot
from convgen.cli import console
from convgen.cli.arguments import UsageError
from convgen.cli.files import check_place, write_all


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="an experiment; --list shows them")
    parser.add_argument("--list", action="store_true", help="list the experiments")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a plot, .png or .svg (needs matplotlib)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        rows = [(name, e.summary, e.source) for name, e in reproduce.EXPERIMENTS.items()]
        console.table(("experiment", "what it shows", "in"), rows)
        return 0
    if not arguments.name:
        raise UsageError("no experiment is named\nhint: `convgen reproduce --list` lists them")
    experiment = reproduce.find(arguments.name)
    for path in (arguments.out, arguments.plot):
        check_place(path)
    if arguments.plot:
        plot.check(arguments.plot)
    outcome = experiment.run()
    files: dict[Path, bytes] = {}
    if arguments.out:
        files[arguments.out] = outcome.to_json(arguments.name, experiment.source).encode()
    if arguments.plot:
        files[arguments.plot] = outcome.draw(arguments.plot)
    console.show(outcome.table())
    write_all(files)
    return 0
