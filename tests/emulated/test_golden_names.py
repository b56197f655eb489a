"""In generated source, a name inside a function means one thing: no local shadows another local or a parameter."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from convgen.emulator.compiler import INCLUDE, host_compiler

GENERATED = Path(__file__).parents[2] / "generated"
PLANTED = "void planted(int i) { for (int i = 0; i < 2; ++i) {} }"


def shadowed(sources: dict[str, str], folder: Path) -> set[str]:
    """Files of the sources in which a compiler finds that a local is shadowed.  They are one translation unit, which
    need not compile: functions of wgmma are made for each launch."""
    parts = [f'namespace source_{i} {{\n#line 1 "{name}"\n{text}\n}}' for i, (name, text) in enumerate(sources.items())]
    (folder / "all.cc").write_text("\n".join(['#include "convgen_emulator.h"', *parts]), encoding="utf-8")
    compiler = host_compiler()
    warning = "-Wshadow=local" if compiler.family == "gcc" else "-Wshadow"
    options = ["-std=c++17", "-fsyntax-only", warning, "-DCONVGEN_EMULATE", f"-I{INCLUDE}", "all.cc"]
    done = subprocess.run([compiler.path, *options], cwd=folder, capture_output=True, text=True, check=False)
    found = re.findall(
        r"^(\S+?):\d+.*warning: .*shadows a (?:previous local|local variable|parameter)", done.stderr, re.M
    )
    return set(found)


def test_no_local_is_shadowed(tmp_path):
    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted(GENERATED.glob("*.cu"))}
    assert shadowed({**sources, "planted.cu": PLANTED}, tmp_path) == {"planted.cu"}
