"""The commands of a first half hour: init, list, doctor, completion; and what a terminal shows meanwhile."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import convgen
from convgen import driver
from convgen.cli import COMMANDS, console, doctor, main
from convgen.cli.completion import SHELLS
from convgen.cli.init import QUESTIONS
from convgen.kernels import strategies
from convgen.kernels.config import option_rows
from convgen.kernels.registry import kernels_of
from convgen.targets import TARGETS

REQUIRED = ["--size", "10x10", "-c", "16", "-k", "32"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


def problem(path: str = "layer.conv"):
    (found,) = driver.load(driver.Spec(Path(path).read_text()))
    return found.request.problem


# ---- init --------------------------------------------------------------------------------------


def test_init_writes_a_spec_with_defaults(capsys):
    assert main(["init", "a/layer.conv", *REQUIRED]) == 0
    assert "convgen explain a/layer.conv" in capsys.readouterr().out
    made = problem("a/layer.conv")
    assert (made.name, made.n, made.c, made.k) == ("layer", 8, 16, 32)
    assert made.input == made.output == (10, 10) and made.filter == (3, 3)
    assert made.x.dims == ("n", "h", "w", "c") and made.epilogue is None


def test_init_writes_what_its_options_say():
    asked = "--window 3x4 --stride 2x1 --dilation 1x2 --pad 1x3 --groups 4 -n 3 --dtype bf16 --layout channels_first"
    assert main(["init", "layer.conv", *REQUIRED, *asked.split()]) == 0
    made = problem()
    assert (made.n, made.groups, made.filter, made.stride, made.dilation) == (3, 4, (3, 4), (2, 1), (1, 2))
    assert made.pad_lo == made.pad_hi == (1, 3)
    assert made.x.dims == ("n", "c", "h", "w") and str(made.x.dtype) == "bf16"


@pytest.mark.parametrize("size", ["12", "6x7", "4x5x6"])
@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
def test_init_serves_every_rank_and_operator(size, op):
    for dtype, layout in product(("f16", "f32", "s8"), ("channels_last", "channels_first")):
        name = f"{dtype}_{layout}.conv"
        command = [name, "--size", size, "-c", "4", "-k", "4", "--op", op, "--dtype", dtype, "--layout", layout]
        assert main(["init", *command, "--bias", "--residual", "--activation", "leaky_relu"]) == 0
        made = problem(name)
        assert (str(made.op), made.input) == (op, tuple(map(int, size.split("x"))))
        assert {o.name for o in made.operands} == {"b", "z"}


@pytest.mark.parametrize(("op", "dim"), [("fprop", "k"), ("dgrad", "c"), ("wgrad", "k")])
@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_a_bias_has_a_value_for_each_output_channel(op, dim, layout):
    """Of dgrad, whose result has no output channels, for each channel of x."""
    command = ["layer.conv", "--size", "5x5", "-c", "3", "-k", "4", "--op", op, "--layout", layout]
    assert main(["init", *command, "--bias"]) == 0
    (bias,) = problem().operands
    assert bias.dims == (dim,) and bias.shape == ({"c": 3, "k": 4}[dim],)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--size, -c, -k must be given\nhint: "),
        ([*REQUIRED, "--window", "3x3x3"], "--window has 3 numbers, and --size 2"),
        ([*REQUIRED, "--dtype", "half"], "hint: did you mean `f16`?"),
        ([*REQUIRED, "--layout", "nchw"], "hint: did you mean `channels_first`?"),
        ([*REQUIRED, "--layout", "NHWC"], "hint: did you mean `channels_last`?"),
        ([*REQUIRED, "--activation", "swish"], "hint: did you mean `silu`?"),
        ([*REQUIRED, "--size", "56,56"], "hint: write 56x56"),
        ([*REQUIRED, "--kernel", "3"], "hint: did you mean `--window`?"),
        ([*REQUIRED, "--batchsize", "3"], "hint: did you mean `--batch`?"),
        ([*REQUIRED, "--size", "huge"], "'huge' is not one number"),
        ([*REQUIRED, "--size", ""], "or up to three, such as 3x3\nhint: `convgen init --help`"),
        ([*REQUIRED, "--size", "8x8x8x8"], "or up to three, such as 3x3\nhint: `convgen init --help`"),
        ([*REQUIRED, "--size", "8x2000000000"], "'8x2000000000' has a number above 999999999\nhint: "),
        ([*REQUIRED, "--size", "8x0"], "'8x0' has a 0"),
        ([*REQUIRED, "--stride", "0"], "'0' has a 0"),
        ([*REQUIRED, "-n", "0"], "'0' is not a whole number"),
        ([*REQUIRED, "--groups", "3"], "--groups 3 does not divide -c 16 and -k 32"),
        ([*REQUIRED, "--window", "20", "--pad", "0"], "the window is 20, but h + padding = 10"),
        ([*REQUIRED, "--dtype", "s32"], "unknown 's32'\nhint: "),
        ([*REQUIRED, "--op", "transposed"], "writes no transposed convolutions\nhint: write a spec with `op "),
        (["--size", "50000x50000", "-c", "16", "-k", "32"],
         "no strategy serves layer: 640000000000 outputs are more than a grid of 2147483647"),
    ],
)  # fmt: skip
def test_init_refuses_and_writes_nothing(arguments, said, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["init", "layer.conv", *arguments]) == 2
    assert said in capsys.readouterr().err and not Path("layer.conv").exists()


def test_init_takes_any_file_name(capsys):
    for path, name in (
        ("my layer.conv", "my_layer"),
        ("conv.conv", "conv_"),
        ("1x1.conv", "_1x1"),
        (f"{80 * 'a'}.conv", 63 * "a"),
    ):
        assert main(["init", path, *REQUIRED, "--pad", "valid"]) == 0
        assert (problem(path).name, problem(path).output) == (name, (8, 8))
    assert "convgen run 'my layer.conv'" in capsys.readouterr().out


def test_init_leaves_a_file_that_exists(capsys):
    Path("layer.conv").write_text("mine")
    assert main(["init", "layer.conv", *REQUIRED]) == 2
    assert "exists already" in capsys.readouterr().err and Path("layer.conv").read_text() == "mine"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_init_asks_again_until_it_understands(capsys, monkeypatch):
    answers = ["10x10", "sixteen", "16", "32", *[""] * 10, "maybe", "yes", ""]
    monkeypatch.setattr("sys.stdin", Terminal("\n".join(answers) + "\n"))
    assert main(["init", "layer.conv"]) == 0
    out, err = capsys.readouterr()
    assert "images per batch [8]: " in out and "'sixteen' is not a whole number" in err
    assert "add one value per output channel (for dgrad, per channel of x) [no]: " in out
    assert "unknown 'maybe'" in err
    asked = Path("layer.conv").read_text()
    assert main(["init", "-", *REQUIRED, "--bias"]) == 0
    assert capsys.readouterr().out == asked


@pytest.mark.parametrize(
    ("name", "answer", "complaint"),
    [
        ("groups", "3", "--groups 3 does not divide -c 16 and -k 32"),
        ("window", "3x3x3", "--window has 3 numbers, and --size 2"),
        ("pad", "0", "the output is empty along h: the window is 11, but h + padding = 10 + 0 + 0 = 10"),
        ("dtype", "s32", "unknown 's32'"),
    ],
)
def test_init_asks_again_where_an_answer_is_impossible(name, answer, complaint, capsys, monkeypatch):
    """At that question, not behind the last."""
    said = {"size": "10x10", "channels": "16", "filters": "32", "window": "11", name: f"{answer}\n"}
    answers = [said.get(q.name, "") for q in QUESTIONS]
    monkeypatch.setattr("sys.stdin", Terminal("\n".join(answers) + "\n"))
    assert main(["init", "layer.conv"]) == 0
    out, err = capsys.readouterr()
    assert complaint in err and Path("layer.conv").exists()
    assert all(
        out.count(f"{q.text}: " if q.default is None else f"{q.text} [") == 1 + (q.name == name) for q in QUESTIONS
    )


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ("300x8x8", ["--window", "257x1x1", "--pad", "0"]),
        ("8000x8000", ["--window", "16x16", "--dilation", "300", "--pad", "0"]),
    ],
)
def test_init_takes_options_that_a_large_input_fits(size, options, capsys, monkeypatch):
    said = {"size": size, "channels": "8", "filters": "8"}
    given = {"window", "pad", "dilation"} & {option.lstrip("-") for option in options}
    answers = [said.get(q.name, "") for q in QUESTIONS if q.name not in given]
    monkeypatch.setattr("sys.stdin", Terminal("\n".join(answers) + "\n"))
    assert main(["init", "layer.conv", *options]) == 0


def test_init_asks_nothing_where_no_answer_helps(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal())
    assert main(["init", "layer.conv", "-c", "5", "-k", "4", "--groups", "2"]) == 2
    out, err = capsys.readouterr()
    assert "--groups 2 does not divide -c 5 and -k 4" in err and not out


def test_init_without_an_answer_writes_nothing(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal("10x10\n"))
    assert main(["init", "layer.conv"]) == 2
    assert "nothing was written" in capsys.readouterr().err and not Path("layer.conv").exists()


# ---- list, doctor ------------------------------------------------------------------------------


def test_list_shows_what_there_is(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*TARGETS, *strategies.NAMES, "resnet50"))
    assert main(["list", "suites"]) == 0
    assert capsys.readouterr().out == shown[shown.index("suite ") :]


def test_a_narrow_terminal_leaves_no_letter_out(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr("sys.stdout", shown)
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["list", "targets"]) == 0
    assert "…" not in shown.getvalue()


def test_list_shows_the_options_of_a_strategy(capsys):
    assert main(["list", "options", "tma_im2col"]) == 0
    head, first, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["strategy", "kernel", "option", "values", "meaning"] and first.split()[1] == "kernel"
    own = [(row.name, o.name) for row in kernels_of("tma_im2col") for o in option_rows(row.config)]
    assert [tuple(row.split()[1:3]) for row in rows] == own
    assert main(["list", "options"]) == 0
    several = [s for s in strategies.STRATEGIES if len(kernels_of(s)) > 1]
    every_own = [o for s in strategies.STRATEGIES for row in kernels_of(s) for o in option_rows(row.config)]
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(several) + len(every_own)
    every = [(s.name, o.name, o.doc) for s in strategies.STRATEGIES.values() for o in s.options]
    repeated = [row for row in every if len(set(parts := row[2].split("; "))) < len(parts)]
    assert not repeated  # of options that several kernels have


@pytest.mark.parametrize("arguments", [["strategy"], ["options", "tma_im2coll"], ["options", "auto"], ["suites", "x"]])
def test_list_says_what_it_can_list(arguments, capsys):
    assert main(["list", *arguments]) == 2
    assert "\nhint: " in capsys.readouterr().err


def test_doctor_says_what_works_and_what_to_do(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CONVGEN_CXX", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("CONVGEN_CACHE", "0")
    from convgen.emulator import compiler

    compiler.host_compiler.cache_clear()
    try:
        assert main(["doctor"]) == 1
    finally:
        compiler.host_compiler.cache_clear()
    out = capsys.readouterr().out
    states = {line[:14].strip(): line[14:].split()[0] for line in out.split("\n\n")[0].splitlines()[1:]}
    assert states["NVRTC"] == "works"
    assert states["host compiler"] == states["cache"] == states["GPU"] == "missing"
    assert "  host compiler: install g++ or clang++ (Debian" in out
    assert "cache: unset CONVGEN_CACHE" in out and out.endswith(
        "\nkernels can be compiled, but not run here, on a GPU or in the emulator\n"
    )


def test_doctor_says_why_nvrtc_does_not_compile(capsys, monkeypatch):
    from convgen.runtime import nvrtc
    from convgen.runtime.errors import CompileError

    def fails(*_):
        raise CompileError("NVRTC failed for sm_90a:\nnvrtc: error: failed to open libnvrtc-builtins.so.13.0.")

    monkeypatch.setattr(nvrtc, "compile_source", fails)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "NVRTC failed for sm_90a: nvrtc: error: failed to open libnvrtc-builtins.so.13.0." in out
    assert "  NVRTC: install it again: pip install --force-reinstall nvidia-cuda-nvrtc" in out


def test_doctor_says_how_to_install_cublas_where_cupy_is_missing(capsys, monkeypatch):
    from convgen.runtime import cublas
    from convgen.runtime.errors import NoCupy

    def missing():
        raise NoCupy("CuPy is missing\nhint: pip install 'convgen[cuda13]'")

    monkeypatch.setattr(cublas, "find", missing)
    main(["doctor"])
    assert "  cuBLAS: pip install 'convgen[cuda13,cublas13]'" in capsys.readouterr().out


def test_doctor_says_that_cupy_cannot_write_its_cache(tmp_path):
    """It makes the folder when it is imported, which users without a home cannot."""
    (tmp_path / "cupy.py").write_text("raise PermissionError(13, 'Permission denied', '/nonexistent')\n")
    path = os.pathsep.join((str(tmp_path), str(Path(convgen.__file__).parents[1])))
    ran = subprocess.run(
        [sys.executable, "-m", "convgen", "doctor"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert "which cannot be imported: [Errno 13] Permission denied: '/nonexistent'" in ran.stdout
    assert "  CuPy: set CUPY_CACHE_DIR to a folder that can be written\n" in ran.stdout
    assert ran.returncode != 70 and "internal" not in ran.stderr


@pytest.mark.parametrize(
    ("works", "verdict", "code"),
    [
        ("NVRTC, GPU, CuPy", "compiled, and run on the GPU", 0),
        ("NVRTC, GPU, CuPy, host compiler", "compiled, and run on the GPU", 0),
        ("NVRTC, GPU, host compiler", "compiled, and run in the emulator", 0),
        ("NVRTC, GPU", "compiled, but not run here, on a GPU or in the emulator", 1),
        ("GPU, CuPy, host compiler", "run in the emulator, but not compiled here", 1),
        ("GPU, CuPy", "neither compiled nor run here", 1),
    ],
)
def test_doctor_says_what_kernels_can_be(works, verdict, code, capsys, monkeypatch):
    def missing() -> str:
        raise doctor.Absent("not here")

    parts = [replace(p, probe=str if p.name in works.split(", ") else missing) for p in doctor.PARTS]
    monkeypatch.setattr(doctor, "PARTS", tuple(parts))
    assert main(["doctor"]) == code
    assert capsys.readouterr().out.endswith(f"\nkernels can be {verdict}\n")


# ---- completion --------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_commands_options_and_values(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in (*COMMANDS, "strategy", *TARGETS, *strategies.NAMES):
        assert word in script
    assert re.search(rf"^# Usage: convgen completion {shell} +> ~/", script, re.MULTILINE), "as the help says"
    assert "1) Copy" not in script
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes(capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    ask = 'COMP_WORDS=(convgen "$@"); COMP_CWORD=$(($# )); $(complete -p convgen | sed "s/.*-F //; s/ .*//"); '
    ask += 'echo "${COMPREPLY[@]}"'
    for words, wanted in (
        (("expl",), "explain"),
        (("check", "--target", "sm_8"), "sm_80 sm_86 sm_89"),
        (("explain", "--gpu", "H1"), "H100-80GB-HBM3"),
    ):
        done = subprocess.run(["bash", "-c", script + ask, "bash", *words], text=True, capture_output=True)
        assert done.stdout.split() == wanted.split(), done.stderr


# ---- progress ----------------------------------------------------------------------------------


class Heard(Terminal):
    """A terminal that says when something was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def write(self, text: str) -> int:
        if "planning" in text:
            self.event.set()
        return super().write(text)


def test_work_that_takes_long_is_spoken_of(monkeypatch):
    heard = Heard()
    monkeypatch.setattr("sys.stderr", heard)
    monkeypatch.setattr(console, "PATIENCE_SECONDS", 0)
    with console.spinner("reading") as say:
        say("planning res4")
        assert heard.event.wait(600)


def test_work_that_is_done_at_once_is_not(monkeypatch):
    heard = Heard()
    monkeypatch.setattr("sys.stderr", heard)
    monkeypatch.setattr(console, "PATIENCE_SECONDS", 3600)
    with console.spinner("planning"):
        pass
    assert heard.getvalue() == ""


def test_a_check_that_the_cache_answers_loads_nothing_for_its_progress(tmp_path, monkeypatch):
    pty = pytest.importorskip("pty")
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["init", "layer.conv", *REQUIRED]) == 0
    script = "import sys; from convgen.cli import console, main; console.PATIENCE_SECONDS = 3600\n"
    script += "code = main(['check', 'layer.conv']); print(code, 'rich' in sys.modules)"
    parent, child = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(Path(convgen.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=child, text=True, env=environment
    )
    os.close(child)
    os.close(parent)
    assert done.stdout.splitlines()[-1] == "0 False"
