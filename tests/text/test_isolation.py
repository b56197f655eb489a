"""The tests see nothing of the user's own state, nor does anything that they start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import platformdirs
import pytest

from convgen.planner import database

CONFTEST_FOLDER = Path(__file__).resolve().parent.parent
TIERS = ("text", "nvrtc", "emulated", "gpu")
CASES = """
import pytest
from hypothesis import given, settings, strategies

@pytest.mark.parametrize("case", range(40))
def test_many(case): ...

@pytest.mark.costly
@pytest.mark.parametrize("case", range(40))
def test_costly(case): ...

@pytest.mark.costly
def test_one():
    print("one in", __file__)

def test_some(some):
    for case in some(range(40)):
        print("some in", __file__)

@given(strategies.integers())
@settings(max_examples=40)
def test_drawn(example):
    print("drawn in", __file__)
"""

#: A case that is not in the sample.
LEFT_OUT = "emulated/test_cases.py::test_many[33]"

SHOW = "from convgen.planner import database; print(database.user_path())"


def test_the_user_s_tuning_database_is_out_of_reach():
    started = Path(subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True).stdout[:-1])
    assert started == database.user_path() and started.read_bytes() == b""
    assert Path(platformdirs.user_data_dir("convgen")) not in started.parents


def test_the_user_s_cache_is_out_of_reach():
    """What is compiled is kept beside pytest's own cache, or where CONVGEN_CACHE_DIR says."""
    assert Path(os.environ["CONVGEN_CACHE_DIR"]) != Path(platformdirs.user_cache_dir("convgen"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tests in each tier."""
    root = tmp_path_factory.mktemp("tree")
    for tier in TIERS:
        (root / tier).mkdir()
        (root / tier / "test_cases.py").write_text(CASES)
    return root


def run(tree: Path, *arguments: str) -> tuple[set[str], Counter[str]]:
    """The cases that ran, and of each test how many, or how many things it went through."""
    options = ["-vs", "-p", "conftest", "-p", "no:cacheprovider", "--import-mode=importlib", *arguments]
    environment = os.environ | {"PYTHONPATH": str(CONFTEST_FOLDER)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=tree, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cases = set(re.findall(r"^(\w+/test_cases\.py::\w+\[\d+\])", done.stdout, re.MULTILINE))
    within = re.findall(r"(drawn|some|one) in \S+/(\w+/test_cases\.py)", done.stdout)
    return cases, Counter(
        [*(case.partition("[")[0] for case in cases), *(f"{path}::test_{name}" for name, path in within)]
    )


def test_a_sample_runs_by_default(tree: Path):
    cases, ran = run(tree)
    few = range(2, 9)  # the first, and about a sixteenth of the other 39
    for tier in TIERS:
        names = ("many", "costly", "some", "drawn")
        many, costly, some, drawn = (f"{tier}/test_cases.py::test_{name}" for name in names)
        assert {f"{many}[0]", f"{costly}[0]"} <= cases
        assert ran[many] in (few if tier in ("nvrtc", "emulated") else [40])
        assert ran[costly] in (few if tier != "gpu" else [40])
        assert ran[some] in (few if tier != "gpu" else [40])
        assert ran[f"{tier}/test_cases.py::test_one"] == (1 if tier == "gpu" else 0)
        assert ran[drawn] == (10 if tier != "gpu" else 40)
    sampled = [test for test in ran if test.endswith(("many", "costly")) and ran[test] < 40]
    samples = {frozenset(case.partition("[")[2] for case in cases if case.startswith(test)) for test in sampled}
    assert len(samples) == len(sampled) == 5, "tests with the same cases leave out the same"
    assert LEFT_OUT not in cases


@pytest.mark.parametrize("option", ["--every-case", "-ktest_"])
def test_everything_runs_where_it_is_asked_for(tree: Path, option: str):
    _, ran = run(tree, option)
    assert len(ran) == 5 * len(TIERS) and {n for test, n in ran.items() if not test.endswith("one")} == {40}


def test_what_is_named_runs(tree: Path):
    whole, drawn = (f"emulated/test_cases.py::test_{name}" for name in ("costly", "drawn"))
    cases, ran = run(tree, "nvrtc", LEFT_OUT, str(tree / whole), drawn)
    assert LEFT_OUT in cases and ran[whole] == ran[drawn] == 40
    assert ran["nvrtc/test_cases.py::test_many"] < 9
