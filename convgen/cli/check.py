"""Says what is wrong with specs: everything at once, with place and remedy.  Compiles and writes nothing.

The exit code is 0 where nothing is wrong, 1 where something is.

examples:
  convgen check layer.conv
  convgen check specs/*.conv
  convgen check layer.conv --format json   for editors and scripts
"""

from __future__ import annotations

import argparse
import json
import sys

from convgen import driver
from convgen.cli import console
from convgen.cli.arguments import add_specs, read_specs
from convgen.diagnostics import SpecError, format_json


def configure(parser: argparse.ArgumentParser) -> None:
    add_specs(parser)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def run(arguments: argparse.Namespace) -> int:
    specs = read_specs(arguments)
    found = [_check(spec) for spec in specs]
    errors = [result for result in found if isinstance(result, SpecError)]
    if arguments.format == "json":
        rows = [row for e in errors for row in json.loads(format_json(e.diagnostics, e.path))]
        console.write(json.dumps(rows, indent=2))
    else:
        for spec, result in zip(specs, found, strict=True):
            if isinstance(result, SpecError):
                console.diagnose(result, sys.stdout)
            else:
                console.write(f"{spec.path}: {console.count(result, 'convolution')}, no errors")
    return 1 if errors else 0


def _check(spec: driver.Spec) -> int | SpecError:
    """How many convolutions a spec has, or its errors."""
    try:
        return len(driver.choose_all(spec))
    except SpecError as e:
        return e
