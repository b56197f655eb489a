"""docs/kernels has a page for each kernel, with its options and a picture of what it does.

--update-goldens writes the pictures, the tables of options and the list of kernels; people write the rest.
"""

from __future__ import annotations

import re
import sys
from html import unescape
from importlib import import_module
from itertools import combinations
from pathlib import Path

import pytest
from test_docs import ROOT, options_table

from convgen.kernels.config import option_rows
from convgen.kernels.registry import KERNELS, KernelRow

PAGES = ROOT / "docs" / "kernels"


def written(page: Path, what: str, text: str) -> str:
    """The page with another text between the marks of a part."""
    begin, end = rf"<!-- {what}: [^\n]*-->\n", rf"<!-- end of {what} -->"
    new, count = re.subn(rf"({begin}).*?({end})", rf"\g<1>{text}\n\g<2>", page.read_text(encoding="utf-8"), flags=re.S)
    assert count == 1, f"{page} needs the marks of its {what}"
    return new


@pytest.mark.parametrize("row", KERNELS, ids=lambda row: row.name)
def test_a_page_has_the_kernel_s_options(row: KernelRow, golden) -> None:
    page = PAGES / f"{row.name}.md"
    golden.check(page, written(page, "options", options_table(option_rows(row.config))))


@pytest.mark.parametrize("row", KERNELS, ids=lambda row: row.name)
def test_a_picture_is_what_the_plan_says(row: KernelRow, golden, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(PAGES))
    monkeypatch.delitem(sys.modules, "pictures", raising=False)  # docs/tutorial has another
    golden.check(PAGES / f"{row.name}.svg", import_module("pictures").draw(row.name))


@pytest.mark.parametrize("row", KERNELS, ids=lambda row: row.name)
def test_no_two_texts_of_a_picture_share_a_place(row: KernelRow) -> None:
    picture = (PAGES / f"{row.name}.svg").read_text(encoding="utf-8")
    places = [
        (float(x), float(x) + len(unescape(text)) * (5.5 if "small" in style else 6.5), float(y))
        for x, y, style, text in re.findall(r'<text x="([^"]*)" y="([^"]*)" class="([^"]*)">([^<]*)<', picture)
    ]
    assert places
    for (begin, end, y), (other_begin, other_end, other_y) in combinations(places, 2):
        assert end <= other_begin or other_end <= begin or abs(y - other_y) >= 12


def test_the_list_of_kernels(golden) -> None:
    rows = [f"| [{row.name}]({row.name}.md) | `{row.strategy}` | {row.summary} |" for row in KERNELS]
    table = "\n".join(["| kernel | strategy | what it is |", "|---|---|---|", *rows])
    golden.check(PAGES / "README.md", written(PAGES / "README.md", "kernels", table))
