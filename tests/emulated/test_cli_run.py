"""`convgen run` without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from terminals import everything

import convgen
from convgen import driver
from convgen.cli import main, run
from convgen.ir import verify
from convgen.kernels.base import Obstacle
from convgen.spec import Spec

SPEC = """\
let n = 2
conv layer {
  input  x: f16[n, h=6, w=6, c=16]
  filter w: f16[k=16, r=3, s=3, c=16]
  output y: f16[n, p, q, k]
  pad 1
  epilogue {
    operand b: f32[k]
    operand scale: f32[]
    y = relu(acc * scale + b)
  }
  op fprop dgrad
  strategy direct
  target sm_80
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("layer.conv").write_text(SPEC)


def test_every_kernel_is_verified(capsys):
    assert main(["run", "layer.conv", "--device", "emulate"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^layer_fprop: fprop by direct, emulated: y is right: max error ", out, re.MULTILINE)
    assert re.search(r"^layer_dgrad: dgrad by direct, emulated: x is right: max error ", out, re.MULTILINE)
    assert re.search(r"^seed \d+$", out, re.MULTILINE)


def test_a_number_of_images_runs_the_plan_that_it_takes(capsys):
    Path("layer.conv").write_text(SPEC.replace("pad 1", "pad 1  dynamic n").replace("fprop dgrad", "fprop"))
    assert main(["run", "layer.conv", "--device", "emulate", "--images", "1,4096", "--batch", "100"]) == 0
    assert "layer: fprop by direct, emulated on 100 images, planned for 4096: y is right" in capsys.readouterr().out


#: Planned otherwise for one image than for eight.
BATCHED = """\
let n = 8
conv layer {
  input  x: f16[n, h=14, w=14, c=64]
  filter w: f16[k=96, r=3, s=3, c=64]
  output y: f16[n, p, q, k]
  pad 1
  target sm_90a
}
"""


def planned(n: int) -> driver.Compilation:
    (only,) = driver.load(Spec(BATCHED, defines={"n": n}))
    return only


def test_the_configuration_is_what_compile_takes_for_all_images(monkeypatch, capsys):
    assert str(planned(8).plan.config) != str(planned(1).plan.config)
    ran = []
    uncompiled = driver.Compilation.uncompiled
    monkeypatch.setattr(driver.Compilation, "uncompiled", lambda self: ran.append(self.plan) or uncompiled(self))
    Path("layer.conv").write_text(BATCHED)
    assert main(["run", "layer.conv", "--device", "emulate", "--batch", "1"]) == 0
    out, err = capsys.readouterr()
    assert "emulated on 1 of 8 images: y is right" in out and err == ""
    assert [(str(p.config), p.problem.n) for p in ran] == [(str(planned(8).plan.config), 1)]


def test_the_emulator_takes_as_many_images_as_it_can_do(monkeypatch, capsys):
    Path("layer.conv").write_text(BATCHED)
    monkeypatch.setattr(run, "_MACS", 2 * planned(1).request.problem.macs)
    assert main(["run", "layer.conv", "--device", "emulate"]) == 0
    assert "emulated on 2 of 8 images: y is right" in capsys.readouterr().out


def test_more_images_are_taken_where_few_cannot_have_the_configuration(monkeypatch, capsys):
    Path("layer.conv").write_text(BATCHED)
    monkeypatch.setattr(run, "_MACS", 1)
    obstacles = planned(8).choice.strategy.__class__.obstacles

    def refuses(self, problem, target, options):
        return [Obstacle("not so few")] if problem.n < 3 and options else obstacles(self, problem, target, options)

    monkeypatch.setattr(planned(8).choice.strategy.__class__, "obstacles", refuses)
    assert main(["run", "layer.conv", "--device", "emulate"]) == 0
    assert "emulated on 4 of 8 images: y is right" in capsys.readouterr().out
    assert main(["run", "layer.conv", "--device", "emulate", "--batch", "2"]) == 1
    err = capsys.readouterr().err
    assert re.match("convgen: error: --batch 2 is too few for the plan of 8 images: .* serve layer: not so few\n", err)
    assert err.endswith("\nhint: without --batch, as many images are run as the plan needs\n")


def test_a_smaller_batch_by_a_define_is_another_kernel_and_that_is_said(capsys):
    Path("layer.conv").write_text(BATCHED)
    assert main(["run", "layer.conv", "--device", "emulate", "-D", "n=1"]) == 0
    out, err = capsys.readouterr()
    assert "emulated: y is right" in out
    plan = f"{planned(8).plan.strategy}, {planned(8).plan.config}"
    assert f"`convgen compile` without -D writes the plan for n=8: {plan}\nhint: without -D" in err
    assert main(["run", "layer.conv", "--device", "emulate", "-D", "n=16", "--batch", "1"]) == 0
    assert capsys.readouterr().err == ""


def test_the_tolerance_follows_the_plan_s_arithmetic(capsys):
    """tf32 keeps ten bits of each factor: far off for float32, right for tf32."""
    text = SPEC.replace("f16", "f32").replace(" dgrad", "").replace("direct", "implicit_gemm { math tf32 }")
    Path("layer.conv").write_text(text)
    assert main(["run", "layer.conv", "--device", "emulate", "--seed", "1"]) == 0
    assert "y is right" in capsys.readouterr().out

    made = convgen.compile("layer.conv")
    assert made.manifest.arithmetic == "tf32"
    problem = made.plan.problem
    arrays = verify.random_inputs(problem, 1)
    result = made.emulate(*arrays.values())
    assert not verify.check(problem, arrays, result)
    assert verify.check(problem, arrays, result, arithmetic="tf32")


def test_a_seed_gives_the_same_run_again(capsys):
    runs = []
    for seed in ("7", "7", "8"):
        assert main(["run", "layer.conv", "--only", "layer_fprop", "--device", "emulate", "--seed", seed]) == 0
        runs.append(capsys.readouterr().out)
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("drawn", [0, 1 << 31, (1 << 32) - 1])
def test_a_seed_that_is_shown_is_taken(drawn, monkeypatch, capsys):
    monkeypatch.setattr("random.SystemRandom.getrandbits", lambda self, bits: drawn % (1 << bits))
    command = ["run", "layer.conv", "--only", "layer_fprop", "--device", "emulate"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    seed = shown.split()[-1]
    assert main([*command, "--seed", seed]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("debug", ["layer.conv", "layer.conv/x"])
def test_a_folder_for_the_debugger_that_cannot_be_made_is_said(debug, monkeypatch, capsys):
    monkeypatch.setenv("CONVGEN_EMULATOR_DEBUG", debug)
    assert main(["run", "layer.conv", "--device", "emulate"]) == 2
    hint = "\nhint: CONVGEN_EMULATOR_DEBUG names another folder"
    assert re.search(rf"layer.conv: is not a folder.*{hint}", capsys.readouterr().err)


def test_a_wrong_kernel_fails(monkeypatch, capsys):
    right = driver.Compilation.source.func  # type: ignore[attr-defined]

    def wrong(self: driver.Compilation) -> str:
        return right(self).replace(", 0.0f)", ", 1.0f)")

    monkeypatch.setattr(driver.Compilation, "source", property(wrong))
    assert main(["run", "layer.conv", "--only", "layer_fprop", "--device", "emulate", "--seed", "7"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"emulated: y is wrong in \d+ of \d+ elements .*; worst at \[n=\d, p=\d, q=\d, k=\d+\]", out)
    assert "seed 7" in out


def test_progress_is_shown_on_a_terminal_and_leaves_nothing(tmp_path):
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(Path(convgen.__file__).parents[1]), "TERM": "xterm"}
    command = [sys.executable, "-m", "convgen", "run", "layer.conv", "-D", "n=16", "--batch", "16"]
    made = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=child, text=True, env=environment)
    os.close(child)
    shown = everything(parent)
    out, _ = made.communicate()
    assert made.returncode == 0 and "emulated: y is right" in out
    assert b"emulating layer_fprop" in shown and b"%" in shown  # what takes less than a moment is not shown
    assert shown.rstrip().endswith(b"\x1b[2K")  # the bar is wiped off
