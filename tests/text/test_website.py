"""The site builds without a warning, and its menu leads to every page of docs/."""

from __future__ import annotations

import importlib
import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import needs
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def build(monkeypatch):
    needs.module("material")
    needs.module("railroad")
    monkeypatch.syspath_prepend(str(ROOT / "website"))
    return importlib.import_module("build")


def test_the_site_is_built_without_a_warning(build, tmp_path):
    build.build(tmp_path)
    first = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<h1" in first and "speedup_h200.svg" in first
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/README.md")]
    for page in pages:
        assert f'href="docs/{page.relative_to(ROOT / "docs").with_suffix("")}/"'.replace("README/", "") in first
    grammar = (tmp_path / "docs" / "grammar" / "index.html").read_text(encoding="utf-8")
    rules = re.findall(r"^\??(\w+):", (ROOT / "grammar" / "conv.lark").read_text(encoding="utf-8"), re.MULTILINE)
    drawn = re.findall(r'<h2 id="[^"]*">(\w+)', grammar)
    assert drawn == [rule for rule in rules if rule.islower()]
    assert all((tmp_path / "docs" / "grammar" / f"{rule}.svg").is_file() for rule in drawn)
    shown = {word for rule in drawn for word in words(tmp_path / "docs" / "grammar" / f"{rule}.svg")}
    assert {word for word in shown if word.isupper()} == {"NAME", "INT", "FLOAT"}
    assert shown >= {"let", "dynamic", "prologue", "result", "of", "<="}
    assert not dead_links(tmp_path)


def words(diagram: Path) -> list[str]:
    return [unescape(word) for word in re.findall(r"<text[^>]*>([^<]*)</text>", diagram.read_text(encoding="utf-8"))]


def dead_links(site: Path) -> list[tuple[Path, str]]:
    """Relative links of pages to files that are not there."""
    return [
        (page, link)
        for page in site.rglob("*/index.html")
        for link in re.findall(r'(?:href|src)="(?![a-z]+:|//|#)([^"#?]+)', page.read_text(encoding="utf-8"))
        if not (page.parent / unquote(unescape(link))).exists()
    ]


def test_a_link_that_leads_nowhere_is_an_error(build, tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text("[there](nowhere.md)\n")
    (tmp_path / "grammar").mkdir()
    (tmp_path / "grammar" / "conv.lark").write_text((ROOT / "grammar" / "conv.lark").read_text(encoding="utf-8"))
    (tmp_path / "website").mkdir()
    settings = (ROOT / "website" / "mkdocs.yml").read_text(encoding="utf-8")
    (tmp_path / "website" / "mkdocs.yml").write_text(settings.split("nav:")[0])
    monkeypatch.setattr(build, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="not built"):
        build.build(tmp_path / "site")
