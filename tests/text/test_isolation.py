"""The tests see nothing of the user's own state, nor does anything that they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import platformdirs

from convgen.planner import database

SHOW = "from convgen.planner import database; print(database.user_path())"


def test_the_user_s_tuning_database_is_out_of_reach():
    started = Path(subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True).stdout[:-1])
    assert started == database.user_path() and started.read_bytes() == b""
    assert Path(platformdirs.user_data_dir("convgen")) not in started.parents


def test_the_user_s_cache_is_out_of_reach():
    """What is compiled is kept beside pytest's own cache, or where CONVGEN_CACHE_DIR says."""
    assert Path(os.environ["CONVGEN_CACHE_DIR"]) != Path(platformdirs.user_cache_dir("convgen"))
