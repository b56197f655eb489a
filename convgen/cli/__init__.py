"""The command line: one table of commands, and the one place that reports errors.

A command is a module of `convgen.cli` with `configure(parser)`, which adds its arguments, and
`run(arguments)`, which gives the exit code; its docstring is its help.  Only the command that was asked
for is imported.

Exit codes: 0 done; 1 the spec has errors, no kernel could be made or its result is wrong; 2 what was
asked for is impossible (an unknown option, a file that cannot be read or written); 70 a bug in convgen;
130 interrupted; 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from convgen import __version__, habits
from convgen.cli import console, interrupts
from convgen.cli.arguments import Parser, UsageError
from convgen.diagnostics import ConvgenError, SpecError, did_you_mean

#: Name -> what it does.  The module has the same name.
COMMANDS: dict[str, str] = {
    "init": "write a spec of one convolution, from options or from your answers",
    "compile": "write a spec's kernels: source, cubin and manifest (needs no GPU)",
    "check": "report all errors in specs, and do nothing else",
    "fmt": "format specs uniformly, without changing words or comments",
    "explain": "show index formulas, the plan, and which strategies can serve, and why others cannot",
    "gradient": "print the gradients of a spec's layers, through epilogues too, as a spec",
    "run": "run kernels on random data and verify them against a float64 reference",
    "tune": "find the fastest configurations on this machine's GPUs or a Ray cluster's, for `auto` to use",
    "bench": "measure kernels and compare them with cuDNN and cuBLAS",
    "simulate": "estimate a systolic array's time for a spec, by channel-first implicit im2col",
    "reproduce": "repeat an experiment from the documents that convgen implements",
    "list": "show targets, strategies, their options, and suites",
    "doctor": "check what convgen needs on this machine, and say how to fix what is missing",
    "lsp": "run the language server for editors",
    "cache": "show where compiled kernels are kept and how much space they take, or clear them",
    "completion": "print a completion script for bash, zsh or fish",
}
OK, FAILED, USAGE, DEFECT, INTERRUPTED, NO_READER = 0, 1, 2, 70, 130, 141

_EXAMPLES = """\
examples:
  convgen compile specs/resnet50.conv -o out
  convgen compile specs/resnet50.conv -D n=64 --target sm_90a --only res4_3x3
  convgen explain specs/resnet50.conv --only res4_3x3
  convgen run specs/resnet50.conv --device emulate --only res5_3x3

`convgen COMMAND --help` explains a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line (by default this process's) and gives its exit code.  Raises nothing, unless
    CONVGEN_DEBUG=1 asks for the traceback of what was not foreseen."""
    console.prepare()
    warn = functools.cache(console.warn)  # once: a command may plan several times
    warnings.showwarning = lambda message, *_: warn(str(message))
    came: list[int] = []
    try:
        try:
            with interrupts.noted(came):
                code = _dispatch(sys.argv[1:] if argv is None else argv)
        except SystemExit:  # argparse has shown help or the version
            code = OK
        console.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return NO_READER
    except SpecError as e:
        console.diagnose(e, sys.stderr)
        return e.exit_code
    except ConvgenError as e:
        console.complain(str(e))
        return e.exit_code
    except Warning as e:
        console.complain(f"{e}\nhint: PYTHONWARNINGS, or Python's -W, makes this warning an error")
        return FAILED
    except MemoryError:
        hint = "a smaller batch may fit: a smaller n in the spec, or by -D where a `let` has it"
        console.complain(f"out of memory\nhint: {hint}")
        return FAILED
    except Exception as e:
        if came:
            return INTERRUPTED
        if os.environ.get("CONVGEN_DEBUG", "0") != "0":
            raise
        if isinstance(e, ModuleNotFoundError) and e.name and not e.name.startswith("convgen"):
            hint = "hint: in a checkout, `python -m pip install .` installs convgen with what it needs"
            console.complain(f"the Python module {e.name!r} is not installed\n{hint}")
            return FAILED
        console.complain(
            f"internal error: {type(e).__name__}: {' '.join(str(e).split())[:200]} "
            "(this is a bug in convgen: please report it, with the traceback that CONVGEN_DEBUG=1 shows)"
        )
        return DEFECT
    finally:
        console.silence()


def _dispatch(argv: Sequence[str]) -> int:
    parser = _parser()
    first, unknown = parser.parse_known_args(argv[:1])
    if unknown:
        meant = next((word for word in argv if word in COMMANDS), "COMMAND")
        hint = did_you_mean(unknown[0], parser._option_string_actions)
        hint = hint or f"the command comes first: `convgen {meant} {unknown[0]} ...`"
        raise UsageError(f"unrecognized arguments: {unknown[0]}\nhint: {hint}")
    name = first.command
    if name is None:
        parser.print_help(sys.stderr)
        return USAGE
    if name not in COMMANDS:
        hint = habits.did_you_mean(name, (*COMMANDS, "--help", "--version"), habits.COMMANDS)
        hint = hint or f"commands are {', '.join(COMMANDS)}"
        if name.endswith(".conv"):
            hint = f"did you mean `convgen compile {name}`?"
        raise UsageError(f"unknown command {name!r}\nhint: {hint}")
    command = import_module(f"convgen.cli.{name}")
    inner = Parser(prog=f"convgen {name}", description=command.__doc__)
    command.configure(inner)
    return command.run(inner.parse_args(argv[1:]))


def _parser() -> Parser:
    width = max(map(len, COMMANDS))
    table = "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
    parser = Parser(
        prog="convgen",
        usage="convgen COMMAND ...",
        description=f"Compiles a small language to CUDA convolution kernels.\n\ncommands:\n{table}\n\n{_EXAMPLES}",
    )
    parser.add_argument("-V", "--version", action="version", version=f"convgen {__version__}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    return parser
