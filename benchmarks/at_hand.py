"""What a measurement cannot do without, said in a line before any work."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from convgen.runtime import cuda
from convgen.runtime.errors import NoGpu


def need_gpu(*modules: str) -> None:
    """Ends the program where there is no GPU, or one of these modules is not installed."""
    script = Path(sys.argv[0]).name
    try:
        cuda.driver()
    except NoGpu as e:
        sys.exit(f"{script}: measures on a GPU: {e}")
    if missing := [name for name in modules if find_spec(name) is None]:
        sys.exit(f"{script}: needs {' and '.join(missing)}: python -m pip install {' '.join(missing)}")


if __name__ == "__main__":
    need_gpu(*sys.argv[1:])
