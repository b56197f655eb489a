"""PyTorch's own switches, which what convgen leaves to cuDNN obeys."""

from __future__ import annotations

from typing import Any

import torch


def switches() -> tuple[bool | str, ...]:
    """All that may change what aten computes a layer with, and so how long it takes."""
    return (
        torch.backends.cudnn.benchmark,
        deterministic(),
        allow_tf32(),
        _matmul_precision(),
        str(torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
        str(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
    )


def deterministic() -> bool:
    """Whether cuDNN may take only algorithms that give the same bits in every run."""
    return bool(torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled())


def allow_tf32() -> bool:
    """Whether float32 convolutions may round their factors to tf32, by either of PyTorch's switches: the older raises
    where the newer was used."""
    cudnn: Any = torch.backends.cudnn
    try:
        return bool(cudnn.allow_tf32)
    except RuntimeError:
        return bool(cudnn.conv.fp32_precision == "tf32")


def _matmul_precision() -> str:
    """The precision of float32 products, by either of PyTorch's switches."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        matmul: Any = torch.backends.cuda.matmul
        return str(matmul.fp32_precision)
