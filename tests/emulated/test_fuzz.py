"""tests/fuzz.py, emulated: it ends once so many kernels are done, and says what became of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FUZZ = Path(__file__).parents[1] / "fuzz.py"


def test_a_few_gradients(tmp_path: Path) -> None:
    options = ["--kinds", "stem_wgrad", "dgrad", "--count", "4", "--seconds", "600", "--processes", "1"]
    failures = tmp_path / "failures.txt"
    ran = subprocess.run(
        [sys.executable, str(FUZZ), *options, "--failures", str(failures)], capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.returncode == 0 and not failures.exists(), ran.stdout + ran.stderr
    drawn, exact, close = map(int, re.findall(r"^all: (\d+) .* (\d+) exact, (\d+) .* 0 failed", ran.stdout, re.M)[0])
    assert drawn >= exact + close >= 4
