"""Show what convgen knows about each convolution of a spec: the index formulas before and after simplification
with their operation counts, the roofline, which strategies can serve it or why not, and the plan.

examples:
  convgen explain layer.conv
  convgen explain specs/resnet50.conv -D n=64 --only res4_3x3
  convgen explain layer.conv --strategy im2col   the plan of another strategy
"""

from __future__ import annotations

import argparse

from convgen import driver
from convgen.cli import console
from convgen.cli.arguments import add_specs, read_specs


def configure(parser: argparse.ArgumentParser) -> None:
    add_specs(parser)


def run(arguments: argparse.Namespace) -> int:
    for spec in read_specs(arguments):
        with console.spinner(f"reading {spec.path}"):
            found = driver.load(spec)
        for compilation in found:
            with console.spinner(f"explaining {compilation.name}"):
                explanation = compilation.explain()
            console.show(explanation)
        driver.choose_all(spec)  # raises where there was no plan to show
    return 0
