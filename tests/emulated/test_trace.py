"""Timelines of emulated runs: who waits for whom."""

from __future__ import annotations

import importlib.util
import json
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import convgen
from convgen.cli import main
from convgen.emulator import compiler, views
from convgen.emulator.timeline import LATENCY, LOADS, STORES, Timeline, timeline
from convgen.emulator.trace import Did, Launch, recording

SPEC = """\
conv traced {
  input  x: f16[n=1, h=8, w=8, c=64]
  filter w: f16[k=64, r=3, s=3, c=64]
  output y: f16[n, p, q, k]
  pad 1
  strategy tma_im2col { tile m=64 n=64 k=64  stages 3  split_k 1 }
  target sm_90a
}
"""
K_BLOCKS = 9
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def launch() -> Launch:
    kernel = convgen.compile(SPEC)
    x, w = (np.ones(t.shape, np.float16) for t in kernel.manifest.reads)
    with recording() as launches:
        y = kernel.emulate(x, w)
    assert (y == kernel.emulate(x, w)).all() and y[0, 4, 4, 0] == 9 * 64
    (found,) = launches
    return found


@pytest.fixture(scope="module")
def line(launch) -> Timeline:
    return timeline(launch)


def test_kinds_are_numbered_as_in_the_runtime():
    text = (compiler.RUNTIME / "trace.h").read_text()
    names = re.findall(r"^  (\w+),", text.split("enum class Did")[1].split("};")[0], re.MULTILINE)
    assert [name.upper() for name in names] == [did.name for did in Did]


def test_what_the_kernel_does_is_recorded(launch):
    kinds = launch.events["what"].tolist()
    assert launch.left_out == 0 and launch.entry == "convgen_traced"
    assert kinds.count(Did.LOAD) == kinds.count(Did.LANDED) == 2 * K_BLOCKS
    assert kinds.count(Did.MULTIPLY) == K_BLOCKS * 64 // 16
    assert {Did.START, Did.EXIT, Did.STORE, Did.MULTIPLY_WAIT} <= set(kinds)
    loads = launch.events[launch.events["what"] == Did.LOAD]
    assert set(loads["amount"]) == {64 * 64 * 2}
    assert all("tma_load" in launch.source.splitlines()[n - 1] for n in loads["line"])


def test_times_follow_what_is_waited_for(line):
    assert line.cycles > LATENCY
    for s in line.slices:
        assert 0 <= s.begin < s.end
        if s.kind == "wait":
            assert s.end <= s.cause.cycle  # before, where reading suffices
    waits = [s for s in line.slices if s.kind == "wait" and "mbarrier_wait_parity" in line.code(s.line)]
    consumer = [s for s in waits if s.track == "warp 0"]
    assert consumer and {s.cause.track for s in consumer} == {LOADS}
    # the ring has 3 stages: the producer waits for products
    producer = [s for s in waits if line.roles[s.block, s.track] == "producer"]
    assert producer and all(line.roles[s.cause.block, s.cause.track] == "consumer" for s in producer)


def test_a_warp_does_one_thing_at_a_time(line):
    for (block, warp), (begin, end) in line.warps.items():
        own = [s for s in line.slices if (s.block, s.track) == (block, warp)]
        assert all(a.end <= b.begin for a, b in pairwise(own))
        assert all(begin <= s.begin and s.end <= end for s in own)


def test_products_come_after_their_loads(line):
    products = [s for s in line.slices if s.kind == "multiply"]
    loads = sorted(s.end for s in line.slices if s.kind == "load")
    assert min(p.begin for p in products) >= loads[1]
    assert next(s for s in line.slices if s.track == STORES).begin >= max(p.end for p in products)


def test_chrome_s_format(line):
    events = json.loads(views.chrome_json([line, line]))["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X", "b", "e", "s", "f"}
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"warp 0 (consumer)", "warp 4 (producer)", LOADS, STORES, "wgmma of warpgroup 0"} <= names
    for begin, end in (("b", "e"), ("s", "f")):
        assert sorted(e["id"] for e in events if e["ph"] == begin) == sorted(e["id"] for e in events if e["ph"] == end)
    waits = [e for e in events if e["ph"] == "X" and e["cat"] == "wait"]
    assert any(e["args"]["for"] == LOADS and "mbarrier_wait" in e["args"]["source"] for e in waits)
    assert max(e["ts"] for e in events if "ts" in e) > line.cycles  # the second launch follows the first


def test_the_picture_has_every_track_inside_it(line):
    root = ElementTree.fromstring(views.picture(line))
    texts = ["".join(e.itertext()) for e in root.iter(f"{SVG}text")]
    assert {"warp 4 (producer)", LOADS, STORES} <= set(texts)
    width = float(root.get("width"))
    for bar in root.iter(f"{SVG}rect"):
        assert float(bar.get("x")) >= 0 and float(bar.get("x")) + float(bar.get("width")) <= width


def test_run_writes_a_trace(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("layer.conv").write_text(SPEC)
    for file in ("trace.json", "trace.svg"):
        assert main(["run", "layer.conv", "--trace", file, "--seed", "7"]) == 0
        assert f"wrote {file}: 1 launch\n" in capsys.readouterr().out
    assert json.loads(Path("trace.json").read_text())["traceEvents"]
    assert Path("trace.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["trace.png"], "a trace is a .json or a .svg file"), (["t.json", "--device", "gpu"], "needs the emulator")],
)
def test_a_trace_that_cannot_be_made_is_refused_before_the_run(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("layer.conv").write_text(SPEC)
    assert main(["run", "layer.conv", "--trace", *arguments]) == 2
    assert said in capsys.readouterr().err and [p.name for p in tmp_path.iterdir()] == ["layer.conv"]


@pytest.mark.parametrize("name", ["pipeline_2.svg", "pipeline_4.svg"])
def test_the_tutorial_s_timelines_are_what_is_drawn(name, golden, monkeypatch):
    tutorial = Path(__file__).parents[2] / "docs" / "tutorial"
    spec = importlib.util.spec_from_file_location("tutorial_pictures", tutorial / "pictures.py")
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    golden.check(tutorial / name, pictures.EMULATED[name]() + "\n")
