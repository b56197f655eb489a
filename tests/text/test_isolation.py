"""The tests see nothing of the user's own state, nor does anything that they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

from convgen.planner import database

CONFTEST_FOLDER = Path(__file__).resolve().parent.parent
CASES = """
import pytest

@pytest.mark.parametrize("case", range(17))
def test_many(case): ...

def test_one(): ...
"""

SHOW = "from convgen.planner import database; print(database.user_path())"


def test_the_user_s_tuning_database_is_out_of_reach():
    started = Path(subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True).stdout[:-1])
    assert started == database.user_path() and started.read_bytes() == b""
    assert Path(platformdirs.user_data_dir("convgen")) not in started.parents


def test_the_user_s_cache_is_out_of_reach():
    """What is compiled is kept beside pytest's own cache, or where CONVGEN_CACHE_DIR says."""
    assert Path(os.environ["CONVGEN_CACHE_DIR"]) != Path(platformdirs.user_cache_dir("convgen"))


@pytest.mark.parametrize(("options", "left"), [([], 18), (["--quick"], 4)])
def test_quick_leaves_every_eighth_case_of_each_test(tmp_path: Path, options: list[str], left: int):
    (tmp_path / "test_cases.py").write_text(CASES)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", *options, str(tmp_path)],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(CONFTEST_FOLDER)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and f"{left} passed" in done.stdout, done.stdout + done.stderr
