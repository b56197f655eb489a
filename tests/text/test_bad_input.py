"""Whatever a user types, the answer is a sentence: no traceback, no defect, the right exit code."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import needs
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convgen
from convgen import driver, files
from convgen.cli import main
from convgen.diagnostics import ConvgenError, SpecError
from convgen.spec import LARGEST_SPEC, Spec, UsageError, read_file

ROOT = Path(__file__).parents[2]
SPEC = """\
let n = 2
conv layer {
  input  x: f16[n, h=8, w=8, c=16]
  filter w: f16[k=16, r=3, s=3, c=16]
  output y: f16[n, p, q, k]
  pad 1
  epilogue {
    operand b: f32[k]
    y = relu(acc + b)
  }
  strategy direct { tile 2 }
  target sm_80
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("layer.conv").write_text(SPEC)


# ---- the command line --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command, said",
    [
        ("compil layer.conv", "did you mean `compile`?"),
        ("layer.conv", "did you mean `convgen compile layer.conv`?"),
        ("-v", "did you mean `-V`?"),
        ("--verison", "did you mean `--version`?"),
        ("compile", "required: SPEC"),
        ("compile layr.conv", "did you mean `layer.conv`?"),
        ("gradient .", "is a folder\nhint: name a .conv file, such as layer.conv"),
        ("compile layer.conv/x", "cannot be read: Not a directory"),
        ("compile layer", "did you mean `layer.conv`?"),
        ("build layer.conv", "did you mean `compile`?"),
        ("verify layer.conv", "did you mean `run`?"),
        ("benchmark layer.conv", "did you mean `bench`?"),
        ("compile layer.conv --arch sm_90a", "did you mean `--target`?"),
        ("compile layer.conv --outdir out", "did you mean `--output`?"),
        ("gradient layer.conv -o grad.conv", "hint: the result is printed: `> FILE` writes it to a file"),
        ("explain layer.conv --output=x", "hint: the result is printed: `> FILE` writes it to a file"),
        ("check layer.conv --out x", "hint: the result is printed: `> FILE` writes it to a file"),
        ("init -o new.conv", "hint: name the file without an option: `convgen init FILE`"),
        ("fmt layer.conv -o new.conv", "hint: specs are rewritten in place; `convgen fmt - < SPEC` prints the text"),
        ("bench layer.conv -o x.json", "did you mean `--out`?"),
        ("bench layer.conv --output x.json", "did you mean `--out`?"),
        ("compile layer.conv --batch 64", "-D n=64"),
        ("compile layer.conv -n 64", "-D n=64"),
        ("compile layer.conv n=64", "hint: write -D n=64"),
        ("compile layer.conv -D n:64", "hint: write -D n=64"),
        ("compile layer.conv -D n=64,m=3", "hint: write -D for each: -D n=64 -D m=3"),
        ("compile - -", "standard input can be read once"),
        ("-D n=1 compile layer.conv", "hint: the command comes first: `convgen compile -D ...`"),
        ("--target sm_80 layer.conv", "hint: the command comes first: `convgen COMMAND --target ...`"),
        ("--hepl", "did you mean `--help`?"),
        ("help", "did you mean `--help`?"),
        ("version", "did you mean `--version`?"),
        ("compile --suite resnet50", "`convgen compile --help` lists"),
        ("compile layer.conv --target sm_75", "hint: the oldest target is sm_80"),
        ("compile layer.conv --target V100", "hint: the oldest target is sm_80"),
        ("compile layer.conv --target h200", "did you mean `sm_90a`?"),
        ("compile layer.conv --target compute_87", "did you mean `sm_86`?"),
        ("compile layer.conv --target sm_100", "did you mean `sm_100a`?"),
        ("compile layer.conv --target gfx942", "choose from sm_80, sm_86,"),
        (
            "compile layer.conv --strategy " + 3000 * "a",
            f"unknown strategy '{196 * 'a'}...\nhint: choose from auto, tma",
        ),
        ("compile layer.conv --strategy naive", "did you mean `direct`?"),
        ("compile layer.conv --stratgy direct", "did you mean `--strategy`?"),
        ("compile layer.conv --strategy drect", "did you mean `direct`?"),
        ("compile layer.conv --target sm_90b", "did you mean `sm_90`?"),
        ("compile layer.conv --target sm_1", "unknown target 'sm_1'"),
        ("compile layer.conv --emit cu,ptxx", "did you mean `ptx`?"),
        ("compile layer.conv --emit ", "argument --emit: it names nothing"),
        ("check layer.conv --only ,", "argument --only: it names nothing\nhint: leave it out"),
        ("compile layer.conv --only layr", "did you mean `layer`?"),
        ("compile layer.conv --dump-after rendr", "did you mean `render`?"),
        ("compile layer.conv --dump-after plan -o x", "--dump-after prints, and writes no files\nhint: leave out -o"),
        ("compile layer.conv --dump-after plan --emit cu", "and writes no files\nhint: leave out --emit"),
        ("compile layer.conv -D n", "'n' is not NAME=INTEGER"),
        ("compile layer.conv -D =3", "is not NAME=INTEGER"),
        ("compile layer.conv -D n=", "must be a whole number"),
        ("compile layer.conv -D n=6.5", "must be a whole number"),
        ("compile layer.conv -D n=1e3", "must be a whole number"),
        ("compile layer.conv -D n=" + 5000 * "9", "must be a whole number"),
        ("compile layer.conv -D n*/=4", "is not NAME=INTEGER"),
        ("cache clera", "did you mean `clear`?"),
        ("tune layer.conv --jobs -1", "'-1' is not a number of processes"),
        ("bench layer.conv --jobs 0", "'0' is not a number of processes"),
        ("tune layer.conv --budget nan", "'nan' is not a number of seconds"),
        ("tune layer.conv --db layer.conv", "layer.conv: not a tuning database"),
        ("tune layer.conv --db .", "is a folder"),
        ("tune layer.conv --export layer.conv", "layer.conv: would be overwritten"),
        ("tune layer.conv --export .", "is a folder"),
        ("tune layer.conv --export layer.conv/x", "layer.conv: is not a folder"),
        ("bench layer.conv --out .", "is a folder"),
        ("bench layer.conv --out layer.conv", "would be overwritten, and is a spec"),
        ("explain layer.conv --html layer.conv", "would be overwritten, and is a spec"),
        ("explain layer.conv --load 0 --svg layer.conv", "would be overwritten, and is a spec"),
        ("bench layer.conv --out layer.conv/x", "layer.conv: is not a folder"),
        ("list direct", "`direct` is a strategy\nhint: `convgen list options direct` lists its options"),
        ("list options tma_wgrad", "unknown strategy 'tma_wgrad'\nhint: it is a kernel of tma_im2col"),
        ("list strategies direct", "`strategies` takes no name\nhint: `convgen list options direct`"),
        ("list suites resnet50", "`suites` takes no name\nhint: leave out `resnet50`"),
        ("run layer.conv --seed x", "'x' is not a whole number"),
        ("run layer.conv --device fpga", "unknown device 'fpga'\nhint: choose gpu or emulate"),
        ("run layer.conv --device cpu", "did you mean `emulate`?"),
        ("run layer.conv --device CUDA", "did you mean `gpu`?"),
        ("run layer.conv --gpu", "write `--device gpu`"),
        ("run layer.conv --emulate", "write `--device emulate`"),
        ("run layer.conv --cpu", "write `--device emulate`"),
        ("run layer.conv --backend=cpu", "write `--device emulate`"),
        ("compile layer.conv --device cpu", "hint: `convgen run --device emulate` runs kernels on the CPU"),
        ("check layer.conv --device=CPU", "hint: `convgen run --device emulate` runs kernels on the CPU"),
        ("bench layer.conv --cpu", "hint: `convgen run --device emulate` runs kernels on the CPU"),
        ("compile layer.conv --device h100", "did you mean `--target`?"),
        ("compile layer.conv --gpu sm_80", "did you mean `--target`?"),
        ("tune layer.conv --time 60", "did you mean `--budget`?"),
        ("run layer.conv --device emulat", "did you mean `emulate`?"),
        ("run layer.conv --batch 0", "'0' is not a number of images"),
        (
            "run layer.conv --batch 99 --device emulate",
            "--batch 99: layer has 2 images\nhint: -D overrides a `let` of the batch: -D n=99",
        ),
        ("run layer.conv --batch two", "'two' is not a number of images"),
        (
            "compile layer.conv --images 0",
            "'0' does not list numbers of images from 1 on, the smaller one first, such as 1-64 or 1,8,64",
        ),
        ("run layer.conv --images 4-2", "'4-2' does not list numbers of images from 1 on"),
        ("run layer.conv --images 1-99999", "'1-99999' lists more than 65536 numbers of images"),
        ("explain layer.conv --images 1-999999999", "lists more than 65536 numbers of images"),
        ("explain layer.conv --load 0 --images 1-4", "the number of images in the spec\nhint: leave out --images"),
        ("explain layer.conv --html a.pdf", "a.pdf: a page is written as .html"),
        ("tune --export new.sqlite --strategies direct", "--strategies is for measuring, and no SPEC is named\nhint: "),
        ("tune --export new.sqlite --op dgrad", "leave out --op"),
        ("tune --export new.sqlite -D n=4", "leave out -D"),
        ("tune --export new.sqlite --budget 4", "leave out --budget"),
        ("explain layer.conv --load -1,0,0,0,0", "--load needs 4 numbers"),
        ("explain layer.conv --load 0 --svg load.png", "load.png: a load is drawn as .svg"),
        ("simulate layer.conv --array 9999999", "'9999999' is not a whole number from 2 to 4096"),
        ("simulate layer.conv --tiles 0", "layer: tiles 0: 1 to 8 are possible"),
        ("simulate layer.conv --tiles all", "'all' is neither a whole number up to 999999 nor auto"),
        ("init new.conv -n 1000000000000", "'1000000000000' is not a whole number from 1 to 999999999"),
        ("tune --export new.sqlite --db nope.sqlite", "nope.sqlite: no such file"),
        ("reproduce networks --from nope.json", "nope.json: cannot be read: No such file or directory"),
        ("reproduce networks --from .", ".: cannot be read: Is a directory"),
        ("reproduce networks --from layer.conv", "layer.conv: is not a result file"),
    ],
)
def test_a_wrong_command(command, said, capsys):
    before = {p: p.read_bytes() for p in Path().iterdir()}
    assert main(command.split(" ")) == 2
    assert {p: p.read_bytes() for p in Path().iterdir()} == before
    out, err = capsys.readouterr()
    assert err.startswith("convgen: error: ") and said in err and "Traceback" not in err
    assert out == ""


