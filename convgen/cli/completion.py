"""Print a script with which a shell completes convgen's commands, options, targets and strategies.

examples:
  convgen completion bash   > ~/.local/share/bash-completion/completions/convgen
  convgen completion zsh    > ~/.zfunc/_convgen, a folder of zsh's fpath
  convgen completion fish   > ~/.config/fish/completions/convgen.fish
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from importlib import import_module

from convgen.cli import console

SHELLS = ("bash", "zsh", "fish")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def run(arguments: argparse.Namespace) -> int:
    import shtab

    with console.spinner("reading the commands"):
        script = shtab.complete(whole_parser(), arguments.shell)
    console.write(_with_usage(script, arguments.shell))
    return 0


def _with_usage(script: str, shell: str) -> str:
    """Its comment says where this command's help has it go, in place of what shtab says."""
    (line,) = (line.strip() for line in str(__doc__).splitlines() if f"completion {shell} " in line)
    return re.sub(r"^# Usage:\n(?:# .*\n)+?(?=# See also)", f"# Usage: {line}\n", script, count=1, flags=re.MULTILINE)


def whole_parser() -> argparse.ArgumentParser:
    """Every command as a subcommand of one parser, whose values are known to shells."""
    from convgen.cli import COMMANDS
    from convgen.cli.arguments import Parser

    parser = Parser(prog="convgen")
    parser.add_argument("--version", action="store_true", help="show the version")
    subparsers = parser.add_subparsers(parser_class=Parser, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = subparsers.add_parser(name, help=summary)
        import_module(f"convgen.cli.{name}").configure(command)
        for action in command._actions:
            _describe(action)
    return parser


def _describe(action: argparse.Action) -> None:
    """The values that a shell offers for an argument, by its name in the help text."""
    import shtab

    if action.metavar in ("SPEC", "FILE", "PLOT"):
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif action.metavar == "DIR":
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    elif action.choices is None and action.metavar in (known := _values()):
        action.choices = known[str(action.metavar)]


def _values() -> dict[str, Sequence[str]]:
    from convgen.bench import suites
    from convgen.functional.pointwise import ACTIVATIONS
    from convgen.gpus import GPUS
    from convgen.ir.dtypes import TENSOR_DTYPES
    from convgen.kernels import strategies
    from convgen.targets import TARGETS

    return {
        "ARCH": tuple(TARGETS),
        "GPU": tuple(str(gpu).replace(" ", "-") for gpu in GPUS.values()),
        "NAME": ("auto", *strategies.NAMES),
        "STRATEGY": strategies.NAMES,
        "DEVICE": ("gpu", "emulate"),
        "NAMES": tuple(suites.names()),
        "TYPE": TENSOR_DTYPES,
        "ACTIVATION": tuple(ACTIVATIONS),
    }
