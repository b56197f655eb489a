"""Kernels that are built in a pool of processes, as tuning and benchmarks build them."""

from __future__ import annotations

from pathlib import Path

import pytest

from convgen.bench.build import Builder, Failure, Job, build
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.targets import TARGETS


def problem(k: int) -> ConvProblem:
    return ConvProblem(
        f"k{k}", Op.FPROP, 1, 16, k, (4, 4), (1, 1), (4, 4), (1, 1), (1, 1), (0, 0), (0, 0), 1,
        Tensor("x", "x", "f16", ("n", "h", "w", "c"), (1, 4, 4, 16)),
        Tensor("w", "w", "f16", ("k", "r", "s", "c"), (k, 1, 1, 16)),
        Tensor("y", "y", "f16", ("n", "p", "q", "k"), (1, 4, 4, k)),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path))


def test_a_pool_builds_what_one_process_builds_in_order():
    target = TARGETS["sm_90a"]
    jobs = [Job(problem(k), target, "direct", {}, planned) for k in (8, 16) for planned in (False, True)]
    jobs.insert(1, Job(problem(16), TARGETS["sm_80"], "tma_im2col", {}, planned=True))
    with Builder(workers=2) as builder:
        built = list(builder.build_all(iter(jobs)))
    assert [job for job, _ in built] == jobs
    refused = built.pop(1)[1]
    assert isinstance(refused, Failure) and "sm_80" in refused.message
    for job, artifact in built:
        assert not isinstance(artifact, Failure), artifact
        assert (artifact.manifest.name, artifact.manifest.strategy) == (job.problem.name, "direct")
        assert artifact == build(job)


def test_a_pool_reads_only_so_far_ahead_as_keeps_it_busy():
    read: list[int] = []

    def jobs():
        for k in range(1, 100):
            read.append(k)
            yield Job(problem(8 * k), TARGETS["sm_80"], "tma_im2col", {}, planned=True)

    with Builder(workers=1) as builder:
        results = builder.build_all(jobs())
        for _ in range(3):
            next(results)
    assert len(read) <= 6
