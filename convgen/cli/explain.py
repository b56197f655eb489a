"""Show what convgen knows about each convolution of a spec: the index formulas before and after simplification
with their operation counts, the roofline, which strategies can serve it and why others cannot, and the plan.

With --load, show instead, pixel by pixel, what one TMA im2col load brings, with a picture of the box that walks over
the images.  --load takes the instruction's coordinates (n, the spatial ones, the channel), or the number of a tile: the
load then starts where that tile does.  The box is the plan's, unless --pixels and --channels say otherwise.

examples:
  convgen explain layer.conv
  convgen explain specs/resnet50.conv -D n=64 --only res4_3x3
  convgen explain layer.conv --strategy im2col   the plan of another strategy
  convgen explain layer.conv --gpu H100          the roofline of another GPU
  convgen explain layer.conv --images 1-64       for `dynamic n`: which plan each of these batches takes
  convgen explain layer.conv --html layer.html   a page with pictures, the timeline and the source
  convgen explain specs/resnet50.conv --only res4_3x3 --load 0,-1,-1,0 --offsets 0,1 --pixels 32
  convgen explain specs/resnet50.conv --only res4_3x3 --load 3 --svg tile3.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from convgen import driver, gpus, plurals
from convgen.cli import console
from convgen.cli.arguments import UsageError, add_choice, add_images, add_specs, file, read_specs, short
from convgen.diagnostics import SpecError
from convgen.files import check_writable, write_all


def configure(parser: argparse.ArgumentParser) -> None:
    add_specs(parser)
    add_choice(parser)
    add_images(parser)
    parser.add_argument(
        "--gpu", type=_gpu, metavar="GPU",
        help="draw the roofline of this GPU, such as H100 (default: the target's in `convgen list targets`)",
    )  # fmt: skip
    parser.add_argument(
        "--load", type=_numbers, metavar="N,H,W,C",
        help="show the TMA im2col load that starts at these coordinates, or at the tile of this number",
    )  # fmt: skip
    parser.add_argument(
        "--offsets", type=_numbers, metavar="R,S", help="what the load adds to its coordinates (default: 0)"
    )
    parser.add_argument(
        "--pixels", type=_to(1024), metavar="P", help="pixels of the box, 1 to 1024 (default: the plan's)"
    )
    parser.add_argument(
        "--channels", type=_to(256), metavar="C", help="channels of the box, 1 to 256 (default: the plan's)"
    )
    parser.add_argument(
        "--html", type=file, metavar="FILE",
        help="write one page with all of this, pictures, an emulated timeline and the source; it needs no network",
    )  # fmt: skip
    parser.add_argument("--svg", type=file, metavar="FILE", help="also draw the load, to this file")


def run(arguments: argparse.Namespace) -> int:
    if arguments.html and arguments.load:
        raise UsageError("--html does not go with --load\nhint: --svg draws the load")
    if arguments.gpu and (arguments.html or arguments.load):
        raise UsageError(f"--gpu does not go with --{'html' if arguments.html else 'load'}")
    if arguments.images and arguments.load:
        raise UsageError("--load uses the number of images in the spec\nhint: leave out --images")
    if arguments.load:
        return _show_load(arguments)
    for name in ("offsets", "pixels", "channels", "svg"):
        if getattr(arguments, name):
            raise UsageError(f"--{name} goes with --load")
    if arguments.html:
        return _write_page(arguments)
    for spec in read_specs(arguments):
        with console.spinner(f"reading {spec.path}"):
            found = driver.load(spec)
        for compilation in found:
            with console.spinner(f"explaining {compilation.name}"):
                explanation = compilation.explain(arguments.gpu)
            console.show(explanation)
        driver.choose_all(spec)  # raises where there was no plan to show
    return 0


def _write_page(arguments: argparse.Namespace) -> int:
    from convgen.report.page import page

    specs = read_specs(arguments)
    check_writable(arguments.html)
    if arguments.html.suffix != ".html":
        raise UsageError(f"{arguments.html}: a page is written as .html")
    with console.spinner("explaining") as say:
        found = [c for spec in specs for c in driver.choose_all(spec)]
        text = page(found, say)
    write_all({arguments.html: text.encode()})
    console.write(f"wrote {arguments.html}: {plurals.counted(len(found), 'convolution')}")
    return 0


def _show_load(arguments: argparse.Namespace) -> int:
    from convgen.loads.box import has_box, load_of
    from convgen.loads.picture import ascii_picture, explain, planes, svg

    specs = read_specs(arguments)
    check_writable(arguments.svg)
    if arguments.svg and arguments.svg.suffix != ".svg":
        raise UsageError(f"{arguments.svg}: a load is drawn as .svg")
    found = [compilation for spec in specs for compilation in driver.load(spec)]
    if arguments.svg and len(found) > 1:
        raise UsageError("--svg draws one load\nhint: --only names one convolution")
    for compilation in found:
        try:
            plan = compilation.plan
        except SpecError:  # the load of a convolution that no strategy serves is a load all the same
            plan = None
        load = load_of(
            compilation.request.problem, plan, arguments.load, arguments.offsets, arguments.pixels, arguments.channels
        )
        console.show(explain(load))
        if not has_box(plan) and not (arguments.pixels and arguments.channels):
            other = "; --strategy tma_im2col may have one" if plan and plan.strategy != "tma_im2col" else ""
            console.warn(
                f"{compilation.name}: the plan makes no TMA im2col load, so the box is an example"
                f"\nhint: --pixels and --channels choose it{other}"
            )
        console.write("\n\n".join(map(ascii_picture, planes(load))))
        if arguments.svg:
            write_all({arguments.svg: svg(load).encode()})
    return 0


def _gpu(text: str) -> gpus.Gpu:
    if len(found := gpus.named(text)) != 1:
        known = ", ".join(map(str, found or gpus.GPUS.values()))
        which = "several GPUs" if found else "no GPU"
        raise argparse.ArgumentTypeError(f"{short(text)} names {which}\nhint: choose from {known}")
    return found[0]


def _numbers(text: str) -> tuple[int, ...]:
    try:
        if len(text) > 60 or not text.isascii():
            raise ValueError
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{short(text)} is not whole numbers with commas, such as 0,1,2,0") from None


def _to(most: int) -> Callable[[str], int]:
    """Reads a number of pixels or channels."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{short(text)} is not a size from 1 to {most}, such as 16")
        return int(text)

    return read
