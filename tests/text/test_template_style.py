"""Rules that templates and generated source keep (CONTRIBUTING.md, Style)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jinja2 import nodes

from convgen.codegen.render import environment

ROOT = Path(__file__).parents[2]
TEMPLATES = sorted((ROOT / "templates").rglob("*.j2"))
ARITHMETIC = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.Neg)
#: Extents of the problem, by its dims, and of the matrix product that it is.
EXTENTS = {*"NCDHWKOPQTRS", "GEMM_M", "GEMM_N", "GEMM_K"}
#: A constant, of the call's sizes, too, or a number that a function is made for.
CONSTANT = r"(?:\b(?:const|constexpr) (?:int|u16|u32|u64|long long)|template <int) ([A-Za-z]\w*)(?= =|>|,)"
GOLDENS = sorted((ROOT / "generated").glob("*.cu"))
KERNELS = sorted((ROOT / "convgen" / "kernels").rglob("*.py"))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_with(pattern: str, path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [f"{named(path)}:{i}: {line.strip()}" for i, line in enumerate(lines, 1) if re.search(pattern, line)]


@pytest.mark.parametrize("path", [*TEMPLATES, *KERNELS], ids=named)
def test_places_in_fragments_go_by_name(path):
    """`accumulator_row(lane)` and its like, which say what is where; their definitions alone say how."""
    if path.name != "helpers.cuh.j2":
        assert not lines_with(r"\blane (/|%) 4\b|% (32|warp_threads) (/|%) 4\b", path)


@pytest.mark.parametrize("path", [*TEMPLATES, *KERNELS], ids=named)
def test_the_threads_of_a_warp_go_by_name(path):
    assert not lines_with(r"\b(thread|threadIdx\.x) (/|%) 32\b", path)


@pytest.mark.parametrize("path", TEMPLATES, ids=named)
def test_templates_get_finished_values(path):
    """No arithmetic of Jinja's, and no text made by editing another."""
    tree = environment().parse(path.read_text(encoding="utf-8"))
    numbers = [node for node in tree.find_all(ARITHMETIC) if not _is_literal(node)]
    edits = [node for node in tree.find_all(nodes.Filter) if node.name == "replace"]
    edits += [node for node in tree.find_all(nodes.Getattr) if node.attr in ("replace", "removeprefix", "removesuffix")]
    assert not [f"{named(path)}:{node.lineno}: {node}" for node in (*numbers, *edits)]


def _is_literal(node: nodes.Expr) -> bool:
    return isinstance(node, nodes.Neg) and isinstance(node.node, nodes.Const)


def constants(path: Path) -> set[str]:
    return set(re.findall(CONSTANT, path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", GOLDENS, ids=named)
def test_upper_case_is_for_extents_of_the_problem(path):
    """Constants of a configuration, and what is derived, are in lower case."""
    assert {name for name in constants(path) if name == name.upper()} <= EXTENTS


@pytest.mark.parametrize("path", [path for path in TEMPLATES if path.name != "host.cpp.j2"], ids=named)
def test_no_branch_of_a_template_has_other_constants_in_upper_case(path):
    """Of several words, also where no golden shows it."""
    found = re.findall(r"(?:[A-Z][A-Z0-9]*_)+[A-Z0-9]+", path.read_text(encoding="utf-8"))
    assert set(found) <= EXTENTS | {"CONVGEN_EMULATE"}


@pytest.mark.parametrize("path", GOLDENS, ids=named)
def test_extents_of_the_problem_are_in_upper_case(path):
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"\bconstexpr (?:int|u32|long long) (\w+)(?= =)", text)
    assert not [name for name in found if re.fullmatch(r"gemm_[mnk]|[ncdhwkopqtrs](_extent)?", name)]
