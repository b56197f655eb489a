"""`convgen explain --load`: the pixels of a TMA im2col load, its pictures, and what it refuses."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make

from convgen import driver
from convgen.cli import main
from convgen.emulator.tensor_map import problems
from convgen.ir.plan import TensorMap
from convgen.ir.problem import ConvProblem
from convgen.ir.size import Size
from convgen.loads.box import load_of
from convgen.loads.picture import ascii_picture, explain, planes
from convgen.spec import Spec, UsageError

SPEC = str(Path(__file__).parents[2] / "specs" / "examples" / "tma_im2col_boxes.conv")


def problem(rank=2, n=2, extent=5, c=16, taps=3, more="", op="fprop") -> ConvProblem:
    names = {1: ("w", "s", "q"), 2: ("h w", "r s", "p q"), 3: ("d h w", "t r s", "o p q")}[rank]
    x, w, y = (spatial.split() for spatial in names)
    spec = f"""conv layer {{
      input  x: f16[n={n}, {", ".join(f"{d}={extent}" for d in x)}, c={c}]
      filter w: f16[k=16, {", ".join(f"{d}={taps}" for d in w)}, c={c}]
      output y: f16[n, {", ".join(y)}, k]
      {more}
      op {op}
    }}"""
    return driver.load(Spec(spec))[0].request.problem


#: "TMA im2col mode and Convolution via Implicit GEMM": conv, images, start, offsets, numbers of the pixels.
FIVE = (
    ("basic", 1, "0,0,0,0", "0,0", range(1, 17)),
    ("padded", 1, "0,-1,-1,0", "0,0", (0, 0, 0, 0, 0, 1, 2, 3, 0, 5, 6, 7, 0, 9, 10, 11)),
    ("padded", 1, "0,-1,-1,0", "1,1", range(1, 17)),
    ("basic", 2, "0,1,3,0", "0,0", range(8, 24)),
    ("padded", 2, "0,1,2,0", "0,0", (7, 0, 9, 10, 11, 0, 0, 0, 0, 0, 17, 18, 19, 0, 21, 22)),
)


@pytest.mark.parametrize("conv, n, start, offsets, numbers", FIVE)
def test_five_loads(conv, n, start, offsets, numbers, capsys):
    options = ["--load", start, "--offsets", offsets, "--pixels", "16", "--channels", "32"]
    assert main(["explain", SPEC, "-D", f"n={n}", "--only", conv, *options]) == 0
    table = capsys.readouterr().out.split("number\n")[1].splitlines()[:16]
    assert [int(line.split()[-1]) for line in table] == list(numbers)


def test_the_picture_of_the_fifth_load(capsys):
    options = ["--load", "0,1,2,0", "--pixels", "16", "--channels", "32"]
    assert main(["explain", SPEC, "-D", "n=2", "--only", "padded", *options]) == 0
    assert capsys.readouterr().out.endswith("""
n = 0
     w=-1  w=0  w=1  w=2  w=3
h=-1    .    .    .    .    .
h=0     .    1    2    3    4
h=1     .    5    6  [7]    8
h=2   [0]  [9] [10] [11]   12
h=3     .   13   14   15   16

n = 1
     w=-1  w=0  w=1  w=2  w=3
