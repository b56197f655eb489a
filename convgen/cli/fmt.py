"""Format specs in place: every spec gets the same layout, and words and comments stay the same.
`-` reads standard input and writes to standard output.

The exit code is 0, even if files were rewritten; with --check, it is 1 if any file would be rewritten.

examples:
  convgen fmt layer.conv
  convgen fmt specs
  convgen fmt layer.conv --check   list the files that are not formatted, and write nothing
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from convgen.cli import console
from convgen.cli.arguments import SPECS, Parser, paths, read_text
from convgen.diagnostics import SpecError
from convgen.files import write_all
from convgen.spec import UsageError


def configure(parser: Parser) -> None:
    in_place = "specs are rewritten in place; `convgen fmt - < SPEC` prints the text"
    parser.instead = dict.fromkeys(("o", "out", "output"), in_place)
    parser.add_argument("specs", nargs="+", metavar="SPEC", help=SPECS)
    parser.add_argument("--check", action="store_true", help="list the files that are not formatted, and write nothing")


def run(arguments: argparse.Namespace) -> int:
    from convgen.frontend.format import formatted

    changed: dict[Path, bytes] = {}
    code = 0
    names = paths(arguments)
    for name in names:
        try:
            text, path = read_text(name)
            made = formatted(text, path)
        except UsageError as e:  # the other files are read all the same
            console.complain(str(e))
            code = max(code, e.exit_code)
        except SpecError as e:
            console.diagnose(e, sys.stderr)
            code = max(code, e.exit_code)
        else:
            if name == "-" and not arguments.check:
                console.write(made.removesuffix("\n"))
            elif made != text:
                changed[Path(path)] = made.encode()
    if code and not arguments.check:
        if len(names) > 1:
            console.warn("no file was changed: all are formatted, or none")
        return code
    if not arguments.check:
        write_all(changed, formatted=True)
    for file in changed:
        console.write(f"{file}: {'is not formatted' if arguments.check else 'formatted'}")
    return max(code, int(arguments.check and bool(changed)))
