"""examples/lenet: a step's loss and gradients by emulated kernels, beside NumPy in float64; its digits."""

from __future__ import annotations

import gzip
import importlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from convgen.functional import call

FOLDER = Path(__file__).parents[2] / "examples" / "lenet"
SMALL = {"conv1": (3, 1, 5, 5), "conv2": (4, 3, 5, 5), "fc3": (64, 16), "fc4": (16, 10)}


@pytest.fixture
def lenet(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("lenet")


@pytest.fixture
def digits(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("digits")


def windows(x: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x.astype(float), (5, 5), (2, 3))


def conv2d(x, w, b, activation, strategy):
    return np.maximum(np.einsum("nchwrs,kcrs->nkhw", windows(x), w.astype(float)) + b[:, None, None], 0)


def conv2d_weight(x, shape, g, strategy):
    return np.einsum("nchwrs,nkhw->kcrs", windows(x), g)


def conv2d_input(shape, w, g, strategy):
    return np.einsum("nkhwrs,kcrs->nchw", windows(np.pad(g, ((0, 0), (0, 0), (4, 4), (4, 4)))), w[:, :, ::-1, ::-1])


def test_a_step_is_numpys(lenet, digits, monkeypatch):
    monkeypatch.setattr(call, "_reference", None)  # kernels or nothing
    images, labels = digits.draw(2, np.random.default_rng(5))
    loss, gradients = lenet.LeNet(shapes=SMALL).gradients(images, labels)
    exact = SimpleNamespace(conv2d=conv2d, conv2d_weight=conv2d_weight, conv2d_input=conv2d_input)
    monkeypatch.setattr(lenet, "F", exact)
    expected_loss, expected = lenet.LeNet(shapes=SMALL).gradients(images, labels)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert gradients.keys() == expected.keys() == lenet.LeNet(shapes=SMALL).weights.keys()
    for name, gradient in gradients.items():
        assert np.abs(expected[name]).max() > 0
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_losses_are_torch_s(lenet, digits, monkeypatch):
    """Of steps whose kernels are emulated, as on a GPU in tests/gpu/test_lenet.py; a wrong gradient is seen."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(FOLDER.parents[1] / "benchmarks")
    benchmark = importlib.import_module("lenet_training")
    monkeypatch.setattr(call, "_reference", None)  # kernels or nothing
    losses = benchmark.curves(lenet.LeNet(shapes=SMALL), benchmark.batches(3, 2), "cpu")
    assert len(losses["convgen"]) == 3 and not benchmark.beyond_rounding(losses)
    weight = lenet.F.conv2d_weight
    monkeypatch.setattr(lenet.F, "conv2d_weight", lambda *args, **named: 1.01 * weight(*args, **named))
    losses = benchmark.curves(lenet.LeNet(shapes=SMALL), benchmark.batches(3, 2), "cpu")
    assert "within 5 steps, above" in benchmark.beyond_rounding(losses)


def test_gradients_are_of_the_loss(lenet, digits, monkeypatch):
    """Along a direction, beside the difference of two losses."""
    exact = SimpleNamespace(conv2d=conv2d, conv2d_weight=conv2d_weight, conv2d_input=conv2d_input)
    monkeypatch.setattr(lenet, "F", exact)
    images, labels = digits.draw(4, np.random.default_rng(5))
    network = lenet.LeNet(shapes=SMALL)
    network.weights = {name: w.astype(float) for name, w in network.weights.items()}
    _, gradients = lenet.LeNet(shapes=SMALL).gradients(images, labels)
    direction = {name: np.random.default_rng(6).standard_normal(g.shape) for name, g in gradients.items()}
    losses = []
    for sign in (1, -1):
        moved = lenet.LeNet(shapes=SMALL)
        moved.weights = {name: w + sign * 1e-6 * direction[name] for name, w in network.weights.items()}
        losses.append(moved.gradients(images, labels)[0])
    slope = sum((gradients[name] * direction[name]).sum() for name in gradients)
    assert (losses[0] - losses[1]) / 2e-6 == pytest.approx(slope, rel=1e-3)


def test_it_learns(lenet, digits, monkeypatch):
    monkeypatch.setattr(call, "EMULATED", -1)  # the reference, which is faster
    images, labels = digits.draw(16, np.random.default_rng(5))
    network = lenet.LeNet(shapes=SMALL)
    losses = [network.step(images, labels, rate=0.02) for _ in range(25)]
    assert np.mean(losses[-5:]) < 0.8 * losses[0]
    assert network.scores(images).shape == (16, 10)


def test_mnist_s_files(digits, tmp_path):
    images, labels = np.arange(2 * 28 * 28, dtype=np.uint32).reshape(2, 28, 28) % 256, np.array([7, 2], np.uint8)
    data = b"\0\0\x08\x03" + np.array([2, 28, 28], ">u4").tobytes() + images.astype(np.uint8).tobytes()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(data))
    data = b"\0\0\x08\x01" + np.array([2], ">u4").tobytes() + labels.tobytes()
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(data)
    x, found = digits.mnist(tmp_path, "train")
    assert x.shape == (2, 1, 28, 28) and x.dtype == np.float32 and x[0, 0, 1, 0] == np.float32(28 / 255)
    assert found.tolist() == [7, 2]
