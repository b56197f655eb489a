"""`convgen tune --ray` on a cluster of this machine, real but for its two GPUs: workers die."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from served import Pretended

from convgen import cli
from convgen.planner import database
from convgen.planner.database import Status
from convgen.tune import cluster

LAYER = """
conv {name} {{
  input x: f16[n=1, h=4, w=4, c={c}]
  filter w: f16[k=16, r=1, s=1, c={c}]
  output y: f16[n, p, q, k]
  strategy implicit_gemm {{ kernel mma_gemm  tile n=64 }}
}}
"""
LAYERS = {"plain": 16, "fatal": 32, "faulty": 48}


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of this machine's, with two GPUs that it does not have."""
    found = pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setattr(cluster, "cluster", partial(cluster.cluster, factory=partial(Pretended, tmp_path)))
    monkeypatch.setattr(cluster, "OTHERS_SECONDS", cluster.START_SECONDS)  # however busy the machine is
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(tmp_path / "tuning.sqlite"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # where workers find what `served` has
    found.init(
        num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        object_store_memory=80_000_000,
    )  # fmt: skip
    yield found
    found.shutdown()


@pytest.mark.costly  # tests/text/test_spread.py has the same without Ray, which takes ten seconds to start
def test_layers_are_spread_over_a_cluster(ray: Any, tmp_path: Path, capsys):
    """An actor that is killed has its layer given out again; a candidate that crashes takes nothing else with it."""
    spec = tmp_path / "layers.conv"
    spec.write_text("".join(LAYER.format(name=name, c=c) for name, c in LAYERS.items()))
    assert cli.main(["tune", str(spec), "--ray"]) == 0
    assert "3 of 3 layers, 2 GPUs" in capsys.readouterr().err
    known = database.read_all(tmp_path / "tuning.sqlite")
    assert len({m.key for m in known}) == 3 and {m.gpu for m in known} == {"NVIDIA H200"}
    (faulty,) = (m for m in known if m.status is not Status.RIGHT and m.status is not Status.TIMED)
    assert faulty.detail.startswith("its process died") and f"c={LAYERS['faulty']} " in faulty.key
    asked = [line.split(" ", 1) for line in (tmp_path / "log").read_text().splitlines()]
    assert len(asked) == len(known) + 1 == len({what for _, what in asked}) + 1
    assert len({process for process, _ in asked}) in (2, 3)  # one of the two is killed, and may have a successor
    assert len({process for process, what in asked if what == (tmp_path / "fatal").read_text()}) == 2
