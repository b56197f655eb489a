"""ARCHITECTURE.md is true of the tree, and imports go the way that it says."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
MODULES = sorted((ROOT / "convgen").rglob("*.py"))


@dataclass(frozen=True)
class Row:
    """A row of the table of the package: a module or a folder, and the third parties that it may import."""

    path: str
    third_parties: frozenset[str]

    def holds(self, module: Path) -> bool:
        where = module.relative_to(ROOT).as_posix()
        return where.startswith(self.path) if self.path.endswith("/") else where == self.path


@cache
def rows() -> list[Row]:
    found = re.findall(r"^\| `(convgen/[^`]*)` \| .* \|([^|]*)\|$", TEXT, re.MULTILINE)
    return [Row(path, frozenset(filter(None, (p.strip() for p in parties.split(","))))) for path, parties in found]


@cache
def row_of(module: Path) -> int:
    """The row that says most of a module: a room's own goes before its house's."""
    return max((i for i, row in enumerate(rows()) if row.holds(module)), key=lambda i: len(rows()[i].path))


@cache
def tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


@cache
def imports(module: Path) -> Sequence[tuple[str, int]]:
    """Every module that a module imports, wherever it does, with the line; not those for type checkers alone."""
    return tuple(_imports(module))


def _imports(module: Path) -> Iterator[tuple[str, int]]:
    pending: list[ast.AST] = [tree(module)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def file_of(name: str) -> Path | None:
    """The file of a module of convgen; for a name in a module, the module's."""
    parts = name.split(".")
    while parts:
        path = ROOT.joinpath(*parts)
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return candidate
        parts.pop()
    return None


def test_every_module_has_a_row_and_every_row_something():
    for module in MODULES:
        row_of(module)
    for row in rows():
        assert any(row.holds(module) for module in MODULES), row.path


@pytest.mark.parametrize("module", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_go_up_the_table(module):
    own = row_of(module)
    for name, line in imports(module):
        top = name.partition(".")[0]
        where = f"{module.relative_to(ROOT)}:{line}: {name}"
        if top == "convgen":
            if name == "convgen.__version__":  # a number that everyone may know
                continue
            assert row_of(file_of(name)) <= own, where
        elif top not in sys.stdlib_module_names:
            assert top in rows()[own].third_parties, where


def test_every_third_party_of_a_row_is_imported_there():
    for i, row in enumerate(rows()):
        found = {name.partition(".")[0] for m in MODULES if row_of(m) == i for name, _ in imports(m)}
        assert row.third_parties <= found, row.path


def test_modules_that_the_rows_name_exist():
    for line in TEXT.splitlines():
        if match := re.match(r"\| `(convgen/\w+/)` \| (.*?) \|", line):
            for name in re.findall(r"`(\w+/?)`", match[2]):
                folder = ROOT / match[1]
                assert any((folder / n).exists() for n in (name, f"{name}.py")) or name in IDEAS, f"{match[1]}{name}"


#: Words in backticks that are no modules.
IDEAS = {"auto", "Request", "compile"}


LONGEST_MODULE, LONGEST_FUNCTION = 400, 60  # lines; ruff's C901 bounds complexity
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("module", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_modules_and_functions_are_short(module: Path):
    """A function may be longer where a comment `# long: ...` says why."""
    lines = module.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LONGEST_MODULE
    for node in ast.walk(tree(module)):
        if isinstance(node, FUNCTIONS) and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION:
            assert any(line.strip().startswith("# long: ") for line in lines[node.lineno : node.end_lineno]), node.name


def folders(path: Path) -> set[str]:
    """Names of the folders in a folder, those of tools left out."""
    tools = {"dist", "build", "out", "__pycache__"}
    names = {p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")}
    return {name for name in names - tools if not name.endswith(".egg-info")}


def test_every_folder_around_the_package_is_described():
    described = dict(re.findall(r"^\| `(\w+)/` \| (.*) \|$", TEXT, re.MULTILINE))
    assert described.keys() == folders(ROOT) - {"convgen"}
    for name in ("templates", "specs"):
        assert set(re.findall(r"`(\w+)/`", described[name])) == folders(ROOT / name)
    assert set(re.findall(r"`(\w+)`", described["tests"])) == folders(ROOT / "tests")


def test_importing_convgen_imports_nothing_large():
    import subprocess

    large = ["sympy", "lark", "jinja2", "cupy", "numpy", "rich", "torch"]
    script = f"import sys, convgen, convgen.cli; print([m for m in {large} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", script], cwd=ROOT, text=True).strip() == "[]"


def test_every_kernel_has_a_folder_of_templates() -> None:
    kernels = {path.parent.name for path in (ROOT / "convgen/kernels").glob("*/kernel.py")}
    assert kernels <= {path.name for path in (ROOT / "templates").iterdir() if path.is_dir()}
