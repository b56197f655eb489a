"""The walk-throughs of docs/ work: their edits are made in a copy of the tree, and their commands run there.

An edit is a sentence that names the place, followed by a code block:

    New file `path`:
    In `path`, below `line`:
    In `path`, in place of `line`:

where `line`, without its indentation, is one line of the file and no other.  A block of `console` is commands.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The one that takes least comes first: every sample has it.
PAGES = sorted((ROOT / "docs" / "walkthroughs").glob("*.md"), key=lambda page: (page.stem != "option", page.stem))
TREE = ("convgen", "docs", "grammar", "specs", "templates", "tests", "pyproject.toml", "README.md", "CONTRIBUTING.md")

BLOCK = re.compile(
    r"(?:^(?:New file `(?P<new>[^`]+)`|In `(?P<old>[^`]+)`, (?P<how>below|in place of) `(?P<line>[^\n]+)`):\n\n)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Edit:
    """Lines for a file: all of a new one, or those that go below or in place of a line."""

    path: str
    how: str
    line: str
    text: str

    def apply(self, root: Path) -> None:
        path = root / self.path
        if self.how == "new":
            assert not path.exists(), f"{self.path} exists"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text, encoding="utf-8")
            return
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        places = [i for i, line in enumerate(lines) if line.strip() == self.line]
        assert len(places) == 1, f"{self.path} has {len(places)} lines `{self.line}`"
        (at,) = places
        lines[at + (self.how == "below") : at + 1] = [self.text]
        path.write_text("".join(lines), encoding="utf-8")


def steps(page: Path) -> Iterator[Edit | str]:
    """Edits and commands, in the order of the page."""
    for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if found["new"] or found["old"]:
            yield Edit(found["new"] or found["old"], found["how"] or "new", found["line"] or "", found["text"])
        elif found["language"] == "console":
            yield from found["text"].splitlines()


def run(command: str, root: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(root), "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    return subprocess.run(command, shell=True, cwd=root, env=environment, text=True, capture_output=True)


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_walkthrough_works(page, tmp_path):
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name)  # with the bytecode of what the page leaves as it is
        else:
            shutil.copy(source, tmp_path / name)
    found = list(steps(page))
    commands = [step for step in found if isinstance(step, str)]
    assert commands and len(commands) < len(found)
    for step in found:
        if isinstance(step, Edit):
            step.apply(tmp_path)
        else:
            done = run(step, tmp_path)
            assert done.returncode == 0, f"{step}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_sentence_that_announces_an_edit_has_its_block(page):
    announced = re.findall(r"^(?:New file|In) `.*`:$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(announced) == sum(isinstance(step, Edit) for step in steps(page))
