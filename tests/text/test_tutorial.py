"""docs/tutorial and docs/boxes: excerpts of sources and output are what convgen gives, and so are the pictures.

--update-goldens rewrites excerpts between the same lines, and the pictures.
"""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from convgen import driver
from convgen.cli import main

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial"
CHAPTERS = sorted(page for page in TUTORIAL.glob("*.md") if page.name != "README.md")
#: The five loads of "TMA im2col mode and Convolution via Implicit GEMM", a page each.
BOXES = sorted((TUTORIAL.parent / "boxes").glob("*.md"))
_EXCERPT = re.compile(
    r"(<!-- (source|output) of (.*?), from `(.*?)` to `(.*?)` -->\n```\w+\n)(.*?)(^```$)", re.S | re.M
)


def excerpt(text: str, first: str, last: str) -> str:
    """The lines from one that has a text to the next that has another, without the indentation that all but the
    preprocessor's have."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if first in line), None)
    assert begin is not None, f"no line has {first!r}"
    end = next((i for i in range(begin, len(lines)) if last in lines[i]), None)
    assert end is not None, f"no line after that has {last!r}"
    found = lines[begin : end + 1]
    indent = min(len(line) - len(line.lstrip()) for line in found if line.strip() and line[0] != "#")
    return "".join(f"{line if line.startswith('#') else line[indent:].rstrip()}\n" for line in found)


@pytest.mark.parametrize("page", [*CHAPTERS, *BOXES], ids=lambda page: page.stem)
def test_excerpts_are_what_convgen_gives(page, golden, capsys, monkeypatch):
    monkeypatch.chdir(TUTORIAL.parents[1])

    def now(found: re.Match[str]) -> str:
        head, kind, of, first, last, _, fence = found.groups()
        if kind == "source":
            (compilation,) = driver.choose_all(driver.Spec((TUTORIAL / of).read_text(encoding="utf-8")))
            return head + excerpt(compilation.source, first, last) + fence
        capsys.readouterr()
        assert main(shlex.split(of.strip("`"))[1:]) == 0
        return head + excerpt(capsys.readouterr().out, first, last) + fence

    golden.check(page, _EXCERPT.sub(now, page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
def test_a_chapter_s_spec_is_its_file_s(page):
    for text in re.findall(r"^```conv\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M):
        files = [re.sub(r"\A(#.*\n)+", "", p.read_text(encoding="utf-8")) for p in TUTORIAL.glob("*.conv")]
        assert text in files


@pytest.mark.parametrize("name", ["direct.svg", "pipeline_memory.svg"])
def test_pictures_are_what_is_drawn(name, golden, monkeypatch):
    monkeypatch.syspath_prepend(str(TUTORIAL))
    monkeypatch.delitem(sys.modules, "pictures", raising=False)  # docs/kernels has another
    golden.check(TUTORIAL / name, importlib.import_module("pictures").DRAWN[name]() + "\n")


def test_every_picture_has_a_file():
    named = {name for page in CHAPTERS for name in re.findall(r"\]\((\w+\.svg)\)", page.read_text(encoding="utf-8"))}
    assert named == {path.name for path in TUTORIAL.glob("*.svg")}


@pytest.mark.parametrize("page", BOXES, ids=lambda page: page.stem)
def test_a_box_is_drawn_by_its_command(page, golden, tmp_path, monkeypatch):
    monkeypatch.chdir(TUTORIAL.parents[1])
    text = page.read_text(encoding="utf-8")
    (command,) = re.findall(r"^```console\n(.*?)\n```", text, re.S | re.M)
    assert f"]({page.stem}.svg)" in text and f"`{command}`" in text
    assert main([*shlex.split(command)[1:], "--svg", f"{tmp_path}/box.svg"]) == 0
    golden.check(page.with_suffix(".svg"), (tmp_path / "box.svg").read_text(encoding="utf-8"))
