"""What tests/fuzz.py counts, and what it keeps of kernels that were wrong or took their process with them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import fuzz


def fails_with(error: Exception | None):
    def check(text: str, seed: int) -> None:
        assert (text, seed) == ("conv a { }", 7)
        if error:
            raise error

    return check


def test_every_kernel_is_counted_once(tmp_path: Path):
    log = fuzz.Log(tmp_path, 1)
    assert fuzz.settle(log, "dgrad", "conv a { }", 7, fails_with(None), "exact")
    assert fuzz.settle(log, "dgrad", "conv a { }", 7, fails_with(AssertionError("3 are wrong")), "exact")
    other = fuzz.Log(tmp_path, 2)
    assert fuzz.settle(other, "tma_wgrad", "conv a { }", 7, fails_with(None), "close")
    assert not fuzz.settle(other, "dgrad", "conv a { }", 7, fails_with(RuntimeError("a fault")), "exact")
    counts = fuzz.tally(tmp_path)
    assert fuzz.said(counts).splitlines() == [
        "dgrad: 3 kernels drawn, 1 exact, 0 within rounding, 2 failed",
        "tma_wgrad: 1 kernels drawn, 0 exact, 1 within rounding, 0 failed",
        "all: 4 kernels drawn, 1 exact, 1 within rounding, 2 failed",
    ]
    assert fuzz.done(counts) == 4
    assert (tmp_path / "1.failures").read_text() == "seed 7\nconv a { }\n3 are wrong\n\n"
    assert "a fault" in (tmp_path / "2.failures").read_text()


def test_what_took_its_process_with_it_has_failed(tmp_path: Path):
    log = fuzz.Log(tmp_path, 1)
    assert not log.died(1)
    log.draws("mma_wgrad", "seed 7\nconv a { }")
    assert fuzz.said(fuzz.tally(tmp_path)).endswith("0 failed, 1 unfinished")
    assert log.died(-11)
    assert fuzz.tally(tmp_path) == {("drawn", "mma_wgrad"): 1, ("failed", "mma_wgrad"): 1}
    assert (tmp_path / "1.failures").read_text() == "seed 7\nconv a { }\nits process has ended with -11\n\n"
    assert log.died(1) and fuzz.tally(tmp_path)["failed", "mma_wgrad"] == 1


def test_nothing_drawn_is_said():
    assert fuzz.said(fuzz.tally(Path("no_such_folder"))) == "all: 0 kernels drawn, 0 exact, 0 within rounding, 0 failed"


def test_gradients_are_all_but_these():
    assert fuzz.KINDS.keys() - fuzz.GRADIENTS == {"tma_im2col", "tma_halo", "winograd", "winograd_fused"}


@pytest.mark.parametrize("processes", [1, 3, 7, 16])
def test_every_kind_has_a_process(processes: int):
    shares = fuzz.shares(fuzz.GRADIENTS, processes)
    assert len(shares) == processes and all(shares)
    assert {kind for share in shares for kind in share} == set(fuzz.GRADIENTS)
