"""Draws the pictures of docs/tutorial.

    python docs/tutorial/pictures.py

The timelines are of emulated runs, and take a C++ compiler.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from convgen import driver
from convgen.emulator import views
from convgen.emulator.timeline import timeline
from convgen.emulator.trace import recording
from convgen.ir import verify
from convgen.report import pictures

HERE = Path(__file__).parent


def compiled(name: str, **defines: int) -> driver.Compilation:
    """The compilation of a chapter's spec."""
    (found,) = driver.choose_all(driver.Spec((HERE / f"{name}.conv").read_text(encoding="utf-8"), defines=defines))
    return found


def pipeline(stages: int) -> str:
    """The timeline of the pipeline's kernel, emulated on random data."""
    compilation = compiled("pipeline", stages=stages)
    arrays = verify.random_inputs(compilation.request.problem, 0)
    with recording() as launches:
        compilation.uncompiled().emulate(arrays["x"], arrays["w"])
    drawn = views.picture(timeline(launches[0]), blocks=1, cycles=9000)
    return re.sub(r"<title>.*?</title>", "", drawn)  # which name lines of the source


#: Those that need no emulator, and those that do, by file.
DRAWN: dict[str, Callable[[], str]] = {
    "direct.svg": lambda: pictures.geometry(compiled("direct").request.problem, alone=True),
    "pipeline_memory.svg": lambda: pictures.shared_memory(compiled("pipeline").plan, alone=True),
}
EMULATED: dict[str, Callable[[], str]] = {
    "pipeline_2.svg": lambda: pipeline(2),
    "pipeline_4.svg": lambda: pipeline(4),
}

if __name__ == "__main__":
    for name, draw in (DRAWN | EMULATED).items():
        (HERE / name).write_text(draw() + "\n", encoding="utf-8")