h=-1  [0]  [0]  [0]  [0]    .
h=0   [0] [17] [18] [19]   20
h=1   [0] [21] [22]   23   24
h=2     .   25   26   27   28
h=3     .   29   30   31   32
""")


@given(
    rank=st.integers(1, 3), n=st.integers(1, 3), extent=st.integers(3, 6), taps=st.integers(1, 3),
    stride=st.integers(1, 3), pad=st.integers(0, 2), dilation=st.integers(1, 2), pixels=st.integers(1, 20),
    data=st.data(),
)  # fmt: skip
@settings(max_examples=60)
def test_a_tile_of_a_tap_is_the_windows_pixels(rank, n, extent, taps, stride, pad, dilation, pixels, data):
    """Pixel i of tile t, at a tap's offset, is what that tap reads for output pixel t * pixels + i."""
    assume(extent + 2 * pad >= (taps - 1) * dilation + 1)
    p = problem(rank, n, extent, taps=taps, more=f"stride {stride} pad {pad} dilation {dilation}")
    tile = data.draw(st.integers(0, (p.output_pixels - 1) // pixels))
    tap = [data.draw(st.integers(0, taps - 1)) for _ in range(rank)]
    load = load_of(p, None, [tile], [dilation * t for t in tap], pixels, 16)
    for i, pixel in enumerate(load.walk()):
        index, at = tile * pixels + i, []
        for t, out in zip(reversed(tap), reversed(p.output), strict=True):
            at.insert(0, index % out * stride + t * dilation - pad)
            index //= out
        assert (pixel.n, pixel.at) == (index, tuple(at))
        inside = index < n and all(0 <= a < extent for a in at)
        assert bool(pixel.number) == inside


def test_dgrad_walks_y_from_the_mirrored_corner():
    load = load_of(problem(op="dgrad", more="pad 0"), None, [0], [0, 0], 4, 16)
    assert load.role == "y" and load.start == (0, -2, -2, 0)
    assert [pixel.at for pixel in load.walk()] == [(-2, -2), (-2, -1), (-2, 0), (-2, 1)]


def test_a_box_that_no_plan_has_is_said(capsys):
    options = ["--only", "res4_3x3", "--load", "1", "--strategy", "direct"]
    assert main(["explain", SPEC.replace("examples/tma_im2col_boxes", "resnet50"), *options]) == 0
    err = capsys.readouterr().err
    assert "res4_3x3: the plan makes no TMA im2col load" in err and "--strategy tma_im2col may have one" in err


def test_a_plan_of_tma_im2col_without_such_a_load_is_not_sent_to_tma_im2col(tmp_path, capsys):
    spec = tmp_path / "a.conv"
    spec.write_text("conv a { input x: f16[n=1, h=4, w=4, c=8] filter w: f16[k=8, c] output y: f16[n, p, q, k] }")
    assert main(["explain", str(spec), "--strategy", "tma_im2col", "--load", "0"]) == 0
    assert capsys.readouterr().err.endswith("the box is an example\nhint: --pixels and --channels choose it\n")
    assert main(["explain", SPEC, "--load", "0", "--pixels", "16", "--channels", "32"]) == 0
    assert capsys.readouterr().err == ""


def test_the_plan_s_box_is_the_default(capsys):
    assert (
        main(["explain", SPEC.replace("examples/tma_im2col_boxes", "resnet50"), "--only", "res4_3x3", "--load", "1"])
        == 0
    )
    (compilation,) = driver.load(Spec(Path(SPEC).parents[1].joinpath("resnet50.conv").read_text(), only=("res4_3x3",)))
    (box,) = [p.map for launch in compilation.plan.launches for p in launch.params if p.map and p.map.mode == "im2col"]
    assert f"{box.pixels} pixels of {box.channels} channels" in capsys.readouterr().out


def test_a_wide_image_is_cut():
    wide = problem(extent=100, more="pad 1")
    (plane,) = planes(load_of(wide, None, (0, 49, 40, 0), None, 16, 16))  # within a row
    assert "w=39 " in ascii_picture(plane) and "[4941]" in ascii_picture(plane) and "w=0 " not in ascii_picture(plane)
    (plane,) = planes(load_of(wide, None, (0, 49, 40, 0), None, 64, 16))  # and into the next
    assert " ... " in ascii_picture(plane) and max(map(len, ascii_picture(plane).splitlines())) < 200


def test_the_svg_has_a_cell_for_each_pixel(tmp_path, capsys):
    options = ["--load", "0,1,2,0", "--pixels", "16", "--svg", f"{tmp_path}/load.svg"]
    assert main(["explain", SPEC, "-D", "n=2", "--only", "padded", *options]) == 0
    drawn = xml.parse(tmp_path / "load.svg").getroot()
    colors = [element.get("fill") for element in drawn if element.tag.endswith("rect")]
    assert (colors.count("#2a6f97"), colors.count("#e07a5f")) == (9, 7)
    assert {e.text for e in drawn if e.get("fill") == "white"} == set(map(str, range(16)))


def test_what_the_hardware_refuses_is_said():
    load = load_of(problem(c=12, more="stride 9"), None, [0], [0, 300], 16, 12)
    assert load.refusals() == [
        "a stride of 24 bytes is not a multiple of 16 below 2^40",
        "a stride of 120 bytes is not a multiple of 16 below 2^40",
        "a stride of 600 bytes is not a multiple of 16 below 2^40",
        "an element stride of (1, 9, 9, 1) is not in [1, 8]",
        "a row of 24 bytes is not a multiple of 16",
        "an offset of 300 is not in [0, 255]",
    ]


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 2), st.sampled_from(["fprop", "dgrad"]))
def test_a_load_is_of_the_written_sizes(rank, extent, n, op):
    """Where a call decides sizes, too, and where these are 1."""
    fixed = load_of(problem(rank, n, extent, more="pad 1", op=op), None, [0], None, 16, 16)
    dynamic = f"pad 1 dynamic n {' '.join(fixed.problem.spatial.input)}"
    load = load_of(problem(rank, n, extent, more=dynamic, op=op), None, [0], None, 16, 16)
    assert load.refusals() == fixed.refusals() == []
    assert str(explain(load)) == str(explain(fixed))
    assert [*map(ascii_picture, planes(load))] == [*map(ascii_picture, planes(fixed))]


