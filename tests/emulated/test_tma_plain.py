"""tma_plain, emulated: strides, dilation, tails of pixels and of channels, several blocks of channels."""

from __future__ import annotations

import pytest
from problems import make
from runs import TARGET, check_plan

from convgen.kernels import strategies

STRATEGY = strategies.STRATEGIES["tma_im2col"]
PLAIN = {"kernel": "tma_plain", "tile.n": 40}


@pytest.mark.parametrize(
    "problem",
    [
        make("fprop", 3, 136, 72, (9, 8), (3, 2), stride=(2, 1), pad=((2, 1), (0, 1)), dilation=(1, 2), dtype="bf16"),
        make("fprop", 2, 8, 16, (7, 7), (1, 1), dtype="f16"),
    ],
    ids=["strided and dilated", "pointwise"],
)
def test_results(problem):
    check_plan(STRATEGY, problem, PLAIN, 3)


def test_auto_never_takes_it():
    problem = make("fprop", 2, 64, 64, (9, 9), (3, 3), pad=1, dtype="f16")
    assert STRATEGY.plan(problem, TARGET, {"kernel": "tma_plain"}).kernel == "tma_plain"
    assert STRATEGY.plan(problem, TARGET, {}).kernel == "tma_im2col"
    assert STRATEGY.plan(problem, TARGET, {"tile.n": 64}).kernel == "tma_im2col"
    assert all(
        options["kernel"] != "tma_plain" for options in STRATEGY.candidates(problem, TARGET) if "kernel" in options
    )


@pytest.mark.parametrize(
    "problem, message",
    [
        (make("fprop", 2, 64, 64, (9, 9), (3, 3), groups=2, dtype="f16"), "groups and epilogues are not served"),
        (
            make("fprop", 2, 12, 64, (9, 9), (3, 3), dtype="f16"),
            "12 channels: a pixel's bytes must be a multiple of 16",
        ),
        (make("fprop", 2, 64, 64, (9, 9), (3, 3), dtype="f32"), "must both be f16 or bf16"),
        (make("fprop", 2, 64, 64, (99, 99), (3, 3), stride=9, dtype="f16"), "stride h=9 is above a tensor map's 8"),
        (make("dgrad", 2, 64, 64, (9, 9), (3, 3), dtype="f16"), "only fprop is"),
        (make("fprop", 2, 64, 64, (9,), (3,), dtype="f16"), "it must be n h w c"),
    ],
)
def test_what_it_does_not_serve(problem, message):
    found = STRATEGY.obstacles(problem, TARGET, {"kernel": "tma_plain"})
    assert any(message in o.message for o in found), found