@pytest.mark.parametrize(
    "command",
    ["compile layer.conv --emit cu -o {}", "run layer.conv --trace {}/t.json", "explain layer.conv --html {}/t.html"],
)
def test_a_link_to_nothing_is_no_folder(command, capsys):
    Path("link").symlink_to("nowhere")
    for place in ("link", "link/deeper"):
        assert main(command.format(place).split(" ")) == 2
        out, err = capsys.readouterr()
        assert not out and err.startswith("convgen: error: link: is not a folder")
    assert sorted(map(str, Path().iterdir())) == ["layer.conv", "link"]


@pytest.mark.parametrize("text", ["let garbage", "let n {"])
def test_a_let_that_breaks_off(text, capsys):
    Path("layer.conv").write_text(text)
    assert main(["check", "layer.conv"]) == 1
    assert re.search(r"hint: write `let (garbage|n) = \.\.\.`", capsys.readouterr().out)


def test_a_folder_stands_for_its_specs(capsys):
    Path("other.conv").write_text(SPEC.replace("conv layer", "conv other"))
    Path("folder.conv").mkdir()
    assert main(["check", "."]) == 0
    assert re.findall(r"(\w+)\.conv: 1 convolution, no errors", capsys.readouterr().out) == ["layer", "other"]
    assert main(["compile", ".", "--dump-after", "load", "--only", "other"]) == 0
    assert re.findall(r"conv (\w+)", capsys.readouterr().out) == ["other"]
    assert main(["compile", ".", "--dump-after", "load", "--only", "othr"]) == 2
    assert "unknown convolution 'othr'\nhint: did you mean `other`?" in capsys.readouterr().err
    for only in ("other", "other, "):
        assert main(["check", ".", "--only", only]) == 0
        assert capsys.readouterr().out == "other.conv: 1 convolution, no errors\n"
    assert main(["check", ".", "--only", "othr"]) == 2
    assert "unknown convolution 'othr'\nhint: did you mean `other`?" in capsys.readouterr().err
    Path("faulty.conv").write_text("conv faulty {")
    assert main(["check", ".", "--only", "other,faulty"]) == 1
    out = capsys.readouterr().out
    assert "faulty.conv: " in out and "other.conv: 1 convolution, no errors\n" in out and "layer.conv" not in out
    assert main(["check", "folder.conv"]) == 2
    assert capsys.readouterr().err == "convgen: error: folder.conv: is a folder without a .conv file\n"
    os.mkfifo("folder.conv/pipe.conv")  # whose other end nobody opens
    assert main(["check", "folder.conv"]) == 2
    assert capsys.readouterr().err == "convgen: error: folder.conv: is a folder without a .conv file\n"