def test_a_map_is_judged_by_the_written_sizes():
    h, w = Size(1, "h"), Size(14, "w")
    x = TensorMap(
        "x", "im2col", "f16", (64, w, h, 8), (128, 128 * w, 128 * w * h), (1, 1, 1, 1),
        lower=(0, 0), upper=(0, 0), channels=64, pixels=16,
    )  # fmt: skip
    assert not list(problems(x, 14 * 8 * 128, 128, 128))
    assert list(problems(replace(x, strides=(120, 128 * w, 128 * w * h)), 14 * 8 * 128)) == [
        "a stride of 120 bytes is not a multiple of 16 below 2^40"
    ]
    assert list(problems(x, 14 * 8 * 128, 64, 128)) == ["rows of 128 bytes, 128 apart, leave x: 64 of each 128 bytes"]


@pytest.mark.parametrize(
    "options, message",
    [
        (["--load", "0,0,0"], "--load needs 4 numbers, n, h, w and the channel, or a tile's"),
        (["--load", "0,0,0,0", "--offsets", "1"], "--offsets needs 2 numbers, one for each of h, w"),
        (["--load", "0,3,0,0"], "a load cannot start at h = 3: its windows start at -1 to 2"),
        (["--load", "99"], "there is no tile 99: the last is 0"),
        (["--load", "here"], "'here' is not whole numbers with commas"),
        (["--load", "0,0,0,0", "--pixels", "0"], "'0' is not a size"),
        (["--load", "0,0,0,0", "--pixels", "1025"], "'1025' is not a size from 1 to 1024"),
        (["--html", "x.html", "--svg", "x.svg"], "--svg goes with --load"),
        (["--offsets", "0,0"], "--offsets goes with --load"),
        (["--load", "0", "--html", "a.html"], "--html does not go with --load\nhint: --svg draws the load"),
    ],
)
def test_mistakes(options, message, capsys):
    assert main(["explain", SPEC, "--only", "padded", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_strided_dgrad_has_no_box():
    with pytest.raises(UsageError, match="a strided dgrad has no single im2col box"):
        load_of(problem(op="dgrad", more="stride 2"), None, [0], None, 16, 16)


@pytest.mark.parametrize("stride", (1, 2))
def test_col2im_has_no_box(stride):
    with pytest.raises(UsageError, match="col2im gathers from a matrix, which has no im2col box"):
        load_of(make("col2im", c=3, stride=stride, lowered="c*r*s,p*q"), None, [0], None, 16, 16)


def test_padding_that_is_not_of_zeros():
    assert "arrives as NaN" in str(explain(load_of(problem(more="pad 1 nan"), None, [0], None, 4, 16)))
    with pytest.raises(UsageError, match="padding is circular: its pixels are copied before TMA loads them"):
        load_of(problem(more="pad 1 circular"), None, [0], None, 16, 16)
