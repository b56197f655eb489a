"""docs/kernels has a page for each kernel, with its options and a picture of what it does.

--update-goldens writes the pictures, the tables of options and the list of kernels; people write the rest.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
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


def test_the_list_of_kernels(golden) -> None:
    rows = [f"| [{row.name}]({row.name}.md) | `{row.strategy}` | {row.summary} |" for row in KERNELS]
    table = "\n".join(["| kernel | strategy | what it is |", "|---|---|---|", *rows])
    golden.check(PAGES / "README.md", written(PAGES / "README.md", "kernels", table))
