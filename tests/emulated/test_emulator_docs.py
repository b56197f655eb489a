"""docs/emulator.md: its example prints what it says, its table of findings is whole."""

from __future__ import annotations

import re
from pathlib import Path

from excuses import HARMLESS, UNSEEN

from convgen.emulator import compiler

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "emulator.md").read_text(encoding="utf-8")


def test_the_five_loads_print_the_tutorial_s_tables(capsys):
    (example,) = re.findall(r"```python\n(import numpy.*?)```", TEXT, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(example, "docs/emulator.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_readme_s_python_runs_without_a_gpu(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    names: dict = {}
    exec(compile(example, "README.md", "exec"), names)
    assert "__global__" in capsys.readouterr().out
    # ones everywhere: a pixel inside sums all taps, one in a corner four of nine
    assert [names["y"][0, i, i, 0] for i in (0, 7)] == [4 * 256, 9 * 256]


def test_every_kind_of_finding_is_explained():
    cpp = "".join(p.read_text(encoding="utf-8") for p in compiler.RUNTIME.iterdir())
    python = "".join(p.read_text(encoding="utf-8") for p in Path(compiler.__file__).parent.glob("*.py"))
    kinds = set(re.findall(r"(?:finding|fatal|undefined)\(\s*(?:\*where,\s*)?\"([a-z ]+)\"", cpp))
    kinds |= set(re.findall(r'Finding\("([a-z ]+)"', python))
    assert len(kinds) > 15
    table = TEXT.split("## What it finds")[1].split("##")[0]
    assert set(re.findall(r"^\| `([a-z ]+)` \|", table, re.MULTILINE)) == kinds


def test_every_mutant_that_is_not_noticed_is_listed():
    table = TEXT.split("## How well it finds")[1].split("##")[0]
    for excuse in (*HARMLESS, *UNSEEN):
        assert excuse.reason in table
