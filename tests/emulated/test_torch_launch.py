"""What convgen.torch does on a GPU, with the emulator in the place of launches."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from convgen.functional.arrays import TORCH_ON_HOST  # noqa: E402
from convgen.functional.kernels import kernel_of  # noqa: E402
from convgen.torch import aten, launch, ops  # noqa: E402

torch.set_num_threads(1)


class Emulated:
    """A kernel whose calls are emulated."""

    def __init__(self, key) -> None:
        self._kernel = kernel_of(key)
        self.manifest = self._kernel.manifest

    def __call__(self, *tensors, out):
        self._kernel.emulate(*map(TORCH_ON_HOST.host, tensors), out=TORCH_ON_HOST.host(out))


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setattr(launch, "kernel_of", Emulated)
    monkeypatch.setattr(launch, "_SERVED", {})


def integers(*shape: int):
    return torch.randint(-4, 5, shape).half()


@pytest.mark.parametrize("channels_last", [False, True])
def test_operands_of_every_shape(channels_last):
    x, w = integers(2, 16, 6, 6), integers(32, 16, 3, 3)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    operands = [
        integers(32, 1, 1),
        integers(2, 32, 1, 1),
        integers(2, 32, 6, 6),
        integers(6).expand(2, 32, 6, 6),
        integers(2, 64, 6, 6)[:, ::2],
        integers(1),
    ]
    arguments = x, w, operands, "add mul:0.25 add add add add sub clamp:-128.0,128.0", [1, 1], [1, 1], [1, 1], 1
    found = ops._fused_on_gpu(*arguments)
    assert launch.served(*arguments).launch is not None
    assert torch.equal(found, aten.fused(*arguments))
    assert found.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_modes(mode):
    arguments = integers(2, 8, 5, 6), integers(8, 8, 3, 3), [], "relu", [1, 1], [2, 1, 1, 2], [1, 1], 1, mode
    assert launch.served(*arguments).launch is not None
    assert torch.equal(ops._fused_on_gpu(*arguments), aten.fused(*arguments))


@pytest.mark.parametrize("first", [16, 20])
def test_slices_of_channels_are_read_and_written_where_they_lie(first):
    """By a kernel where they are aligned, else by aten."""
    whole = integers(2, 48, 6, 6).to(memory_format=torch.channels_last)
    before, out = whole.clone(), whole[:, first : first + 8]
    x, z = whole[:, :16], whole[:, 40:]
    arguments = x, integers(8, 16, 1, 1), [z], "add", [1, 1], [0, 0], [1, 1], 1
    expected = aten.fused(*arguments)
    ops._into_on_gpu(out, *arguments)
    serving = launch.served(*arguments, "zeros", out)
    assert ("k=8 of 48" in serving.spec) == (serving.launch is not None) == (first == 16)
    assert torch.equal(out, expected)
    before[:, first : first + 8] = expected
    assert torch.equal(whole, before)


def test_inputs_that_are_not_packed_are_copied():
    arguments = integers(2, 16, 6, 13)[..., 1::2], integers(8, 16, 1, 1), [], "relu", [1, 2], [0, 0, 0, 1], [1, 1], 1
    assert torch.equal(ops._fused_on_gpu(*arguments), aten.fused(*arguments))


def test_what_is_not_served_says_why_and_is_atens():
    x, w = torch.randn(2, 3, 5, 5, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    arguments = x, w, [], "", [1, 1], [0, 0], [1, 1], 1
    assert torch.equal(ops._fused_on_gpu(*arguments), aten.fused(*arguments))
    assert "float64" in launch.served(*arguments).why_not


def test_an_empty_batch_needs_no_kernel():
    arguments = integers(0, 16, 6, 6), integers(8, 16, 3, 3), [], "", [1, 1], [0, 0], [1, 1], 1
    assert ops._fused_on_gpu(*arguments).shape == (0, 8, 4, 4)


def test_a_defect_is_told_and_falls_back(monkeypatch):
    monkeypatch.setattr(launch, "kernel_of", lambda key: 1 / 0)
    arguments = integers(1, 16, 6, 6), integers(8, 16, 3, 3), [], "", [1, 1], [0, 0], [1, 1], 1
    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        found = ops._fused_on_gpu(*arguments)
    assert torch.equal(found, aten.fused(*arguments))
