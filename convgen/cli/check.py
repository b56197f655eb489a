"""Report all errors in specs at once, each with its place and a remedy.  Compiles and writes nothing.

The exit code is 0 if all specs are right, 1 if one is wrong, and 2 if a file cannot be read.

examples:
  convgen check layer.conv block.conv
  convgen check specs                      every .conv file of a folder
  convgen check layer.conv --format json   for editors and scripts
"""

from __future__ import annotations

import argparse
import json
import sys

from convgen import plurals, requests
from convgen.cli import console
from convgen.cli.arguments import add_choice, add_specs, narrowed, paths, read_spec
from convgen.diagnostics import SpecError, format_json
from convgen.spec import Spec, UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    add_specs(parser)
    add_choice(parser)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def run(arguments: argparse.Namespace) -> int:
    rows: list[dict[str, object]] = []
    code = 0
    as_text = arguments.format == "text"
    specs: list[Spec] = []
    for path in paths(arguments):
        try:
            specs.append(read_spec(arguments, path))
        except UsageError as e:  # the other files are checked all the same
            console.complain(str(e))
            code = max(code, e.exit_code)
    for spec in narrowed(specs, arguments.only, with_errors=True):
        try:
            with console.spinner(f"checking {spec.path}") as say:
                found = requests.check_all(spec, lambda name: say(f"checking {name}"))
        except UsageError as e:
            console.complain(str(e))
            code = max(code, e.exit_code)
        except SpecError as e:
            code = max(code, e.exit_code)
            rows += json.loads(format_json(e.diagnostics, e.path))
            if as_text:
                console.diagnose(e, sys.stdout)
        else:
            if as_text:
                console.write(f"{spec.path}: {plurals.counted(found, 'convolution')}, no errors")
    if not as_text:
        console.write(json.dumps(rows, indent=2))
    return code
