"""The tests see nothing of the user's own state, nor does anything that they start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import platformdirs

from convgen.planner import database

SHOW = "from convgen.planner import database; print(database.user_path())"


def test_the_user_s_tuning_database_is_out_of_reach():
    started = Path(subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True).stdout[:-1])
    assert started == database.user_path() and not started.exists()
    assert Path(platformdirs.user_data_dir("convgen")) not in started.parents
