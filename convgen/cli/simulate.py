"""Estimate how long a weight-stationary systolic array, such as a TPU's, takes for the convolutions of a spec, by
channel-first implicit im2col.  This is a model, not a target for convgen's kernels; docs/reproduction.md compares it
with the document that describes it.  Needs no GPU.

A pass merges as many taps as --tiles says; auto merges as many as the array's rows hold, at most one filter row.

examples:
  convgen simulate specs/vgg16.conv
  convgen simulate specs/vgg16.conv -D n=64 --array 256
  convgen simulate specs/vgg16.conv --only conv1_1 --tiles 1   without merging taps
"""

from __future__ import annotations

import argparse
import re
from functools import partial

from convgen import driver
from convgen.cli import console
from convgen.cli.arguments import add_specs, read_specs, short
from convgen.spec import UsageError
from convgen.systolic.machine import LARGEST_ARRAY, LEAST_ARRAY, Machine
from convgen.systolic.schedule import shape_of
from convgen.systolic.timing import Timing, simulate

_HEADERS = ("conv", "tiles", "cycles", "time", "TFLOPS", "utilization", "workspace", "memory", "ports")


def configure(parser: argparse.ArgumentParser) -> None:
    add_specs(parser)
    array, word = partial(_number, LEAST_ARRAY), partial(_number, 1)
    parser.add_argument(
        "--array", type=array, default=128, metavar="N", help="the array's rows and columns (default: 128)"
    )
    parser.add_argument(
        "--word", type=word, default=8, metavar="N", help="elements in a word of the vector memories (default: 8)"
    )
    parser.add_argument(
        "--tiles", type=_tiles, default=None, metavar="N", help="taps that a pass merges, or auto (the default)"
    )


def run(arguments: argparse.Namespace) -> int:
    machine = Machine(arguments.array, arguments.word)
    found: list[tuple[str, Timing]] = []
    with console.spinner("simulating") as say:
        for compilation in (c for spec in read_specs(arguments) for c in driver.load(spec)):
            say(f"simulating {compilation.name}")
            found.append((compilation.name, _simulated(compilation, machine, arguments.tiles)))
    rows = [(name, *_cells(timing)) for name, timing in found]
    seconds, macs = sum(t.seconds for _, t in found), sum(t.macs for _, t in found)
    console.table(_HEADERS, rows)
    console.write(
        f"all: {seconds * 1e6:.1f} us, {2e-12 * macs / seconds:.2f} TFLOPS, {2 * macs / seconds / machine.peak:.1%} of "
        f"the peak of {machine.array} x {machine.array} at {machine.hertz / 1e6:.0f} MHz; "
        f"{machine.dram / 1e9:.0f} GB/s off chip"
    )
    return 0


def _simulated(compilation: driver.Compilation, machine: Machine, tiles: int | None) -> Timing:
    """Raises UsageError, by the convolution's name."""
    try:
        return simulate(shape_of(compilation.request.problem), machine, tiles)
    except UsageError as e:
        raise UsageError(f"{compilation.name}: {e}") from None


def _cells(timing: Timing) -> tuple[str, ...]:
    return (
        str(timing.tiles),
        f"{timing.cycles:.0f}",
        f"{timing.seconds * 1e6:.1f} us",
        f"{timing.tflops:.2f}",
        f"{timing.utilization:.1%}",
        f"{timing.workspace / 1024:.0f} KiB",
        f"{timing.bandwidth / 1e9:.0f} GB/s",
        f"{timing.port_use:.1%}",
    )


def _number(least: int, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not least <= int(text) <= LARGEST_ARRAY:
        raise argparse.ArgumentTypeError(f"{short(text)} is not a whole number from {least} to {LARGEST_ARRAY}")
    return int(text)


def _tiles(text: str) -> int | None:
    if text == "auto":
        return None
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise argparse.ArgumentTypeError(f"{short(text)} is neither a whole number up to 999999 nor auto")
    return int(text)
