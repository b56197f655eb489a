"""Print the gradients of a spec's forward convolutions as a spec: for each NAME, a NAME_dgrad and a NAME_wgrad.  The
gradients of biases are results of NAME_wgrad.  In both, the output's name stands for the gradient of NAME's sums.

With --after CONV, the convolution's input is CONV's result: dgrad also goes back through CONV's epilogue, with the
values that CONV's forward kernel keeps.  docs/gradients.md has the definitions.

examples:
  convgen gradient layer.conv
  convgen gradient block.conv --only conv2 --after conv1
  convgen gradient block.conv --only conv1 --branch   dgrad also adds the gradient of another use of the input
"""

from __future__ import annotations

import argparse

from convgen.cli import console
from convgen.cli.arguments import add_defines, add_only, read_text
from convgen.spec import Spec


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", metavar="SPEC", help="a .conv file; - reads standard input")
    add_defines(parser)
    add_only(parser)
    parser.add_argument("--after", metavar="CONV", help="the convolution whose result is the input")
    parser.add_argument("--branch", action="store_true", help="add the operand `branch` to the gradient of the input")


def run(arguments: argparse.Namespace) -> int:
    from convgen import backward

    spec = Spec(*read_text(arguments.spec), dict(arguments.defines), only=tuple(arguments.only))
    with console.spinner("deriving gradients"):
        text = backward.spec(spec, after=arguments.after, branch=arguments.branch)
    console.write(text.removesuffix("\n"))
    return 0