def test_a_define_that_the_wanted_spec_alone_has(capsys):
    other = SPEC.replace("let n = 2", "let batch = 2").replace("[n,", "[n=batch,", 1)
    Path("other.conv").write_text(other.replace("conv layer", "conv other"))
    assert main(["compile", ".", "--dump-after", "load", "--only", "other", "-D", "batch=4"]) == 0
    assert "x: f16[n=4, " in capsys.readouterr().out
    assert main(["check", ".", "--only", "other", "-D", "batch=4"]) == 0
    assert capsys.readouterr().out == "other.conv: 1 convolution, no errors\n"
    assert main(["check", ".", "--only", "layer,other", "-D", "batch=4"]) == 1
    assert "layer.conv: error[E103]: defined batch=" in capsys.readouterr().out


def test_a_file_whose_name_begins_with_a_dash(capsys):
    Path("layer.conv").rename("-x.conv")
    assert main(["check", "--", "-x.conv"]) == 0
    assert capsys.readouterr().out == "-x.conv: 1 convolution, no errors\n"


def test_an_empty_file_name(capsys):
    assert main(["check", ""]) == 2
    assert capsys.readouterr().err == "convgen: error: '': no such file\n"


def test_a_suffix_alone_makes_no_name_similar(capsys):
    Path("layer.conv").rename("folder.conv")
    assert main(["check", "nope.conv"]) == 2
    assert capsys.readouterr().err == "convgen: error: nope.conv: no such file\n"


