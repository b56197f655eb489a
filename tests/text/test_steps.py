"""docs/tma_im2col_in_steps.md: from the kernel that reads from top to bottom to the pipelined one, option by option.

--update-goldens writes the differences between the generated sources.
"""

from __future__ import annotations

import difflib
import itertools
import re

import pytest
from test_docs import ROOT

from convgen import driver
from convgen.spec import Spec

PAGE = ROOT / "docs" / "tma_im2col_in_steps.md"
SPEC = (ROOT / "specs" / "golden" / "tma_plain_3x3.conv").read_text(encoding="utf-8")
#: Options that stay as they are.
FIXED = "k_blocks 1  split_k 1  swap_ab 0  cluster 1  stream_k 0  blocks 1"
STEPS = (
    "kernel tma_plain  tile n=64",
    f"kernel tma_im2col  tile m=64 n=64 k=64  stages 2  consumers 1  schedule cooperative  {FIXED}",
    f"kernel tma_im2col  tile m=64 n=64 k=64  stages 4  consumers 1  schedule cooperative  {FIXED}",
    f"kernel tma_im2col  tile m=128 n=64 k=64  stages 4  consumers 2  schedule cooperative  {FIXED}",
    f"kernel tma_im2col  tile m=64 n=64 k=64  stages 4  consumers 2  schedule pingpong  {FIXED}",
)


def source(options: str) -> list[str]:
    """The kernel's part of the source with these options, by lines."""
    text, count = re.subn(r"strategy tma_im2col \{.*\}", f"strategy tma_im2col {{ {options} }}", SPEC)
    assert count == 1
    (compilation,) = driver.load(Spec(text))
    return compilation.source.split("// ---- kernel ---")[1].splitlines()[1:]


@pytest.fixture(scope="module")
def sources() -> list[list[str]]:
    return [source(options) for options in STEPS]


def test_each_step_shows_what_it_changes(sources, golden):
    page = PAGE.read_text(encoding="utf-8")
    for step in range(1, len(STEPS)):
        lines = list(difflib.unified_diff(sources[step - 1], sources[step], n=1, lineterm=""))[2:]
        shown = "\n".join("" if line.startswith("@@") else line.rstrip() for line in lines).strip("\n")
        marks = rf"(<!-- step {step}: [^\n]*-->\n).*?(<!-- end of step {step} -->)"
        page, count = re.subn(
            marks, lambda m, shown=shown: f"{m[1]}```diff\n{shown}\n```\n{m[2]}", page, flags=re.DOTALL
        )
        assert count == 1, f"{PAGE.name} needs the marks of step {step}"
    golden.check(PAGE, page)


def test_steps_after_the_first_are_small(sources):
    """So that they can be read."""
    for before, after in itertools.pairwise(sources[1:]):
        changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
        assert 0 < len(changed) < 50
