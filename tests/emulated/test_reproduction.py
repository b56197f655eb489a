"""docs/reproduction.md is complete and true: its commands run and print our figures, and its files exist."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from convgen.cli import main
from convgen.reproduce import EXPERIMENTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reproduction.md"


@dataclass(frozen=True)
class Claim:
    claim: str
    how: str
    document: str
    ours: str

    @property
    def command(self) -> str:
        """The command that repeats it, without a GPU; empty where there is none."""
        found = re.match(r"`(convgen [^`]*)`", self.how)
        return found[1] if found else ""


@cache
def claims() -> list[Claim]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [Claim(*(cell.strip() for cell in line[1:-1].split("|"))) for line in lines]
    return [row for row in rows if row.claim != "claim"]


def test_every_claim_is_repeated_or_has_a_reason():
    assert len(claims()) > 10
    for claim in claims():
        assert bool(claim.how) != claim.ours.startswith("not reproduced, because "), claim


@pytest.mark.parametrize("command", sorted({c.command for c in claims() if c.command}))
def test_a_command_prints_our_figures(command, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out
    for claim in claims():
        if claim.command == command:
            figures = re.findall(r"`([^`]*)`", claim.ours)
            assert figures and [f for f in figures if f not in printed] == [], claim.claim


def test_results_of_a_gpu_name_their_commit():
    files = {name for c in claims() for name in re.findall(r"\b(benchmarks/results/[\w.]+)", c.how)}
    assert files
    for name in files:
        assert json.loads((ROOT / name).read_text(encoding="utf-8"))["commit"], name


def test_tests_that_are_named_exist():
    files = {name for c in claims() for name in re.findall(r"`(tests/[\w/.]+)`", c.how)}
    assert files and all((ROOT / name).is_file() for name in files)


def test_every_experiment_is_on_the_page():
    assert EXPERIMENTS.keys() <= {
        shlex.split(c.command)[2] for c in claims() if c.command.startswith("convgen reproduce ")
    }