def test_a_similar_name_is_shown_with_its_folder(capsys):
    Path("my specs").mkdir()
    Path("layer.conv").rename("my specs/layer.conv")
    assert main(["check", "my specs/layr.conv"]) == 2
    assert "hint: did you mean `my specs/layer.conv`?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["resnet50.conv", "resnet50", "conv1d", "specs/resnet50.conv", "specs/examples/conv1d.conv"]
)
def test_a_spec_that_ships_is_found_by_its_name(name, capsys):
    assert main(["check", name]) == 2
    found = re.search(r"hint: did you mean `(.*)`\?", capsys.readouterr().err)
    assert found and Path(found[1]).stem == Path(name).stem and Path(found[1]).is_file()


def test_what_was_named_as_the_tuning_database_and_is_none_stays(capsys, monkeypatch):
    monkeypatch.setenv("CONVGEN_TUNING_DB", "layer.conv")
    assert main(["tune", "layer.conv"]) == 2
    assert "layer.conv: not a tuning database" in capsys.readouterr().err
    assert {p.name: p.read_text() for p in Path().iterdir()} == {"layer.conv": SPEC}


@pytest.mark.parametrize("name", ["a\0b", "\n", 300 * "x", "\udcff", "-", "\u202e.conv"])
def test_a_wrong_file_name(name, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert main(["check", name]) == 2
    assert "convgen: error: " in capsys.readouterr().err


TOO_LONG = 300 * "x"


@pytest.mark.parametrize(
    "command",
    [
        f"init {TOO_LONG}.conv --size 8 -c 8 -k 8",
        f"init {TOO_LONG}/layer.conv --size 8 -c 8 -k 8",
        f"reproduce memory --out {TOO_LONG}",
        f"reproduce memory --out {TOO_LONG}/memory.json",
        f"explain layer.conv --html {TOO_LONG}.html",
        f"compile layer.conv --emit cu -o {TOO_LONG}",
        f"tune --export {TOO_LONG}",
        f"tune --db {TOO_LONG} --export new.sqlite",
        f"check {TOO_LONG}/layer.conv",
    ],
)
def test_a_path_that_cannot_be_looked_up(command, capsys):
    assert main(command.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"convgen: error: {TOO_LONG}") and "internal error" not in err
    assert [p.name for p in Path().iterdir()] == ["layer.conv"]


@pytest.mark.parametrize(
    "variable, command, said",
    [
        ("CONVGEN_TUNING_DB", "explain layer.conv --strategy auto", "warning: {} cannot be read as a tuning database"),
        ("CONVGEN_CACHE_DIR", "compile layer.conv --emit cu", "warning: convgen's cache {} cannot be used"),
        ("CONVGEN_CACHE_DIR", "cache", "error: {}: cannot be read"),
        ("CONVGEN_CACHE_DIR", "cache clear", "error: {}: cannot be read"),
    ],
)
def test_a_variable_that_names_what_cannot_be_looked_up(variable, command, said, capsys, monkeypatch):
    monkeypatch.setenv("CONVGEN_CACHE", "1" if variable == "CONVGEN_CACHE_DIR" else "0")
    monkeypatch.setenv(variable, TOO_LONG)
    code = main(command.split())
    assert capsys.readouterr().err.startswith(f"convgen: {said.format(TOO_LONG)}")
    assert code == (2 if "error" in said else 0)


def test_a_folder_as_the_tuning_database_is_said(capsys, monkeypatch):
    monkeypatch.setenv("CONVGEN_CACHE", "0")
    monkeypatch.setenv("CONVGEN_TUNING_DB", ".")
    assert main(["explain", "layer.conv", "--strategy", "auto"]) == 0
    assert "(Is a directory), and is ignored. Set CONVGEN_TUNING_DB to a file.\n" in capsys.readouterr().err


def test_a_missing_tuning_database_that_is_named_is_said(capsys, monkeypatch):
    monkeypatch.setenv("CONVGEN_TUNING_DB", "none.sqlite")
    said = "CONVGEN_TUNING_DB names none.sqlite, which does not exist: your measurements are not used."
    for out in ("out", "again"):  # then the choice is in the cache
        globals().pop("__warningregistry__", None)  # as in a new process
        assert main(["compile", "layer.conv", "--strategy", "auto", "--emit", "json", "-o", out]) == 0
        assert capsys.readouterr().err.count(said) == 1


def test_a_folder_that_cannot_be_read_is_not_said_to_have_no_spec(capsys, monkeypatch):
    Path("closed").mkdir()

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.listdir", refuse)
    monkeypatch.setattr("os.scandir", refuse)
    assert main(["check", "closed"]) == 2
    assert capsys.readouterr().err == "convgen: error: closed: cannot be read: Permission denied\n"


def test_compile_looks_at_its_folder_before_it_compiles(capsys, monkeypatch, tmp_path):
    def compiles(*_):
        raise AssertionError("compiles")

    spec = str(Path(__file__).parents[2] / "specs" / "examples" / "conv_bias_relu.conv")
    monkeypatch.setattr("convgen.cli.compile._compile", compiles)
    (tmp_path / "file").touch()
    for folder in ("file", "file/below"):
        assert main(["compile", spec, "-o", str(tmp_path / folder)]) == 2
        assert "file: is not a folder\nhint: -o names another folder" in capsys.readouterr().err
    monkeypatch.setattr("os.access", lambda place, mode: Path(place) != tmp_path)
    assert main(["compile", spec, "-o", str(tmp_path / "out")]) == 2
    assert "out: cannot be written: no file can be created in" in capsys.readouterr().err


def test_a_folder_that_is_gone(capsys, monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["init", "--size", "8", "-c", "8", "-k", "8"]) == 2
    assert "layer.conv: cannot be written" in capsys.readouterr().err
    assert main(["check", "layer.conv"]) == 2
    assert capsys.readouterr().err == "convgen: error: layer.conv: no such file\n"


@pytest.mark.parametrize(
    "given, said",
    [
        (["-D", "n=4", "-D", "n=5"], "argument -D/--define: n is given twice, as 4 and 5"),
        (["--target", "sm_80", "--target", "sm_90a"], "argument --target: given twice, with different values"),
        (["-D", "n=4", "-D", "n=4", "--target", "sm_80", "--target", "sm_80"], ""),
    ],
)
def test_what_is_given_twice(given, said, capsys):
    Path("layer.conv").write_text(SPEC)
    assert main(["check", "layer.conv", *given]) == (2 if said else 0)
    assert said in capsys.readouterr().err


@pytest.mark.costly
@pytest.mark.parametrize("name", ["README.md", "LICENSE", "convgen/driver.py", "tests/data/tiny.cu"])
def test_a_file_that_is_no_spec_gives_few_errors(name, capsys):
    """However long it is; and what follows from not reading it, such as a define of no let, is none of them."""
    Path("file.conv").write_text(20 * (ROOT / name).read_text())
    assert main(["check", "file.conv", "-D", "n=4"]) == 1
    codes = re.findall(r"error\[(E\d+)\]", capsys.readouterr().out)
    assert 1 <= len(codes) <= 51 and set(codes) <= {"E001", "E002", "E003", "E004", "E005", "E006"}


@pytest.mark.parametrize(
    "content, code, said",
    [
        (b"", 1, "no conv block"),
        (b"\xff\xfe\0c\0o", 2, "not UTF-8 text (byte 0)"),
        (SPEC.encode("utf-16-le"), 2, "not UTF-8 text (byte 1)\nhint: a spec is plain text, in UTF-8"),
        (SPEC.encode("utf-16-be"), 2, "not UTF-8 text (byte 0)"),
        (b"conv a {\0}", 1, "E001"),
        (b"\xef\xbb\xbf" + SPEC.encode(), 0, "no errors"),
        (SPEC.replace("\n", "\r\n").encode(), 0, "no errors"),
        (f"# a comment\r{SPEC}".replace("\n", "\r").encode(), 0, "no errors"),
        (SPEC.encode() * 2, 1, "E101"),
        (b"#" * (LARGEST_SPEC + 1), 2, "too large"),
        (b"conv a { pad " + 5000 * b"(" + b"1", 1, "E00"),
    ],
)
def test_a_wrong_file(content, code, said, capsys):
    Path("file.conv").write_bytes(content)
    assert main(["check", "file.conv"]) == code
    out, err = capsys.readouterr()
    assert said in out + err and "Traceback" not in out + err


@pytest.mark.parametrize("n", ["0", "-1", "2147483648", "9" * 100])
def test_a_size_out_of_range_points_to_its_place(n, capsys):
    assert main(["check", "layer.conv", "-D", f"n={n}"]) == 1
    assert re.search(r"layer\.conv(:\d+:\d+)?: error\[E\d+\]: ", capsys.readouterr().out)


@pytest.mark.parametrize("command", ["check", "explain", "compile"])
def test_a_huge_problem_is_compiled_or_refused(command, capsys):
    code = main([command, "layer.conv", "-D", "n=2000000000"])
    out, err = capsys.readouterr()
    assert code in (0, 1) and "internal error" not in err
    assert code == 0 or "error[E401]" in out + err


HUGE = {
    "width": "input x: f32[h=40172, w=1199843367, c=2] filter w: f32[k=3, r=3, c=2] stride h=6826671 w=1",
    "taps": "input x: f16[h=86083643, w=87, c=8] filter w: f16[k=5, r=2265360, s=3, c=8] stride h=439480 dilation h=38",
    "groups": "input x: f16[w=13, c=312112269] filter w: f16[k=312112269, s=3] groups 312112269",
    "small groups": "input x: f16[w=13, c=312112269] filter w: f16[k=104037423, s=3, c=3] groups 104037423",
}


@pytest.mark.parametrize("large", HUGE)
@pytest.mark.parametrize("command", ["check", "explain"])
def test_no_extent_is_gone_through_one_by_one(command, large, capsys):
    output = "n, p, q, k" if "h=" in HUGE[large] else "n, q, k"
    Path("huge.conv").write_text(f"conv huge {{ {HUGE[large]} output y: f32[{output}] }}")
    assert main([command, "huge.conv"]) in (0, 1)
    assert "internal error" not in capsys.readouterr().err


def test_verifying_a_huge_problem_is_refused_at_once(capsys):
    command = ["run", "layer.conv", "-D", "n=20000000", "--batch", "20000000", "--device", "emulate"]
    assert main(command) == 1
    assert re.search(r"takes about \d+ GB of memory, and this machine has \d+ GB\nhint: ", capsys.readouterr().err)


def test_one_image_whose_padding_does_not_fit_is_told_so(capsys):
    """Padding that repeats pixels: zeros take no memory."""
    text = SPEC.replace("let n = 2", "let n = 1").replace("pad 1", "pad 1000000 replicate stride 1000000")
    Path("layer.conv").write_text(text)
    assert main(["run", "layer.conv", "--device", "emulate"]) == 1
    assert "\nhint: write smaller extents, or less padding" in capsys.readouterr().err


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize(
    "command, output",
    [
        ("explain", "--html {}.html"),
        ("explain", "--load 0 --svg {}.svg"),
        ("run", "--trace {}.json"),
        ("run", "--trace {}.svg"),
        ("bench", "--out {}.json"),
        ("compile", "--emit cu -o . {}.cu"),
        ("compile", "--emit json -o folder/.. {}.json"),
    ],
)
def test_no_output_takes_the_place_of_a_spec(command, output, link, capsys):
    """Whatever its name is, and the output's that leads to it; a kernel's files are named after the convolution."""
    *options, name = output.format("layer").split()
    Path("folder").mkdir()
    spec = Path("elsewhere.txt" if link else name)
    spec.write_text(SPEC)
    if link:
        Path(name).symlink_to(spec)
    named = [] if command == "compile" else [name]
    assert main([command, str(spec), *options, *named]) == 2
    error = capsys.readouterr().err
    assert re.search(rf"{re.escape(name)}: would be overwritten, and is a spec\nhint: .*another", error)
    assert spec.read_text() == SPEC


@pytest.mark.parametrize(
    "arguments",
    ["run layer.conv --trace", "explain layer.conv --html", "bench layer.conv --out", "tune layer.conv --db"],
)
def test_an_empty_file_is_not_this_folder(arguments, capsys):
    assert main([*arguments.split(), ""]) == 2
    assert f"argument {arguments.split()[-1]}: it names no file" in capsys.readouterr().err


def test_an_empty_folder_is_not_this_one(capsys):
    assert main(["compile", "layer.conv", "--emit", "cu", "-o", ""]) == 2
    assert "argument -o/--output: it names no folder\nhint: for this folder, leave it out" in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["layer.conv"]


@pytest.mark.parametrize(
    ("let", "n", "hint"),
    [("", "1", "write n=2 into the spec"), ("let h = 8  let images = 1", "images", "-D images=2")],
)
def test_more_images_come_from_where_they_are_said(let, n, hint, capsys):
    Path("layer.conv").write_text(let + SPEC.replace("let n = 2", "").replace("[n,", f"[n={n},", 1))
    assert main(["run", "layer.conv", "--batch", "2", "--device", "emulate"]) == 2
    assert hint in capsys.readouterr().err


def test_no_gpu_is_said(capsys):
    assert main(["run", "layer.conv", "--device", "gpu"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("convgen: error: ") and "--device emulate" in err


def test_what_nvrtc_refuses_is_shown_with_its_place(monkeypatch, capsys):
    broken = property(lambda self: 'extern "C" __global__ void convgen_layer() {\n  no_such_function();\n}\n')
    monkeypatch.setattr(driver.Compilation, "source", broken)
    monkeypatch.setenv("CONVGEN_CACHE", "0")
    assert main(["compile", "layer.conv", "-o", "out"]) == 1
    err = capsys.readouterr().err
    assert "NVRTC failed for sm_80" in err and ">     2 |   no_such_function();" in err
    assert not Path("out").exists()


def test_python_gets_the_same_answers():
    for arguments, said in [
        (("layr.conv",), "did you mean `layer.conv`?"),
        (("layer.conv", None, "sm_9"), "unknown target 'sm_9'"),
        (("layer.conv", None, 90), "unknown target 90"),
        (("layer.conv", None, None, 3), "unknown strategy 3"),
        (("layer.conv", {"n": 1.5}), "defined n=1.5, which is not a whole number"),
        (("layer.conv", {"n": "4"}), "defined n='4', which is not a whole number"),
        (("layer.conv", {5: 1}), "defined 5=1, and the file has no `let 5`"),
        (("layer.conv", None, None, "drect"), "did you mean `direct`?"),
        (("",), "no conv block"),
        ((3,), "the spec is of type int\nhint: give its path, or its text"),
        ((b"conv a {}",), "the spec is of type bytes"),
        (("layer.conv", None, None, None, None, [10**5000]), "images=a list: expected 1 to 65536 whole numbers"),
        (("layer.conv", ["n=1"]), "defines are of type list\nhint: give a dict, such as {'n': 64}"),
    ]:
        with pytest.raises(ConvgenError, match=re.escape(said)):
            convgen.compile(*arguments)


def test_a_define_may_be_any_whole_number():
    assert convgen.compile("layer.conv", {"n": numpy.int64(3)}).manifest.result.extent("n") == 3
    with pytest.raises(SpecError, match="defined n=True, which is not a whole number"):
        convgen.compile("layer.conv", {"n": True})


@pytest.mark.parametrize("value", [numpy.float32(2), numpy.array([2]), b"1", {1}, 1j, object(), 10**5000], ids=type)
def test_a_define_is_refused_alike_everywhere(value):
    with pytest.raises(SpecError) as refused:
        convgen.gradient("layer.conv", defines={"n": value})
    with pytest.raises(SpecError) as error:
        convgen.compile("layer.conv", {"n": value})
    assert str(error.value) == str(refused.value) and "defined n" in str(error.value)


@pytest.mark.parametrize("path", [None, b"x", 3])
def test_a_saved_kernel_has_the_path_of_a_file(path):
    said = f"the path is of type {type(path).__name__}\nhint: give the name of a file, or a Path"
    with pytest.raises(ConvgenError, match=re.escape(said)):
        convgen.load(path)
    kernel = driver.load(Spec(SPEC))[0].uncompiled()
    with pytest.raises(ConvgenError, match=re.escape(said)):
        kernel.save(path)


def test_an_array_of_another_order_of_bytes_is_told_so():
    kernel = driver.load(Spec(SPEC))[0].uncompiled()
    shapes = (2, 8, 8, 16), (16, 3, 3, 16), (16,)
    x, w, b = (numpy.zeros(shape, kind) for shape, kind in zip(shapes, (">f2", "<f2", "<f4"), strict=True))
    with pytest.raises(ConvgenError, match="hint: pass x as float16 in the machine's own order of bytes"):
        kernel.emulate(x, w, b)


# ---- names -------------------------------------------------------------------------------------

#: Words that mean something to C++, CUDA or the generated source.
WORDS = ["int", "__global__", "threadIdx", "float", "x_map", "shared_memory", "main", "u32", "extern", "_", "NULL"]


@pytest.mark.costly
@pytest.mark.parametrize("word", WORDS)
def test_a_name_cannot_collide(word):
    from convgen.runtime.nvrtc import compile_source

    text = re.sub(r"\blayer\b", word, SPEC)
    for name in ("x", "w", "b"):
        text = re.sub(rf"\b{name}:", f"{word if name == 'b' else f'{name}_{word}'}:", text)
    text = text.replace("acc + b", f"acc + {word}").replace("let n = 2\n", "").replace("[n,", "[n=2,")
    (only,) = driver.load(driver.Spec(text))
    assert f"convgen_{word}" in only.source
    compile_source(only.source, only.target)


@pytest.mark.parametrize("name", ["x*/", "*/ int main() {} /*", "a b", "é", 'a"', "a\\\nb", "1a", "x//", "$x", "a.b"])
def test_what_is_no_name_is_refused(name):
    for text in (
        SPEC.replace("conv layer", f"conv {name}"),
        SPEC.replace("b:", f"{name}:").replace("+ b", f"+ {name}"),
    ):
        with pytest.raises(SpecError):
            driver.load(driver.Spec(text))


@pytest.mark.parametrize("name", ["3 channels, 7x7", "x(){} /*", "é", "res4/3x3", "1a", "a\n", ""])
def test_a_problem_made_by_hand_has_the_names_of_a_spec(name):
    """It becomes a kernel's name, and prints as a spec that has to parse."""
    from convgen.ir.problem import ConvProblem

    (only,) = driver.load(driver.Spec(SPEC))
    problem: ConvProblem = only.request.problem
    operand = dataclasses.replace(problem.operands[0], name=name)
    epilogue = dataclasses.replace(problem.epilogue, operands=(operand,))
    for what, change in {"convolution": {"name": name}, "operand": {"epilogue": epilogue}}.items():
        with pytest.raises(ConvgenError) as refused:
            dataclasses.replace(problem, **change)
        assert str(refused.value).startswith(f"the {what} {name!r} ")
        made = re.search(r"such as (\w+)", str(refused.value))
        assert made and dataclasses.replace(problem, name=made[1]).name == made[1]


# ---- anything at all ---------------------------------------------------------------------------

TOKENS = sorted(
    {*re.findall(r"\w+|[^\w\s]", SPEC), "-1", "0", "99999999999999999999", "{", "}", "dgrad", "im2col", "auto"}
)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_mutated_spec_is_planned_or_refused(data):
    words = re.findall(r"\w+|[^\w\s]|\s+", SPEC)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(words) - 1))
        words[place : place + data.draw(st.integers(0, 2))] = [data.draw(st.sampled_from(TOKENS)), " "]
    try:
        for compilation in driver.load(driver.Spec("".join(words))):
            assert compilation.source
    except ConvgenError as e:
        assert str(e)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_answered(content):
    Path("any.conv").write_bytes(content)
    assert main(["check", "any.conv"]) in (1, 2)


def test_a_file_that_has_changed_since_it_was_read_is_no_spec(tmp_path):
    path = tmp_path / "work.bin"
    path.write_text(SPEC)
    files.check_writable(path)
    read_file(path)
    with pytest.raises(UsageError, match="would be overwritten, and is a spec"):
        files.check_writable(path)
    path.write_text("of the user's own program")
    for data in (b"an output", b"another"):
        files.write_all({path: data})
    assert path.read_bytes() == b"another"


@pytest.mark.parametrize("command", ["list", "check layer.conv", "fmt -"])
def test_a_closed_standard_output_is_an_error(command, folder):
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m convgen {command} < layer.conv >&-"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "standard output cannot be written: it is closed" in done.stderr


def test_a_standard_error_that_takes_nothing_changes_no_outcome(folder):
    for command, code in (("compile nosuch.conv", 2), ("check layer.conv", 0)):
        done = subprocess.run(["sh", "-c", f"{sys.executable} -m convgen {command} 2>/dev/full"], capture_output=True)
        assert done.returncode == code


def test_the_server_says_that_its_input_is_closed(folder):
    needs.module("pygls")
    command = ["sh", "-c", f"{sys.executable} -m convgen lsp <&-"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "standard input or output cannot be used" in done.stderr


def test_names_that_lead_to_one_file_are_one(folder):
    own = Path("layer.conv").read_text()
    Path("layer.conv").write_text(own + "\n\n")
    Path("other.conv").symlink_to("layer.conv")
    assert main(["fmt", "layer.conv", str(Path("layer.conv").absolute()), "other.conv"]) == 0
    assert Path("layer.conv").read_text().endswith("}\n") and Path("other.conv").is_symlink()


def test_a_long_name_is_formatted(folder):
    name = "a" * 250 + ".conv"
    Path(name).write_text(Path("layer.conv").read_text() + "\n\n")
    assert main(["fmt", name]) == 0


@pytest.mark.parametrize("address", ["", ":6379"])
def test_an_address_without_a_host_is_none(address, folder, capsys):
    assert main(["tune", "layer.conv", "--ray", address]) == 2
    assert "is no address\nhint: HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "explain", "bench"])
def test_a_saved_kernel_is_no_spec(command, capsys):
    Path("a.kernel").write_bytes(b"PK\3\4\xff")
    assert main([command, "a.kernel"]) == 2
    assert "hint: a saved kernel is loaded in Python: convgen.load" in capsys.readouterr().err
