"""The golden files' rules, on a small test file in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
TEST = """
from pathlib import Path
FOLDER = Path(__file__).parent / "texts"
def test_one(golden): golden.check(FOLDER / "one.txt", "first\\n")
def test_two(golden): golden.check(FOLDER / "deep" / "two.txt", "second\\n")
def test_orphans(golden): golden.only(FOLDER, ["one.txt", "deep/two.txt"])
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_it.py").write_text(TEST, encoding="utf-8")
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    return tmp_path


def run(project: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    keep = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(project), *arguments],
        cwd=project, env=keep | environment, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_changed_text_fails_with_a_diff_and_stays(project):
    (project / "texts/one.txt").write_text("other\n")
    (project / "texts/deep/two.txt").write_text("second\n")
    code, output = run(project)
    assert code == 1 and "-other" in output and "+first" in output and "1 failed, 2 passed" in output
    assert (project / "texts/one.txt").read_text() == "other\n"


def test_missing_and_orphaned_files_fail(project):
    (project / "texts/one.txt").write_text("first\n")
    (project / "texts/old.txt").write_text("old\n")
    code, output = run(project)
    assert code == 1 and "two.txt is missing" in output and "old.txt" in output and "2 failed, 1 passed" in output
    assert (project / "texts/old.txt").exists()


def test_an_update_rewrites_lists_and_fails_once(project):
    (project / "texts/one.txt").write_text("other\n")
    (project / "texts/old.txt").write_text("old\n")
    code, output = run(project, "--update-goldens")
    assert code == 1
    assert "one.txt: changed" in output and "two.txt: new" in output and "old.txt: removed" in output
    assert (project / "texts/one.txt").read_text() == "first\n" and not (project / "texts/old.txt").exists()
    assert run(project)[0] == 0
    assert run(project, "--update-goldens")[0] == 0  # nothing left to change


def test_ci_cannot_update(project):
    code, output = run(project, "--update-goldens", CI="true")
    assert code == 4 and "CI does not update goldens" in output
    assert not (project / "texts/one.txt").exists()
