"""Some convolutions of ONNX's own tests, emulated: tests/text/test_upstream.py has all of them, by the reference."""

from __future__ import annotations

import pytest
from upstream import ONNX, check_onnx

CASES = {case["name"]: case for case in ONNX["cases"]}


@pytest.mark.parametrize(
    "name",
    [
        "conv_with_strides_and_asymmetric_padding",
        "convinteger_with_padding",
        "convtranspose_group_2_image_3",
        "col2im_pads",
        "causal_conv_with_state_silu_fp16",
    ],
)
def test_nodes_of_onnx(name: str) -> None:
    check_onnx(CASES[name])
