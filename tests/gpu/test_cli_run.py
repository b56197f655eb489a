"""`convgen run` on a GPU: every example is right, and a wrong kernel is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from convgen import driver
from convgen.cli import main

EXAMPLES = sorted((Path(__file__).parents[2] / "specs" / "examples").glob("*.conv"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_right(path, target, capsys):
    assert main(["run", str(path), "--target", target.name]) == 0
    out = capsys.readouterr().out
    assert "on the GPU" in out and "emulated" not in out


def test_a_wrong_kernel_fails(monkeypatch, target, capsys):
    right = driver.Compilation.source.func  # type: ignore[attr-defined]
    wrong = property(lambda self: right(self).replace(", 0.0f)", ", 1.0f)"))
    monkeypatch.setattr(driver.Compilation, "source", wrong)
    (path,) = (p for p in EXAMPLES if p.stem == "conv_bias_relu")
    command = ["run", str(path), "--target", target.name, "--strategy", "direct", "--device", "gpu", "--seed", "7"]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "y is wrong in" in out and "seed 7" in out
