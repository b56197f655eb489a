"""The site builds without a warning, and its menu leads to every page of docs/."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

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
