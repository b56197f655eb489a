"""Repeat an experiment from the documents that convgen implements: our figures next to theirs, and why they differ.
docs/reproduction.md lists every claim, with its command.

examples:
  convgen reproduce --list
  convgen reproduce memory
  convgen reproduce memory --out memory.json --plot memory.svg
  convgen reproduce networks --from benchmarks/results/whole_networks_n8_h200.json
  convgen reproduce stride --from benchmarks/results/strides_h200.json
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from convgen import reproduce
from convgen.bench import plot
from convgen.cli import console
from convgen.cli.arguments import UsageError, file
from convgen.files import check_writable, write_all


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="an experiment; --list shows them")
    parser.add_argument("--list", action="store_true", help="list the experiments")
    parser.add_argument(
        "--from",
        dest="results",
        type=file,
        metavar="FILE",
        help="results of a benchmark, for an experiment that evaluates them",
    )
    parser.add_argument("--out", type=file, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--plot", type=file, metavar="FILE", help="draw a plot, .png or .svg (needs matplotlib)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        rows = [(name, e.summary, e.source) for name, e in reproduce.EXPERIMENTS.items()]
        console.table(("experiment", "what it shows", "in"), rows)
        return 0
    if not arguments.name:
        raise UsageError("no experiment is named\nhint: `convgen reproduce --list` lists them")
    experiment = reproduce.find(arguments.name)
    for path in (arguments.out, arguments.plot):
        check_writable(path)
    if arguments.plot:
        plot.check(arguments.plot)
    with console.spinner(f"repeating {arguments.name}"):
        outcome = experiment.run(_record(arguments.name, experiment.weighs, arguments.results))
    files: dict[Path, bytes] = {}
    if arguments.out:
        weighed = ["--from", str(arguments.results)] if experiment.weighs else []
        command = shlex.join(["convgen", "reproduce", arguments.name, *weighed])
        files[arguments.out] = outcome.to_json(command, experiment.source).encode()
    if arguments.plot:
        files[arguments.plot] = outcome.draw(arguments.plot)
    console.show(outcome.table())
    write_all(files)
    return 0


def _record(name: str, weighs: reproduce.Results | None, path: Path | None) -> dict[str, Any] | None:
    """The results that an experiment weighs.  Raises UsageError."""
    if weighs is None:
        if path:
            raise UsageError(f"--from does not go with {name}, which weighs no results")
        return None
    if not path:
        raise UsageError(
            f"{name} weighs results of `{weighs.command}`\nhint: --from names their file: docs/reproduction.md has it"
        )
    try:
        record = json.loads(path.read_bytes())
        if {"rows", "gpu", "commit"} <= record.keys() and all(row.keys() >= weighs.row for row in record["rows"]):
            return record
    except OSError as e:
        raise UsageError(f"{path}: cannot be read: {e.strerror or e}") from None
    except (ValueError, AttributeError):
        pass
    raise UsageError(f"{path}: is not a result file of `{weighs.command}`")
